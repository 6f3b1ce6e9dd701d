//! Readiness and time for the tasks of the control plane: what a task may wait for.
//!
//! A task sees four things only: [`Reactor::spawn`], [`Reactor::now`] with the timers, and sockets
//! (`net.rs`). Another executor that offers the same can run the same tasks. The reactor never ticks:
//! with no timer set and no socket ready it sleeps in the kernel.
//!
//! One-shot readiness: each wait arms its socket anew, and an event wakes both directions of the
//! socket. A direction that was not ready arms again, so no wake-up is lost and none is left over.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use async_executor::{LocalExecutor, Task};
use futures_lite::future;
use polling::{Event, Events, Poller};

use super::executor::Guarded;
use super::sys::{Registered, Socket};

/// Direction of a wait on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

#[derive(Debug, Default)]
struct Waiters {
    read: Option<Waker>,
    write: Option<Waker>,
}

struct Inner {
    poller: Arc<Poller>,
    executor: LocalExecutor<'static>,
    now: Cell<Instant>,
    next_key: Cell<usize>,
    sockets: RefCell<HashMap<usize, Waiters>>,
    timers: RefCell<BTreeMap<(Instant, usize), Waker>>,
}

/// The reactor of the control thread. Clones are the same reactor; it never leaves its thread.
#[derive(Clone)]
pub(crate) struct Reactor(Rc<Inner>);

impl Reactor {
    /// On the thread that will run it.
    pub(super) fn new(poller: Arc<Poller>, now: Instant) -> Self {
        Self(Rc::new(Inner {
            poller,
            executor: LocalExecutor::new(),
            now: Cell::new(now),
            next_key: Cell::new(0),
            sockets: RefCell::default(),
            timers: RefCell::default(),
        }))
    }

    /// The time of this turn. At most one turn old.
    pub fn now(&self) -> Instant {
        self.0.now.get()
    }

    /// Starts a task. A panic in it ends this task alone. Dropping the handle cancels the task.
    pub fn spawn(
        &self,
        name: &'static str,
        future: impl Future<Output = ()> + 'static,
    ) -> Task<()> {
        self.0.executor.spawn(Guarded::new(name, future))
    }

    /// Completes at `at`, or at once when that is past.
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep { reactor: self.clone(), at, key: None }
    }

    /// Completes after `delay`.
    pub fn sleep(&self, delay: Duration) -> Sleep {
        self.sleep_until(later(self.now(), delay))
    }

    /// The outcome of `work`, or `None` once `deadline` passed: then `work` is dropped, wherever it
    /// was. Work that is ready wins over a deadline that passed in the same turn.
    pub async fn until<T>(&self, deadline: Instant, work: impl Future<Output = T>) -> Option<T> {
        let ended = async {
            self.sleep_until(deadline).await;
            None
        };
        future::or(async { Some(work.await) }, ended).await
    }

    /// Puts a socket under watch.
    pub(super) fn register<T: Socket>(&self, socket: T) -> io::Result<Registered<T>> {
        let key = self.fresh_key();
        let registered = Registered::new(&self.0.poller, socket, key)?;
        self.0.sockets.borrow_mut().insert(key, Waiters::default());
        Ok(registered)
    }

    /// Wakes the task of `cx` once the socket may be ready in `direction`.
    pub(super) fn wake_when_ready<T: Socket>(
        &self,
        socket: &Registered<T>,
        direction: Direction,
        cx: &Context<'_>,
    ) -> io::Result<()> {
        let mut sockets = self.0.sockets.borrow_mut();
        let waiters = sockets.entry(socket.key()).or_default();
        let slot = match direction {
            Direction::Read => &mut waiters.read,
            Direction::Write => &mut waiters.write,
        };
        *slot = Some(cx.waker().clone());
        socket.arm(waiters.read.is_some(), waiters.write.is_some())
    }

    /// Forgets who waits for the socket of `key`.
    pub(super) fn forget(&self, key: usize) {
        self.0.sockets.borrow_mut().remove(&key);
    }

    /// Runs tasks until none is ready or a bound is reached. `run` is the executor's own endless
    /// future; its waker says when there is more.
    pub(super) fn endless_run(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let reactor = self.clone();
        Box::pin(async move { reactor.0.executor.run(future::pending::<()>()).await })
    }

    /// Takes the time of a turn and wakes every timer that is due.
    pub(super) fn advance(&self, now: Instant) {
        self.0.now.set(now);
        loop {
            // One at a time, because a waker may set or drop timers.
            let due = {
                let mut timers = self.0.timers.borrow_mut();
                match timers.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove(),
                    _ => break,
                }
            };
            due.wake();
        }
    }

    /// The next timer.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.0.timers.borrow().first_key_value().map(|((at, _), _)| *at)
    }

    /// Sleeps until a socket is ready, someone notifies the poller, or `limit` is over. Wakes whom it
    /// concerns.
    pub(super) fn wait(&self, events: &mut Events, limit: Option<Duration>) -> io::Result<()> {
        events.clear();
        match self.0.poller.wait(events, limit) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        for Event { key, .. } in events.iter() {
            let waiters = self.0.sockets.borrow_mut().get_mut(&key).map(std::mem::take);
            if let Some(Waiters { read, write }) = waiters {
                read.into_iter().chain(write).for_each(Waker::wake);
            }
        }
        Ok(())
    }

    fn fresh_key(&self) -> usize {
        let key = self.0.next_key.get();
        // The poller keeps the largest key for itself; 2^64 keys are never used up.
        self.0.next_key.set(key.wrapping_add(1));
        key
    }
}

/// `at + delay`, or a day that never comes where the sum does not fit.
pub(super) fn later(at: Instant, delay: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    at.checked_add(delay.min(FAR)).unwrap_or(at)
}

/// Future of [`Reactor::sleep_until`]. Dropping it takes the timer back.
pub(crate) struct Sleep {
    reactor: Reactor,
    at: Instant,
    key: Option<usize>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.reactor.now() >= self.at {
            return Poll::Ready(());
        }
        let key = self.key.unwrap_or_else(|| self.reactor.fresh_key());
        self.key = Some(key);
        let timer = (self.at, key);
        self.reactor.0.timers.borrow_mut().insert(timer, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.reactor.0.timers.borrow_mut().remove(&(self.at, key));
        }
    }
}
