//! Documents and key files on disk, and what the environment names.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use orbite::testing::config as bodies;
use orbite::{EngineConfig, Error, PresharedKey};

use super::{Directory, assert_refused, child, config_error, in_child};

/// What `from_env` gives in a process with that variable: a configuration, or path and reason.
fn from_env(conf: Option<&OsStr>) -> Result<EngineConfig, (String, String)> {
    let output = child("files::child_prints_its_environment", conf);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let (_, told) = text.split_once("<<<").unwrap();
    let (told, _) = told.split_once(">>>").unwrap();
    let (kind, rest) = told.split_once('|').unwrap();
    if kind == "loaded" {
        return Ok(EngineConfig::from_json(rest).unwrap());
    }
    let (path, reason) = rest.split_once('|').unwrap();
    Err((path.into(), reason.into()))
}

#[test]
fn child_prints_its_environment() {
    if !in_child() {
        return;
    }
    match EngineConfig::from_env() {
        Ok(config) => println!("<<<loaded|{}>>>", config.to_json()),
        Err(Error::Config { path, reason, .. }) => println!("<<<refused|{path}|{reason}>>>"),
        Err(other) => panic!("{other}"),
    }
}

/// CORE-005: `ORBITE_CONF` unset, empty, inline or a path; nothing else of the environment counts.
#[test]
fn core_005_the_environment_gives_defaults_a_document_or_a_path() {
    let directory = Directory::new("env");
    let mut expected = EngineConfig::default();
    assert_eq!(from_env(None).unwrap(), expected);
    assert_eq!(from_env(Some("".as_ref())).unwrap(), expected);

    expected.max_peer_segments = 7;
    let inline = " \n{\"max_peer_segments\": 7}";
    assert_eq!(from_env(Some(inline.as_ref())).unwrap(), expected);
    let path = directory.file("orbite.json", inline);
    assert_eq!(from_env(Some(path.as_os_str())).unwrap(), expected);

    let (path, reason) = from_env(Some("/no/such/file".as_ref())).unwrap_err();
    assert_eq!(path, "ORBITE_CONF");
    assert!(reason.contains("/no/such/file") && reason.contains("No such file"), "{reason}");
    let (path, reason) = from_env(Some(OsStr::from_bytes(b"{\"tcp\": \xff}"))).unwrap_err();
    assert_eq!(path, "ORBITE_CONF");
    assert!(reason.contains("UTF-8"), "{reason}");
    let (path, _) = from_env(Some("{\"tcp\": 1}".as_ref())).unwrap_err();
    assert_eq!(path, "tcp");
}

/// The loaders with explicit input do not look at the environment.
#[test]
fn explicit_input_ignores_the_environment() {
    let output = child("files::child_loads_explicitly", Some("{\"tcp\": 1}".as_ref()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn child_loads_explicitly() {
    if !in_child() {
        return;
    }
    EngineConfig::from_env().unwrap_err();
    assert_eq!(EngineConfig::from_json("{}").unwrap(), EngineConfig::default());
    let directory = Directory::new("explicit");
    let loaded = EngineConfig::from_file(directory.file("orbite.json", "{}")).unwrap();
    assert_eq!(loaded, EngineConfig::default());
}

/// CORE-006: a configuration is a value: what becomes of its files later does not change it.
#[test]
fn core_006_a_loaded_configuration_outlives_its_files() {
    let directory = Directory::new("snapshot");
    let key = directory.key("key", [9; 40], 0o600);
    let text = format!(
        r#"{{"max_peer_segments": 7, "security": {{"mode": "psk", "psk_file": {key:?}}}}}"#
    );
    let path = directory.file("orbite.json", text);
    let output = child("files::child_keeps_its_snapshot", Some(path.as_os_str()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(!path.exists() && !key.exists(), "the child did its part");
}

#[test]
fn child_keeps_its_snapshot() {
    if !in_child() {
        return;
    }
    let path = PathBuf::from(std::env::var_os("ORBITE_CONF").unwrap());
    let first = EngineConfig::from_env().unwrap();
    let before = (first.clone(), first.to_json());
    fs::remove_file(first.security.psk.as_ref().unwrap().path().unwrap()).unwrap();
    fs::write(&path, "{\"tcp\": false}").unwrap();
    let second = first.clone();
    fs::remove_file(&path).unwrap();
    for config in [&first, &second] {
        bodies::check(config).unwrap();
        assert_eq!((config.clone(), config.to_json()), before);
        assert_eq!(config.max_peer_segments, 7);
        assert_eq!(config.security.psk, Some(PresharedKey::from_bytes(&[9; 40]).unwrap()));
    }
}

/// CORE-007: the limit is 1 048 576 bytes, blanks included, by every way in.
#[test]
fn core_007_a_document_has_at_most_one_mebibyte() {
    let directory = Directory::new("size");
    let mut text = String::from("{\"tcp\": true}");
    text.push_str(&" ".repeat((1 << 20) - text.len()));
    assert_eq!(EngineConfig::from_json(&text).unwrap(), EngineConfig::default());
    let path = directory.file("full.json", &text);
    assert_eq!(EngineConfig::from_file(&path).unwrap(), EngineConfig::default());

    text.push(' ');
    assert_refused(&text, "document", &["1048576"]);
    let (at, reason) = config_error(EngineConfig::from_file(directory.file("over.json", &text)));
    assert_eq!(at, "document");
    assert!(reason.contains("1048576") && reason.contains("over.json"), "{reason}");
    let sparse = directory.file("sparse.json", "");
    fs::File::options().write(true).open(&sparse).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(config_error(EngineConfig::from_file(&sparse)).0, "document");
    // A file whose length is told as 0 is read to its end all the same.
    let (at, reason) = config_error(EngineConfig::from_file("/proc/self/status"));
    assert_eq!(at, "document");
    assert!(reason.contains("not valid JSON"), "{reason}");
}

/// The limit holds while reading: a file that grows meanwhile cannot pass it.
#[test]
fn core_007_a_growing_file_is_refused() {
    let directory = Directory::new("growing");
    let path = directory.file("growing.json", "{");
    let mut file = fs::File::options().append(true).open(&path).unwrap();
    let (stop, stopped) = mpsc::channel::<()>();
    let writer = std::thread::Builder::new()
        .spawn(move || {
            for _ in 0..256 {
                if !matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Empty)) {
                    break;
                }
                file.write_all(&[b' '; 16_384]).unwrap();
            }
        })
        .unwrap();
    for _ in 0..200 {
        assert_eq!(config_error(EngineConfig::from_file(&path)).0, "document");
    }
    drop(stop);
    writer.join().unwrap();
}

/// CORE-008: what is no regular file is refused at once, whatever it would do when read.
#[test]
fn core_008_irregular_files_are_refused_without_waiting() {
    let directory = Directory::new("irregular");
    let fifo = directory.fifo();
    let link = directory.0.join("link");
    symlink(&fifo, &link).unwrap();
    let mut paths = vec![
        (fifo.clone(), "FIFO"),
        (link, "FIFO"),
        (directory.0.clone(), "directory"),
        ("/dev/zero".into(), "device"),
        ("/dev/tty".into(), "device"),
    ];
    // The path of a socket has at most 107 bytes, so it stands where paths are short.
    let socket = std::env::temp_dir().join(format!("orbite-config-{}", std::process::id()));
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    paths.push((socket.clone(), "socket"));

    for (path, word) in paths {
        let (send, receive) = mpsc::channel();
        let named = path.clone();
        std::thread::Builder::new()
            .spawn(move || send.send(config_error(EngineConfig::from_file(path))))
            .unwrap();
        let (at, reason) = receive.recv_timeout(Duration::from_secs(5)).expect("it does not hang");
        assert_eq!(at, "document", "{named:?}");
        assert!(reason.contains(word) && reason.contains(named.to_str().unwrap()), "{reason}");
    }
    drop(listener);
    fs::remove_file(&socket).unwrap();
    assert_eq!(from_env(Some(fifo.as_os_str())).unwrap_err().0, "ORBITE_CONF");

    let (_, reason) = config_error(EngineConfig::from_file(directory.file("bytes", b"{\xff}")));
    assert!(reason.contains("byte 2") && reason.contains("UTF-8"), "{reason}");
    let (_, reason) = config_error(EngineConfig::from_file(directory.0.join("none")));
    assert!(reason.contains("No such file"), "{reason}");
}

/// CORE-018: a key file is private, regular, of a decent length, and the engine user's own.
#[test]
fn core_018_an_unsafe_key_file_is_refused() {
    let directory = Directory::new("keys");
    let load = |path: &Path| {
        EngineConfig::from_json(&format!(
            r#"{{"security": {{"mode": "psk", "psk_file": {path:?}}}}}"#
        ))
    };
    symlink(&directory.0, directory.0.join("to-directory")).unwrap();
    for (path, word) in [
        (directory.key("world", [1; 64], 0o644), "mode 0644"),
        (directory.key("group-write", [1; 64], 0o620), "mode 0620"),
        (directory.key("others", [1; 64], 0o601), "mode 0601"),
        (directory.key("short", [1; 8], 0o600), "32 to 1024 bytes; this one has 8"),
        (directory.key("31", [1; 31], 0o600), "this one has 31"),
        (directory.key("long", [1; 1025], 0o600), "this one has more"),
        (directory.key("zero", [0; 32], 0o600), "all bytes are zero"),
        (directory.key("empty", [], 0o600), "this one has 0"),
        (directory.0.join("to-directory"), "directory"),
        (directory.0.clone(), "directory"),
        (directory.fifo(), "FIFO"),
        ("/dev/zero".into(), "device"),
        (directory.0.join("missing"), "No such file"),
    ] {
        let (at, reason) = config_error(load(&path));
        assert_eq!(at, "security.psk_file");
        assert!(reason.contains(word) && reason.contains(path.to_str().unwrap()), "{reason}");
        let typed = PresharedKey::from_file(&path).unwrap_err();
        assert_eq!(typed.code(), "invalid_config", "{typed}");
    }
    // Only a privileged user can give a file away, so only that one can show the rule of the owner.
    let foreign = directory.key("foreign", [1; 64], 0o600);
    if std::os::unix::fs::chown(&foreign, Some(12_345), None).is_ok() {
        let (_, reason) = config_error(load(&foreign));
        assert!(reason.contains("belongs to user 12345"), "{reason}");
    }

    let good = directory.key("good", [1; 32], 0o600);
    let link = directory.0.join("link");
    symlink(&good, &link).unwrap();
    for path in [good, link, directory.key("longest", [1; 1024], 0o400)] {
        load(&path).unwrap();
        assert_eq!(PresharedKey::from_file(&path).unwrap().path(), Some(path.as_path()));
    }
}

#[test]
fn key_files_are_opened_only_after_everything_else_was_checked() {
    // The key file is missing, but the later error is told: nothing was opened.
    for rest in [r#""tcp": 1"#, r#""tcp": false"#] {
        let text =
            format!(r#"{{"security": {{"mode": "psk", "psk_file": "/no/such/key"}}, {rest}}}"#);
        assert_refused(&text, "tcp", &[]);
    }
    for (security, path) in [
        (r#"{"mode": "psk"}"#, "security.psk_file"),
        (r#"{"mode": "psk", "psk_file": null}"#, "security.psk_file"),
        (r#"{"psk_file": "/no/such/key"}"#, "security.psk_file"),
        (r#"{"previous_psk_file": "/no/such/key"}"#, "security.previous_psk_file"),
        (r#"{"psk_file": "<redacted>"}"#, "security.psk_file"),
        (r#"{"psk_file": ""}"#, "security.psk_file"),
        (r#"{"psk_file": "a\u0000b"}"#, "security.psk_file"),
        (r#"{"psk_file": 5}"#, "security.psk_file"),
    ] {
        assert_refused(&format!(r#"{{"security": {security}}}"#), path, &[]);
    }
}

#[test]
fn an_error_in_a_file_names_the_file() {
    let directory = Directory::new("named");
    let path = directory.file("orbite.json", "{\n \"tcp\": 1\n}");
    let (at, reason) = config_error(EngineConfig::from_file(&path));
    assert_eq!(at, "tcp");
    assert!(reason.contains("line 2") && reason.contains(path.to_str().unwrap()), "{reason}");
    let path = directory.file("orbite.json", r#"{"bind_addr": "[::]:0"}"#);
    let (at, reason) = config_error(EngineConfig::from_file(&path));
    assert_eq!(at, "advertise_addr");
    assert!(reason.contains(path.to_str().unwrap()), "{reason}");
}
