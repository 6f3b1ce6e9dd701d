//! How a withdrawal knows that no shard looks at an older table any more, without waking one that is
//! parked.
//!
//! Two things end the use of a withdrawn registration, and each is enough for its own part:
//!
//! 1. *The record's word.* Users are counted in the word that carries the closed bit, and a backing is
//!    given up only when it says "closed, nobody". So after the bit is set nobody, on any thread and with
//!    however old a table, becomes a user. This is what keeps memory safe.
//! 2. *The gate.* What a shard has derived from its table beyond the records (positions, a decision
//!    made earlier in its turn) must be gone, too, before `withdraw` returns. A withdrawal therefore waits
//!    until each shard has said that it saw the table without the record, or is quiescent.
//!
//! Why no shard works from an older table after the wait. The withdrawal does
//! (W1) close the word, (W2) store the new table and then its version, (W3) a `SeqCst` fence, (W4) load
//! the gate. A shard that wakes does (S1) store the gate without QUIESCENT, (S2) a `SeqCst` fence, (S3)
//! load the version and, where it differs from what it has, the table. Fences are totally ordered:
//!
//! - S2 before W3: then W4 sees S1 or something later, so not the QUIESCENT from before. It waits until
//!   the shard stores a version at least as new, which the shard does only after it took that table, or
//!   until it parks again.
//! - W3 before S2: then S3 sees the version of W2 or a later one, so the shard takes a table without the
//!   record before it looks anything up.
//!
//! A shard that stays awake loads the version at the head of each turn and then stores what it has, also
//! where this load found nothing new: a look-up that misses loads a newer table in the middle of a turn,
//! and the gate is then behind the truth until the next turn begins.

use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::sys::sync::{AtomicU64, Ordering, fence};

const QUIESCENT: u64 = 1;

/// One shard's word: the version it has seen, shifted left by one, and the QUIESCENT bit. Written by
/// the shard alone, read by withdrawals. Begins quiescent, and is left so when the shard ends.
#[derive(Debug)]
pub(crate) struct Gate(CachePadded<AtomicU64>);

impl Gate {
    pub(super) fn new() -> Self {
        Self(CachePadded::new(AtomicU64::new(QUIESCENT)))
    }

    /// The shard begins to run, or goes on after a park: from here withdrawals wait for it. It begins a
    /// turn with its view before it looks anything up.
    pub fn enter(&self) -> Running<'_> {
        self.open();
        Running(self)
    }

    /// S1 and S2 of the module's argument; the load of the version must follow.
    pub(super) fn open(&self) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(word & !QUIESCENT, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The shard, which runs, looks at the table of `version` and at no older one. Stores only what was
    /// not told yet, so the line stays with the shard while nothing is registered.
    pub(super) fn seen(&self, version: u64) {
        let word = version << 1;
        if self.0.load(Ordering::Relaxed) != word {
            // Release: what the shard did with older tables comes before the withdrawal goes on.
            self.0.store(word, Ordering::Release);
        }
    }

    /// The shard looks nothing up until it enters again.
    fn park(&self) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(word | QUIESCENT, Ordering::Release);
    }

    /// W4: whether the shard can use no table older than `version`.
    pub(super) fn is_past(&self, version: u64) -> bool {
        let word = self.0.load(Ordering::Acquire);
        word & QUIESCENT != 0 || word >> 1 >= version
    }
}

/// A shard that runs. Dropped when it looks nothing up until it enters again: it parks, its `poll`
/// returns, or it ends, in whatever way. One that unwinds is never run again, so nobody waits for it.
#[derive(Debug)]
#[must_use = "a shard that let go of this is taken for parked"]
pub(crate) struct Running<'a>(&'a Gate);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.park();
    }
}

/// How many gates are not past `version`, which was published before the call (W2).
pub(super) fn behind(gates: &[Gate], version: u64) -> usize {
    fence(Ordering::SeqCst); // W3
    gates.iter().filter(|gate| !gate.is_past(version)).count()
}

/// Waits until every gate is past `version`, which was published before the call (W2). Answers how many
/// were not when `timeout` ended: 0 is success.
pub(super) fn wait_past(gates: &[Gate], version: u64, timeout: Duration) -> usize {
    for _ in 0..64 {
        if behind(gates, version) == 0 {
            return 0;
        }
        std::hint::spin_loop();
    }
    let started = now();
    let mut rounds = 0u32;
    loop {
        // The clock first: what came in time counts, however late this thread is run again.
        let late = started.elapsed() >= timeout;
        let behind = behind(gates, version);
        if behind == 0 || late {
            return behind;
        }
        pause(rounds);
        rounds = rounds.saturating_add(1);
    }
}

/// A turn lasts microseconds, so the first waits only give the CPU away; a shard that does not turn is
/// looked at every 100 us.
#[expect(clippy::disallowed_methods, reason = "a caller's thread waits for shards, bounded")]
fn pause(rounds: u32) {
    if rounds < 100 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[expect(clippy::disallowed_methods, reason = "an entry point of the API bounds its wait")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use super::*;

    #[test]
    fn only_a_running_shard_that_is_behind_is_waited_for() {
        let gate = Gate::new();
        assert!(gate.is_past(7), "not started");
        let running = gate.enter();
        assert!(!gate.is_past(7), "running, has seen nothing");
        gate.seen(6);
        assert!(!gate.is_past(7), "behind");
        assert!(gate.is_past(6));
        drop(running);
        assert!(gate.is_past(7), "parked");
        let _running = gate.enter();
        assert!(!gate.is_past(7) && gate.is_past(6), "remembers what it saw");
        gate.seen(9);
        assert!(gate.is_past(7), "ahead");
    }

    #[test]
    fn a_wait_ends_with_its_timeout_and_counts_who_is_behind() {
        let gates = [Gate::new(), Gate::new(), Gate::new()];
        gates.iter().take(2).for_each(Gate::open);
        assert_eq!(wait_past(&gates, 2, Duration::from_millis(5)), 2);
        gates.iter().take(2).for_each(|gate| gate.seen(2));
        assert_eq!(wait_past(&gates, 2, Duration::ZERO), 0);
    }
}

#[cfg(all(test, orbite_loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    use crate::sys::sync::AtomicBool;

    struct Model {
        gate: [Gate; 1],
        version: AtomicU64,
        withdrawn: AtomicBool,
    }

    /// A parked shard wakes while a withdrawal runs, in every interleaving: once the withdrawal saw
    /// nobody behind, the shard does not work with the older version.
    #[test]
    fn loom_a_waking_shard_sees_the_withdrawal_or_is_waited_for() {
        loom::model(|| {
            let model = Arc::new(Model {
                gate: [Gate::new()],
                version: AtomicU64::new(1),
                withdrawn: AtomicBool::new(false),
            });
            let shard = Arc::clone(&model);
            let shard = loom::thread::spawn(move || {
                let [gate] = &shard.gate;
                let running = gate.enter();
                let version = shard.version.load(Ordering::Acquire);
                gate.seen(version);
                let withdrawn = shard.withdrawn.load(Ordering::SeqCst);
                assert!(version == 2 || !withdrawn, "works with a withdrawn table");
                drop(running);
            });
            model.version.store(2, Ordering::Release);
            if behind(&model.gate, 2) == 0 {
                model.withdrawn.store(true, Ordering::SeqCst);
            }
            shard.join().unwrap();
        });
    }
}
