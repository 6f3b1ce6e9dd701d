//! What a connection is for, and how long the parts of its frames may be.

use core::fmt;

use super::data::answer::ANSWER_LEN;
use super::data::ops::{OP_LEN, OPS_HEAD_LEN};
use super::header::HEADER_LEN;
use super::version::Features;

/// Longest meta of a control connection's frame, and the least that an engine offers for the metas of
/// a data connection, bytes.
pub(crate) const META_MAX: u32 = 64 * 1024;

/// Longest payload of a control connection's frame, bytes.
pub(crate) const CONTROL_DATA_MAX: u64 = 64 * 1024;

/// Header and meta of a frame on a data connection fill whole cache lines, bytes: zeros after the meta's
/// own fields make their sum a multiple of this. So a payload that starts a line of its memory starts
/// one in the kernel's buffers too, and the copies into and out of them run at full speed.
const LINE: usize = 64;

/// Length of a data connection's meta whose own fields have `len` bytes: padded as [`LINE`] says, by
/// less than one line.
#[inline]
pub(crate) const fn padded_meta(len: usize) -> usize {
    (len + HEADER_LEN).next_multiple_of(LINE) - HEADER_LEN
}

/// The longest padded meta of at most `max` bytes; 0 where there is none.
const fn longest_meta(max: u32) -> usize {
    let lines = (max as usize + HEADER_LEN) / LINE;
    (lines * LINE).saturating_sub(HEADER_LEN)
}

/// Shortest meta of a frame towards the source on a data connection: a list of one operation, whose
/// padding has room for a second one. So a source can ask for header and operations in one read.
pub(crate) const META_MIN_TO_SOURCE: u32 = padded_meta(OPS_HEAD_LEN + OP_LEN) as u32;

/// Shortest meta of a frame towards the requester on a data connection: an answer. So a requester can
/// ask for header and answer in one read.
pub(crate) const META_MIN_TO_REQUESTER: u32 = ANSWER_LEN as u32;

/// What an engine offers for a meta besides the operations of a full list, bytes: their head, the
/// padding, and room for parts that are not built yet.
const META_SPARE: u32 = 512;

/// What a connection is for. The requester says it in the first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Role {
    /// Catalog, liveness, end of an engine. One for each pair of engines and direction.
    Control = 1,
    /// READs and WRITEs.
    Data = 2,
    /// READs and WRITEs of a transport that stripes over several addresses.
    HpData = 3,
    /// Asks for the epoch; has no frames.
    Discover = 4,
}

impl Role {
    /// From its number on the wire.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Control),
            2 => Some(Self::Data),
            3 => Some(Self::HpData),
            4 => Some(Self::Discover),
            _ => None,
        }
    }

    /// Whether the connection carries READs and WRITEs.
    pub const fn is_data(self) -> bool {
        matches!(self, Self::Data | Self::HpData)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "control",
            Self::Data => "data",
            Self::HpData => "hp-data",
            Self::Discover => "discover",
        })
    }
}

/// The way a frame travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// From the side that dialed to the side that listened.
    ToSource,
    /// From the side that listened to the side that dialed.
    ToRequester,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ToSource => "towards the source",
            Self::ToRequester => "towards the requester",
        })
    }
}

/// Limits of a connection. Each side tells its own; the smaller of each pair holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Longest payload of one frame, bytes.
    pub max_message: u64,
    /// Operations in one frame.
    pub scatter_ops: u32,
    /// Unanswered frames on one data connection.
    pub lane_window: u32,
    /// Longest meta of one frame of a data connection, bytes.
    pub meta_bytes: u32,
}

/// A limit that is too small for any work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitError {
    pub what: &'static str,
    pub value: u64,
    pub min: u64,
}

impl Limits {
    /// Limits with more meta than a list of `scatter_ops` operations needs, and never less than
    /// [`META_MAX`].
    pub const fn new(max_message: u64, scatter_ops: u32, lane_window: u32) -> Self {
        let list = scatter_ops.saturating_mul(OP_LEN as u32).saturating_add(META_SPARE);
        let meta_bytes = if list > META_MAX { list } else { META_MAX };
        Self { max_message, scatter_ops, lane_window, meta_bytes }
    }

    /// The smaller of each pair. Operations are cut to what the meta has room for, so that a list of
    /// `scatter_ops` operations always fits with its padding. Fails for a limit under which no frame
    /// could be sent.
    pub fn negotiate(self, other: Self) -> Result<Self, LimitError> {
        let meta_bytes = self.meta_bytes.min(other.meta_bytes);
        let room = longest_meta(meta_bytes).saturating_sub(OPS_HEAD_LEN) / OP_LEN;
        let limits = Self {
            max_message: self.max_message.min(other.max_message),
            scatter_ops: self.scatter_ops.min(other.scatter_ops).min(room as u32),
            lane_window: self.lane_window.min(other.lane_window),
            meta_bytes,
        };
        let least = |what, value: u64, min: u64| {
            if value < min { Err(LimitError { what, value, min }) } else { Ok(()) }
        };
        least("meta bytes", limits.meta_bytes.into(), META_MIN_TO_SOURCE.into())?;
        least("max message", limits.max_message, 1)?;
        least("scatter ops", limits.scatter_ops.into(), 1)?;
        least("lane window", limits.lane_window.into(), 1)?;
        Ok(limits)
    }
}

/// What the reader of one direction of one connection allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLimits {
    pub role: Role,
    pub direction: Direction,
    /// Longest meta, bytes.
    pub meta_max: u32,
    /// Longest payload, bytes, without its checksum.
    pub data_max: u64,
    /// Whether both sides agreed that payloads carry a checksum.
    pub payload_crc: bool,
}

impl FrameLimits {
    /// Of a control connection.
    pub const fn control(direction: Direction) -> Self {
        let (meta_max, data_max) = (META_MAX, CONTROL_DATA_MAX);
        Self { role: Role::Control, direction, meta_max, data_max, payload_crc: false }
    }

    /// Of a data connection with these negotiated limits and features.
    pub const fn data(
        role: Role,
        direction: Direction,
        limits: &Limits,
        features: Features,
    ) -> Self {
        let payload_crc = features.contains(Features::PAYLOAD_CRC);
        let (meta_max, data_max) = (limits.meta_bytes, limits.max_message);
        Self { role, direction, meta_max, data_max, payload_crc }
    }

    /// Shortest meta that a frame may have, bytes.
    pub const fn meta_min(&self) -> u32 {
        match (self.role, self.direction) {
            (Role::Data | Role::HpData, Direction::ToSource) => META_MIN_TO_SOURCE,
            (Role::Data | Role::HpData, Direction::ToRequester) => META_MIN_TO_REQUESTER,
            (Role::Control | Role::Discover, _) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_each_pair_holds_and_a_full_list_fits() {
        let ours = Limits::new(64 << 20, 4096, 16);
        let theirs = Limits::new(1 << 20, 256, 64);
        let both = ours.negotiate(theirs).unwrap();
        assert_eq!(both, theirs.negotiate(ours).unwrap(), "both sides compute the same");
        assert_eq!((both.max_message, both.scatter_ops, both.lane_window), (1 << 20, 256, 16));
        assert_eq!(both.meta_bytes, META_MAX);
        assert_eq!(ours.meta_bytes, 512 + 32 * 4096);

        let narrow = Limits { meta_bytes: 100, ..theirs };
        let scatter_ops = ours.negotiate(narrow).unwrap().scatter_ops;
        assert_eq!(scatter_ops, 2, "8 + 2 * 32 <= 96 <= 100 < 8 + 3 * 32");
    }

    #[test]
    fn header_and_meta_fill_whole_lines() {
        assert_eq!((META_MIN_TO_SOURCE, META_MIN_TO_REQUESTER), (96, 32));
        for len in 0..1000 {
            let padded = padded_meta(len);
            assert!(padded >= len && padded - len < 64 && (32 + padded) % 64 == 0, "{len}");
            assert_eq!(padded_meta(padded), padded);
        }
    }

    /// The operations are as many as fit, neither one more nor one fewer, whatever the meta's limit.
    #[test]
    fn a_padded_list_fits_and_one_operation_more_does_not() {
        let ours = Limits { scatter_ops: u32::MAX, ..Limits::new(1 << 20, 256, 16) };
        for meta_bytes in (96..3000).chain([META_MAX - 1, META_MAX, META_MAX + 1]) {
            let narrow = Limits { meta_bytes, ..ours };
            let both = Limits { meta_bytes: u32::MAX, ..ours }.negotiate(narrow).unwrap();
            let list = |ops: u32| padded_meta(8 + 32 * ops as usize);
            assert!(list(both.scatter_ops) <= meta_bytes as usize, "{meta_bytes}");
            assert!(list(both.scatter_ops + 1) > meta_bytes as usize, "{meta_bytes}");
        }
        let widest = Limits { meta_bytes: u32::MAX, ..ours };
        assert!(widest.negotiate(widest).unwrap().scatter_ops < u32::MAX / 32);
    }

    #[test]
    fn what_an_engine_offers_has_room_for_its_lists() {
        for scatter_ops in (1..5000).chain([1 << 16, 1 << 20]) {
            let ours = Limits::new(1 << 20, scatter_ops, 16);
            assert_eq!(ours.negotiate(ours), Ok(ours), "nothing is cut");
        }
    }

    #[test]
    fn a_limit_that_allows_no_frame_is_refused() {
        let ours = Limits::new(1 << 20, 256, 16);
        for (theirs, what) in [
            (Limits { max_message: 0, ..ours }, "max message"),
            (Limits { scatter_ops: 0, ..ours }, "scatter ops"),
            (Limits { lane_window: 0, ..ours }, "lane window"),
            (Limits { meta_bytes: 0, ..ours }, "meta bytes"),
            (Limits { meta_bytes: 95, ..ours }, "meta bytes"),
        ] {
            assert_eq!(ours.negotiate(theirs).unwrap_err().what, what);
        }
    }
}
