//! `--workloads FILE`: the contract of external benchmark commands. FILE is a JSON array of
//! workloads; each one that this build supports gives one JSON line, and nothing else is printed.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::cells::{Op, SAMPLES_MAX, Span};
use super::loopback::{Pair, timed};
use super::runner::{Clock, FarSide, Mover, Order, Runner, Trial, Until, Verdict};
use super::stats::{gigabytes_per_second, micros, percentile, round};
use super::usage::{RealClock, Usage};
use super::{pattern, pin};
use crate::args::{Depth, Sweep};
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output::{Output, note};

/// Largest file that is read.
const FILE_MAX: u64 = 64 << 20;

/// Bytes of the first transfer, whose time is told apart.
const FIRST_BYTES: u64 = 64;

/// One workload, as written. Keys that are not known are left alone: the contract may grow.
#[derive(Clone, Debug, Deserialize)]
struct Entry {
    workload: String,
    op: String,
    block: u64,
    batch: u64,
    iters: u64,
    #[serde(default)]
    warmup: u64,
    region: Option<u64>,
    local_offsets: Option<Vec<u64>>,
    remote_offsets: Option<Vec<u64>>,
}

/// One workload, checked.
#[derive(Clone, Debug, PartialEq)]
struct Workload {
    name: String,
    op: Op,
    block: u64,
    iters: u64,
    warmup: u64,
    region: u64,
    spans: Vec<Span>,
}

/// Reads the array. Supported workloads in order, and why others are left out.
fn parse(bytes: &[u8]) -> Result<(Vec<Workload>, Vec<String>), Failure> {
    let wrong = |why: String| Failure::usage("the workload file is not valid").because(why);
    let entries: Vec<serde_json::Value> =
        serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    let (mut workloads, mut left_out) = (Vec::new(), Vec::new());
    for (index, entry) in entries.into_iter().enumerate() {
        let at = |why: String| wrong(format!("entry {index}: {why}"));
        let entry: Entry = serde_json::from_value(entry).map_err(|e| at(e.to_string()))?;
        match supported(&entry) {
            Err(reason) => left_out.push(format!("{} {}: {reason}", entry.workload, entry.op)),
            Ok((op, region, locals, remotes)) => {
                workloads.push(checked(&entry, op, region, locals, remotes).map_err(at)?);
            }
        }
    }
    Ok((workloads, left_out))
}

type Parts<'a> = (Op, u64, &'a [u64], &'a [u64]);

fn supported(entry: &Entry) -> Result<Parts<'_>, &'static str> {
    let op = match entry.op.as_str() {
        "read" => Op::Read,
        "write" => Op::Write,
        _ => return Err("no such operation here"),
    };
    if entry.workload.starts_with("file-") {
        return Err("files are not moved here");
    }
    match (entry.region, &entry.local_offsets, &entry.remote_offsets) {
        (Some(region), Some(locals), Some(remotes)) => Ok((op, region, locals, remotes)),
        _ => Err("no region or no offsets"),
    }
}

fn checked(
    entry: &Entry,
    op: Op,
    region: u64,
    locals: &[u64],
    remotes: &[u64],
) -> Result<Workload, String> {
    let Entry { block, batch, iters, warmup, .. } = *entry;
    if locals.len() as u64 != batch || remotes.len() as u64 != batch || batch == 0 {
        let (locals, remotes) = (locals.len(), remotes.len());
        return Err(format!("batch is {batch}, but there are {locals} and {remotes} offsets"));
    }
    if !(1..=SAMPLES_MAX).contains(&iters) || warmup > SAMPLES_MAX {
        return Err(format!("iters {iters} or warmup {warmup} is outside 1..={SAMPLES_MAX}"));
    }
    let outside = |offset: &&u64| offset.checked_add(block).is_none_or(|end| end > region);
    if block == 0 || locals.iter().chain(remotes).any(|offset| outside(&offset)) {
        return Err(format!("blocks of {block} bytes do not lie inside a region of {region}"));
    }
    let span =
        |(local, remote): (&u64, &u64)| Span { local: *local, remote: *remote, length: block };
    let spans: Vec<Span> = locals.iter().zip(remotes).map(span).collect();
    let mut ends: Vec<u64> = spans.iter().map(|span| span.moved(op).to).collect();
    ends.sort_unstable();
    if ends.windows(2).any(|pair| matches!(pair, [a, b] if b - a < block)) {
        return Err("blocks overlap at the destination, so the outcome is not defined".into());
    }
    Ok(Workload { name: entry.workload.clone(), op, block, iters, warmup, region, spans })
}

/// One line. Field names and units are the contract's.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'static str,
    transport: &'static str,
    workload: &'a str,
    op: Op,
    block: u64,
    batch: u64,
    iters: u64,
    p50_us: f64,
    p99_us: f64,
    gbps: f64,
    cpu_us_per_op: f64,
    verified: Option<bool>,
    cpu_init_us: f64,
    cpu_target_us: f64,
    rss_init_mb: f64,
    rss_target_mb: f64,
    threads_init: u64,
    threads_target: u64,
    init_ms: f64,
    register_ms: f64,
    first_op_ms: f64,
}

/// Times of the start, milliseconds: engine, registration, first transfer.
type StartMs = [f64; 3];

fn row<'a>(
    workload: &'a Workload,
    trial: &Trial,
    sorted: &[u64],
    usage: [Usage; 2],
    [init_ms, register_ms, first_op_ms]: StartMs,
) -> Row<'a> {
    let [own, far] = usage;
    let per_op = |ns: u64| round(ns as f64 / 1e3 / trial.ops.max(1) as f64, 2);
    Row {
        name: "orbite",
        transport: "tcp",
        workload: &workload.name,
        op: workload.op,
        block: workload.block,
        batch: workload.spans.len() as u64,
        iters: trial.ops,
        p50_us: round(micros(percentile(sorted, 0.50)), 2),
        p99_us: round(micros(percentile(sorted, 0.99)), 2),
        gbps: round(gigabytes_per_second(trial.bytes, trial.wall_ns) * 8.0, 3),
        cpu_us_per_op: round(trial.cpu_us_per_op(), 2),
        verified: match trial.verdict {
            Verdict::Verified | Verdict::Sampled => Some(true),
            Verdict::Unchecked => None,
            Verdict::Mismatch(_) => Some(false),
        },
        cpu_init_us: per_op(trial.own_cpu_ns),
        cpu_target_us: per_op(trial.far_cpu_ns.unwrap_or(0)),
        rss_init_mb: own.rss_mb(),
        rss_target_mb: far.rss_mb(),
        threads_init: own.threads,
        threads_target: far.threads,
        init_ms: round(init_ms, 1),
        register_ms: round(register_ms, 2),
        first_op_ms: round(first_op_ms, 2),
    }
}

/// Runs the workloads of `file`.
pub(crate) fn run(
    file: &Path,
    sweep: &Sweep,
    interrupt: &Interrupt,
    output: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let (workloads, left_out) = parse(&read(file)?)?;
    if !sweep.quiet {
        for reason in left_out {
            note(format_args!("left out: {reason}"));
        }
    }
    let Some(region) = workloads.iter().map(|workload| workload.region).max() else {
        note("no workload of the file is supported");
        return Ok(Exit::Success);
    };
    let mut pair = Pair::start(sweep, &pin::allowed(), region)?;
    let first = first_transfer(&mut pair.mover, region)?;
    let [init, register] = pair.start_ms;
    let start = [init, register, first];
    let mut clock = RealClock::start();
    let client = pair.target.client()?;
    let finished = each(
        Measurer { mover: &mut pair.mover, far: client, clock: &mut clock, interrupt },
        &workloads,
        Asked { seed: sweep.seed, depth: sweep.verify, start },
        output,
    );
    let ended = pair.end();
    let all_right = finished?;
    super::conclude(None, interrupt.asked(), !all_right, ended)
}

fn first_transfer(mover: &mut impl Mover, region: u64) -> Result<f64, Failure> {
    let length = FIRST_BYTES.min(region);
    let batch = mover.prepare(Op::Read, &[Span { local: 0, remote: 0, length }]);
    timed(|| mover.run(&batch)).map(|((), ms)| ms)
}

struct Measurer<'a, M, F, C> {
    mover: &'a mut M,
    far: &'a mut F,
    clock: &'a mut C,
    interrupt: &'a Interrupt,
}

#[derive(Clone, Copy)]
struct Asked {
    seed: u64,
    depth: Depth,
    start: StartMs,
}

/// Prints a row for each workload. False: a row had wrong bytes.
fn each<M: Mover, F: FarSide, C: Clock>(
    with: Measurer<'_, M, F, C>,
    workloads: &[Workload],
    asked: Asked,
    output: &mut Output<'_>,
) -> Result<bool, Failure> {
    let longest = |w: &Workload| w.iters.max(w.warmup);
    let capacity = workloads.iter().map(longest).max().unwrap_or(0);
    let Measurer { mover, far, clock, interrupt } = with;
    let mut runner = Runner::new(mover, far, clock, interrupt, capacity);
    let mut all_right = true;
    for (index, workload) in workloads.iter().enumerate() {
        let order = Order {
            op: workload.op,
            footprint: workload.region,
            seed: pattern::seed(asked.seed, index as u64, 0),
            depth: asked.depth,
            warmup: Until::Count(workload.warmup),
            timed: Until::Count(workload.iters),
        };
        let Some(trial) = runner.measure(&order, &workload.spans)? else { break };
        // A loop that was cut short is no measurement of what was asked for.
        if trial.cut.is_some() || output.is_closed() {
            break;
        }
        let none = Usage { cpu_ns: 0, rss_kib: 0, threads: 0 };
        let usage = [Usage::of_this_process(), runner.far.usage()?.unwrap_or(none)];
        let row = row(workload, &trial, runner.samples(), usage, asked.start);
        all_right &= row.verified != Some(false);
        output.text(super::report::text(&row))?;
    }
    Ok(all_right)
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let failed = || Failure::usage(format!("cannot read the workload file {}", file.display()));
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|open| open.take(FILE_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| failed().because(error))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(failed().because(format!("it has more than {FILE_MAX} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::runner::tests::FakePair;
    use super::*;

    fn entry(op: &str) -> Value {
        json!({"workload": "scatter-2x4K", "op": op, "block": 4096, "batch": 2, "iters": 40,
            "warmup": 4, "region": 65_536, "local_offsets": [8192, 0],
            "remote_offsets": [0, 16_384], "later": true})
    }

    fn parsed(entries: &Value) -> Result<(Vec<Workload>, Vec<String>), Failure> {
        parse(entries.to_string().as_bytes())
    }

    fn rows(entries: &Value, pair: &mut FakePair) -> (bool, Vec<Value>) {
        let (workloads, _) = parsed(entries).unwrap();
        let (mut far, mut clock, interrupt) = (pair.far(), pair.clock(), Interrupt::default());
        let with =
            Measurer { mover: pair, far: &mut far, clock: &mut clock, interrupt: &interrupt };
        let asked = Asked { seed: 1, depth: Depth::Full, start: [1.25, 0.5, 0.125] };
        let mut bytes = Vec::new();
        let right = each(with, &workloads, asked, &mut Output::new(&mut bytes)).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        (right, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    #[test]
    fn each_supported_entry_gives_a_row_with_every_field() {
        let mut pair = FakePair::new(65_536);
        let (right, rows) = rows(&json!([entry("read"), entry("write")]), &mut pair);
        assert!(right);
        assert_eq!(rows.len(), 2);
        assert_eq!(pair.runs, 2 * 44);
        for (row, op) in rows.iter().zip(["read", "write"]) {
            let keys: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
            let mut wanted = vec![
                "name",
                "transport",
                "workload",
                "op",
                "block",
                "batch",
                "iters",
                "p50_us",
                "p99_us",
                "gbps",
                "cpu_us_per_op",
                "verified",
                "cpu_init_us",
                "cpu_target_us",
                "rss_init_mb",
                "rss_target_mb",
                "threads_init",
                "threads_target",
                "init_ms",
                "register_ms",
                "first_op_ms",
            ];
            wanted.sort_unstable();
            assert_eq!(keys, wanted);
            assert_eq!(row["name"], "orbite");
            assert_eq!(row["workload"], "scatter-2x4K");
            assert_eq!((&row["op"], &row["iters"]), (&json!(op), &json!(40)));
            assert_eq!((&row["p50_us"], &row["p99_us"]), (&json!(10.0), &json!(10.0)));
            // 2 x 4096 bytes in 10 us.
            assert_eq!(row["gbps"], 6.554);
            assert_eq!(row["cpu_us_per_op"], 15.0);
            assert_eq!((&row["cpu_init_us"], &row["cpu_target_us"]), (&json!(10.0), &json!(5.0)));
            assert_eq!(row["verified"], true);
            assert_eq!((&row["init_ms"], &row["first_op_ms"]), (&json!(1.3), &json!(0.13)));
        }
    }

    #[test]
    fn wrong_bytes_are_a_row_that_says_so() {
        let mut pair = FakePair::new(65_536);
        pair.fault = Some(|bytes| bytes[60_000] = 1);
        let (right, rows) = rows(&json!([entry("write")]), &mut pair);
        assert!(!right);
        assert_eq!(rows[0]["verified"], false);
    }

    #[test]
    fn what_is_not_supported_is_left_out_with_a_reason() {
        let mut file = entry("read");
        file["workload"] = json!("file-4K");
        let mut bare = entry("read");
        bare.as_object_mut().unwrap().remove("local_offsets");
        let entries = json!([entry("stream-put"), file, bare, entry("read")]);
        let (workloads, left_out) = parsed(&entries).unwrap();
        assert_eq!(workloads.len(), 1);
        assert_eq!(left_out.len(), 3);
    }

    #[test]
    fn invalid_files_are_usage_errors_that_name_the_entry() {
        let with = |key: &str, value: Value| {
            let mut bad = entry("read");
            bad[key] = value;
            json!([entry("read"), bad])
        };
        for entries in [
            json!({}),
            json!([1]),
            with("block", json!(0)),
            with("block", json!("4KiB")),
            with("block", json!(u64::MAX)),
            with("batch", json!(3)),
            with("iters", json!(0)),
            with("iters", json!(1u64 << 40)),
            with("region", json!(20_000)),
            with("local_offsets", json!([8192])),
            with("local_offsets", json!([8192, 9000])),
            with("remote_offsets", json!([0, -1])),
        ] {
            let failure = parsed(&entries).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            let cause = failure.cause.unwrap();
            assert!(cause.contains("entry") || !entries[0].is_object(), "{cause}");
        }
        assert!(parse(b"[").is_err());
    }

    #[test]
    fn sources_may_overlap_and_destinations_may_not() {
        let mut same = entry("read");
        same["remote_offsets"] = json!([0, 0]);
        assert!(parsed(&json!([same])).is_ok());
        same["op"] = json!("write");
        assert!(parsed(&json!([same])).is_err());
    }

    #[test]
    fn the_first_transfer_is_timed_and_fits_small_regions() {
        let mut pair = FakePair::new(16);
        assert!(first_transfer(&mut pair, 16).unwrap() >= 0.0);
        assert_eq!(pair.runs, 1);
    }
}
