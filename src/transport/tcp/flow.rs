//! Bytes on their way: a list of memory pieces with a position, a frame that is being sent, and the
//! step that hands several frames to the kernel in one call.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::os::fd::BorrowedFd;

use super::sys::{self, IoPiece, PIECES_MAX};
use crate::protocol::crc::TRAILER_LEN;
use crate::protocol::data::reader::Outgoing;
use crate::protocol::header::{HEADER_LEN, PAYLOAD_CRC};
use crate::transport::rail::{Budget, RailFault};
use crate::types::Fault;

/// Memory pieces in order, moved up to a position.
#[derive(Default)]
pub(super) struct Scatter {
    pieces: Vec<IoPiece>,
    at: usize,
    left: u64,
}

impl Scatter {
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.at = 0;
        self.left = 0;
    }

    pub fn push(&mut self, piece: IoPiece) {
        self.left += piece.len();
        self.pieces.push(piece);
    }

    /// Bytes not moved yet.
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// The next pieces, at most `PIECES_MAX`.
    pub fn next(&self) -> &[IoPiece] {
        let end = self.pieces.len().min(self.at + PIECES_MAX);
        &self.pieces[self.at..end]
    }

    /// Notes that the next `bytes` were moved.
    pub fn advance(&mut self, mut bytes: u64) {
        self.left -= bytes.min(self.left);
        while let Some(piece) = self.pieces.get_mut(self.at) {
            let step = piece.len().min(bytes);
            piece.advance(step);
            bytes -= step;
            if piece.len() > 0 {
                return;
            }
            self.at += 1;
        }
    }

    /// As [`advance`](Self::advance), and continues a CRC-32C over those bytes: a checksum costs each
    /// turn no more than the bytes that the turn moved.
    pub fn advance_summed(&mut self, bytes: u64, mut crc: u32, scratch: &mut [u8]) -> u32 {
        let mut rest = bytes;
        for piece in &self.pieces[self.at..] {
            if rest == 0 {
                break;
            }
            let piece = piece.first(rest);
            rest -= piece.len();
            crc = piece.crc(crc, scratch);
        }
        self.advance(bytes);
        crc
    }

    /// Appends pieces of what is left to `to`, up to `room` bytes and `PIECES_MAX` pieces in all; says
    /// how many bytes were appended.
    fn gather(&self, to: &mut Vec<IoPiece>, room: u64) -> u64 {
        let mut taken = 0;
        for piece in &self.pieces[self.at..] {
            if taken == room || to.len() == PIECES_MAX {
                break;
            }
            let piece = piece.first(room - taken);
            taken += piece.len();
            to.push(piece);
        }
        taken
    }
}

/// A frame that is being sent: header and meta, then registered memory, then perhaps a checksum.
#[derive(Default)]
pub(super) struct Outbound {
    pub header: [u8; HEADER_LEN],
    pub meta: Vec<u8>,
    pub body: Scatter,
    /// A checksum of the body follows it.
    checked: bool,
    /// Checksum of the body bytes that the kernel took.
    crc: u32,
    /// The checksum as it is sent, once the kernel took the whole body.
    trailer: [u8; TRAILER_LEN],
    /// Bytes of the whole frame that the kernel took.
    sent: u64,
    total: u64,
}

impl Outbound {
    /// Forgets the last frame and keeps its memory.
    pub fn clear(&mut self) {
        self.meta.clear();
        self.body.clear();
        self.checked = false;
        self.crc = 0;
        self.sent = 0;
        self.total = 0;
    }

    /// Fixes the frame: its header, and whether a checksum follows the body, which the header announces.
    /// Meta and body are complete.
    pub fn seal(&mut self, header: [u8; HEADER_LEN]) {
        self.header = header;
        self.checked = header[1] & PAYLOAD_CRC != 0;
        self.total = self.head_len() + self.body.left() + self.trailer_len();
    }

    const fn trailer_len(&self) -> u64 {
        if self.checked { TRAILER_LEN as u64 } else { 0 }
    }

    /// Bytes that the kernel has not taken.
    const fn left(&self) -> u64 {
        self.total - self.sent
    }

    fn head_len(&self) -> u64 {
        (HEADER_LEN + self.meta.len()) as u64
    }

    /// Whether its length is fixed: it has its place in the order of sending.
    pub const fn is_prepared(&self) -> bool {
        self.total > 0
    }

    /// Whether the kernel has taken at least one byte.
    pub const fn started(&self) -> bool {
        self.sent > 0
    }

    /// Whether the kernel has taken all.
    pub const fn is_sent(&self) -> bool {
        self.total > 0 && self.sent == self.total
    }

    /// Appends pieces of what is left, up to `room` bytes. A checksum is not known, and not appended,
    /// before the kernel took the whole body.
    fn gather(&self, to: &mut Vec<IoPiece>, room: u64) -> u64 {
        let mut taken = 0;
        let mut own = |bytes: &[u8], skip: u64, taken: u64| {
            let bytes = bytes.get(skip as usize..).unwrap_or_default();
            if bytes.is_empty() || taken == room || to.len() == PIECES_MAX {
                return 0;
            }
            let piece = IoPiece::of(bytes).first(room - taken);
            to.push(piece);
            piece.len()
        };
        taken += own(&self.header, self.sent, taken);
        taken += own(&self.meta, self.sent.saturating_sub(HEADER_LEN as u64), taken);
        taken += self.body.gather(to, room - taken);
        let start = self.total - self.trailer_len();
        if self.checked && self.sent >= start && taken < room && to.len() < PIECES_MAX {
            let bytes = self.trailer.get((self.sent - start) as usize..).unwrap_or_default();
            let piece = IoPiece::of(bytes).first(room - taken);
            taken += piece.len();
            to.push(piece);
        }
        taken
    }

    /// Takes `bytes` off the front of what is not sent; gives back what is beyond this frame.
    fn advance(&mut self, bytes: u64, scratch: &mut [u8]) -> u64 {
        let mine = bytes.min(self.total - self.sent);
        let head = self.head_len().saturating_sub(self.sent).min(mine);
        let body = (mine - head).min(self.body.left());
        if self.checked {
            self.crc = self.body.advance_summed(body, self.crc, scratch);
            self.trailer = self.crc.to_le_bytes();
        } else {
            self.body.advance(body);
        }
        self.sent += mine;
        bytes - mine
    }
}

/// Something in a send queue.
pub(super) trait Sendable {
    fn outbound(&mut self) -> &mut Outbound;
    /// Called once, when the frame comes to the front of what is being sent: the last chance to fill in
    /// what depends on the order of sending.
    fn prepare(&mut self, outgoing: &mut Outgoing);
}

/// One direction's sending state of a connection.
pub(super) struct Sender {
    gathered: Vec<IoPiece>,
    chunk: u64,
    outgoing: Outgoing,
}

/// What one `flush` did.
#[derive(Clone, Copy, Default)]
pub(super) struct Flushed {
    pub bytes: u64,
    /// Frames, from the first offered one, that are sent completely.
    pub frames: usize,
}

impl Sender {
    pub fn new(chunk: u64, payload_crc: bool) -> Self {
        let gathered = Vec::with_capacity(PIECES_MAX);
        Self { gathered, chunk, outgoing: Outgoing::new(payload_crc) }
    }

    /// Sends from `queue[from..]` until all is sent, the kernel is full or the budget is spent. Frames
    /// are prepared as they come to the front.
    pub fn flush<T: Sendable>(
        &mut self,
        socket: BorrowedFd<'_>,
        queue: &mut VecDeque<Box<T>>,
        from: usize,
        scratch: &mut [u8],
        budget: &mut Budget,
    ) -> Result<Flushed, RailFault> {
        let mut flushed = Flushed::default();
        while from + flushed.frames < queue.len() && !budget.is_spent() {
            // A call too many for the last few bytes of a frame costs more than a longer call.
            let room = self.chunk + self.chunk / 4;
            let mut offered = 0;
            self.gathered.clear();
            for frame in queue.iter_mut().skip(from + flushed.frames) {
                if offered >= self.chunk || self.gathered.len() >= PIECES_MAX {
                    break;
                }
                if !frame.outbound().is_prepared() {
                    frame.prepare(&mut self.outgoing);
                }
                let left = frame.outbound().left();
                let take = if left <= room - offered { left } else { self.chunk - offered };
                let gathered = frame.outbound().gather(&mut self.gathered, take);
                offered += gathered;
                if gathered < left {
                    // The next frame comes after the rest of this one.
                    break;
                }
            }
            let taken = match sys::send(socket, &self.gathered) {
                Ok(taken) => taken as u64,
                Err(error) if would_block(&error) => return Ok(flushed),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(lost(&error)),
            };
            flushed.bytes += taken;
            budget.spend(taken);
            let mut rest = taken;
            while let Some(frame) = queue.get_mut(from + flushed.frames) {
                rest = frame.outbound().advance(rest, scratch);
                if !frame.outbound().is_sent() {
                    break;
                }
                flushed.frames += 1;
            }
            if taken < offered {
                return Ok(flushed);
            }
        }
        Ok(flushed)
    }
}

/// What a receive call came to: bytes, or `None` when nothing is there. The end of the stream is a fault.
pub(super) fn read(result: std::io::Result<usize>) -> Result<Option<usize>, RailFault> {
    match result {
        Ok(0) => Err(RailFault(Fault::Ended)),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if would_block(&error) => Ok(None),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(lost(&error)),
    }
}

fn would_block(error: &Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
}

fn lost(error: &Error) -> RailFault {
    RailFault(Fault::Lost(error.raw_os_error().unwrap_or(libc::EIO)))
}
