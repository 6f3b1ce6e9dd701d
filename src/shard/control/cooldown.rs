//! After a failed dial, how long nobody dials that peer again. Tables only: no socket, no clock.
//!
//! A dead peer is dialed by one at a time and ever more rarely, however many requests wait for it;
//! everybody else gets the last error at once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::types::{Endpoint, EngineId};

use super::reactor::later;

/// The wait never grows past so many times the first one.
const MAX_FACTOR: u32 = 30;

/// Peers kept at a time; the ones whose wait is over go first.
const MAX_PEERS: usize = 8192;

/// A peer, as dials see it.
pub(super) type Target = (Endpoint, EngineId);

#[derive(Debug)]
struct Failing {
    failures: u32,
    until: Instant,
    probing: bool,
    last: Error,
}

/// Failing peers of one engine.
#[derive(Debug)]
pub(super) struct Cooldowns {
    base: Duration,
    failing: HashMap<Target, Failing>,
    /// State of the jitter: an odd multiplier steps through all values.
    jitter: u64,
}

impl Cooldowns {
    /// `seed` spreads the waits of engines that fail at the same time.
    pub fn new(base: Duration, seed: u64) -> Self {
        Self { base, failing: HashMap::new(), jitter: seed | 1 }
    }

    /// Asks to dial `target`. `Err`: not now, and why the last dial failed. After `Ok` the caller says
    /// [`succeeded`](Self::succeeded), [`failed`](Self::failed) or [`gave_up`](Self::gave_up).
    pub fn ask(&mut self, target: Target, now: Instant) -> Result<(), Error> {
        match self.failing.get_mut(&target) {
            None => Ok(()),
            Some(peer) if now < peer.until || peer.probing => Err(peer.last.clone()),
            Some(peer) => {
                peer.probing = true;
                Ok(())
            }
        }
    }

    /// The dial succeeded: the peer is as good as any.
    pub fn succeeded(&mut self, target: Target) {
        self.failing.remove(&target);
    }

    /// The dial failed: nobody dials until the wait is over, which doubles with each failure in turn.
    pub fn failed(&mut self, target: Target, error: &Error, now: Instant) {
        if self.failing.len() >= MAX_PEERS && !self.failing.contains_key(&target) {
            self.failing.retain(|_, peer| now < peer.until || peer.probing);
            if self.failing.len() >= MAX_PEERS {
                self.failing.clear();
            }
        }
        let wait = self.jittered();
        let peer = self.failing.entry(target).or_insert_with(|| Failing {
            failures: 0,
            until: now,
            probing: false,
            last: error.clone(),
        });
        // Dials that started side by side and failed together count as one.
        if peer.failures == 0 || peer.probing || now >= peer.until {
            let factor = 1_u32.checked_shl(peer.failures).unwrap_or(MAX_FACTOR).min(MAX_FACTOR);
            peer.failures = peer.failures.saturating_add(1);
            peer.until = later(now, wait * factor);
        }
        peer.probing = false;
        peer.last = error.clone();
    }

    /// The dial ended without an outcome: the next one may try.
    pub fn gave_up(&mut self, target: Target) {
        if let Some(peer) = self.failing.get_mut(&target) {
            peer.probing = false;
        }
    }

    /// The base with up to a quarter added.
    fn jittered(&mut self) -> Duration {
        self.jitter = self.jitter.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let share = (self.jitter >> 56) as u32;
        self.base + self.base / 4 * share / 256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_secs(1);

    fn target(port: u16) -> Target {
        let endpoint = Endpoint::new(([127, 0, 0, 1], port).into());
        (endpoint, EngineId::from_bytes([7; 16]))
    }

    #[expect(clippy::disallowed_methods, reason = "a test needs some instant")]
    fn now() -> Instant {
        Instant::now()
    }

    /// LOG-005: requests for a dead peer do not dial again and again.
    #[test]
    fn ten_thousand_requests_in_ten_seconds_make_few_dials() {
        let (mut cooldowns, start) = (Cooldowns::new(BASE, 3), now());
        let mut dials = 0;
        for ms in 0..10_000 {
            let at = start + Duration::from_millis(ms);
            match cooldowns.ask(target(1), at) {
                Ok(()) => {
                    dials += 1;
                    cooldowns.failed(target(1), &Error::Closed, at);
                }
                Err(error) => assert_eq!(error.code(), "closed", "the last cause is told"),
            }
        }
        assert!((2..=6).contains(&dials), "{dials}");
        assert!(cooldowns.ask(target(2), start).is_ok(), "another peer is not concerned");
    }

    #[test]
    fn one_at_a_time_probes_a_failing_peer_and_success_clears_it() {
        let (mut cooldowns, start) = (Cooldowns::new(BASE, 3), now());
        for _ in 0..3 {
            assert!(cooldowns.ask(target(1), start).is_ok(), "nothing failed yet");
        }
        for _ in 0..3 {
            cooldowns.failed(target(1), &Error::Closed, start);
        }
        let over = start + BASE * 5 / 4;
        assert!(cooldowns.ask(target(1), over).is_ok(), "three failures at once count as one");
        assert!(cooldowns.ask(target(1), over).is_err(), "one probes");
        cooldowns.gave_up(target(1));
        assert!(cooldowns.ask(target(1), over).is_ok());
        cooldowns.succeeded(target(1));
        assert!(cooldowns.ask(target(1), over).is_ok() && cooldowns.ask(target(1), over).is_ok());
    }

    #[test]
    fn the_wait_grows_to_its_bound_and_the_table_to_its_own() {
        let (mut cooldowns, start) = (Cooldowns::new(BASE, 3), now());
        let mut at = start;
        for _ in 0..40 {
            cooldowns.failed(target(1), &Error::Closed, at);
            at += BASE * MAX_FACTOR * 5 / 4;
            assert!(cooldowns.ask(target(1), at).is_ok(), "never longer than the bound");
        }
        for port in 0..=u16::MAX {
            cooldowns.failed(target(port), &Error::Closed, start);
            assert!(cooldowns.failing.len() <= MAX_PEERS);
        }
    }
}
