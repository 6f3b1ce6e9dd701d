//! The shards of one engine: their mailboxes, threads and counters.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::metrics::counters::Counters;
use crate::shard::clock::Clock;
use crate::shard::control::{Control, ShardInbox};
use crate::shard::driver::{Driver, ShardPlan};
use crate::shard::host::HostPlan;
use crate::shard::host::thread::{self, Running};
use crate::shard::mailbox::Mailbox;
use crate::shard::mailbox::message::Message;
use crate::shard::memory::{Registry, View};
use crate::shard::peer::Peer;
use crate::shard::placement::Seat;
use crate::shard::wait::WaitPolicy;
use crate::sys::futex;
use crate::sys::sync::{AtomicU32, Ordering};
use crate::types::ShardIndex;

/// A shard that has work waiting and made no turn for so long is stalled.
const STALLED: Duration = Duration::from_secs(1);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Settings of all shards, from the checked configuration.
#[derive(Clone, Debug)]
pub(crate) struct SetPlan {
    /// As in the name of its threads.
    pub engine: String,
    pub seats: Vec<Seat>,
    /// A seat's core that is refused fails the start.
    pub must_pin: bool,
    pub bind_memory: bool,
    pub policy: WaitPolicy,
    pub ring_depth: u32,
    pub max_rings: u32,
    /// Of each shard; the index is filled in.
    pub shard: ShardPlan,
}

/// What callers share: everything but the threads.
#[derive(Debug)]
pub(crate) struct ShardSet {
    id: u64,
    clock: Clock,
    registry: Arc<Registry>,
    mailboxes: Vec<Arc<Mailbox>>,
    counters: Vec<Arc<Counters>>,
    policy: WaitPolicy,
    ring_depth: u32,
    /// Shards whose thread has ended; those who wait for that sleep on it.
    over: AtomicU32,
}

/// The threads. Whoever holds this ends them.
#[derive(Debug)]
pub(crate) struct Threads {
    running: Vec<Running>,
}

impl ShardSet {
    /// Mailboxes and counters; no thread yet, so that the control plane can be given the mailboxes.
    pub fn new(plan: &SetPlan, registry: Arc<Registry>, clock: Clock) -> Result<Arc<Self>> {
        let mut mailboxes = Vec::with_capacity(plan.seats.len());
        for _ in &plan.seats {
            let mailbox = Mailbox::new(plan.max_rings, plan.ring_depth, clock)
                .map_err(|error| Error::io("making a shard's doorbell", "eventfd2", &error))?;
            mailboxes.push(Arc::new(mailbox));
        }
        let counters = plan.seats.iter().map(|_| Arc::default()).collect();
        let (policy, ring_depth) = (plan.policy, plan.ring_depth);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let over = AtomicU32::new(0);
        Ok(Arc::new(Self { id, clock, registry, mailboxes, counters, policy, ring_depth, over }))
    }

    /// Starts the threads. A failure ends those that ran already.
    pub fn start(self: &Arc<Self>, plan: &SetPlan, control: &Control) -> Result<Threads> {
        let mut threads = Threads { running: Vec::with_capacity(plan.seats.len()) };
        for (at, seat) in plan.seats.iter().enumerate() {
            let shard = ShardPlan { index: ShardIndex(at as u16), ..plan.shard.clone() };
            let host = HostPlan {
                name: format!("orbite-{}-{at}", plan.engine),
                seat: *seat,
                must_pin: plan.must_pin,
                bind_memory: plan.bind_memory,
                policy: plan.policy,
            };
            let (set, control) = (Arc::clone(self), control.clone());
            let make = move || {
                let mailbox = Arc::clone(&set.mailboxes[at]);
                let view = View::new(Arc::clone(&set.registry));
                let counters = Arc::clone(&set.counters[at]);
                Driver::new(shard, set.clock, mailbox, control, view, counters).map_err(|error| {
                    Error::io("making a shard's epoll set", "epoll_create1", &error)
                })
            };
            let set = Arc::clone(self);
            match thread::start(host, make, move || set.ended(at)) {
                Ok(running) => threads.running.push(running),
                Err(error) => {
                    self.stop();
                    let _all_idle = threads.join(self, self.clock.now() + Duration::from_secs(5));
                    return Err(error);
                }
            }
        }
        Ok(threads)
    }

    /// Distinct among all engines of the process.
    pub const fn id(&self) -> u64 {
        self.id
    }

    pub const fn clock(&self) -> Clock {
        self.clock
    }

    pub const fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    pub fn mailboxes(&self) -> &[Arc<Mailbox>] {
        &self.mailboxes
    }

    pub fn mailbox(&self, shard: usize) -> Result<&Arc<Mailbox>> {
        self.mailboxes
            .get(shard)
            .ok_or_else(|| Error::Internal(format!("there is no shard {shard}")))
    }

    pub fn counters(&self) -> &[Arc<Counters>] {
        &self.counters
    }

    pub const fn wait_policy(&self) -> WaitPolicy {
        self.policy
    }

    pub const fn ring_depth(&self) -> u64 {
        self.ring_depth as u64
    }

    /// Whether a shard has ended, or has work waiting for over a second that no turn looked at.
    pub fn is_stalled(&self, shard: usize) -> bool {
        self.is_stalled_at(shard, self.clock.nanos(self.clock.now()))
    }

    /// The same, on the engine's clock. Only work makes a shard stall: one that sleeps makes no turn, and
    /// its time counts from when the work came.
    fn is_stalled_at(&self, shard: usize, now: u64) -> bool {
        let (Some(mailbox), Some(counters)) = (self.mailboxes.get(shard), self.counters.get(shard))
        else {
            return true;
        };
        let turned = counters.shard.last_turn_ns.get();
        let for_long =
            |since: u64| now.saturating_sub(since.max(turned)) > STALLED.as_nanos() as u64;
        mailbox.has_ended()
            || mailbox.inject.waiting_since().is_some_and(for_long)
            || counters.unseen_since().is_some_and(for_long)
    }

    pub fn has_ended(&self) -> bool {
        self.mailboxes.iter().all(|mailbox| mailbox.has_ended())
    }

    /// Shards that have not ended.
    pub fn running(&self) -> usize {
        self.mailboxes.iter().filter(|mailbox| !mailbox.has_ended()).count()
    }

    fn ended(&self, shard: usize) {
        if let Some(mailbox) = self.mailboxes.get(shard) {
            mailbox.end();
        }
        self.over.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.over);
    }

    /// Waits until every shard has ended, whoever else waits for that. `false`: the deadline came first.
    pub fn wait_ended(&self, deadline: Instant) -> bool {
        loop {
            let over = self.over.load(Ordering::Acquire);
            if self.has_ended() {
                return true;
            }
            let left = deadline.saturating_duration_since(self.clock.now());
            if left.is_zero() {
                return false;
            }
            futex::wait(&self.over, over, Some(left));
        }
    }

    /// Tells every shard of a new peer, so that it dials early. A hint: a shard whose queue is full dials
    /// with the first work for the peer.
    pub fn announce(&self, peer: &Arc<Peer>) {
        for mailbox in &self.mailboxes {
            let _full_or_ended = mailbox.inject(Message::Peer(Arc::clone(peer)));
        }
    }

    /// Rings every bell.
    pub fn ring(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.bell.force());
    }

    /// No new work; what runs is finished. Never waits for a shard.
    pub fn stop(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.stop());
    }

    /// Nobody waits any longer: every link is closed, which ends all work.
    pub fn abort(&self) {
        for mailbox in &self.mailboxes {
            mailbox.aborted.store(true, Ordering::Relaxed);
            mailbox.bell.force();
        }
    }
}

impl Threads {
    /// Core of each shard's thread.
    pub fn cores(&self) -> Vec<Option<u32>> {
        self.running.iter().map(|running| running.core).collect()
    }

    /// Waits until all threads have ended, and joins those that did. `false`: the deadline came first.
    /// Whoever shares the threads waits by [`ShardSet::wait_ended`] first, so that nobody has them for
    /// longer than the last steps of a thread take.
    pub fn join(&mut self, set: &ShardSet, deadline: Instant) -> bool {
        while let Some(running) = self.running.last() {
            let left = deadline.saturating_duration_since(set.clock.now());
            if running.over.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                return false;
            }
            if let Some(running) = self.running.pop() {
                let _panics_are_reported_there = running.thread.join();
            }
        }
        true
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
pub(super) mod tests;
