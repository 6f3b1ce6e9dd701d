//! The completion word of `submit_and_wait`: a shard says "done" once, any number of threads wait.
//!
//! | word | meaning | left by |
//! |---|---|---|
//! | 0 | pending, nobody sleeps | a waiter that parks → 1; the shard → 2 |
//! | 1 | pending, somebody may sleep | the shard → 2, with a wake of all |
//! | 2 | done | [`Word::reset`] only |
//!
//! The shard touches the word after it has published "done" (the wake goes to its address). So the
//! word lives in an `Arc` that both sides hold, and the shard drops its own only after
//! [`Word::complete`] has returned.

use std::time::{Duration, Instant};

use crate::shard::wait::{Phase, Spinner};
use crate::sys::futex;
use crate::sys::sync::{AtomicU32, Ordering};

const PENDING: u32 = 0;
const PARKED: u32 = 1;
const DONE: u32 = 2;

/// One-shot. What the shard wrote before [`complete`](Self::complete) is visible to whoever saw
/// [`is_done`](Self::is_done) or a true [`wait`](Self::wait).
#[derive(Debug)]
pub(crate) struct Word(AtomicU32);

impl Default for Word {
    fn default() -> Self {
        Self::new()
    }
}

impl Word {
    /// Pending.
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(PENDING))
    }

    /// The shard, once: done. Wakes every sleeper, with a system call only if there may be one, and
    /// says whether it did: then the shard does well to yield once, since the sleeper may want its CPU.
    pub(crate) fn complete(&self) -> bool {
        let parked = self.0.swap(DONE, Ordering::AcqRel) == PARKED;
        if parked {
            futex::wake_all(&self.0);
        }
        parked
    }

    /// Has it been completed?
    pub(crate) fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire) == DONE
    }

    /// Pending again, for the next use. Exclusive access proves that neither side still holds it.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }

    /// Waits until it is done or `deadline` has come, by the phases of `spinner` and then asleep. True:
    /// done. After a false answer the work still runs; the caller may wait again.
    ///
    /// After each `guard` asleep it calls `nudge`, which rings the shard's bell without asking whether
    /// it sleeps and counts that: a guard against a lost wake, expected never to be needed.
    #[expect(
        clippy::disallowed_methods,
        reason = "the caller's thread, waiting: its clock is here"
    )]
    pub(crate) fn wait(
        &self,
        spinner: &mut Spinner,
        deadline: Option<Instant>,
        guard: Duration,
        nudge: impl FnMut(),
    ) -> bool {
        spinner.reset();
        while !self.is_done() {
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return self.is_done();
            }
            if spinner.pause_until(now, || self.is_done()) == Phase::Park {
                return self.park(now, deadline, guard, nudge);
            }
        }
        true
    }

    #[expect(clippy::disallowed_methods, reason = "the caller's thread, between two sleeps")]
    fn park(
        &self,
        mut now: Instant,
        deadline: Option<Instant>,
        guard: Duration,
        mut nudge: impl FnMut(),
    ) -> bool {
        let mut guarded = now;
        loop {
            // A word that is parked already stays so; one that is done ends the wait.
            let swap =
                self.0.compare_exchange(PENDING, PARKED, Ordering::AcqRel, Ordering::Acquire);
            if swap == Err(DONE) {
                return true;
            }
            let slept = now.saturating_duration_since(guarded);
            let mut limit = guard.saturating_sub(slept);
            if let Some(deadline) = deadline {
                limit = limit.min(deadline.saturating_duration_since(now));
            }
            futex::wait(&self.0, PARKED, Some(limit));
            if self.is_done() {
                return true;
            }
            now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return self.is_done();
            }
            if now.saturating_duration_since(guarded) >= guard {
                nudge();
                guarded = now;
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32 as Count, Ordering};

    use super::*;
    use crate::shard::mailbox::bell::Bell;
    use crate::shard::wait::WaitPolicy;
    use crate::sys::epoll::{Epoll, Events, Interest};

    const GUARD: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_secs(20);

    fn spinner() -> Spinner {
        Spinner::new(WaitPolicy::choose(2, 2, 5, 50))
    }

    fn sleeper() -> Spinner {
        Spinner::new(WaitPolicy::PARK)
    }

    #[expect(clippy::disallowed_methods, reason = "a deadline needs the time")]
    fn after(delay: Duration) -> Instant {
        Instant::now() + delay
    }

    #[test]
    fn a_done_word_does_not_wait_whatever_the_deadline() {
        let mut word = Word::new();
        assert!(!word.complete(), "nobody slept");
        assert!(word.wait(&mut sleeper(), Some(after(Duration::ZERO)), GUARD, || unreachable!()));
        word.reset();
        assert!(!word.is_done());
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_can_be_repeated() {
        let word = Word::new();
        for mut spinner in [spinner(), sleeper()] {
            assert!(!word.wait(&mut spinner, Some(after(Duration::ZERO)), LONG, || unreachable!()));
            let soon = Some(after(Duration::from_millis(1)));
            assert!(!word.wait(&mut spinner, soon, LONG, || unreachable!()));
        }
        assert!(word.complete(), "the mark of the sleeper stays");
        assert!(word.wait(&mut sleeper(), None, LONG, || unreachable!()));
    }

    #[test]
    fn the_guard_nudges_while_it_sleeps() {
        let word = Word::new();
        let mut nudges = 0;
        let done = word.wait(&mut sleeper(), None, Duration::from_millis(1), || {
            nudges += 1;
            if nudges == 3 {
                word.complete();
            }
        });
        assert!(done);
        assert_eq!(nudges, 3);
    }

    #[test]
    fn every_waiter_of_a_word_wakes() {
        for _ in 0..200 {
            let word = Word::new();
            let results = Count::new(0);
            std::thread::scope(|scope| {
                for index in 0..4 {
                    let (word, results) = (&word, &results);
                    scope.spawn(move || {
                        let mut spinner = if index % 2 == 0 { spinner() } else { sleeper() };
                        assert!(word.wait(
                            &mut spinner,
                            Some(after(LONG)),
                            LONG,
                            || unreachable!()
                        ));
                        assert_eq!(results.load(Ordering::Relaxed), 7, "published before done");
                    });
                }
                results.store(7, Ordering::Relaxed);
                word.complete();
            });
        }
    }

    /// Takes words from its ring and completes them, asleep in epoll when there is none.
    fn shard(mut ring: rtrb::Consumer<Arc<Word>>, bell: &Bell, policy: WaitPolicy, words: u32) {
        let epoll = Epoll::new().unwrap();
        epoll.add(bell.as_fd(), 0, Interest::READ).unwrap();
        let mut events = Events::with_capacity(1);
        let mut spinner = Spinner::new(policy);
        let mut done = 0;
        while done < words {
            if let Ok(word) = ring.pop() {
                word.complete();
                done += 1;
                spinner.reset();
                continue;
            }
            if spinner.pause_until(after(Duration::ZERO), || !ring.is_empty()) == Phase::Again {
                continue;
            }
            bell.prepare_sleep();
            if ring.is_empty() {
                epoll.wait(&mut events, None).unwrap();
            }
            bell.awake();
            spinner.reset();
        }
    }

    /// CORE-063, the primitives alone: 100 000 crossings with gaps and without, all complete and no
    /// nudge is needed.
    #[test]
    fn core_063_no_crossing_needs_the_guard() {
        const EACH: u32 = 34_000;
        let policies =
            [WaitPolicy::PARK, WaitPolicy::choose(2, 2, 5, 50), WaitPolicy::choose(2, 2, 20, 200)];
        for policy in policies {
            let (mut ring, consumer) = rtrb::RingBuffer::new(8);
            let bell = Bell::new().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| shard(consumer, &bell, policy, EACH));
                let mut spinner = Spinner::new(policy);
                for number in 0..EACH {
                    if number % 97 == 0 {
                        let gap = after(Duration::from_micros(u64::from(number % 400)));
                        Word::new().wait(&mut spinner, Some(gap), LONG, || unreachable!());
                    }
                    let word = Arc::new(Word::new());
                    ring.push(Arc::clone(&word)).unwrap();
                    bell.ring();
                    let lost = || panic!("the wake of crossing {number} was lost");
                    assert!(word.wait(&mut spinner, None, LONG, lost));
                }
            });
        }
    }
}

#[cfg(test)]
#[cfg(orbite_loom)]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;
    use crate::shard::wait::WaitPolicy;

    /// Never comes within a model: the model's futex knows no timeout.
    const NEVER: Duration = Duration::from_secs(3600);

    /// A word and the result that it publishes. Relaxed: only the word makes the result visible.
    struct Reply {
        word: Word,
        result: AtomicU32,
    }

    fn park(reply: &Reply) {
        let mut spinner = Spinner::new(WaitPolicy::PARK);
        assert!(reply.word.wait(&mut spinner, None, NEVER, || {}));
        assert_eq!(reply.result.load(Ordering::Relaxed), 7);
    }

    fn model(waiters: usize) {
        loom::model(move || {
            let reply = Arc::new(Reply { word: Word::new(), result: AtomicU32::new(0) });
            let threads: Vec<_> = (0..waiters)
                .map(|_| {
                    let reply = Arc::clone(&reply);
                    loom::thread::spawn(move || park(&reply))
                })
                .collect();
            reply.result.store(7, Ordering::Relaxed);
            reply.word.complete();
            assert!(reply.word.is_done());
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn completing_never_misses_one_that_parks() {
        model(1);
    }

    #[test]
    fn completing_wakes_every_waiter() {
        model(2);
    }
}
