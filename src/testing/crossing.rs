//! How long it takes to cross from a caller into a shard and back, and to wake a shard that sleeps.
//!
//! The shard is a thread with the mailbox of a real one (a ring, the bell, completion words) and no
//! work beside it. The sleeping one is measured against the least that any design of this kind pays: a
//! thread in `epoll_wait` on an eventfd. The two take turns, so both meet the same machine.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::shard::mailbox::bell::Bell;
use crate::shard::mailbox::word::Word;
use crate::shard::wait::{Phase, Spinner, WaitPolicy, measure_wake_latency};
use crate::sys::affinity;
use crate::sys::epoll::{Epoll, Events, Interest};
use crate::sys::eventfd::EventFd;
use crate::sys::process;

/// Spinning that outlasts every sleep measured here: the caller's, so that only the shard sleeps.
const SPIN: WaitPolicy = WaitPolicy { pure: Duration::from_secs(1), total: Duration::from_secs(1) };
/// Between two cold rounds: the woken thread goes back to sleep and its core halts.
const GAP: Duration = Duration::from_micros(300);
const GUARD: Duration = Duration::from_millis(10);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Shape {
    /// Crossings while both sides are awake.
    pub awake: usize,
    /// Wakes of a sleeping shard, and as many plain ones.
    pub cold: usize,
}

impl Shape {
    /// `awake` crossings, `cold` wakes of either kind.
    pub const fn new(awake: usize, cold: usize) -> Self {
        Self { awake, cold }
    }
}

/// Durations of one kind.
#[derive(Clone, Debug)]
pub struct Samples(Vec<Duration>);

impl Samples {
    fn new(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        Self(samples)
    }

    /// Number of them.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The duration that `share` of all (0.5: half) do not exceed. Zero without samples.
    pub fn quantile(&self, share: f64) -> Duration {
        let last = self.0.len().saturating_sub(1);
        let index = (share.clamp(0.0, 1.0) * last as f64).round() as usize;
        self.0.get(index).copied().unwrap_or_default()
    }
}

/// What was measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// CPU of the caller.
    pub caller_cpu: u32,
    /// CPU of the shard and of the plain sleeper.
    pub shard_cpu: u32,
    /// Both threads could be bound to them.
    pub pinned: bool,
    /// Caller to shard and back, both awake, the waiting of the default policy.
    pub awake: Samples,
    /// CPU time of both threads for one such crossing.
    pub awake_cpu: Duration,
    /// Two threads on the same CPUs that answer each other by one store each: the least that two trips
    /// of a cache line take. A crossing needs four.
    pub lines: Samples,
    /// The same with the shard asleep and the caller spinning.
    pub cold: Samples,
    /// A plain thread woken in `epoll_wait` by an eventfd, answering by a store; the caller spinning.
    pub plain: Samples,
    /// Times that the guard rang, expected 0. A machine that leaves a thread without a CPU for 10 ms
    /// makes it ring too.
    pub guard_rings: u64,
    /// What an engine measures at its start and shows in its statistics.
    pub wake_latency: Duration,
}

/// Measures. Needs two CPUs, and answers `Unsupported` without; fails also if the kernel refuses a
/// thread or a descriptor.
pub fn run(shape: Shape) -> io::Result<Report> {
    let cpus = affinity::allowed_cpus();
    let (Some(&caller_cpu), Some(&shard_cpu)) = (cpus.first(), cpus.last()) else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    if caller_cpu == shard_cpu {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "a crossing needs two CPUs"));
    }
    let wake_latency = measure_wake_latency();
    // Its own thread, so that the binding ends with it.
    thread::scope(|scope| {
        let caller = thread::Builder::new().name("crossing-caller".into());
        let caller = caller.spawn_scoped(scope, || {
            let mut pinned = affinity::pin_current_thread(caller_cpu).is_ok();
            let mut guard_rings = 0;
            let policy = WaitPolicy::choose(2, 2, 20, 200);
            let awake = with_shard(policy, shard_cpu, &mut pinned, |shard| {
                let before = process::process_cpu_time(process::pid()).unwrap_or_default();
                let awake = (0..shape.awake).map(|_| shard.cross(&mut guard_rings)).collect();
                let after = process::process_cpu_time(process::pid()).unwrap_or_default();
                let rounds = u32::try_from(shape.awake).unwrap_or(u32::MAX).max(1);
                (Samples::new(awake), after.saturating_sub(before) / rounds)
            })?;
            let lines = with_echo(shard_cpu, |echo| {
                Samples::new((0..shape.awake).map(|_| echo.cross()).collect())
            })?;
            let cold = with_shard(WaitPolicy::PARK, shard_cpu, &mut pinned, |shard| {
                shard.spinner = Spinner::new(SPIN);
                with_plain(shard_cpu, |plain| {
                    let pairs = (0..shape.cold).map(|_| {
                        gap();
                        let ours = shard.cross(&mut guard_rings);
                        gap();
                        (ours, plain.cross())
                    });
                    pairs.unzip()
                })
            })?;
            let (cold, plain): (Vec<_>, Vec<_>) = cold?;
            let ((awake, awake_cpu), cold, plain) =
                (awake, Samples::new(cold), Samples::new(plain));
            Ok(Report {
                caller_cpu,
                shard_cpu,
                pinned,
                awake,
                awake_cpu,
                lines,
                cold,
                plain,
                guard_rings,
                wake_latency,
            })
        })?;
        caller.join().unwrap_or_else(|_panic| Err(io::Error::other("the caller's thread panicked")))
    })
}

/// The caller's end of the mailbox.
struct Port<'a> {
    ring: Producer<Arc<Word>>,
    bell: &'a Bell,
    spinner: Spinner,
}

impl Port<'_> {
    /// One round trip.
    fn cross(&mut self, guard_rings: &mut u64) -> Duration {
        let word = Arc::new(Word::new());
        let shared = Arc::clone(&word);
        let start = now();
        // One crossing at a time never fills the ring.
        let _pushed = self.ring.push(shared);
        self.bell.ring();
        let bell = self.bell;
        word.wait(&mut self.spinner, None, GUARD, || {
            *guard_rings += 1;
            bell.force();
        });
        start.elapsed()
    }
}

/// Runs `measure` beside a shard on `cpu` that waits by `policy`.
fn with_shard<R>(
    policy: WaitPolicy,
    cpu: u32,
    pinned: &mut bool,
    measure: impl FnOnce(&mut Port<'_>) -> R,
) -> io::Result<R> {
    let (ring, consumer) = RingBuffer::new(64);
    let (bell, epoll) = (Bell::new()?, Epoll::new()?);
    epoll.add(bell.as_fd(), 0, Interest::READ)?;
    thread::scope(|scope| {
        let shard = thread::Builder::new().name("crossing-shard".into());
        let shard = shard.spawn_scoped(scope, || {
            let pinned = affinity::pin_current_thread(cpu).is_ok();
            serve(consumer, &bell, &epoll, policy);
            pinned
        })?;
        let mut port = Port { ring, bell: &bell, spinner: Spinner::new(policy) };
        let result = measure(&mut port);
        drop(port);
        bell.force();
        *pinned &= shard.join().unwrap_or(false);
        Ok(result)
    })
}

/// The shard, until its ring's other end is gone.
fn serve(mut ring: Consumer<Arc<Word>>, bell: &Bell, epoll: &Epoll, policy: WaitPolicy) {
    let mut events = Events::with_capacity(1);
    let mut spinner = Spinner::new(policy);
    loop {
        if let Ok(word) = ring.pop() {
            word.complete();
            spinner.reset();
            continue;
        }
        if ring.is_abandoned() {
            return;
        }
        if spinner.pause_until(now(), || !ring.is_empty()) == Phase::Again {
            continue;
        }
        bell.prepare_sleep();
        if ring.is_empty() && !ring.is_abandoned() && epoll.wait(&mut events, None).is_err() {
            return;
        }
        bell.awake();
        spinner.reset();
    }
}

/// The caller's end of the plain sleeper.
struct Plain<'a> {
    event: &'a EventFd,
    round: &'a AtomicU32,
    sent: u32,
}

impl Plain<'_> {
    fn cross(&mut self) -> Duration {
        self.sent = self.sent.wrapping_add(1);
        let start = now();
        self.event.signal();
        while self.round.load(Ordering::Acquire) != self.sent {
            std::hint::spin_loop();
        }
        start.elapsed()
    }
}

/// Runs `measure` beside a thread on `cpu` that does nothing but wake and answer.
fn with_plain<R>(cpu: u32, measure: impl FnOnce(&mut Plain<'_>) -> R) -> io::Result<R> {
    /// Ends the sleeper: no measurement sends it.
    const END: u32 = u32::MAX;
    let (event, epoll) = (EventFd::new()?, Epoll::new()?);
    epoll.add(event.as_fd(), 0, Interest::READ)?;
    let (round, end) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        thread::Builder::new().name("crossing-plain".into()).spawn_scoped(scope, || {
            let _pinned = affinity::pin_current_thread(cpu);
            let mut events = Events::with_capacity(1);
            while end.load(Ordering::Acquire) != END {
                // A signal to the process ends a wait too and is no round.
                if matches!(epoll.wait(&mut events, None), Ok(1..)) {
                    event.drain();
                    round.fetch_add(1, Ordering::Release);
                }
            }
        })?;
        let result = measure(&mut Plain { event: &event, round: &round, sent: 0 });
        end.store(END, Ordering::Release);
        event.signal();
        Ok(result)
    })
}

/// The caller's end of the pair that has nothing but two words.
struct Echo<'a> {
    ask: &'a CachePadded<AtomicU32>,
    answer: &'a CachePadded<AtomicU32>,
    sent: u32,
}

impl Echo<'_> {
    /// Ends the other side: no measurement sends it.
    const END: u32 = u32::MAX;

    fn cross(&mut self) -> Duration {
        self.sent = self.sent.wrapping_add(1) % Self::END;
        let start = now();
        self.ask.store(self.sent, Ordering::Release);
        while self.answer.load(Ordering::Acquire) != self.sent {
            std::hint::spin_loop();
        }
        start.elapsed()
    }
}

/// Runs `measure` beside a thread on `cpu` that answers what it is asked.
fn with_echo<R>(cpu: u32, measure: impl FnOnce(&mut Echo<'_>) -> R) -> io::Result<R> {
    let ask = CachePadded::new(AtomicU32::new(0));
    let answer = CachePadded::new(AtomicU32::new(0));
    thread::scope(|scope| {
        thread::Builder::new().name("crossing-echo".into()).spawn_scoped(scope, || {
            let _pinned = affinity::pin_current_thread(cpu);
            let mut seen = 0;
            while seen != Echo::END {
                let asked = ask.load(Ordering::Acquire);
                if asked == seen {
                    std::hint::spin_loop();
                    continue;
                }
                answer.store(asked, Ordering::Release);
                seen = asked;
            }
        })?;
        let result = measure(&mut Echo { ask: &ask, answer: &answer, sent: 0 });
        ask.store(Echo::END, Ordering::Release);
        Ok(result)
    })
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark's thread, which owns nothing")]
fn gap() {
    thread::sleep(GAP);
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_as_many_samples_as_asked_for() {
        match run(Shape::new(1_000, 10)) {
            Ok(report) => {
                let pairs = (report.awake.count(), report.lines.count());
                assert_eq!(pairs, (1_000, 1_000));
                assert_eq!((report.cold.count(), report.plain.count()), (10, 10));
                assert!(report.plain.quantile(0.5) > Duration::ZERO);
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
        }
    }

    #[test]
    fn quantiles_are_taken_from_the_sorted_samples() {
        let samples = Samples::new([5, 1, 3, 2, 4].map(Duration::from_nanos).to_vec());
        let at = |share| samples.quantile(share).as_nanos();
        assert_eq!((at(0.0), at(0.5), at(1.0), at(7.0)), (1, 3, 5, 5));
        assert_eq!(Samples::new(Vec::new()).quantile(0.5), Duration::ZERO);
    }
}
