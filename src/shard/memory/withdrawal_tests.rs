//! Whom a withdrawal waits for, for how long, and what becomes of memory that a shard did not confirm.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::types::{ShardIndex, TransferOp};

use super::tests::{RW, dropped_once, key, not_yet, pin, plain, registry, watched};
use super::*;

/// A running shard that does not turn is waited for, no longer than the bound; the range is closed then,
/// its memory stays, and the answer of the shard lets it go.
#[test]
fn a_withdrawal_that_a_shard_does_not_confirm_keeps_the_memory() {
    let (registry, (memory, drops)) = (registry(), watched(64));
    let rings = Arc::new(AtomicU64::new(0));
    let ring = Arc::clone(&rings);
    registry.set_withdrawal(Duration::from_millis(5), move || {
        ring.fetch_add(1, Ordering::Relaxed);
    });
    let address = memory.address();
    let registration = registry.register(memory, 0, 64, RW).unwrap();
    let _running = registry.gate(ShardIndex(1)).enter();
    let view = View::new(Arc::clone(&registry));
    view.begin_turn(ShardIndex(1));
    match registration.withdraw_in_time().unwrap_err() {
        Error::Unquiesced { what, outstanding } => {
            assert_eq!(outstanding, 1);
            assert!(what.contains("64 bytes") && what.contains("5000 us"), "{what}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(rings.load(Ordering::Relaxed), 1);
    let pinned = pin(&mut View::new(Arc::clone(&registry)), address, 1);
    assert_eq!(pinned.unwrap_err().code(), "not_registered");
    assert_eq!(registration.withdraw(Duration::ZERO).unwrap_err().code(), "unquiesced");
    drop(registration);
    assert_eq!(rings.load(Ordering::Relaxed), 2, "the drop of a closed one withdraws nothing");
    assert!(not_yet(&drops), "the record holds its memory");
    assert_eq!(registry.sweep(), 1);
    assert_eq!(registry.counters().retained_after_unregister_bytes, 64);
    view.begin_turn(ShardIndex(1));
    assert_eq!(registry.sweep(), 0);
    dropped_once(&drops);
    assert_eq!(registry.counters(), MemoryCounters::default());
}

/// A shard whose look-up found a newer table in the middle of a turn tells so when the next turn begins,
/// though that one finds nothing newer: else a busy shard would hold the withdrawal until it parks.
#[test]
fn a_table_taken_in_the_middle_of_a_turn_is_told_with_the_next_turn() {
    let (registry, (memory, drops)) = (registry(), watched(64));
    let registration = registry.register(memory, 0, 64, RW).unwrap();
    let (shard, region) = (ShardIndex(0), key(&registration));
    let _running = registry.gate(shard).enter();
    let view = View::new(Arc::clone(&registry));
    view.begin_turn(shard);
    registration.withdraw(Duration::ZERO).unwrap_err();
    drop(registration);
    assert_eq!(view.hold(region, TransferOp::Read).unwrap_err(), Denied::Gone);
    assert_eq!(view.version(), registry.version(), "the look-up took the new table");
    assert_eq!(registry.sweep(), 1, "this turn may have begun with the old one");
    view.begin_turn(shard);
    assert_eq!(registry.sweep(), 0);
    dropped_once(&drops);
}

/// What an earlier withdrawal had to hold goes with the next one that every shard confirms; no further
/// registering is needed.
#[test]
fn a_later_withdrawal_lets_go_of_what_an_earlier_one_held() {
    let (registry, (memory, drops)) = (registry(), watched(64));
    let first = registry.register(memory, 0, 64, RW).unwrap();
    let second = registry.register(plain(64), 0, 64, RW).unwrap();
    let running = registry.gate(ShardIndex(0)).enter();
    first.withdraw(Duration::ZERO).unwrap_err();
    drop(first);
    assert!(not_yet(&drops));
    drop(running);
    second.withdraw(Duration::ZERO).unwrap();
    dropped_once(&drops);
    assert_eq!(registry.books(), 0);
}

/// A shard that never confirms holds the memory as long as the registry exists, and no longer.
#[test]
fn what_was_never_confirmed_goes_with_the_registry() {
    let (registry, (memory, drops)) = (registry(), watched(64));
    let registration = registry.register(memory, 0, 64, RW).unwrap();
    std::mem::forget(registry.gate(ShardIndex(0)).enter());
    registration.withdraw(Duration::ZERO).unwrap_err();
    drop(registration);
    assert!(not_yet(&drops));
    drop(registry);
    assert_eq!(dropped_once(&drops), "orbite-reaper");
}

/// A parked shard blocks nobody, and a second withdrawal has nothing to do.
#[test]
fn a_parked_shard_is_not_waited_for() {
    let (registry, (memory, drops)) = (registry(), watched(64));
    let registration = registry.register(memory, 0, 64, RW).unwrap();
    drop(registry.gate(ShardIndex(0)).enter());
    registration.withdraw(Duration::ZERO).unwrap();
    registration.withdraw(Duration::ZERO).unwrap();
    registration.read_at(0, &mut [0; 64]).unwrap();
    assert!(not_yet(&drops), "the handle keeps the bytes");
    drop(registration);
    dropped_once(&drops);
}
