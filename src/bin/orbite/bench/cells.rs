//! What a sweep measures: cells of direction, request size and batch size, and where in the buffers
//! their requests lie.

use std::fmt;

use serde::Serialize;

use super::verify::Moved;
use crate::args::{OpName, Sweep};
use crate::size;

/// Most operations that one measurement records; a longer one ends there.
pub(crate) const SAMPLES_MAX: u64 = 1 << 23;

/// Smallest buffer that a sweep takes by itself, and the stretch that a scattered batch is spread
/// over. Larger than the caches of most machines.
const SPREAD: u64 = 64 << 20;

/// Largest buffer that a sweep takes by itself.
const BUFFER_MAX: u64 = 1 << 30;

/// Bytes after the last range that must stay untouched.
const GUARD: u64 = 4096;

/// Direction, as the initiator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    Read,
    Write,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
        })
    }
}

impl From<OpName> for Op {
    fn from(name: OpName) -> Self {
        match name {
            OpName::Read => Self::Read,
            OpName::Write => Self::Write,
        }
    }
}

/// One request: `length` bytes at `local` in the initiator's buffer and `remote` in the target's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub local: u64,
    pub remote: u64,
    pub length: u64,
}

impl Span {
    /// Where the bytes of `op` come from and belong.
    pub(crate) const fn moved(&self, op: Op) -> Moved {
        let Self { local, remote, length } = *self;
        match op {
            Op::Read => Moved { to: local, from: remote, length },
            Op::Write => Moved { to: remote, from: local, length },
        }
    }
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub op: Op,
    pub block: u64,
    pub batch: u64,
}

impl Cell {
    /// Bytes of one batch.
    pub(crate) const fn bytes(&self) -> u64 {
        self.block.saturating_mul(self.batch)
    }

    /// Smallest buffer. Blocks of a batch are never adjacent, so that no engine may merge them.
    pub(crate) const fn need(&self) -> u64 {
        match self.batch {
            1 => self.block,
            _ => self.bytes().saturating_mul(2),
        }
    }

    /// Bytes from the start of the buffers that the cell touches, with a guard after them.
    pub(crate) fn footprint(&self, buffer: u64) -> u64 {
        match self.batch {
            1 => self.block.saturating_add(GUARD).min(buffer),
            _ => self.need().max(SPREAD).min(buffer),
        }
    }

    /// The requests. `buffer` is at least `need`.
    pub(crate) fn spans(&self, buffer: u64) -> Vec<Span> {
        let length = self.block;
        if self.batch == 1 {
            return vec![Span { local: 0, remote: 0, length }];
        }
        let slots = self.footprint(buffer) / (2 * length);
        let (locals, remotes) = (Scatter::new(slots, 2), Scatter::new(slots, 1));
        (0..self.batch)
            .map(|index| Span {
                local: locals.slot(index) * 2 * length,
                remote: remotes.slot(index) * 2 * length,
                length,
            })
            .collect()
    }

    /// The size column: `4 KiB`, or `64 x 4 KiB`.
    pub(crate) fn payload(&self) -> String {
        match self.batch {
            1 => size::show(self.block),
            batch => format!("{batch} x {}", size::show(self.block)),
        }
    }
}

/// All slots in a scattered order: a walk whose step has no common divisor with their number.
struct Scatter {
    slots: u64,
    start: u64,
    step: u64,
}

impl Scatter {
    fn new(slots: u64, variant: u64) -> Self {
        let slots = slots.max(1);
        // Fractions of the golden ratio keep the first few members of the walk far apart.
        let fraction = |of: u64| (u128::from(slots) * u128::from(of) / 1000) as u64;
        let mut step = fraction(618).max(1) + variant;
        while divisor(step, slots) != 1 {
            step += 1;
        }
        Self { slots, start: (fraction(137 * variant) + variant) % slots, step }
    }

    const fn slot(&self, index: u64) -> u64 {
        let at = self.start as u128 + index as u128 * self.step as u128;
        (at % self.slots as u128) as u64
    }
}

const fn divisor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The cells that the command line asks for, READ before WRITE for each payload unless said otherwise.
/// With neither sizes nor batches: 4 KiB to 64 MiB in single requests, and 64 scattered of 4 KiB.
pub(crate) fn plan(sweep: &Sweep) -> Vec<Cell> {
    let payloads: Vec<(u64, u64)> = match (&sweep.block_size, &sweep.batch) {
        (None, None) => {
            let single = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20].map(|block| (block, 1));
            single.into_iter().chain([(4 << 10, 64)]).collect()
        }
        (blocks, batches) => {
            let blocks = blocks.as_ref().map_or(&[4 << 10][..], |steps| &steps.0);
            let batches = batches.as_ref().map_or(&[1][..], |steps| &steps.0);
            let pair =
                |block: &u64| batches.iter().map(|batch| (*block, *batch)).collect::<Vec<_>>();
            blocks.iter().flat_map(pair).collect()
        }
    };
    let ops: Vec<Op> = sweep.op.iter().copied().map(Op::from).collect();
    let cells = |(block, batch): (u64, u64)| {
        ops.iter().map(move |op| Cell { op: *op, block, batch }).collect::<Vec<_>>()
    };
    payloads.into_iter().flat_map(cells).collect()
}

/// Buffer for `cells` where the user names none.
pub(crate) fn buffer_for(cells: &[Cell]) -> u64 {
    let needs = cells.iter().map(Cell::need).filter(|need| *need <= BUFFER_MAX);
    needs.max().unwrap_or(0).max(SPREAD)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn planned(flags: &str) -> Vec<Cell> {
        let line = format!("orbite bench {flags}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Bench(bench) => plan(&bench.loopback.sweep),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_default_sweep_has_six_payloads_both_ways() {
        let cells = planned("");
        assert_eq!(cells.len(), 12);
        assert_eq!(cells[0], Cell { op: Op::Read, block: 4096, batch: 1 });
        assert_eq!(cells[11], Cell { op: Op::Write, block: 4096, batch: 64 });
        assert_eq!(buffer_for(&cells), 64 << 20);
    }

    #[test]
    fn sizes_and_batches_are_crossed() {
        let cells = planned("--block-size 4KiB,8KiB --batch 1,2 --op write");
        let pairs: Vec<_> = cells.iter().map(|cell| (cell.block, cell.batch)).collect();
        assert_eq!(pairs, [(4096, 1), (4096, 2), (8192, 1), (8192, 2)]);
        assert!(cells.iter().all(|cell| cell.op == Op::Write));
        assert_eq!(planned("--batch 64").len(), 2);
    }

    #[test]
    fn scattered_requests_lie_apart_inside_the_buffer() {
        for (block, batch, buffer) in [
            (4096, 64, 64 << 20),
            (4096, 2, 16_384),
            (1000, 128, 256_000),
            (1, 4096, 64 << 20),
            (64 << 10, 128, 64 << 20),
        ] {
            let cell = Cell { op: Op::Read, block, batch };
            assert!(cell.need() <= buffer);
            let spans = cell.spans(buffer);
            assert_eq!(spans.len() as u64, batch);
            for side in [|span: &Span| span.local, |span: &Span| span.remote] {
                let mut offsets: Vec<u64> = spans.iter().map(side).collect();
                offsets.sort_unstable();
                assert!(offsets.windows(2).all(|pair| pair[1] - pair[0] >= 2 * block), "{block}");
                assert!(offsets.last().unwrap() + block <= cell.footprint(buffer));
            }
            let shifts = spans.iter().filter(|span| span.local != span.remote).count();
            assert!(shifts > 0, "both sides scatter differently");
        }
    }

    #[test]
    fn a_huge_cell_does_not_decide_the_buffer() {
        let cells = planned("--block-size 4KiB,1GiB --batch 64");
        assert_eq!(buffer_for(&cells), 64 << 20);
        assert!(cells.iter().any(|cell| cell.need() > 64 << 20));
    }

    #[test]
    fn ranges_are_mirrored_by_direction() {
        let span = Span { local: 1, remote: 2, length: 3 };
        assert_eq!(span.moved(Op::Read), Moved { to: 1, from: 2, length: 3 });
        assert_eq!(span.moved(Op::Write), Moved { to: 2, from: 1, length: 3 });
    }
}
