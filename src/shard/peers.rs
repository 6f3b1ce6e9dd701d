//! One shard's table of peers: for each its lanes, and the submissions that wait for them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::shard::links::LinkId;
use crate::shard::peer::{LaneClass, Peer};
use crate::types::PeerKey;

/// Lane of one class to one peer.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub link: Option<LinkId>,
    pub dialing: bool,
    /// Submissions, by slot, with something to cut. Each stands here at most once.
    pub queue: VecDeque<u32>,
}

/// What the shard keeps of one peer.
#[derive(Debug)]
pub(crate) struct PeerState {
    pub peer: Arc<Peer>,
    small: Lane,
    bulk: Lane,
    dirty: bool,
}

impl PeerState {
    pub fn lane(&mut self, class: LaneClass) -> &mut Lane {
        match class {
            LaneClass::Small => &mut self.small,
            LaneClass::Bulk => &mut self.bulk,
        }
    }
}

/// Peers by slot, and those that have something to post.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    states: Vec<Option<PeerState>>,
    dirty: Vec<u32>,
}

impl Peers {
    /// The state of `peer`; made now if there is none. A slot's former peer, which no submission can
    /// name any more, is given back.
    pub fn enter(&mut self, peer: &Arc<Peer>) -> (&mut PeerState, Option<PeerState>) {
        let at = peer.key.slot as usize;
        if at >= self.states.len() {
            self.states.resize_with(at + 1, || None);
        }
        let place = &mut self.states[at];
        let stale = place.take_if(|state| state.peer.key != peer.key);
        let state = place.get_or_insert_with(|| PeerState {
            peer: Arc::clone(peer),
            small: Lane::default(),
            bulk: Lane::default(),
            dirty: false,
        });
        (state, stale)
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut PeerState> {
        self.states.get_mut(slot as usize)?.as_mut()
    }

    pub fn find(&mut self, key: PeerKey) -> Option<&mut PeerState> {
        self.get_mut(key.slot).filter(|state| state.peer.key == key)
    }

    /// Forgets a peer that left and has no work.
    pub fn remove(&mut self, key: PeerKey) -> Option<PeerState> {
        let place = self.states.get_mut(key.slot as usize)?;
        place.take_if(|state| state.peer.key == key)
    }

    /// The peer has something to cut or to send.
    pub fn touch(&mut self, slot: u32) {
        let Some(Some(state)) = self.states.get_mut(slot as usize) else { return };
        if !state.dirty {
            state.dirty = true;
            self.dirty.push(slot);
        }
    }

    /// A peer that was touched since it was last asked for.
    pub fn next_touched(&mut self) -> Option<u32> {
        let slot = self.dirty.pop()?;
        if let Some(Some(state)) = self.states.get_mut(slot as usize) {
            state.dirty = false;
        }
        Some(slot)
    }

    pub fn slots(&self) -> u32 {
        self.states.len() as u32
    }
}
