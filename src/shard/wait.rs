//! How a thread waits for another one: spin, then spin and yield, then park.
//!
//! Decides only how long each phase lasts. Spinning needs a CPU for each thread that spins, so without
//! one nobody spins. Within spinning, a `sched_yield` that ran another thread means that somebody else
//! wants this CPU: for the next while the thread yields from the start. That moves time between the two
//! ways of spinning and never into parking, so two threads that wait for each other cannot settle into
//! both parking for good.
//!
//! A yield that took long is the cheap sign of another thread, but interrupts and a hypervisor make long
//! ones too, and a thread that yields all the time meets one of those every few milliseconds: by length
//! alone it would never come back to pure spinning, at ten times the cost of a crossing. So the kernel's
//! count of involuntary switches, which a yield to another thread raises, has the last word.

use std::hint;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::sys::epoll::{Epoll, Events, Interest};
use crate::sys::eventfd::EventFd;
use crate::sys::futex;
use crate::sys::process;
use crate::sys::sync::{AtomicBool, AtomicU32, Ordering};

/// Spin hints between two looks at the clock: about a microsecond.
const HINTS: u32 = 32;
/// The same for a loop whose passes take long enough by themselves.
const BRIEF_HINTS: u32 = 2;
/// A yield that lasted longer than this may have run another thread. One that finds nobody takes a third
/// of it.
const LONG_YIELD: Duration = Duration::from_micros(3);
/// How long the pure phase is left out after a yield to another thread: a few scheduler slices.
const CROWDED_FOR: Duration = Duration::from_millis(10);

/// Budgets of the two spinning phases, counted from the moment that the thread ran out of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitPolicy {
    /// Spinning without giving the CPU away.
    pub pure: Duration,
    /// Spinning in all; what is left after `pure` yields. Zero: park at once.
    pub total: Duration,
}

impl WaitPolicy {
    /// Parks at once.
    pub(crate) const PARK: Self = Self { pure: Duration::ZERO, total: Duration::ZERO };

    /// The policy of a process in which `spinners` threads (shards and waiting callers) may spin at a
    /// time on `effective_cpus` CPUs. With fewer CPUs than spinners, or with one CPU, nobody spins. The
    /// total is never shorter than the pure phase.
    pub(crate) fn choose(effective_cpus: u32, spinners: u32, spin_us: u64, yield_us: u64) -> Self {
        if effective_cpus < spinners.max(2) {
            return Self::PARK;
        }
        Self {
            pure: Duration::from_micros(spin_us),
            total: Duration::from_micros(yield_us.max(spin_us)),
        }
    }
}

/// What to do after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Look again, then pause again.
    Again,
    /// The budgets are spent: announce, look once more, sleep.
    Park,
}

/// The waiting of one thread. Keep it for the life of the thread: it remembers how crowded the CPU is.
#[derive(Debug)]
pub(crate) struct Spinner {
    policy: WaitPolicy,
    /// When the present wait began; `None` before its first pause.
    started: Option<Instant>,
    /// The pure phase is left out until then.
    crowded_until: Option<Instant>,
    /// The thread's involuntary switches at its last long yield.
    switches: Option<u64>,
}

impl Spinner {
    /// A thread that waits by `policy`.
    pub(crate) const fn new(policy: WaitPolicy) -> Self {
        Self { policy, started: None, crowded_until: None, switches: None }
    }

    /// Pauses once, for about a microsecond or one yield. The first pause after
    /// [`reset`](Self::reset) starts the budgets at `now`.
    #[cfg(test)]
    pub(crate) fn pause(&mut self, now: Instant) -> Phase {
        self.pause_until(now, || false)
    }

    /// As [`pause`](Self::pause) for a loop whose every pass costs a system call anyway: the pure phase is
    /// a few hints only.
    pub(crate) fn pause_briefly(&mut self, now: Instant) -> Phase {
        self.pause_for(BRIEF_HINTS, now, || false)
    }

    /// Whether another thread wanted this CPU a moment ago.
    pub(crate) fn is_crowded(&self, now: Instant) -> bool {
        self.crowded_until.is_some_and(|until| now < until)
    }

    /// Somebody else has work for this CPU now: gives it away once.
    pub(crate) fn give_way(&mut self) {
        self.yield_once();
    }

    /// As [`pause`](Self::pause), and ends early once `ready`, which must be cheap, answers true. Use
    /// it where there is one word to look at: it sees a change within one spin hint.
    pub(crate) fn pause_until(&mut self, now: Instant, ready: impl FnMut() -> bool) -> Phase {
        self.pause_for(HINTS, now, ready)
    }

    fn pause_for(&mut self, hints: u32, now: Instant, mut ready: impl FnMut() -> bool) -> Phase {
        let started = *self.started.get_or_insert(now);
        let spent = now.saturating_duration_since(started);
        if spent >= self.policy.total {
            return Phase::Park;
        }
        if spent < self.policy.pure && !self.is_crowded(now) {
            for _ in 0..hints {
                if ready() {
                    break;
                }
                hint::spin_loop();
            }
        } else if !ready() {
            self.yield_once();
        }
        Phase::Again
    }

    /// Forgets the present wait: there was progress. What it knows of the CPU stays.
    pub(crate) fn reset(&mut self) {
        self.started = None;
    }

    #[expect(clippy::disallowed_methods, reason = "the length of a yield is what is measured")]
    fn yield_once(&mut self) {
        let before = Instant::now();
        process::yield_now();
        let after = Instant::now();
        if after.saturating_duration_since(before) <= LONG_YIELD {
            return;
        }
        if self.is_crowded(after) {
            // It is known already; the kernel's count would only cost a system call.
            self.crowded_until = Some(after + CROWDED_FOR);
        } else {
            self.long_yield(after, process::involuntary_switches());
        }
    }

    /// A long yield ended at `after`, with so many switches of the thread in its life. Without a number
    /// to compare with, or if the kernel does not tell, the length decides.
    fn long_yield(&mut self, after: Instant, switches: Option<u64>) {
        if switches.is_none() || switches != self.switches {
            self.crowded_until = Some(after + CROWDED_FOR);
        }
        self.switches = switches;
    }
}

/// Time from the system call that wakes a thread to that thread's first instruction: the median of a
/// few wakes of a helper that sleeps as a shard does, in `epoll` on an eventfd. Takes about 2 ms and
/// holds two descriptors meanwhile. Zero: it could not be measured (no descriptor, no thread, or a
/// machine too busy to finish one round).
pub(crate) fn measure_wake_latency() -> Duration {
    const ROUNDS: usize = 5;
    const ENOUGH: Duration = Duration::from_millis(2);
    Sleeper::new().and_then(|sleeper| sleeper.measure(ROUNDS, ENOUGH)).unwrap_or_default()
}

/// The helper's side of the measurement and what both threads share.
struct Sleeper {
    event: EventFd,
    epoll: Epoll,
    stop: AtomicBool,
    /// Rounds in which the helper has announced that it goes to sleep.
    asleep: AtomicU32,
    /// Rounds in which it has woken; a futex word.
    awake: AtomicU32,
    /// When it woke last, nanoseconds after `origin`.
    woken_ns: AtomicU32,
    origin: Instant,
}

impl Sleeper {
    #[expect(clippy::disallowed_methods, reason = "a measurement of time, at start only")]
    fn new() -> io::Result<Self> {
        let (event, epoll) = (EventFd::new()?, Epoll::new()?);
        epoll.add(event.as_fd(), 0, Interest::READ)?;
        Ok(Self {
            event,
            epoll,
            stop: AtomicBool::new(false),
            asleep: AtomicU32::new(0),
            awake: AtomicU32::new(0),
            woken_ns: AtomicU32::new(0),
            origin: Instant::now(),
        })
    }

    /// The helper thread, until it is told to stop.
    fn run(&self) {
        let mut events = Events::with_capacity(1);
        let mut round = 0;
        while !self.stop.load(Ordering::Acquire) {
            round += 1;
            self.asleep.store(round, Ordering::Release);
            futex::wake_all(&self.asleep);
            if self.epoll.wait(&mut events, None).is_err() {
                return;
            }
            self.woken_ns.store(self.elapsed_ns(), Ordering::Relaxed);
            self.event.drain();
            self.awake.store(round, Ordering::Release);
            futex::wake_all(&self.awake);
        }
    }

    fn measure(&self, rounds: usize, enough: Duration) -> io::Result<Duration> {
        /// From the announcement of a sleep until the helper surely sleeps.
        const SETTLE: Duration = Duration::from_micros(100);
        thread::scope(|scope| {
            thread::Builder::new()
                .name("orbite-wake-probe".into())
                .spawn_scoped(scope, || self.run())?;
            let mut samples = Vec::with_capacity(rounds);
            for round in 1.. {
                if samples.len() == rounds || !self.reached(&self.asleep, round, enough) {
                    break;
                }
                let nobody = AtomicU32::new(0);
                futex::wait(&nobody, 0, Some(SETTLE));
                let rung = self.elapsed_ns();
                self.event.signal();
                if !self.reached(&self.awake, round, enough) {
                    break;
                }
                samples.push(self.woken_ns.load(Ordering::Relaxed).saturating_sub(rung));
            }
            self.stop.store(true, Ordering::Release);
            self.event.signal();
            samples.sort_unstable();
            let median = samples.get(samples.len() / 2).copied().unwrap_or_default();
            Ok(Duration::from_nanos(u64::from(median)))
        })
    }

    /// Waits until `word` holds `round`, not past `enough` after the beginning.
    fn reached(&self, word: &AtomicU32, round: u32, enough: Duration) -> bool {
        loop {
            let value = word.load(Ordering::Acquire);
            if value >= round {
                return true;
            }
            let left = enough.saturating_sub(self.origin.elapsed());
            if left.is_zero() {
                return false;
            }
            futex::wait(word, value, Some(left));
        }
    }

    /// Saturates after four seconds, long after the measurement has given up.
    fn elapsed_ns(&self) -> u32 {
        u32::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use super::*;

    const POLICY: WaitPolicy =
        WaitPolicy { pure: Duration::from_micros(20), total: Duration::from_micros(200) };

    #[expect(clippy::disallowed_methods, reason = "some instant to count from")]
    fn start() -> Instant {
        Instant::now()
    }

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn nobody_spins_without_a_cpu_for_each_spinner() {
        let park = WaitPolicy::PARK;
        for (cpus, spinners, expected) in [
            (1, 1, park),
            (1, 2, park),
            (2, 0, POLICY),
            (2, 2, POLICY),
            (2, 3, park),
            (64, 64, POLICY),
            (64, 65, park),
        ] {
            let policy = WaitPolicy::choose(cpus, spinners, 20, 200);
            assert_eq!(policy, expected, "{cpus} CPUs, {spinners} spinners");
        }
        assert_eq!(WaitPolicy::choose(8, 2, 0, 0), park);
        assert_eq!(WaitPolicy::choose(8, 2, 50, 10), WaitPolicy { pure: us(50), total: us(50) });
    }

    #[test]
    fn budgets_run_from_the_first_pause_to_parking() {
        let start = start();
        let mut spinner = Spinner::new(POLICY);
        assert_eq!(spinner.pause(start), Phase::Again);
        assert_eq!(spinner.pause(start + us(19)), Phase::Again);
        assert_eq!(spinner.pause(start + us(199)), Phase::Again);
        assert_eq!(spinner.pause(start + us(200)), Phase::Park);
        assert_eq!(spinner.pause(start + us(300)), Phase::Park, "until there is progress");
        spinner.reset();
        assert_eq!(spinner.pause(start + us(400)), Phase::Again);
        assert_eq!(spinner.pause(start + us(599)), Phase::Again);
        assert_eq!(spinner.pause(start + us(600)), Phase::Park);
    }

    #[test]
    fn without_a_budget_it_parks_at_once() {
        assert_eq!(Spinner::new(WaitPolicy::PARK).pause(start()), Phase::Park);
    }

    #[test]
    fn a_pure_pause_ends_when_ready() {
        let mut looks = 0;
        let phase = Spinner::new(POLICY).pause_until(start(), || {
            looks += 1;
            looks == 3
        });
        assert_eq!((phase, looks), (Phase::Again, 3));
    }

    /// A pause in the pure phase looks many times, one in the yielding phase once.
    fn is_pure(spinner: &mut Spinner, now: Instant) -> bool {
        let mut looks = 0;
        let phase = spinner.pause_until(now, || {
            looks += 1;
            looks == 2
        });
        assert_eq!(phase, Phase::Again, "a crowded CPU never means parking");
        looks == 2
    }

    #[test]
    fn a_yield_to_another_thread_leaves_out_the_pure_phase_for_ten_milliseconds() {
        let start = start();
        for switches in [Some(1), None] {
            let mut spinner = Spinner::new(POLICY);
            assert!(is_pure(&mut spinner, start));
            spinner.reset();
            spinner.long_yield(start, switches);
            assert!(!is_pure(&mut spinner, start + us(5)));
            spinner.reset();
            // The pause above yielded, and that may have been long too: the mark is set back by hand.
            spinner.crowded_until = Some(start + us(10_000));
            assert!(!is_pure(&mut spinner, start + us(9_999)));
            spinner.crowded_until = Some(start + us(10_000));
            spinner.reset();
            assert!(is_pure(&mut spinner, start + us(10_000)));
        }
    }

    #[test]
    fn an_interrupt_within_a_yield_does_not_count() {
        let start = start();
        let mut spinner = Spinner::new(POLICY);
        spinner.long_yield(start, Some(7));
        let first = spinner.crowded_until;
        spinner.long_yield(start + us(500), Some(7));
        assert_eq!(spinner.crowded_until, first, "no other thread ran");
        spinner.long_yield(start + us(600), Some(8));
        assert!(spinner.crowded_until > first);
    }

    #[test]
    fn the_wake_of_a_sleeping_thread_takes_time() {
        let latency = measure_wake_latency();
        assert!(latency < Duration::from_secs(1), "{latency:?}");
    }
}
