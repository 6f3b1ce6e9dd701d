//! What this build is and what it finds on this machine, for bug reports and support.
//!
//! Everything here reads: it starts no thread, opens no device, loads no library and touches no
//! network. The output has no host name, user name, address or value of an environment variable.

mod host;
mod render;

use serde::Serialize;

pub use host::Host;

/// Version of this crate, as in its manifest.
pub const BUILD_VERSION: &str = env!("CARGO_PKG_VERSION");

/// First 12 digits of the commit this was built from; `unknown` outside a git checkout of orbite.
/// Fixed when the crate is compiled.
pub const BUILD_COMMIT: &str = env!("ORBITE_BUILD_COMMIT");

/// Version of the JSON form of [`Snapshot`]. It rises when a key is removed or changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// Oldest kernel that the engine is made for.
const KERNEL_MIN: (u32, u32) = (4, 18);

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// As it should be.
    Pass,
    /// Works, at a price that `effect` names.
    Warn,
    /// Does not work; `remedy` says what to do.
    Fail,
    /// Could not be looked at; `detail` says why.
    Skipped,
}

impl Outcome {
    /// The name in text and JSON: `pass`, `warn`, `fail`, `skipped`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skipped => "skipped",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// Stable dotted name, such as `kernel.version`.
    pub id: &'static str,
    /// How it came out.
    pub outcome: Outcome,
    /// One line: what was seen.
    pub summary: String,
    /// More, or empty.
    pub detail: String,
    /// What follows for the user.
    pub effect: String,
    /// What to do; `None` where there is nothing to do.
    pub remedy: Option<String>,
}

/// What was compiled, with what, for what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BuildInfo {
    /// [`BUILD_VERSION`].
    pub version: &'static str,
    /// [`BUILD_COMMIT`].
    pub commit: &'static str,
    /// First line of `rustc --version`.
    pub rustc: &'static str,
    /// Target triple.
    pub target: &'static str,
    /// `debug` or `release`, the directory of the Cargo profile's base.
    pub profile: &'static str,
    /// Enabled features, sorted.
    pub features: Vec<&'static str>,
    /// Oldest compiler that the manifest declares.
    pub msrv: &'static str,
}

impl BuildInfo {
    /// Facts of the running build.
    pub fn current() -> Self {
        Self {
            version: BUILD_VERSION,
            commit: BUILD_COMMIT,
            rustc: env!("ORBITE_BUILD_RUSTC"),
            target: env!("ORBITE_BUILD_TARGET"),
            profile: env!("ORBITE_BUILD_PROFILE"),
            features: list(env!("ORBITE_BUILD_FEATURES")),
            msrv: env!("CARGO_PKG_RUST_VERSION"),
        }
    }
}

fn list(names: &'static str) -> Vec<&'static str> {
    names.split(',').filter(|name| !name.is_empty()).collect()
}

/// Everything at one moment. `checks` are in order of their `id`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What was compiled.
    pub build: BuildInfo,
    /// The machine.
    pub host: Host,
    /// What was looked at.
    pub checks: Vec<Check>,
}

impl Snapshot {
    /// 1 if a check failed, else 0. A warning is no failure.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.checks.iter().any(|check| check.outcome == Outcome::Fail))
    }

    fn new(build: BuildInfo, host: Host, mut checks: Vec<Check>) -> Self {
        checks.sort_by_key(|check| check.id);
        Self { schema_version: SCHEMA_VERSION, build, host, checks }
    }
}

/// Build, machine and the checks that cost nothing: no thread, no device, no network. It reads a few
/// files below `/proc` and `/sys`; what cannot be read is `Skipped` or absent, never an error.
pub fn version_snapshot() -> Snapshot {
    let build = BuildInfo::current();
    let host = Host::read();
    let checks = vec![features_check(&build), affinity_check(&host), kernel_check(&host)];
    Snapshot::new(build, host, checks)
}

fn features_check(build: &BuildInfo) -> Check {
    let names = if build.features.is_empty() { "none".into() } else { build.features.join(", ") };
    Check {
        id: "build.features",
        outcome: Outcome::Pass,
        summary: format!("features: {names}; transports: tcp"),
        detail: String::new(),
        effect: "a configuration that names another transport is refused".into(),
        remedy: None,
    }
}

const ALONE: &str = "caller, shards and peers share one CPU and take turns; nothing spins";

fn affinity_check(host: &Host) -> Check {
    let (outcome, effect, remedy) = match (host.cpus, host.effective_cpus) {
        (0 | 1, _) => (Outcome::Warn, ALONE, Some("widen the cpuset or the affinity mask")),
        (_, 0 | 1) => (Outcome::Warn, ALONE, Some("raise the control group's CPU quota")),
        _ => (Outcome::Pass, "caller and shard can run side by side", None),
    };
    Check {
        id: "cpu.affinity",
        outcome,
        summary: format!("{} CPUs allowed for this process", host.cpus),
        detail: host
            .cpu_quota
            .map(|quota| format!("the control group grants {quota} CPUs at a time"))
            .unwrap_or_default(),
        effect: effect.into(),
        remedy: remedy.map(Into::into),
    }
}

fn kernel_check(host: &Host) -> Check {
    let (major, minor) = KERNEL_MIN;
    let (outcome, detail) = match host::release_numbers(&host.kernel) {
        None => (Outcome::Skipped, "the release has no readable number"),
        Some(found) if found < KERNEL_MIN => (Outcome::Fail, ""),
        Some(_) => (Outcome::Pass, ""),
    };
    let fail = outcome == Outcome::Fail;
    Check {
        id: "kernel.version",
        outcome,
        summary: format!("Linux {}", host.kernel),
        detail: detail.into(),
        effect: if fail {
            format!("not tried on kernels before {major}.{minor}; calls may be missing")
        } else {
            "no known limit".into()
        },
        remedy: fail.then(|| format!("run on Linux {major}.{minor} or later")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(cpus: u32, kernel: &str) -> Host {
        let (effective_cpus, cpu_quota) = (cpus, None);
        Host { cpus, effective_cpus, cpu_quota, kernel: kernel.into(), ..Host::read() }
    }

    #[test]
    fn a_snapshot_is_sorted_and_has_the_build() {
        let snapshot = version_snapshot();
        assert_eq!(snapshot.schema_version, SCHEMA_VERSION);
        assert_eq!(snapshot.build.version, env!("CARGO_PKG_VERSION"));
        assert!(snapshot.build.rustc.starts_with("rustc "), "{}", snapshot.build.rustc);
        assert!(snapshot.checks.is_sorted_by_key(|check| check.id));
        assert!(!BUILD_COMMIT.is_empty());
    }

    #[test]
    fn only_a_failed_check_makes_the_exit_code_one() {
        let build = BuildInfo::current();
        let old = host(2, "4.9.0-generic");
        let one = host(1, "6.1.0");
        let failed = Snapshot::new(build.clone(), old.clone(), vec![kernel_check(&old)]);
        assert_eq!(failed.exit_code(), 1);
        assert!(failed.checks[0].remedy.is_some());
        let warned = Snapshot::new(build, one.clone(), vec![affinity_check(&one)]);
        assert_eq!(warned.checks[0].outcome, Outcome::Warn);
        assert_eq!(warned.exit_code(), 0);
    }

    #[test]
    fn a_quota_of_one_cpu_is_no_place_to_spin() {
        let many = host(64, "6.1.0");
        assert_eq!(affinity_check(&many).outcome, Outcome::Pass);
        let held = affinity_check(&Host { effective_cpus: 1, cpu_quota: Some(1.5), ..many });
        assert_eq!(held.outcome, Outcome::Warn);
        assert!(held.detail.contains("1.5") && held.remedy.unwrap().contains("quota"));
    }

    #[test]
    fn what_cannot_be_read_is_skipped() {
        assert_eq!(kernel_check(&host(2, "")).outcome, Outcome::Skipped);
    }
}
