//! The one table of every key of the document: its name, type and range, where its value lives, and
//! what this version has of it.
//!
//! A key of a part that is not built is known by name. It is taken only with a value that asks for
//! nothing, so that a document never seems to have an effect that it has not.

use serde_json::Value;

use super::fields::{
    MAX_BLOCKS, MAX_SHARDS, key_file, key_path, push_block, push_core, set_advertise_addr,
    set_bind_addr, set_cores, set_sysfs_root,
};
use super::kinds::{Absent, Count, Flag, Key, Kind, List, Off, Text, Word};
use super::{DiscoveryMode, NumaMode, PinMode, SecurityMode, ShardHost};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

macro_rules! flag {
    ($name:literal, $($field:ident).+) => {
        Key {
            name: $name,
            kind: Kind::Flag(Flag {
                get: |config| config.$($field).+,
                set: |config, value| config.$($field).+ = value,
            }),
        }
    };
}

// The range bounds the value before the cast; a test holds every range against its field.
macro_rules! count {
    ($name:literal, $($field:ident).+, $range:expr) => {
        count!($name, $($field).+, $range, false)
    };
    ($name:literal, $($field:ident).+, $range:expr, $power_of_two:literal) => {
        Key {
            name: $name,
            kind: Kind::Count(Count {
                range: $range,
                power_of_two: $power_of_two,
                get: |config| config.$($field).+.into(),
                set: |config, value| config.$($field).+ = value as _,
            }),
        }
    };
}

macro_rules! word {
    ($name:literal, $section:ident.$field:ident, [$($text:literal => $value:path),+], $refused:expr) => {
        Key {
            name: $name,
            kind: Kind::Word(Word {
                names: &[$($text),+],
                refused: $refused,
                get: |config| match config.$section.$field {
                    $($value => $text,)+
                },
                set: |config, name| match name {
                    $($text => config.$section.$field = $value,)+
                    _ => {}
                },
            }),
        }
    };
}

const fn absent(name: &'static str, part: &'static str, off: Off) -> Key {
    Key { name, kind: Kind::Absent(Absent { part, off }) }
}

/// Where transport keys may be grouped.
pub(super) const GROUP: &str = "transports";

/// Keys of the root, without those of [`TRANSPORTS`].
pub(super) static ROOT: &[Key] = &[
    Key {
        name: "bind_addr",
        kind: Kind::Text(Text {
            form: "an address ip:port or [v6]:port",
            nullable: false,
            get: |config| Some(config.bind_addr.clone()),
            set: set_bind_addr,
        }),
    },
    count!("bind_port_span", bind_port_span, 0..=1024),
    Key {
        name: "advertise_addr",
        kind: Kind::Text(Text {
            form: "a numeric address without port",
            nullable: true,
            get: |config| config.advertise_addr.map(|ip| ip.to_string()),
            set: set_advertise_addr,
        }),
    },
    count!("handler_timeout_us", handler_timeout_us, 1_000..=600_000_000),
    count!("connect_timeout_ms", connect_timeout_ms, 1..=600_000),
    count!("close_timeout_us", close_timeout_us, 0..=600_000_000),
    count!("quiesce_timeout_ms", quiesce_timeout_ms, 10..=600_000),
    count!("max_peer_segments", max_peer_segments, 1..=4096),
    absent("max_receiver_credit_sessions", "receiver credit", Off::Count(0..=65_536, 0)),
    count!("max_registrations", max_registrations, 1..=1_048_576),
    absent("max_batches", "asynchronous batches", Off::Count(1..=65_536, 4096)),
    absent("max_batch_tasks", "asynchronous batches", Off::Count(1..=1_048_576, 65_536)),
    absent("max_notifications", "notifications", Off::Count(1..=65_536, 1024)),
    absent("max_notification_bytes", "notifications", Off::Count(0..=MIB, 65_536)),
    flag!("merge_requests", merge_requests),
    count!("max_merge_bytes", max_merge_bytes, 4 * KIB..=GIB),
    absent("max_failover_attempts", "failover between transports", Off::Count(0..=16, 3)),
    flag!("auto_refresh", auto_refresh),
    absent("enable_progress_worker", "asynchronous batches", Off::Flag(true)),
    count!("idle_poll_interval_us", idle_poll_interval_us, 100..=1_000_000),
    absent("probe_numa", "the NUMA probe of registrations", Off::Flag(false)),
    Key { name: "files", kind: Kind::Object(FILES) },
    Key { name: "shards", kind: Kind::Object(SHARDS) },
    Key { name: "security", kind: Kind::Object(SECURITY) },
    Key { name: "inbound", kind: Kind::Object(INBOUND) },
    Key { name: "topology", kind: Kind::Object(TOPOLOGY) },
    Key { name: "selector", kind: Kind::Object(SELECTOR) },
    absent("runtime_queue", "the dispatch window", Off::Object { empty: false }),
    absent("qos", "quality of service contracts", Off::Object { empty: true }),
    absent("receiver_credit", "receiver credit", Off::Object { empty: false }),
    absent("metrics", "the `metrics` feature", Off::Object { empty: false }),
    absent("remote_staging", "remote staging", Off::Object { empty: false }),
    Key { name: GROUP, kind: Kind::Object(TRANSPORTS) },
];

/// Keys that may stand at the root or inside `transports`.
pub(super) static TRANSPORTS: &[Key] = &[
    flag!("tcp", tcp),
    Key { name: "tcp_options", kind: Kind::Object(TCP_OPTIONS) },
    absent("hp_tcp", "the high-performance TCP transport", Off::Object { empty: true }),
    absent("shm", "the shared-memory transport", Off::Object { empty: true }),
    absent("mnnvl", "the `cuda` feature", Off::Object { empty: true }),
    absent("io_uring", "the `io-uring` feature", Off::Object { empty: false }),
    absent("gds", "the `gds` feature", Off::Object { empty: false }),
    absent("rdma", "the `rdma` feature", Off::Object { empty: false }),
    absent("nvlink", "the `cuda` feature", Off::Object { empty: false }),
    absent("cma", "the cross-memory-attach transport", Off::Object { empty: false }),
];

static TCP_OPTIONS: &[Key] = &[
    absent("lanes_per_peer", "several lanes for one peer and shard", Off::Count(1..=16, 1)),
    count!("max_lanes", tcp_options.max_lanes, 1..=65_536),
    count!("lane_window", tcp_options.lane_window, 1..=256),
    count!("max_scatter_ops", tcp_options.max_scatter_ops, 1..=4096),
    count!("slice_bytes", tcp_options.slice_bytes, 256 * KIB..=64 * MIB),
    count!("small_bytes", tcp_options.small_bytes, 0..=64 * MIB),
    count!("max_message_bytes", tcp_options.max_message_bytes, 256 * KIB..=GIB),
    count!("send_chunk_bytes", tcp_options.send_chunk_bytes, 4 * KIB..=16 * MIB),
    count!("stall_timeout_ms", tcp_options.stall_timeout_ms, 100..=600_000),
    absent("idle_timeout_ms", "closing of idle lanes", Off::Count(0..=86_400_000, 60_000)),
    count!("keepalive_idle_s", tcp_options.keepalive_idle_s, 1..=32_767),
    count!("keepalive_interval_s", tcp_options.keepalive_interval_s, 1..=32_767),
    count!("keepalive_count", tcp_options.keepalive_count, 1..=127),
    absent("max_retry_count", "retries on another lane", Off::Count(0..=16, 3)),
    absent("retry_base_delay_ms", "retries on another lane", Off::Count(0..=600_000, 100)),
    absent("retry_max_delay_ms", "retries on another lane", Off::Count(0..=600_000, 2_000)),
    count!("reconnect_cooldown_ms", tcp_options.reconnect_cooldown_ms, 0..=600_000),
    flag!("payload_crc", tcp_options.payload_crc),
    absent("zero_copy_min_bytes", "zero-copy sending", Off::Count(0..=GIB, 0)),
];

static SHARDS: &[Key] = &[
    count!("count", shards.count, 0..=256),
    absent("local_max", "local shards", Off::Count(0..=256, 8)),
    Key {
        name: "cores",
        kind: Kind::List(List {
            form: "a CPU number in 0..=8191",
            most: MAX_SHARDS,
            get: |config| config.shards.cores.iter().copied().map(Value::from).collect(),
            push: push_core,
            text: Some(set_cores),
        }),
    },
    word!(
        "pin",
        shards.pin,
        ["off" => PinMode::Off, "prefer" => PinMode::Prefer, "require" => PinMode::Require],
        &[]
    ),
    word!("numa", shards.numa, ["local" => NumaMode::Local, "off" => NumaMode::Off], &[]),
    word!(
        "host",
        shards.host,
        ["auto" => ShardHost::Auto, "thread" => ShardHost::Thread],
        &[
            ("glommio", "needs the `glommio` feature, which this version does not have"),
            ("caller", "needs local shards, which this version does not have"),
        ]
    ),
    absent("ring_depth", "kernel rings of a shard", Off::Count(64..=4096, 256)),
    count!("spin_us", shards.spin_us, 0..=1_000_000),
    count!("yield_us", shards.yield_us, 0..=1_000_000),
    count!("submission_lane_depth", shards.submission_lane_depth, 64..=65_536, true),
    count!("max_caller_lanes", shards.max_caller_lanes, 1..=4096),
    count!("turn_max_submissions", shards.turn_max_submissions, 1..=1_048_576),
    count!("turn_max_events", shards.turn_max_events, 1..=1_048_576),
    count!("turn_max_bytes", shards.turn_max_bytes, 64 * KIB..=GIB),
];

static SECURITY: &[Key] = &[
    word!(
        "mode",
        security.mode,
        ["epoch" => SecurityMode::Epoch, "psk" => SecurityMode::Psk],
        &[("none", "is not offered: a peer always proves the epoch")]
    ),
    Key {
        name: "psk_file",
        kind: Kind::Text(Text {
            form: "the path of a key file",
            nullable: true,
            get: |config| config.security.psk.as_ref().map(key_path),
            set: |draft, text| {
                draft.psk_file = text.map(key_file).transpose()?;
                Ok(())
            },
        }),
    },
    Key {
        name: "previous_psk_file",
        kind: Kind::Text(Text {
            form: "the path of a key file",
            nullable: true,
            get: |config| config.security.previous_psk.as_ref().map(key_path),
            set: |draft, text| {
                draft.previous_psk_file = text.map(key_file).transpose()?;
                Ok(())
            },
        }),
    },
    word!(
        "discovery",
        security.discovery,
        [
            "never" => DiscoveryMode::Never,
            "loopback" => DiscoveryMode::Loopback,
            "always" => DiscoveryMode::Always
        ],
        &[]
    ),
    Key {
        name: "allow_peers",
        kind: Kind::List(List {
            form: "a block of addresses such as \"10.0.0.0/8\"",
            most: MAX_BLOCKS,
            get: |config| {
                config.security.allow_peers.iter().map(|block| block.to_string().into()).collect()
            },
            push: push_block,
            text: None,
        }),
    },
];

static INBOUND: &[Key] = &[
    count!("max_connections", inbound.max_connections, 1..=1_048_576),
    count!("max_connections_per_ip", inbound.max_connections_per_ip, 1..=1_048_576),
    count!("max_handshakes", inbound.max_handshakes, 1..=65_536),
    count!("handshake_timeout_ms", inbound.handshake_timeout_ms, 10..=600_000),
    count!("max_inflight_bytes", inbound.max_inflight_bytes, 64 * KIB..=1024 * GIB),
    count!("describe_page_regions", inbound.describe_page_regions, 1..=4096),
];

static TOPOLOGY: &[Key] = &[
    absent("file", "topology files", Off::Null),
    absent("matrix", "topology matrices", Off::Null),
    absent("nic_allow", "the choice of network cards", Off::EmptyList),
    absent("nic_deny", "the choice of network cards", Off::EmptyList),
    Key {
        name: "sysfs_root",
        kind: Kind::Text(Text {
            form: "an absolute path",
            nullable: false,
            get: |config| Some(config.topology.sysfs_root.to_string_lossy().into_owned()),
            set: set_sysfs_root,
        }),
    },
];

static FILES: &[Key] = &[
    absent("root", "file segments", Off::Null),
    absent("follow_symlinks", "file segments", Off::Flag(false)),
    absent("allow_block", "file segments", Off::Flag(false)),
];

static SELECTOR: &[Key] = &[absent("policy", "selection policies", Off::EmptyList)];

/// The object that has a key of that name, as an error names it. Only the first is found.
pub(super) fn object_of(name: &str) -> Option<String> {
    fn walk(keys: &'static [Key], object: &str, name: &str) -> Option<String> {
        keys.iter().find_map(|key| match key.kind {
            _ if key.name == name => Some(object.into()),
            Kind::Object(inner) if key.name != GROUP => {
                walk(inner, &format!("`{}`", key.name), name)
            }
            _ => None,
        })
    }
    walk(ROOT, "the root", name).or_else(|| walk(TRANSPORTS, "the root", name))
}

/// `above.name`, or `name` at the root.
pub(super) fn join(above: &str, name: &str) -> String {
    if above.is_empty() { name.into() } else { format!("{above}.{name}") }
}
