//! What the way of a transfer may not do: allocate or lock. One test runs engines under a counting
//! allocator, so this suite has no second one that does.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "hotpath/sys.rs"]
mod sys;

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use common::{Pair, SOON, engine_threads, engine_with, pause};
use orbite::{Permission, RegisteredMemory, TransferOp, TransferRequest, Transport};

#[global_allocator]
static COUNTING: sys::Counting = sys::Counting;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes of each registration.
const SIZE: u64 = 8 * MIB;

/// Prepared calls of one caller.
struct Calls<'a> {
    pair: &'a Pair,
    single: [TransferRequest; 1],
    scattered: Vec<TransferRequest>,
    large: [TransferRequest; 1],
}

/// How many calls of each kind.
#[derive(Clone, Copy)]
struct Mix {
    singles: u64,
    scatters: u64,
    large: u64,
}

impl Mix {
    const SCATTER: u64 = 64;

    const fn requests(self) -> u64 {
        self.singles + self.scatters * Self::SCATTER + self.large
    }
}

impl<'a> Calls<'a> {
    fn new(pair: &'a Pair, local: &RegisteredMemory) -> Self {
        let (from, to) = (local.address(), pair.remote.address());
        let request =
            |at: u64, length| TransferRequest::new(Transport::Tcp, from + at, to + at, length);
        // Every second block, so that nothing is contiguous.
        let scattered = (0..Mix::SCATTER).map(|at| request(at * 8 * KIB, 4 * KIB)).collect();
        let (single, large) = ([request(MIB, 4 * KIB)], [request(2 * MIB, MIB)]);
        Self { pair, single, scattered, large }
    }

    /// One call that must complete; its allocations count.
    fn call(&self, round: u64, requests: &[TransferRequest]) {
        let op = if round % 2 == 0 { TransferOp::Read } else { TransferOp::Write };
        let target = self.pair.target();
        let engine = &self.pair.requester;
        let report = sys::in_call(|| engine.submit_and_wait(op, &target, requests, SOON)).unwrap();
        assert!(report.is_complete(), "{:?}", report.failure);
    }

    fn run(&self, mix: Mix) {
        let most = mix.singles.max(mix.scatters).max(mix.large);
        for round in 0..most {
            // Each kind is spread over the whole run; one that is due twice in a round comes once.
            let due = |count: u64| (round + 1) * count / most > round * count / most;
            for (count, requests) in [
                (mix.singles, &self.single[..]),
                (mix.scatters, &self.scattered),
                (mix.large, &self.large),
            ] {
                if due(count) {
                    self.call(round + count, requests);
                }
            }
            if round % 4096 == 4095 {
                // Long enough that shards and callers park, and wake again.
                pause(Duration::from_millis(20));
            }
        }
    }
}

/// CORE-156: between ingest and publish nothing is allocated, on the shards of both sides, nor by the
/// caller within its call: once it is warm, over 100 000 requests and more of three sizes, both ways,
/// from three threads, with sleep in between; with checksums, and over the queue for callers without a
/// ring as well. `ORBITE_LONG=1` makes it a million.
#[test]
fn core_156_nothing_is_allocated_between_ingest_and_publish() {
    the_count_sees_what_it_should();
    let long = std::env::var_os("ORBITE_LONG").is_some_and(|value| value == "1");
    let times = if long { 10 } else { 1 };
    let crc = |config: &mut orbite::EngineConfig| config.tcp_options.payload_crc = true;
    let one_ring = |config: &mut orbite::EngineConfig| config.shards.max_caller_lanes = 1;
    let mut requests = 0;
    requests += steady("one caller", 1, times, |_| {});
    requests += steady("three callers", 3, times, |_| {});
    requests += steady("checksums", 1, 1, crc);
    requests += steady("two of three without a ring", 3, 1, one_ring);
    let wanted = if long { 1_000_000 } else { 100_000 };
    assert!(requests >= wanted, "{requests} requests");
    println!("{requests} requests, no allocation");
}

/// The count itself is looked at first: a caller's allocation is seen within a call only.
fn the_count_sees_what_it_should() {
    sys::forget(false);
    sys::arm(true);
    std::thread::scope(|scope| {
        let name = |name: &str| std::thread::Builder::new().name(name.into());
        let shard = name("orbite-abcdef-0").spawn_scoped(scope, || drop(black_box(vec![1_u8; 99])));
        shard.unwrap().join().unwrap();
        let other = name("orbite-control").spawn_scoped(scope, || drop(black_box(vec![1_u8; 99])));
        other.unwrap().join().unwrap();
        let caller = || {
            sys::be_caller();
            drop(black_box(vec![1_u8; 99]));
            sys::in_call(|| drop(black_box(vec![1_u8; 99])));
        };
        scope.spawn(caller).join().unwrap();
    });
    sys::arm(false);
    let (shards, callers) = sys::counted();
    assert!(shards >= 1 && callers == 1, "{shards} and {callers}");
}

/// Warms up, then runs under the count. Says how many requests were counted.
fn steady(what: &str, callers: u64, times: u64, change: impl Fn(&mut orbite::EngineConfig)) -> u64 {
    let (source, requester) = (engine_with(&change), engine_with(&change));
    let pair = Pair::of(source, requester, SIZE as usize, Permission::RemoteReadWrite);
    let warm = Mix { singles: 2000, scatters: 500, large: 40 };
    let mix = Mix { singles: 4000 * times, scatters: 500 * times, large: 40 * times };
    crowd(&pair, 2 * callers + 2);
    let barrier = Barrier::new(callers as usize + 1);
    std::thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| {
                let memory = vec![0; SIZE as usize];
                let local = pair.requester.register_memory(memory, Permission::Local).unwrap();
                let calls = Calls::new(&pair, &local);
                sys::be_caller();
                calls.run(warm);
                barrier.wait();
                barrier.wait();
                calls.run(mix);
                barrier.wait();
                barrier.wait();
            });
        }
        barrier.wait();
        sys::forget(true);
        let before = switches(&pair);
        sys::arm(true);
        barrier.wait();
        barrier.wait();
        sys::arm(false);
        let after = switches(&pair);
        barrier.wait();
        println!("{what}: voluntary switches of the shards before and after: {before:?} {after:?}");
    });
    let (shards, within) = sys::counted();
    assert_eq!((shards, within), (0, 0), "allocations on shards and callers, {what}");
    callers * mix.requests()
}

/// More callers than the count will see, with longer frames: what a lane keeps for its next frames
/// grows with the number that are under way at a time, up to its window.
fn crowd(pair: &Pair, callers: u64) {
    let mix = Mix { singles: 0, scatters: 400, large: 1 };
    std::thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| {
                let calls = Calls::new(pair, &pair.local);
                calls.run(mix);
                // Together more than one window of the lane for bulk.
                let many = vec![calls.large[0].clone(); 32];
                (0..2).for_each(|round| calls.call(round, &many));
            });
        }
    });
}

/// Voluntary switches of the shards' threads so far: what a lock that is waited for would add to.
fn switches(pair: &Pair) -> Vec<u64> {
    let threads = [&pair.source, &pair.requester].into_iter().flat_map(engine_threads);
    let count = |task: PathBuf| {
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    };
    threads.map(count).collect()
}

/// Where a request passes from admission to its report.
const HOT: &[&str] = &[
    "src/api/request.rs",
    "src/metrics",
    "src/shard/clock.rs",
    "src/shard/driver",
    "src/shard/links.rs",
    "src/shard/mailbox",
    "src/shard/memory/gate.rs",
    "src/shard/memory/record.rs",
    "src/shard/memory/table.rs",
    "src/shard/memory/view.rs",
    "src/shard/peer.rs",
    "src/shard/peers.rs",
    "src/shard/port",
    "src/shard/wait.rs",
    "src/shard/work.rs",
    "src/transfer",
    "src/transport",
];

/// Words of what may block one thread for another.
const BLOCKING: &[&str] =
    &["Mutex", "RwLock", "Condvar", "mpsc", "Barrier", "OnceLock", "LazyLock", ".lock(", "park("];

/// CORE-156: no lock, condition or channel is named in the code that a request passes through.
#[test]
fn core_156_no_lock_is_named_on_the_way_of_a_request() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for place in HOT {
        collect(&root.join(place), &mut files);
    }
    assert!(files.len() > 25, "only {} files; were rooms moved?", files.len());
    for must in ["driver", "port", "mailbox", "tcp", "ledger", "counters", "view", "wait"] {
        let found = files.iter().any(|file| file.to_str().unwrap().contains(must));
        assert!(found, "no file of {must} was looked at");
    }
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let named =
            blocking(&text).map(|(line, word)| format!("{}:{line}: {word}", file.display()));
        found.extend(named);
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_look_for_locks_finds_them_in_code_only() {
    let text = "//! A Mutex.\nuse std::sync::Mutex;\nlet x = y.lock();\n    // Condvar\n\
                #[cfg(test)]\nmod tests { use RwLock; }\n";
    assert_eq!(blocking(text).collect::<Vec<_>>(), [(2, "Mutex"), (3, ".lock(")]);
    assert_eq!(blocking("self.gate.park();\nstd::thread::park();").count(), 1);
}

/// Lines outside of comments and of the tests at the end that name what may block.
fn blocking(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let code = text
        .lines()
        .enumerate()
        .take_while(|(_, line)| {
            !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(")
        })
        .filter(|(_, line)| !line.trim_start().starts_with("//"));
    code.filter_map(|(at, line)| {
        // Parking of our own is the bell's and the word's; that of std has a lock inside on old kernels.
        let names = |word: &&&str| match **word {
            "park(" => line.contains("thread::park("),
            word => line.contains(word),
        };
        BLOCKING.iter().find(names).map(|word| (at + 1, *word))
    })
}

/// The Rust files of a place that are no tests.
fn collect(place: &Path, into: &mut Vec<PathBuf>) {
    if place.is_dir() {
        for entry in fs::read_dir(place).unwrap() {
            collect(&entry.unwrap().path(), into);
        }
    } else if place.extension().is_some_and(|ending| ending == "rs")
        && !place.ends_with("tests.rs")
        && !place.components().any(|part| part.as_os_str() == "tests")
    {
        into.push(place.to_owned());
    }
}
