//! Results as one JSON document, version 1.
//!
//! `gbps` counts 10^9 bits, `gb_per_s` 10^9 bytes, both over the whole timed loop. A percentile with
//! fewer than ten samples above it is null. Latencies are those of a closed loop: service times.

use orbite::diagnostics::BuildInfo;
use serde::Serialize;

use super::cells::Op;
use super::machine::Machine;
use super::pin;
use super::runner::{Trial, Until, Verdict};
use super::stats::{LatencyMicros, median, round};
use super::sweep::{Measured, Outcome, Settings};
use super::verify::Mismatch;
use crate::args::Depth;
use crate::failure::Failure;

/// Version of the document. It rises when a key is removed or changes its meaning.
const SCHEMA_VERSION: u32 = 1;

/// What every document of the harness begins with.
#[derive(Debug, Serialize)]
pub(crate) struct Head<'a> {
    schema_version: u32,
    /// False: ended early; what follows is what was measured until then.
    complete: bool,
    tool: Tool,
    build: BuildInfo,
    env: &'a Machine,
}

#[derive(Debug, Serialize)]
struct Tool {
    name: &'static str,
    command: &'static str,
}

impl<'a> Head<'a> {
    pub(crate) fn new(command: &'static str, complete: bool, env: &'a Machine) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            complete,
            tool: Tool { name: "orbite bench", command },
            build: BuildInfo::current(),
            env,
        }
    }
}

/// How the measurements were made.
#[derive(Debug, Serialize)]
pub(crate) struct Plan<'a> {
    processes: u32,
    transport: &'static str,
    pin: &'a pin::Plan,
    buffer: u64,
    seed: u64,
    verify: Depth,
    warmup_s: Option<f64>,
    duration_s: Option<f64>,
    iterations: Option<u64>,
    repeat: u32,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(processes: u32, pin: &'a pin::Plan, settings: &Settings) -> Self {
        let time = |until| match until {
            Until::Time(ns) => Some(ns as f64 / 1e9),
            Until::Count(_) => None,
        };
        Self {
            processes,
            transport: "tcp",
            pin,
            buffer: settings.buffer,
            seed: settings.seed,
            verify: settings.depth,
            warmup_s: time(settings.warmup),
            duration_s: time(settings.timed),
            iterations: match settings.timed {
                Until::Count(count) => Some(count),
                Until::Time(_) => None,
            },
            repeat: settings.repeat,
        }
    }
}

/// A sweep.
#[derive(Debug, Serialize)]
pub(crate) struct SweepDocument<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    plan: Plan<'a>,
    cells: Vec<CellRecord>,
    /// What ended the sweep early; null if nothing or Ctrl-C did.
    failure: Option<&'a Failure>,
}

impl<'a> SweepDocument<'a> {
    pub(crate) fn new(head: Head<'a>, plan: Plan<'a>, outcome: &'a Outcome) -> Self {
        let cells = outcome.cells.iter().map(CellRecord::of).collect();
        Self { head, plan, cells, failure: outcome.failure.as_ref() }
    }
}

/// Any document as text with a line feed.
pub(crate) fn text(document: &impl Serialize) -> String {
    // Maps with string keys and finite numbers only: this cannot fail.
    let mut text = serde_json::to_string(document).unwrap_or_default();
    text.push('\n');
    text
}

#[derive(Debug, Serialize)]
struct CellRecord {
    key: Key,
    skipped: Option<&'static str>,
    trials: Vec<TrialRecord>,
    summary: Option<Summary>,
}

#[derive(Debug, Serialize)]
struct Key {
    op: Op,
    block: u64,
    batch: u64,
    depth: u32,
    threads: u32,
    transport: &'static str,
    memory: &'static str,
    mode: &'static str,
}

#[derive(Debug, Serialize)]
struct TrialRecord {
    ops: u64,
    bytes: u64,
    wall_s: f64,
    gbps: f64,
    gb_per_s: f64,
    lat_us: LatencyMicros,
    cpu: CpuRecord,
    verify: VerifyRecord,
    flags: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
#[expect(clippy::struct_field_names, reason = "the unit stands in every key of the document")]
struct CpuRecord {
    initiator_us_per_op: f64,
    target_us_per_op: Option<f64>,
    cpu_us_per_op: f64,
}

#[derive(Debug, Serialize)]
struct VerifyRecord {
    /// Null: nobody looked.
    ok: Option<bool>,
    sampled: bool,
    first_difference: Option<Mismatch>,
}

/// Median of the trials.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub p999_us: Option<f64>,
    pub gb_per_s: Option<f64>,
    pub cpu_us_per_op: Option<f64>,
}

impl Summary {
    /// A percentile that any trial lacks is absent.
    pub(crate) fn of(trials: &[Trial]) -> Self {
        let percentile = |pick: fn(&Trial) -> Option<u64>| {
            let values: Option<Vec<f64>> =
                trials.iter().map(|trial| Some(super::stats::micros(pick(trial)?))).collect();
            median(values?)
        };
        let each = |pick: fn(&Trial) -> f64| median(trials.iter().map(pick).collect());
        Self {
            p50_us: percentile(|trial| trial.latency.p50),
            p99_us: percentile(|trial| trial.latency.p99),
            p999_us: percentile(|trial| trial.latency.p999),
            gb_per_s: each(Trial::gb_per_s),
            cpu_us_per_op: each(Trial::cpu_us_per_op),
        }
    }

    fn rounded(self) -> Self {
        let three = |value: Option<f64>| value.map(|value| round(value, 3));
        Self {
            p50_us: three(self.p50_us),
            p99_us: three(self.p99_us),
            p999_us: three(self.p999_us),
            gb_per_s: self.gb_per_s.map(|value| round(value, 6)),
            cpu_us_per_op: three(self.cpu_us_per_op),
        }
    }
}

impl CellRecord {
    fn of(measured: &Measured) -> Self {
        let cell = &measured.cell;
        Self {
            key: Key {
                op: cell.op,
                block: cell.block,
                batch: cell.batch,
                depth: 1,
                threads: 1,
                transport: "tcp",
                memory: "dram",
                mode: "closed",
            },
            skipped: measured.skipped,
            trials: measured.trials.iter().map(TrialRecord::of).collect(),
            summary: measured.skipped.is_none().then(|| Summary::of(&measured.trials).rounded()),
        }
    }
}

impl TrialRecord {
    fn of(trial: &Trial) -> Self {
        let per_op = |ns: u64| round(ns as f64 / 1e3 / trial.ops.max(1) as f64, 3);
        Self {
            ops: trial.ops,
            bytes: trial.bytes,
            wall_s: trial.wall_ns as f64 / 1e9,
            gbps: round(trial.gb_per_s() * 8.0, 6),
            gb_per_s: round(trial.gb_per_s(), 6),
            lat_us: (&trial.latency).into(),
            cpu: CpuRecord {
                initiator_us_per_op: per_op(trial.own_cpu_ns),
                target_us_per_op: trial.far_cpu_ns.map(per_op),
                cpu_us_per_op: round(trial.cpu_us_per_op(), 3),
            },
            verify: VerifyRecord::of(trial.verdict),
            flags: trial.cut.into_iter().collect(),
        }
    }
}

impl VerifyRecord {
    const fn of(verdict: Verdict) -> Self {
        let (ok, sampled, first_difference) = match verdict {
            Verdict::Verified => (Some(true), false, None),
            Verdict::Sampled => (Some(true), true, None),
            Verdict::Unchecked => (None, false, None),
            Verdict::Mismatch(mismatch) => (Some(false), false, Some(mismatch)),
        };
        Self { ok, sampled, first_difference }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;

    use super::super::cells::Cell;
    use super::super::stats::Latency;
    use super::super::verify::Looks;
    use super::*;

    /// A sweep with a good cell, a skipped one and a wrong one.
    pub(crate) fn outcome() -> Outcome {
        let trial = |factor: u64, verdict| Trial {
            ops: 2000,
            bytes: 2000 * 4096,
            wall_ns: 2000 * 12_000 * factor,
            latency: Latency {
                samples: 2000,
                min: 9000,
                mean: 12_000,
                max: 40_000,
                p50: Some(11_250 * factor),
                p90: Some(13_000),
                p99: Some(18_999),
                p999: None,
            },
            own_cpu_ns: 2000 * 11_000,
            far_cpu_ns: Some(2000 * 10_500),
            verdict,
            cut: None,
        };
        let wrong = Mismatch { offset: 70_000, expected: 1, found: 2, looks: Looks::Other };
        let cell = |op, block, batch| Cell { op, block, batch };
        let good = vec![trial(1, Verdict::Verified), trial(3, Verdict::Verified)];
        Outcome {
            cells: vec![
                Measured { cell: cell(Op::Read, 4096, 1), trials: good, skipped: None },
                Measured {
                    cell: cell(Op::Write, 1 << 30, 1),
                    trials: vec![],
                    skipped: Some("buffer_too_small"),
                },
                Measured {
                    cell: cell(Op::Write, 4096, 64),
                    trials: vec![trial(1000, Verdict::Mismatch(wrong))],
                    skipped: None,
                },
            ],
            failure: None,
            interrupted: false,
        }
    }

    pub(crate) fn machine() -> Machine {
        Machine {
            kernel: "6.1.0".into(),
            cpu_model: "Some CPU".into(),
            cpus_allowed: vec![0, 1],
            load_before: Some([0.5, 0.0, 0.0]),
            load_after: None,
        }
    }

    pub(crate) fn pins() -> pin::Plan {
        pin::Plan {
            initiator_shard: Some(0),
            target_shard: Some(1),
            caller: Some(0),
            require: false,
        }
    }

    fn document(outcome: &Outcome) -> Value {
        let settings = Settings {
            buffer: 1 << 26,
            seed: 1,
            depth: Depth::Full,
            warmup: Until::Time(250_000_000),
            timed: Until::Count(2000),
            repeat: 2,
        };
        let (machine, pins) = (machine(), pins());
        let head = Head::new("loopback", outcome.complete(), &machine);
        let document = SweepDocument::new(head, Plan::new(2, &pins, &settings), outcome);
        let text = text(&document);
        assert_eq!(text.lines().count(), 1);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_document_has_the_keys_of_version_1() {
        let value = document(&outcome());
        assert_eq!(value["schema_version"], 1);
        assert_eq!(value["complete"], true);
        assert_eq!(value["tool"]["command"], "loopback");
        assert_eq!(value["build"]["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(value["env"]["cpus_allowed"][1], 1);
        assert_eq!(value["plan"]["pin"]["target_shard"], 1);
        assert_eq!(value["plan"]["iterations"], 2000);
        assert_eq!(value["plan"]["duration_s"], Value::Null);
        let cell = &value["cells"][0];
        assert_eq!(cell["key"]["op"], "read");
        assert_eq!(cell["key"]["mode"], "closed");
        assert_eq!(cell["trials"][0]["verify"]["ok"], true);
        assert_eq!(cell["trials"][0]["lat_us"]["p99"], 18.999);
        assert_eq!(cell["trials"][0]["lat_us"]["p999"], Value::Null);
        assert_eq!(cell["trials"][0]["cpu"]["cpu_us_per_op"], 21.5);
        assert_eq!(cell["summary"]["p50_us"], 22.5);
        assert_eq!(value["cells"][1]["skipped"], "buffer_too_small");
        assert_eq!(value["cells"][1]["summary"], Value::Null);
        let wrong = &value["cells"][2]["trials"][0]["verify"];
        assert_eq!(wrong["ok"], false);
        assert_eq!(wrong["first_difference"]["offset"], 70_000);
    }

    #[test]
    fn log_071_the_written_rate_is_bytes_over_wall_time() {
        let value = document(&outcome());
        for trial in
            value["cells"].as_array().unwrap().iter().filter_map(|c| c["trials"].as_array())
        {
            for trial in trial {
                let number = |key: &str| trial[key].as_f64().unwrap();
                let rate = number("bytes") / number("wall_s") / 1e9;
                assert!((number("gb_per_s") / rate - 1.0).abs() < 0.01, "{trial}");
                assert!((number("gbps") / 8.0 / rate - 1.0).abs() < 0.01, "{trial}");
            }
        }
    }

    #[test]
    fn an_interrupted_sweep_says_that_it_is_not_complete() {
        let value = document(&Outcome { interrupted: true, ..outcome() });
        assert_eq!(value["complete"], false);
        assert_eq!(value["failure"], Value::Null);
        let failure = Some(Failure::environment("gone").because("reset"));
        let value = document(&Outcome { failure, ..outcome() });
        assert_eq!(
            (&value["complete"], &value["failure"]["cause"]),
            (&false.into(), &"reset".into())
        );
        assert_eq!(value["cells"].as_array().unwrap().len(), 3);
    }
}
