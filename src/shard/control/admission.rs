//! How many connections the listener keeps, from whom, and who has to wait. Tables only: no socket,
//! no clock.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::plan::InboundLimits;

/// Wrong proofs of one address after which its handshakes are delayed.
const FREE_FAILURES: u32 = 8;

/// That delay. Longer than a guess takes, shorter than an honest neighbour's patience.
const DELAY: Duration = Duration::from_millis(250);

/// Wrong proofs are forgotten after so long without another.
const MEMORY: Duration = Duration::from_secs(60);

/// Addresses kept at a time; the ones without a connection go first.
const MAX_ADDRESSES: usize = 4096;

#[derive(Debug, Default)]
struct Address {
    proven: Arc<AtomicU32>,
    failures: u32,
    last_failure: Option<Instant>,
}

/// Counts one proven connection against the listener's limits until it is dropped, on any thread.
#[derive(Debug)]
pub(crate) struct Permit {
    all: Arc<AtomicU32>,
    address: Arc<AtomicU32>,
}

impl Permit {
    fn take(all: &Arc<AtomicU32>, address: &Arc<AtomicU32>) -> Self {
        all.fetch_add(1, Ordering::AcqRel);
        address.fetch_add(1, Ordering::AcqRel);
        Self { all: Arc::clone(all), address: Arc::clone(address) }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::AcqRel);
        self.address.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Why a proven connection is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    Connections,
    Address,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connections => "inbound.max_connections is reached",
            Self::Address => "inbound.max_connections_per_ip is reached",
        })
    }
}

/// What the listener does with a connection that was just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Starts its handshake.
    Admit,
    /// The same, after the oldest unproven one was closed.
    Displace,
    /// Closes it.
    Refuse,
}

/// The tables of one listener.
#[derive(Debug)]
pub(super) struct Admission {
    limits: InboundLimits,
    proven: Arc<AtomicU32>,
    addresses: HashMap<IpAddr, Address>,
}

impl Admission {
    pub fn new(limits: InboundLimits) -> Self {
        Self { limits, proven: Arc::default(), addresses: HashMap::new() }
    }

    /// For a new connection beside `unproven` others.
    ///
    /// An unproven connection never keeps a new one out: the oldest gives way. A proven one is never
    /// displaced.
    pub fn judge(&self, unproven: usize) -> Verdict {
        let proven = self.proven.load(Ordering::Acquire);
        if proven >= self.limits.max_connections {
            return Verdict::Refuse;
        }
        let room = self.limits.max_handshakes.min(self.limits.max_connections - proven);
        if unproven < room as usize { Verdict::Admit } else { Verdict::Displace }
    }

    /// Keeps a connection whose peer has proved its right.
    pub fn prove(&mut self, ip: IpAddr, now: Instant) -> Result<Permit, Full> {
        if self.proven.load(Ordering::Acquire) >= self.limits.max_connections {
            return Err(Full::Connections);
        }
        let limit = self.limits.max_connections_per_ip;
        let all = Arc::clone(&self.proven);
        let address = self.address(ip, now);
        if address.proven.load(Ordering::Acquire) >= limit {
            return Err(Full::Address);
        }
        (address.failures, address.last_failure) = (0, None);
        Ok(Permit::take(&all, &address.proven))
    }

    /// Notes a wrong proof.
    pub fn fail(&mut self, ip: IpAddr, now: Instant) {
        let address = self.address(ip, now);
        if address.is_forgotten(now) {
            address.failures = 0;
        }
        address.failures = address.failures.saturating_add(1);
        address.last_failure = Some(now);
    }

    /// How long a handshake of this address waits before it is answered.
    pub fn delay(&self, ip: IpAddr, now: Instant) -> Duration {
        match self.addresses.get(&ip) {
            Some(address) if address.failures >= FREE_FAILURES && !address.is_forgotten(now) => {
                DELAY
            }
            _ => Duration::ZERO,
        }
    }

    fn address(&mut self, ip: IpAddr, now: Instant) -> &mut Address {
        if self.addresses.len() >= MAX_ADDRESSES && !self.addresses.contains_key(&ip) {
            self.addresses.retain(|_, address| {
                address.is_connected() || address.failures > 0 && !address.is_forgotten(now)
            });
        }
        if self.addresses.len() >= MAX_ADDRESSES && !self.addresses.contains_key(&ip) {
            self.addresses.retain(|_, address| address.is_connected());
        }
        self.addresses.entry(ip).or_default()
    }
}

impl Address {
    fn is_connected(&self) -> bool {
        self.proven.load(Ordering::Acquire) > 0
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        self.last_failure.is_none_or(|last| now.saturating_duration_since(last) >= MEMORY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> InboundLimits {
        InboundLimits {
            max_connections: 4,
            max_connections_per_ip: 2,
            max_handshakes: 3,
            handshake_timeout: Duration::from_secs(2),
            describe_page_regions: 512,
        }
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[expect(clippy::disallowed_methods, reason = "a test needs some instant")]
    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn the_oldest_unproven_gives_way_and_a_proven_one_never() {
        let mut admission = Admission::new(limits());
        assert_eq!(admission.judge(2), Verdict::Admit);
        assert_eq!(admission.judge(3), Verdict::Displace);
        let mut kept: Vec<_> = (0..3).map(|n| admission.prove(ip(n), now()).unwrap()).collect();
        assert_eq!(admission.judge(0), Verdict::Admit);
        assert_eq!(admission.judge(1), Verdict::Displace, "one slot is left in all");
        kept.push(admission.prove(ip(9), now()).unwrap());
        assert_eq!(admission.judge(0), Verdict::Refuse);
        assert_eq!(admission.prove(ip(7), now()).unwrap_err(), Full::Connections);
        kept.pop();
        assert_eq!(admission.judge(0), Verdict::Admit, "a permit counts until it is dropped");
    }

    #[test]
    fn one_address_has_its_own_limit() {
        let mut admission = Admission::new(limits());
        let first = admission.prove(ip(1), now()).unwrap();
        let _second = admission.prove(ip(1), now()).unwrap();
        assert_eq!(admission.prove(ip(1), now()).unwrap_err(), Full::Address);
        assert!(admission.prove(ip(2), now()).is_ok());
        drop(first);
        assert!(admission.prove(ip(1), now()).is_ok());
    }

    #[test]
    fn eight_wrong_proofs_delay_an_address_until_one_is_right_or_a_minute_passed() {
        let (mut admission, start) = (Admission::new(limits()), now());
        for _ in 0..FREE_FAILURES {
            assert_eq!(admission.delay(ip(1), start), Duration::ZERO);
            admission.fail(ip(1), start);
        }
        assert_eq!(admission.delay(ip(1), start), DELAY);
        assert_eq!(admission.delay(ip(2), start), Duration::ZERO);
        assert_eq!(admission.delay(ip(1), start + MEMORY), Duration::ZERO);
        admission.fail(ip(1), start + MEMORY);
        assert_eq!(admission.delay(ip(1), start + MEMORY), Duration::ZERO, "counted anew");
        for _ in 0..FREE_FAILURES {
            admission.fail(ip(1), start);
        }
        let _permit = admission.prove(ip(1), start).unwrap();
        assert_eq!(admission.delay(ip(1), start), Duration::ZERO);
    }

    #[test]
    fn addresses_are_bounded() {
        let (mut admission, start) = (Admission::new(limits()), now());
        let _kept = admission.prove(ip(1), start).unwrap();
        for n in 0..3 * MAX_ADDRESSES as u32 {
            admission.fail(IpAddr::from((0x0a00_0000 + n).to_be_bytes()), start);
            assert!(admission.addresses.len() <= MAX_ADDRESSES);
        }
        assert!(admission.addresses.contains_key(&ip(1)));
    }
}
