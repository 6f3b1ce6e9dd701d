//! Bytes on the wire: what a frame and a handshake message look like, and whether one that came is
//! well formed. `docs/wire.md` describes the same bytes for people.
//!
//! Everything here is a plain value or a machine without I/O: it is given bytes and gives values,
//! bytes or an error. It reads no clock, holds no socket and knows no region. Invariants: no input
//! panics; nothing is allocated for a length before that length was compared with its limit; a value
//! that was decoded encodes to the same bytes again.

pub(crate) mod control;
pub(crate) mod crc;
pub(crate) mod data;
pub(crate) mod error;
mod fields;
pub(crate) mod handshake;
pub(crate) mod header;
pub(crate) mod limits;
pub(crate) mod notice;
pub(crate) mod proof;
pub(crate) mod version;
