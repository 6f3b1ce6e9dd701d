//! The hot half of a transport: one way to move slices to one peer.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::protocol::error::FrameError;
use crate::types::{Fault, Refused, RegionKey, RemoteEffect, SliceId, TransferOp, Transport};

/// One range of a slice: local bytes and their place at the peer. Local and remote length are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// First local byte. Whoever posts the part holds the lease of this memory in the ledger until the
    /// slice is reported.
    pub local: u64,
    pub region: RegionKey,
    pub offset: u64,
    pub length: u64,
}

/// One unit of posting and of completion: parts `[from, to)` of the list that is posted with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub id: SliceId,
    pub op: TransferOp,
    pub from: u32,
    pub to: u32,
    /// Sum of the parts' lengths.
    pub bytes: u64,
}

/// What a rail can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    pub transport: Transport,
    /// Parts of one slice.
    pub ops: u32,
    /// Bytes of one slice.
    pub bytes: u64,
}

/// How a slice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SliceResult {
    /// All bytes are in place; for a WRITE the peer said so.
    Done,
    /// The source refused the slice as a whole and nothing of it was done. `first_bad` is the index of
    /// the first part that it refused.
    Refused { class: Refused, first_bad: u32 },
    /// Anything else. For a READ the effect is `None`.
    Failed { fault: Fault, effect: RemoteEffect },
}

/// The end of one posted slice: from here on the rail touches none of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub id: SliceId,
    pub result: SliceResult,
}

/// Why a rail cannot go on. It has to be closed; its slices end by the effect rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RailFault(pub Fault);

/// Proof that a closed rail touches no memory of ours any more.
#[derive(Debug)]
#[must_use]
pub(crate) struct RailQuiet(pub(super) ());

#[cfg(test)]
impl RailQuiet {
    /// Of a rail that has no device behind it.
    pub const fn simulated() -> Self {
        Self(())
    }
}

/// Bytes that may still be moved in this turn, over all rails of the shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub bytes: u64,
}

impl Budget {
    pub const fn new(bytes: u64) -> Self {
        Self { bytes }
    }

    pub const fn spend(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub const fn is_spent(self) -> bool {
        self.bytes == 0
    }
}

/// One way to move slices to a peer: a TCP lane, later a NIC port, a shared-memory ring.
///
/// A rail is owned and driven by one shard. Nothing here blocks.
pub(crate) trait Rail {
    fn capabilities(&self) -> Capabilities;

    /// Takes slices from the front while there is room and says how many; 0 is no error. What was taken
    /// starts at the next `flush`.
    fn post(&mut self, slices: &[Slice], parts: &[Part]) -> Result<usize, RailFault>;

    /// Hands what was posted to the kernel or device, as far as it takes it. Says whether bytes moved.
    fn flush(&mut self, now: Instant, budget: &mut Budget) -> Result<bool, RailFault>;

    /// Takes what has arrived and appends what has finished, each posted slice exactly once. Says
    /// whether bytes moved.
    fn poll(
        &mut self,
        now: Instant,
        budget: &mut Budget,
        done: &mut Vec<Completion>,
    ) -> Result<bool, RailFault>;

    /// Gives a slice up: its end is appended to `done` as soon as the rail touches no memory of it,
    /// for a READ at once. An unknown slice is ignored.
    fn cancel(&mut self, id: SliceId, fault: Fault, done: &mut Vec<Completion>);

    /// Fails once slices are outstanding and no progress was made for the stall limit. Whoever cuts the
    /// rail for that polls it once more first: what has arrived counts.
    fn check(&self, now: Instant) -> Result<(), RailFault>;

    /// Forgets this much time, in which the shard did not turn.
    fn shift(&mut self, gap: Duration);

    /// The rule of the protocol that the peer broke, if that is why the rail failed.
    fn broken(&self) -> Option<FrameError>;

    /// Slices posted and not reported, or answers still expected.
    fn in_flight(&self) -> bool;

    /// What a sleeping shard waits for: the descriptor, and whether room to send matters too.
    fn interest(&self) -> (BorrowedFd<'_>, bool);

    /// Ends the rail. Every slice not reported yet is appended to `done` with `fault` and the effect
    /// that is proved; the ledger retires them for nothing less than this.
    fn close(self: Box<Self>, fault: Fault, done: &mut Vec<Completion>) -> RailQuiet;
}
