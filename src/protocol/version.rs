//! Who speaks which protocol: magic, version, build id, features.

use core::ops::BitAnd;

use sha2::{Digest, Sha256};

/// First bytes of every handshake message of a connection's first two steps. The high bit and the
/// line end reveal a channel that changes bytes.
pub(crate) const MAGIC: [u8; 8] = *b"\x8Forbite\n";

/// Major version: must be equal on both sides.
pub(crate) const MAJOR: u16 = 1;

/// Minor version: the smaller of both sides' holds.
pub(crate) const MINOR: u16 = 0;

/// Raised with each change of a byte or of its meaning, so that builds that would misread each other
/// refuse each other. A test pins the encodings and fails where this was forgotten.
const PROTOCOL_REVISION: u32 = 2;

/// The build id of this crate: the first 8 bytes of SHA-256 over its version and the protocol's
/// revision. The same for every program that is built from one release; both sides of a connection must
/// have the same one, or the handshake ends.
pub(crate) fn build_id() -> [u8; 8] {
    let mut hash = Sha256::new();
    hash.update(b"orbite build id v1\0");
    hash.update(env!("CARGO_PKG_VERSION").as_bytes());
    hash.update([0]);
    hash.update(PROTOCOL_REVISION.to_le_bytes());
    let digest = hash.finalize();
    let mut id = [0; 8];
    for (to, from) in id.iter_mut().zip(digest.iter()) {
        *to = *from;
    }
    id
}

/// Optional parts of the protocol. Each side says what it wants; what both want holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features(pub u64);

impl Features {
    /// Every payload of a data connection carries a checksum of its own.
    pub const PAYLOAD_CRC: Self = Self(1);

    /// Whether all of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What both sides have. Bits that one side does not know vanish here.
impl BitAnd for Features {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_has_one_id_and_features_intersect() {
        assert_eq!(build_id(), build_id());
        assert_ne!(build_id(), [0; 8]);
        let both = Features(0b101) & Features::PAYLOAD_CRC;
        assert!(both.contains(Features::PAYLOAD_CRC));
        assert_eq!(both, Features::PAYLOAD_CRC, "a bit that one side does not know is gone");
        assert!(!Features(0b100).contains(Features::PAYLOAD_CRC));
    }
}
