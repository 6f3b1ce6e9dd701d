//! The published table of live registrations: an immutable snapshot with a version.

use std::sync::Arc;

use crate::types::{MemoryLocation, MemoryType, Permission, RegionKey};

use super::record::Record;
use super::tree::{Entry, Position, Tree};

/// Copies of what a search compares stand beside the pointer, so that a search reads nodes and no
/// records.
#[derive(Clone, Debug)]
struct ByAddress {
    start: u64,
    end: u64,
    id: u64,
    record: Arc<Record>,
}

impl Entry for ByAddress {
    /// Start, then the younger first: walking back from an address meets the highest start first, and
    /// the oldest of equal starts before the younger ones.
    type Key = (u64, u64);

    fn key(&self) -> Self::Key {
        address_key(self.start, self.id)
    }

    fn end(&self) -> u64 {
        self.end
    }
}

#[derive(Clone, Debug)]
struct ByRegion {
    id: u64,
    record: Arc<Record>,
}

impl Entry for ByRegion {
    type Key = u64;

    fn key(&self) -> Self::Key {
        self.id
    }

    fn end(&self) -> u64 {
        0
    }
}

/// Region ids rise in order of registration, so a larger one is younger.
const fn address_key(start: u64, id: u64) -> (u64, u64) {
    (start, !id)
}

/// What a peer is told of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionInfo {
    /// Names the publication.
    pub key: RegionKey,
    /// First byte, as this process sees it.
    pub address: u64,
    /// Number of bytes.
    pub length: u64,
    /// What the peer may do; never `Local`.
    pub permission: Permission,
    /// Kind of memory.
    pub memory_type: MemoryType,
    /// Where it lies.
    pub location: MemoryLocation,
}

/// All live registrations at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    version: u64,
    catalog: u64,
    by_address: Tree<ByAddress>,
    by_region: Tree<ByRegion>,
}

impl Table {
    /// The first one, version 1, empty.
    pub(super) const fn new() -> Self {
        Self { version: 1, catalog: 1, by_address: Tree::new(), by_region: Tree::new() }
    }

    /// Rises with each change.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Generation of what peers see: the version of the last change of a remotely visible region. Never
    /// 0.
    pub const fn catalog_generation(&self) -> u64 {
        self.catalog
    }

    /// Remotely visible regions in order of their address.
    pub fn regions(&self) -> impl Iterator<Item = RegionInfo> {
        let remote = |record: &Record| record.permission.is_remote();
        self.records().filter(move |record| remote(record)).map(|record| RegionInfo {
            key: record.key,
            address: record.address,
            length: record.length,
            permission: record.permission,
            memory_type: record.memory_type,
            location: record.location,
        })
    }

    /// All registrations in order of their address.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.by_address.iter().map(|entry| &*entry.record)
    }

    /// The first answer of `visit` over the registrations that contain all `length` bytes at `address`:
    /// highest start first, the older first among equal starts. None for a range that wraps.
    pub(super) fn containing<T>(
        &self,
        address: u64,
        length: u64,
        mut visit: impl FnMut(&Arc<Record>) -> Option<T>,
    ) -> Option<T> {
        let end = address.checked_add(length)?;
        self.by_address.last_reaching(|key| key.0 <= address, end, |entry| visit(&entry.record))
    }

    /// The registration next to an address: `(address, length)`.
    pub fn nearest(&self, address: u64) -> Option<(u64, u64)> {
        let (before, after) = self.by_address.around(|key| key.0 <= address);
        let distance = |entry: &ByAddress| {
            if entry.start > address {
                entry.start - address
            } else {
                address.saturating_sub(entry.end)
            }
        };
        let nearest = before.into_iter().chain(after).min_by_key(|entry| distance(entry))?;
        Some((nearest.start, nearest.end - nearest.start))
    }

    /// The remotely visible region of that id.
    pub(super) fn region(&self, id: u64) -> Option<(Position, &Record)> {
        let (position, entry) = self.by_region.find(id)?;
        Some((position, &entry.record))
    }

    /// The region at a position that this table answered.
    pub(super) fn region_at(&self, position: Position) -> Option<&Record> {
        Some(&self.by_region.at(position)?.record)
    }

    /// A copy to change, with the next version. Shares all nodes with this one.
    pub(super) fn successor(&self) -> Self {
        Self { version: self.version + 1, ..self.clone() }
    }

    pub(super) fn insert(&mut self, record: &Arc<Record>) {
        let (start, end, id) = (record.address, record.end(), record.key.id);
        self.by_address.insert(ByAddress { start, end, id, record: Arc::clone(record) });
        if record.permission.is_remote() {
            self.by_region.insert(ByRegion { id, record: Arc::clone(record) });
            self.catalog = self.version;
        }
    }

    pub(super) fn remove(&mut self, record: &Record) {
        self.by_address.remove(address_key(record.address, record.key.id));
        if record.permission.is_remote() {
            self.by_region.remove(record.key.id);
            self.catalog = self.version;
        }
    }
}
