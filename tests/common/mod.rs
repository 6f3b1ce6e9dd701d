//! What the integration suites share.
#![expect(dead_code, reason = "each suite is a crate of its own and uses its part")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod child;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use orbite::{
    BatchReport, EngineConfig, Permission, RegisteredMemory, RemoteSegment, Result, TransferEngine,
    TransferOp, TransferRequest, TransferTarget, Transport,
};

pub const SOON: Duration = Duration::from_secs(20);

/// An engine with default configuration.
pub fn engine() -> TransferEngine {
    TransferEngine::new(EngineConfig::default()).unwrap()
}

/// An engine whose configuration was changed a little.
pub fn engine_with(change: impl FnOnce(&mut EngineConfig)) -> TransferEngine {
    let mut config = EngineConfig::default();
    change(&mut config);
    TransferEngine::new(config).unwrap()
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let word = |at: u64| {
        let mixed = (at ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()
    };
    let mut bytes = Vec::with_capacity(length + 8);
    (0..length.div_ceil(8) as u64).for_each(|at| bytes.extend_from_slice(&word(at)));
    bytes.truncate(length);
    bytes
}

/// All bytes of a registration.
pub fn bytes(memory: &RegisteredMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.length() as usize];
    memory.read_at(0, &mut bytes).unwrap();
    bytes
}

/// A source with one region, a requester with local memory, and the open segment.
pub struct Pair {
    pub source: TransferEngine,
    pub requester: TransferEngine,
    pub remote: RegisteredMemory,
    pub local: RegisteredMemory,
    pub segment: RemoteSegment,
}

impl Pair {
    pub fn new(length: usize, permission: Permission) -> Self {
        Self::of(engine(), engine(), length, permission)
    }

    pub fn of(
        source: TransferEngine,
        requester: TransferEngine,
        length: usize,
        permission: Permission,
    ) -> Self {
        let remote = source.register_memory(pattern(1, length), permission).unwrap();
        let local = requester.register_memory(pattern(2, length), Permission::Local).unwrap();
        let segment =
            requester.open_segment(source.endpoint(), source.source_epoch(), SOON).unwrap();
        Self { source, requester, remote, local, segment }
    }

    pub fn target(&self) -> TransferTarget {
        TransferTarget::from(&self.segment)
    }

    /// A request between offsets of the two registrations.
    pub fn request(&self, local: u64, remote: u64, length: u64) -> TransferRequest {
        let (local, remote) = (self.local.address() + local, self.remote.address() + remote);
        TransferRequest::new(Transport::Unspec, local, remote, length)
    }

    pub fn run(&self, op: TransferOp, requests: &[TransferRequest]) -> Result<BatchReport> {
        self.requester.submit_and_wait(op, &self.target(), requests, SOON)
    }

    /// Runs requests that must all complete.
    pub fn complete(&self, op: TransferOp, requests: &[TransferRequest]) -> BatchReport {
        let report = self.run(op, requests).unwrap();
        assert!(report.is_complete(), "{:?}", report.failure);
        assert_eq!(report.completed_requests, requests.len());
        assert!(report.locally_drained);
        report
    }
}

/// Waits. What is waited for has no event of its own.
#[expect(clippy::disallowed_methods, reason = "a test that waits for others")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Now, for a bound in seconds.
#[expect(clippy::disallowed_methods, reason = "a test measures how long something took")]
pub fn now() -> Instant {
    Instant::now()
}

/// Waits until it holds; `SOON` is too long.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = now();
    while !holds() {
        assert!(start.elapsed() < SOON, "not within {SOON:?}: {what}");
        pause(Duration::from_millis(5));
    }
}

/// The threads of a process, as their folders below `/proc`, with their names.
pub fn threads(process: u32) -> Vec<(PathBuf, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let named = |task: std::io::Result<std::fs::DirEntry>| {
        let task = task.ok()?.path();
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        Some((task, name.trim_end().to_owned()))
    };
    tasks.filter_map(named).collect()
}

/// The folders of an engine's shard threads in this process.
pub fn engine_threads(engine: &TransferEngine) -> Vec<PathBuf> {
    let id: String = engine.engine_id().to_string().chars().take(6).collect();
    let name = format!("orbite-{id}-");
    let all = threads(std::process::id()).into_iter();
    all.filter(|(_, found)| found.starts_with(&name)).map(|(task, _)| task).collect()
}

/// CPU time of one thread, by its folder. `None`: it is gone.
pub fn cpu_time(task: &Path) -> Option<Duration> {
    let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
    Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
}
