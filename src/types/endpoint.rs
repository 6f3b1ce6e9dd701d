//! One address type for every place that takes an endpoint: numeric, never resolved.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use alloc::string::ToString;

/// A numeric `ip:port` or `[v6]:port`, with an optional numeric IPv6 scope id (`[fe80::1%2]:7000`).
///
/// Host names are not taken: a shard never resolves names, and what a name means can change between
/// two calls. Interface names as scope are resolved by the caller (`if_nametoindex`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint(SocketAddr);

/// Why a text is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointError {
    Empty,
    NoPort,
    BadPort,
    NotNumeric,
    BadScope,
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the text is empty",
            Self::NoPort => "there is no port; write ip:port or [v6]:port",
            Self::BadPort => "the port is no number in 0..=65535",
            Self::NotNumeric => "the host is no numeric address; host names are not resolved",
            Self::BadScope => "the scope after % is no interface number",
        })
    }
}

impl Endpoint {
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        if text.is_empty() {
            return Err(EndpointError::Empty);
        }
        let (host, port) = text.rsplit_once(':').ok_or(EndpointError::NoPort)?;
        let bracketed = host.strip_prefix('[').map(|rest| rest.strip_suffix(']'));
        if bracketed.is_none() && host.contains(':') || host.is_empty() {
            return Err(EndpointError::NoPort);
        }
        if port.is_empty() || port.len() > 5 || !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(EndpointError::BadPort);
        }
        let port: u16 = port.parse().map_err(|_| EndpointError::BadPort)?;
        match bracketed {
            None => {
                let ip: Ipv4Addr = host.parse().map_err(|_| EndpointError::NotNumeric)?;
                Ok(Self(SocketAddrV4::new(ip, port).into()))
            }
            Some(None) => Err(EndpointError::NoPort),
            Some(Some(inner)) => {
                let (ip, scope) = match inner.split_once('%') {
                    None => (inner, 0),
                    Some((ip, scope)) if scope.bytes().all(|b| b.is_ascii_digit()) => {
                        (ip, scope.parse().map_err(|_| EndpointError::BadScope)?)
                    }
                    Some(_) => return Err(EndpointError::BadScope),
                };
                let ip: Ipv6Addr = ip.parse().map_err(|_| EndpointError::NotNumeric)?;
                Ok(Self(SocketAddrV6::new(ip, port, 0, scope).into()))
            }
        }
    }

    pub const fn new(addr: SocketAddr) -> Self {
        Self(addr)
    }

    pub const fn addr(self) -> SocketAddr {
        self.0
    }

    pub const fn ip(self) -> IpAddr {
        self.0.ip()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_string())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    /// LOG-050: one parser for every place, so one table.
    #[test]
    fn one_parser_takes_numeric_forms_only() {
        for good in ["127.0.0.1:0", "0.0.0.0:65535", "[::1]:7000", "[fe80::1%3]:7000", "[::]:0"] {
            let endpoint = Endpoint::parse(good).unwrap();
            assert_eq!(format!("{endpoint}"), good);
            assert_eq!(Endpoint::parse(&format!("{endpoint}")), Ok(endpoint));
        }
        for bad in [
            "",
            ":",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:65536",
            "127.0.0.1:+1",
            "localhost:1",
            "::1",
            "::1:80",
            "[::1]",
            "[::1:80",
            "::1]:80",
            "[::1%eth0]:1",
            "[::1%+3]:1",
            "[::1%]:1",
            "[127.0.0.1]:1",
            "127.0.0.1:1 ",
            " 127.0.0.1:1",
            "tcp://127.0.0.1:1",
            "256.0.0.1:1",
            "[::1]:000001",
        ] {
            assert!(Endpoint::parse(bad).is_err(), "{bad:?}");
        }
    }
}
