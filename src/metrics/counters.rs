//! Counter blocks. A shard's block has one writer and costs it plain loads and stores; what several
//! threads count has cache lines of its own.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;

/// A number with one writer. Wraps around at 2^64.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// The one writer: adds `n`. No read-modify-write cycle, so a second writer would lose counts.
    pub(crate) fn bump(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The one writer: replaces the value, for what is a level and not a sum.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Anyone: the value some moment ago. A later look of the same thread never sees an older one.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that any thread may add to, off the hot path.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    /// Adds `n`.
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The value some moment ago.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one shard counts and what its callers count about it. Two parts that share no cache line, so
/// that a caller's count does not slow the shard down.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Written by the shard's thread alone.
    pub shard: CachePadded<ShardCounters>,
    /// Written by callers.
    pub callers: CachePadded<CallerCounters>,
}

/// Written by one shard's thread, once a turn or less.
#[derive(Debug, Default)]
pub(crate) struct ShardCounters {
    /// Turns made.
    pub turns: Counter,
    /// When the last turn began, nanoseconds on the engine's clock: to see that it stalls.
    pub last_turn_ns: Counter,
    /// Nanoseconds awake at the start of the last sleep; see [`ShardCounters::awake_ns`].
    awake_ns: Counter,
    /// Nanoseconds asleep, of sleeps that have ended.
    pub parked_ns: Counter,
    /// Times it went to sleep.
    pub sleeps: Counter,
    /// Submissions and messages waiting at the last round of the detectors. A level.
    pub lane_depth: Counter,
    /// Frames sent as requester.
    pub frames_sent: Counter,
    /// Frames served as source.
    pub frames_served: Counter,
    /// Frames refused as source.
    pub frames_refused: Counter,
    /// Requests that completed.
    pub tasks_completed: Counter,
    /// Requests that failed.
    pub tasks_failed: Counter,
    /// Requests that were never attempted.
    pub tasks_canceled: Counter,
    /// Bytes of completed READs.
    pub bytes_read: Counter,
    /// Bytes of completed WRITEs.
    pub bytes_written: Counter,
    /// Runs that ended with an unknown effect.
    pub remote_effect_unknown: Counter,
    /// Lanes cut because the peer broke the protocol.
    pub protocol_violations: Counter,
}

impl ShardCounters {
    /// The shard, before it sleeps or ends: it was awake until `now`, on the engine's clock.
    pub(crate) fn falls_asleep(&self, now: u64) {
        self.awake_ns.set(now.saturating_sub(self.parked_ns.get()));
    }

    /// The shard, after a sleep of `asleep` nanoseconds that began when it fell asleep.
    pub(crate) fn wakes(&self, asleep: u64) {
        // A reader that sees this sleep in the sum also sees what was awake before it.
        fence(Ordering::Release);
        self.parked_ns.bump(asleep);
    }

    /// Anyone: nanoseconds awake until the start of the last turn or sleep, whichever is later. Never
    /// less than at an earlier look of the same thread.
    ///
    /// The turn is read before the sum of the sleeps, so a sleep in between makes the difference too
    /// small and never too large; what was awake before that sleep, read last, is the lower bound.
    pub(crate) fn awake_ns(&self) -> u64 {
        let turn = self.last_turn_ns.get();
        fence(Ordering::Acquire);
        let parked = self.parked_ns.get();
        fence(Ordering::Acquire);
        self.awake_ns.get().max(turn.saturating_sub(parked))
    }
}

/// Written by the threads that submit to the shard.
#[derive(Debug, Default)]
pub(crate) struct CallerCounters {
    /// Times that a waiting caller rang the bell for safety's sake; expected 0.
    pub guard_rings: Tally,
    /// When the oldest submission was sent that a caller found unseen after a long wait, nanoseconds on
    /// the engine's clock. Means nothing once a turn began after it.
    unseen_since_ns: AtomicU64,
}

impl Counters {
    /// A caller, off the hot path: what it sent at `sent` has not been looked at yet.
    pub(crate) fn note_unseen(&self, sent: u64) {
        let turned = self.shard.last_turn_ns.get();
        let older = |noted| (noted <= turned || sent < noted).then_some(sent);
        let _one_that_is_older_stands =
            self.callers.unseen_since_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, older);
    }

    /// Since when work waits that callers sent and no turn has begun to look at.
    pub(crate) fn unseen_since(&self) -> Option<u64> {
        let noted = self.callers.unseen_since_ns.load(Ordering::Relaxed);
        (noted > self.shard.last_turn_ns.get()).then_some(noted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_loses_nothing_and_readers_never_see_less() {
        let counters = Counters::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..100_000 {
                    counters.shard.turns.bump(1);
                }
            });
            scope.spawn(|| {
                let mut last = 0;
                while last < 100_000 {
                    let seen = counters.shard.turns.get();
                    assert!(seen >= last);
                    last = seen;
                }
            });
        });
        assert_eq!(counters.shard.turns.get(), 100_000);
        counters.shard.lane_depth.set(3);
        counters.shard.lane_depth.set(1);
        assert_eq!(counters.shard.lane_depth.get(), 1);
    }

    #[test]
    fn a_sleep_is_no_time_awake_and_time_awake_never_shrinks() {
        let shard = ShardCounters::default();
        shard.last_turn_ns.set(100);
        assert_eq!(shard.awake_ns(), 100);
        shard.falls_asleep(150);
        assert_eq!(shard.awake_ns(), 150, "however long it sleeps");
        shard.wakes(1000);
        assert_eq!(shard.awake_ns(), 150, "its first turn has not begun");
        shard.last_turn_ns.set(1160);
        assert_eq!(shard.awake_ns(), 160);
    }

    #[test]
    fn a_reader_beside_a_shard_that_turns_and_sleeps_sees_time_awake_grow() {
        let shard = ShardCounters::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut now, mut awake) = (0, 0);
                for round in 0..100_000 {
                    now += 10;
                    awake += 10;
                    shard.last_turn_ns.set(now);
                    now += 3;
                    awake += 3;
                    shard.falls_asleep(now);
                    now += round % 7 * 100;
                    shard.wakes(round % 7 * 100);
                }
                shard.last_turn_ns.set(now);
                assert_eq!(shard.awake_ns(), awake);
            });
            scope.spawn(|| {
                let mut last = 0;
                while last < 1_300_000 {
                    let seen = shard.awake_ns();
                    assert!((last..=1_300_000).contains(&seen), "{seen} after {last}");
                    last = seen;
                }
            });
        });
    }

    #[test]
    fn the_oldest_unseen_work_is_noted_until_a_turn_begins() {
        let counters = Counters::default();
        counters.shard.last_turn_ns.set(100);
        assert_eq!(counters.unseen_since(), None);
        for (sent, oldest) in [(300, 300), (200, 200), (250, 200)] {
            counters.note_unseen(sent);
            assert_eq!(counters.unseen_since(), Some(oldest));
        }
        counters.shard.last_turn_ns.set(260);
        assert_eq!(counters.unseen_since(), None);
        counters.note_unseen(400);
        assert_eq!(counters.unseen_since(), Some(400));
    }

    #[test]
    fn many_callers_lose_nothing() {
        let counters = Counters::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1_000).for_each(|_| counters.callers.guard_rings.add(1)));
            }
        });
        assert_eq!(counters.callers.guard_rings.get(), 4_000);
    }

    #[test]
    fn the_shards_counters_share_no_cache_line_with_others() {
        let counters = [Counters::default(), Counters::default()];
        let starts = counters
            .iter()
            .flat_map(|block| [(&raw const block.shard).addr(), (&raw const block.callers).addr()]);
        assert!(starts.into_iter().all(|start| start % 64 == 0));
    }
}
