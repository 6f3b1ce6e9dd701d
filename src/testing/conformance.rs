//! What every rail must do, whatever it is made of. A rail joins by a `Rig`: itself with its far side.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::shard::memory::HostMemory;
use crate::transport::rail::{Budget, Completion, Part, Rail, Slice, SliceResult};
use crate::types::{Fault, Refused, RegionKey, RemoteEffect, SliceId, TransferOp};

/// Bytes of the far side's region, and of the local memory.
pub(crate) const REGION: usize = 1 << 20;

/// A rail together with the memory that it reaches.
pub(crate) trait Rig {
    /// A rail of which `REGION` bytes can be read and written, and another region only read.
    fn new() -> Self;
    fn rail(&mut self) -> &mut dyn Rail;
    fn writable(&self) -> RegionKey;
    fn read_only(&self) -> RegionKey;
    fn far(&self, region: RegionKey) -> Arc<HostMemory>;
    /// Lets the far side work for a moment.
    fn step(&mut self, now: Instant);
    /// The far side is gone from now on.
    fn kill(&mut self);
    fn into_rail(self) -> Box<dyn Rail>;
}

struct Case<R> {
    rig: R,
    local: Arc<HostMemory>,
    done: Vec<Completion>,
    next: u32,
    now: Instant,
}

fn memory(fill: impl Fn(usize) -> u8) -> Arc<HostMemory> {
    HostMemory::from_vec((0..REGION).map(fill).collect()).unwrap()
}

fn bytes(memory: &HostMemory, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.read_at(offset as u64, &mut bytes).unwrap();
    bytes
}

impl<R: Rig> Case<R> {
    fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "a start for virtual time")]
        let now = Instant::now();
        let local = memory(|at| (at % 251) as u8);
        Self { rig: R::new(), local, done: Vec::new(), next: 0, now }
    }

    fn part(&self, region: RegionKey, local: usize, offset: u64, length: u64) -> Part {
        Part { local: self.local.address() + local as u64, region, offset, length }
    }

    /// Posts one slice; `None`: the rail has no room.
    fn post(&mut self, op: TransferOp, parts: &[Part]) -> Option<SliceId> {
        let id = SliceId { slot: self.next, generation: 7 };
        let bytes = parts.iter().map(|part| part.length).sum();
        let slice = Slice { id, op, from: 0, to: parts.len() as u32, bytes };
        let taken = self.rig.rail().post(&[slice], parts).unwrap();
        self.next += taken as u32;
        (taken == 1).then_some(id)
    }

    fn turn(&mut self) {
        let mut budget = Budget::new(64 << 10);
        self.now += Duration::from_micros(10);
        let now = self.now;
        self.rig.rail().flush(now, &mut budget).unwrap();
        self.rig.step(now);
        self.rig.rail().poll(now, &mut budget, &mut self.done).unwrap();
    }

    fn finish(&mut self) {
        for _ in 0..100_000 {
            if !self.rig.rail().in_flight() {
                return;
            }
            self.turn();
        }
        panic!("{} slices never ended", self.next as usize - self.done.len());
    }

    fn result(&self, id: SliceId) -> SliceResult {
        let mut found = self.done.iter().filter(|completion| completion.id == id);
        let result = found.next().expect("not reported").result;
        assert!(found.next().is_none(), "reported twice");
        result
    }
}

/// Bytes go where they should and nowhere else, in both directions and of any length.
pub(crate) fn moves_exact_bytes<R: Rig>() {
    let mut case = Case::<R>::new();
    let region = case.rig.writable();
    let far = case.rig.far(region);
    for (length, at) in [(1, 3), (4095, 64), (4096, 128), (65_537, 1), (300_000, 7)] {
        let before = bytes(&far, 0, REGION);
        let (from, to) = (1000 + at, at as u64);
        let write = case.post(TransferOp::Write, &[case.part(region, from, to, length)]).unwrap();
        case.finish();
        assert_eq!(case.result(write), SliceResult::Done);
        let mut expected = before;
        expected[at..at + length as usize].copy_from_slice(&bytes(
            &case.local,
            from,
            length as usize,
        ));
        assert!(bytes(&far, 0, REGION) == expected, "WRITE of {length}");

        let before = bytes(&case.local, 0, REGION);
        let into = 400_000;
        let read = case.post(TransferOp::Read, &[case.part(region, into, to, length)]).unwrap();
        case.finish();
        assert_eq!(case.result(read), SliceResult::Done);
        let mut expected = before;
        expected[into..into + length as usize].copy_from_slice(&bytes(&far, at, length as usize));
        assert!(bytes(&case.local, 0, REGION) == expected, "READ of {length}");
    }
}

/// A slice of many parts keeps their order and is one completion.
pub(crate) fn scatters_in_order<R: Rig>() {
    let mut case = Case::<R>::new();
    let region = case.rig.writable();
    let far = case.rig.far(region);
    let place = |at: usize| ((at * 37 % 64) * 8192) as u64;
    let parts: Vec<_> = (0..64).map(|at| case.part(region, at * 8192, place(at), 4096)).collect();
    let write = case.post(TransferOp::Write, &parts).unwrap();
    case.finish();
    assert_eq!(case.result(write), SliceResult::Done);
    for at in 0..64 {
        assert_eq!(bytes(&far, place(at) as usize, 4096), bytes(&case.local, at * 8192, 4096));
    }
    assert_eq!(case.done.len(), 1);
}

/// However much is posted, each slice is reported once, and a full rail is no error.
pub(crate) fn reports_each_slice_once<R: Rig>() {
    let mut case = Case::<R>::new();
    let region = case.rig.writable();
    let mut ids = Vec::new();
    while ids.len() < 500 {
        let at = (ids.len() % 100) * 4096;
        let op = if ids.len() % 3 == 0 { TransferOp::Read } else { TransferOp::Write };
        match case.post(op, &[case.part(region, at, at as u64, 4096)]) {
            Some(id) => ids.push(id),
            None => case.turn(),
        }
    }
    case.finish();
    assert_eq!(case.done.len(), ids.len());
    assert!(ids.iter().all(|id| case.result(*id) == SliceResult::Done));
}

/// One bad part refuses the slice without any effect; the rail lives on.
pub(crate) fn refuses_a_bad_part_without_effect<R: Rig>() {
    let mut case = Case::<R>::new();
    let (region, read_only) = (case.rig.writable(), case.rig.read_only());
    let far = case.rig.far(region);
    let before = bytes(&far, 0, REGION);
    let gone = RegionKey { generation: region.generation + 1, ..region };
    let good = case.part(region, 0, 0, 4096);
    let bad = [
        (case.part(region, 8192, REGION as u64 - 1, 2), Refused::Range),
        (case.part(gone, 8192, 0, 10), Refused::RegionGone),
        (case.part(read_only, 8192, 0, 10), Refused::Permission),
        (case.part(region, 8192, u64::MAX - 20, 10), Refused::Range),
    ];
    for (bad, class) in bad {
        let refused = case.post(TransferOp::Write, &[good, bad, good]).unwrap();
        let fine = case.post(TransferOp::Read, &[good]).unwrap();
        case.finish();
        assert_eq!(case.result(refused), SliceResult::Refused { class, first_bad: 1 });
        assert_eq!(case.result(fine), SliceResult::Done);
        assert!(bytes(&far, 0, REGION) == before, "a refused slice changed bytes");
    }
    let read = case.post(TransferOp::Read, &[case.part(read_only, 0, 0, 4096)]).unwrap();
    case.finish();
    assert_eq!(case.result(read), SliceResult::Done);
}

/// A READ that is given up ends at once and its memory is never touched afterwards.
pub(crate) fn gives_up_a_read_at_once<R: Rig>() {
    let mut case = Case::<R>::new();
    let region = case.rig.writable();
    let read = case.post(TransferOp::Read, &[case.part(region, 0, 0, 500_000)]).unwrap();
    let later = case.post(TransferOp::Read, &[case.part(region, 600_000, 0, 4096)]).unwrap();
    let mut budget = Budget::new(64 << 10);
    case.rig.rail().flush(case.now, &mut budget).unwrap();
    case.rig.step(case.now);
    case.rig.rail().poll(case.now, &mut Budget::new(1), &mut case.done).unwrap();
    case.rig.rail().cancel(read, Fault::Timeout, &mut case.done);
    let expected = SliceResult::Failed { fault: Fault::Timeout, effect: RemoteEffect::None };
    assert_eq!(case.result(read), expected);
    let mark = vec![0xee; 500_000];
    case.local.write_at(0, &mark).unwrap();
    case.finish();
    assert!(bytes(&case.local, 0, 500_000) == mark, "written after it was given up");
    assert_eq!(case.result(later), SliceResult::Done);
    assert_eq!(case.done.len(), 2);
}

/// A slice that was never flushed is given up without any effect.
pub(crate) fn gives_up_an_unsent_write_without_effect<R: Rig>() {
    let mut case = Case::<R>::new();
    let region = case.rig.writable();
    let far = case.rig.far(region);
    let before = bytes(&far, 0, REGION);
    let write = case.post(TransferOp::Write, &[case.part(region, 0, 0, 4096)]).unwrap();
    let kept = case.post(TransferOp::Read, &[case.part(region, 8192, 0, 4096)]).unwrap();
    case.rig.rail().cancel(write, Fault::Timeout, &mut case.done);
    case.finish();
    let none = RemoteEffect::None;
    assert_eq!(case.result(write), SliceResult::Failed { fault: Fault::Timeout, effect: none });
    assert_eq!(case.result(kept), SliceResult::Done);
    assert!(bytes(&far, 0, REGION) == before);
}

/// When the far side dies, closing reports every slice once: READs and untouched WRITEs have no effect,
/// a WRITE that was handed over has an unknown one.
pub(crate) fn ends_everything_when_the_far_side_dies<R: Rig>() {
    let mut case = Case::<R>::new();
    let region = case.rig.writable();
    let started = case.post(TransferOp::Write, &[case.part(region, 0, 0, 4096)]).unwrap();
    let mut budget = Budget::new(64 << 10);
    case.rig.rail().flush(case.now, &mut budget).unwrap();
    case.rig.kill();
    let untouched = case.post(TransferOp::Write, &[case.part(region, 8192, 8192, 4096)]).unwrap();
    let read = case.post(TransferOp::Read, &[case.part(region, 16_384, 0, 4096)]).unwrap();
    let Case { rig, local, mut done, .. } = case;
    let _quiet = rig.into_rail().close(Fault::Ended, &mut done);
    drop(local);
    let failed = |effect| SliceResult::Failed { fault: Fault::Ended, effect };
    let find = |id| done.iter().filter(|c| c.id == id).map(|c| c.result).collect::<Vec<_>>();
    assert_eq!(find(started), [failed(RemoteEffect::Unknown)]);
    assert_eq!(find(untouched), [failed(RemoteEffect::None)]);
    assert_eq!(find(read), [failed(RemoteEffect::None)]);
}

/// Silence is found, and only while something is outstanding.
pub(crate) fn finds_a_silent_far_side<R: Rig>() {
    let mut case = Case::<R>::new();
    let region = case.rig.writable();
    let later = case.now + Duration::from_secs(3600);
    assert!(case.rig.rail().check(later).is_ok(), "nothing is outstanding");
    case.post(TransferOp::Read, &[case.part(region, 0, 0, 4096)]).unwrap();
    let mut budget = Budget::new(64 << 10);
    case.rig.rail().flush(case.now, &mut budget).unwrap();
    assert!(case.rig.rail().check(case.now).is_ok());
    assert!(case.rig.rail().check(later).is_err());
    case.rig.rail().shift(later - case.now);
    assert!(case.rig.rail().check(later).is_ok(), "the shard itself was away");
}

/// Runs the whole suite for one rig.
macro_rules! conformance {
    ($name:ident, $rig:ty) => {
        mod $name {
            use super::*;
            conformance!(@ $rig: moves_exact_bytes scatters_in_order reports_each_slice_once
                refuses_a_bad_part_without_effect gives_up_a_read_at_once
                gives_up_an_unsent_write_without_effect ends_everything_when_the_far_side_dies
                finds_a_silent_far_side);
        }
    };
    (@ $rig:ty: $($case:ident)*) => {
        $(#[test] fn $case() { $crate::testing::conformance::$case::<$rig>(); })*
    };
}
pub(crate) use conformance;
