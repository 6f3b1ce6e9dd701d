//! A peer that knows the epoch and means harm: its connection is cut or refused, nothing else suffers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Pair, bytes, engine, engine_with, pattern};
use orbite::testing::raw_peer::{RawAnswer, RawOp, RawPeer, region_key};
use orbite::{Permission, TransferOp};

struct Stage {
    pair: Pair,
    id: u64,
    generation: u32,
}

impl Stage {
    fn new() -> Self {
        let pair = Pair::new(64 << 10, Permission::RemoteReadWrite);
        let (id, generation) = region_key(&pair.segment, pair.remote.address()).unwrap();
        Self { pair, id, generation }
    }

    fn connect(&self) -> RawPeer {
        let source = &self.pair.source;
        RawPeer::connect(source.endpoint(), &source.source_epoch()).unwrap()
    }

    fn op(&self, offset: u64, length: u64) -> RawOp {
        RawOp::new(self.id, self.generation, offset, length)
    }

    /// The honest peer still works, and the region holds what it should.
    fn is_well(&self) {
        assert!(bytes(&self.pair.remote) == pattern(1, 64 << 10), "bytes changed");
        self.pair.complete(TransferOp::Read, &[self.pair.request(0, 0, 4096)]);
    }

    fn violations(&self) -> u64 {
        self.pair.source.stats().protocol_violations
    }
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// CORE-100: sizes that overflow or exceed every limit are cut before anything is allocated.
#[test]
fn core_100_impossible_sizes_are_cut_without_allocating() {
    let stage = Stage::new();
    let honest = &stage.pair;
    honest.complete(TransferOp::Read, &[honest.request(0, 0, 100)]);
    let before = resident_bytes();
    let huge = [
        (vec![stage.op(0, 1 << 63)], 1 << 63),
        (vec![stage.op(0, u64::MAX), stage.op(0, 2)], 1),
        (vec![stage.op(0, 1 << 40), stage.op(0, 1 << 40)], 1 << 41),
        (vec![stage.op(0, 10)], 11),
        (vec![stage.op(0, 0)], 0),
        (vec![], 0),
    ];
    for (ranges, data_len) in huge {
        let violations = stage.violations();
        let mut raw = stage.connect();
        let frame = raw.frame(TransferOp::Write, &ranges, data_len);
        raw.send(&frame).unwrap();
        assert_eq!(raw.answer(1).unwrap(), RawAnswer::Closed, "{ranges:?}");
        assert_eq!(stage.violations(), violations + 1);
        stage.is_well();
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more are resident");
}

/// CORE-101: a wrong checksum, sequence, reserved bit or type cuts the connection and is counted.
#[test]
fn core_101_a_broken_header_cuts_its_connection() {
    let stage = Stage::new();
    type Damage = fn(&mut [u8]);
    let breaks: [(&str, Damage); 6] = [
        ("checksum", |frame| frame[28] ^= 1),
        ("meta", |frame| frame[50] ^= 1),
        ("sequence", |frame| frame[24] ^= 1),
        ("reserved", |frame| frame[2] = 1),
        ("type", |frame| frame[0] = 250),
        ("flags", |frame| frame[1] = 0x80),
    ];
    for (what, damage) in breaks {
        let violations = stage.violations();
        let mut raw = stage.connect();
        raw.read(&[stage.op(0, 16)]).unwrap();
        assert_eq!(raw.answer(1).unwrap(), RawAnswer::Data(pattern(1, 16)));
        let mut frame = raw.frame(TransferOp::Read, &[stage.op(0, 16)], 0);
        damage(&mut frame);
        raw.send(&frame).unwrap();
        assert_eq!(raw.answer(1).unwrap(), RawAnswer::Closed, "{what}");
        assert_eq!(stage.violations(), violations + 1, "{what} is counted");
        stage.is_well();
    }
}

/// CORE-106: the payload of a refused WRITE is read and dropped; the lane goes on.
#[test]
fn core_106_a_refused_write_is_swallowed_and_the_lane_goes_on() {
    let longest = 4 << 20;
    let limited = |config: &mut orbite::EngineConfig| {
        config.tcp_options.slice_bytes = 1 << 20;
        config.tcp_options.max_message_bytes = longest as u64;
    };
    let pair = Pair::of(engine_with(limited), engine(), 64 << 10, Permission::RemoteReadWrite);
    let (id, generation) = region_key(&pair.segment, pair.remote.address()).unwrap();
    let mut raw = RawPeer::connect(pair.source.endpoint(), &pair.source.source_epoch()).unwrap();
    let fine = RawOp::new(id, generation, 0, 100);
    let gone = RawOp::new(id, generation.wrapping_add(1), 0, longest as u64);
    raw.write(&[fine], &pattern(9, 100)).unwrap();
    raw.write(&[gone], &vec![0xee; longest]).unwrap();
    raw.write(&[RawOp::new(id, generation, 200, 100)], &pattern(8, 100)).unwrap();
    raw.read(&[fine]).unwrap();
    assert_eq!(raw.answer(1).unwrap(), RawAnswer::Ack { bytes: 100 });
    let refused = raw.answer(1).unwrap();
    assert!(
        matches!(&refused, RawAnswer::Refused { class, first_bad: 0, .. } if class == "RegionGone")
    );
    assert_eq!(raw.answer(1).unwrap(), RawAnswer::Ack { bytes: 100 });
    assert_eq!(raw.answer(1).unwrap(), RawAnswer::Data(pattern(9, 100)));
    let mut expected = pattern(1, 64 << 10);
    expected[..100].copy_from_slice(&pattern(9, 100));
    expected[200..300].copy_from_slice(&pattern(8, 100));
    assert!(bytes(&pair.remote) == expected);
    // One byte longer than any frame may be is not well formed.
    let frame = raw.frame(TransferOp::Write, &[gone], longest as u64 + 1);
    raw.send(&frame).unwrap();
    assert_eq!(raw.answer(1).unwrap(), RawAnswer::Closed);
}

/// CORE-108: forged ids, generations and offsets are refused with a class and no address.
#[test]
fn core_108_forged_ranges_are_refused_without_a_word_of_the_layout() {
    let stage = Stage::new();
    let (id, generation) = (stage.id, stage.generation);
    let forged = [
        (RawOp::new(id ^ 1 << 40, generation, 0, 16), "RegionGone"),
        (RawOp::new(id, generation ^ 0x8000, 0, 16), "RegionGone"),
        (RawOp::new(id, 0, 0, 16), "RegionGone"),
        (RawOp::new(id, generation, u64::MAX - 20, 16), "Range"),
        (RawOp::new(id, generation, 1 << 62, 16), "Range"),
    ];
    let address = stage.pair.remote.address().to_le_bytes();
    let mut raw = stage.connect();
    for (op, class) in forged {
        for kind in [TransferOp::Read, TransferOp::Write] {
            match kind {
                TransferOp::Read => raw.read(&[stage.op(0, 8), op]).unwrap(),
                TransferOp::Write => raw.write(&[stage.op(0, 8), op], &[0; 24]).unwrap(),
            }
            let RawAnswer::Refused { class: found, first_bad, meta } = raw.answer(2).unwrap()
            else {
                panic!("{op:?} was not refused");
            };
            assert_eq!((found.as_str(), first_bad), (class, 1), "{op:?}");
            let leaks = meta.windows(6).any(|window| window == &address[..6]);
            assert!(!leaks, "an address of the source in {meta:?}");
        }
    }
    raw.read(&[stage.op(0, 16)]).unwrap();
    assert_eq!(raw.answer(1).unwrap(), RawAnswer::Data(pattern(1, 16)), "the lane lives on");
    stage.is_well();
}

#[test]
fn bytes_that_are_no_handshake_are_closed_and_counted() {
    use std::io::{Read, Write};
    let stage = Stage::new();
    for seed in 0..20 {
        let mut socket = std::net::TcpStream::connect(stage.pair.source.endpoint()).unwrap();
        socket.set_read_timeout(Some(common::SOON)).unwrap();
        let _the_other_side_may_close_first = socket.write_all(&pattern(seed, 4096));
        let mut answer = Vec::new();
        let _reset_or_end = socket.read_to_end(&mut answer);
        assert!(answer.is_empty(), "an answer to garbage: {answer:?}");
    }
    stage.is_well();
}

#[test]
fn a_peer_that_never_reads_its_data_is_cut_and_its_region_released() {
    let quick = |config: &mut orbite::EngineConfig| config.tcp_options.stall_timeout_ms = 300;
    let size = 32 << 20;
    let pair = Pair::of(engine_with(quick), engine(), size, Permission::RemoteReadWrite);
    let (id, generation) = region_key(&pair.segment, pair.remote.address()).unwrap();
    let mut raw = RawPeer::connect(pair.source.endpoint(), &pair.source.source_epoch()).unwrap();
    raw.read(&[RawOp::new(id, generation, 0, size as u64)]).unwrap();
    let Pair { source, remote, .. } = pair;
    source.unregister_memory(remote).unwrap();
    common::eventually("the region is released", || {
        source.stats().retained_after_unregister_bytes == 0
    });
}
