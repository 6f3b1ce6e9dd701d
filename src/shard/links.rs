//! The connections of one shard, their place in its epoll set, and which of them are polled directly.
//!
//! A link that moved bytes a moment ago is hot: it is polled in every turn, which costs one receive
//! call. All others are left to epoll.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::shard::control::Permit;
use crate::shard::memory::Lease;
use crate::shard::peer::LaneClass;
use crate::sys::epoll::{Epoll, Interest};
use crate::transport::rail::Rail;
use crate::transport::tcp::SourceLane;

/// A link stays hot this long after its last byte: longer than a spinning shard waits before it parks.
const HOT: Duration = Duration::from_millis(1);

/// Where an accepted connection comes from, for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub remote: SocketAddr,
    /// Number that this engine gave the connection.
    pub connection: u64,
}

/// One connection.
pub(crate) enum Link {
    /// A rail to the peer in that slot of the shard's table.
    Out { rail: Box<dyn Rail>, peer: u32, class: LaneClass },
    /// An accepted data connection, with its share of the listener's limits.
    In { lane: Box<SourceLane<Lease>>, permit: Option<Permit>, from: Origin },
}

struct Slot {
    link: Option<Link>,
    generation: u32,
    armed: Interest,
    hot_until: Instant,
    hot: bool,
    /// It is in `ready`.
    lined_up: bool,
}

/// All links of a shard.
pub(crate) struct Links {
    slots: Vec<Slot>,
    free: Vec<u32>,
    hot: Vec<u32>,
    /// Links to be polled, each once. Those that a turn did not come to are the first of the next.
    ready: VecDeque<LinkId>,
    live: u32,
    max: u32,
}

/// A link as the epoll set and late events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkId {
    pub slot: u32,
    pub generation: u32,
}

impl LinkId {
    pub const fn token(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    pub const fn from_token(token: u64) -> Self {
        Self { slot: token as u32, generation: (token >> 32) as u32 }
    }
}

impl Link {
    fn descriptor(&self) -> (BorrowedFd<'_>, Interest) {
        match self {
            Self::Out { rail, .. } => {
                let (fd, writable) = rail.interest();
                (fd, Interest { readable: true, writable })
            }
            Self::In { lane, .. } => {
                let (fd, readable, writable) = lane.interest();
                (fd, Interest { readable, writable })
            }
        }
    }

    /// No progress for the stall limit, while something is under way.
    pub fn is_stalled(&self, now: Instant) -> bool {
        match self {
            Self::Out { rail, .. } => rail.check(now).is_err(),
            Self::In { lane, .. } => lane.check(now).is_err(),
        }
    }

    /// Forgets this much time, in which the shard did not turn.
    pub fn shift(&mut self, gap: Duration) {
        match self {
            Self::Out { rail, .. } => rail.shift(gap),
            Self::In { lane, .. } => lane.shift(gap),
        }
    }

    pub fn in_flight(&self) -> bool {
        match self {
            Self::Out { rail, .. } => rail.in_flight(),
            Self::In { lane, .. } => lane.in_flight(),
        }
    }
}

impl Links {
    pub fn new(max: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            hot: Vec::new(),
            ready: VecDeque::new(),
            live: 0,
            max,
        }
    }

    /// Adds a link. Fails with nothing where there are as many as there may be, else with the kernel's
    /// answer; the link is closed then.
    pub fn insert(
        &mut self,
        link: Link,
        epoll: &Epoll,
        now: Instant,
    ) -> Result<LinkId, Option<io::Error>> {
        if self.live == self.max {
            return Err(None);
        }
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        let generation = self.slots.get(slot as usize).map_or(1, |slot| slot.generation);
        let id = LinkId { slot, generation };
        let (fd, armed) = link.descriptor();
        if let Err(error) = epoll.add(fd, id.token(), armed) {
            self.give_back(slot);
            return Err(Some(error));
        }
        let entry = Slot {
            link: Some(link),
            generation,
            armed,
            hot_until: now,
            hot: false,
            lined_up: false,
        };
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = entry,
            None => self.slots.push(entry),
        }
        self.live += 1;
        self.heat(id, now);
        Ok(id)
    }

    fn give_back(&mut self, slot: u32) {
        if (slot as usize) < self.slots.len() {
            self.free.push(slot);
        }
    }

    pub fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation == id.generation { slot.link.as_mut() } else { None }
    }

    /// Takes a link out of the set. Its descriptor leaves epoll when it is closed.
    pub fn remove(&mut self, id: LinkId, epoll: &Epoll) -> Option<Link> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let link = slot.link.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        let _closing_removes_it_anyway = epoll.remove(link.descriptor().0);
        self.live -= 1;
        self.free.push(id.slot);
        self.hot.retain(|hot| *hot != id.slot);
        if let Some(slot) = self.slots.get_mut(id.slot as usize) {
            slot.hot = false;
            slot.lined_up = false;
        }
        Some(link)
    }

    /// The link moved bytes: poll it in every turn for a while.
    pub fn heat(&mut self, id: LinkId, now: Instant) {
        if let Some(slot) = self.slots.get_mut(id.slot as usize) {
            slot.hot_until = now + HOT;
            if !slot.hot {
                slot.hot = true;
                self.hot.push(id.slot);
            }
        }
    }

    /// Lines the hot links up behind those that wait already; cools those whose time is over.
    pub fn line_up_hot(&mut self, now: Instant) {
        let (slots, ready) = (&mut self.slots, &mut self.ready);
        self.hot.retain(|at| {
            let Some(slot) = slots.get_mut(*at as usize) else { return false };
            let held = matches!(&slot.link, Some(Link::In { lane, .. }) if lane.is_held());
            slot.hot = held || slot.hot_until > now;
            if slot.hot && !slot.lined_up {
                slot.lined_up = true;
                ready.push_back(LinkId { slot: *at, generation: slot.generation });
            }
            slot.hot
        });
    }

    /// Lines a link up, if it is still there and does not wait already.
    pub fn line_up(&mut self, id: LinkId) {
        let Some(slot) = self.slots.get_mut(id.slot as usize) else { return };
        if slot.generation == id.generation && slot.link.is_some() && !slot.lined_up {
            slot.lined_up = true;
            self.ready.push_back(id);
        }
    }

    /// The link that has waited longest.
    pub fn next_ready(&mut self) -> Option<LinkId> {
        while let Some(id) = self.ready.pop_front() {
            if let Some(slot) = self.slots.get_mut(id.slot as usize) {
                // One that left in the meantime was taken out of line by that.
                if slot.generation == id.generation {
                    slot.lined_up = false;
                    return Some(id);
                }
            }
        }
        None
    }

    /// Links that wait to be polled.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Whether only a lost connection can be what epoll reports for it: nothing else is asked.
    pub fn is_dead(&mut self, id: LinkId) -> bool {
        self.get_mut(id).is_some_and(|link| {
            let (_, wanted) = link.descriptor();
            !wanted.readable && !wanted.writable
        })
    }

    /// Brings the epoll set in line with what the link waits for now.
    pub fn rearm(&mut self, id: LinkId, epoll: &Epoll) {
        let Some(slot) = self.slots.get_mut(id.slot as usize) else { return };
        let Some(link) = &slot.link else { return };
        let (fd, wanted) = link.descriptor();
        if wanted != slot.armed && epoll.modify(fd, id.token(), wanted).is_ok() {
            slot.armed = wanted;
        }
    }

    /// Every link there is.
    pub fn iter(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let id = LinkId { slot: at as u32, generation: slot.generation };
            Some((id, slot.link.as_ref()?))
        })
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.slots.iter_mut().filter_map(|slot| slot.link.as_mut())
    }

    /// Whether any link has something under way.
    pub fn any_in_flight(&self) -> bool {
        self.iter().any(|(_, link)| link.in_flight())
    }

    /// Whether any accepted link has something under way.
    pub fn any_serving(&self) -> bool {
        self.iter().any(|(_, link)| matches!(link, Link::In { .. }) && link.in_flight())
    }

    pub const fn len(&self) -> u32 {
        self.live
    }
}
