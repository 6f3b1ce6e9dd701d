//! Which core and memory node each shard gets. Pure: the machine comes in as a value.
//!
//! Cores that are named are taken as they are. Else the shards are spread over the NUMA nodes that have
//! CPUs of ours, and on each node over whole cores first; CPU 0, which most interrupts go to, comes
//! last. A CPU gets its second shard only when each has one.

use crate::topology::Topology;
use crate::topology::numa::Cpu;

/// Most shards of one engine.
const SHARDS_MAX: u32 = 256;
/// Allowed CPUs for one shard, where the number is chosen.
const CPUS_FOR_ONE: u32 = 8;
/// Most shards that are chosen for the sake of the CPUs' number.
const CHOSEN_MAX: u32 = 8;

/// Whether shard threads are bound to cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinning {
    /// No: a seat names neither core nor node.
    Off,
    /// Where the kernel lets us. Shards may share a core.
    Prefer,
    /// Or it is an error, and so is sharing.
    Require,
}

/// What is to be placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementRequest<'a> {
    /// Number of shards; 0 chooses, or takes the number of `cores`.
    pub count: u32,
    /// CPUs for them, in their order; empty chooses.
    pub cores: &'a [u32],
    /// Whether threads are bound.
    pub pinning: Pinning,
    /// The machine, with the CPUs that are allowed.
    pub topology: &'a Topology,
}

/// The place of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// CPU that its thread is bound to; `None`: not bound.
    pub core: Option<u32>,
    /// NUMA node of that CPU; `None`: unknown, or not bound.
    pub node: Option<u32>,
}

/// Why shards cannot be placed as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlacementError {
    /// A named CPU is outside the affinity mask or the cpuset.
    #[error(
        "core {core} is not among the CPUs this process may use ({allowed}); name one of them or widen its cpuset"
    )]
    NotAllowed {
        /// The CPU.
        core: u32,
        /// Those that are, as a list of ranges.
        allowed: String,
    },
    /// A CPU is named twice.
    #[error("core {core} is named twice; each shard needs a core of its own")]
    Duplicate {
        /// The CPU.
        core: u32,
    },
    /// Number and cores are both given and differ.
    #[error("{count} shards do not match {cores} named cores; leave one of the two out")]
    Mismatch {
        /// Shards asked for.
        count: u32,
        /// Cores named.
        cores: u32,
    },
    /// More shards than an engine can have.
    #[error("{count} shards exceed the limit of 256")]
    TooMany {
        /// Shards asked for.
        count: u32,
    },
    /// Binding is required and there are not enough CPUs for one each.
    #[error(
        "{count} shards cannot each be pinned to one of {allowed} allowed CPUs; ask for fewer, widen the cpuset, or let the pinning be preferred"
    )]
    Shared {
        /// Shards asked for.
        count: u32,
        /// CPUs allowed.
        allowed: u32,
    },
}

/// A seat for each shard. At least one shard, at most 256.
pub(crate) fn place(request: &PlacementRequest<'_>) -> Result<Vec<Seat>, PlacementError> {
    let count = count(request)?;
    let allowed = len(&request.topology.cpus);
    if request.pinning == Pinning::Require && count > allowed {
        return Err(PlacementError::Shared { count, allowed });
    }
    let seats =
        if request.cores.is_empty() { spread(request.topology, count) } else { named(request)? };
    Ok(match request.pinning {
        Pinning::Off => vec![Seat { core: None, node: None }; seats.len()],
        Pinning::Prefer | Pinning::Require => seats,
    })
}

/// Number of shards that are chosen: one for eight CPUs that run at a time, one to eight, but one for
/// each node that has CPUs of ours as long as those can run at a time.
pub(crate) fn auto_count(topology: &Topology) -> u32 {
    let effective = topology.effective_cpus.max(1);
    let nodes = topology.nodes.iter().filter(|node| !node.cpus.is_empty()).count();
    let for_nodes = u32::try_from(nodes).unwrap_or(u32::MAX).min(effective);
    (effective / CPUS_FOR_ONE).clamp(1, CHOSEN_MAX).max(for_nodes).min(SHARDS_MAX)
}

fn count(request: &PlacementRequest<'_>) -> Result<u32, PlacementError> {
    let cores = len(request.cores);
    let count = match (request.count, cores) {
        (0, 0) => auto_count(request.topology),
        (0, cores) => cores,
        (count, 0) => count,
        (count, cores) if count == cores => count,
        (count, cores) => return Err(PlacementError::Mismatch { count, cores }),
    };
    if count > SHARDS_MAX { Err(PlacementError::TooMany { count }) } else { Ok(count) }
}

fn named(request: &PlacementRequest<'_>) -> Result<Vec<Seat>, PlacementError> {
    let mut seats: Vec<Seat> = Vec::with_capacity(request.cores.len());
    for &core in request.cores {
        let Some(cpu) = request.topology.cpu(core) else {
            let allowed = ranges(&request.topology.cpus);
            return Err(PlacementError::NotAllowed { core, allowed });
        };
        let seat = seat(cpu);
        if seats.contains(&seat) {
            return Err(PlacementError::Duplicate { core });
        }
        seats.push(seat);
    }
    Ok(seats)
}

/// Seats one shard after the other on the best CPU that is left. Shards times CPUs times siblings
/// steps: 256 on the largest machine take a few milliseconds, once.
fn spread(topology: &Topology, count: u32) -> Vec<Seat> {
    let cpus = &topology.cpus;
    let mut used = vec![0_u32; cpus.len()];
    let mut seats: Vec<Seat> = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let cost = |index: &usize| {
            let cpu = &cpus[*index];
            let on_core = cpu
                .siblings
                .iter()
                .filter_map(|sibling| cpus.binary_search_by_key(sibling, |cpu| cpu.id).ok());
            Cost {
                on_cpu: used[*index],
                on_node: seats.iter().filter(|seat| seat.node == cpu.node).count(),
                on_core: on_core.map(|sibling| used[sibling]).sum(),
                zero: u8::from(cpu.siblings.contains(&0)) + u8::from(cpu.id == 0),
            }
        };
        let Some(best) = (0..cpus.len()).min_by_key(cost) else { break };
        used[best] += 1;
        seats.push(seat(&cpus[best]));
    }
    seats
}

/// What speaks against a CPU, the weightiest first. Of equals the lowest number is taken.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Shards on it.
    on_cpu: u32,
    /// Shards on its node.
    on_node: usize,
    /// Shards on the hardware threads of its core.
    on_core: u32,
    /// 1: shares a core with CPU 0. 2: is CPU 0.
    zero: u8,
}

fn seat(cpu: &Cpu) -> Seat {
    Seat { core: Some(cpu.id), node: cpu.node }
}

fn len<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).unwrap_or(u32::MAX)
}

/// `0-3,8`.
fn ranges(cpus: &[Cpu]) -> String {
    let runs = cpus.chunk_by(|one, next| one.id + 1 == next.id);
    let runs = runs.filter_map(|run| {
        let (first, last) = (run.first()?.id, run.last()?.id);
        Some(if first == last { first.to_string() } else { format!("{first}-{last}") })
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fixture::Tree;

    /// A machine of nodes with so many cores each, numbered as Linux does: all cores first, then their
    /// second threads. `allowed` is the affinity mask.
    fn machine(nodes: u32, cores: u32, threads: u32, allowed: &[u32]) -> Topology {
        let mut tree = Tree::new("machine");
        for node in 0..nodes {
            let mut list = Vec::new();
            for thread in 0..threads {
                let first = thread * nodes * cores + node * cores;
                list.push(format!("{first}-{}", first + cores - 1));
            }
            tree = tree.file(&format!("devices/system/node/node{node}/cpulist"), list.join(","));
        }
        for cpu in 0..nodes * cores * threads {
            let core = cpu % (nodes * cores);
            let siblings: Vec<String> =
                (0..threads).map(|thread| (thread * nodes * cores + core).to_string()).collect();
            let file = format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            tree = tree.file(&file, siblings.join(","));
        }
        Topology::from_files(tree.root(), tree.root(), allowed)
    }

    fn all(cpus: u32) -> Vec<u32> {
        (0..cpus).collect()
    }

    fn request(topology: &Topology, count: u32) -> PlacementRequest<'_> {
        PlacementRequest { count, cores: &[], pinning: Pinning::Prefer, topology }
    }

    fn chosen(topology: &Topology, count: u32) -> Vec<u32> {
        let seats = place(&request(topology, count)).unwrap();
        for seat in &seats {
            assert_eq!(seat.node, topology.node_of(seat.core.unwrap()));
        }
        seats.into_iter().filter_map(|seat| seat.core).collect()
    }

    #[test]
    fn the_number_follows_cpus_and_nodes() {
        for (nodes, cores, expected) in [
            (1, 1, 1),
            (1, 2, 1),
            (1, 15, 1),
            (1, 16, 2),
            (1, 128, 8),
            (2, 2, 2),
            (4, 4, 4),
            (16, 8, 16),
        ] {
            let topology = machine(nodes, cores, 1, &all(nodes * cores));
            assert_eq!(auto_count(&topology), expected, "{nodes} nodes of {cores}");
            assert_eq!(chosen(&topology, 0).len(), expected as usize);
        }
    }

    #[test]
    fn a_quota_counts_as_its_cpus() {
        let mut topology = machine(2, 32, 1, &all(64));
        assert_eq!(auto_count(&topology), 8);
        for (effective, expected) in [(40, 5), (4, 2), (2, 2), (1, 1)] {
            topology.effective_cpus = effective;
            assert_eq!(auto_count(&topology), expected, "{effective}");
        }
    }

    #[test]
    fn only_nodes_with_allowed_cpus_count() {
        assert_eq!(chosen(&machine(4, 4, 1, &[4, 5, 12]), 0), [4, 12]);
    }

    #[test]
    fn shards_alternate_between_nodes() {
        let topology = machine(2, 4, 1, &all(8));
        assert_eq!(chosen(&topology, 4), [1, 4, 2, 5]);
    }

    #[test]
    fn cpu_0_and_its_sibling_come_last_on_their_node() {
        assert_eq!(chosen(&machine(1, 3, 1, &all(3)), 3), [1, 2, 0]);
        assert_eq!(chosen(&machine(1, 1, 1, &[0]), 1), [0]);
        // Cores (0,2) and (1,3): a whole core before a second thread, its second thread before CPU 0.
        assert_eq!(chosen(&machine(1, 2, 2, &all(4)), 4), [1, 2, 3, 0]);
        // Node 0 has CPU 0 alone: one shard goes elsewhere.
        assert_eq!(chosen(&machine(2, 4, 1, &[0, 5, 6]), 1), [5]);
    }

    #[test]
    fn whole_cores_come_before_second_threads() {
        let topology = machine(1, 4, 2, &all(8));
        assert_eq!(chosen(&topology, 8), [1, 2, 3, 4, 5, 6, 7, 0]);
        let topology = machine(2, 2, 2, &all(8));
        // Node 0 has cores (0,4) and (1,5), node 1 has (2,6) and (3,7).
        assert_eq!(chosen(&topology, 8), [1, 2, 3, 4, 5, 6, 7, 0]);
    }

    #[test]
    fn a_full_node_does_not_share_while_another_has_room() {
        assert_eq!(chosen(&machine(2, 4, 1, &[1, 4, 5, 6]), 4), [1, 4, 5, 6]);
    }

    #[test]
    fn more_shards_than_cpus_share_in_turn() {
        let topology = machine(1, 2, 1, &all(2));
        assert_eq!(chosen(&topology, 5), [1, 0, 1, 0, 1]);
        let require = PlacementRequest { pinning: Pinning::Require, ..request(&topology, 5) };
        let error = place(&require).unwrap_err();
        assert_eq!(error, PlacementError::Shared { count: 5, allowed: 2 });
        let require = PlacementRequest { pinning: Pinning::Require, ..request(&topology, 2) };
        assert_eq!(place(&require).unwrap().len(), 2);
    }

    #[test]
    fn unpinned_shards_have_no_place() {
        let topology = machine(2, 8, 1, &all(16));
        let off = PlacementRequest { pinning: Pinning::Off, ..request(&topology, 0) };
        assert_eq!(place(&off).unwrap(), [Seat { core: None, node: None }; 2]);
    }

    /// CORE-019, the decision: a named core outside the affinity mask is an error.
    #[test]
    fn core_019_named_cores_are_allowed_unique_and_as_many_as_shards() {
        let topology = machine(2, 4, 1, &[1, 2, 3, 5, 7]);
        let with = |count, cores| place(&PlacementRequest { cores, ..request(&topology, count) });
        let seats =
            [(7, 1), (1, 0)].map(|(core, node)| Seat { core: Some(core), node: Some(node) });
        assert_eq!(with(0, &[7, 1]).unwrap(), seats);
        assert_eq!(with(2, &[7, 1]).unwrap(), seats);
        let allowed = "1-3,5,7".to_owned();
        assert_eq!(with(0, &[1, 4]), Err(PlacementError::NotAllowed { core: 4, allowed }));
        assert_eq!(with(0, &[1, 2, 1]), Err(PlacementError::Duplicate { core: 1 }));
        assert_eq!(with(3, &[1, 2]), Err(PlacementError::Mismatch { count: 3, cores: 2 }));
    }

    #[test]
    fn the_number_is_bounded() {
        let topology = machine(1, 2, 1, &all(2));
        assert_eq!(chosen(&topology, 256).len(), 256);
        assert_eq!(place(&request(&topology, 257)), Err(PlacementError::TooMany { count: 257 }));
    }

    #[test]
    fn a_machine_without_nodes_still_has_places() {
        let tree = Tree::new("bare");
        let topology = Topology::from_files(tree.root(), tree.root(), &[4, 6]);
        let seats = [4, 6].map(|core| Seat { core: Some(core), node: Some(0) });
        assert_eq!(place(&request(&topology, 2)).unwrap(), seats);
    }
}
