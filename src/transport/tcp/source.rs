//! The source's end of one data connection: serves READs from and WRITEs into registered memory.
//!
//! Frames run in the order they arrive. All ranges of a frame are resolved, and their regions held,
//! before its first byte moves; one bad range refuses the whole frame without any effect. A refused
//! WRITE's payload is read and dropped, so the lane goes on. The lane stops reading, and TCP holds the
//! peer back, while too many answers wait or the source moves too many bytes.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::flow::{Outbound, Scatter, Sendable, Sender, read};
use super::serving::{Catalog, Served, SourceBudget};
use super::sys::{self, IoPiece};
use super::watch::Watch;
use super::{LanePlan, SCRATCH, STEPS};
use crate::protocol::crc::TRAILER_LEN;
use crate::protocol::data::answer::{Answer, Refusal};
use crate::protocol::data::ops::Ops;
use crate::protocol::data::reader::{FrameReader, Outgoing};
use crate::protocol::error::FrameError;
use crate::protocol::header::{Header, Kind};
use crate::protocol::limits::Direction;
use crate::protocol::notice::Cancel;
use crate::transport::rail::{Budget, RailFault};
use crate::types::{Fault, Refused, RegionKey, RemoteEffect, SegmentRange, TransferOp};

/// Frames that a lane still refuses after its source stopped to serve; then it is read no further.
const LATE_FRAMES: u32 = 64;

/// One answer that is being sent.
struct Reply<L> {
    kind: Kind,
    request: u64,
    out: Outbound,
    bytes: u64,
    leases: Vec<L>,
}

impl<L> Sendable for Reply<L> {
    fn outbound(&mut self) -> &mut Outbound {
        &mut self.out
    }

    fn prepare(&mut self, outgoing: &mut Outgoing) {
        let data = if self.kind == Kind::ReadData { self.bytes } else { 0 };
        let header = outgoing.reply(self.kind, self.request, &self.out.meta, data);
        self.out.seal(header);
    }
}

/// A WRITE whose payload is arriving.
struct Arriving<L> {
    place: Scatter,
    leases: Vec<L>,
    request: u64,
    ops: u32,
    bytes: u64,
    /// Checksum of the payload that is in place.
    crc: u32,
    /// Bytes of a refused frame's payload still to be read and dropped; `None`: the payload has a place.
    dropping: Option<u64>,
}

#[derive(Clone, Copy)]
enum Expect {
    Head,
    /// A frame is complete but has to wait its turn: for answers to go out or bytes to come free.
    Held(Header),
    Payload,
    Trailer {
        have: usize,
    },
}

enum Step {
    Nothing,
    Drained,
    More,
}

/// One accepted data connection.
pub(crate) struct SourceLane<L> {
    socket: OwnedFd,
    plan: LanePlan,
    reader: FrameReader,
    expect: Expect,
    arriving: Arriving<L>,
    trailer: [u8; TRAILER_LEN],
    replies: VecDeque<Box<Reply<L>>>,
    #[expect(clippy::vec_box, reason = "answers move between queue and spares by their pointer")]
    spare: Vec<Box<Reply<L>>>,
    /// Answers with data that are not sent yet.
    reads_waiting: u32,
    /// Refusal that is owed once the dropped payload is through: its meta.
    refusal: Vec<u8>,
    bad: Vec<bool>,
    sender: Sender,
    scratch: Box<[u8]>,
    /// Bytes of the shard's budget that this lane holds.
    taken: u64,
    /// Frames that came after the source stopped to serve.
    late: u32,
    /// While a frame is arriving.
    receiving: Watch,
    /// While an answer is being sent. On its own, so that a peer cannot keep its answers waiting by
    /// asking for more.
    sending: Watch,
    broken: Option<FrameError>,
    served: Served,
}

impl<L> SourceLane<L> {
    pub fn new(socket: OwnedFd, plan: LanePlan, now: Instant) -> Self {
        let arriving = Arriving {
            place: Scatter::default(),
            leases: Vec::new(),
            request: 0,
            ops: 0,
            bytes: 0,
            crc: 0,
            dropping: None,
        };
        Self {
            socket,
            plan,
            reader: FrameReader::new(plan.frames(Direction::ToSource), usize::MAX),
            expect: Expect::Head,
            arriving,
            trailer: [0; TRAILER_LEN],
            replies: VecDeque::with_capacity(plan.limits.lane_window as usize),
            spare: Vec::new(),
            reads_waiting: 0,
            refusal: Vec::new(),
            bad: Vec::new(),
            sender: Sender::new(plan.send_chunk, plan.limits.payload_crc),
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            taken: 0,
            late: 0,
            receiving: Watch::new(plan.stall, now),
            sending: Watch::new(plan.stall, now),
            broken: None,
            served: Served::default(),
        }
    }

    /// Whether a frame is under way in either direction.
    pub fn in_flight(&self) -> bool {
        !self.replies.is_empty()
            || !matches!(self.expect, Expect::Head)
            || !self.reader.is_between_frames()
    }

    /// The descriptor to wait for, whether to wait for something to read, and for room to send.
    pub fn interest(&self) -> (BorrowedFd<'_>, bool, bool) {
        let ended = self.is_between_frames() && self.late >= LATE_FRAMES;
        let reading = !matches!(self.expect, Expect::Held(_)) && self.has_room() && !ended;
        (self.socket.as_fd(), reading, !self.replies.is_empty())
    }

    /// A frame waits for this side's own limits: nothing that comes from the socket wakes it.
    pub const fn is_held(&self) -> bool {
        matches!(self.expect, Expect::Held(_))
    }

    /// What was served since the last call.
    pub fn take_served(&mut self) -> Served {
        core::mem::take(&mut self.served)
    }

    /// Fails when a frame is under way and makes no progress for the stall limit.
    pub fn check(&self, now: Instant) -> Result<(), RailFault> {
        // A frame held back by this side's own limits is not the peer's stall, nor one that is not read
        // while answers wait: those are judged by their own watch.
        let arriving = match self.expect {
            Expect::Held(_) => false,
            Expect::Head => !self.reader.is_between_frames() && self.has_room(),
            Expect::Payload | Expect::Trailer { .. } => self.has_room(),
        };
        self.receiving.check(arriving, now)?;
        self.sending.check(!self.replies.is_empty(), now)
    }

    pub fn shift(&mut self, gap: Duration) {
        self.receiving.shift(gap);
        self.sending.shift(gap);
    }

    /// The rule that the peer broke, if that is why the lane ended.
    pub const fn broken(&self) -> Option<FrameError> {
        self.broken
    }

    /// Ends the lane: releases every region it holds and gives its bytes back.
    pub fn close(self, shared: &mut SourceBudget) {
        shared.give_back(self.taken);
        drop(self.socket);
        drop(self.arriving.leases);
        drop(self.replies);
    }

    /// Takes what arrived, runs it, and sends what is answered. Says whether bytes moved.
    pub fn poll(
        &mut self,
        now: Instant,
        budget: &mut Budget,
        shared: &mut SourceBudget,
        catalog: &mut impl Catalog<Lease = L>,
    ) -> Result<bool, RailFault> {
        let mut moved = false;
        let mut answered = !self.replies.is_empty();
        for _ in 0..STEPS {
            if !self.has_room() || budget.is_spent() {
                break;
            }
            if self.is_between_frames() && self.late >= LATE_FRAMES {
                // It stopped long ago and told so: what still comes is not read any more.
                break;
            }
            match self.step(now, budget, shared, catalog)? {
                Step::Nothing => break,
                Step::Drained => {
                    moved = true;
                    break;
                }
                Step::More => moved = true,
            }
            if !answered && !self.replies.is_empty() {
                // The first answer does not wait for a look at what else may have come; those of
                // further frames share a call.
                answered = true;
                self.send(now, budget, shared)?;
            }
        }
        moved |= self.send(now, budget, shared)?;
        Ok(moved)
    }

    fn is_between_frames(&self) -> bool {
        matches!(self.expect, Expect::Head) && self.reader.is_between_frames()
    }

    fn has_room(&self) -> bool {
        self.replies.len() < self.plan.limits.lane_window as usize
    }

    fn step(
        &mut self,
        now: Instant,
        budget: &mut Budget,
        shared: &mut SourceBudget,
        catalog: &mut impl Catalog<Lease = L>,
    ) -> Result<Step, RailFault> {
        match self.expect {
            Expect::Head => {
                let socket = self.socket.as_fd();
                if self.reader.is_between_frames() {
                    self.receiving.restart(now);
                }
                let Some(got) = read(sys::receive_buffer(socket, self.reader.space()))? else {
                    return Ok(Step::Nothing);
                };
                match self.reader.filled(got) {
                    Ok(None) => Ok(Step::More),
                    Ok(Some(head)) => self.start(head, now, shared, catalog),
                    Err(error) => Err(self.breaks(error)),
                }
            }
            Expect::Held(head) => self.start(head, now, shared, catalog),
            Expect::Payload => self.payload(now, budget, shared),
            Expect::Trailer { have } => self.check_trailer(have, now, shared),
        }
    }

    /// Begins a complete frame, unless it has to wait.
    fn start(
        &mut self,
        head: Header,
        now: Instant,
        shared: &mut SourceBudget,
        catalog: &mut impl Catalog<Lease = L>,
    ) -> Result<Step, RailFault> {
        let op = match head.kind {
            Kind::Read => TransferOp::Read,
            Kind::Write => TransferOp::Write,
            // Best effort: what arrived was started already. The frame has to be right all the same.
            kind => {
                if let Err(error) = Cancel::decode(self.reader.meta()) {
                    return Err(self.breaks(error));
                }
                debug_assert_eq!(kind, Kind::Cancel, "the reader lets no other type through");
                self.reader.next();
                return Ok(Step::More);
            }
        };
        let write = op == TransferOp::Write;
        let expected = write.then_some(head.data_len);
        let list = Ops::decode(self.reader.meta(), self.plan.limits.scatter_ops, expected);
        let (count, bytes) = match list {
            Ok(list) => (list.len(), list.total()),
            Err(error) => return Err(self.breaks(error)),
        };
        // A WRITE may overwrite what an earlier READ of this lane still has to send.
        if write && self.reads_waiting > 0 || !shared.take(bytes, self.taken) {
            self.expect = Expect::Held(head);
            return Ok(Step::Nothing);
        }
        self.taken += bytes;
        self.served.frames += 1;
        if !catalog.is_open() {
            self.late += 1;
        }
        match self.resolve(op, catalog) {
            Ok(()) if write => self.receive(head, count, bytes, None),
            Ok(()) => self.answer_read(head, count, bytes, now),
            Err(class) => {
                self.give_back(bytes, shared);
                self.served.refused += 1;
                let bad = self.bad.iter().copied();
                Refusal::encode(&mut self.refusal, class, RemoteEffect::None, bad);
                if write {
                    self.receive(head, count, bytes, Some(bytes));
                } else {
                    self.refuse(head.request_id, now);
                }
            }
        }
        self.receiving.restart(now);
        self.reader.next();
        Ok(Step::More)
    }

    fn breaks(&mut self, error: FrameError) -> RailFault {
        self.broken = Some(error);
        RailFault(Fault::Protocol)
    }

    fn give_back(&mut self, bytes: u64, shared: &mut SourceBudget) {
        self.taken = self.taken.saturating_sub(bytes);
        shared.give_back(bytes);
    }

    /// Resolves every range of the frame in the reader into `arriving`. Refused: the class of the first
    /// bad range; nothing is held then.
    fn resolve(
        &mut self,
        op: TransferOp,
        catalog: &mut impl Catalog<Lease = L>,
    ) -> Result<(), Refused> {
        let into = &mut self.arriving;
        into.place.clear();
        into.leases.clear();
        self.bad.clear();
        let mut first_bad = None;
        // First byte and length of the region named last, or why it is refused.
        type Span = Result<(u64, u64), Refused>;
        let mut last: Option<(RegionKey, Span)> = None;
        let limits = self.plan.limits;
        let Ok(list) = Ops::decode(self.reader.meta(), limits.scatter_ops, None) else {
            return Err(Refused::Limit);
        };
        if list.total() > limits.max_message {
            self.bad.resize(list.len() as usize, false);
            return Err(Refused::Limit);
        }
        for range in list.iter() {
            let span = match last {
                Some((key, span)) if key == range.region => span,
                _ if !catalog.is_open() => Err(Refused::Closing),
                _ => catalog.hold(range.region, op).map(|granted| {
                    into.leases.push(granted.lease);
                    (granted.address, granted.length)
                }),
            };
            last = Some((range.region, span));
            let place = span.and_then(|(address, length)| {
                SegmentRange::new(range.offset, range.length, length)
                    .map(|inside| (address + inside.start(), inside.len()))
                    .map_err(|_| Refused::Range)
            });
            self.bad.push(place.is_err());
            match place {
                Ok((address, length)) => into.place.push(IoPiece::registered(address, length)),
                Err(class) => {
                    first_bad.get_or_insert(class);
                }
            }
        }
        match first_bad {
            None => Ok(()),
            Some(class) => {
                into.place.clear();
                into.leases.clear();
                Err(class)
            }
        }
    }

    /// The payload of a WRITE comes next, into place or to be dropped.
    fn receive(&mut self, head: Header, ops: u32, bytes: u64, dropping: Option<u64>) {
        self.arriving.request = head.request_id;
        self.arriving.ops = ops;
        self.arriving.bytes = bytes;
        self.arriving.crc = 0;
        self.arriving.dropping = dropping;
        self.expect = Expect::Payload;
    }

    fn payload(
        &mut self,
        now: Instant,
        budget: &mut Budget,
        shared: &mut SourceBudget,
    ) -> Result<Step, RailFault> {
        let into = &mut self.arriving;
        let socket = self.socket.as_fd();
        let (got, asked) = if let Some(left) = into.dropping {
            let asked = left.min(self.scratch.len() as u64);
            let buffer = &mut self.scratch[..asked as usize];
            (read(sys::receive_buffer(socket, buffer))?, asked)
        } else {
            let pieces = into.place.next();
            let asked = pieces.iter().map(|piece| piece.len()).sum();
            (read(sys::receive(socket, pieces))?, asked)
        };
        let Some(got) = got else { return Ok(Step::Nothing) };
        let moved = got as u64;
        let left = match &mut into.dropping {
            Some(left) => {
                *left -= moved.min(*left);
                *left
            }
            None if self.plan.limits.payload_crc => {
                into.crc = into.place.advance_summed(moved, into.crc, &mut self.scratch);
                into.place.left()
            }
            None => {
                into.place.advance(moved);
                into.place.left()
            }
        };
        budget.spend(moved);
        self.receiving.moved(moved, now);
        if left == 0 {
            if self.plan.limits.payload_crc {
                self.expect = Expect::Trailer { have: 0 };
            } else {
                self.placed(true, now, shared);
            }
        }
        Ok(if moved == asked { Step::More } else { Step::Drained })
    }

    fn check_trailer(
        &mut self,
        have: usize,
        now: Instant,
        shared: &mut SourceBudget,
    ) -> Result<Step, RailFault> {
        let into = &mut self.trailer[have..];
        let Some(got) = read(sys::receive_buffer(self.socket.as_fd(), into))? else {
            return Ok(Step::Nothing);
        };
        let have = have + got;
        self.expect = Expect::Trailer { have };
        if have == TRAILER_LEN {
            let told = u32::from_le_bytes(self.trailer);
            self.placed(self.arriving.crc == told, now, shared);
        }
        Ok(Step::More)
    }

    /// The last byte of a WRITE's payload is here.
    fn placed(&mut self, intact: bool, now: Instant, shared: &mut SourceBudget) {
        self.expect = Expect::Head;
        self.receiving.restart(now);
        let (request, ops, bytes) = (self.arriving.request, self.arriving.ops, self.arriving.bytes);
        if self.arriving.dropping.take().is_some() {
            self.refuse(request, now);
            return;
        }
        self.arriving.leases.clear();
        self.arriving.place.clear();
        self.give_back(bytes, shared);
        if intact {
            let mut reply = self.reply(Kind::WriteAck, request);
            reply.out.meta.extend_from_slice(&Answer::complete(ops, bytes).encode());
            self.queue(reply, now);
            return;
        }
        self.served.refused += 1;
        let class = Refused::Corrupt;
        let all_bad = self.bad.iter().map(|_| true);
        Refusal::encode(&mut self.refusal, class, RemoteEffect::Unknown, all_bad);
        self.refuse(request, now);
    }

    fn answer_read(&mut self, head: Header, ops: u32, bytes: u64, now: Instant) {
        let mut reply = self.reply(Kind::ReadData, head.request_id);
        reply.out.meta.extend_from_slice(&Answer::complete(ops, bytes).encode());
        reply.bytes = bytes;
        std::mem::swap(&mut reply.out.body, &mut self.arriving.place);
        std::mem::swap(&mut reply.leases, &mut self.arriving.leases);
        self.reads_waiting += 1;
        self.queue(reply, now);
        self.expect = Expect::Head;
    }

    fn refuse(&mut self, request: u64, now: Instant) {
        let mut reply = self.reply(Kind::Refuse, request);
        reply.out.meta.extend_from_slice(&self.refusal);
        self.queue(reply, now);
        self.expect = Expect::Head;
    }

    fn queue(&mut self, reply: Box<Reply<L>>, now: Instant) {
        if self.replies.is_empty() {
            self.sending.restart(now);
        }
        self.replies.push_back(reply);
    }

    fn reply(&mut self, kind: Kind, request: u64) -> Box<Reply<L>> {
        let mut reply = self.spare.pop().unwrap_or_else(|| {
            let (out, leases) = (Outbound::default(), Vec::new());
            Box::new(Reply { kind, request, out, bytes: 0, leases })
        });
        reply.out.clear();
        reply.kind = kind;
        reply.request = request;
        reply.bytes = 0;
        reply
    }

    fn send(
        &mut self,
        now: Instant,
        budget: &mut Budget,
        shared: &mut SourceBudget,
    ) -> Result<bool, RailFault> {
        if self.replies.is_empty() {
            return Ok(false);
        }
        let socket = self.socket.as_fd();
        let sender = &mut self.sender;
        let flushed = sender.flush(socket, &mut self.replies, 0, &mut self.scratch, budget)?;
        self.sending.moved(flushed.bytes, now);
        for _ in 0..flushed.frames {
            let Some(mut reply) = self.replies.pop_front() else { break };
            // The kernel has copied the last byte: the regions are free to go.
            reply.leases.clear();
            self.give_back(reply.bytes, shared);
            self.reads_waiting -= u32::from(reply.kind == Kind::ReadData);
            self.spare.push(reply);
            self.sending.restart(now);
        }
        Ok(flushed.bytes > 0)
    }
}
