//! Construction, endpoints, epochs, and what two engines of one process do together.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use common::child::{Part, part};
use common::{Pair, SOON, engine, engine_with, eventually, pattern, pause, threads};
use orbite::{
    EngineConfig, Error, Permission, PinMode, SourceEpoch, TransferEngine, TransferOp,
    TransferRequest, Transport,
};

/// CORE-001: one numeric loopback endpoint with the real port, and resolved automatic values.
#[test]
fn core_001_defaults_listen_once_on_loopback_and_show_what_was_chosen() {
    let engine = engine();
    let address: SocketAddr = engine.endpoint().parse().unwrap();
    assert!(address.ip().is_loopback() && address.port() != 0);
    let config = engine.config();
    assert!(config.shards.count >= 1);
    assert_eq!(config.shards.cores.len(), usize::from(config.shards.count));
    assert_eq!(config.bind_addr, engine.endpoint());
    assert_eq!(listeners_at(address.port()), 1);
    assert!(engine.transport_installed(Transport::Tcp));
    assert!(!engine.transport_installed(Transport::Shm));
    engine.close(SOON).unwrap();
    assert_eq!(listeners_at(address.port()), 0, "the listener is gone after a close");
}

/// Listening TCP sockets of this network namespace with that port.
fn listeners_at(port: u16) -> usize {
    const LISTEN: &str = "0A";
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .map(|table| {
            let listens = |line: &&str| {
                let mut fields = line.split_whitespace().skip(1);
                let local = fields.next().unwrap_or_default().to_owned();
                let state = fields.nth(1).unwrap_or_default();
                local.ends_with(&format!(":{port:04X}")) && state == LISTEN
            };
            table.lines().filter(listens).count()
        })
        .sum()
}

/// CORE-002: engines of one process differ, and so do all epochs.
#[test]
fn core_002_epochs_and_endpoints_are_never_the_same() {
    let (one, two) = (engine(), engine());
    assert_ne!(one.source_epoch(), two.source_epoch());
    assert_ne!(one.endpoint(), two.endpoint());
    let mut seen = HashSet::new();
    for _ in 0..10_000 {
        let epoch = orbite::testing::new_epoch().unwrap();
        assert_ne!(epoch.to_hex(), "0".repeat(32));
        assert!(seen.insert(epoch), "an epoch came twice");
    }
    for _ in 0..20 {
        assert!(seen.insert(engine().source_epoch()));
    }
}

/// CORE-004: a wildcard bind needs the address that peers are told.
#[test]
fn core_004_a_wildcard_bind_needs_an_advertised_address() {
    let mut config = EngineConfig::default();
    config.bind_addr = "0.0.0.0:0".into();
    let refused = TransferEngine::new(config.clone()).unwrap_err();
    assert!(matches!(refused, Error::InvalidConfig(_)), "{refused}");
    assert!(refused.to_string().contains("advertise_addr"), "{refused}");
    config.advertise_addr = Some("127.0.0.1".parse().unwrap());
    let engine = TransferEngine::new(config).unwrap();
    let port = engine.config().bind_addr.parse::<SocketAddr>().unwrap().port();
    assert_eq!(engine.endpoint(), format!("127.0.0.1:{port}"));
}

#[test]
fn a_taken_port_is_named_and_a_span_goes_on_to_the_next() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let mut config = EngineConfig::default();
    config.bind_addr = address.clone();
    let refused = TransferEngine::new(config.clone()).unwrap_err().to_string();
    assert!(refused.contains(&address), "{refused}");
    config.bind_port_span = 200;
    let engine = TransferEngine::new(config).unwrap();
    assert_ne!(engine.endpoint(), address);
}

/// CORE-066: a wrong expected epoch is stale, and nothing of it stays.
#[test]
fn core_066_a_wrong_epoch_is_stale_and_nothing_is_cached() {
    let (source, requester) = (engine(), engine());
    let wrong = SourceEpoch::from_hex(&"5c".repeat(16)).unwrap();
    let error = requester.open_segment(source.endpoint(), wrong, SOON).unwrap_err();
    assert!(matches!(error, Error::StaleEpoch { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&source.engine_id().to_string()), "names the engine found: {text}");
    assert!(!text.contains("5c5c"), "no epoch in an error: {text}");
    assert_eq!(requester.stats().peer_segments, 0);
    assert_eq!(source.stats().failed_proofs, 1);
}

/// CORE-070: a segment belongs to the engine that opened it.
#[test]
fn core_070_a_segment_of_another_engine_is_refused() {
    let pair = Pair::new(4096, Permission::RemoteReadWrite);
    let other = engine();
    let local = other.register_memory(vec![0; 4096], Permission::Local).unwrap();
    let (from, to) = (local.address(), pair.remote.address());
    let request = TransferRequest::new(Transport::Unspec, from, to, 10);
    let refused =
        other.submit_and_wait(TransferOp::Write, &pair.target(), &[request], SOON).unwrap_err();
    assert!(matches!(refused, Error::InvalidConfig(_)), "{refused}");
    let refused = other.refresh_segment(&pair.segment, SOON).unwrap_err();
    assert!(matches!(refused, Error::InvalidConfig(_)), "{refused}");
}

/// CORE-078: endpoints are numeric; nothing is looked up.
#[test]
fn core_078_names_and_garbage_are_refused_without_a_look_up() {
    let engine = engine();
    let epoch = engine.source_epoch();
    for bad in ["localhost:1", "peer.example:9000", "", "127.0.0.1", "127.0.0.1:0", "::1:80", "x"] {
        let refused = engine.open_segment(bad, epoch, SOON).unwrap_err();
        assert!(matches!(refused, Error::InvalidRequest(_)), "{bad:?}: {refused}");
    }
    let refused = engine.open_segment("127.0.0.1:9", None, SOON).unwrap_err();
    assert!(refused.to_string().contains("epoch"), "{refused}");
}

/// CORE-045: the own engine is a peer like any other.
#[test]
fn core_045_an_engine_is_its_own_peer() {
    let engine = engine();
    let remote = engine.register_memory(vec![0; 100_000], Permission::RemoteReadWrite).unwrap();
    let local = engine.register_memory(pattern(3, 100_000), Permission::Local).unwrap();
    let segment = engine.open_segment(engine.descriptor(), None, SOON).unwrap();
    let request = TransferRequest::new(Transport::Tcp, local.address(), remote.address(), 100_000);
    let target = (&segment).into();
    let report = engine.submit_and_wait(TransferOp::Write, &target, &[request], SOON).unwrap();
    assert!(report.is_complete(), "{:?}", report.failure);
    assert_eq!(common::bytes(&remote), pattern(3, 100_000));
}

#[test]
fn a_descriptor_opens_and_hides_its_secret() {
    let pair = Pair::new(64, Permission::RemoteRead);
    let descriptor = pair.source.descriptor();
    assert!(!format!("{descriptor:?}").contains(&pair.source.source_epoch().to_hex()));
    let segment = pair.requester.open_segment(descriptor, None, SOON).unwrap();
    assert_eq!(segment.engine_id(), pair.source.engine_id());
    assert!(!format!("{segment:?}").contains(&pair.source.source_epoch().to_hex()));
    assert_eq!(pair.requester.stats().peer_segments, 1, "one identity, however often it is opened");
}

#[test]
fn every_call_of_a_closed_engine_says_so() {
    let pair = Pair::new(4096, Permission::RemoteReadWrite);
    pair.requester.close(SOON).unwrap();
    pair.requester.close(SOON).unwrap();
    let closed = |error: Error| assert!(matches!(error, Error::Closed), "{error}");
    closed(pair.run(TransferOp::Read, &[pair.request(0, 0, 10)]).unwrap_err());
    closed(pair.requester.register_memory(vec![0; 10], Permission::Local).unwrap_err());
    closed(pair.requester.refresh_segment(&pair.segment, SOON).unwrap_err());
    let endpoint = pair.source.endpoint().to_owned();
    closed(pair.requester.open_segment(endpoint, pair.source.source_epoch(), SOON).unwrap_err());
    assert_eq!(common::bytes(&pair.local), pattern(2, 4096), "memory outlives its engine");
}

#[test]
fn a_peer_that_closed_is_told_apart_from_one_that_is_gone() {
    let pair = Pair::new(4096, Permission::RemoteReadWrite);
    pair.complete(TransferOp::Read, &[pair.request(0, 0, 4096)]);
    pair.source.close(SOON).unwrap();
    let outcome = pair.requester.submit_and_wait(
        TransferOp::Read,
        &pair.target(),
        &[pair.request(0, 0, 4096)],
        Duration::from_secs(5),
    );
    let error = match outcome {
        Err(error) => error,
        Ok(report) => report.failure.unwrap().error,
    };
    let told =
        matches!(error, Error::PeerClosed { .. } | Error::Connect { .. } | Error::Transport { .. });
    assert!(told, "{error}");
}

/// The process of a test that counts what is left, if this is one.
#[test]
fn process_of_its_own() {
    match part() {
        None => {}
        Some((name, _)) if name == "leave nothing" => leave_nothing(),
        Some((name, _)) => panic!("no part {name}"),
    }
}

#[test]
fn many_engines_start_at_once_and_leave_nothing() {
    Part::start("process_of_its_own", "leave nothing", "").succeed();
}

/// Descriptors and threads of this process, one descriptor of them the folder's.
fn left() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (descriptors, threads(std::process::id()).len())
}

fn leave_nothing() {
    // What the process keeps for all engines is made by the first ones.
    use_two_engines();
    eventually("they are gone", || engines_threads() == 0);
    // Their connections may end a moment later.
    pause(Duration::from_secs(1));
    let before = left();
    for round in 0..3 {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(use_two_engines);
            }
        });
        eventually(&format!("{before:?} are left after round {round}"), || left() == before);
    }
}

/// Bytes both ways on both kinds of lane between two engines that are dropped without a close.
fn use_two_engines() {
    let start = || engine_with(|config| config.shards.count = 1);
    let pair = Pair::of(start(), start(), 2 << 20, Permission::RemoteReadWrite);
    for op in [TransferOp::Write, TransferOp::Read] {
        for length in [4096, 2 << 20] {
            pair.complete(op, &[pair.request(0, 0, length)]);
        }
    }
}

/// Shard threads of this process.
fn engines_threads() -> usize {
    let shared = ["orbite-control", "orbite-reaper"];
    let is_shard = |name: &str| name.starts_with("orbite-") && !shared.contains(&name);
    threads(std::process::id()).iter().filter(|(_, name)| is_shard(name)).count()
}

/// Two shards in each engine: whichever one a call or a connection comes to, the bytes are right.
#[test]
fn engines_of_two_shards_move_bytes_both_ways() {
    const SIZE: usize = 3 << 20;
    const PART: u64 = 64 << 10;
    let start = || {
        engine_with(|config| {
            config.shards.count = 2;
            config.shards.pin = PinMode::Off;
        })
    };
    let pair = Pair::of(start(), start(), SIZE, Permission::RemoteReadWrite);
    for engine in [&pair.source, &pair.requester] {
        assert_eq!(engine.config().shards.count, 2);
        assert_eq!(common::engine_threads(engine).len(), 2);
    }
    // Calls are spread over the shards, so enough of them meet both.
    for round in 0..16u64 {
        let (sent, taken) = (pattern(10 + round, SIZE), pattern(100 + round, SIZE));
        pair.local.write_at(0, &sent).unwrap();
        pair.complete(TransferOp::Write, &[pair.request(0, 0, SIZE as u64)]);
        assert!(common::bytes(&pair.remote) == sent, "round {round}");
        pair.remote.write_at(0, &taken).unwrap();
        pair.complete(TransferOp::Read, &[pair.request(0, 0, SIZE as u64)]);
        assert!(common::bytes(&pair.local) == taken, "round {round}");
        // Small ones, in the opposite order there.
        let parts = SIZE as u64 / PART;
        let turned: Vec<_> =
            (0..parts).map(|at| pair.request(at * PART, (parts - 1 - at) * PART, 4096)).collect();
        pair.complete(TransferOp::Write, &turned);
        let mut expected = taken.clone();
        for at in 0..parts as usize {
            let (from, to) = (at * PART as usize, (parts as usize - 1 - at) * PART as usize);
            expected[to..to + 4096].copy_from_slice(&taken[from..from + 4096]);
        }
        assert!(common::bytes(&pair.remote) == expected, "round {round}");
        pair.local.write_at(0, &vec![0; SIZE]).unwrap();
        pair.complete(TransferOp::Read, &turned);
        let local = common::bytes(&pair.local);
        for at in 0..parts as usize {
            let (to, from) = (at * PART as usize, (parts as usize - 1 - at) * PART as usize);
            assert!(local[to..to + 4096] == expected[from..from + 4096], "round {round} part {at}");
            assert!(local[to + 4096..to + PART as usize].iter().all(|&byte| byte == 0));
        }
    }
    for shard in pair.requester.stats().shards {
        assert!(shard.frames_sent > 0, "a shard that no call came to: {shard:?}");
    }
    for shard in pair.source.stats().shards {
        assert!(shard.frames_served > 0, "a shard that served nothing: {shard:?}");
    }
    // Every shard confirms, and both ends close in order.
    pair.source.unregister_memory(pair.remote).unwrap();
    pair.requester.unregister_memory(pair.local).unwrap();
    assert_eq!(pair.source.stats().retained_after_unregister_bytes, 0);
    pair.requester.close(SOON).unwrap();
    pair.source.close(SOON).unwrap();
}

/// Threads that call at once, each with memory of its own, through engines of two shards.
#[test]
fn threads_share_engines_of_two_shards() {
    const SIZE: usize = 300_000;
    let start = || {
        engine_with(|config| {
            config.shards.count = 2;
            config.shards.pin = PinMode::Off;
        })
    };
    let (one, two) = (start(), start());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (here, there) = if thread % 2 == 0 { (&one, &two) } else { (&two, &one) };
            scope.spawn(move || {
                let pair = Pair::of(there.clone(), here.clone(), SIZE, Permission::RemoteReadWrite);
                for round in 0..20 {
                    let seed = thread << 8 | round;
                    pair.local.write_at(0, &pattern(seed, SIZE)).unwrap();
                    pair.complete(TransferOp::Write, &[pair.request(0, 0, SIZE as u64)]);
                    pair.local.write_at(0, &vec![0; SIZE]).unwrap();
                    pair.complete(TransferOp::Read, &[pair.request(0, 0, SIZE as u64)]);
                    assert!(common::bytes(&pair.local) == pattern(seed, SIZE), "{seed}");
                }
                here.unregister_memory(pair.local).unwrap();
                there.unregister_memory(pair.remote).unwrap();
            });
        }
    });
    for engine in [one, two] {
        assert_eq!(engine.stats().registrations, 0);
        engine.close(SOON).unwrap();
    }
}
