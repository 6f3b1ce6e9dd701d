//! The small closed vocabularies of the engine: operations, transports, permissions, effects, scopes.

use core::fmt;

/// Direction of a one-sided operation, as its requester sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the binary contract is intentional: there is no third"
)]
pub enum TransferOp {
    /// Peer or file to local memory.
    Read,
    /// Local memory to peer or file.
    Write,
}

/// A way to move bytes. Discriminants are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Transport {
    /// No wish: the engine selects.
    Unspec = 0,
    /// RDMA verbs.
    Rdma = 1,
    /// NVIDIA multi-node NVLink.
    Mnnvl = 2,
    /// Shared memory on one machine.
    Shm = 3,
    /// NVLink within a machine.
    Nvlink = 4,
    /// GPUDirect Storage.
    Gds = 5,
    /// Files through io_uring.
    IoUring = 6,
    /// One persistent TCP lane for each shard and peer, and bulk lanes.
    Tcp = 7,
    /// TCP striped over several source addresses.
    HpTcp = 8,
    /// Cross-memory attach: memory of another process on this machine that was not allocated shared.
    Cma = 32,
}

impl Transport {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Unspec,
        Self::Rdma,
        Self::Mnnvl,
        Self::Shm,
        Self::Nvlink,
        Self::Gds,
        Self::IoUring,
        Self::Tcp,
        Self::HpTcp,
        Self::Cma,
    ];

    /// The name used in configuration and output, such as `tcp`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unspec => "unspec",
            Self::Rdma => "rdma",
            Self::Mnnvl => "mnnvl",
            Self::Shm => "shm",
            Self::Nvlink => "nvlink",
            Self::Gds => "gds",
            Self::IoUring => "io_uring",
            Self::Tcp => "tcp",
            Self::HpTcp => "hp_tcp",
            Self::Cma => "cma",
        }
    }

    /// The transport of that name; `None` for any other text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.name() == name)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Order of work that waits at the same place. Advisory on TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u8)]
pub enum Priority {
    /// First. The default.
    #[default]
    High = 0,
    /// Second.
    Medium = 1,
    /// Last.
    Low = 2,
}

/// What a peer may do with a registered range. Local use in both directions is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Permission {
    /// Peers do not see the range.
    Local = 0,
    /// Peers may read.
    RemoteRead = 1,
    /// Peers may write.
    RemoteWrite = 2,
    /// Peers may read and write.
    RemoteReadWrite = 3,
}

impl Permission {
    /// Whether a peer may do `op`.
    pub const fn allows(self, op: TransferOp) -> bool {
        match op {
            TransferOp::Read => matches!(self, Self::RemoteRead | Self::RemoteReadWrite),
            TransferOp::Write => matches!(self, Self::RemoteWrite | Self::RemoteReadWrite),
        }
    }

    /// Whether peers see the range at all.
    pub const fn is_remote(self) -> bool {
        !matches!(self, Self::Local)
    }

    /// From its number on the wire.
    pub(crate) const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Local),
            1 => Some(Self::RemoteRead),
            2 => Some(Self::RemoteWrite),
            3 => Some(Self::RemoteReadWrite),
            _ => None,
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::RemoteRead => "remote read",
            Self::RemoteWrite => "remote write",
            Self::RemoteReadWrite => "remote read and write",
        })
    }
}

/// Kind of memory behind a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum MemoryType {
    /// Host memory.
    Cpu = 0,
    /// CUDA device memory.
    Cuda = 1,
}

/// Where memory lies. Displays as `cpu:N`, `*` (host, node unknown) or `cuda:N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryLocation {
    /// Host memory on a NUMA node, or on a node that nobody asked for.
    Cpu(Option<u32>),
    /// CUDA memory; the context number is for diagnosis and is no handle.
    Cuda {
        /// Device ordinal.
        device: u32,
        /// Number of the context.
        context: u64,
    },
}

impl fmt::Display for MemoryLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(Some(node)) => write!(f, "cpu:{node}"),
            Self::Cpu(None) => f.write_str("*"),
            Self::Cuda { device, .. } => write!(f, "cuda:{device}"),
        }
    }
}

/// A range and where it lies. `address` and `length` are in bytes, clipped to the registration that
/// was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RangeLocation {
    /// First byte.
    pub address: u64,
    /// Number of bytes.
    pub length: u64,
    /// Where they lie.
    pub location: MemoryLocation,
}

impl RangeLocation {
    pub(crate) const fn new(address: u64, length: u64, location: MemoryLocation) -> Self {
        Self { address, length, location }
    }
}

/// What may have happened to the peer's (or the file's) bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u8)]
pub enum RemoteEffect {
    /// Proved: no byte was changed.
    None = 0,
    /// Proved: all bytes were changed as asked.
    Applied = 1,
    /// Any subset may have been changed. Never authorises to send the bytes again.
    Unknown = 2,
}

/// How far a failure reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureScope {
    /// This request only.
    Request,
    /// What was outstanding on one lane.
    Lane,
    /// One path with its queue.
    Rail,
    /// One transport towards this peer.
    Transport,
    /// All work to this peer identity.
    Peer,
    /// All work of one shard or of the engine.
    Engine,
}

impl fmt::Display for FailureScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Lane => "lane",
            Self::Rail => "rail",
            Self::Transport => "transport",
            Self::Peer => "peer",
            Self::Engine => "engine",
        })
    }
}
