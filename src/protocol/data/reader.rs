//! Finds the frames in a byte stream, and numbers those that are sent.
//!
//! [`FrameReader`] holds header and meta of one frame at a time. It asks for exactly the bytes that it
//! needs, so a payload never passes through it: whoever reads the stream takes the payload (and its
//! checksum) off between [`filled`](FrameReader::filled) and [`next`](FrameReader::next).
//!
//! | state | entered by | `space` | leaves by |
//! |---|---|---|---|
//! | front | `new`, `next` | rest of the first `first` bytes | header complete and allowed |
//! | meta | | rest of the meta | meta complete, checksum and numbers right |
//! | complete | | empty | `next` |
//! | broken | any rule broken | empty | never |

use alloc::vec;
use alloc::vec::Vec;

use crate::protocol::error::FrameError;
use crate::protocol::header::{self, HEADER_LEN, Header, Kind};
use crate::protocol::limits::FrameLimits;

/// Reads the heads of frames from one direction of one connection, whatever pieces they come in. Works
/// for control and data connections.
///
/// Its buffer grows to the longest meta that came, at most `meta_max` and a header, and is kept: there
/// is no allocation after warm-up.
#[derive(Debug)]
pub(crate) struct FrameReader {
    limits: FrameLimits,
    /// Bytes asked for at once at a frame's start.
    first: usize,
    buffer: Vec<u8>,
    /// Bytes of the frame's head that came.
    have: usize,
    /// Bytes that the head has, as far as it is known.
    need: usize,
    header: Option<Header>,
    complete: bool,
    /// Sequence of the frame that is read.
    sequence: u32,
    /// Highest request id so far.
    last_request: u64,
    broken: Option<FrameError>,
}

impl FrameReader {
    /// A reader at the start of a connection. `first` is the number of bytes to ask for at the start of
    /// each frame; it is moved into `HEADER_LEN..=HEADER_LEN + meta_min`, since a frame may be no longer
    /// than that. So `HEADER_LEN` is right everywhere, and `usize::MAX` reads the most at once.
    pub fn new(limits: FrameLimits, first: usize) -> Self {
        let shortest = HEADER_LEN + limits.meta_min() as usize;
        let first = first.clamp(HEADER_LEN, shortest);
        Self {
            limits,
            first,
            buffer: vec![0; first],
            have: 0,
            need: first,
            header: None,
            complete: false,
            sequence: 0,
            last_request: 0,
            broken: None,
        }
    }

    /// Where the next bytes of the stream belong. Not empty while the head is incomplete; empty once it
    /// is complete, and for ever after an error.
    #[inline]
    pub fn space(&mut self) -> &mut [u8] {
        if self.broken.is_some() {
            return &mut [];
        }
        self.buffer.get_mut(self.have..self.need).unwrap_or_default()
    }

    /// Says that the first `n` bytes of [`space`](Self::space) were filled. `Some` once the head is
    /// complete and each rule that needs no more than the head holds; its payload, if any, comes next in
    /// the stream. Fails for good: every later call gives the same error.
    #[inline]
    pub fn filled(&mut self, n: usize) -> Result<Option<Header>, FrameError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let result = self.advance(n);
        if let Err(error) = result {
            self.broken = Some(error);
        }
        result
    }

    fn advance(&mut self, n: usize) -> Result<Option<Header>, FrameError> {
        debug_assert!(n <= self.need - self.have, "more bytes than there was space for");
        self.have = self.have.saturating_add(n).min(self.need);
        let header = match self.header {
            Some(header) => header,
            None => match self.buffer.get(..self.have).and_then(<[u8]>::first_chunk) {
                None => return Ok(None),
                Some(bytes) => {
                    let header = header::decode(bytes, &self.limits)?;
                    self.need = HEADER_LEN + header.meta_len as usize;
                    self.header = Some(header);
                    if self.buffer.len() < self.need {
                        self.grow();
                    }
                    header
                }
            },
        };
        if self.have < self.need {
            return Ok(None);
        }
        if !self.complete {
            self.verify(&header)?;
            self.complete = true;
        }
        Ok(Some(header))
    }

    /// Makes room for `need` bytes, which [`header::decode`] has bounded. By powers of two, so that
    /// metas that rise one by one do not move the buffer each time, and never past the longest head.
    #[cold]
    fn grow(&mut self) {
        let longest = HEADER_LEN + self.limits.meta_max as usize;
        let len = self.need.next_power_of_two().min(longest).max(self.need);
        self.buffer.reserve_exact(len - self.buffer.len());
        self.buffer.resize(len, 0);
    }

    fn verify(&mut self, header: &Header) -> Result<(), FrameError> {
        if let Some((head, rest)) = self.buffer.split_first_chunk() {
            header::check(head, rest.get(..header.meta_len as usize).unwrap_or_default())?;
        }
        let (found, expected) = (header.sequence, self.sequence);
        if found != expected {
            return Err(FrameError::Sequence { found, expected });
        }
        if !header.kind.is_reply() {
            let (found, last) = (header.request_id, self.last_request);
            if found <= last {
                return Err(FrameError::RequestOrder { found, last });
            }
            self.last_request = found;
        }
        Ok(())
    }

    /// The meta of a complete head; empty before.
    #[inline]
    pub fn meta(&self) -> &[u8] {
        if self.complete { self.buffer.get(HEADER_LEN..self.need).unwrap_or_default() } else { &[] }
    }

    /// Goes on to the next frame, after a complete head and its payload. Does nothing before that.
    #[inline]
    pub fn next(&mut self) {
        if self.complete {
            self.have = 0;
            self.need = self.first;
            self.header = None;
            self.complete = false;
            self.sequence = self.sequence.wrapping_add(1);
        }
    }

    /// Whether the stream stands between two frames: an end of file here cuts no frame.
    #[inline]
    pub const fn is_between_frames(&self) -> bool {
        self.have == 0
    }

    /// Bytes of memory that the reader holds for heads.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.capacity()
    }
}

/// Numbers the frames of one direction of one connection: each header is made here, in the order in
/// which the frames are sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    sequence: u32,
    request_id: u64,
    payload_crc: bool,
}

impl Outgoing {
    /// Of a connection at its start. `payload_crc`: both sides agreed on checksums of payloads.
    pub const fn new(payload_crc: bool) -> Self {
        Self { sequence: 0, request_id: 0, payload_crc }
    }

    /// Header of a frame that is no reply, and the request id that it got: 1, 2, 3 and so on.
    pub fn request(&mut self, kind: Kind, meta: &[u8], data_len: u64) -> ([u8; HEADER_LEN], u64) {
        debug_assert!(!kind.is_reply(), "a reply repeats the id of its request");
        self.request_id += 1;
        (self.seal(kind, meta, data_len, self.request_id), self.request_id)
    }

    /// Header of the reply to a request.
    pub fn reply(
        &mut self,
        kind: Kind,
        request_id: u64,
        meta: &[u8],
        data_len: u64,
    ) -> [u8; HEADER_LEN] {
        debug_assert!(kind.is_reply(), "a request gets an id of its own");
        self.seal(kind, meta, data_len, request_id)
    }

    fn seal(
        &mut self,
        kind: Kind,
        meta: &[u8],
        data_len: u64,
        request_id: u64,
    ) -> [u8; HEADER_LEN] {
        let header = Header {
            kind,
            flags: header::flags_of(kind, data_len, self.payload_crc),
            meta_len: meta.len() as u32,
            data_len,
            request_id,
            sequence: self.sequence,
        };
        self.sequence = self.sequence.wrapping_add(1);
        header::encode(&header, meta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::data::ops::{self, Op, Ops};
    use crate::protocol::limits::{Direction, Limits, Role};
    use crate::protocol::notice::Cancel;
    use crate::protocol::version::Features;
    use crate::types::RegionKey;

    fn limits() -> FrameLimits {
        let limits = Limits::new(1 << 20, 256, 16);
        FrameLimits::data(Role::Data, Direction::ToSource, &limits, Features::default())
    }

    fn list(n: u64) -> Vec<u8> {
        let mut meta = Vec::new();
        ops::begin(&mut meta);
        let region = RegionKey { id: 1, generation: 1 };
        (0..n).for_each(|at| ops::push(&mut meta, &Op { region, offset: at, length: 1 + at }));
        ops::finish(&mut meta);
        meta
    }

    /// Frames with their payloads, one after another.
    fn stream(lists: &[u64], payload_crc: bool) -> Vec<u8> {
        let mut outgoing = Outgoing::new(payload_crc);
        let mut stream = Vec::new();
        for n in lists {
            let meta = list(*n);
            let total = Ops::decode(&meta, 256, None).unwrap().total();
            let (head, _) = outgoing.request(Kind::Write, &meta, total);
            stream.extend_from_slice(&head);
            stream.extend_from_slice(&meta);
            stream.resize(stream.len() + total as usize + if payload_crc { 4 } else { 0 }, 0xee);
            let cancel = Cancel { request_id: *n }.encode();
            stream.extend_from_slice(&outgoing.request(Kind::Cancel, &cancel, 0).0);
            stream.extend_from_slice(&cancel);
        }
        stream
    }

    /// Reads all frames, at most `chunk(left)` bytes at a time.
    fn read(
        reader: &mut FrameReader,
        mut stream: &[u8],
        mut chunk: impl FnMut(usize) -> usize,
    ) -> Result<Vec<(Header, Vec<u8>)>, FrameError> {
        let mut frames = Vec::new();
        while !stream.is_empty() {
            let space = reader.space();
            assert!(!space.is_empty(), "an incomplete head asks for bytes");
            let n = space.len().min(stream.len()).min(chunk(space.len()).max(1));
            let (piece, rest) = stream.split_at(n);
            space[..n].copy_from_slice(piece);
            stream = rest;
            if let Some(header) = reader.filled(n)? {
                frames.push((header, reader.meta().to_vec()));
                stream = &stream[(header.payload_len() as usize).min(stream.len())..];
                assert!(reader.space().is_empty());
                reader.next();
            }
        }
        Ok(frames)
    }

    #[test]
    fn any_chunking_gives_the_same_frames() {
        let bytes = stream(&[1, 3, 1, 100, 256, 2], false);
        let whole = read(&mut FrameReader::new(limits(), usize::MAX), &bytes, |all| all).unwrap();
        assert_eq!(whole.len(), 12);
        for first in [0, 32, 50, 127, 128, 1000] {
            for step in [1, 2, 7, 31, 32, 33, 71, 72, 73, 127, 128, 129, 500] {
                let mut reader = FrameReader::new(limits(), first);
                let cut = read(&mut reader, &bytes, |_| step).unwrap();
                assert_eq!(cut, whole, "first {first}, step {step}");
                assert!(reader.is_between_frames());
            }
        }
    }

    #[test]
    fn header_and_two_operations_come_in_one_piece() {
        for (n, total) in [(1, 1), (2, 3)] {
            let bytes = stream(&[n], false);
            let mut reader = FrameReader::new(limits(), usize::MAX);
            assert_eq!(reader.space().len(), 128);
            reader.space().copy_from_slice(&bytes[..128]);
            let header = reader.filled(128).unwrap().unwrap();
            assert_eq!((header.kind, header.data_len, header.request_id), (Kind::Write, total, 1));
            assert_eq!(reader.meta(), &list(n)[..]);
        }
        let bytes = stream(&[3], false);
        let mut reader = FrameReader::new(limits(), usize::MAX);
        reader.space().copy_from_slice(&bytes[..128]);
        assert_eq!(reader.filled(128), Ok(None));
        assert_eq!(reader.space().len(), 64, "the third takes a further line");
    }

    #[test]
    fn payload_checksums_are_passed_over_with_the_payload() {
        let bytes = stream(&[2, 5], true);
        let limits = FrameLimits { payload_crc: true, ..limits() };
        let frames = read(&mut FrameReader::new(limits, 128), &bytes, |_| 13).unwrap();
        assert_eq!(frames.len(), 4);
        assert!(frames[0].0.has_trailer() && !frames[1].0.has_trailer());
    }

    #[test]
    fn the_buffer_is_kept_and_bounded() {
        let bytes = stream(&[256, 1, 256, 3], false);
        let mut reader = FrameReader::new(limits(), 128);
        read(&mut reader, &bytes, |all| all).unwrap();
        let (place, room) = (reader.buffer.as_ptr(), reader.buffer_bytes());
        assert!(room <= HEADER_LEN + limits().meta_max as usize);

        // A second connection's worth of frames through the same buffer, numbered on.
        reader.sequence = 0;
        reader.last_request = 0;
        read(&mut reader, &bytes, |_| 100).unwrap();
        assert_eq!((place, room), (reader.buffer.as_ptr(), reader.buffer_bytes()));
    }

    /// CORE-100: a meta length above the limit is refused from the header alone; nothing grows.
    #[test]
    fn core_100_nothing_is_allocated_for_a_refused_length() {
        let mut bytes = stream(&[1], false);
        bytes[4..8].copy_from_slice(&(limits().meta_max + 1).to_le_bytes());
        let mut reader = FrameReader::new(limits(), 32);
        let error = read(&mut reader, &bytes, |all| all).unwrap_err();
        assert!(matches!(error, FrameError::MetaTooLong { .. }));
        assert_eq!(reader.buffer_bytes(), 32);
        assert_eq!(reader.filled(0), Err(error), "an error is for good");
        assert!(reader.space().is_empty());
    }

    /// CORE-101: a checksum, a sequence or a request id that is wrong.
    #[test]
    fn core_101_wrong_numbers_are_refused() {
        let good = stream(&[1, 1], false);
        let second = 128 + 1; // the cancel
        let refused = |change: &dyn Fn(&mut Header)| {
            let mut bytes = good.clone();
            let head = *bytes[second..].first_chunk().unwrap();
            let meta = bytes[second + 32..second + 128].to_vec();
            let mut header = header::decode(&head, &limits()).unwrap();
            change(&mut header);
            bytes[second..second + 32].copy_from_slice(&header::encode(&header, &meta));
            read(&mut FrameReader::new(limits(), 128), &bytes, |_| 5)
        };
        assert_eq!(refused(&|_| ()).unwrap().len(), 4);
        let gap = refused(&|header| header.sequence = 2).unwrap_err();
        assert_eq!(gap, FrameError::Sequence { found: 2, expected: 1 });
        let twice = refused(&|header| header.sequence = 0).unwrap_err();
        assert_eq!(twice, FrameError::Sequence { found: 0, expected: 1 });
        let again = refused(&|header| header.request_id = 1).unwrap_err();
        assert_eq!(again, FrameError::RequestOrder { found: 1, last: 1 });

        let mut bytes = good.clone();
        bytes[second + 40] ^= 0x10;
        let error = read(&mut FrameReader::new(limits(), 128), &bytes, |_| 5).unwrap_err();
        assert!(matches!(error, FrameError::Checksum { .. }));
    }

    #[test]
    fn sequences_wrap() {
        let mut outgoing = Outgoing::new(false);
        let mut reader = FrameReader::new(limits(), 128);
        outgoing.sequence = u32::MAX;
        reader.sequence = u32::MAX;
        let cancel = Cancel { request_id: 0 }.encode();
        for _ in 0..3 {
            let mut bytes = outgoing.request(Kind::Cancel, &cancel, 0).0.to_vec();
            bytes.extend_from_slice(&cancel);
            assert_eq!(read(&mut reader, &bytes, |all| all).unwrap().len(), 1);
        }
        assert_eq!(reader.sequence, 2);
    }

    #[test]
    fn each_reply_repeats_its_id_and_takes_a_sequence() {
        let mut outgoing = Outgoing::new(false);
        let limits = FrameLimits { direction: Direction::ToRequester, ..limits() };
        let meta = crate::protocol::data::answer::Answer::complete(1, 1).encode();
        let mut reader = FrameReader::new(limits, usize::MAX);
        for id in [5, 3, 3] {
            let mut bytes = outgoing.reply(Kind::WriteAck, id, &meta, 0).to_vec();
            bytes.extend_from_slice(&meta);
            assert_eq!(reader.space().len(), 64, "header and answer in one piece");
            let frames = read(&mut reader, &bytes, |all| all).unwrap();
            assert_eq!(frames[0].0.request_id, id);
        }
    }
}
