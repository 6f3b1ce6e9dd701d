//! Counts of an engine's memory.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one engine's memory, at one moment each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) struct MemoryCounters {
    /// Live registrations. References to one registration count once.
    pub registrations: u64,
    /// Their bytes. Overlaps count each time.
    pub registered_bytes: u64,
    /// Bytes of withdrawn registrations that admitted work still holds.
    pub retained_after_unregister_bytes: u64,
    /// Registrations that were refused since the start.
    pub registration_failures: u64,
}

/// The same as they are counted.
#[derive(Debug, Default)]
pub(super) struct Counters {
    registrations: AtomicU64,
    registered_bytes: AtomicU64,
    retained_bytes: AtomicU64,
    failures: AtomicU64,
}

impl Counters {
    pub fn now(&self) -> MemoryCounters {
        MemoryCounters {
            registrations: self.registrations.load(Ordering::Relaxed),
            registered_bytes: self.registered_bytes.load(Ordering::Relaxed),
            retained_after_unregister_bytes: self.retained_bytes.load(Ordering::Relaxed),
            registration_failures: self.failures.load(Ordering::Relaxed),
        }
    }

    pub fn registered(&self, bytes: u64) {
        self.registrations.fetch_add(1, Ordering::Relaxed);
        self.registered_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn withdrawn(&self, bytes: u64) {
        self.registrations.fetch_sub(1, Ordering::Relaxed);
        self.registered_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn refused(&self, registrations: usize) {
        self.failures.fetch_add(registrations as u64, Ordering::Relaxed);
    }

    pub fn retained(&self, bytes: u64) {
        self.retained_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn released(&self, bytes: u64) {
        self.retained_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
