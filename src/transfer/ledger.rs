//! What is posted: each slice with a claim of its owner, until its retirement is reported. The owner
//! keeps the slice's memory for as long as its claim is in here.
//!
//! The claim is any type. The ledger gives it back exactly once, for the completion of that very slice:
//! a late or forged completion with an old generation gets nothing.

use alloc::vec::Vec;

use crate::types::SliceId;

use super::slicer::Cut;

enum Slot<L> {
    Free { next: u32 },
    Posted { claim: L, cut: Cut },
}

struct Entry<L> {
    generation: u32,
    slot: Slot<L>,
}

const END: u32 = u32::MAX;

/// Slots for posted slices. Grows to its bound and keeps its memory.
pub(crate) struct Ledger<L> {
    entries: Vec<Entry<L>>,
    free: u32,
    posted: u32,
    bound: u32,
}

impl<L> Ledger<L> {
    /// A ledger of at most `bound` posted slices, with room for `room` made at once.
    pub fn new(bound: u32, room: u32) -> Self {
        Self { entries: Vec::with_capacity(room as usize), free: END, posted: 0, bound }
    }

    /// Stores a slice that is about to be posted. Full gives the claim back.
    pub fn insert(&mut self, claim: L, cut: Cut) -> Result<SliceId, L> {
        if self.posted == self.bound {
            return Err(claim);
        }
        self.posted += 1;
        if self.free == END {
            let slot = self.entries.len() as u32;
            self.entries.push(Entry { generation: 1, slot: Slot::Posted { claim, cut } });
            return Ok(SliceId { slot, generation: 1 });
        }
        let slot = self.free;
        let entry = &mut self.entries[slot as usize];
        if let Slot::Free { next } = entry.slot {
            self.free = next;
        }
        entry.slot = Slot::Posted { claim, cut };
        Ok(SliceId { slot, generation: entry.generation })
    }

    /// Ends a slice: gives its claim back. `None` for a slice that is not posted (any more).
    pub fn retire(&mut self, id: SliceId) -> Option<(L, Cut)> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        if entry.generation != id.generation || matches!(entry.slot, Slot::Free { .. }) {
            return None;
        }
        entry.generation = entry.generation.wrapping_add(1);
        let freed = core::mem::replace(&mut entry.slot, Slot::Free { next: self.free });
        self.free = id.slot;
        self.posted -= 1;
        match freed {
            Slot::Posted { claim, cut } => Some((claim, cut)),
            Slot::Free { .. } => None,
        }
    }

    /// Number of posted slices.
    #[cfg(test)]
    pub const fn posted(&self) -> u32 {
        self.posted
    }

    /// Every posted slice.
    pub fn iter(&self) -> impl Iterator<Item = (SliceId, &L, &Cut)> {
        self.entries.iter().enumerate().filter_map(|(slot, entry)| match &entry.slot {
            Slot::Posted { claim, cut } => {
                let id = SliceId { slot: slot as u32, generation: entry.generation };
                Some((id, claim, cut))
            }
            Slot::Free { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const CUT: Cut = Cut { owner: 0, owners: 1, skip: 0, bytes: 1, last: true };

    #[test]
    fn a_lease_comes_back_once_and_only_for_its_own_slice() {
        let mut ledger = Ledger::new(2, 0);
        let a = ledger.insert('a', CUT).unwrap();
        let b = ledger.insert('b', CUT).unwrap();
        assert_eq!(ledger.insert('c', CUT), Err('c'), "bounded");
        assert_eq!(ledger.retire(a), Some(('a', CUT)));
        assert_eq!(ledger.retire(a), None, "twice");
        let c = ledger.insert('c', CUT).unwrap();
        assert_eq!(c.slot, a.slot);
        assert_eq!(ledger.retire(a), None, "an old generation");
        assert_eq!(ledger.retire(SliceId { slot: 99, generation: 1 }), None);
        assert_eq!(ledger.iter().map(|(id, ..)| id).collect::<Vec<_>>(), [c, b]);
    }

    /// Against a map as model, over random inserts and retirements of live, dead and invented ids.
    #[test]
    fn it_agrees_with_a_map() {
        let mut random = 1u64;
        let mut next = move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            random >> 33
        };
        let (mut ledger, mut model) = (Ledger::new(50, 8), HashMap::new());
        let mut seen: Vec<SliceId> = Vec::new();
        for value in 0..20_000u64 {
            if next() % 2 == 0 {
                match ledger.insert(value, CUT) {
                    Ok(id) => {
                        assert!(model.insert(id, value).is_none());
                        seen.push(id);
                    }
                    Err(back) => assert_eq!((back, model.len()), (value, 50)),
                }
            } else if !seen.is_empty() {
                let id = seen[next() as usize % seen.len()];
                assert_eq!(ledger.retire(id).map(|(claim, _)| claim), model.remove(&id));
            }
            assert_eq!(ledger.posted() as usize, model.len());
        }
    }
}
