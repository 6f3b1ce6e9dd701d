//! How engines, peers and shards end: handles that go, closes that meet, and calls that meet a close.

mod common;

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{Pair, SOON, engine, engine_with, eventually, now, pause};
use orbite::testing::raw_peer::{RawOp, RawPeer, region_key};
use orbite::{Error, Permission, TransferOp};

/// Connections of this network namespace whose near end has that port.
fn connections_at(port: u16) -> usize {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let connected = |line: &&str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == ESTABLISHED
    };
    table.lines().skip(1).filter(connected).count()
}

/// The last segment of a peer gives back its charge, its lanes and its control connection, without any
/// further call of the engine that opened it.
#[test]
fn the_last_segment_of_a_peer_ends_its_connections() {
    let (source, requester) = (engine(), engine());
    let port = source.endpoint().rsplit_once(':').unwrap().1.parse().unwrap();
    let first = requester.open_segment(source.descriptor(), None, SOON).unwrap();
    let second = requester.refresh_segment(&first, SOON).unwrap();
    let shards = usize::from(requester.config().shards.count);
    eventually("all lanes stand", || connections_at(port) == 1 + shards);
    drop(first);
    requester.ping(&second, SOON).unwrap();
    assert_eq!(requester.stats().peer_segments, 1);
    drop(second);
    eventually("all connections are gone", || connections_at(port) == 0);
    assert_eq!(requester.stats().peer_segments, 0);
}

/// Opens and drops of one peer on many threads meet in every order, and none of them ends another's.
#[test]
fn opens_and_drops_of_one_peer_do_not_disturb_each_other() {
    let (source, requester) = (engine(), engine());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let segment = requester.open_segment(source.descriptor(), None, SOON).unwrap();
                    requester.ping(&segment, SOON).unwrap();
                    assert_eq!(requester.stats().peer_segments, 1);
                }
            });
        }
    });
    assert_eq!(requester.stats().peer_segments, 0);
}

/// Opens in parallel never hold more identities than `max_peer_segments`, and a refused or failed one
/// leaves its place to others.
#[test]
fn opens_in_parallel_keep_the_limit_of_peers() {
    let sources: Vec<_> = (0..6).map(|_| engine()).collect();
    let requester = engine_with(|config| config.max_peer_segments = 2);
    for _ in 0..10 {
        let barrier = Barrier::new(sources.len());
        std::thread::scope(|scope| {
            for source in &sources {
                scope.spawn(|| {
                    barrier.wait();
                    let outcome = requester.open_segment(source.descriptor(), None, SOON);
                    assert!(requester.stats().peer_segments <= 2);
                    barrier.wait();
                    match outcome {
                        Ok(segment) => drop(segment),
                        Err(Error::ResourceExhausted { resource, .. }) => {
                            assert_eq!(resource, "max_peer_segments");
                        }
                        Err(error) => panic!("{error}"),
                    }
                });
            }
        });
        assert_eq!(requester.stats().peer_segments, 0);
    }
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for _ in 0..3 {
        let wait = Duration::from_millis(50);
        let epoch = sources[0].source_epoch();
        requester.open_segment(nobody.to_string(), epoch, wait).unwrap_err();
    }
    let held: Vec<_> =
        sources[..2].iter().map(|s| requester.open_segment(s.descriptor(), None, SOON)).collect();
    assert!(held.iter().all(Result::is_ok));
}

/// Calls that meet a close, also the first of their thread, end soon: with a report, or `Closed`.
#[test]
fn calls_that_meet_a_close_end_soon() {
    const LONG: Duration = Duration::from_secs(600);
    for _ in 0..60 {
        let pair = Pair::new(4096, Permission::RemoteReadWrite);
        let barrier = Barrier::new(5);
        let call = || {
            let (target, requests) = (pair.target(), [pair.request(0, 0, 4096)]);
            barrier.wait();
            let start = now();
            loop {
                let ran =
                    pair.requester.submit_and_wait(TransferOp::Write, &target, &requests, LONG);
                assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
                match ran.map(|report| report.failure.map(|failure| failure.error)) {
                    Ok(None) => {}
                    Ok(Some(Error::Closed)) | Err(Error::Closed) => break,
                    other => panic!("{other:?}"),
                }
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(call)));
            barrier.wait();
            pair.requester.close(SOON).unwrap();
        });
        assert_eq!(pair.requester.stats().retained_after_unregister_bytes, 0);
    }
}

/// Each of several closes at once keeps its own deadline, and all are told of the end.
#[test]
fn closes_at_once_keep_their_own_deadlines() {
    let patient = |config: &mut orbite::EngineConfig| config.tcp_options.stall_timeout_ms = 60_000;
    let pair = Pair::of(engine_with(patient), engine(), 1 << 20, Permission::RemoteReadWrite);
    // Half a WRITE keeps the source busy.
    let mut raw = RawPeer::connect(pair.source.endpoint(), &pair.source.source_epoch()).unwrap();
    let (region, generation) = region_key(&pair.segment, pair.remote.address()).unwrap();
    let range = RawOp::new(region, generation, 0, 1 << 20);
    let frame = raw.frame(TransferOp::Write, &[range], 1 << 20);
    raw.send(&frame).unwrap();
    raw.send(&[7; 1000]).unwrap();
    eventually("the WRITE has begun", || common::bytes(&pair.remote)[..1000] == [7; 1000]);
    let source = &pair.source;
    std::thread::scope(|scope| {
        let (done, results) = channel();
        for _ in 0..2 {
            scope.spawn(|| source.close(Duration::from_secs(600)).unwrap());
        }
        scope.spawn(move || {
            // The others wait by now; should they not, the test is only less strict.
            pause(Duration::from_millis(100));
            for wait in [10, 1, 50] {
                done.send(source.close(Duration::from_millis(wait))).unwrap();
            }
        });
        for _ in 0..3 {
            let result = results.recv_timeout(SOON);
            if !matches!(result, Ok(Err(Error::Unquiesced { .. }))) {
                drop(raw);
                panic!("{result:?}");
            }
        }
        drop(raw);
    });
    source.close(Duration::ZERO).unwrap();
}

/// An engine that sleeps is not busy, and its counts never shrink, also over its end.
#[test]
fn time_asleep_is_not_busy_time() {
    let engine = engine();
    let busy = || engine.stats().shards.iter().map(|shard| shard.busy_ns).sum::<u64>();
    eventually("it sleeps", || engine.stats().shards.iter().all(|shard| shard.sleeps > 0));
    let (before, mut last) = (busy(), 0);
    for _ in 0..20 {
        pause(Duration::from_millis(50));
        let now = busy();
        assert!(now >= last, "{now} after {last}");
        last = now;
    }
    let grown = Duration::from_nanos(last - before);
    assert!(grown < Duration::from_millis(500), "{grown:?} busy in a second of sleep");
    engine.close(SOON).unwrap();
    let end = busy();
    assert!(end >= last, "{end} after {last}");
    pause(Duration::from_millis(20));
    assert_eq!(busy(), end, "what has ended is not busy");
}
