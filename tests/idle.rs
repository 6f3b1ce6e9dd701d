//! What an engine costs that has nothing to do. A suite of its own: its threads are measured, so no
//! other test may run beside it.

mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::{Pair, cpu_time, engine, engine_threads, pause, threads};
use orbite::{Permission, TransferOp};

/// How long an engine is watched.
const WATCHED: Duration = Duration::from_secs(3);
/// 0.5 % of that.
const ALLOWED: Duration = Duration::from_millis(15);

/// CORE-162: an engine that was used, and two that are connected by idle lanes of both kinds, cost less
/// than 0.5 % of a core for each shard and for the control thread, from a second after the last byte.
#[test]
fn core_162_an_idle_engine_sleeps() {
    let alone = engine();
    let size = 8 << 20;
    let pair = Pair::new(size, Permission::RemoteReadWrite);
    for _ in 0..200 {
        pair.complete(TransferOp::Read, &[pair.request(0, 0, 4096)]);
        pair.complete(TransferOp::Write, &[pair.request(0, 0, 4096)]);
    }
    pair.complete(TransferOp::Write, &[pair.request(0, 0, size as u64)]);
    let engines = [&alone, &pair.source, &pair.requester];
    let turns = || engines.map(|engine| engine.stats().shards[0].turns);
    pause(Duration::from_secs(1));

    let mut watched: Vec<PathBuf> = engines.into_iter().flat_map(engine_threads).collect();
    let shards = watched.len();
    let all: u16 = engines.iter().map(|engine| engine.config().shards.count).sum();
    assert_eq!(shards, usize::from(all), "every shard's thread is found by its name");
    let besides = |(_, name): &(PathBuf, String)| {
        ["orbite-control", "orbite-reaper"].contains(&name.as_str())
    };
    let ours = threads(std::process::id()).into_iter().filter(besides);
    watched.extend(ours.map(|(task, _)| task));
    assert!(watched.len() > shards, "the control thread is found");

    let (before, turned) = (watched.iter().map(|task| cpu_time(task)).collect::<Vec<_>>(), turns());
    pause(WATCHED);
    for (task, before) in watched.iter().zip(before) {
        let used = cpu_time(task).unwrap().checked_sub(before.unwrap()).unwrap();
        let name = std::fs::read_to_string(task.join("comm")).unwrap();
        println!("{}: {used:?} in {WATCHED:?}", name.trim_end());
        assert!(used < ALLOWED, "{} used {used:?} of {WATCHED:?}", name.trim_end());
    }
    for (before, after) in turned.into_iter().zip(turns()) {
        // No timer faster than 50 ms.
        assert!(after - before <= 100, "{} turns in {WATCHED:?}", after - before);
    }
    pair.complete(TransferOp::Read, &[pair.request(0, 0, size as u64)]);
}
