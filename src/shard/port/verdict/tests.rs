//! What a caller reads of each cause.

use super::*;
use crate::types::{Endpoint, EngineId, PeerKey, SourceEpoch};

const PLACE: &str = "192.0.2.7:4100";

fn peer() -> Peer {
    let epoch = SourceEpoch::from_bytes([3; 16]).unwrap();
    let key = PeerKey { slot: 0, generation: 1 };
    Peer::new(key, Endpoint::parse(PLACE).unwrap(), epoch, EngineId::of(&epoch))
}

const fn at(peer: &Peer) -> Circumstances<'_> {
    let (op, after_us, stall_ms, connect_ms) = (TransferOp::Write, 1, 2, 3);
    Circumstances { op, peer, after_us, stall_ms, connect_ms }
}

/// A request that waited and was ended by `fault`.
fn waited(fault: Fault) -> Outcome {
    Outcome::QUEUED.failed(TransferOp::Write, fault, RemoteEffect::None)
}

fn io(call: &'static str, errno: i32) -> Error {
    Error::Io {
        op: format!("connect to {PLACE} (raise it)"),
        source: OsError::from_errno(call, errno),
    }
}

/// Why no lane could be had, and how far that reaches.
fn causes() -> Vec<(Error, FailureScope)> {
    let endpoint = || PLACE.to_owned();
    let refused = OsError::from_errno("connect", libc::ECONNREFUSED);
    vec![
        (Error::Connect { endpoint: endpoint(), source: refused }, FailureScope::Peer),
        (Error::Timeout { what: "its handshake".into(), after_us: 5 }, FailureScope::Peer),
        (
            Error::StaleEpoch { endpoint: endpoint(), detail: "the keys differ".into() },
            FailureScope::Peer,
        ),
        (Error::PeerClosed { endpoint: endpoint() }, FailureScope::Peer),
        (Error::Busy("raise its limit".into()), FailureScope::Peer),
        (Error::Unavailable("build 1 there, build 2 here".into()), FailureScope::Peer),
        (
            Error::Protocol { endpoint: endpoint(), reason: "reserved bytes".into() },
            FailureScope::Peer,
        ),
        (io("socket", libc::EMFILE), FailureScope::Engine),
        (io("setsockopt", libc::EINVAL), FailureScope::Engine),
        (Error::Closed, FailureScope::Engine),
        (Error::Internal("a task ended".into()), FailureScope::Engine),
    ]
}

#[test]
fn why_no_lane_could_be_had_is_told_in_full() {
    for (cause, scope) in causes() {
        let peer = peer();
        peer.lane_failed(cause.clone());
        let (error, reaches) = judge(waited(lane_fault(&cause)), at(&peer));
        assert_eq!((error.to_string(), reaches), (cause.to_string(), scope));
        assert_eq!(error.code(), cause.code());
    }
}

/// Another lane failed in another way since: the report keeps to its own cause.
#[test]
fn a_later_failure_of_another_kind_does_not_replace_the_cause() {
    let all = causes();
    for (at_cause, (cause, scope)) in all.iter().enumerate() {
        for (other, _) in all.iter().enumerate().filter(|(at, _)| *at != at_cause).map(|(_, o)| o) {
            let peer = peer();
            peer.lane_failed(other.clone());
            let (error, reaches) = judge(waited(lane_fault(cause)), at(&peer));
            assert_eq!((error.code(), reaches), (cause.code(), *scope), "{other}");
        }
    }
    let (error, _) = judge(waited(Fault::Local(libc::EMFILE)), at(&peer()));
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    assert!(error.to_string().contains(PLACE), "{error}");
}

#[test]
fn a_deadline_and_an_earlier_failure_have_a_text_each() {
    let peer = peer();
    let (late, _) = judge(waited(Fault::Timeout), at(&peer));
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
    assert!(late.to_string().contains("queued"), "{late}");
    let (never, _) = judge(waited(Fault::Canceled), at(&peer));
    assert_eq!(
        never.to_string(),
        "canceled: never attempted: an earlier request of the call failed"
    );
    let half = Outcome::PENDING.failed(TransferOp::Write, Fault::Canceled, RemoteEffect::Unknown);
    let (half, _) = judge(half, at(&peer));
    assert!(half.to_string().contains("given up half way"), "{half}");
}
