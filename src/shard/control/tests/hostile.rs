//! Clients that do not keep to the rules, and limits.

use super::*;
use crate::protocol::control::catalog::Describe;
use crate::protocol::notice::Ping;

/// 4.10: noise is closed after 128 bytes at most, without an answer.
#[test]
fn noise_is_closed_without_a_word() {
    let b = start(2);
    let mut seed = 0x9e37_79b9_u64;
    for n in 0..40_usize {
        let mut noise = vec![0; 8 + n * 3];
        for byte in &mut noise {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (seed >> 33) as u8;
        }
        let mut stream = dial(b.endpoint);
        stream.write_all(&noise).unwrap();
        assert!(read_to_end(&mut stream).is_empty());
    }
    // The right first bytes and noise after them.
    for at in [16, 20, 90, 127] {
        let (_, hello) = Requester::start(params(&b, Role::Control));
        let mut bent = hello;
        bent[at] ^= 0xff;
        let mut stream = dial(b.endpoint);
        stream.write_all(&bent).unwrap();
        assert!(read_to_end(&mut stream).len() <= CHALLENGE_LEN);
    }
    let violations = || b.counters().protocol_violations.get();
    eventually("the count", || (violations() >= 40).then_some(()));
    assert!(start(1).open(&b).is_ok());
}

/// CORE-102, in short: idlers take all slots, the oldest gives way, and an honest peer comes in.
#[test]
fn core_102_idlers_do_not_keep_an_honest_peer_out() {
    let b = start_with(2, |plan| plan.inbound.handshake_timeout = LONG);
    let proven = start(3);
    proven.open(&b).unwrap();
    let mut idlers: Vec<TcpStream> = (0..80).map(|_| dial(b.endpoint)).collect();
    for idler in &mut idlers {
        // One byte of a right Hello each; some of them are closed already.
        let _displaced = idler.write_all(&[0x8f]);
    }
    assert!(start(1).open(&b).is_ok());
    eventually("the count", || (b.counters().refused.get() >= 16).then_some(()));
    assert!(b.inspect(|core| core.unproven()) <= 64);
    assert!(read_to_end(&mut idlers[0]).is_empty(), "the oldest was closed");
    let peer = proven.peer(&b);
    proven.control.ping(&peer, LONG).unwrap();
    assert_eq!(proven.counters().dials.get(), 1, "a proven peer noticed nothing");
}

/// The deadline of a handshake is one for all of it.
#[test]
fn a_handshake_has_one_deadline() {
    let b = start_with(2, |plan| plan.inbound.handshake_timeout = Duration::from_millis(300));
    let mut idle = dial(b.endpoint);
    let (mut half, _, _) = shake_to_proof(&b, Role::Data);
    assert!(read_to_end(&mut idle).is_empty() && read_to_end(&mut half).is_empty());
    eventually("the count", || (b.counters().handshake_timeouts.get() == 2).then_some(()));
}

/// A wrong proof ends its connection without a word, and is counted.
#[test]
fn a_wrong_proof_is_not_answered() {
    let b = start(2);
    for _ in 0..3 {
        let (mut stream, _, mut proof) = shake_to_proof(&b, Role::Data);
        proof[5] ^= 1;
        stream.write_all(&proof).unwrap();
        assert!(read_to_end(&mut stream).is_empty());
    }
    eventually("the count", || (b.counters().failed_proofs.get() == 3).then_some(()));
    assert!(b.inboxes.iter().all(|inbox| inbox.is_empty()), "no shard saw anything");
}

/// CORE-104: what was recorded is of no use in another connection.
#[test]
fn core_104_a_replayed_handshake_is_refused() {
    let b = start(2);
    let (_, hello) = Requester::start(params(&b, Role::Control));
    let (_first, _, proof) = shake_to_proof(&b, Role::Control);
    let mut stream = dial(b.endpoint);
    stream.write_all(&[&hello[..], &proof].concat()).unwrap();
    let answer = read_to_end(&mut stream);
    assert_eq!(answer.len(), CHALLENGE_LEN, "a challenge, and no welcome");
    eventually("the count", || (b.counters().failed_proofs.get() == 1).then_some(()));
}

/// CORE-111: who is not allowed is closed before a byte is read.
#[test]
fn core_111_a_client_that_is_not_allowed_is_closed_at_accept() {
    let b = start_with(2, |plan| plan.allow_peer = Box::new(|ip| !ip.is_loopback()));
    assert!(read_to_end(&mut dial(b.endpoint)).is_empty());
    let error = start(1).open(&b).unwrap_err();
    assert_eq!(error.code(), "connect");
    assert!(error.to_string().contains("security.allow_peers"), "{error}");
    assert!(b.counters().refused.get() >= 2);
}

#[test]
fn connections_are_counted_until_their_sockets_close() {
    let b = start_with(2, |plan| plan.inbound.max_connections = 2);
    let first = shake(&b, Role::Control);
    let lane = shake(&b, Role::Data);
    assert!(read_to_end(&mut dial(b.endpoint)).is_empty(), "full: closed at accept");
    drop(first);
    let _second = eventually("room", || {
        let free = b.inspect(|core| core.admission.borrow().judge(0));
        (free == admission::Verdict::Admit).then(|| shake(&b, Role::Control))
    });
    // A lane is the shard's: it counts until the shard lets it go.
    drop(lane);
    let inbound = b.inboxes.iter().find(|inbox| !inbox.is_empty()).unwrap().next();
    let full = || b.inspect(|core| core.admission.borrow().judge(0)) == admission::Verdict::Refuse;
    assert!(full());
    drop(inbound);
    assert!(!full());
}

#[test]
fn one_address_has_its_limit_and_is_told() {
    let b = start_with(2, |plan| plan.inbound.max_connections_per_ip = 1);
    let a = start(1);
    a.open(&b).unwrap();
    let error = start(3).open(&b).unwrap_err();
    assert_eq!(error.code(), "busy");
    assert!(error.to_string().contains("inbound.max_connections_per_ip"), "{error}");
    a.control.ping(&a.peer(&b), LONG).unwrap();
}

/// CORE-101, control frames: a wrong checksum, sequence, type or reserved bit cuts that connection alone.
#[test]
fn core_101_a_bad_frame_cuts_its_connection() {
    let b = start(2);
    let a = start(1);
    a.open(&b).unwrap();
    for at in [0, 1, 2, 7, 10, 24, 28, 40] {
        let mut raw = shake(&b, Role::Control);
        raw.send(Kind::Ping, &Ping { opaque: 1 }.encode());
        assert_eq!(raw.receive().unwrap().0.kind, Kind::Pong);
        let meta = Ping { opaque: 2 }.encode();
        let mut frame = [&raw.outgoing.request(Kind::Ping, &meta, 0).0[..], &meta].concat();
        frame[at] ^= 0x80;
        raw.stream.write_all(&frame).unwrap();
        assert!(read_to_end(&mut raw.stream).is_empty(), "byte {at}");
    }
    eventually("the count", || (b.counters().protocol_violations.get() == 8).then_some(()));
    // A data frame over a control connection, and half a frame.
    let mut raw = shake(&b, Role::Control);
    raw.send(Kind::Write, &[0; 40]);
    assert!(read_to_end(&mut raw.stream).is_empty());
    let mut raw = shake(&b, Role::Control);
    raw.stream.write_all(&[1; 7]).unwrap();
    drop(raw);
    a.control.ping(&a.peer(&b), LONG).unwrap();
    assert_eq!(a.counters().dials.get(), 1, "another connection noticed nothing");
}

/// A client that asks and never reads is cut; nobody else waits for it.
#[test]
fn a_client_that_never_reads_is_cut() {
    let b = start_with(2, |plan| plan.timeouts.handler = Duration::from_millis(500));
    b.shelf.put(2, (0..100_000).map(region).collect());
    let mut raw = shake(&b, Role::Control);
    raw.stream.set_write_timeout(Some(LONG)).unwrap();
    let meta = Describe { cursor: 0, generation: 0 }.encode();
    let flood = loop {
        let (head, _) = raw.outgoing.request(Kind::Describe, &meta, 0);
        if let Err(error) = raw.stream.write_all(&[&head[..], &meta].concat()) {
            break error;
        }
    };
    assert_ne!(flood.kind(), std::io::ErrorKind::WouldBlock, "cut, not stuck");
    assert!(start(1).open(&b).is_ok());
}

/// CORE-103, in short: a flood of connections leaves nothing behind.
#[test]
fn core_103_a_flood_leaves_nothing_behind() {
    let b = start(2);
    for _ in 0..500 {
        drop(dial(b.endpoint));
    }
    eventually("all accepted", || (b.counters().accepted.get() == 500).then_some(()));
    eventually("none left", || b.inspect(|core| core.unproven() == 0).then_some(()));
    assert!(start(1).open(&b).is_ok());
}
