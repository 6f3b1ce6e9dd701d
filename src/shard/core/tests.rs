//! A whole engine below the API, with hands on its control plane.

use super::*;
use crate::shard::control::tests as control;
use crate::shard::set::tests as set;

fn start(byte: u8) -> Arc<Core> {
    let plan = CorePlan {
        set: set::plan(1),
        rules: AdmissionRules { merge: true, max_merge_bytes: 1 << 20, max_requests: 8 },
        max_peers: 4,
        max_registrations: 8,
        withdrawal: set::LONG,
        auto_refresh: false,
        stall_ms: 10_000,
        connect_ms: 3_000,
        clock: Clock::start(),
        wake_latency: Duration::ZERO,
    };
    let settings = move |catalog, shards| {
        let (plan, _shelf, _inboxes) = control::plan(control::epoch(byte));
        ControlPlan { catalog, shards, ..plan }
    };
    Core::start(plan, Box::new(settings)).unwrap()
}

/// What a thread of the parent had locked at a fork stays locked in the child: nothing that tells of an
/// engine may ask for it.
#[test]
fn what_stats_look_at_takes_no_lock() {
    let core = start(51);
    let locks = (core.identities.lock_table(), core.threads.lock().unwrap());
    let (told, answer) = std::sync::mpsc::channel();
    let look = Arc::clone(&core);
    let body = move || {
        let shards = look.set().counters().len();
        let stalled = (0..shards).filter(|shard| look.set().is_stalled(*shard)).count();
        let _gone = told.send((look.peer_count(), look.memory_counters().registrations, stalled));
    };
    let _detached = std::thread::Builder::new().spawn(body).unwrap();
    assert_eq!(answer.recv_timeout(set::LONG), Ok((0, 0, 0)));
    drop(locks);
    core.close(set::LONG).unwrap();
}

/// A close is not done before the control plane is, however often it is asked.
#[test]
fn a_control_plane_that_does_not_end_fails_the_close_until_it_has() {
    let core = start(50);
    let release = control::hold_up(&core.control);
    let soon = Duration::from_millis(20);
    let what = control::eventually("the shards' end", || match core.close(soon) {
        Err(Error::Unquiesced { what, .. }) => what.contains("control").then_some(what),
        other => panic!("{other:?}"),
    });
    assert!(core.set.has_ended());
    assert!(matches!(core.close(soon), Err(Error::Unquiesced { .. })), "{what}");
    drop(release);
    core.close(set::LONG).unwrap();
    core.close(Duration::ZERO).unwrap();
    assert!(std::net::TcpStream::connect(core.bound()).is_err(), "nobody listens");
}
