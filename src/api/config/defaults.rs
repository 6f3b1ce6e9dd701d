//! The documented defaults, in one place.

use std::path::PathBuf;

use super::{EngineConfig, InboundConfig, ShardsConfig, TcpConfig, TopologyConfig};
use super::{NumaMode, PinMode, SecurityConfig, ShardHost};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            bind_addr: "127.0.0.1:0".into(),
            bind_port_span: 0,
            advertise_addr: None,
            handler_timeout_us: 5_000_000,
            connect_timeout_ms: 3_000,
            close_timeout_us: 5_000_000,
            quiesce_timeout_ms: 5_000,
            max_peer_segments: 1024,
            max_registrations: 65_536,
            merge_requests: true,
            max_merge_bytes: 64 * MIB,
            auto_refresh: true,
            idle_poll_interval_us: 50_000,
            tcp: true,
            tcp_options: TcpConfig::default(),
            shards: ShardsConfig::default(),
            security: SecurityConfig::default(),
            inbound: InboundConfig::default(),
            topology: TopologyConfig::default(),
        }
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            max_lanes: 1024,
            lane_window: 16,
            max_scatter_ops: 256,
            slice_bytes: 4 * MIB,
            small_bytes: 256 * KIB,
            max_message_bytes: 64 * MIB,
            send_chunk_bytes: MIB,
            stall_timeout_ms: 10_000,
            keepalive_idle_s: 10,
            keepalive_interval_s: 5,
            keepalive_count: 3,
            payload_crc: false,
            reconnect_cooldown_ms: 1_000,
        }
    }
}

impl Default for ShardsConfig {
    fn default() -> Self {
        Self {
            count: 0,
            cores: Vec::new(),
            pin: PinMode::default(),
            numa: NumaMode::default(),
            host: ShardHost::default(),
            spin_us: 20,
            yield_us: 200,
            submission_lane_depth: 1024,
            max_caller_lanes: 256,
            turn_max_submissions: 256,
            turn_max_events: 1024,
            turn_max_bytes: MIB,
        }
    }
}

impl Default for InboundConfig {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_connections_per_ip: 256,
            max_handshakes: 64,
            handshake_timeout_ms: 2_000,
            max_inflight_bytes: GIB,
            describe_page_regions: 512,
        }
    }
}

impl Default for TopologyConfig {
    fn default() -> Self {
        Self { sysfs_root: PathBuf::from("/sys") }
    }
}
