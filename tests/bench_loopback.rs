//! The benchmark with real engines: two processes on loopback, as a user starts them.
#![cfg(feature = "cli")]
#![expect(clippy::unwrap_used, reason = "a helper of a test fails with its test")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbite"));
    command.args(args).stdin(Stdio::null()).env_remove("ORBITE_CONF");
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn json(output: &Output) -> Value {
    assert_eq!(text(&output.stdout).lines().count(), 1, "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("orbite-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const SHORT: [&str; 8] =
    ["--duration", "60ms", "--warmup", "10ms", "--buffer", "1MiB", "--quiet", "--json"];

#[test]
fn a_short_sweep_verifies_every_byte_both_ways() {
    let mut args = vec!["bench", "--block-size", "1,4KiB,64KiB,256KiB", "--batch", "1,16"];
    args.extend(SHORT);
    let output = run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    let document = json(&output);
    assert_eq!(document["complete"], true);
    let cells = document["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 16);
    let skipped: Vec<&Value> = cells.iter().filter(|cell| !cell["skipped"].is_null()).collect();
    assert_eq!(skipped.len(), 4, "16 requests of 64 KiB and more need over 1 MiB");
    for trial in cells.iter().filter_map(|cell| cell["trials"].get(0)) {
        assert_eq!(trial["verify"]["ok"], true, "{trial}");
        let number = |key: &str| trial[key].as_f64().unwrap();
        let rate = number("bytes") / number("wall_s") / 1e9;
        // The printed rate has six decimals.
        assert!((number("gb_per_s") - rate).abs() <= rate * 0.01 + 1e-6, "LOG-071: {trial}");
        assert!(trial["cpu"]["target_us_per_op"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn the_table_is_printed_for_people() {
    let output = run(&["bench", "--block-size", "4KiB", "--iterations", "30", "--warmup", "0s"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("2 cells, every byte verified."), "{table}");
    assert!(table.lines().any(|line| line.starts_with("READ   4 KiB")), "{table}");
}

#[test]
fn the_external_contract_gives_one_row_for_each_supported_workload() {
    let folder = Folder::new("workloads");
    let entry = |op: &str, block: u64, offsets: &[u64]| {
        serde_json::json!({"workload": format!("w-{block}"), "op": op, "block": block,
            "batch": offsets.len(), "iters": 20, "warmup": 2, "region": 262_144,
            "local_offsets": offsets, "remote_offsets": offsets})
    };
    let file = serde_json::json!({"workload": "file-4K", "op": "read", "block": 4096, "batch": 1,
        "iters": 5});
    let entries = serde_json::json!([
        entry("read", 4096, &[0]),
        file,
        entry("write", 4096, &[8192, 0, 131_072]),
        entry("read", 262_144, &[0])
    ]);
    let path = folder.file("w.json", entries.to_string().as_bytes());
    let output = run(&["bench", "--transport", "tcp", "--workloads", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let rows: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 3);
    for row in &rows {
        assert_eq!((&row["name"], &row["transport"]), (&"orbite".into(), &"tcp".into()));
        assert_eq!((&row["verified"], &row["iters"]), (&true.into(), &20.into()), "{row}");
        for key in ["p50_us", "p99_us", "gbps", "cpu_us_per_op", "rss_target_mb", "init_ms"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key} {row}");
        }
    }
}

#[test]
fn a_real_file_goes_there_and_comes_back() {
    let folder = Folder::new("input");
    let bytes: Vec<u8> = (0..300_001u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    let path = folder.file("payload", &bytes);
    for window in ["4KiB", "64KiB", "1MiB"] {
        let output = run(&["bench", "--input", &path, "--buffer", window, "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let input = &json(&output)["input"];
        assert_eq!(input["verified"], true);
        assert_eq!(input["bytes"], 300_001);
        assert_eq!(input["sha256"], input["sha256_target"]);
        assert_eq!(input["sha256"], input["sha256_back"]);
    }
    let empty = folder.file("empty", b"");
    let output = run(&["bench", "--input", &empty]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("empty"));
}

/// A started command that is ended with the test.
struct Started(Child);

impl Started {
    fn new(args: &[&str]) -> Self {
        let mut command = command(args);
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(
            Command::new("sh")
                .args(["-c", &format!("kill -{name} {pid}")])
                .status()
                .unwrap()
                .success()
        );
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    fn end(&mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        (self.0.wait().unwrap().code(), rest)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn target_and_run_are_the_two_halves() {
    let folder = Folder::new("halves");
    for (flag, name) in [("--descriptor", "d"), ("--epoch-file", "e")] {
        let path = folder.0.join(name).to_str().unwrap().to_owned();
        let mut target =
            Started::new(&["bench", "target", flag, &path, "--buffer", "1MiB", "--ttl", "120s"]);
        let line: Value = serde_json::from_str(&target.line()).unwrap();
        let secret = fs::read_to_string(&path).unwrap();
        assert!(!line.to_string().contains(secret.trim()), "the line has no secret");
        let endpoint = line["endpoint"].as_str().unwrap();
        let mut args = vec!["bench", "run", "--epoch-file", &path, "--block-size", "4KiB,64KiB"];
        args.extend(SHORT);
        if name == "e" {
            args.extend(["--peer", endpoint]);
        }
        let output = run(&args);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let cells = json(&output)["cells"].clone();
        assert_eq!(cells.as_array().unwrap().len(), 4);
        for cell in cells.as_array().unwrap() {
            assert_eq!(cell["trials"][0]["verify"]["ok"], true, "{cell}");
        }
        if name == "e" {
            let wrong = folder.file("wrong", "5a".repeat(16).as_bytes());
            let args = ["bench", "run", "--peer", endpoint, "--epoch-file", &wrong];
            assert_eq!(run(&args).status.code(), Some(5), "another epoch");
        } else {
            let cut = folder.file("cut", &secret.as_bytes()[..secret.len() / 2]);
            let output = run(&["bench", "run", "--epoch-file", &cut]);
            assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        }
        target.signal("INT");
        assert_eq!(target.end().0, Some(0));
        assert_eq!(run(&args).status.code(), Some(5), "nobody there");
    }
}

#[test]
fn ctrl_c_leaves_a_partial_result_that_says_so() {
    let mut args = vec!["bench", "--block-size", "4KiB", "--repeat", "100"];
    args.extend(SHORT);
    let mut started = Started::new(&args);
    wait_for(|| child_of(started.0.id()).is_some());
    pause(500);
    started.signal("INT");
    let (code, output) = started.end();
    assert_eq!(code, Some(130));
    assert_eq!(serde_json::from_str::<Value>(&output).unwrap()["complete"], false);
}

#[test]
fn a_target_that_dies_ends_the_sweep_with_what_was_measured() {
    let mut args = vec!["bench", "--block-size", "4KiB", "--repeat", "100"];
    args.extend(SHORT);
    let mut started = Started::new(&args);
    wait_for(|| child_of(started.0.id()).is_some());
    pause(500);
    let target = child_of(started.0.id()).unwrap();
    let killed = Command::new("sh").args(["-c", &format!("kill -KILL {target}")]).status();
    assert!(killed.unwrap().success());
    let (code, output) = started.end();
    assert_eq!(code, Some(5));
    let document: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(document["complete"], false);
    assert!(document["failure"]["what"].is_string());
}

#[test]
fn the_target_process_does_not_outlive_the_initiator() {
    let mut started = Started::new(&["bench", "--block-size", "4KiB", "--duration", "60s"]);
    wait_for(|| child_of(started.0.id()).is_some());
    let target = child_of(started.0.id()).unwrap();
    started.0.kill().unwrap();
    started.0.wait().unwrap();
    wait_for(|| !running(target));
}

fn wait_for(mut condition: impl FnMut() -> bool) {
    for tries in 0.. {
        if condition() {
            return;
        }
        assert!(tries < 3000, "gave up waiting");
        pause(20);
    }
}

#[expect(clippy::disallowed_methods, reason = "a test waits for another process")]
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// The one child of a process that is called orbite.
fn child_of(parent: u32) -> Option<u32> {
    fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        (fields.nth(1)?.parse() == Ok(parent) && name.ends_with("(orbite")).then_some(pid)
    })
}

fn running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A dead process that nobody waits for any more is a zombie until init looks.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
