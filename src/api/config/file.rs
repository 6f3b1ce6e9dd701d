//! Reading a named regular file without ever hanging on it or on what took its name.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Opens `path`, which must name a regular file (symbolic links are followed).
///
/// The type is looked at before the open, because opening a device can have effects of its own, and
/// again on the descriptor, because the name may have changed its meaning in between. The open does
/// not block, so a FIFO that slips in cannot hang it. `Err` is a sentence that names the path.
pub(super) fn open_regular(path: &Path) -> Result<(File, Metadata), String> {
    let named = quoted(path);
    let before =
        std::fs::metadata(path).map_err(|error| format!("cannot look at {named}: {error}"))?;
    regular(path, before.file_type())?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| format!("cannot open {named}: {error}"))?;
    let opened = file.metadata().map_err(|error| format!("cannot look at {named}: {error}"))?;
    regular(path, opened.file_type())?;
    Ok((file, opened))
}

/// Reads from `file` until its end or until `room` is full; gives the number of bytes. A file that
/// grows meanwhile cannot pass the end of `room`.
pub(super) fn read_into(file: &mut File, path: &Path, room: &mut [u8]) -> Result<usize, String> {
    let mut filled = 0;
    while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("cannot read {}: {error}", quoted(path))),
        }
    }
    Ok(filled)
}

/// A path as errors show it: in quotes, control characters escaped.
pub(super) fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().escape_debug())
}

fn regular(path: &Path, kind: FileType) -> Result<(), String> {
    if kind.is_file() {
        return Ok(());
    }
    let is = if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "no file"
    };
    Err(format!("{} is {is}; name a regular file", quoted(path)))
}
