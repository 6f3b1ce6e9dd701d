//! A submission against a rail that ends frames in any order and any way.

use super::*;
use crate::transfer::Owner;
use crate::types::RegionKey;

const LIMITS: CutLimits = CutLimits { ops: 4, bytes: 40 };

fn active(lengths: &[u64]) -> Active {
    let region = RegionKey { id: 1, generation: 1 };
    let mut submission = Submission::new();
    submission.op = TransferOp::Write;
    let mut first = 0;
    for (at, length) in lengths.iter().enumerate() {
        let tasks = 1 + at as u32 % 3;
        submission.owners.push(Owner {
            first,
            tasks,
            local: 0,
            region,
            offset: 0,
            length: *length,
        });
        first += tasks;
    }
    submission.seal();
    Active::new(Arc::new(submission), LaneClass::Small)
}

fn post(active: &mut Active) -> Cut {
    let (cut, after) = active.next_cut(LIMITS).unwrap();
    active.posted_cut(&cut, after);
    cut
}

fn refused(first_bad: u32) -> SliceResult {
    SliceResult::Refused { class: Refused::RegionGone, first_bad }
}

fn states(active: &Active) -> Vec<OwnerState> {
    let owners = 0..active.submission.owners.len() as u32;
    owners.map(|owner| active.submission.outcome(owner).state).collect()
}

use OwnerState::{Canceled, Completed, Failed, Pending, Queued, Timeout};

#[test]
fn the_good_part_of_the_first_refused_frame_goes_again_and_no_other() {
    for both_before_more_is_posted in [true, false] {
        let (mut active, mut ended) = (active(&[10; 8]), Ended::default());
        let (first, second) = (post(&mut active), post(&mut active));
        assert_eq!(active.slice_ended(&first, refused(1), &mut ended), Left::Work);
        let again = if both_before_more_is_posted {
            active.slice_ended(&second, refused(1), &mut ended);
            post(&mut active)
        } else {
            let again = post(&mut active);
            active.slice_ended(&second, refused(1), &mut ended);
            again
        };
        assert_eq!((again.owner, again.owners), (0, 1));
        assert!(active.next_cut(LIMITS).is_none(), "nothing behind the failed one");
        assert_eq!(active.slice_ended(&again, SliceResult::Done, &mut ended), Left::Nothing);
        let expected =
            [Completed, Failed, Canceled, Canceled, Canceled, Failed, Canceled, Canceled];
        assert_eq!(states(&active), expected);
    }
}

#[test]
fn a_lower_failure_ends_what_waits_to_go_again() {
    let (mut active, mut ended) = (active(&[10; 8]), Ended::default());
    let (first, second) = (post(&mut active), post(&mut active));
    active.slice_ended(&second, refused(2), &mut ended);
    assert_eq!(active.next_cut(LIMITS).unwrap().0.owner, 4);
    assert_eq!(active.slice_ended(&first, refused(3), &mut ended), Left::Work);
    let again = post(&mut active);
    assert_eq!((again.owner, again.owners), (0, 3));
    active.slice_ended(&again, SliceResult::Done, &mut ended);
    let expected = [Completed, Completed, Completed, Failed, Canceled, Canceled, Failed, Canceled];
    assert_eq!(states(&active), expected);
}

#[test]
fn the_effect_of_a_refused_part_is_not_proved_by_another_owner() {
    // The second owner stands where the first one would if only its first part were cut.
    let (mut active, mut ended) = (active(&[80, 80]), Ended::default());
    let parts = [post(&mut active), post(&mut active), post(&mut active)];
    active.slice_ended(&parts[0], refused(0), &mut ended);
    assert_eq!(active.submission.outcome(0).effect, RemoteEffect::Unknown);
    let (mut alone, mut ended) = (self::active(&[80, 80]), Ended::default());
    let part = post(&mut alone);
    alone.slice_ended(&part, refused(0), &mut ended);
    assert_eq!(alone.submission.outcome(0).effect, RemoteEffect::None);
}

/// The lane that takes the good part again takes less at once than the one before.
#[test]
fn an_owner_that_went_again_in_part_is_not_complete() {
    let (mut active, mut ended) = (active(&[30, 10]), Ended::default());
    let whole = post(&mut active);
    active.slice_ended(&whole, refused(1), &mut ended);
    let (part, after) = active.next_cut(CutLimits { ops: 4, bytes: 20 }).unwrap();
    active.posted_cut(&part, after);
    assert!(part.is_part());
    assert_eq!(active.cancel(&mut ended), Left::Work);
    assert_eq!(active.slice_ended(&part, SliceResult::Done, &mut ended), Left::Nothing);
    let outcome = active.submission.outcome(0);
    assert_eq!((outcome.state, outcome.effect), (Timeout, RemoteEffect::Unknown));
}

#[test]
fn a_submission_of_nothing_has_nothing_left() {
    let (active, mut ended) = (active(&[]), Ended::default());
    assert!(!active.has_next() && active.next_cut(LIMITS).is_none());
    assert_eq!(active.left(&mut ended), Left::Nothing);
    assert_eq!(ended, Ended::default());
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// What one owner went through, told by the rail.
#[derive(Clone, Copy, Default)]
struct Lived {
    done: u64,
    uncertain: bool,
}

struct Model {
    active: Active,
    out: Vec<Cut>,
    lived: Vec<Lived>,
    outcomes: Vec<Outcome>,
    ended: Ended,
    lowest_failed: Option<u32>,
    left: Left,
    seed: u64,
}

impl Model {
    fn new(seed: u64, lengths: &[u64]) -> Self {
        Self {
            active: active(lengths),
            out: Vec::new(),
            lived: vec![Lived::default(); lengths.len()],
            outcomes: vec![Outcome::QUEUED; lengths.len()],
            ended: Ended::default(),
            lowest_failed: None,
            left: Left::Work,
            seed,
        }
    }

    fn post(&mut self, limits: CutLimits) {
        let Some((cut, after)) = self.active.next_cut(limits) else { return };
        let last = cut.owner + cut.owners - 1;
        if let Some(failed) = self.lowest_failed {
            assert!(last < failed, "seed {}: {cut:?} is sent behind {failed}", self.seed);
        }
        for owner in cut.owner..=last {
            let outcome = self.active.submission.outcome(owner);
            assert!(!outcome.is_terminal(), "seed {}: {owner} is sent though ended", self.seed);
        }
        self.active.posted_cut(&cut, after);
        self.out.push(cut);
    }

    /// Ends a frame that is out.
    fn end(&mut self, at: usize, result: SliceResult) {
        let cut = self.out.remove(at);
        let owners = cut.owner..cut.owner + cut.owners;
        for owner in owners.clone() {
            let length = self.active.submission.owners[owner as usize].length;
            let lived = &mut self.lived[owner as usize];
            match result {
                SliceResult::Done => lived.done += if cut.is_part() { cut.bytes } else { length },
                SliceResult::Failed { effect, .. } => {
                    lived.uncertain |= effect != RemoteEffect::None;
                }
                SliceResult::Refused { .. } => {}
            }
        }
        let bad = match result {
            SliceResult::Done => None,
            SliceResult::Refused { first_bad, .. } if first_bad < cut.owners => {
                Some(cut.owner + first_bad)
            }
            SliceResult::Failed { .. } | SliceResult::Refused { .. } => Some(cut.owner),
        };
        let was = self.lowest_failed;
        self.lowest_failed = was.into_iter().chain(bad).min();
        self.left = self.active.slice_ended(&cut, result, &mut self.ended);
        self.look();
        let goes_again = matches!(result, SliceResult::Refused { .. })
            && bad.is_some_and(|bad| bad > cut.owner && was.is_none_or(|was| was > bad))
            && self.active.rest.is_none();
        if goes_again {
            let next = self.active.next_cut(LIMITS).map(|(cut, _)| cut.owner);
            assert_eq!(next, Some(cut.owner), "seed {}: the good part is lost", self.seed);
        }
    }

    /// What has ended stays as it is, and is what the rail told.
    fn look(&mut self) {
        let Self { active, outcomes, lived, seed, .. } = self;
        assert!(active.rest.is_none() || !active.has_next(), "seed {seed}: cut after a cancel");
        for (at, was) in outcomes.iter_mut().enumerate() {
            let is = active.submission.outcome(at as u32);
            assert!(!was.is_terminal() || *was == is, "seed {seed}: owner {at}: {was:?} to {is:?}");
            *was = is;
            let (lived, length) = (lived[at], active.submission.owners[at].length);
            match (is.state, is.effect) {
                (Queued, _) => assert_eq!(lived.done, 0, "seed {seed}: owner {at}"),
                (Completed, _) => assert_eq!(lived.done, length, "seed {seed}: owner {at}"),
                (Failed | Canceled | Timeout, RemoteEffect::None) => {
                    assert!(lived.done == 0 && !lived.uncertain, "seed {seed}: owner {at}: {is:?}");
                }
                _ => {}
            }
            if is.state == Canceled {
                assert_eq!(is.attempts, 0, "seed {seed}: owner {at}");
            }
        }
    }

    fn finish(&self) {
        let Self { active, ended, seed, .. } = self;
        assert_eq!(self.left, Left::Nothing, "seed {seed}");
        assert!(self.out.is_empty() && active.posted() == 0 && !active.has_next(), "seed {seed}");
        let sum = |state: &[OwnerState]| -> (u64, u64) {
            let owners = active.submission.owners.iter().enumerate();
            let those =
                owners.filter(|(at, _)| state.contains(&self.outcomes[*at].state)).map(|(_, o)| o);
            those.fold((0, 0), |sum, o| (sum.0 + u64::from(o.tasks), sum.1 + o.length))
        };
        assert_eq!(sum(&[Queued, Pending]), (0, 0), "seed {seed}: {:?}", states(active));
        assert_eq!(sum(&[Completed]), (ended.completed, ended.bytes), "seed {seed}");
        assert_eq!(sum(&[Failed, Timeout]).0, ended.failed, "seed {seed}");
        assert_eq!(sum(&[Canceled]).0, ended.canceled, "seed {seed}");
        let unknown = self.outcomes.iter().filter(|o| o.effect == RemoteEffect::Unknown).count();
        assert_eq!(unknown as u64, ended.unknown, "seed {seed}");
    }
}

fn lengths(random: &mut Random) -> Vec<u64> {
    let count = 1 + random.below(24);
    let mut length = || {
        let longest = if random.once_in(5) { 120 } else { 12 };
        1 + random.below(longest)
    };
    (0..count).map(|_| length()).collect()
}

fn any_end(cut: &Cut, random: &mut Random) -> SliceResult {
    let effect = [RemoteEffect::None, RemoteEffect::Unknown][random.below(2) as usize];
    match random.below(8) {
        0 => SliceResult::Failed { fault: Fault::Ended, effect },
        1 => refused(u32::MAX),
        2 | 3 => refused(random.below(u64::from(cut.owners)) as u32),
        _ => SliceResult::Done,
    }
}

/// A source that refuses some owners and serves all others, whatever the order of its answers: all before
/// the first refused owner completes.
#[test]
fn all_before_the_first_refused_owner_completes() {
    for seed in 0..10_000 {
        let mut random = Random(seed);
        let lengths = lengths(&mut random);
        let bad: Vec<bool> = lengths.iter().map(|_| random.once_in(6)).collect();
        let mut model = Model::new(seed, &lengths);
        let mut steps = 0;
        while model.left == Left::Work {
            steps += 1;
            assert!(steps < 10_000, "seed {seed}: it does not end");
            if model.out.is_empty() || random.once_in(2) {
                model.post(LIMITS);
            } else {
                let at = random.below(model.out.len() as u64) as usize;
                let cut = model.out[at];
                let mut owners = (cut.owner..cut.owner + cut.owners).enumerate();
                let result = match owners.find(|(_, owner)| bad[*owner as usize]) {
                    Some((first_bad, _)) => refused(first_bad as u32),
                    None => SliceResult::Done,
                };
                model.end(at, result);
            }
        }
        model.finish();
        let first_bad = bad.iter().position(|bad| *bad).unwrap_or(lengths.len());
        let done = states(&model.active).iter().take_while(|state| **state == Completed).count();
        assert_eq!(done, first_bad, "seed {seed}: {bad:?} {:?}", states(&model.active));
    }
}

/// Every way that a frame can end, a lane that goes, another that takes less at once, and a caller whose
/// time is over.
#[test]
fn every_owner_ends_once_and_the_counts_add_up() {
    let mut canceled = 0;
    for seed in 0..20_000 {
        let mut random = Random(seed ^ 0x5eed);
        let lengths = lengths(&mut random);
        let mut model = Model::new(seed, &lengths);
        let mut limits = LIMITS;
        let mut steps = 0;
        while model.left == Left::Work {
            steps += 1;
            assert!(steps < 10_000, "seed {seed}: it does not end");
            match random.below(40) {
                0 => {
                    model.left = model.active.cancel(&mut model.ended);
                    canceled += 1;
                    model.look();
                }
                1 => {
                    let left = model.active.fail_undispatched(Fault::Ended, &mut model.ended);
                    model.left = left;
                    model.look();
                    let failed = |o: &Outcome| o.is_terminal() && o.state != Completed;
                    let first = model.outcomes.iter().position(failed).map(|at| at as u32);
                    model.lowest_failed = model.lowest_failed.into_iter().chain(first).min();
                }
                2 => {
                    let (ops, bytes) = (1 + random.below(4) as u32, 5 + random.below(40));
                    limits = CutLimits { ops, bytes };
                }
                _ if model.out.is_empty() || random.once_in(2) => model.post(limits),
                _ => {
                    let at = random.below(model.out.len() as u64) as usize;
                    let result = any_end(&model.out[at], &mut random);
                    model.end(at, result);
                }
            }
        }
        model.finish();
    }
    assert!(canceled > 1000, "{canceled}");
}

/// The deadline ends what no lane took as timed out; what an earlier failure stopped is canceled.
#[test]
fn the_deadline_and_an_earlier_failure_are_told_apart() {
    let (mut queued, mut ended) = (active(&[10; 6]), Ended::default());
    assert_eq!(queued.cancel(&mut ended), Left::Nothing);
    assert_eq!(states(&queued), [Timeout; 6]);
    assert_eq!(queued.submission.outcome(0).attempts, 0);

    let (mut posted, mut ended) = (active(&[10; 8]), Ended::default());
    let first = post(&mut posted);
    assert_eq!(posted.cancel(&mut ended), Left::Work);
    posted.publish_timeout(Fault::Timeout, &mut ended);
    assert_eq!(states(&posted), [Timeout; 8]);
    let untouched = |at: u32| posted.submission.outcome(at).effect == RemoteEffect::None;
    assert!(!untouched(3) && untouched(4));
    assert_eq!(posted.slice_ended(&first, SliceResult::Done, &mut ended), Left::Nothing);
    assert_eq!(states(&posted), [Timeout; 8], "published is published");
    assert_eq!((ended.completed, ended.canceled), (0, 0));

    let (mut stopped, mut ended) = (active(&[10; 12]), Ended::default());
    let (first, second) = (post(&mut stopped), post(&mut stopped));
    stopped.slice_ended(&first, refused(2), &mut ended);
    assert_eq!(stopped.cancel(&mut ended), Left::Work);
    stopped.slice_ended(&second, refused(1), &mut ended);
    let expected = [
        // The good ones that waited to go again.
        [Timeout, Timeout, Failed, Canceled],
        [Canceled, Failed, Canceled, Canceled],
        [Canceled; 4],
    ];
    assert_eq!(states(&stopped), expected.concat());
}
