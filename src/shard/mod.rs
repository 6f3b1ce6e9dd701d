//! Pinned event loops and what stands around them: mailboxes, the caller's port, memory, control plane.

pub(crate) mod clock;
pub(crate) mod control;
pub(crate) mod core;
pub(crate) mod driver;
pub(crate) mod host;
pub(crate) mod identities;
pub(crate) mod links;
pub(crate) mod mailbox;
pub(crate) mod memory;
pub(crate) mod peer;
pub(crate) mod peers;
pub(crate) mod placement;
pub(crate) mod port;
pub(crate) mod set;
pub(crate) mod wait;
pub(crate) mod work;

pub(crate) use set::ShardSet;
