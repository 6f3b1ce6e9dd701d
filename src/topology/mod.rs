//! The machine as one value: the CPUs that this process may use, how much of them, and the memory nodes
//! they belong to. Read once, at start, from sysfs, procfs and the cgroup files.
//!
//! What cannot be read or understood is unknown and never a failure; a machine about which nothing is
//! known is one node with the CPUs of the affinity mask.

mod attribute;
pub(crate) mod cpulist;
pub(crate) mod cpus;
pub(crate) mod numa;

use std::path::Path;

use crate::sys::affinity;
use crate::topology::cpus::EffectiveCpus;
use crate::topology::numa::{Cpu, Node, Numa};

/// What is known of the machine, seen from this process. An immutable snapshot.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Topology {
    /// CPUs that the process may use, ascending by number; at least one.
    pub cpus: Vec<Cpu>,
    /// NUMA nodes, ascending by number; at least one. A node may have no CPU of ours.
    pub nodes: Vec<Node>,
    /// CPUs that run at the same time, the cgroup's quota counted in; at least 1, at most `cpus`.
    pub effective_cpus: u32,
    /// CPU seconds per second that the cgroup grants; `None`: no quota, or unknown.
    pub cpu_quota: Option<f64>,
}

impl Topology {
    /// Of the running machine. `sysfs_root` is `/sys` outside tests. Reads the affinity mask of the
    /// calling thread, so call it before a thread pins itself.
    pub(crate) fn discover(sysfs_root: &Path) -> Self {
        Self::from_files(Path::new("/"), sysfs_root, &affinity::allowed_cpus())
    }

    /// Of the machine whose `/proc` and cgroup mounts lie below `root` and whose sysfs is `sysfs_root`,
    /// for a thread with the affinity mask `allowed`.
    pub(crate) fn from_files(root: &Path, sysfs_root: &Path, allowed: &[u32]) -> Self {
        let EffectiveCpus { cpus, count, quota } = cpus::effective_cpus(root, allowed);
        let Numa { nodes, cpus } = Numa::discover(sysfs_root, &cpus);
        Self { cpus, nodes, effective_cpus: count, cpu_quota: quota }
    }

    /// NUMA node of `cpu`. `None`: unknown, or not a CPU that the process may use.
    #[cfg(test)]
    pub fn node_of(&self, cpu: u32) -> Option<u32> {
        self.cpu(cpu).and_then(|cpu| cpu.node)
    }

    /// What is known of CPU number `cpu`. `None`: not a CPU that the process may use.
    pub fn cpu(&self, cpu: u32) -> Option<&Cpu> {
        let index = self.cpus.binary_search_by_key(&cpu, |known| known.id).ok()?;
        self.cpus.get(index)
    }
}

#[cfg(test)]
pub(crate) mod fixture;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fixture::Tree;

    #[test]
    fn a_bare_tree_is_one_node_with_the_affinity_mask() {
        let tree = Tree::new("bare");
        let topology = Topology::from_files(tree.root(), tree.root(), &[3, 5]);
        assert_eq!(topology.cpus.iter().map(|cpu| cpu.id).collect::<Vec<_>>(), [3, 5]);
        assert_eq!(topology.nodes.len(), 1);
        assert_eq!((topology.nodes[0].id, &*topology.nodes[0].cpus), (0, &[3, 5][..]));
        assert_eq!((topology.effective_cpus, topology.cpu_quota), (2, None));
        assert_eq!((topology.node_of(5), topology.node_of(4)), (Some(0), None));
    }

    #[test]
    fn the_running_machine_has_a_cpu_on_a_node() {
        let topology = Topology::discover(Path::new("/sys"));
        let cpus = topology.cpus.len();
        assert!(cpus >= 1);
        assert!((1..=cpus).contains(&(topology.effective_cpus as usize)));
        assert!(topology.cpus.iter().all(|cpu| cpu.siblings.contains(&cpu.id)));
        assert!(!topology.nodes.is_empty());
    }
}
