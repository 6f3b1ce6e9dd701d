//! Memory as a program sees it: its owners, and the handles of what is registered.

use std::sync::Arc;

use crate::error::Result;
use crate::shard::memory::{Registration, Registry};
use crate::types::{MemoryType, Permission, RangeLocation};

pub use crate::shard::memory::{HostAllocation, HostMemory, HugePages};

/// One reference to a registration: the engine may move bytes from and to the range, and peers may as
/// far as the permission goes.
///
/// A clone is one more reference, and so is registering the same range again. When the last one is
/// dropped or given to `unregister_memory`, the range is withdrawn: it takes no new work, and its owner
/// is let go once work that was admitted before has ended. A drop waits for running shards to confirm, at
/// most `handler_timeout_us`, and logs what it could not wait for.
///
/// A handle may outlive its engine. Its bytes stay valid.
#[derive(Clone, Debug)]
pub struct RegisteredMemory(Arc<Registration>);

impl RegisteredMemory {
    pub(crate) const fn new(registration: Arc<Registration>) -> Self {
        Self(registration)
    }

    /// Whether an engine's registry made it.
    pub(crate) fn is_of(&self, registry: &Arc<Registry>) -> bool {
        self.0.is_of(registry)
    }

    /// Drops this reference. If it was the last one, withdraws the registration within the registry's
    /// bound, once; fails with `Unquiesced` if a running shard has not confirmed by then. The range is
    /// closed in any case.
    pub(crate) fn unregister(self) -> Result<()> {
        Arc::into_inner(self.0).map_or(Ok(()), |last| last.withdraw_in_time())
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.0.record().address
    }

    /// Number of bytes, `1..=2^47`.
    pub fn length(&self) -> u64 {
        self.0.record().length
    }

    /// What peers may do. The first registration of a range decides.
    pub fn permission(&self) -> Permission {
        self.0.record().permission
    }

    /// Kind of memory.
    pub fn memory_type(&self) -> MemoryType {
        self.0.record().memory_type
    }

    /// The registered range and where it lies. Takes no lock and asks no driver.
    pub fn location(&self) -> RangeLocation {
        let record = self.0.record();
        RangeLocation::new(record.address, record.length, record.location)
    }

    /// Copies `into.len()` bytes from `offset` within the range. Fails with `InvalidRequest`, and copies
    /// nothing, if they do not lie inside. Where a transfer or a peer writes the same bytes meanwhile the
    /// copy may hold old and new ones mixed.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, into)
    }

    /// Copies `from` to `offset` within the range. Fails with `InvalidRequest`, and copies nothing, if
    /// the bytes would not lie inside.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.0.write_at(offset, from)
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::api::config::EngineConfig;
    use crate::api::engine::TransferEngine;
    use crate::shard::memory::{Backing, Pinned, View};
    use crate::types::ShardIndex;

    fn registered(length: u64, permission: Permission) -> (Arc<Registry>, RegisteredMemory) {
        let registry = Registry::new(8, 1);
        let memory = HostMemory::from_vec((0..=255).collect()).unwrap();
        let range = registry.register(Backing::Host(memory), 16, length, permission).unwrap();
        (registry, RegisteredMemory::new(range))
    }

    #[test]
    fn a_handle_answers_for_its_range_and_copies_stay_inside() {
        let (registry, memory) = registered(100, Permission::RemoteWrite);
        assert_eq!((memory.length(), memory.permission()), (100, Permission::RemoteWrite));
        assert_eq!(memory.memory_type(), MemoryType::Cpu);
        let location = memory.location();
        assert_eq!((location.address, location.length), (memory.address(), 100));
        assert!(memory.is_of(&registry) && !memory.is_of(&Registry::new(1, 0)));

        memory.write_at(98, &[1, 2]).unwrap();
        let mut bytes = [0; 4];
        memory.read_at(96, &mut bytes).unwrap();
        assert_eq!(bytes, [112, 113, 1, 2]);
        for (offset, length) in [(97, 4), (101, 0), (u64::MAX, 4)] {
            for error in [
                memory.read_at(offset, &mut vec![0; length]).unwrap_err(),
                memory.write_at(offset, &vec![0; length]).unwrap_err(),
            ] {
                assert_eq!(error.code(), "invalid_request");
                let text = error.to_string();
                assert!(text.contains(&offset.to_string()) && text.contains("100 bytes"), "{text}");
            }
        }
    }

    /// CORE-021: two references need two releases, in whatever way they came about.
    #[test]
    fn core_021_two_references_need_two_releases() {
        let (registry, memory) = registered(100, Permission::RemoteRead);
        let (address, again) = (memory.address(), memory.clone());
        let mut view = View::new(registry);
        memory.unregister().unwrap();
        match view.pin_further(address, 100, &[]).unwrap() {
            Pinned::New(pin) => pin.release_on_caller(),
            Pinned::Held(at) => panic!("pin {at} of a call without pins"),
        }
        again.unregister().unwrap();
        assert_eq!(view.pin_further(address, 100, &[]).unwrap_err().code(), "not_registered");
        assert_eq!(view.registry().counters().registrations, 0);
    }

    /// A shard that does not confirm costs the bound once, not once more when the handle goes.
    #[test]
    fn unregistering_waits_for_its_bound_once() {
        let (registry, memory) = registered(100, Permission::RemoteRead);
        let rings = Arc::new(AtomicU32::new(0));
        let ring = Arc::clone(&rings);
        let bound = Duration::from_millis(20);
        registry.set_withdrawal(bound, move || {
            ring.fetch_add(1, Ordering::Relaxed);
        });
        let running = registry.gate(ShardIndex(0)).enter();
        let error = memory.unregister().unwrap_err();
        assert_eq!(error.code(), "unquiesced");
        assert_eq!(rings.load(Ordering::Relaxed), 1, "each wait for the shards ends with one ring");
        assert_eq!(registry.counters().retained_after_unregister_bytes, 100);
        drop(running);
        assert_eq!(registry.sweep(), 0);
        assert_eq!(registry.counters().retained_after_unregister_bytes, 0);
    }

    /// A shard that panicked never looks anything up again, so no withdrawal waits for it.
    #[test]
    fn a_shard_that_panicked_holds_no_withdrawal() {
        let mut config = EngineConfig::default();
        config.shards.count = 2;
        let engine = TransferEngine::new(config).unwrap();
        let register = || engine.register_memory(vec![0; 64], Permission::RemoteReadWrite).unwrap();
        let (memory, other) = (register(), register());
        memory.0.registry().break_shards();
        // Rings the bells, and may find a shard that turns for the last time.
        let _confirmed_or_not = engine.unregister_memory(other);
        while !engine.stats().shards.iter().all(|shard| shard.stalled) {
            std::thread::yield_now();
        }
        let address = memory.address();
        engine.unregister_memory(memory).unwrap();
        assert_eq!(engine.stats().retained_after_unregister_bytes, 0);
        let gone = engine.resolve_local_address(address, 64).unwrap_err();
        assert_eq!(gone.code(), "not_registered");
    }

    #[test]
    fn a_handle_may_outlive_the_engine_and_its_bytes_stay() {
        let (registry, memory) = registered(100, Permission::Local);
        registry.close();
        drop(registry);
        let mut byte = [0];
        memory.read_at(99, &mut byte).unwrap();
        assert_eq!(byte, [115]);
        memory.unregister().unwrap();
    }
}
