//! The cold half of a transport.

use std::time::Instant;

use super::rail::{Rail, RailFault};

/// Makes rails of one transport for one shard. What differs between transports in finding devices and
/// connecting happens before: a provider takes the finished link.
pub(crate) trait Provider {
    /// What connecting yields, such as a proven socket.
    type Link;

    /// A rail over `link`, ready for slices. Fails without any effect; the link is closed then.
    fn attach(&mut self, link: Self::Link, now: Instant) -> Result<Box<dyn Rail>, RailFault>;
}
