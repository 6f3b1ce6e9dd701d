//! The engine behind the harness: everything that the benchmark asks of orbite's public API.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use orbite::{
    EngineConfig, HostAllocation, HostMemory, Permission, PinMode, RegisteredMemory, RemoteSegment,
    SourceEpoch, TransferEngine, TransferOp, TransferRequest, TransferTarget, Transport,
};

use super::cells::{Op, Span};
use super::runner::Mover;
use super::verify::Bytes;
use crate::failure::{Exit, Failure};

/// Bound of one batch. Far above what 1 GiB over a slow link takes in one slice of patience.
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Bound of opening the target.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Bound of an orderly end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where an engine listens and runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// Listener; `None` takes the default, a free port of 127.0.0.1.
    pub bind: Option<SocketAddr>,
    pub advertise: Option<IpAddr>,
    /// CPU of the one shard; `None` leaves it unpinned.
    pub core: Option<u32>,
    /// Not being able to pin is an error.
    pub require: bool,
}

/// Starts an engine with one shard and the TCP transport alone. Call it on a thread that is not bound
/// yet: the engine counts the CPUs of the thread that makes it.
pub(crate) fn start(place: &Place) -> Result<TransferEngine, Failure> {
    TransferEngine::new(config(place))
        .map_err(|error| Failure::engine("cannot start an engine", &error))
}

fn config(place: &Place) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.tcp = true;
    config.shards.count = 1;
    config.shards.cores = place.core.into_iter().collect();
    config.shards.pin = match (place.core, place.require) {
        (None, _) => PinMode::Off,
        (Some(_), false) => PinMode::Prefer,
        (Some(_), true) => PinMode::Require,
    };
    if let Some(bind) = place.bind {
        config.bind_addr = bind.to_string();
    }
    config.advertise_addr = place.advertise;
    config
}

/// Ends an engine in order. A failure is told only if nothing worse happened before.
pub(crate) fn close(engine: &TransferEngine) -> Result<(), Failure> {
    engine.close(CLOSE_TIMEOUT).map_err(|error| Failure::engine("cannot close the engine", &error))
}

/// Zeroed memory of `length` bytes, registered.
pub(crate) fn register(
    engine: &TransferEngine,
    length: u64,
    permission: Permission,
) -> Result<Local, Failure> {
    let failed = |error: &orbite::Error| {
        Failure::engine(format!("cannot register a buffer of {length} bytes"), error)
            .hint("--buffer sets its size")
    };
    let memory =
        HostMemory::allocate(length, &HostAllocation::default()).map_err(|error| failed(&error))?;
    let registered = engine
        .register_host_memory(&memory, 0, length, permission)
        .map_err(|error| failed(&error))?;
    Ok(Local(registered))
}

/// What names the target to `open`.
pub(crate) enum Name<'a> {
    /// Endpoint and epoch.
    Endpoint(&'a str, SourceEpoch),
    /// One string with both.
    Descriptor(&'a str),
}

/// Opens the target. Its regions are in the segment.
pub(crate) fn open(engine: &TransferEngine, name: &Name<'_>) -> Result<RemoteSegment, Failure> {
    let opened = match name {
        Name::Endpoint(endpoint, epoch) => engine.open_segment(endpoint, *epoch, OPEN_TIMEOUT),
        Name::Descriptor(text) => engine.open_segment(text, None, OPEN_TIMEOUT),
    };
    opened.map_err(|error| Failure::engine("cannot open the target", &error))
}

/// A registered buffer of this process.
#[derive(Clone, Debug)]
pub(crate) struct Local(pub RegisteredMemory);

impl Bytes for Local {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Failure> {
        self.0
            .read_at(offset, into)
            .map_err(|error| Failure::engine("cannot read a buffer", &error))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Failure> {
        self.0
            .write_at(offset, from)
            .map_err(|error| Failure::engine("cannot fill a buffer", &error))
    }
}

/// Moves batches between a local buffer and one address range of the target.
pub(crate) struct EngineMover {
    engine: TransferEngine,
    target: TransferTarget,
    local: Local,
    /// First byte of the target's ranges, for READ and for WRITE.
    remote: [u64; 2],
}

impl EngineMover {
    pub(crate) fn new(
        engine: &TransferEngine,
        segment: &RemoteSegment,
        local: &Local,
        read_from: u64,
        write_to: u64,
    ) -> Self {
        Self {
            engine: engine.clone(),
            target: segment.into(),
            local: local.clone(),
            remote: [read_from, write_to],
        }
    }
}

/// Requests of one batch, made once.
pub(crate) struct Prepared {
    op: TransferOp,
    requests: Vec<TransferRequest>,
}

impl Mover for EngineMover {
    type Batch = Prepared;

    fn prepare(&self, op: Op, spans: &[Span]) -> Prepared {
        let [read_from, write_to] = self.remote;
        let (op, remote) = match op {
            Op::Read => (TransferOp::Read, read_from),
            Op::Write => (TransferOp::Write, write_to),
        };
        let base = self.local.0.address();
        let request = |span: &Span| {
            TransferRequest::new(
                Transport::Tcp,
                base + span.local,
                remote + span.remote,
                span.length,
            )
        };
        Prepared { op, requests: spans.iter().map(request).collect() }
    }

    fn run(&mut self, batch: &Prepared) -> Result<(), Failure> {
        let report =
            self.engine.submit_and_wait(batch.op, &self.target, &batch.requests, BATCH_TIMEOUT);
        match report {
            Ok(report) => match &report.failure {
                None => Ok(()),
                Some(failure) => Err(ended(failure)),
            },
            Err(error) => Err(Failure::engine("a batch was refused", &error)),
        }
    }

    fn local(&self) -> &dyn Bytes {
        &self.local
    }
}

#[cold]
fn ended(failure: &orbite::TransferFailure) -> Failure {
    let what = format!("request {} of a batch failed", failure.request_index);
    Failure { exit: Exit::Peer, ..Failure::engine(what, &failure.error) }
        .hint(failure.suggested_action.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_a_valid_configuration() {
        let core = super::super::pin::allowed().first().copied();
        let wildcard = "0.0.0.0:7000".parse().ok();
        for place in [
            Place::default(),
            Place { core, ..Place::default() },
            Place { core, require: true, ..Place::default() },
            Place { bind: wildcard, advertise: "10.0.0.2".parse().ok(), ..Place::default() },
            Place { bind: "[::1]:0".parse().ok(), ..Place::default() },
        ] {
            let config = config(&place);
            assert_eq!(EngineConfig::from_json(&config.to_json()).unwrap(), config, "{place:?}");
        }
    }
}
