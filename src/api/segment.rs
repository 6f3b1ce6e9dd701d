//! The requester's view of a peer.

use crate::shard::core::OpenedPeer;
use crate::shard::peer::PeerRegion;
use crate::types::{EngineId, MemoryLocation, MemoryType, Permission, SourceEpoch, Transport};

/// One region of a peer: information, not authority. Each operation is checked at the source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteRegion {
    /// First byte, as the peer's process sees it.
    pub address: u64,
    /// Number of bytes.
    pub length: u64,
    /// What this engine may do with it.
    pub permission: Permission,
    /// Kind of memory.
    pub memory_type: MemoryType,
    /// Where it lies.
    pub location: MemoryLocation,
    /// Transports that the peer offers for it.
    pub transports: Vec<Transport>,
}

/// Immutable snapshot of one peer's regions, bound to the engine that opened it.
///
/// Every clone keeps the peer's identity charged against `max_peer_segments`. Dropping the last one gives
/// the charge back, and starts the end of the identity's lanes and control connection; it does not wait.
#[derive(Clone, Debug)]
pub struct RemoteSegment {
    pub(crate) opened: OpenedPeer,
}

impl RemoteSegment {
    pub(crate) const fn new(opened: OpenedPeer) -> Self {
        Self { opened }
    }

    /// Endpoint that was opened, `ip:port`.
    pub fn endpoint(&self) -> &str {
        &self.opened.identity.peer.endpoint_text
    }

    /// Epoch that was proved.
    pub fn source_epoch(&self) -> SourceEpoch {
        self.opened.identity.peer.epoch
    }

    /// Public id of the peer's engine.
    pub fn engine_id(&self) -> EngineId {
        self.opened.identity.peer.engine
    }

    /// Generation of the peer's catalog at the time of the snapshot.
    pub fn generation(&self) -> u64 {
        self.opened.snapshot.generation
    }

    /// All regions, in order of their address.
    pub fn regions(&self) -> Vec<RemoteRegion> {
        self.opened.snapshot.regions().iter().map(public).collect()
    }

    /// The region that contains the whole range: of several the one with the highest start. `None`
    /// where no region does.
    pub fn region(&self, address: u64, length: u64) -> Option<RemoteRegion> {
        self.opened.snapshot.containing(address, length).next().map(public)
    }
}

fn public(region: &PeerRegion) -> RemoteRegion {
    let PeerRegion { address, length, permission, memory_type, location, transports, .. } = *region;
    let offered = |transport: &Transport| transports >> (*transport as u8) & 1 == 1;
    let transports = Transport::ALL.into_iter().filter(offered).collect();
    RemoteRegion { address, length, permission, memory_type, location, transports }
}
