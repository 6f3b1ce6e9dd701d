//! From the outcomes of owners to the outcome of a call: the completed prefix and the first failed run.

use super::merge::Owner;
use super::outcome::{Outcome, OwnerState};

/// What a call came to, in terms of owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Requests of the longest prefix whose owners all completed.
    pub completed_requests: u32,
    /// Their bytes.
    pub completed_bytes: u64,
    /// The first owner that did not complete: index of its first request, their number, its outcome.
    pub failed: Option<(u32, u32, Outcome)>,
}

impl Summary {
    /// Of no owners: complete.
    pub const NOTHING: Self = Self { completed_requests: 0, completed_bytes: 0, failed: None };
}

/// Summarises owners in order. The first one that is not completed is given as it stands,
/// terminal or not: the caller reads while a shard may still write.
pub(crate) fn summarize(owners: impl Iterator<Item = (Owner, Outcome)>) -> Summary {
    let mut summary = Summary::NOTHING;
    for (owner, outcome) in owners {
        if outcome.state != OwnerState::Completed {
            summary.failed = Some((owner.first, owner.tasks, outcome));
            return summary;
        }
        summary.completed_requests += owner.tasks;
        summary.completed_bytes += owner.length;
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Fault, RegionKey, RemoteEffect, TransferOp};

    fn owner(first: u32, tasks: u32) -> Owner {
        let region = RegionKey { id: 1, generation: 1 };
        Owner { first, tasks, local: 0, region, offset: 0, length: u64::from(tasks) * 10 }
    }

    #[test]
    fn the_prefix_ends_at_the_first_run_that_failed() {
        let done = Outcome::PENDING.completed(TransferOp::Write);
        let bad = Outcome::PENDING.failed(TransferOp::Write, Fault::Ended, RemoteEffect::Unknown);
        let list = [(owner(0, 2), done), (owner(2, 5), bad), (owner(7, 1), done)];
        let summary = summarize(list.into_iter());
        assert_eq!((summary.completed_requests, summary.completed_bytes), (2, 20));
        assert_eq!(summary.failed, Some((2, 5, bad)));
    }

    #[test]
    fn all_completed_has_no_failure() {
        let done = Outcome::PENDING.completed(TransferOp::Read);
        let summary = summarize([(owner(0, 2), done), (owner(2, 1), done)].into_iter());
        assert_eq!(summary, Summary { completed_requests: 3, completed_bytes: 30, failed: None });
    }
}
