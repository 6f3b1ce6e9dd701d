//! Tests that need the table itself. What a user sees is tested in `tests/config.rs`.

use super::check::run;
use super::keys::{GROUP, ROOT, TRANSPORTS, join, object_of};
use super::kinds::{Draft, Key, Kind};
use super::*;
use crate::testing::config::Mutator;

/// Every key with its path.
fn each(visit: &mut dyn FnMut(&str, &'static Key)) {
    fn walk(keys: &'static [Key], above: &str, visit: &mut dyn FnMut(&str, &'static Key)) {
        for key in keys.iter().filter(|key| key.name != GROUP) {
            let path = join(above, key.name);
            visit(&path, key);
            if let Kind::Object(inner) = key.kind {
                walk(inner, &path, visit);
            }
        }
    }
    walk(ROOT, "", visit);
    walk(TRANSPORTS, "", visit);
}

#[test]
fn each_field_holds_its_range_and_its_key_alone() {
    each(&mut |path, key| match &key.kind {
        Kind::Count(count) => {
            for value in [*count.range.start(), *count.range.end()] {
                let mut config = EngineConfig::default();
                (count.set)(&mut config, value);
                assert_eq!((count.get)(&config), value, "{path}");
                (count.set)(&mut config, (count.get)(&EngineConfig::default()));
                assert_eq!(config, EngineConfig::default(), "{path}");
            }
            assert!(count.range.contains(&(count.get)(&EngineConfig::default())), "{path}");
        }
        Kind::Flag(flag) => {
            let mut config = EngineConfig::default();
            let value = !(flag.get)(&config);
            (flag.set)(&mut config, value);
            assert_eq!((flag.get)(&config), value, "{path}");
            assert_ne!(config, EngineConfig::default(), "{path}");
        }
        Kind::Word(word) => {
            for name in word.names {
                let mut config = EngineConfig::default();
                (word.set)(&mut config, name);
                assert_eq!((word.get)(&config), *name, "{path}");
            }
        }
        _ => {}
    });
}

/// Every root key of the document's reference is known by name.
#[test]
fn every_documented_key_is_known() {
    let mut known = Vec::new();
    each(&mut |path, _| known.push(path.to_owned()));
    for name in "bind_addr bind_port_span advertise_addr handler_timeout_us connect_timeout_ms \
                 close_timeout_us quiesce_timeout_ms max_peer_segments max_receiver_credit_sessions \
                 max_registrations max_batches max_batch_tasks max_notifications \
                 max_notification_bytes merge_requests max_merge_bytes max_failover_attempts \
                 auto_refresh enable_progress_worker idle_poll_interval_us probe_numa files shards \
                 security inbound topology selector runtime_queue qos receiver_credit metrics \
                 remote_staging tcp tcp_options hp_tcp shm mnnvl io_uring gds rdma nvlink cma"
        .split_whitespace()
    {
        assert!(known.iter().any(|path| path == name), "{name}");
    }
    let mut unique = known.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), known.len());
    assert_eq!(object_of("mode").as_deref(), Some("`security`"));
    assert_eq!(object_of("slice_bytes").as_deref(), Some("`tcp_options`"));
}

/// CORE-014: whatever values a loaded configuration has, its dump loads as an equal one.
#[test]
fn core_014_a_dump_of_any_valid_configuration_loads_equal() {
    let mut random = Mutator::new(14);
    let mut taken = 0;
    for _ in 0..3000 {
        let mut draft = Draft::default();
        each(&mut |_, key| {
            // Most keys keep their default, so that the rules between fields hold often.
            if random.below(4) != 0 {
                return;
            }
            match &key.kind {
                Kind::Count(count) => {
                    let span = count.range.end() - count.range.start() + 1;
                    let value = count.range.start() + random.next_number() % span;
                    let value = if count.power_of_two { value.next_power_of_two() } else { value };
                    (count.set)(&mut draft.config, value);
                }
                Kind::Flag(flag) => (flag.set)(&mut draft.config, random.below(2) == 0),
                Kind::Word(word) => {
                    (word.set)(&mut draft.config, word.names[random.below(word.names.len())]);
                }
                _ => {}
            }
        });
        let mut config = draft.config;
        if random.below(2) == 0 {
            config.shards.cores = (0..random.below(9) as u32).map(|core| core * 3).collect();
            config.security.allow_peers = vec!["10.0.0.0/8".parse().unwrap(); random.below(3)];
            config.advertise_addr = Some("fd00::1".parse().unwrap());
            config.topology.sysfs_root = "/a \"quoted\"\\\u{1}ü".into();
        }
        let absent = check::Keys { present: false, previous: false };
        if run(&config, absent).is_ok() {
            taken += 1;
            let dump = config.to_json();
            assert_eq!(EngineConfig::from_json(&dump).unwrap(), config, "{dump}");
        }
    }
    assert!(taken > 200, "{taken} of 3000 were valid");
}

/// A typed configuration meets the same ranges as a document.
#[test]
fn a_typed_value_out_of_its_range_is_invalid() {
    each(&mut |path, key| {
        let Kind::Count(count) = &key.kind else { return };
        let mut config = EngineConfig::default();
        let beyond = count.range.end() + 1;
        (count.set)(&mut config, beyond);
        // The field may be as narrow as its range.
        if (count.get)(&config) == beyond {
            let error = config.check().unwrap_err().to_string();
            let range = format!("{}..={}", count.range.start(), count.range.end());
            assert!(error.contains(path) && error.contains(&range), "{error}");
        }
    });
}

#[test]
fn every_contradiction_of_typed_fields_is_invalid_and_named() {
    let key = || Some(PresharedKey::from_bytes(&[7; 32]).unwrap());
    type Change = Box<dyn Fn(&mut EngineConfig)>;
    let cases: Vec<(&str, Change)> = vec![
        ("tcp", Box::new(|c| c.tcp = false)),
        ("bind_addr", Box::new(|c| c.bind_addr = "localhost:1".into())),
        ("advertise_addr", Box::new(|c| c.bind_addr = "0.0.0.0:0".into())),
        ("advertise_addr", Box::new(|c| c.bind_addr = "[::ffff:0.0.0.0]:0".into())),
        ("advertise_addr", Box::new(|c| c.advertise_addr = Some("0.0.0.0".parse().unwrap()))),
        ("advertise_addr", Box::new(|c| c.advertise_addr = Some("ff02::1".parse().unwrap()))),
        (
            "bind_port_span",
            Box::new(|c| {
                c.bind_addr = "127.0.0.1:65530".into();
                c.bind_port_span = 6;
            }),
        ),
        ("tcp_options.small_bytes", Box::new(|c| c.tcp_options.small_bytes = (4 << 20) + 1)),
        (
            "tcp_options.max_message_bytes",
            Box::new(|c| {
                c.tcp_options.max_message_bytes = (4 << 20) - 1;
            }),
        ),
        ("shards.cores", Box::new(|c| c.shards.cores = vec![1, 1])),
        ("shards.cores", Box::new(|c| c.shards.cores = vec![8192])),
        (
            "shards.cores",
            Box::new(|c| {
                c.shards.cores = vec![0, 1];
                c.shards.count = 3;
            }),
        ),
        ("shards.submission_lane_depth", Box::new(|c| c.shards.submission_lane_depth = 100)),
        ("security.psk_file", Box::new(|c| c.security.mode = SecurityMode::Psk)),
        ("security.psk_file", Box::new(move |c| c.security.psk = key())),
        ("security.previous_psk_file", Box::new(move |c| c.security.previous_psk = key())),
        ("topology.sysfs_root", Box::new(|c| c.topology.sysfs_root = "sys".into())),
    ];
    for (path, change) in cases {
        let mut config = EngineConfig::default();
        config.check().unwrap();
        change(&mut config);
        let error = config.check().unwrap_err();
        assert_eq!(error.code(), "invalid_config", "{error}");
        assert!(error.to_string().contains(&format!("{path}: ")), "{path}: {error}");
    }
    let mut config = EngineConfig {
        bind_addr: "127.0.0.1:65530".into(),
        bind_port_span: 5,
        ..EngineConfig::default()
    };
    config.security.mode = SecurityMode::Psk;
    config.security.psk = key();
    config.security.previous_psk = key();
    config.check().unwrap();
}
