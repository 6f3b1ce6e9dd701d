//! The one place where a shard's loop and a caller's port read the monotonic clock.

use std::time::Instant;

/// Monotonic time, also as nanoseconds since the engine started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    base: Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self { base: Instant::now() }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    #[expect(clippy::unused_self, reason = "who reads the clock holds one")]
    pub fn now(self) -> Instant {
        Instant::now()
    }

    /// At least 1, so that 0 can say "never". Wraps after 584 years.
    pub fn nanos(self, at: Instant) -> u64 {
        (at.saturating_duration_since(self.base).as_nanos() as u64).max(1)
    }
}
