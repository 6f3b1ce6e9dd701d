//! Start, end, and what is left.

use std::process::Command;

use super::*;

/// LOG-058: a taken port is named; a span goes past it; port 0 never collides.
#[test]
fn a_taken_port_is_named_and_fifty_engines_get_fifty_ports() {
    let b = start(2);
    let (mut plan, _, _) = plan(epoch(3));
    plan.bind = b.endpoint.addr();
    let error = Control::start(plan).unwrap_err();
    assert_eq!(error.code(), "io");
    assert!(error.to_string().contains(&b.endpoint.to_string()), "{error}");
    let c = start_with(3, |plan| {
        plan.bind = b.endpoint.addr();
        plan.port_span = 1024;
    });
    assert_ne!(c.endpoint, b.endpoint);

    let starters: Vec<_> = (0..50)
        .map(|n| std::thread::Builder::new().spawn(move || start(10 + n)).unwrap())
        .collect();
    let engines: Vec<Engine> =
        starters.into_iter().map(|starter| starter.join().unwrap()).collect();
    let mut ports: Vec<u16> = engines.iter().map(|engine| engine.endpoint.addr().port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 50);
}

#[test]
fn close_frees_the_port_and_ends_every_connection() {
    let (a, b) = (start(1), start(2));
    a.open(&b).unwrap();
    b.open(&a).unwrap();
    let mut served = shake(&b, Role::Control);
    let mut unproven = dial(b.endpoint);
    eventually("the handshake", || b.inspect(|core| core.unproven() == 1).then_some(()));
    b.control.close(LONG).unwrap();
    assert!(TcpStream::connect(b.endpoint.addr()).is_err(), "nobody listens");
    assert!(read_to_end(&mut unproven).is_empty());
    let (last_word, _, _) = served.receive().unwrap();
    assert_eq!(last_word.kind, Kind::GoAway);
    assert!(served.receive().is_none());

    b.control.close(LONG).unwrap();
    assert_eq!(b.open(&a).unwrap_err().code(), "closed");
    let peer = b.peer(&a);
    assert_eq!(b.control.refresh(&peer, LONG).unwrap_err().code(), "closed");
    assert_eq!(b.control.discover(a.endpoint, LONG).unwrap_err().code(), "closed");
    let again = start_with(4, |plan| plan.bind = b.endpoint.addr());
    assert!(a.open(&again).is_ok(), "the port is free");
}

#[test]
fn close_does_not_wait_for_a_question_that_has_no_answer() {
    let a = start(1);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::new(silent.local_addr().unwrap());
    let control = a.control.clone();
    let asker =
        std::thread::Builder::new().spawn(move || control.open(&peer_at(endpoint, epoch(2)), LONG));
    let _accepted = silent.accept().unwrap();
    a.control.close(LONG).unwrap();
    assert_eq!(asker.unwrap().join().unwrap().unwrap_err().code(), "closed");
}

#[test]
fn a_dropped_engine_ends_in_the_background() {
    let b = start(2);
    let endpoint = b.endpoint;
    let mut served = shake(&b, Role::Control);
    let catalog = Arc::downgrade(&b.shelf);
    drop(b);
    let word = crate::protocol::header::HEADER_LEN + crate::protocol::notice::NOTICE_LEN;
    assert!(read_to_end(&mut served.stream).len() <= word, "a last word at most");
    eventually("a free port", || TcpStream::connect(endpoint.addr()).is_err().then_some(()));
    eventually("nothing of the plan", || catalog.upgrade().is_none().then_some(()));
}

/// When `close` returns, what the engine gave to the control plane is given back.
#[test]
fn close_gives_the_plan_back() {
    let b = start(2);
    start(1).open(&b).unwrap();
    b.control.close(LONG).unwrap();
    assert_eq!(Arc::strong_count(&b.shelf), 1);
    assert!(b.inboxes.iter().all(|inbox| Arc::strong_count(inbox) == 1));
}

#[test]
fn a_panic_ends_its_own_task_alone() {
    let a = start(1);
    let b = start(2);
    a.inspect(|core| {
        core.spawn("a task that panics", |_| async { panic!("as the test wants") });
    });
    a.control.submit(|_| panic!("as the test wants"));
    assert!(a.open(&b).is_ok() && b.open(&a).is_ok());
}

/// A caller whose question was lost to a panic is told that, and not that its engine was closed.
#[test]
fn a_question_lost_to_a_panic_is_an_internal_error() {
    let a = start(1);
    let ask = || {
        let what = || "asking".to_owned();
        a.control.call::<()>(what, LONG, |core, _, _, reply| {
            core.spawn("a task that panics", |_| async move {
                let _lost = reply;
                panic!("as the test wants");
            });
        })
    };
    assert_eq!(ask().unwrap_err().code(), "internal");
    a.control.close(LONG).unwrap();
    assert_eq!(ask().unwrap_err().code(), "closed");
}

/// A question whose task ended without an answer leaves the next one free.
#[test]
fn many_callers_ask_one_peer_at_once() {
    let (a, b) = (start(1), start(2));
    b.shelf.put(4, (0..2_000).map(region).collect());
    let (endpoint, epoch) = (b.endpoint, b.epoch);
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let control = a.control.clone();
            let caller = move || {
                control.open(&peer_at(endpoint, epoch), LONG).map(|opened| opened.regions.len())
            };
            std::thread::Builder::new().spawn(caller).unwrap()
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.join().unwrap().unwrap(), 2_000);
    }
    assert_eq!(a.counters().dials.get(), 1, "one control connection for one identity");
}

#[test]
fn a_hint_reaches_every_peer_and_hints_are_merged() {
    let b = start(2);
    let mut peers: Vec<Raw> = (0..3).map(|_| shake(&b, Role::Control)).collect();
    for (at, raw) in peers.iter_mut().enumerate() {
        raw.send(Kind::Ping, &crate::protocol::notice::Ping { opaque: at as u64 }.encode());
        assert_eq!(raw.receive().unwrap().0.kind, Kind::Pong);
    }
    b.shelf.put(7, Vec::new());
    for _ in 0..200 {
        b.control.catalog_changed();
    }
    b.shelf.put(8, Vec::new());
    b.control.catalog_changed();
    for raw in &mut peers {
        let mut hints = 0;
        loop {
            let (header, meta, _) = raw.receive().unwrap();
            assert_eq!(header.kind, Kind::CatalogChanged);
            hints += 1;
            if meta == 8_u64.to_le_bytes() {
                break;
            }
        }
        assert!(hints < 100, "{hints} hints for 201 changes");
    }
    assert_eq!(b.shelf.walks(), 0, "neither a handshake nor a hint reads the regions");
}

/// Runs one test of this file in a process of its own, where nobody else opens descriptors.
fn alone(test: &str, body: impl FnOnce()) {
    const MARK: &str = "ORBITE_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return body();
    }
    let name = format!("shard::control::tests::lifetime::{test}");
    let program = std::env::current_exe().unwrap();
    let child =
        Command::new(program).args(["--exact", &name, "--nocapture"]).env(MARK, "1").output();
    let output = child.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// CORE-003, the control plane's half; LOG-038: failed starts and whole lives leave nothing.
#[test]
fn core_003_starts_and_ends_leave_no_descriptor() {
    alone("core_003_starts_and_ends_leave_no_descriptor", || {
        let keeper = start(1);
        let before = descriptors();
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let threads_before = threads();
        for _ in 0..1000 {
            let (mut plan, _, _) = plan(epoch(3));
            plan.bind = keeper.endpoint.addr();
            assert!(Control::start(plan).is_err());
        }
        assert_eq!((descriptors(), threads()), (before, threads_before));
        for _ in 0..200 {
            let engine = start(2);
            engine.open(&keeper).unwrap();
            engine.control.close(LONG).unwrap();
        }
        eventually("the keeper's side", || (descriptors() == before).then_some(()));
        assert_eq!(threads(), threads_before);
    });
}

#[test]
fn connections_that_come_and_go_leave_no_descriptor() {
    alone("connections_that_come_and_go_leave_no_descriptor", || {
        let (a, b) = (start(1), start(2));
        a.open(&b).unwrap();
        let before = descriptors();
        for n in 0..200_u16 {
            drop(shake(&b, Role::Control));
            drop(shake_to_proof(&b, Role::Data));
            drop(dial(b.endpoint));
            a.control.leave(&peer_at(b.endpoint, b.epoch));
            a.open(&b).unwrap();
            a.control.dial_data(a.peer(&b), ShardIndex(n % 2), LaneClass::Small);
            let inbox = &a.inboxes[usize::from(n % 2)];
            let lane = eventually("a lane", || {
                let message = inbox.messages.pop()?;
                (!matches!(message, Message::PeerLeft(_))).then_some(message)
            });
            assert!(matches!(lane, Message::LaneUp { .. }));
            let inbound = || b.inboxes.iter().find_map(|inbox| inbox.messages.pop());
            drop(eventually("the other end", inbound));
        }
        eventually("flat", || (descriptors() == before).then_some(()));
    });
}

/// CORE-162, the control plane's half: it does not tick. Only pings wake an idle one.
#[test]
fn core_162_an_idle_control_thread_sleeps() {
    alone("core_162_an_idle_control_thread_sleeps", || {
        let (a, b) = (start(1), start(2));
        a.open(&b).unwrap();
        let thread = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        let is_control = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).unwrap() == "orbite-control\n"
        };
        let threads: Vec<_> = thread.filter(is_control).collect();
        assert_eq!(threads.len(), 1, "one for all engines of the process");
        let wakes = || -> u64 {
            let status = std::fs::read_to_string(threads[0].join("status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
            line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        idle(Duration::from_millis(300));
        let before = wakes();
        idle(Duration::from_secs(2));
        let woken = wakes() - before;
        assert!(woken <= 4, "{woken} wake-ups in two idle seconds");
    });
}

#[expect(clippy::disallowed_methods, reason = "a test of what happens when nothing happens")]
fn idle(time: Duration) {
    std::thread::sleep(time);
}

/// CORE-098: a process without descriptors accepts again once there are some, and does not spin meanwhile.
#[test]
fn core_098_descriptors_that_ran_out_pause_the_listener() {
    alone("core_098_descriptors_that_ran_out_pause_the_listener", || {
        let (a, b) = (start(1), start(2));
        let mut hoard = Vec::new();
        // Leaves room for the client's own socket, and none to accept it.
        use_all_descriptors(&mut hoard);
        drop(hoard.pop());
        let _client = TcpStream::connect(b.endpoint.addr()).unwrap();
        eventually("a pause", || (b.counters().accept_pauses.get() >= 2).then_some(()));
        let pauses = b.counters().accept_pauses.get();
        assert!(pauses < 1000, "{pauses}: it paces, it does not spin");
        hoard.clear();
        assert!(a.open(&b).is_ok());
    });
}

/// Opens descriptors until the process may have no more.
fn use_all_descriptors(hoard: &mut Vec<std::fs::File>) {
    while hoard.len() < 2_000_000 {
        match std::fs::File::open("/dev/null") {
            Ok(file) => hoard.push(file),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                return;
            }
        }
    }
}
