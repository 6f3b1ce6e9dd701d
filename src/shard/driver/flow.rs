//! Bytes: looking at links, cutting and posting, and what their completions mean.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{BELL, Claim, Driver, LOOK_EVERY, SHARE, count};
use crate::shard::links::{Link, LinkId};
use crate::shard::memory::{Denied, Lease, View};
use crate::shard::peer::LaneClass;
use crate::shard::work::{Ended, Left};
use crate::transfer::CutLimits;
use crate::transport::rail::{Budget, Completion, Part, RailFault, Slice, SliceResult};
use crate::transport::tcp::{Catalog, Granted};
use crate::types::{Fault, Refused, RegionKey, TransferOp};

/// The source side's access to registered memory.
struct Source<'a> {
    view: &'a View,
    open: bool,
}

impl Catalog for Source<'_> {
    type Lease = Lease;

    fn hold(&mut self, region: RegionKey, op: TransferOp) -> Result<Granted<Lease>, Refused> {
        match self.view.hold(region, op) {
            Ok((address, length, lease)) => Ok(Granted { lease, address, length }),
            Err(Denied::Permission) => Err(Refused::Permission),
            Err(_) => Err(Refused::RegionGone),
        }
    }

    fn is_open(&self) -> bool {
        self.open
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Posted {
    Taken,
    /// The rail has no room now.
    Full,
    /// The submission has nothing more to cut.
    Exhausted,
}

impl Driver {
    pub(super) fn poll_links(&mut self, now: Instant, budget: &mut Budget) -> bool {
        self.links.line_up_hot(now);
        if self.passes % LOOK_EVERY == 0 && self.links.len() as usize > self.links.ready() {
            self.look(Some(Duration::ZERO));
        }
        // A fair share for each, and at least what makes progress by the stall rule.
        let share = (budget.bytes / (self.links.ready() as u64).max(1)).max(SHARE);
        let mut moved = false;
        while !budget.is_spent() {
            let Some(id) = self.links.next_ready() else { break };
            let mut own = Budget::new(share);
            moved |= self.poll_link(id, now, &mut own);
            budget.spend(share - own.bytes);
        }
        moved
    }

    /// Asks epoll which links have something.
    pub(super) fn look(&mut self, timeout: Option<Duration>) {
        if self.epoll.wait(&mut self.events, timeout).is_err() {
            return;
        }
        let mut dead = None;
        for event in self.events.iter() {
            if event.token != BELL {
                let id = LinkId::from_token(event.token);
                if self.links.is_dead(id) {
                    dead = Some(id);
                }
                self.links.line_up(id);
            }
        }
        if let Some(id) = dead {
            // Its frame waits for its turn while the peer is gone, which epoll would report for ever. One
            // a look is enough: the next one reports the others.
            self.cut(id, Fault::Ended);
        }
    }

    pub(super) fn poll_link(&mut self, id: LinkId, now: Instant, budget: &mut Budget) -> bool {
        let result = match self.links.get_mut(id) {
            None => return false,
            Some(Link::In { lane, .. }) => {
                let mut source = Source { view: &self.view, open: !self.stopping };
                let result = lane.poll(now, budget, &mut self.source, &mut source);
                let served = lane.take_served();
                self.counters.shard.frames_served.bump(served.frames);
                self.counters.shard.frames_refused.bump(served.refused);
                result
            }
            Some(Link::Out { rail, peer, .. }) => {
                let result = rail.poll(now, budget, &mut self.done);
                let flushed = match &result {
                    Ok(_) => rail.flush(now, budget),
                    Err(_) => Ok(false),
                };
                // Bytes may have made room without a completion: the answer of a frame given up before.
                if !self.done.is_empty() || matches!(result, Ok(true)) {
                    let peer = *peer;
                    self.peers.touch(peer);
                }
                result.and_then(|moved| flushed.map(|flushed| moved | flushed))
            }
        };
        self.complete();
        match result {
            Ok(moved) => {
                if moved {
                    self.links.heat(id, now);
                }
                self.links.rearm(id, &self.epoll);
                moved
            }
            Err(RailFault(fault)) => {
                self.cut(id, fault);
                true
            }
        }
    }

    pub(super) fn post(&mut self, now: Instant, budget: &mut Budget) -> bool {
        let mut moved = false;
        while let Some(slot) = self.peers.next_touched() {
            for class in [LaneClass::Small, LaneClass::Bulk] {
                moved |= self.post_lane(slot, class, now, budget);
            }
        }
        moved
    }

    fn post_lane(
        &mut self,
        slot: u32,
        class: LaneClass,
        now: Instant,
        budget: &mut Budget,
    ) -> bool {
        let Some(state) = self.peers.get_mut(slot) else { return false };
        let lane = state.lane(class);
        let Some(link) = lane.link else {
            if !lane.queue.is_empty() {
                self.dial(slot, class);
            }
            return false;
        };
        let mut posted = false;
        while let Some(active) =
            self.peers.get_mut(slot).and_then(|s| s.lane(class).queue.front().copied())
        {
            match self.post_one(active, link) {
                Posted::Taken => posted = true,
                Posted::Full => break,
                Posted::Exhausted => {
                    if let Some(state) = self.peers.get_mut(slot) {
                        state.lane(class).queue.pop_front();
                    }
                    if let Some(Some(active)) = self.actives.get_mut(active as usize) {
                        active.queued = false;
                    }
                }
            }
        }
        let Some(Link::Out { rail, .. }) = self.links.get_mut(link) else { return posted };
        match rail.flush(now, budget) {
            Ok(flushed) => {
                if flushed {
                    self.links.heat(link, now);
                }
                if budget.is_spent() {
                    self.links.line_up(link);
                }
                self.links.rearm(link, &self.epoll);
                flushed
            }
            Err(RailFault(fault)) => {
                self.cut(link, fault);
                true
            }
        }
    }

    /// Posts the next cut of one submission.
    fn post_one(&mut self, slot: u32, link: LinkId) -> Posted {
        let Some(Some(active)) = self.actives.get_mut(slot as usize) else {
            return Posted::Exhausted;
        };
        let Some(Link::Out { rail, .. }) = self.links.get_mut(link) else { return Posted::Full };
        let capabilities = rail.capabilities();
        let ops = if self.plan.merge { capabilities.ops } else { 1 };
        let limits = CutLimits { ops, bytes: capabilities.bytes };
        let Some((cut, after)) = active.next_cut(limits) else {
            // Nothing of it may be posted that would end it later.
            let mut ended = Ended::default();
            let left = active.left(&mut ended);
            count(&self.counters, active.submission.op, &ended);
            if left == Left::Nothing {
                self.finished.push(slot);
            }
            return Posted::Exhausted;
        };
        self.parts.clear();
        let owners =
            &active.submission.owners[cut.owner as usize..(cut.owner + cut.owners) as usize];
        for owner in owners {
            let (skip, length) =
                if cut.is_part() { (cut.skip, cut.bytes) } else { (0, owner.length) };
            let (local, offset) = (owner.local + skip, owner.offset + skip);
            self.parts.push(Part { local, region: owner.region, offset, length });
        }
        let op = active.submission.op;
        let Ok(id) = self.ledger.insert(Claim { active: slot, link }, cut) else {
            return Posted::Full;
        };
        let slice = Slice { id, op, from: 0, to: self.parts.len() as u32, bytes: cut.bytes };
        if !matches!(rail.post(&[slice], &self.parts), Ok(1)) {
            self.ledger.retire(id);
            return Posted::Full;
        }
        active.posted_cut(&cut, after);
        let dispatched = &active.submission.stations.dispatched;
        if dispatched.load(Ordering::Relaxed) == 0 {
            dispatched.store(self.clock.nanos(self.last_turn), Ordering::Relaxed);
        }
        self.counters.shard.frames_sent.bump(1);
        Posted::Taken
    }

    /// Applies what the rails reported.
    pub(super) fn complete(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        for Completion { id, result } in done.drain(..) {
            let Some((claim, cut)) = self.ledger.retire(id) else { continue };
            let Some(Some(active)) = self.actives.get_mut(claim.active as usize) else { continue };
            let mut ended = Ended::default();
            let left = active.slice_ended(&cut, result, &mut ended);
            count(&self.counters, active.submission.op, &ended);
            match left {
                Left::Nothing => self.finished.push(claim.active),
                Left::Work => {
                    let refused = matches!(result, SliceResult::Refused { .. });
                    if refused && active.has_next() && !active.queued && !active.published {
                        self.requeue(claim.active);
                    }
                }
            }
        }
        self.done = done;
    }

    /// Good parts of a refused frame go again: back to the front of their lane's queue.
    fn requeue(&mut self, slot: u32) {
        let Some(Some(active)) = self.actives.get_mut(slot as usize) else { return };
        let key = active.submission.peer.as_ref().map(|peer| peer.key);
        match key.and_then(|key| self.peers.find(key)) {
            Some(state) => {
                active.queued = true;
                state.lane(active.class).queue.push_front(slot);
                let peer = state.peer.key.slot;
                self.peers.touch(peer);
            }
            None => self.fail_waiting(slot, Fault::PeerClosed),
        }
    }

    /// Publishes and drains what has ended.
    pub(super) fn publish(&mut self) {
        while let Some(slot) = self.finished.pop() {
            let Some(place) = self.actives.get_mut(slot as usize) else { continue };
            let Some(active) = place.take() else { continue };
            if active.queued {
                // Its slot will serve another submission: no queue may name it any more.
                let key = active.submission.peer.as_ref().map(|peer| peer.key);
                if let Some(state) = key.and_then(|key| self.peers.find(key)) {
                    state.lane(active.class).queue.retain(|queued| *queued != slot);
                }
            }
            self.free.push(slot);
            self.live -= 1;
            active.submission.drain();
            if !active.published {
                let at = self.clock.nanos(self.last_turn);
                active.submission.stations.ended.store(at, Ordering::Relaxed);
            }
            self.published = true;
            // The `Arc` held here keeps the word alive until `complete` has returned.
            self.woke |= active.submission.word.complete();
        }
    }
}
