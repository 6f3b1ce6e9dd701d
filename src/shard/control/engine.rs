//! One engine on the control thread: what its tasks share, and its end.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::protocol::handshake::source::SourceParams;
use crate::protocol::limits::Limits;
use crate::protocol::version::{self, Features};
use crate::shard::mailbox::message::{DataConnection, Message};
use crate::shard::peer::{LaneClass, Negotiated, Peer, PeerStatus};
use crate::types::{Endpoint, EngineId, ShardIndex, SourceEpoch};

use super::admission::Admission;
use super::client::{self, Ask, Client, Question};
use super::cooldown::{Cooldowns, Target};
use super::dial;
use super::listener;
use super::net::AsyncListener;
use super::plan::ControlPlan;
use super::reactor::{Reactor, later};
use super::scope::{Flag, Scope, TaskId};
use super::serve::Outbox;

/// How long the end of an engine waits for its last words to be sent.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A hint about a changed catalog is followed by the next one after so long at the earliest.
const HINT_PACE: Duration = Duration::from_millis(10);

/// Waits between attempts to put a message into a full queue of a shard.
const FIRST_KNOCK: Duration = Duration::from_millis(1);
const LONGEST_KNOCK: Duration = Duration::from_millis(50);

/// What all tasks of one engine share.
pub(super) struct Core {
    pub reactor: Reactor,
    pub plan: ControlPlan,
    pub source: SourceParams,
    pub admission: RefCell<Admission>,
    pub cooldowns: RefCell<Cooldowns>,
    scope: Rc<Scope>,
    listener: Cell<Option<TaskId>>,
    /// Handshakes that are not proven, oldest first.
    unproven: RefCell<BTreeSet<TaskId>>,
    /// Control connections that are served.
    served: RefCell<BTreeMap<TaskId, Rc<Outbox>>>,
    all_served: Flag,
    clients: RefCell<HashMap<Target, (Rc<Client>, TaskId)>>,
    next_connection: Cell<u64>,
    next_number: Cell<u64>,
    hint: Cell<Hint>,
    /// Those who wait for the end, once it has begun.
    ending: RefCell<Option<Vec<SyncSender<()>>>>,
}

/// State of the hints about a changed catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hint {
    /// The next change is told at once.
    Idle,
    /// One was told; the next waits for the pace.
    Paced,
    /// The same, and there is news.
    Pending,
}

impl Core {
    /// Starts serving `listener`. Fails when the socket cannot be watched.
    pub fn start(
        reactor: &Reactor,
        plan: ControlPlan,
        listener: TcpListener,
    ) -> io::Result<Rc<Self>> {
        let listener = AsyncListener::new(reactor, listener)?;
        let (limits, features) = offer(&plan.limits);
        let (psk, previous) = (plan.keys.psk.as_deref(), plan.keys.previous.as_deref());
        let build = version::build_id();
        let source = SourceParams::new(plan.epoch, psk, previous, build, features, limits);
        let seed = plan.id.to_bytes().first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes));
        let core = Rc::new(Self {
            admission: RefCell::new(Admission::new(plan.inbound)),
            cooldowns: RefCell::new(Cooldowns::new(plan.timeouts.reconnect_cooldown, seed)),
            scope: Scope::new(reactor.clone()),
            reactor: reactor.clone(),
            plan,
            source,
            listener: Cell::new(None),
            unproven: RefCell::default(),
            served: RefCell::default(),
            all_served: Flag::default(),
            clients: RefCell::default(),
            next_connection: Cell::new(1),
            next_number: Cell::new(1),
            hint: Cell::new(Hint::Idle),
            ending: RefCell::new(None),
        });
        let task = core.scope.spawn("listener", |_| listener::accept(Rc::clone(&core), listener));
        core.listener.set(Some(task));
        Ok(core)
    }

    /// Starts a task that ends with the engine.
    pub fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        name: &'static str,
        make: impl FnOnce(TaskId) -> F,
    ) -> TaskId {
        self.scope.spawn(name, make)
    }

    /// Number of the next connection, and the shard that serves it if it carries data.
    ///
    /// The shard is a multiplicative hash of the number, which spreads consecutive numbers evenly over
    /// any count of shards.
    pub fn next_connection(&self) -> (u64, ShardIndex) {
        let id = self.next_connection.get();
        self.next_connection.set(id + 1);
        let hash = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let shard = (u128::from(hash) * self.plan.shards.len() as u128) >> 64;
        (id, ShardIndex(shard as u16))
    }

    /// A number that this engine has not used before in a ping.
    pub fn fresh_number(&self) -> u64 {
        let number = self.next_number.get();
        self.next_number.set(number.wrapping_add(1));
        number
    }

    // Handshakes.

    /// Number of unproven connections.
    pub fn unproven(&self) -> usize {
        self.unproven.borrow().len()
    }

    /// Counts a handshake as unproven until the guard goes.
    pub fn enter_handshake(self: &Rc<Self>, task: TaskId) -> Unproven {
        self.unproven.borrow_mut().insert(task);
        Unproven { core: Rc::clone(self), task }
    }

    /// Closes the oldest unproven connection.
    pub fn displace(&self) {
        let oldest = self.unproven.borrow_mut().pop_first();
        if let Some(oldest) = oldest {
            self.scope.cancel(oldest);
        }
    }

    // Served control connections.

    /// Adds a control connection to those that are told of the end and of a changed catalog.
    pub fn enter_service(self: &Rc<Self>, task: TaskId) -> Served {
        let outbox = Rc::<Outbox>::default();
        self.served.borrow_mut().insert(task, Rc::clone(&outbox));
        if self.ending.borrow().is_some() {
            outbox.go_away();
        }
        Served { core: Rc::clone(self), task, outbox }
    }

    /// Hints to every peer that the catalog changed, at most once in 10 ms.
    pub fn catalog_changed(self: &Rc<Self>) {
        match self.hint.get() {
            Hint::Idle => {
                self.hint.set(Hint::Paced);
                self.tell_generation();
                let core = Rc::clone(self);
                self.spawn("catalog hint", |_| async move {
                    loop {
                        core.reactor.sleep(HINT_PACE).await;
                        if core.hint.replace(Hint::Paced) != Hint::Pending {
                            break core.hint.set(Hint::Idle);
                        }
                        core.tell_generation();
                    }
                });
            }
            Hint::Paced | Hint::Pending => self.hint.set(Hint::Pending),
        }
    }

    fn tell_generation(&self) {
        let served = self.served.borrow();
        if served.is_empty() {
            return;
        }
        let generation = self.plan.catalog.generation();
        served.values().for_each(|outbox| outbox.catalog_changed(generation.max(1)));
    }

    // Peers that are asked.

    /// Asks a peer; starts its task where there is none.
    pub fn ask(self: &Rc<Self>, endpoint: Endpoint, epoch: SourceEpoch, question: Question) {
        let target = (endpoint, EngineId::of(&epoch));
        let known = self.clients.borrow().get(&target).map(|(client, _)| Rc::clone(client));
        if let Some(client) = known {
            client.ask(question);
            return;
        }
        let client = Client::new(endpoint, epoch);
        client.ask(question);
        let run = client::run(Rc::clone(self), Rc::clone(&client));
        let task = self.spawn("peer", |_| run);
        self.clients.borrow_mut().insert(target, (client, task));
    }

    /// Makes the identity's own connection tell `peer` of its end.
    pub fn watch(&self, peer: &Arc<Peer>) {
        if let Some((client, _)) = self.clients.borrow().get(&(peer.endpoint, peer.engine)) {
            client.watch(peer);
        }
    }

    /// Takes out a client whose task ends, unless another one has its place.
    pub fn leave(&self, client: &Rc<Client>) {
        let target = (client.endpoint, client.engine);
        let mut clients = self.clients.borrow_mut();
        if clients.get(&target).is_some_and(|(known, _)| Rc::ptr_eq(known, client)) {
            clients.remove(&target);
        }
    }

    /// Ends an identity that nobody uses any more, with its control connection, unless that tells
    /// another identity: the same peer was opened anew before this came.
    pub fn leave_peer(self: &Rc<Self>, peer: &Arc<Peer>) {
        self.peer_left(peer, PeerStatus::Closed);
        let target = (peer.endpoint, peer.engine);
        let mut clients = self.clients.borrow_mut();
        if clients.get(&target).is_some_and(|(client, _)| client.tells_another(peer)) {
            return;
        }
        let known = clients.remove(&target);
        drop(clients);
        if let Some((client, task)) = known {
            client.fail_all(&Error::PeerClosed { endpoint: peer.endpoint_text.clone() });
            self.scope.cancel(task);
        }
        self.cooldowns.borrow_mut().succeeded(target);
    }

    /// Number of peers with a task.
    #[cfg(test)]
    pub fn clients_len(&self) -> usize {
        self.clients.borrow().len()
    }

    /// Asks whether `target` may be dialed now. `Err`: not now, and the last cause.
    pub fn probe(self: &Rc<Self>, target: Target) -> Result<Probe, Error> {
        self.cooldowns.borrow_mut().ask(target, self.reactor.now())?;
        Ok(Probe { core: Rc::clone(self), target, told: false })
    }

    /// Dials a lane for a shard, and tells the shard how it went.
    pub fn dial_data(self: &Rc<Self>, peer: Arc<Peer>, shard: ShardIndex, class: LaneClass) {
        self.watch(&peer);
        let core = Rc::clone(self);
        self.spawn("dial", |_| async move {
            let message = match dial_lane(&core, &peer, shard, class).await {
                Ok(connection) => Message::LaneUp { peer, class, connection },
                Err(error) => {
                    if matches!(error, Error::StaleEpoch { .. }) {
                        core.peer_left(&peer, PeerStatus::Stale);
                    }
                    Message::LaneDown { peer, class, error }
                }
            };
            core.deliver(shard, message).await;
        });
    }

    /// The identity ended: new work fails from here on, and every shard is told once.
    pub fn peer_left(self: &Rc<Self>, peer: &Arc<Peer>, status: PeerStatus) {
        if peer.status() != PeerStatus::Live {
            return;
        }
        peer.leave(status);
        for shard in 0..self.plan.shards.len() {
            let (core, message) = (Rc::clone(self), Message::PeerLeft(Arc::clone(peer)));
            let shard = ShardIndex(shard as u16);
            self.spawn("peer left", |_| async move { core.deliver(shard, message).await });
        }
    }

    /// Puts a message into a shard's queue, and waits while that is full.
    pub async fn deliver(&self, shard: ShardIndex, mut message: Message) {
        let Some(inbox) = self.plan.shards.get(usize::from(shard.0)) else { return };
        let mut wait = FIRST_KNOCK;
        while let Err(back) = inbox.inject(message) {
            message = back;
            self.reactor.sleep(wait).await;
            wait = (wait * 2).min(LONGEST_KNOCK);
        }
    }

    // The end.

    /// Notes that the engine ends and who waits for it. `false`: its end had begun before.
    pub fn begin_end(&self, done: Option<SyncSender<()>>) -> bool {
        let mut ending = self.ending.borrow_mut();
        let first = ending.is_none();
        ending.get_or_insert_default().extend(done);
        first
    }

    /// Ends everything of the engine: first the listener, then with a last word the control connections,
    /// then all other tasks. Afterwards no descriptor of it is open here. Gives those who wait for it.
    /// For a task that does not belong to the engine.
    pub async fn end(&self) -> Vec<SyncSender<()>> {
        if let Some(listener) = self.listener.take() {
            self.scope.cancel_and_wait(listener).await;
        }
        let unproven = std::mem::take(&mut *self.unproven.borrow_mut());
        for task in unproven {
            self.scope.cancel_and_wait(task).await;
        }
        self.served.borrow().values().for_each(|outbox| outbox.go_away());
        let deadline = later(self.reactor.now(), LAST_WORDS);
        while !self.served.borrow().is_empty() {
            if self.reactor.until(deadline, self.all_served.raised()).await.is_none() {
                break;
            }
        }
        self.scope.end().await;
        self.clients.borrow_mut().clear();
        self.ending.borrow_mut().take().unwrap_or_default()
    }
}

/// One dial of a lane, under the rules of the cooldown.
async fn dial_lane(
    core: &Rc<Core>,
    peer: &Arc<Peer>,
    shard: ShardIndex,
    class: LaneClass,
) -> Result<DataConnection, Error> {
    peer.check_live()?;
    let probe = core.probe((peer.endpoint, peer.engine))?;
    match dial::data(core, peer, shard, class).await {
        Ok(connection) => {
            probe.succeeded();
            Ok(connection)
        }
        Err(failed) => {
            probe.failed(&failed.error);
            Err(failed.error)
        }
    }
}

/// What this engine tells a peer of its limits.
pub(super) fn offer(limits: &Negotiated) -> (Limits, Features) {
    let features = if limits.payload_crc { Features::PAYLOAD_CRC } else { Features::default() };
    (Limits::new(limits.max_message, limits.scatter_ops, limits.lane_window), features)
}

/// What a handshake agreed on.
pub(super) const fn negotiated(limits: &Limits, features: Features) -> Negotiated {
    Negotiated {
        max_message: limits.max_message,
        scatter_ops: limits.scatter_ops,
        lane_window: limits.lane_window,
        payload_crc: features.contains(Features::PAYLOAD_CRC),
    }
}

/// An unproven connection, until this is dropped.
pub(super) struct Unproven {
    core: Rc<Core>,
    task: TaskId,
}

impl Drop for Unproven {
    fn drop(&mut self) {
        self.core.unproven.borrow_mut().remove(&self.task);
    }
}

/// A served control connection, until this is dropped.
pub(super) struct Served {
    core: Rc<Core>,
    task: TaskId,
    pub outbox: Rc<Outbox>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.core.served.borrow_mut().remove(&self.task);
        self.core.all_served.raise();
    }
}

/// The right to dial a peer once. Without an outcome it is given back.
pub(super) struct Probe {
    core: Rc<Core>,
    target: Target,
    told: bool,
}

impl Probe {
    pub fn succeeded(mut self) {
        self.told = true;
        self.core.cooldowns.borrow_mut().succeeded(self.target);
    }

    pub fn failed(mut self, error: &Error) {
        self.told = true;
        let now = self.core.reactor.now();
        self.core.cooldowns.borrow_mut().failed(self.target, error, now);
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if !self.told {
            self.core.cooldowns.borrow_mut().gave_up(self.target);
        }
    }
}

/// A question of a caller's thread.
pub(super) fn question(ask: Ask, asked: Instant, deadline: Instant) -> Question {
    Question { ask, asked, deadline, repeated: false }
}
