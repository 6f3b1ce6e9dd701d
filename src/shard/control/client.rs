//! One peer as requests to its control connection see it: a queue of questions, and a task that holds
//! the connection, asks, and watches whether the peer is alive.
//!
//! | the task | while | ends by |
//! |---|---|---|
//! | dials | a question waits and there is no connection | connection; questions all failed |
//! | asks | a question waits and there is a connection | answer; a connection that failed |
//! | watches | no question waits and there is a connection | question; GoAway, end, three silent pings |
//! | ends | no question waits and there is no connection | |
//!
//! Every question has its own deadline and gets exactly one answer. A question may be patient: it was
//! asked by `open`, before it is known that the peer listens at all, and then a refused connection is
//! tried again until its deadline. An impatient one fails at once, and fast while the peer is failing.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_lite::future::or;

use crate::error::{Error, OsError};
use crate::protocol::control::region::RegionDescriptor;
use crate::protocol::header::Kind;
use crate::protocol::notice::Ping;
use crate::shard::peer::{Negotiated, Peer, PeerStatus};
use crate::types::{Endpoint, EngineId, SourceEpoch};

use super::describe::{self, Unanswered, Unasked};
use super::dial::{self, Retry};
use super::engine::Core;
use super::frames::{Fault, Frames};
use super::net::AsyncTcp;
use super::reactor::later;
use super::scope::Flag;

/// Pings without an answer that end a connection.
const MISSED_PINGS: u32 = 3;

/// Waits between attempts to reach a peer that does not listen yet.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Attempts that the peer may cut in the middle of a handshake before that is taken for its answer. A
/// listener under a flood does so to the oldest handshake.
const MAX_CUTS: u32 = 4;

/// A peer's regions and what was agreed with it.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    /// Regions at `generation`, in the source's order.
    pub regions: Arc<[RegionDescriptor]>,
    pub generation: u64,
    pub limits: Negotiated,
    pub engine: EngineId,
}

/// A question with the place where its answer goes.
pub(super) enum Ask {
    Describe { patient: bool, reply: SyncSender<Result<Opened, Error>> },
    Ping { reply: SyncSender<Result<Duration, Error>> },
}

/// A question that waits.
pub(super) struct Question {
    pub ask: Ask,
    pub asked: Instant,
    pub deadline: Instant,
    /// It was asked once over a connection that had ended unnoticed.
    pub repeated: bool,
}

impl Question {
    const fn is_patient(&self) -> bool {
        matches!(self.ask, Ask::Describe { patient: true, .. })
    }

    /// The caller may have gone: then nobody is told.
    fn fail(self, error: Error) {
        let _gone = match self.ask {
            Ask::Describe { reply, .. } => reply.try_send(Err(error)).is_err(),
            Ask::Ping { reply } => reply.try_send(Err(error)).is_err(),
        };
    }
}

/// A proven control connection to a peer.
pub(super) struct Link {
    pub frames: Frames<AsyncTcp>,
    pub limits: Negotiated,
    /// Something was answered over it.
    pub used: bool,
}

/// One (endpoint, epoch).
pub(super) struct Client {
    pub endpoint: Endpoint,
    pub epoch: SourceEpoch,
    pub engine: EngineId,
    questions: RefCell<VecDeque<Question>>,
    changed: Flag,
    peer: RefCell<Weak<Peer>>,
}

impl Client {
    pub fn new(endpoint: Endpoint, epoch: SourceEpoch) -> Rc<Self> {
        let engine = EngineId::of(&epoch);
        let (questions, changed, peer) = (RefCell::default(), Flag::default(), RefCell::default());
        Rc::new(Self { endpoint, epoch, engine, questions, changed, peer })
    }

    /// Adds a question and wakes the task.
    pub fn ask(&self, question: Question) {
        self.questions.borrow_mut().push_back(question);
        self.changed.raise();
    }

    /// Who is told when the identity ends.
    pub fn watch(&self, peer: &Arc<Peer>) {
        *self.peer.borrow_mut() = Arc::downgrade(peer);
    }

    /// Whether an identity that lives and is not this one is told of the end.
    pub fn tells_another(&self, peer: &Arc<Peer>) -> bool {
        self.peer.borrow().upgrade().is_some_and(|told| !Arc::ptr_eq(&told, peer))
    }

    /// Answers every question with this error.
    pub fn fail_all(&self, error: &Error) {
        self.fail_where(error, |_| true);
    }

    fn is_idle(&self) -> bool {
        self.questions.borrow().is_empty()
    }

    fn is_anyone_impatient(&self) -> bool {
        self.questions.borrow().iter().any(|question| !question.is_patient())
    }

    fn next(&self) -> Option<Question> {
        self.questions.borrow_mut().pop_front()
    }

    fn fail_where(&self, error: &Error, concerned: impl Fn(&Question) -> bool) {
        let all = std::mem::take(&mut *self.questions.borrow_mut());
        let (fails, stay) = all.into_iter().partition::<VecDeque<_>, _>(concerned);
        *self.questions.borrow_mut() = stay;
        for question in fails {
            question.fail(error.clone());
        }
    }

    /// Fails what is past its deadline, with the last cause if there is one.
    fn expire(&self, now: Instant, last: Option<&Error>) {
        let asked = |question: &Question| {
            let after = now.saturating_duration_since(question.asked);
            Error::Timeout {
                what: format!("connecting to {}", self.endpoint),
                after_us: after.as_micros() as u64,
            }
        };
        loop {
            let past = {
                let mut questions = self.questions.borrow_mut();
                let at = questions.iter().position(|question| question.deadline <= now);
                at.and_then(|at| questions.remove(at))
            };
            let Some(question) = past else { return };
            let error = last.cloned().unwrap_or_else(|| asked(&question));
            question.fail(error);
        }
    }

    /// Does `work` while a question waits for it. `None`: all questions ran out of time first.
    async fn while_asked<T>(
        &self,
        core: &Core,
        last: Option<&Error>,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        loop {
            self.expire(core.reactor.now(), last);
            let next = self.questions.borrow().iter().map(|question| question.deadline).min()?;
            let due = async {
                core.reactor.sleep_until(next).await;
                None
            };
            let changed = async {
                self.changed.raised().await;
                None
            };
            let done = async { Some(work.as_mut().await) };
            if let Some(value) = or(done, or(changed, due)).await {
                return Some(value);
            }
        }
    }
}

/// The task of a client, from its first question until it has neither questions nor a connection.
pub(super) async fn run(core: Rc<Core>, client: Rc<Client>) {
    let _leave = Leave { core: Rc::clone(&core), client: Rc::clone(&client) };
    let mut link = None;
    loop {
        client.expire(core.reactor.now(), None);
        link = match link {
            None if client.is_idle() => break,
            None => connect(&core, &client).await,
            Some(link) => match client.next() {
                Some(question) => answer(&core, &client, link, question).await,
                None => watch(&core, &client, link).await,
            },
        };
    }
}

/// However the task ends, the next question starts a new one.
struct Leave {
    core: Rc<Core>,
    client: Rc<Client>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.core.leave(&self.client);
    }
}

/// Dials until there is a connection or no question is left.
async fn connect(core: &Rc<Core>, client: &Client) -> Option<Link> {
    let target = (client.endpoint, client.engine);
    let (mut wait, mut cuts, mut last) = (FIRST_WAIT, 0, None);
    loop {
        // A first `open` that comes too early is no sign of a peer that fails, and is not held up by
        // one. Everybody else is.
        let mut probe = None;
        if client.is_anyone_impatient() {
            match core.probe(target) {
                Ok(granted) => probe = Some(granted),
                Err(error) => client.fail_where(&error, |question| !question.is_patient()),
            }
        }
        let dial = dial::control(core, client.endpoint, &client.epoch);
        let failed = match client.while_asked(core, last.as_ref(), dial).await? {
            Ok(link) => {
                core.cooldowns.borrow_mut().succeeded(target);
                return Some(link);
            }
            Err(failed) => failed,
        };
        if let Some(probe) = probe {
            probe.failed(&failed.error);
        }
        let again = match failed.retry {
            Retry::Never => false,
            Retry::NotListening => true,
            Retry::Cut => {
                cuts += 1;
                cuts < MAX_CUTS
            }
        };
        // Before the answers, so that whoever has one sees the identity as it is.
        if matches!(failed.error, Error::StaleEpoch { .. }) {
            client_left(core, client, PeerStatus::Stale);
        }
        client.fail_where(&failed.error, |question| !(again && question.is_patient()));
        if client.is_idle() {
            return None;
        }
        if last.is_none() {
            let endpoint = client.endpoint;
            tracing::info!(%endpoint, error = %failed.error, "the peer does not listen yet; trying on");
        }
        last = Some(failed.error);
        client.while_asked(core, last.as_ref(), core.reactor.sleep(wait)).await?;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// Asks one question. Gives the connection back if it can be used further.
async fn answer(
    core: &Rc<Core>,
    client: &Client,
    mut link: Link,
    mut question: Question,
) -> Option<Link> {
    let outcome = exchange(core, client, &mut link, &question).await;
    let error = match outcome {
        Some(Ok(())) => {
            link.used = true;
            return Some(link);
        }
        // It may have ended while nobody looked. A question has no effect, so it is asked again.
        Some(Err(Unanswered::Fault(Fault::Ended | Fault::Io(_))))
            if link.used && !question.repeated =>
        {
            question.repeated = true;
            client.questions.borrow_mut().push_front(question);
            return None;
        }
        Some(Err(unanswered)) => unanswered_error(core, client, unanswered),
        None => {
            let after = core.reactor.now().saturating_duration_since(question.asked);
            let what = match question.ask {
                Ask::Describe { .. } => format!("reading the catalog of {}", client.endpoint),
                Ask::Ping { .. } => format!("waiting for {} to answer a ping", client.endpoint),
            };
            Error::Timeout { what, after_us: after.as_micros() as u64 }
        }
    };
    question.fail(error);
    None
}

/// One question and its answer. `None`: past its deadline.
async fn exchange(
    core: &Core,
    client: &Client,
    link: &mut Link,
    question: &Question,
) -> Option<Result<(), Unanswered>> {
    let limits = link.limits;
    let frames = &mut link.frames;
    let work = async {
        match &question.ask {
            Ask::Describe { reply, .. } => {
                let description = describe::describe(frames).await?;
                let opened = Opened {
                    regions: description.regions.into(),
                    generation: description.generation,
                    limits,
                    engine: client.engine,
                };
                let _gone = reply.try_send(Ok(opened));
            }
            Ask::Ping { reply } => {
                let start = core.reactor.now();
                describe::ping(frames, core.fresh_number()).await?;
                let _gone = reply.try_send(Ok(core.reactor.now().saturating_duration_since(start)));
            }
        }
        Ok(())
    };
    core.reactor.until(question.deadline, work).await
}

fn unanswered_error(core: &Rc<Core>, client: &Client, unanswered: Unanswered) -> Error {
    let endpoint = client.endpoint.to_string();
    match unanswered {
        Unanswered::GoneAway => {
            client_left(core, client, PeerStatus::Closed);
            Error::PeerClosed { endpoint }
        }
        Unanswered::Restless { .. } => Error::Busy(format!(
            "describing {endpoint}: {unanswered}; try again when it is quieter"
        )),
        Unanswered::Fault(Fault::Protocol(error)) => {
            core.plan.counters.protocol_violations.bump(1);
            Error::Protocol { endpoint, reason: error.to_string() }
        }
        Unanswered::Fault(Fault::Ended | Fault::Silent) => {
            let reset = io::Error::from_raw_os_error(libc::ECONNRESET);
            Error::Connect { endpoint, source: OsError::new("recv", &reset) }
        }
        Unanswered::Fault(Fault::Io(error)) => {
            Error::Connect { endpoint, source: OsError::new("recv", &error) }
        }
    }
}

enum Event {
    Frame(Result<crate::protocol::header::Header, Fault>),
    Question,
    Silence,
}

/// Holds an idle connection until a question comes, or it ends. Three pings without an answer end it.
async fn watch(core: &Rc<Core>, client: &Client, mut link: Link) -> Option<Link> {
    let pace = core.plan.timeouts.ping;
    let mut missed = 0;
    let mut due = later(core.reactor.now(), pace);
    loop {
        let frame = async { Event::Frame(link.frames.receive().await) };
        let question = async {
            client.changed.raised().await;
            Event::Question
        };
        let silence = async {
            core.reactor.sleep_until(due).await;
            Event::Silence
        };
        // Frames first: a sign of life that has come counts before the silence does.
        let fault = match or(frame, or(question, silence)).await {
            Event::Question if client.is_idle() => None,
            Event::Question => return Some(link),
            Event::Silence if missed == MISSED_PINGS => {
                core.plan.counters.silent_peers.bump(1);
                let endpoint = client.endpoint;
                tracing::warn!(%endpoint, missed, "the peer answers no ping; its connection is cut");
                return None;
            }
            Event::Silence => {
                missed += 1;
                due = later(core.reactor.now(), pace);
                let meta = Ping { opaque: core.fresh_number() }.encode();
                let ping = link.frames.send(Kind::Ping, &meta);
                match core.reactor.until(due, ping).await {
                    Some(Ok(_id)) => None,
                    Some(Err(error)) => Some(Fault::Io(error)),
                    None => Some(Fault::Io(io::ErrorKind::TimedOut.into())),
                }
            }
            Event::Frame(Err(fault)) => Some(fault),
            Event::Frame(Ok(header)) => {
                missed = 0;
                due = later(core.reactor.now(), pace);
                let take = describe::take(&mut link.frames, &header);
                match core.reactor.until(due, take).await {
                    Some(Ok(Unasked::Handled | Unasked::Pong { .. })) => None,
                    Some(Ok(Unasked::GoneAway)) => {
                        client_left(core, client, PeerStatus::Closed);
                        return None;
                    }
                    Some(Ok(Unasked::Page)) => {
                        core.plan.counters.protocol_violations.bump(1);
                        return None;
                    }
                    Some(Err(fault)) => Some(fault),
                    None => Some(Fault::Io(io::ErrorKind::TimedOut.into())),
                }
            }
        };
        if let Some(fault) = fault {
            if matches!(fault, Fault::Protocol(_)) {
                core.plan.counters.protocol_violations.bump(1);
            }
            tracing::debug!(endpoint = %client.endpoint, %fault, "a control connection ended");
            return None;
        }
    }
}

/// The identity ended: everybody who uses it is told.
fn client_left(core: &Rc<Core>, client: &Client, status: PeerStatus) {
    let peer = client.peer.borrow().upgrade();
    if let Some(peer) = peer {
        core.peer_left(&peer, status);
    }
}
