//! What can be put into a shard's inject queue.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::error::Error;
use crate::shard::control::Permit;
use crate::shard::peer::{LaneClass, Negotiated, Peer};
use crate::shard::port::submission::Submission;

/// A proven data connection: non-blocking, options set, no byte of a frame read or written yet. Frame
/// sequences start at 0 in both directions.
#[derive(Debug)]
pub(crate) struct DataConnection {
    pub socket: OwnedFd,
    pub remote: SocketAddr,
    /// Number that the source gave the connection; the same on both sides.
    pub id: u64,
    pub limits: Negotiated,
    /// Of an accepted connection: counts it against the listener's limits. Kept as long as the socket.
    pub permit: Option<Permit>,
}

/// One message. Each is small; what is large sits behind the `Arc`.
#[derive(Debug)]
pub(crate) enum Message {
    /// A caller thread's new ring.
    Ring(rtrb::Consumer<Arc<Submission>>),
    /// A submission of a thread without a ring.
    Submit(Arc<Submission>),
    /// The caller's deadline passed: end what is not done.
    Cancel(Arc<Submission>),
    /// A peer was opened: dial its small lane in the background.
    Peer(Arc<Peer>),
    /// An accepted data connection: this shard serves it as source.
    Inbound(DataConnection),
    /// A dial of this shard succeeded.
    LaneUp { peer: Arc<Peer>, class: LaneClass, connection: DataConnection },
    /// A dial of this shard failed.
    LaneDown { peer: Arc<Peer>, class: LaneClass, error: Error },
    /// The identity left `Live`: end its lanes and fail its work.
    PeerLeft(Arc<Peer>),
    /// Take no new work, finish or cancel what runs, answer nothing new as source, then stop.
    Stop,
}
