//! Memory nodes, the CPUs on them and the hardware threads of one core, from sysfs
//! (Documentation/ABI/stable/sysfs-devices-node, sysfs-devices-system-cpu).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::topology::{attribute, cpulist};

/// Nodes looked at; more than any kernel is built for.
const NODES_MAX: usize = 1024;

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// The kernel's number.
    pub id: u32,
    /// CPUs on it that the process may use, ascending. Empty for a node of memory alone.
    pub cpus: Vec<u32>,
    /// Distance to each node, in the order of the nodes; 10 is local (ACPI SLIT). Empty: unknown.
    pub distances: Vec<u32>,
}

/// One CPU that the process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cpu {
    /// The kernel's number.
    pub id: u32,
    /// Its NUMA node; `None`: unknown.
    pub node: Option<u32>,
    /// Hardware threads of its core, itself among them, ascending; those that the process may not use
    /// too. Itself alone where that is unknown.
    pub siblings: Vec<u32>,
}

/// Nodes and CPUs of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Numa {
    /// Ascending by number; at least one.
    pub nodes: Vec<Node>,
    /// Those of `allowed`, in its order.
    pub cpus: Vec<Cpu>,
}

impl Numa {
    /// From the sysfs at `sysfs_root`, for the CPUs in `allowed` (ascending, each once). Without a node
    /// folder there is one node 0 with all of them. A CPU that no node lists has an unknown one.
    pub(crate) fn discover(sysfs_root: &Path, allowed: &[u32]) -> Self {
        let system = sysfs_root.join("devices/system");
        let mut nodes = read_nodes(&system.join("node"), allowed);
        if nodes.is_empty() {
            nodes.push(Node { id: 0, cpus: allowed.to_vec(), distances: vec![10] });
        }
        let mut node_of = BTreeMap::new();
        for node in &nodes {
            for &cpu in &node.cpus {
                node_of.entry(cpu).or_insert(node.id);
            }
        }
        let cpu = |&id: &u32| Cpu {
            id,
            node: node_of.get(&id).copied(),
            siblings: read_siblings(&system.join("cpu"), id),
        };
        Self { cpus: allowed.iter().map(cpu).collect(), nodes }
    }
}

fn read_nodes(folder: &Path, allowed: &[u32]) -> Vec<Node> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut ids: Vec<u32> = names.filter_map(|name| node_id(&name)).take(NODES_MAX).collect();
    ids.sort_unstable();
    let count = ids.len();
    let node = |id: u32| {
        let folder = folder.join(format!("node{id}"));
        let listed = attribute::read(&folder.join("cpulist"));
        let listed = listed.as_deref().and_then(cpulist::parse).unwrap_or_default();
        let cpus = allowed.iter().copied().filter(|cpu| listed.binary_search(cpu).is_ok());
        let distances = attribute::read(&folder.join("distance"));
        let distances = distances.as_deref().and_then(parse_distances);
        Node {
            id,
            cpus: cpus.collect(),
            // One number for each online node; another count belongs to nodes that are not seen here.
            distances: distances.filter(|all| all.len() == count).unwrap_or_default(),
        }
    };
    ids.into_iter().map(node).collect()
}

/// Of a folder named `nodeN`. `node-1` and `node` are none, and `possible` or `power` are other files.
fn node_id(name: &str) -> Option<u32> {
    match cpulist::parse(name.strip_prefix("node")?)?.as_slice() {
        [id] => Some(*id),
        _ => None,
    }
}

fn parse_distances(text: &str) -> Option<Vec<u32>> {
    text.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
}

fn read_siblings(folder: &Path, cpu: u32) -> Vec<u32> {
    let folder = folder.join(format!("cpu{cpu}/topology"));
    // The second name is the newer one (Linux 5.3); both are there today.
    let known = ["thread_siblings_list", "core_cpus_list"].iter().find_map(|name| {
        let text = attribute::read(&folder.join(name))?;
        cpulist::parse(&text).filter(|siblings| siblings.binary_search(&cpu).is_ok())
    });
    known.unwrap_or_else(|| vec![cpu])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::fixture::Tree;

    const NODE: &str = "devices/system/node";
    const CPU: &str = "devices/system/cpu";

    fn two_nodes() -> Tree {
        Tree::new("numa")
            .file(&format!("{NODE}/possible"), "0-1")
            .file(&format!("{NODE}/node0/cpulist"), "0-3\n")
            .file(&format!("{NODE}/node0/distance"), "10 21\n")
            .file(&format!("{NODE}/node1/cpulist"), "4-7\n")
            .file(&format!("{NODE}/node1/distance"), "21 10\n")
    }

    fn summary(tree: &Tree, allowed: &[u32]) -> Vec<(u32, Vec<u32>, Vec<u32>)> {
        let nodes = Numa::discover(tree.root(), allowed).nodes;
        nodes.into_iter().map(|node| (node.id, node.cpus, node.distances)).collect()
    }

    fn node_of(tree: &Tree, allowed: &[u32]) -> Vec<Option<u32>> {
        Numa::discover(tree.root(), allowed).cpus.iter().map(|cpu| cpu.node).collect()
    }

    #[test]
    fn nodes_show_the_cpus_that_are_allowed() {
        let tree = two_nodes();
        assert_eq!(
            summary(&tree, &[1, 2, 6]),
            [(0, vec![1, 2], vec![10, 21]), (1, vec![6], vec![21, 10])]
        );
        assert_eq!(node_of(&tree, &[1, 2, 6]), [Some(0), Some(0), Some(1)]);
    }

    /// CORE-155, the node: without a NUMA directory there is one, with all allowed CPUs.
    #[test]
    fn core_155_without_a_directory_there_is_one_node() {
        let tree = Tree::new("no-numa");
        assert_eq!(summary(&tree, &[0, 5]), [(0, vec![0, 5], vec![10])]);
        assert_eq!(node_of(&tree, &[0, 5]), [Some(0), Some(0)]);
        let tree = Tree::new("no-node").file(&format!("{NODE}/possible"), "0");
        assert_eq!(summary(&tree, &[0]), [(0, vec![0], vec![10])]);
    }

    #[test]
    fn a_node_without_cpus_stays() {
        let tree = two_nodes()
            .file(&format!("{NODE}/node2/cpulist"), "\n")
            .file(&format!("{NODE}/node2/distance"), "17 28 10");
        let nodes = summary(&tree, &[0, 4]);
        assert_eq!(nodes[2], (2, vec![], vec![17, 28, 10]));
        assert_eq!(nodes[0].2, [0; 0], "two distances for three nodes are not believed");
    }

    #[test]
    fn numbers_of_nodes_may_have_gaps_and_are_sorted() {
        let mut tree = Tree::new("gaps");
        for (id, cpus) in [(10, "2"), (8, "1"), (0, "0")] {
            tree = tree.file(&format!("{NODE}/node{id}/cpulist"), cpus);
        }
        let ids: Vec<u32> = summary(&tree, &[0, 1, 2]).into_iter().map(|node| node.0).collect();
        assert_eq!(ids, [0, 8, 10]);
        assert_eq!(node_of(&tree, &[0, 1, 2]), [Some(0), Some(8), Some(10)]);
    }

    #[test]
    fn what_is_not_understood_is_unknown() {
        let tree = Tree::new("odd")
            .file(&format!("{NODE}/node0/cpulist"), "0")
            .file(&format!("{NODE}/node0/distance"), "10 -1")
            .file(&format!("{NODE}/node1/cpulist"), "-1")
            .file(&format!("{NODE}/node-1/cpulist"), "2")
            .file(&format!("{NODE}/node0-1/cpulist"), "2")
            .file(&format!("{NODE}/node/cpulist"), "2")
            .file(&format!("{NODE}/node3/cpulist"), "9".repeat(5_000));
        assert_eq!(
            summary(&tree, &[0, 1, 2]),
            [(0, vec![0], vec![]), (1, vec![], vec![]), (3, vec![], vec![])]
        );
        assert_eq!(node_of(&tree, &[0, 1, 2]), [Some(0), None, None]);
    }

    #[test]
    fn hardware_threads_of_a_core_are_siblings() {
        let topology = |cpu: u32, name| format!("{CPU}/cpu{cpu}/topology/{name}");
        let tree = Tree::new("smt")
            .file(&topology(0, "thread_siblings_list"), "0,4\n")
            .file(&topology(1, "core_cpus_list"), "1,5\n")
            .file(&topology(2, "thread_siblings_list"), "3,7\n")
            .file(&topology(3, "thread_siblings_list"), "-1\n");
        let cpus = Numa::discover(tree.root(), &[0, 1, 2, 3, 6]).cpus;
        let siblings: Vec<_> = cpus.into_iter().map(|cpu| cpu.siblings).collect();
        let expected: [&[u32]; 5] = [&[0, 4], &[1, 5], &[2], &[3], &[6]];
        assert_eq!(siblings, expected, "a list without the CPU itself is not believed");
    }
}
