//! The command line: what can be said, with its defaults and ranges. Nothing here acts.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use crate::bench::cells::SAMPLES_MAX;
use crate::size::{self, Steps};

/// Seed of the byte patterns where none is named.
pub(crate) const SEED: u64 = 1;

/// Moves registered byte ranges between processes and machines, and measures it.
#[derive(Debug, Parser)]
#[command(name = "orbite", version = version(), disable_help_subcommand = true)]
#[command(arg_required_else_help = true, propagate_version = false)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

fn version() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    let (version, commit) = (orbite::diagnostics::BUILD_VERSION, orbite::diagnostics::BUILD_COMMIT);
    TEXT.get_or_init(|| format!("{version} ({commit})"))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure transfers and verify every byte. Without a subcommand: `loopback`.
    Bench(Box<Bench>),
    /// What this build is and what it finds on this machine.
    Diagnostics {
        #[command(subcommand)]
        command: Diagnostics,
    },
    /// Check and show configuration documents.
    Config {
        #[command(subcommand)]
        command: Config,
    },
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page (roff).
    Man,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Diagnostics {
    /// Version, commit, compiler, machine. Starts nothing.
    Version {
        /// One JSON document.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Say whether a document is valid; if not, which key is wrong and why.
    Check {
        /// The JSON document.
        file: PathBuf,
    },
    /// Print a configuration with its defaults, as JSON.
    Show {
        /// The JSON document. Default: what ORBITE_CONF says, else the defaults.
        file: Option<PathBuf>,
        /// Start an engine and print what it resolved, cores and addresses included.
        #[arg(long)]
        effective: bool,
    },
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_long_help = BENCH_EXAMPLES)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    #[command(flatten)]
    pub loopback: Loopback,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  orbite bench                                     two processes on this machine, within a minute
  orbite bench --block-size 4KiB..1MiB --batch 1,64 --json
  orbite bench --input model.safetensors           a real file there and back, with SHA-256
  orbite bench target --bind 0.0.0.0:7000 --advertise 10.0.0.2 --descriptor target.desc
  orbite bench run --epoch-file target.desc        the other half, on the other machine";

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Both halves as two processes on this machine, over 127.0.0.1.
    Loopback(Loopback),
    /// The serving half: registers memory, says how to reach it, and waits.
    Target(Target),
    /// The measuring half, against a `bench target` elsewhere.
    Run(Run),
    /// The serving half of `loopback`, spoken to over its standard input and output.
    #[command(hide = true)]
    Served(Served),
}

#[derive(Debug, Args)]
pub(crate) struct Loopback {
    /// Take the payload from this file, write it to the target and read it back; compare SHA-256.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workloads", "block_size", "batch", "op",
        "duration", "iterations", "warmup", "repeat", "verify"])]
    pub input: Option<PathBuf>,
    /// Run the workloads that this JSON array lists and print one JSON line for each.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["block_size", "batch", "op", "duration",
        "iterations", "warmup", "repeat", "json", "buffer"])]
    pub workloads: Option<PathBuf>,
    #[command(flatten)]
    pub sweep: Sweep,
}

#[derive(Debug, Args)]
pub(crate) struct Sweep {
    /// Bytes of one request: a list, or a range that doubles, such as 4KiB..64MiB.
    #[arg(long, value_name = "SIZES", value_parser = Steps::blocks)]
    pub block_size: Option<Steps>,
    /// Requests in one batch, scattered over the buffer if more than one: a list, or a range.
    #[arg(long, value_name = "COUNTS", value_parser = Steps::batches)]
    pub batch: Option<Steps>,
    /// Directions.
    #[arg(long, value_delimiter = ',', value_name = "OPS", default_value = "read,write")]
    pub op: Vec<OpName>,
    /// Measured time of one cell [default: 1.5s].
    #[arg(long, value_name = "TIME", value_parser = size::some_duration,
        conflicts_with = "iterations")]
    pub duration: Option<Duration>,
    /// Measured batches of one cell, instead of a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SAMPLES_MAX))]
    pub iterations: Option<u64>,
    /// Time before each measurement that is not counted.
    #[arg(long, value_name = "TIME", value_parser = size::duration, default_value = "250ms")]
    pub warmup: Duration,
    /// Measurements of one cell; the table shows their median.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100),
        default_value = "1")]
    pub repeat: u32,
    /// How bytes move. Known here: tcp.
    #[arg(long, value_parser = transport, default_value = "auto")]
    pub transport: Wanted,
    /// CPUs: `auto`, `none`, or a list: the initiator's shard, the target's shard, the caller.
    #[arg(long, value_parser = pin, default_value = "auto", value_name = "auto|none|LIST")]
    pub pin: Pin,
    /// Bytes compared after each measurement.
    #[arg(long, default_value = "full")]
    pub verify: Depth,
    /// Registered memory on each side; a cell that needs more is skipped. With --input: the window
    /// that the file goes through [default: what the cells need; 256MiB with --input].
    #[arg(long, value_name = "SIZE", value_parser = buffer)]
    pub buffer: Option<u64>,
    /// Start of the byte patterns.
    #[arg(long, value_name = "N", default_value_t = SEED)]
    pub seed: u64,
    /// One JSON document instead of the table.
    #[arg(long)]
    pub json: bool,
    /// No progress and no remarks.
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("secret").required(true))]
pub(crate) struct Target {
    /// Address of the listener, numeric. Port 0 takes any free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    pub bind: SocketAddr,
    /// Address that initiators are told, where the listener's is a wildcard.
    #[arg(long, value_name = "IP")]
    pub advertise: Option<IpAddr>,
    /// Bytes of each of the two regions: one to read, one to write.
    #[arg(long, value_name = "SIZE", value_parser = buffer, default_value = "64MiB")]
    pub buffer: u64,
    /// Write endpoint and epoch as one string to this file, mode 0600.
    #[arg(long, value_name = "FILE", group = "secret")]
    pub descriptor: Option<PathBuf>,
    /// Write the epoch alone to this file, mode 0600.
    #[arg(long, value_name = "FILE", group = "secret")]
    pub epoch_file: Option<PathBuf>,
    /// CPU of the shard: `auto`, `none`, or a number.
    #[arg(long, value_parser = pin, default_value = "auto", value_name = "auto|none|CPU")]
    pub pin: Pin,
    /// Start of the byte pattern; the initiator needs the same.
    #[arg(long, value_name = "N", default_value_t = SEED)]
    pub seed: u64,
    /// End after this time.
    #[arg(long, value_name = "TIME", value_parser = size::some_duration)]
    pub ttl: Option<Duration>,
    /// End when standard input ends.
    #[arg(long)]
    pub until_eof: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The target's endpoint, `ip:port`. Not needed with a descriptor.
    #[arg(long, value_name = "ENDPOINT")]
    pub peer: Option<SocketAddr>,
    /// File with the target's descriptor, or with its epoch as 32 hexadecimal digits; `-` reads
    /// standard input. An epoch is a right to memory, so it is never an argument.
    #[arg(long, value_name = "FILE")]
    pub epoch_file: PathBuf,
    #[command(flatten)]
    pub sweep: Sweep,
}

#[derive(Debug, Args)]
pub(crate) struct Served {
    /// Bytes to register.
    #[arg(long)]
    pub buffer: u64,
    /// CPU of the shard; absent: not pinned.
    #[arg(long)]
    pub core: Option<u32>,
    /// End if the CPU cannot be had.
    #[arg(long)]
    pub require: bool,
}

/// A direction, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OpName {
    /// Target to initiator.
    Read,
    /// Initiator to target.
    Write,
}

/// How much is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Depth {
    /// Every byte, those around the ranges too.
    Full,
    /// Both ends of each range, and one block of 4 KiB in 64.
    Sample,
    /// None.
    Off,
}

/// A transport that this build can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Auto,
    Tcp,
}

fn transport(text: &str) -> Result<Wanted, String> {
    match text {
        "auto" => Ok(Wanted::Auto),
        "tcp" => Ok(Wanted::Tcp),
        known if orbite::Transport::from_name(known).is_some_and(|t| t.name() != "unspec") => {
            Err(format!("`{known}` is not in this build; known here: auto, tcp"))
        }
        _ => Err(format!("`{text}` is no transport; known here: auto, tcp")),
    }
}

/// Where threads run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    Auto,
    None,
    List(Vec<u32>),
}

fn pin(text: &str) -> Result<Pin, String> {
    match text {
        "auto" => Ok(Pin::Auto),
        "none" => Ok(Pin::None),
        list => size::cpu_list(list).map(Pin::List),
    }
}

fn buffer(text: &str) -> Result<u64, String> {
    size::bytes_between(text, 4096, 1 << 40)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    fn sweep(line: &str) -> Sweep {
        match parse(line).unwrap().command {
            Command::Bench(bench) => match bench.command {
                None => bench.loopback.sweep,
                Some(BenchCommand::Loopback(loopback)) => loopback.sweep,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_table_of_arguments_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bench_alone_is_loopback() {
        for line in ["orbite bench", "orbite bench loopback"] {
            let sweep = sweep(line);
            assert_eq!(sweep.block_size, None);
            assert_eq!(sweep.op, [OpName::Read, OpName::Write]);
            assert_eq!(sweep.pin, Pin::Auto);
            assert_eq!(sweep.verify, Depth::Full);
            assert_eq!(sweep.transport, Wanted::Auto);
            assert_eq!(sweep.warmup, Duration::from_millis(250));
        }
        let sweep = sweep("orbite bench --op write --pin 0,1 --buffer 1GiB --iterations 7");
        assert_eq!(sweep.op, [OpName::Write]);
        assert_eq!(sweep.pin, Pin::List(vec![0, 1]));
        assert_eq!(sweep.buffer, Some(1 << 30));
        assert_eq!(sweep.iterations, Some(7));
    }

    #[test]
    fn contradictions_and_bad_values_are_usage_errors() {
        for line in [
            "orbite",
            "orbite bench --duration 1s --iterations 5",
            "orbite bench --input a --workloads b",
            "orbite bench --input a --block-size 4KiB",
            "orbite bench --workloads a --json",
            "orbite bench --block-size 4KB",
            "orbite bench --batch 0",
            "orbite bench --iterations 0",
            "orbite bench --repeat 0",
            "orbite bench --repeat 101",
            "orbite bench --duration 0s",
            "orbite bench --transport shm",
            "orbite bench --transport pigeon",
            "orbite bench --transport unspec",
            "orbite bench --verify some",
            "orbite bench --buffer 1KiB",
            "orbite bench --pin x",
            "orbite bench --seed -1",
            "orbite bench --json loopback",
            "orbite bench target",
            "orbite bench target --descriptor a --epoch-file b",
            "orbite bench target --descriptor a --bind localhost:1",
            "orbite bench run --peer 127.0.0.1:1",
            "orbite bench run --epoch-file a --epoch 00",
            "orbite nonsense",
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}: {error}");
        }
    }

    #[test]
    fn a_transport_that_exists_elsewhere_is_named_as_missing_here() {
        let text = parse("orbite bench --transport rdma").unwrap_err().to_string();
        assert!(text.contains("not in this build; known here: auto, tcp"), "{text}");
    }

    #[test]
    fn the_version_is_one_line_with_the_commit() {
        let error = parse("orbite -V").unwrap_err();
        assert_eq!(error.exit_code(), 0);
        let text = error.to_string();
        let commit = orbite::diagnostics::BUILD_COMMIT;
        assert_eq!(text, format!("orbite {} ({commit})\n", env!("CARGO_PKG_VERSION")));
    }
}
