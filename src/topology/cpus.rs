//! How many CPUs this process can really use at a time: affinity mask, cgroup cpuset and cgroup quota,
//! versions 1 and 2 (cgroups(7), Documentation/admin-guide/cgroup-v2.rst, `sched-bwc.rst`).
//!
//! `/proc/self/cgroup` names the group of each hierarchy, `/proc/self/mountinfo` says where the
//! hierarchy is mounted and which of its groups the mount shows as its root. A quota of any ancestor
//! binds too, as far up as the mount shows.

use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use crate::topology::{attribute, cpulist};

/// Longest `/proc/self/cgroup` read: a line for each hierarchy.
const GROUPS_MAX: u64 = 64 << 10;
/// Longest mount table read: some hosts have thousands of container mounts.
const MOUNTS_MAX: u64 = 4 << 20;
/// Period of version 2 where the file has a quota only, microseconds.
const PERIOD_DEFAULT_US: u64 = 100_000;

/// CPUs that may be used, and how many of them at a time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EffectiveCpus {
    /// Affinity mask without what the cpuset forbids; at least one.
    pub cpus: Vec<u32>,
    /// How many threads can spin at a time: `cpus`, or the whole part of a smaller quota, at least 1. A
    /// quota below 2 counts as 1: the share that is left over is used up by the thread that waits.
    pub count: u32,
    /// CPU seconds per second, the least of the group and its ancestors; `None`: no quota, or unknown.
    pub quota: Option<f64>,
}

/// Of the process whose `/proc/self` lies below `root`, with the affinity mask `allowed`. What is
/// missing or not understood limits nothing; an empty mask counts as CPU 0.
pub(crate) fn effective_cpus(root: &Path, allowed: &[u32]) -> EffectiveCpus {
    let groups = Groups::read(root);
    let mut cpus = if allowed.is_empty() { vec![0] } else { allowed.to_vec() };
    cpus.sort_unstable();
    cpus.dedup();
    if let Some(set) = groups.cpuset() {
        let within: Vec<u32> =
            cpus.iter().copied().filter(|cpu| set.binary_search(cpu).is_ok()).collect();
        // The kernel keeps the mask inside the set. If they have nothing in common, the files are
        // another process's.
        if !within.is_empty() {
            cpus = within;
        }
    }
    let quota = groups.quota();
    let granted = quota.map_or(u32::MAX, |quota| (quota as u32).max(1));
    let count = granted.min(u32::try_from(cpus.len()).unwrap_or(u32::MAX));
    EffectiveCpus { cpus, count, quota }
}

/// Folders of this process's groups, the group itself first, then its ancestors.
struct Groups {
    /// Version 2.
    unified: Vec<PathBuf>,
    /// Version 1, controller `cpu`.
    cpu: Vec<PathBuf>,
    /// Version 1, controller `cpuset`.
    cpuset: Vec<PathBuf>,
}

impl Groups {
    fn read(root: &Path) -> Self {
        let file = |name, max| attribute::read_up_to(&root.join(name), max).unwrap_or_default();
        let groups = file("proc/self/cgroup", GROUPS_MAX);
        let mounts = file("proc/self/mountinfo", MOUNTS_MAX);
        let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(Mount::parse).collect();
        let folders = |hierarchy: Hierarchy| {
            let group = groups.lines().find_map(|line| hierarchy.group(line));
            group.map_or_else(Vec::new, |group| folders(root, &mounts, hierarchy, group))
        };
        Self {
            unified: folders(Hierarchy::Unified),
            cpu: folders(Hierarchy::Controller("cpu")),
            cpuset: folders(Hierarchy::Controller("cpuset")),
        }
    }

    /// The set of the nearest group that tells one; an ancestor's contains it.
    fn cpuset(&self) -> Option<Vec<u32>> {
        let list = |folder: &PathBuf, name| {
            attribute::read(&folder.join(name)).as_deref().and_then(cpulist::parse)
        };
        let unified = |folder: &PathBuf| list(folder, "cpuset.cpus.effective");
        let old = |folder: &PathBuf| {
            list(folder, "cpuset.effective_cpus").or_else(|| list(folder, "cpuset.cpus"))
        };
        self.unified.iter().find_map(unified).or_else(|| self.cpuset.iter().find_map(old))
    }

    fn quota(&self) -> Option<f64> {
        let unified = self.unified.iter().filter_map(|folder| {
            let text = attribute::read(&folder.join("cpu.max"))?;
            let mut fields = text.split_ascii_whitespace();
            let quota = fields.next()?.parse().ok()?;
            let period = fields.next().map_or(Some(PERIOD_DEFAULT_US), |text| text.parse().ok())?;
            ratio(quota, period)
        });
        let old = self.cpu.iter().filter_map(|folder| {
            let number = |name| attribute::read(&folder.join(name))?.parse::<u64>().ok();
            ratio(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
        });
        unified.chain(old).min_by(f64::total_cmp)
    }
}

fn ratio(quota_us: u64, period_us: u64) -> Option<f64> {
    (quota_us > 0 && period_us > 0).then(|| quota_us as f64 / period_us as f64)
}

/// One tree of groups.
#[derive(Clone, Copy)]
enum Hierarchy {
    /// Version 2, all controllers.
    Unified,
    /// Version 1, the tree that this controller is attached to.
    Controller(&'static str),
}

impl Hierarchy {
    /// The group that a line of `/proc/self/cgroup` (`number:controllers:path`) names, if the line is
    /// this hierarchy's.
    fn group(self, line: &str) -> Option<&str> {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = match self {
            Self::Unified => number == "0" && controllers.is_empty(),
            Self::Controller(name) => controllers.split(',').any(|controller| controller == name),
        };
        ours.then_some(group)
    }

    fn is_mounted_at(self, mount: &Mount<'_>) -> bool {
        match self {
            Self::Unified => mount.kind == "cgroup2",
            Self::Controller(name) => {
                mount.kind == "cgroup" && mount.options.split(',').any(|option| option == name)
            }
        }
    }
}

/// One line of the mount table, as far as it matters (proc_pid_mountinfo(5)).
struct Mount<'a> {
    /// The group that the mount point shows.
    group: PathBuf,
    /// Where it is mounted.
    point: PathBuf,
    kind: &'a str,
    /// Options of the file system; for version 1 they name its controllers.
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        // Any number of optional fields stands before the lone dash.
        let (place, system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (group, point) = (place.next()?, place.next()?);
        let mut system = system.split(' ');
        let (kind, _source, options) = (system.next()?, system.next()?, system.next()?);
        Some(Self { group: unescape(group), point: unescape(point), kind, options })
    }
}

/// Space, tab, line end and backslash are written as a backslash with three octal digits.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, after @ ..] = rest {
        let code = match rest {
            [b'\\', code @ ..] => code.get(..3).and_then(octal),
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &rest[4..] } else { after };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

fn octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(digit - b'0'),
        _ => None,
    })
}

/// Folders of `group` and its ancestors, from the first mount that shows it. A mount whose root is not
/// an ancestor comes from another namespace's view; its own root is then the best guess, since a
/// container usually sees no other group than its own.
fn folders(root: &Path, mounts: &[Mount<'_>], of: Hierarchy, group: &str) -> Vec<PathBuf> {
    let group = Path::new(group);
    let mut ours = mounts.iter().filter(|mount| of.is_mounted_at(mount));
    let shows = |mount: &Mount<'_>| {
        let below = group.strip_prefix(&mount.group).ok()?;
        let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        plain.then(|| (mount.point.clone(), below.to_owned()))
    };
    let shown = ours.clone().find_map(shows);
    let guess = || ours.next().map(|mount| (mount.point.clone(), PathBuf::new()));
    let Some((point, below)) = shown.or_else(guess) else { return Vec::new() };
    let top = root.join(point.strip_prefix("/").unwrap_or(&point));
    below.ancestors().map(|below| top.join(below)).collect()
}

#[cfg(test)]
mod tests;
