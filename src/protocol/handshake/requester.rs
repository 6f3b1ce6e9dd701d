//! The side that dialed.

use super::body::{
    CHALLENGE_BODY_LEN, CHALLENGE_LEN, Challenge, HELLO_LEN, Hello, PROOF_MESSAGE_LEN, Prelude,
    Status, WELCOME_LEN, Welcome, decode_epoch, encode_proof,
};
use super::error::HandshakeError;
use crate::protocol::limits::{Limits, Role};
use crate::protocol::proof::{HINT_LEN, Nonces, SessionKey};
use crate::protocol::version::{Features, MINOR};
use crate::types::{EngineId, SourceEpoch};

/// What a requester brings to a handshake.
#[derive(Clone, Debug)]
pub(crate) struct RequesterParams {
    /// Control, data or hp-data.
    pub role: Role,
    pub lane: u16,
    pub rail: u16,
    /// [`build_id`](crate::protocol::version::build_id), except in tests.
    pub build: [u8; 8],
    /// Wanted, if the source wants them too.
    pub features: Features,
    /// Fresh from the operating system's generator.
    pub nonce: [u8; 16],
    /// Of the own engine.
    pub id: EngineId,
    /// Of the engine that is dialed: the id of the epoch that `key` was derived from.
    pub expected: EngineId,
    pub key: SessionKey,
    /// Of the own engine.
    pub limits: Limits,
}

/// What both sides know at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Established {
    /// Number of the connection in the source's engine.
    pub connection: u64,
    /// Shard of the source that serves it.
    pub shard: u16,
    /// Generation of the source's catalog.
    pub generation: u64,
    pub limits: Limits,
    pub features: Features,
}

/// The start of a requester's handshake.
#[derive(Debug)]
pub(crate) struct Requester;

/// Sent its Hello.
#[derive(Debug)]
pub(crate) struct AwaitChallenge {
    hello: [u8; HELLO_LEN],
    params: RequesterParams,
}

/// Verified the source and sent its own proof.
#[derive(Debug)]
pub(crate) struct AwaitWelcome {
    limits: Limits,
    features: Features,
}

/// Sent a discover Hello.
#[derive(Debug)]
pub(crate) struct AwaitEpoch {
    build: [u8; 8],
}

impl Requester {
    /// The first message of a control or data connection. Cannot fail.
    pub fn start(params: RequesterParams) -> (AwaitChallenge, [u8; HELLO_LEN]) {
        let hello = Hello {
            minor: MINOR,
            role: params.role,
            rail: params.rail,
            lane: params.lane,
            build: params.build,
            features: params.features,
            nonce: params.nonce,
            requester: params.id,
            expected: params.expected,
            limits: params.limits,
            key_hint: params.key.hint(&params.nonce),
        }
        .encode();
        (AwaitChallenge { hello, params }, hello)
    }

    /// The message of a connection that asks for the epoch. `id` is that of the own engine, or zeros.
    pub fn discover(
        build: [u8; 8],
        id: EngineId,
        nonce: [u8; 16],
    ) -> (AwaitEpoch, [u8; HELLO_LEN]) {
        let nothing = Limits { max_message: 0, scatter_ops: 0, lane_window: 0, meta_bytes: 0 };
        let hello = Hello {
            minor: MINOR,
            role: Role::Discover,
            rail: 0,
            lane: 0,
            build,
            features: Features::default(),
            nonce,
            requester: id,
            expected: EngineId::from_bytes([0; 16]),
            limits: nothing,
            key_hint: [0; HINT_LEN],
        };
        (AwaitEpoch { build }, hello.encode())
    }
}

impl AwaitChallenge {
    /// Verifies the source and gives the proof to send. Nothing is sent to a source that failed: one
    /// that does not know the epoch learns nothing that it could use.
    ///
    /// Fails, in this order, for another magic, version or build, for an engine that is not the
    /// expected one, for a refusal, for a wrong proof, and for limits that allow no frame.
    pub fn challenge(
        self,
        message: &[u8; CHALLENGE_LEN],
    ) -> Result<(AwaitWelcome, [u8; PROOF_MESSAGE_LEN]), HandshakeError> {
        let Self { hello, params } = self;
        Prelude::read(message)?.agree(params.build)?;
        let (challenge, last) = Challenge::decode(message)?;
        if challenge.source != params.expected {
            let (expected, found) = (params.expected, challenge.source);
            return Err(HandshakeError::WrongEngine { expected, found });
        }
        if challenge.status != Status::Accepted {
            return Err(HandshakeError::Refused { status: challenge.status });
        }
        let nonces = Nonces { requester: params.nonce, source: challenge.nonce };
        let body = message.first_chunk::<CHALLENGE_BODY_LEN>().map_or(&message[..], |body| body);
        if !params.key.source_proof(&nonces, &hello, body).matches(&last) {
            return Err(HandshakeError::WrongProof);
        }
        let limits = params.limits.negotiate(challenge.limits)?;
        let features = params.features & challenge.features;
        let proof = params.key.requester_proof(&nonces, &hello, body);
        Ok((AwaitWelcome { limits, features }, encode_proof(&proof.to_bytes())))
    }
}

impl AwaitWelcome {
    /// Ends the handshake: frames may follow. Fails for a refusal and for a malformed message.
    pub fn welcome(self, message: &[u8; WELCOME_LEN]) -> Result<Established, HandshakeError> {
        let welcome = Welcome::decode(message)?;
        if welcome.status != Status::Accepted {
            return Err(HandshakeError::Refused { status: welcome.status });
        }
        let Self { limits, features } = self;
        let Welcome { connection, shard, generation, .. } = welcome;
        Ok(Established { connection, shard, generation, limits, features })
    }
}

impl AwaitEpoch {
    /// The epoch of the source. Fails for another magic, version or build, for a refusal, and where
    /// epoch and engine id do not belong together.
    pub fn answer(self, message: &[u8; CHALLENGE_LEN]) -> Result<SourceEpoch, HandshakeError> {
        Prelude::read(message)?.agree(self.build)?;
        let (challenge, last) = Challenge::decode(message)?;
        if challenge.status != Status::Discovered {
            return Err(HandshakeError::Refused { status: challenge.status });
        }
        let epoch = decode_epoch(&last)?;
        let expected = EngineId::of(&epoch);
        if challenge.source != expected {
            return Err(HandshakeError::WrongEngine { expected, found: challenge.source });
        }
        Ok(epoch)
    }
}
