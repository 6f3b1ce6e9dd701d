//! The one public error. Each variant says what was tried, on which object, the value against its
//! limit, the native cause and what to do next. No variant ever carries an epoch or a key.

use std::fmt;

use crate::types::{FailureScope, Permission, Transport};

/// Result of every fallible call of the crate.
pub type Result<T> = core::result::Result<T, Error>;

/// A failed system call: its name and the kernel's error number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsError {
    call: &'static str,
    errno: i32,
}

impl OsError {
    /// From the call's name and what `std` says of it. An error without a number counts as `EIO`.
    pub(crate) fn new(call: &'static str, error: &std::io::Error) -> Self {
        Self { call, errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }

    pub(crate) const fn from_errno(call: &'static str, errno: i32) -> Self {
        Self { call, errno }
    }

    /// Name of the system call.
    pub const fn call(&self) -> &'static str {
        self.call
    }

    /// The kernel's error number (`errno`).
    pub const fn errno(&self) -> i32 {
        self.errno
    }
}

impl fmt::Display for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, std::io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for OsError {}

/// The party whose permission forbids an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Side {
    /// The requester's own registration.
    Local,
    /// The peer's region.
    Remote,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "the local registration",
            Self::Remote => "the peer's region",
        })
    }
}

/// Everything that can go wrong, with a stable [`code`](Error::code).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration document was refused before anything started. `path` names the key.
    #[error("configuration: {path}: {reason}")]
    #[non_exhaustive]
    Config {
        /// Dotted path of the key, or `document`.
        path: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// Typed configuration that contradicts itself, or an object used on an engine that did not make it.
    #[error("invalid configuration: {0}")]
    InvalidConfig(String),
    /// An argument that can never succeed.
    #[error("invalid request: {0}")]
    InvalidRequest(String),
    /// A local range that does not lie inside one live registration.
    #[error(
        "{length} bytes at {address:#x} do not lie inside one live registration{hint}; \
         register the range, or split the request at the registrations' borders"
    )]
    #[non_exhaustive]
    NotRegistered {
        /// First byte.
        address: u64,
        /// Number of bytes.
        length: u64,
        /// The nearest registration, or nothing.
        hint: String,
    },
    /// The registration, region or mode forbids the direction.
    #[error("{side} grants {granted}, but {needed} is needed; register it with that permission")]
    #[non_exhaustive]
    PermissionDenied {
        /// Whose permission.
        side: Side,
        /// What the operation needs.
        needed: &'static str,
        /// What was granted.
        granted: Permission,
    },
    /// A facility that this build, machine, kernel or peer does not have.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// A bounded budget is full now. Waiting or raising the limit helps.
    #[error(
        "{resource} exhausted: {requested} more on top of {in_use} exceed the limit of {limit}; \
         wait for running work or raise the limit"
    )]
    #[non_exhaustive]
    ResourceExhausted {
        /// Name of the budget, as in the configuration where it has a key.
        resource: &'static str,
        /// Its limit.
        limit: u64,
        /// Used now.
        in_use: u64,
        /// Asked for.
        requested: u64,
    },
    /// Exclusive use conflicts with running work.
    #[error("busy: {0}")]
    Busy(String),
    /// The party at the endpoint is not the engine that was expected: it restarted, or another took its
    /// address. Or the engine is, and a region there is gone or registered anew. The detail says which, and
    /// what to do.
    #[error("stale handle to {endpoint}: {detail}")]
    #[non_exhaustive]
    StaleEpoch {
        /// Endpoint that answered.
        endpoint: String,
        /// Expected and found engine ids (public digests), the proof that failed, or the region; and what
        /// to do.
        detail: String,
    },
    /// This identity was closed here, or the peer announced its end.
    #[error(
        "peer {endpoint} has ended or was closed here; get the current descriptor from its owner and open that"
    )]
    #[non_exhaustive]
    PeerClosed {
        /// Endpoint of the peer.
        endpoint: String,
    },
    /// The engine, or this side of it, is closed.
    #[error("the engine is closed")]
    Closed,
    /// Retirement was not proved in time: everything is still held and may be waited for again.
    #[error("not quiesced: {what}: {outstanding} outstanding; wait again, nothing was released")]
    #[non_exhaustive]
    Unquiesced {
        /// What is held.
        what: String,
        /// How many.
        outstanding: u64,
    },
    /// A bounded wait ended. It completed, freed and released nothing.
    #[error("timeout after {after_us} us: {what}")]
    #[non_exhaustive]
    Timeout {
        /// What was waited for, and how far it had come.
        what: String,
        /// Microseconds waited.
        after_us: u64,
    },
    /// Dialing or the handshake failed before any effect.
    #[error("cannot connect to {endpoint}: {source}; {}", connect_hint(.endpoint, .source))]
    #[non_exhaustive]
    Connect {
        /// Endpoint dialed.
        endpoint: String,
        /// Native cause.
        source: OsError,
    },
    /// An attempt failed after it was posted.
    #[error("{transport} transfer over {rail} failed ({scope}): {source}")]
    #[non_exhaustive]
    Transport {
        /// Transport of the attempt.
        transport: Transport,
        /// The lane or rail, with its peer.
        rail: String,
        /// How far the failure reaches.
        scope: FailureScope,
        /// Native cause.
        source: OsError,
    },
    /// The peer broke the protocol; its connection was cut.
    #[error("protocol violation by {endpoint}: {reason}; the connection was cut")]
    #[non_exhaustive]
    Protocol {
        /// The peer.
        endpoint: String,
        /// The rule that was broken.
        reason: String,
    },
    /// A local system call or file operation failed.
    #[error("{op}: {source}")]
    #[non_exhaustive]
    Io {
        /// What was tried, on which object.
        op: String,
        /// Native cause.
        source: OsError,
    },
    /// The deadline cannot be met.
    #[error("the deadline cannot be met: {0}")]
    DeadlineInfeasible(String),
    /// Canceled before it was attempted.
    #[error("canceled: {0}")]
    Canceled(String),
    /// A broken invariant. The shard goes on; what is affected stays held. Please report it.
    #[error("internal error, please report: {0}")]
    Internal(String),
}

/// What to look at after a failed dial.
fn connect_hint(endpoint: &str, source: &OsError) -> &'static str {
    let loopback = endpoint.starts_with("127.") || endpoint.starts_with("[::1]");
    match source.errno() {
        libc::ECONNREFUSED if loopback => {
            "is the peer running and listening there? A loopback address reaches this machine only"
        }
        libc::ECONNREFUSED => {
            "is the peer running and listening there, and not on its loopback address?"
        }
        libc::ECONNRESET => {
            "the peer closed the handshake: see its inbound limits and its security.allow_peers"
        }
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
            "is the address routed and open in the firewall?"
        }
        _ => "is the peer running and reachable?",
    }
}

impl Error {
    /// Short stable name for programs, such as `stale_epoch`.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Config { .. } => "config",
            Self::InvalidConfig(_) => "invalid_config",
            Self::InvalidRequest(_) => "invalid_request",
            Self::NotRegistered { .. } => "not_registered",
            Self::PermissionDenied { .. } => "permission_denied",
            Self::Unavailable(_) => "unavailable",
            Self::ResourceExhausted { .. } => "resource_exhausted",
            Self::Busy(_) => "busy",
            Self::StaleEpoch { .. } => "stale_epoch",
            Self::PeerClosed { .. } => "peer_closed",
            Self::Closed => "closed",
            Self::Unquiesced { .. } => "unquiesced",
            Self::Timeout { .. } => "timeout",
            Self::Connect { .. } => "connect",
            Self::Transport { .. } => "transport",
            Self::Protocol { .. } => "protocol",
            Self::Io { .. } => "io",
            Self::DeadlineInfeasible(_) => "deadline_infeasible",
            Self::Canceled(_) => "canceled",
            Self::Internal(_) => "internal",
        }
    }

    pub(crate) fn config(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Config { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn io(op: impl Into<String>, call: &'static str, error: &std::io::Error) -> Self {
        Self::Io { op: op.into(), source: OsError::new(call, error) }
    }
}
