//! The rails under the conformance suite: a TCP lane over a socket pair, and a simulated rail.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::error::FrameError;
use crate::shard::memory::HostMemory;
use crate::sys::eventfd::EventFd;
use crate::testing::conformance::{REGION, Rig, conformance};
use crate::transport::rail::{
    Budget, Capabilities, Completion, Part, Rail, RailFault, RailQuiet, Slice, SliceResult,
};
use crate::transport::tcp::{
    Catalog, Granted, LaneLimits, LanePlan, SourceBudget, SourceLane, TcpLane,
};
use crate::types::{
    Fault, Permission, Refused, RegionKey, RemoteEffect, SegmentRange, SliceId, TransferOp,
    Transport,
};

pub(crate) const WRITABLE: RegionKey = RegionKey { id: 11, generation: 3 };
pub(crate) const READ_ONLY: RegionKey = RegionKey { id: 12, generation: 5 };
const STALL: Duration = Duration::from_secs(10);

/// Two regions, as a source would have them.
pub(crate) struct Regions(HashMap<RegionKey, (Arc<HostMemory>, Permission)>);

impl Regions {
    pub fn new() -> Self {
        let memory = |seed: usize| {
            HostMemory::from_vec((0..REGION).map(|at| (at * 7 + seed) as u8).collect()).unwrap()
        };
        Self(HashMap::from([
            (WRITABLE, (memory(1), Permission::RemoteReadWrite)),
            (READ_ONLY, (memory(2), Permission::RemoteRead)),
        ]))
    }

    pub fn find(&self, region: RegionKey, op: TransferOp) -> Result<Arc<HostMemory>, Refused> {
        let (memory, permission) = self.0.get(&region).ok_or(Refused::RegionGone)?;
        if permission.allows(op) { Ok(Arc::clone(memory)) } else { Err(Refused::Permission) }
    }
}

impl Catalog for Regions {
    type Lease = Arc<HostMemory>;

    fn hold(&mut self, region: RegionKey, op: TransferOp) -> Result<Granted<Self::Lease>, Refused> {
        let lease = self.find(region, op)?;
        Ok(Granted { address: lease.address(), length: lease.len(), lease })
    }

    fn is_open(&self) -> bool {
        true
    }
}

struct Tcp<const CRC: bool> {
    lane: Box<TcpLane>,
    source: Option<SourceLane<Arc<HostMemory>>>,
    shared: SourceBudget,
    regions: Regions,
}

impl<const CRC: bool> Rig for Tcp<CRC> {
    fn new() -> Self {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let plan = LanePlan {
            limits: LaneLimits {
                max_message: 1 << 20,
                scatter_ops: 64,
                lane_window: 8,
                payload_crc: CRC,
            },
            slice: 1 << 20,
            send_chunk: 10_000,
            reads_max: None,
            stall: STALL,
        };
        #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
        let now = Instant::now();
        Self {
            lane: Box::new(TcpLane::new(OwnedFd::from(near), plan, now)),
            source: Some(SourceLane::new(OwnedFd::from(far), plan, now)),
            shared: SourceBudget { in_flight: 0, limit: 600_000 },
            regions: Regions::new(),
        }
    }

    fn rail(&mut self) -> &mut dyn Rail {
        &mut *self.lane
    }

    fn writable(&self) -> RegionKey {
        WRITABLE
    }

    fn read_only(&self) -> RegionKey {
        READ_ONLY
    }

    fn far(&self, region: RegionKey) -> Arc<HostMemory> {
        Arc::clone(&self.regions.0[&region].0)
    }

    fn step(&mut self, now: Instant) {
        if let Some(source) = &mut self.source {
            let mut budget = Budget::new(9_999);
            source.poll(now, &mut budget, &mut self.shared, &mut self.regions).unwrap();
            if !source.in_flight() {
                assert_eq!(self.shared.in_flight, 0, "bytes of the source come back");
            }
        }
    }

    fn kill(&mut self) {
        if let Some(source) = self.source.take() {
            source.close(&mut self.shared);
        }
    }

    fn into_rail(self) -> Box<dyn Rail> {
        self.lane
    }
}

/// A rail without a wire: it copies in `poll`, a few slices at a time.
struct Simulated {
    regions: Regions,
    queue: VecDeque<(Slice, Vec<Part>, bool)>,
    bell: EventFd,
    since: Instant,
    dead: bool,
}

impl Simulated {
    fn run(&self, slice: &Slice, parts: &[Part]) -> SliceResult {
        let mut places = Vec::new();
        for (at, part) in (0..).zip(parts) {
            let place = self.regions.find(part.region, slice.op).and_then(|memory| {
                SegmentRange::new(part.offset, part.length, memory.len())
                    .map(|range| (memory, range))
                    .map_err(|_| Refused::Range)
            });
            match place {
                Ok((memory, range)) => places.push((part.local, memory, range)),
                Err(class) => return SliceResult::Refused { class, first_bad: at },
            }
        }
        for (local, memory, range) in places {
            let far = memory.address() + range.start();
            match slice.op {
                TransferOp::Read => super::sys::copy(local, far, range.len()),
                TransferOp::Write => super::sys::copy(far, local, range.len()),
            }
        }
        SliceResult::Done
    }
}

impl Rail for Simulated {
    fn capabilities(&self) -> Capabilities {
        Capabilities { transport: Transport::Unspec, ops: 64, bytes: 1 << 20 }
    }

    fn post(&mut self, slices: &[Slice], parts: &[Part]) -> Result<usize, RailFault> {
        let room = 8 - self.queue.len().min(8);
        for slice in slices.iter().take(room) {
            let parts = parts[slice.from as usize..slice.to as usize].to_vec();
            self.queue.push_back((*slice, parts, false));
        }
        Ok(room.min(slices.len()))
    }

    fn flush(&mut self, now: Instant, _: &mut Budget) -> Result<bool, RailFault> {
        self.since = now;
        self.queue.iter_mut().for_each(|(_, _, started)| *started = true);
        Ok(!self.queue.is_empty())
    }

    fn poll(
        &mut self,
        _: Instant,
        budget: &mut Budget,
        done: &mut Vec<Completion>,
    ) -> Result<bool, RailFault> {
        if self.dead {
            return Err(RailFault(Fault::Ended));
        }
        if budget.bytes < 100 || !self.queue.front().is_some_and(|(_, _, started)| *started) {
            return Ok(false);
        }
        let Some((slice, parts, _)) = self.queue.pop_front() else { return Ok(false) };
        done.push(Completion { id: slice.id, result: self.run(&slice, &parts) });
        Ok(true)
    }

    fn cancel(&mut self, id: SliceId, fault: Fault, done: &mut Vec<Completion>) {
        // Nothing is copied outside `poll`, so whatever waits is untouched.
        if let Some(at) = self.queue.iter().position(|(slice, _, _)| slice.id == id) {
            self.queue.remove(at);
            let result = SliceResult::Failed { fault, effect: RemoteEffect::None };
            done.push(Completion { id, result });
        }
    }

    fn check(&self, now: Instant) -> Result<(), RailFault> {
        let silent = !self.queue.is_empty() && now.saturating_duration_since(self.since) > STALL;
        if silent { Err(RailFault(Fault::Stalled)) } else { Ok(()) }
    }

    fn shift(&mut self, gap: Duration) {
        self.since += gap;
    }

    fn broken(&self) -> Option<FrameError> {
        None
    }

    fn in_flight(&self) -> bool {
        !self.queue.is_empty()
    }

    fn interest(&self) -> (BorrowedFd<'_>, bool) {
        (self.bell.as_fd(), false)
    }

    fn close(self: Box<Self>, fault: Fault, done: &mut Vec<Completion>) -> RailQuiet {
        for (slice, _, started) in self.queue {
            let effect = match slice.op {
                TransferOp::Write if started => RemoteEffect::Unknown,
                _ => RemoteEffect::None,
            };
            done.push(Completion { id: slice.id, result: SliceResult::Failed { fault, effect } });
        }
        RailQuiet::simulated()
    }
}

impl Rig for Simulated {
    fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
        let since = Instant::now();
        let (regions, bell) = (Regions::new(), EventFd::new().unwrap());
        Self { regions, queue: VecDeque::new(), bell, since, dead: false }
    }

    fn rail(&mut self) -> &mut dyn Rail {
        self
    }

    fn writable(&self) -> RegionKey {
        WRITABLE
    }

    fn read_only(&self) -> RegionKey {
        READ_ONLY
    }

    fn far(&self, region: RegionKey) -> Arc<HostMemory> {
        Arc::clone(&self.regions.0[&region].0)
    }

    fn step(&mut self, _: Instant) {}

    fn kill(&mut self) {
        self.dead = true;
    }

    fn into_rail(self) -> Box<dyn Rail> {
        Box::new(self)
    }
}

conformance!(tcp, Tcp<false>);
conformance!(tcp_with_checksums, Tcp<true>);
conformance!(simulated, Simulated);
