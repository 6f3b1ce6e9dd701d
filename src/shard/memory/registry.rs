//! Where registrations begin and end. Cold: each change takes a lock and publishes a new table; look-ups
//! use the published table and never come here.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64 as Counter, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;

use crate::error::{Error, Result};
use crate::sys::sync::AtomicU64;
use crate::types::{Permission, RangeLocation, RegionKey, SegmentRange, ShardIndex};

use super::backing::Backing;
use super::counters::{Counters, MemoryCounters};
use super::gate::{Gate, behind, wait_past};
use super::record::{Draining, Record};
use super::registration::{RangeId, Registration, RegistrationRequest};
use super::table::Table;

/// Bound of a withdrawal where nobody set another.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// What happens around a withdrawal; set once by the engine.
struct Withdrawal {
    timeout: Duration,
    ring: Box<dyn Fn() + Send + Sync>,
}

struct Writer {
    live: HashMap<RangeId, Weak<Registration>>,
    /// Withdrawn, but some shard had not confirmed in time: `(version, record)`.
    unconfirmed: Vec<(u64, Draining)>,
    closed: bool,
}

/// The registrations of one engine. Shared by callers, shards and the control plane.
pub(crate) struct Registry {
    table: ArcSwap<Table>,
    /// Version of the table, stored after it. Apart, so that a look at it is one load of a line that
    /// only registrations write.
    version: CachePadded<AtomicU64>,
    gates: Box<[Gate]>,
    counters: Arc<Counters>,
    max_registrations: u32,
    /// A forked child must not act for its parent's engine.
    process: u32,
    withdrawal: OnceLock<Withdrawal>,
    #[expect(clippy::disallowed_types, reason = "orders registrations; no look-up takes it")]
    writer: std::sync::Mutex<Writer>,
    #[cfg(test)]
    pub(super) locks_taken: Counter,
    #[cfg(test)]
    breaks_shards: std::sync::atomic::AtomicBool,
}

impl Registry {
    /// An empty registry with room for `max_registrations` at a time, and one quiescent gate for each of
    /// `shards` shards.
    #[expect(clippy::disallowed_types, reason = "see the field")]
    pub fn new(max_registrations: u32, shards: usize) -> Arc<Self> {
        let table = Table::new();
        let version = CachePadded::new(AtomicU64::new(table.version()));
        Arc::new(Self {
            table: ArcSwap::from_pointee(table),
            version,
            gates: std::iter::repeat_with(Gate::new).take(shards).collect(),
            counters: Arc::default(),
            max_registrations,
            process: std::process::id(),
            withdrawal: OnceLock::new(),
            writer: std::sync::Mutex::new(Writer {
                live: HashMap::new(),
                unconfirmed: Vec::new(),
                closed: false,
            }),
            #[cfg(test)]
            locks_taken: Counter::new(0),
            #[cfg(test)]
            breaks_shards: false.into(),
        })
    }

    /// Sets the bound of withdrawals that have no other (`handler_timeout_us`), and what rings the bells
    /// of all shards afterwards, so that parked ones drop their share of the old table soon. `ring` must
    /// not block and must not hold this registry. Only the first call counts.
    pub fn set_withdrawal(&self, timeout: Duration, ring: impl Fn() + Send + Sync + 'static) {
        let _already_set = self.withdrawal.set(Withdrawal { timeout, ring: Box::new(ring) });
    }

    /// Bound of withdrawals that have no other.
    pub fn withdrawal_timeout(&self) -> Duration {
        self.withdrawal.get().map_or(DEFAULT_TIMEOUT, |withdrawal| withdrawal.timeout)
    }

    /// Version of the published table. One load; it pairs with the store that follows the table's, so a
    /// snapshot taken afterwards is at least that new.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The published table.
    pub fn snapshot(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// The gate of a shard.
    ///
    /// # Panics
    /// If the shard is not one of those that the registry was made for.
    pub fn gate(&self, shard: ShardIndex) -> &Gate {
        &self.gates[usize::from(shard.0)]
    }

    /// What peers may see: the catalog's generation (never 0; it changes with each change of a remotely
    /// visible region, and with nothing else) and the regions in order of their address.
    #[cfg(test)]
    pub fn describe(&self) -> (u64, Vec<super::table::RegionInfo>) {
        let table = self.snapshot();
        (table.catalog_generation(), table.regions().collect())
    }

    /// Where a range lies that one live registration contains. Fails with `NotRegistered` otherwise and
    /// with `InvalidRequest` for an empty range or one that wraps.
    pub fn locate(&self, address: u64, length: u64) -> Result<RangeLocation> {
        check_range(address, length)?;
        let table = self.snapshot();
        table
            .containing(address, length, |record| (!record.is_closed()).then_some(record.location))
            .map(|location| RangeLocation::new(address, length, location))
            .ok_or_else(|| not_registered(&table, address, length))
    }

    /// The counters now.
    pub fn counters(&self) -> MemoryCounters {
        self.counters.now()
    }

    /// Registers one range and publishes it before it returns.
    ///
    /// The same range of the same backing again gives one more reference to the same registration, whose
    /// permission stays. Fails with `InvalidRequest` if the range is empty or does not lie inside the
    /// backing, with `ResourceExhausted` at `max_registrations`, with `Closed` after
    /// [`close`](Self::close), and with `Unavailable` in a forked child. Nothing is published then.
    pub fn register(
        self: &Arc<Self>,
        backing: Backing,
        offset: u64,
        length: u64,
        permission: Permission,
    ) -> Result<Arc<Registration>> {
        let request = RegistrationRequest { backing, offset, length, permission };
        let registered = self.register_batch(std::slice::from_ref(&request))?;
        let none = || Error::Internal("one range was registered and no handle came back".into());
        registered.into_iter().next().ok_or_else(none)
    }

    /// Registers all ranges or none, and publishes them in one step. The handles come in the order of
    /// the requests. Fails as [`register`](Self::register) does for the first range that cannot be.
    pub fn register_batch(
        self: &Arc<Self>,
        requests: &[RegistrationRequest],
    ) -> Result<Vec<Arc<Registration>>> {
        let result = self.try_register(requests);
        if result.is_err() {
            self.counters.refused(requests.len());
        }
        result
    }

    fn try_register(
        self: &Arc<Self>,
        requests: &[RegistrationRequest],
    ) -> Result<Vec<Arc<Registration>>> {
        if self.is_forked() {
            return Err(Error::Unavailable("the engine belongs to another process".into()));
        }
        for (index, request) in requests.iter().enumerate() {
            SegmentRange::new(request.offset, request.length, request.backing.len()).map_err(
                |error| Error::InvalidRequest(format!("register range {index}: {error}")),
            )?;
        }
        self.sweep();
        // Declared before the lock is taken, so dropped after it: a handle that turns out to be the last
        // reference withdraws in its drop, which takes the lock.
        let mut known = Vec::with_capacity(requests.len());
        let mut fresh = HashMap::new();
        let mut writer = self.lock();
        if writer.closed {
            return Err(Error::Closed);
        }
        for request in requests {
            let same = writer.live.get(&request.id()).and_then(Weak::upgrade);
            if same.is_none() {
                let next = fresh.len();
                fresh.entry(request.id()).or_insert(next);
            }
            known.push(same);
        }
        let in_use = self.counters.now().registrations;
        let (limit, requested) = (u64::from(self.max_registrations), fresh.len() as u64);
        if requested > limit.saturating_sub(in_use) {
            let resource = "max_registrations";
            return Err(Error::ResourceExhausted { resource, limit, in_use, requested });
        }
        if requested == 0 {
            return Ok(known.into_iter().flatten().collect());
        }
        let mut made = HashMap::with_capacity(fresh.len());
        let mut table = self.table.load().successor();
        let mut handles = Vec::with_capacity(requests.len());
        for (request, known) in requests.iter().zip(known) {
            let handle = known.unwrap_or_else(|| {
                let make = || self.publish(request, &mut writer, &mut table);
                Arc::clone(made.entry(request.id()).or_insert_with(make))
            });
            handles.push(handle);
        }
        self.store(table);
        Ok(handles)
    }

    /// A new registration, entered into `table` and the writer's books.
    fn publish(
        self: &Arc<Self>,
        request: &RegistrationRequest,
        writer: &mut Writer,
        table: &mut Table,
    ) -> Arc<Registration> {
        let &RegistrationRequest { ref backing, offset, length, permission } = request;
        let record = Arc::new(Record::new(
            next_key(),
            backing.clone(),
            offset,
            length,
            permission,
            Arc::clone(&self.counters),
        ));
        table.insert(&record);
        self.counters.registered(length);
        let registration =
            Arc::new(Registration::new(record, backing.clone(), offset, Arc::clone(self)));
        writer.live.insert(request.id(), Arc::downgrade(&registration));
        registration
    }

    /// Takes a registration out of use.
    ///
    /// On return, also with an error, no thread and no peer becomes a new user of it. On `Ok` no shard
    /// looks at a table that names it, and the backing is given back: here, if nobody uses it, else by
    /// its last user. Fails with `Unquiesced` if a running shard has not confirmed within `timeout`; the
    /// backing then stays until the registry finds, in a later change or by [`sweep`](Self::sweep), that it
    /// has. A further call for it waits again; one after `Ok` is `Ok`.
    pub fn withdraw(&self, registration: &Registration, timeout: Duration) -> Result<()> {
        if self.is_forked() {
            return Ok(());
        }
        let Some((version, draining)) = self.fence(registration) else { return Ok(()) };
        let outstanding = wait_past(&self.gates, version, timeout);
        let result = if outstanding == 0 {
            release(draining);
            Ok(())
        } else {
            let record = registration.record();
            let what = format!(
                "the withdrawal of {} bytes at {:#x}: running shards that did not turn within {} us",
                record.length,
                record.address,
                timeout.as_micros()
            );
            self.lock().unconfirmed.push((version, draining));
            Err(Error::Unquiesced { what, outstanding: outstanding as u64 })
        };
        if let Some(withdrawal) = self.withdrawal.get() {
            (withdrawal.ring)();
        }
        if outstanding == 0 {
            // Every shard is past this table, so what was held for older ones can go, too.
            self.sweep();
        }
        result
    }

    /// Closes the record and publishes a table without it; or finds one that was closed before and is
    /// not confirmed. `None` if there is nothing left to do.
    fn fence(&self, registration: &Registration) -> Option<(u64, Draining)> {
        let record = registration.shared_record();
        let mut writer = self.lock();
        let Some(draining) = Draining::close(record) else {
            let same = |(_, other): &(u64, Draining)| Arc::ptr_eq(other.record(), record);
            let at = writer.unconfirmed.iter().position(same)?;
            return Some(writer.unconfirmed.swap_remove(at));
        };
        // While the last handle of this one is being dropped, a later registration of the same range may
        // have taken its place in the books: that one stays. One without handles is no loss.
        let id = registration.id();
        let ours = std::ptr::from_ref(registration);
        let is_over = |weak: &Weak<Registration>| {
            weak.strong_count() == 0 || std::ptr::eq(weak.as_ptr(), ours)
        };
        if writer.live.get(&id).is_some_and(is_over) {
            writer.live.remove(&id);
        }
        self.counters.withdrawn(record.length);
        let mut table = self.table.load().successor();
        table.remove(record);
        let version = table.version();
        self.store(table);
        Some((version, draining))
    }

    /// Gives back what earlier withdrawals had to hold because a shard had not confirmed, where all have
    /// meanwhile. Registering and withdrawing do it, too. Answers how many are still held.
    pub fn sweep(&self) -> usize {
        let mut ready = Vec::new();
        let held = {
            let mut writer = self.lock();
            let mut held = Vec::new();
            for (version, draining) in std::mem::take(&mut writer.unconfirmed) {
                if behind(&self.gates, version) == 0 {
                    ready.push(draining);
                } else {
                    held.push((version, draining));
                }
            }
            writer.unconfirmed = held;
            writer.unconfirmed.len()
        };
        // Outside the lock: owners are foreign code and may come back here.
        ready.into_iter().for_each(release);
        held
    }

    /// Refuses further registrations. Those that exist stay valid until their handles are dropped.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    fn store(&self, table: Table) {
        let version = table.version();
        self.table.store(Arc::new(table));
        self.version.store(version, Ordering::Release);
    }

    /// A thread that panicked in here left nothing half done: each change is published by one store.
    fn lock(&self) -> MutexGuard<'_, Writer> {
        #[cfg(test)]
        self.locks_taken.fetch_add(1, Ordering::Relaxed);
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries that are held for registrations, live and unconfirmed.
    #[cfg(test)]
    pub(super) fn books(&self) -> usize {
        let writer = self.lock();
        writer.live.len() + writer.unconfirmed.len()
    }

    /// Every shard panics in its next turn.
    #[cfg(test)]
    pub(crate) fn break_shards(&self) {
        self.breaks_shards.store(true, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn break_if_told(&self) {
        assert!(!self.breaks_shards.load(Ordering::Relaxed), "a shard that a test breaks");
    }

    /// Whether this process is a child of the one that made the registry. One getpid(2).
    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // Views and gates are gone with the last reference, so no shard can still have to confirm. That
        // reference may have been a shard's.
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, draining) in writer.unconfirmed.drain(..) {
            draining.leave_to_reaper();
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("version", &self.version())
            .field("counters", &self.counters())
            .field("gates", &self.gates)
            .finish_non_exhaustive()
    }
}

/// Lets go of a record that no shard can reach any more. On this thread, a caller's.
fn release(draining: Draining) {
    match draining.try_release() {
        Ok(backing) => drop(backing),
        Err(used) => used.leave_on_caller(),
    }
}

/// A range that can lie in memory at all.
pub(super) fn check_range(address: u64, length: u64) -> Result<()> {
    SegmentRange::new(address, length, u64::MAX).map(drop).map_err(|_| {
        Error::InvalidRequest(format!(
            "{length} bytes at {address:#x}: the length must be 1..=2^47 and the range must not wrap"
        ))
    })
}

/// The error for a range that no registration contains, with the nearest one as a hint.
#[cold]
pub(super) fn not_registered(table: &Table, address: u64, length: u64) -> Error {
    let hint = match table.nearest(address) {
        Some((start, bytes)) => format!(", the nearest is {bytes} bytes at {start:#x}"),
        None => ", none exists".to_owned(),
    };
    Error::NotRegistered { address, length, hint }
}

/// Region ids rise by one for the life of the process, over all engines. The first is random, below
/// 2^62: it tells peers nothing, a guess does not hit, and the counter cannot wrap. Generations
/// count beside it and skip 0.
fn next_key() -> RegionKey {
    static IDS: OnceLock<Counter> = OnceLock::new();
    static GENERATIONS: AtomicU32 = AtomicU32::new(1);
    let ids = IDS.get_or_init(|| {
        let mut random = [0; 8];
        // Without the kernel's generator ids are still unique, only easier to guess; the proof of the
        // epoch and the permission do not hang on them.
        let _ = getrandom::fill(&mut random);
        Counter::new((u64::from_le_bytes(random) >> 2) + 1)
    });
    let mut generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
    if generation == 0 {
        generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
    }
    RegionKey { id: ids.fetch_add(1, Ordering::Relaxed), generation }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use super::*;
    use crate::shard::memory::HostMemory;

    #[test]
    fn a_forked_child_registers_nothing_and_lets_nothing_go() {
        let mut registry = Registry::new(8, 1);
        Arc::get_mut(&mut registry).unwrap().process += 1;
        let memory = HostMemory::from_vec(vec![0; 8]).unwrap();
        let backing = Backing::Host(Arc::clone(&memory));
        let error = registry.register(backing.clone(), 0, 8, Permission::Local).unwrap_err();
        assert_eq!(error.code(), "unavailable");
        assert!(error.to_string().contains("another process"), "{error}");

        // As the parent's handle looks in its child.
        let counters = Arc::clone(&registry.counters);
        let record = Record::new(next_key(), backing.clone(), 0, 8, Permission::Local, counters);
        let registration = Registration::new(Arc::new(record), backing, 0, Arc::clone(&registry));
        registration.withdraw(Duration::ZERO).unwrap();
        assert!(!registration.record().is_closed());
        let owners = Arc::strong_count(&memory);
        drop(registration);
        assert_eq!(Arc::strong_count(&memory), owners, "nothing was let go");
    }

    #[test]
    fn region_ids_rise_and_generations_are_never_zero() {
        let keys: Vec<_> = (0..100).map(|_| next_key()).collect();
        assert!(keys.windows(2).all(|pair| pair[0].id < pair[1].id));
        assert!(keys.iter().all(|key| key.generation != 0 && key.id != 0 && key.id < 1 << 63));
    }
}
