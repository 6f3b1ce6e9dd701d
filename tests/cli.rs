//! The `orbite` command as a shell sees it: exit codes, what goes to which stream, closed pipes.
//! Nothing here starts an engine.
#![cfg(feature = "cli")]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails with its test")]

use std::io::Read;
use std::process::{Command, Output, Stdio};

fn orbite(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbite"));
    command.args(args).stdin(Stdio::null()).env_remove("ORBITE_CONF").output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_wrong_command_line_ends_with_2_and_prints_nothing_on_stdout() {
    for args in [
        &["--nonsense"][..],
        &["bench", "--block-size", "4KB"],
        &["bench", "--transport", "shm"],
        &["bench", "--input", "/"],
        &["bench", "--input", "/no/such/file"],
        &["bench", "--workloads", "/no/such/file"],
        &["bench", "--pin", "65000"],
        &["bench", "run", "--epoch-file", "/no/such/file"],
        &["bench", "target"],
    ] {
        let output = orbite(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(text(&output.stderr).contains("error: "), "{args:?}");
    }
    assert!(text(&orbite(&["bench", "--transport", "shm"]).stderr).contains("Usage:"));
}

#[test]
fn the_version_is_one_line() {
    for flag in ["-V", "--version"] {
        let output = orbite(&[flag]);
        assert_eq!(output.status.code(), Some(0));
        let line = text(&output.stdout);
        let commit = orbite::diagnostics::BUILD_COMMIT;
        assert_eq!(line, format!("orbite {} ({commit})\n", orbite::diagnostics::BUILD_VERSION));
    }
}

#[test]
fn diagnostics_are_text_or_one_json_document_without_names() {
    let output = orbite(&["diagnostics", "version"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = orbite(&["diagnostics", "version", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["schema_version"], orbite::diagnostics::SCHEMA_VERSION);
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let name = name.trim();
    // A short name may be part of another word.
    assert!(name.len() < 8 || !text(&output.stdout).contains(name));
}

#[test]
fn a_refused_configuration_ends_with_3() {
    let output = orbite(&["config", "check", "/no/such/file"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("/no/such/file"));
}

#[test]
fn help_goes_to_stdout_and_names_every_flag() {
    let output = orbite(&["bench", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = text(&output.stdout);
    for flag in [
        "--block-size",
        "--batch",
        "--op",
        "--duration",
        "--iterations",
        "--warmup",
        "--repeat",
        "--transport",
        "--pin",
        "--verify",
        "--buffer",
        "--seed",
        "--json",
        "--quiet",
        "--input",
        "--workloads",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
    assert!(!help.contains("served"));
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    for args in [&["completions", "bash"][..], &["man"], &["diagnostics", "version"], &["--help"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_orbite"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}: {errors}");
        assert_eq!(errors, "", "{args:?}");
    }
}
