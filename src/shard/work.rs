//! The life of submissions on their home shard: what is cut next, and what a slice's end means for its
//! owners and the call. Decides only; posting and publishing are the driver's steps.
//!
//! | event | owner | call |
//! |---|---|---|
//! | slice posted | `Pending` | |
//! | last slice done | `Completed` | |
//! | slice failed | `Failed`, with the effect that is proved | takes no further owner |
//! | frame refused | the first bad owner `Failed`; those before it go again, those after it `Canceled` | takes no further owner |
//! | frame refused that lies behind a failed owner | the first bad one `Failed`, the others `Canceled` | |
//! | the caller's time is over | not dispatched: `Timeout`; dispatched: the same | published now |
//! | nothing posted, nothing left | the rest `Canceled` | published, drained |
//!
//! Invariant: once an owner failed, nothing behind it is handed to a rail any more, be it new or of a
//! refused frame.

use std::sync::Arc;

use crate::shard::peer::LaneClass;
use crate::shard::port::submission::Submission;
use crate::transfer::{Cursor, Cut, CutLimits, Outcome, OwnerState};
use crate::transport::rail::SliceResult;
use crate::types::{Fault, Refused, RemoteEffect, TransferOp};

/// A submission that its home shard has taken up.
#[derive(Debug)]
pub(crate) struct Active {
    pub submission: Arc<Submission>,
    cursor: Cursor,
    /// Owners from here on are not dispatched any more.
    end: u32,
    /// Slices posted and not ended.
    posted: u32,
    /// Owners of a refused frame that were good and wait to go again: from the cursor to the owner that
    /// was refused. They all lie before `failed`.
    again: Option<(Cursor, u32)>,
    /// The lowest owner that failed.
    failed: Option<u32>,
    /// What ends the owners that are never dispatched and lie behind no failed one.
    rest: Option<Fault>,
    /// The call was published; only drain is left.
    pub published: bool,
    /// It stands in a lane's queue.
    pub queued: bool,
    /// The class of lane that carries it.
    pub class: LaneClass,
}

/// What is left to do for a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Something is posted or waits.
    Work,
    /// All owners ended and nothing is posted: publish and drain.
    Nothing,
}

/// Counts of requests and bytes that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    pub completed: u64,
    pub failed: u64,
    pub canceled: u64,
    pub bytes: u64,
    pub unknown: u64,
}

impl Active {
    pub fn new(submission: Arc<Submission>, class: LaneClass) -> Self {
        let end = submission.owners.len() as u32;
        Self {
            submission,
            cursor: Cursor::default(),
            end,
            posted: 0,
            again: None,
            failed: None,
            rest: None,
            published: false,
            queued: false,
            class,
        }
    }

    pub const fn posted(&self) -> u32 {
        self.posted
    }

    /// Whether there is something to cut.
    pub const fn has_next(&self) -> bool {
        self.again.is_some() || self.cursor.owner < self.end
    }

    /// The next cut, without taking it.
    pub fn next_cut(&self, limits: CutLimits) -> Option<(Cut, Cursor)> {
        let (mut at, end) = self.again.unwrap_or((self.cursor, self.end));
        let cut = at.next(self.submission.owners.get(..end as usize)?, limits)?;
        Some((cut, at))
    }

    /// The cut was posted.
    pub fn posted_cut(&mut self, cut: &Cut, after: Cursor) {
        match self.again {
            Some((_, end)) => self.again = (after.owner < end).then_some((after, end)),
            None => self.cursor = after,
        }
        self.posted += 1;
        let submission = &self.submission;
        for owner in cut.owner..cut.owner + cut.owners {
            let outcome = submission.outcome(owner);
            if outcome.state == OwnerState::Queued {
                let attempts = outcome.attempts.saturating_add(1);
                let state = OwnerState::Pending;
                submission.set_outcome(owner, Outcome { state, attempts, ..outcome });
            }
            submission.opened(owner);
        }
    }

    /// One posted slice ended.
    pub fn slice_ended(&mut self, cut: &Cut, result: SliceResult, ended: &mut Ended) -> Left {
        self.posted -= 1;
        match result {
            SliceResult::Done => {
                for owner in cut.owner..cut.owner + cut.owners {
                    let left = self.submission.closed(owner);
                    let whole = left == 0 && self.is_cut(owner);
                    if whole && self.submission.outcome(owner).state == OwnerState::Pending {
                        self.complete(owner, ended);
                    }
                }
            }
            SliceResult::Failed { fault, effect } => {
                for owner in cut.owner..cut.owner + cut.owners {
                    self.submission.closed(owner);
                    // Of a part, other parts may have changed bytes.
                    let alone = !cut.is_part() || self.is_only_cut(cut);
                    let effect = if alone { effect } else { RemoteEffect::Unknown };
                    self.fail(owner, fault, effect, ended);
                }
            }
            SliceResult::Refused { class, first_bad } => self.refused(cut, class, first_bad, ended),
        }
        self.left(ended)
    }

    fn refused(&mut self, cut: &Cut, class: Refused, first_bad: u32, ended: &mut Ended) {
        let fault = Fault::Refused(class);
        for owner in cut.owner..cut.owner + cut.owners {
            self.submission.closed(owner);
        }
        if cut.is_part() {
            let effect =
                if self.is_only_cut(cut) { RemoteEffect::None } else { RemoteEffect::Unknown };
            self.fail(cut.owner, fault, effect, ended);
            return;
        }
        // A refusal that marks none is about the whole frame.
        let bad = cut.owner + if first_bad < cut.owners { first_bad } else { 0 };
        // Refused with the frame, so all of it is proved untouched.
        for owner in (cut.owner..cut.owner + cut.owners).filter(|owner| *owner != bad) {
            let outcome = self.submission.outcome(owner);
            if !outcome.is_terminal() {
                let state = OwnerState::Queued;
                self.submission.set_outcome(owner, Outcome { state, ..outcome });
            }
        }
        self.fail(bad, fault, RemoteEffect::None, ended);
        // Behind the lowest failed owner nothing goes again; after a cancel nothing at all.
        let behind = self.failed.is_some_and(|failed| failed < bad);
        if bad > cut.owner && !behind && self.rest.is_none() && !self.published {
            self.again = Some((Cursor { owner: cut.owner, skip: 0 }, bad));
        } else {
            self.end_queued(cut.owner..bad, ended);
        }
        self.end_queued(bad + 1..cut.owner + cut.owners, ended);
    }

    /// The caller's deadline passed. What is not dispatched ends here; for the rest the rails are asked
    /// to give the slices up, and [`Self::publish_timeout`] follows.
    pub fn cancel(&mut self, ended: &mut Ended) -> Left {
        self.stop();
        self.rest.get_or_insert(Fault::Timeout);
        self.drop_again(ended);
        self.end_queued(0..self.submission.owners.len() as u32, ended);
        self.left(ended)
    }

    /// Freezes what is still posted as timed out.
    pub fn publish_timeout(&mut self, fault: Fault, ended: &mut Ended) {
        for owner in 0..self.submission.owners.len() as u32 {
            self.end_owner(owner, fault, RemoteEffect::Unknown, ended);
        }
        self.published = true;
    }

    /// No lane can be had: the first owner that waits ends with `fault`, those behind it are canceled.
    /// What is posted runs to its end.
    pub fn fail_undispatched(&mut self, fault: Fault, ended: &mut Ended) -> Left {
        self.stop();
        self.rest.get_or_insert(fault);
        let owners = 0..self.submission.owners.len() as u32;
        let first = owners.clone().find_map(|owner| match self.submission.outcome(owner).state {
            OwnerState::Queued => Some((owner, RemoteEffect::None)),
            // Cut in part: the rest cannot follow.
            OwnerState::Pending if !self.is_cut(owner) => Some((owner, RemoteEffect::Unknown)),
            _ => None,
        });
        if let Some((first, effect)) = first {
            if self.failed.is_none_or(|failed| first < failed) {
                self.fail(first, fault, effect, ended);
            }
        }
        self.drop_again(ended);
        self.end_queued(owners, ended);
        self.left(ended)
    }

    fn stop(&mut self) {
        self.end = self.end.min(self.cursor.owner);
    }

    /// Where the cutting of an owner stands.
    fn cursor_of(&self, owner: u32) -> Cursor {
        match self.again {
            Some((at, end)) if (at.owner..end).contains(&owner) => at,
            _ => self.cursor,
        }
    }

    /// Whether all of the owner's bytes were cut.
    fn is_cut(&self, owner: u32) -> bool {
        owner < self.cursor_of(owner).owner
    }

    /// Whether nothing but this part of its owner was ever cut.
    fn is_only_cut(&self, part: &Cut) -> bool {
        let first = Cursor { owner: part.owner, skip: part.bytes };
        part.skip == 0 && self.cursor_of(part.owner) == first
    }

    fn complete(&self, owner: u32, ended: &mut Ended) {
        if self.published {
            return;
        }
        let outcome = self.submission.outcome(owner).completed(self.submission.op);
        self.submission.set_outcome(owner, outcome);
        if let Some(owner) = self.submission.owners.get(owner as usize) {
            ended.completed += u64::from(owner.tasks);
            ended.bytes += owner.length;
        }
    }

    /// Ends an owner that was attempted, or would have been next. Nothing behind it is dispatched.
    fn fail(&mut self, owner: u32, fault: Fault, effect: RemoteEffect, ended: &mut Ended) {
        self.stop();
        let failed = self.failed.map_or(owner, |failed| failed.min(owner));
        self.failed = Some(failed);
        self.end_owner(owner, fault, effect, ended);
        // What waits to go again was one frame's: it lies before this owner as a whole, or not at all.
        if self.again.is_some_and(|(at, _)| at.owner >= failed) {
            self.drop_again(ended);
        }
    }

    /// What waits to go again does not.
    fn drop_again(&mut self, ended: &mut Ended) {
        let Some((at, end)) = self.again.take() else { return };
        if at.skip > 0 {
            // Cut in part, by a lane that takes less at once. No cursor would tell that any more.
            self.end_owner(at.owner, self.rest_fault(at.owner), RemoteEffect::Unknown, ended);
        }
        self.end_queued(at.owner..end, ended);
    }

    /// Ends those of `owners` that are with no rail.
    fn end_queued(&self, owners: std::ops::Range<u32>, ended: &mut Ended) {
        for owner in owners {
            let outcome = self.submission.outcome(owner);
            if outcome.state == OwnerState::Queued {
                // Not attempted on its own, whatever frame it was in.
                self.submission.set_outcome(owner, Outcome { attempts: 0, ..outcome });
                self.end_owner(owner, self.rest_fault(owner), RemoteEffect::None, ended);
            }
        }
    }

    /// What ends an owner that goes no further, for no reason of its own.
    fn rest_fault(&self, owner: u32) -> Fault {
        match (self.failed, self.rest) {
            (Some(failed), _) if failed < owner => Fault::Canceled,
            (_, rest) => rest.unwrap_or(Fault::Canceled),
        }
    }

    /// Ends an owner, unless it has ended.
    fn end_owner(&self, owner: u32, fault: Fault, effect: RemoteEffect, ended: &mut Ended) {
        let outcome = self.submission.outcome(owner);
        if self.published || outcome.is_terminal() {
            return;
        }
        let outcome = outcome.failed(self.submission.op, fault, effect);
        self.submission.set_outcome(owner, outcome);
        let tasks = self.submission.owners.get(owner as usize).map_or(0, |o| u64::from(o.tasks));
        if outcome.state == OwnerState::Canceled {
            ended.canceled += tasks;
        } else {
            ended.failed += tasks;
        }
        let unknown =
            outcome.effect == RemoteEffect::Unknown && self.submission.op == TransferOp::Write;
        ended.unknown += u64::from(unknown);
    }

    /// Whether something is posted or waits. If not, every owner has ended afterwards.
    pub fn left(&self, ended: &mut Ended) -> Left {
        if self.posted > 0 || self.has_next() {
            return Left::Work;
        }
        let owners = 0..self.submission.owners.len() as u32;
        self.end_queued(owners.clone(), ended);
        // An owner that was cut in part and whose rest was stopped.
        for owner in owners {
            self.end_owner(owner, self.rest_fault(owner), RemoteEffect::Unknown, ended);
        }
        Left::Nothing
    }
}

#[cfg(test)]
mod tests;
