//! What comes in: submissions, messages, the end of a caller's time, and the failing of what waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Driver, count, left_fault};
use crate::shard::links::Link;
use crate::shard::mailbox::message::Message;
use crate::shard::peer::{LaneClass, Peer, PeerStatus};
use crate::shard::peers::PeerState;
use crate::shard::port::submission::Submission;
use crate::shard::work::{Active, Ended, Left};
use crate::types::Fault;

impl Driver {
    pub(super) fn ingest(&mut self, now: Instant) -> bool {
        let mut left = self.plan.turn_submissions;
        let before = left;
        let mut at = 0;
        while at < self.rings.len() && left > 0 {
            // A share for each ring, so that no caller starves another.
            for _ in 0..left.min(16) {
                let Ok(submission) = self.rings[at].pop() else { break };
                self.submit(submission);
                left -= 1;
            }
            if self.rings[at].is_abandoned() && self.rings[at].is_empty() {
                self.rings.swap_remove(at);
                self.mailbox.ring_left();
            } else {
                at += 1;
            }
        }
        if at < self.rings.len() {
            // The next turn begins where this one ended.
            self.rings.rotate_left(at);
        }
        while left > 0 {
            let Some(message) = self.mailbox.inject.pop() else { break };
            left -= 1;
            self.message(message, now);
        }
        left != before
    }

    pub(super) fn message(&mut self, message: Message, now: Instant) {
        match message {
            Message::Ring(ring) => self.rings.push(ring),
            Message::Submit(submission) => self.submit(submission),
            Message::Cancel(submission) => self.cancel(&submission),
            Message::Peer(peer) => {
                if !self.stopping && peer.status() == PeerStatus::Live {
                    self.enter(&peer);
                    self.dial(peer.key.slot, LaneClass::Small);
                }
            }
            Message::Inbound(connection) => self.inbound(connection, now),
            Message::LaneUp { peer, class, connection } => {
                self.lane_up(&peer, class, connection, now);
            }
            Message::LaneDown { peer, class, error } => self.lane_down(&peer, class, &error),
            Message::PeerLeft(peer) => self.peer_left(&peer),
            Message::Stop => {
                self.stopping = true;
                self.fail_all_queued(Fault::Closed);
            }
        }
    }

    pub(super) fn submit(&mut self, submission: Arc<Submission>) {
        let at = self.clock.nanos(self.last_turn);
        submission.stations.ingested.store(at, Ordering::Relaxed);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.actives.push(None);
            (self.actives.len() - 1) as u32
        });
        self.live += 1;
        let small = submission.bytes.min(self.plan.slice_bytes) <= self.plan.small_bytes;
        let class = if small { LaneClass::Small } else { LaneClass::Bulk };
        let abandoned = submission.is_abandoned();
        let refused = match &submission.peer {
            None => Some(Fault::Internal),
            Some(_) if self.stopping => Some(Fault::Closed),
            Some(_) if abandoned => Some(Fault::Timeout),
            Some(peer) => left_fault(peer.status()).or_else(|| {
                self.enter(peer).lane(class).queue.push_back(slot);
                self.peers.touch(peer.key.slot);
                None
            }),
        };
        let mut active = Active::new(submission, class);
        match refused {
            None => active.queued = true,
            Some(Fault::Timeout) => {
                let mut ended = Ended::default();
                active.cancel(&mut ended);
                count(&self.counters, active.submission.op, &ended);
                self.finished.push(slot);
            }
            Some(fault) => {
                self.fail_active(&mut active, fault);
                self.finished.push(slot);
            }
        }
        self.actives[slot as usize] = Some(active);
    }

    pub(super) fn enter(&mut self, peer: &Arc<Peer>) -> &mut PeerState {
        let (_, stale) = self.peers.enter(peer);
        if let Some(mut stale) = stale {
            for class in [LaneClass::Small, LaneClass::Bulk] {
                while let Some(slot) = stale.lane(class).queue.pop_front() {
                    self.fail_waiting(slot, Fault::PeerClosed);
                }
                if let Some(link) = stale.lane(class).link.take() {
                    self.cut(link, Fault::PeerClosed);
                }
            }
        }
        self.peers.enter(peer).0
    }

    pub(super) fn cancel(&mut self, submission: &Arc<Submission>) {
        let found = self.actives.iter().position(|active| {
            active.as_ref().is_some_and(|active| Arc::ptr_eq(&active.submission, submission))
        });
        let Some(at) = found else { return };
        let slot = at as u32;
        let mut ended = Ended::default();
        let Some(active) = &mut self.actives[at] else { return };
        let op = active.submission.op;
        let left = active.cancel(&mut ended);
        count(&self.counters, op, &ended);
        if left == Left::Nothing {
            self.finished.push(slot);
            return;
        }
        let posted: Vec<_> = self
            .ledger
            .iter()
            .filter(|(_, claim, _)| claim.active == slot)
            .map(|(id, claim, _)| (id, claim.link))
            .collect();
        for (id, link) in posted {
            if let Some(Link::Out { rail, peer, .. }) = self.links.get_mut(link) {
                rail.cancel(id, Fault::Timeout, &mut self.done);
                // There may be room for who waits.
                let peer = *peer;
                self.peers.touch(peer);
            }
            self.complete();
        }
        let Some(active) = &mut self.actives[at] else { return };
        if active.posted() > 0 && !active.published {
            // Published now, drained when the rails report the rest.
            let mut ended = Ended::default();
            active.publish_timeout(Fault::Timeout, &mut ended);
            count(&self.counters, op, &ended);
            let at_end = self.clock.nanos(self.last_turn);
            active.submission.stations.ended.store(at_end, Ordering::Relaxed);
            active.submission.word.complete();
        }
    }

    pub(super) fn fail_active(&mut self, active: &mut Active, fault: Fault) -> Left {
        let mut ended = Ended::default();
        let left = active.fail_undispatched(fault, &mut ended);
        count(&self.counters, active.submission.op, &ended);
        left
    }

    pub(super) fn fail_waiting(&mut self, slot: u32, fault: Fault) {
        let Some(place) = self.actives.get_mut(slot as usize) else { return };
        let Some(mut active) = place.take() else { return };
        active.queued = false;
        let left = self.fail_active(&mut active, fault);
        self.actives[slot as usize] = Some(active);
        if left == Left::Nothing {
            self.finished.push(slot);
        }
    }

    pub(super) fn fail_queue(&mut self, peer: u32, class: LaneClass, fault: Fault) {
        while let Some(slot) =
            self.peers.get_mut(peer).and_then(|state| state.lane(class).queue.pop_front())
        {
            self.fail_waiting(slot, fault);
        }
    }

    pub(super) fn fail_all_queued(&mut self, fault: Fault) {
        for peer in 0..self.peers.slots() {
            for class in [LaneClass::Small, LaneClass::Bulk] {
                self.fail_queue(peer, class, fault);
            }
        }
    }
}
