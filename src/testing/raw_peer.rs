//! A peer that speaks the wire format by hand, to say what no engine would say.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::protocol::data::answer::{Answer, Refusal};
use crate::protocol::data::ops::{self, Op};
use crate::protocol::handshake::requester::{Requester, RequesterParams};
use crate::protocol::header::{self, HEADER_LEN, Header, Kind};
use crate::protocol::limits::{Limits, Role};
use crate::protocol::proof::SessionKey;
use crate::protocol::version::{Features, build_id};
use crate::types::{RegionKey, TransferOp};
use crate::{EngineId, RemoteSegment, SourceEpoch};

/// A proven data connection to an engine. Frames can be sent well formed or not.
#[derive(Debug)]
pub struct RawPeer {
    stream: TcpStream,
    request: u64,
    sequence: u32,
}

/// One range as it goes onto the wire: whatever the test wants it to be.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RawOp {
    /// Region id.
    pub region: u64,
    /// Its generation.
    pub generation: u32,
    /// Offset in it.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl RawOp {
    /// A range of these numbers.
    pub const fn new(region: u64, generation: u32, offset: u64, length: u64) -> Self {
        Self { region, generation, offset, length }
    }
}

/// What the engine said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RawAnswer {
    /// Data of a READ.
    Data(Vec<u8>),
    /// A WRITE is in place.
    Ack {
        /// Bytes of it.
        bytes: u64,
    },
    /// Refused: name of the class, index of the first bad range, and the whole meta.
    Refused {
        /// Class.
        class: String,
        /// Index of the first bad range.
        first_bad: u32,
        /// Every byte of the answer's meta.
        meta: Vec<u8>,
    },
    /// The engine closed the connection.
    Closed,
}

/// Region id and generation of the region of a snapshot that starts at `address`, which the API hides.
pub fn region_key(segment: &RemoteSegment, address: u64) -> Option<(u64, u32)> {
    let regions = segment.opened.snapshot.regions();
    let region = regions.iter().find(|region| region.address == address)?;
    Some((region.key.id, region.key.generation))
}

fn params(epoch: &SourceEpoch) -> RequesterParams {
    RequesterParams {
        role: Role::Data,
        lane: 0,
        rail: 0,
        build: build_id(),
        features: Features::default(),
        nonce: [9; 16],
        id: EngineId::from_bytes([7; 16]),
        expected: EngineId::of(epoch),
        key: SessionKey::derive(epoch, None),
        limits: Limits::new(1 << 30, 4096, 256),
    }
}

impl RawPeer {
    /// Connects and proves the epoch on a data connection.
    ///
    /// # Errors
    /// Whatever the connection or the handshake fails with.
    pub fn connect(endpoint: &str, epoch: &SourceEpoch) -> io::Result<Self> {
        let mut stream = TcpStream::connect(endpoint)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.set_nodelay(true)?;
        let refused = |error: &dyn std::fmt::Debug| io::Error::other(format!("{error:?}"));
        let (requester, hello) = Requester::start(params(epoch));
        stream.write_all(&hello)?;
        let mut challenge = [0; 128];
        stream.read_exact(&mut challenge)?;
        let (requester, proof) = requester.challenge(&challenge).map_err(|e| refused(&e))?;
        stream.write_all(&proof)?;
        let mut welcome = [0; 64];
        stream.read_exact(&mut welcome)?;
        requester.welcome(&welcome).map_err(|e| refused(&e))?;
        Ok(Self { stream, request: 0, sequence: 0 })
    }

    /// Sends any bytes.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// A READ or WRITE frame's header and meta, with the next request id and sequence and a declared
    /// payload length.
    pub fn frame(&mut self, op: TransferOp, ranges: &[RawOp], data_len: u64) -> Vec<u8> {
        let mut meta = Vec::new();
        ops::begin(&mut meta);
        for range in ranges {
            let region = RegionKey { id: range.region, generation: range.generation };
            let (offset, length) = (range.offset, range.length);
            ops::push(&mut meta, &Op { region, offset, length });
        }
        ops::finish(&mut meta);
        self.request += 1;
        let kind = match op {
            TransferOp::Read => Kind::Read,
            TransferOp::Write => Kind::Write,
        };
        let header = Header {
            kind,
            flags: 0,
            meta_len: meta.len() as u32,
            data_len,
            request_id: self.request,
            sequence: self.sequence,
        };
        self.sequence = self.sequence.wrapping_add(1);
        let mut frame = header::encode(&header, &meta).to_vec();
        frame.extend_from_slice(&meta);
        frame
    }

    /// Sends a READ of the ranges.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn read(&mut self, ranges: &[RawOp]) -> io::Result<()> {
        let frame = self.frame(TransferOp::Read, ranges, 0);
        self.send(&frame)
    }

    /// Sends a WRITE of the ranges with this payload.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn write(&mut self, ranges: &[RawOp], payload: &[u8]) -> io::Result<()> {
        let frame = self.frame(TransferOp::Write, ranges, payload.len() as u64);
        self.send(&frame)?;
        self.send(payload)
    }

    /// The next answer.
    ///
    /// # Errors
    /// Those of the socket, a timeout of ten seconds among them, and bytes that are no answer.
    pub fn answer(&mut self, asked: u32) -> io::Result<RawAnswer> {
        let mut fixed = [0; HEADER_LEN];
        match self.stream.read_exact(&mut fixed) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(RawAnswer::Closed);
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Ok(RawAnswer::Closed);
            }
            Err(error) => return Err(error),
        }
        let word = |at: usize| {
            u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
        };
        let mut meta = vec![0; word(4) as usize];
        self.stream.read_exact(&mut meta)?;
        let mut data = vec![0; word(8) as usize];
        self.stream.read_exact(&mut data)?;
        let bad = |error: &dyn std::fmt::Debug| io::Error::other(format!("{error:?}"));
        match Kind::from_number(fixed[0]) {
            Some(Kind::ReadData) => Ok(RawAnswer::Data(data)),
            Some(Kind::WriteAck) => {
                let answer = Answer::decode(&meta).map_err(|e| bad(&e))?;
                Ok(RawAnswer::Ack { bytes: answer.bytes_done })
            }
            Some(Kind::Refuse) => {
                let (refusal, _) = Refusal::decode(&meta, asked).map_err(|e| bad(&e))?;
                let (class, first_bad) = (format!("{:?}", refusal.class), refusal.first_bad);
                Ok(RawAnswer::Refused { class, first_bad, meta })
            }
            other => Err(io::Error::other(format!("an answer of type {other:?}"))),
        }
    }
}
