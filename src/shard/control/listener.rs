//! The listener: binding within a span of ports, accepting within limits.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future::yield_now;

use crate::error::Error;

use super::admission::Verdict;
use super::engine::Core;
use super::net::{self, AsyncListener};
use super::source;

/// Pause when the process or the system has no descriptor or memory left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Connections accepted before other tasks get their turn.
const BURST: u32 = 16;

/// Binds `address`, or one of the `span` ports after its own while they are taken. Port 0 takes any free
/// port. Gives the socket and its real address.
///
/// Fails for a span of ports that are all taken, and for an address that is not of this machine; names
/// the ports and what to change.
pub(super) fn bind(address: SocketAddr, span: u16) -> Result<(TcpListener, SocketAddr), Error> {
    let last = if address.port() == 0 { 0 } else { address.port().saturating_add(span) };
    let mut taken = None;
    for port in address.port()..=last {
        let at = SocketAddr::new(address.ip(), port);
        let at = match (at, address) {
            (SocketAddr::V6(mut at), SocketAddr::V6(scoped)) => {
                at.set_scope_id(scoped.scope_id());
                SocketAddr::V6(at)
            }
            (at, _) => at,
        };
        match net::listen(at).and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((bound, listener)) => return Ok((listener, bound)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => taken = Some(error),
            Err(error) => return Err(bind_error(address, last, &error)),
        }
    }
    Err(bind_error(address, last, &taken.unwrap_or_else(|| io::ErrorKind::AddrInUse.into())))
}

fn bind_error(address: SocketAddr, last: u16, error: &io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse if address.port() == 0 => "no port is free",
        io::ErrorKind::AddrInUse => {
            "taken; choose another port, port 0, or a larger bind_port_span"
        }
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this machine has the address of bind_addr"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below net.ipv4.ip_unprivileged_port_start need a right"
        }
        _ => "see bind_addr",
    };
    let ports = if last > address.port() { format!(" to port {last}") } else { String::new() };
    Error::io(format!("listen on {address}{ports} ({hint})"), "bind", error)
}

/// Accepts for ever. Each connection gets a task; limits are kept before any byte is read.
pub(super) async fn accept(core: Rc<Core>, listener: AsyncListener) {
    let counters = &core.plan.counters;
    let mut burst = 0;
    loop {
        let (stream, remote) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(pause) = pause_after(&error) {
                    counters.accept_pauses.bump(1);
                    tracing::warn!(%error, "the listener pauses");
                    core.reactor.sleep(pause).await;
                }
                continue;
            }
        };
        counters.accepted.bump(1);
        let ip = canonical(remote);
        let verdict = core.admission.borrow().judge(core.unproven());
        if !(core.plan.allow_peer)(ip) || verdict == Verdict::Refuse {
            counters.refused.bump(1);
            tracing::debug!(%remote, ?verdict, "a connection was refused at accept");
        } else {
            if verdict == Verdict::Displace {
                counters.refused.bump(1);
                core.displace();
            }
            let handler = Rc::clone(&core);
            let _task = core.spawn("handshake", |id| {
                let unproven = handler.enter_handshake(id);
                source::handle(handler, unproven, id, stream, remote)
            });
        }
        burst += 1;
        if burst % BURST == 0 {
            yield_now().await;
        }
    }
}

/// How long accepting waits after an error. accept(2) also passes on errors of the network that concern
/// one connection which is gone already; those cost no time.
fn pause_after(error: &io::Error) -> Option<Duration> {
    match error.raw_os_error() {
        Some(
            libc::ECONNABORTED
            | libc::EPERM
            | libc::EPROTO
            | libc::ENETDOWN
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EOPNOTSUPP,
        ) => None,
        _ => Some(EXHAUSTED_PAUSE),
    }
}

/// The client's address, as IPv4 where it came so to a socket of IPv6.
pub(super) const fn canonical(remote: SocketAddr) -> IpAddr {
    remote.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named_and_a_span_goes_past_it() {
        let (first, at) = bind("127.0.0.1:0".parse().unwrap(), 0).unwrap();
        let port = at.port();
        let error = bind(at, 0).unwrap_err();
        assert_eq!(error.code(), "io");
        let text = error.to_string();
        assert!(
            text.contains(&format!("127.0.0.1:{port}")) && text.contains("bind_port_span"),
            "{text}"
        );
        let Error::Io { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.errno(), libc::EADDRINUSE);

        let (second, next) = bind(at, 1024).unwrap();
        assert!(next.port() > port && next.port() <= port.saturating_add(1024));
        drop((first, second));
        assert_eq!(bind(at, 0).unwrap().1, at, "a closed listener leaves its port free");
    }

    #[test]
    fn an_address_of_another_machine_is_told() {
        let error = bind("192.0.2.1:0".parse().unwrap(), 3).unwrap_err().to_string();
        assert!(error.contains("192.0.2.1") && error.contains("bind_addr"), "{error}");
    }

    #[test]
    fn descriptors_that_ran_out_pause_and_a_lost_connection_does_not() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EBADF] {
            assert!(pause_after(&io::Error::from_raw_os_error(errno)).is_some(), "{errno}");
        }
        assert_eq!(pause_after(&io::Error::from_raw_os_error(libc::ECONNABORTED)), None);
    }

    #[test]
    fn a_mapped_client_is_its_ipv4_self() {
        let mapped: SocketAddr = "[::ffff:192.0.2.7]:1".parse().unwrap();
        assert_eq!(canonical(mapped), IpAddr::from([192, 0, 2, 7]));
    }
}
