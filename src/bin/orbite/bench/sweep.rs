//! A sweep: every cell in order, each as often as asked, until the end, a failure or Ctrl-C.

use super::cells::Cell;
use super::pattern;
use super::progress::Progress;
use super::runner::{Clock, FarSide, Mover, Order, Runner, Trial, Until, Verdict};
use crate::args::{Depth, Sweep};
use crate::failure::Failure;

/// Measured time of a cell where the command line names none.
const DURATION_NS: u64 = 1_500_000_000;

/// A batch is taken to last so long at least, when memory for the samples is set aside.
const SAMPLE_NS_MIN: u64 = 1000;

/// What the command line says about every cell.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub buffer: u64,
    pub seed: u64,
    pub depth: Depth,
    pub warmup: Until,
    pub timed: Until,
    pub repeat: u32,
}

impl Settings {
    pub(crate) fn new(sweep: &Sweep, buffer: u64) -> Self {
        let nanos = |time: std::time::Duration| time.as_nanos() as u64;
        Self {
            buffer,
            seed: sweep.seed,
            depth: sweep.verify,
            warmup: Until::Time(nanos(sweep.warmup)),
            timed: match sweep.iterations {
                Some(count) => Until::Count(count),
                None => Until::Time(sweep.duration.map_or(DURATION_NS, nanos)),
            },
            repeat: sweep.repeat,
        }
    }

    /// Samples that one loop records at most.
    pub(crate) fn capacity(&self) -> u64 {
        let wanted = |until| match until {
            Until::Count(count) => count,
            Until::Time(ns) => (ns / SAMPLE_NS_MIN).max(1000),
        };
        // The warm-up is recorded and overwritten.
        wanted(self.timed).max(wanted(self.warmup)).min(super::cells::SAMPLES_MAX)
    }
}

/// One cell with its measurements, or the reason that it has none.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub cell: Cell,
    pub trials: Vec<Trial>,
    pub skipped: Option<&'static str>,
}

impl Measured {
    /// Whether a measurement found a wrong byte.
    pub(crate) fn mismatched(&self) -> bool {
        self.trials.iter().any(|trial| matches!(trial.verdict, Verdict::Mismatch(_)))
    }
}

/// All that was measured.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub cells: Vec<Measured>,
    /// What ended the sweep early.
    pub failure: Option<Failure>,
    /// Ctrl-C ended it early.
    pub interrupted: bool,
}

impl Outcome {
    /// Every cell was measured as asked, or skipped for its size.
    pub(crate) const fn complete(&self) -> bool {
        self.failure.is_none() && !self.interrupted
    }

    pub(crate) fn mismatched(&self) -> bool {
        self.cells.iter().any(Measured::mismatched)
    }
}

/// Runs `cells` in their order.
pub(crate) fn run<M: Mover, F: FarSide, C: Clock>(
    runner: &mut Runner<'_, M, F, C>,
    cells: &[Cell],
    settings: &Settings,
    progress: &Progress,
) -> Outcome {
    let mut outcome = Outcome::default();
    for (index, cell) in cells.iter().enumerate() {
        progress.begins(cell);
        let mut measured = Measured { cell: *cell, trials: Vec::new(), skipped: None };
        if cell.need() > settings.buffer {
            measured.skipped = Some("buffer_too_small");
            outcome.cells.push(measured);
            progress.ended();
            continue;
        }
        let spans = cell.spans(settings.buffer);
        for trial in 0..settings.repeat {
            let order = Order {
                op: cell.op,
                footprint: cell.footprint(settings.buffer),
                seed: pattern::seed(settings.seed, index as u64, u64::from(trial)),
                depth: settings.depth,
                warmup: settings.warmup,
                timed: settings.timed,
            };
            match runner.measure(&order, &spans) {
                Ok(Some(trial)) => measured.trials.push(trial),
                Ok(None) => {}
                Err(failure) => outcome.failure = Some(failure),
            }
            outcome.interrupted = runner.interrupt.asked();
            if !outcome.complete() {
                break;
            }
        }
        if !measured.trials.is_empty() {
            outcome.cells.push(measured);
        }
        progress.ended();
        if !outcome.complete() {
            break;
        }
    }
    progress.finish();
    outcome
}

#[cfg(test)]
mod tests {
    use super::super::cells::Op;
    use super::super::runner::tests::FakePair;
    use super::*;
    use crate::interrupt::Interrupt;

    const SIZE: u64 = 256 << 10;

    fn settings() -> Settings {
        Settings {
            buffer: SIZE,
            seed: 1,
            depth: Depth::Full,
            warmup: Until::Count(1),
            timed: Until::Count(5),
            repeat: 2,
        }
    }

    fn sweep(pair: &mut FakePair, cells: &[Cell], interrupt: &Interrupt) -> Outcome {
        let (mut far, mut clock) = (pair.far(), pair.clock());
        let mut runner = Runner::new(pair, &mut far, &mut clock, interrupt, 100);
        run(&mut runner, cells, &settings(), &Progress::silent())
    }

    fn cells() -> Vec<Cell> {
        vec![
            Cell { op: Op::Read, block: 4096, batch: 1 },
            Cell { op: Op::Write, block: 4096, batch: 8 },
            Cell { op: Op::Read, block: 1 << 20, batch: 1 },
        ]
    }

    #[test]
    fn every_cell_is_measured_or_has_a_reason() {
        let mut pair = FakePair::new(SIZE as usize);
        let outcome = sweep(&mut pair, &cells(), &Interrupt::default());
        assert!(outcome.complete() && !outcome.mismatched());
        assert_eq!(outcome.cells.len(), 3);
        assert_eq!(outcome.cells[0].trials.len(), 2);
        assert_eq!(outcome.cells[2].skipped, Some("buffer_too_small"));
        assert_eq!(pair.runs, 4 * 6);
    }

    #[test]
    fn a_failure_keeps_what_was_measured_before() {
        let mut pair = FakePair::new(SIZE as usize);
        pair.fails_at = Some(15);
        let outcome = sweep(&mut pair, &cells(), &Interrupt::default());
        assert!(!outcome.complete());
        assert_eq!(outcome.failure.unwrap().what, "the target left");
        assert_eq!(outcome.cells.len(), 1);
    }

    #[test]
    fn an_interrupted_sweep_is_not_complete() {
        let mut pair = FakePair::new(SIZE as usize);
        let interrupt = Interrupt::default();
        interrupt.ask();
        let outcome = sweep(&mut pair, &cells(), &interrupt);
        assert!(outcome.interrupted && !outcome.complete());
        assert!(outcome.cells.is_empty());
    }

    #[test]
    fn a_mismatch_goes_on_and_is_remembered() {
        let mut pair = FakePair::new(SIZE as usize);
        pair.fault = Some(|bytes| bytes[3] ^= 1);
        let outcome = sweep(&mut pair, &cells(), &Interrupt::default());
        assert!(outcome.complete() && outcome.mismatched());
        assert_eq!(outcome.cells.len(), 3);
    }

    #[test]
    fn the_record_fits_what_is_asked() {
        let timed = |timed| Settings { timed, warmup: Until::Count(0), ..settings() }.capacity();
        assert_eq!(timed(Until::Count(7)), 7);
        assert_eq!(timed(Until::Time(1_500_000_000)), 1_500_000);
        assert_eq!(timed(Until::Time(3_600_000_000_000)), super::super::cells::SAMPLES_MAX);
    }
}
