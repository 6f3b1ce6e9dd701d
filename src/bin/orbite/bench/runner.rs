//! One measurement: prepare the bytes, warm up, time a closed loop of one batch in flight, verify.
//!
//! The timed loop allocates nothing, formats nothing and asks nobody: the requests are made before,
//! the samples go into memory that was touched before.

use super::cells::{Op, Span};
use super::stats::{Latency, gigabytes_per_second};
use super::usage::Usage;
use super::verify::{self, Bytes, Expected, Mismatch};
use crate::args::Depth;
use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// The initiator: something that moves a prepared batch and waits for its end.
pub(crate) trait Mover {
    /// Requests, ready to be submitted any number of times.
    type Batch;
    fn prepare(&self, op: Op, spans: &[Span]) -> Self::Batch;
    /// Moves it once. A WRITE is done when the target acknowledged it.
    fn run(&mut self, batch: &Self::Batch) -> Result<(), Failure>;
    /// The initiator's buffer.
    fn local(&self) -> &dyn Bytes;
}

/// The target's process, outside of the measured time.
pub(crate) trait FarSide {
    /// Makes `[0, length)` of the target a source of READs; gives the seed that it carries.
    fn fill(&mut self, seed: u64, length: u64) -> Result<u64, Failure>;
    /// Makes `[0, length)` of the target a cleared destination of WRITEs.
    fn clear(&mut self, length: u64) -> Result<(), Failure>;
    /// Compares the destination of WRITEs.
    fn check(&mut self, expected: &Expected) -> Result<Option<Mismatch>, Failure>;
    /// What the process used so far; `None` if it cannot be asked.
    fn usage(&mut self) -> Result<Option<Usage>, Failure>;
}

/// Time, as nanoseconds from any fixed start.
pub(crate) trait Clock {
    fn now(&mut self) -> u64;
    /// CPU time of this process: user and system, all threads.
    fn cpu(&mut self) -> u64;
}

/// When a loop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// After so many batches.
    Count(u64),
    /// After so many nanoseconds, but not before [`OPS_MIN`] batches unless four times as many pass.
    Time(u64),
}

/// Fewest batches of a measurement by time, so that its median means something.
const OPS_MIN: u64 = 21;

/// Fewest batches of a warm-up by time.
const WARMUP_MIN: u64 = 2;

/// How the bytes were found after a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every byte was compared and right.
    Verified,
    /// Some bytes were compared, all right.
    Sampled,
    /// Nobody looked.
    Unchecked,
    /// The first wrong byte.
    Mismatch(Mismatch),
}

/// One finished measurement.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// Batches moved in the timed loop.
    pub ops: u64,
    /// Payload bytes of these.
    pub bytes: u64,
    /// From before the first to after the last batch.
    pub wall_ns: u64,
    pub latency: Latency,
    /// CPU time of this process during the loop.
    pub own_cpu_ns: u64,
    /// That of the target, if it can be asked.
    pub far_cpu_ns: Option<u64>,
    pub verdict: Verdict,
    /// Why the loop ended early, if it did: `interrupted` or `sample_limit`.
    pub cut: Option<&'static str>,
}

impl Trial {
    /// 10^9 bytes per second over the whole timed loop.
    pub(crate) fn gb_per_s(&self) -> f64 {
        gigabytes_per_second(self.bytes, self.wall_ns)
    }

    /// CPU time of all processes that could be asked, in microseconds for each batch.
    pub(crate) fn cpu_us_per_op(&self) -> f64 {
        let total = self.own_cpu_ns + self.far_cpu_ns.unwrap_or(0);
        total as f64 / 1e3 / (self.ops.max(1) as f64)
    }
}

/// What to measure, apart from the requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub op: Op,
    /// Bytes from the start of both buffers that are prepared and verified.
    pub footprint: u64,
    pub seed: u64,
    pub depth: Depth,
    pub warmup: Until,
    pub timed: Until,
}

/// The pair of processes under measurement, with the samples of the last loop.
pub(crate) struct Runner<'a, M, F, C> {
    pub mover: &'a mut M,
    pub far: &'a mut F,
    pub clock: &'a mut C,
    pub interrupt: &'a Interrupt,
    samples: Vec<u64>,
    recorded: usize,
}

impl<'a, M: Mover, F: FarSide, C: Clock> Runner<'a, M, F, C> {
    /// `capacity`: batches that one loop can record.
    pub(crate) fn new(
        mover: &'a mut M,
        far: &'a mut F,
        clock: &'a mut C,
        interrupt: &'a Interrupt,
        capacity: u64,
    ) -> Self {
        // Written once here, so that no page of it is touched first in a timed loop.
        let samples = vec![u64::MAX; capacity as usize];
        Self { mover, far, clock, interrupt, samples, recorded: 0 }
    }

    /// Latencies of the last measurement, sorted.
    pub(crate) fn samples(&self) -> &[u64] {
        self.samples.get(..self.recorded).unwrap_or_default()
    }

    /// Measures once. `None`: interrupted before the first timed batch.
    pub(crate) fn measure(
        &mut self,
        order: &Order,
        spans: &[Span],
    ) -> Result<Option<Trial>, Failure> {
        self.recorded = 0;
        let seed = self.prepare_bytes(order)?;
        let batch = self.mover.prepare(order.op, spans);
        self.repeat(&batch, order.warmup, WARMUP_MIN)?;
        if self.interrupt.asked() {
            return Ok(None);
        }
        let far_before = self.far.usage()?;
        let own_before = self.clock.cpu();
        let looped = self.repeat(&batch, order.timed, OPS_MIN)?;
        let own_cpu_ns = self.clock.cpu().saturating_sub(own_before);
        let far_after = self.far.usage()?;
        self.recorded = looped.ops as usize;
        if looped.ops == 0 {
            return Ok(None);
        }
        let verdict = self.verify(order, seed, spans)?;
        let batch_bytes: u64 = spans.iter().map(|span| span.length).sum();
        let samples = self.samples.get_mut(..self.recorded).unwrap_or_default();
        Ok(Some(Trial {
            ops: looped.ops,
            bytes: looped.ops * batch_bytes,
            wall_ns: looped.wall_ns,
            latency: Latency::of(samples),
            own_cpu_ns,
            far_cpu_ns: far_before.zip(far_after).map(|(a, b)| b.cpu_ns.saturating_sub(a.cpu_ns)),
            verdict,
            cut: looped.cut,
        }))
    }

    /// A cleared destination and a source that carries a seed of its own.
    fn prepare_bytes(&mut self, order: &Order) -> Result<u64, Failure> {
        match order.op {
            Op::Read => {
                verify::clear(self.mover.local(), 0, order.footprint)?;
                self.far.fill(order.seed, order.footprint)
            }
            Op::Write => {
                verify::fill(self.mover.local(), order.seed, 0, order.footprint)?;
                self.far.clear(order.footprint)?;
                Ok(order.seed)
            }
        }
    }

    fn verify(&mut self, order: &Order, seed: u64, spans: &[Span]) -> Result<Verdict, Failure> {
        let expected = Expected {
            seed,
            footprint: order.footprint,
            ranges: spans.iter().map(|span| span.moved(order.op)).collect(),
            depth: order.depth,
        };
        let found = match (order.depth, order.op) {
            (Depth::Off, _) => return Ok(Verdict::Unchecked),
            (_, Op::Read) => verify::check(self.mover.local(), &expected)?,
            (_, Op::Write) => self.far.check(&expected)?,
        };
        Ok(match (found, order.depth) {
            (Some(mismatch), _) => Verdict::Mismatch(mismatch),
            (None, Depth::Full) => Verdict::Verified,
            (None, _) => Verdict::Sampled,
        })
    }

    fn repeat(&mut self, batch: &M::Batch, until: Until, ops_min: u64) -> Result<Looped, Failure> {
        let (count, time) = match until {
            Until::Count(count) => (count, u64::MAX),
            Until::Time(time) => (u64::MAX, time),
        };
        let patience = time.saturating_mul(4);
        let start = self.clock.now();
        let mut end = start;
        let mut ops = 0;
        let mut cut = None;
        let mut samples = self.samples.iter_mut();
        while ops < count {
            let elapsed = end.saturating_sub(start);
            if elapsed >= time && (ops >= ops_min || elapsed >= patience) {
                break;
            }
            if self.interrupt.asked() {
                cut = Some("interrupted");
                break;
            }
            let Some(sample) = samples.next() else {
                cut = Some("sample_limit");
                break;
            };
            let before = self.clock.now();
            self.mover.run(batch)?;
            end = self.clock.now();
            *sample = end.saturating_sub(before);
            ops += 1;
        }
        Ok(Looped { ops, wall_ns: end.saturating_sub(start), cut })
    }
}

struct Looped {
    ops: u64,
    wall_ns: u64,
    cut: Option<&'static str>,
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::{Cell as Slot, RefCell};
    use std::rc::Rc;

    use super::super::verify::tests::Plain;
    use super::super::verify::{Looks, Moved};
    use super::*;

    /// Both sides in one process. `fault` may spoil the destination after each batch.
    pub(crate) struct FakePair {
        pub local: Rc<Plain>,
        pub remote: Rc<Plain>,
        pub time: Rc<Slot<u64>>,
        pub runs: u64,
        pub batch_ns: u64,
        pub fault: Option<fn(&mut Vec<u8>)>,
        pub fails_at: Option<u64>,
    }

    impl FakePair {
        pub(crate) fn new(size: usize) -> Self {
            Self {
                local: Rc::new(Plain::new(size)),
                remote: Rc::new(Plain::new(size)),
                time: Rc::default(),
                runs: 0,
                batch_ns: 10_000,
                fault: None,
                fails_at: None,
            }
        }

        pub(crate) fn far(&self) -> FakeFar {
            FakeFar { remote: Rc::clone(&self.remote), time: Rc::clone(&self.time) }
        }

        pub(crate) fn clock(&self) -> FakeClock {
            FakeClock(Rc::clone(&self.time))
        }
    }

    impl Mover for FakePair {
        type Batch = (Op, Vec<Moved>);
        fn prepare(&self, op: Op, spans: &[Span]) -> Self::Batch {
            (op, spans.iter().map(|span| span.moved(op)).collect())
        }
        fn run(&mut self, (op, moves): &Self::Batch) -> Result<(), Failure> {
            self.runs += 1;
            if self.fails_at.is_some_and(|at| self.runs >= at) {
                return Err(Failure::new(crate::failure::Exit::Peer, "the target left"));
            }
            let (source, destination) = match op {
                Op::Read => (&self.remote, &self.local),
                Op::Write => (&self.local, &self.remote),
            };
            let mut bytes = Vec::new();
            for part in moves {
                bytes.resize(part.length as usize, 0);
                source.read(part.from, &mut bytes)?;
                destination.write(part.to, &bytes)?;
            }
            if let Some(fault) = self.fault {
                fault(&mut destination.0.borrow_mut());
            }
            self.time.set(self.time.get() + self.batch_ns);
            Ok(())
        }
        fn local(&self) -> &dyn Bytes {
            &*self.local
        }
    }

    pub(crate) struct FakeFar {
        pub remote: Rc<Plain>,
        time: Rc<Slot<u64>>,
    }

    impl FarSide for FakeFar {
        fn fill(&mut self, seed: u64, length: u64) -> Result<u64, Failure> {
            verify::fill(&*self.remote, seed, 0, length)?;
            Ok(seed)
        }
        fn clear(&mut self, length: u64) -> Result<(), Failure> {
            verify::clear(&*self.remote, 0, length)
        }
        fn check(&mut self, expected: &Expected) -> Result<Option<Mismatch>, Failure> {
            verify::check(&*self.remote, expected)
        }
        fn usage(&mut self) -> Result<Option<Usage>, Failure> {
            Ok(Some(Usage { cpu_ns: self.time.get() / 2, rss_kib: 1024, threads: 3 }))
        }
    }

    /// Time that passes only while a batch runs. This process computes all of it.
    pub(crate) struct FakeClock(Rc<Slot<u64>>);

    impl Clock for FakeClock {
        fn now(&mut self) -> u64 {
            self.0.get()
        }
        fn cpu(&mut self) -> u64 {
            self.0.get()
        }
    }

    const SIZE: u64 = 64 << 10;

    fn order(op: Op, timed: Until) -> Order {
        let warmup = Until::Count(3);
        Order { op, footprint: SIZE, seed: 77, depth: Depth::Full, warmup, timed }
    }

    fn spans() -> Vec<Span> {
        vec![
            Span { local: 8192, remote: 0, length: 4096 },
            Span { local: 0, remote: 32_768, length: 1000 },
        ]
    }

    fn measure(pair: &mut FakePair, order: &Order) -> Result<Option<Trial>, Failure> {
        let (mut far, mut clock, interrupt) = (pair.far(), pair.clock(), Interrupt::default());
        Runner::new(pair, &mut far, &mut clock, &interrupt, 1000).measure(order, &spans())
    }

    #[test]
    fn log_071_bytes_over_wall_time_is_the_rate_and_all_operations_are_counted() {
        for op in [Op::Read, Op::Write] {
            let mut pair = FakePair::new(SIZE as usize);
            let trial = measure(&mut pair, &order(op, Until::Count(50))).unwrap().unwrap();
            assert_eq!(trial.ops, 50);
            assert_eq!(pair.runs, 53, "three more to warm up");
            assert_eq!(trial.bytes, 50 * 5096);
            assert_eq!(trial.wall_ns, 50 * 10_000);
            let rate = trial.bytes as f64 / trial.wall_ns as f64;
            assert!((trial.gb_per_s() / rate - 1.0).abs() < 0.01);
            assert!((trial.gb_per_s() - 0.5096).abs() < 1e-9);
            assert_eq!(trial.latency.p50, Some(10_000));
            assert_eq!(trial.latency.p99, None);
            assert!((trial.cpu_us_per_op() - 15.0).abs() < 1e-9, "10 here and 5 there");
            assert_eq!(trial.verdict, Verdict::Verified);
            assert_eq!(trial.cut, None);
        }
    }

    #[test]
    fn a_loop_by_time_ends_by_time() {
        let mut pair = FakePair::new(SIZE as usize);
        let trial = measure(&mut pair, &order(Op::Read, Until::Time(1_000_000))).unwrap().unwrap();
        assert_eq!(trial.ops, 100);
        // Slow batches: a few more than the time allows, but not for ever.
        pair.batch_ns = 1_000_000;
        let trial = measure(&mut pair, &order(Op::Read, Until::Time(10_000_000))).unwrap().unwrap();
        assert_eq!(trial.ops, 21);
        let trial = measure(&mut pair, &order(Op::Read, Until::Time(2_000_000))).unwrap().unwrap();
        assert_eq!(trial.ops, 8);
    }

    #[test]
    fn a_full_record_ends_the_loop_and_says_so() {
        let mut pair = FakePair::new(SIZE as usize);
        let trial = measure(&mut pair, &order(Op::Read, Until::Time(1 << 40))).unwrap().unwrap();
        assert_eq!((trial.ops, trial.cut), (1000, Some("sample_limit")));
    }

    #[test]
    fn log_071_a_wrong_byte_of_either_side_is_a_mismatch() {
        for (op, offset) in [(Op::Read, 8200), (Op::Write, 33_000)] {
            let mut pair = FakePair::new(SIZE as usize);
            pair.fault = Some(match op {
                Op::Read => |bytes| bytes[8200] ^= 4,
                Op::Write => |bytes| bytes[33_000] ^= 4,
            });
            let trial = measure(&mut pair, &order(op, Until::Count(1))).unwrap().unwrap();
            // Planted after each batch; the last batch rewrote the byte before.
            let Verdict::Mismatch(wrong) = trial.verdict else { panic!("{:?}", trial.verdict) };
            assert_eq!((wrong.offset, wrong.looks), (offset, Looks::Other));
        }
    }

    #[test]
    fn bytes_of_an_earlier_measurement_do_not_pass() {
        let mut pair = FakePair::new(SIZE as usize);
        measure(&mut pair, &order(Op::Read, Until::Count(1))).unwrap();
        let old = Rc::new(RefCell::new(pair.local.0.borrow().clone()));
        assert!(old.borrow().iter().any(|byte| *byte != 0));
        pair.fault = Some(|bytes| bytes[8192..12_288].fill(0));
        let trial = measure(&mut pair, &Order { seed: 78, ..order(Op::Read, Until::Count(1)) });
        let Verdict::Mismatch(wrong) = trial.unwrap().unwrap().verdict else { panic!() };
        assert_eq!(wrong.looks, Looks::Missing, "the old bytes were cleared before");
    }

    #[test]
    fn depth_decides_what_is_claimed() {
        let mut pair = FakePair::new(SIZE as usize);
        for (depth, verdict) in
            [(Depth::Sample, Verdict::Sampled), (Depth::Off, Verdict::Unchecked)]
        {
            let order = Order { depth, ..order(Op::Write, Until::Count(1)) };
            assert_eq!(measure(&mut pair, &order).unwrap().unwrap().verdict, verdict);
        }
    }

    #[test]
    fn an_interrupt_ends_before_the_next_batch() {
        let mut pair = FakePair::new(SIZE as usize);
        let (mut far, mut clock, interrupt) = (pair.far(), pair.clock(), Interrupt::default());
        interrupt.ask();
        let mut runner = Runner::new(&mut pair, &mut far, &mut clock, &interrupt, 10);
        assert!(runner.measure(&order(Op::Read, Until::Count(5)), &spans()).unwrap().is_none());
        assert_eq!(pair.runs, 0);
    }

    #[test]
    fn a_failed_batch_ends_the_measurement() {
        let mut pair = FakePair::new(SIZE as usize);
        pair.fails_at = Some(10);
        let failure = measure(&mut pair, &order(Op::Write, Until::Count(50))).unwrap_err();
        assert_eq!(failure.what, "the target left");
    }
}
