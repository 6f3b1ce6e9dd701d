//! The control plane: listening, handshakes, descriptions and liveness, for every engine of the
//! process on one thread. It never moves payload: a proven data socket goes to its shard before its
//! first frame. Nothing here blocks: what could (opening files, dropping owners) has other threads.
//!
//! | file | decides |
//! |---|---|
//! | `executor`, `reactor`, `net`, `sys` | the thread, its time, its sockets |
//! | `engine`, `scope` | one engine: its tables, its tasks, its end |
//! | `listener`, `admission`, `source` | who may come in |
//! | `serve` | what a proven peer is told |
//! | `dial`, `cooldown` | how a peer is reached, and how often |
//! | `client`, `describe` | what a peer is asked |
//!
//! Invariants: an engine's task ends with its engine, and with it the descriptors that it holds; a
//! caller's question has exactly one answer and no life past its deadline; the state of one engine is
//! touched by the control thread alone.

mod admission;
mod client;
mod cooldown;
mod describe;
mod dial;
mod engine;
mod executor;
mod frames;
mod listener;
mod net;
mod plan;
mod reactor;
mod scope;
mod serve;
mod source;
mod sys;
#[cfg(test)]
pub(super) mod tests;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::shard::peer::{LaneClass, Peer};
use crate::types::{Endpoint, ShardIndex, SourceEpoch};

pub(crate) use admission::Permit;
pub(crate) use client::Opened;
pub(crate) use plan::{
    Catalog, ControlCounters, ControlPlan, Discovery, InboundLimits, Keys, ShardInbox, TcpOptions,
    Timeouts,
};

use client::Ask;
use engine::Core;
use executor::ControlThread;
use reactor::later;

/// A caller waits so much longer than its own deadline for the thread's more exact word about it.
const GRACE: Duration = Duration::from_millis(100);

/// Bound of what the thread does at once: taking over a listener.
const PROMPT: Duration = Duration::from_secs(10);

static NEXT_ENGINE: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Engines of this process, on the control thread. Empty on every other thread.
    static ENGINES: RefCell<HashMap<u64, Rc<Core>>> = RefCell::default();
}

/// The control plane of one engine, for any thread. Clones are the same one. When the last clone is
/// dropped, the engine's side here ends in the background, as [`close`](Self::close) ends it.
#[derive(Clone)]
pub(crate) struct Control(Arc<Handle>);

struct Handle {
    thread: Arc<ControlThread>,
    engine: u64,
    /// Set before the end begins: an answer that got lost afterwards was lost to the end.
    closing: AtomicBool,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("engine", &self.0.engine).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // In a forked child nobody would take the job.
        if self.thread.is_here() {
            let engine = self.engine;
            self.thread.submit(move |_| end_engine(engine, None));
        }
    }
}

impl Control {
    /// Binds, starts to listen and gives the real address of the listener. The first call of a process
    /// also starts its control thread.
    ///
    /// Fails when no port can be bound, and when the system gives no thread, descriptor or memory;
    /// nothing is left behind then.
    pub fn start(plan: ControlPlan) -> Result<(Self, SocketAddr), Error> {
        if plan.shards.is_empty() {
            return Err(Error::Internal("a control plane needs a shard".into()));
        }
        let (listener, address) = listener::bind(plan.bind, plan.port_span)?;
        let thread = ControlThread::current()?;
        let engine = NEXT_ENGINE.fetch_add(1, Ordering::Relaxed);
        let closing = AtomicBool::new(false);
        let handle = Handle { thread: Arc::clone(&thread), engine, closing };
        let (reply, answer) = sync_channel(1);
        thread.submit(move |reactor| {
            let started = Core::start(reactor, plan, listener).map(|core| {
                ENGINES.with_borrow_mut(|engines| engines.insert(engine, core));
            });
            let _gone = reply.try_send(started);
        });
        match answer.recv_timeout(PROMPT) {
            Ok(Ok(())) => Ok((Self(Arc::new(handle)), address)),
            Ok(Err(error)) => {
                Err(Error::io(format!("watch the listener on {address}"), "epoll_ctl", &error))
            }
            Err(_) => Err(thread_is_stuck("starting the listener", PROMPT)),
        }
    }

    /// Connects to the peer, proves and lets prove, and reads its whole catalog. The control connection
    /// stays for later questions, and from now on tells `peer` when the identity ends: it leaves `Live`,
    /// and every shard gets `PeerLeft`. Waits for a peer that does not listen yet, up to `timeout`; every
    /// other refusal ends it at once.
    ///
    /// Nothing is kept of a peer that could not be opened once [`leave`](Self::leave) was called for it.
    pub fn open(&self, peer: &Arc<Peer>, timeout: Duration) -> Result<Opened, Error> {
        peer.check_live()?;
        let what = || format!("opening {}", peer.endpoint_text);
        let peer = Arc::clone(peer);
        self.call(what, timeout, move |core, asked, deadline, reply| {
            let ask = Ask::Describe { patient: true, reply };
            core.ask(peer.endpoint, peer.epoch, engine::question(ask, asked, deadline));
            core.watch(&peer);
        })
    }

    /// Reads the catalog of an opened peer again, over its control connection or a new one. Fails with
    /// `PeerClosed` or `StaleEpoch` for an identity that ended, and at once while the peer is known to
    /// be unreachable.
    pub fn refresh(&self, peer: &Arc<Peer>, timeout: Duration) -> Result<Opened, Error> {
        peer.check_live()?;
        let what = || format!("refreshing {}", peer.endpoint_text);
        let peer = Arc::clone(peer);
        self.call(what, timeout, move |core, asked, deadline, reply| {
            let ask = Ask::Describe { patient: false, reply };
            core.ask(peer.endpoint, peer.epoch, engine::question(ask, asked, deadline));
            core.watch(&peer);
        })
    }

    /// Time of one trip over the peer's control connection.
    pub fn ping(&self, peer: &Arc<Peer>, timeout: Duration) -> Result<Duration, Error> {
        peer.check_live()?;
        let what = || format!("pinging {}", peer.endpoint_text);
        let peer = Arc::clone(peer);
        self.call(what, timeout, move |core, asked, deadline, reply| {
            core.ask(
                peer.endpoint,
                peer.epoch,
                engine::question(Ask::Ping { reply }, asked, deadline),
            );
            core.watch(&peer);
        })
    }

    /// Asks the engine at `endpoint` for its epoch. A convenience: whoever answers there is believed.
    /// Fails with the name of the peer's key `security.discovery` when it does not tell.
    pub fn discover(&self, endpoint: Endpoint, timeout: Duration) -> Result<SourceEpoch, Error> {
        let what = || format!("discovering {endpoint}");
        self.call(what, timeout, move |core, _asked, deadline, reply| {
            let this = Rc::clone(core);
            let _task = core.spawn("discover", |_| async move {
                let outcome = this.reactor.until(deadline, dial::discover(&this, endpoint)).await;
                if let Some(outcome) = outcome {
                    let _gone = reply.try_send(outcome.map_err(|failed| failed.error));
                }
            });
        })
    }

    /// Tells `peer` when its identity ends, without a question.
    #[cfg(test)]
    pub fn watch(&self, peer: &Arc<Peer>) {
        let peer = Arc::clone(peer);
        self.submit(move |core| core.watch(&peer));
    }

    /// Dials a lane for `shard` and returns at once. The shard gets `LaneUp` or `LaneDown`, exactly one
    /// for each call unless the engine ends first. While a peer is failing the answer is the last cause,
    /// without a dial. For a peer whose place another engine took, the identity ends as well.
    pub fn dial_data(&self, peer: Arc<Peer>, shard: ShardIndex, class: LaneClass) {
        self.submit(move |core| core.dial_data(peer, shard, class));
    }

    /// Ends an identity that nobody uses any more, in the background: it leaves `Live`, every shard gets
    /// `PeerLeft`, and its control connection is closed. A connection that serves the same peer under a
    /// newer identity stays. In a forked child nothing happens.
    pub fn leave(&self, peer: &Arc<Peer>) {
        if self.0.thread.is_here() {
            let peer = Arc::clone(peer);
            self.submit(move |core| core.leave_peer(&peer));
        }
    }

    /// Hints to connected peers that the catalog changed. Cheap; hints are at least 10 ms apart.
    pub fn catalog_changed(&self) {
        self.submit(Core::catalog_changed);
    }

    /// Stops listening, tells every peer that this engine goes, and ends all connections and tasks of
    /// the engine here. After `Ok` no descriptor of it is open on this thread, and its port is free.
    /// Later calls answer `Ok` at once; every other call answers `Closed`.
    ///
    /// Fails with `Unquiesced` after `timeout`; the end goes on, and may be waited for again.
    pub fn close(&self, timeout: Duration) -> Result<(), Error> {
        self.is_here()?;
        self.0.closing.store(true, Ordering::Release);
        let (done, ended) = sync_channel(1);
        let engine = self.0.engine;
        self.0.thread.submit(move |_| end_engine(engine, Some(done)));
        match ended.recv_timeout(timeout) {
            // Disconnected: it had ended before.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                Err(Error::Unquiesced { what: "the control plane's tasks".into(), outstanding: 1 })
            }
        }
    }

    fn is_here(&self) -> Result<(), Error> {
        if self.0.thread.is_here() {
            Ok(())
        } else {
            Err(Error::Unavailable("the engine belongs to another process".into()))
        }
    }

    /// Runs `work` with the engine on the control thread. Once the engine has ended it is dropped.
    fn submit(&self, work: impl FnOnce(&Rc<Core>) + Send + 'static) {
        let engine = self.0.engine;
        self.0.thread.submit(move |_| {
            let core = ENGINES.with_borrow(|engines| engines.get(&engine).cloned());
            if let Some(core) = core {
                work(&core);
            }
        });
    }

    /// Starts something on the control thread and waits for its answer.
    fn call<T: Send + 'static>(
        &self,
        what: impl Fn() -> String,
        timeout: Duration,
        start: impl FnOnce(&Rc<Core>, Instant, Instant, SyncSender<Result<T, Error>>) + Send + 'static,
    ) -> Result<T, Error> {
        self.is_here()?;
        let (reply, answer) = sync_channel(1);
        let asked = clock();
        let deadline = later(asked, timeout);
        self.submit(move |core| start(core, asked, deadline, reply));
        match answer.recv_timeout(timeout.saturating_add(GRACE)) {
            Ok(outcome) => outcome,
            // The place of the answer is gone with its task: that of an engine that ends, or a panic.
            Err(RecvTimeoutError::Disconnected) if clock() < deadline => {
                if self.0.closing.load(Ordering::Acquire) {
                    return Err(Error::Closed);
                }
                let what = what();
                Err(Error::Internal(format!("{what}: a task of the control plane panicked")))
            }
            Err(_) => Err(Error::Timeout { what: what(), after_us: timeout.as_micros() as u64 }),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock at the entry of a caller's bounded wait")]
fn clock() -> Instant {
    Instant::now()
}

/// On the control thread: starts the end of an engine, or waits for one that has begun.
fn end_engine(engine: u64, done: Option<SyncSender<()>>) {
    let core = ENGINES.with_borrow(|engines| engines.get(&engine).cloned());
    let Some(core) = core.filter(|core| core.begin_end(done)) else { return };
    let reactor = core.reactor.clone();
    let end = reactor.spawn("end of an engine", async move {
        let waiting = core.end().await;
        ENGINES.with_borrow_mut(|engines| engines.remove(&engine));
        // What the engine gave is released before anybody is told, so that the caller's own reference
        // is the last one and owners of memory are not dropped on this thread.
        drop(core);
        for done in waiting {
            let _gone = done.try_send(());
        }
    });
    end.detach();
}

fn thread_is_stuck(what: &str, after: Duration) -> Error {
    Error::Timeout {
        what: format!("{what}: the control thread does not turn"),
        after_us: after.as_micros() as u64,
    }
}
