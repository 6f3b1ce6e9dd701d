//! The requester's side of a connection's start: connect, prove, and what went wrong in words.

use std::cell::Cell;
use std::io;

use futures_lite::{AsyncReadExt, AsyncWriteExt};

use crate::error::{Error, OsError};
use crate::protocol::handshake::body::Status;
use crate::protocol::handshake::body::{CHALLENGE_LEN, WELCOME_LEN};
use crate::protocol::handshake::error::HandshakeError;
use crate::protocol::handshake::requester::{Established, Requester, RequesterParams};
use crate::protocol::limits::{Direction, Role};
use crate::protocol::proof::SessionKey;
use crate::protocol::version;
use crate::shard::mailbox::message::DataConnection;
use crate::shard::peer::{LaneClass, Peer};
use crate::types::{Endpoint, EngineId, ShardIndex, SourceEpoch};

use super::client::Link;
use super::engine::{Core, negotiated, offer};
use super::frames::Frames;
use super::net::AsyncTcp;
use super::reactor::later;

/// Whether another attempt can end otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// The peer gave its answer, or the address leads nowhere.
    Never,
    /// Nobody listens there yet.
    NotListening,
    /// The peer closed before it gave an answer, as a crowded listener does.
    Cut,
}

/// A dial that failed. Nothing had any effect on the peer.
#[derive(Debug)]
pub(super) struct Failed {
    pub error: Error,
    pub retry: Retry,
}

impl Failed {
    const fn never(error: Error) -> Self {
        Self { error, retry: Retry::Never }
    }
}

/// A control connection to the engine with `epoch`.
pub(super) async fn control(
    core: &Core,
    endpoint: Endpoint,
    epoch: &SourceEpoch,
) -> Result<Link, Failed> {
    let (stream, established) = bounded(core, endpoint, async |stage| {
        let stream = connect(core, endpoint).await?;
        stage.set(Stage::Handshake);
        prove(core, stream, endpoint, epoch, Role::Control, 0).await
    })
    .await?;
    let frames = Frames::new(stream, Direction::ToRequester);
    Ok(Link { frames, limits: negotiated(&established.limits, established.features), used: false })
}

/// A lane of `shard` to a peer.
pub(super) async fn data(
    core: &Core,
    peer: &Peer,
    shard: ShardIndex,
    class: LaneClass,
) -> Result<DataConnection, Failed> {
    let lane = shard.0.wrapping_mul(2).wrapping_add(match class {
        LaneClass::Small => 0,
        LaneClass::Bulk => 1,
    });
    let (stream, established) = bounded(core, peer.endpoint, async |stage| {
        let stream = connect(core, peer.endpoint).await?;
        stage.set(Stage::Handshake);
        prove(core, stream, peer.endpoint, &peer.epoch, Role::Data, lane).await
    })
    .await?;
    Ok(DataConnection {
        remote: peer.endpoint.addr(),
        id: established.connection,
        limits: negotiated(&established.limits, established.features),
        socket: stream.into_socket(),
        permit: None,
    })
}

/// The epoch that the engine at `endpoint` tells, if it may.
pub(super) async fn discover(core: &Core, endpoint: Endpoint) -> Result<SourceEpoch, Failed> {
    bounded(core, endpoint, async |stage| {
        let mut stream = connect(core, endpoint).await?;
        stage.set(Stage::Handshake);
        let build = version::build_id();
        let (awaiting, hello) = Requester::discover(build, core.plan.id, nonce(endpoint)?);
        let cut = |error| interrupted(endpoint, &error);
        stream.write_all(&hello).await.map_err(cut)?;
        let mut answer = [0; CHALLENGE_LEN];
        stream.read_exact(&mut answer).await.map_err(cut)?;
        awaiting.answer(&answer).map_err(|error| refused(core, endpoint, error))
    })
    .await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connect,
    Handshake,
}

/// A dial within `connect_timeout_ms`, whatever the other side does.
async fn bounded<T>(
    core: &Core,
    endpoint: Endpoint,
    dial: impl AsyncFnOnce(&Cell<Stage>) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let counters = &core.plan.counters;
    counters.dials.bump(1);
    let stage = Cell::new(Stage::Connect);
    let limit = core.plan.timeouts.connect;
    let outcome = core.reactor.until(later(core.reactor.now(), limit), dial(&stage)).await;
    let outcome = outcome.unwrap_or_else(|| {
        let endpoint = endpoint.to_string();
        Err(Failed::never(match stage.get() {
            Stage::Connect => {
                let source = OsError::from_errno("connect", libc::ETIMEDOUT);
                Error::Connect { endpoint, source }
            }
            Stage::Handshake => Error::Timeout {
                what: format!(
                    "{endpoint} took the connection and did not answer the handshake; is that the \
                     port of an orbite engine?"
                ),
                after_us: limit.as_micros() as u64,
            },
        }))
    });
    if outcome.is_err() {
        counters.failed_dials.bump(1);
    }
    outcome
}

async fn connect(core: &Core, endpoint: Endpoint) -> Result<AsyncTcp, Failed> {
    let stream = AsyncTcp::connect(&core.reactor, endpoint.addr()).await.map_err(|error| {
        if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            let op = format!("connect to {endpoint} (no descriptor left; raise `ulimit -n`)");
            return Failed::never(Error::io(op, "socket", &error));
        }
        let source = OsError::new("connect", &error);
        let retry = match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
                Retry::NotListening
            }
            _ => Retry::Never,
        };
        Failed { error: Error::Connect { endpoint: endpoint.to_string(), source }, retry }
    })?;
    core.plan.tcp.apply(&stream).map_err(|error| {
        let op = format!("set the options of the connection to {endpoint}");
        Failed::never(Error::io(op, "setsockopt", &error))
    })?;
    Ok(stream)
}

/// The handshake. Reads exactly its messages: the next byte is the first of a frame.
async fn prove(
    core: &Core,
    mut stream: AsyncTcp,
    endpoint: Endpoint,
    epoch: &SourceEpoch,
    role: Role,
    lane: u16,
) -> Result<(AsyncTcp, Established), Failed> {
    let (limits, features) = offer(&core.plan.limits);
    let params = RequesterParams {
        role,
        lane,
        rail: 0,
        build: version::build_id(),
        features,
        nonce: nonce(endpoint)?,
        id: core.plan.id,
        expected: EngineId::of(epoch),
        key: SessionKey::derive(epoch, core.plan.keys.psk.as_deref()),
        limits,
    };
    let cut = |error| interrupted(endpoint, &error);
    let wrong = |error| refused(core, endpoint, error);
    let (awaiting, hello) = Requester::start(params);
    stream.write_all(&hello).await.map_err(cut)?;
    let mut challenge = [0; CHALLENGE_LEN];
    stream.read_exact(&mut challenge).await.map_err(cut)?;
    let (awaiting, proof) = awaiting.challenge(&challenge).map_err(wrong)?;
    stream.write_all(&proof).await.map_err(cut)?;
    let mut welcome = [0; WELCOME_LEN];
    stream.read_exact(&mut welcome).await.map_err(cut)?;
    let established = awaiting.welcome(&welcome).map_err(wrong)?;
    Ok((stream, established))
}

/// Fresh bytes from the operating system's generator.
pub(super) fn random_nonce() -> Result<[u8; 16], getrandom::Error> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce)?;
    Ok(nonce)
}

fn nonce(endpoint: Endpoint) -> Result<[u8; 16], Failed> {
    random_nonce().map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        let op = format!("take random bytes for the handshake with {endpoint}");
        Failed::never(Error::Io { op, source: OsError::from_errno("getrandom", errno) })
    })
}

/// The stream ended or failed inside the handshake.
fn interrupted(endpoint: Endpoint, error: &io::Error) -> Failed {
    let endpoint = endpoint.to_string();
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::WriteZero => {
            let source = OsError::from_errno("recv", libc::ECONNRESET);
            Failed { error: Error::Connect { endpoint, source }, retry: Retry::Cut }
        }
        _ => {
            let source = OsError::new("recv", error);
            Failed::never(Error::Connect { endpoint, source })
        }
    }
}

/// What an outcome of the handshake means to the caller.
fn refused(core: &Core, at: Endpoint, error: HandshakeError) -> Failed {
    let endpoint = at.to_string();
    Failed::never(match error {
        HandshakeError::WrongEngine { expected, found } => Error::StaleEpoch {
            endpoint,
            detail: format!(
                "engine {found} answers, engine {expected} was expected; get the current descriptor \
                 from its owner and open that"
            ),
        },
        HandshakeError::WrongProof => Error::StaleEpoch {
            endpoint,
            detail: "the engine there has the expected id and gave a wrong proof: the keys of \
                     security.psk_file differ, only one side has one, or it is an \
                     impostor; compare the keys"
                .into(),
        },
        HandshakeError::Refused { status } => match status {
            Status::Full => Error::Busy(format!(
                "{endpoint} has no room for a further connection; close some or raise its \
                 inbound.max_connections or inbound.max_connections_per_ip"
            )),
            Status::Closing => Error::PeerClosed { endpoint },
            Status::WrongEngine => Error::StaleEpoch {
                endpoint,
                detail: "it says that it is another engine; get the current descriptor from its \
                         owner and open that"
                    .into(),
            },
            _ => Error::Unavailable(format!("peer {endpoint} refused: {status}")),
        },
        HandshakeError::Version { .. }
        | HandshakeError::BuildMismatch { .. }
        | HandshakeError::Limit { .. }
        | HandshakeError::NotDiscoverable => {
            Error::Unavailable(format!("peer {endpoint}: {error}"))
        }
        HandshakeError::Magic | HandshakeError::Reserved { .. } | HandshakeError::Value { .. } => {
            core.plan.counters.protocol_violations.bump(1);
            Error::Protocol { endpoint, reason: error.to_string() }
        }
    })
}
