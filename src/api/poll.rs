//! Pace of a program that polls: at first without pause, then ever slower, up to a bound.

use std::time::Duration;

/// Polls made without any pause.
const EAGER: u64 = 128;
const CAP_US: u64 = 200;

/// How long to wait before the next poll after `poll_count` polls without progress: nothing for counts
/// below 128, then 1 us, doubled with each poll, at most 200 us. Never decreases; any count is fine.
pub const fn next_poll_delay(poll_count: u64) -> Duration {
    if poll_count < EAGER {
        return Duration::ZERO;
    }
    let doublings = poll_count - EAGER;
    let micros = if doublings >= 8 { CAP_US } else { 1 << doublings };
    Duration::from_micros(if micros > CAP_US { CAP_US } else { micros })
}

/// Waits as [`next_poll_delay`] says: gives the CPU away once where that is nothing, else sleeps.
#[expect(clippy::disallowed_methods, reason = "the caller asked its own thread to wait")]
pub fn wait_before_next_poll(poll_count: u64) {
    match next_poll_delay(poll_count) {
        Duration::ZERO => std::thread::yield_now(),
        delay => std::thread::sleep(delay),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CORE-064: the pace of polling.
    #[test]
    fn core_064_delays_start_late_double_and_are_capped() {
        let micros = |count| next_poll_delay(count).as_micros();
        assert!((0..128).all(|count| micros(count) == 0));
        assert_eq!([128, 129, 130].map(micros), [1, 2, 4]);
        assert_eq!([136, 4096, u64::MAX].map(micros), [200, 200, 200]);
        assert!((0..5000).all(|count| micros(count) <= micros(count + 1)));
    }
}
