//! The operating system as the other rooms see it: one safe function or owner for each call they need.
//!
//! Decides nothing. What an older kernel lacks falls back here (`epoll_pwait2`) or is answered with the
//! call's own error number; nothing here panics for what the kernel says.

pub(crate) mod affinity;
pub(crate) mod cell;
pub(crate) mod epoll;
pub(crate) mod eventfd;
pub(crate) mod futex;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod sync;
