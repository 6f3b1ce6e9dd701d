//! One thread's look at the table. A look-up costs no lock, no system call and, on a shard, no shared
//! reference count but the record's own word.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::types::{RegionKey, ShardIndex, TransferOp};

use super::record::{Pin, Record};
use super::registry::{Registry, check_range, not_registered};
use super::table::Table;
use super::tree::Position;

/// A table that this thread uses.
#[derive(Debug)]
struct Snapshot {
    table: Arc<Table>,
}

/// A thread's cached table. It names records and keeps no memory alive, however old it grows. Stays on
/// its thread.
#[derive(Debug)]
pub(crate) struct View {
    registry: Arc<Registry>,
    current: RefCell<Rc<Snapshot>>,
}

/// A range's registration, for a call with several ranges.
#[derive(Debug)]
pub(crate) enum Pinned {
    /// The call has pinned it already, as that one of its pins.
    Held(usize),
    /// Pinned now.
    New(Pin),
}

/// Why a peer's operation is refused. Says nothing of addresses, so it may go onto the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No region of that id and generation is remotely visible now.
    Gone,
    /// The region does not grant the direction.
    Permission,
}

impl View {
    /// A view of the table as it is now.
    pub fn new(registry: Arc<Registry>) -> Self {
        let current = RefCell::new(Rc::new(Snapshot { table: registry.snapshot() }));
        Self { registry, current }
    }

    /// What is viewed.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Version of the cached table.
    pub fn version(&self) -> u64 {
        self.current.borrow().table.version()
    }

    /// Takes the published table if it is not the cached one, and says whether it did. One load and one
    /// comparison where nothing changed. A caller's thread does it once for each call, a shard as it
    /// begins a turn.
    pub fn refresh(&self) -> bool {
        if self.registry.version() == self.version() {
            return false;
        }
        let table = self.registry.snapshot();
        self.current.replace(Rc::new(Snapshot { table }));
        true
    }

    /// The head of each turn of a running shard: from here it looks at no table older than the one that
    /// is published now, and withdrawals learn which one it has. They learn it in each turn, since a
    /// look-up in the turn before may have taken a newer one.
    ///
    /// # Panics
    /// If the shard is not one of those that the registry was made for.
    pub fn begin_turn(&self, shard: ShardIndex) {
        #[cfg(test)]
        self.registry.break_if_told();
        self.refresh();
        self.registry.gate(shard).seen(self.version());
    }

    /// Claims the live registration that contains the range: of several the one with the highest start,
    /// of equal ones the oldest; one that is closed between look-up and claim is passed over. A miss looks
    /// once more at the newest table, so a range that was registered by any thread before this call is
    /// found. A registration that the call has pinned, as one of `held`, is named again and not claimed
    /// twice.
    ///
    /// Fails with `NotRegistered`, which names the nearest registration, and with `InvalidRequest` for a
    /// range that is empty or wraps. Nothing is claimed then.
    pub fn pin_further(
        &mut self,
        address: u64,
        length: u64,
        held: &[Pin],
    ) -> Result<Pinned, crate::error::Error> {
        check_range(address, length)?;
        let find = |view: &Self| {
            view.current.borrow().table.containing(address, length, |record| {
                // The last one first: ranges of one call mostly share their registration.
                match held.iter().rposition(|pin| pin.is_of(record)) {
                    Some(at) => Some(Pinned::Held(at)),
                    None => Pin::of(record).map(Pinned::New),
                }
            })
        };
        if let Some(pinned) = find(self) {
            return Ok(pinned);
        }
        let again = if self.refresh() { find(self) } else { None };
        again.ok_or_else(|| not_registered(&self.current.borrow().table, address, length))
    }

    /// Shard side: a claim on a whole region for operations in one direction, with its first byte and
    /// length. Checks in this order that it lives, is of that generation, and grants the direction. A
    /// miss looks once more at the newest table, so a region that a peer was told of is found.
    pub fn hold(&self, key: RegionKey, op: TransferOp) -> Result<(u64, u64, Lease), Denied> {
        match self.try_hold(key, op) {
            Err(Denied::Gone) if self.refresh() => self.try_hold(key, op),
            answer => answer,
        }
    }

    fn try_hold(&self, key: RegionKey, op: TransferOp) -> Result<(u64, u64, Lease), Denied> {
        let snapshot = self.current.borrow();
        let (position, record) = snapshot.table.region(key.id).ok_or(Denied::Gone)?;
        // A range that peers do not see is as good as none.
        if record.key != key || !record.permission.is_remote() || record.is_closed() {
            return Err(Denied::Gone);
        }
        if !record.permission.allows(op) {
            return Err(Denied::Permission);
        }
        if !record.pin() {
            return Err(Denied::Gone);
        }
        let lease = Lease { snapshot: Rc::clone(&snapshot), position };
        Ok((record.address, record.length, lease))
    }

    /// Whether the cached table has a region of that id.
    #[cfg(test)]
    pub(super) fn names(&self, id: u64) -> bool {
        self.current.borrow().table.region(id).is_some()
    }
}

/// A shard's claim on one region: its bytes stay valid while this lives. Belongs to the shard's thread.
/// Its drop never drops the memory's owner: if this was the last user, the owner goes to the reaper.
#[derive(Debug)]
#[must_use = "the bytes are valid only while the lease lives"]
pub(crate) struct Lease {
    snapshot: Rc<Snapshot>,
    position: Position,
}

impl Lease {
    /// What is claimed.
    pub fn record(&self) -> Option<&Record> {
        self.snapshot.table.region_at(self.position)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(record) = self.record() {
            record.unpin_on_shard();
        }
    }
}

const _: () = assert!(size_of::<Lease>() == 16, "a lease fits beside a slice in the ledger");

/// Compiles only while `$type` does not implement `$bound`: else the two blanket implementations are
/// both candidates and the marker cannot be inferred.
macro_rules! assert_not_impl {
    ($type:ty: $bound:path) => {
        const _: fn() = || {
            trait Ambiguous<Marker> {
                fn item() {}
            }
            struct Implements;
            impl<T> Ambiguous<()> for T {}
            impl<T: $bound> Ambiguous<Implements> for T {}
            <$type as Ambiguous<_>>::item()
        };
    };
}

const fn assert_shared<T: Send + Sync>() {}

assert_not_impl!(Lease: Send); // counts in its shard's snapshot ...
assert_not_impl!(Lease: Sync); // ... and is released there
assert_not_impl!(View: Send);
assert_not_impl!(View: Sync);
const _: () = assert_shared::<Registry>();
const _: () = assert_shared::<Pin>(); // travels with its submission from caller to shard
const _: () = assert_shared::<Table>();
