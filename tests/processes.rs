//! Two processes: bytes between them, and what is left of a transfer whose other end stops, dies, or is
//! replaced.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::child::{Part, hear, part, say};
use common::{SOON, bytes, engine, engine_with, eventually, now, pattern, pause};
use orbite::{
    BatchReport, Error, Permission, RegisteredMemory, RemoteEffect, RemoteSegment, Result,
    TransferEngine, TransferOp, TransferRequest, Transport,
};

const MIB: u64 = 1 << 20;
/// Bytes of each registration.
const SIZE: u64 = 6 * MIB;
/// Requests of a call that takes seconds.
const LONG: usize = 4096;

/// The other process, if this is one.
#[test]
fn other_process() {
    match part() {
        None => {}
        Some((name, argument)) if name == "source" => source(&argument),
        Some((name, argument)) if name == "requester" => requester(&argument),
        Some((name, argument)) if name == "careless" => careless(&argument),
        Some((name, _)) if name == "outlives requesters" => outlives_requesters(),
        Some((name, _)) => panic!("no part {name}"),
    }
}

/// Offers memory with the pattern of seed 1 and answers questions about it.
fn source(bind: &str) {
    let engine = engine_with(|config| config.bind_addr = bind.into());
    let memory = engine.register_memory(pattern(1, SIZE as usize), Permission::RemoteReadWrite);
    let memory = memory.unwrap();
    say(engine.descriptor().as_str());
    say(engine.endpoint());
    say(memory.address());
    while let Some(line) = hear() {
        match line.strip_prefix("is ") {
            Some(seed) => {
                let expected = pattern(seed.parse().unwrap(), SIZE as usize);
                say(bytes(&memory) == expected);
            }
            None => break,
        }
    }
    engine.close(SOON).unwrap();
}

/// Writes to a source and reads back, then ends in one of several ways.
fn requester(how: &str) {
    let (descriptor, address) = (hear().unwrap(), hear().unwrap().parse().unwrap());
    let here = Requester::to(&descriptor, address);
    here.memory.write_at(0, &pattern(7, SIZE as usize)).unwrap();
    assert!(here.whole(TransferOp::Write).unwrap().is_complete());
    here.memory.write_at(0, &vec![0; SIZE as usize]).unwrap();
    assert!(here.whole(TransferOp::Read).unwrap().is_complete());
    assert!(bytes(&here.memory) == pattern(7, SIZE as usize));
    say("moved");
    match how {
        // Lanes stay open to the last moment.
        "exit" => std::process::exit(0),
        "abort" => std::process::abort(),
        // Whoever kills it must find it alive.
        "kill" => drop(hear()),
        _ => {}
    }
}

/// Ends with engines that were never closed, some with work under way.
fn careless(how: &str) {
    let (one, two) = (engine(), engine());
    let memory = one.register_memory(pattern(1, SIZE as usize), Permission::RemoteReadWrite);
    let address = memory.as_ref().unwrap().address();
    let here = Requester::by(two, one.descriptor().as_str(), address);
    assert!(here.whole(TransferOp::Read).unwrap().is_complete());
    match how {
        "exit" => std::process::exit(0),
        "forget" => std::mem::forget((one, here, memory)),
        "busy" => {
            std::thread::Builder::new().spawn(move || here.long(TransferOp::Write)).unwrap();
            pause(Duration::from_millis(50));
            std::process::exit(0);
        }
        other => assert_eq!(other, "drop", "a way to end"),
    }
}

/// A source in a process of its own, with what it said of itself.
struct Source {
    part: Part,
    descriptor: String,
    endpoint: String,
    address: u64,
}

impl Source {
    fn start() -> Self {
        Self::at("127.0.0.1:0")
    }

    fn at(bind: &str) -> Self {
        let part = Part::start("other_process", "source", bind);
        let (descriptor, endpoint, address) = (part.next(), part.next(), part.next());
        Self { part, descriptor, endpoint, address: address.parse().unwrap() }
    }

    /// Whether its memory is the pattern of that seed.
    fn is(&mut self, seed: u64) -> bool {
        self.part.tell(&format!("is {seed}"));
        self.part.next() == "true"
    }
}

/// An engine of this process that opened a source.
struct Requester {
    engine: TransferEngine,
    memory: RegisteredMemory,
    segment: RemoteSegment,
    address: u64,
}

impl Requester {
    fn of(source: &Source) -> Self {
        Self::to(&source.descriptor, source.address)
    }

    fn to(descriptor: &str, address: u64) -> Self {
        Self::by(engine(), descriptor, address)
    }

    fn by(engine: TransferEngine, descriptor: &str, address: u64) -> Self {
        let memory = pattern(2, SIZE as usize);
        let memory = engine.register_memory(memory, Permission::Local).unwrap();
        let segment = engine.open_segment(descriptor, None, SOON).unwrap();
        Self { engine, memory, segment, address }
    }

    fn request(&self, length: u64) -> TransferRequest {
        TransferRequest::new(Transport::Tcp, self.memory.address(), self.address, length)
    }

    fn run(
        &self,
        op: TransferOp,
        requests: &[TransferRequest],
        timeout: Duration,
    ) -> Result<BatchReport> {
        self.engine.submit_and_wait(op, &(&self.segment).into(), requests, timeout)
    }

    fn whole(&self, op: TransferOp) -> Result<BatchReport> {
        self.run(op, &[self.request(SIZE)], SOON)
    }

    /// Moves the whole memory again and again, for seconds.
    fn long(&self, op: TransferOp) -> Result<BatchReport> {
        self.run(op, &vec![self.request(SIZE); LONG], 10 * SOON)
    }

    /// A call under way for `after`, then `disturb`; gives its report and how long it took from there.
    #[expect(clippy::unused_self, reason = "reads as whose call it is")]
    fn disturbed<T>(
        &self,
        call: impl FnOnce() -> T + Send,
        after: Duration,
        disturb: impl FnOnce(),
    ) -> (T, Duration)
    where
        T: Send,
    {
        std::thread::scope(|scope| {
            let call = scope.spawn(move || (call(), now()));
            pause(after);
            let start = now();
            disturb();
            let (answer, ended) = call.join().unwrap();
            (answer, ended.saturating_duration_since(start))
        })
    }

    /// All local memory is free again and can be used.
    fn stays_well(self) {
        let Self { engine, memory, segment, .. } = self;
        memory.write_at(0, &[5; 4096]).unwrap();
        engine.unregister_memory(memory).unwrap();
        eventually("nothing is held", || engine.stats().retained_after_unregister_bytes == 0);
        drop(segment);
        // The engine serves itself, so it is whole.
        let offered =
            engine.register_memory(pattern(3, 4096), Permission::RemoteReadWrite).unwrap();
        let own = Self::by(engine.clone(), engine.descriptor().as_str(), offered.address());
        assert!(own.run(TransferOp::Read, &[own.request(4096)], SOON).unwrap().is_complete());
        drop((own, offered));
        engine.close(SOON).unwrap();
    }
}

#[test]
fn bytes_pass_between_two_processes_both_ways() {
    let mut source = Source::start();
    let here = Requester::of(&source);
    assert!(source.is(1));
    assert!(here.whole(TransferOp::Write).unwrap().is_complete());
    assert!(source.is(2), "the other process sees what was written");
    here.memory.write_at(0, &vec![0; SIZE as usize]).unwrap();
    assert!(here.whole(TransferOp::Read).unwrap().is_complete());
    assert!(bytes(&here.memory) == pattern(2, SIZE as usize));
    here.stays_well();
    source.part.succeed();
}

#[test]
fn a_source_that_is_killed_amid_a_read_fails_it_without_effect_and_at_once() {
    let source = Source::start();
    let here = Requester::of(&source);
    let wait = Duration::from_millis(150);
    let (report, after) = here.disturbed(
        || here.long(TransferOp::Read).unwrap(),
        wait,
        || source.part.signal("KILL"),
    );
    assert!(after < Duration::from_secs(5), "{after:?}");
    let failure = report.failure.unwrap();
    assert_eq!(failure.remote_effect, RemoteEffect::None, "{failure:?}");
    assert_eq!(failure.attempts, 1, "{failure:?}");
    assert_eq!(failure.request_index, report.completed_requests);
    assert!(report.completed_requests < LONG && report.locally_drained);
    // What comes later is refused or fails, in bounded time.
    let start = now();
    match here.run(TransferOp::Write, &[here.request(4096)], SOON) {
        Ok(report) => {
            let failure = report.failure.unwrap();
            // Its other lane may not have told yet.
            let sent = u32::from(failure.remote_effect == RemoteEffect::Unknown);
            assert_eq!(failure.attempts, sent, "{failure:?}");
        }
        Err(error) => assert!(matches!(error, Error::PeerClosed { .. }), "{error}"),
    }
    assert!(start.elapsed() < SOON);
    here.stays_well();
}

#[test]
fn a_source_that_is_killed_amid_a_write_leaves_an_unknown_effect_and_one_attempt() {
    let source = Source::start();
    let here = Requester::of(&source);
    let wait = Duration::from_millis(150);
    let (report, after) = here.disturbed(
        || here.long(TransferOp::Write).unwrap(),
        wait,
        || source.part.signal("KILL"),
    );
    assert!(after < Duration::from_secs(5), "{after:?}");
    let failure = report.failure.unwrap();
    assert_eq!(failure.remote_effect, RemoteEffect::Unknown, "{failure:?}");
    assert_eq!(failure.attempts, 1, "{failure:?}");
    assert_eq!(failure.suggested_action, orbite::SuggestedAction::Inspect);
    assert!(report.completed_requests < LONG && report.locally_drained);
    assert!(here.engine.stats().remote_effect_unknown >= 1);
    here.stays_well();
}

/// A source that is stopped holds nobody past the deadline, and serves again when it goes on.
#[test]
fn a_stopped_source_holds_no_call_past_its_timeout() {
    for (op, effect) in
        [(TransferOp::Read, RemoteEffect::None), (TransferOp::Write, RemoteEffect::Unknown)]
    {
        let source = Source::start();
        let here = Requester::of(&source);
        assert!(here.whole(op).unwrap().is_complete());
        source.part.stop();
        for length in [4096, SIZE] {
            let (timeout, start) = (Duration::from_secs(1), now());
            let report = here.run(op, &[here.request(length)], timeout).unwrap();
            let took = start.elapsed();
            assert!(took < timeout + Duration::from_secs(1), "{op:?} of {length}: {took:?}");
            let failure = report.failure.unwrap();
            assert!(matches!(failure.error, Error::Timeout { .. }), "{failure:?}");
            assert_eq!(failure.remote_effect, effect, "{op:?} of {length}: {failure:?}");
            assert_eq!(report.completed_requests, 0);
        }
        // Nor does it hold a control question.
        let start = now();
        let asked = here.engine.refresh_segment(&here.segment, Duration::from_secs(1));
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        assert!(matches!(asked, Err(Error::Timeout { .. })), "{asked:?}");
        source.part.signal("CONT");
        eventually("it serves again", || {
            let outcome = here.whole(TransferOp::Read);
            outcome.is_ok_and(|report| report.is_complete())
        });
        here.stays_well();
        source.part.succeed();
    }
}

/// A READ that was given up holds no memory, so a close does not wait for its answer. A WRITE does: its
/// bytes are with the kernel until the peer takes them or the stall rule cuts the lane.
#[test]
fn a_stopped_source_holds_a_close_only_as_long_as_memory_is_in_use() {
    let stall = Duration::from_secs(3);
    for op in [TransferOp::Read, TransferOp::Write] {
        let source = Source::start();
        let change = |config: &mut orbite::EngineConfig| {
            config.tcp_options.stall_timeout_ms = stall.as_millis() as u64;
        };
        let here = Requester::by(engine_with(change), &source.descriptor, source.address);
        assert!(here.whole(op).unwrap().is_complete());
        source.part.stop();
        // More than the sockets' buffers take.
        let requests = vec![here.request(SIZE); 16];
        let report = here.run(op, &requests, Duration::from_millis(300)).unwrap();
        assert!(!report.is_complete());
        assert_eq!(report.locally_drained, op == TransferOp::Read);
        let start = now();
        let first = here.engine.close(Duration::from_secs(1));
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        match op {
            TransferOp::Read => first.unwrap(),
            TransferOp::Write => {
                assert!(matches!(first, Err(Error::Unquiesced { .. })), "{first:?}");
                here.engine.close(SOON).unwrap();
                assert!(start.elapsed() < 3 * stall, "{:?}", start.elapsed());
            }
        }
        source.part.signal("CONT");
        source.part.succeed();
    }
}

/// Silence is found by the stall rule, also by a shard that looks rarely.
#[test]
fn a_stopped_source_is_found_by_the_stall_rule_however_rarely_a_shard_looks() {
    for interval_us in [1_000, 500_000] {
        let source = Source::start();
        let change = |config: &mut orbite::EngineConfig| {
            config.tcp_options.stall_timeout_ms = 1500;
            config.idle_poll_interval_us = interval_us;
        };
        let here = Requester::by(engine_with(change), &source.descriptor, source.address);
        assert!(here.whole(TransferOp::Read).unwrap().is_complete());
        source.part.stop();
        let start = now();
        let failure = here.whole(TransferOp::Read).unwrap().failure.unwrap();
        assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
        assert!(failure.error.to_string().contains("stall_timeout_ms"), "{failure:?}");
        assert_eq!(failure.remote_effect, RemoteEffect::None);
        source.part.signal("CONT");
        here.stays_well();
        source.part.succeed();
    }
}

/// Calls that waited behind a stopped source's unanswered frames go on with it, and a call to another
/// source is not held meanwhile.
#[test]
fn calls_behind_a_stopped_source_go_on_with_it() {
    let (stopped, other) = (Source::start(), Source::start());
    let here = Requester::of(&stopped);
    let there = Requester::by(here.engine.clone(), &other.descriptor, other.address);
    assert!(here.whole(TransferOp::Read).unwrap().is_complete());
    stopped.part.stop();
    let waiting = |timeout| here.run(TransferOp::Read, &[here.request(SIZE)], timeout).unwrap();
    let short = waiting(Duration::from_millis(300));
    assert!(!short.is_complete());
    let (long, _) = here.disturbed(
        || waiting(SOON),
        Duration::from_millis(500),
        || {
            assert!(there.whole(TransferOp::Read).unwrap().is_complete());
            stopped.part.signal("CONT");
        },
    );
    assert!(long.is_complete(), "{:?}", long.failure);
    assert!(bytes(&here.memory) == pattern(1, SIZE as usize));
    drop(there);
    here.stays_well();
}

/// Another engine at the same address and port gets nothing of what was meant for the first.
#[test]
fn a_restarted_source_is_another_one() {
    let first = Source::start();
    let here = Requester::of(&first);
    assert!(here.whole(TransferOp::Write).unwrap().is_complete());
    first.part.signal("KILL");
    let endpoint = first.endpoint.clone();
    first.part.end_within(SOON);
    let mut second = Source::at(&endpoint);
    assert_eq!(second.endpoint, endpoint);
    for op in [TransferOp::Write, TransferOp::Read] {
        here.memory.write_at(0, &pattern(9, SIZE as usize)).unwrap();
        eventually("the old identity is stale", || {
            let error = match here.whole(op) {
                Err(error) => error,
                Ok(report) => {
                    let failure = report.failure.expect("no byte reaches another engine");
                    assert_eq!(failure.remote_effect, RemoteEffect::None, "{failure:?}");
                    failure.error
                }
            };
            matches!(error, Error::StaleEpoch { .. })
        });
        assert!(bytes(&here.memory) == pattern(9, SIZE as usize), "nothing was read");
    }
    let refreshed = here.engine.refresh_segment(&here.segment, SOON);
    assert!(matches!(refreshed, Err(Error::StaleEpoch { .. })), "{refreshed:?}");
    assert!(second.is(1), "its memory is untouched");
    // Opened by its own name, it serves.
    let again = Requester::by(here.engine.clone(), &second.descriptor, second.address);
    assert!(again.whole(TransferOp::Read).unwrap().is_complete());
    assert!(bytes(&again.memory) == pattern(1, SIZE as usize));
    drop(here);
    again.stays_well();
    second.part.succeed();
}

/// Requesters that end first, with lanes open, in every way, leave a source that serves the next.
#[test]
fn requesters_may_end_first_in_any_way() {
    // In a process of its own, where no other test opens descriptors.
    Part::start("other_process", "outlives requesters", "").succeed();
}

fn outlives_requesters() {
    let engine = engine();
    let size = SIZE as usize;
    let memory = engine.register_memory(pattern(1, size), Permission::RemoteReadWrite).unwrap();
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    for how in ["return", "exit", "abort", "kill", "return"] {
        let mut part = Part::start("other_process", "requester", how);
        part.tell(engine.descriptor().as_str());
        part.tell(&memory.address().to_string());
        assert_eq!(part.next(), "moved");
        if how == "kill" {
            part.signal("KILL");
        }
        let status = part.end_within(SOON);
        assert_eq!(status.success(), matches!(how, "return" | "exit"), "{how}: {status}");
        assert!(bytes(&memory) == pattern(7, size));
        memory.write_at(0, &pattern(1, size)).unwrap();
        eventually(&format!("{before} descriptors are left after {how}"), || files() == before);
    }
    let stats = engine.stats();
    assert_eq!(stats.protocol_violations, 0, "{stats:?}");
    engine.close(SOON).unwrap();
}

/// A process ends with success and promptly, whatever its engines are at.
#[test]
fn a_process_may_end_with_live_engines() {
    for how in ["exit", "forget", "busy", "drop"] {
        for _ in 0..3 {
            let part = Part::start("other_process", "careless", how);
            let status = part.end_within(SOON);
            assert!(status.success(), "{how}: {status}");
        }
    }
}
