//! Newtypes and closed vocabularies that every room shares. No logic beyond their own checks, no I/O.

pub(crate) mod class;
pub(crate) mod endpoint;
pub(crate) mod epoch;
pub(crate) mod fault;
pub(crate) mod ids;
pub(crate) mod range;

pub use class::{
    FailureScope, MemoryLocation, MemoryType, Permission, Priority, RangeLocation, RemoteEffect,
    TransferOp, Transport,
};
pub use epoch::SourceEpoch;
pub use ids::EngineId;

pub(crate) use endpoint::Endpoint;
pub(crate) use fault::{Fault, Refused};
pub(crate) use ids::{PeerKey, RegionKey, ShardIndex, SliceId};
pub(crate) use range::{MAX_LENGTH, SegmentRange};
