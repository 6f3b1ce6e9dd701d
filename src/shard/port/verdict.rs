//! What an owner's outcome means in words: the public error, and how far the failure reaches.

use crate::error::{Error, OsError};
use crate::shard::peer::Peer;
use crate::transfer::{Outcome, OwnerState};
use crate::types::{FailureScope, Fault, Refused, RemoteEffect, TransferOp, Transport};

/// What is known of the call besides the outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances<'a> {
    pub op: TransferOp,
    pub peer: &'a Peer,
    /// Microseconds from the call to now.
    pub after_us: u64,
    /// Limit of the stall rule, for its message.
    pub stall_ms: u64,
    /// The connection bound, for its message.
    pub connect_ms: u64,
}

/// The fault that tells why no lane could be had. The error itself stays with the peer.
pub(crate) const fn lane_fault(error: &Error) -> Fault {
    match error {
        Error::Connect { source, .. } => Fault::Connect(source.errno()),
        Error::Timeout { .. } => Fault::ConnectTimeout,
        Error::StaleEpoch { .. } => Fault::StaleEpoch,
        Error::PeerClosed { .. } => Fault::PeerClosed,
        Error::Busy(_) => Fault::PeerFull,
        Error::Unavailable(_) => Fault::Handshake,
        Error::Protocol { .. } => Fault::BadHandshake,
        Error::Io { source, .. } => Fault::Local(source.errno()),
        Error::Closed => Fault::Closed,
        _ => Fault::Internal,
    }
}

/// The kernel does not watch a new lane to `endpoint`.
pub(crate) fn unwatched(endpoint: &str, error: &std::io::Error) -> Error {
    let next = match error.raw_os_error() {
        Some(libc::ENOSPC) => " (too many are watched; raise the sysctl fs.epoll.max_user_watches)",
        Some(libc::ENOMEM) => " (the kernel has no memory left)",
        _ => "",
    };
    Error::io(format!("watch the lane to {endpoint}{next}"), "epoll_ctl", error)
}

/// The whole error behind a fault of [`lane_fault`], unless a lane failed in another way since.
fn lane_error(fault: Fault, peer: &Peer) -> Option<Error> {
    let error = peer.lane_error().filter(|error| lane_fault(error) == fault)?;
    Some(Error::clone(&error))
}

/// Error and scope of an owner that did not complete.
pub(crate) fn judge(outcome: Outcome, at: Circumstances<'_>) -> (Error, FailureScope) {
    let endpoint = || at.peer.endpoint_text.clone();
    let rail = || format!("the lane to {}", at.peer.endpoint_text);
    let verb = match at.op {
        TransferOp::Read => "READ",
        TransferOp::Write => "WRITE",
    };
    let native = |source: OsError, scope: FailureScope| {
        (Error::Transport { transport: Transport::Tcp, rail: rail(), scope, source }, scope)
    };
    match outcome.fault {
        _ if !outcome.is_terminal() || outcome.state == OwnerState::Timeout => {
            let stage = match (outcome.state, outcome.attempts) {
                (OwnerState::Queued, _) | (_, 0) => "queued, no lane took it yet",
                _ => "on the wire, not acknowledged",
            };
            let what = format!("{verb} to {}: {stage}", at.peer.endpoint_text);
            (Error::Timeout { what, after_us: at.after_us }, FailureScope::Request)
        }
        Fault::Refused(Refused::Corrupt) => {
            let call = "compare the checksum of a payload, at the peer";
            native(OsError::from_errno(call, libc::EBADMSG), FailureScope::Request)
        }
        Fault::Refused(class) => (refused(class, verb, outcome.effect, at), scope_of(class)),
        Fault::Partial => {
            let call = "WRITE of which the peer did the first part only";
            native(OsError::from_errno(call, libc::EIO), FailureScope::Request)
        }
        Fault::Lost(errno) => {
            let call = if at.op == TransferOp::Read { "recvmsg" } else { "sendmsg" };
            native(OsError::from_errno(call, errno), FailureScope::Lane)
        }
        Fault::Ended => {
            native(OsError::from_errno("recvmsg", libc::ECONNRESET), FailureScope::Lane)
        }
        Fault::Stalled => {
            let what = format!(
                "{verb} to {}: no progress for tcp_options.stall_timeout_ms = {}; the lane was cut",
                at.peer.endpoint_text, at.stall_ms
            );
            (Error::Timeout { what, after_us: at.after_us }, FailureScope::Lane)
        }
        Fault::Protocol => {
            // The rule, where the lane that broke it was the last one that failed.
            let known =
                at.peer.lane_error().filter(|error| lane_fault(error) == Fault::BadHandshake);
            let error = known.map_or_else(
                || {
                    let reason = format!("its answer to a {verb} was not well formed");
                    Error::Protocol { endpoint: endpoint(), reason }
                },
                |error| Error::clone(&error),
            );
            (error, FailureScope::Lane)
        }
        Fault::PeerClosed => (Error::PeerClosed { endpoint: endpoint() }, FailureScope::Peer),
        Fault::StaleEpoch => {
            let error = lane_error(outcome.fault, at.peer).unwrap_or_else(|| at.peer.stale());
            (error, FailureScope::Peer)
        }
        Fault::Connect(errno) => {
            let source = OsError::from_errno("connect", errno);
            (Error::Connect { endpoint: endpoint(), source }, FailureScope::Peer)
        }
        Fault::ConnectTimeout => {
            let error = lane_error(outcome.fault, at.peer).unwrap_or_else(|| {
                let what = format!(
                    "dialing {} (connect_timeout_ms = {})",
                    at.peer.endpoint_text, at.connect_ms
                );
                Error::Timeout { what, after_us: at.after_us }
            });
            (error, FailureScope::Peer)
        }
        Fault::Handshake => {
            let error = lane_error(outcome.fault, at.peer).unwrap_or_else(|| {
                Error::Unavailable(format!(
                    "{} and this engine do not fit for a data connection: use the same release and \
                     compatible limits on both sides",
                    at.peer.endpoint_text
                ))
            });
            (error, FailureScope::Peer)
        }
        Fault::PeerFull => {
            let error = lane_error(outcome.fault, at.peer).unwrap_or_else(|| {
                Error::Busy(format!(
                    "{} has no room for a further connection; close some or raise its \
                     inbound.max_connections or inbound.max_connections_per_ip",
                    at.peer.endpoint_text
                ))
            });
            (error, FailureScope::Peer)
        }
        Fault::BadHandshake => {
            let error = lane_error(outcome.fault, at.peer).unwrap_or_else(|| {
                let reason = "its part of the handshake was not well formed".into();
                Error::Protocol { endpoint: endpoint(), reason }
            });
            (error, FailureScope::Peer)
        }
        Fault::Local(errno) => {
            let error = lane_error(outcome.fault, at.peer).unwrap_or_else(|| {
                let next = match errno {
                    libc::EMFILE | libc::ENFILE => " (no descriptor left; raise `ulimit -n`)",
                    _ => "",
                };
                let op = format!("make a lane to {}{next}", at.peer.endpoint_text);
                Error::Io { op, source: OsError::from_errno("socket", errno) }
            });
            (error, FailureScope::Engine)
        }
        Fault::Corrupt => {
            // The lane goes on: neither side broke a rule.
            let call = "compare the checksum of what a READ brought";
            native(OsError::from_errno(call, libc::EBADMSG), FailureScope::Request)
        }
        Fault::Canceled => {
            let how = if outcome.attempts == 0 { "never attempted" } else { "given up half way" };
            let text = format!("{how}: an earlier request of the call failed");
            (Error::Canceled(text), FailureScope::Request)
        }
        Fault::Closed => (Error::Closed, FailureScope::Engine),
        Fault::LanesFull(limit) => {
            let (resource, limit) = ("tcp_options.max_lanes", u64::from(limit));
            let (in_use, requested) = (limit, 1);
            let error = Error::ResourceExhausted { resource, limit, in_use, requested };
            (error, FailureScope::Rail)
        }
        Fault::Timeout | Fault::Internal => {
            let dialed =
                if outcome.attempts == 0 { lane_error(outcome.fault, at.peer) } else { None };
            let error = dialed
                .unwrap_or_else(|| Error::Internal(format!("a {verb} ended without a cause")));
            (error, FailureScope::Engine)
        }
    }
}

fn refused(class: Refused, verb: &str, effect: RemoteEffect, at: Circumstances<'_>) -> Error {
    let place = &at.peer.endpoint_text;
    match class {
        Refused::RegionGone => Error::StaleEpoch {
            endpoint: place.clone(),
            detail: "the region was unregistered or registered anew there; refresh the segment"
                .into(),
        },
        Refused::Range => Error::InvalidRequest(format!(
            "{place} refused a {verb}: the range does not lie inside the region"
        )),
        // What it grants is not told; its description had granted this.
        Refused::Permission => Error::InvalidRequest(format!(
            "{place} refused a {verb}: the region does not grant it there; refresh the segment, or \
             register the region with that permission"
        )),
        Refused::Limit => Error::InvalidRequest(format!(
            "{place} refused a {verb}: it exceeds a limit of the peer's configuration"
        )),
        Refused::Busy if effect == RemoteEffect::None => {
            Error::Busy(format!("{place} cannot serve now; try again"))
        }
        Refused::Busy => Error::Busy(format!(
            "{place} gave up a {verb} half way; find out what arrived before anything is sent again"
        )),
        Refused::Closing => Error::PeerClosed { endpoint: place.clone() },
        Refused::Corrupt | Refused::Canceled => {
            Error::Canceled(format!("{place} had not started it"))
        }
    }
}

const fn scope_of(class: Refused) -> FailureScope {
    match class {
        Refused::Closing => FailureScope::Peer,
        _ => FailureScope::Request,
    }
}

/// The effect of an outcome that a caller reads while the shard may still be writing it.
pub(crate) const fn proved_effect(op: TransferOp, outcome: Outcome) -> RemoteEffect {
    match (op, outcome.is_terminal()) {
        (_, true) => outcome.effect,
        (TransferOp::Read, false) => RemoteEffect::None,
        (TransferOp::Write, false) => RemoteEffect::Unknown,
    }
}

#[cfg(test)]
mod tests;
