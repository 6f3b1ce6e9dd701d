//! Hands what the compiler knows of this build to `diagnostics`: commit, compiler, target, profile,
//! features. Works without git and outside a checkout; what is not known reads `unknown`.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=scripts/build.rs");
    let compiler = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    set("COMMIT", commit());
    set("RUSTC", output(&compiler, &["--version"]));
    set("TARGET", env::var("TARGET").ok());
    set("PROFILE", env::var("PROFILE").ok());
    set("FEATURES", Some(features()));
}

fn set(name: &str, value: Option<String>) {
    let value = value.unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=ORBITE_BUILD_{name}={}", value.lines().next().unwrap_or(""));
}

/// The commit of this very checkout. A copy of the crate inside another project's repository has a
/// prefix there, and that repository's commit says nothing about it.
fn commit() -> Option<String> {
    let place = ["rev-parse", "--show-prefix", "--git-path", "logs/HEAD", "--short=12", "HEAD"];
    let text = output("git", &place)?;
    let mut lines = text.split('\n');
    let (prefix, log, commit) = (lines.next()?, lines.next()?, lines.next()?);
    if !prefix.is_empty() || commit.is_empty() {
        return None;
    }
    // The log of HEAD grows with each commit and each checkout.
    println!("cargo::rerun-if-changed={log}");
    Some(commit.to_owned())
}

/// Names of the enabled features, sorted, separated by commas.
fn features() -> String {
    let mut names: Vec<String> = env::vars()
        .filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_owned()))
        .map(|name| name.to_lowercase().replace('_', "-"))
        .filter(|name| name != "default")
        .collect();
    names.sort();
    names.join(",")
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    if !output.status.success() {
        return None;
    }
    String::from_utf8(output.stdout).ok()
}
