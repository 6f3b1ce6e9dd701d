//! orbite moves registered byte ranges between known peers, one-sided and in batches.
//!
//! Made for LLM inference: KV-cache blocks and weights travel between processes and machines at the
//! speed of the link, straight between socket and registered memory on both sides. 64-bit Linux, TCP.
//!
//! ```
//! use std::time::Duration;
//! use orbite::{EngineConfig, Permission, TransferEngine, TransferOp, TransferRequest, Transport};
//!
//! // The source offers memory. Whoever has its descriptor may use it, as far as the permission goes.
//! let source = TransferEngine::new(EngineConfig::default())?;
//! let offered = source.register_memory(vec![7; 4096], Permission::RemoteRead)?;
//! let descriptor = source.descriptor();
//!
//! // The requester, usually another process: the descriptor came over a channel that both trust.
//! let requester = TransferEngine::new(EngineConfig::default())?;
//! let local = requester.register_memory(vec![0; 4096], Permission::Local)?;
//! let peer = requester.open_segment(descriptor, None, Duration::from_secs(3))?;
//!
//! let remote = peer.regions()[0].address;
//! let requests = [
//!     TransferRequest::new(Transport::Unspec, local.address(), remote, 1024),
//!     TransferRequest::new(Transport::Unspec, local.address() + 2048, remote + 3072, 1024),
//! ];
//! let timeout = Duration::from_secs(10);
//! let report = requester.submit_and_wait(TransferOp::Read, &peer.into(), &requests, timeout)?;
//! assert!(report.is_complete());
//! assert_eq!(report.completed_bytes, 2048);
//!
//! let mut bytes = [0; 2];
//! local.read_at(1023, &mut bytes)?;
//! assert_eq!(bytes, [7, 0]);
//! # drop(offered);
//! # Ok::<(), orbite::Error>(())
//! ```
//!
//! # Concepts
//!
//! - **Engine** ([`TransferEngine`]): requester and source at once, with one endpoint. It owns one or
//!   more *shards*, each a pinned thread with its own connections. Clones are the same engine.
//! - **Registration** ([`RegisteredMemory`]): a range that the engine may use, with a [`Permission`] for
//!   peers. It comes from a vector, from [`HostMemory`] that the engine mapped, or from memory of the
//!   program's own. A peer may change registered bytes at any time, so they are never lent out as a
//!   slice: they are reached by copies or through a pointer. Unregistering closes the range at once;
//!   its owner is let go when the last operation that was admitted before has physically ended.
//! - **Epoch** ([`SourceEpoch`]): the secret of one engine's life, and the right to open it. Both sides
//!   prove it and it never travels. An engine that restarted has another one, so a stale handle fails
//!   ([`Error::StaleEpoch`]) and never reaches the wrong memory. A [`Descriptor`] holds endpoint and
//!   epoch in one string.
//! - **Segment** ([`RemoteSegment`]): a snapshot of what a peer offers. Information, not authority: the
//!   source checks every operation anew before its first byte moves.
//! - **Batch**: one call of [`submit_and_wait`](TransferEngine::submit_and_wait). All its ranges are
//!   resolved and held, or nothing happens and the call is an [`Error`]. Neighbours are joined,
//!   scattered requests share a frame.
//! - **Report** ([`BatchReport`]): what a call came to. A timeout ends the wait, not the work:
//!   `locally_drained` says whether local bytes can still be touched.
//! - **Effect** ([`RemoteEffect`]): what may have happened to the peer's bytes: nothing, everything, or
//!   unknown. A WRITE whose effect is unknown is never sent again, here or on advice
//!   ([`SuggestedAction`]).
//! - **Configuration** ([`EngineConfig`]): fields, or a strict JSON document. Everything has a bound
//!   there, and a full budget is [`Error::ResourceExhausted`].
//!
//! Payloads are not encrypted. Use a private network or a tunnel.
//!
//! # Features
//!
//! | feature | default | brings |
//! |---|---|---|
//! | `cli` | yes | the `orbite` command with its benchmark harness; a library user switches it off |
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("orbite needs 64-bit Linux (x86-64 or aarch64)");

mod api;
pub mod diagnostics;
mod error;
mod metrics;
mod protocol;
mod shard;
mod sys;
#[doc(hidden)]
pub mod testing;
#[doc(hidden)]
mod topology;
mod transfer;
mod transport;
mod types;

pub use api::backing::{HostAllocation, HostMemory, HugePages, RegisteredMemory};
pub use api::config::{
    DiscoveryMode, EngineConfig, InboundConfig, IpBlock, NumaMode, PinMode, PresharedKey,
    SecurityConfig, SecurityMode, ShardHost, ShardsConfig, TcpConfig, TopologyConfig,
};
pub use api::descriptor::Descriptor;
pub use api::engine::TransferEngine;
pub use api::poll::{next_poll_delay, wait_before_next_poll};
pub use api::report::{
    BatchReport, NotificationState, NotificationStatus, ReportTiming, SuggestedAction,
    TransferFailure,
};
pub use api::request::{TransferRequest, TransferTarget};
pub use api::segment::{RemoteRegion, RemoteSegment};
pub use api::stats::{EngineStats, ShardStats};
pub use error::{Error, OsError, Result, Side};
pub use types::{
    EngineId, FailureScope, MemoryLocation, MemoryType, Permission, Priority, RangeLocation,
    RemoteEffect, SourceEpoch, TransferOp, Transport,
};

/// The examples of the repository's front page, so that they are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
