//! TCP lanes: nonblocking sockets and direct vectored calls into registered memory.

mod flow;
pub(crate) mod lane;
mod serving;
pub(crate) mod source;
pub(crate) mod sys;
mod watch;

use std::time::{Duration, Instant};

use crate::protocol::limits::{Direction, FrameLimits, Limits, Role};
use crate::transport::provider::Provider;
use crate::transport::rail::{Rail, RailFault};

pub(crate) use lane::TcpLane;
pub(crate) use serving::{Catalog, Granted, SourceBudget};
pub(crate) use source::SourceLane;

/// Buffer of one lane for bytes that have no place in registered memory.
const SCRATCH: usize = 16 << 10;

/// Receive calls of one lane in one turn. Heads cost no payload budget, so this is what bounds a turn
/// against a peer that sends frames without any.
pub(crate) const STEPS: u32 = 128;

/// What both ends of a connection agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneLimits {
    /// Longest payload of one frame, bytes.
    pub max_message: u64,
    /// Ranges in one frame.
    pub scatter_ops: u32,
    /// Unanswered frames.
    pub lane_window: u32,
    /// A checksum follows every payload.
    pub payload_crc: bool,
}

/// What one lane was agreed and configured to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LanePlan {
    pub limits: LaneLimits,
    /// Longest part of an owner in one frame.
    pub slice: u64,
    /// Bytes offered to the kernel in one call.
    pub send_chunk: u64,
    /// READs outstanding, where they are limited apart from the window.
    pub reads_max: Option<u32>,
    /// The stall rule's limit.
    pub stall: Duration,
}

impl LanePlan {
    const fn slice_bytes(&self) -> u64 {
        if self.slice < self.limits.max_message { self.slice } else { self.limits.max_message }
    }

    pub(crate) const fn frames(&self, direction: Direction) -> FrameLimits {
        FrameLimits {
            role: Role::Data,
            direction,
            meta_max: Limits::new(0, self.limits.scatter_ops, 0).meta_bytes,
            data_max: self.limits.max_message,
            payload_crc: self.limits.payload_crc,
        }
    }
}

/// Makes lanes out of proven sockets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TcpProvider;

impl Provider for TcpProvider {
    type Link = (std::os::fd::OwnedFd, LanePlan);

    fn attach(&mut self, link: Self::Link, now: Instant) -> Result<Box<dyn Rail>, RailFault> {
        let (socket, plan) = link;
        Ok(Box::new(TcpLane::new(socket, plan, now)))
    }
}
