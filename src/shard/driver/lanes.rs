//! Lanes: their coming, their end, and what watches over them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{BULK_READS, CHECKS, Driver, SHARE, left_fault};
use crate::error::Error;
use crate::shard::links::{Link, LinkId, Origin};
use crate::shard::mailbox::message::DataConnection;
use crate::shard::peer::{LaneClass, Negotiated, Peer, PeerStatus};
use crate::shard::port::verdict;
use crate::transport::provider::Provider;
use crate::transport::rail::{Budget, RailFault};
use crate::transport::tcp::{LaneLimits, LanePlan, SourceLane};
use crate::types::Fault;

impl Driver {
    pub(super) fn lane_plan(&self, limits: Negotiated, class: LaneClass) -> LanePlan {
        let Negotiated { max_message, scatter_ops, lane_window, payload_crc } = limits;
        LanePlan {
            limits: LaneLimits { max_message, scatter_ops, lane_window, payload_crc },
            slice: self.plan.slice_bytes,
            send_chunk: self.plan.send_chunk,
            reads_max: (class == LaneClass::Bulk).then_some(BULK_READS),
            stall: self.plan.stall,
        }
    }

    pub(super) fn inbound(&mut self, connection: DataConnection, now: Instant) {
        if self.stopping {
            return;
        }
        let plan = self.lane_plan(connection.limits, LaneClass::Small);
        let lane = SourceLane::new(connection.socket, plan, now);
        if self
            .links
            .insert(
                Link::In {
                    lane: Box::new(lane),
                    permit: connection.permit,
                    from: Origin { remote: connection.remote, connection: connection.id },
                },
                &self.epoll,
                now,
            )
            .is_err()
        {
            tracing::warn!(limit = self.plan.max_lanes, "an accepted lane was closed: no room");
        }
    }

    pub(super) fn lane_up(
        &mut self,
        peer: &Arc<Peer>,
        class: LaneClass,
        link: DataConnection,
        now: Instant,
    ) {
        if self.stopping || peer.status() != PeerStatus::Live {
            return;
        }
        let plan = self.lane_plan(link.limits, class);
        let Some(state) = self.peers.find(peer.key) else { return };
        state.lane(class).dialing = false;
        if state.lane(class).link.is_some() {
            return;
        }
        let socket: OwnedFd = link.socket;
        let slot = peer.key.slot;
        let rail = match self.provider.attach((socket, plan), now) {
            Ok(rail) => rail,
            Err(RailFault(fault)) => return self.fail_queue(slot, class, fault),
        };
        match self.links.insert(Link::Out { rail, peer: slot, class }, &self.epoll, now) {
            Ok(id) => {
                if let Some(state) = self.peers.get_mut(slot) {
                    state.lane(class).link = Some(id);
                }
                self.peers.touch(slot);
            }
            Err(None) => self.fail_queue(slot, class, Fault::LanesFull(self.plan.max_lanes)),
            Err(Some(error)) => {
                let error = verdict::unwatched(&peer.endpoint_text, &error);
                let fault = verdict::lane_fault(&error);
                peer.lane_failed(error);
                self.fail_queue(slot, class, fault);
            }
        }
    }

    pub(super) fn lane_down(&mut self, peer: &Arc<Peer>, class: LaneClass, error: &Error) {
        // Before any word is completed, so that the caller finds it.
        peer.lane_failed(error.clone());
        let Some(state) = self.peers.find(peer.key) else { return };
        state.lane(class).dialing = false;
        let fault = left_fault(peer.status()).unwrap_or_else(|| verdict::lane_fault(error));
        self.fail_queue(peer.key.slot, class, fault);
    }

    pub(super) fn peer_left(&mut self, peer: &Arc<Peer>) {
        let Some(mut state) = self.peers.remove(peer.key) else { return };
        let fault = left_fault(peer.status()).unwrap_or(Fault::PeerClosed);
        for class in [LaneClass::Small, LaneClass::Bulk] {
            while let Some(slot) = state.lane(class).queue.pop_front() {
                self.fail_waiting(slot, fault);
            }
            if let Some(link) = state.lane(class).link.take() {
                self.cut(link, fault);
            }
        }
    }

    pub(super) fn dial(&mut self, slot: u32, class: LaneClass) {
        let Some(state) = self.peers.get_mut(slot) else { return };
        let lane = state.lane(class);
        if lane.link.is_none() && !lane.dialing {
            lane.dialing = true;
            let peer = Arc::clone(&state.peer);
            self.control.dial_data(peer, self.plan.index, class);
        }
    }

    /// Ends a link. What was posted on it ends by the effect rules; what waits stays and may dial again.
    pub(super) fn cut(&mut self, id: LinkId, fault: Fault) {
        match self.links.remove(id, &self.epoll) {
            None => {}
            Some(Link::In { lane, permit, from }) => {
                let Origin { remote, connection } = from;
                match fault {
                    Fault::Protocol => {
                        let rule = lane.broken().map(tracing::field::display);
                        self.counters.shard.protocol_violations.bump(1);
                        tracing::warn!(%remote, connection, rule, "lane cut: broken protocol");
                    }
                    Fault::Stalled => tracing::warn!(%remote, connection, "lane cut: it stalled"),
                    _ => tracing::debug!(%remote, connection, ?fault, "lane ended"),
                }
                lane.close(&mut self.source);
                drop(permit);
            }
            Some(Link::Out { rail, peer, class }) => {
                if let (Some(rule), Some(state)) = (rail.broken(), self.peers.get_mut(peer)) {
                    // Before any word is completed, so that the caller finds it.
                    let (endpoint, reason) = (state.peer.endpoint_text.clone(), rule.to_string());
                    state.peer.lane_failed(Error::Protocol { endpoint, reason });
                }
                let broken = rail.broken();
                let _quiet = rail.close(fault, &mut self.done);
                self.complete();
                if let Some(state) = self.peers.get_mut(peer) {
                    if let (Fault::Protocol, remote) = (fault, state.peer.endpoint) {
                        let rule = broken.map(tracing::field::display);
                        self.counters.shard.protocol_violations.bump(1);
                        tracing::warn!(%remote, rule, "lane cut: broken protocol");
                    }
                    let lane = state.lane(class);
                    if lane.link == Some(id) {
                        lane.link = None;
                    }
                    if !lane.queue.is_empty() {
                        self.peers.touch(peer);
                    }
                }
            }
        }
    }

    /// The detectors. A link that seems to stall is polled before it is cut: what came while nobody looked
    /// counts. Says whether anything moved or a link was cut.
    pub(super) fn check(&mut self, now: Instant) -> bool {
        self.next_check = now + self.plan.stall / CHECKS;
        let waiting: usize = self.rings.iter().map(rtrb::Consumer::slots).sum();
        self.counters.shard.lane_depth.set((waiting + self.mailbox.inject.len()) as u64);
        let mut stalled = std::mem::take(&mut self.stalled);
        stalled
            .extend(self.links.iter().filter(|(_, link)| link.is_stalled(now)).map(|(id, _)| id));
        let any = !stalled.is_empty();
        for id in stalled.drain(..) {
            self.poll_link(id, now, &mut Budget::new(SHARE));
            if self.links.get_mut(id).is_some_and(|link| link.is_stalled(now)) {
                self.cut(id, Fault::Stalled);
            }
        }
        self.stalled = stalled;
        any
    }

    pub(super) fn shift(&mut self, gap: Duration) {
        self.links.iter_mut().for_each(|link| link.shift(gap));
    }
}
