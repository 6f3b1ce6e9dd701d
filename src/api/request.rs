//! What a caller asks for: requests, their target and their options.

use std::time::Instant;

use crate::types::{Priority, Transport};

use super::segment::RemoteSegment;

/// One range to move: `length` bytes between `local_address` in a registration of this engine and
/// `remote_address` in a region of the peer.
///
/// Defaults: [`Priority::High`], no deadline. Both ranges must lie inside one registration and one
/// region; a length of zero is refused at submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferRequest {
    transport: Transport,
    local_address: u64,
    remote_address: u64,
    length: u64,
    priority: Priority,
    deadline: Option<Instant>,
}

impl TransferRequest {
    /// A request with default options. [`Transport::Unspec`] lets the engine select.
    pub const fn new(
        transport: Transport,
        local_address: u64,
        remote_address: u64,
        length: u64,
    ) -> Self {
        Self {
            transport,
            local_address,
            remote_address,
            length,
            priority: Priority::High,
            deadline: None,
        }
    }

    /// Sets the priority, which is advisory on TCP.
    #[must_use]
    pub const fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Gives the request a deadline of its own. So far it only keeps requests with another deadline out of
    /// the same frame; what ends a request is the timeout of its call.
    #[must_use]
    pub const fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The transport asked for.
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// First local byte.
    pub const fn local_address(&self) -> u64 {
        self.local_address
    }

    /// First byte at the peer.
    pub const fn remote_address(&self) -> u64 {
        self.remote_address
    }

    /// Number of bytes.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// The priority.
    pub const fn priority(&self) -> Priority {
        self.priority
    }

    /// The deadline, if any.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

/// Where requests go: a peer's segment. Files join with their transport.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TransferTarget {
    /// Memory of a peer.
    Segment(RemoteSegment),
}

impl From<RemoteSegment> for TransferTarget {
    fn from(segment: RemoteSegment) -> Self {
        Self::Segment(segment)
    }
}

impl From<&RemoteSegment> for TransferTarget {
    fn from(segment: &RemoteSegment) -> Self {
        Self::Segment(segment.clone())
    }
}
