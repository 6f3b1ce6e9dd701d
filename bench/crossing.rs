//! Prints how long a caller takes into a shard and back, and how much dearer waking a sleeping shard is
//! than the least that an eventfd and epoll cost. Asserts nothing.
//!
//! `cargo bench --bench crossing -- [AWAKE [COLD]]`: so many rounds of the two kinds.

use std::process::ExitCode;
use std::time::Duration;

use orbite::testing::crossing::{self, Samples, Shape};

fn main() -> ExitCode {
    // Only `cargo bench` passes this; under `cargo test` a few rounds show that it runs.
    let full = std::env::args().any(|argument| argument == "--bench");
    let mut rounds = std::env::args().filter_map(|argument| argument.parse().ok());
    let (awake, cold) = if full { (300_000, 3_000) } else { (1_000, 20) };
    let shape = Shape::new(rounds.next().unwrap_or(awake), rounds.next().unwrap_or(cold));
    let report = match crossing::run(shape) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("crossing: {error}");
            return ExitCode::FAILURE;
        }
    };
    let pinned = if report.pinned { "pinned" } else { "not pinned" };
    println!("caller on CPU {}, shard on CPU {}, {pinned}", report.caller_cpu, report.shard_cpu);
    println!(
        "{:<42} {:>8} {:>9} {:>9} {:>9} {:>9}",
        "round trip, µs", "samples", "p10", "p50", "p99", "p99.9"
    );
    row("awake: ring, bell, word", &report.awake);
    row("two words alone, answered by a store", &report.lines);
    row("shard asleep: ring, bell, epoll, word", &report.cold);
    row("plain thread asleep: eventfd, epoll, store", &report.plain);
    let ratio = |share| {
        let plain = report.plain.quantile(share).as_secs_f64();
        report.cold.quantile(share).as_secs_f64() / plain
    };
    println!("asleep against plain: p10 {:.2}, p50 {:.2}", ratio(0.1), ratio(0.5));
    println!("CPU of both threads for a crossing awake: {:.2} µs", micros(report.awake_cpu));
    println!("wake latency as an engine measures it: {:.1} µs", micros(report.wake_latency));
    println!("guard rings: {}", report.guard_rings);
    ExitCode::SUCCESS
}

fn row(name: &str, samples: &Samples) {
    let [p10, p50, p99, p999] =
        [0.1, 0.5, 0.99, 0.999].map(|share| micros(samples.quantile(share)));
    println!("{name:<42} {:>8} {p10:>9.2} {p50:>9.2} {p99:>9.2} {p999:>9.2}", samples.count());
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
