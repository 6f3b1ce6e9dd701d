//! Lanes against a far side that says what a test wants, in pieces as a test wants.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::crc;
use crate::protocol::data::answer::{Answer, Refusal, Status};
use crate::protocol::data::ops;
use crate::protocol::data::reader::{FrameReader, Outgoing};
use crate::protocol::header::{HEADER_LEN, Header, Kind};
use crate::protocol::limits::Direction;
use crate::protocol::notice::Cancel;
use crate::shard::memory::HostMemory;
use crate::testing::rigs::{Regions, WRITABLE};
use crate::transport::rail::{Budget, Completion, Part, Rail, RailFault, Slice, SliceResult};
use crate::transport::tcp::{
    Catalog, Granted, LaneLimits, LanePlan, STEPS, SourceBudget, SourceLane, TcpLane,
};
use crate::types::{Fault, Refused, RemoteEffect, SliceId, TransferOp};

const STALL: Duration = Duration::from_millis(100);

fn plan(payload_crc: bool) -> LanePlan {
    LanePlan {
        limits: LaneLimits { max_message: 4 << 20, scatter_ops: 256, lane_window: 8, payload_crc },
        slice: 4 << 20,
        send_chunk: 1 << 20,
        reads_max: None,
        stall: STALL,
    }
}

#[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
fn start() -> Instant {
    Instant::now()
}

fn list(ranges: &[(u64, u64)]) -> Vec<u8> {
    let mut meta = Vec::new();
    ops::begin(&mut meta);
    for (offset, length) in ranges {
        ops::push(&mut meta, &ops::Op { region: WRITABLE, offset: *offset, length: *length });
    }
    ops::finish(&mut meta);
    meta
}

/// Reads frames off a socket with their payloads.
fn next_frame(socket: &mut UnixStream, reader: &mut FrameReader) -> (Header, Vec<u8>, Vec<u8>) {
    loop {
        let space = reader.space();
        let got = socket.read(space).unwrap();
        assert!(got > 0, "the lane closed its connection");
        if let Some(head) = reader.filled(got).unwrap() {
            let trailer = if head.flags != 0 { crc::TRAILER_LEN } else { 0 };
            let mut data = vec![0; head.data_len as usize + trailer];
            socket.read_exact(&mut data).unwrap();
            let meta = reader.meta().to_vec();
            reader.next();
            return (head, meta, data);
        }
    }
}

/// A source lane, with the requester's end of its connection in the hands of the test.
struct Served {
    lane: SourceLane<Arc<HostMemory>>,
    far: UnixStream,
    outgoing: Outgoing,
    reader: FrameReader,
    regions: Regions,
    now: Instant,
}

impl Served {
    fn new(payload_crc: bool) -> Self {
        let (near, far) = UnixStream::pair().unwrap();
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (plan, now) = (plan(payload_crc), start());
        Self {
            lane: SourceLane::new(OwnedFd::from(near), plan, now),
            far,
            outgoing: Outgoing::new(payload_crc),
            reader: FrameReader::new(plan.frames(Direction::ToRequester), usize::MAX),
            regions: Regions::new(),
            now,
        }
    }

    fn ask(&mut self, kind: Kind, meta: &[u8], data: &[u8]) {
        let (header, _) = self.outgoing.request(kind, meta, data.len() as u64);
        self.far.write_all(&[&header, meta, data].concat()).unwrap();
    }

    fn poll(&mut self, shared: &mut SourceBudget) -> Result<bool, RailFault> {
        self.lane.poll(self.now, &mut Budget::new(1 << 20), shared, &mut self.regions)
    }

    fn answer(&mut self, shared: &mut SourceBudget) -> (Header, Vec<u8>, Vec<u8>) {
        self.poll(shared).unwrap();
        next_frame(&mut self.far, &mut self.reader)
    }
}

const fn wide() -> SourceBudget {
    SourceBudget { in_flight: 0, limit: 1 << 30 }
}

#[test]
fn frames_without_payload_do_not_hold_a_turn() {
    let mut served = Served::new(false);
    let frames = 3 * STEPS;
    let mut stream = Vec::new();
    for request in 0..frames {
        let meta = Cancel { request_id: request.into() }.encode();
        stream.extend(served.outgoing.request(Kind::Cancel, &meta, 0).0);
        stream.extend(meta);
    }
    served.far.write_all(&stream).unwrap();
    let mut turns = 0;
    while served.poll(&mut wide()).unwrap() {
        turns += 1;
    }
    assert_eq!(turns, 3, "each turn takes a bounded number of frames");
    served.ask(Kind::Read, &list(&[(0, 10)]), &[]);
    assert_eq!(served.answer(&mut wide()).2.len(), 10, "and the lane goes on");
}

/// CORE-101: a Cancel with bytes in its padding, or of another length, is no frame.
#[test]
fn core_101_a_malformed_cancel_ends_the_lane() {
    let right = Cancel { request_id: 7 }.encode();
    let mut dirty = right.to_vec();
    *dirty.last_mut().unwrap() = 1;
    let long = [&right[..], &[0; 64]].concat();
    for meta in [dirty, long] {
        let mut served = Served::new(false);
        served.ask(Kind::Cancel, &meta, &[]);
        assert_eq!(served.poll(&mut wide()), Err(RailFault(Fault::Protocol)));
        assert!(served.lane.broken().is_some(), "the rule is kept for the log");
    }
}

#[test]
fn a_peer_that_does_not_read_holds_back_its_own_lanes_only() {
    let mut shared = SourceBudget { in_flight: 0, limit: 1000 };
    let mut lazy = Served::new(false);
    // Both READs are longer than the socket has room for: the first stays half sent.
    lazy.ask(Kind::Read, &list(&[(0, 1 << 20)]), &[]);
    lazy.ask(Kind::Read, &list(&[(0, 1 << 20)]), &[]);
    while lazy.poll(&mut shared).unwrap() {}
    assert_eq!(shared.in_flight, 1 << 20, "the second one waits for the first");
    let mut honest = Served::new(false);
    honest.ask(Kind::Read, &list(&[(5, 2000)]), &[]);
    assert_eq!(honest.answer(&mut shared).2.len(), 2000, "over the limit, but its only one");
    assert_eq!(shared.in_flight, 1 << 20);
    lazy.lane.close(&mut shared);
    assert_eq!(shared.in_flight, 0, "a lane that ends gives back what it held");
}

/// CORE-112: asking for more is no progress of the answers that wait.
#[test]
fn core_112_answers_that_are_not_read_end_the_lane_whatever_else_is_asked() {
    let mut served = Served::new(false);
    let mut shared = wide();
    served.ask(Kind::Read, &list(&[(0, 1 << 20)]), &[]);
    while served.poll(&mut shared).unwrap() {}
    let begin = served.now;
    for _ in 0..3 {
        served.now += STALL * 9 / 10;
        served.ask(Kind::Read, &list(&[(0, 8)]), &[]);
        let judged = served.lane.check(served.now);
        served.poll(&mut shared).unwrap();
        if served.now - begin > STALL {
            assert_eq!(judged, Err(RailFault(Fault::Stalled)));
            return;
        }
        assert_eq!(judged, Ok(()));
    }
    unreachable!("three times 0.9 of the limit are more than the limit");
}

#[test]
fn a_source_that_stopped_refuses_for_a_while_and_then_reads_no_further() {
    struct Closed(Regions);
    impl Catalog for Closed {
        type Lease = Arc<HostMemory>;

        fn hold(
            &mut self,
            region: crate::types::RegionKey,
            op: TransferOp,
        ) -> Result<Granted<Self::Lease>, Refused> {
            self.0.hold(region, op)
        }

        fn is_open(&self) -> bool {
            false
        }
    }
    let mut served = Served::new(false);
    let mut closed = Closed(Regions::new());
    let mut refused = 0;
    for _ in 0..200 {
        served.ask(Kind::Read, &list(&[(0, 8)]), &[]);
        let (now, mut budget) = (served.now, Budget::new(1 << 20));
        if !served.lane.poll(now, &mut budget, &mut wide(), &mut closed).unwrap() {
            break;
        }
        assert_eq!(next_frame(&mut served.far, &mut served.reader).0.kind, Kind::Refuse);
        refused += 1;
    }
    assert_eq!(refused, 64);
    assert!(!served.lane.in_flight(), "nothing keeps the shard from ending");
}

#[test]
fn a_wrong_checksum_of_a_write_is_refused_with_unknown_effect() {
    let mut served = Served::new(true);
    let data = [7; 300];
    for (flip, expected) in [(0, Kind::WriteAck), (1, Kind::Refuse), (0, Kind::WriteAck)] {
        let meta = list(&[(0, 100), (500, 200)]);
        let (header, _) = served.outgoing.request(Kind::Write, &meta, data.len() as u64);
        let trailer = (crc::append(0, &data) ^ flip).to_le_bytes();
        // The checksum is continued over pieces that come one by one.
        for piece in [&[&header[..], &meta, &data[..99]].concat()[..], &data[99..101], &data[101..]]
        {
            served.far.write_all(piece).unwrap();
            served.poll(&mut wide()).unwrap();
        }
        served.far.write_all(&trailer).unwrap();
        let (head, meta, _) = served.answer(&mut wide());
        assert_eq!(head.kind, expected);
        if head.kind == Kind::Refuse {
            let (refusal, _) = Refusal::decode(&meta, 2).unwrap();
            assert_eq!(refusal.class, Refused::Corrupt);
            assert_eq!(refusal.effect, RemoteEffect::Unknown);
        }
    }
}

/// A requester's lane, with the source's end of its connection in the hands of the test.
struct Asking {
    lane: Box<TcpLane>,
    far: UnixStream,
    outgoing: Outgoing,
    reader: FrameReader,
    local: Arc<HostMemory>,
    done: Vec<Completion>,
    next: u32,
    now: Instant,
}

impl Asking {
    fn new(plan: LanePlan) -> Self {
        let (near, far) = UnixStream::pair().unwrap();
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let now = start();
        Self {
            lane: Box::new(TcpLane::new(OwnedFd::from(near), plan, now)),
            far,
            outgoing: Outgoing::new(plan.limits.payload_crc),
            reader: FrameReader::new(plan.frames(Direction::ToSource), usize::MAX),
            local: HostMemory::from_vec(vec![1; 4 << 20]).unwrap(),
            done: Vec::new(),
            next: 0,
            now,
        }
    }

    fn post(&mut self, op: TransferOp, parts: u64, length: u64) -> Option<SliceId> {
        let id = SliceId { slot: self.next, generation: 1 };
        self.next += 1;
        let parts: Vec<_> = (0..parts)
            .map(|at| {
                let offset = 2 * at * length;
                Part { local: self.local.address() + offset, region: WRITABLE, offset, length }
            })
            .collect();
        let bytes = length * parts.len() as u64;
        let slice = Slice { id, op, from: 0, to: parts.len() as u32, bytes };
        (self.lane.post(&[slice], &parts).unwrap() == 1).then_some(id)
    }

    fn flush(&mut self) {
        self.lane.flush(self.now, &mut Budget::new(8 << 20)).unwrap();
    }

    fn poll(&mut self) -> Result<bool, RailFault> {
        self.lane.poll(self.now, &mut Budget::new(8 << 20), &mut self.done)
    }

    /// Posts, and takes the request as the far side sees it.
    fn asked(&mut self, op: TransferOp, parts: u64, length: u64) -> (SliceId, Header) {
        let id = self.post(op, parts, length).unwrap();
        self.flush();
        (id, next_frame(&mut self.far, &mut self.reader).0)
    }

    fn reply(&mut self, kind: Kind, request: u64, meta: &[u8], data_len: u64) -> Vec<u8> {
        [&self.outgoing.reply(kind, request, meta, data_len)[..], meta].concat()
    }

    fn only(&self) -> SliceResult {
        assert_eq!(self.done.len(), 1, "{:?}", self.done);
        self.done[0].result
    }

    fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.local.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}

/// However the answer to a READ is cut into pieces, its data lands in place and nowhere else.
#[test]
fn head_and_data_come_in_any_pieces() {
    for parts in [1, 3, 256] {
        for cut in [1, 31, 32, 63, 64, 65, 66, 100, 128, 1000] {
            let mut asking = Asking::new(plan(false));
            let (_, head) = asking.asked(TransferOp::Read, parts, 50);
            let bytes = parts * 50;
            let meta = Answer::complete(parts as u32, bytes).encode();
            let mut stream = asking.reply(Kind::ReadData, head.request_id, &meta, bytes);
            stream.extend((0..bytes).map(|at| (at % 97) as u8 + 2));
            for piece in stream.chunks(cut) {
                assert!(asking.done.is_empty(), "{parts} parts, pieces of {cut}");
                asking.far.write_all(piece).unwrap();
                assert_eq!(asking.poll(), Ok(true));
                while asking.done.is_empty() && asking.poll().unwrap() {}
            }
            assert_eq!(asking.only(), SliceResult::Done, "{parts} parts, pieces of {cut}");
            for part in 0..parts {
                let expected: Vec<_> =
                    (0..50).map(|at| ((part * 50 + at) % 97) as u8 + 2).collect();
                assert_eq!(asking.bytes(part * 100, 50), expected);
                assert_eq!(asking.bytes(part * 100 + 50, 50), [1; 50], "between the parts");
            }
        }
    }
}

#[test]
fn a_refusal_of_a_read_touches_nothing_and_the_lane_goes_on() {
    for ops in [1, 128, 129, 256] {
        let mut asking = Asking::new(plan(false));
        for _ in 0..2 {
            asking.done.clear();
            let (_, head) = asking.asked(TransferOp::Read, ops, 8);
            let mut meta = Vec::new();
            let bad = (0..ops).map(|at| at + 1 == ops);
            Refusal::encode(&mut meta, Refused::Range, RemoteEffect::None, bad);
            let stream = asking.reply(Kind::Refuse, head.request_id, &meta, 0);
            asking.far.write_all(&stream).unwrap();
            asking.poll().unwrap();
            let (class, first_bad) = (Refused::Range, ops as u32 - 1);
            assert_eq!(asking.only(), SliceResult::Refused { class, first_bad });
            assert_eq!(asking.bytes(0, 4096), [1; 4096], "{ops} operations");
        }
    }
}

/// What follows an answer that has no data, or is broken itself, is never taken for data.
#[test]
fn an_answer_that_is_not_what_was_asked_ends_the_lane() {
    type Say = fn(&mut Asking, u64) -> Vec<u8>;
    let says: [(&str, Say); 7] = [
        ("bytes behind a refusal", |asking, request| {
            let mut meta = Vec::new();
            Refusal::encode(&mut meta, Refused::Busy, RemoteEffect::None, [true]);
            let mut stream = asking.reply(Kind::Refuse, request, &meta, 0);
            stream.push(9);
            stream
        }),
        ("a longer meta", |asking, request| {
            let mut meta = Answer::complete(1, 100).encode().to_vec();
            meta.resize(meta.len() + 64, 0);
            asking.reply(Kind::ReadData, request, &meta, 100)
        }),
        ("another request", |asking, request| {
            asking.reply(Kind::ReadData, request + 1, &Answer::complete(1, 100).encode(), 100)
        }),
        ("an acknowledgement", |asking, request| {
            asking.reply(Kind::WriteAck, request, &Answer::complete(1, 100).encode(), 0)
        }),
        ("fewer bytes", |asking, request| {
            asking.reply(Kind::ReadData, request, &Answer::complete(1, 99).encode(), 99)
        }),
        ("a broken checksum with data", |asking, request| {
            let meta = Answer::complete(1, 100).encode();
            let mut stream = asking.reply(Kind::ReadData, request, &meta, 100);
            stream[HEADER_LEN + 4] ^= 1;
            stream.resize(stream.len() + 100, 5);
            stream
        }),
        ("nothing of the protocol", |_, _| vec![0xff; 200]),
    ];
    for (what, say) in says {
        let mut asking = Asking::new(plan(false));
        let (id, head) = asking.asked(TransferOp::Read, 1, 100);
        let stream = say(&mut asking, head.request_id);
        asking.far.write_all(&stream).unwrap();
        assert_eq!(asking.poll(), Err(RailFault(Fault::Protocol)), "{what}");
        assert!(asking.lane.broken().is_some(), "{what}: the rule is kept for the log");
        assert!(asking.done.is_empty(), "{what}");
        let _quiet = asking.lane.close(Fault::Protocol, &mut asking.done);
        let (fault, effect) = (Fault::Protocol, RemoteEffect::None);
        assert_eq!(asking.done, [Completion { id, result: SliceResult::Failed { fault, effect } }]);
    }
}

#[test]
fn a_wrong_checksum_fails_a_read_and_the_lane_goes_on() {
    let mut asking = Asking::new(plan(true));
    for (flip, fine) in [(0, true), (1 << 31, false), (0, true)] {
        asking.done.clear();
        let (_, head) = asking.asked(TransferOp::Read, 2, 300);
        let meta = Answer::complete(2, 600).encode();
        let mut stream = asking.reply(Kind::ReadData, head.request_id, &meta, 600);
        let data: Vec<_> = (0..600).map(|at| at as u8).collect();
        stream.extend(&data);
        stream.extend((crc::append(0, &data) ^ flip).to_le_bytes());
        for piece in stream.chunks(251) {
            asking.far.write_all(piece).unwrap();
            while asking.done.is_empty() && asking.poll().unwrap() {}
        }
        let (fault, effect) = (Fault::Corrupt, RemoteEffect::None);
        let failed = SliceResult::Failed { fault, effect };
        assert_eq!(asking.only(), if fine { SliceResult::Done } else { failed });
    }
}

#[test]
fn checksums_of_writes_follow_the_bytes_that_were_sent() {
    let mut asking = Asking::new(plan(true));
    let ids = [1, 3, 64].map(|parts| asking.post(TransferOp::Write, parts, 1000).unwrap());
    asking.flush();
    for parts in [1_usize, 3, 64] {
        let (head, _, mut data) = next_frame(&mut asking.far, &mut asking.reader);
        assert_eq!(head.data_len as usize, parts * 1000);
        let trailer = data.split_off(parts * 1000);
        assert_eq!(crc::append(0, &data).to_le_bytes(), trailer[..]);
        let meta = Answer::complete(parts as u32, head.data_len).encode();
        let stream = asking.reply(Kind::WriteAck, head.request_id, &meta, 0);
        asking.far.write_all(&stream).unwrap();
    }
    while asking.done.len() < ids.len() {
        asking.poll().unwrap();
    }
    assert!(asking.done.iter().all(|completion| completion.result == SliceResult::Done));
}

#[test]
fn a_source_that_did_a_part_of_a_write_leaves_the_rest_unknown() {
    let mut asking = Asking::new(plan(false));
    let (_, head) = asking.asked(TransferOp::Write, 2, 10);
    let answer = Answer { status: Status::Partial, ops_done: 1, bytes_done: 10, notification: 0 };
    let stream = asking.reply(Kind::WriteAck, head.request_id, &answer.encode(), 0);
    asking.far.write_all(&stream).unwrap();
    asking.poll().unwrap();
    let (fault, effect) = (Fault::Partial, RemoteEffect::Unknown);
    assert_eq!(asking.only(), SliceResult::Failed { fault, effect });
}

#[test]
fn a_stream_that_ends_within_an_answer_ends_the_lane() {
    for length in [0, 5, 64, 70] {
        let mut asking = Asking::new(plan(false));
        let (_, head) = asking.asked(TransferOp::Read, 1, 100);
        let meta = Answer::complete(1, 100).encode();
        let mut stream = asking.reply(Kind::ReadData, head.request_id, &meta, 100);
        stream.resize(stream.len() + 100, 3);
        stream.truncate(length);
        asking.far.write_all(&stream).unwrap();
        asking.far.shutdown(std::net::Shutdown::Write).unwrap();
        let end = loop {
            match asking.poll() {
                Ok(_) => assert!(asking.done.is_empty()),
                Err(fault) => break fault,
            }
        };
        assert_eq!(end, RailFault(Fault::Ended), "after {length} bytes");
    }
}

/// A WRITE that is half sent when it is given up goes out whole, with its own bytes, and is reported
/// only then: until its last byte left, its memory is in use.
#[test]
fn a_write_given_up_half_way_is_finished_before_it_is_reported() {
    let mut asking = Asking::new(plan(false));
    let id = asking.post(TransferOp::Write, 1, 4 << 20).unwrap();
    asking.flush();
    asking.lane.cancel(id, Fault::Timeout, &mut asking.done);
    asking.poll().unwrap();
    assert!(asking.done.is_empty(), "the socket cannot have taken 4 MiB");
    asking.far.set_nonblocking(true).unwrap();
    let mut received = 0;
    let mut buffer = vec![0; 64 << 10];
    let all = HEADER_LEN as u64 + list(&[(0, 1)]).len() as u64 + (4 << 20);
    while received < all {
        match asking.far.read(&mut buffer) {
            Ok(got) => received += got as u64,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        asking.flush();
        asking.poll().unwrap();
        assert!(asking.done.is_empty() || !asking.lane.interest().1, "reported with bytes to send");
    }
    let (fault, effect) = (Fault::Timeout, RemoteEffect::Unknown);
    assert_eq!(asking.only(), SliceResult::Failed { fault, effect });
    let meta = Answer::complete(1, 4 << 20).encode();
    let stream = asking.reply(Kind::WriteAck, 1, &meta, 0);
    asking.far.write_all(&stream).unwrap();
    asking.poll().unwrap();
    assert_eq!(asking.done.len(), 1, "its late answer is read and dropped");
    assert!(!asking.lane.in_flight());
}

#[test]
fn reads_are_limited_apart_from_the_window() {
    let mut asking = Asking::new(LanePlan { reads_max: Some(2), ..plan(false) });
    let posted: Vec<_> = (0..4).map(|_| asking.post(TransferOp::Read, 1, 8).is_some()).collect();
    assert_eq!(posted, [true, true, false, false]);
    assert!(asking.post(TransferOp::Write, 1, 8).is_some(), "WRITEs are not");
}
