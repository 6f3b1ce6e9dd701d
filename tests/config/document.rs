//! The rules of the document: keys, types, ranges, absent parts, syntax, and the order of errors.

use orbite::testing::config::DOCUMENTS;
use orbite::{EngineConfig, PinMode, ShardHost};

use super::{assert_refused, config_error};

fn refused(text: &str) -> (String, String) {
    config_error(EngineConfig::from_json(text))
}

/// CORE-009: a repeated key is refused at every depth, with its path, even with an equal value.
#[test]
fn core_009_a_repeated_key_is_refused_with_its_path() {
    for (text, path) in [
        (r#"{"tcp": true, "tcp": true}"#, "tcp"),
        (r#"{"bind_port_span": 0, "bind_port_span": 0}"#, "bind_port_span"),
        (r#"{"shards": {}, "shards": {}}"#, "shards"),
        (r#"{"shards": {"pin": "off", "pin": "off"}}"#, "shards.pin"),
        (r#"{"shards": {"pin": "off", "p\u0069n": "off"}}"#, "shards.pin"),
        (
            r#"{"security": {"mode": "epoch", "discovery": "never", "mode": "epoch"}}"#,
            "security.mode",
        ),
        (r#"{"transports": {"tcp": true, "tcp": true}}"#, "transports.tcp"),
        (r#"{"transports": {}, "transports": {}}"#, "transports"),
        (
            r#"{"transports": {"tcp_options": {"max_lanes": 2, "max_lanes": 2}}}"#,
            "transports.tcp_options.max_lanes",
        ),
        (r#"{"shm": {"enable": false, "enable": false}}"#, "shm.enable"),
        (r#"{"selector": {"policy": [], "policy": []}}"#, "selector.policy"),
        (r#"{"files": {"root": null, "root": null}}"#, "files.root"),
    ] {
        assert_refused(text, path, &["twice"]);
    }
}

/// CORE-010: a transport key stands at the root or in the group, not in both.
#[test]
fn core_010_a_transport_key_stands_in_one_place() {
    let text = r#"{"tcp": true, "transports": {"tcp": true}}"#;
    assert_refused(text, "transports.tcp", &["root", "keep one"]);
    let text = r#"{"transports": {"tcp": true}, "tcp": true}"#;
    assert_refused(text, "tcp", &["`transports`", "keep one"]);
    let grouped = r#"{"transports": {"tcp_options": {"max_lanes": 9}}}"#;
    let grouped = EngineConfig::from_json(grouped).unwrap();
    assert_eq!(grouped, EngineConfig::from_json(r#"{"tcp_options": {"max_lanes": 9}}"#).unwrap());
    assert_eq!(grouped.tcp_options.max_lanes, 9);
    let text = r#"{"transports": {"max_peer_segments": 8}}"#;
    assert_refused(text, "transports.max_peer_segments", &["belongs to the root"]);
    // A contradiction is told where the key stands.
    assert_refused(
        r#"{"transports": {"tcp_options": {"slice_bytes": 262144, "small_bytes": 262145}}}"#,
        "transports.tcp_options.small_bytes",
        &["262144", "262145"],
    );
    assert_refused(r#"{"transports": {"tcp": false}}"#, "transports.tcp", &["no transport"]);
}

/// CORE-011: integers are plain, and every refusal tells the range or the type.
#[test]
fn core_011_an_integer_is_plain_and_in_its_range() {
    for (value, word) in [
        ("\"8\"", "without quotes"),
        ("8.0", "without fraction"),
        ("8e0", "without fraction"),
        ("-0", "without fraction"),
        ("0", "found 0"),
        ("4097", "found 4097"),
        ("-1", "found -1"),
        ("18446744073709551615", "found 18446744073709551615"),
        ("-9223372036854775808", "found -9223372036854775808"),
        ("99999999999999999999999", "integer"),
        ("true", "found true"),
        ("null", "found null"),
        ("[8]", "found a list"),
        ("{}", "found an object"),
    ] {
        let text = format!("{{\"max_peer_segments\": {value}}}");
        assert_refused(&text, "max_peer_segments", &["1..=4096", word]);
    }
    for value in [1_u32, 4096] {
        let text = format!("{{\"max_peer_segments\": {value}}}");
        assert_eq!(EngineConfig::from_json(&text).unwrap().max_peer_segments, value);
    }
    for bad in ["08", "+8", "0x8", "8.", ".8", "1_000", "8u", "NaN", "1e999"] {
        EngineConfig::from_json(&format!("{{\"max_peer_segments\": {bad}}}")).unwrap_err();
    }
    assert_refused(
        r#"{"shards": {"submission_lane_depth": 1000}}"#,
        "shards.submission_lane_depth",
        &["power of two", "512 and 1024"],
    );
}

/// CORE-012: keys of other systems, removed keys and typing errors are unknown.
#[test]
fn core_012_foreign_keys_are_unknown() {
    for name in [
        "metadata_type",
        "metadata_server",
        "metadata_servers",
        "local_segment_name",
        "log_level",
        "verbose",
        "enable_auto_failover_on_poll",
        "rpc_server_port",
        "MC_TCP_BIND_ADDRESS",
        "transports/rdma/shared_quota",
        "Tcp ",
    ] {
        assert_refused(&format!("{{\"{name}\": null}}"), name, &["unknown key"]);
    }
    let text = r#"{"max_peer_segmets": 8}"#;
    assert_refused(text, "max_peer_segmets", &["did you mean `max_peer_segments`"]);
    assert_refused(r#"{"tpc": true}"#, "tpc", &["did you mean `tcp`"]);
    assert_refused(r#"{"mode": "psk"}"#, "mode", &["belongs to `security`"]);
    let text = r#"{"shards": {"reactor": "epoll"}}"#;
    assert_refused(text, "shards.reactor", &["this object has count"]);
    let text = r#"{"tcp_options": {"slicebytes": 1}}"#;
    assert_refused(text, "tcp_options.slicebytes", &["`slice_bytes`"]);
    assert_refused("{\n  \"tcp\": true,\n  \"xyz\": 1}", "xyz", &["line 3"]);
}

/// CORE-013: a key of a part that is not here is refused by the part's name, unless it asks for
/// nothing.
#[test]
fn core_013_an_absent_part_is_named_and_its_absence_loads() {
    for (key, part) in [
        ("io_uring", "`io-uring`"),
        ("rdma", "`rdma`"),
        ("gds", "`gds`"),
        ("nvlink", "`cuda`"),
        ("cma", "cross-memory"),
        ("metrics", "`metrics`"),
        ("runtime_queue", "dispatch window"),
        ("receiver_credit", "receiver credit"),
        ("remote_staging", "staging"),
    ] {
        for value in ["{}", "true", "{\"enable\": true}", "{\"x\": 1}", "[]", "1"] {
            let text = format!("{{\"{key}\": {value}}}");
            assert_refused(&text, key, &[part, "remove the key"]);
        }
        for value in ["null", "false", "{\"enable\": false}"] {
            let loaded = EngineConfig::from_json(&format!("{{\"{key}\": {value}}}")).unwrap();
            assert_eq!(loaded, EngineConfig::default());
        }
    }
    for key in ["hp_tcp", "shm", "mnnvl"] {
        for value in ["{}", "null", "{\"enable\": false}"] {
            EngineConfig::from_json(&format!("{{\"{key}\": {value}}}")).unwrap();
            EngineConfig::from_json(&format!("{{\"transports\": {{\"{key}\": {value}}}}}"))
                .unwrap();
        }
        let text = format!("{{\"{key}\": {{\"enable\": true}}}}");
        assert_refused(&text, key, &["does not have"]);
    }
    EngineConfig::from_json(r#"{"qos": {}}"#).unwrap();
    assert_refused(r#"{"qos": {"version": 1}}"#, "qos", &["contracts"]);
    assert_refused(r#"{"transports": {"rdma": {}}}"#, "transports.rdma", &["`rdma`"]);
    assert_refused(r#"{"shm": {"enable": 0}}"#, "shm.enable", &["true or false"]);
}

/// CORE-013 for single keys of absent parts: the default loads, anything else names the part, and a
/// value of the wrong type or range is told as such.
#[test]
fn core_013_a_key_of_an_absent_part_takes_its_default_alone() {
    for (asks, default, path) in [
        (r#"{"max_batches": 1}"#, r#"{"max_batches": 4096}"#, "max_batches"),
        (r#"{"probe_numa": true}"#, r#"{"probe_numa": false}"#, "probe_numa"),
        (r#"{"files": {"root": "/a"}}"#, r#"{"files": {}}"#, "files.root"),
        (r#"{"selector": {"policy": [{}]}}"#, r#"{"selector": {"policy": []}}"#, "selector.policy"),
        (r#"{"topology": {"file": "/t"}}"#, r#"{"topology": {"file": null}}"#, "topology.file"),
        (
            r#"{"topology": {"nic_deny": ["eth0"]}}"#,
            r#"{"topology": {"nic_deny": []}}"#,
            "topology.nic_deny",
        ),
        (
            r#"{"tcp_options": {"lanes_per_peer": 2}}"#,
            r#"{"tcp_options": {"lanes_per_peer": 1}}"#,
            "tcp_options.lanes_per_peer",
        ),
    ] {
        assert_refused(asks, path, &["does not have"]);
        assert_eq!(EngineConfig::from_json(default).unwrap(), EngineConfig::default());
    }
    assert_refused(r#"{"max_batches": 0}"#, "max_batches", &["1..=65536"]);
    assert_refused(r#"{"max_batches": "4096"}"#, "max_batches", &["without quotes"]);
    assert_refused(r#"{"selector": {"policy": {}}}"#, "selector.policy", &["must be a list"]);
    for (host, word) in [
        ("glommio", "`glommio` feature"),
        ("caller", "local shards"),
        ("thraed", "did you mean \"thread\""),
    ] {
        let text = format!(r#"{{"shards": {{"host": "{host}"}}}}"#);
        assert_refused(&text, "shards.host", &[word, "\"auto\" or \"thread\""]);
    }
}

#[test]
fn of_several_errors_the_first_in_the_document_is_told() {
    for (text, path) in [
        (r#"{"tcp": 1, "unknown": 2}"#, "tcp"),
        (r#"{"unknown": 2, "tcp": 1}"#, "unknown"),
        (r#"{"tcp": 1, "tcp": 1}"#, "tcp"),
        (r#"{"shards": {"pin": 1}, "bind_port_span": 9999"#, "shards.pin"),
        (r#"{"bind_port_span": 9999, "shards": {"pin": "#, "bind_port_span"),
        (r#"{"shm": {"enable": {"a": "#, "shm.enable"),
        (r#"{"shards": {"cores": [1, 2, -1, "x"], "count": 999}}"#, "shards.cores[2]"),
        // Rules between fields come last: they need the whole document.
        (r#"{"bind_addr": "0.0.0.0:0", "max_merge_bytes": 1}"#, "max_merge_bytes"),
    ] {
        assert_eq!(refused(text).0, path, "{text}");
    }
}

#[test]
fn bad_syntax_is_refused_with_its_place() {
    for (text, path, word) in [
        ("", "document", "line 1, column 0"),
        ("[]", "document", "must be an object; found a list"),
        ("5", "document", "must be an object; found 5"),
        ("null", "document", "must be an object"),
        ("\u{feff}{}", "document", "byte-order mark"),
        ("{} x", "document", "trailing characters"),
        ("{}{}", "document", "trailing characters"),
        ("{\"tcp\": true,}", "document", "trailing comma"),
        ("{\"tcp\": tru}", "tcp", "line 1"),
        ("{\"shards\": {\"pin\": \"off", "shards.pin", "EOF"),
        ("{\"tcp\": true // no\n}", "document", "line 1"),
        ("{'tcp': true}", "document", "key must be a string"),
        ("{\"bind_addr\": \"\\ud800\"}", "bind_addr", "JSON"),
    ] {
        assert_refused(text, path, &[word]);
    }
    // A nesting without end neither overflows the stack nor takes long.
    for open in ["[", "{\"a\":", "{\"shards\":", "{\"selector\":{\"policy\":["] {
        EngineConfig::from_json(&open.repeat(40_000)).unwrap_err();
    }
    assert_refused(&"[".repeat(33), "document", &["found a list"]);
}

#[test]
fn an_error_never_repeats_more_than_a_line_of_the_document() {
    let long = "x".repeat(1_000_000);
    for text in [
        format!("{{\"{long}\": 1}}"),
        format!("{{\"bind_addr\": \"{long}\"}}"),
        format!("{{\"tcp\": \"{long}\"}}"),
        format!("{{\"topology\": {{\"sysfs_root\": \"/{long}\"}}}}"),
        format!("{{\"security\": {{\"psk_file\": \"/{long}\"}}}}"),
        format!("{{\"shards\": {{\"cores\": \"{long}\"}}}}"),
        format!("{{\"security\": {{\"allow_peers\": [\"{long}\"]}}}}"),
    ] {
        let (path, reason) = refused(&text);
        assert!(path.len() + reason.len() < 600, "{path} {reason}");
    }
}

#[test]
fn cores_are_a_list_or_a_text() {
    let document = |value: &str| format!("{{\"shards\": {{\"cores\": {value}}}}}");
    for (value, expected) in [
        ("[]", &[][..]),
        ("[3, 0]", &[3, 0]),
        ("\"0-3,8\"", &[0, 1, 2, 3, 8]),
        ("\"7\"", &[7]),
        ("\"8191\"", &[8191]),
    ] {
        let cores = EngineConfig::from_json(&document(value)).unwrap().shards.cores;
        assert_eq!(cores, expected, "{value}");
    }
    for value in [
        "[0, 0]",
        "[8192]",
        "[-1]",
        "[1.0]",
        "[\"1\"]",
        "[null]",
        "[[0]]",
        "\"\"",
        "\"3-0\"",
        "\"0-3,2\"",
        "\"0,\"",
        "\"-1\"",
        "\"0--1\"",
        "\" 0\"",
        "\"8192\"",
        "\"0-4294967295\"",
        "\"0-8191\"",
        "null",
        "{}",
        "5",
    ] {
        let (path, reason) = refused(&document(value));
        assert!(path.starts_with("shards.cores"), "{value}: {path} {reason}");
    }
    let many: Vec<u32> = (0..257).collect();
    assert_refused(&document(&format!("{many:?}")), "shards.cores[256]", &["more than 256"]);
    let text = r#"{"shards": {"count": 3, "cores": "0-1"}}"#;
    assert_refused(text, "shards.cores", &["2 CPUs for 3"]);
    let config = EngineConfig::from_json(DOCUMENTS[4]).unwrap();
    assert_eq!(config.shards.pin, PinMode::Require);
    assert_eq!(config.shards.host, ShardHost::Thread);
}

#[test]
fn allowed_peers_are_blocks() {
    let text = r#"{"security": {"allow_peers": ["10.0.0.0/8", "fd00::/8", "192.168.7.1"]}}"#;
    let blocks = EngineConfig::from_json(text).unwrap().security.allow_peers;
    let allowed = |ip: &str| blocks.iter().any(|block| block.contains(ip.parse().unwrap()));
    assert!(allowed("10.9.8.7") && allowed("::ffff:10.9.8.7") && allowed("192.168.7.1"));
    assert!(!allowed("192.168.7.2") && !allowed("fe80::1"));
    for (element, word) in [("\"10.0.0.1/8\"", "10.0.0.0/8"), ("5", "quotes"), ("\"host\"", "host")]
    {
        let text = format!("{{\"security\": {{\"allow_peers\": [\"::/0\", {element}]}}}}");
        assert_refused(&text, "security.allow_peers[1]", &[word]);
    }
}
