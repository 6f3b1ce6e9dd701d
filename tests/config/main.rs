//! The configuration as a user meets it: every way in, every refusal with its key path, the way out.
//! Cases that need the environment or a process of their own run this suite again as a child.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test suite fail the test")]

mod document;
mod files;
mod fuzz;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use orbite::testing::config::{self as bodies, DOCUMENTS};
use orbite::{EngineConfig, Error, PresharedKey, SecurityMode};

/// Path and reason of an error of a loader.
fn config_error(outcome: orbite::Result<EngineConfig>) -> (String, String) {
    match outcome {
        Err(Error::Config { path, reason, .. }) => (path, reason),
        other => panic!("{other:?}"),
    }
}

fn assert_refused(text: &str, path: &str, words: &[&str]) {
    let (at, reason) = config_error(EngineConfig::from_json(text));
    assert_eq!(at, path, "{text}: {reason}");
    for word in words {
        assert!(reason.contains(word), "{text}: no {word:?} in {reason:?}");
    }
}

/// A directory of one test, removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("config-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn key(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.file(name, content);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn fifo(&self) -> PathBuf {
        let path = self.0.join("fifo");
        assert!(Command::new("mkfifo").args(["-m", "600"]).arg(&path).status().unwrap().success());
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs one test of this suite in a process of its own, with `ORBITE_CONF` as given.
fn child(test: &str, conf: Option<&OsStr>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env("ORBITE_TEST_CHILD", "1").env_remove("ORBITE_CONF");
    // Variables of other engines, which must have no effect.
    command.env("MC_TENT_CONF", "{\"tcp\": false}").env("ORBITE_BIND_ADDR", "127.0.0.9:1");
    if let Some(conf) = conf {
        command.env("ORBITE_CONF", conf);
    }
    command.output().unwrap()
}

fn in_child() -> bool {
    std::env::var_os("ORBITE_TEST_CHILD").is_some()
}

/// CORE-004: a wildcard bind needs an address for peers; the typed and the written form agree.
#[test]
fn core_004_a_wildcard_bind_needs_an_advertised_address() {
    let mut config = EngineConfig::default();
    for bind in ["0.0.0.0:0", "[::]:0"] {
        config.bind_addr = bind.into();
        config.advertise_addr = None;
        let error = bodies::check(&config).unwrap_err();
        assert_eq!(error.code(), "invalid_config", "{error}");
        assert!(error.to_string().contains("advertise_addr"), "{error}");
        config.advertise_addr = Some("10.0.0.7".parse().unwrap());
        bodies::check(&config).unwrap();
    }
    let text = r#"{"bind_addr": "0.0.0.0:0"}"#;
    assert_refused(text, "advertise_addr", &["0.0.0.0:0", "set advertise_addr"]);
    let text = r#"{"bind_addr": "0.0.0.0:0", "advertise_addr": "10.0.0.7"}"#;
    let loaded = EngineConfig::from_json(text).unwrap();
    assert_eq!(loaded.advertise_addr, Some("10.0.0.7".parse().unwrap()));
}

/// CORE-014: a dump loads as an equal configuration and holds no secret.
#[test]
fn core_014_a_dump_loads_equal_and_holds_no_secret() {
    let directory = Directory::new("dump");
    for text in DOCUMENTS {
        let config = EngineConfig::from_json(text).unwrap();
        assert_eq!(EngineConfig::from_json(&config.to_json()).unwrap(), config);
    }

    let secret = b"correct horse battery staple 0123456789";
    let key = directory.key("key", secret, 0o600);
    let previous = directory.key("previous", [0x41; 64], 0o400);
    let config = EngineConfig::from_json(&format!(
        r#"{{"security": {{"mode": "psk", "psk_file": {key:?}, "previous_psk_file": {previous:?}}}}}"#
    ))
    .unwrap();
    assert_eq!(config.security.mode, SecurityMode::Psk);
    assert_eq!(config.security.psk, Some(PresharedKey::from_bytes(secret).unwrap()));
    let dump = config.to_json();
    assert_eq!(EngineConfig::from_json(&dump).unwrap(), config);
    for text in [dump, format!("{config:?}")] {
        assert!(!text.contains("correct horse") && !text.contains("AAAA"), "{text}");
        assert!(text.contains(key.to_str().unwrap()), "{text}");
    }

    let mut typed = EngineConfig::default();
    typed.security.mode = SecurityMode::Psk;
    typed.security.psk = Some(PresharedKey::from_bytes(secret).unwrap());
    bodies::check(&typed).unwrap();
    let dump = typed.to_json();
    assert!(!dump.contains("correct") && !format!("{typed:?}").contains("correct"), "{dump}");
    assert_refused(&dump, "security.psk_file", &["<redacted>", "name the key's file"]);
}

/// CORE-017 with the decision that a peer always proves the epoch: there is no mode `none`.
#[test]
fn core_017_there_is_no_mode_without_a_proof() {
    for bind in ["0.0.0.0:0", "127.0.0.1:0", "10.0.0.7:7000"] {
        assert_refused(
            &format!(
                r#"{{"bind_addr": "{bind}", "advertise_addr": "10.0.0.7", "security": {{"mode": "none"}}}}"#
            ),
            "security.mode",
            &["none", "\"epoch\" or \"psk\""],
        );
    }
    let text = r#"{"security": {"mode": "Psk"}}"#;
    assert_refused(text, "security.mode", &["did you mean \"psk\""]);
}

/// The documented defaults, written out a second time on purpose.
#[test]
fn defaults_are_the_documented_ones() {
    let expected = r#"{
        "bind_addr": "127.0.0.1:0", "bind_port_span": 0, "advertise_addr": null,
        "handler_timeout_us": 5000000, "connect_timeout_ms": 3000, "close_timeout_us": 5000000,
        "quiesce_timeout_ms": 5000, "max_peer_segments": 1024, "max_registrations": 65536,
        "merge_requests": true, "max_merge_bytes": 67108864, "auto_refresh": true,
        "idle_poll_interval_us": 50000, "tcp": true,
        "tcp_options": {"max_lanes": 1024, "lane_window": 16, "max_scatter_ops": 256,
            "slice_bytes": 4194304, "small_bytes": 262144, "max_message_bytes": 67108864,
            "send_chunk_bytes": 1048576, "stall_timeout_ms": 10000, "keepalive_idle_s": 10,
            "keepalive_interval_s": 5, "keepalive_count": 3, "payload_crc": false,
            "reconnect_cooldown_ms": 1000},
        "shards": {"count": 0, "cores": [], "pin": "prefer", "numa": "local", "host": "auto",
            "spin_us": 20, "yield_us": 200, "submission_lane_depth": 1024, "max_caller_lanes": 256,
            "turn_max_submissions": 256, "turn_max_events": 1024, "turn_max_bytes": 1048576},
        "security": {"mode": "epoch", "psk_file": null, "previous_psk_file": null,
            "discovery": "never", "allow_peers": []},
        "inbound": {"max_connections": 1024, "max_connections_per_ip": 256, "max_handshakes": 64,
            "handshake_timeout_ms": 2000, "max_inflight_bytes": 1073741824,
            "describe_page_regions": 512},
        "topology": {"sysfs_root": "/sys"}}"#;
    assert_eq!(EngineConfig::from_json(expected).unwrap(), EngineConfig::default());
    let dump: serde_json::Value = serde_json::from_str(&EngineConfig::default().to_json()).unwrap();
    assert_eq!(dump, serde_json::from_str::<serde_json::Value>(expected).unwrap());
    bodies::check(&EngineConfig::default()).unwrap();
}
