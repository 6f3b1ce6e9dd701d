//! Registering, submitting and serving at once, on real threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::types::{Permission, RegionKey, ShardIndex, TransferOp};

use super::sys::external_atomics;
use super::tests::pin;
use super::*;

/// One registrar's memory, and what others may know of it.
struct Slot {
    bytes: &'static [AtomicU8],
    /// The owner of the current registration was not dropped yet.
    alive: AtomicBool,
    id: AtomicU64,
    generation: AtomicU32,
    /// Id of a region whose withdrawal has returned.
    gone: AtomicU64,
}

impl Slot {
    fn new() -> Self {
        let bytes = Vec::leak((0..64).map(|_| AtomicU8::new(0)).collect());
        let (id, gone) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { bytes, alive: AtomicBool::new(false), id, generation: AtomicU32::new(0), gone }
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }

    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }
}

struct Owner(&'static Slot);

impl Drop for Owner {
    fn drop(&mut self) {
        assert!(self.0.alive.swap(false, Ordering::SeqCst), "dropped twice");
    }
}

struct World {
    registry: Arc<Registry>,
    slots: &'static [Slot],
    /// Nothing new is registered or claimed.
    stop: AtomicBool,
    /// Nor served. Later, so that the last withdrawals still need the shards' turns.
    over: AtomicBool,
}

impl World {
    fn runs(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn serves(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn register_and_withdraw(&self, slot: &'static Slot) -> u64 {
        let mut rounds = 0;
        while self.runs() {
            slot.alive.store(true, Ordering::SeqCst);
            let memory = external_atomics(slot.bytes, Arc::new(Owner(slot)));
            let permission = Permission::RemoteReadWrite;
            let registration =
                self.registry.register(Backing::Host(memory), 0, 64, permission).unwrap();
            let RegionKey { id, generation } = registration.record().key;
            slot.generation.store(generation, Ordering::Relaxed);
            slot.id.store(id, Ordering::Release);
            thread::yield_now();
            registration.withdraw(Duration::from_secs(20)).unwrap();
            slot.gone.store(id, Ordering::SeqCst);
            drop(registration);
            while slot.is_alive() {
                thread::yield_now();
            }
            rounds += 1;
        }
        rounds
    }

    fn submit(&self) -> u64 {
        let mut view = View::new(Arc::clone(&self.registry));
        let mut claims = 0;
        while self.runs() {
            view.refresh();
            for slot in self.slots {
                match pin(&mut view, slot.address(), 64) {
                    Ok(pin) => {
                        assert!(slot.is_alive());
                        thread::yield_now();
                        assert!(slot.is_alive());
                        if claims % 2 == 0 {
                            pin.release_on_shard();
                        } else {
                            pin.release_on_caller();
                        }
                        claims += 1;
                    }
                    Err(error) => assert_eq!(error.code(), "not_registered"),
                }
            }
        }
        claims
    }

    fn serve(&self, shard: ShardIndex) -> u64 {
        let view = View::new(Arc::clone(&self.registry));
        let gate = self.registry.gate(shard);
        let (mut served, mut turns) = (0, 0u64);
        while self.serves() {
            let running = gate.enter();
            // One shard never parks, so that only its turns let a withdrawal go on.
            while self.serves() {
                view.begin_turn(shard);
                for slot in self.slots {
                    let gone = slot.gone.load(Ordering::SeqCst);
                    assert!(
                        !view.names(gone),
                        "a running shard has a table with a withdrawn region"
                    );
                    let id = slot.id.load(Ordering::Acquire);
                    let generation = slot.generation.load(Ordering::Relaxed);
                    let key = RegionKey { id, generation };
                    if let Ok((address, length, lease)) = view.hold(key, TransferOp::Read) {
                        assert_eq!((address, length), (slot.address(), 64));
                        assert!(slot.is_alive());
                        thread::yield_now();
                        assert!(slot.is_alive());
                        drop(lease);
                        served += 1;
                    }
                }
                turns += 1;
                if shard.0 == 1 && turns % 3 == 0 {
                    break;
                }
            }
            drop(running);
            thread::yield_now();
        }
        served
    }
}

/// CORE-033, short: a submission finds its memory alive from start to end or is `NotRegistered`; a
/// shard likewise, and while it runs its table names nothing whose withdrawal has returned.
#[test]
fn core_033_registering_and_using_at_once() {
    let slots: &'static [Slot] = Vec::leak((0..4).map(|_| Slot::new()).collect());
    let registry = Registry::new(64, 2);
    let world =
        World { registry, slots, stop: AtomicBool::new(false), over: AtomicBool::new(false) };
    let (rounds, claims, served) = thread::scope(|scope| {
        let registrars: Vec<_> =
            slots.iter().map(|slot| scope.spawn(|| world.register_and_withdraw(slot))).collect();
        let callers: Vec<_> = (0..2).map(|_| scope.spawn(|| world.submit())).collect();
        let shards: Vec<_> = (0..2)
            .map(|n| {
                scope.spawn({
                    let world = &world;
                    move || world.serve(ShardIndex(n))
                })
            })
            .collect();
        run_for_a_second();
        world.stop.store(true, Ordering::Relaxed);
        let join = |threads: Vec<thread::ScopedJoinHandle<'_, u64>>| -> Vec<_> {
            threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
        };
        let (registrars, callers) = (join(registrars), join(callers));
        world.over.store(true, Ordering::Relaxed);
        let sum =
            |ends: Vec<thread::Result<u64>>| -> u64 { ends.into_iter().map(Result::unwrap).sum() };
        (sum(registrars), sum(callers), sum(join(shards)))
    });
    assert!(rounds > 0 && claims > 0 && served > 0, "{rounds} {claims} {served}");
    assert_eq!(world.registry.counters(), MemoryCounters::default());
}

#[expect(clippy::disallowed_methods, reason = "a test lets its threads run")]
fn run_for_a_second() {
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
}
