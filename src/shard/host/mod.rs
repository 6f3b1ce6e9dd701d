//! Who runs a shard's loop. A host drives a `Driver` and decides nothing about transfers.

pub(crate) mod thread;

use crate::shard::placement::Seat;
use crate::shard::wait::WaitPolicy;

/// What every host needs besides the driver.
#[derive(Clone, Debug)]
pub(crate) struct HostPlan {
    /// Thread name.
    pub name: String,
    pub seat: Seat,
    /// A core that is refused fails the start; else the thread runs unpinned.
    pub must_pin: bool,
    /// Bind the thread's allocations to the seat's NUMA node.
    pub bind_memory: bool,
    pub policy: WaitPolicy,
}
