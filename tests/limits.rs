//! Bad environments, each in a process of its own: the engine works in them, or says what is missing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use common::child::{Part, part, say};
use common::{Pair, SOON, bytes, cpu_time, engine, eventually, now, pattern, pause, threads};
use orbite::{
    EngineConfig, Error, Permission, PinMode, TransferEngine, TransferOp, TransferRequest,
    Transport,
};

const SIZE: usize = 3 << 20;

/// The confined process, if this is one.
#[test]
fn confined_process() {
    match part() {
        None => {}
        Some((name, _)) if name == "roundtrip" => roundtrip(EngineConfig::default()),
        Some((name, core)) if name == "pinned" => pinned(core.parse().unwrap()),
        Some((name, rest)) if name == "starved" => starved(rest == "enough for a peer"),
        Some((name, _)) if name == "crowded" => crowded(),
        Some((name, argument)) => panic!("no part {name} {argument}"),
    }
}

/// Two engines, bytes both ways on both kinds of lane, and all of it again after a close.
#[expect(clippy::needless_pass_by_value, reason = "each caller makes one for it")]
fn roundtrip(config: EngineConfig) {
    for _ in 0..2 {
        let (source, requester) =
            [&config; 2].map(|config| TransferEngine::new(config.clone()).unwrap()).into();
        let pair = Pair::of(source, requester, SIZE, Permission::RemoteReadWrite);
        for length in [1, 4096, SIZE as u64] {
            pair.complete(TransferOp::Write, &[pair.request(0, 0, length)]);
        }
        assert!(bytes(&pair.remote) == pattern(2, SIZE));
        pair.local.write_at(0, &vec![0; SIZE]).unwrap();
        let scattered: Vec<_> =
            (0..64).map(|at| pair.request(at * 8192, at * 8192, 4096)).collect();
        pair.complete(TransferOp::Read, &scattered);
        pair.complete(TransferOp::Read, &[pair.request(0, 0, SIZE as u64)]);
        assert!(bytes(&pair.local) == pattern(2, SIZE));
        let start = now();
        for _ in 0..200 {
            pair.complete(TransferOp::Read, &[pair.request(0, 0, 4096)]);
        }
        say(format_args!("200 READs of 4 KiB in {:?}", start.elapsed()));
        pair.requester.close(SOON).unwrap();
        pair.source.close(SOON).unwrap();
    }
}

fn confined(switches: &[&str], name: &str, argument: &str) -> Part {
    let program = std::env::current_exe().unwrap();
    Part::confined(switches, &program, "confined_process", name, argument)
}

/// The roundtrip with something taken away.
#[track_caller]
fn works_without(switches: &[&str]) {
    let part = confined(switches, "roundtrip", "");
    println!("{switches:?}: {}", part.next());
    part.succeed();
}

#[test]
fn bytes_move_where_io_uring_is_refused() {
    works_without(&["--deny", "425-427"]);
}

/// As in a container whose filter is older than the call: it answers EPERM, not ENOSYS.
#[test]
fn bytes_move_where_newer_calls_are_refused() {
    // epoll_pwait2, and all that came after it.
    works_without(&["--deny", "441-500"]);
}

#[test]
fn bytes_move_on_one_cpu() {
    let cpu = allowed_cpus()[0].to_string();
    works_without(&["--cpus", &cpu]);
}

#[test]
fn bytes_move_with_64_descriptors() {
    works_without(&["--nofile", "64"]);
}

/// Memory that may be locked is for root without limit, so the process is nobody's.
#[test]
fn bytes_move_with_64_kib_of_locked_memory_and_no_rights() {
    let root = fs::metadata("/proc/self").unwrap();
    if std::os::unix::fs::MetadataExt::uid(&root) != 0 {
        println!("not root, so without a change of user");
        return works_without(&["--memlock", "65536"]);
    }
    // Where this program lies another user may not be allowed to look.
    let folder = Folder::new("limits");
    let program = folder.0.join("limits");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let switches = ["--memlock", "65536", "--user", "65534"];
    let part = Part::confined(&switches, &program, "confined_process", "roundtrip", "");
    println!("{}", part.next());
    part.succeed();
}

/// A folder that everybody may read, gone with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("orbite-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone_already = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_machine_without_sysfs_is_no_hindrance() {
    let folder = Folder::new("sysfs");
    for root in [folder.0.clone(), folder.0.join("absent"), "/proc/self/status".into()] {
        let mut config = EngineConfig::default();
        config.topology.sysfs_root = root;
        roundtrip(config);
    }
}

/// CPUs that this process may use, as the kernel lists them.
fn allowed_cpus() -> Vec<u32> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    };
    list.trim().split(',').flat_map(range).collect()
}

#[test]
fn a_required_core_outside_the_mask_is_an_invalid_configuration() {
    refused_core(8191);
    let allowed = allowed_cpus();
    let [first, .., last] = allowed[..] else {
        println!("one CPU only, so no second one to leave out");
        return;
    };
    let part = confined(&["--cpus", &first.to_string()], "pinned", &last.to_string());
    part.succeed();
}

fn pinned(outside: u32) {
    refused_core(outside);
    let mut config = EngineConfig::default();
    config.shards.pin = PinMode::Require;
    let inside = allowed_cpus();
    config.shards.cores.clone_from(&inside);
    assert_eq!(TransferEngine::new(config).unwrap().config().shards.cores, inside);
}

fn refused_core(core: u32) {
    let mut config = EngineConfig::default();
    config.shards.pin = PinMode::Require;
    config.shards.cores = vec![core];
    let error = TransferEngine::new(config).unwrap_err();
    assert!(matches!(error, Error::InvalidConfig(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&format!("core {core} ")) && text.contains("cpuset"), "{text}");
}

/// An engine that cannot have its descriptors says so at whichever it fails, and leaves nothing.
#[test]
fn an_engine_without_descriptors_says_so_and_leaves_nothing() {
    for (limit, enough) in [("12", "enough for an engine"), ("40", "enough for a peer")] {
        let part = confined(&["--nofile", limit], "starved", enough);
        println!("{limit}: {}", part.next());
        part.succeed();
    }
}

fn descriptors() -> usize {
    // One of them is the folder's.
    fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

fn shard_threads() -> usize {
    let ours = threads(std::process::id()).into_iter();
    ours.filter(|(_, name)| name.starts_with("orbite-") && name.ends_with("-0")).count()
}

fn has_control_thread() -> bool {
    threads(std::process::id()).iter().any(|(_, name)| name == "orbite-control")
}

fn starved(enough_for_a_peer: bool) {
    let mut hoard = hoard();
    // The first failures leave even the process-wide threads without what they need.
    let mut failures = 0;
    let engine = loop {
        // One is needed to count with.
        hoard.truncate(hoard.len().saturating_sub(1));
        let before = (descriptors(), shard_threads());
        let control = has_control_thread();
        match TransferEngine::new(EngineConfig::default()) {
            Ok(engine) => break engine,
            Err(error) => {
                failures += 1;
                assert!(failures < 40, "{error}");
                assert!(matches!(error, Error::Io { .. }), "{error:?}");
                let Error::Io { source, .. } = &error else { continue };
                assert_eq!(source.errno(), libc::EMFILE, "{error}");
                let text = error.to_string();
                assert!(text.contains("RLIMIT_NOFILE"), "names what to raise: {text}");
                let after = (descriptors(), shard_threads());
                let control_now = has_control_thread();
                // That thread stays for the next engine, with its epoll set and what wakes it.
                let kept = if control_now && !control { 2..=3 } else { 0..=0 };
                let grown = after.0 - before.0;
                assert!(kept.contains(&grown), "{text}: {grown} descriptors more");
                assert_eq!(after.1, before.1, "{text}: shard threads");
            }
        }
    };
    assert!(failures > 0, "it was never short of descriptors");
    say(format_args!("{failures} starts failed, one by one descriptor"));
    // It lives; what needs more descriptors than there are fails, and works once there are some.
    let memory = engine.register_memory(pattern(1, SIZE), Permission::RemoteReadWrite).unwrap();
    let open = |timeout| engine.open_segment(engine.endpoint(), engine.source_epoch(), timeout);
    let start = now();
    assert!(open(Duration::from_secs(1)).is_err());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    drop(hoard);
    if !enough_for_a_peer {
        return engine.close(SOON).unwrap();
    }
    eventually("a segment opens", || open(SOON).is_ok());
    let segment = open(SOON).unwrap();
    let local = engine.register_memory(vec![0; SIZE], Permission::Local).unwrap();
    let (from, to) = (local.address(), memory.address());
    let request = TransferRequest::new(Transport::Tcp, from, to, SIZE as u64);
    let target = (&segment).into();
    eventually("bytes move", || {
        let report =
            engine.submit_and_wait(TransferOp::Read, &target, std::slice::from_ref(&request), SOON);
        report.unwrap().is_complete()
    });
    assert!(bytes(&local) == pattern(1, SIZE));
    drop(segment);
    engine.close(SOON).unwrap();
}

/// Every descriptor but one.
fn hoard() -> Vec<File> {
    let mut hoard: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    hoard.pop();
    hoard
}

/// A source that is out of descriptors pauses its listener and costs next to nothing meanwhile; it goes
/// on once there are some.
///
/// CORE-098 in small.
#[test]
fn core_098_a_source_out_of_descriptors_pauses_and_recovers() {
    let mut part = confined(&["--nofile", "40"], "crowded", "");
    let (descriptor, address): (String, u64) = (part.next(), part.next().parse().unwrap());
    let endpoint = part.next();
    part.tell("go");
    // Accepted by the kernel, so each connects; the engine has no descriptor for most of them.
    let crowd: Vec<_> = (0..100).map(|_| TcpStream::connect(&endpoint).unwrap()).collect();
    pause(Duration::from_millis(300));
    let control =
        threads(part.id()).into_iter().find(|(_, name)| name == "orbite-control").unwrap().0;
    let (before, watched) = (cpu_time(&control).unwrap(), Duration::from_secs(1));
    pause(watched);
    let used = cpu_time(&control).unwrap().checked_sub(before).unwrap();
    println!("{used:?} of {watched:?} while it has no descriptor");
    assert!(used < watched / 20, "{used:?}");
    drop(crowd);

    let engine = engine();
    let local = engine.register_memory(vec![0; SIZE], Permission::Local).unwrap();
    let segment = engine.open_segment(descriptor, None, SOON).unwrap();
    let request = TransferRequest::new(Transport::Tcp, local.address(), address, SIZE as u64);
    eventually("bytes move", || {
        let requests = [request.clone()];
        let report = engine.submit_and_wait(TransferOp::Read, &(&segment).into(), &requests, SOON);
        report.unwrap().is_complete()
    });
    assert!(bytes(&local) == pattern(1, SIZE));
    part.succeed();
}

fn crowded() {
    let engine = engine();
    let memory = engine.register_memory(pattern(1, SIZE), Permission::RemoteReadWrite).unwrap();
    say(engine.descriptor().as_str());
    say(memory.address());
    say(engine.endpoint());
    while common::child::hear().is_some() {}
    let stats = engine.stats();
    assert!(stats.connections_accepted > 10, "{stats:?}");
    engine.close(SOON).unwrap();
}
