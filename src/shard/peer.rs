//! One peer identity as callers, shards and the control plane share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use arc_swap::ArcSwapOption;

use crate::error::{Error, Result};
use crate::types::{
    Endpoint, EngineId, MemoryLocation, MemoryType, PeerKey, Permission, RegionKey, SourceEpoch,
    TransferOp,
};

/// Limits that both sides of a connection agreed on: the smaller of each pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// Longest payload of one frame, bytes.
    pub max_message: u64,
    /// Operations in one frame.
    pub scatter_ops: u32,
    /// Unanswered frames on one lane.
    pub lane_window: u32,
    /// Both sides append a checksum to each payload.
    pub payload_crc: bool,
}

/// Which of the two kinds of lane of (shard, peer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LaneClass {
    /// Persistent, for small frames.
    Small,
    /// For frames above `small_bytes`, dialed when first needed.
    Bulk,
}

/// Where an identity stands. Only ever moves away from `Live`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PeerStatus {
    Live = 0,
    /// Closed here, or the peer said that it goes.
    Closed = 1,
    /// Another engine answers at the endpoint.
    Stale = 2,
}

/// One (endpoint, epoch). Shared; only the status changes.
#[derive(Debug)]
pub(crate) struct Peer {
    pub key: PeerKey,
    pub endpoint: Endpoint,
    /// The same as text, for errors and the API.
    pub endpoint_text: String,
    pub epoch: SourceEpoch,
    pub engine: EngineId,
    status: AtomicU8,
    /// Why the last dial of a lane failed. Shards write it, and callers read it for their report.
    lane_error: ArcSwapOption<Error>,
}

impl Peer {
    pub fn new(key: PeerKey, endpoint: Endpoint, epoch: SourceEpoch, engine: EngineId) -> Self {
        let endpoint_text = endpoint.to_string();
        let status = AtomicU8::new(PeerStatus::Live as u8);
        let lane_error = ArcSwapOption::empty();
        Self { key, endpoint, endpoint_text, epoch, engine, status, lane_error }
    }

    pub fn status(&self) -> PeerStatus {
        match self.status.load(Ordering::Acquire) {
            0 => PeerStatus::Live,
            1 => PeerStatus::Closed,
            _ => PeerStatus::Stale,
        }
    }

    /// Keeps why a lane could not be had.
    pub fn lane_failed(&self, error: Error) {
        self.lane_error.store(Some(Arc::new(error)));
    }

    /// Why a lane could not be had the last time that one could not.
    pub fn lane_error(&self) -> Option<Arc<Error>> {
        self.lane_error.load_full()
    }

    /// Fails, with what ended it, for an identity that is not live any more.
    pub fn check_live(&self) -> Result<()> {
        let endpoint = || self.endpoint_text.clone();
        match self.status() {
            PeerStatus::Live => Ok(()),
            PeerStatus::Closed => Err(Error::PeerClosed { endpoint: endpoint() }),
            PeerStatus::Stale => Err(self.stale()),
        }
    }

    /// Another engine is where this one was.
    pub fn stale(&self) -> Error {
        let detail = format!(
            "engine {} does not answer there any more; get the current descriptor from its owner and \
             open that",
            self.engine
        );
        Error::StaleEpoch { endpoint: self.endpoint_text.clone(), detail }
    }

    /// Moves a live identity to `status`; one that already left stays where it is.
    pub fn leave(&self, status: PeerStatus) {
        let live = PeerStatus::Live as u8;
        let _already_left =
            self.status.compare_exchange(live, status as u8, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// One region of a peer, as its snapshot keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerRegion {
    pub key: RegionKey,
    pub address: u64,
    pub length: u64,
    pub permission: Permission,
    pub memory_type: MemoryType,
    pub location: MemoryLocation,
    /// Bit `1 << number` for each transport that the peer offers.
    pub transports: u64,
}

/// Where a remote range lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// In this region, at this offset.
    At(RegionKey, u64),
    /// Only in regions that do not grant the direction.
    Denied(Permission),
    /// In no region.
    Nowhere,
}

/// Immutable snapshot of one peer's regions.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub generation: u64,
    regions: Vec<PeerRegion>,
    /// For each region, the highest end of it and all before it.
    reach: Vec<u64>,
}

impl Snapshot {
    /// From regions in any order. Those whose end would wrap are left out: nothing can lie in them.
    pub fn new(generation: u64, mut regions: Vec<PeerRegion>) -> Self {
        regions.retain(|region| region.address.checked_add(region.length).is_some());
        // Walking back from an address meets the highest start first, and of equal ones the oldest.
        regions.sort_by_key(|region| (region.address, !region.key.id));
        let mut high = 0;
        let reach = regions
            .iter()
            .map(|region| {
                high = high.max(region.address + region.length);
                high
            })
            .collect();
        Self { generation, regions, reach }
    }

    pub fn regions(&self) -> &[PeerRegion] {
        &self.regions
    }

    /// The region for `op` on the range: of those that contain it and grant the direction the one with
    /// the highest start.
    pub fn find(&self, op: TransferOp, address: u64, length: u64) -> Found {
        let mut found = Found::Nowhere;
        for region in self.containing(address, length) {
            if region.permission.allows(op) {
                return Found::At(region.key, address - region.address);
            }
            found = Found::Denied(region.permission);
        }
        found
    }

    /// Regions that contain the range, highest start first.
    pub fn containing(&self, address: u64, length: u64) -> impl Iterator<Item = &PeerRegion> {
        let end = address.checked_add(length);
        let from = self.regions.partition_point(|region| region.address <= address);
        let candidates = self.regions[..from].iter().zip(&self.reach[..from]).rev();
        candidates
            .take_while(move |(_, reach)| end.is_some_and(|end| **reach >= end))
            .map(|(region, _)| region)
            .filter(move |region| end.is_some_and(|end| region.address + region.length >= end))
    }

    /// The region nearest to an address: its first byte and length.
    pub fn nearest(&self, address: u64) -> Option<(u64, u64)> {
        let distance = |region: &&PeerRegion| {
            let end = region.address + region.length;
            region.address.saturating_sub(address).max(address.saturating_sub(end))
        };
        self.regions.iter().min_by_key(distance).map(|region| (region.address, region.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(id: u64, address: u64, length: u64, permission: Permission) -> PeerRegion {
        let (key, memory_type) = (RegionKey { id, generation: 1 }, MemoryType::Cpu);
        let (location, transports) = (MemoryLocation::Cpu(None), 1 << 7);
        PeerRegion { key, address, length, permission, memory_type, location, transports }
    }

    #[test]
    fn an_identity_that_left_says_how_and_stays_so() {
        let epoch = SourceEpoch::from_bytes([7; 16]).unwrap();
        let endpoint = Endpoint::parse("127.0.0.1:9").unwrap();
        let key = PeerKey { slot: 0, generation: 1 };
        for (status, code) in
            [(PeerStatus::Closed, "peer_closed"), (PeerStatus::Stale, "stale_epoch")]
        {
            let peer = Peer::new(key, endpoint, epoch, EngineId::of(&epoch));
            assert!(peer.check_live().is_ok());
            peer.leave(status);
            peer.leave(PeerStatus::Closed);
            let error = peer.check_live().unwrap_err();
            assert_eq!(error.code(), code);
            assert!(error.to_string().contains("127.0.0.1:9"), "{error}");
        }
    }

    #[test]
    fn the_containing_region_with_the_highest_start_that_grants_is_found() {
        use Permission::{RemoteRead, RemoteReadWrite, RemoteWrite};
        let snapshot = Snapshot::new(
            1,
            vec![
                region(3, 150, 10, RemoteRead),
                region(1, 100, 1000, RemoteReadWrite),
                region(2, 150, 100, RemoteWrite),
                region(4, u64::MAX, 2, RemoteRead),
            ],
        );
        let at = |id, offset| Found::At(RegionKey { id, generation: 1 }, offset);
        assert_eq!(snapshot.find(TransferOp::Read, 155, 5), at(3, 5));
        assert_eq!(snapshot.find(TransferOp::Write, 155, 5), at(2, 5));
        assert_eq!(snapshot.find(TransferOp::Read, 155, 50), at(1, 55));
        assert_eq!(snapshot.find(TransferOp::Read, 99, 2), Found::Nowhere);
        assert_eq!(snapshot.find(TransferOp::Read, 1099, 2), Found::Nowhere);
        assert_eq!(snapshot.find(TransferOp::Read, u64::MAX, 2), Found::Nowhere);
        let denied = Snapshot::new(1, vec![region(1, 0, 10, RemoteRead)]);
        assert_eq!(denied.find(TransferOp::Write, 1, 2), Found::Denied(RemoteRead));
        assert_eq!(denied.nearest(50), Some((0, 10)));
    }
}
