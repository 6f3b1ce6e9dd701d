//! Why a handshake ended.

use core::fmt;

use super::body::Status;
use crate::protocol::limits::LimitError;
use crate::types::EngineId;

/// Why a handshake ended. The connection is closed; what the text says about the other side is public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The other side speaks something else.
    #[error("the other side does not speak orbite's protocol")]
    Magic,
    /// Another major version.
    #[error("protocol version {theirs} of the other side, {ours} here: both must be equal")]
    Version { ours: u16, theirs: u16 },
    /// Another build.
    #[error(
        "build {} of the other side, {} here: use the same release on both sides",
        Hex(theirs),
        Hex(ours)
    )]
    BuildMismatch { ours: [u8; 8], theirs: [u8; 8] },
    /// The source is not the engine that the requester expected: it restarted, or another one has its
    /// address.
    #[error("engine {found} answers where engine {expected} was expected")]
    WrongEngine { expected: EngineId, found: EngineId },
    /// The other side claims to be the right one and cannot prove it.
    #[error(
        "the other side did not prove that it knows the epoch and the shared key, if there is one"
    )]
    WrongProof,
    /// The source answered that it does not go on.
    #[error("the source refused: {status}")]
    Refused { status: Status },
    /// A source was asked for its epoch and may not tell it.
    #[error("the epoch was asked for; security.discovery does not allow it")]
    NotDiscoverable,
    /// A limit under which no frame could be sent.
    #[error("limit \"{what}\" of {value}: at least {min} is needed")]
    Limit { what: &'static str, value: u64, min: u64 },
    /// Reserved bytes that are not zero.
    #[error("reserved bytes of {message} are not zero")]
    Reserved { message: &'static str },
    /// A field outside its range.
    #[error("{what} {value} is not allowed: {rule}")]
    Value { what: &'static str, value: u64, rule: &'static str },
}

impl From<LimitError> for HandshakeError {
    fn from(LimitError { what, value, min }: LimitError) -> Self {
        Self::Limit { what, value, min }
    }
}

/// Bytes as hexadecimal digits.
struct Hex<'a>(&'a [u8; 8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
