//! The inside of one engine: its identity, memory, shards, control plane and peers, and what they do
//! together. The API above turns configuration into plans and outcomes into reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::protocol::control::region::RegionDescriptor;
use crate::shard::clock::Clock;
use crate::shard::control::{Catalog, Control, ControlCounters, ControlPlan, Opened, ShardInbox};
use crate::shard::identities::{Identities, Identity};
use crate::shard::memory::{Backing, MemoryCounters, Reaper, RegionInfo, Registration, Registry};
use crate::shard::peer::{Peer, PeerRegion, Snapshot};
use crate::shard::port::admission::{AdmissionRules, Aim, Ask, Refusal};
use crate::shard::port::{Ran, with_port};
use crate::shard::set::{SetPlan, ShardSet, Threads};
use crate::sys::process;
use crate::transfer::report::Summary;
use crate::types::{
    Endpoint, MemoryLocation, MemoryType, Permission, RangeLocation, SourceEpoch, TransferOp,
    Transport,
};

/// A peer with a snapshot of its regions.
#[derive(Clone, Debug)]
pub(crate) struct OpenedPeer {
    pub identity: Arc<Identity>,
    pub snapshot: Arc<Snapshot>,
}

/// Plan of an engine, from its checked configuration.
pub(crate) struct CorePlan {
    pub set: SetPlan,
    pub rules: AdmissionRules,
    pub max_peers: u32,
    pub max_registrations: u32,
    pub withdrawal: Duration,
    pub auto_refresh: bool,
    pub stall_ms: u64,
    pub connect_ms: u64,
    pub clock: Clock,
    /// Measured at start; 0 where it could not be.
    pub wake_latency: Duration,
}

/// The parts of the control plan that the configuration decides; the core adds its own.
pub(crate) type ControlSettings =
    Box<dyn FnOnce(Arc<dyn Catalog>, Vec<Arc<dyn ShardInbox>>) -> ControlPlan>;

/// What a descriptor tells of this build.
pub(crate) fn build_id() -> [u8; 8] {
    crate::protocol::version::build_id()
}

/// One engine.
pub(crate) struct Core {
    plan: CorePlan,
    set: Arc<ShardSet>,
    control: Control,
    control_counters: Arc<ControlCounters>,
    identities: Identities,
    #[expect(clippy::disallowed_types, reason = "close and drop alone take it")]
    threads: std::sync::Mutex<Threads>,
    cores: Vec<Option<u32>>,
    fenced: AtomicBool,
    /// The control plane is known to have ended.
    control_ended: AtomicBool,
    bound: std::net::SocketAddr,
}

struct RegistryCatalog(Arc<Registry>, CatalogCache);

#[expect(clippy::disallowed_types, reason = "describe walks on the control thread alone take it")]
type CatalogCache = std::sync::Mutex<Option<(u64, Arc<[RegionDescriptor]>)>>;

impl Catalog for RegistryCatalog {
    fn describe(&self) -> (u64, Arc<[RegionDescriptor]>) {
        let mut cache = self.1.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let table = self.0.snapshot();
        if let Some((generation, regions)) = &*cache {
            if *generation == table.catalog_generation() {
                return (*generation, Arc::clone(regions));
            }
        }
        // A remote region always has a descriptor: the registry admitted its length and range.
        let describe = |region: RegionInfo| {
            let RegionInfo { key, address, length, permission, location, .. } = region;
            let transports = 1 << Transport::Tcp as u32;
            RegionDescriptor::new(key, address, length, permission, location, transports).ok()
        };
        let regions: Arc<[RegionDescriptor]> = table.regions().filter_map(describe).collect();
        let generation = table.catalog_generation();
        *cache = Some((generation, Arc::clone(&regions)));
        (generation, regions)
    }

    fn generation(&self) -> u64 {
        self.0.snapshot().catalog_generation()
    }
}

impl Core {
    /// Starts shards, control plane and listener. A failure ends all that was started, and names the limit
    /// where descriptors ran out.
    pub fn start(plan: CorePlan, settings: ControlSettings) -> Result<Arc<Self>> {
        Self::start_parts(plan, settings).map_err(name_limit)
    }

    fn start_parts(plan: CorePlan, settings: ControlSettings) -> Result<Arc<Self>> {
        Reaper::start()?;
        let registry = Registry::new(plan.max_registrations, plan.set.seats.len());
        let set = ShardSet::new(&plan.set, Arc::clone(&registry), plan.clock)?;
        let ringing = Arc::downgrade(&set);
        registry.set_withdrawal(plan.withdrawal, move || {
            if let Some(set) = ringing.upgrade() {
                set.ring();
            }
        });
        let catalog = Arc::new(RegistryCatalog(Arc::clone(&registry), CatalogCache::default()));
        let inboxes =
            set.mailboxes().iter().map(|m| Arc::clone(m) as Arc<dyn ShardInbox>).collect();
        let control_plan = settings(catalog, inboxes);
        let control_counters = Arc::clone(&control_plan.counters);
        let (control, bound) = Control::start(control_plan)?;
        let threads = set.start(&plan.set, &control).inspect_err(|_| {
            let _nothing_is_connected = control.close(Duration::from_secs(1));
        })?;
        let leaving = control.clone();
        let leave = Box::new(move |peer: &Arc<Peer>| leaving.leave(peer));
        Ok(Arc::new(Self {
            cores: threads.cores(),
            identities: Identities::new(set.id(), plan.max_peers, leave),
            plan,
            set,
            control,
            control_counters,
            #[expect(clippy::disallowed_types, reason = "see the field")]
            threads: std::sync::Mutex::new(threads),
            fenced: AtomicBool::new(false),
            control_ended: AtomicBool::new(false),
            bound,
        }))
    }

    pub const fn bound(&self) -> std::net::SocketAddr {
        self.bound
    }

    pub const fn plan(&self) -> &CorePlan {
        &self.plan
    }

    pub const fn set(&self) -> &Arc<ShardSet> {
        &self.set
    }

    pub const fn wake_latency_ns(&self) -> u64 {
        self.plan.wake_latency.as_nanos() as u64
    }

    /// Core of each shard's thread; `None` where it is not bound.
    pub fn cores(&self) -> &[Option<u32>] {
        &self.cores
    }

    pub fn control_counters(&self) -> &ControlCounters {
        &self.control_counters
    }

    fn open_check(&self) -> Result<()> {
        if self.fenced.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    // ---- memory

    pub fn register(
        &self,
        backing: Backing,
        offset: u64,
        length: u64,
        permission: Permission,
    ) -> Result<Arc<Registration>> {
        self.open_check()?;
        let registration = self.set.registry().register(backing, offset, length, permission)?;
        if permission.is_remote() {
            self.control.catalog_changed();
        }
        Ok(registration)
    }

    pub fn locate(&self, address: u64, length: u64) -> Result<RangeLocation> {
        self.open_check()?;
        self.set.registry().locate(address, length)
    }

    pub fn memory_counters(&self) -> MemoryCounters {
        self.set.registry().counters()
    }

    // ---- peers

    /// Charged identities. Takes no lock.
    pub fn peer_count(&self) -> u64 {
        self.identities.charged()
    }

    pub fn open(
        self: &Arc<Self>,
        endpoint: Endpoint,
        epoch: SourceEpoch,
        timeout: Duration,
    ) -> Result<OpenedPeer> {
        self.open_check()?;
        // A failure from here on drops the handle, which gives back what only this open charged.
        let identity = self.identities.charge(endpoint, epoch)?;
        let opened = self.control.open(&identity.peer, timeout)?;
        if identity.is_new() {
            let Opened { limits, engine, .. } = &opened;
            tracing::debug!(%endpoint, %engine, ?limits, "peer opened");
            self.set.announce(&identity.peer);
        }
        let snapshot = snapshot(&opened);
        Ok(OpenedPeer { identity, snapshot })
    }

    /// Round trip over the control connection.
    pub fn ping(&self, opened: &OpenedPeer, timeout: Duration) -> Result<Duration> {
        self.open_check()?;
        self.own(opened)?;
        self.control.ping(&opened.identity.peer, timeout)
    }

    /// Asks whoever answers at `endpoint` for its epoch.
    pub fn discover(&self, endpoint: Endpoint, timeout: Duration) -> Result<SourceEpoch> {
        self.open_check()?;
        self.control.discover(endpoint, timeout)
    }

    pub fn refresh(&self, opened: &OpenedPeer, timeout: Duration) -> Result<OpenedPeer> {
        self.open_check()?;
        self.own(opened)?;
        opened.identity.peer.check_live()?;
        let fresh = self.control.refresh(&opened.identity.peer, timeout)?;
        Ok(OpenedPeer { identity: Arc::clone(&opened.identity), snapshot: snapshot(&fresh) })
    }

    fn own(&self, opened: &OpenedPeer) -> Result<()> {
        if opened.identity.engine == self.set.id() {
            return Ok(());
        }
        Err(Error::InvalidConfig(format!(
            "the segment of {} was opened by another engine; open it on this one",
            opened.identity.peer.endpoint_text
        )))
    }

    // ---- transfers

    /// Runs one call to its end or deadline. `Err`: nothing was attempted.
    pub fn run(
        &self,
        opened: &OpenedPeer,
        op: TransferOp,
        asks: &(impl Iterator<Item = Ask> + Clone),
        timeout: Duration,
    ) -> Result<Ran> {
        self.open_check()?;
        self.own(opened)?;
        let peer = &opened.identity.peer;
        peer.check_live()?;
        let now = self.plan.clock.now();
        if asks.clone().next().is_none() {
            let submitted = self.plan.clock.nanos(now);
            // No shard is asked: there is nothing that it could end.
            let (ingested, dispatched, ended) = (0, 0, 0);
            let (summary, drained) = (Summary::NOTHING, true);
            return Ok(Ran { summary, drained, submitted, ingested, dispatched, ended });
        }
        let deadline = now.checked_add(timeout).unwrap_or(now + Duration::from_secs(1 << 30));
        let rules = self.plan.rules;
        with_port(&self.set, |port| {
            let aim = Aim { op, peer, snapshot: &opened.snapshot };
            let error = match port.run(aim, asks.clone(), rules, deadline) {
                Ok(ran) => return Ok(ran),
                Err(Refusal::Final(error)) => return Err(error),
                Err(Refusal::Unknown(error)) => error,
            };
            let left = deadline.saturating_duration_since(self.plan.clock.now());
            if !self.plan.auto_refresh || left.is_zero() {
                return Err(error);
            }
            // A newer description may know the range; looked for once.
            let fresh = snapshot(&self.control.refresh(peer, left)?);
            if fresh.generation == opened.snapshot.generation {
                return Err(error);
            }
            let aim = Aim { op, peer, snapshot: &fresh };
            port.run(aim, asks.clone(), rules, deadline).map_err(|refusal| match refusal {
                Refusal::Final(error) | Refusal::Unknown(error) => error,
            })
        })
    }

    // ---- end

    /// Fences both sides, drains, and ends. May be called again after a timeout, and by several threads at
    /// once, each with its own deadline.
    pub fn close(&self, timeout: Duration) -> Result<()> {
        let deadline = self.deadline(timeout);
        self.fenced.store(true, Ordering::Release);
        // Peers hear that this engine goes before its lanes do.
        let control = self.close_control(deadline);
        self.set.stop();
        self.set.registry().close();
        if !self.set.wait_ended(deadline) {
            let (what, outstanding) = ("shards with running work", self.set.running() as u64);
            return Err(Error::Unquiesced { what: what.into(), outstanding });
        }
        self.join();
        control
    }

    fn close_control(&self, deadline: Instant) -> Result<()> {
        if self.control_ended.load(Ordering::Acquire) {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(self.plan.clock.now());
        self.control.close(left).inspect_err(|error| {
            tracing::warn!(%error, "the control plane did not end in time");
        })?;
        self.control_ended.store(true, Ordering::Release);
        Ok(())
    }

    /// Joins the threads, all of which have ended but for their last steps.
    fn join(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let grace = self.deadline(Duration::from_secs(1));
        let _they_end_by_themselves = threads.join(&self.set, grace);
    }

    /// The close that a drop makes: what does not end in time is cut, which proves that it ended.
    pub fn close_at_drop(&self, timeout: Duration) {
        if self.close(timeout).is_ok() {
            return;
        }
        self.set.abort();
        if self.set.wait_ended(self.deadline(Duration::from_secs(1))) {
            self.join();
        } else {
            let shards = self.set.running();
            tracing::error!(shards, "shards did not end; what they hold stays held");
        }
    }

    fn deadline(&self, timeout: Duration) -> Instant {
        let now = self.plan.clock.now();
        now.checked_add(timeout).unwrap_or(now + Duration::from_secs(1 << 30))
    }
}

/// Adds the limit of open files to an error that it caused.
fn name_limit(error: Error) -> Error {
    match (error, process::open_files().soft) {
        (Error::Io { op, source }, Some(limit)) if source.errno() == libc::EMFILE => {
            let op = format!(
                "{op}: the process is at its limit of {limit} open files (RLIMIT_NOFILE); raise it with \
                 `ulimit -n`"
            );
            Error::Io { op, source }
        }
        (error, _) => error,
    }
}

fn snapshot(opened: &Opened) -> Arc<Snapshot> {
    let region = |region: &RegionDescriptor| PeerRegion {
        key: region.key(),
        address: region.address(),
        length: region.length(),
        permission: region.permission(),
        memory_type: match region.location() {
            MemoryLocation::Cuda { .. } => MemoryType::Cuda,
            MemoryLocation::Cpu(_) => MemoryType::Cpu,
        },
        location: region.location(),
        transports: region.transports(),
    };
    Arc::new(Snapshot::new(opened.generation, opened.regions.iter().map(region).collect()))
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("bound", &self.bound).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(orbite_loom))]
mod tests;
