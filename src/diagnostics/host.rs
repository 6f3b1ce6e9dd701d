//! The machine, as far as it can be read from `/proc` and `/sys` without rights.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// The machine. No name, address or user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Host {
    /// Kernel release (`/proc/sys/kernel/osrelease`); empty if it cannot be read.
    pub kernel: String,
    /// Architecture, such as `x86_64`.
    pub arch: &'static str,
    /// CPUs in the affinity mask of this process; 0 if it cannot be read.
    pub cpus: u32,
    /// NUMA nodes that are online; 0 if the kernel does not say.
    pub numa_nodes: u32,
    /// Why this looks like a container; `None` if nothing speaks for it.
    pub container: Option<&'static str>,
}

impl Host {
    pub(super) fn read() -> Self {
        let status = read("/proc/self/status");
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            arch: std::env::consts::ARCH,
            cpus: field(&status, "Cpus_allowed_list:").map_or(0, count_list),
            numa_nodes: count_list(read("/sys/devices/system/node/online").trim()),
            container: container(),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Members of a kernel list such as `0-3,8`. 0 for text that is no such list.
fn count_list(text: &str) -> u32 {
    text.split(',').try_fold(0, |sum: u32, part| sum.checked_add(count_part(part)?)).unwrap_or(0)
}

fn count_part(part: &str) -> Option<u32> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    last.checked_sub(first)?.checked_add(1)
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
    fn kernel_lists_are_counted() {
        for (text, count) in [("0", 1), ("0-3", 4), ("0-3,8", 5), ("0,2,4-5", 4)] {
            assert_eq!(count_list(text), count, "{text}");
        }
        for bad in ["", "x", "3-1", "0-4294967295,0", "1,,2"] {
            assert_eq!(count_list(bad), 0, "{bad}");
        }
    }

    #[test]
    fn releases_are_read_as_far_as_they_are_numbers() {
        assert_eq!(release_numbers("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(release_numbers("5.8+"), Some((5, 8)));
        assert_eq!(release_numbers("linux"), None);
        assert_eq!(release_numbers("6"), None);
    }

    #[test]
    fn the_field_of_a_status_file_is_found() {
        let status = "Name:\torbite\nCpus_allowed_list:\t0-1\n";
        assert_eq!(field(status, "Cpus_allowed_list:"), Some("0-1"));
        assert_eq!(field(status, "VmRSS:"), None);
    }
}
