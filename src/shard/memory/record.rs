//! One published registration: what it grants, who uses it now, and the hand-over of its backing.
//!
//! | users word | event | becomes | then |
//! |---|---|---|---|
//! | open, n | pin | open, n + 1 | admitted |
//! | open, n | unpin | open, n - 1 | |
//! | open, n | close | closed, n + 1 | the closer counts as a user until it lets go |
//! | closed, n | pin | closed, n + 1, then n | refused |
//! | closed, 1 | unpin, undone pin, `try_release` | closed, 0 | the backing is taken, once |

use std::sync::Arc;

use crate::sys::cell::TakeCell;
use crate::sys::sync::{AtomicBool, AtomicU64, Ordering};
use crate::types::{MemoryLocation, MemoryType, Permission, RegionKey};

use super::backing::Backing;
use super::counters::Counters;
use super::reaper::Reaper;

const CLOSED: u64 = 1 << 63;

/// The closed bit and the number of users in one word, so that both change in one step.
#[derive(Debug)]
pub(super) struct Users(AtomicU64);

/// Whether somebody is left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The word is open, or others use it.
    Others,
    /// Closed, and no user is left. May be answered more than once, by refused pins.
    Nobody,
}

impl Users {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds a user. `Err` if closed; the attempt is undone then, and says who is left.
    pub fn enter(&self) -> Result<(), Left> {
        // Acquire: a user sees whatever the last closer or user did before it.
        if self.0.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
            Ok(())
        } else {
            Err(self.leave())
        }
    }

    /// Removes a user. Release: its accesses come before the backing is given back; acquire: the last
    /// one sees all others' accesses.
    pub fn leave(&self) -> Left {
        if self.0.fetch_sub(1, Ordering::AcqRel) == CLOSED | 1 {
            Left::Nobody
        } else {
            Left::Others
        }
    }

    /// Closes and adds the closer as a user. False if it was closed before; nothing changes then.
    pub fn close(&self) -> bool {
        let close = |word| (word & CLOSED == 0).then_some((word | CLOSED) + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, close).is_ok()
    }

    /// Removes the closer if it is the only user. False, and nothing changed, otherwise.
    pub fn leave_alone(&self) -> bool {
        self.0.compare_exchange(CLOSED | 1, CLOSED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Users now, the closer among them.
    #[cfg(test)]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & !CLOSED
    }
}

/// One publication of one range. Has no freeing `Drop`: a record that goes away with its backing leaks
/// the backing.
#[derive(Debug)]
pub(crate) struct Record {
    /// Names this publication to peers; never reused.
    pub key: RegionKey,
    /// First byte.
    pub address: u64,
    /// Number of bytes; `address + length` does not wrap.
    pub length: u64,
    /// What peers may do.
    pub permission: Permission,
    /// Kind of memory.
    pub memory_type: MemoryType,
    /// Where it lies.
    pub location: MemoryLocation,
    users: Users,
    backing: TakeCell<Backing>,
    counters: Arc<Counters>,
}

impl Record {
    pub(super) fn new(
        key: RegionKey,
        backing: Backing,
        offset: u64,
        length: u64,
        permission: Permission,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            key,
            address: backing.address() + offset,
            length,
            permission,
            memory_type: backing.memory_type(),
            location: backing.location(),
            users: Users::new(),
            backing: TakeCell::new(backing),
            counters,
        }
    }

    /// One past the last byte.
    pub const fn end(&self) -> u64 {
        self.address + self.length
    }

    /// Whether the registration was withdrawn.
    pub fn is_closed(&self) -> bool {
        self.users.is_closed()
    }

    /// Users now.
    #[cfg(test)]
    pub fn users(&self) -> u64 {
        self.users.count()
    }

    /// Adds a user, unless closed. A refused attempt is undone; where that makes it the last one out
    /// the backing goes to the reaper, since this may be a shard.
    pub(super) fn pin(&self) -> bool {
        match self.users.enter() {
            Ok(()) => true,
            Err(left) => {
                self.hand_over(left, Reaper::retire);
                false
            }
        }
    }

    /// Ends one successful `pin`, on a shard: never drops a backing.
    pub(super) fn unpin_on_shard(&self) {
        self.hand_over(self.users.leave(), Reaper::retire);
    }

    /// Ends one successful `pin`, on a caller's or control thread: a backing whose last user this was
    /// is dropped here.
    pub(super) fn unpin_on_caller(&self) {
        self.hand_over(self.users.leave(), drop);
    }

    fn hand_over(&self, left: Left, dispose: fn(Backing)) {
        if left == Left::Others {
            return;
        }
        if let Some(backing) = self.taken() {
            dispose(backing);
        }
    }

    /// The backing for the first who asks once nobody is left.
    fn taken(&self) -> Option<Backing> {
        let backing = self.backing.take()?;
        self.counters.released(self.length);
        Some(backing)
    }
}

/// A caller's claim on a record: the range stays valid from here until it is released. It travels with
/// the submission, so its holder says on which thread it is released; dropping it without a release
/// leaks the backing and frees nothing.
#[derive(Debug)]
#[must_use = "a pin that is not released leaks the memory it holds"]
pub(crate) struct Pin {
    record: Arc<Record>,
    held: AtomicBool,
}

impl Pin {
    /// A pin of `record`, or `None` if it is closed.
    pub(super) fn of(record: &Arc<Record>) -> Option<Self> {
        record.pin().then(|| Self { record: Arc::clone(record), held: AtomicBool::new(true) })
    }

    /// What is pinned.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether it is this record that is pinned.
    pub fn is_of(&self, record: &Arc<Record>) -> bool {
        Arc::ptr_eq(&self.record, record)
    }

    /// Ends the claim on a caller's or control thread; the last user drops the backing here. A second
    /// release does nothing.
    pub fn release_on_caller(&self) {
        if self.held.swap(false, Ordering::AcqRel) {
            self.record.unpin_on_caller();
        }
    }

    /// Ends the claim on a shard; a backing whose last user this was goes to the reaper. A second
    /// release does nothing.
    pub fn release_on_shard(&self) {
        if self.held.swap(false, Ordering::AcqRel) {
            self.record.unpin_on_shard();
        }
    }
}

/// A record that takes no new users. Counts as a user itself, so the backing stays at least until this
/// is released. Has no `Drop`: a lost one leaks the backing.
#[derive(Debug)]
#[must_use = "a draining record that is not released leaks its memory"]
pub(super) struct Draining(Arc<Record>);

impl Draining {
    /// Closes `record`. `None` if it was closed before.
    pub fn close(record: &Arc<Record>) -> Option<Self> {
        // Counted before the word changes: whoever takes the backing subtracts it again.
        record.counters.retained(record.length);
        if record.users.close() {
            return Some(Self(Arc::clone(record)));
        }
        record.counters.released(record.length);
        None
    }

    pub fn record(&self) -> &Arc<Record> {
        &self.0
    }

    /// Gives the backing back if no other user is left; until then gives itself back. `None` if a
    /// refused pin was the last one out in this instant: the reaper has the backing then.
    pub fn try_release(self) -> Result<Option<Backing>, Self> {
        if self.0.users.leave_alone() { Ok(self.0.taken()) } else { Err(self) }
    }

    /// Lets the last user give the backing back. If that is this one, it happens here.
    pub fn leave_on_caller(self) {
        self.0.unpin_on_caller();
    }

    /// The same on any thread: if this is the last user, the reaper gives the backing back.
    pub fn leave_to_reaper(self) {
        self.0.unpin_on_shard();
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use super::*;

    #[test]
    fn a_closed_word_admits_nobody_and_ends_once_the_last_user_left() {
        let users = Users::new();
        assert_eq!((users.enter(), users.enter()), (Ok(()), Ok(())));
        assert_eq!(users.leave(), Left::Others);
        assert!(users.close() && !users.close());
        assert_eq!(users.enter(), Err(Left::Others));
        assert_eq!(users.count(), 2, "one user and the closer");
        assert!(!users.leave_alone());
        assert_eq!(users.leave(), Left::Others);
        assert!(users.leave_alone());
        assert_eq!(users.enter(), Err(Left::Nobody), "undone once more");
        assert_eq!(users.count(), 0);
    }
}

#[cfg(all(test, orbite_loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;

    struct Model {
        users: Users,
        given_up: AtomicUsize,
    }

    impl Model {
        fn left(&self, left: Left) {
            if left == Left::Nobody {
                self.given_up.fetch_add(1, Ordering::Relaxed);
            }
        }

        fn visit(&self) {
            let left = self.users.enter().map_or_else(
                |left| left,
                |()| {
                    assert_eq!(self.given_up.load(Ordering::Relaxed), 0, "gone under a user");
                    self.users.leave()
                },
            );
            self.left(left);
        }
    }

    /// Two users and the closer in every interleaving of up to three preemptions: nobody is inside when
    /// the backing is given up, and somebody gives it up.
    #[test]
    fn loom_a_backing_is_given_up_after_its_last_user() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let model = Arc::new(Model { users: Users::new(), given_up: AtomicUsize::new(0) });
            let user = || {
                let model = Arc::clone(&model);
                loom::thread::spawn(move || model.visit())
            };
            let users = [user(), user()];
            assert!(model.users.close());
            model.left(model.users.leave());
            for user in users {
                user.join().unwrap();
            }
            assert!(model.given_up.load(Ordering::Relaxed) > 0, "nobody gave it up");
        });
    }
}
