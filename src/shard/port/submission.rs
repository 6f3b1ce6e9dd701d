//! One submission, shared by the caller and its home shard.
//!
//! The caller fills it while it alone holds it, hands it over, and gets it back by the completion word.
//! In between the shard alone writes the outcome cells. So nothing is locked and, once a thread has
//! warmed up, nothing is allocated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::shard::mailbox::word::Word;
use crate::shard::memory::Pin;
use crate::shard::peer::Peer;
use crate::transfer::report::{Summary, summarize};
use crate::transfer::{Outcome, Owner};
use crate::types::TransferOp;

/// What the shard writes about one owner. Relaxed: the word orders them for the caller.
#[derive(Debug)]
struct OwnerCell {
    outcome: AtomicU64,
    /// Slices posted and not ended.
    open: AtomicU32,
}

/// When a submission passed its stations, nanoseconds since the engine started; 0: not reached.
#[derive(Debug, Default)]
pub(crate) struct Stations {
    pub submitted: u64,
    pub ingested: AtomicU64,
    pub dispatched: AtomicU64,
    pub ended: AtomicU64,
}

/// The requests of one call, merged into owners, and what becomes of them.
#[derive(Debug)]
pub(crate) struct Submission {
    pub op: TransferOp,
    /// `None` only while it waits in its thread's pool.
    pub peer: Option<Arc<Peer>>,
    pub owners: Vec<Owner>,
    /// Payload of all owners.
    pub bytes: u64,
    cells: Vec<OwnerCell>,
    /// One for each distinct registration. Released by the shard, once, at physical retirement.
    pins: Vec<Pin>,
    drained: AtomicBool,
    /// The caller's deadline passed: a shard that meets the submission later does not start it.
    abandoned: AtomicBool,
    pub word: Word,
    pub stations: Stations,
}

impl Submission {
    pub fn new() -> Self {
        Self {
            op: TransferOp::Read,
            peer: None,
            owners: Vec::new(),
            bytes: 0,
            cells: Vec::new(),
            pins: Vec::new(),
            drained: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            word: Word::new(),
            stations: Stations::default(),
        }
    }

    /// Empties it for the next call and keeps its memory. Pins of the last call were released when it
    /// was drained; one that was not drained is never used again.
    pub fn clear(&mut self) {
        self.peer = None;
        self.owners.clear();
        self.bytes = 0;
        self.pins.clear();
        *self.drained.get_mut() = false;
        *self.abandoned.get_mut() = false;
        self.word.reset();
        self.stations = Stations::default();
    }

    /// Makes room for so many owners in all, before the next call.
    pub fn make_room(&mut self, owners: usize) {
        self.clear();
        self.owners.reserve(owners);
        self.cells.reserve(owners.saturating_sub(self.cells.len()));
    }

    /// The pin of the registration that `key` names, if the call has one already.
    pub fn pins(&self) -> &[Pin] {
        &self.pins
    }

    pub fn add_pin(&mut self, pin: Pin) {
        self.pins.push(pin);
    }

    /// Makes one cell for each owner. The owners are complete.
    pub fn seal(&mut self) {
        for cell in self.cells.iter_mut().take(self.owners.len()) {
            *cell.outcome.get_mut() = Outcome::QUEUED.pack();
            *cell.open.get_mut() = 0;
        }
        while self.cells.len() < self.owners.len() {
            let outcome = AtomicU64::new(Outcome::QUEUED.pack());
            self.cells.push(OwnerCell { outcome, open: AtomicU32::new(0) });
        }
    }

    /// The caller's deadline passed.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Gives up before the submission was handed over: releases what it pinned.
    pub fn discard(&mut self) {
        for pin in self.pins.drain(..) {
            pin.release_on_caller();
        }
    }

    pub fn outcome(&self, owner: u32) -> Outcome {
        self.cells
            .get(owner as usize)
            .map_or(Outcome::QUEUED, |cell| Outcome::unpack(cell.outcome.load(Ordering::Relaxed)))
    }

    /// Shard only.
    pub fn set_outcome(&self, owner: u32, outcome: Outcome) {
        if let Some(cell) = self.cells.get(owner as usize) {
            cell.outcome.store(outcome.pack(), Ordering::Relaxed);
        }
    }

    /// Shard only: one more slice of the owner is posted.
    pub fn opened(&self, owner: u32) {
        if let Some(cell) = self.cells.get(owner as usize) {
            cell.open.store(cell.open.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Shard only: one slice of the owner ended; says how many are left.
    pub fn closed(&self, owner: u32) -> u32 {
        let Some(cell) = self.cells.get(owner as usize) else { return 0 };
        let left = cell.open.load(Ordering::Relaxed).saturating_sub(1);
        cell.open.store(left, Ordering::Relaxed);
        left
    }

    /// Shard only, once: no rail touches its memory any more.
    pub fn drain(&self) {
        if !self.drained.swap(true, Ordering::Release) {
            self.pins.iter().for_each(Pin::release_on_shard);
        }
    }

    pub fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }

    /// What the call came to. Stable once the word is done.
    pub fn summary(&self) -> Summary {
        let outcome = |index: usize| self.outcome(index as u32);
        summarize(self.owners.iter().enumerate().map(|(at, owner)| (*owner, outcome(at))))
    }
}
