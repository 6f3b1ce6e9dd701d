//! Bytes between two engines over TCP: exactness, permissions, merging, bad requests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Pair, SOON, bytes, engine, engine_with, now, pattern};
use orbite::testing::raw_peer::{RawAnswer, RawOp, RawPeer, region_key};
use orbite::{
    Error, FailureScope, HostAllocation, HostMemory, Permission, RemoteEffect, TransferOp,
    TransferRequest, Transport,
};

/// CORE-034: any length, both directions, and the neighbours stay as they are.
#[test]
fn core_034_lengths_and_neighbours() {
    let edges =
        [1, 2, 63, 4_095, 4_096, 4_097, 65_535, 65_536, 65_537, 262_144, 262_145, 5_000_001];
    let pair = Pair::new(8 << 20, Permission::RemoteReadWrite);
    for (round, length) in edges.into_iter().enumerate() {
        let (local, remote) = (17 + round as u64 * 3, 4_099 + round as u64);
        write_then_read(&pair, local, remote, length);
    }
}

/// CORE-034: the same for 64 MiB, which takes many slices of the bulk lane.
#[test]
fn core_034_sixty_four_mebibytes() {
    let length = 64 << 20;
    let pair = Pair::new(length + 4096, Permission::RemoteReadWrite);
    write_then_read(&pair, 0, 100, length as u64);
}

fn write_then_read(pair: &Pair, local: u64, remote: u64, length: u64) {
    let size = pair.local.length() as usize;
    let (from, to, span) = (local as usize, remote as usize, length as usize);
    let source = pattern(length, size);
    pair.local.write_at(0, &source).unwrap();
    pair.remote.write_at(0, &pattern(1, size)).unwrap();
    pair.complete(TransferOp::Write, &[pair.request(local, remote, length)]);
    let mut expected = pattern(1, size);
    expected[to..to + span].copy_from_slice(&source[from..from + span]);
    assert!(bytes(&pair.remote) == expected, "WRITE of {length}");

    pair.local.write_at(0, &pattern(7, size)).unwrap();
    pair.complete(TransferOp::Read, &[pair.request(local, remote, length)]);
    let mut expected = pattern(7, size);
    expected[from..from + span].copy_from_slice(&source[from..from + span]);
    assert!(bytes(&pair.local) == expected, "READ of {length}");
}

/// CORE-022: two registrations side by side do not join.
#[test]
fn core_022_a_request_across_two_registrations_is_not_registered() {
    let pair = Pair::new(8192, Permission::RemoteReadWrite);
    let memory = HostMemory::allocate(8192, &HostAllocation::default()).unwrap();
    let local = Permission::Local;
    let _low = pair.requester.register_host_memory(&memory, 0, 4096, local).unwrap();
    let _high = pair.requester.register_host_memory(&memory, 4096, 4096, local).unwrap();
    let across = TransferRequest::new(
        Transport::Unspec,
        memory.address() + 4000,
        pair.remote.address(),
        200,
    );
    let refused = pair.run(TransferOp::Write, &[across]).unwrap_err();
    assert!(matches!(refused, Error::NotRegistered { length: 200, .. }), "{refused}");
    assert_eq!(bytes(&pair.remote), pattern(1, 8192), "no effect");
    assert_eq!(pair.requester.stats().tasks_failed, 0, "nothing was admitted");
}

/// CORE-024: lengths that can never be.
#[test]
fn core_024_impossible_lengths_are_invalid() {
    let pair = Pair::new(4096, Permission::RemoteReadWrite);
    let (local, remote) = (pair.local.address(), pair.remote.address());
    for (local, remote, length) in [
        (local, remote, 0),
        (local, remote, (1 << 47) + 1),
        (u64::MAX - 10, remote, 20),
        (local, u64::MAX - 10, 20),
    ] {
        let request = TransferRequest::new(Transport::Unspec, local, remote, length);
        let refused = pair.run(TransferOp::Read, &[request]).unwrap_err();
        assert!(matches!(refused, Error::InvalidRequest(_)), "{refused}");
    }
    let memory = HostMemory::allocate(4096, &HostAllocation::default()).unwrap();
    for (offset, length) in [(0, 0), (0, 4097), (4096, 1), (u64::MAX, 2), (1, u64::MAX)] {
        let refused =
            pair.requester.register_host_memory(&memory, offset, length, Permission::Local);
        assert!(matches!(refused.unwrap_err(), Error::InvalidRequest(_)), "{offset} {length}");
    }
    for length in [0, (1 << 47) + 1, u64::MAX] {
        let refused = HostMemory::allocate(length, &HostAllocation::default()).unwrap_err();
        assert!(matches!(refused, Error::InvalidRequest(_)), "{length}: {refused}");
    }
}

/// CORE-035: a WRITE to a region that only grants reading is refused, by the requester and, for one that
/// does not care, by the source.
#[test]
fn core_035_a_readable_region_is_never_written() {
    let pair = Pair::new(4096, Permission::RemoteRead);
    let refused = pair.run(TransferOp::Write, &[pair.request(0, 0, 10)]).unwrap_err();
    assert!(matches!(refused, Error::PermissionDenied { .. }), "{refused}");
    let (id, generation) = region_key(&pair.segment, pair.remote.address()).unwrap();
    let mut raw = RawPeer::connect(pair.source.endpoint(), &pair.source.source_epoch()).unwrap();
    raw.write(&[RawOp::new(id, generation, 0, 10)], &[0; 10]).unwrap();
    let answer = raw.answer(1).unwrap();
    assert!(
        matches!(&answer, RawAnswer::Refused { class, .. } if class == "Permission"),
        "{answer:?}"
    );
    assert_eq!(bytes(&pair.remote), pattern(1, 4096));
    raw.read(&[RawOp::new(id, generation, 0, 10)]).unwrap();
    assert_eq!(raw.answer(1).unwrap(), RawAnswer::Data(pattern(1, 10)), "the connection lives on");
}

/// CORE-036: a region that only grants writing cannot be read.
#[test]
fn core_036_a_writable_region_is_never_read() {
    let pair = Pair::new(4096, Permission::RemoteWrite);
    let refused = pair.run(TransferOp::Read, &[pair.request(0, 0, 10)]).unwrap_err();
    assert!(matches!(refused, Error::PermissionDenied { .. }), "{refused}");
    let (id, generation) = region_key(&pair.segment, pair.remote.address()).unwrap();
    let mut raw = RawPeer::connect(pair.source.endpoint(), &pair.source.source_epoch()).unwrap();
    raw.read(&[RawOp::new(id, generation, 0, 10)]).unwrap();
    let answer = raw.answer(1).unwrap();
    assert!(
        matches!(&answer, RawAnswer::Refused { class, .. } if class == "Permission"),
        "{answer:?}"
    );
    pair.complete(TransferOp::Write, &[pair.request(0, 0, 10)]);
}

/// CORE-037: what is registered as local is not shown and cannot be guessed.
#[test]
fn core_037_local_memory_is_invisible_and_unreachable() {
    let source = engine();
    let hidden = source.register_memory(pattern(5, 4096), Permission::Local).unwrap();
    let pair = Pair::of(source, engine(), 4096, Permission::RemoteReadWrite);
    assert_eq!(pair.segment.regions().len(), 1);
    assert!(pair.segment.region(hidden.address(), 1).is_none());
    let (id, generation) = region_key(&pair.segment, pair.remote.address()).unwrap();
    let mut raw = RawPeer::connect(pair.source.endpoint(), &pair.source.source_epoch()).unwrap();
    for guess in (id.saturating_sub(8)..id + 8).filter(|guess| *guess != id) {
        for generation in generation.saturating_sub(8)..generation + 8 {
            raw.read(&[RawOp::new(guess, generation, 0, 1)]).unwrap();
            let answer = raw.answer(1).unwrap();
            let gone = matches!(&answer, RawAnswer::Refused { class, .. } if class == "RegionGone");
            assert!(gone, "guess {guess}/{generation}: {answer:?}");
        }
    }
}

/// CORE-038: one byte too far is refused, by the requester and by the source.
#[test]
fn core_038_one_byte_past_a_region() {
    let pair = Pair::new(4096, Permission::RemoteReadWrite);
    for (offset, length) in [(0, 4097), (4096, 1), (4095, 2)] {
        let request = TransferRequest::new(
            Transport::Unspec,
            pair.local.address(),
            pair.remote.address() + offset,
            length,
        );
        let refused = pair.run(TransferOp::Read, &[request]).unwrap_err();
        let expected = length <= 4096;
        let told = matches!(refused, Error::InvalidRequest(_))
            || !expected && matches!(refused, Error::NotRegistered { .. });
        assert!(told, "{refused}");
    }
    let (id, generation) = region_key(&pair.segment, pair.remote.address()).unwrap();
    let mut raw = RawPeer::connect(pair.source.endpoint(), &pair.source.source_epoch()).unwrap();
    for (offset, length) in [(0, 4097), (4096, 1), (4095, 2), (u64::MAX - 10, 5)] {
        raw.write(&[RawOp::new(id, generation, offset, length)], &vec![0; length as usize])
            .unwrap();
        let answer = raw.answer(1).unwrap();
        assert!(
            matches!(&answer, RawAnswer::Refused { class, .. } if class == "Range"),
            "{answer:?}"
        );
    }
    assert_eq!(bytes(&pair.remote), pattern(1, 4096));
}

/// CORE-039: 64 scattered blocks are one frame, and each lands in its place.
#[test]
fn core_039_scattered_blocks_travel_in_one_frame() {
    let pair = Pair::new(1 << 20, Permission::RemoteReadWrite);
    let block = 4096;
    let requests: Vec<_> =
        (0..64).map(|at| pair.request(at * 2 * block, (at * 37 % 64) * 2 * block, block)).collect();
    let before = pair.requester.stats().shards[0].frames_sent;
    pair.complete(TransferOp::Write, &requests);
    assert_eq!(pair.requester.stats().shards[0].frames_sent, before + 1);
    let (local, remote) = (bytes(&pair.local), bytes(&pair.remote));
    let mut expected = pattern(1, 1 << 20);
    for at in 0..64 {
        let (from, to) = ((at * 2 * block) as usize, ((at * 37 % 64) * 2 * block) as usize);
        let block = block as usize;
        expected[to..to + block].copy_from_slice(&local[from..from + block]);
    }
    assert!(remote == expected);
    pair.local.write_at(0, &vec![0; 1 << 20]).unwrap();
    pair.complete(TransferOp::Read, &requests);
    let back = bytes(&pair.local);
    let same = |at: u64| {
        let (from, to) = ((at * 2 * block) as usize, ((at * 37 % 64) * 2 * block) as usize);
        back[from..from + block as usize] == remote[to..to + block as usize]
    };
    assert!((0..64).all(same));
}

/// CORE-041: contiguous requests over a registration's border are two owners, in one frame.
#[test]
fn core_041_a_registration_border_splits_a_contiguous_run() {
    let pair = Pair::new(8192, Permission::RemoteReadWrite);
    let memory = HostMemory::allocate(8192, &HostAllocation::default()).unwrap();
    let local = Permission::Local;
    let low = pair.requester.register_host_memory(&memory, 0, 4096, local).unwrap();
    let high = pair.requester.register_host_memory(&memory, 4096, 4096, local).unwrap();
    low.write_at(0, &pattern(8, 4096)).unwrap();
    high.write_at(0, &pattern(9, 4096)).unwrap();
    let to = pair.remote.address();
    let requests = [
        TransferRequest::new(Transport::Unspec, low.address(), to, 4096),
        TransferRequest::new(Transport::Unspec, high.address(), to + 4096, 4096),
    ];
    pair.complete(TransferOp::Write, &requests);
    assert_eq!(bytes(&pair.remote), [pattern(8, 4096), pattern(9, 4096)].concat());
    // A failure of the second does not touch the first: they are separate runs of the report.
    drop(high);
    let refused = pair.run(TransferOp::Write, &requests).unwrap_err();
    assert!(matches!(refused, Error::NotRegistered { .. }), "{refused}");
}

/// CORE-044: a zero length anywhere refuses the whole call.
#[test]
fn core_044_a_zero_length_refuses_the_whole_call() {
    let pair = Pair::new(4096, Permission::RemoteReadWrite);
    for at in 0..3 {
        let mut requests = vec![pair.request(0, 0, 10), pair.request(100, 100, 10)];
        requests.insert(at, pair.request(50, 50, 0));
        let refused = pair.run(TransferOp::Write, &requests).unwrap_err();
        let named = format!("request {at}");
        assert!(matches!(refused, Error::InvalidRequest(_)), "{refused}");
        assert!(refused.to_string().contains(&named), "{refused}");
    }
    assert_eq!(bytes(&pair.remote), pattern(1, 4096));
}

#[test]
fn no_requests_are_a_complete_report() {
    let pair = Pair::new(64, Permission::RemoteRead);
    for op in [TransferOp::Read, TransferOp::Write] {
        let start = now();
        let report = pair.run(op, &[]).unwrap();
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert!(report.is_complete() && report.locally_drained);
        assert_eq!((report.completed_requests, report.completed_bytes), (0, 0));
    }
    // Nothing to do is no way around the checks of the call.
    pair.requester.close(SOON).unwrap();
    assert!(matches!(pair.run(TransferOp::Read, &[]), Err(Error::Closed)));
}

/// A request that its region cannot serve any more fails alone: what stood before it completes, what
/// stood after it is never attempted.
#[test]
fn a_refused_run_ends_the_call_after_the_good_prefix() {
    let pair = Pair::new(64 << 10, Permission::RemoteReadWrite);
    let second =
        pair.source.register_memory(pattern(4, 4096), Permission::RemoteReadWrite).unwrap();
    let segment = pair.requester.refresh_segment(&pair.segment, SOON).unwrap();
    let gone = second.address();
    pair.source.unregister_memory(second).unwrap();
    let local = pair.local.address();
    let bad = |at: u64| TransferRequest::new(Transport::Unspec, local + at, gone + at, 100);
    let requests = [pair.request(0, 0, 1000), bad(200), bad(300), pair.request(8192, 8192, 1000)];
    let op = TransferOp::Write;
    let report = pair.requester.submit_and_wait(op, &(&segment).into(), &requests, SOON).unwrap();
    assert_eq!((report.completed_requests, report.completed_bytes), (1, 1000));
    let failure = report.failure.unwrap();
    assert_eq!((failure.request_index, failure.affected_requests), (1, 2), "one merged run");
    assert!(matches!(failure.error, Error::StaleEpoch { .. }), "{}", failure.error);
    assert_eq!(failure.remote_effect, RemoteEffect::None);
    assert_eq!(failure.scope, FailureScope::Request);
    let mut expected = pattern(1, 64 << 10);
    expected[..1000].copy_from_slice(&pattern(2, 1000));
    assert!(bytes(&pair.remote) == expected);
    assert_eq!(pair.requester.stats().tasks_canceled, 1);
}

/// Of two frames that are refused, the good part of the first goes again and nothing of the second: its
/// requests stand behind one that failed.
#[test]
fn what_stands_behind_a_refused_request_is_never_sent_again() {
    const COUNT: u64 = 512;
    let pair = Pair::new(64 << 10, Permission::RemoteReadWrite);
    let second =
        pair.source.register_memory(pattern(4, 64 << 10), Permission::RemoteReadWrite).unwrap();
    let segment = pair.requester.refresh_segment(&pair.segment, SOON).unwrap();
    let gone = second.address();
    pair.source.unregister_memory(second).unwrap();
    let (local, good) = (pair.local.address(), pair.remote.address());
    // Every other block, so that none joins its neighbour.
    let request = |at: u64| {
        let remote = if at % 2 == 0 { good } else { gone };
        TransferRequest::new(Transport::Unspec, local + at * 128, remote + at * 128, 64)
    };
    let requests: Vec<_> = (0..COUNT).map(request).collect();
    for round in 0..20 {
        pair.remote.write_at(0, &pattern(1, 64 << 10)).unwrap();
        let canceled = pair.requester.stats().tasks_canceled;
        let op = TransferOp::Write;
        let target = (&segment).into();
        let report = pair.requester.submit_and_wait(op, &target, &requests, SOON).unwrap();
        let failure = report.failure.unwrap();
        assert_eq!(report.completed_requests, 1, "round {round}: {failure:?}");
        assert_eq!((failure.request_index, failure.affected_requests), (1, 1), "round {round}");
        assert!(matches!(failure.error, Error::StaleEpoch { .. }), "{}", failure.error);
        assert_eq!(failure.remote_effect, RemoteEffect::None);
        let mut expected = pattern(1, 64 << 10);
        expected[..64].copy_from_slice(&pattern(2, 64));
        assert!(bytes(&pair.remote) == expected, "round {round}: more than request 0 was written");
        let canceled = pair.requester.stats().tasks_canceled - canceled;
        // Request 0 completed, 1 failed; the first of the second frame failed if that was sent in time.
        assert!((COUNT - 3..=COUNT - 2).contains(&canceled), "round {round}: {canceled}");
    }
}

#[test]
fn a_new_region_is_found_by_one_refresh() {
    let pair = Pair::new(4096, Permission::RemoteReadWrite);
    let added = pair.source.register_memory(pattern(6, 4096), Permission::RemoteRead).unwrap();
    let (local, remote) = (pair.local.address(), added.address());
    let request = TransferRequest::new(Transport::Unspec, local, remote, 4096);
    pair.complete(TransferOp::Read, std::slice::from_ref(&request));
    assert_eq!(bytes(&pair.local), pattern(6, 4096));
    let strict = engine_with(|config| config.auto_refresh = false);
    let segment = strict.open_segment(pair.source.descriptor(), None, SOON).unwrap();
    let late = pair.source.register_memory(pattern(6, 4096), Permission::RemoteRead).unwrap();
    let memory = strict.register_memory(vec![0; 4096], Permission::Local).unwrap();
    let request = TransferRequest::new(Transport::Unspec, memory.address(), late.address(), 4096);
    let op = TransferOp::Read;
    let refused = strict.submit_and_wait(op, &(&segment).into(), &[request], SOON).unwrap_err();
    assert!(matches!(refused, Error::InvalidRequest(_)), "{refused}");
}

/// A peer without room for a lane is busy, and says which of its limits to raise.
#[test]
fn a_peer_without_room_for_a_lane_is_busy() {
    // Control and the lane for small frames, and none for bulk.
    let source = engine_with(|config| config.inbound.max_connections_per_ip = 2);
    let pair = Pair::of(source, engine(), 8 << 20, Permission::RemoteReadWrite);
    pair.complete(TransferOp::Read, &[pair.request(0, 0, 4096)]);
    for op in [TransferOp::Write, TransferOp::Read] {
        let report = pair.run(op, &[pair.request(0, 0, 4 << 20)]).unwrap();
        let failure = report.failure.unwrap();
        assert!(matches!(failure.error, Error::Busy(_)), "{:?}", failure.error);
        let text = failure.error.to_string();
        assert!(text.contains("inbound.max_connections_per_ip"), "names the limit: {text}");
        assert!(text.contains(pair.source.endpoint()), "names the peer: {text}");
        assert_eq!((failure.attempts, failure.scope), (0, FailureScope::Peer));
        assert_eq!(failure.remote_effect, RemoteEffect::None);
    }
}

/// An engine that may have no further lane names its limit and what it uses.
#[test]
fn a_requester_without_room_for_a_lane_names_its_limit() {
    let requester = engine_with(|config| config.tcp_options.max_lanes = 1);
    let pair = Pair::of(engine(), requester, 8 << 20, Permission::RemoteReadWrite);
    pair.complete(TransferOp::Read, &[pair.request(0, 0, 4096)]);
    let report = pair.run(TransferOp::Read, &[pair.request(0, 0, 4 << 20)]).unwrap();
    let failure = report.failure.unwrap();
    let expected = ("tcp_options.max_lanes", 1, 1, 1);
    let Error::ResourceExhausted { resource, limit, in_use, requested, .. } = failure.error else {
        panic!("{}", failure.error);
    };
    assert_eq!((resource, limit, in_use, requested), expected);
}

#[test]
fn a_transport_that_is_not_there_is_unavailable() {
    let pair = Pair::new(4096, Permission::RemoteReadWrite);
    let (local, remote) = (pair.local.address(), pair.remote.address());
    let request = TransferRequest::new(Transport::Shm, local, remote, 10);
    let refused = pair.run(TransferOp::Read, &[request]).unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
    assert!(refused.to_string().contains("tcp"), "names what there is: {refused}");
}

#[test]
fn a_call_without_time_reports_a_timeout_and_keeps_its_promise() {
    let pair = Pair::new(32 << 20, Permission::RemoteReadWrite);
    let request = pair.request(0, 0, 32 << 20);
    for op in [TransferOp::Read, TransferOp::Write] {
        let target = pair.target();
        let report = pair
            .requester
            .submit_and_wait(
                op,
                &target,
                std::slice::from_ref(&request),
                Duration::from_micros(300),
            )
            .unwrap();
        let Some(failure) = report.failure else { continue };
        assert!(matches!(failure.error, Error::Timeout { .. }), "{}", failure.error);
        if op == TransferOp::Read {
            assert_eq!(failure.remote_effect, RemoteEffect::None);
            assert!(report.locally_drained, "a READ is given up at once");
        }
        // What comes late must not disturb the calls that follow.
        pair.complete(TransferOp::Read, &[pair.request(0, 0, 4096)]);
    }
}

/// CORE-046: a call without time ends as a timeout, also where no lane took anything of it: no request
/// failed before it.
#[test]
fn core_046_what_no_lane_took_in_time_is_timed_out() {
    for op in [TransferOp::Write, TransferOp::Read] {
        let pair = Pair::new(8 << 20, Permission::RemoteReadWrite);
        // The lane for bulk is dialed when it is first needed.
        let requests = [pair.request(0, 4 << 20, 1 << 20), pair.request(4 << 20, 0, 1 << 20)];
        let (target, none) = (pair.target(), Duration::ZERO);
        let report = pair.requester.submit_and_wait(op, &target, &requests, none).unwrap();
        let failure = report.failure.unwrap();
        assert!(matches!(failure.error, Error::Timeout { .. }), "{}", failure.error);
        if failure.attempts == 0 {
            assert!(failure.error.to_string().contains("queued"), "{}", failure.error);
            assert_eq!(failure.remote_effect, RemoteEffect::None);
        }
        assert_eq!(pair.requester.stats().tasks_canceled, 0, "no earlier request failed");
        pair.complete(op, &requests);
    }
}

#[test]
fn many_threads_share_one_engine() {
    let pair = Pair::new(8 << 20, Permission::RemoteReadWrite);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let pair = &pair;
            scope.spawn(move || {
                let base = thread << 20;
                for round in 0..200_u64 {
                    let at = base + (round * 4096) % (1 << 19);
                    let length = 1 + (round * 997) % 20_000;
                    pair.complete(TransferOp::Write, &[pair.request(at, at, length)]);
                    let into = base + (1 << 19);
                    pair.complete(TransferOp::Read, &[pair.request(into, at, length)]);
                }
            });
        }
    });
    let stats = pair.requester.stats();
    assert_eq!(stats.tasks_completed, 8 * 200 * 2);
    assert_eq!(stats.shards.iter().map(|shard| shard.guard_rings).sum::<u64>(), 0);
}

#[test]
fn checksummed_payloads_arrive_exactly() {
    let crc = |config: &mut orbite::EngineConfig| config.tcp_options.payload_crc = true;
    let pair = Pair::of(engine_with(crc), engine_with(crc), 6 << 20, Permission::RemoteReadWrite);
    for length in [1, 4096, 300_000, 5_000_000] {
        write_then_read(&pair, 3, 5, length);
    }
}

#[test]
fn ipv6_works_alone() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6 loopback address");
        return;
    }
    let six = |config: &mut orbite::EngineConfig| config.bind_addr = "[::1]:0".into();
    let pair = Pair::of(engine_with(six), engine_with(six), 300_000, Permission::RemoteReadWrite);
    assert!(pair.segment.endpoint().starts_with("[::1]:"));
    write_then_read(&pair, 0, 0, 300_000);
}
