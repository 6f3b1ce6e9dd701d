//! An allocator that counts, and the name of the calling thread.
#![expect(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; a thread's name without an allocation is a system call"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a thread is to the count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    Shard,
    Caller,
    Other,
}

thread_local! {
    static KIND: Cell<Kind> = const { Cell::new(Kind::Unknown) };
    /// Only while this is set does a caller count.
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

static ARMED: AtomicBool = AtomicBool::new(false);
/// Traces that are still printed, for shards and for callers.
static TRACES: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static ON_SHARDS: AtomicU64 = AtomicU64::new(0);
static ON_CALLERS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator; counts what shards, and callers within a call, ask of it while it is armed.
pub struct Counting;

impl Counting {
    fn count(size: usize) {
        if !ARMED.load(Ordering::Relaxed) {
            return;
        }
        let kind = KIND.get();
        let kind = if kind == Kind::Unknown { classify() } else { kind };
        match kind {
            Kind::Shard => ON_SHARDS.fetch_add(1, Ordering::Relaxed),
            Kind::Caller if IN_CALL.get() => ON_CALLERS.fetch_add(1, Ordering::Relaxed),
            _ => return,
        };
        tell(size);
    }
}

/// By the thread's name. A shard's thread is `orbite-`, its engine and its number; the other threads
/// of the engine are none.
fn classify() -> Kind {
    let mut name = [0_u8; 16];
    // SAFETY: `PR_GET_NAME` writes at most 16 bytes, which `name` has.
    let result = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let others = [&b"orbite-control"[..], b"orbite-reaper", b"orbite-wake"];
    let shard = result == 0
        && name.starts_with(b"orbite-")
        && !others.iter().any(|other| name.starts_with(other));
    let kind = if shard { Kind::Shard } else { Kind::Other };
    KIND.set(kind);
    kind
}

/// Prints where an allocation was made: the first few of shards and of callers.
fn tell(size: usize) {
    let shard = KIND.get() == Kind::Shard;
    let left = &TRACES[usize::from(shard)];
    if left.load(Ordering::Relaxed) == 0 || left.fetch_sub(1, Ordering::Relaxed) == 0 {
        return;
    }
    // What the trace itself allocates is not counted.
    let kind = KIND.replace(Kind::Other);
    let trace = Backtrace::force_capture().to_string();
    let ours: Vec<&str> = trace.lines().filter(|line| line.contains("orbite::")).collect();
    let who = if shard { "a shard" } else { "a caller" };
    eprintln!("{who} allocated {size} bytes in\n{}", ours.join("\n"));
    KIND.set(kind);
}

// SAFETY: every method passes its arguments and its answer on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the caller keeps the trait's contract, which is the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(size);
        // SAFETY: as above; `start` came from the system's allocator.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above; `start` came from the system's allocator.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Starts or ends the count.
pub fn arm(on: bool) {
    ARMED.store(on, Ordering::SeqCst);
}

/// The calling thread is a caller of the engine.
pub fn be_caller() {
    KIND.set(Kind::Caller);
}

/// Runs a call whose allocations count.
pub fn in_call<T>(call: impl FnOnce() -> T) -> T {
    IN_CALL.set(true);
    let answer = call();
    IN_CALL.set(false);
    answer
}

/// Allocations on shard threads and on callers within a call, while armed.
pub fn counted() -> (u64, u64) {
    (ON_SHARDS.load(Ordering::SeqCst), ON_CALLERS.load(Ordering::SeqCst))
}

/// Forgets the count. `tells`: prints where the first few after this are made.
pub fn forget(tells: bool) {
    ON_SHARDS.store(0, Ordering::SeqCst);
    ON_CALLERS.store(0, Ordering::SeqCst);
    for left in &TRACES {
        left.store(u64::from(tells) * 4, Ordering::SeqCst);
    }
}
