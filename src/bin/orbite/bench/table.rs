//! Results for people: a head that says where they come from, a line for each cell, a last word.

use std::fmt::{self, Write};

use orbite::diagnostics::{BUILD_COMMIT, BUILD_VERSION};

use super::machine::Machine;
use super::pin;
use super::report::Summary;
use super::runner::{Trial, Verdict};
use super::sweep::{Measured, Outcome};

/// The lines before the table.
pub(crate) fn head(what: &str, machine: &Machine, pins: &pin::Plan) -> String {
    let (machine, pins) = (machine.describe(), pins.describe());
    format!("orbite {BUILD_VERSION} ({BUILD_COMMIT}), {what}\n{machine}\n{pins}\n\n")
}

/// The table with its last line. `far_cpu`: the target's CPU time is in the figures.
pub(crate) fn sweep(outcome: &Outcome, far_cpu: bool) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write_sweep(&mut text, outcome, far_cpu);
    text
}

fn write_sweep(out: &mut String, outcome: &Outcome, far_cpu: bool) -> fmt::Result {
    let names = ["op", "payload", "p50 us", "p99 us", "p99.9 us", "GB/s", "CPU us/op", "verified"];
    line(out, names)?;
    for measured in &outcome.cells {
        write_cell(out, measured)?;
    }
    writeln!(out)?;
    for measured in &outcome.cells {
        for trial in &measured.trials {
            if let Verdict::Mismatch(wrong) = trial.verdict {
                let (op, payload) = (measured.cell.op, measured.cell.payload());
                let (offset, looks) = (wrong.offset, wrong.looks.name());
                let (expected, found) = (wrong.expected, wrong.found);
                writeln!(
                    out,
                    "{op} {payload}: first difference at offset {offset}: expected \
                     {expected:#04x}, found {found:#04x}; {looks}"
                )?;
            }
        }
    }
    writeln!(out, "{}", last_word(outcome))?;
    let whose = if far_cpu { "of both processes" } else { "of this process alone" };
    writeln!(
        out,
        "One batch in flight. GB/s: 10^9 bytes per second. CPU: user and system time {whose}.\n\
         A dash: fewer than ten samples lie above that percentile."
    )
}

fn write_cell(out: &mut String, measured: &Measured) -> fmt::Result {
    let (op, payload) = (measured.cell.op.to_string(), measured.cell.payload());
    if let Some(reason) = measured.skipped {
        let reason = format!("skipped: {}", reason.replace('_', " "));
        return writeln!(out, "{op:<6} {payload:<12} {reason}");
    }
    let summary = Summary::of(&measured.trials);
    let cells = [
        op.as_str(),
        payload.as_str(),
        &number(summary.p50_us),
        &number(summary.p99_us),
        &number(summary.p999_us),
        &rate(summary.gb_per_s),
        &number(summary.cpu_us_per_op),
        verified(&measured.trials),
    ];
    line(out, cells)
}

fn line(out: &mut String, cells: [&str; 8]) -> fmt::Result {
    let [op, payload, p50, p99, p999, rate, cpu, verified] = cells;
    writeln!(
        out,
        "{op:<6} {payload:<12} {p50:>9} {p99:>9} {p999:>9} {rate:>8} {cpu:>10}  {verified}"
    )
}

fn last_word(outcome: &Outcome) -> String {
    let measured = outcome.cells.iter().filter(|cell| cell.skipped.is_none()).count();
    let wrong = outcome.cells.iter().filter(|cell| cell.mismatched()).count();
    let trials = || outcome.cells.iter().flat_map(|cell| &cell.trials);
    let all = |verdict| trials().all(|trial| trial.verdict == verdict);
    let noun = if measured == 1 { "cell" } else { "cells" };
    let mut word = match wrong {
        0 if measured == 0 => "nothing was measured".to_owned(),
        0 if all(Verdict::Verified) => format!("{measured} {noun}, every byte verified"),
        0 if all(Verdict::Unchecked) => {
            format!("{measured} {noun}, no byte verified (--verify off)")
        }
        0 => format!("{measured} {noun}, a sample of the bytes verified"),
        _ => format!("{wrong} of {measured} {noun} with WRONG BYTES"),
    };
    if !outcome.complete() {
        word.push_str("; ended early, the rest was not measured");
    }
    word.push('.');
    word
}

fn verified(trials: &[Trial]) -> &'static str {
    let any = |wanted: fn(&Verdict) -> bool| trials.iter().any(|trial| wanted(&trial.verdict));
    if any(|verdict| matches!(verdict, Verdict::Mismatch(_))) {
        "NO"
    } else if any(|verdict| matches!(verdict, Verdict::Unchecked)) {
        "-"
    } else if any(|verdict| matches!(verdict, Verdict::Sampled)) {
        "sample"
    } else {
        "yes"
    }
}

/// A time in microseconds: three digits or more, no more than two decimals.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value >= 1000.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// A rate with at least three digits that count, so that the rounding is below one percent.
pub(crate) fn rate(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) if value >= 1.0 => format!("{value:.2}"),
        Some(value) if value >= 0.1 => format!("{value:.3}"),
        Some(value) => format!("{value:.5}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{machine, outcome, pins};
    use super::*;

    #[test]
    fn the_table_reads_as_expected() {
        let expected = "\
op     payload         p50 us    p99 us  p99.9 us     GB/s  CPU us/op  verified
READ   4 KiB             22.5      19.0         -    0.228       21.5  yes
WRITE  1 GiB        skipped: buffer too small
WRITE  64 x 4 KiB       11250      19.0         -  0.00034       21.5  NO

WRITE 64 x 4 KiB: first difference at offset 70000: expected 0x01, found 0x02; \
other bytes than those asked for
1 of 2 cells with WRONG BYTES.
One batch in flight. GB/s: 10^9 bytes per second. CPU: user and system time of both processes.
A dash: fewer than ten samples lie above that percentile.
";
        assert_eq!(sweep(&outcome(), true), expected);
    }

    #[test]
    fn the_head_names_build_machine_and_places() {
        let head = head("TCP over 127.0.0.1", &machine(), &pins());
        let lines: Vec<&str> = head.lines().collect();
        assert!(lines[0].starts_with(&format!("orbite {BUILD_VERSION} (")));
        assert_eq!(lines[1], "Some CPU, 2 CPUs allowed, Linux 6.1.0, load 0.50");
        let places = "initiator shard on CPU 0, target shard on CPU 1, caller on CPU 0";
        assert_eq!(lines[2], places);
    }

    #[test]
    fn the_last_word_claims_no_more_than_was_done() {
        let mut partial = outcome();
        partial.cells.truncate(1);
        assert_eq!(last_word(&partial), "1 cell, every byte verified.");
        partial.interrupted = true;
        assert!(last_word(&partial).contains("ended early"));
        partial.cells[0].trials[0].verdict = Verdict::Sampled;
        assert!(last_word(&partial).contains("a sample of the bytes"));
        for trial in &mut partial.cells[0].trials {
            trial.verdict = Verdict::Unchecked;
        }
        assert!(last_word(&partial).contains("no byte verified"));
        partial.cells.clear();
        assert!(last_word(&partial).starts_with("nothing was measured"));
    }

    #[test]
    fn log_071_printed_rates_are_within_one_percent() {
        for value in [0.001_234, 0.0567, 0.1234, 0.999_9, 1.234, 9.87, 12.34, 123.4] {
            let printed: f64 = rate(Some(value)).parse().unwrap();
            assert!((printed / value - 1.0).abs() < 0.01, "{value} {printed}");
        }
    }
}
