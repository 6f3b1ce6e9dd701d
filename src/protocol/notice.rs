//! Short frames about the connection or about another frame: Ping, Pong, GoAway, Cancel.
//!
//! Each has a meta of [`NOTICE_LEN`] bytes on every connection and in both directions, zeros after its
//! fields. That is the least meta towards a source, so no direction needs another length.

use super::error::FrameError;
use super::fields::{Fields, Put};
use super::limits::META_MIN_TO_SOURCE;

/// Length of the meta of each notice, bytes.
pub(crate) const NOTICE_LEN: usize = META_MIN_TO_SOURCE as usize;

fn whole<'a>(what: &'static str, meta: &'a [u8]) -> Result<Fields<'a>, FrameError> {
    if meta.len() == NOTICE_LEN {
        Ok(Fields::new(meta))
    } else {
        Err(FrameError::Length { what, len: meta.len() as u64, expected: NOTICE_LEN as u64 })
    }
}

fn clean<T>(what: &'static str, fields: Fields<'_>, value: T) -> Result<T, FrameError> {
    if fields.finish() { Ok(value) } else { Err(FrameError::Reserved { what }) }
}

/// Asks for a [`Pong`] with the same number, in a reply with the same request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ping {
    /// Any number of the sender's choice.
    pub opaque: u64,
}

/// The answer to a [`Ping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pong {
    /// The number of the ping.
    pub opaque: u64,
}

/// Withdraws a request of the same connection. Best effort: a request that has begun goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cancel {
    /// Request id of the READ or WRITE.
    pub request_id: u64,
}

/// Why a side takes nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum GoAwayReason {
    /// The engine, or its source side, closes.
    Closing = 1,
    /// The connection was idle for its time.
    Idle = 2,
}

/// The sender finishes what it accepted and takes nothing new over this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoAway {
    pub reason: GoAwayReason,
    /// The last request that was accepted; 0 for none. Later ones had no effect.
    pub last_request_id: u64,
}

impl Ping {
    /// The meta.
    pub fn encode(self) -> [u8; NOTICE_LEN] {
        number(self.opaque)
    }

    /// Fails for a wrong length or padding that is not zero.
    pub fn decode(meta: &[u8]) -> Result<Self, FrameError> {
        read_number("Ping", meta).map(|opaque| Self { opaque })
    }

    /// The answer.
    pub const fn answer(self) -> Pong {
        Pong { opaque: self.opaque }
    }
}

impl Pong {
    /// The meta.
    pub fn encode(self) -> [u8; NOTICE_LEN] {
        number(self.opaque)
    }

    /// Fails for a wrong length or padding that is not zero.
    pub fn decode(meta: &[u8]) -> Result<Self, FrameError> {
        read_number("Pong", meta).map(|opaque| Self { opaque })
    }
}

impl Cancel {
    /// The meta.
    pub fn encode(self) -> [u8; NOTICE_LEN] {
        number(self.request_id)
    }

    /// Fails for a wrong length or padding that is not zero. Any id is a value: the request may have
    /// been answered meanwhile.
    pub fn decode(meta: &[u8]) -> Result<Self, FrameError> {
        read_number("Cancel", meta).map(|request_id| Self { request_id })
    }
}

impl GoAway {
    /// The meta.
    pub fn encode(&self) -> [u8; NOTICE_LEN] {
        let mut meta = [0; NOTICE_LEN];
        Put::new(&mut meta)
            .u16(self.reason as u16)
            .reserved::<6>()
            .u64(self.last_request_id)
            .reserved::<{ NOTICE_LEN - 16 }>()
            .finish();
        meta
    }

    /// Fails for a wrong length, padding that is not zero, or an unknown reason.
    pub fn decode(meta: &[u8]) -> Result<Self, FrameError> {
        let mut fields = whole("GoAway", meta)?;
        let reason = fields.u16();
        fields.reserved::<6>();
        let last_request_id = fields.u64();
        fields.reserved::<{ NOTICE_LEN - 16 }>();
        let reason = match reason {
            1 => GoAwayReason::Closing,
            2 => GoAwayReason::Idle,
            _ => {
                return Err(FrameError::Value {
                    what: "GoAway reason",
                    value: reason.into(),
                    rule: "1 is closing, 2 is idle",
                });
            }
        };
        clean("GoAway", fields, Self { reason, last_request_id })
    }
}

fn number(value: u64) -> [u8; NOTICE_LEN] {
    let mut meta = [0; NOTICE_LEN];
    Put::new(&mut meta).u64(value).reserved::<{ NOTICE_LEN - 8 }>().finish();
    meta
}

fn read_number(what: &'static str, meta: &[u8]) -> Result<u64, FrameError> {
    let mut fields = whole(what, meta)?;
    let value = fields.u64();
    fields.reserved::<{ NOTICE_LEN - 8 }>();
    clean(what, fields, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_round_trip_and_nothing_else_is_taken() {
        let ping = Ping { opaque: 0x1122_3344_5566_7788 };
        let meta = ping.encode();
        assert_eq!(Ping::decode(&meta), Ok(ping));
        assert_eq!(Pong::decode(&meta), Ok(ping.answer()));
        assert_eq!(Cancel::decode(&meta).unwrap().encode(), meta);
        for len in (0..=160).filter(|len| *len != 96) {
            let mut other = meta.to_vec();
            other.resize(len, 0);
            let error = |what| FrameError::Length { what, len: len as u64, expected: 96 };
            assert_eq!(Ping::decode(&other), Err(error("Ping")));
            assert_eq!(Pong::decode(&other), Err(error("Pong")));
            assert_eq!(Cancel::decode(&other), Err(error("Cancel")));
        }
        for bit in 8 * 8..96 * 8 {
            let mut padded = meta;
            padded[bit / 8] |= 1 << (bit % 8);
            assert_eq!(Ping::decode(&padded), Err(FrameError::Reserved { what: "Ping" }));
            assert_eq!(Pong::decode(&padded), Err(FrameError::Reserved { what: "Pong" }));
            assert_eq!(Cancel::decode(&padded), Err(FrameError::Reserved { what: "Cancel" }));
        }
    }

    #[test]
    fn an_engine_says_why_it_goes() {
        for reason in [GoAwayReason::Closing, GoAwayReason::Idle] {
            let away = GoAway { reason, last_request_id: 9 };
            assert_eq!(GoAway::decode(&away.encode()), Ok(away));
        }
        let mut meta = GoAway { reason: GoAwayReason::Idle, last_request_id: 9 }.encode();
        for at in (2..8).chain(16..96) {
            let mut padded = meta;
            padded[at] = 0x80;
            assert_eq!(GoAway::decode(&padded), Err(FrameError::Reserved { what: "GoAway" }));
        }
        for len in (0..=160).filter(|len| *len != 96) {
            let mut other = meta.to_vec();
            other.resize(len, 0);
            assert!(matches!(GoAway::decode(&other), Err(FrameError::Length { .. })), "{len}");
        }
        for reason in [0, 3, 255] {
            meta[0] = reason;
            assert!(matches!(GoAway::decode(&meta), Err(FrameError::Value { .. })));
        }
    }
}
