//! Files that hold an epoch: written so that nobody else can read them, read without showing them.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use orbite::SourceEpoch;

use crate::failure::Failure;
use crate::output::note;

/// Largest file that is read.
const FILE_MAX: u64 = 64 << 10;

/// Writes `text` and a line feed to `path`, mode 0600. A file that is there already is replaced only
/// if it is a regular file of this user that nobody else can read or write; links are not followed.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let refused = || Failure::usage(format!("cannot write {}", path.display()));
    let mut file = create(path).map_err(|error| refused().because(error))?;
    if let Some(reason) = file.reason {
        return Err(refused().because(reason).hint("remove it, or name another file"));
    }
    file.open
        .set_len(0)
        .and_then(|()| writeln!(file.open, "{text}"))
        .map_err(|error| refused().because(error))
}

struct Opened {
    open: File,
    /// Why it must not be written.
    reason: Option<&'static str>,
}

fn create(path: &Path) -> io::Result<Opened> {
    // Neither a link nor a pipe that waits for its reader.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let options = |new: bool| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(new).mode(0o600).custom_flags(flags);
        options
    };
    match options(true).open(path) {
        Ok(open) => {
            // The mask of the process may have taken bits, never added any; ours need both.
            open.set_permissions(Permissions::from_mode(0o600))?;
            Ok(Opened { open, reason: None })
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let open = options(false).open(path)?;
            let found = open.metadata()?;
            let reason = if !found.is_file() || found.nlink() != 1 {
                Some("it is there already and is no plain file of one name")
            } else if found.uid() != rustix::process::geteuid().as_raw() {
                Some("it is there already and belongs to another user")
            } else if found.mode() & 0o077 != 0 {
                Some("it is there already and others can open it")
            } else {
                None
            };
            Ok(Opened { open, reason })
        }
        Err(error) => Err(error),
    }
}

/// What a file of [`write`] holds.
#[derive(Debug)]
pub(crate) enum Secret {
    Epoch(SourceEpoch),
    /// Text of a descriptor; only the engine knows whether it is one.
    Descriptor(Descriptor),
}

/// Text that names and opens an engine.
pub(crate) struct Descriptor(String);

impl Descriptor {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Descriptor(<redacted>)")
    }
}

/// Reads `path`, or standard input for `-`.
pub(crate) fn read(path: &Path) -> Result<Secret, Failure> {
    let failed = || Failure::usage(format!("cannot read the epoch from {}", path.display()));
    let mut text = String::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(FILE_MAX).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| {
            if file.metadata()?.mode() & 0o077 != 0 {
                note(format_args!(
                    "warning: others can open {}, and who has the epoch has the target's memory",
                    path.display()
                ));
            }
            file.take(FILE_MAX).read_to_string(&mut text)
        })
    };
    read.map_err(|error| failed().because(error))?;
    parse(&text).ok_or_else(|| failed().because("it is empty or has more than one line"))
}

fn parse(text: &str) -> Option<Secret> {
    let text = text.trim();
    if text.is_empty() || text.contains(char::is_whitespace) {
        return None;
    }
    let descriptor = || Secret::Descriptor(Descriptor(text.to_owned()));
    Some(SourceEpoch::from_hex(text).map_or_else(descriptor, Secret::Epoch))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("orbite-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
        fn file(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_secret_is_for_its_owner_alone_and_can_be_replaced() {
        let folder = Folder::new("secret");
        let path = folder.file("a");
        write(&path, "a longer first text").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        write(&path, "second").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second\n");
    }

    #[test]
    fn files_that_others_can_open_links_and_devices_are_refused() {
        let folder = Folder::new("refused");
        let (open, link, twice) = (folder.file("open"), folder.file("link"), folder.file("twice"));
        fs::write(&open, "kept").unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o640)).unwrap();
        symlink(folder.file("elsewhere"), &link).unwrap();
        write(&folder.file("once"), "kept").unwrap();
        fs::hard_link(folder.file("once"), &twice).unwrap();
        for path in [&open, &link, &twice, &PathBuf::from("/dev/null"), &folder.0] {
            assert!(write(path, "secret").is_err(), "{}", path.display());
        }
        assert_eq!(fs::read_to_string(&open).unwrap(), "kept");
        assert_eq!(fs::read_to_string(&twice).unwrap(), "kept\n");
        assert!(!folder.file("elsewhere").exists());
    }

    #[test]
    fn an_epoch_and_a_descriptor_are_told_apart() {
        let folder = Folder::new("read");
        let epoch = "5a".repeat(16);
        write(&folder.file("e"), &epoch).unwrap();
        assert!(matches!(read(&folder.file("e")), Ok(Secret::Epoch(e)) if e.to_hex() == epoch));
        let Some(Secret::Descriptor(text)) = parse(" some-text\n") else { panic!() };
        assert_eq!(text.as_str(), "some-text");
        assert!(!format!("{text:?}").contains("some"));
        assert!(parse("").is_none() && parse("a b").is_none() && parse("a\nb").is_none());
        assert!(read(&folder.file("missing")).is_err());
    }
}
