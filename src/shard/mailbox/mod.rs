//! How other threads reach a shard: a ring for each caller thread, one inject queue, one bell.

pub(crate) mod bell;
pub(crate) mod message;
pub(crate) mod queue;
pub(crate) mod word;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::error::Error;
use crate::shard::clock::Clock;
use crate::shard::control::ShardInbox;
use crate::shard::port::submission::Submission;

use bell::Bell;
use message::Message;
use queue::Inject;

/// Messages that may wait in an inject queue.
pub(crate) const INJECT_DEPTH: usize = 4096;

/// What comes without a ring of its own: bounded, and with the engine's last message beside the queue,
/// since that must get through to a shard whose queue is full.
///
/// A push does not wake the shard: ring its bell afterwards.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Inject<Message>,
    stop: AtomicBool,
    clock: Clock,
    /// When a message last came into the empty queue, on the engine's clock.
    since_ns: AtomicU64,
}

impl Inbox {
    fn new(clock: Clock) -> Self {
        let queue = Inject::with_capacity(INJECT_DEPTH);
        Self { queue, stop: AtomicBool::new(false), clock, since_ns: AtomicU64::new(0) }
    }

    fn stamp(&self) {
        if self.is_empty() {
            self.since_ns.store(self.clock.nanos(self.clock.now()), Ordering::Relaxed);
        }
    }

    /// A time before which nothing that waits now has come: the oldest of it may be younger, and in a
    /// race with a push, that push. `None`: nothing waits.
    pub fn waiting_since(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.since_ns.load(Ordering::Relaxed))
    }

    /// Appends, or gives the message back: the queue is full.
    pub fn push(&self, message: Message) -> Result<(), Message> {
        self.stamp();
        self.queue.push(message)
    }

    /// The oldest message; [`Message::Stop`] once, after everything that was queued before it.
    pub fn pop(&self) -> Option<Message> {
        // The flag before the queue: what was queued before the flag was set is then seen as well.
        let stop = self.stop.load(Ordering::Acquire);
        let queued = self.queue.pop();
        if queued.is_some() || !stop {
            return queued;
        }
        self.stop.swap(false, Ordering::AcqRel).then_some(Message::Stop)
    }

    /// Messages that wait, at the moment of the look.
    pub fn len(&self) -> usize {
        self.queue.len() + usize::from(self.stop.load(Ordering::Acquire))
    }

    /// False from the moment that a push has taken its place.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && !self.stop.load(Ordering::Acquire)
    }
}

/// The way into one shard. Shared by all who may send to it.
pub(crate) struct Mailbox {
    pub bell: Bell,
    pub inject: Inbox,
    /// Caller threads with a ring of their own.
    rings: AtomicU32,
    rings_max: u32,
    ring_depth: usize,
    /// The shard has failed or finished everything that it took up, as it was told to.
    finished: AtomicBool,
    /// The shard's thread has ended; nothing that is sent is ever looked at.
    ended: AtomicBool,
    /// The engine does not wait any longer: close every link at once.
    pub aborted: AtomicBool,
}

impl Mailbox {
    pub fn new(rings_max: u32, ring_depth: u32, clock: Clock) -> io::Result<Self> {
        Ok(Self {
            bell: Bell::new()?,
            inject: Inbox::new(clock),
            rings: AtomicU32::new(0),
            rings_max,
            ring_depth: ring_depth as usize,
            finished: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
        })
    }

    /// Makes a ring for the calling thread. `None` when the shard has as many as it may; the thread
    /// uses the inject queue then.
    pub fn new_ring(&self) -> Option<rtrb::Producer<Arc<Submission>>> {
        let claimed = self.rings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |rings| {
            (rings < self.rings_max).then_some(rings + 1)
        });
        claimed.ok()?;
        let (producer, consumer) = rtrb::RingBuffer::new(self.ring_depth);
        if self.inject(Message::Ring(consumer)).is_err() {
            self.ring_left();
            return None;
        }
        Some(producer)
    }

    /// The shard dropped the ring of a thread that is gone.
    pub fn ring_left(&self) {
        self.rings.fetch_sub(1, Ordering::Relaxed);
    }

    /// Tells the shard to stop. Never waits, and is never refused.
    pub fn stop(&self) {
        self.inject.stamp();
        self.inject.stop.store(true, Ordering::Release);
        self.bell.force();
    }

    /// The shard, at its orderly end: it answers for nothing any more.
    pub fn finish(&self) {
        self.finished.store(true, Ordering::Relaxed);
    }

    /// Once the thread has ended: what a caller is told whose work was never looked at.
    pub fn why_ended(&self, shard: usize) -> Error {
        if self.finished.load(Ordering::Relaxed) {
            return Error::Closed;
        }
        Error::Internal(format!(
            "shard {shard} panicked and takes no work; close the engine, and report it"
        ))
    }

    /// The shard's thread: its last word, also after a panic. Orders everything that the shard did.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether a shard that found nothing may sleep.
    pub fn may_sleep(&self) -> bool {
        !self.aborted.load(Ordering::Relaxed)
    }
}

impl ShardInbox for Mailbox {
    fn inject(&self, message: Message) -> Result<(), Message> {
        if self.has_ended() {
            return Err(message);
        }
        self.inject.push(message)?;
        self.bell.ring();
        Ok(())
    }
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").field("ended", &self.has_ended()).finish_non_exhaustive()
    }
}
