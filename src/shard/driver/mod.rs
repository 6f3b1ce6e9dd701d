//! The loop of one shard. A turn is bounded and its steps have one order; what a step decides stands in
//! `work`, `links` and `peers`.
//!
//! Invariants: a slice is in the ledger from before it is posted until its rail reported it; a
//! submission is published once, and drained once, when nothing of it is posted; no step blocks; the
//! clock is read once a turn.

mod flow;
mod intake;
mod lanes;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::metrics::counters::Counters;
use crate::shard::clock::Clock;
use crate::shard::control::Control;
use crate::shard::links::{LinkId, Links};
use crate::shard::mailbox::Mailbox;
use crate::shard::mailbox::message::Message;
use crate::shard::memory::View;
use crate::shard::peer::{LaneClass, PeerStatus};
use crate::shard::peers::Peers;
use crate::shard::port::submission::Submission;
use crate::shard::wait::{Phase, Spinner};
use crate::shard::work::{Active, Ended};
use crate::sys::epoll::{Epoll, Events, Interest};
use crate::transfer::Ledger;
use crate::transport::rail::{Budget, Completion, Part};
use crate::transport::tcp::{SourceBudget, TcpProvider};
use crate::types::{Fault, ShardIndex, TransferOp};

/// Settings of one shard, from the checked configuration.
#[derive(Clone, Debug)]
pub(crate) struct ShardPlan {
    pub index: ShardIndex,
    pub turn_submissions: u32,
    pub turn_bytes: u64,
    pub max_lanes: u32,
    pub slice_bytes: u64,
    pub small_bytes: u64,
    pub send_chunk: u64,
    pub stall: Duration,
    pub idle_poll: Duration,
    pub source_bytes: u64,
    /// Whether owners may share a frame.
    pub merge: bool,
}

/// What a posted slice keeps until it is reported: its submission and the link it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    active: u32,
    link: LinkId,
}

/// Token of the bell in the epoll set; no link has generation 2^32 - 1 in practice.
const BELL: u64 = u64::MAX;
/// Passes between two looks at links that are not hot, while the shard is awake.
const LOOK_EVERY: u32 = 8;
/// Least payload that a link may move when it is polled, however many share a turn.
const SHARE: u64 = 64 << 10;
/// Rounds of the detectors within one stall limit, while the shard is awake.
const CHECKS: u32 = 8;
/// A READ in bulk keeps so many slices outstanding on a lane.
const BULK_READS: u32 = 2;
/// Posted slices of one shard.
const LEDGER_BOUND: u32 = 1 << 20;
/// A shard that did not turn for so long judges nobody for that time.
const GAP: Duration = Duration::from_millis(100);

/// One shard.
pub(crate) struct Driver {
    plan: ShardPlan,
    clock: Clock,
    mailbox: Arc<Mailbox>,
    control: Control,
    rings: Vec<rtrb::Consumer<Arc<Submission>>>,
    view: View,
    epoll: Epoll,
    events: Events,
    links: Links,
    peers: Peers,
    actives: Vec<Option<Active>>,
    free: Vec<u32>,
    live: u32,
    ledger: Ledger<Claim>,
    provider: TcpProvider,
    source: SourceBudget,
    done: Vec<Completion>,
    parts: Vec<Part>,
    stalled: Vec<LinkId>,
    finished: Vec<u32>,
    passes: u32,
    next_check: Instant,
    last_turn: Instant,
    stopping: bool,
    /// A caller's word was completed in the last turn ...
    published: bool,
    /// ... and it slept.
    woke: bool,
    counters: Arc<Counters>,
}

impl Driver {
    pub fn new(
        plan: ShardPlan,
        clock: Clock,
        mailbox: Arc<Mailbox>,
        control: Control,
        view: View,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(mailbox.bell.as_fd(), BELL, Interest { readable: true, writable: false })?;
        let source = SourceBudget { in_flight: 0, limit: plan.source_bytes };
        Ok(Self {
            links: Links::new(plan.max_lanes),
            last_turn: clock.now(),
            next_check: clock.now(),
            plan,
            clock,
            mailbox,
            control,
            rings: Vec::new(),
            view,
            epoll,
            events: Events::with_capacity(64),
            peers: Peers::default(),
            actives: Vec::new(),
            free: Vec::new(),
            live: 0,
            ledger: Ledger::new(LEDGER_BOUND, 64),
            provider: TcpProvider,
            source,
            done: Vec::with_capacity(64),
            parts: Vec::with_capacity(256),
            stalled: Vec::new(),
            finished: Vec::with_capacity(64),
            passes: 0,
            stopping: false,
            published: false,
            woke: false,
            counters,
        })
    }

    /// Runs until it is told to stop and nothing is outstanding.
    pub fn run_to_stop(&mut self, spinner: &mut Spinner) {
        let registry = Arc::clone(self.view.registry());
        let gate = registry.gate(self.plan.index);
        let mut running = gate.enter();
        let mut now = self.clock.now();
        loop {
            let moved = self.turn(now);
            if self.stopping && self.is_quiet() {
                break;
            }
            now = self.clock.now();
            if moved {
                spinner.reset();
                let (published, woke) =
                    (std::mem::take(&mut self.published), std::mem::take(&mut self.woke));
                if woke || published && spinner.is_crowded(now) {
                    // The caller that waited for this result may need this CPU.
                    spinner.give_way();
                    now = self.clock.now();
                }
                continue;
            }
            if spinner.pause_briefly(now) == Phase::Park {
                drop(running);
                self.park(now);
                running = gate.enter();
                spinner.reset();
                now = self.clock.now();
            }
        }
        drop(running);
        self.end();
    }

    /// One bounded turn. Says whether anything moved.
    pub fn turn(&mut self, now: Instant) -> bool {
        let gap = now.saturating_duration_since(self.last_turn);
        if gap > GAP {
            self.shift(gap);
        }
        self.last_turn = now;
        self.view.begin_turn(self.plan.index);
        let mut budget = Budget::new(self.plan.turn_bytes);
        let mut moved = self.ingest(now);
        if moved {
            // What is new goes out before anything is looked for.
            self.post(now, &mut budget);
        }
        moved |= self.poll_links(now, &mut budget);
        self.passes = self.passes.wrapping_add(1);
        if now >= self.next_check {
            moved |= self.check(now);
        }
        moved |= self.post(now, &mut budget);
        self.publish();
        self.counters.shard.turns.bump(1);
        self.counters.shard.last_turn_ns.set(self.clock.nanos(now));
        moved
    }

    /// No submission is live or waits to be taken up, and no peer is being served. Frames that were given
    /// up may still be on a lane: they hold no memory, and closing the lane ends them.
    fn is_quiet(&self) -> bool {
        let aborted = self.mailbox.aborted.load(Ordering::Relaxed);
        aborted
            || self.live == 0
                && self.rings.iter().all(rtrb::Consumer::is_empty)
                && self.mailbox.inject.is_empty()
                && !self.links.any_serving()
    }

    fn park(&mut self, now: Instant) {
        if self.check(now) {
            // That may have been the last that a stop waits for, or have left work to be posted anew.
            self.publish();
            return;
        }
        self.mailbox.bell.prepare_sleep();
        let waiting =
            self.rings.iter().any(|ring| !ring.is_empty()) || !self.mailbox.inject.is_empty();
        if !waiting && self.mailbox.may_sleep() {
            let busy = self.live > 0 || self.links.any_in_flight();
            self.counters.shard.sleeps.bump(1);
            self.counters.shard.falls_asleep(self.clock.nanos(now));
            let limit = busy.then_some(self.plan.idle_poll);
            self.look(limit);
            let woke = self.clock.now();
            let asleep = woke.saturating_duration_since(now);
            self.counters.shard.wakes(asleep.as_nanos() as u64);
            if limit.is_some_and(|limit| asleep <= limit + GAP) {
                // A sleep as long as it was meant to be is no absence: a peer's silence counts.
                self.last_turn = woke;
            }
        }
        self.mailbox.bell.awake();
    }

    /// The loop is over: every link is closed, which proves that nothing touches memory any more. What
    /// has come until now is failed; what comes later finds nobody, and its caller sees that by itself.
    fn end(&mut self) {
        for id in self.links.iter().map(|(id, _)| id).collect::<Vec<_>>() {
            self.cut(id, Fault::Closed);
        }
        self.fail_all_queued(Fault::Closed);
        while let Some(message) = self.mailbox.inject.pop() {
            match message {
                Message::Submit(submission) => self.submit(submission),
                // A ring may come with work in it.
                Message::Ring(ring) => self.rings.push(ring),
                _ => {}
            }
        }
        for ring in &mut self.rings {
            while let Ok(submission) = ring.pop() {
                let mut active = Active::new(submission, LaneClass::Small);
                let mut ended = Ended::default();
                active.fail_undispatched(Fault::Closed, &mut ended);
                active.submission.drain();
                active.submission.word.complete();
            }
        }
        self.publish();
        self.counters.shard.falls_asleep(self.clock.nanos(self.clock.now()));
        self.mailbox.finish();
    }
}

const fn left_fault(status: PeerStatus) -> Option<Fault> {
    match status {
        PeerStatus::Live => None,
        PeerStatus::Closed => Some(Fault::PeerClosed),
        PeerStatus::Stale => Some(Fault::StaleEpoch),
    }
}

/// Adds what ended to the counters.
fn count(counters: &Counters, op: TransferOp, ended: &Ended) {
    if *ended == Ended::default() {
        return;
    }
    let shard = &counters.shard;
    shard.tasks_completed.bump(ended.completed);
    shard.tasks_failed.bump(ended.failed);
    shard.tasks_canceled.bump(ended.canceled);
    shard.remote_effect_unknown.bump(ended.unknown);
    match op {
        TransferOp::Read => shard.bytes_read.bump(ended.bytes),
        TransferOp::Write => shard.bytes_written.bump(ended.bytes),
    }
}
