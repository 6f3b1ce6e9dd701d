//! Why a transfer did not complete: the vocabulary that rails, the ledger and reports share.

/// Why the source refused an operation. The class and nothing of the source's layout: no address. The
/// numbers stand on the wire (docs/wire.md, 5.3) and in packed outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refused {
    /// The region is gone, or its generation is another.
    RegionGone = 1,
    /// The range does not lie inside the region.
    Range = 2,
    /// The region does not grant the direction.
    Permission = 3,
    /// A limit of the source.
    Limit = 4,
    /// The source cannot serve now.
    Busy = 5,
    /// The source is closing.
    Closing = 6,
    /// The payload's checksum did not match.
    Corrupt = 7,
    /// Canceled before it was started.
    Canceled = 8,
}

impl Refused {
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::RegionGone,
            2 => Self::Range,
            3 => Self::Permission,
            4 => Self::Limit,
            5 => Self::Busy,
            6 => Self::Closing,
            7 => Self::Corrupt,
            8 => Self::Canceled,
            _ => return None,
        })
    }

    /// Whether it is the fault of single operations of a frame. All others are about the whole frame.
    pub const fn marks_ops(self) -> bool {
        matches!(self, Self::RegionGone | Self::Range | Self::Permission)
    }
}

/// Why an owner did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The source refused.
    Refused(Refused),
    /// A system call on the lane failed with this number.
    Lost(i32),
    /// The peer ended the lane.
    Ended,
    /// No progress within the stall limit.
    Stalled,
    /// The peer broke the protocol.
    Protocol,
    /// The identity was closed, or the peer said that it goes.
    PeerClosed,
    /// Another engine answers at the endpoint.
    StaleEpoch,
    /// Dialing failed with this number.
    Connect(i32),
    /// The dial or handshake did not end in time.
    ConnectTimeout,
    /// The handshake cannot succeed: builds, versions or limits do not fit, or the peer refused.
    Handshake,
    /// The peer has no room for a further connection.
    PeerFull,
    /// The peer broke the protocol in the handshake.
    BadHandshake,
    /// A system call here failed with this number before there was a lane.
    Local(i32),
    /// A checksum of received bytes did not match.
    Corrupt,
    /// The peer did a part of a WRITE; what became of the rest is unknown.
    Partial,
    /// Stopped because an earlier run of the same call failed.
    Canceled,
    /// The caller's deadline passed while it waited or was outstanding.
    Timeout,
    /// The engine closed.
    Closed,
    /// The shard has as many lanes as it may: this number.
    LanesFull(u32),
    /// A broken invariant here.
    Internal,
}

impl Fault {
    pub(crate) const fn pack(self) -> (u8, u32) {
        match self {
            Self::Refused(class) => (1, class as u32),
            Self::Lost(errno) => (2, errno as u32),
            Self::Ended => (3, 0),
            Self::Stalled => (4, 0),
            Self::Protocol => (5, 0),
            Self::PeerClosed => (6, 0),
            Self::StaleEpoch => (7, 0),
            Self::Connect(errno) => (8, errno as u32),
            Self::ConnectTimeout => (9, 0),
            Self::Handshake => (10, 0),
            Self::Corrupt => (11, 0),
            Self::Canceled => (12, 0),
            Self::Timeout => (13, 0),
            Self::Closed => (14, 0),
            Self::LanesFull(limit) => (15, limit),
            Self::Internal => (16, 0),
            Self::PeerFull => (17, 0),
            Self::BadHandshake => (18, 0),
            Self::Local(errno) => (19, errno as u32),
            Self::Partial => (20, 0),
        }
    }

    pub(crate) const fn unpack(kind: u8, detail: u32) -> Self {
        match kind {
            1 => match Refused::from_number(detail as u8) {
                Some(class) => Self::Refused(class),
                None => Self::Internal,
            },
            2 => Self::Lost(detail as i32),
            3 => Self::Ended,
            4 => Self::Stalled,
            5 => Self::Protocol,
            6 => Self::PeerClosed,
            7 => Self::StaleEpoch,
            8 => Self::Connect(detail as i32),
            9 => Self::ConnectTimeout,
            10 => Self::Handshake,
            11 => Self::Corrupt,
            20 => Self::Partial,
            12 => Self::Canceled,
            13 => Self::Timeout,
            14 => Self::Closed,
            15 => Self::LanesFull(detail),
            17 => Self::PeerFull,
            18 => Self::BadHandshake,
            19 => Self::Local(detail as i32),
            _ => Self::Internal,
        }
    }
}
