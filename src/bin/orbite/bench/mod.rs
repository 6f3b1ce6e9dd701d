//! The benchmark harness. It sees the engine's public API alone and checks itself: every byte is
//! verified, rates are bytes over wall time, percentiles come from the latency of each batch.

pub(crate) mod cells;
mod child;
mod contract;
mod control;
mod engine;
mod input;
mod loopback;
mod machine;
mod pattern;
mod pin;
mod progress;
mod remote;
mod report;
mod runner;
mod secret;
mod stats;
mod sweep;
mod table;
mod target;
mod usage;
mod verify;

use crate::args::{Bench, BenchCommand, Loopback};
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output::Output;

/// Runs `orbite bench ...`.
pub(crate) fn run(bench: &Bench, output: &mut Output<'_>) -> Result<Exit, Failure> {
    match &bench.command {
        None => both(&bench.loopback, output),
        Some(BenchCommand::Loopback(loopback)) => both(loopback, output),
        Some(BenchCommand::Target(target)) => target::run(target, output),
        Some(BenchCommand::Run(run)) => remote::run(run, &Interrupt::install()?, output),
        Some(BenchCommand::Served(served)) => child::served(served).map(|()| Exit::Success),
    }
}

fn both(loopback: &Loopback, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let interrupt = Interrupt::install()?;
    match (&loopback.input, &loopback.workloads) {
        (Some(file), _) => input::run(file, &loopback.sweep, &interrupt, output),
        (None, Some(file)) => contract::run(file, &loopback.sweep, &interrupt, output),
        (None, None) => loopback::run(&loopback.sweep, &interrupt, output),
    }
}

/// The exit code of a finished measurement. Wrong bytes outweigh everything else, a failure outweighs
/// Ctrl-C, and an end that was not orderly counts only if all else went well.
fn conclude(
    failure: Option<Failure>,
    interrupted: bool,
    mismatched: bool,
    ended: Result<(), Failure>,
) -> Result<Exit, Failure> {
    match (mismatched, failure) {
        (true, failure) => {
            if let Some(failure) = failure {
                crate::output::note(failure);
            }
            Ok(Exit::Mismatch)
        }
        (false, Some(failure)) => Err(failure),
        (false, None) if interrupted => Ok(Exit::Interrupted),
        (false, None) => ended.map(|()| Exit::Success),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides_the_exit_code() {
        let failure = || Failure::new(Exit::Peer, "gone");
        let unclean = || Err(Failure::environment("not closed"));
        assert_eq!(conclude(None, false, false, Ok(())), Ok(Exit::Success));
        assert_eq!(conclude(None, true, false, Ok(())), Ok(Exit::Interrupted));
        assert_eq!(conclude(None, true, true, unclean()), Ok(Exit::Mismatch));
        assert_eq!(conclude(Some(failure()), true, false, unclean()), Err(failure()));
        assert_eq!(conclude(None, false, false, unclean()), unclean().map(|()| Exit::Success));
    }
}
