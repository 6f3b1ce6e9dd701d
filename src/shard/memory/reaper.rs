//! The thread on which owners are dropped that a shard let go of last. An owner's `Drop` is foreign
//! code: it may block or take long, and a shard may not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use arc_swap::{ArcSwapOption, Guard};

use crate::error::Error;

use super::backing::Backing;

/// The process's one reaper thread, started when it is first needed.
///
/// It is keyed by the process id: a thread does not survive `fork`, so a child makes its own and never
/// waits for its parent's.
pub(crate) struct Reaper {
    process: u32,
    queue: Sender<Backing>,
}

static CURRENT: ArcSwapOption<Reaper> = ArcSwapOption::const_empty();

impl Reaper {
    /// Starts the thread if this process has none. Fails with `Io` if the kernel gives no thread. An
    /// engine calls it at its start, so that a shard never pays for it and a refusal is seen early.
    pub fn start() -> Result<(), Error> {
        match Self::current() {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::io("start the thread that drops owners", "clone", &error)),
        }
    }

    /// Has `backing` dropped on the reaper thread. Never blocks and never drops it here: if there is no
    /// thread and none can be started, the backing is leaked and that is logged.
    pub fn retire(backing: Backing) {
        let lost = match Self::current() {
            Ok(reaper) => reaper.queue.send(backing).err().map(|refused| refused.0),
            Err(_) => Some(backing),
        };
        if let Some(backing) = lost {
            tracing::error!(?backing, "no thread to drop this memory's owner: it stays for ever");
            std::mem::forget(backing);
        }
    }

    fn current() -> std::io::Result<Arc<Self>> {
        let process = std::process::id();
        let mut current = CURRENT.load();
        loop {
            if let Some(reaper) = current.as_ref().filter(|reaper| reaper.process == process) {
                return Ok(Arc::clone(reaper));
            }
            let (queue, backings) = channel();
            let ours = Arc::new(Self { process, queue });
            std::thread::Builder::new()
                .name("orbite-reaper".into())
                .spawn(move || run(&backings))?;
            // Of several starters one wins; the others' threads end with their queues.
            let before = CURRENT.compare_and_swap(&*current, Some(Arc::clone(&ours)));
            if same(&before, &current) {
                return Ok(ours);
            }
            current = before;
        }
    }
}

fn same(a: &Guard<Option<Arc<Reaper>>>, b: &Guard<Option<Arc<Reaper>>>) -> bool {
    a.as_ref().map(Arc::as_ptr) == b.as_ref().map(Arc::as_ptr)
}

fn run(backings: &Receiver<Backing>) {
    for backing in backings {
        // An owner that panics takes nothing with it but itself.
        if catch_unwind(AssertUnwindSafe(|| drop(backing))).is_err() {
            tracing::error!("the owner of retired memory panicked in its drop");
        }
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests {
    use super::*;
    use crate::shard::memory::sys::external_atomics;
    use std::time::Duration;

    struct Owner {
        tell: Sender<String>,
        panics: bool,
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            self.tell.send(std::thread::current().name().unwrap_or("?").to_owned()).unwrap();
            assert!(!self.panics, "an owner that panics");
        }
    }

    fn retired(panics: bool) -> String {
        let (tell, told) = channel();
        let memory = external_atomics(Vec::leak(vec![0.into()]), Arc::new(Owner { tell, panics }));
        Reaper::retire(Backing::Host(memory));
        told.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    #[test]
    fn owners_are_dropped_on_the_reaper_thread_which_survives_their_panics() {
        Reaper::start().unwrap();
        for panics in [false, true, false] {
            assert_eq!(retired(panics), "orbite-reaper");
        }
    }

    #[test]
    fn a_forked_child_makes_its_own() {
        let (queue, _) = channel();
        CURRENT.store(Some(Arc::new(Reaper { process: std::process::id() + 1, queue })));
        assert_eq!(retired(false), "orbite-reaper");
    }
}
