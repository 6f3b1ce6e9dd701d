//! The 32 bytes at the front of every frame.
//!
//! | offset | field | rule |
//! |---|---|---|
//! | 0 | type u8 | defined for the connection's role and the frame's direction |
//! | 1 | flags u8 | exactly those that hold for the type and the connection |
//! | 2 | reserved u16 | 0 |
//! | 4 | meta_len u32 | between the direction's least and the connection's most |
//! | 8 | data_len u64 | at most the connection's most; 0 where the type has no payload |
//! | 16 | request_id u64 | rising in requests, repeated in replies |
//! | 24 | sequence u32 | one more than in the frame before, from 0, wrapping |
//! | 28 | crc32c u32 | over bytes 0..28 and the meta |

use core::fmt;

use super::crc::{self, TRAILER_LEN};
use super::error::FrameError;
use super::fields::{Fields, Put};
use super::limits::{Direction, FrameLimits, Role};

/// Length of a header, bytes.
pub(crate) const HEADER_LEN: usize = 32;

/// Bytes of the header that its checksum covers.
const COVERED: usize = 28;

/// Flag of a frame whose payload is followed by its checksum ([`TRAILER_LEN`] bytes, not counted in
/// `data_len`). Set in exactly those frames of a data connection that have a payload, once both sides
/// agreed on the feature; never otherwise.
pub(crate) const PAYLOAD_CRC: u8 = 1;

/// Types of frames. Numbers that are not here are kept for later parts of the protocol
/// (`docs/wire.md`) and are as unknown as any other until those parts exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Control: asks for one page of the catalog.
    Describe = 1,
    /// Control: that page.
    Page = 2,
    /// Control: the catalog has a new generation.
    CatalogChanged = 3,
    /// Both: are you there?
    Ping = 8,
    /// Both: yes.
    Pong = 9,
    /// Both: finishes what was accepted, takes nothing new.
    GoAway = 10,
    /// Data: asks for the bytes of a list of ranges.
    Read = 32,
    /// Data: brings the bytes of a list of ranges.
    Write = 33,
    /// Data: the bytes that a READ asked for.
    ReadData = 34,
    /// Data: the last byte of a WRITE is in place.
    WriteAck = 35,
    /// Data: a READ or WRITE was not done.
    Refuse = 36,
    /// Data: a READ or WRITE is not wanted any more.
    Cancel = 37,
}

impl Kind {
    /// From its number on the wire.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Describe,
            2 => Self::Page,
            3 => Self::CatalogChanged,
            8 => Self::Ping,
            9 => Self::Pong,
            10 => Self::GoAway,
            32 => Self::Read,
            33 => Self::Write,
            34 => Self::ReadData,
            35 => Self::WriteAck,
            36 => Self::Refuse,
            37 => Self::Cancel,
            _ => return None,
        })
    }

    /// Whether a frame of this type may travel that way over such a connection.
    const fn is_allowed(self, role: Role, direction: Direction) -> bool {
        match self {
            Self::Ping | Self::Pong | Self::GoAway => matches!(role, Role::Control),
            Self::Describe => {
                matches!((role, direction), (Role::Control, Direction::ToSource))
            }
            Self::Page | Self::CatalogChanged => {
                matches!((role, direction), (Role::Control, Direction::ToRequester))
            }
            Self::Read | Self::Write | Self::Cancel => {
                role.is_data() && matches!(direction, Direction::ToSource)
            }
            Self::ReadData | Self::WriteAck | Self::Refuse => {
                role.is_data() && matches!(direction, Direction::ToRequester)
            }
        }
    }

    /// Whether the frame answers a request and repeats its id. All others have ids that rise.
    pub const fn is_reply(self) -> bool {
        matches!(self, Self::Page | Self::Pong | Self::ReadData | Self::WriteAck | Self::Refuse)
    }

    /// Whether the frame may have a payload.
    pub const fn has_payload(self) -> bool {
        matches!(self, Self::Page | Self::Write | Self::ReadData)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Describe => "Describe",
            Self::Page => "Page",
            Self::CatalogChanged => "CatalogChanged",
            Self::Ping => "Ping",
            Self::Pong => "Pong",
            Self::GoAway => "GoAway",
            Self::Read => "Read",
            Self::Write => "Write",
            Self::ReadData => "ReadData",
            Self::WriteAck => "WriteAck",
            Self::Refuse => "Refuse",
            Self::Cancel => "Cancel",
        })
    }
}

/// A header, without its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    /// [`PAYLOAD_CRC`] or 0.
    pub flags: u8,
    /// Bytes of the meta, which follows the header.
    pub meta_len: u32,
    /// Bytes of the payload, which follows the meta; without its checksum.
    pub data_len: u64,
    pub request_id: u64,
    pub sequence: u32,
}

impl Header {
    /// Whether a checksum follows the payload.
    pub const fn has_trailer(&self) -> bool {
        self.flags & PAYLOAD_CRC != 0
    }

    /// Bytes that follow the meta: the payload and its checksum. Does not overflow for a header that
    /// [`decode`] accepted under a `data_max` of a real connection; saturates otherwise.
    pub const fn payload_len(&self) -> u64 {
        let trailer = if self.has_trailer() { TRAILER_LEN as u64 } else { 0 };
        self.data_len.saturating_add(trailer)
    }
}

/// The flags of a frame of that type with such a payload.
#[inline]
pub(crate) const fn flags_of(kind: Kind, data_len: u64, payload_crc: bool) -> u8 {
    if payload_crc && data_len > 0 && matches!(kind, Kind::Write | Kind::ReadData) {
        PAYLOAD_CRC
    } else {
        0
    }
}

/// The bytes of a header, with the checksum over them and `meta`. `meta` is what will follow; its
/// length is `header.meta_len`.
pub(crate) fn encode(header: &Header, meta: &[u8]) -> [u8; HEADER_LEN] {
    debug_assert_eq!(header.meta_len as usize, meta.len(), "the header tells its meta's length");
    let mut bytes = [0; HEADER_LEN];
    Put::new(&mut bytes)
        .u8(header.kind as u8)
        .u8(header.flags)
        .reserved::<2>()
        .u32(header.meta_len)
        .u64(header.data_len)
        .u64(header.request_id)
        .u32(header.sequence)
        .reserved::<4>()
        .finish();
    let crc = checksum(&bytes, meta);
    if let Some(place) = bytes.last_chunk_mut() {
        *place = crc.to_le_bytes();
    }
    bytes
}

/// Reads a header that came over a connection with these limits. Only what the meta is not needed for
/// is checked: type, flags, reserved bytes and lengths. [`check`] does the rest.
pub(crate) fn decode(bytes: &[u8; HEADER_LEN], limits: &FrameLimits) -> Result<Header, FrameError> {
    let mut fields = Fields::new(bytes);
    let number = fields.u8();
    let flags = fields.u8();
    fields.reserved::<2>();
    let meta_len = fields.u32();
    let data_len = fields.u64();
    let request_id = fields.u64();
    let sequence = fields.u32();
    let _checksum = fields.u32();

    let (role, direction) = (limits.role, limits.direction);
    let kind = Kind::from_number(number)
        .filter(|kind| kind.is_allowed(role, direction))
        .ok_or(FrameError::UnknownKind { kind: number, role, direction })?;
    if !fields.finish() {
        return Err(FrameError::Reserved { what: "a frame header" });
    }
    let (min, max) = (limits.meta_min(), limits.meta_max);
    if meta_len > max {
        return Err(FrameError::MetaTooLong { kind, len: meta_len, max });
    }
    if meta_len < min {
        return Err(FrameError::MetaTooShort { kind, len: meta_len, min });
    }
    let max = if kind.has_payload() { limits.data_max } else { 0 };
    if data_len > max {
        return Err(FrameError::DataTooLong { kind, len: data_len, max });
    }
    let expected = flags_of(kind, data_len, limits.payload_crc);
    if flags != expected {
        return Err(FrameError::Flags { kind, flags, expected });
    }
    Ok(Header { kind, flags, meta_len, data_len, request_id, sequence })
}

/// Compares the checksum in a header with that of the header and its whole meta. Nothing in either may
/// be acted on before this succeeded.
pub(crate) fn check(bytes: &[u8; HEADER_LEN], meta: &[u8]) -> Result<(), FrameError> {
    let found = bytes.last_chunk().map_or(0, |crc| u32::from_le_bytes(*crc));
    let computed = checksum(bytes, meta);
    if found == computed { Ok(()) } else { Err(FrameError::Checksum { found, computed }) }
}

fn checksum(bytes: &[u8; HEADER_LEN], meta: &[u8]) -> u32 {
    let covered = bytes.first_chunk::<COVERED>().map_or(&bytes[..], |covered| covered);
    crc::append(crc::append(0, covered), meta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::limits::Limits;
    use crate::protocol::version::Features;

    fn to_source(payload_crc: bool) -> FrameLimits {
        let limits = Limits::new(1 << 20, 256, 16);
        let features = Features(u64::from(payload_crc));
        FrameLimits::data(Role::Data, Direction::ToSource, &limits, features)
    }

    fn write() -> Header {
        Header {
            kind: Kind::Write,
            flags: 0,
            meta_len: 96,
            data_len: 4096,
            request_id: 7,
            sequence: 3,
        }
    }

    #[test]
    fn a_header_has_the_documented_bytes() {
        let bytes = encode(&write(), &[0; 96]);
        assert_eq!(
            bytes[..28],
            [33, 0, 0, 0, 96, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]
        );
        assert_eq!(bytes[28..], crc::append(crc::append(0, &bytes[..28]), &[0; 96]).to_le_bytes());
        assert_eq!(decode(&bytes, &to_source(false)), Ok(write()));
        assert_eq!(check(&bytes, &[0; 96]), Ok(()));
    }

    #[test]
    fn each_number_names_one_kind_and_kinds_keep_to_their_connections() {
        for number in 0..=u8::MAX {
            if let Some(kind) = Kind::from_number(number) {
                assert_eq!(kind as u8, number);
                let all = [Role::Control, Role::Data, Role::HpData, Role::Discover]
                    .map(|role| [Direction::ToSource, Direction::ToRequester].map(|d| (role, d)));
                let allowed = all.iter().flatten().filter(|(role, d)| kind.is_allowed(*role, *d));
                let expected = match kind {
                    Kind::Describe | Kind::Page | Kind::CatalogChanged => 1,
                    _ => 2,
                };
                assert_eq!(allowed.count(), expected, "{kind}");
            }
        }
        let mut bytes = encode(&write(), &[0; 96]);
        for number in [0, 4, 16, 38, 39, 64, 95, 255] {
            bytes[0] = number;
            let error = decode(&bytes, &to_source(false)).unwrap_err();
            assert!(matches!(error, FrameError::UnknownKind { kind, .. } if kind == number));
        }
    }

    /// CORE-101: reserved bits, and every flag but those agreed on.
    #[test]
    fn core_101_reserved_bits_and_flags_are_refused() {
        for bit in 0..16 {
            let mut bytes = encode(&write(), &[0; 96]);
            bytes[2 + bit / 8] |= 1 << (bit % 8);
            let error = decode(&bytes, &to_source(false));
            assert_eq!(error, Err(FrameError::Reserved { what: "a frame header" }));
        }
        for bit in 0..8 {
            let flagged = Header { flags: 1 << bit, ..write() };
            let bytes = encode(&flagged, &[0; 96]);
            assert!(matches!(decode(&bytes, &to_source(false)), Err(FrameError::Flags { .. })));
            let with_crc = decode(&bytes, &to_source(true));
            assert_eq!(with_crc.is_ok(), flagged.flags == PAYLOAD_CRC, "{with_crc:?}");
        }
        let bare = encode(&write(), &[0; 96]);
        assert!(decode(&bare, &to_source(true)).is_err(), "a payload without its checksum");
    }

    /// CORE-100: lengths are compared with their limits before anything else happens with them.
    #[test]
    fn core_100_declared_lengths_are_compared_with_their_limits() {
        let limits = to_source(false);
        for data_len in [limits.data_max + 1, 1 << 63, u64::MAX] {
            let bytes = encode(&Header { data_len, ..write() }, &[0; 96]);
            let error = decode(&bytes, &limits).unwrap_err();
            assert_eq!(
                error,
                FrameError::DataTooLong { kind: Kind::Write, len: data_len, max: limits.data_max }
            );
        }
        let read = Header { kind: Kind::Read, data_len: 1, ..write() };
        let error = decode(&encode(&read, &[0; 96]), &limits).unwrap_err();
        assert_eq!(error, FrameError::DataTooLong { kind: Kind::Read, len: 1, max: 0 });
        for meta_len in [limits.meta_max + 1, 1 << 31, u32::MAX] {
            let mut bytes = encode(&write(), &[0; 96]);
            bytes[4..8].copy_from_slice(&meta_len.to_le_bytes());
            assert!(matches!(decode(&bytes, &limits), Err(FrameError::MetaTooLong { .. })));
        }
        let mut bytes = encode(&write(), &[0; 96]);
        bytes[4] = 95;
        assert!(matches!(decode(&bytes, &limits), Err(FrameError::MetaTooShort { min: 96, .. })));
    }

    /// CORE-101: a wrong checksum, whichever bit of header or meta it comes from.
    #[test]
    fn core_101_each_flipped_bit_is_found() {
        let meta = [0x5a; 96];
        let good = encode(&write(), &meta);
        let mut frame = [0; 128];
        frame[..32].copy_from_slice(&good);
        frame[32..].copy_from_slice(&meta);
        for bit in 0..frame.len() * 8 {
            let mut flipped = frame;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let head = *flipped.first_chunk().unwrap();
            let checked = check(&head, &flipped[32..]);
            assert!(matches!(checked, Err(FrameError::Checksum { .. })), "bit {bit}");
        }
    }

    #[test]
    fn what_follows_the_meta_counts_the_trailer() {
        assert_eq!(write().payload_len(), 4096);
        assert_eq!(Header { flags: PAYLOAD_CRC, ..write() }.payload_len(), 4100);
        assert_eq!(flags_of(Kind::ReadData, 0, true), 0, "no payload, no trailer");
        assert_eq!(flags_of(Kind::Page, 72, true), 0, "control frames have no trailer");
    }

    #[test]
    fn errors_name_rule_value_and_limit() {
        let error = FrameError::DataTooLong { kind: Kind::Write, len: 1 << 63, max: 64 };
        let text = std::format!("{error}");
        assert!(text.contains("Write") && text.contains("9223372036854775808"), "{text}");
        assert!(text.contains("at most 64"), "{text}");
    }
}
