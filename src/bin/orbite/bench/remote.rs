//! `bench run`: the measuring half, against a `bench target` elsewhere. The target is not asked for
//! anything but its memory: WRITEs are verified by reading back, READs by the pattern that both know.

use std::net::SocketAddr;

use orbite::{Permission, RemoteSegment, TransferEngine};

use super::cells::{self, Cell, Op, Span};
use super::engine::{self, EngineMover, Name, Place};
use super::loopback::timed;
use super::machine::Machine;
use super::pin::{self, Plan};
use super::progress::Progress;
use super::report::{self, Head, SweepDocument};
use super::runner::{FarSide, Mover, Runner};
use super::secret::{self, Secret};
use super::sweep::{self, Measured, Outcome, Settings};
use super::table;
use super::usage::{RealClock, Usage};
use super::verify::{self, Expected, Mismatch};
use crate::args::Run;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output::{Output, note};

/// The target of another machine: its memory, seen through transfers of a second local buffer.
struct Distant<M> {
    /// Moves between that buffer and the region that may be written.
    scratch: M,
    /// What the region that may be read was filled with.
    pattern: u64,
}

impl<M: Mover> Distant<M> {
    fn transfer(&mut self, op: Op, length: u64) -> Result<(), Failure> {
        let batch = self.scratch.prepare(op, &[Span { local: 0, remote: 0, length }]);
        self.scratch.run(&batch)
    }
}

impl<M: Mover> FarSide for Distant<M> {
    /// The target filled it when it started, with a seed that both sides were given.
    fn fill(&mut self, _seed: u64, _length: u64) -> Result<u64, Failure> {
        Ok(self.pattern)
    }

    fn clear(&mut self, length: u64) -> Result<(), Failure> {
        verify::clear(self.scratch.local(), 0, length)?;
        self.transfer(Op::Write, length)
    }

    fn check(&mut self, expected: &Expected) -> Result<Option<Mismatch>, Failure> {
        // Other bytes first, so that a READ which brings nothing does not pass.
        verify::fill(self.scratch.local(), !expected.seed, 0, expected.footprint)?;
        self.transfer(Op::Read, expected.footprint)?;
        verify::check(self.scratch.local(), expected)
    }

    fn usage(&mut self) -> Result<Option<Usage>, Failure> {
        Ok(None)
    }
}

/// First byte and length of the two regions of a `bench target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Regions {
    source: u64,
    scratch: u64,
    length: u64,
}

impl Regions {
    /// Finds them by what they permit. `found`: address, length and permission of each region.
    fn find(found: &[(u64, u64, Permission)]) -> Result<Self, Failure> {
        let with = |wanted| {
            let (address, length, _) = found.iter().find(|(_, _, found)| *found == wanted)?;
            Some((*address, *length))
        };
        match (with(Permission::RemoteRead), with(Permission::RemoteReadWrite)) {
            (Some((source, length)), Some((scratch, other))) => {
                Ok(Self { source, scratch, length: length.min(other) })
            }
            _ => Err(Failure::new(Exit::Peer, "the peer is no `bench target`")
                .because("it has no region to read beside one to read and write")),
        }
    }

    fn of(segment: &RemoteSegment) -> Result<Self, Failure> {
        let found: Vec<_> = segment
            .regions()
            .iter()
            .map(|region| (region.address, region.length, region.permission))
            .collect();
        Self::find(&found)
    }
}

/// Measures against the target that `run` names.
pub(crate) fn run(
    run: &Run,
    interrupt: &Interrupt,
    output: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let secret = secret::read(&run.epoch_file)?;
    let sweep = &run.sweep;
    let allowed = pin::allowed();
    let plan = Plan::single(&sweep.pin, &allowed)?;
    let place = Place { core: plan.initiator_shard, require: plan.require, ..Place::default() };
    let engine = engine::start(&place)?;
    let (segment, open_ms) = timed(|| open(&engine, &secret, run.peer))?;
    let regions = Regions::of(&segment)?;
    let cells = cells::plan(sweep);
    let wanted = sweep.buffer.unwrap_or_else(|| cells::buffer_for(&cells));
    let settings = Settings::new(sweep, wanted.min(regions.length));
    let local = engine::register(&engine, settings.buffer, Permission::Local)?;
    let second = engine::register(&engine, settings.buffer, Permission::Local)?;
    let mut mover = EngineMover::new(&engine, &segment, &local, regions.source, regions.scratch);
    let scratch = EngineMover::new(&engine, &segment, &second, regions.scratch, regions.scratch);
    let mut far = Distant { scratch, pattern: sweep.seed };
    pin::bind_caller(&plan)?;
    let mut machine = Machine::read(&allowed);
    if !sweep.json {
        let what = format!("TCP to {}, opened in {open_ms:.1} ms", segment.endpoint());
        output.text(table::head(&what, &machine, &plan))?;
    }
    let progress = Progress::new(cells.len() as u64, sweep.quiet);
    let mut clock = RealClock::start();
    let capacity = settings.capacity();
    let mut runner = Runner::new(&mut mover, &mut far, &mut clock, interrupt, capacity);
    let outcome = sweep::run(&mut runner, &cells, &settings, &progress);
    machine.after();
    if sweep.json {
        let head = Head::new("run", outcome.complete(), &machine);
        let record = report::Plan::new(1, &plan, &settings);
        output.text(report::text(&SweepDocument::new(head, record, &outcome)))?;
    } else {
        output.text(table::sweep(&outcome, false))?;
    }
    drop((mover, far, local, second, segment));
    conclude(outcome, &engine)
}

fn conclude(outcome: Outcome, engine: &TransferEngine) -> Result<Exit, Failure> {
    let read = |measured: &Measured| {
        let Cell { op, .. } = measured.cell;
        op == Op::Read && measured.mismatched()
    };
    if outcome.cells.iter().any(read) {
        note("hint: READ compares with the target's pattern; is --seed the same on both sides?");
    }
    let mismatched = outcome.mismatched();
    super::conclude(outcome.failure, outcome.interrupted, mismatched, engine::close(engine))
}

fn open(
    engine: &TransferEngine,
    secret: &Secret,
    peer: Option<SocketAddr>,
) -> Result<RemoteSegment, Failure> {
    match (secret, peer) {
        (Secret::Epoch(epoch), Some(peer)) => {
            engine::open(engine, &Name::Endpoint(&peer.to_string(), *epoch))
        }
        (Secret::Epoch(_), None) => Err(Failure::usage("an epoch alone does not say where")
            .hint("add --peer ENDPOINT, or use a descriptor")),
        (Secret::Descriptor(text), peer) => {
            let segment = engine::open(engine, &Name::Descriptor(text.as_str()))?;
            match peer.map(|peer| peer.to_string()) {
                Some(peer) if peer != segment.endpoint() => {
                    Err(Failure::usage(format!("the descriptor is not that of {peer}"))
                        .because(format!("it names {}", segment.endpoint()))
                        .hint("leave out --peer"))
                }
                _ => Ok(segment),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::runner::tests::FakePair;
    use super::super::runner::{Order, Until, Verdict};
    use super::super::verify::tests::Plain;
    use super::*;
    use crate::args::Depth;

    const SIZE: u64 = 64 << 10;

    /// A pair whose far memory is the scratch region of `other`.
    fn beside(other: &FakePair) -> FakePair {
        let mut pair = FakePair::new(SIZE as usize);
        pair.remote = Rc::clone(&other.remote);
        pair
    }

    fn measure(pair: &mut FakePair, scratch: FakePair, op: Op) -> Verdict {
        let mut far = Distant { scratch, pattern: 5 };
        let (mut clock, interrupt) = (pair.clock(), Interrupt::default());
        let mut runner = Runner::new(pair, &mut far, &mut clock, &interrupt, 100);
        let timed = Until::Count(3);
        let warmup = Until::Count(0);
        let order = Order { op, footprint: SIZE, seed: 77, depth: Depth::Full, warmup, timed };
        let spans = [Span { local: 4096, remote: 8192, length: 5000 }];
        runner.measure(&order, &spans).unwrap().unwrap().verdict
    }

    #[test]
    fn writes_are_verified_by_reading_back() {
        let mut pair = FakePair::new(SIZE as usize);
        let scratch = beside(&pair);
        assert_eq!(measure(&mut pair, scratch, Op::Write), Verdict::Verified);
        let mut scratch = beside(&pair);
        scratch.local = Rc::new(Plain::new(SIZE as usize));
        pair.fault = Some(|bytes| bytes[8200] ^= 1);
        assert!(matches!(measure(&mut pair, scratch, Op::Write), Verdict::Mismatch(_)));
    }

    #[test]
    fn reads_are_verified_by_the_pattern_that_both_know() {
        for (seed, right) in [(5, true), (6, false)] {
            let mut pair = FakePair::new(SIZE as usize);
            verify::fill(&*pair.remote, seed, 0, SIZE).unwrap();
            let scratch = beside(&pair);
            let verdict = measure(&mut pair, scratch, Op::Read);
            assert_eq!(verdict == Verdict::Verified, right, "{verdict:?}");
        }
    }

    #[test]
    fn the_two_regions_are_known_by_their_permission() {
        let region = |address, permission| (address, 100 + address, permission);
        let read = region(1, Permission::RemoteRead);
        let both = region(2, Permission::RemoteReadWrite);
        let regions = Regions::find(&[both, read]).unwrap();
        assert_eq!(regions, Regions { source: 1, scratch: 2, length: 101 });
        for found in [vec![read], vec![both], vec![], vec![region(3, Permission::RemoteWrite)]] {
            assert_eq!(Regions::find(&found).unwrap_err().exit, Exit::Peer);
        }
    }
}
