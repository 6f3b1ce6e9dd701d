//! Acceptance cases of registration, seen from the registry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::error::Error;
use crate::types::{MAX_LENGTH, Permission, RegionKey, TransferOp};

use super::sys::external_atomics;
use super::tree::{NODE_MAX, take_copies};
use super::*;

const SOON: Duration = Duration::from_secs(20);
pub(super) const RW: Permission = Permission::RemoteReadWrite;

/// Tells the name of the thread that drops it.
struct Watched(Sender<String>);

impl Drop for Watched {
    fn drop(&mut self) {
        let name = std::thread::current().name().unwrap_or("?").to_owned();
        // The test may be over.
        let _ = self.0.send(name);
    }
}

fn atomics(len: usize) -> &'static [AtomicU8] {
    Vec::leak((0..len).map(|_| AtomicU8::new(0)).collect())
}

fn watched_at(bytes: &'static [AtomicU8]) -> (Backing, Receiver<String>) {
    let (tell, drops) = channel();
    (Backing::Host(external_atomics(bytes, Arc::new(Watched(tell)))), drops)
}

pub(super) fn watched(len: usize) -> (Backing, Receiver<String>) {
    watched_at(atomics(len))
}

pub(super) fn plain(len: usize) -> Backing {
    Backing::Host(HostMemory::from_vec(vec![0; len]).unwrap())
}

pub(super) fn registry() -> Arc<Registry> {
    Registry::new(100_000, 2)
}

fn named<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().name(name.into()).spawn(body).unwrap().join().unwrap()
}

pub(super) fn key(registration: &Registration) -> RegionKey {
    registration.record().key
}

/// The claim of a call's first range.
pub(super) fn pin(view: &mut View, address: u64, length: u64) -> Result<Pin, Error> {
    match view.pin_further(address, length, &[])? {
        Pinned::New(pin) => Ok(pin),
        Pinned::Held(at) => panic!("pin {at} of a call without pins"),
    }
}

pub(super) fn dropped_once(drops: &Receiver<String>) -> String {
    let by = drops.recv_timeout(SOON).unwrap();
    assert!(drops.try_recv().is_err(), "dropped twice");
    by
}

pub(super) fn not_yet(drops: &Receiver<String>) -> bool {
    drops.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty)
}

/// CORE-021: the same range again is one more reference, and the first permission stays.
#[test]
fn core_021_the_same_range_again_is_one_more_reference() {
    let (registry, memory) = (registry(), plain(4096));
    let first = registry.register(memory.clone(), 0, 4096, Permission::RemoteRead).unwrap();
    let again = registry.register(memory.clone(), 0, 4096, RW).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    assert_eq!(again.record().permission, Permission::RemoteRead);
    assert_eq!(registry.counters().registrations, 1);
    let (address, mut view) = (memory.address(), View::new(Arc::clone(&registry)));
    drop(first);
    pin(&mut view, address, 4096).unwrap().release_on_caller();
    drop(again);
    assert_eq!(pin(&mut view, address, 4096).unwrap_err().code(), "not_registered");
    assert_eq!(registry.counters(), MemoryCounters::default());
}

/// CORE-022: a range over two adjacent registrations lies in neither.
#[test]
fn core_022_adjacent_registrations_do_not_join() {
    let (registry, memory) = (registry(), plain(8192));
    let low = registry.register(memory.clone(), 0, 4096, RW).unwrap();
    let high = registry.register(memory.clone(), 4096, 4096, RW).unwrap();
    let mut view = View::new(registry);
    let error = pin(&mut view, memory.address() + 4000, 200).unwrap_err();
    assert_eq!(error.code(), "not_registered");
    let nearest = format!("the nearest is 4096 bytes at {:#x}", memory.address());
    assert!(error.to_string().contains(&nearest), "{error}");
    assert_eq!((low.record().users(), high.record().users()), (0, 0));
    for (offset, record) in [(4000, low.record()), (4096, high.record())] {
        let pin = pin(&mut view, memory.address() + offset, 96).unwrap();
        assert_eq!(pin.record().key, record.key);
        pin.release_on_caller();
    }
}

/// CORE-023: of a batch with one bad range nothing is published; a good one appears in one step.
#[test]
fn core_023_a_batch_is_published_whole_or_not_at_all() {
    let (registry, memory) = (registry(), plain(8192));
    let request = |offset, length| RegistrationRequest {
        backing: memory.clone(),
        offset,
        length,
        permission: RW,
    };
    let before = (registry.version(), registry.describe());
    let bad = [request(0, 100), request(8000, 193), request(200, 100)];
    let error = registry.register_batch(&bad).unwrap_err();
    assert_eq!(error.code(), "invalid_request");
    assert!(error.to_string().contains("range 1: 193 bytes at offset 8000"), "{error}");
    assert_eq!((registry.version(), registry.describe()), before);
    assert_eq!(registry.counters().registrations, 0);
    assert_eq!(registry.counters().registration_failures, 3);
    let mut view = View::new(Arc::clone(&registry));
    assert!(pin(&mut view, memory.address(), 100).is_err());

    let good = [request(0, 100), request(8000, 192), request(0, 100)];
    let handles = registry.register_batch(&good).unwrap();
    assert_eq!(registry.version(), before.0 + 1, "one step");
    assert!(Arc::ptr_eq(&handles[0], &handles[2]) && !Arc::ptr_eq(&handles[0], &handles[1]));
    assert_eq!(registry.describe().1.len(), 2);
    assert!(registry.register_batch(&[]).unwrap().is_empty());
}

/// CORE-024: lengths and ranges that cannot be are refused by name.
#[test]
fn core_024_impossible_ranges_are_invalid_requests() {
    let (registry, memory) = (registry(), plain(4096));
    let ranges = [(0, 0), (4097, 0), (0, 4097), (4096, 1), (u64::MAX, 2), (0, MAX_LENGTH + 1)];
    for (offset, length) in ranges {
        let error = registry.register(memory.clone(), offset, length, RW).unwrap_err();
        assert_eq!(error.code(), "invalid_request", "{offset} {length}");
        assert!(error.to_string().contains("4096"), "names the limit: {error}");
    }
    let _all = registry.register(memory.clone(), 0, 4096, RW).unwrap();
    let mut view = View::new(Arc::clone(&registry));
    for (address, length) in [(memory.address(), 0), (u64::MAX, 2), (0, MAX_LENGTH + 1)] {
        assert_eq!(pin(&mut view, address, length).unwrap_err().code(), "invalid_request");
        assert_eq!(registry.locate(address, length).unwrap_err().code(), "invalid_request");
    }
}

/// CORE-025, the part of the registry: admitted work keeps the owner, which is dropped once, after it,
/// and not on the shard that ended it.
#[test]
fn core_025_an_owner_outlives_admitted_work_and_is_not_dropped_on_a_shard() {
    let (registry, (memory, drops)) = (registry(), watched(4096));
    let registration = registry.register(memory.clone(), 0, 4096, RW).unwrap();
    let region = key(&registration);
    drop(memory);
    let shared = Arc::clone(&registry);
    let drops = named("shard", move || {
        let view = View::new(Arc::clone(&shared));
        let (address, length, lease) = view.hold(region, TransferOp::Read).unwrap();
        assert_eq!((address, length), (registration.record().address, 4096));
        assert_eq!(registration.record().users(), 1);
        drop(registration);
        assert_eq!(shared.counters().retained_after_unregister_bytes, 4096);
        assert!(not_yet(&drops), "the lease holds it");
        drop(lease);
        drops
    });
    assert_eq!(dropped_once(&drops), "orbite-reaper");
    assert_eq!(registry.counters(), MemoryCounters::default());
}

/// The same for a submission that its shard completes, and for one that ends on its caller's thread.
#[test]
fn a_pin_released_on_a_shard_sends_the_owner_to_the_reaper_and_on_a_caller_drops_it() {
    for (thread, expected) in [("shard", "orbite-reaper"), ("caller", "caller")] {
        let (registry, (memory, drops)) = (registry(), watched(64));
        let address = memory.address();
        let registration = registry.register(memory, 0, 64, RW).unwrap();
        let pin = pin(&mut View::new(registry), address + 8, 8).unwrap();
        drop(registration);
        assert!(not_yet(&drops));
        named(thread, move || {
            if thread == "shard" {
                pin.release_on_shard();
            } else {
                pin.release_on_caller();
            }
            pin.release_on_caller();
            pin.release_on_shard();
        });
        assert_eq!(dropped_once(&drops), expected);
    }
}

/// CORE-026: after `withdraw` returned no thread gets in, whatever table it has, and no peer.
#[test]
fn core_026_nothing_starts_after_unregister_returned() {
    let (registry, memory) = (registry(), plain(4096));
    let registration = registry.register(memory.clone(), 0, 4096, RW).unwrap();
    let region = key(&registration);
    let mut stale = View::new(Arc::clone(&registry));
    let stale_shard = View::new(Arc::clone(&registry));
    drop(registration);
    assert_eq!(pin(&mut stale, memory.address(), 1).unwrap_err().code(), "not_registered");
    assert_eq!(
        stale_shard.hold(region, TransferOp::Read).unwrap_err(),
        Denied::Gone,
        "a stale table names it, its word does not let in"
    );
    for _ in 0..4 {
        let (registry, address) = (Arc::clone(&registry), memory.address());
        let error = named("other", move || pin(&mut View::new(registry), address, 1).unwrap_err());
        assert_eq!(error.code(), "not_registered");
        assert!(error.to_string().contains("none exists"), "{error}");
    }
    assert_eq!(registry.locate(memory.address(), 1).unwrap_err().code(), "not_registered");
}

/// CORE-027: an old descriptor does not reach another owner at the same address.
#[test]
fn core_027_a_new_owner_at_the_same_address_is_another_region() {
    let (registry, bytes) = (registry(), atomics(256));
    let (first, drops) = watched_at(bytes);
    let registration = registry.register(first, 0, 256, RW).unwrap();
    let old = key(&registration);
    let mut view = View::new(Arc::clone(&registry));
    drop(registration);
    dropped_once(&drops);
    let (second, _drops) = watched_at(bytes);
    let registration = registry.register(second, 0, 256, RW).unwrap();
    let new = key(&registration);
    assert!(new.id != old.id && new.generation != 0);
    for guess in [old, RegionKey { generation: old.generation, ..new }] {
        assert_eq!(view.hold(guess, TransferOp::Write).unwrap_err(), Denied::Gone);
    }
    let (address, length, lease) = view.hold(new, TransferOp::Write).unwrap();
    assert_eq!((address, length), (bytes.as_ptr().addr() as u64, 256));
    drop(lease);
    pin(&mut view, bytes.as_ptr().addr() as u64, 256).unwrap().release_on_caller();
}

/// CORE-028: the limit is named, and one release makes room.
#[test]
fn core_028_the_limit_of_registrations() {
    let registry = Registry::new(2, 0);
    let memory = plain(4096);
    let register = |offset, length| registry.register(memory.clone(), offset, length, RW);
    let first = register(0, 1).unwrap();
    let _second = register(1, 1).unwrap();
    let _same = register(1, 1).unwrap();
    match register(2, 1).unwrap_err() {
        Error::ResourceExhausted { resource, limit, in_use, requested } => {
            assert_eq!((resource, limit, in_use, requested), ("max_registrations", 2, 2, 1));
        }
        other => panic!("{other}"),
    }
    drop(first);
    register(2, 1).unwrap();
}

/// CORE-029: an external owner is dropped once, whether the registry or the handle goes first.
#[test]
fn core_029_an_owner_is_dropped_once_when_everything_is_gone() {
    for registry_first in [true, false] {
        let (registry, (memory, drops)) = (registry(), watched(128));
        let registration = registry.register(memory, 0, 128, RW).unwrap();
        registry.close();
        let refused = registry.register(plain(1), 0, 1, RW).unwrap_err();
        assert_eq!(refused.code(), "closed");
        if registry_first {
            drop(registry);
            registration.write_at(120, b"is valid").unwrap();
            assert!(not_yet(&drops));
            drop(registration);
        } else {
            drop(registration);
            drop(registry);
        }
        dropped_once(&drops);
    }
}

/// CORE-030: locations are clipped to what was asked, and asking takes no lock.
#[test]
fn core_030_location_queries_take_no_lock() {
    let (registry, memory) = (registry(), plain(4096));
    let registration = registry.register(memory.clone(), 1024, 2048, RW).unwrap();
    let locks = registry.locks_taken.load(Ordering::Relaxed);
    let part = registry.locate(memory.address() + 1100, 7).unwrap();
    assert_eq!((part.address, part.length), (memory.address() + 1100, 7));
    let record = registration.record();
    assert_eq!((record.address, record.length), (memory.address() + 1024, 2048));
    assert!(registry.locate(memory.address() + 3000, 100).is_err(), "past the registration");
    pin(&mut View::new(Arc::clone(&registry)), part.address, 7).unwrap().release_on_caller();
    assert_eq!(registry.locks_taken.load(Ordering::Relaxed), locks);
}

/// CORE-031: overlapping and equal ranges of different owners from 8 threads are handles of their own.
#[test]
fn core_031_overlapping_owners_from_eight_threads() {
    let (registry, bytes) = (registry(), atomics(4096));
    let address = bytes.as_ptr().addr() as u64;
    let threads: Vec<_> = (0..8u64)
        .map(|thread| {
            let registry = Arc::clone(&registry);
            std::thread::Builder::new().spawn(move || {
                let mut all_drops = Vec::new();
                let mut view = View::new(Arc::clone(&registry));
                for round in 0..50 {
                    let (memory, drops) = watched_at(bytes);
                    // All threads share one range, and each has one of its own that overlaps it.
                    let whole = registry.register(memory.clone(), 0, 4096, RW).unwrap();
                    let own = registry.register(memory, thread * 8, 2048, RW).unwrap();
                    assert_ne!(key(&whole), key(&own));
                    if round % 2 == 0 {
                        drop(whole);
                    } else {
                        drop(own);
                    }
                    let pin = pin(&mut view, address + thread * 8, 1).unwrap();
                    let record = pin.record();
                    let inside = record.address..record.end();
                    assert!(inside.contains(&(address + thread * 8)));
                    pin.release_on_caller();
                    all_drops.push(drops);
                }
                all_drops
            })
        })
        .collect();
    for thread in threads {
        for drops in thread.unwrap().join().unwrap() {
            dropped_once(&drops);
        }
    }
    assert_eq!(registry.counters(), MemoryCounters::default());
    assert_eq!(registry.snapshot().records().count(), 0);
}

/// Of several registrations around a range the one with the highest start counts, the oldest of equals;
/// without it the next one does.
#[test]
fn the_highest_start_wins_and_the_older_on_a_tie() {
    let (registry, bytes) = (registry(), atomics(1000));
    let address = bytes.as_ptr().addr() as u64;
    let register = |offset, length| {
        let (memory, _) = watched_at(bytes);
        registry.register(memory, offset, length, RW).unwrap()
    };
    let whole = register(0, 1000);
    let high = register(500, 100);
    let older = register(400, 300);
    let younger = register(400, 300);
    let longer = register(400, 600);
    let mut view = View::new(Arc::clone(&registry));
    let mut answer = |offset, length| {
        let pin = pin(&mut view, address + offset, length).unwrap();
        pin.release_on_caller();
        pin.record().key
    };
    assert_eq!(answer(550, 50), key(&high));
    assert_eq!(answer(550, 51), key(&older));
    assert_eq!(answer(650, 200), key(&longer));
    drop(older);
    assert_eq!(answer(550, 51), key(&younger));
    assert_eq!(answer(399, 2), key(&whole));
}

/// Ranges of one call claim a registration once, however many lie in it, and a call that has it goes on
/// with it when it is withdrawn meanwhile.
#[test]
fn a_call_claims_each_registration_once() {
    let (registry, memory) = (registry(), plain(8192));
    let low = registry.register(memory.clone(), 0, 4096, RW).unwrap();
    let high = registry.register(memory.clone(), 4096, 4096, RW).unwrap();
    let (address, mut view) = (memory.address(), View::new(Arc::clone(&registry)));
    let mut held = Vec::new();
    let mut further =
        |offset, held: &mut Vec<Pin>| match view.pin_further(address + offset, 96, held)? {
            Pinned::Held(at) => Ok(at),
            Pinned::New(pin) => {
                held.push(pin);
                Ok(held.len() - 1)
            }
        };
    let mut answer =
        |offset, held: &mut Vec<Pin>| further(offset, held).map_err(|error: Error| error.code());
    for (offset, at) in [(0, 0), (4000, 0), (4096, 1), (100, 0), (8000, 1)] {
        assert_eq!(answer(offset, &mut held), Ok(at), "{offset}");
    }
    assert_eq!(held.len(), 2);
    assert_eq!((low.record().users(), high.record().users()), (1, 1));
    assert_eq!(answer(4050, &mut held), Err("not_registered"), "lies in neither");
    low.withdraw(Duration::ZERO).unwrap();
    assert_eq!(answer(200, &mut held), Ok(0), "a table that still names it");
    assert_eq!(answer(200, &mut Vec::new()), Err("not_registered"));
    assert_eq!(answer(4096, &mut held), Ok(1));
    held.iter().for_each(Pin::release_on_caller);
    drop((low, high));
    assert_eq!(registry.counters(), MemoryCounters::default());
}

/// Of two registrations around a range a call goes on with the better one, also if it holds the other.
#[test]
fn a_pin_of_a_worse_registration_does_not_keep_from_the_better_one() {
    let (registry, memory) = (registry(), plain(8192));
    let _whole = registry.register(memory.clone(), 0, 8192, RW).unwrap();
    let part = registry.register(memory.clone(), 4096, 4096, RW).unwrap();
    let mut view = View::new(registry);
    let first = pin(&mut view, memory.address(), 96).unwrap();
    let held = [first];
    match view.pin_further(memory.address() + 4096, 96, &held).unwrap() {
        Pinned::New(pin) => {
            assert_eq!(pin.record().key, key(&part));
            pin.release_on_caller();
        }
        Pinned::Held(at) => panic!("pin {at}"),
    }
    held[0].release_on_caller();
}

/// CORE-037: a local registration is not described and no guess of its id reaches it.
#[test]
fn core_037_local_registrations_are_invisible_to_peers() {
    let (registry, memory) = (registry(), plain(8192));
    let register =
        |offset, permission| registry.register(memory.clone(), offset, 1024, permission).unwrap();
    let (generation, regions) = registry.describe();
    assert!(generation != 0 && regions.is_empty());
    let local = register(0, Permission::Local);
    assert_eq!(registry.describe(), (generation, regions), "not even the generation tells");
    let write = register(4096, Permission::RemoteWrite);
    let read = register(2048, Permission::RemoteRead);
    let (next, regions) = registry.describe();
    assert_ne!(next, generation);
    let keys: Vec<_> = regions.iter().map(|region| region.key).collect();
    assert_eq!(keys, [key(&read), key(&write)], "in order of their address");
    assert_eq!(regions[0].address, memory.address() + 2048);
    assert_eq!((regions[0].length, regions[0].permission), (1024, Permission::RemoteRead));

    let view = View::new(Arc::clone(&registry));
    let hold = |of, op| view.hold(of, op).map(|(address, length, _)| (address, length));
    for op in [TransferOp::Read, TransferOp::Write] {
        assert_eq!(hold(key(&local), op), Err(Denied::Gone));
    }
    assert_eq!(hold(key(&read), TransferOp::Read), Ok((memory.address() + 2048, 1024)));
    assert_eq!(hold(key(&read), TransferOp::Write), Err(Denied::Permission));
    assert_eq!(hold(key(&write), TransferOp::Read), Err(Denied::Permission));
    let other = RegionKey { generation: key(&write).generation + 1, ..key(&write) };
    assert_eq!(hold(other, TransferOp::Read), Err(Denied::Gone), "the generation comes first");
    for registration in [&local, &read, &write] {
        assert_eq!(registration.record().users(), 0, "nobody is left behind by a refusal");
    }
    drop(read);
    assert_ne!(registry.describe().0, next);
}

/// Registering and releasing many small views costs the same in every round (LOG-032), measured by
/// pointers copied; nothing stays behind in the books.
#[test]
fn the_cost_of_registering_stays_flat() {
    // Pointers are counted, so an unoptimised build learns as much from fewer views.
    const VIEWS: u64 = if cfg!(debug_assertions) { 2_000 } else { 10_000 };
    let (registry, memory) = (registry(), plain(VIEWS as usize));
    let mut rounds = Vec::new();
    take_copies();
    for _ in 0..20 {
        let mut most = 0;
        let handles: Vec<_> = (0..VIEWS)
            .map(|offset| {
                let handle = registry.register(memory.clone(), offset, 1, RW).unwrap();
                most = most.max(take_copies());
                handle
            })
            .collect();
        let mut total = 0;
        for handle in handles {
            drop(handle);
            let copied = take_copies();
            most = most.max(copied);
            total += copied;
        }
        // Two maps, one node for each level and one that is joined.
        let bound = 2 * NODE_MAX * 5;
        assert!(most <= bound, "one change copied {most}, bound {bound}");
        rounds.push(total);
    }
    assert!(rounds.iter().all(|&round| round <= rounds[0]), "{rounds:?}");
    assert_eq!(registry.counters(), MemoryCounters::default());
    assert_eq!(registry.books(), 0);
}

/// Registering 100 000 small parts of one buffer adds no mapping (LOG-108).
#[test]
fn registrations_add_no_mappings() {
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let (registry, memory) = (registry(), plain(100_000));
    let before = mappings();
    let request =
        |offset| RegistrationRequest { backing: memory.clone(), offset, length: 1, permission: RW };
    let requests: Vec<_> = (0..100_000).map(request).collect();
    let handles = registry.register_batch(&requests).unwrap();
    assert_eq!(handles.len(), 100_000);
    assert!(mappings() < before + 1_000, "more than threads and arenas of other tests explain");
    let all = registry.register(memory, 0, 100_000, RW).unwrap_err();
    assert_eq!(all.code(), "resource_exhausted");
}
