//! Shards that never turn, and single turns of one that does.

use std::sync::mpsc::channel;

use super::*;
use crate::types::{Endpoint, EngineId, PeerKey, SourceEpoch};

const LONG: Duration = Duration::from_secs(20);

fn plan(shards: usize) -> SetPlan {
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
