//! What a submission came to.

use std::fmt;

use crate::error::Error;
use crate::types::{FailureScope, RemoteEffect, Transport};

/// What the caller can do about a failure. Never to send a WRITE of unknown effect again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SuggestedAction {
    /// The same call may succeed later; nothing was changed.
    Retry,
    /// Refresh the segment: the peer's regions changed.
    Refresh,
    /// Get the peer's current epoch from its owner and open it again.
    Rediscover,
    /// The request, registration or permission has to change.
    Fix,
    /// Read the target range, or use another one: its bytes are uncertain.
    Inspect,
    /// Report a fault of the engine.
    Report,
}

impl fmt::Display for SuggestedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retry => "retry later: nothing was changed",
            Self::Refresh => "refresh the segment",
            Self::Rediscover => "get the peer's current epoch and open it again",
            Self::Fix => "correct the request",
            Self::Inspect => "treat the target range as uncertain: read it or replace it",
            Self::Report => "report this as a fault of the engine",
        })
    }
}

/// The first run of requests that failed. Requests of one run shared one attempt and one fate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransferFailure {
    /// Index of the first request of the run.
    pub request_index: usize,
    /// Number of requests in the run, at least 1.
    pub affected_requests: usize,
    /// Why.
    pub error: Error,
    /// What may have happened to the peer's bytes of this run.
    pub remote_effect: RemoteEffect,
    /// How far the failure reaches.
    pub scope: FailureScope,
    /// Transport of the last attempt; [`Transport::Unspec`] if there was none.
    pub transport: Transport,
    /// Attempts made; 0 if the run was never dispatched.
    pub attempts: u32,
    /// What the caller can do.
    pub suggested_action: SuggestedAction,
}

/// Where the time of a submission went, in microseconds. The parts follow each other; a part that was
/// not reached is 0. One clock read a turn, so a part is exact to one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReportTiming {
    /// From the call to the shard that took it up.
    pub queue_us: u64,
    /// From there to the first byte handed to the transport.
    pub dispatch_us: u64,
    /// From there to the last completion.
    pub transport_us: u64,
}

/// State of an attached notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotificationState {
    /// There was none.
    #[default]
    None,
}

/// Outcome of an attached notification, apart from the payload's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotificationStatus {
    /// Where it stands.
    pub state: NotificationState,
}

/// Outcome of one [`submit_and_wait`](crate::TransferEngine::submit_and_wait).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BatchReport {
    /// Length of the longest prefix, in request order, whose requests all completed. Not a
    /// transaction: later requests may have completed too.
    pub completed_requests: usize,
    /// Bytes of that prefix.
    pub completed_bytes: u64,
    /// The first failed run; `None` if all completed.
    pub failure: Option<TransferFailure>,
    /// The attached notification.
    pub notification: NotificationStatus,
    /// True: no native work of this call can touch local bytes any more.
    pub locally_drained: bool,
    /// Transport of the last completed run.
    pub transport: Option<Transport>,
    /// Where the time went.
    pub timing: ReportTiming,
}

impl BatchReport {
    /// Whether every request completed.
    pub const fn is_complete(&self) -> bool {
        self.failure.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::config::EngineConfig;
    use crate::api::plan;
    use crate::shard::clock::Clock;
    use crate::shard::core::Core;
    use crate::shard::port::admission::Aim;
    use crate::shard::port::with_port;
    use crate::types::{Endpoint, EngineId, TransferOp};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(20);

    /// The shard itself ends a call without requests, whoever hands it one.
    #[test]
    fn a_shard_ends_a_submission_of_nothing() {
        let config = EngineConfig::default();
        let (clock, seating) = (Clock::start(), plan::seat(&config).unwrap());
        let epoch = crate::api::engine::new_epoch().unwrap();
        let settings = plan::control_settings(&config, epoch, plan::bind_address(&config).unwrap());
        let plan = plan::core_plan(&config, EngineId::of(&epoch), seating, clock);
        let core = Core::start(plan, settings).unwrap();
        let opened = core.open(Endpoint::new(core.bound()), epoch, LONG).unwrap();
        let (peer, snapshot) = (&opened.identity.peer, &*opened.snapshot);
        let start = clock.now();
        let ran = with_port(core.set(), |port| {
            let aim = Aim { op: TransferOp::Read, peer, snapshot };
            let ran = port.run(aim, std::iter::empty(), core.plan().rules, start + LONG);
            ran.map_err(|_refusal| Error::Closed)
        });
        let took = clock.now() - start;
        assert!(took < Duration::from_secs(1), "{took:?}");
        let ran = ran.unwrap();
        assert!(ran.drained && ran.summary.failed.is_none(), "{ran:?}");
        core.close(LONG).unwrap();
    }
}
