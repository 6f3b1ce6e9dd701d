//! The requester's end of one data connection, as a rail.
//!
//! Frames are answered in the order they were sent, so the frames of a lane are one queue: the front
//! is the one whose answer is next. READ data goes from the socket straight into registered memory and
//! WRITE data straight out of it. Between two turns the kernel holds no reference to any memory of the
//! lane, so giving up a READ takes effect at once.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::flow::{Outbound, Scatter, Sendable, Sender, read};
use super::sys::{self, IoPiece, PIECES_MAX};
use super::watch::Watch;
use super::{LanePlan, SCRATCH, STEPS};
use crate::protocol::crc::TRAILER_LEN;
use crate::protocol::data::answer::{Answer, Refusal, SHORT_REFUSAL_OPS, Status};
use crate::protocol::data::ops;
use crate::protocol::data::reader::{FrameReader, Outgoing};
use crate::protocol::error::FrameError;
use crate::protocol::header::{Header, Kind};
use crate::protocol::limits::Direction;
use crate::transport::rail::{
    Budget, Capabilities, Completion, Part, Rail, RailFault, RailQuiet, Slice, SliceResult,
};
use crate::types::{Fault, RemoteEffect, SliceId, TransferOp, Transport};

/// What a frame still owes the ledger.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Its completion.
    Live,
    /// Its completion with this fault, as soon as its last byte is with the kernel.
    Ending(Fault),
    /// Nothing: it was reported; its answer is read and dropped.
    Reported,
}

struct Frame {
    id: SliceId,
    op: TransferOp,
    claim: Claim,
    ops: u32,
    bytes: u64,
    request: u64,
    out: Outbound,
    /// Where the data of a READ goes.
    place: Scatter,
    /// Checksum of the data that is in place.
    crc: u32,
}

impl Frame {
    fn boxed() -> Box<Self> {
        Box::new(Self {
            id: SliceId { slot: 0, generation: 0 },
            op: TransferOp::Read,
            claim: Claim::Reported,
            ops: 0,
            bytes: 0,
            request: 0,
            out: Outbound::default(),
            place: Scatter::default(),
            crc: 0,
        })
    }

    /// The effect that is proved when the lane ends now.
    fn effect(&self) -> RemoteEffect {
        match self.op {
            TransferOp::Write if self.out.started() => RemoteEffect::Unknown,
            _ => RemoteEffect::None,
        }
    }
}

impl Sendable for Frame {
    fn outbound(&mut self) -> &mut Outbound {
        &mut self.out
    }

    fn prepare(&mut self, outgoing: &mut Outgoing) {
        let (kind, data) = match self.op {
            TransferOp::Read => (Kind::Read, 0),
            TransferOp::Write => (Kind::Write, self.bytes),
        };
        let (header, request) = outgoing.request(kind, &self.out.meta, data);
        self.request = request;
        self.out.seal(header);
    }
}

/// What the next bytes from the peer are.
#[derive(Clone, Copy)]
enum Expect {
    Head,
    Data,
    Trailer { have: usize },
}

/// What one receive came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The socket was empty.
    Nothing,
    /// Bytes came, fewer than there was room for: the socket is empty now.
    Drained,
    /// Bytes came and there may be more.
    More,
}

/// One lane to one peer.
pub(crate) struct TcpLane {
    socket: OwnedFd,
    plan: LanePlan,
    frames: VecDeque<Box<Frame>>,
    /// Frames before this one are with the kernel completely.
    unsent: usize,
    /// READs posted and not answered.
    reads: u32,
    #[expect(clippy::vec_box, reason = "frames move between queue and spares by their pointer")]
    spare: Vec<Box<Frame>>,
    reader: FrameReader,
    expect: Expect,
    trailer: [u8; TRAILER_LEN],
    sender: Sender,
    /// Head space and data pieces of one receive.
    vector: Vec<IoPiece>,
    scratch: Box<[u8]>,
    watch: Watch,
    broken: Option<FrameError>,
}

impl TcpLane {
    pub fn new(socket: OwnedFd, plan: LanePlan, now: Instant) -> Self {
        let window = plan.limits.lane_window as usize;
        Self {
            socket,
            plan,
            frames: VecDeque::with_capacity(window),
            unsent: 0,
            reads: 0,
            spare: Vec::with_capacity(window),
            reader: FrameReader::new(plan.frames(Direction::ToRequester), usize::MAX),
            expect: Expect::Head,
            trailer: [0; TRAILER_LEN],
            sender: Sender::new(plan.send_chunk, plan.limits.payload_crc),
            vector: Vec::new(),
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            watch: Watch::new(plan.stall, now),
            broken: None,
        }
    }

    fn has_room(&self, op: TransferOp) -> bool {
        let reads =
            self.plan.reads_max.is_none_or(|max| op == TransferOp::Write || self.reads < max);
        reads && self.frames.len() < self.plan.limits.lane_window as usize
    }

    fn frame(&mut self, slice: &Slice, parts: &[Part]) -> Box<Frame> {
        let mut frame = self.spare.pop().unwrap_or_else(Frame::boxed);
        frame.id = slice.id;
        frame.op = slice.op;
        frame.claim = Claim::Live;
        frame.ops = parts.len() as u32;
        frame.bytes = slice.bytes;
        frame.crc = 0;
        frame.out.clear();
        frame.place.clear();
        ops::begin(&mut frame.out.meta);
        for part in parts {
            let (region, offset, length) = (part.region, part.offset, part.length);
            ops::push(&mut frame.out.meta, &ops::Op { region, offset, length });
            let piece = IoPiece::registered(part.local, part.length);
            match slice.op {
                TransferOp::Read => frame.place.push(piece),
                TransferOp::Write => frame.out.body.push(piece),
            }
        }
        ops::finish(&mut frame.out.meta);
        frame
    }

    /// A complete head arrived: what answer is it, and to what?
    fn answer(
        &mut self,
        head: Header,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<(), RailFault> {
        let front = match self.frames.front() {
            Some(front) if self.unsent > 0 && front.request == head.request_id => front,
            _ => return Err(self.breaks(wrong("request id", head.request_id, ORDER))),
        };
        match (head.kind, front.op) {
            (Kind::ReadData, TransferOp::Read) => {
                let expected = Answer::complete(front.ops, front.bytes);
                match Answer::decode(self.reader.meta()) {
                    Ok(answer) if answer == expected && head.data_len == front.bytes => {}
                    Ok(_) => return Err(self.breaks(wrong("data length", head.data_len, WHOLE))),
                    Err(error) => return Err(self.breaks(error)),
                }
                self.expect = Expect::Data;
                Ok(())
            }
            (Kind::WriteAck, TransferOp::Write) => {
                let answer = match Answer::decode(self.reader.meta()) {
                    Ok(answer) if answer.fits(front.ops, front.bytes) => answer,
                    Ok(answer) => {
                        return Err(self.breaks(wrong("bytes done", answer.bytes_done, WHOLE)));
                    }
                    Err(error) => return Err(self.breaks(error)),
                };
                let result = match answer.status {
                    Status::Complete => SliceResult::Done,
                    // What happened to the rest is unknown, and it is not sent again.
                    Status::Partial => failed(Fault::Partial, RemoteEffect::Unknown),
                };
                self.finish(result, now, done);
                Ok(())
            }
            (Kind::Refuse, op) => {
                let refusal = match Refusal::decode(self.reader.meta(), front.ops) {
                    Ok((refusal, _bad)) => refusal,
                    Err(error) => return Err(self.breaks(error)),
                };
                let class = refusal.class;
                let result = match (op, refusal.effect) {
                    (TransferOp::Read, _) | (_, RemoteEffect::None) => {
                        SliceResult::Refused { class, first_bad: refusal.first_bad }
                    }
                    (TransferOp::Write, effect) => {
                        SliceResult::Failed { fault: Fault::Refused(class), effect }
                    }
                };
                self.finish(result, now, done);
                Ok(())
            }
            (kind, _) => Err(self.breaks(wrong("frame type", kind as u64, ANSWERS))),
        }
    }

    fn breaks(&mut self, error: FrameError) -> RailFault {
        self.broken = Some(error);
        RailFault(Fault::Protocol)
    }

    /// The front frame is answered.
    fn finish(&mut self, result: SliceResult, now: Instant, done: &mut Vec<Completion>) {
        self.reader.next();
        self.expect = Expect::Head;
        self.watch.restart(now);
        if let Some(frame) = self.frames.pop_front() {
            self.unsent -= 1;
            self.reads -= u32::from(frame.op == TransferOp::Read);
            match frame.claim {
                Claim::Live => done.push(Completion { id: frame.id, result }),
                Claim::Ending(fault) => {
                    done.push(Completion { id: frame.id, result: failed(fault, frame.effect()) });
                }
                Claim::Reported => {}
            }
            self.spare.push(frame);
        }
    }

    /// One receive of READ data. `None`: nothing there; else the bytes and whether all asked for came.
    fn receive_data(&mut self) -> Result<Option<(usize, bool)>, RailFault> {
        let Some(front) = self.frames.front_mut() else { return Ok(None) };
        let left = front.place.left();
        if front.claim == Claim::Live {
            let pieces = front.place.next();
            let asked: u64 = pieces.iter().map(|piece| piece.len()).sum();
            let got = read(sys::receive(self.socket.as_fd(), pieces))?;
            return Ok(got.map(|bytes| (bytes, bytes as u64 == asked)));
        }
        let asked = left.min(self.scratch.len() as u64) as usize;
        let got = read(sys::receive_buffer(self.socket.as_fd(), &mut self.scratch[..asked]))?;
        Ok(got.map(|bytes| (bytes, bytes == asked)))
    }

    /// Whether nothing but the answer to the front frame can come next, and only data of a READ could
    /// make that answer longer than the shortest head: then data may be received with the head.
    fn data_may_follow(&self) -> bool {
        let Some(front) = self.frames.front() else { return false };
        self.frames.len() == 1
            && self.unsent == 1
            && self.reader.is_between_frames()
            && front.op == TransferOp::Read
            && front.claim == Claim::Live
            && front.ops <= SHORT_REFUSAL_OPS
            && !self.plan.limits.payload_crc
    }

    /// One receive for the head of an answer and the data behind it.
    fn head_and_data(
        &mut self,
        now: Instant,
        budget: &mut Budget,
        done: &mut Vec<Completion>,
    ) -> Result<Step, RailFault> {
        let Some(front) = self.frames.front() else { return Ok(Step::Nothing) };
        let space = self.reader.space();
        let head = space.len();
        self.vector.clear();
        self.vector.push(IoPiece::of_mut(space));
        self.vector.extend(front.place.next().iter().take(PIECES_MAX - 1));
        let asked: u64 = self.vector.iter().map(|piece| piece.len()).sum();
        let got = read(sys::receive(self.socket.as_fd(), &self.vector))?;
        self.vector.clear();
        let Some(got) = got else { return Ok(Step::Nothing) };
        let moved = got.saturating_sub(head);
        let answer = match self.reader.filled(got - moved) {
            Ok(answer) => answer,
            Err(error) => return Err(self.breaks(error)),
        };
        // What came behind the head is data only if this is the head of data and complete.
        let is_data = answer.is_some_and(|answer| answer.kind == Kind::ReadData);
        if moved > 0 && !is_data {
            return Err(self.breaks(wrong("bytes after the answer", moved as u64, ORDER)));
        }
        if let Some(answer) = answer {
            self.answer(answer, now, done)?;
        }
        if moved > 0 {
            self.moved(moved as u64, now, budget, done);
        }
        Ok(if got as u64 == asked { Step::More } else { Step::Drained })
    }

    fn data(
        &mut self,
        now: Instant,
        budget: &mut Budget,
        done: &mut Vec<Completion>,
    ) -> Result<Step, RailFault> {
        let Some((moved, all)) = self.receive_data()? else { return Ok(Step::Nothing) };
        self.moved(moved as u64, now, budget, done);
        Ok(if all { Step::More } else { Step::Drained })
    }

    /// Bytes of READ data are in place, or were dropped.
    fn moved(&mut self, bytes: u64, now: Instant, budget: &mut Budget, done: &mut Vec<Completion>) {
        budget.spend(bytes);
        self.watch.moved(bytes, now);
        let Some(front) = self.frames.front_mut() else { return };
        if self.plan.limits.payload_crc && front.claim == Claim::Live {
            front.crc = front.place.advance_summed(bytes, front.crc, &mut self.scratch);
        } else {
            front.place.advance(bytes);
        }
        if front.place.left() == 0 {
            if self.plan.limits.payload_crc {
                self.expect = Expect::Trailer { have: 0 };
            } else {
                self.finish(SliceResult::Done, now, done);
            }
        }
    }

    fn trailer(
        &mut self,
        have: usize,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<Step, RailFault> {
        let into = &mut self.trailer[have..];
        let Some(got) = read(sys::receive_buffer(self.socket.as_fd(), into))? else {
            return Ok(Step::Nothing);
        };
        let have = have + got;
        self.expect = Expect::Trailer { have };
        if have < TRAILER_LEN {
            return Ok(Step::Drained);
        }
        let told = u32::from_le_bytes(self.trailer);
        // A frame that was given up has no bytes here to compare.
        let same =
            self.frames.front().is_none_or(|front| front.claim != Claim::Live || front.crc == told);
        let corrupt = failed(Fault::Corrupt, RemoteEffect::None);
        self.finish(if same { SliceResult::Done } else { corrupt }, now, done);
        Ok(Step::More)
    }

    fn step(
        &mut self,
        now: Instant,
        budget: &mut Budget,
        done: &mut Vec<Completion>,
    ) -> Result<Step, RailFault> {
        match self.expect {
            Expect::Head if self.data_may_follow() => self.head_and_data(now, budget, done),
            Expect::Head => {
                let socket = self.socket.as_fd();
                let Some(got) = read(sys::receive_buffer(socket, self.reader.space()))? else {
                    return Ok(Step::Nothing);
                };
                match self.reader.filled(got) {
                    Ok(Some(head)) => self.answer(head, now, done)?,
                    Ok(None) => {}
                    Err(error) => return Err(self.breaks(error)),
                }
                Ok(Step::More)
            }
            Expect::Data => self.data(now, budget, done),
            Expect::Trailer { have } => self.trailer(have, now, done),
        }
    }

    /// Reports frames that were given up while they were being sent, now that they are.
    fn settle(&mut self, done: &mut Vec<Completion>) {
        for frame in self.frames.iter_mut().take(self.unsent) {
            if let Claim::Ending(fault) = frame.claim {
                frame.claim = Claim::Reported;
                done.push(Completion { id: frame.id, result: failed(fault, frame.effect()) });
            }
        }
    }
}

/// The rules of an answer that only its requester can judge.
const ORDER: &str = "frames are answered whole, once, in the order they were sent";
const WHOLE: &str = "an answer covers exactly what was asked";
const ANSWERS: &str =
    "a READ is answered by data, a WRITE by an acknowledgement, both by a refusal";

const fn wrong(what: &'static str, value: u64, rule: &'static str) -> FrameError {
    FrameError::Value { what, value, rule }
}

const fn failed(fault: Fault, effect: RemoteEffect) -> SliceResult {
    SliceResult::Failed { fault, effect }
}

impl Rail for TcpLane {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            transport: Transport::Tcp,
            ops: self.plan.limits.scatter_ops,
            bytes: self.plan.slice_bytes(),
        }
    }

    fn post(&mut self, slices: &[Slice], parts: &[Part]) -> Result<usize, RailFault> {
        let mut taken = 0;
        for slice in slices {
            if !self.has_room(slice.op) {
                break;
            }
            let Some(parts) = parts.get(slice.from as usize..slice.to as usize) else {
                return Err(RailFault(Fault::Internal));
            };
            let frame = self.frame(slice, parts);
            self.reads += u32::from(slice.op == TransferOp::Read);
            self.frames.push_back(frame);
            taken += 1;
        }
        Ok(taken)
    }

    fn flush(&mut self, now: Instant, budget: &mut Budget) -> Result<bool, RailFault> {
        if self.unsent == self.frames.len() {
            return Ok(false);
        }
        if self.unsent == 0 && !self.frames.front().is_some_and(|frame| frame.out.started()) {
            self.watch.restart(now);
        }
        let flushed = self.sender.flush(
            self.socket.as_fd(),
            &mut self.frames,
            self.unsent,
            &mut self.scratch,
            budget,
        )?;
        self.unsent += flushed.frames;
        self.watch.moved(flushed.bytes, now);
        Ok(flushed.bytes > 0)
    }

    fn poll(
        &mut self,
        now: Instant,
        budget: &mut Budget,
        done: &mut Vec<Completion>,
    ) -> Result<bool, RailFault> {
        self.settle(done);
        let mut moved = false;
        for _ in 0..STEPS {
            match self.step(now, budget, done)? {
                Step::Nothing => return Ok(moved),
                Step::Drained => return Ok(true),
                Step::More => moved = true,
            }
            if self.frames.is_empty() || budget.is_spent() {
                break;
            }
        }
        Ok(moved)
    }

    fn cancel(&mut self, id: SliceId, fault: Fault, done: &mut Vec<Completion>) {
        let Some(at) = self.frames.iter().position(|f| f.id == id && f.claim == Claim::Live) else {
            return;
        };
        let frame = &mut self.frames[at];
        let prepared = at < self.unsent || frame.out.is_prepared();
        if !prepared {
            // Nothing of it, not even its place in the order of frames, reached the kernel.
            if let Some(frame) = self.frames.remove(at) {
                self.reads -= u32::from(frame.op == TransferOp::Read);
                done.push(Completion { id, result: failed(fault, RemoteEffect::None) });
                self.spare.push(frame);
            }
            return;
        }
        if frame.op == TransferOp::Write && at >= self.unsent {
            // A frame that began must be finished with its own bytes.
            frame.claim = Claim::Ending(fault);
            return;
        }
        frame.claim = Claim::Reported;
        done.push(Completion { id, result: failed(fault, frame.effect()) });
    }

    fn check(&self, now: Instant) -> Result<(), RailFault> {
        self.watch.check(!self.frames.is_empty(), now)
    }

    fn shift(&mut self, gap: Duration) {
        self.watch.shift(gap);
    }

    fn broken(&self) -> Option<FrameError> {
        self.broken
    }

    fn in_flight(&self) -> bool {
        !self.frames.is_empty()
    }

    fn interest(&self) -> (BorrowedFd<'_>, bool) {
        (self.socket.as_fd(), self.unsent < self.frames.len())
    }

    fn close(self: Box<Self>, fault: Fault, done: &mut Vec<Completion>) -> RailQuiet {
        let Self { socket, frames, .. } = *self;
        // Closing ends the stream; the kernel held no reference to our memory before either.
        drop(socket);
        for frame in frames {
            let fault = match frame.claim {
                Claim::Live => fault,
                Claim::Ending(fault) => fault,
                Claim::Reported => continue,
            };
            done.push(Completion { id: frame.id, result: failed(fault, frame.effect()) });
        }
        RailQuiet(())
    }
}
