//! `bench loopback`: this process as initiator, a copy of it as target, TCP over 127.0.0.1.

use orbite::{SourceEpoch, TransferEngine};

use super::child::TargetProcess;
use super::control::Ready;
use super::engine::{self, EngineMover, Local, Name, Place};
use super::machine::Machine;
use super::pin::{self, Plan};
use super::progress::Progress;
use super::report::{self, Head, SweepDocument};
use super::runner::Runner;
use super::sweep::{self, Settings};
use super::usage::{self, RealClock};
use super::{cells, table};
use crate::args::Sweep;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output::Output;

/// Both processes, connected, the calling thread in its place.
pub(crate) struct Pair {
    pub target: TargetProcess,
    pub mover: EngineMover,
    pub engine: TransferEngine,
    pub plan: Plan,
    /// Milliseconds that the engine took to start, and the buffer to be registered.
    pub start_ms: [f64; 2],
}

impl Pair {
    /// Starts both with a buffer of `buffer` bytes each.
    pub(crate) fn start(sweep: &Sweep, allowed: &[u32], buffer: u64) -> Result<Self, Failure> {
        let plan = Plan::pair(&sweep.pin, allowed)?;
        let (target, ready) = TargetProcess::start(buffer, plan.target_shard, plan.require)?;
        let place = Place { core: plan.initiator_shard, require: plan.require, ..Place::default() };
        let (engine, init_ms) = timed(|| engine::start(&place))?;
        let permission = orbite::Permission::Local;
        let (local, register_ms) = timed(|| engine::register(&engine, buffer, permission))?;
        let mover = connect(&engine, &local, &ready)?;
        pin::bind_caller(&plan)?;
        Ok(Self { target, mover, engine, plan, start_ms: [init_ms, register_ms] })
    }

    /// Ends both in order.
    pub(crate) fn end(self) -> Result<(), Failure> {
        let Self { target, mover, engine, .. } = self;
        drop(mover);
        let closed = engine::close(&engine);
        drop(target);
        closed
    }
}

fn connect(engine: &TransferEngine, local: &Local, ready: &Ready) -> Result<EngineMover, Failure> {
    let epoch = SourceEpoch::from_hex(&ready.epoch)
        .ok_or_else(|| Failure::environment("the target process sent no epoch"))?;
    let segment = engine::open(engine, &Name::Endpoint(&ready.endpoint, epoch))?;
    Ok(EngineMover::new(engine, &segment, local, ready.address, ready.address))
}

/// The result and how many milliseconds it took.
pub(crate) fn timed<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<(T, f64), Failure> {
    let start = usage::now();
    let done = work()?;
    Ok((done, start.elapsed().as_secs_f64() * 1e3))
}

/// The sweep of `bench loopback`.
pub(crate) fn run(
    sweep: &Sweep,
    interrupt: &Interrupt,
    output: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let allowed = pin::allowed();
    let cells = cells::plan(sweep);
    let buffer = sweep.buffer.unwrap_or_else(|| cells::buffer_for(&cells));
    let settings = Settings::new(sweep, buffer);
    let mut machine = Machine::read(&allowed);
    let mut pair = Pair::start(sweep, &allowed, buffer)?;
    if !sweep.json {
        output.text(table::head("two processes, TCP over 127.0.0.1", &machine, &pair.plan))?;
    }
    let progress = Progress::new(cells.len() as u64, sweep.quiet);
    let outcome = {
        let mut clock = RealClock::start();
        let client = pair.target.client()?;
        let capacity = settings.capacity();
        let mut runner = Runner::new(&mut pair.mover, client, &mut clock, interrupt, capacity);
        sweep::run(&mut runner, &cells, &settings, &progress)
    };
    machine.after();
    if sweep.json {
        let head = Head::new("loopback", outcome.complete(), &machine);
        let plan = report::Plan::new(2, &pair.plan, &settings);
        output.text(report::text(&SweepDocument::new(head, plan, &outcome)))?;
    } else {
        output.text(table::sweep(&outcome, true))?;
    }
    let mismatched = outcome.mismatched();
    super::conclude(outcome.failure, outcome.interrupted, mismatched, pair.end())
}
