//! From a checked configuration to the plans of shards and control plane, and back to the effective
//! configuration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::shard::clock::Clock;
use crate::shard::control::{
    ControlCounters, ControlPlan, Discovery, InboundLimits, Keys, TcpOptions, Timeouts,
};
use crate::shard::core::{ControlSettings, CorePlan};
use crate::shard::driver::ShardPlan;
use crate::shard::peer::Negotiated;
use crate::shard::placement::{self, Pinning, PlacementRequest, Seat};
use crate::shard::port::admission::AdmissionRules;
use crate::shard::set::SetPlan;
use crate::shard::wait::{WaitPolicy, measure_wake_latency};
use crate::topology::Topology;
use crate::types::{Endpoint, EngineId, ShardIndex, SourceEpoch};

use super::config::{DiscoveryMode, EngineConfig, NumaMode, PinMode, PresharedKey};

/// Requests of one call, so that an index always fits its counters.
const MAX_REQUESTS: u32 = 1 << 20;
/// Silence on a control connection after which a sign of life is asked for.
const PING_AFTER: Duration = Duration::from_secs(5);

/// Cores and waiting of the shards on this machine.
pub(crate) struct Seating {
    pub seats: Vec<Seat>,
    pub policy: WaitPolicy,
}

/// Places the shards by the mask of the calling thread, its control group and the machine's nodes.
pub(crate) fn seat(config: &EngineConfig) -> Result<Seating> {
    let topology = Topology::discover(&config.topology.sysfs_root);
    let request = PlacementRequest {
        count: u32::from(config.shards.count),
        cores: &config.shards.cores,
        pinning: match config.shards.pin {
            PinMode::Off => Pinning::Off,
            PinMode::Prefer => Pinning::Prefer,
            PinMode::Require => Pinning::Require,
        },
        topology: &topology,
    };
    let seats =
        placement::place(&request).map_err(|error| Error::InvalidConfig(error.to_string()))?;
    let spinners = seats.len() as u32 + 1;
    let (spin, yields) = (config.shards.spin_us, config.shards.yield_us);
    let policy = WaitPolicy::choose(topology.effective_cpus, spinners, spin, yields);
    Ok(Seating { seats, policy })
}

/// The cores to show as those of the shards: what the key may name, one for each shard, all different.
/// Empty where a shard runs unbound or several share a core.
pub(crate) fn bound_cores(cores: &[Option<u32>]) -> Vec<u32> {
    let bound: Vec<u32> = cores.iter().copied().flatten().collect();
    let mut distinct = bound.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() == cores.len() { bound } else { Vec::new() }
}

pub(crate) fn bind_address(config: &EngineConfig) -> Result<SocketAddr> {
    Endpoint::parse(&config.bind_addr)
        .map(Endpoint::addr)
        .map_err(|error| Error::InvalidConfig(format!("bind_addr {:?}: {error}", config.bind_addr)))
}

const fn negotiated(config: &EngineConfig) -> Negotiated {
    Negotiated {
        max_message: config.tcp_options.max_message_bytes,
        scatter_ops: config.tcp_options.max_scatter_ops,
        lane_window: config.tcp_options.lane_window,
        payload_crc: config.tcp_options.payload_crc,
    }
}

pub(crate) fn core_plan(
    config: &EngineConfig,
    id: EngineId,
    seating: Seating,
    clock: Clock,
) -> CorePlan {
    let short_id = id.to_string().chars().take(6).collect();
    let shard = ShardPlan {
        index: ShardIndex(0),
        turn_submissions: config.shards.turn_max_submissions,
        turn_bytes: config.shards.turn_max_bytes,
        max_lanes: config.tcp_options.max_lanes,
        slice_bytes: config.tcp_options.slice_bytes,
        small_bytes: config.tcp_options.small_bytes,
        send_chunk: config.tcp_options.send_chunk_bytes,
        stall: Duration::from_millis(config.tcp_options.stall_timeout_ms),
        idle_poll: Duration::from_micros(config.idle_poll_interval_us),
        source_bytes: config.inbound.max_inflight_bytes,
        merge: config.merge_requests,
    };
    CorePlan {
        set: SetPlan {
            engine: short_id,
            seats: seating.seats,
            must_pin: config.shards.pin == PinMode::Require,
            bind_memory: config.shards.numa == NumaMode::Local,
            policy: seating.policy,
            ring_depth: config.shards.submission_lane_depth,
            max_rings: config.shards.max_caller_lanes,
            shard,
        },
        rules: AdmissionRules {
            merge: config.merge_requests,
            max_merge_bytes: config.max_merge_bytes,
            max_requests: MAX_REQUESTS,
        },
        max_peers: config.max_peer_segments,
        max_registrations: config.max_registrations,
        withdrawal: Duration::from_micros(config.handler_timeout_us),
        auto_refresh: config.auto_refresh,
        stall_ms: config.tcp_options.stall_timeout_ms,
        connect_ms: config.connect_timeout_ms,
        clock,
        wake_latency: measure_wake_latency(),
    }
}

pub(crate) fn control_settings(
    config: &EngineConfig,
    epoch: SourceEpoch,
    bind: SocketAddr,
) -> ControlSettings {
    let config = config.clone();
    Box::new(move |catalog, shards| {
        let secret = |key: &Option<PresharedKey>| {
            key.as_ref().map(|key| Arc::<[u8]>::from(key.secret_bytes()))
        };
        let security = config.security.clone();
        let allowed = security.allow_peers.clone();
        let tcp = &config.tcp_options;
        ControlPlan {
            id: EngineId::of(&epoch),
            epoch,
            keys: Keys { psk: secret(&security.psk), previous: secret(&security.previous_psk) },
            discovery: match security.discovery {
                DiscoveryMode::Never => Discovery::Never,
                DiscoveryMode::Loopback => Discovery::Loopback,
                DiscoveryMode::Always => Discovery::Always,
            },
            allow_peer: Box::new(move |ip| {
                allowed.is_empty() || allowed.iter().any(|block| block.contains(ip))
            }),
            bind,
            port_span: config.bind_port_span,
            limits: negotiated(&config),
            inbound: InboundLimits {
                max_connections: config.inbound.max_connections,
                max_connections_per_ip: config.inbound.max_connections_per_ip,
                max_handshakes: config.inbound.max_handshakes,
                handshake_timeout: Duration::from_millis(config.inbound.handshake_timeout_ms),
                describe_page_regions: config.inbound.describe_page_regions,
            },
            timeouts: Timeouts {
                connect: Duration::from_millis(config.connect_timeout_ms),
                handler: Duration::from_micros(config.handler_timeout_us),
                ping: PING_AFTER,
                reconnect_cooldown: Duration::from_millis(tcp.reconnect_cooldown_ms),
            },
            tcp: TcpOptions {
                keepalive_idle: Duration::from_secs(u64::from(tcp.keepalive_idle_s)),
                keepalive_interval: Duration::from_secs(u64::from(tcp.keepalive_interval_s)),
                keepalive_count: tcp.keepalive_count,
                user_timeout: Duration::from_millis(tcp.stall_timeout_ms.saturating_mul(2)),
            },
            catalog,
            shards,
            counters: Arc::new(ControlCounters::default()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::bound_cores;

    #[test]
    fn only_cores_that_the_key_could_name_are_shown() {
        assert_eq!(bound_cores(&[Some(3), Some(1)]), [3, 1]);
        assert_eq!(bound_cores(&[Some(0), Some(0)]), [0; 0], "more shards than cores");
        assert_eq!(bound_cores(&[Some(0), None]), [0; 0], "one runs unbound");
    }
}
