//! What an engine gives its control plane at start, and what both share afterwards.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::metrics::counters::Counter;
use crate::protocol::control::region::RegionDescriptor;
use crate::shard::mailbox::message::Message;
use crate::shard::peer::Negotiated;
use crate::types::{EngineId, SourceEpoch};

pub(crate) use super::net::TcpOptions;

/// What peers may see of an engine's memory.
pub(crate) trait Catalog: Send + Sync {
    /// Generation and regions at one instant, shared and immutable. Called on the control thread for
    /// each walk of a peer: it must not block, and gives the same `Arc` while nothing changed.
    fn describe(&self) -> (u64, Arc<[RegionDescriptor]>);

    /// The generation alone, for hints and handshakes: no region is looked at.
    fn generation(&self) -> u64;
}

/// The way into one shard.
pub(crate) trait ShardInbox: Send + Sync {
    /// Puts a message into the shard's queue and wakes the shard. Never blocks. Gives the message back
    /// when the queue is full or the shard has ended.
    fn inject(&self, message: Message) -> Result<(), Message>;
}

/// Who may ask for the epoch over the network (`security.discovery`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Discovery {
    #[default]
    Never,
    /// Clients on a loopback address.
    Loopback,
    Always,
}

/// Limits of the listener (`inbound`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboundLimits {
    /// Connections in all, control and data, until their sockets are closed.
    pub max_connections: u32,
    /// Proven connections from one address.
    pub max_connections_per_ip: u32,
    /// Unproven connections; a further one displaces the oldest.
    pub max_handshakes: u32,
    /// Bound of one whole handshake, from accept to its last byte.
    pub handshake_timeout: Duration,
    /// Regions on one describe page. A page also never exceeds a control frame's payload.
    pub describe_page_regions: u32,
}

/// Bounds of what the control plane waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// One dial with its handshake.
    pub connect: Duration,
    /// One control-plane handler: a reply that is written, a walk that is held.
    pub handler: Duration,
    /// An idle control connection is asked for a sign of life after so long: 5 s. The third ping without
    /// an answer ends it, and at the source the silence of four.
    pub ping: Duration,
    /// Wait after a failed dial before the next one to the same peer; doubles up to 30 times of it.
    pub reconnect_cooldown: Duration,
}

/// Keys that are proved besides the epoch (`security.psk_file`).
#[derive(Clone, Default)]
pub(crate) struct Keys {
    /// The pre-shared key; `None` in the mode that proves the epoch alone.
    pub psk: Option<Arc<[u8]>>,
    /// Also accepted from peers that dial here, while keys are exchanged.
    pub previous: Option<Arc<[u8]>>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |key: &Option<_>| if key.is_some() { "set" } else { "none" };
        write!(f, "Keys {{ psk: {}, previous: {} }}", shown(&self.psk), shown(&self.previous))
    }
}

/// Everything the control plane of one engine needs. Checked by the configuration before.
pub(crate) struct ControlPlan {
    pub id: EngineId,
    pub epoch: SourceEpoch,
    pub keys: Keys,
    pub discovery: Discovery,
    /// Whether a client at this address may connect. IPv4 clients of an IPv6 socket come as IPv4.
    pub allow_peer: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
    /// Address to listen on. Port 0 takes any free port.
    pub bind: SocketAddr,
    /// A taken port other than 0: try so many ports after it.
    pub port_span: u16,
    /// What this engine offers to a peer; the smaller of both sides' holds.
    pub limits: Negotiated,
    pub inbound: InboundLimits,
    pub timeouts: Timeouts,
    pub tcp: TcpOptions,
    pub catalog: Arc<dyn Catalog>,
    /// All shards of the engine, by index. At least one.
    pub shards: Vec<Arc<dyn ShardInbox>>,
    pub counters: Arc<ControlCounters>,
}

/// Counters of one engine's control plane. They only grow. Written by the control thread alone; any
/// thread reads.
#[derive(Debug, Default)]
pub(crate) struct ControlCounters {
    /// Connections taken from the kernel.
    pub accepted: Counter,
    /// Of these, closed by a limit, by `allow_peers`, by displacement, or with a status.
    pub refused: Counter,
    /// Handshakes with a wrong proof, or that expected another engine.
    pub failed_proofs: Counter,
    /// Connections cut for bytes that are no protocol.
    pub protocol_violations: Counter,
    /// Handshakes that ran out of time.
    pub handshake_timeouts: Counter,
    /// Pauses of the listener because the process had no descriptor or memory left.
    pub accept_pauses: Counter,
    /// Connections attempted to peers.
    pub dials: Counter,
    /// Of these, failed.
    pub failed_dials: Counter,
    /// Control connections given up because the peer was silent for too long.
    pub silent_peers: Counter,
}
