//! Two or more control planes in one process, over loopback, and clients that do as they like.

mod hostile;
mod lanes;
mod lifetime;
mod open;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use crossbeam_queue::SegQueue;

use super::*;
use crate::protocol::control::region::RegionDescriptor;
use crate::protocol::data::reader::{FrameReader, Outgoing};
use crate::protocol::handshake::body::{CHALLENGE_LEN, WELCOME_LEN};
use crate::protocol::handshake::requester::{
    AwaitWelcome, Established, Requester, RequesterParams,
};
use crate::protocol::header::{HEADER_LEN, Header, Kind};
use crate::protocol::limits::{Direction, FrameLimits, Limits, Role};
use crate::protocol::proof::SessionKey;
use crate::protocol::version::{Features, build_id};
use crate::shard::mailbox::message::Message;
use crate::shard::peer::Negotiated;
use crate::types::{EngineId, MemoryLocation, PeerKey, Permission, RegionKey};

/// Far more than anything here takes.
pub(super) const LONG: Duration = Duration::from_secs(20);

/// A catalog that a test replaces as a whole.
pub(in crate::shard) struct Shelf {
    content: ArcSwap<(u64, Arc<[RegionDescriptor]>)>,
    walks: AtomicU64,
}

impl Shelf {
    pub fn put(&self, generation: u64, regions: Vec<RegionDescriptor>) {
        self.content.store(Arc::new((generation, regions.into())));
    }

    /// How often the regions were asked for.
    pub fn walks(&self) -> u64 {
        self.walks.load(Ordering::Acquire)
    }
}

impl Catalog for Shelf {
    fn describe(&self) -> (u64, Arc<[RegionDescriptor]>) {
        self.walks.fetch_add(1, Ordering::AcqRel);
        let now = self.content.load_full();
        (now.0, Arc::clone(&now.1))
    }

    fn generation(&self) -> u64 {
        self.content.load().0
    }
}

/// A shard that only collects its messages.
#[derive(Default)]
pub(in crate::shard) struct Inbox {
    messages: SegQueue<Message>,
    pub full: AtomicBool,
}

impl ShardInbox for Inbox {
    fn inject(&self, message: Message) -> Result<(), Message> {
        if self.full.load(Ordering::Acquire) {
            return Err(message);
        }
        self.messages.push(message);
        Ok(())
    }
}

impl Inbox {
    /// The next message, however long it takes.
    pub fn next(&self) -> Message {
        eventually("a message", || self.messages.pop())
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// An engine as far as its control plane is concerned.
pub(super) struct Engine {
    pub control: Control,
    pub endpoint: Endpoint,
    pub epoch: SourceEpoch,
    pub shelf: Arc<Shelf>,
    pub inboxes: Vec<Arc<Inbox>>,
    counters: Arc<ControlCounters>,
}

pub(in crate::shard) fn epoch(byte: u8) -> SourceEpoch {
    SourceEpoch::from_bytes([byte; 16]).unwrap()
}

pub(super) fn region(id: u64) -> RegionDescriptor {
    let key = RegionKey { id, generation: 1 };
    let place = MemoryLocation::Cpu(None);
    RegionDescriptor::new(key, id << 20, 4096, Permission::RemoteRead, place, 1 << 7).unwrap()
}

pub(super) fn limits() -> Negotiated {
    Negotiated { max_message: 64 << 20, scatter_ops: 256, lane_window: 16, payload_crc: false }
}

/// A plan with the product's defaults on an ephemeral port of loopback, two shards and no region.
pub(in crate::shard) fn plan(epoch: SourceEpoch) -> (ControlPlan, Arc<Shelf>, Vec<Arc<Inbox>>) {
    let shelf = Arc::new(Shelf {
        content: ArcSwap::from_pointee((1, Arc::default())),
        walks: AtomicU64::new(0),
    });
    let inboxes: Vec<Arc<Inbox>> = (0..2).map(|_| Arc::default()).collect();
    let plan = ControlPlan {
        id: EngineId::of(&epoch),
        epoch,
        keys: Keys::default(),
        discovery: Discovery::Never,
        allow_peer: Box::new(|_| true),
        bind: SocketAddr::from(([127, 0, 0, 1], 0)),
        port_span: 0,
        limits: limits(),
        inbound: InboundLimits {
            max_connections: 1024,
            max_connections_per_ip: 256,
            max_handshakes: 64,
            handshake_timeout: Duration::from_secs(2),
            describe_page_regions: 512,
        },
        timeouts: Timeouts {
            connect: Duration::from_secs(3),
            handler: Duration::from_secs(5),
            ping: Duration::from_secs(5),
            reconnect_cooldown: Duration::from_secs(1),
        },
        tcp: TcpOptions {
            keepalive_idle: Duration::from_secs(10),
            keepalive_interval: Duration::from_secs(5),
            keepalive_count: 3,
            user_timeout: Duration::from_secs(20),
        },
        catalog: shelf.clone(),
        shards: inboxes.iter().map(|inbox| inbox.clone() as Arc<dyn ShardInbox>).collect(),
        counters: Arc::default(),
    };
    (plan, shelf, inboxes)
}

/// Starts an engine whose plan was changed.
pub(super) fn start_with(byte: u8, change: impl FnOnce(&mut ControlPlan)) -> Engine {
    let epoch = epoch(byte);
    let (mut plan, shelf, inboxes) = plan(epoch);
    change(&mut plan);
    let counters = Arc::clone(&plan.counters);
    let (control, address) = Control::start(plan).unwrap();
    Engine { control, endpoint: Endpoint::new(address), epoch, shelf, inboxes, counters }
}

pub(super) fn start(byte: u8) -> Engine {
    start_with(byte, |_| ())
}

impl Engine {
    pub fn open(&self, other: &Self) -> Result<Opened, Error> {
        self.control.open(&peer_at(other.endpoint, other.epoch), LONG)
    }

    /// The peer as this engine's shards would know it.
    #[expect(clippy::unused_self, reason = "reads as whose peer it is")]
    pub fn peer(&self, other: &Self) -> Arc<Peer> {
        peer_at(other.endpoint, other.epoch)
    }

    pub fn counters(&self) -> &ControlCounters {
        &self.counters
    }

    /// Looks at the engine's tables on the control thread.
    pub fn inspect<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Rc<Core>) -> T + Send + 'static,
    ) -> T {
        let (reply, answer) = sync_channel(1);
        self.control.submit(move |core| drop(reply.try_send(look(core))));
        answer.recv_timeout(LONG).unwrap()
    }
}

pub(super) fn peer_at(endpoint: Endpoint, epoch: SourceEpoch) -> Arc<Peer> {
    let key = PeerKey { slot: 0, generation: 0 };
    Arc::new(Peer::new(key, endpoint, epoch, EngineId::of(&epoch)))
}

/// Asks again until there is an answer; fails after a long time.
#[expect(clippy::disallowed_methods, reason = "a test that waits for another thread")]
pub(in crate::shard) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < LONG, "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Keeps the control thread of the process from turning until the answer is dropped.
pub(in crate::shard) fn hold_up(control: &Control) -> SyncSender<()> {
    let (release, released) = sync_channel::<()>(0);
    let (held, holds) = sync_channel(1);
    control.submit(move |_| {
        let _asker_waits = held.send(());
        let _at_its_drop = released.recv_timeout(LONG);
    });
    holds.recv_timeout(LONG).unwrap();
    release
}

/// A connection that can be read for ever only until `LONG`.
pub(super) fn dial(endpoint: Endpoint) -> TcpStream {
    let stream = TcpStream::connect(endpoint.addr()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// All bytes until the other side ends. A reset ends it too: bytes of ours were not read.
pub(super) fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    all
}

/// A control or data connection made by hand.
pub(super) struct Raw {
    pub stream: TcpStream,
    pub established: Established,
    pub outgoing: Outgoing,
    reader: FrameReader,
}

pub(super) fn params(to: &Engine, role: Role) -> RequesterParams {
    RequesterParams {
        role,
        lane: 0,
        rail: 0,
        build: build_id(),
        features: Features::default(),
        nonce: [7; 16],
        id: EngineId::from_bytes([9; 16]),
        expected: EngineId::of(&to.epoch),
        key: SessionKey::derive(&to.epoch, None),
        limits: Limits::new(1 << 20, 64, 8),
    }
}

/// The handshake up to the proof, which is not sent.
pub(super) fn shake_to_proof(to: &Engine, role: Role) -> (TcpStream, AwaitWelcome, Vec<u8>) {
    let mut stream = dial(to.endpoint);
    let (awaiting, hello) = Requester::start(params(to, role));
    stream.write_all(&hello).unwrap();
    let mut challenge = [0; CHALLENGE_LEN];
    stream.read_exact(&mut challenge).unwrap();
    let (awaiting, proof) = awaiting.challenge(&challenge).unwrap();
    (stream, awaiting, proof.to_vec())
}

pub(super) fn shake(to: &Engine, role: Role) -> Raw {
    let (mut stream, awaiting, proof) = shake_to_proof(to, role);
    stream.write_all(&proof).unwrap();
    let mut welcome = [0; WELCOME_LEN];
    stream.read_exact(&mut welcome).unwrap();
    let established = awaiting.welcome(&welcome).unwrap();
    let limits = FrameLimits::control(Direction::ToRequester);
    let reader = FrameReader::new(limits, HEADER_LEN);
    Raw { stream, established, outgoing: Outgoing::new(false), reader }
}

impl Raw {
    pub fn send(&mut self, kind: Kind, meta: &[u8]) {
        let (head, _id) = self.outgoing.request(kind, meta, 0);
        self.stream.write_all(&[&head[..], meta].concat()).unwrap();
    }

    /// The next frame: header, meta, payload. `None`: the stream ended.
    pub fn receive(&mut self) -> Option<(Header, Vec<u8>, Vec<u8>)> {
        let header = loop {
            let n = self.stream.read(self.reader.space()).unwrap();
            if n == 0 {
                return None;
            }
            if let Some(header) = self.reader.filled(n).unwrap() {
                break header;
            }
        };
        let mut payload = vec![0; header.payload_len() as usize];
        self.stream.read_exact(&mut payload).unwrap();
        let meta = self.reader.meta().to_vec();
        self.reader.next();
        Some((header, meta, payload))
    }
}
