//! Sockets of the control plane: streams and a listener as futures, connecting, and socket options.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_lite::{AsyncRead, AsyncWrite};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::reactor::{Direction, Reactor};
use super::sys::{self, Registered};

/// Connections that the kernel holds until they are accepted. The kernel lowers it to
/// `net.core.somaxconn`.
const BACKLOG: i32 = 1024;

/// What an engine asks of each of its TCP connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpOptions {
    /// Idle time before the kernel probes (`TCP_KEEPIDLE`), whole seconds.
    pub keepalive_idle: Duration,
    /// Time between probes (`TCP_KEEPINTVL`), whole seconds.
    pub keepalive_interval: Duration,
    /// Probes without an answer that end the connection (`TCP_KEEPCNT`).
    pub keepalive_count: u32,
    /// Sent bytes that stay unacknowledged for so long end the connection (`TCP_USER_TIMEOUT`).
    pub user_timeout: Duration,
}

impl TcpOptions {
    /// Sets them, and that small frames leave at once (`TCP_NODELAY`). See tcp(7).
    pub fn apply(&self, stream: &AsyncTcp) -> io::Result<()> {
        let socket = SockRef::from(stream.io.socket());
        socket.set_tcp_nodelay(true)?;
        let keepalive = TcpKeepalive::new()
            .with_time(self.keepalive_idle)
            .with_interval(self.keepalive_interval)
            .with_retries(self.keepalive_count);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(self.user_timeout))
    }
}

/// A registered socket with the reactor that watches it.
struct Watched<T: sys::Socket> {
    // First, so that the reactor forgets the waiters before the socket goes.
    waiters: Forget,
    io: Registered<T>,
}

struct Forget {
    reactor: Reactor,
    key: usize,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.reactor.forget(self.key);
    }
}

impl<T: sys::Socket> Watched<T> {
    fn new(reactor: &Reactor, socket: T) -> io::Result<Self> {
        let io = reactor.register(socket)?;
        let waiters = Forget { reactor: reactor.clone(), key: io.key() };
        Ok(Self { waiters, io })
    }

    fn socket(&self) -> &T {
        self.io.socket()
    }

    /// `attempt` until it does not answer "would block".
    fn poll_io<V>(
        &self,
        direction: Direction,
        cx: &Context<'_>,
        mut attempt: impl FnMut(&T) -> io::Result<V>,
    ) -> Poll<io::Result<V>> {
        loop {
            match attempt(self.socket()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return match self.waiters.reactor.wake_when_ready(&self.io, direction, cx) {
                        Ok(()) => Poll::Pending,
                        Err(error) => Poll::Ready(Err(error)),
                    };
                }
                done => return Poll::Ready(done),
            }
        }
    }
}

/// A TCP connection. Reads and writes go straight to the socket; nothing is buffered here, so no byte
/// is left behind when the socket is given away.
pub(crate) struct AsyncTcp {
    io: Watched<TcpStream>,
}

impl AsyncTcp {
    /// Takes over a connected socket and makes it non-blocking.
    pub fn new(reactor: &Reactor, stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { io: Watched::new(reactor, stream)? })
    }

    /// Connects. The caller bounds the time: the kernel alone would try for minutes.
    ///
    /// A connection of the socket with itself counts as refused. Linux makes one when it picks the
    /// target's port, on the same machine and without a listener, as the source port.
    pub async fn connect(reactor: &Reactor, target: SocketAddr) -> io::Result<Self> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::TCP))?;
        match socket.connect(&target.into()) {
            Ok(()) => {}
            // An interrupted connect goes on in the background, like one in progress: connect(2).
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => {
            }
            Err(error) => return Err(error),
        }
        let stream = Self { io: Watched::new(reactor, socket.into())? };
        poll_fn(|cx| {
            stream.io.poll_io(Direction::Write, cx, |socket| {
                if let Some(error) = socket.take_error()? {
                    return Err(error);
                }
                match socket.peer_addr() {
                    // Neither failed nor connected: under way.
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                        Err(io::ErrorKind::WouldBlock.into())
                    }
                    other => other.map(drop),
                }
            })
        })
        .await?;
        let socket = stream.io.socket();
        if socket.local_addr()? == socket.peer_addr()? {
            return Err(io::Error::from_raw_os_error(libc::ECONNREFUSED));
        }
        Ok(stream)
    }

    /// Gives the socket away: non-blocking, no longer watched.
    pub fn into_socket(self) -> OwnedFd {
        let Watched { waiters, io } = self.io;
        drop(waiters);
        io.into_socket().into()
    }
}

impl AsyncRead for AsyncTcp {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.io.poll_io(Direction::Read, cx, |mut socket| socket.read(into))
    }
}

impl AsyncWrite for AsyncTcp {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        // `std` sends with MSG_NOSIGNAL: a peer that is gone is an error here, never a signal.
        self.io.poll_io(Direction::Write, cx, |mut socket| socket.write(from))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.io.socket().shutdown(std::net::Shutdown::Write))
    }
}

/// A listener.
pub(crate) struct AsyncListener {
    io: Watched<TcpListener>,
}

impl AsyncListener {
    /// Takes over a listening socket and makes it non-blocking.
    pub fn new(reactor: &Reactor, listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { io: Watched::new(reactor, listener)? })
    }

    /// The next connection: close-on-exec, and still blocking.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|cx| self.io.poll_io(Direction::Read, cx, TcpListener::accept)).await
    }
}

/// A listening socket on exactly `address`. A wildcard of IPv6 serves IPv4 too. A listener of another
/// program on the port is an error; what an earlier one left behind (TIME_WAIT) is not.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = Domain::for_address(address);
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(domain, kind, Some(Protocol::TCP))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
