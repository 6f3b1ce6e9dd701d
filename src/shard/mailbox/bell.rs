//! The doorbell of one shard: producers pay a system call only while the shard sleeps.
//!
//! A producer first makes its message visible (ring, queue, flag), then rings. The shard announces its
//! sleep, then looks at every source once more, then sleeps. Both put a sequentially consistent fence
//! between the two, so at least one sees the other: the shard finds the message, or the producer finds
//! the announcement. Which of several producers finds it does not matter; one signal is enough.
//!
//! Each write of the announcement is a swap, the shard's own too. So they form one chain, and a
//! producer that has the shard's latest announcement before its fence cannot read an older value,
//! such as the one it left itself when it claimed the announcement before.

use std::io;
use std::os::fd::BorrowedFd;

use crossbeam_utils::CachePadded;

use crate::sys::eventfd::EventFd;
use crate::sys::sync::{AtomicU32, Ordering, fence};

/// What wakes the sleeping thread: an eventfd, or a model of one.
pub(crate) trait Signal {
    /// Wakes the sleeper, or the next sleep if there is none.
    fn signal(&self);
    /// Forgets signals.
    fn drain(&self);
}

impl Signal for EventFd {
    fn signal(&self) {
        Self::signal(self);
    }

    fn drain(&self) {
        Self::drain(self);
    }
}

/// Belongs to one shard, which alone calls [`prepare_sleep`](Self::prepare_sleep) and
/// [`awake`](Self::awake); rung by any thread.
#[derive(Debug)]
pub(crate) struct Bell<S = EventFd> {
    /// 1 from the announcement of a sleep until a producer claims it or the shard is back.
    /// Producers read it with every message: alone on its cache line, it stays in their caches.
    asleep: CachePadded<AtomicU32>,
    signal: S,
}

impl Bell {
    /// A bell on a new eventfd. Fails with the kernel's error: mostly `EMFILE` or `ENFILE`.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self::with_signal(EventFd::new()?))
    }

    /// To put into the shard's epoll set, with interest in reading. No need to look at its events:
    /// [`awake`](Self::awake) makes it unreadable.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

impl<S: Signal> Bell<S> {
    fn with_signal(signal: S) -> Self {
        Self { asleep: CachePadded::new(AtomicU32::new(0)), signal }
    }

    /// After a message has been made visible: wakes the shard if it sleeps or is about to. Costs a
    /// fence and a load while it is awake.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) == 1 && self.asleep.swap(0, Ordering::AcqRel) == 1 {
            self.signal.signal();
        }
    }

    /// Whether the shard has announced a sleep that nobody has ended yet.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed) == 1
    }

    /// Wakes the shard whatever it has announced: for a guard, and to stop it. A shard that is awake
    /// finds its next sleep cut short.
    pub(crate) fn force(&self) {
        self.signal.signal();
    }

    /// The shard: announces a sleep. It must look at every source afterwards and sleep only if all are
    /// empty, then call [`awake`](Self::awake) either way.
    pub(crate) fn prepare_sleep(&self) {
        self.asleep.swap(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The shard: back from sleep, or it found something to do. It must look at every source before
    /// the next sleep: signals up to here are forgotten.
    pub(crate) fn awake(&self) {
        self.asleep.swap(0, Ordering::Relaxed);
        self.signal.drain();
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use std::sync::atomic::{AtomicU32 as Source, Ordering};
    use std::time::Duration;

    use super::Bell;
    use crate::sys::epoll::{Epoll, Events, Interest};

    fn listener(bell: &Bell) -> (Epoll, Events) {
        let epoll = Epoll::new().unwrap();
        epoll.add(bell.as_fd(), 0, Interest::READ).unwrap();
        (epoll, Events::with_capacity(1))
    }

    #[test]
    fn only_an_announced_sleep_is_signaled_and_only_once() {
        let bell = Bell::new().unwrap();
        let (epoll, mut events) = listener(&bell);
        let mut rung = || epoll.wait(&mut events, Some(Duration::ZERO)).unwrap() == 1;
        bell.ring();
        assert!(!rung(), "awake");
        bell.prepare_sleep();
        assert!(!rung());
        bell.ring();
        assert!(rung());
        bell.awake();
        assert!(!rung());
        bell.ring();
        assert!(!rung());
        bell.force();
        assert!(rung());
        bell.awake();
        assert!(!rung());
    }

    /// 100 000 messages of two producers at a sleeper without spinning and without a timeout. A lost
    /// wake would leave it asleep; the limit of one wait only turns that into a failure.
    #[test]
    fn no_wake_is_lost_between_two_producers_and_a_sleeper() {
        const EACH: u32 = 50_000;
        let bell = Bell::new().unwrap();
        let (epoll, mut events) = listener(&bell);
        let sources = [Source::new(0), Source::new(0)];
        std::thread::scope(|scope| {
            for source in &sources {
                scope.spawn(|| {
                    for number in 1..=EACH {
                        source.store(number, Ordering::Release);
                        bell.ring();
                        if number % 64 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let sum = || sources.iter().map(|source| source.load(Ordering::Acquire)).sum::<u32>();
            let mut seen = 0;
            while seen < 2 * EACH {
                if sum() > seen {
                    seen = sum();
                    continue;
                }
                bell.prepare_sleep();
                if sum() == seen {
                    let woken = epoll.wait(&mut events, Some(Duration::from_secs(20))).unwrap();
                    assert!(woken == 1 || sum() > seen, "a wake was lost at {seen}");
                }
                bell.awake();
            }
        });
    }
}

#[cfg(test)]
#[cfg(orbite_loom)]
#[expect(clippy::disallowed_types, reason = "the model of an eventfd")]
mod loom_tests {
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Arc, Condvar, Mutex};

    use super::{Bell, Signal};

    /// An eventfd whose reader blocks until it is readable, without a timeout.
    struct ModelEvent {
        readable: Mutex<bool>,
        reader: Condvar,
    }

    impl ModelEvent {
        fn new() -> Self {
            Self { readable: Mutex::new(false), reader: Condvar::new() }
        }

        fn wait(&self) {
            let mut readable = self.readable.lock().unwrap();
            while !*readable {
                readable = self.reader.wait(readable).unwrap();
            }
        }
    }

    impl Signal for ModelEvent {
        fn signal(&self) {
            *self.readable.lock().unwrap() = true;
            self.reader.notify_all();
        }

        fn drain(&self) {
            *self.readable.lock().unwrap() = false;
        }
    }

    /// The shard takes until it has seen `expected`, and sleeps as a Driver does in between. A lost
    /// wake leaves it in `wait` for ever, which loom reports as a deadlock.
    fn shard(bell: &Bell<ModelEvent>, sources: &[Arc<AtomicU32>], expected: u32) {
        let sum = || sources.iter().map(|source| source.load(Ordering::Acquire)).sum::<u32>();
        let mut seen = 0;
        while seen < expected {
            bell.prepare_sleep();
            if sum() == seen {
                bell.signal.wait();
            }
            bell.awake();
            seen = sum();
        }
    }

    /// Every interleaving in which the threads are taken off the CPU up to three times against their
    /// will; each park and each end switches threads besides.
    fn model(producers: usize, messages: u32) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let bell = Arc::new(Bell::with_signal(ModelEvent::new()));
            let sources: Vec<_> = (0..producers).map(|_| Arc::new(AtomicU32::new(0))).collect();
            let threads: Vec<_> = sources
                .iter()
                .map(|source| {
                    let (bell, source) = (Arc::clone(&bell), Arc::clone(source));
                    loom::thread::spawn(move || {
                        for number in 1..=messages {
                            source.store(number, Ordering::Release);
                            bell.ring();
                        }
                    })
                })
                .collect();
            shard(&bell, &sources, messages * producers as u32);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn one_producer_never_loses_a_wake() {
        model(1, 2);
    }

    #[test]
    fn two_producers_never_lose_a_wake() {
        model(2, 1);
    }
}
