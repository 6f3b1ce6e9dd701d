//! The key that two engines share before they meet.

use std::fmt;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use subtle::ConstantTimeEq as _;

use crate::error::{Error, Result};

use super::file::{open_regular, quoted, read_into};
use super::sys;

/// Fewest bytes of a key: 256 bits.
const MIN_BYTES: usize = 32;
/// Most bytes of a key.
const MAX_BYTES: usize = 1024;

/// A secret of 32 to 1024 bytes that both sides of [`SecurityMode::Psk`](super::SecurityMode::Psk)
/// prove to know. It never travels, and no public call gives its bytes back.
///
/// `Debug` shows no byte of it. Comparison takes the same time wherever two keys of one length
/// differ, and looks at the bytes alone, not at the file they came from.
#[derive(Clone)]
pub struct PresharedKey {
    bytes: Arc<[u8]>,
    file: Option<Arc<Path>>,
}

impl PresharedKey {
    /// A key made in code. `InvalidConfig` unless it has 32 to 1024 bytes, not all of them zero (a
    /// zero key proves nothing). A configuration with such a key dumps `"<redacted>"` in its place,
    /// which no document may contain: write the key to a file for that.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        usable(bytes).map_err(|rule| Error::InvalidConfig(format!("pre-shared key: {rule}")))?;
        Ok(Self { bytes: Arc::from(bytes), file: None })
    }

    /// The whole content of a file, read now and never again. Every byte counts, a newline at the end
    /// too.
    ///
    /// `InvalidConfig` naming the path and the rule, unless it is a regular file after opening, has
    /// no permission bit for group or others, belongs to the effective user of this process, and
    /// holds 32 to 1024 bytes, not all of them zero.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        Self::read(path.as_ref())
            .map_err(|reason| Error::InvalidConfig(format!("key file: {reason}")))
    }

    /// The file this key was read from; `None` for a key made in code.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The secret, for key derivation only.
    pub(crate) fn secret_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`from_file`](Self::from_file); `Err` is a sentence.
    pub(super) fn read(path: &Path) -> core::result::Result<Self, String> {
        let named = quoted(path);
        let (mut file, metadata) = open_regular(path)?;
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(format!(
                "{named} has mode {mode:04o}, so others than its owner may use it; run chmod 600 on it"
            ));
        }
        let (owner, user) = (metadata.uid(), sys::effective_uid());
        if owner != user {
            return Err(format!(
                "{named} belongs to user {owner}, but this process runs as user {user}; the key file \
                 has to belong to the user that runs the engine"
            ));
        }
        let mut room = [0; MAX_BYTES + 1];
        let length = read_into(&mut file, path, &mut room)?;
        let bytes = room.get(..length).unwrap_or_default();
        usable(bytes).map_err(|rule| format!("{named}: {rule}"))?;
        Ok(Self { bytes: Arc::from(bytes), file: Some(Arc::from(path)) })
    }
}

/// The rule that `bytes` break as a key, if any. It never repeats a byte.
fn usable(bytes: &[u8]) -> core::result::Result<(), String> {
    match bytes.len() {
        length if length < MIN_BYTES => {
            Err(format!("a key has {MIN_BYTES} to {MAX_BYTES} bytes; this one has {length}"))
        }
        length if length > MAX_BYTES => {
            Err(format!("a key has {MIN_BYTES} to {MAX_BYTES} bytes; this one has more"))
        }
        // HMAC pads short keys with zeros, so such a key equals none at all.
        _ if bytes.iter().all(|byte| *byte == 0) => {
            Err("all bytes are zero, which proves nothing; use random bytes".into())
        }
        _ => Ok(()),
    }
}

impl PartialEq for PresharedKey {
    fn eq(&self, other: &Self) -> bool {
        self.bytes.ct_eq(&other.bytes).into()
    }
}

impl Eq for PresharedKey {}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "PresharedKey(<redacted>, from {})", quoted(file)),
            None => f.write_str("PresharedKey(<redacted>)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_a_length_in_bounds_and_is_not_zero() {
        for good in [vec![1; 32], vec![0xff; 1024]] {
            assert_eq!(PresharedKey::from_bytes(&good).unwrap().secret_bytes(), good);
        }
        for bad in [vec![], vec![1; 31], vec![1; 1025], vec![0; 64]] {
            let error = PresharedKey::from_bytes(&bad).unwrap_err();
            assert_eq!(error.code(), "invalid_config", "{error}");
        }
    }

    #[test]
    fn keys_are_equal_by_their_bytes_and_debug_shows_none() {
        let key = PresharedKey::from_bytes(b"0123456789abcdef0123456789abcdef").unwrap();
        assert_eq!(key, key.clone());
        assert_ne!(key, PresharedKey::from_bytes(&[7; 32]).unwrap());
        assert_ne!(key, PresharedKey::from_bytes(&[7; 33]).unwrap());
        assert_eq!(format!("{key:?}"), "PresharedKey(<redacted>)");
    }
}
