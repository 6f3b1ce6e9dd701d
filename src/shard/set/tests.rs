//! Shards that never turn, and single turns of one that does.

use std::sync::mpsc::channel;

use super::*;
use crate::shard::control::tests as control;
use crate::shard::memory::{Backing, HostMemory, Registration};
use crate::shard::peer::{PeerRegion, Snapshot};
use crate::shard::port::admission::{AdmissionRules, Aim, Ask, Refusal};
use crate::shard::port::submission::Submission;
use crate::shard::port::{Ran, with_port};
use crate::shard::wait::Spinner;
use crate::transfer::OwnerState;
use crate::types::{
    Endpoint, EngineId, Fault, MemoryLocation, MemoryType, PeerKey, Permission, Priority,
    RegionKey, RemoteEffect, SourceEpoch, TransferOp, Transport,
};

pub(in crate::shard) const LONG: Duration = Duration::from_secs(20);

pub(in crate::shard) fn plan(shards: usize) -> SetPlan {
    SetPlan {
        engine: "test".into(),
        seats: vec![Seat { core: None, node: None }; shards],
        must_pin: false,
        bind_memory: false,
        policy: WaitPolicy::PARK,
        ring_depth: 8,
        max_rings: 8,
        shard: ShardPlan {
            index: ShardIndex(0),
            turn_submissions: 1,
            turn_bytes: 1 << 20,
            max_lanes: 8,
            slice_bytes: 1 << 20,
            small_bytes: 1 << 16,
            send_chunk: 1 << 20,
            stall: LONG,
            idle_poll: Duration::from_millis(1),
            source_bytes: 1 << 20,
            merge: true,
        },
    }
}

/// A set whose shards never turn, as if each were blocked: no thread is started.
fn blocked(shards: usize) -> Arc<ShardSet> {
    ShardSet::new(&plan(shards), Registry::new(8, shards), Clock::start()).unwrap()
}

fn peer() -> Arc<Peer> {
    let epoch = SourceEpoch::from_bytes([7; 16]).unwrap();
    let endpoint = Endpoint::parse("127.0.0.1:9").unwrap();
    let key = PeerKey { slot: 0, generation: 1 };
    Arc::new(Peer::new(key, endpoint, epoch, EngineId::of(&epoch)))
}

#[test]
fn a_blocked_shard_with_a_full_queue_holds_up_nobody_and_is_stopped_later() {
    let set = blocked(2);
    let mailbox = set.mailbox(0).unwrap();
    while mailbox.inject(Message::Peer(peer())).is_ok() {}
    let (done, finished) = channel();
    let engine = Arc::clone(&set);
    let body = move || {
        engine.announce(&peer());
        engine.stop();
        let _gone = done.send(());
    };
    let _detached = std::thread::Builder::new().spawn(body).unwrap();
    finished.recv_timeout(LONG).expect("telling the shards waits for none of them");
    let waiting = mailbox.inject.len();
    let messages: Vec<_> = std::iter::from_fn(|| mailbox.inject.pop()).collect();
    assert_eq!(messages.len(), waiting);
    assert!(matches!(messages.last(), Some(Message::Stop)), "after all that was queued");
    assert!(mailbox.inject.is_empty());
    let other = &set.mailbox(1).unwrap().inject;
    assert!(matches!(other.pop(), Some(Message::Peer(_))));
    assert!(matches!(other.pop(), Some(Message::Stop)));
    assert!(other.pop().is_none(), "a stop comes once");
}

/// A registration of 4 KiB with the set.
fn memory(set: &ShardSet) -> Arc<Registration> {
    let backing = Backing::Host(HostMemory::from_vec(vec![0; 4096]).unwrap());
    set.registry().register(backing, 0, 4096, Permission::Local).unwrap()
}

/// Submits one WRITE of the memory and waits for it.
fn submit(set: &Arc<ShardSet>, memory: &Registration, timeout: Duration) -> Result<Ran> {
    let key = RegionKey { id: 1, generation: 1 };
    let region = PeerRegion {
        key,
        address: 1 << 20,
        length: 4096,
        permission: Permission::RemoteReadWrite,
        memory_type: MemoryType::Cpu,
        location: MemoryLocation::Cpu(None),
        transports: 1 << Transport::Tcp as u32,
    };
    let (peer, snapshot) = (peer(), Snapshot::new(1, vec![region]));
    let ask = Ask {
        transport: Transport::Tcp,
        local: memory.record().address,
        remote: 1 << 20,
        length: 4096,
        priority: Priority::default(),
        deadline: 0,
    };
    let rules = AdmissionRules { merge: true, max_merge_bytes: 1 << 20, max_requests: 8 };
    let aim = Aim { op: TransferOp::Write, peer: &peer, snapshot: &snapshot };
    let deadline = set.clock().now() + timeout;
    with_port(set, |port| {
        port.run(aim, [ask].into_iter(), rules, deadline).map_err(|refusal| match refusal {
            Refusal::Final(error) | Refusal::Unknown(error) => error,
        })
    })
}

/// Waits for the next message of a shard that nobody runs.
#[expect(clippy::disallowed_methods, reason = "a test that waits for another thread")]
fn next(mailbox: &Mailbox) -> Message {
    loop {
        if let Some(message) = mailbox.inject.pop() {
            return message;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The first submission that comes over a ring, as the shard would take it.
fn take(mailbox: &Mailbox) -> Arc<Submission> {
    let Message::Ring(mut ring) = next(mailbox) else { panic!("a thread's ring comes first") };
    loop {
        match ring.pop() {
            Ok(submission) => return submission,
            Err(_empty) => std::thread::yield_now(),
        }
    }
}

/// Work in a ring counts, and a shard that slept for long is no stall the moment that a message comes.
#[test]
fn only_work_that_waits_for_long_is_a_stall() {
    let second = STALLED.as_nanos() as u64;
    let set = blocked(1);
    assert!(!set.is_stalled_at(0, 100 * second), "it has nothing to do");
    let registration = memory(&set);
    let ran = submit(&set, &registration, Duration::from_millis(30)).unwrap();
    assert!(ran.summary.failed.is_some() && ran.ingested == 0);
    // The ring came as a message, which the shard has taken up.
    while set.mailbox(0).unwrap().inject.pop().is_some() {}
    assert!(!set.is_stalled_at(0, ran.submitted + second / 2));
    assert!(set.is_stalled_at(0, ran.submitted + 2 * second), "a ring full of work is work");
    set.counters[0].shard.last_turn_ns.set(ran.submitted + 1);
    assert!(!set.is_stalled_at(0, ran.submitted + 2 * second), "it was looked at");

    let set = blocked(1);
    let now = || set.clock().nanos(set.clock().now());
    let mailbox = set.mailbox(0).unwrap();
    let before = now();
    mailbox.inject(Message::Peer(peer())).unwrap();
    assert!(!set.is_stalled_at(0, before + second), "it just came");
    assert!(set.is_stalled_at(0, now() + second + 1));
    mailbox.end();
    assert!(set.is_stalled_at(0, 0), "it ended");
}

/// A submission that goes into the ring of a shard as it ends.
#[test]
fn work_that_an_ended_shard_never_saw_is_refused_soon_and_holds_nothing() {
    for (orderly, code) in [(true, "closed"), (false, "internal")] {
        let set = blocked(1);
        let registration = memory(&set);
        let mailbox = Arc::clone(set.mailbox(0).unwrap());
        let end = move || {
            let Message::Ring(ring) = next(&mailbox) else { panic!("a thread's ring comes first") };
            while ring.is_empty() {
                std::thread::yield_now();
            }
            if orderly {
                mailbox.finish();
            }
            mailbox.end();
        };
        let shard = std::thread::Builder::new().spawn(end).unwrap();
        let start = set.clock().now();
        let error = submit(&set, &registration, Duration::from_secs(600)).unwrap_err();
        assert_eq!(error.code(), code);
        assert!(set.clock().now() - start < LONG);
        shard.join().unwrap();
        drop(registration);
        assert_eq!(set.registry().counters().retained_after_unregister_bytes, 0);
        let registration = memory(&set);
        assert_eq!(submit(&set, &registration, LONG).unwrap_err().code(), code, "and later ones");
    }
}

/// Work that a shard held when it panicked ends for its caller; what is pinned for it stays.
#[test]
fn a_panic_of_the_shard_ends_the_call_and_keeps_its_memory() {
    let set = blocked(1);
    let registration = memory(&set);
    let mailbox = Arc::clone(set.mailbox(0).unwrap());
    let body = move || {
        let submission = take(&mailbox);
        submission.stations.ingested.store(1, Ordering::Relaxed);
        let outcome = submission.outcome(0);
        let attempted = crate::transfer::Outcome { attempts: 1, ..outcome };
        submission
            .set_outcome(0, crate::transfer::Outcome { state: OwnerState::Pending, ..attempted });
        mailbox.end();
        submission
    };
    let shard = std::thread::Builder::new().spawn(body).unwrap();
    let ran = submit(&set, &registration, Duration::from_secs(600)).unwrap();
    let (_, requests, outcome) = ran.summary.failed.unwrap();
    assert_eq!(
        (requests, outcome.fault, outcome.effect),
        (1, Fault::Internal, RemoteEffect::Unknown)
    );
    assert!(!ran.drained);
    let _held = shard.join().unwrap();
    drop(registration);
    assert_eq!(set.registry().counters().retained_after_unregister_bytes, 4096);
}

/// A ring that comes after the stop, with work in it, is looked at before the shard ends.
#[test]
fn a_shard_that_stops_refuses_what_came_in_a_new_ring() {
    let set = blocked(1);
    let (control_plan, _shelf, _inboxes) = control::plan(control::epoch(9));
    let (control, _address) = Control::start(control_plan).unwrap();
    let mailbox = Arc::clone(set.mailbox(0).unwrap());
    mailbox.inject.push(Message::Stop).unwrap();
    let mut ring = mailbox.new_ring().unwrap();
    let mut submission = Submission::new();
    submission.seal();
    let submission = Arc::new(submission);
    ring.push(Arc::clone(&submission)).unwrap();
    let view = View::new(Arc::clone(set.registry()));
    let (counters, shard) = (Arc::clone(&set.counters[0]), plan(1).shard);
    let mut driver =
        Driver::new(shard, set.clock(), Arc::clone(&mailbox), control.clone(), view, counters)
            .unwrap();
    driver.run_to_stop(&mut Spinner::new(WaitPolicy::PARK));
    assert!(submission.word.is_done(), "the caller is told");
    assert_eq!(mailbox.why_ended(0).code(), "closed");
    control.close(LONG).unwrap();
}
