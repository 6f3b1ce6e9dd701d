//! What the engine is built from: the compiler that each package asks for, its licence, where it comes
//! from, and the reason that Cargo.toml gives for it.
//!
//! The facts are those of `cargo metadata`, read without the network. `cargo fetch --locked` brings the
//! packages of every platform; where only those of this machine are there, only those are checked.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The declared minimum of this crate, which no dependency may raise.
const MSRV: (u32, u32) = (1, 85);

/// Licences that may be in the graph, as SPDX names them.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages that may have another licence besides: it binds changes of their own files only.
const EXCEPTIONS: &[(&str, &str)] = &[("bitmaps", "MPL-2.0+")];

/// The packages of the lock file.
fn packages() -> Vec<Value> {
    let metadata = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.args(["metadata", "--format-version", "1", "--locked", "--offline"]);
        command.args(more).current_dir(env!("CARGO_MANIFEST_DIR"));
        command.output().expect("cargo starts")
    };
    let mut output = metadata(&[]);
    if !output.status.success() {
        println!("not every platform's packages are here; checking those of this machine");
        output = metadata(&["--filter-platform", &host()]);
    }
    assert!(
        output.status.success(),
        "`cargo metadata --locked --offline` failed; run `cargo fetch --locked` once, with the \
         registry in reach, and if the lock file is stale, commit the new one:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let document: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let packages = document["packages"].as_array().expect("packages are a list").clone();
    assert!(packages.len() > 20, "only {} packages", packages.len());
    println!("{} packages", packages.len());
    packages
}

/// The platform that this machine compiles for.
fn host() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().expect("rustc starts");
    let text = String::from_utf8(output.stdout).expect("rustc writes text");
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("rustc names its host").into()
}

fn name(package: &Value) -> String {
    let text = |key: &str| package[key].as_str().unwrap_or("?");
    format!("{} {}", text("name"), text("version"))
}

#[track_caller]
fn none(found: &[String]) {
    assert!(found.is_empty(), "{} found:\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_package_asks_for_a_newer_compiler() {
    let newer = packages().into_iter().filter_map(|package| {
        let wants = package["rust_version"].as_str()?;
        let name = name(&package);
        (!is_within(wants, MSRV)).then(|| {
            format!("{name} wants Rust {wants}: hold it with `cargo update -p {name} --precise ..`")
        })
    });
    none(&newer.collect::<Vec<_>>());
}

#[test]
fn every_licence_is_an_allowed_one() {
    let others = packages().into_iter().filter_map(|package| {
        let licence = package["license"].as_str().unwrap_or("none");
        let own = package["name"].as_str().unwrap_or_default();
        let excepted = EXCEPTIONS.contains(&(own, licence));
        let allowed = excepted || satisfies(licence, LICENCES);
        (!allowed).then(|| format!("{}: {licence}", name(&package)))
    });
    none(&others.collect::<Vec<_>>());
}

#[test]
fn every_package_comes_from_the_registry() {
    let others = packages().into_iter().filter_map(|package| {
        let source = package["source"].as_str()?;
        (!source.starts_with("registry+")).then(|| format!("{}: {source}", name(&package)))
    });
    none(&others.collect::<Vec<_>>());
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    none(&without_reason(&std::fs::read_to_string(manifest).expect("Cargo.toml is there")));
}

/// Whether `wants` (`1.85`, `1.85.0`) is not above `limit`. What is no version is above.
fn is_within(wants: &str, limit: (u32, u32)) -> bool {
    let mut numbers = wants.split('.').map(str::parse::<u32>);
    let major = numbers.next();
    match (major, numbers.next().unwrap_or(Ok(0))) {
        (Some(Ok(major)), Ok(minor)) => (major, minor) <= limit,
        _ => false,
    }
}

/// Whether an SPDX expression can be met with `allowed` alone. The old `/` means `OR`.
fn satisfies(expression: &str, allowed: &[&str]) -> bool {
    let text = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut rest = words.as_slice();
    let met = any_of(&mut rest, allowed);
    met && rest.is_empty()
}

fn any_of(words: &mut &[&str], allowed: &[&str]) -> bool {
    let mut met = all_of(words, allowed);
    while let Some((&"OR", rest)) = words.split_first() {
        *words = rest;
        met |= all_of(words, allowed);
    }
    met
}

fn all_of(words: &mut &[&str], allowed: &[&str]) -> bool {
    let mut met = one(words, allowed);
    while let Some((&"AND", rest)) = words.split_first() {
        *words = rest;
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut &[&str], allowed: &[&str]) -> bool {
    let Some((first, rest)) = words.split_first() else { return false };
    *words = rest;
    if *first == "(" {
        let met = any_of(words, allowed);
        let Some((&")", rest)) = words.split_first() else { return false };
        *words = rest;
        return met;
    }
    if let [with, exception, rest @ ..] = rest {
        if *with == "WITH" {
            *words = rest;
            return allowed.contains(&format!("{first} WITH {exception}").as_str());
        }
    }
    allowed.contains(first)
}

/// Direct dependencies of a manifest without a comment on the line above.
fn without_reason(manifest: &str) -> Vec<String> {
    let mut found = vec![];
    let mut inside = false;
    let mut above = "";
    for line in manifest.lines().map(str::trim) {
        let reasoned = above.strip_prefix('#').is_some_and(|text| text.trim().len() >= 10);
        above = line;
        let dependency = if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            inside = table.ends_with("dependencies");
            // `[dependencies.name]` is a dependency of its own.
            table.rsplit_once('.').filter(|(of, _)| of.ends_with("dependencies")).map(|(_, it)| it)
        } else if inside && !line.starts_with('#') {
            // A line that only continues a value has no name before its `=`.
            let name = line.split_once('=').map(|(name, _)| name.trim());
            name.filter(|name| name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c)))
        } else {
            None
        };
        found.extend(
            dependency
                .filter(|_| !reasoned)
                .map(|name| format!("{name}: no comment above says what it is for")),
        );
    }
    found
}

#[test]
fn versions_compare_as_numbers() {
    for fits in ["1.85", "1.85.0", "1.56.1", "1.9", "1"] {
        assert!(is_within(fits, MSRV), "{fits}");
    }
    for above in ["1.86", "1.86.0", "1.100", "2.0", "2", "", "new", "1.x"] {
        assert!(!is_within(above, MSRV), "{above}");
    }
}

#[test]
fn licence_expressions_are_understood() {
    for fits in [
        "MIT",
        "MIT OR Apache-2.0",
        "MIT/Apache-2.0",
        "LGPL-2.1-or-later OR MIT",
        "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        "(MIT OR GPL-3.0) AND Unicode-3.0",
        "GPL-3.0 AND MIT OR ISC",
    ] {
        assert!(satisfies(fits, LICENCES), "{fits}");
    }
    for other in [
        "none",
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "MIT AND (GPL-3.0 OR LGPL-2.1)",
        "GPL-2.0 WITH Classpath-exception-2.0",
        "MIT WITH LLVM-exception",
        "MPL-2.0+",
        "(MIT",
        "MIT)",
    ] {
        assert!(!satisfies(other, LICENCES), "{other}");
    }
}

#[test]
fn a_dependency_without_a_reason_is_found() {
    let manifest = "[package]\nname = \"a\"\n[dependencies]\n# Reads the document.\nb = \"1\"\n\
                    c = \"1\"\n[target.'cfg(x)'.dependencies]\n# No\nd = { version = \"1\" }\n\
                    [dev-dependencies.e]\nversion = \"1\"\n# Draws the table.\n[dependencies.f]\n\
                    [lints.rust]\ng = \"deny\"\n[build-dependencies]\n# Compiles the shim.\nh = [\n\
                    \"x\",\n]\n";
    let found = without_reason(manifest);
    let names: Vec<_> = found.iter().filter_map(|it| it.split(':').next()).collect();
    assert_eq!(names, ["c", "d", "e"]);
}
