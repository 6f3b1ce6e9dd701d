//! Reading small kernel files of which nothing is taken for granted.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Longest attribute that is believed, bytes.
const ATTRIBUTE_MAX: u64 = 4096;

/// Content of an attribute file without the white space around it. `None`: missing, unreadable, not a
/// plain file, empty, longer than 4 KiB, or not text.
pub(super) fn read(path: &Path) -> Option<String> {
    read_up_to(path, ATTRIBUTE_MAX)
}

/// As [`read`], for files that are long by nature.
pub(super) fn read_up_to(path: &Path, max: u64) -> Option<String> {
    // Without O_NONBLOCK opening a pipe would wait for its writer.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    let read = file.take(max + 1).read_to_end(&mut bytes).ok()?;
    if read as u64 > max {
        return None;
    }
    let text = String::from_utf8(bytes).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fixture::Tree;

    #[test]
    fn what_is_not_a_short_text_is_unknown() {
        let tree = Tree::new("attribute")
            .file("good", " 0-3\n")
            .file("empty", "\n")
            .file("longest", "7".repeat(4096))
            .file("huge", "7".repeat(4097))
            .file("binary", b"\xff\xfe");
        let read = |name: &str| read(&tree.root().join(name));
        assert_eq!(read("good").as_deref(), Some("0-3"));
        assert!(read("longest").is_some());
        for unknown in ["missing", "empty", "huge", "binary", "."] {
            assert_eq!(read(unknown), None, "{unknown}");
        }
    }
}
