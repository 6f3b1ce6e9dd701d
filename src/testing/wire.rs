//! Fuzz bodies of every decoder of the wire protocol.
//!
//! Each takes any bytes, and fails (by an assertion) unless the decoder gives a value or an error, a
//! value encodes to the same bytes again, and memory stays inside its limit. What a decoder needs
//! besides the message is taken from the front of the bytes, as said at each body. A body says whether
//! the message was accepted, so that tests can see that their samples reach the decoder's end.

use std::vec;
use std::vec::Vec;

use crate::protocol::control::catalog::{self, CatalogChanged, Describe, Page};
use crate::protocol::control::region::{DESCRIPTOR_LEN, RegionDescriptor};
use crate::protocol::data::answer::{Answer, Refusal};
use crate::protocol::data::ops::{self, Ops};
use crate::protocol::data::reader::FrameReader;
use crate::protocol::error::FrameError;
use crate::protocol::handshake::body::{Challenge, Hello, Status, Welcome, encode_epoch};
use crate::protocol::handshake::error::HandshakeError;
use crate::protocol::handshake::requester::{Requester, RequesterParams};
use crate::protocol::handshake::source::{Source, SourceParams, SourceStep};
use crate::protocol::header::{self, HEADER_LEN, Header};
use crate::protocol::limits::{Direction, FrameLimits, Limits, Role};
use crate::protocol::notice::{Cancel, GoAway, Ping, Pong};
use crate::protocol::proof::SessionKey;
use crate::protocol::version::Features;
use crate::types::{EngineId, RemoteEffect, SourceEpoch};

#[cfg(test)]
mod tests;

/// Takes `N` bytes off the front; what is missing is zero.
fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let mut taken = [0; N];
    let (front, rest) = bytes.split_at(bytes.len().min(N));
    for (to, from) in taken.iter_mut().zip(front) {
        *to = *from;
    }
    *bytes = rest;
    taken
}

/// The limits that one byte chooses: role, direction, checksums, and short or long metas.
fn choose_limits(choice: u8) -> FrameLimits {
    let direction = if choice & 1 == 0 { Direction::ToSource } else { Direction::ToRequester };
    let role = match choice >> 1 & 3 {
        0 => Role::Control,
        1 => Role::Data,
        2 => Role::HpData,
        _ => Role::Discover,
    };
    if !role.is_data() {
        return FrameLimits { role, ..FrameLimits::control(direction) };
    }
    let features = if choice & 8 == 0 { Features::default() } else { Features::PAYLOAD_CRC };
    let scatter_ops = if choice & 16 == 0 { 256 } else { 4096 };
    FrameLimits::data(role, direction, &Limits::new(64 << 20, scatter_ops, 16), features)
}

/// A frame's head. First byte: the limits. Then header and meta.
pub fn header(mut bytes: &[u8]) -> bool {
    let [choice] = take(&mut bytes);
    let limits = choose_limits(choice);
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else { return false };
    let Ok(header) = header::decode(head, &limits) else { return false };
    assert!(header.meta_len <= limits.meta_max && header.meta_len >= limits.meta_min());
    assert!(header.data_len <= limits.data_max);
    assert_eq!(header.payload_len() - header.data_len, if header.has_trailer() { 4 } else { 0 });
    let Some(meta) = rest.get(..header.meta_len as usize) else { return false };
    let again = header::encode(&header, meta);
    assert_eq!(again[..28], head[..28], "a decoded header encodes to the same bytes");
    let checked = header::check(head, meta).is_ok();
    assert_eq!(checked, again == *head, "and so does its checksum");
    checked
}

/// A list of operations. First 11 bytes: most operations u16, whether there is a payload u8, its length
/// u64. Then the meta.
pub fn ops(mut bytes: &[u8]) -> bool {
    let max_ops = u16::from_le_bytes(take(&mut bytes)).into();
    let [write] = take(&mut bytes);
    let payload = u64::from_le_bytes(take(&mut bytes));
    let data_len = (write & 1 != 0).then_some(payload);
    let Ok(list) = Ops::decode(bytes, max_ops, data_len) else { return false };
    assert!((1..=max_ops).contains(&list.len()));
    assert_eq!(list.iter().len(), list.len() as usize);
    assert_eq!(list.iter().map(|op| op.length).sum::<u64>(), list.total());
    assert!(data_len.is_none_or(|data_len| data_len == list.total()));
    assert!(list.iter().all(|op| op.length > 0 && op.offset.checked_add(op.length).is_some()));
    let mut again = Vec::with_capacity(bytes.len());
    ops::begin(&mut again);
    list.iter().for_each(|op| ops::push(&mut again, &op));
    assert_eq!(ops::finish(&mut again), list.len());
    assert_eq!(again, bytes);
    true
}

/// The meta of ReadData and WriteAck.
pub fn answer(bytes: &[u8]) -> bool {
    let Ok(answer) = Answer::decode(bytes) else { return false };
    assert_eq!(answer.encode(), bytes);
    true
}

/// A refusal. First 2 bytes: operations asked for, at most 4096. Then the meta.
pub fn refusal(mut bytes: &[u8]) -> bool {
    let asked = u16::from_le_bytes(take(&mut bytes)) % 4097;
    let Ok((refusal, bad)) = Refusal::decode(bytes, asked.into()) else { return false };
    assert_ne!(refusal.effect, RemoteEffect::Applied);
    assert_eq!(refusal.count, u32::from(asked));
    assert_eq!(bad.iter().position(|bad| bad).unwrap_or(asked.into()), refusal.first_bad as usize);
    let mut again = Vec::new();
    assert_eq!(Refusal::encode(&mut again, refusal.class, refusal.effect, bad.iter()), refusal);
    assert_eq!(again, bytes);
    true
}

/// Metas of control connections and notices. First byte: which. Then the meta; for a page also its
/// payload.
pub fn page(mut bytes: &[u8]) -> bool {
    fn same<const N: usize>(decoded: Option<[u8; N]>, bytes: &[u8]) -> bool {
        assert!(decoded.is_none_or(|again| again == bytes));
        decoded.is_some()
    }
    let [choice] = take(&mut bytes);
    match choice % 8 {
        0 => page_and_regions(bytes),
        1 => same(Describe::decode(bytes).ok().map(|it| it.encode()), bytes),
        2 => same(CatalogChanged::decode(bytes).ok().map(CatalogChanged::encode), bytes),
        3 => {
            let Some((one, _)) = bytes.split_first_chunk::<DESCRIPTOR_LEN>() else { return false };
            same(RegionDescriptor::decode(one).ok().map(|it| it.encode()), one)
        }
        4 => same(Ping::decode(bytes).ok().map(Ping::encode), bytes),
        5 => same(Pong::decode(bytes).ok().map(Pong::encode), bytes),
        6 => same(Cancel::decode(bytes).ok().map(Cancel::encode), bytes),
        _ => same(GoAway::decode(bytes).ok().map(|it| it.encode()), bytes),
    }
}

fn page_and_regions(bytes: &[u8]) -> bool {
    let (meta, payload) = bytes.split_at(bytes.len().min(Page::LEN));
    let Ok(page) = Page::decode(meta, payload.len() as u64) else { return false };
    assert_eq!(page.encode(), meta);
    assert_eq!(catalog::regions(payload).count(), page.count as usize);
    for (region, one) in catalog::regions(payload).zip(payload.chunks_exact(DESCRIPTOR_LEN)) {
        if let Ok(region) = region {
            assert_eq!(region.encode(), one);
            assert!(region.permission().is_remote());
            assert!(region.address().checked_add(region.length()).is_some());
        }
    }
    let asked = Describe { cursor: 7, generation: 3 };
    if let Ok(Some(next)) = page.next(&asked) {
        assert!(next.generation != asked.generation || next.cursor > asked.cursor);
    }
    catalog::regions(payload).all(|region| region.is_ok())
}

/// What the handshake bodies share: an epoch, its engine and the limits of both sides.
struct World {
    epoch: SourceEpoch,
    limits: Limits,
}

const BUILD: [u8; 8] = *b"build 01";
const PSK: &[u8] = b"a key shared beforehand, 32 bytes";
const PREVIOUS_PSK: &[u8] = b"the key that was shared before it";
const REQUESTER_NONCE: [u8; 16] = [0x11; 16];
const SOURCE_NONCE: [u8; 16] = [0x22; 16];

impl World {
    /// `None` for no input at all: the epoch is not zero.
    fn new() -> Option<Self> {
        let epoch = SourceEpoch::from_bytes([0x33; 16])?;
        Some(Self { epoch, limits: Limits::new(64 << 20, 256, 16) })
    }

    fn source(&self, discovery: bool) -> SourceParams {
        let (psk, previous) = (Some(PSK), Some(PREVIOUS_PSK));
        let features = Features::PAYLOAD_CRC;
        let mut params = SourceParams::new(self.epoch, psk, previous, BUILD, features, self.limits);
        params.discovery = discovery;
        params
    }

    fn requester(&self, psk: &[u8]) -> RequesterParams {
        RequesterParams {
            role: Role::Data,
            lane: 1,
            rail: 2,
            build: BUILD,
            features: Features::PAYLOAD_CRC,
            nonce: REQUESTER_NONCE,
            id: EngineId::from_bytes([0x44; 16]),
            expected: EngineId::of(&self.epoch),
            key: SessionKey::derive(&self.epoch, Some(psk)),
            limits: self.limits,
        }
    }
}

/// A source's handshake. First byte: whether discovery is allowed. Then Hello (128 bytes) and Proof
/// (64 bytes). The source knows two keys.
pub fn handshake_source(mut bytes: &[u8]) -> bool {
    let Some(world) = World::new() else { return false };
    let [discovery] = take(&mut bytes);
    let Some((hello, rest)) = bytes.split_first_chunk() else { return false };
    let decoded = Hello::decode(hello);
    assert!(decoded.is_err() || decoded.is_ok_and(|it| it.encode() == *hello));

    let params = world.source(discovery & 1 != 0);
    match Source::hello(&params, hello, SOURCE_NONCE) {
        Ok(SourceStep::Await(state, reply)) => {
            let decoded = Challenge::decode(&reply);
            assert!(decoded.is_ok_and(|(it, _)| it.status == Status::Accepted));
            let Some((proof, _)) = rest.split_first_chunk() else { return false };
            let Ok(proven) = state.proof(proof) else { return false };
            assert!((1..=256).contains(&proven.limits.scatter_ops));
            assert!(Welcome::decode(&proven.welcome(1, 2, 3)).is_ok());
            true
        }
        Ok(SourceStep::Discover(reply)) => {
            assert!(params.discovery, "the epoch is told to those who may have it");
            assert!(reply.ends_with(&encode_epoch(&world.epoch)));
            true
        }
        Err(reject) => {
            if let Some(reply) = reject.reply {
                let decoded = Challenge::decode(&reply);
                let refused = |it: Challenge| it.status as u16 >= Status::NotDiscoverable as u16;
                assert!(decoded.is_ok_and(|(it, last)| refused(it) && last == [0; 32]));
            }
            let noise = reject.error == HandshakeError::Magic;
            assert!(!noise || reject.reply.is_none(), "noise gets no answer");
            false
        }
    }
}

/// A requester's handshake. First byte: which key it has. Then Challenge (128 bytes) and Welcome
/// (64 bytes). The same Challenge is given to a requester that asks for the epoch.
pub fn handshake_requester(mut bytes: &[u8]) -> bool {
    let Some(world) = World::new() else { return false };
    let [choice] = take(&mut bytes);
    let psk = if choice & 1 == 0 { PSK } else { PREVIOUS_PSK };
    let Some((message, rest)) = bytes.split_first_chunk() else { return false };
    let decoded = Challenge::decode(message);
    assert!(decoded.is_err() || decoded.is_ok_and(|(it, last)| it.encode(&last) == *message));

    let (state, _) = Requester::discover(BUILD, EngineId::from_bytes([0; 16]), REQUESTER_NONCE);
    if let Ok(epoch) = state.answer(message) {
        assert!(decoded.is_ok_and(|(it, _)| it.source == EngineId::of(&epoch)));
        return true;
    }
    let (state, _) = Requester::start(world.requester(psk));
    let Ok((state, proof)) = state.challenge(message) else { return false };
    assert_ne!(proof[..32], message[96..], "the source's proof does not serve as the requester's");
    let Some((message, _)) = rest.split_first_chunk() else { return false };
    let decoded = Welcome::decode(message);
    assert!(decoded.is_err() || decoded.is_ok_and(|it| it.encode() == *message));
    let established = state.welcome(message);
    established.is_ok_and(|it| (1..=256).contains(&it.limits.scatter_ops))
}

/// Frames in a stream. First 3 bytes: the limits, how many bytes to ask for first, a number that the
/// sizes of the pieces come from. Then the stream. Pieces and the whole must give the same.
pub fn reader(mut bytes: &[u8]) -> bool {
    let [choice, first, mut step] = take(&mut bytes);
    let limits = choose_limits(choice);
    let whole = read(limits, usize::MAX, bytes, &mut |_| usize::MAX);
    let pieces = read(limits, first.into(), bytes, &mut |space| {
        // Any full-period generator of small numbers does.
        step = step.wrapping_mul(5).wrapping_add(3);
        if step % 8 == 0 { space } else { usize::from(step >> 4) }
    });
    assert_eq!(whole, pieces);
    whole.1.is_none()
}

type Frames = (Vec<(Header, Vec<u8>)>, Option<FrameError>);

fn read(
    limits: FrameLimits,
    first: usize,
    mut stream: &[u8],
    piece: &mut dyn FnMut(usize) -> usize,
) -> Frames {
    let mut reader = FrameReader::new(limits, first);
    let mut frames = vec![];
    while !stream.is_empty() {
        let space = reader.space();
        assert!(!space.is_empty(), "a head that is not complete asks for bytes");
        let n = piece(space.len()).clamp(1, space.len()).min(stream.len());
        let (front, rest) = stream.split_at(n);
        for (to, from) in space.iter_mut().zip(front) {
            *to = *from;
        }
        stream = rest;
        let result = reader.filled(n);
        assert!(reader.buffer_bytes() <= HEADER_LEN + limits.meta_max as usize);
        match result {
            Ok(None) => {}
            Ok(Some(header)) => {
                frames.push((header, reader.meta().to_vec()));
                let payload = usize::try_from(header.payload_len()).unwrap_or(usize::MAX);
                stream = stream.get(payload..).unwrap_or_default();
                reader.next();
            }
            Err(error) => {
                assert_eq!(reader.filled(0), Err(error), "an error is for good");
                return (frames, Some(error));
            }
        }
    }
    (frames, None)
}
