//! The control thread: one for each process, made with its first engine and kept until the process
//! ends. It runs the tasks of every engine of the process.
//!
//! Invariants:
//! - A process that was forked makes its own thread: the slot names the process that filled it.
//! - No lock: the slot is published by a compare-and-swap, jobs come over a lock-free queue. So a
//!   fork at any moment leaves nothing locked for ever in the child.
//! - A job or task that panics ends alone.

use std::cell::Cell;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use crossbeam_queue::SegQueue;
use polling::{Events, Poller};

use crate::error::Error;

use super::reactor::Reactor;

/// Work for the control thread. It must not block: it starts tasks and looks at tables.
type Job = Box<dyn FnOnce(&Reactor) + Send>;

/// Wait after a failed wait of the poller, so that a broken one does not spin.
const BROKEN_POLLER_PAUSE: Duration = Duration::from_millis(50);

static CURRENT: ArcSwapOption<ControlThread> = ArcSwapOption::const_empty();

thread_local! {
    static ON_CONTROL_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// The control thread of one process, as other threads see it.
pub(crate) struct ControlThread {
    process: u32,
    poller: Arc<Poller>,
    jobs: SegQueue<Job>,
    /// There is something to run: do not sleep.
    awake: AtomicBool,
}

impl ControlThread {
    /// The thread of this process; the first call starts it. Fails when the system gives no
    /// descriptors or no thread.
    pub fn current() -> Result<Arc<Self>, Error> {
        let process = std::process::id();
        loop {
            let seen = CURRENT.load();
            if let Some(running) = seen.as_ref().filter(|thread| thread.process == process) {
                return Ok(Arc::clone(running));
            }
            let fresh = Arc::new(Self::prepare(process)?);
            let before = CURRENT.compare_and_swap(&seen, Some(Arc::clone(&fresh)));
            if same(before.as_ref(), seen.as_ref()) {
                // A forked child leaks what its parent had: its thread does not exist here.
                std::mem::forget(before.as_ref().map(Arc::clone));
                return match Self::start(&fresh) {
                    Ok(()) => Ok(fresh),
                    Err(error) => {
                        let _retracted = CURRENT.compare_and_swap(&fresh, None);
                        Err(error)
                    }
                };
            }
        }
    }

    fn prepare(process: u32) -> Result<Self, Error> {
        let poller = Poller::new().map_err(|error| {
            Error::io(
                "create the control plane's epoll set (3 descriptors)",
                "epoll_create1",
                &error,
            )
        })?;
        let (jobs, awake) = (SegQueue::new(), AtomicBool::new(false));
        Ok(Self { process, poller: Arc::new(poller), jobs, awake })
    }

    fn start(this: &Arc<Self>) -> Result<(), Error> {
        let thread = Arc::clone(this);
        thread::Builder::new()
            .name("orbite-control".into())
            .spawn(move || run(&thread))
            .map(drop)
            .map_err(|error| Error::io("start the control thread", "clone", &error))
    }

    /// Whether the caller is in the process that owns the thread. In a forked child it is not, and
    /// nothing that is submitted would ever run.
    pub fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Hands work to the thread and returns.
    pub fn submit(&self, job: impl FnOnce(&Reactor) + Send + 'static) {
        self.jobs.push(Box::new(job));
        self.wake_up();
    }

    fn wake_up(&self) {
        self.awake.store(true, Ordering::Release);
        if !ON_CONTROL_THREAD.get() {
            // The write to an eventfd fails only when its counter is full: then a wake-up stands.
            let _already_notified = self.poller.notify();
        }
    }
}

impl Wake for ControlThread {
    fn wake(self: Arc<Self>) {
        self.wake_up();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_up();
    }
}

fn same(a: Option<&Arc<ControlThread>>, b: Option<&Arc<ControlThread>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock of the control loop")]
fn clock() -> Instant {
    Instant::now()
}

/// The loop: timers, tasks, jobs, then sleep. It has no other end than that of the process.
fn run(thread: &Arc<ControlThread>) {
    ON_CONTROL_THREAD.set(true);
    let waker = Waker::from(Arc::clone(thread));
    let mut context = Context::from_waker(&waker);
    let reactor = Reactor::new(Arc::clone(&thread.poller), clock());
    let mut tasks = pin!(reactor.endless_run());
    let mut events = Events::new();
    loop {
        reactor.advance(clock());
        thread.awake.store(false, Ordering::Relaxed);
        while let Some(job) = thread.jobs.pop() {
            guard("job", || job(&reactor));
        }
        let _endless = tasks.as_mut().poll(&mut context);
        let limit = if thread.awake.load(Ordering::Acquire) {
            Some(Duration::ZERO)
        } else {
            reactor.next_timer().map(|at| at.saturating_duration_since(clock()))
        };
        if let Err(error) = reactor.wait(&mut events, limit) {
            tracing::error!(%error, "the control plane cannot wait for its sockets");
            pause();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the poller itself is broken; nothing else can pace")]
fn pause() {
    thread::sleep(BROKEN_POLLER_PAUSE);
}

/// Runs `work`; a panic ends here, is told, and gives `None`.
fn guard<T>(name: &'static str, work: impl FnOnce() -> T) -> Option<T> {
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => Some(value),
        Err(_payload) => {
            tracing::error!(task = name, "a task of the control plane panicked and was ended");
            None
        }
    }
}

/// A task whose panic ends itself alone. What it held is dropped by the unwinding.
pub(super) struct Guarded<F> {
    name: &'static str,
    future: Pin<Box<F>>,
}

impl<F: Future<Output = ()>> Guarded<F> {
    pub fn new(name: &'static str, future: F) -> Self {
        Self { name, future: Box::pin(future) }
    }
}

impl<F: Future<Output = ()>> Future for Guarded<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let name = self.name;
        guard(name, || self.future.as_mut().poll(cx)).unwrap_or(Poll::Ready(()))
    }
}
