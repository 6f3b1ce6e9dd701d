//! The engine handle.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::shard::core::Core;
use crate::shard::memory::Backing;
use crate::shard::port::Ran;
use crate::shard::port::admission::Ask;
use crate::shard::port::verdict::{self, Circumstances};
use crate::types::{
    Endpoint, EngineId, FailureScope, Permission, RangeLocation, RemoteEffect, SourceEpoch,
    TransferOp, Transport,
};

use super::backing::{HostMemory, RegisteredMemory};
use super::config::EngineConfig;
use super::descriptor::{self, Descriptor};
use super::plan;
use super::report::{
    BatchReport, NotificationStatus, ReportTiming, SuggestedAction, TransferFailure,
};
use super::request::{TransferRequest, TransferTarget};
use super::segment::RemoteSegment;
use super::stats::{self, EngineStats};

/// Bounds of the timeout of opening, refreshing and closing.
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
const OPEN_TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// One engine: a requester and a source with one endpoint and one epoch.
///
/// Cheap to clone; all clones are the same engine, which closes with the last of them. Every method
/// takes `&self` and may be called from any thread. Configuration is fixed at construction.
#[derive(Clone, Debug)]
pub struct TransferEngine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    core: Arc<Core>,
    config: EngineConfig,
    endpoint: String,
    epoch: SourceEpoch,
    /// The process that made the engine.
    process: u32,
}

impl TransferEngine {
    /// Checks the configuration, starts the shards and the listener.
    ///
    /// Fails before any thread or socket exists for a configuration that contradicts itself
    /// (`InvalidConfig`); with `Io` for an address that cannot be bound, naming it; with `Unavailable`
    /// where a demanded facility is missing. Nothing of a failed engine stays.
    pub fn new(config: EngineConfig) -> Result<Self> {
        config.check()?;
        let clock = crate::shard::clock::Clock::start();
        let seating = plan::seat(&config)?;
        let bind = plan::bind_address(&config)?;
        let epoch = new_epoch()?;
        let id = EngineId::of(&epoch);
        let mut effective = config;
        effective.shards.count = seating.seats.len() as u16;
        let settings = plan::control_settings(&effective, epoch, bind);
        let core = Core::start(plan::core_plan(&effective, id, seating, clock), settings)?;
        effective.shards.host = super::config::ShardHost::Thread;
        effective.shards.cores = plan::bound_cores(core.cores());
        let bound = core.bound();
        effective.bind_addr = Endpoint::new(bound).to_string();
        let advertised = effective.advertise_addr.unwrap_or_else(|| bound.ip());
        let mut endpoint = bound;
        endpoint.set_ip(advertised);
        let endpoint = Endpoint::new(endpoint).to_string();
        let process = std::process::id();
        let inner = Inner { core, config: effective, endpoint, epoch, process };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The effective configuration: automatic values resolved, such as shard count, cores and port.
    pub fn config(&self) -> &EngineConfig {
        &self.inner.config
    }

    /// Numeric endpoint that peers dial, `ip:port`, with the port that was really bound.
    pub fn endpoint(&self) -> &str {
        &self.inner.endpoint
    }

    /// The secret of this engine's life; the same for as long as the engine lives.
    pub fn source_epoch(&self) -> SourceEpoch {
        self.inner.epoch
    }

    /// Public id of this engine, for logs.
    pub fn engine_id(&self) -> EngineId {
        EngineId::of(&self.inner.epoch)
    }

    /// Endpoint, epoch and build in one opaque string, to hand to a peer over a trusted channel.
    pub fn descriptor(&self) -> Descriptor {
        let build = crate::shard::core::build_id();
        Descriptor::new(&self.inner.endpoint, &self.inner.epoch, build)
    }

    /// Whether the provider of `transport` runs here. Says nothing about a peer.
    pub fn transport_installed(&self, transport: Transport) -> bool {
        transport == Transport::Tcp && self.inner.config.tcp
    }

    /// Counters, summed over the shards. Not one instant; each total only grows. Takes no lock and never
    /// waits. In a forked child, which has none of the engine's threads, they stand as they were.
    pub fn stats(&self) -> EngineStats {
        stats::collect(&self.inner.core, self.inner.config.max_peer_segments)
    }

    /// Moves bytes into a registered range.
    ///
    /// Fails with `InvalidRequest` for an empty vector, `ResourceExhausted` at `max_registrations`,
    /// `Closed` after a close.
    pub fn register_memory(
        &self,
        bytes: Vec<u8>,
        permission: Permission,
    ) -> Result<RegisteredMemory> {
        self.check_process()?;
        let memory = HostMemory::from_vec(bytes)?;
        let length = memory.len();
        self.register_host_memory(&memory, 0, length, permission)
    }

    /// Registers `length` bytes from `offset` of retained memory. The registration keeps its owner.
    ///
    /// The same range of the same memory again gives one more reference to the first registration, whose
    /// permission stays. Fails as [`register_memory`](Self::register_memory), and with `InvalidRequest`
    /// for a range outside the memory.
    pub fn register_host_memory(
        &self,
        memory: &Arc<HostMemory>,
        offset: u64,
        length: u64,
        permission: Permission,
    ) -> Result<RegisteredMemory> {
        self.check_process()?;
        let backing = Backing::Host(Arc::clone(memory));
        let registration = self.inner.core.register(backing, offset, length, permission)?;
        Ok(RegisteredMemory::new(registration))
    }

    /// Drops one reference. After the last one the range takes no new work, here or from peers, when
    /// this returns; work admitted before keeps the memory.
    ///
    /// Fails with `InvalidConfig` for memory of another engine, and with `Unquiesced` if a shard did not
    /// confirm within `handler_timeout_us`; the range is closed all the same.
    pub fn unregister_memory(&self, memory: RegisteredMemory) -> Result<()> {
        if !memory.is_of(self.inner.core.set().registry()) {
            return Err(Error::InvalidConfig(
                "the memory is registered with another engine; unregister it there".into(),
            ));
        }
        memory.unregister()
    }

    /// Where a range lies that one live registration contains; `NotRegistered` otherwise. Adopts no
    /// pointer.
    pub fn resolve_local_address(&self, address: u64, length: u64) -> Result<RangeLocation> {
        self.check_process()?;
        self.inner.core.locate(address, length)
    }

    /// Opens a peer: connects, proves the epoch both ways and reads its regions.
    ///
    /// `endpoint` is a numeric `ip:port` with the `expected` epoch from the peer's owner, or the text of
    /// a [`Descriptor`] with `None`. `timeout` is `1 ms..=600 s`. A peer that does not listen yet is
    /// waited for. Fails with `StaleEpoch` if another engine answers, `Connect` or `Timeout` if nobody
    /// does, `ResourceExhausted` at `max_peer_segments`, of which an open under way counts as one,
    /// `Unavailable` for another build.
    pub fn open_segment(
        &self,
        endpoint: impl AsRef<str>,
        expected: impl Into<Option<SourceEpoch>>,
        timeout: Duration,
    ) -> Result<RemoteSegment> {
        self.check_process()?;
        check_timeout("open_segment", timeout)?;
        let (endpoint, epoch) = address(endpoint.as_ref(), expected.into())?;
        self.inner.core.open(endpoint, epoch, timeout).map(RemoteSegment::new)
    }

    /// A new snapshot of the same peer. The old one stays valid as a value.
    pub fn refresh_segment(
        &self,
        segment: &RemoteSegment,
        timeout: Duration,
    ) -> Result<RemoteSegment> {
        self.check_process()?;
        check_timeout("refresh_segment", timeout)?;
        self.inner.core.refresh(&segment.opened, timeout).map(RemoteSegment::new)
    }

    /// Round trip to the peer over its control connection. Fails with `StaleEpoch` if another engine
    /// answers there now.
    pub fn ping(&self, segment: &RemoteSegment, timeout: Duration) -> Result<Duration> {
        self.check_process()?;
        check_timeout("ping", timeout)?;
        self.inner.core.ping(&segment.opened, timeout)
    }

    /// Asks whoever listens at `endpoint` for its epoch. A convenience for tests and tools: the answer
    /// is believed, so it never replaces the epoch that the peer's owner publishes.
    ///
    /// Fails with `Unavailable`, naming the key `security.discovery`, where the peer does not tell.
    pub fn discover_peer_epoch(
        &self,
        endpoint: impl AsRef<str>,
        timeout: Duration,
    ) -> Result<SourceEpoch> {
        self.check_process()?;
        check_timeout("discover_peer_epoch", timeout)?;
        self.inner.core.discover(parse_endpoint(endpoint.as_ref())?, timeout)
    }

    /// Submits requests as one atomic call and waits for their end, or for `timeout`.
    ///
    /// `Err`: nothing was admitted and nothing happened. Once admitted the answer is `Ok`: the report
    /// says what completed, what failed and with which effect, also when the time ran out. Requests
    /// after the first failed run that were not dispatched by then are never attempted. No requests: a
    /// complete report at once.
    pub fn submit_and_wait(
        &self,
        op: TransferOp,
        target: &TransferTarget,
        requests: &[TransferRequest],
        timeout: Duration,
    ) -> Result<BatchReport> {
        self.check_process()?;
        let TransferTarget::Segment(segment) = target;
        let clock = self.inner.core.plan().clock;
        let asks = requests.iter().map(|request| Ask {
            transport: request.transport(),
            local: request.local_address(),
            remote: request.remote_address(),
            length: request.length(),
            priority: request.priority(),
            deadline: request.deadline().map_or(0, |at| clock.nanos(at)),
        });
        let ran = self.inner.core.run(&segment.opened, op, &asks, timeout)?;
        Ok(self.report(op, segment, ran))
    }

    fn report(&self, op: TransferOp, segment: &RemoteSegment, ran: Ran) -> BatchReport {
        let plan = self.inner.core.plan();
        let failure = ran.summary.failed.map(|(index, count, outcome)| {
            let now = plan.clock.nanos(plan.clock.now());
            let at = Circumstances {
                op,
                peer: &segment.opened.identity.peer,
                after_us: now.saturating_sub(ran.submitted) / 1000,
                stall_ms: plan.stall_ms,
                connect_ms: plan.connect_ms,
            };
            let (error, scope) = verdict::judge(outcome, at);
            let remote_effect = verdict::proved_effect(op, outcome);
            let attempts = u32::from(outcome.attempts);
            TransferFailure {
                request_index: index as usize,
                affected_requests: count as usize,
                suggested_action: advise(&error, remote_effect, scope),
                error,
                remote_effect,
                scope,
                transport: if attempts > 0 { Transport::Tcp } else { Transport::Unspec },
                attempts,
            }
        });
        let completed = ran.summary.completed_requests as usize;
        BatchReport {
            completed_requests: completed,
            completed_bytes: ran.summary.completed_bytes,
            failure,
            notification: NotificationStatus::default(),
            locally_drained: ran.drained,
            transport: (completed > 0).then_some(Transport::Tcp),
            timing: timing(&ran),
        }
    }

    /// Fences both sides, waits until all admitted and inbound work has ended, and stops.
    ///
    /// `timeout` bounds the wait: `Unquiesced` says that work still runs, everything is still held, and
    /// the call may be repeated. After `Ok` every later close is `Ok`; every other call fails `Closed`.
    pub fn close(&self, timeout: Duration) -> Result<()> {
        self.check_process()?;
        self.inner.core.close(timeout.min(TIMEOUT_MAX))
    }

    fn check_process(&self) -> Result<()> {
        if std::process::id() == self.inner.process {
            return Ok(());
        }
        Err(Error::Unavailable(
            "the engine belongs to the process that was forked; make one in this process".into(),
        ))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A forked child has none of the threads: there is nothing to end here.
        if std::process::id() == self.process {
            self.core.close_at_drop(Duration::from_micros(self.config.close_timeout_us));
        }
    }
}

pub(crate) fn new_epoch() -> Result<SourceEpoch> {
    for _ in 0..8 {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let native = std::io::Error::from_raw_os_error(errno);
            Error::io("making the engine's epoch", "getrandom", &native)
        })?;
        if let Some(epoch) = SourceEpoch::from_bytes(bytes) {
            return Ok(epoch);
        }
    }
    Err(Error::Internal("the operating system's generator gives zeros".into()))
}

fn check_timeout(call: &str, timeout: Duration) -> Result<()> {
    if (OPEN_TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) {
        return Ok(());
    }
    Err(Error::InvalidRequest(format!("{call}: a timeout of {timeout:?} is outside 1 ms..=600 s")))
}

fn address(text: &str, expected: Option<SourceEpoch>) -> Result<(Endpoint, SourceEpoch)> {
    let (endpoint, epoch) = if descriptor::is_descriptor(text) {
        let parts = descriptor::parse(text)?;
        if expected.is_some_and(|expected| expected != parts.epoch) {
            return Err(Error::InvalidRequest(
                "the descriptor and the expected epoch name different engines; pass one of them"
                    .into(),
            ));
        }
        (parts.endpoint, parts.epoch)
    } else {
        let epoch = expected.ok_or_else(|| {
            Error::InvalidRequest(
                "an endpoint needs the epoch that its owner published; a descriptor has it inside"
                    .into(),
            )
        })?;
        (text.to_owned(), epoch)
    };
    Ok((parse_endpoint(&endpoint)?, epoch))
}

fn parse_endpoint(text: &str) -> Result<Endpoint> {
    let parsed = Endpoint::parse(text)
        .map_err(|error| Error::InvalidRequest(format!("endpoint {text:?}: {error}")))?;
    if parsed.addr().port() == 0 {
        return Err(Error::InvalidRequest(format!("endpoint {text:?}: port 0 cannot be dialed")));
    }
    Ok(parsed)
}

fn advise(error: &Error, effect: RemoteEffect, scope: FailureScope) -> SuggestedAction {
    match error {
        _ if effect == RemoteEffect::Unknown => SuggestedAction::Inspect,
        Error::StaleEpoch { .. } if scope == FailureScope::Request => SuggestedAction::Refresh,
        Error::StaleEpoch { .. } | Error::PeerClosed { .. } => SuggestedAction::Rediscover,
        Error::InvalidRequest(_) | Error::PermissionDenied { .. } | Error::NotRegistered { .. } => {
            SuggestedAction::Fix
        }
        Error::Internal(_) => SuggestedAction::Report,
        _ => SuggestedAction::Retry,
    }
}

const fn timing(ran: &Ran) -> ReportTiming {
    const fn span(from: u64, to: u64) -> u64 {
        if from == 0 || to == 0 { 0 } else { to.saturating_sub(from) / 1000 }
    }
    ReportTiming {
        queue_us: span(ran.submitted, ran.ingested),
        dispatch_us: span(ran.ingested, ran.dispatched),
        transport_us: span(ran.dispatched, ran.ended),
    }
}
