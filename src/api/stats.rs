//! Observations: sums of counters that one shard each writes. Never a receipt.

use serde::Serialize;

use crate::shard::core::Core;

/// Counters of one shard.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct ShardStats {
    /// Position of the shard.
    pub shard: u16,
    /// Core it is pinned to; `None` if it is not pinned.
    pub core: Option<u32>,
    /// NUMA node of that core, where known.
    pub numa_node: Option<u32>,
    /// Who runs it: `thread`.
    pub host: &'static str,
    /// Turns made.
    pub turns: u64,
    /// Nanoseconds spent in turns and spinning, up to its last turn or the start of its sleep.
    pub busy_ns: u64,
    /// Nanoseconds asleep, of sleeps that have ended.
    pub parked_ns: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Measured time from a wake call to the first instruction of a sleeping thread, nanoseconds.
    pub wake_latency_ns: u64,
    /// Submissions and messages that waited in its rings and queue when it last ran its detectors: eight
    /// times in a stall limit, and before each sleep.
    pub lane_depth: u64,
    /// Frames sent as requester.
    pub frames_sent: u64,
    /// Frames served as source.
    pub frames_served: u64,
    /// Frames refused as source.
    pub frames_refused: u64,
    /// Times the guard rang the bell again; expected 0.
    pub guard_rings: u64,
    /// True: no turn for over a second with work queued.
    pub stalled: bool,
}

/// Counters of the engine. All are monotone except those named `live`, `in_flight` or a plain count.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct EngineStats {
    /// Peer identities that are charged: those with an open segment, and those whose open is under way.
    pub peer_segments: u64,
    /// Limit of that number.
    pub max_peer_segments: u64,
    /// Registrations that are live.
    pub registrations: u64,
    /// Their bytes.
    pub registered_bytes: u64,
    /// Bytes unregistered but still held by running work.
    pub retained_after_unregister_bytes: u64,
    /// Requests that completed.
    pub tasks_completed: u64,
    /// Requests that failed.
    pub tasks_failed: u64,
    /// Requests that were never attempted.
    pub tasks_canceled: u64,
    /// Bytes of completed READs.
    pub bytes_read: u64,
    /// Bytes of completed WRITEs.
    pub bytes_written: u64,
    /// Runs that ended with an unknown effect.
    pub remote_effect_unknown: u64,
    /// Connections accepted.
    pub connections_accepted: u64,
    /// Connections cut for breaking the protocol.
    pub protocol_violations: u64,
    /// Handshakes whose proof or expected identity was wrong.
    pub failed_proofs: u64,
    /// Connections refused at accept by a limit or an address rule.
    pub connections_refused: u64,
    /// One for each shard.
    pub shards: Vec<ShardStats>,
}

/// Sums the counters of an engine.
pub(crate) fn collect(core: &Core, max_peers: u32) -> EngineStats {
    let memory = core.memory_counters();
    let control = core.control_counters();
    let mut stats = EngineStats {
        peer_segments: core.peer_count(),
        max_peer_segments: u64::from(max_peers),
        registrations: memory.registrations,
        registered_bytes: memory.registered_bytes,
        retained_after_unregister_bytes: memory.retained_after_unregister_bytes,
        connections_accepted: control.accepted.get(),
        protocol_violations: control.protocol_violations.get(),
        failed_proofs: control.failed_proofs.get(),
        connections_refused: control.refused.get(),
        ..EngineStats::default()
    };
    let set = core.set();
    for (at, counters) in set.counters().iter().enumerate() {
        let callers = &counters.callers;
        let counters = &counters.shard;
        stats.protocol_violations += counters.protocol_violations.get();
        stats.tasks_completed += counters.tasks_completed.get();
        stats.tasks_failed += counters.tasks_failed.get();
        stats.tasks_canceled += counters.tasks_canceled.get();
        stats.bytes_read += counters.bytes_read.get();
        stats.bytes_written += counters.bytes_written.get();
        stats.remote_effect_unknown += counters.remote_effect_unknown.get();
        stats.shards.push(ShardStats {
            shard: at as u16,
            core: core.cores().get(at).copied().flatten(),
            numa_node: core.plan().set.seats.get(at).and_then(|seat| seat.node),
            host: "thread",
            turns: counters.turns.get(),
            busy_ns: counters.awake_ns(),
            parked_ns: counters.parked_ns.get(),
            sleeps: counters.sleeps.get(),
            wake_latency_ns: core.wake_latency_ns(),
            lane_depth: counters.lane_depth.get(),
            frames_sent: counters.frames_sent.get(),
            frames_served: counters.frames_served.get(),
            frames_refused: counters.frames_refused.get(),
            guard_rings: callers.guard_rings.get(),
            stalled: set.is_stalled(at),
        });
    }
    stats
}
