//! The bytes of the four messages. `docs/wire.md` has their tables.

use core::fmt;

use super::error::HandshakeError;
use crate::protocol::fields::{Fields, Put};
use crate::protocol::limits::{Limits, Role};
use crate::protocol::proof::{HINT_LEN, PROOF_LEN};
use crate::protocol::version::{Features, MAGIC, MAJOR};
use crate::types::{EngineId, SourceEpoch};

/// Length of a Hello, bytes.
pub(crate) const HELLO_LEN: usize = 128;

/// Length of a Challenge, bytes.
pub(crate) const CHALLENGE_LEN: usize = 128;

/// Length of a Challenge without its proof, bytes: the part that both proofs cover.
pub(crate) const CHALLENGE_BODY_LEN: usize = CHALLENGE_LEN - PROOF_LEN;

/// Length of the message with the requester's proof, bytes.
pub(crate) const PROOF_MESSAGE_LEN: usize = 64;

/// Length of a Welcome, bytes.
pub(crate) const WELCOME_LEN: usize = 64;

/// What a source says to a Hello or a Proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Status {
    /// Goes on.
    Accepted = 0,
    /// The answer to a discover Hello: the epoch stands in place of the proof.
    Discovered = 1,
    /// The epoch may not be told to this requester.
    NotDiscoverable = 2,
    /// Another major version.
    Version = 3,
    /// Another build.
    Build = 4,
    /// The requester expected another engine.
    WrongEngine = 5,
    /// A limit of the requester under which no frame could be sent.
    Limits = 6,
    /// A connection too many.
    Full = 7,
    /// The source closes.
    Closing = 8,
}

impl Status {
    const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Accepted,
            1 => Self::Discovered,
            2 => Self::NotDiscoverable,
            3 => Self::Version,
            4 => Self::Build,
            5 => Self::WrongEngine,
            6 => Self::Limits,
            7 => Self::Full,
            8 => Self::Closing,
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accepted => "accepted",
            Self::Discovered => "it answers with its epoch",
            Self::NotDiscoverable => {
                "it does not tell its epoch (its security.discovery decides to whom it would)"
            }
            Self::Version => "another protocol version",
            Self::Build => "another build",
            Self::WrongEngine => "another engine was expected",
            Self::Limits => "the limits of this side allow no frame",
            Self::Full => "it has no room for a further connection",
            Self::Closing => "it is closing",
        })
    }
}

fn read_status(number: u16) -> Result<Status, HandshakeError> {
    let rule = "0..=8";
    let unknown = HandshakeError::Value { what: "status", value: number.into(), rule };
    Status::from_number(number).ok_or(unknown)
}

/// The fields that stand in the same place of Hello and Challenge in every version, so that builds that
/// differ in all else can still tell each other that they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prelude {
    pub major: u16,
    pub minor: u16,
    pub build: [u8; 8],
}

impl Prelude {
    /// Fails for another magic.
    pub fn read(message: &[u8; 128]) -> Result<Self, HandshakeError> {
        let mut fields = Fields::new(message);
        if fields.array() != MAGIC {
            return Err(HandshakeError::Magic);
        }
        let (major, minor) = (fields.u16(), fields.u16());
        let _not_in_the_prelude = fields.u32();
        Ok(Self { major, minor, build: fields.array() })
    }

    /// Fails for another major version or build than these.
    pub fn agree(&self, build: [u8; 8]) -> Result<(), HandshakeError> {
        self.agree_on_version()?;
        if self.build != build {
            return Err(HandshakeError::BuildMismatch { ours: build, theirs: self.build });
        }
        Ok(())
    }

    fn agree_on_version(&self) -> Result<(), HandshakeError> {
        if self.major == MAJOR {
            Ok(())
        } else {
            Err(HandshakeError::Version { ours: MAJOR, theirs: self.major })
        }
    }
}

/// Step 1: who asks, for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub minor: u16,
    pub role: Role,
    /// Path that the connection uses, for transports that have several.
    pub rail: u16,
    /// Position among the requester's connections of the same role and rail.
    pub lane: u16,
    pub build: [u8; 8],
    pub features: Features,
    pub nonce: [u8; 16],
    /// The requester's id. A claim.
    pub requester: EngineId,
    /// Id of the engine that the requester wants; zero in a discover Hello.
    pub expected: EngineId,
    /// The requester's limits; zero in a discover Hello.
    pub limits: Limits,
    /// Which key the requester has ([`SessionKey::hint`](crate::protocol::proof::SessionKey::hint));
    /// zero in a discover Hello.
    pub key_hint: [u8; HINT_LEN],
}

impl Hello {
    /// The message.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        Put::new(&mut bytes)
            .array(MAGIC)
            .u16(MAJOR)
            .u16(self.minor)
            .u8(self.role as u8)
            .reserved::<1>()
            .u16(self.rail)
            .array(self.build)
            .u64(self.features.0)
            .array(self.nonce)
            .array(self.requester.to_bytes())
            .array(self.expected.to_bytes())
            .u64(self.limits.max_message)
            .u32(self.limits.scatter_ops)
            .u32(self.limits.lane_window)
            .u32(self.limits.meta_bytes)
            .u16(self.lane)
            .reserved::<2>()
            .array(self.key_hint)
            .reserved::<16>()
            .finish();
        bytes
    }

    /// Fails for another magic or major version, an unknown role, or reserved bytes that are not zero.
    pub fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Self, HandshakeError> {
        Prelude::read(bytes)?.agree_on_version()?;
        let mut fields = Fields::new(bytes);
        let _magic = fields.array::<8>();
        let _major = fields.u16();
        let minor = fields.u16();
        let role = fields.u8();
        fields.reserved::<1>();
        let rail = fields.u16();
        let build = fields.array();
        let features = Features(fields.u64());
        let nonce = fields.array();
        let requester = EngineId::from_bytes(fields.array());
        let expected = EngineId::from_bytes(fields.array());
        let limits = read_limits(&mut fields);
        let lane = fields.u16();
        fields.reserved::<2>();
        let key_hint = fields.array();
        fields.reserved::<16>();
        if !fields.finish() {
            return Err(HandshakeError::Reserved { message: "Hello" });
        }
        let unknown = HandshakeError::Value { what: "role", value: role.into(), rule: "1..=4" };
        let role = Role::from_number(role).ok_or(unknown)?;
        Ok(Self {
            minor,
            role,
            rail,
            lane,
            build,
            features,
            nonce,
            requester,
            expected,
            limits,
            key_hint,
        })
    }
}

fn read_limits(fields: &mut Fields<'_>) -> Limits {
    Limits {
        max_message: fields.u64(),
        scatter_ops: fields.u32(),
        lane_window: fields.u32(),
        meta_bytes: fields.u32(),
    }
}

/// Step 2: who answers. Everything but the last [`PROOF_LEN`] bytes, which hold the source's proof, or
/// the epoch, or zeros where the status is a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub minor: u16,
    pub status: Status,
    pub build: [u8; 8],
    pub features: Features,
    /// The source's nonce; zero unless accepted.
    pub nonce: [u8; 16],
    pub source: EngineId,
    /// The source's limits.
    pub limits: Limits,
}

impl Challenge {
    /// The message without its last part.
    pub fn encode_body(&self) -> [u8; CHALLENGE_BODY_LEN] {
        let mut bytes = [0; CHALLENGE_BODY_LEN];
        Put::new(&mut bytes)
            .array(MAGIC)
            .u16(MAJOR)
            .u16(self.minor)
            .u16(self.status as u16)
            .reserved::<2>()
            .array(self.build)
            .u64(self.features.0)
            .array(self.nonce)
            .array(self.source.to_bytes())
            .u64(self.limits.max_message)
            .u32(self.limits.scatter_ops)
            .u32(self.limits.lane_window)
            .u32(self.limits.meta_bytes)
            .reserved::<12>()
            .finish();
        bytes
    }

    /// The message with `last` as its last part.
    pub fn encode(&self, last: &[u8; PROOF_LEN]) -> [u8; CHALLENGE_LEN] {
        let mut bytes = [0; CHALLENGE_LEN];
        Put::new(&mut bytes).array(self.encode_body()).array(*last).finish();
        bytes
    }

    /// The message and its last part. Fails for another magic or major version, an unknown status, or
    /// reserved bytes that are not zero.
    pub fn decode(bytes: &[u8; CHALLENGE_LEN]) -> Result<(Self, [u8; PROOF_LEN]), HandshakeError> {
        Prelude::read(bytes)?.agree_on_version()?;
        let mut fields = Fields::new(bytes);
        let _magic = fields.array::<8>();
        let _major = fields.u16();
        let minor = fields.u16();
        let status = fields.u16();
        fields.reserved::<2>();
        let build = fields.array();
        let features = Features(fields.u64());
        let nonce = fields.array();
        let source = EngineId::from_bytes(fields.array());
        let limits = read_limits(&mut fields);
        fields.reserved::<12>();
        let last = fields.array();
        if !fields.finish() {
            return Err(HandshakeError::Reserved { message: "Challenge" });
        }
        let status = read_status(status)?;
        Ok((Self { minor, status, build, features, nonce, source, limits }, last))
    }
}

/// The last part of a Challenge that answers a discover Hello: the epoch, then 16 zeros.
pub(crate) fn encode_epoch(epoch: &SourceEpoch) -> [u8; PROOF_LEN] {
    let mut last = [0; PROOF_LEN];
    Put::new(&mut last).array(*epoch.secret_bytes()).reserved::<16>().finish();
    last
}

/// The epoch in the last part of a Challenge. Fails for zero and for bytes after it that are not zero.
pub(crate) fn decode_epoch(last: &[u8; PROOF_LEN]) -> Result<SourceEpoch, HandshakeError> {
    let mut fields = Fields::new(last);
    let epoch = SourceEpoch::from_bytes(fields.array());
    fields.reserved::<16>();
    if !fields.finish() {
        return Err(HandshakeError::Reserved { message: "Challenge" });
    }
    let (what, rule) = ("epoch", "it is not zero");
    epoch.ok_or(HandshakeError::Value { what, value: 0, rule })
}

/// Step 3: the proof, then 32 zeros kept for options of the connection.
pub(crate) fn encode_proof(proof: &[u8; PROOF_LEN]) -> [u8; PROOF_MESSAGE_LEN] {
    let mut bytes = [0; PROOF_MESSAGE_LEN];
    Put::new(&mut bytes).array(*proof).reserved::<32>().finish();
    bytes
}

/// The proof of step 3, and whether its reserved bytes are zero. The proof is to be compared first: an
/// unproven side learns nothing from what else is wrong.
pub(crate) fn decode_proof(bytes: &[u8; PROOF_MESSAGE_LEN]) -> ([u8; PROOF_LEN], bool) {
    let mut fields = Fields::new(bytes);
    let proof = fields.array();
    fields.reserved::<32>();
    (proof, fields.finish())
}

/// Step 4: the connection is open, or it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub status: Status,
    /// Shard of the source that serves the connection.
    pub shard: u16,
    /// Number of the connection in the source's engine, for logs of both sides.
    pub connection: u64,
    /// Generation of the source's catalog.
    pub generation: u64,
}

impl Welcome {
    /// The message.
    pub fn encode(&self) -> [u8; WELCOME_LEN] {
        let mut bytes = [0; WELCOME_LEN];
        Put::new(&mut bytes)
            .u16(self.status as u16)
            .u16(self.shard)
            .reserved::<4>()
            .u64(self.connection)
            .u64(self.generation)
            .reserved::<40>()
            .finish();
        bytes
    }

    /// Fails for an unknown status, or reserved bytes that are not zero.
    pub fn decode(bytes: &[u8; WELCOME_LEN]) -> Result<Self, HandshakeError> {
        let mut fields = Fields::new(bytes);
        let status = fields.u16();
        let shard = fields.u16();
        fields.reserved::<4>();
        let connection = fields.u64();
        let generation = fields.u64();
        fields.reserved::<40>();
        if !fields.finish() {
            return Err(HandshakeError::Reserved { message: "Welcome" });
        }
        Ok(Self { status: read_status(status)?, shard, connection, generation })
    }
}
