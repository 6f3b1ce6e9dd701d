//! The stall rule of one connection: while something is expected, each stall limit has to bring a
//! finished frame or 64 KiB. So silence is found as well as a peer that drips.

use std::time::{Duration, Instant};

use crate::transport::rail::RailFault;
use crate::types::Fault;

const PROGRESS_BYTES: u64 = 64 << 10;

#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    limit: Duration,
    since: Instant,
    moved: u64,
}

impl Watch {
    pub const fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, since: now, moved: 0 }
    }

    /// Something begins to be expected, or a frame finished.
    pub const fn restart(&mut self, now: Instant) {
        self.since = now;
        self.moved = 0;
    }

    /// Bytes moved, either way.
    pub const fn moved(&mut self, bytes: u64, now: Instant) {
        self.moved += bytes;
        if self.moved >= PROGRESS_BYTES {
            self.restart(now);
        }
    }

    /// The shard did not turn for so long: what the peer did meanwhile was not looked at.
    pub fn shift(&mut self, gap: Duration) {
        self.since += gap;
    }

    pub fn check(&self, expecting: bool, now: Instant) -> Result<(), RailFault> {
        if expecting && now.saturating_duration_since(self.since) > self.limit {
            return Err(RailFault(Fault::Stalled));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_and_dripping_are_found_and_work_is_not() {
        #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut watch = Watch::new(Duration::from_millis(100), start);
        assert!(watch.check(true, at(100)).is_ok());
        assert!(watch.check(true, at(101)).is_err());
        assert!(watch.check(false, at(101)).is_ok(), "nothing is expected");
        for ms in 1..=200 {
            watch.moved(1, at(ms));
        }
        assert!(watch.check(true, at(200)).is_err(), "one byte a millisecond is dripping");
        watch.restart(at(200));
        watch.moved(PROGRESS_BYTES, at(290));
        assert!(watch.check(true, at(390)).is_ok());
        watch.shift(Duration::from_millis(700));
        assert!(watch.check(true, at(1090)).is_ok());
        assert!(watch.check(true, at(1091)).is_err(), "the time before the gap still counts");
    }
}
