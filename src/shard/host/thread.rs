//! A plain thread, pinned to one core.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use crate::error::{Error, Result};
use crate::shard::driver::Driver;
use crate::shard::host::HostPlan;
use crate::shard::wait::Spinner;
use crate::sys::{affinity, memory};

/// A running shard thread.
#[derive(Debug)]
pub(crate) struct Running {
    pub thread: JoinHandle<()>,
    /// Closed when the thread's work is over.
    pub over: mpsc::Receiver<()>,
    /// The core that the thread is bound to.
    pub core: Option<u32>,
}

/// Starts a thread, binds it, makes the driver on it and runs it. Returns once the driver is made;
/// fails, with nothing left behind, if it cannot be made or the thread cannot be bound as demanded.
pub(crate) fn start(
    plan: HostPlan,
    make: impl FnOnce() -> Result<Driver> + Send + 'static,
    ended: impl FnOnce() + Send + 'static,
) -> Result<Running> {
    let (ready, started) = mpsc::sync_channel(1);
    let (end, over) = mpsc::channel();
    let name = plan.name.clone();
    let body = move || {
        let _end_is_told_by_its_drop: mpsc::Sender<()> = end;
        let driver = bind(&plan).and_then(|core| Ok((core, make()?)));
        let (core, mut driver) = match driver {
            Ok(made) => made,
            Err(error) => {
                let _starter_waits = ready.send(Err(error));
                return;
            }
        };
        let _starter_waits = ready.send(Ok(core));
        let mut spinner = Spinner::new(plan.policy);
        let run = catch_unwind(AssertUnwindSafe(|| driver.run_to_stop(&mut spinner)));
        if run.is_err() {
            // What the driver holds may be in use by the kernel's view of a broken state: keep it all.
            // Its gate was parked as it unwound, so that withdrawals do not wait for it.
            std::mem::forget(driver);
            tracing::error!(shard = plan.name, "a shard panicked and is fenced; please report it");
        }
        ended();
    };
    let thread = Builder::new()
        .name(name.clone())
        .spawn(body)
        .map_err(|error| Error::io(format!("starting thread {name}"), "clone", &error))?;
    match started.recv() {
        Ok(Ok(core)) => Ok(Running { thread, over, core }),
        Ok(Err(error)) => {
            let _it_has_ended = thread.join();
            Err(error)
        }
        Err(_) => {
            let _it_has_ended = thread.join();
            Err(Error::Internal(format!("thread {name} ended before it started its shard")))
        }
    }
}

fn bind(plan: &HostPlan) -> Result<Option<u32>> {
    let core = match plan.seat.core {
        None => None,
        Some(core) => match affinity::pin_current_thread(core) {
            Ok(()) => Some(core),
            Err(error) if plan.must_pin => {
                return Err(Error::Unavailable(format!(
                    "cannot bind {} to core {core}: {error}; widen the affinity mask or set \
                     shards.pin to \"prefer\"",
                    plan.name
                )));
            }
            Err(error) => {
                tracing::info!(core, %error, "shard runs unpinned");
                None
            }
        },
    };
    if let (true, Some(node)) = (plan.bind_memory, plan.seat.node) {
        if let Err(error) = memory::prefer_node(node) {
            tracing::debug!(node, %error, "shard memory is not bound to its node");
        }
    }
    Ok(core)
}
