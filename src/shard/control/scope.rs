//! The tasks of one engine, so that they end with it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use async_executor::Task;

use super::reactor::Reactor;

/// Number of a task in its scope, rising with each start.
pub(super) type TaskId = u64;

/// A set of tasks. A task leaves it when it ends.
pub(super) struct Scope {
    reactor: Reactor,
    tasks: RefCell<BTreeMap<TaskId, Task<()>>>,
    next: Cell<TaskId>,
    ended: Cell<bool>,
}

impl Scope {
    pub fn new(reactor: Reactor) -> Rc<Self> {
        let (tasks, next, ended) = (RefCell::default(), Cell::new(0), Cell::new(false));
        Rc::new(Self { reactor, tasks, next, ended })
    }

    /// Starts a task that `make` builds for its number. Once the scope has ended the task is dropped
    /// instead.
    pub fn spawn<F: Future<Output = ()> + 'static>(
        self: &Rc<Self>,
        name: &'static str,
        make: impl FnOnce(TaskId) -> F,
    ) -> TaskId {
        let id = self.next.get();
        self.next.set(id + 1);
        let future = make(id);
        if self.ended.get() {
            return id;
        }
        let leave = Leave { scope: Rc::downgrade(self), id };
        let task = self.reactor.spawn(name, async move {
            let _leave = leave;
            future.await;
        });
        self.tasks.borrow_mut().insert(id, task);
        id
    }

    /// Ends a task wherever it waits, in this turn or the next. Without effect on one that has ended.
    pub fn cancel(&self, id: TaskId) {
        let task = self.tasks.borrow_mut().remove(&id);
        drop(task);
    }

    /// Ends a task and completes once everything that it held is dropped.
    pub async fn cancel_and_wait(&self, id: TaskId) {
        let task = self.tasks.borrow_mut().remove(&id);
        if let Some(task) = task {
            task.cancel().await;
        }
    }

    /// Starts no further task, ends all, and completes once everything that they held is dropped. Not
    /// for a task of this scope.
    pub async fn end(&self) {
        self.ended.set(true);
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for (_, task) in tasks {
            task.cancel().await;
        }
    }
}

/// Takes a task out of its scope when it is dropped, at the task's end.
struct Leave {
    scope: Weak<Scope>,
    id: TaskId,
}

impl Drop for Leave {
    fn drop(&mut self) {
        if let Some(scope) = self.scope.upgrade() {
            let own = scope.tasks.borrow_mut().remove(&self.id);
            if let Some(own) = own {
                own.detach();
            }
        }
    }
}

/// Something that one task waits for and others say. Told while nobody waits, it is kept.
#[derive(Debug, Default)]
pub(super) struct Flag {
    raised: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl Flag {
    /// Wakes the task that waits, or lets the next wait end at once.
    pub fn raise(&self) {
        self.raised.set(true);
        let waiter = self.waiter.borrow_mut().take();
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// Completes once the flag is raised, and lowers it. One waiter at a time.
    pub async fn raised(&self) {
        poll_fn(|cx| {
            if self.raised.take() {
                return Poll::Ready(());
            }
            *self.waiter.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
