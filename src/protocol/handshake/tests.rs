//! Both machines against each other, and against those who pretend.

use super::body::{
    CHALLENGE_LEN, Challenge, HELLO_LEN, Hello, PROOF_MESSAGE_LEN, Status, Welcome, encode_proof,
};
use super::error::HandshakeError;
use super::requester::{AwaitWelcome, Established, Requester, RequesterParams};
use super::source::{AwaitProof, Proven, Source, SourceParams, SourceStep};
use crate::protocol::limits::{Limits, Role};
use crate::protocol::proof::SessionKey;
use crate::protocol::version::{Features, build_id};
use crate::types::{EngineId, SourceEpoch};

const OLD: &[u8] = b"a key of yesterday, of 32 bytes.";
const NEW: &[u8] = b"a key of today, it has 32 bytes.";

fn epoch(byte: u8) -> SourceEpoch {
    SourceEpoch::from_bytes([byte; 16]).unwrap()
}

fn limits() -> Limits {
    Limits::new(64 << 20, 256, 16)
}

fn source(psk: Option<&[u8]>, previous: Option<&[u8]>) -> SourceParams {
    SourceParams::new(epoch(7), psk, previous, build_id(), Features::PAYLOAD_CRC, limits())
}

fn requester(psk: Option<&[u8]>) -> RequesterParams {
    RequesterParams {
        role: Role::Data,
        lane: 3,
        rail: 1,
        build: build_id(),
        features: Features::PAYLOAD_CRC,
        nonce: [1; 16],
        id: EngineId::of(&epoch(8)),
        expected: EngineId::of(&epoch(7)),
        key: SessionKey::derive(&epoch(7), psk),
        limits: limits(),
    }
}

fn accepted(params: &SourceParams, hello: &[u8; HELLO_LEN]) -> (AwaitProof, [u8; CHALLENGE_LEN]) {
    match Source::hello(params, hello, [2; 16]).unwrap() {
        SourceStep::Await(state, reply) => (state, reply),
        SourceStep::Discover(_) => panic!("nobody asked for the epoch"),
    }
}

/// Runs the whole handshake.
fn run(
    params: RequesterParams,
    source: &SourceParams,
) -> Result<(Established, Proven), HandshakeError> {
    let (state, hello) = Requester::start(params);
    let (waiting, challenge) = accepted(source, &hello);
    let (state, proof) = state.challenge(&challenge)?;
    let proven = waiting.proof(&proof)?;
    Ok((state.welcome(&proven.welcome(41, 5, 99))?, proven))
}

#[test]
fn both_sides_end_with_the_same_agreement() {
    let theirs = Limits::new(1 << 20, 4096, 4);
    let params = RequesterParams { limits: theirs, ..requester(None) };
    let (established, proven) = run(params, &source(None, None)).unwrap();
    assert_eq!(established.limits, limits().negotiate(theirs).unwrap());
    assert_eq!(established.limits, proven.limits);
    assert_eq!((established.connection, established.shard, established.generation), (41, 5, 99));
    assert!(established.features.contains(Features::PAYLOAD_CRC));
    assert_eq!(established.features, proven.features);
    assert_eq!(proven.requester, EngineId::of(&epoch(8)));
    assert_eq!((proven.role, proven.lane, proven.rail), (Role::Data, 3, 1));
}

#[test]
fn a_feature_holds_where_both_sides_want_it() {
    let unknown = Features(1 << 40);
    for (features, holds) in [
        (Features::default(), Features::default()),
        (unknown, Features::default()),
        (Features(unknown.0 | 1), Features::PAYLOAD_CRC),
    ] {
        let params = RequesterParams { features, ..requester(None) };
        let (established, proven) = run(params, &source(None, None)).unwrap();
        assert_eq!((established.features, proven.features), (holds, holds));
    }
}

/// CORE-104: a recorded handshake does not open a second connection.
#[test]
fn core_104_a_replay_is_refused() {
    let source = source(Some(NEW), None);
    let (state, hello) = Requester::start(requester(Some(NEW)));
    let (waiting, challenge) = accepted(&source, &hello);
    let (_, proof) = state.challenge(&challenge).unwrap();
    assert!(waiting.proof(&proof).is_ok());

    let SourceStep::Await(again, _) = Source::hello(&source, &hello, [3; 16]).unwrap() else {
        panic!("a replayed Hello is a Hello")
    };
    assert_eq!(again.proof(&proof).unwrap_err(), HandshakeError::WrongProof);

    // A recorded source does not convince a requester with a fresh nonce either.
    let (fresh, _) = Requester::start(RequesterParams { nonce: [9; 16], ..requester(Some(NEW)) });
    assert_eq!(fresh.challenge(&challenge).unwrap_err(), HandshakeError::WrongProof);
}

/// A source that restarted has another id: told at once, in both directions, without any proof.
#[test]
fn another_engine_at_the_address_is_told_by_its_id() {
    let restarted =
        SourceParams::new(epoch(9), None, None, build_id(), Features::default(), limits());
    let (state, hello) = Requester::start(requester(None));
    let reject = Source::hello(&restarted, &hello, [2; 16]).unwrap_err();
    let (expected, found) = (EngineId::of(&epoch(7)), EngineId::of(&epoch(9)));
    assert_eq!(reject.error, HandshakeError::WrongEngine { expected, found });
    let reply = reject.reply.unwrap();
    assert!(reply.ends_with(&[0; 32]), "no proof for a stranger");
    assert_eq!(state.challenge(&reply).unwrap_err(), reject.error);
    let text = std::format!("{}", reject.error);
    assert!(text.contains(&std::format!("{expected}")), "{text}");
    assert!(text.contains(&std::format!("{found}")), "{text}");
}

/// An impostor knows the public id, not the epoch: it never gets the requester's proof.
#[test]
fn a_source_that_does_not_know_the_epoch_gets_no_proof() {
    let (state, hello) = Requester::start(requester(None));
    let challenge = Challenge {
        minor: 0,
        status: Status::Accepted,
        build: build_id(),
        features: Features::default(),
        nonce: [2; 16],
        source: EngineId::of(&epoch(7)),
        limits: limits(),
    };
    let guessed = SessionKey::derive(&epoch(6), None);
    let nonces = crate::protocol::proof::Nonces { requester: [1; 16], source: [2; 16] };
    let proof = guessed.source_proof(&nonces, &hello, &challenge.encode_body());
    let error = state.challenge(&challenge.encode(&proof.to_bytes())).unwrap_err();
    assert_eq!(error, HandshakeError::WrongProof);
    let (state, _) = Requester::start(requester(None));
    let error = state.challenge(&challenge.encode(&[0; 32])).unwrap_err();
    assert_eq!(error, HandshakeError::WrongProof);
}

/// A requester that knows the public id, not the epoch.
#[test]
fn a_requester_that_does_not_know_the_epoch_is_refused() {
    let key = SessionKey::derive(&epoch(6), None);
    let (_, hello) = Requester::start(RequesterParams { key, ..requester(None) });
    for proof in [[0; 32], [0xff; 32]] {
        let (waiting, _) = accepted(&source(None, None), &hello);
        let refused = waiting.proof(&encode_proof(&proof)).unwrap_err();
        assert_eq!(refused, HandshakeError::WrongProof);
    }
}

/// The source's own proof, sent back to it, opens nothing.
#[test]
fn a_reflected_proof_is_refused() {
    let (_, hello) = Requester::start(requester(None));
    let (waiting, challenge) = accepted(&source(None, None), &hello);
    let reflected = encode_proof(challenge.last_chunk().unwrap());
    assert_eq!(waiting.proof(&reflected).unwrap_err(), HandshakeError::WrongProof);
}

/// CORE-109: the wrong key, or a key on one side only.
#[test]
fn core_109_keys_must_be_equal() {
    for (ours, theirs) in [
        (Some(OLD), Some(NEW)),
        (Some(NEW), None),
        (None, Some(NEW)),
        (Some(&[0; 32][..]), None),
        (None, Some(&[0; 32][..])),
    ] {
        let source = source(theirs, None);
        let (state, hello) = Requester::start(requester(ours));
        let (waiting, challenge) = accepted(&source, &hello);
        assert_eq!(state.challenge(&challenge).unwrap_err(), HandshakeError::WrongProof);
        let guess = encode_proof(challenge.last_chunk().unwrap());
        assert_eq!(waiting.proof(&guess).unwrap_err(), HandshakeError::WrongProof);
    }
    assert!(run(requester(Some(NEW)), &source(Some(NEW), None)).is_ok());
}

/// CORE-109: a source that knows the previous key serves both.
#[test]
fn core_109_the_previous_key_works_at_the_source() {
    let rotating = source(Some(NEW), Some(OLD));
    assert!(run(requester(Some(NEW)), &rotating).is_ok());
    assert!(run(requester(Some(OLD)), &rotating).is_ok());
    assert!(run(requester(None), &rotating).is_err());
    assert!(run(requester(Some(OLD)), &source(Some(NEW), None)).is_err(), "after the rotation");
    assert!(run(requester(Some(NEW)), &source(Some(OLD), None)).is_err(), "before it");
}

/// CORE-105: a clear refusal on both sides.
#[test]
fn core_105_builds_must_be_equal() {
    let (ours, theirs) = (*b"build 01", build_id());
    let (state, hello) = Requester::start(RequesterParams { build: ours, ..requester(None) });
    let reject = Source::hello(&source(None, None), &hello, [2; 16]).unwrap_err();
    assert_eq!(reject.error, HandshakeError::BuildMismatch { ours: theirs, theirs: ours });
    let error = state.challenge(&reject.reply.unwrap()).unwrap_err();
    assert_eq!(error, HandshakeError::BuildMismatch { ours, theirs });
    let text = std::format!("{error}");
    assert!(text.contains("6275696c64203031") && text.contains("same release"), "{text}");
}

/// Builds that agree on nothing but the first 24 bytes can still tell each other so.
#[test]
fn another_version_or_build_is_told_whatever_else_it_says() {
    let (_, mut hello) = Requester::start(requester(None));
    hello[24..].fill(0xff);
    hello[16] ^= 1;
    let reject = Source::hello(&source(None, None), &hello, [2; 16]).unwrap_err();
    assert!(matches!(reject.error, HandshakeError::BuildMismatch { .. }));
    hello[8] = 2;
    let reject = Source::hello(&source(None, None), &hello, [2; 16]).unwrap_err();
    assert_eq!(reject.error, HandshakeError::Version { ours: 1, theirs: 2 });

    let mut reply = reject.reply.unwrap();
    reply[8] = 3;
    let (state, _) = Requester::start(requester(None));
    let error = state.challenge(&reply).unwrap_err();
    assert_eq!(error, HandshakeError::Version { ours: 1, theirs: 3 });
}

#[test]
fn a_higher_minor_version_is_no_obstacle() {
    let (_, hello) = Requester::start(requester(None));
    let newer = Hello { minor: 9, ..Hello::decode(&hello).unwrap() };
    assert!(Source::hello(&source(None, None), &newer.encode(), [2; 16]).is_ok());
}

#[test]
fn the_epoch_is_told_to_those_who_may_ask_only() {
    let id = EngineId::from_bytes([0; 16]);
    let (state, hello) = Requester::discover(build_id(), id, [1; 16]);
    let closed = source(None, None);
    let reject = Source::hello(&closed, &hello, [2; 16]).unwrap_err();
    assert_eq!(reject.error, HandshakeError::NotDiscoverable);
    let reply = reject.reply.unwrap();
    assert!(!reply.windows(16).any(|part| part == [7; 16]), "the epoch stays where it is");
    let error = state.answer(&reply).unwrap_err();
    assert_eq!(error, HandshakeError::Refused { status: Status::NotDiscoverable });
    assert!(std::format!("{error}").contains("security.discovery"));

    let mut open = closed;
    open.discovery = true;
    let SourceStep::Discover(reply) = Source::hello(&open, &hello, [2; 16]).unwrap() else {
        panic!("it was asked for the epoch")
    };
    let (state, _) = Requester::discover(build_id(), id, [1; 16]);
    assert_eq!(state.answer(&reply), Ok(epoch(7)));

    let (state, _) = Requester::discover(build_id(), id, [1; 16]);
    let mut forged = reply;
    forged[96] ^= 1;
    assert!(matches!(state.answer(&forged), Err(HandshakeError::WrongEngine { .. })));
    let (state, _) = Requester::start(requester(None));
    let error = state.challenge(&reply).unwrap_err();
    assert_eq!(error, HandshakeError::Refused { status: Status::Discovered });
}

/// The epoch is in none of the messages of a handshake that is not for discovery.
#[test]
fn the_epoch_does_not_travel() {
    let (state, hello) = Requester::start(requester(None));
    let (_, challenge) = accepted(&source(None, None), &hello);
    let (_, proof) = state.challenge(&challenge).unwrap();
    for message in [&hello[..], &challenge[..], &proof[..]] {
        assert!(!message.windows(8).any(|part| part == [7; 8]));
    }
}

#[test]
fn noise_gets_no_answer_and_malformed_messages_go_nowhere() {
    let (_, good) = Requester::start(requester(None));
    for bit in 0..64 {
        let mut noise = good;
        noise[bit / 8] ^= 1 << (bit % 8);
        let reject = Source::hello(&source(None, None), &noise, [2; 16]).unwrap_err();
        assert_eq!(reject.error, HandshakeError::Magic);
        assert!(reject.reply.is_none());
    }
    for at in [13, 102, 103, 112, 127] {
        let mut dirty = good;
        dirty[at] = 1;
        let reject = Source::hello(&source(None, None), &dirty, [2; 16]).unwrap_err();
        assert_eq!(reject.error, HandshakeError::Reserved { message: "Hello" });
        assert!(reject.reply.is_none());
    }
    for role in [0, 5, 255] {
        let mut unknown = good;
        unknown[12] = role;
        let reject = Source::hello(&source(None, None), &unknown, [2; 16]).unwrap_err();
        assert!(matches!(reject.error, HandshakeError::Value { what: "role", .. }));
    }
}

/// Whatever bit of a message is changed on the way, the handshake does not come to its end.
#[test]
fn a_changed_bit_ends_the_handshake() {
    let params = source(None, None);
    let (_, hello) = Requester::start(requester(None));
    for bit in 0..HELLO_LEN * 8 {
        let mut changed = hello;
        changed[bit / 8] ^= 1 << (bit % 8);
        if let Ok(SourceStep::Await(_, reply)) = Source::hello(&params, &changed, [2; 16]) {
            let (state, _) = Requester::start(requester(None));
            assert_eq!(state.challenge(&reply).unwrap_err(), HandshakeError::WrongProof, "{bit}");
        }
    }
    let (_, challenge) = accepted(&params, &hello);
    for bit in 0..CHALLENGE_LEN * 8 {
        let mut changed = challenge;
        changed[bit / 8] ^= 1 << (bit % 8);
        let (state, _) = Requester::start(requester(None));
        assert!(state.challenge(&changed).is_err(), "{bit}");
    }
    let (state, _) = Requester::start(requester(None));
    let (_, proof) = state.challenge(&challenge).unwrap();
    for bit in 0..PROOF_MESSAGE_LEN * 8 {
        let mut changed = proof;
        changed[bit / 8] ^= 1 << (bit % 8);
        let (waiting, _) = accepted(&params, &hello);
        assert!(waiting.proof(&changed).is_err(), "{bit}");
    }
}

fn waiting_for_welcome() -> (AwaitWelcome, Proven) {
    let (state, hello) = Requester::start(requester(None));
    let (waiting, challenge) = accepted(&source(None, None), &hello);
    let (state, proof) = state.challenge(&challenge).unwrap();
    (state, waiting.proof(&proof).unwrap())
}

#[test]
fn a_proven_requester_may_still_be_sent_away() {
    for status in [Status::Full, Status::Closing] {
        let (state, proven) = waiting_for_welcome();
        let error = state.welcome(&proven.refuse(status)).unwrap_err();
        assert_eq!(error, HandshakeError::Refused { status });
    }
    let (state, proven) = waiting_for_welcome();
    let mut unknown = proven.welcome(1, 2, 3);
    unknown[0] = 9;
    assert!(matches!(state.welcome(&unknown), Err(HandshakeError::Value { .. })));
    let (state, proven) = waiting_for_welcome();
    let mut dirty = proven.welcome(1, 2, 3);
    dirty[63] = 1;
    let error = state.welcome(&dirty).unwrap_err();
    assert_eq!(error, HandshakeError::Reserved { message: "Welcome" });
    let welcome = Welcome { status: Status::Accepted, shard: 2, connection: 1, generation: 3 };
    assert_eq!(Welcome::decode(&proven.welcome(1, 2, 3)), Ok(welcome));
}

#[test]
fn limits_that_allow_no_frame_are_refused_by_both() {
    let none = Limits { lane_window: 0, ..limits() };
    let (state, hello) = Requester::start(RequesterParams { limits: none, ..requester(None) });
    let reject = Source::hello(&source(None, None), &hello, [2; 16]).unwrap_err();
    let limit = HandshakeError::Limit { what: "lane window", value: 0, min: 1 };
    assert_eq!(reject.error, limit);
    let error = state.challenge(&reject.reply.unwrap()).unwrap_err();
    assert_eq!(error, HandshakeError::Refused { status: Status::Limits });

    let narrow = SourceParams::new(epoch(7), None, None, build_id(), Features::default(), none);
    let (_, hello) = Requester::start(requester(None));
    assert_eq!(Source::hello(&narrow, &hello, [2; 16]).unwrap_err().error, limit);
}
