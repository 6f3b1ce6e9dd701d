//! Why a frame was refused by its decoder. Each of these cuts the connection it came over.

use super::header::Kind;
use super::limits::{Direction, Role};

/// A rule of the protocol that a frame broke. The text names the rule, the value and the limit, and
/// never an address or a byte of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The type is not defined, or not for this kind of connection and direction.
    #[error("frame type {kind} is not defined on a {role} connection {direction}")]
    UnknownKind { kind: u8, role: Role, direction: Direction },
    /// A flag that this type of frame does not have here, or that must be set and is not.
    #[error("flags {flags:#04x} of a {kind} frame: exactly {expected:#04x} holds here")]
    Flags { kind: Kind, flags: u8, expected: u8 },
    /// Reserved bytes or bits that are not zero.
    #[error("reserved bytes of {what} are not zero")]
    Reserved { what: &'static str },
    /// A meta that is longer than agreed.
    #[error("meta of {len} bytes in a {kind} frame: at most {max} are allowed")]
    MetaTooLong { kind: Kind, len: u32, max: u32 },
    /// A meta that is too short for its direction.
    #[error("meta of {len} bytes in a {kind} frame: at least {min} are needed")]
    MetaTooShort { kind: Kind, len: u32, min: u32 },
    /// A payload that is longer than agreed, or that this type of frame does not have.
    #[error("payload of {len} bytes in a {kind} frame: at most {max} are allowed")]
    DataTooLong { kind: Kind, len: u64, max: u64 },
    /// The checksum of header and meta is wrong: bytes were changed on the way.
    #[error("checksum {found:#010x} of header and meta, computed {computed:#010x}")]
    Checksum { found: u32, computed: u32 },
    /// A frame is missing, or came twice.
    #[error("frame sequence {found}, expected {expected}")]
    Sequence { found: u32, expected: u32 },
    /// A request that does not have a higher id than the one before it.
    #[error("request id {found}: it must be higher than {last}")]
    RequestOrder { found: u64, last: u64 },
    /// A body with another length than its fields say.
    #[error("{what} of {len} bytes: {expected} are needed")]
    Length { what: &'static str, len: u64, expected: u64 },
    /// A field outside its range.
    #[error("{what} {value} is not allowed: {rule}")]
    Value { what: &'static str, value: u64, rule: &'static str },
    /// More of something than the frame may have.
    #[error("{what}: {count} are too many, at most {max} are allowed")]
    TooMany { what: &'static str, count: u64, max: u64 },
    /// An operation of no bytes.
    #[error("operation {index} has length 0")]
    EmptyOp { index: u32 },
    /// An operation whose end is not a number of 64 bits.
    #[error("operation {index}: offset {offset} and length {length} overflow")]
    OpOverflow { index: u32, offset: u64, length: u64 },
    /// The lengths up to this operation add up to more than 64 bits hold.
    #[error("the sum of lengths overflows at operation {index}")]
    SumOverflow { index: u32 },
    /// The operations of a WRITE and its payload have different lengths.
    #[error("operations of {sum} bytes in all with a payload of {data_len} bytes")]
    SumMismatch { sum: u64, data_len: u64 },
}
