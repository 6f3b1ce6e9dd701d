//! Runs the fuzz bodies on seeded bytes, half of them random, half of them valid messages with changes.
//! `ORBITE_FUZZ_CASES` sets the number of cases for each body; 1 000 000 is the acceptance run.

use super::*;
use crate::protocol::crc;
use crate::protocol::data::answer::Status as AnswerStatus;
use crate::protocol::data::ops::Op;
use crate::protocol::data::reader::Outgoing;
use crate::protocol::handshake::body::{CHALLENGE_LEN, HELLO_LEN, PROOF_MESSAGE_LEN, WELCOME_LEN};
use crate::protocol::header::Kind;
use crate::protocol::notice::GoAwayReason;
use crate::types::{MemoryLocation, Permission, Refused, RegionKey};
use sha2::{Digest, Sha256};

/// Cases for each body in an ordinary run.
const CASES: u64 = 20_000;

fn cases() -> u64 {
    let text = std::env::var("ORBITE_FUZZ_CASES").ok();
    text.map_or(CASES, |text| text.parse().expect("ORBITE_FUZZ_CASES is a number"))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// `0..end`; 0 for an empty range.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % (end.max(1) as u64)) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// One to four changes: a bit, a number of 4 or 8 bytes, a cut, more bytes.
    fn change(&mut self, bytes: &mut Vec<u8>) {
        const NUMBERS: [u64; 10] =
            [0, 1, 2, 0x7f, 0xffff, 0xffff_ffff, 1 << 31, 1 << 47, 1 << 63, u64::MAX];
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            let number = NUMBERS[self.below(NUMBERS.len())].to_le_bytes();
            match self.below(7) {
                0..=2 => {
                    let bit = 1 << self.below(8);
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= bit;
                    }
                }
                3 => bytes.iter_mut().skip(at & !3).zip(&number[..4]).for_each(|(b, n)| *b = *n),
                4 => bytes.iter_mut().skip(at & !7).zip(&number).for_each(|(b, n)| *b = *n),
                5 => bytes.truncate(at),
                _ => {
                    let more = self.below(40);
                    let more = self.bytes(more);
                    bytes.splice(at..at, more);
                }
            }
        }
    }
}

/// Runs `body` on the samples, which it must accept, on random bytes and on changed samples.
fn fuzz(seed: u64, count: u64, samples: &[Vec<u8>], body: fn(&[u8]) -> bool) {
    let mut random = Random(seed);
    assert!(samples.iter().all(|sample| body(sample)), "each sample is right");
    for _ in 0..count / 2 {
        let len = random.below(400);
        body(&random.bytes(len));
        let mut changed = samples[random.below(samples.len())].clone();
        random.change(&mut changed);
        body(&changed);
    }
}

/// Runs `body` on each prefix and with each bit of each sample flipped.
fn prefixes_and_bits(samples: &[Vec<u8>], body: fn(&[u8]) -> bool) {
    for sample in samples.iter().filter(|sample| sample.len() < 400) {
        assert!(!(0..sample.len()).any(|len| body(&sample[..len])), "no prefix is right");
        for bit in 0..sample.len() * 8 {
            let mut flipped = sample.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            body(&flipped);
        }
    }
}

fn op(at: u64) -> Op {
    Op { region: RegionKey { id: 9 + at, generation: 4 }, offset: at << 12, length: 4096 + at }
}

fn list(n: u64) -> Vec<u8> {
    let mut meta = Vec::new();
    ops::begin(&mut meta);
    (0..n).for_each(|at| ops::push(&mut meta, &op(at)));
    ops::finish(&mut meta);
    meta
}

fn ops_samples() -> Vec<Vec<u8>> {
    let mut samples = vec![];
    for n in [1, 2, 5, 256] {
        let meta = list(n);
        let total = Ops::decode(&meta, 256, None).unwrap().total();
        for (write, len) in [(0, 0), (1, total)] {
            let mut sample = 256_u16.to_le_bytes().to_vec();
            sample.push(write);
            sample.extend_from_slice(&u64::to_le_bytes(len));
            sample.extend_from_slice(&meta);
            samples.push(sample);
        }
    }
    samples
}

fn answer_samples() -> Vec<Vec<u8>> {
    let part =
        Answer { status: AnswerStatus::Partial, ops_done: 1, bytes_done: 9, notification: 2 };
    vec![Answer::complete(5, 4096).encode().to_vec(), part.encode().to_vec()]
}

fn refusal_samples() -> Vec<Vec<u8>> {
    let mut samples = vec![];
    let classes = [Refused::RegionGone, Refused::Busy, Refused::Corrupt];
    for (class, count) in classes.into_iter().zip([5_u16, 64, 300]) {
        let mut meta = Vec::new();
        let bad = (0..count).map(|at| class.marks_ops() && at % 2 == 1);
        Refusal::encode(&mut meta, class, RemoteEffect::None, bad);
        samples.push([&count.to_le_bytes()[..], &meta].concat());
    }
    samples
}

fn region(id: u64, location: MemoryLocation) -> RegionDescriptor {
    let key = RegionKey { id, generation: 1 };
    let permission = Permission::RemoteReadWrite;
    RegionDescriptor::new(key, 0x7000_0000 + id, 1 << 20, permission, location, 1 << 7).unwrap()
}

fn page_samples() -> Vec<Vec<u8>> {
    let cuda = MemoryLocation::Cuda { device: 1, context: 77 };
    let regions = [
        region(1, MemoryLocation::Cpu(None)),
        region(2, MemoryLocation::Cpu(Some(1))),
        region(3, cuda),
    ];
    let mut page = Page { generation: 3, next_cursor: 10, count: 3 }.encode().to_vec();
    for region in &regions {
        page.extend_from_slice(&region.encode());
    }
    let away = GoAway { reason: GoAwayReason::Closing, last_request_id: 4 };
    let metas = [
        page,
        Describe { cursor: 8, generation: 3 }.encode().to_vec(),
        CatalogChanged { generation: 4 }.encode().to_vec(),
        regions[2].encode().to_vec(),
        Ping { opaque: 1 }.encode().to_vec(),
        Pong { opaque: 2 }.encode().to_vec(),
        Cancel { request_id: 3 }.encode().to_vec(),
        away.encode().to_vec(),
    ];
    (0..).zip(metas).map(|(choice, meta)| [&[choice][..], &meta].concat()).collect()
}

/// Heads with right checksums: one for each type that `limits` allow.
fn heads(choice: u8) -> Vec<Vec<u8>> {
    let limits = choose_limits(choice);
    let metas = match (limits.role, limits.direction) {
        (Role::Discover, _) => return vec![],
        (Role::Control, Direction::ToSource) => {
            vec![(Kind::Describe, Describe { cursor: 0, generation: 0 }.encode().to_vec(), 0)]
        }
        (Role::Control, Direction::ToRequester) => vec![
            (Kind::Page, Page { generation: 1, next_cursor: 0, count: 1 }.encode().to_vec(), 72),
            (Kind::CatalogChanged, CatalogChanged { generation: 1 }.encode().to_vec(), 0),
        ],
        (Role::Data | Role::HpData, Direction::ToSource) => vec![
            (Kind::Read, list(3), 0),
            (Kind::Write, list(1), 4096),
            (Kind::Cancel, Cancel { request_id: 1 }.encode().to_vec(), 0),
        ],
        (Role::Data | Role::HpData, Direction::ToRequester) => vec![
            (Kind::ReadData, Answer::complete(1, 512).encode().to_vec(), 512),
            (Kind::WriteAck, Answer::complete(1, 512).encode().to_vec(), 0),
            (Kind::Refuse, refusal_samples()[0][2..].to_vec(), 0),
        ],
    };
    let ping = (Kind::Ping, Ping { opaque: 1 }.encode().to_vec(), 0);
    // Liveness belongs to the control connection.
    let ping = (limits.role == Role::Control).then_some(ping);
    let frames = metas.into_iter().chain(ping).map(|(kind, meta, data_len)| {
        let mut outgoing = Outgoing::new(limits.payload_crc);
        let head = if kind.is_reply() {
            outgoing.reply(kind, 1, &meta, data_len)
        } else {
            outgoing.request(kind, &meta, data_len).0
        };
        [&head[..], &meta].concat()
    });
    frames.collect()
}

fn header_samples() -> Vec<Vec<u8>> {
    (0..32_u8)
        .flat_map(|c| heads(c).into_iter().map(move |head| [&[c][..], &head].concat()))
        .collect()
}

/// Gives a head whose checksum covers what it has now, so that changes reach what lies behind it.
fn repair(head: &mut [u8]) {
    if let Some((front, meta)) = head.split_first_chunk_mut::<HEADER_LEN>() {
        let crc = crc::append(crc::append(0, &front[..28]), meta);
        front[28..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A stream of frames that are all allowed, with the 3 bytes that `reader` wants before it.
fn stream(random: &mut Random) -> Vec<u8> {
    let choice = [0, 1, 2, 3, 10, 11, 18][random.below(7)];
    let limits = choose_limits(choice);
    let kinds: &[Kind] = match (limits.role.is_data(), limits.direction) {
        (false, Direction::ToSource) => &[Kind::Describe, Kind::Ping, Kind::Pong],
        (false, Direction::ToRequester) => &[Kind::Page, Kind::CatalogChanged, Kind::GoAway],
        (true, Direction::ToSource) => &[Kind::Read, Kind::Write, Kind::Cancel],
        (true, Direction::ToRequester) => &[Kind::ReadData, Kind::WriteAck, Kind::Refuse],
    };
    let mut bytes = vec![choice, random.next() as u8, random.next() as u8];
    let mut outgoing = Outgoing::new(limits.payload_crc);
    for _ in 0..random.below(6) {
        let kind = kinds[random.below(kinds.len())];
        let meta_len = limits.meta_min() as usize + random.below(300);
        let meta = random.bytes(meta_len);
        let data_len = if kind.has_payload() { random.below(200) } else { 0 };
        let head = if kind.is_reply() {
            outgoing.reply(kind, random.next(), &meta, data_len as u64)
        } else {
            outgoing.request(kind, &meta, data_len as u64).0
        };
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&meta);
        let trailer = if limits.payload_crc && data_len > 0 { 4 } else { 0 };
        bytes.extend_from_slice(&random.bytes(data_len + trailer));
    }
    bytes
}

/// A whole handshake with one of the keys: Hello, Challenge, Proof, Welcome.
fn handshake(psk: &[u8]) -> ([u8; HELLO_LEN], [u8; CHALLENGE_LEN], Vec<u8>, [u8; WELCOME_LEN]) {
    let world = World::new().unwrap();
    let (requester, hello) = Requester::start(world.requester(psk));
    let step = Source::hello(&world.source(false), &hello, SOURCE_NONCE).unwrap();
    let SourceStep::Await(source, challenge) = step else { panic!("not a discover Hello") };
    let (_, proof) = requester.challenge(&challenge).unwrap();
    let welcome = source.proof(&proof).unwrap().welcome(7, 3, 12);
    (hello, challenge, proof.to_vec(), welcome)
}

fn source_samples() -> Vec<Vec<u8>> {
    let (_, discover) = Requester::discover(BUILD, EngineId::from_bytes([0; 16]), REQUESTER_NONCE);
    let mut samples = vec![[&[1][..], &discover].concat()];
    for psk in [PSK, PREVIOUS_PSK] {
        let (hello, _, proof, _) = handshake(psk);
        assert_eq!(proof.len(), PROOF_MESSAGE_LEN);
        samples.push([&[0][..], &hello, &proof].concat());
    }
    samples
}

fn requester_samples() -> Vec<Vec<u8>> {
    let world = World::new().unwrap();
    let (_, discover) = Requester::discover(BUILD, EngineId::from_bytes([0; 16]), REQUESTER_NONCE);
    let step = Source::hello(&world.source(true), &discover, SOURCE_NONCE).unwrap();
    let SourceStep::Discover(answer) = step else { panic!("discovery is allowed") };
    let mut samples = vec![[&[0][..], &answer].concat()];
    for (choice, psk) in [(0, PSK), (1, PREVIOUS_PSK)] {
        let (_, challenge, _, welcome) = handshake(psk);
        samples.push([&[choice][..], &challenge, &welcome].concat());
    }
    samples
}

/// CORE-099
#[test]
fn core_099_headers() {
    let samples = header_samples();
    fuzz(1, cases(), &samples, header);
    fuzz(2, cases(), &samples, |bytes| {
        let mut repaired = bytes.to_vec();
        if let Some(head) = repaired.get_mut(1..) {
            repair(head);
        }
        header(&repaired)
    });
    prefixes_and_bits(&samples, header);
}

/// CORE-099
#[test]
fn core_099_operation_lists() {
    let samples = ops_samples();
    fuzz(3, cases(), &samples, ops);
    prefixes_and_bits(&samples, ops);
}

/// CORE-099
#[test]
fn core_099_answers() {
    let samples = answer_samples();
    fuzz(4, cases(), &samples, answer);
    prefixes_and_bits(&samples, answer);
}

/// CORE-099
#[test]
fn core_099_refusals() {
    let samples = refusal_samples();
    fuzz(5, cases(), &samples, refusal);
    prefixes_and_bits(&samples, refusal);
}

/// CORE-099
#[test]
fn core_099_control_metas() {
    let samples = page_samples();
    fuzz(6, cases(), &samples, page);
    prefixes_and_bits(&samples, page);
}

/// CORE-099
#[test]
fn core_099_source_handshake() {
    let samples = source_samples();
    fuzz(7, cases(), &samples, handshake_source);
    prefixes_and_bits(&samples, handshake_source);
}

/// CORE-099
#[test]
fn core_099_requester_handshake() {
    let samples = requester_samples();
    fuzz(8, cases(), &samples, handshake_requester);
    prefixes_and_bits(&samples, handshake_requester);
}

/// CORE-099: the pieces in which a stream comes change nothing, whether it is right or not.
#[test]
fn core_099_streams() {
    let mut random = Random(9);
    for _ in 0..cases() / 2 {
        let len = random.below(400);
        reader(&random.bytes(len));
        let mut changed = stream(&mut random);
        if random.below(3) > 0 {
            random.change(&mut changed);
            reader(&changed);
        } else {
            assert!(reader(&changed), "each frame is right");
        }
    }
}

/// Flips each bit of a right head: the frame is never taken.
#[test]
fn core_101_no_flipped_bit_of_a_head_passes() {
    for choice in [0, 1, 2, 3, 10, 11] {
        let limits = choose_limits(choice);
        for head in heads(choice) {
            let (frames, _) = read(limits, usize::MAX, &head, &mut |_| usize::MAX);
            let [(kept, _)] = &frames[..] else { panic!("the head is right") };
            assert_eq!(kept.meta_len as usize + HEADER_LEN, head.len());
            for bit in 0..head.len() * 8 {
                let mut flipped = head.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let (frames, _) = read(limits, usize::MAX, &flipped, &mut |_| usize::MAX);
                assert!(frames.is_empty(), "bit {bit} of {kept:?}");
            }
        }
    }
}

/// docs/wire.md and the code give the same numbers to the same frames.
#[test]
fn the_document_lists_each_frame_type() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/wire.md");
    let text = std::fs::read_to_string(path).expect("docs/wire.md");
    let listed = |number: u8| {
        let row = |line: &&str| {
            line.starts_with(&std::format!("| {number} | ")) && line.matches('|').count() == 7
        };
        text.lines().find(row).and_then(|line| line.split(" | ").nth(1)).map(str::to_owned)
    };
    for number in 0..=u8::MAX {
        assert_eq!(listed(number), Kind::from_number(number).map(|kind| std::format!("{kind}")));
    }
}

/// The encodings of this build. Where this fails, bytes on the wire have changed: raise
/// `PROTOCOL_REVISION`, change docs/wire.md, then this number.
#[test]
fn the_bytes_of_the_protocol_are_those_of_its_revision() {
    let mut hash = Sha256::new();
    let all = [
        header_samples(),
        ops_samples(),
        answer_samples(),
        refusal_samples(),
        page_samples(),
        source_samples(),
        requester_samples(),
    ];
    all.iter().flatten().for_each(|sample| hash.update(sample));
    let digest = hash.finalize();
    let start: [u8; 8] = digest[..8].try_into().unwrap();
    let found = u64::from_be_bytes(start);
    assert_eq!(found, 0x2bcd_8bf6_2d74_8a81, "{found:#018x}");
}
