//! Atomics, fence and cell of everything that loom explores: the real ones, or loom's under
//! `--cfg orbite_loom`.
//!
//! Loom's atomics work inside `loom::model` only. So plain counters, which no model needs, use
//! `std::sync::atomic` directly, and tests of the types built on this file are left out under that cfg.

#[cfg(orbite_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(orbite_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(orbite_loom)]
pub(crate) use loom::cell::UnsafeCell;

/// `core`'s cell with the access function of loom's, which checks that no two accesses overlap.
#[cfg(not(orbite_loom))]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(orbite_loom))]
impl<T> UnsafeCell<T> {
    /// Around `value`.
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Lends a pointer to the value. Using it is what needs a proof of exclusive access.
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}
