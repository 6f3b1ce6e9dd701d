//! Which peer identities an engine has charged, against its limit.
//!
//! An identity is charged while a handle of it lives, and an open under way has one: so opens in
//! parallel never exceed the limit, and one that fails gives everything back by dropping its handle.
//! The end of the last handle ends the identity; the table's own entry is bookkeeping that the next
//! charge cleans up, and until then keeps the slot from being used again.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use crate::error::{Error, Result};
use crate::shard::peer::Peer;
use crate::types::{Endpoint, EngineId, PeerKey, SourceEpoch};

/// Ends an identity whose last handle went. Neither waits nor takes a lock.
pub(crate) type Leave = Box<dyn Fn(&Arc<Peer>) + Send + Sync>;

/// A peer identity as handles keep it. Its end gives lanes and control connection back.
pub(crate) struct Identity {
    pub peer: Arc<Peer>,
    /// The engine that opened it.
    pub engine: u64,
    announced: AtomicBool,
    charge: Arc<Charge>,
}

struct Shared {
    charged: AtomicU64,
    leave: Leave,
}

/// One identity's part of the count. Given back once, by whoever notices first that no handle is left:
/// the end of the last one, or a charge that needs the place before that end has come so far.
struct Charge {
    given_back: AtomicBool,
    shared: Arc<Shared>,
}

/// All identities of one engine.
pub(crate) struct Identities {
    engine: u64,
    max: u32,
    #[expect(clippy::disallowed_types, reason = "opening peers; no transfer and no end takes it")]
    table: std::sync::Mutex<Table>,
    shared: Arc<Shared>,
}

struct Entry {
    key: PeerKey,
    charge: Arc<Charge>,
    handles: Weak<Identity>,
}

/// Identities by endpoint and engine; slots are used again with a new generation.
#[derive(Default)]
struct Table {
    entries: HashMap<(Endpoint, EngineId), Entry>,
    free: Vec<PeerKey>,
    slots: u32,
}

impl Identities {
    pub fn new(engine: u64, max: u32, leave: Leave) -> Self {
        let shared = Arc::new(Shared { charged: AtomicU64::new(0), leave });
        #[expect(clippy::disallowed_types, reason = "see the field")]
        let table = std::sync::Mutex::default();
        Self { engine, max, table, shared }
    }

    /// Identities that are charged at this moment. Takes no lock.
    pub fn charged(&self) -> u64 {
        self.shared.charged.load(Ordering::Acquire)
    }

    /// A handle of the identity, charged now if it is not yet. Fails for one that has left while others
    /// still hold it, and with `ResourceExhausted` where there is no room for a further one.
    pub fn charge(&self, endpoint: Endpoint, epoch: SourceEpoch) -> Result<Arc<Identity>> {
        let id = (endpoint, EngineId::of(&epoch));
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(identity) = table.entries.get(&id).and_then(|entry| entry.handles.upgrade()) {
            identity.peer.check_live()?;
            return Ok(identity);
        }
        table.reclaim();
        let (in_use, limit) = (table.entries.len() as u64, u64::from(self.max));
        if in_use >= limit {
            let resource = "max_peer_segments";
            return Err(Error::ResourceExhausted { resource, limit, in_use, requested: 1 });
        }
        let key = table.next_key();
        let charge = Charge::take(&self.shared);
        let identity = Arc::new(Identity {
            peer: Arc::new(Peer::new(key, endpoint, epoch, id.1)),
            engine: self.engine,
            announced: AtomicBool::new(false),
            charge: Arc::clone(&charge),
        });
        let handles = Arc::downgrade(&identity);
        table.entries.insert(id, Entry { key, charge, handles });
        Ok(identity)
    }

    /// Keeps every charge waiting.
    #[cfg(test)]
    pub fn lock_table(&self) -> impl Drop + '_ {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Takes out the identities that no handle names any more; their slots are free again.
    fn reclaim(&mut self) {
        let free = &mut self.free;
        self.entries.retain(|_, Entry { key, charge, handles }| {
            let held = handles.strong_count() > 0;
            if !held {
                charge.give_back();
                let PeerKey { slot, generation } = *key;
                free.push(PeerKey { slot, generation: generation.wrapping_add(1) });
            }
            held
        });
    }

    fn next_key(&mut self) -> PeerKey {
        self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            PeerKey { slot: self.slots - 1, generation: 1 }
        })
    }
}

impl Charge {
    fn take(shared: &Arc<Shared>) -> Arc<Self> {
        shared.charged.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self { given_back: AtomicBool::new(false), shared: Arc::clone(shared) })
    }

    fn give_back(&self) {
        if !self.given_back.swap(true, Ordering::AcqRel) {
            self.shared.charged.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Identity {
    /// Whether the shards have yet to be told of the peer. True once.
    pub fn is_new(&self) -> bool {
        !self.announced.swap(true, Ordering::AcqRel)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        self.charge.give_back();
        (self.charge.shared.leave)(&self.peer);
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("peer", &self.peer).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use std::sync::Barrier;

    use crossbeam_queue::SegQueue;

    use super::*;
    use crate::shard::peer::PeerStatus;

    fn identities(max: u32) -> (Arc<Identities>, Arc<SegQueue<PeerKey>>) {
        let left = Arc::new(SegQueue::new());
        let told = Arc::clone(&left);
        let leave = Box::new(move |peer: &Arc<Peer>| told.push(peer.key));
        (Arc::new(Identities::new(1, max, leave)), left)
    }

    fn epoch(number: u8) -> SourceEpoch {
        SourceEpoch::from_bytes([number + 1; 16]).unwrap()
    }

    fn endpoint() -> Endpoint {
        Endpoint::parse("127.0.0.1:9").unwrap()
    }

    #[test]
    fn opens_in_parallel_never_exceed_the_limit() {
        const THREADS: u8 = 8;
        let (identities, left) = identities(3);
        for _ in 0..200 {
            let barrier = Barrier::new(usize::from(THREADS));
            let charge = |number| {
                barrier.wait();
                let outcome = identities.charge(endpoint(), epoch(number));
                assert!(identities.charged() <= 3);
                // Everybody holds what they got until all have tried.
                barrier.wait();
                match outcome {
                    Ok(_) => 1,
                    Err(Error::ResourceExhausted { limit: 3, in_use: 3, .. }) => 0,
                    Err(error) => panic!("{error}"),
                }
            };
            let charge = &charge;
            std::thread::scope(|scope| {
                let all: Vec<_> =
                    (0..THREADS).map(|number| scope.spawn(move || charge(number))).collect();
                let got: u32 = all.into_iter().map(|thread| thread.join().unwrap()).sum();
                assert_eq!(got, 3);
            });
            assert_eq!(identities.charged(), 0);
        }
        assert_eq!(left.len(), 600, "each was ended once");
        assert!(identities.table.lock().unwrap().slots <= 3, "slots are used again");
    }

    #[test]
    fn one_identity_is_charged_once_and_ends_with_its_last_handle() {
        let (identities, left) = identities(1);
        let first = identities.charge(endpoint(), epoch(1)).unwrap();
        let again = identities.charge(endpoint(), epoch(1)).unwrap();
        assert!(Arc::ptr_eq(&first, &again) && first.is_new() && !again.is_new());
        let key = first.peer.key;
        drop(first);
        assert!(left.is_empty() && identities.charged() == 1);
        assert_eq!(
            identities.charge(endpoint(), epoch(2)).unwrap_err().code(),
            "resource_exhausted"
        );
        drop(again);
        assert_eq!((left.pop(), identities.charged()), (Some(key), 0));
        let anew = identities.charge(endpoint(), epoch(1)).unwrap();
        assert_eq!(anew.peer.key.slot, key.slot);
        assert_ne!(anew.peer.key.generation, key.generation);
    }

    #[test]
    fn an_identity_that_left_is_told_until_nobody_holds_it() {
        let (identities, _left) = identities(1);
        let held = identities.charge(endpoint(), epoch(1)).unwrap();
        held.peer.leave(PeerStatus::Stale);
        assert_eq!(identities.charge(endpoint(), epoch(1)).unwrap_err().code(), "stale_epoch");
        drop(held);
        assert!(identities.charge(endpoint(), epoch(1)).is_ok());
    }
}
