//! The one unsafe step of the control plane: a descriptor in the poller's set, taken out of it
//! before it is closed or given away.
#![expect(unsafe_code, reason = "a poller must be told by hand when a descriptor leaves it")]

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use polling::{Event, Poller};

/// A socket whose descriptor never changes while the value lives. Only the two types of `std` below
/// are one, which is what the unsafe code here builds on.
pub(super) trait Socket: AsFd {}

impl Socket for TcpListener {}
impl Socket for TcpStream {}

/// A socket in the set of a poller. It leaves the set when this value is dropped or taken apart,
/// always before the socket is closed.
#[derive(Debug)]
pub(super) struct Registered<T> {
    // The order matters: fields are dropped from the top, so the set forgets the descriptor first.
    membership: Membership,
    socket: T,
}

impl<T: Socket> Registered<T> {
    /// Adds `socket` to the set of `poller` under `key`, with nothing awaited yet. Fails as
    /// `epoll_ctl` does: no memory, or the limit on watched descriptors.
    pub fn new(poller: &Arc<Poller>, socket: T, key: usize) -> io::Result<Self> {
        // SAFETY: `add` asks that the descriptor is valid and is deleted from the poller before it is
        // closed. It is valid because `socket` owns it. `Membership` deletes it, and is dropped before
        // `socket` on every path, by the field order of `Registered` or by `into_socket`.
        unsafe { poller.add(&socket.as_fd(), Event::none(key)) }?;
        let fd = socket.as_fd().as_raw_fd();
        Ok(Self { membership: Membership { poller: Arc::clone(poller), fd, key }, socket })
    }

    /// Asks for one event. An earlier wish that was not served is replaced.
    pub fn arm(&self, readable: bool, writable: bool) -> io::Result<()> {
        let event = Event::new(self.membership.key, readable, writable);
        self.membership.poller.modify(self.socket.as_fd(), event)
    }

    /// The socket itself.
    pub const fn socket(&self) -> &T {
        &self.socket
    }

    /// Key of its events.
    pub const fn key(&self) -> usize {
        self.membership.key
    }

    /// Takes the socket out of the set and gives it away.
    pub fn into_socket(self) -> T {
        let Self { membership, socket } = self;
        drop(membership);
        socket
    }
}

/// That one descriptor is in the set of one poller.
#[derive(Debug)]
struct Membership {
    poller: Arc<Poller>,
    fd: RawFd,
    key: usize,
}

impl Drop for Membership {
    fn drop(&mut self) {
        // SAFETY: the descriptor is open for the whole borrow: it belongs to the `socket` beside this
        // value, which `Registered` keeps until after this drop and which cannot change its descriptor
        // (`Socket`).
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        // It fails only if the descriptor is not in the set, which is what is wanted.
        let _forgotten = self.poller.delete(fd);
    }
}
