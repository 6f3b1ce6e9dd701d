//! A block of addresses, as an allow list names them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::error::{Error, Result};

use super::hint::shown;

/// All addresses that share a prefix, written `10.0.0.0/8` or `2001:db8::/32` (CIDR, RFC 4632). A bare
/// address is the block of itself.
///
/// A client that comes over IPv4 to an IPv6 listener counts as the IPv4 client it is: IPv4-mapped
/// addresses and blocks (`::ffff:10.0.0.0/104`) are turned into their IPv4 form, and an IPv6 block
/// such as `::/0` does not contain them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpBlock {
    network: IpAddr,
    prefix: u8,
}

impl IpBlock {
    /// The block of `prefix` leading bits of `network`. `InvalidConfig` if the prefix is longer than
    /// the address, or if a bit behind the prefix is set.
    pub fn new(network: IpAddr, prefix: u8) -> Result<Self> {
        Self::checked(network, prefix).map_err(Error::InvalidConfig)
    }

    /// First address of the block.
    pub const fn network(&self) -> IpAddr {
        self.network
    }

    /// Number of leading bits that all addresses of the block share.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `address` lies in the block. An IPv4-mapped address is looked at as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                network.to_bits() == address.to_bits() & mask4(self.prefix)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                network.to_bits() == address.to_bits() & mask6(self.prefix)
            }
            _ => false,
        }
    }

    /// As [`FromStr`]; `Err` is a sentence.
    pub(super) fn parse(text: &str) -> core::result::Result<Self, String> {
        let example = "write a block such as 10.0.0.0/8 or fd00::/8";
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let network: IpAddr = address
            .parse()
            .map_err(|_| format!("\"{}\" has no numeric address; {example}", shown(text)))?;
        let longest = bits(network);
        let prefix = match prefix {
            None => longest,
            Some(digits)
                if (1..=3).contains(&digits.len())
                    && digits.bytes().all(|b| b.is_ascii_digit()) =>
            {
                digits.parse().map_err(|_| too_long(network))?
            }
            Some(_) => return Err(format!("\"{}\" has no prefix length; {example}", shown(text))),
        };
        Self::checked(network, prefix)
    }

    fn checked(network: IpAddr, prefix: u8) -> core::result::Result<Self, String> {
        if prefix > bits(network) {
            return Err(too_long(network));
        }
        let first: IpAddr = match network {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & mask4(prefix)).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & mask6(prefix)).into(),
        };
        if first != network {
            return Err(format!(
                "{network}/{prefix} has bits set behind its prefix; write {first}/{prefix}, or \
                 {network}/{} for that one address",
                bits(network)
            ));
        }
        // The bits that mark a mapped address end at 96, so a mapped block is at least that long.
        match (network.to_canonical(), network) {
            (canonical @ IpAddr::V4(_), IpAddr::V6(_)) if prefix >= 96 => {
                Ok(Self { network: canonical, prefix: prefix - 96 })
            }
            _ => Ok(Self { network, prefix }),
        }
    }
}

const fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn too_long(address: IpAddr) -> String {
    format!("the prefix of {address} must be 0..={}", bits(address))
}

fn mask4(prefix: u8) -> u32 {
    !u32::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

fn mask6(prefix: u8) -> u128 {
    !u128::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

impl FromStr for IpBlock {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text).map_err(Error::InvalidConfig)
    }
}

impl fmt::Display for IpBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl fmt::Debug for IpBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str) -> IpBlock {
        text.parse().unwrap()
    }

    #[test]
    fn a_block_contains_what_shares_its_prefix() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("192.168.7.0/25", "192.168.7.127", "192.168.7.128"),
            ("1.2.3.4", "1.2.3.4", "1.2.3.5"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"),
            ("::/0", "ffff::1", "10.0.0.1"),
            ("::1/128", "::1", "::2"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::ffff:11.1.2.3"),
            ("::ffff:10.0.0.0/104", "10.1.2.3", "11.1.2.3"),
            ("::ffff:0:0/96", "9.9.9.9", "::1"),
        ] {
            assert!(block(text).contains(inside.parse().unwrap()), "{text} {inside}");
            assert!(!block(text).contains(outside.parse().unwrap()), "{text} {outside}");
        }
    }

    #[test]
    fn text_round_trips_and_nothing_else_is_taken() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::/8", "::1/128", "1.2.3.4/32"] {
            assert_eq!(block(text).to_string(), text);
        }
        for bad in [
            "",
            "/",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "10.0.0.0/+8",
            "10.0.0.0/0008",
            "10/8",
            "::/129",
            "::/999",
            "::1/0",
            "localhost",
            "10.0.0.0/8 ",
            "10.0.0.0/8/8",
            "fe80::1%1/64",
        ] {
            let error = bad.parse::<IpBlock>().unwrap_err();
            assert_eq!(error.code(), "invalid_config", "{bad}: {error}");
        }
        assert!("10.0.0.1/8".parse::<IpBlock>().unwrap_err().to_string().contains("10.0.0.0/8"));
    }
}
