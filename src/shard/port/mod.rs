//! The caller's side, on the caller's thread: admission, the way to the home shard, waiting.
//!
//! A thread keeps one port for each engine that it submits to: a ring to each shard, its look at the
//! table of registrations, and a few submissions to use again. After warm-up a call allocates nothing
//! and takes no lock.

pub(crate) mod admission;
pub(crate) mod submission;
pub(crate) mod verdict;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::shard::ShardSet;
use crate::shard::control::ShardInbox;
use crate::shard::mailbox::INJECT_DEPTH;
use crate::shard::mailbox::Mailbox;
use crate::shard::mailbox::message::Message;
use crate::shard::memory::{Pin, View};
use crate::shard::wait::Spinner;
use crate::transfer::report::Summary;
use crate::types::{Fault, RemoteEffect};

use admission::{AdmissionRules, Aim, Ask, Refusal, fill};
use submission::Submission;

/// Submissions that a thread keeps for its next calls.
const POOL: usize = 4;
/// Sleep of a waiting caller after which it rings the bell again: a guard, not a mechanism.
const GUARD: Duration = Duration::from_millis(10);
/// How long a caller whose deadline passed waits for its shard's word on what became of the work.
const VERDICT: Duration = Duration::from_millis(200);

/// A waiting caller looks so often whether its shard has ended.
const LOOK: Duration = Duration::from_millis(100);

/// So that threads do not all begin at the same shard.
static NEXT_SEED: AtomicU64 = AtomicU64::new(1);

/// One thread's way into one engine.
pub(crate) struct Port {
    shards: Arc<ShardSet>,
    rings: Vec<Option<rtrb::Producer<Arc<Submission>>>>,
    view: View,
    spinner: Spinner,
    pool: Vec<Arc<Submission>>,
    /// Owners that each submission of the pool has room for.
    room: usize,
    calls: u64,
    seed: u64,
}

/// What a call came to, copied out of its submission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub summary: Summary,
    pub drained: bool,
    /// Nanoseconds since the engine started; 0: not reached.
    pub submitted: u64,
    pub ingested: u64,
    pub dispatched: u64,
    pub ended: u64,
}

impl Ran {
    fn of(submission: &Submission) -> Self {
        let stations = &submission.stations;
        Self {
            drained: submission.is_drained(),
            summary: submission.summary(),
            submitted: stations.submitted,
            ingested: stations.ingested.load(Ordering::Relaxed),
            dispatched: stations.dispatched.load(Ordering::Relaxed),
            ended: stations.ended.load(Ordering::Relaxed),
        }
    }
}

thread_local! {
    static PORTS: RefCell<Vec<(u64, Rc<RefCell<Port>>)>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with this thread's port of the engine.
pub(crate) fn with_port<T>(
    shards: &Arc<ShardSet>,
    f: impl FnOnce(&mut Port) -> Result<T>,
) -> Result<T> {
    let port = PORTS
        .try_with(|ports| {
            let mut ports = ports.borrow_mut();
            if let Some((_, port)) = ports.iter().find(|(id, _)| *id == shards.id()) {
                return Rc::clone(port);
            }
            // Ports of engines that are gone leave with the next one made.
            ports.retain(|(_, port)| port.try_borrow().is_ok_and(|port| !port.shards.has_ended()));
            let port = Rc::new(RefCell::new(Port::new(shards)));
            ports.push((shards.id(), Rc::clone(&port)));
            port
        })
        // A thread that is being torn down has no slot any more: it gets a port for this call.
        .unwrap_or_else(|_| Rc::new(RefCell::new(Port::new(shards))));
    let mut port = port.try_borrow_mut().map_err(|_| {
        Error::Internal("a call of the engine from within a call on the same thread".into())
    })?;
    f(&mut port)
}

impl Port {
    fn new(shards: &Arc<ShardSet>) -> Self {
        Self {
            rings: shards.mailboxes().iter().map(|mailbox| mailbox.new_ring()).collect(),
            view: View::new(Arc::clone(shards.registry())),
            spinner: Spinner::new(shards.wait_policy()),
            shards: Arc::clone(shards),
            pool: (0..POOL).map(|_| Arc::new(Submission::new())).collect(),
            room: 0,
            calls: 0,
            seed: NEXT_SEED.fetch_add(0x9e37_79b9, Ordering::Relaxed),
        }
    }

    /// Admits a call, runs it on its home shard and waits for its end or the deadline.
    ///
    /// `Err`: nothing was attempted. `Refusal::Unknown` names a range that the aim's snapshot does not
    /// know.
    pub fn run(
        &mut self,
        aim: Aim<'_>,
        asks: impl Iterator<Item = Ask>,
        rules: AdmissionRules,
        deadline: Instant,
    ) -> core::result::Result<Ran, Refusal> {
        let clock = self.shards.clock();
        let mut submission = self.fresh();
        let Some(inner) = Arc::get_mut(&mut submission) else {
            return Err(Refusal::Final(Error::Internal("a new submission is shared".into())));
        };
        let now = clock.now();
        inner.stations.submitted = clock.nanos(now);
        if let Err(refusal) = fill(inner, &mut self.view, aim, asks, rules) {
            self.pool.push(submission);
            return Err(refusal);
        }
        let shard = self.home();
        if let Err(error) = self.send(&submission, shard) {
            if let Some(inner) = Arc::get_mut(&mut submission) {
                inner.discard();
            }
            return Err(Refusal::Final(error));
        }
        self.spinner.reset();
        if let Err(error) = self.wait(&submission, shard, now, deadline) {
            return Err(Refusal::Final(error));
        }
        let ran = Ran::of(&submission);
        self.keep(submission);
        Ok(ran)
    }

    /// Home shard of the next call: calls are spread evenly over all shards.
    fn home(&mut self) -> usize {
        self.calls = self.calls.wrapping_add(1);
        let shards = self.rings.len().max(1) as u64;
        // Splitmix64's finalizer: neighbours land anywhere.
        let mut mixed = self.calls.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)) % shards) as usize
    }

    /// A submission that nobody else holds.
    fn fresh(&mut self) -> Arc<Submission> {
        // A shard may still hold a reference for the moment after a call's end: that one is for later.
        let free = self.pool.iter_mut().position(|spare| {
            Arc::get_mut(spare).is_some_and(|inner| {
                inner.clear();
                true
            })
        });
        match free {
            Some(at) => self.pool.swap_remove(at),
            None => Arc::new(Submission::new()),
        }
    }

    /// Hands a filled submission to its home shard.
    fn send(&mut self, submission: &Arc<Submission>, shard: usize) -> Result<()> {
        let mailbox = self.shards.mailbox(shard)?;
        if mailbox.has_ended() {
            return Err(mailbox.why_ended(shard));
        }
        let full = |resource, limit| {
            let (in_use, requested) = (limit, 1);
            Error::ResourceExhausted { resource, limit, in_use, requested }
        };
        if let Some(Some(ring)) = self.rings.get_mut(shard) {
            let depth = self.shards.ring_depth();
            let resource = "shards.submission_lane_depth";
            ring.push(Arc::clone(submission)).map_err(|_| full(resource, depth))?;
        } else {
            let message = Message::Submit(Arc::clone(submission));
            let resource = "the queue of the threads beyond shards.max_caller_lanes";
            mailbox.inject.push(message).map_err(|_| full(resource, INJECT_DEPTH as u64))?;
        }
        mailbox.bell.ring();
        Ok(())
    }

    /// Waits for the word; past the deadline makes the shard end the call. A shard that does not turn
    /// then has not had the last word, and the outcome is read as it stands. A shard that ended meanwhile
    /// has no word to give: `Err` if it never saw the submission, which then holds nothing any more.
    fn wait(
        &mut self,
        submission: &Arc<Submission>,
        shard: usize,
        now: Instant,
        deadline: Instant,
    ) -> Result<()> {
        let mailbox = Arc::clone(self.shards.mailbox(shard)?);
        let counters = self.shards.counters().get(shard).map(Arc::clone);
        let is_unseen = || submission.stations.ingested.load(Ordering::Relaxed) == 0;
        let note_unseen = || {
            if let (true, Some(counters)) = (is_unseen(), &counters) {
                counters.note_unseen(submission.stations.submitted);
            }
        };
        let nudge = || {
            // Asleep with the submission unseen: a wake was lost. Otherwise the work just takes long.
            let lost = mailbox.bell.is_asleep() && is_unseen();
            mailbox.bell.force();
            if let (true, Some(counters)) = (lost, &counters) {
                counters.callers.guard_rings.add(1);
            }
            note_unseen();
        };
        let mut until = now;
        while until < deadline {
            until = deadline.min(until + LOOK);
            if submission.word.wait(&mut self.spinner, Some(until), GUARD, &nudge) {
                return Ok(());
            }
            if mailbox.has_ended() {
                return orphaned(submission, &mailbox, shard);
            }
        }
        note_unseen();
        submission.abandon();
        let _full_or_ended = mailbox.inject(Message::Cancel(Arc::clone(submission)));
        mailbox.bell.force();
        let verdict = self.shards.clock().now() + VERDICT;
        let done =
            submission.word.wait(&mut self.spinner, Some(verdict), GUARD, || mailbox.bell.force());
        if !done && mailbox.has_ended() {
            return orphaned(submission, &mailbox, shard);
        }
        Ok(())
    }

    /// Takes a submission back for a later call. One that needed more room than any before it makes the
    /// others as large: which of them the next call gets depends on the shard's pace, and must not
    /// decide whether that call allocates.
    fn keep(&mut self, submission: Arc<Submission>) {
        if self.pool.len() >= POOL || !submission.is_drained() {
            return;
        }
        let room = submission.owners.capacity();
        if room > self.room {
            self.room = room;
            self.pool.iter_mut().filter_map(Arc::get_mut).for_each(|spare| spare.make_room(room));
        }
        self.pool.push(submission);
    }
}

/// What becomes of a submission whose shard has ended, which orders all that the shard did before this.
fn orphaned(submission: &Submission, mailbox: &Mailbox, shard: usize) -> Result<()> {
    if submission.word.is_done() {
        return Ok(());
    }
    if submission.stations.ingested.load(Ordering::Relaxed) == 0 {
        // It was sent as the shard ended, and nobody has looked at it or will.
        submission.pins().iter().for_each(Pin::release_on_caller);
        return Err(mailbox.why_ended(shard));
    }
    // The shard panicked with it in hand. What is pinned may be in use, and stays so.
    for owner in 0..submission.owners.len() as u32 {
        let outcome = submission.outcome(owner);
        if !outcome.is_terminal() {
            let effect =
                if outcome.attempts > 0 { RemoteEffect::Unknown } else { RemoteEffect::None };
            let outcome = outcome.failed(submission.op, Fault::Internal, effect);
            submission.set_outcome(owner, outcome);
        }
    }
    Ok(())
}
