//! The side that listens.

use super::body::{
    CHALLENGE_LEN, Challenge, HELLO_LEN, Hello, PROOF_MESSAGE_LEN, Prelude, Status, WELCOME_LEN,
    Welcome, decode_proof, encode_epoch,
};
use super::error::HandshakeError;
use crate::protocol::limits::{Limits, Role};
use crate::protocol::proof::{Nonces, PROOF_LEN, Proof, SessionKey};
use crate::protocol::version::{Features, MINOR};
use crate::types::{EngineId, SourceEpoch};

/// What a source brings to a handshake. Made once for an engine; `discovery` depends on who asks.
#[derive(Clone, Debug)]
pub(crate) struct SourceParams {
    id: EngineId,
    epoch: SourceEpoch,
    key: SessionKey,
    previous: Option<SessionKey>,
    build: [u8; 8],
    features: Features,
    limits: Limits,
    /// Whether this requester may be told the epoch. False after [`new`](Self::new).
    pub discovery: bool,
}

impl SourceParams {
    /// Of the engine with `epoch`. `previous_psk` is accepted besides `psk`, for the time in which peers
    /// change from one to the other. `build` is [`build_id`](crate::protocol::version::build_id), except
    /// in tests.
    pub fn new(
        epoch: SourceEpoch,
        psk: Option<&[u8]>,
        previous_psk: Option<&[u8]>,
        build: [u8; 8],
        features: Features,
        limits: Limits,
    ) -> Self {
        Self {
            id: EngineId::of(&epoch),
            epoch,
            key: SessionKey::derive(&epoch, psk),
            previous: previous_psk.map(|psk| SessionKey::derive(&epoch, Some(psk))),
            build,
            features,
            limits,
            discovery: false,
        }
    }
}

/// What to do after a Hello.
#[derive(Debug)]
pub(crate) enum SourceStep {
    /// Send the Challenge and wait for the proof.
    Await(AwaitProof, [u8; CHALLENGE_LEN]),
    /// Send the message, which holds the epoch, and close.
    Discover([u8; CHALLENGE_LEN]),
}

/// A Hello that leads nowhere.
#[derive(Debug)]
pub(crate) struct Reject {
    /// Sent before the connection is closed. `None` for what is not well formed: no answer to noise.
    pub reply: Option<[u8; CHALLENGE_LEN]>,
    pub error: HandshakeError,
}

/// The start of a source's handshake.
#[derive(Debug)]
pub(crate) struct Source;

/// Sent its Challenge.
#[derive(Debug)]
pub(crate) struct AwaitProof {
    needed: Proof,
    proven: Proven,
}

/// A requester that proved its right and waits for a Welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proven {
    /// The id that the requester claims: for names and for keys of its own state, never a right.
    pub requester: EngineId,
    /// Control, data or hp-data.
    pub role: Role,
    pub lane: u16,
    pub rail: u16,
    pub limits: Limits,
    pub features: Features,
}

impl Source {
    /// Takes a Hello. `nonce` is fresh from the operating system's generator.
    ///
    /// Rejects, in this order, another magic, version or build, what is malformed, a discover Hello
    /// that is not allowed, a requester that expects another engine, and limits that allow no frame.
    #[expect(
        clippy::result_large_err,
        reason = "the reply stands on the stack: a stranger's message makes nobody allocate"
    )]
    pub fn hello(
        params: &SourceParams,
        message: &[u8; HELLO_LEN],
        nonce: [u8; 16],
    ) -> Result<SourceStep, Reject> {
        let silent = |error| Reject { reply: None, error };
        let prelude = Prelude::read(message).map_err(silent)?;
        if let Err(error) = prelude.agree(params.build) {
            let versions = matches!(error, HandshakeError::Version { .. });
            let status = if versions { Status::Version } else { Status::Build };
            return Err(params.reject(status, error));
        }
        let hello = Hello::decode(message).map_err(silent)?;
        if hello.role == Role::Discover {
            return if params.discovery {
                let answer = params.challenge(Status::Discovered, [0; 16]);
                Ok(SourceStep::Discover(answer.encode(&encode_epoch(&params.epoch))))
            } else {
                Err(params.reject(Status::NotDiscoverable, HandshakeError::NotDiscoverable))
            };
        }
        if hello.expected != params.id {
            let (expected, found) = (hello.expected, params.id);
            let error = HandshakeError::WrongEngine { expected, found };
            return Err(params.reject(Status::WrongEngine, error));
        }
        let limits = params
            .limits
            .negotiate(hello.limits)
            .map_err(|error| params.reject(Status::Limits, error.into()))?;

        let challenge = params.challenge(Status::Accepted, nonce);
        let body = challenge.encode_body();
        let nonces = Nonces { requester: hello.nonce, source: nonce };
        let key = params.key_of(&hello);
        let proof = key.source_proof(&nonces, message, &body);
        let needed = key.requester_proof(&nonces, message, &body);
        let proven = Proven {
            requester: hello.requester,
            role: hello.role,
            lane: hello.lane,
            rail: hello.rail,
            limits,
            features: params.features & hello.features,
        };
        let reply = challenge.encode(&proof.to_bytes());
        Ok(SourceStep::Await(AwaitProof { needed, proven }, reply))
    }
}

impl SourceParams {
    /// The message that refuses a connection before anything was read from it, such as one too many.
    pub fn refuse(&self, status: Status) -> [u8; CHALLENGE_LEN] {
        self.challenge(status, [0; 16]).encode(&[0; PROOF_LEN])
    }

    fn reject(&self, status: Status, error: HandshakeError) -> Reject {
        Reject { reply: Some(self.refuse(status)), error }
    }

    fn challenge(&self, status: Status, nonce: [u8; 16]) -> Challenge {
        Challenge {
            minor: MINOR,
            status,
            build: self.build,
            features: self.features,
            nonce,
            source: self.id,
            limits: self.limits,
        }
    }

    /// The previous key where the hint says that the requester has it, else the current one.
    fn key_of(&self, hello: &Hello) -> &SessionKey {
        let previous = self.previous.as_ref();
        previous.filter(|key| key.hint(&hello.nonce) == hello.key_hint).unwrap_or(&self.key)
    }
}

impl AwaitProof {
    /// Verifies the requester. Fails for a wrong proof, to which no answer is due, and then for reserved
    /// bytes that are not zero.
    pub fn proof(self, message: &[u8; PROOF_MESSAGE_LEN]) -> Result<Proven, HandshakeError> {
        let (found, clean) = decode_proof(message);
        if !self.needed.matches(&found) {
            return Err(HandshakeError::WrongProof);
        }
        if !clean {
            return Err(HandshakeError::Reserved { message: "Proof" });
        }
        Ok(self.proven)
    }
}

impl Proven {
    /// The message that opens the connection: frames may follow it.
    #[expect(clippy::unused_self, reason = "only who is proven can be welcomed")]
    pub fn welcome(&self, connection: u64, shard: u16, generation: u64) -> [u8; WELCOME_LEN] {
        Welcome { status: Status::Accepted, shard, connection, generation }.encode()
    }

    /// The message that says why the connection is closed all the same.
    #[expect(clippy::unused_self, reason = "only who is proven gets a Welcome at all")]
    pub fn refuse(&self, status: Status) -> [u8; WELCOME_LEN] {
        debug_assert_ne!(status, Status::Accepted, "a refusal");
        Welcome { status, shard: 0, connection: 0, generation: 0 }.encode()
    }
}
