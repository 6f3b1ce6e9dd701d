//! The machine, as far as it can be read from `/proc` and `/sys` without rights.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::topology::Topology;

/// The machine. No name, address or user.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Host {
    /// Kernel release (`/proc/sys/kernel/osrelease`); empty if it cannot be read.
    pub kernel: String,
    /// Architecture, such as `x86_64`.
    pub arch: &'static str,
    /// CPUs that this process may use: affinity mask and cpuset.
    pub cpus: u32,
    /// CPUs that run at the same time, the control group's quota counted in. Engines wait by this number.
    pub effective_cpus: u32,
    /// CPU seconds per second that the control group grants; `None`: no quota, or unknown.
    pub cpu_quota: Option<f64>,
    /// NUMA nodes, at least one.
    pub numa_nodes: u32,
    /// Why this looks like a container; `None` if nothing speaks for it.
    pub container: Option<&'static str>,
}

impl Host {
    pub(super) fn read() -> Self {
        let topology = Topology::discover(Path::new("/sys"));
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            arch: std::env::consts::ARCH,
            cpus: topology.cpus.len() as u32,
            effective_cpus: topology.effective_cpus,
            cpu_quota: topology.cpu_quota,
            numa_nodes: topology.nodes.len() as u32,
            container: container(),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Major and minor number of a release such as `6.1.0-13-amd64`.
pub(super) fn release_numbers(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The marks that common container run times leave. A hint: a container may hide them.
fn container() -> Option<&'static str> {
    if Path::new("/.dockerenv").exists() {
        return Some("/.dockerenv exists");
    }
    if Path::new("/run/.containerenv").exists() {
        return Some("/run/.containerenv exists");
    }
    let groups = read("/proc/1/cgroup");
    ["kubepods", "docker", "containerd", "lxc"]
        .into_iter()
        .any(|word| groups.contains(word))
        .then_some("the first process runs in a container's control group")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_far_as_they_are_numbers() {
        assert_eq!(release_numbers("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(release_numbers("5.8+"), Some((5, 8)));
        assert_eq!(release_numbers("linux"), None);
        assert_eq!(release_numbers("6"), None);
    }
}
