//! The source's side of a connection's start: who it is, and where it goes from here.
//!
//! | after | goes to |
//! |---|---|
//! | proof, role control | [`Service`], in the same task |
//! | proof, role data | its shard, before its first frame |
//! | discover | end, with or without the epoch |
//! | a wrong proof | end without a word, after a fixed delay |
//! | noise | end without a word |
//! | anything else | end with a status |

use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt};

use crate::protocol::handshake::body::Status;
use crate::protocol::handshake::body::{HELLO_LEN, PROOF_MESSAGE_LEN};
use crate::protocol::handshake::error::HandshakeError;
use crate::protocol::handshake::source::{AwaitProof, Source, SourceStep};
use crate::protocol::limits::{Direction, Role};
use crate::protocol::version::MAGIC;
use crate::shard::mailbox::message::{DataConnection, Message};
use crate::types::ShardIndex;

use super::admission::Permit;
use super::dial::random_nonce;
use super::engine::{Core, Unproven, negotiated};
use super::frames::{Fault, Frames};
use super::listener::canonical;
use super::net::AsyncTcp;
use super::plan::Discovery;
use super::reactor::later;
use super::scope::TaskId;
use super::serve::Service;

/// Time between a wrong proof and the end of its connection, whatever was wrong.
const WRONG_PROOF_DELAY: Duration = Duration::from_millis(20);

/// What a connection is after its handshake.
enum Proven {
    Control { stream: AsyncTcp, permit: Permit },
    Data { connection: DataConnection, shard: ShardIndex },
}

/// Why there is none.
enum End {
    /// Answered as it should be, and over.
    Done,
    /// Counted and logged by its cause.
    Handshake(HandshakeError),
    /// The peer went away, or the socket failed.
    Gone,
    /// No room for a further proven connection.
    Full,
}

impl From<std::io::Error> for End {
    fn from(_: std::io::Error) -> Self {
        Self::Gone
    }
}

impl From<HandshakeError> for End {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

/// One accepted connection from its first byte to its end, or until its shard has it.
pub(super) async fn handle(
    core: Rc<Core>,
    unproven: Unproven,
    task: TaskId,
    stream: TcpStream,
    remote: SocketAddr,
) {
    let deadline = later(core.reactor.now(), core.plan.inbound.handshake_timeout);
    let outcome = core.reactor.until(deadline, shake(&core, stream, remote)).await;
    drop(unproven);
    let counters = &core.plan.counters;
    match outcome {
        Some(Ok(Proven::Control { stream, permit })) => {
            serve(&core, task, stream, remote).await;
            drop(permit);
        }
        Some(Ok(Proven::Data { connection, shard })) => {
            let deadline = later(core.reactor.now(), core.plan.timeouts.handler);
            let handed = core.deliver(shard, Message::Inbound(connection));
            if core.reactor.until(deadline, handed).await.is_none() {
                counters.refused.bump(1);
                tracing::warn!(%remote, shard = shard.0, "a shard takes no connection; it was closed");
            }
        }
        Some(Err(End::Handshake(error))) => {
            let noise = match error {
                HandshakeError::WrongEngine { .. } | HandshakeError::WrongProof => {
                    counters.failed_proofs.bump(1);
                    false
                }
                HandshakeError::Magic
                | HandshakeError::Reserved { .. }
                | HandshakeError::Value { .. } => {
                    counters.protocol_violations.bump(1);
                    true
                }
                _ => {
                    counters.refused.bump(1);
                    false
                }
            };
            if noise {
                tracing::debug!(%remote, %error, "a connection speaks something else");
            } else {
                tracing::info!(%remote, %error, "a connection was refused in its handshake");
            }
        }
        Some(Err(End::Full)) => {
            counters.refused.bump(1);
            tracing::warn!(%remote, "a proven connection was refused: inbound limits are reached");
        }
        Some(Err(End::Done | End::Gone)) => {}
        None => {
            counters.handshake_timeouts.bump(1);
            tracing::debug!(%remote, "a handshake took too long");
        }
    }
}

/// The handshake. Reads exactly its messages: the next byte is the first of a frame.
async fn shake(core: &Core, stream: TcpStream, remote: SocketAddr) -> Result<Proven, End> {
    let mut stream = AsyncTcp::new(&core.reactor, stream)?;
    let ip = canonical(remote);
    let mut hello = [0; HELLO_LEN];
    let (magic, rest) = hello.split_at_mut(MAGIC.len());
    stream.read_exact(magic).await?;
    if *magic != MAGIC {
        return Err(HandshakeError::Magic.into());
    }
    stream.read_exact(rest).await?;
    let delay = core.admission.borrow().delay(ip, core.reactor.now());
    if !delay.is_zero() {
        core.reactor.sleep(delay).await;
    }

    let mut params = core.source.clone();
    params.discovery = match core.plan.discovery {
        Discovery::Never => false,
        Discovery::Loopback => ip.is_loopback(),
        Discovery::Always => true,
    };
    let nonce = random_nonce().map_err(|error| {
        tracing::error!(%error, "no random bytes: a handshake was given up");
        End::Gone
    })?;
    match Source::hello(&params, &hello, nonce) {
        Err(reject) => {
            if let Some(reply) = reject.reply {
                stream.write_all(&reply).await?;
            }
            Err(reject.error.into())
        }
        Ok(SourceStep::Discover(reply)) => {
            stream.write_all(&reply).await?;
            tracing::info!(%remote, "the epoch was told, as security.discovery allows");
            Err(End::Done)
        }
        Ok(SourceStep::Await(awaiting, challenge)) => {
            stream.write_all(&challenge).await?;
            finish(core, stream, remote, awaiting).await
        }
    }
}

async fn finish(
    core: &Core,
    mut stream: AsyncTcp,
    remote: SocketAddr,
    awaiting: AwaitProof,
) -> Result<Proven, End> {
    let ip = canonical(remote);
    let mut message = [0; PROOF_MESSAGE_LEN];
    stream.read_exact(&mut message).await?;
    let came = core.reactor.now();
    let proven = match awaiting.proof(&message) {
        Ok(proven) => proven,
        Err(error) => {
            if matches!(error, HandshakeError::WrongProof) {
                core.admission.borrow_mut().fail(ip, came);
                core.reactor.sleep_until(later(came, WRONG_PROOF_DELAY)).await;
            }
            return Err(error.into());
        }
    };
    let permit = core.admission.borrow_mut().prove(ip, came);
    let Ok(permit) = permit else {
        stream.write_all(&proven.refuse(Status::Full)).await?;
        return Err(End::Full);
    };
    core.plan.tcp.apply(&stream)?;
    let (id, shard) = core.next_connection();
    let generation = core.plan.catalog.generation();
    stream.write_all(&proven.welcome(id, shard.0, generation)).await?;
    tracing::debug!(%remote, id, role = %proven.role, requester = %proven.requester, "proven");
    if proven.role == Role::Control {
        return Ok(Proven::Control { stream, permit });
    }
    let limits = negotiated(&proven.limits, proven.features);
    let (socket, permit) = (stream.into_socket(), Some(permit));
    Ok(Proven::Data { connection: DataConnection { socket, remote, id, limits, permit }, shard })
}

async fn serve(core: &Rc<Core>, task: TaskId, stream: AsyncTcp, remote: SocketAddr) {
    let served = core.enter_service(task);
    let service = Service {
        reactor: core.reactor.clone(),
        catalog: core.plan.catalog.clone(),
        page_regions: core.plan.inbound.describe_page_regions,
        handler: core.plan.timeouts.handler,
        silence: core.plan.timeouts.ping.saturating_mul(4),
    };
    let mut frames = Frames::new(stream, Direction::ToSource);
    match service.serve(&mut frames, &served.outbox).await {
        Ok(()) => {}
        Err(Fault::Protocol(error)) => {
            core.plan.counters.protocol_violations.bump(1);
            tracing::warn!(%remote, %error, "a control connection broke the protocol and was cut");
        }
        Err(fault) => {
            if matches!(fault, Fault::Silent) {
                core.plan.counters.silent_peers.bump(1);
            }
            tracing::debug!(%remote, %fault, "a control connection ended");
        }
    }
}
