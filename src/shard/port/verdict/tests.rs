//! What a caller reads of each cause.

use super::*;
use crate::shard::ShardSet;
use crate::shard::clock::Clock;
use crate::shard::driver::ShardPlan;
use crate::shard::memory::Registry;
use crate::shard::placement::Seat;
use crate::shard::port::Port;
use crate::shard::port::submission::Submission;
use crate::shard::set::SetPlan;
use crate::shard::wait::WaitPolicy;
use crate::types::{Endpoint, EngineId, PeerKey, ShardIndex, SourceEpoch};
use std::sync::Arc;
use std::time::Duration;

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

/// Nobody empties the ring of the first thread, nor the queue that the second one uses.
#[test]
fn what_is_full_is_named_with_its_own_limit() {
    let second = Duration::from_secs(1);
    let plan = SetPlan {
        engine: "none".into(),
        seats: vec![Seat { core: None, node: None }],
        must_pin: false,
        bind_memory: false,
        policy: WaitPolicy { pure: Duration::ZERO, total: Duration::ZERO },
        ring_depth: 64,
        max_rings: 1,
        shard: ShardPlan {
            index: ShardIndex(0),
            turn_submissions: 1,
            turn_bytes: 1,
            max_lanes: 1,
            slice_bytes: 1,
            small_bytes: 1,
            send_chunk: 1,
            stall: second,
            idle_poll: second,
            source_bytes: 1,
            merge: true,
        },
    };
    let set = ShardSet::new(&plan, Registry::new(1, 1), Clock::start()).unwrap();
    let mut ports = [Port::new(&set), Port::new(&set)];
    let [ring, queue] = ports.each_mut().map(|port| {
        let submission = Arc::new(Submission::new());
        (0..10_000).find_map(|_| port.send(&submission, 0).err()).unwrap()
    });
    let full = |error: &Error| match *error {
        Error::ResourceExhausted { resource, limit, in_use, requested } => {
            (resource, limit, in_use, requested)
        }
        _ => panic!("{error}"),
    };
    assert_eq!(full(&ring), ("shards.submission_lane_depth", 64, 64, 1));
    let (resource, limit, in_use, requested) = full(&queue);
    assert!(resource.contains("shards.max_caller_lanes"), "{queue}");
    assert_eq!((limit, in_use, requested), (4096, 4096, 1));
}

#[test]
fn lanes_that_are_used_up_and_lanes_that_the_kernel_refuses_are_told_apart() {
    let (error, _) = judge(waited(Fault::LanesFull(7)), at(&peer()));
    let text = "tcp_options.max_lanes exhausted: 1 more on top of 7 exceed the limit of 7";
    assert!(error.to_string().starts_with(text), "{error}");
    let peer = peer();
    let cause = unwatched(PLACE, &std::io::Error::from_raw_os_error(libc::ENOSPC));
    peer.lane_failed(cause.clone());
    let (error, scope) = judge(waited(lane_fault(&cause)), at(&peer));
    assert_eq!(scope, FailureScope::Engine);
    for part in [PLACE, "epoll_ctl", "fs.epoll.max_user_watches"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

#[test]
fn a_refusal_for_permission_claims_no_grant() {
    let (error, _) = judge(waited(Fault::Refused(Refused::Permission)), at(&peer()));
    let text = error.to_string();
    assert!(text.contains(PLACE) && text.contains("does not grant"), "{text}");
    assert!(!text.contains("local"), "{text}");
}

/// Nothing of unknown effect is advised to be sent again, and a lane that goes on is not called cut.
#[test]
fn texts_of_damaged_and_half_done_work_say_what_is_so() {
    let ended = |fault, effect| Outcome::PENDING.failed(TransferOp::Write, fault, effect);
    for fault in [Fault::Corrupt, Fault::Refused(Refused::Corrupt), Fault::Partial] {
        let text = judge(ended(fault, RemoteEffect::Unknown), at(&peer())).0.to_string();
        assert!(text.contains(PLACE), "{text}");
        assert!(!text.contains("cut") && !text.contains("again"), "{text}");
    }
    let busy = Fault::Refused(Refused::Busy);
    let text = judge(ended(busy, RemoteEffect::Unknown), at(&peer())).0.to_string();
    assert!(text.contains("half way") && !text.contains("try again"), "{text}");
    let text = judge(ended(busy, RemoteEffect::None), at(&peer())).0.to_string();
    assert!(text.contains("try again"), "{text}");
}

/// What a peer did wrong is told with the rule that the lane found.
#[test]
fn a_broken_rule_reaches_the_caller() {
    let peer = peer();
    let (endpoint, reason) = (PLACE.to_owned(), "request id 7: answers come in order".to_owned());
    peer.lane_failed(Error::Protocol { endpoint, reason });
    let outcome = Outcome::PENDING.failed(TransferOp::Read, Fault::Protocol, RemoteEffect::None);
    let text = judge(outcome, at(&peer)).0.to_string();
    assert!(text.contains(PLACE) && text.contains("request id 7"), "{text}");
}
