//! Identifiers. Each is its own type, so that an index, a count and a length cannot be mixed up.

use core::fmt;

use sha2::{Digest, Sha256};

use super::epoch::SourceEpoch;

/// Public digest of a [`SourceEpoch`]: 16 bytes that name an engine and give no access to it.
///
/// It is the first half of SHA-256 over a fixed label and the epoch, so it can stand in logs, errors
/// and on the wire. Two engines have equal ids only if they have equal epochs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineId([u8; 16]);

impl EngineId {
    /// The id of the engine that owns `epoch`.
    pub fn of(epoch: &SourceEpoch) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"orbite engine id v1\0");
        hash.update(epoch.secret_bytes());
        let digest = hash.finalize();
        let mut id = [0; 16];
        for (to, from) in id.iter_mut().zip(digest.iter()) {
            *to = *from;
        }
        Self(id)
    }

    /// An id as it came over the wire. Any 16 bytes are a possible id.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineId({self})")
    }
}

/// Names one publication of one range to peers. `id` and `generation` together are never reused in a
/// process, so an old descriptor cannot match memory that was registered later at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RegionKey {
    pub id: u64,
    pub generation: u32,
}

/// Position of a shard in its engine, `0..count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShardIndex(pub u16);

/// A peer in the tables of one engine's shards: slot and generation, so that a late message about a
/// peer that left never reaches its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerKey {
    pub slot: u32,
    pub generation: u32,
}

/// A posted slice: slot and generation in the shard's ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SliceId {
    pub slot: u32,
    pub generation: u32,
}
