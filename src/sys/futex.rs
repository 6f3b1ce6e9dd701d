//! Sleeping on a word of this process and waking every sleeper: `futex(2)` with `FUTEX_PRIVATE_FLAG`.
//!
//! Under `--cfg orbite_loom` a model takes its place in which no timeout ever passes and no wake is
//! spurious: the strictest kernel, so that a lost wake shows as a deadlock.
#![cfg_attr(
    not(orbite_loom),
    expect(
        unsafe_code,
        reason = "the C library has no function for futex, only the raw system call"
    )
)]

#[cfg(not(orbite_loom))]
pub(crate) use kernel::{wait, wake_all};
#[cfg(orbite_loom)]
pub(crate) use model::{wait, wake_all};

#[cfg(not(orbite_loom))]
mod kernel {
    use std::ptr;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// Sleeps while `word` holds `expected`, at most for `timeout` (`None`: without end). Returns at a
    /// wake, when the word already holds something else, at a signal, and sometimes for no reason: the
    /// caller looks at the word again in a loop. False: the timeout passed.
    ///
    /// The kernel compares the word under the lock that [`wake_all`] takes, so a store followed by a
    /// wake is never missed (futex(2), `FUTEX_WAIT`). The timeout is relative, of `CLOCK_MONOTONIC`.
    pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let limit = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: `word` is a live, aligned 32-bit word for the whole call because it is borrowed;
        // `limit` is null or points to `timeout`, which lives until the end of this function and holds
        // a value that the kernel only reads.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                expected,
                limit,
            )
        };
        result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
    }

    /// Wakes every thread of this process that sleeps in [`wait`] on `word`.
    pub(crate) fn wake_all(word: &AtomicU32) {
        // SAFETY: `word` is borrowed, so its address stays this process's own for the whole call; the
        // kernel uses the address as a key only.
        let _woken = unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                i32::MAX,
            )
        };
    }
}

#[cfg(orbite_loom)]
#[expect(clippy::disallowed_types, reason = "the model of the kernel's queue lock, in tests only")]
mod model {
    use std::time::Duration;

    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex, MutexGuard};

    /// One queue for all words. A wake reaches sleepers on other words too, which is allowed: they
    /// look at their word and sleep again.
    struct Queue {
        lock: Mutex<()>,
        sleepers: Condvar,
    }

    loom::lazy_static! {
        static ref QUEUE: Queue = Queue { lock: Mutex::new(()), sleepers: Condvar::new() };
    }

    fn lock() -> MutexGuard<'static, ()> {
        QUEUE.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// As the kernel's, without timeouts.
    pub(crate) fn wait(word: &AtomicU32, expected: u32, _timeout: Option<Duration>) -> bool {
        let guard = lock();
        if word.load(Ordering::SeqCst) == expected {
            drop(QUEUE.sleepers.wait(guard));
        }
        true
    }

    /// As the kernel's.
    pub(crate) fn wake_all(_word: &AtomicU32) {
        let _guard = lock();
        QUEUE.sleepers.notify_all();
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::{wait, wake_all};

    #[test]
    fn another_value_does_not_sleep() {
        assert!(wait(&AtomicU32::new(7), 6, None));
    }

    #[test]
    fn a_timeout_is_told_from_a_wake() {
        assert!(!wait(&AtomicU32::new(0), 0, Some(Duration::from_millis(1))));
    }

    #[test]
    fn one_call_wakes_every_sleeper() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while word.load(Ordering::Acquire) == 0 {
                        wait(&word, 0, None);
                    }
                });
            }
            wait(&AtomicU32::new(0), 0, Some(Duration::from_millis(5)));
            word.store(1, Ordering::Release);
            wake_all(&word);
        });
    }
}
