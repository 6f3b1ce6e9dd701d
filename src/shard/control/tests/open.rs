//! Opening, describing, refreshing, discovering.

use std::net::TcpListener;

use super::*;
use crate::protocol::control::catalog::{Describe, Page};
use crate::protocol::handshake::body::{HELLO_LEN, PROOF_MESSAGE_LEN};
use crate::protocol::handshake::source::{AwaitProof, Source, SourceParams, SourceStep};
use crate::protocol::notice::Ping;
use crate::shard::peer::PeerStatus;

#[test]
fn two_engines_open_each_other() {
    let (a, b) = (start(1), start(2));
    b.shelf.put(5, vec![region(1), region(2)]);
    let opened = a.open(&b).unwrap();
    assert_eq!(opened.generation, 5);
    assert_eq!(&opened.regions[..], [region(1), region(2)]);
    assert_eq!(opened.engine, EngineId::of(&b.epoch));
    assert_eq!(opened.limits, limits());
    assert_eq!(b.open(&a).unwrap().regions.len(), 0);

    // The connection is kept: further questions dial nothing.
    let peer = a.peer(&b);
    b.shelf.put(6, vec![region(3)]);
    assert_eq!(a.control.refresh(&peer, LONG).unwrap().generation, 6);
    assert!(a.control.ping(&peer, LONG).unwrap() < LONG);
    assert_eq!(a.open(&b).unwrap().generation, 6);
    assert_eq!((a.counters().dials.get(), b.counters().accepted.get()), (1, 1));
    assert_eq!(a.counters().protocol_violations.get() + b.counters().protocol_violations.get(), 0);
}

#[test]
fn the_smaller_limits_hold() {
    let a = start_with(1, |plan| {
        plan.limits = Negotiated {
            max_message: 1 << 20,
            scatter_ops: 300,
            lane_window: 4,
            payload_crc: true,
        };
    });
    let b = start(2);
    let limits = a.open(&b).unwrap().limits;
    assert_eq!((limits.max_message, limits.scatter_ops, limits.lane_window), (1 << 20, 256, 4));
    assert!(!limits.payload_crc, "only one side wants it");
    assert_eq!(b.open(&a).unwrap().limits, limits);
}

/// CORE-066: a wrong expected epoch is `StaleEpoch`, kept nowhere, and counted at the source.
/// LOG-011: the error names both identities and the address.
#[test]
fn core_066_a_wrong_epoch_is_stale_and_counted() {
    let (a, b) = (start(1), start(2));
    let wrong = epoch(3);
    let error = a.control.open(&peer_at(b.endpoint, wrong), LONG).unwrap_err();
    assert_eq!(error.code(), "stale_epoch");
    let text = error.to_string();
    for part in [
        b.endpoint.to_string(),
        EngineId::of(&b.epoch).to_string(),
        EngineId::of(&wrong).to_string(),
    ] {
        assert!(text.contains(&part), "{text}");
    }
    assert!(!text.contains(&b.epoch.to_hex()) && !text.contains(&wrong.to_hex()), "{text}");
    assert_eq!(
        eventually("the count", || match b.counters().failed_proofs.get() {
            0 => None,
            count => Some(count),
        }),
        1
    );
    eventually("nothing kept", || a.inspect(|core| core.clients_len() == 0).then_some(()));
    assert!(a.open(&b).is_ok(), "the right epoch is not concerned");
}

/// CORE-067, the control plane's half: a source that restarted on the same port is not the old one.
#[test]
fn core_067_a_restarted_peer_is_stale_to_its_old_handle() {
    let (a, b) = (start(1), start(2));
    a.open(&b).unwrap();
    let peer = a.peer(&b);
    a.control.watch(&peer);
    let bind = b.endpoint.addr();
    b.control.close(LONG).unwrap();
    eventually("the last word", || (peer.status() == PeerStatus::Closed).then_some(()));
    let c = start_with(3, |plan| plan.bind = bind);
    assert_eq!(c.endpoint, b.endpoint);
    // A handle that did not hear that the old one went finds another engine.
    let deaf = a.peer(&b);
    let error = a.control.refresh(&deaf, LONG).unwrap_err();
    assert_eq!(error.code(), "stale_epoch");
    assert!(error.to_string().contains(&EngineId::of(&c.epoch).to_string()), "{error}");
    assert_eq!(deaf.status(), PeerStatus::Stale);
    assert_eq!(a.control.refresh(&deaf, LONG).unwrap_err().code(), "stale_epoch");
    assert!(a.open(&c).is_ok());
}

/// CORE-105: builds that differ refuse each other, and the requester learns both.
#[test]
fn core_105_another_build_is_named() {
    let b = start(2);
    let mut stream = dial(b.endpoint);
    let (awaiting, hello) =
        Requester::start(RequesterParams { build: [0xab; 8], ..params(&b, Role::Control) });
    stream.write_all(&hello).unwrap();
    let mut challenge = [0; CHALLENGE_LEN];
    stream.read_exact(&mut challenge).unwrap();
    let error = awaiting.challenge(&challenge).unwrap_err().to_string();
    assert!(error.contains("abababababababab"), "{error}");
    assert!(read_to_end(&mut stream).is_empty());
    eventually("the count", || (b.counters().refused.get() == 1).then_some(()));

    // The same seen through an engine: a source of another build.
    let a = start(1);
    let fake = Fake::new(4, [0xcd; 8]);
    let (endpoint, epoch) = (fake.endpoint(), fake.epoch);
    let server = std::thread::Builder::new().spawn(move || fake.accept_hello().is_none());
    let error = a.control.open(&peer_at(endpoint, epoch), LONG).unwrap_err();
    assert_eq!(error.code(), "unavailable");
    assert!(error.to_string().contains("cdcdcdcdcdcdcdcd"), "{error}");
    assert!(error.to_string().contains(&endpoint.to_string()), "{error}");
    assert!(server.unwrap().join().unwrap(), "nothing but a refusal was sent");
}

/// CORE-109: another key, or a key on one side only, opens nothing; the previous key works at the source.
#[test]
fn core_109_keys_must_match_and_can_be_rotated() {
    let key = |byte: u8| Some(Arc::<[u8]>::from([byte; 32]));
    let keyed = |byte: u8, psk: Option<u8>, previous: Option<u8>| {
        start_with(byte, |plan| {
            plan.keys = Keys { psk: psk.and_then(key), previous: previous.and_then(key) };
        })
    };
    let b = keyed(2, Some(1), Some(9));
    for (byte, psk) in [(1, None), (3, Some(7))] {
        let error = keyed(byte, psk, None).open(&b).unwrap_err();
        assert_eq!(error.code(), "stale_epoch", "{psk:?}");
        assert!(error.to_string().contains("security.psk_file"), "{error}");
    }
    assert!(keyed(4, Some(1), None).open(&b).is_ok());
    assert!(keyed(5, Some(9), None).open(&b).is_ok(), "the previous key, at the source");
    let old = keyed(6, Some(9), None);
    assert_eq!(b.open(&old).unwrap_err().code(), "stale_epoch", "a requester has one key");
}

/// CORE-079: the epoch is told to nobody by default, and to loopback where that is asked for.
#[test]
fn core_079_discovery_is_never_by_default() {
    let a = start(1);
    let closed = start(2);
    let error = a.control.discover(closed.endpoint, LONG).unwrap_err();
    assert_eq!(error.code(), "unavailable");
    assert!(error.to_string().contains("security.discovery"), "{error}");
    for discovery in [Discovery::Loopback, Discovery::Always] {
        let told = start_with(3, |plan| plan.discovery = discovery);
        assert_eq!(a.control.discover(told.endpoint, LONG).unwrap(), told.epoch);
        assert!(a.open(&told).is_ok());
    }
}

/// LOG-050: IPv6 alone, with the same address type everywhere.
#[test]
fn an_engine_on_ipv6_is_opened() {
    let v6 = |plan: &mut ControlPlan| plan.bind = "[::1]:0".parse().unwrap();
    let (a, b) = (start_with(1, v6), start_with(2, v6));
    assert!(b.endpoint.to_string().starts_with("[::1]:"));
    b.shelf.put(2, vec![region(4)]);
    assert_eq!(a.open(&b).unwrap().regions.len(), 1);
    // A wildcard of IPv6 serves IPv4 too, and knows its clients by their IPv4 address.
    let c = start_with(3, |plan| {
        plan.bind = "[::]:0".parse().unwrap();
        plan.allow_peer = Box::new(|ip| ip == std::net::IpAddr::from([127, 0, 0, 1]));
    });
    let port = c.endpoint.addr().port();
    let v4 = Endpoint::new(([127, 0, 0, 1], port).into());
    assert!(a.control.open(&peer_at(v4, c.epoch), LONG).is_ok());
}

/// CORE-080: a hundred thousand regions come over pages of one snapshot, whatever is registered
/// meanwhile.
#[test]
fn core_080_a_walk_sees_one_generation() {
    let (a, b) = (start(1), start(2));
    b.shelf.put(3, (0..100_000).map(region).collect());
    let opened = a.open(&b).unwrap();
    assert_eq!((opened.generation, opened.regions.len()), (3, 100_000));
    assert!(opened.regions.iter().zip(0..).all(|(found, id)| *found == region(id)));

    let mut raw = shake(&b, Role::Control);
    let ask = |raw: &mut Raw, describe: Describe| {
        raw.send(Kind::Describe, &describe.encode());
        let (header, meta, payload) = raw.receive().unwrap();
        assert_eq!(header.kind, Kind::Page);
        (Page::decode(&meta, header.data_len).unwrap(), payload)
    };
    let first = Describe { cursor: 0, generation: 0 };
    let (page, _) = ask(&mut raw, first);
    assert_eq!((page.generation, page.next_cursor, page.count), (3, 512, 512));
    b.shelf.put(4, vec![region(7)]);
    let second = page.next(&first).unwrap().unwrap();
    let (page, payload) = ask(&mut raw, second);
    assert_eq!((page.generation, page.count), (3, 512), "the walk keeps its snapshot");
    assert_eq!(payload[..72], region(512).encode());
    // A generation that is not that of the walk begins with what is there now.
    let (page, _) = ask(&mut raw, Describe { cursor: 512, generation: 99 });
    assert_eq!((page.generation, page.next_cursor, page.count), (4, 0, 1));
}

/// A source made by hand, for what an honest one never does.
struct Fake {
    listener: TcpListener,
    epoch: SourceEpoch,
    params: SourceParams,
}

impl Fake {
    fn new(byte: u8, build: [u8; 8]) -> Self {
        let epoch = epoch(byte);
        let limits = Limits::new(1 << 20, 64, 8);
        let params = SourceParams::new(epoch, None, None, build, Features::default(), limits);
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), epoch, params }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::new(self.listener.local_addr().unwrap())
    }

    /// Accepts, reads a Hello and answers it.
    fn accept_hello(&self) -> Option<(TcpStream, AwaitProof)> {
        let (mut stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello).unwrap();
        match Source::hello(&self.params, &hello, [5; 16]) {
            Ok(SourceStep::Await(awaiting, challenge)) => {
                stream.write_all(&challenge).unwrap();
                Some((stream, awaiting))
            }
            Ok(SourceStep::Discover(_)) => None,
            Err(reject) => {
                stream.write_all(&reject.reply.unwrap()).unwrap();
                None
            }
        }
    }

    /// The same to the end of the handshake.
    fn accept(&self) -> Raw {
        let (mut stream, awaiting) = self.accept_hello().unwrap();
        let mut proof = [0; PROOF_MESSAGE_LEN];
        stream.read_exact(&mut proof).unwrap();
        let proven = awaiting.proof(&proof).unwrap();
        stream.write_all(&proven.welcome(1, 0, 1)).unwrap();
        let limits = FrameLimits::control(Direction::ToSource);
        let reader = FrameReader::new(limits, HEADER_LEN);
        let established = Established {
            connection: 1,
            shard: 0,
            generation: 1,
            limits: proven.limits,
            features: proven.features,
        };
        Raw { stream, established, outgoing: Outgoing::new(false), reader }
    }
}

/// A catalog that changes under the walk is read anew, three times; then the caller is told.
#[test]
fn a_restless_catalog_is_read_anew_three_times() {
    let a = start(1);
    for (changes, succeeds) in [(1, true), (3, true), (100, false)] {
        let fake = Fake::new(4, build_id());
        let (endpoint, epoch) = (fake.endpoint(), fake.epoch);
        let server = std::thread::Builder::new().spawn(move || {
            let mut raw = fake.accept();
            let mut generation = 1;
            while let Some((header, meta, _)) = raw.receive() {
                assert_eq!(header.kind, Kind::Describe);
                let asked = Describe::decode(&meta).unwrap();
                if asked.generation != 0 && generation <= changes {
                    generation += 1;
                }
                let going_on = asked.generation == generation;
                let next_cursor = u64::from(!going_on);
                let page = Page { generation, next_cursor, count: 1 };
                let payload = region(generation * 10 + u64::from(going_on)).encode();
                let meta = page.encode();
                let head = raw.outgoing.reply(Kind::Page, header.request_id, &meta, 72);
                raw.stream.write_all(&[&head[..], &meta, &payload].concat()).unwrap();
            }
        });
        let outcome = a.control.open(&peer_at(endpoint, epoch), LONG);
        if succeeds {
            let opened = outcome.unwrap();
            assert_eq!(opened.generation, changes + 1);
            let ids: Vec<u64> = opened.regions.iter().map(|region| region.key().id).collect();
            assert_eq!(
                ids,
                [(changes + 1) * 10, (changes + 1) * 10 + 1],
                "one generation's regions"
            );
        } else {
            assert_eq!(outcome.unwrap_err().code(), "busy");
        }
        a.control.leave(&peer_at(endpoint, epoch));
        server.unwrap().join().unwrap();
    }
}

/// Frames that come unasked are dealt with wherever they come.
#[test]
fn a_source_may_ping_and_hint_during_a_walk() {
    let a = start(1);
    let fake = Fake::new(4, build_id());
    let (endpoint, epoch) = (fake.endpoint(), fake.epoch);
    let server = std::thread::Builder::new().spawn(move || {
        let mut raw = fake.accept();
        let (asked, _, _) = raw.receive().unwrap();
        raw.send(Kind::Ping, &Ping { opaque: 77 }.encode());
        raw.send(Kind::CatalogChanged, &9_u64.to_le_bytes());
        let meta = Page { generation: 8, next_cursor: 0, count: 0 }.encode();
        let head = raw.outgoing.reply(Kind::Page, asked.request_id, &meta, 0);
        raw.stream.write_all(&[&head[..], &meta].concat()).unwrap();
        let (pong, meta, _) = raw.receive().unwrap();
        assert_eq!((pong.kind, &meta[..8]), (Kind::Pong, &77_u64.to_le_bytes()[..]));
        raw.send(Kind::Ping, &Ping { opaque: 78 }.encode());
        assert_eq!(raw.receive().unwrap().1[..8], 78_u64.to_le_bytes());
    });
    assert_eq!(a.control.open(&peer_at(endpoint, epoch), LONG).unwrap().generation, 8);
    server.unwrap().join().unwrap();
}

/// 4.9: an idle control connection is asked for a sign of life; the third unanswered ping ends it.
#[test]
fn a_peer_that_answers_no_ping_is_cut_and_counted() {
    let a = start_with(1, |plan| plan.timeouts.ping = Duration::from_millis(100));
    let fake = Fake::new(4, build_id());
    let (endpoint, epoch) = (fake.endpoint(), fake.epoch);
    let server = std::thread::Builder::new().spawn(move || {
        let mut raw = fake.accept();
        let (asked, _, _) = raw.receive().unwrap();
        let meta = Page { generation: 1, next_cursor: 0, count: 0 }.encode();
        let head = raw.outgoing.reply(Kind::Page, asked.request_id, &meta, 0);
        raw.stream.write_all(&[&head[..], &meta].concat()).unwrap();
        // Two are answered, then none.
        for _ in 0..2 {
            let (ping, meta, _) = raw.receive().unwrap();
            assert_eq!(ping.kind, Kind::Ping);
            let head = raw.outgoing.reply(Kind::Pong, ping.request_id, &meta, 0);
            raw.stream.write_all(&[&head[..], &meta].concat()).unwrap();
        }
        std::iter::from_fn(|| raw.receive()).filter(|(ping, _, _)| ping.kind == Kind::Ping).count()
    });
    a.control.open(&peer_at(endpoint, epoch), LONG).unwrap();
    let peer = peer_at(endpoint, epoch);
    a.control.watch(&peer);
    assert_eq!(server.unwrap().join().unwrap(), 3);
    assert_eq!(a.counters().silent_peers.get(), 1);
    assert_eq!(peer.status(), PeerStatus::Live, "silence is not the end of an identity");
}

/// The same at the source: a requester pings, so silence means that it is gone.
#[test]
fn a_requester_that_is_silent_is_cut_and_an_idle_one_stays() {
    let quick = |plan: &mut ControlPlan| plan.timeouts.ping = Duration::from_millis(100);
    let (a, b) = (start_with(1, quick), start_with(2, quick));
    a.open(&b).unwrap();
    let mut silent = shake(&b, Role::Control);
    assert!(silent.receive().is_none());
    eventually("the count", || (b.counters().silent_peers.get() == 1).then_some(()));
    a.control.ping(&a.peer(&b), LONG).unwrap();
    assert_eq!(a.counters().dials.get(), 1, "an idle engine kept its connection");
}

/// CORE-068: an impostor with a key of its own gets a Hello, and after its answer nothing at all.
#[test]
fn core_068_an_impostor_gets_no_proof() {
    let a = start(1);
    let real = epoch(2);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::new(listener.local_addr().unwrap());
    let server = std::thread::Builder::new().spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello).unwrap();
        // It answers in the name of the expected engine, with a proof by another secret.
        let limits = Limits::new(1 << 20, 64, 8);
        let own = epoch(9);
        let params = SourceParams::new(own, None, None, build_id(), Features::default(), limits);
        let mut bent = hello;
        let own_id = EngineId::of(&own).to_bytes();
        let real_id = EngineId::of(&real).to_bytes();
        let at = find(&hello, &real_id).unwrap();
        bent[at..at + 16].copy_from_slice(&own_id);
        let Ok(SourceStep::Await(_, mut challenge)) = Source::hello(&params, &bent, [5; 16]) else {
            panic!("the bent hello names the impostor");
        };
        let at = find(&challenge, &own_id).unwrap();
        challenge[at..at + 16].copy_from_slice(&real_id);
        stream.write_all(&challenge).unwrap();
        (hello, read_to_end(&mut stream))
    });
    let error = a.control.open(&peer_at(endpoint, real), LONG).unwrap_err();
    assert_eq!(error.code(), "stale_epoch");
    let (hello, after) = server.unwrap().join().unwrap();
    assert!(after.is_empty(), "{} bytes after the challenge", after.len());
    assert_eq!(find(&hello, real.secret_bytes()), None, "the epoch does not travel");
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// LOG-014: any start order within the deadline.
#[test]
fn a_peer_that_does_not_listen_yet_is_waited_for() {
    let a = start(1);
    let bind = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let later = std::thread::Builder::new().spawn(move || {
        eventually_after(Duration::from_millis(400));
        start_with(2, |plan| plan.bind = bind)
    });
    let opened = a.control.open(&peer_at(Endpoint::new(bind), epoch(2)), LONG);
    let b = later.unwrap().join().unwrap();
    assert_eq!(opened.unwrap().engine, EngineId::of(&b.epoch));
    assert!(a.counters().failed_dials.get() >= 1);
}

/// And where nobody comes, the caller learns at its deadline what stood in the way.
#[test]
fn a_peer_that_never_listens_is_a_refused_connection() {
    let a = start(1);
    let bind = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = a
        .control
        .open(&peer_at(Endpoint::new(bind), epoch(2)), Duration::from_millis(300))
        .unwrap_err();
    let Error::Connect { endpoint, source } = &error else { panic!("{error:?}") };
    assert_eq!((endpoint, source.errno()), (&bind.to_string(), libc::ECONNREFUSED));
    assert!(error.to_string().contains("running and listening"), "{error}");
    assert!(a.counters().dials.get() <= 12, "short back-off, not a storm");
    eventually("nothing kept", || a.inspect(|core| core.clients_len() == 0).then_some(()));
}

/// LOG-004: every dial is bounded, whatever the other side does with it.
#[test]
fn a_silent_peer_costs_its_timeout_and_nothing_else() {
    let a = start_with(1, |plan| plan.timeouts.connect = Duration::from_millis(300));
    // Takes the connection in the kernel and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::new(silent.local_addr().unwrap());
    let error = a.control.open(&peer_at(endpoint, epoch(2)), LONG).unwrap_err();
    assert_eq!(error.code(), "timeout");
    assert!(error.to_string().contains("did not answer the handshake"), "{error}");
    let error =
        a.control.open(&peer_at(endpoint, epoch(2)), Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.code(), "timeout", "the caller's deadline is earlier");

    // A queue that is full drops what comes: the address leads nowhere.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let at = full.local_addr().unwrap().as_socket().unwrap();
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&at, Duration::from_millis(200)) {
        held.push(stream);
    }
    let error = a.control.open(&peer_at(Endpoint::new(at), epoch(2)), LONG).unwrap_err();
    let Error::Connect { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.errno(), libc::ETIMEDOUT);
    eventually("nothing kept", || a.inspect(|core| core.clients_len() == 0).then_some(()));
}

#[expect(clippy::disallowed_methods, reason = "a test that starts something later")]
fn eventually_after(delay: Duration) {
    std::thread::sleep(delay);
}
