//! The configuration of one engine: the typed fields.
//!
//! `keys` is the one table of names, types and ranges, in the words of `kinds`: the document reader
//! (`json`, and `value` for each value), the dump and the check of typed values all walk it, so they
//! cannot disagree. `fields` stores values with a form of their own, `defaults` holds the defaults, `check`
//! the rules between fields, `load` the ways in and out. Nothing here starts a thread, opens a socket
//! or reads a file before a document has passed every check; the only files read are the document
//! itself and the key files it names.

mod block;
mod check;
mod defaults;
mod facts;
mod fields;
mod file;
mod hint;
mod json;
mod keys;
mod kinds;
mod load;
mod psk;
mod sys;
#[cfg(test)]
mod tests;
mod value;

pub use block::IpBlock;
pub use facts::KeyFacts;
pub use psk::PresharedKey;

pub(crate) use facts::facts;
pub(crate) use load::from_bytes;

use std::net::IpAddr;
use std::path::PathBuf;

/// Configuration of one engine. Immutable once the engine runs. Integers carry their unit in the
/// name; sizes are bytes.
///
/// Built in code from [`Default`], or read from a strict JSON document whose keys are the field names
/// ([`from_env`](Self::from_env), [`from_json`](Self::from_json), [`from_file`](Self::from_file)).
/// Ranges below hold for both; an engine refuses to start outside of them.
///
/// ```
/// use orbite::EngineConfig;
///
/// let config = EngineConfig::from_json(r#"{"max_peer_segments": 64, "shards": {"count": 2}}"#)?;
/// assert_eq!(config.max_peer_segments, 64);
/// assert_eq!(EngineConfig::from_json(&config.to_json())?, config);
///
/// let mut config = EngineConfig::default();
/// config.bind_addr = "127.0.0.1:7000".into();
/// # Ok::<(), orbite::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Address of the listener, `ip:port` or `[v6]:port`, numeric. Port 0 takes any free port.
    /// Default `127.0.0.1:0`.
    pub bind_addr: String,
    /// A taken port other than 0: try the following ones, up to this many. `0..=1024`, default 0.
    /// The last port tried must not exceed 65_535.
    pub bind_port_span: u16,
    /// Address that peers are told, without port. Needed when `bind_addr` is a wildcard; never a
    /// wildcard or multicast address itself. Default none: peers are told the bound address.
    pub advertise_addr: Option<IpAddr>,
    /// Bound of one control-plane handler and of a withdrawal. `1_000..=600_000_000`, default 5 s.
    pub handler_timeout_us: u64,
    /// Bound of a dial with its handshake. `1..=600_000`, default 3 s.
    pub connect_timeout_ms: u64,
    /// Bound of the close that dropping an engine makes. `0..=600_000_000`, default 5 s.
    pub close_timeout_us: u64,
    /// Bound of one retirement. `10..=600_000`, default 5 s.
    pub quiesce_timeout_ms: u64,
    /// Peer identities retained at a time. `1..=4096`, default 1024.
    pub max_peer_segments: u32,
    /// Live registrations. `1..=1_048_576`, default 65_536.
    pub max_registrations: u32,
    /// Join consecutive contiguous requests and group scattered ones. Default true.
    pub merge_requests: bool,
    /// Longest merged run, bytes. `4 KiB..=1 GiB`, default 64 MiB.
    pub max_merge_bytes: u64,
    /// Refresh a segment once when a request names a range it does not know. Default true.
    pub auto_refresh: bool,
    /// Turn a shard that has work queued and sees no event at least this often.
    /// `100..=1_000_000`, default 50 ms.
    pub idle_poll_interval_us: u64,
    /// The TCP transport. Default true. The only transport of this version, so it has to be on.
    pub tcp: bool,
    /// Its options.
    pub tcp_options: TcpConfig,
    /// Threads and cores.
    pub shards: ShardsConfig,
    /// Proofs and admission of peers.
    pub security: SecurityConfig,
    /// Limits of the listener.
    pub inbound: InboundConfig,
    /// Discovery of the machine.
    pub topology: TopologyConfig,
}

/// Options of the TCP transport.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpConfig {
    /// Data connections of one shard in all. `1..=65_536`, default 1024.
    pub max_lanes: u32,
    /// Unanswered frames on one lane. `1..=256`, default 16.
    pub lane_window: u32,
    /// Operations in one frame. `1..=4096`, default 256.
    pub max_scatter_ops: u32,
    /// Longest part of an owner in one frame, bytes. `256 KiB..=64 MiB`, default 4 MiB.
    pub slice_bytes: u64,
    /// Calls with more payload use the bulk lane. `0..=slice_bytes`, default 256 KiB.
    pub small_bytes: u64,
    /// Longest payload of one frame accepted, bytes. `slice_bytes..=1 GiB`, default 64 MiB.
    pub max_message_bytes: u64,
    /// Bytes handed to the kernel in one call. `4 KiB..=16 MiB`, default 1 MiB.
    pub send_chunk_bytes: u64,
    /// While work is outstanding, each such time has to bring a finished frame or 64 KiB, or the lane is cut.
    /// Milliseconds, `100..=600_000`, default 10 s.
    pub stall_timeout_ms: u64,
    /// Idle seconds before the kernel probes a connection. `1..=32_767` (the kernel's own limit,
    /// `include/net/tcp.h`), default 10.
    pub keepalive_idle_s: u32,
    /// Seconds between probes. `1..=32_767`, default 5.
    pub keepalive_interval_s: u32,
    /// Probes without an answer that end a connection. `1..=127`, default 3.
    pub keepalive_count: u32,
    /// Checksum every payload. Default false.
    pub payload_crc: bool,
    /// Wait after a failed dial before the next one to the same peer. `0..=600_000`, default 1 s.
    pub reconnect_cooldown_ms: u64,
}

/// When a thread is bound to its core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinMode {
    /// Never.
    Off,
    /// If the kernel lets us; statistics say so otherwise.
    #[default]
    Prefer,
    /// Or the engine does not start.
    Require,
}

/// Whether shard memory is bound to the NUMA node of its core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NumaMode {
    /// Bind.
    #[default]
    Local,
    /// Leave it to the kernel.
    Off,
}

/// Who runs a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardHost {
    /// The best available; `config()` of a running engine shows which.
    #[default]
    Auto,
    /// A pinned thread of ours.
    Thread,
}

/// Shards: their number, cores and pace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardsConfig {
    /// Number of shards, `0..=256`. Default 0: one for every 8 allowed CPUs, between 1 and 8, or as
    /// many as `cores` names.
    pub count: u16,
    /// Numbers of the CPUs, one for each shard, all different, `0..=8191` each. Default empty: chosen.
    /// A document may also write them as `"0-3,8"`.
    pub cores: Vec<u32>,
    /// Binding of threads. Default [`PinMode::Prefer`].
    pub pin: PinMode,
    /// Binding of memory. Default [`NumaMode::Local`].
    pub numa: NumaMode,
    /// Who runs a shard. Default [`ShardHost::Auto`].
    pub host: ShardHost,
    /// Microseconds of spinning without giving the CPU away. `0..=1_000_000`, default 20.
    pub spin_us: u64,
    /// Microseconds of spinning in all, the rest with yielding. `0..=1_000_000`, default 200.
    pub yield_us: u64,
    /// Slots of one ring from a caller's thread. Power of two, `64..=65_536`, default 1024.
    pub submission_lane_depth: u32,
    /// Caller threads with a ring of their own on one shard. `1..=4096`, default 256.
    pub max_caller_lanes: u32,
    /// Submissions taken in one turn. `1..=1_048_576`, default 256.
    pub turn_max_submissions: u32,
    /// Events handled in one turn. `1..=1_048_576`, default 1024.
    pub turn_max_events: u32,
    /// Bytes moved in one turn. `64 KiB..=1 GiB`, default 1 MiB.
    pub turn_max_bytes: u64,
}

/// How a peer proves its right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecurityMode {
    /// Mutual proof of the epoch.
    #[default]
    Epoch,
    /// Mutual proof of the epoch and of a key shared beforehand.
    Psk,
}

/// Who may ask for the epoch over the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiscoveryMode {
    /// Nobody.
    #[default]
    Never,
    /// Clients on a loopback address: every local user and container of this network namespace.
    Loopback,
    /// Whoever connects.
    Always,
}

/// Proofs and admission of peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SecurityConfig {
    /// What is proved. Default [`SecurityMode::Epoch`].
    pub mode: SecurityMode,
    /// The key of [`SecurityMode::Psk`], needed there and refused elsewhere. In a document
    /// `psk_file`, the path of its file. Default none.
    pub psk: Option<PresharedKey>,
    /// A key that peers may still prove to this engine as source while keys are exchanged. Needs
    /// `psk`. In a document `previous_psk_file`. Default none.
    pub previous_psk: Option<PresharedKey>,
    /// Who may discover the epoch. Default [`DiscoveryMode::Never`].
    pub discovery: DiscoveryMode,
    /// Addresses whose connections are accepted, at most 1024 blocks. Default empty: any address.
    pub allow_peers: Vec<IpBlock>,
}

/// Limits of the listener.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboundConfig {
    /// Accepted connections in all. `1..=1_048_576`, default 1024.
    pub max_connections: u32,
    /// Proven connections from one address. `1..=1_048_576`, default 256.
    pub max_connections_per_ip: u32,
    /// Unproven connections; a further one displaces the oldest. `1..=65_536`, default 64.
    pub max_handshakes: u32,
    /// Bound of a whole handshake. `10..=600_000`, default 2 s.
    pub handshake_timeout_ms: u64,
    /// Bytes being moved as source. `64 KiB..=1 TiB`, default 1 GiB.
    pub max_inflight_bytes: u64,
    /// Regions on one describe page. `1..=4096`, default 512.
    pub describe_page_regions: u32,
}

/// Discovery of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopologyConfig {
    /// Root of sysfs, an absolute path; for tests. Default `/sys`.
    pub sysfs_root: PathBuf,
}
