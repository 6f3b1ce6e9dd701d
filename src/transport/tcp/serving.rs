//! What the source lanes of one shard share with it: where regions are found, the bytes that all lanes
//! together may move, and what was served.

use crate::types::{Refused, RegionKey, TransferOp};

/// A region that may be used in one direction, held by a lease.
pub(crate) struct Granted<L> {
    pub lease: L,
    /// First byte, in this process.
    pub address: u64,
    pub length: u64,
}

/// Where the source finds its regions.
pub(crate) trait Catalog {
    /// Keeps a region's memory until it is dropped.
    type Lease;

    /// Holds the region if it is live, of that generation, and grants `op` to peers. The order of the
    /// checks is fixed: existence and generation, then the right.
    fn hold(&mut self, region: RegionKey, op: TransferOp) -> Result<Granted<Self::Lease>, Refused>;

    /// Whether new frames are still served.
    fn is_open(&self) -> bool;
}

/// Bytes that all lanes of the shard are moving as source, against their limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceBudget {
    pub in_flight: u64,
    pub limit: u64,
}

impl SourceBudget {
    /// Takes `bytes` for a lane that has `own` bytes in flight, or says that they have to wait. A lane
    /// with nothing in flight always gets one frame: a peer that does not read what it asked for holds
    /// back its own lanes only.
    pub(super) const fn take(&mut self, bytes: u64, own: u64) -> bool {
        if own > 0 && self.in_flight.saturating_add(bytes) > self.limit {
            return false;
        }
        self.in_flight = self.in_flight.saturating_add(bytes);
        true
    }

    pub(super) const fn give_back(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }
}

/// What a lane served since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    pub frames: u64,
    pub refused: u64,
}
