//! The life of submissions on their home shard: what is cut next, and what a slice's end means for its
//! owners and the call. Decides only; posting and publishing are the driver's steps.
//!
//! | event | owner | call |
//! |---|---|---|
//! | slice posted | `Pending` | |
//! | last slice done | `Completed` | |
//! | slice failed | `Failed`, with the effect that is proved | takes no further owner |
//! | frame refused | the first bad owner `Failed`; those before it go again once | takes no further owner |
//! | canceled | not dispatched: `Canceled`; dispatched: `Timeout` | published now |
//! | nothing posted, nothing left | the rest `Canceled` | published, drained |

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
    /// Groups of a refused frame that were good: first owner and number.
    again: Option<(u32, u32)>,
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
        let (cursor, again) = (Cursor::default(), None);
        Self { submission, cursor, end, posted: 0, again, published: false, queued: false, class }
    }

    pub const fn posted(&self) -> u32 {
        self.posted
    }

    /// The next cut, without taking it.
    pub fn next_cut(&self, limits: CutLimits) -> Option<(Cut, Cursor)> {
        let owners = &self.submission.owners;
        if let Some((first, count)) = self.again {
            let mut at = Cursor { owner: first, skip: 0 };
            let cut = at.next(owners.get(..(first + count) as usize)?, limits)?;
            return Some((cut, at));
        }
        let mut at = self.cursor;
        let cut = at.next(owners.get(..self.end as usize)?, limits)?;
        Some((cut, at))
    }

    /// The cut was posted.
    pub fn posted_cut(&mut self, cut: &Cut, after: Cursor) {
        match &mut self.again {
            Some((first, count)) => {
                *count -= cut.owners;
                *first += cut.owners;
                if *count == 0 {
                    self.again = None;
                }
            }
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
                    let left = self.submission.closed(owner);
                    // Of a part, other parts may have changed bytes.
                    let alone = !cut.is_part() || cut.skip == 0 && left == 0;
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
            let effect = if cut.skip == 0 && self.cursor.skip == cut.bytes {
                RemoteEffect::None
            } else {
                RemoteEffect::Unknown
            };
            self.fail(cut.owner, fault, effect, ended);
            return;
        }
        // A refusal that marks none is about the whole frame.
        let bad = if first_bad < cut.owners { first_bad } else { 0 };
        if bad > 0 && !self.published {
            for owner in cut.owner..cut.owner + bad {
                let outcome = self.submission.outcome(owner);
                let state = OwnerState::Queued;
                self.submission.set_outcome(owner, Outcome { state, ..outcome });
            }
            self.again = Some((cut.owner, bad));
        }
        let first = cut.owner + bad;
        self.fail(first, fault, RemoteEffect::None, ended);
        for owner in first + 1..cut.owner + cut.owners {
            let outcome = self.submission.outcome(owner);
            // Refused with the frame, so proved untouched, and not attempted on its own.
            let outcome = Outcome { attempts: 0, ..outcome };
            self.end_owner(owner, outcome, Fault::Canceled, RemoteEffect::None, ended);
        }
    }

    /// The caller's deadline passed. What is not dispatched ends here; for the rest the rails are asked
    /// to give the slices up, and [`Self::publish_timeout`] follows.
    pub fn cancel(&mut self, ended: &mut Ended) -> Left {
        self.again = None;
        self.stop();
        self.cancel_undispatched(ended);
        self.left(ended)
    }

    /// Freezes what is still posted as timed out.
    pub fn publish_timeout(&mut self, fault: Fault, ended: &mut Ended) {
        for owner in 0..self.submission.owners.len() as u32 {
            let outcome = self.submission.outcome(owner);
            if !outcome.is_terminal() {
                self.end_owner(owner, outcome, fault, RemoteEffect::Unknown, ended);
            }
        }
        self.published = true;
    }

    /// Ends everything that is not terminal with `fault`: no lane can be had. Nothing is posted.
    pub fn fail_undispatched(&mut self, fault: Fault, ended: &mut Ended) -> Left {
        self.again = None;
        let mut first = true;
        for owner in 0..self.submission.owners.len() as u32 {
            let outcome = self.submission.outcome(owner);
            if outcome.state == OwnerState::Queued {
                let fault = if first { fault } else { Fault::Canceled };
                first = false;
                self.end_owner(owner, outcome, fault, RemoteEffect::None, ended);
            } else if outcome.state == OwnerState::Pending && self.posted == 0 {
                // Cut in part: its other parts ended, the rest cannot follow.
                self.end_owner(owner, outcome, fault, RemoteEffect::Unknown, ended);
            }
        }
        self.stop();
        self.left(ended)
    }

    fn stop(&mut self) {
        self.end = self.end.min(self.cursor.owner);
    }

    /// Whether all of the owner's bytes were cut.
    const fn is_cut(&self, owner: u32) -> bool {
        owner < self.cursor.owner
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

    fn fail(&mut self, owner: u32, fault: Fault, effect: RemoteEffect, ended: &mut Ended) {
        self.stop();
        let outcome = self.submission.outcome(owner);
        if !outcome.is_terminal() {
            self.end_owner(owner, outcome, fault, effect, ended);
        }
    }

    fn end_owner(
        &self,
        owner: u32,
        outcome: Outcome,
        fault: Fault,
        effect: RemoteEffect,
        ended: &mut Ended,
    ) {
        if self.published {
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

    fn cancel_undispatched(&self, ended: &mut Ended) {
        for owner in 0..self.submission.owners.len() as u32 {
            let outcome = self.submission.outcome(owner);
            if outcome.state == OwnerState::Queued {
                self.end_owner(owner, outcome, Fault::Canceled, RemoteEffect::None, ended);
            }
        }
    }

    fn left(&mut self, ended: &mut Ended) -> Left {
        let waits = self.again.is_some() || self.cursor.owner < self.end;
        if self.posted > 0 || waits {
            return Left::Work;
        }
        if !self.published {
            self.cancel_undispatched(ended);
            // An owner that was cut in part and whose rest was stopped.
            for owner in 0..self.submission.owners.len() as u32 {
                let outcome = self.submission.outcome(owner);
                if !outcome.is_terminal() {
                    let fault = Fault::Canceled;
                    self.end_owner(owner, outcome, fault, RemoteEffect::Unknown, ended);
                }
            }
        }
        Left::Nothing
    }
}
