//! `bench target`: the half that serves. Two regions: one holds the pattern and may be read, one may
//! be written and read back. It moves nothing itself and waits until it is told to end.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use orbite::{Permission, TransferEngine};
use serde::Serialize;

use super::engine::{self, Local, Place};
use super::pin::{self, Plan};
use super::{secret, verify};
use crate::args::{self, Target};
use crate::failure::{Exit, Failure};
use crate::interrupt;
use crate::output::{Output, note};

/// The one line on standard output. It has no epoch: that is in the file.
#[derive(Debug, Serialize)]
struct Line<'a> {
    endpoint: &'a str,
    regions: [Region; 2],
    seed: u64,
    /// What to run on the other machine, once the file is there.
    initiator: String,
}

#[derive(Debug, Serialize)]
struct Region {
    #[serde(rename = "for")]
    purpose: &'static str,
    address: u64,
    length: u64,
}

impl Region {
    fn of(purpose: &'static str, local: &Local) -> Self {
        Self { purpose, address: local.0.address(), length: local.0.length() }
    }
}

/// Serves until SIGINT, SIGTERM, `--ttl`, or the end of standard input if asked for.
pub(crate) fn run(args: &Target, output: &mut Output<'_>) -> Result<Exit, Failure> {
    // Before anything else, so that a signal during the start is not lost.
    let (waiting, ringing) = interrupt::wake_socket()?;
    let plan = Plan::single(&args.pin, &pin::allowed())?;
    let place = Place {
        bind: Some(args.bind),
        advertise: args.advertise,
        core: plan.initiator_shard,
        require: plan.require,
    };
    let engine = engine::start(&place)?;
    let (source, scratch) = regions(&engine, args)?;
    write_secret(&engine, args)?;
    let line = Line {
        endpoint: engine.endpoint(),
        regions: [Region::of("read", &source), Region::of("write", &scratch)],
        seed: args.seed,
        initiator: initiator(engine.endpoint(), args),
    };
    output.text(super::report::text(&line))?;
    note(format_args!(
        "serving; where that address is reached, with a copy of the file:\n  {}",
        line.initiator
    ));
    if args.until_eof {
        watch_input(ringing)?;
    }
    wait(waiting, args.ttl)?;
    drop((source, scratch));
    engine::close(&engine).map(|()| Exit::Success)
}

fn regions(engine: &TransferEngine, args: &Target) -> Result<(Local, Local), Failure> {
    let source = engine::register(engine, args.buffer, Permission::RemoteRead)?;
    verify::fill(&source, args.seed, 0, args.buffer)?;
    let scratch = engine::register(engine, args.buffer, Permission::RemoteReadWrite)?;
    Ok((source, scratch))
}

fn write_secret(engine: &TransferEngine, args: &Target) -> Result<(), Failure> {
    if let Some(path) = &args.descriptor {
        secret::write(path, engine.descriptor().as_str())?;
    }
    if let Some(path) = &args.epoch_file {
        secret::write(path, &engine.source_epoch().to_hex())?;
    }
    Ok(())
}

/// The exact command of the other half. The file has to be brought there over a channel that both
/// sides trust.
fn initiator(endpoint: &str, args: &Target) -> String {
    let mut words = vec!["orbite bench run".to_owned()];
    if let Some(path) = &args.epoch_file {
        words.push(format!("--peer {endpoint} --epoch-file {}", quoted(path)));
    }
    if let Some(path) = &args.descriptor {
        words.push(format!("--epoch-file {}", quoted(path)));
    }
    if args.seed != args::SEED {
        words.push(format!("--seed {}", args.seed));
    }
    words.join(" ")
}

/// A path as one word of a POSIX shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Blocks until the socket is readable or the time is over.
fn wait(mut waiting: UnixStream, ttl: Option<Duration>) -> Result<(), Failure> {
    let failed = |error| Failure::environment("cannot wait for the end").because(error);
    waiting.set_read_timeout(ttl).map_err(failed)?;
    match waiting.read(&mut [0]) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// A thread that reads standard input to its end and then wakes the waiter.
fn watch_input(mut ringing: UnixStream) -> Result<(), Failure> {
    let watch = move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = ringing.write_all(&[1]);
    };
    std::thread::Builder::new()
        .name("orbite-stdin".into())
        .spawn(watch)
        .map(drop)
        .map_err(|error| Failure::environment("cannot watch standard input").because(error))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{BenchCommand, Cli, Command};

    fn target(flags: &str) -> Target {
        let line = format!("orbite bench target {flags}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Bench(bench) => match bench.command {
                Some(BenchCommand::Target(target)) => target,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_initiators_command_can_be_pasted() {
        let endpoint = "10.0.0.2:7000";
        assert_eq!(
            initiator(endpoint, &target("--descriptor /tmp/d")),
            "orbite bench run --epoch-file /tmp/d"
        );
        assert_eq!(
            initiator(endpoint, &target("--epoch-file e --seed 9")),
            "orbite bench run --peer 10.0.0.2:7000 --epoch-file e --seed 9"
        );
        assert_eq!(quoted(Path::new("it's here")), r"'it'\''s here'");
    }

    #[test]
    fn the_line_is_json_without_a_secret() {
        let region = |purpose| Region { purpose, address: 4096, length: 8192 };
        let regions = [region("read"), region("write")];
        let line = Line { endpoint: "127.0.0.1:1", regions, seed: 1, initiator: "x".into() };
        let value: serde_json::Value =
            serde_json::from_str(&super::super::report::text(&line)).unwrap();
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["endpoint", "initiator", "regions", "seed"]);
        assert_eq!(value["regions"][1]["for"], "write");
    }

    #[test]
    fn waiting_ends_by_time_and_by_the_other_end() {
        let (waiting, ringing) = UnixStream::pair().unwrap();
        wait(waiting.try_clone().unwrap(), Some(Duration::from_millis(1))).unwrap();
        drop(ringing);
        wait(waiting, None).unwrap();
    }
}
