//! What became of an owner, in one word that a shard writes and a caller reads.

use crate::types::{Fault, RemoteEffect, TransferOp};

/// Where an owner stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum OwnerState {
    /// Nothing of it was handed to a transport.
    Queued = 0,
    /// Some of it was.
    Pending = 1,
    /// All bytes moved.
    Completed = 2,
    /// Ended with a fault.
    Failed = 3,
    /// Ended unattempted: an earlier owner failed.
    Canceled = 4,
    /// The caller's deadline passed first. Logical only.
    Timeout = 5,
}

/// State, fault and effect of one owner. Packs into 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub state: OwnerState,
    pub effect: RemoteEffect,
    /// Meaningful only in `Failed`, `Canceled` and `Timeout`.
    pub fault: Fault,
    /// Attempts made, saturating at 255.
    pub attempts: u8,
}

impl Outcome {
    pub const QUEUED: Self = Self {
        state: OwnerState::Queued,
        effect: RemoteEffect::None,
        fault: Fault::Canceled,
        attempts: 0,
    };

    /// Handed to a transport for the first time.
    #[cfg(test)]
    pub const PENDING: Self = Self { state: OwnerState::Pending, attempts: 1, ..Self::QUEUED };

    /// All bytes moved.
    pub const fn completed(self, op: TransferOp) -> Self {
        let effect = match op {
            TransferOp::Read => RemoteEffect::None,
            TransferOp::Write => RemoteEffect::Applied,
        };
        Self { state: OwnerState::Completed, effect, ..self }
    }

    /// Ended with `fault`. A READ never has an effect.
    pub const fn failed(self, op: TransferOp, fault: Fault, effect: RemoteEffect) -> Self {
        let state = match fault {
            Fault::Canceled if self.attempts == 0 => OwnerState::Canceled,
            Fault::Timeout => OwnerState::Timeout,
            _ => OwnerState::Failed,
        };
        let effect = match op {
            TransferOp::Read => RemoteEffect::None,
            TransferOp::Write => effect,
        };
        Self { state, effect, fault, ..self }
    }

    pub const fn is_terminal(self) -> bool {
        !matches!(self.state, OwnerState::Queued | OwnerState::Pending)
    }

    pub const fn pack(self) -> u64 {
        let (kind, detail) = self.fault.pack();
        self.state as u64
            | (self.effect as u64) << 8
            | (kind as u64) << 16
            | (self.attempts as u64) << 24
            | (detail as u64) << 32
    }

    pub const fn unpack(word: u64) -> Self {
        let state = match word as u8 {
            0 => OwnerState::Queued,
            1 => OwnerState::Pending,
            2 => OwnerState::Completed,
            3 => OwnerState::Failed,
            4 => OwnerState::Canceled,
            _ => OwnerState::Timeout,
        };
        let effect = match (word >> 8) as u8 {
            0 => RemoteEffect::None,
            1 => RemoteEffect::Applied,
            _ => RemoteEffect::Unknown,
        };
        let fault = Fault::unpack((word >> 16) as u8, (word >> 32) as u32);
        Self { state, effect, fault, attempts: (word >> 24) as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Refused;

    #[test]
    fn every_outcome_survives_its_word() {
        let faults = [
            Fault::Refused(Refused::RegionGone),
            Fault::Refused(Refused::Canceled),
            Fault::Lost(104),
            Fault::Lost(-1),
            Fault::Ended,
            Fault::Stalled,
            Fault::Protocol,
            Fault::PeerClosed,
            Fault::StaleEpoch,
            Fault::Connect(111),
            Fault::ConnectTimeout,
            Fault::Handshake,
            Fault::PeerFull,
            Fault::BadHandshake,
            Fault::Local(24),
            Fault::Corrupt,
            Fault::Partial,
            Fault::Canceled,
            Fault::Timeout,
            Fault::Closed,
            Fault::LanesFull(1024),
            Fault::Internal,
        ];
        for fault in faults {
            for effect in [RemoteEffect::None, RemoteEffect::Applied, RemoteEffect::Unknown] {
                for start in [Outcome::QUEUED, Outcome::PENDING] {
                    let outcome = start.failed(TransferOp::Write, fault, effect);
                    assert_eq!(Outcome::unpack(outcome.pack()), outcome);
                    assert!(outcome.is_terminal());
                }
            }
        }
        for op in [TransferOp::Read, TransferOp::Write] {
            let done = Outcome::PENDING.completed(op);
            assert_eq!(Outcome::unpack(done.pack()), done);
        }
        assert_eq!(Outcome::unpack(Outcome::QUEUED.pack()), Outcome::QUEUED);
    }

    #[test]
    fn a_read_never_changes_the_peer() {
        let failed = Outcome::PENDING.failed(TransferOp::Read, Fault::Ended, RemoteEffect::Unknown);
        assert_eq!(failed.effect, RemoteEffect::None);
    }

    #[test]
    fn only_what_was_never_dispatched_is_canceled() {
        let none = RemoteEffect::None;
        let queued = Outcome::QUEUED.failed(TransferOp::Write, Fault::Canceled, none);
        assert_eq!(queued.state, OwnerState::Canceled);
        let posted = Outcome::PENDING.failed(TransferOp::Write, Fault::Canceled, none);
        assert_eq!(posted.state, OwnerState::Failed);
    }
}
