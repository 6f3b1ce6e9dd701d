//! Affinity, cpuset and quota on trees of files as kernels show them.

use super::*;
use crate::topology::fixture::Tree;

const CPUS: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

const V1_MOUNTS: &str = "\
24 1 0:22 / / rw - ext4 /dev/vda rw
30 24 0:26 / /sys/fs/cgroup rw shared:9 - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:10 master:2 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const V1_GROUPS: &str = "4:cpuset:/job\n3:cpu,cpuacct:/job/step\n2:memory:/\n0::/\n";

const V2_MOUNTS: &str = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
const V2_GROUPS: &str = "0::/user.slice/job.scope\n";

fn v1() -> Tree {
    Tree::new("v1").file("proc/self/mountinfo", V1_MOUNTS).file("proc/self/cgroup", V1_GROUPS)
}

fn v1_quota(quota: &str, period: &str) -> EffectiveCpus {
    let folder = "sys/fs/cgroup/cpu,cpuacct/job/step";
    let tree = v1()
        .file(&format!("{folder}/cpu.cfs_quota_us"), quota)
        .file(&format!("{folder}/cpu.cfs_period_us"), period);
    effective_cpus(tree.root(), &CPUS)
}

fn v2() -> Tree {
    Tree::new("v2").file("proc/self/mountinfo", V2_MOUNTS).file("proc/self/cgroup", V2_GROUPS)
}

fn v2_quota(text: impl AsRef<[u8]>) -> EffectiveCpus {
    let tree = v2().file("sys/fs/cgroup/user.slice/job.scope/cpu.max", text);
    effective_cpus(tree.root(), &CPUS)
}

#[test]
fn version_1_quotas_are_whole_cpus_and_below_two_one() {
    for (quota, count, cpus) in [
        ("50000", 1, 0.5),
        ("100000", 1, 1.0),
        ("199999", 1, 1.999_99),
        ("200000", 2, 2.0),
        ("350000", 3, 3.5),
        ("9900000", 8, 99.0),
    ] {
        let effective = v1_quota(quota, "100000\n");
        assert_eq!((effective.count, effective.quota), (count, Some(cpus)), "{quota}");
    }
}

#[test]
fn version_1_without_a_quota_is_minus_one() {
    let effective = v1_quota("-1\n", "100000\n");
    assert_eq!((effective.count, effective.quota), (8, None));
}

#[test]
fn version_2_quotas_are_read_with_and_without_a_period() {
    for (text, count, quota) in [
        ("50000 100000\n", 1, Some(0.5)),
        ("150000 50000\n", 3, Some(3.0)),
        ("400000", 4, Some(4.0)),
        ("max 100000\n", 8, None),
        ("max", 8, None),
    ] {
        let effective = v2_quota(text);
        assert_eq!((effective.count, effective.quota), (count, quota), "{text}");
    }
}

#[test]
fn nonsense_limits_nothing() {
    for (quota, period) in [
        ("0", "100000"),
        ("-50000", "100000"),
        ("50000", "0"),
        ("50000", "-1"),
        ("half", "100000"),
        ("", "100000"),
        ("50000", ""),
        ("18446744073709551616", "100000"),
    ] {
        assert_eq!(v1_quota(quota, period).quota, None, "{quota} {period}");
    }
    for text in ["", "0 100000", "100000 0", "-1 100000", "100000 -1", "1e5", "100000 max"] {
        assert_eq!(v2_quota(text).quota, None, "{text}");
    }
    assert_eq!(v2_quota(format!("50000 {}", "1".repeat(5_000))).quota, None, "huge");
    assert_eq!(v2_quota(b"50000 \xff").quota, None, "not text");
}

#[test]
fn the_least_quota_of_all_ancestors_counts() {
    let tree = v2()
        .file("sys/fs/cgroup/user.slice/job.scope/cpu.max", "600000 100000")
        .file("sys/fs/cgroup/user.slice/cpu.max", "300000 100000")
        .file("sys/fs/cgroup/cpu.max", "max 100000")
        .file("sys/fs/cgroup/other.slice/cpu.max", "100000 100000");
    assert_eq!(effective_cpus(tree.root(), &CPUS).count, 3);
    let tree = v1()
        .file("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "200000")
        .file("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000");
    assert_eq!(effective_cpus(tree.root(), &CPUS).count, 2);
}

#[test]
fn the_cpuset_narrows_the_affinity_mask() {
    let cpus = |tree: &Tree, allowed: &[u32]| effective_cpus(tree.root(), allowed).cpus;
    let tree = v2().file("sys/fs/cgroup/user.slice/job.scope/cpuset.cpus.effective", "2-3,9\n");
    assert_eq!(cpus(&tree, &CPUS), [2, 3]);
    assert_eq!(cpus(&tree, &[3, 4]), [3]);
    assert_eq!(cpus(&tree, &[4, 5]), [4, 5], "nothing in common: not this process's set");
    // A group without the controller has no file: its parent's holds.
    let tree = v2().file("sys/fs/cgroup/user.slice/cpuset.cpus.effective", "0,5");
    assert_eq!(cpus(&tree, &CPUS), [0, 5]);
    let tree = v1().file("sys/fs/cgroup/cpuset/job/cpuset.cpus", "1-2");
    assert_eq!(cpus(&tree, &CPUS), [1, 2]);
    let tree = tree.file("sys/fs/cgroup/cpuset/job/cpuset.effective_cpus", "2");
    assert_eq!(cpus(&tree, &CPUS), [2]);
    let tree = v1().file("sys/fs/cgroup/cpuset/job/cpuset.cpus", "\n");
    assert_eq!(cpus(&tree, &CPUS), CPUS);
}

/// A container sees its own group as the root of the mount, whatever the path in its group file.
#[test]
fn a_mount_of_a_group_is_that_group() {
    let mounts = "9 8 0:5 /docker/abc /sys/fs/cgroup/cpu\\040x ro - cgroup cgroup rw,cpu\n";
    let inside = |group: &str| {
        let tree = Tree::new("container")
            .file("proc/self/mountinfo", mounts)
            .file("proc/self/cgroup", format!("3:cpu:{group}\n"))
            .file("sys/fs/cgroup/cpu x/cpu.cfs_quota_us", "400000")
            .file("sys/fs/cgroup/cpu x/cpu.cfs_period_us", "100000")
            .file("sys/fs/cgroup/cpu x/inner/cpu.cfs_quota_us", "200000")
            .file("sys/fs/cgroup/cpu x/inner/cpu.cfs_period_us", "100000");
        effective_cpus(tree.root(), &CPUS).count
    };
    assert_eq!(inside("/docker/abc"), 4);
    assert_eq!(inside("/docker/abc/inner"), 2);
    assert_eq!(inside("/docker/abc/../../etc"), 4, "not below the mount");
    assert_eq!(inside("/docker/abcdef"), 4, "compared by component");
    assert_eq!(inside("/elsewhere"), 4, "the mount's own root is the best guess");
}

#[test]
fn broken_tables_limit_nothing() {
    for (mounts, groups) in [
        ("", ""),
        (V2_MOUNTS, ""),
        ("", V2_GROUPS),
        (V2_MOUNTS, "0\n0:\n:::\n"),
        ("30 24\n - \n30 24 0:26 / - cgroup2\n30 24 0:26 / /x rw - cgroup2", V2_GROUPS),
        (V1_MOUNTS, "3:cpuacct:/job/step\n"),
    ] {
        let tree = Tree::new("broken")
            .file("proc/self/mountinfo", mounts)
            .file("proc/self/cgroup", groups)
            .file("sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_quota_us", "100000")
            .file("sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_period_us", "100000");
        let expected = EffectiveCpus { cpus: CPUS.to_vec(), count: 8, quota: None };
        assert_eq!(effective_cpus(tree.root(), &CPUS), expected, "{mounts} {groups}");
    }
}

#[test]
fn an_affinity_mask_is_sorted_and_never_empty() {
    let tree = Tree::new("nothing");
    assert_eq!(effective_cpus(tree.root(), &[5, 1, 5]).cpus, [1, 5]);
    assert_eq!(effective_cpus(tree.root(), &[]).cpus, [0]);
}

#[test]
fn octal_escapes_of_the_mount_table_are_undone() {
    for (field, path) in [
        ("/plain", "/plain"),
        ("/a\\040b\\134c", "/a b\\c"),
        ("/half\\04", "/half\\04"),
        ("/not\\999", "/not\\999"),
        ("/not\\+12", "/not\\+12"),
        ("/over\\777", "/over\\777"),
        ("/end\\", "/end\\"),
    ] {
        assert_eq!(unescape(field), Path::new(path), "{field}");
    }
}
