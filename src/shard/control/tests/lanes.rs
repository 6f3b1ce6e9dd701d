//! Data connections: from a dial to two shards.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::OwnedFd;

use socket2::SockRef;

use super::*;
use crate::shard::mailbox::message::DataConnection;
use crate::shard::peer::PeerStatus;

const ZERO: ShardIndex = ShardIndex(0);
const ONE: ShardIndex = ShardIndex(1);

fn lane_up(inbox: &Inbox) -> DataConnection {
    match inbox.next() {
        Message::LaneUp { connection, .. } => connection,
        other => panic!("{other:?}"),
    }
}

fn lane_down(inbox: &Inbox) -> Error {
    match inbox.next() {
        Message::LaneDown { error, .. } => error,
        other => panic!("{other:?}"),
    }
}

fn inbound(engine: &Engine) -> DataConnection {
    let message = eventually("an inbound lane", || {
        engine.inboxes.iter().find(|inbox| !inbox.is_empty()).map(|inbox| inbox.next())
    });
    match message {
        Message::Inbound(connection) => connection,
        other => panic!("{other:?}"),
    }
}

fn file(socket: OwnedFd) -> File {
    SockRef::from(&socket).set_nonblocking(false).unwrap();
    File::from(socket)
}

#[test]
fn a_lane_joins_two_shards_and_no_byte_is_lost() {
    let (a, b) = (start(1), start(2));
    let peer = a.peer(&b);
    a.control.dial_data(Arc::clone(&peer), ONE, LaneClass::Small);
    let near = lane_up(&a.inboxes[1]);
    // The requester's first frame may be under way before the source's shard has its socket.
    let DataConnection { socket, id, limits, remote, permit } = near;
    let mut near = file(socket);
    near.write_all(b"first frame").unwrap();
    let far = inbound(&b);
    assert_eq!((id, limits), (far.id, far.limits));
    assert_eq!(remote, b.endpoint.addr());
    assert!(permit.is_none() && far.permit.is_some());
    let options = SockRef::from(&far.socket);
    assert!(options.tcp_nodelay().unwrap() && options.keepalive().unwrap());
    assert_eq!(options.tcp_user_timeout().unwrap(), Some(Duration::from_secs(20)));
    assert_eq!(options.tcp_keepalive_time().unwrap(), Duration::from_secs(10));
    let mut far = file(far.socket);
    let mut text = [0; 11];
    far.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"first frame");
    far.write_all(b"answer").unwrap();
    near.read_exact(&mut text[..6]).unwrap();
    assert_eq!(&text[..6], b"answer");
}

#[test]
fn lanes_spread_over_the_source_s_shards() {
    let b = start(2);
    let lanes: Vec<Raw> = (0..32).map(|_| shake(&b, Role::Data)).collect();
    for lane in &lanes {
        let inbox = &b.inboxes[usize::from(lane.established.shard)];
        assert!(matches!(inbox.next(), Message::Inbound(_)), "the shard that the welcome names");
    }
    for shard in 0..2 {
        let count = lanes.iter().filter(|lane| lane.established.shard == shard).count();
        assert!((12..=20).contains(&count), "{count} of 32 on shard {shard}");
    }
}

/// LOG-005: ten thousand requests for a dead port make few connections, and fail at once.
#[test]
fn requests_for_a_dead_port_make_few_dials() {
    let a = start(1);
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let peer = peer_at(Endpoint::new(dead), epoch(2));
    for n in 0..10_000 {
        a.control.dial_data(Arc::clone(&peer), ShardIndex(n % 2), LaneClass::Small);
        if n == 0 {
            // The first one fails; the others come while the peer is known to be failing.
            assert_eq!(lane_down(&a.inboxes[0]).code(), "connect");
        }
    }
    for (inbox, count) in a.inboxes.iter().zip([4_999, 5_000]) {
        for _ in 0..count {
            let error = lane_down(inbox);
            let Error::Connect { source, .. } = &error else { panic!("{error:?}") };
            assert_eq!(source.errno(), libc::ECONNREFUSED);
        }
    }
    let dials = a.counters().dials.get();
    assert!(dials <= 20, "{dials}");
    assert_eq!(peer.status(), PeerStatus::Live, "unreachable is not the end of an identity");
    // A refresh fails as fast, for the same reason.
    assert_eq!(a.control.refresh(&peer, LONG).unwrap_err().code(), "connect");
    assert_eq!(a.counters().dials.get(), dials);
}

/// CORE-067, lanes: another engine on the port ends the identity, and every shard is told.
#[test]
fn core_067_a_lane_to_another_engine_ends_the_identity() {
    let (a, b) = (start(1), start(2));
    let peer = peer_at(b.endpoint, epoch(9));
    a.control.dial_data(Arc::clone(&peer), ZERO, LaneClass::Bulk);
    let mut messages = [a.inboxes[0].next(), a.inboxes[0].next()];
    messages.sort_by_key(|message| matches!(message, Message::PeerLeft(_)));
    let [Message::LaneDown { error, class, .. }, Message::PeerLeft(left)] = messages else {
        panic!()
    };
    assert_eq!((error.code(), class), ("stale_epoch", LaneClass::Bulk));
    assert!(Arc::ptr_eq(&left, &peer));
    assert!(matches!(a.inboxes[1].next(), Message::PeerLeft(_)));
    assert_eq!(peer.status(), PeerStatus::Stale);
    let dials = a.counters().dials.get();
    a.control.dial_data(Arc::clone(&peer), ONE, LaneClass::Small);
    assert_eq!(lane_down(&a.inboxes[1]).code(), "stale_epoch");
    assert_eq!(a.counters().dials.get(), dials, "an identity that ended is not dialed");
}

/// The source says that it goes; its peers' shards learn it.
#[test]
fn a_closing_source_ends_its_identity_at_its_peers() {
    let (a, b) = (start(1), start(2));
    a.open(&b).unwrap();
    let peer = a.peer(&b);
    a.control.watch(&peer);
    a.control.ping(&peer, LONG).unwrap();
    b.control.close(LONG).unwrap();
    for inbox in &a.inboxes {
        let Message::PeerLeft(left) = inbox.next() else { panic!() };
        assert!(Arc::ptr_eq(&left, &peer));
    }
    assert_eq!(peer.status(), PeerStatus::Closed);
    assert_eq!(a.control.refresh(&peer, LONG).unwrap_err().code(), "peer_closed");
    a.control.dial_data(peer, ZERO, LaneClass::Small);
    assert_eq!(lane_down(&a.inboxes[0]).code(), "peer_closed");
}

/// A full queue of a shard delays what goes there and loses nothing.
#[test]
fn a_full_queue_is_waited_for() {
    let (a, b) = (start(1), start(2));
    for inbox in a.inboxes.iter().chain(&b.inboxes) {
        inbox.full.store(true, Ordering::Release);
    }
    let peer = a.peer(&b);
    for class in [LaneClass::Small, LaneClass::Bulk] {
        a.control.dial_data(Arc::clone(&peer), ZERO, class);
    }
    // Other work goes on meanwhile.
    a.open(&b).unwrap();
    assert!(a.inboxes[0].is_empty());
    for inbox in a.inboxes.iter().chain(&b.inboxes) {
        inbox.full.store(false, Ordering::Release);
    }
    let mut near = [lane_up(&a.inboxes[0]).id, lane_up(&a.inboxes[0]).id];
    let mut far = [inbound(&b).id, inbound(&b).id];
    near.sort_unstable();
    far.sort_unstable();
    assert_eq!(near, far);
}

/// A shard that takes nothing for long loses the connection, not the process.
#[test]
fn a_stuck_shard_loses_its_inbound_connection() {
    let b = start_with(2, |plan| plan.timeouts.handler = Duration::from_millis(300));
    b.inboxes.iter().for_each(|inbox| inbox.full.store(true, Ordering::Release));
    let mut lane = shake(&b, Role::Data);
    assert!(read_to_end(&mut lane.stream).is_empty());
    assert_eq!(b.inspect(|core| core.admission.borrow().judge(0)), admission::Verdict::Admit);
}
