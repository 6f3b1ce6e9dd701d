//! A value that exactly one thread takes out.
#![expect(unsafe_code, reason = "moving a value out of a shared cell")]

use core::fmt;
use core::mem::MaybeUninit;

use crate::sys::sync::{AtomicBool, Ordering, UnsafeCell};

/// Hands its value to the first [`take`](Self::take), from any thread, without a lock.
///
/// A value that nobody took is leaked when the cell is dropped: what sits here owns memory that a
/// device or a peer may still touch, and losing the owner must never free it.
pub(crate) struct TakeCell<T> {
    taken: AtomicBool,
    /// Initialized while `taken` is false. `MaybeUninit` has no drop of its own.
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: a shared cell moves its value to at most one thread and never lends a reference to it, so
// `T: Send` is all that is needed.
unsafe impl<T: Send> Sync for TakeCell<T> {}

impl<T> TakeCell<T> {
    /// A cell that holds `value`.
    pub(crate) fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(MaybeUninit::new(value)) }
    }

    /// The value, the first time; `None` ever after.
    pub(crate) fn take(&self) -> Option<T> {
        if self.taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        let value = self.value.with_mut(|value| {
            // SAFETY: the swap answers false once in the cell's life, so no other thread touches the
            // value; `new` initialized it before the cell could be shared, and it is read this once.
            unsafe { value.read() }
        });
        // SAFETY: initialized by `new`, and not read before.
        Some(unsafe { value.assume_init() })
    }

    /// True once a [`take`](Self::take) has begun.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire)
    }
}

impl<T> fmt::Debug for TakeCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakeCell").field("taken", &self.is_taken()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    struct Owner(Arc<AtomicUsize>);

    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_first_take_gets_the_value() {
        let cell = TakeCell::new(String::from("owner"));
        assert!(!cell.is_taken());
        assert_eq!(cell.take().as_deref(), Some("owner"));
        assert!(cell.is_taken());
        assert_eq!(cell.take(), None);
    }

    #[test]
    fn an_untaken_value_is_leaked_and_a_taken_one_dropped_once() {
        let drops = Arc::new(AtomicUsize::new(0));
        {
            let _untaken = TakeCell::new(Owner(Arc::clone(&drops)));
        }
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        {
            let cell = TakeCell::new(Owner(Arc::clone(&drops)));
            drop(cell.take());
        }
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn of_many_threads_one_takes() {
        for _ in 0..1_000 {
            let cell = TakeCell::new(Box::new(7));
            let taken: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| cell.take())).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).count()
            });
            assert_eq!(taken, 1);
        }
    }
}

#[cfg(test)]
#[cfg(orbite_loom)]
mod loom_tests {
    use loom::sync::Arc;

    use super::TakeCell;

    #[test]
    fn of_two_threads_one_takes_and_sees_the_value() {
        loom::model(|| {
            let cell = Arc::new(TakeCell::new(Box::new(7)));
            let other = {
                let cell = Arc::clone(&cell);
                loom::thread::spawn(move || cell.take())
            };
            let ours = cell.take();
            let theirs = other.join().unwrap();
            assert_eq!(ours.or(theirs), Some(Box::new(7)));
            assert!(cell.is_taken());
            assert_eq!(cell.take(), None);
        });
    }
}
