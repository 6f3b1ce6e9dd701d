//! Frames of a control connection over any byte stream: whole frames in, whole frames out.
//!
//! Memory of one connection is bounded: one frame that is read (meta and payload at most 64 KiB each)
//! and one that is written.

use std::fmt;
use std::io;

use futures_lite::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::protocol::data::reader::{FrameReader, Outgoing};
use crate::protocol::error::FrameError;
use crate::protocol::header::{HEADER_LEN, Header, Kind};
use crate::protocol::limits::{Direction, FrameLimits};

/// Why no further frame comes.
#[derive(Debug)]
pub(super) enum Fault {
    /// The peer ended the connection between two frames.
    Ended,
    /// The peer sent nothing for too long.
    Silent,
    /// The connection failed, or ended inside a frame.
    Io(io::Error),
    /// The peer broke the protocol.
    Protocol(FrameError),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("the peer ended the connection"),
            Self::Silent => f.write_str("the peer was silent for too long"),
            Self::Io(error) => error.fmt(f),
            Self::Protocol(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<FrameError> for Fault {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error)
    }
}

/// A control connection after its handshake.
pub(super) struct Frames<S> {
    stream: S,
    reader: FrameReader,
    outgoing: Outgoing,
    header: Option<Header>,
    payload: Vec<u8>,
    have: usize,
    out: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Frames<S> {
    /// `incoming` is the way of the frames that are read here.
    pub fn new(stream: S, incoming: Direction) -> Self {
        let reader = FrameReader::new(FrameLimits::control(incoming), HEADER_LEN);
        let (payload, out) = (Vec::new(), Vec::new());
        let outgoing = Outgoing::new(false);
        Self { stream, reader, outgoing, header: None, payload, have: 0, out }
    }

    /// The next frame, complete with its payload. [`done`](Self::done) goes on to the one after it.
    ///
    /// May be dropped at any time and called again: what came is kept.
    pub async fn receive(&mut self) -> Result<Header, Fault> {
        let header = loop {
            if let Some(header) = self.header {
                break header;
            }
            match self.stream.read(self.reader.space()).await? {
                0 if self.reader.is_between_frames() => return Err(Fault::Ended),
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                n => self.header = self.reader.filled(n)?,
            }
            if let Some(header) = self.header {
                // Bounded: the reader compared the length with the limit of a control frame.
                self.payload.clear();
                self.payload.resize(header.payload_len() as usize, 0);
                self.have = 0;
            }
        };
        while let Some(space) = self.payload.get_mut(self.have..).filter(|space| !space.is_empty())
        {
            match self.stream.read(space).await? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                n => self.have += n,
            }
        }
        Ok(header)
    }

    /// Meta of the frame that was received.
    pub fn meta(&self) -> &[u8] {
        self.reader.meta()
    }

    /// Payload of the frame that was received.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Goes on behind the frame that was received.
    pub fn done(&mut self) {
        self.header = None;
        keep_small(&mut self.payload);
        self.reader.next();
    }

    /// Sends a frame that is no reply; gives its request id. Dropped before its end it leaves half a
    /// frame behind: the connection is of no use then.
    pub async fn send(&mut self, kind: Kind, meta: &[u8]) -> io::Result<u64> {
        let (head, id) = self.outgoing.request(kind, meta, 0);
        self.write(head, meta, &[]).await?;
        Ok(id)
    }

    /// Sends the reply to a request. Dropped before its end, the connection is of no use.
    pub async fn reply(
        &mut self,
        kind: Kind,
        request: u64,
        meta: &[u8],
        payload: &[u8],
    ) -> io::Result<()> {
        let head = self.outgoing.reply(kind, request, meta, payload.len() as u64);
        self.write(head, meta, payload).await
    }

    async fn write(
        &mut self,
        head: [u8; HEADER_LEN],
        meta: &[u8],
        payload: &[u8],
    ) -> io::Result<()> {
        self.out.clear();
        self.out.extend_from_slice(&head);
        self.out.extend_from_slice(meta);
        self.out.extend_from_slice(payload);
        self.stream.write_all(&self.out).await?;
        keep_small(&mut self.out);
        Ok(())
    }
}

/// Gives a large buffer back: a connection that is idle between two walks holds none.
fn keep_small(buffer: &mut Vec<u8>) {
    const KEPT: usize = 4096;
    if buffer.capacity() > KEPT {
        *buffer = Vec::new();
    }
}
