//! Registered memory: who owns bytes, who may use them, and when they are given back.
//!
//! A *backing* owns bytes. A *registration* claims a range of one backing with a permission and keeps
//! the backing alive. Its *record* is what the published table names: an address, a permission and one
//! word that counts admitted users. A table names records and never a backing, so an old snapshot in
//! some thread keeps no memory alive.
//!
//! Invariants:
//! - A backing leaves its record once, after the record was closed and its last user left. A record
//!   that is lost leaks its backing; it is never freed early.
//! - Nobody becomes a user of a closed record: the closed bit and the count are one word.
//! - No owner's `Drop` runs on a shard: what a shard lets go last travels to the reaper thread.
//! - Look-ups take no lock. Registering and withdrawing do; they are cold.

mod backing;
mod counters;
mod gate;
mod host;
mod reaper;
mod record;
mod registration;
mod registry;
#[cfg(test)]
#[cfg(not(orbite_loom))]
mod stress;
mod sys;
mod table;
#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests;
mod tree;
mod view;
#[cfg(test)]
#[cfg(not(orbite_loom))]
mod withdrawal_tests;

pub(crate) use backing::Backing;
pub(crate) use counters::MemoryCounters;
pub use host::{HostAllocation, HostMemory, HugePages};
pub(crate) use reaper::Reaper;
pub(crate) use record::Pin;
pub(crate) use registration::Registration;
#[cfg(test)]
pub(crate) use registration::RegistrationRequest;
pub(crate) use registry::Registry;
pub(crate) use table::RegionInfo;
pub(crate) use view::{Denied, Lease, Pinned, View};
