//! The source's side of a control connection: pages of the catalog, answers to pings, the last word.
//!
//! | event | answer |
//! |---|---|
//! | Describe, anything else | first page of the catalog as it is now, held for the walk |
//! | Describe, generation and next cursor of the walk | that page; the last one ends the walk |
//! | Ping | Pong |
//! | GoAway, end of stream | end |
//! | engine closes | GoAway, end |
//! | catalog changed here | CatalogChanged |
//! | a reply that is not taken for `handler` | cut |
//! | no frame for `silence` | cut: a requester pings |
//! | anything else | cut and counted |

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::future::{or, yield_now};
use futures_lite::{AsyncRead, AsyncWrite};

use crate::protocol::control::catalog::{CatalogChanged, Describe, PAGE_REGIONS_MAX, Page};
use crate::protocol::control::region::{DESCRIPTOR_LEN, RegionDescriptor};
use crate::protocol::header::{Header, Kind};
use crate::protocol::notice::{GoAway, GoAwayReason, Ping, Pong};

use super::frames::{Fault, Frames};
use super::plan::Catalog;
use super::reactor::{Reactor, later};
use super::scope::Flag;

/// What other tasks want a served connection to send.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    wake: Flag,
    go_away: Cell<bool>,
    generation: Cell<Option<u64>>,
}

impl Outbox {
    /// Ends the connection with a GoAway.
    pub fn go_away(&self) {
        self.go_away.set(true);
        self.wake.raise();
    }

    /// Hints that the catalog has a new generation. The last one wins.
    pub fn catalog_changed(&self, generation: u64) {
        self.generation.set(Some(generation));
        self.wake.raise();
    }
}

/// What is served, and how.
pub(super) struct Service {
    pub reactor: Reactor,
    pub catalog: Arc<dyn Catalog>,
    /// Regions on one page.
    pub page_regions: u32,
    /// Longest time that one reply may take, and that a walk may stand still and hold its snapshot.
    pub handler: Duration,
    /// Longest time without a frame.
    pub silence: Duration,
}

/// One walk of the peer through one snapshot.
struct Walk {
    generation: u64,
    regions: Arc<[RegionDescriptor]>,
    /// Of the next page.
    cursor: u64,
    until: Instant,
}

enum Event {
    Frame(Result<Header, Fault>),
    Outbox,
    WalkOver,
    Silence,
}

impl Service {
    /// Serves a proven connection to its end. `Ok`: it ended as it should. Between two frames other
    /// tasks get their turn, so a peer that asks without pause holds up nobody.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        frames: &mut Frames<S>,
        outbox: &Outbox,
    ) -> Result<(), Fault> {
        let mut walk = None;
        let mut last_request = 0;
        let mut silent = later(self.reactor.now(), self.silence);
        loop {
            match self.next_event(frames, outbox, walk.as_ref(), silent).await {
                Event::Silence => return Err(Fault::Silent),
                Event::Frame(Err(Fault::Ended)) => return Ok(()),
                Event::Frame(Err(fault)) => return Err(fault),
                Event::WalkOver => walk = None,
                Event::Outbox if outbox.go_away.get() => {
                    let last_request_id = last_request;
                    let meta = GoAway { reason: GoAwayReason::Closing, last_request_id }.encode();
                    let _id = self.bounded(frames.send(Kind::GoAway, &meta)).await?;
                    return Ok(());
                }
                Event::Outbox => {
                    if let Some(generation) = outbox.generation.take() {
                        let meta = CatalogChanged { generation }.encode();
                        let _id = self.bounded(frames.send(Kind::CatalogChanged, &meta)).await?;
                    }
                }
                Event::Frame(Ok(header)) => {
                    silent = later(self.reactor.now(), self.silence);
                    last_request = header.request_id;
                    match header.kind {
                        Kind::Describe => {
                            let asked = Describe::decode(frames.meta())?;
                            let (page, payload) = self.page(&asked, &mut walk);
                            let meta = page.encode();
                            let id = header.request_id;
                            self.bounded(frames.reply(Kind::Page, id, &meta, &payload)).await?;
                        }
                        Kind::Ping => {
                            let meta = Ping::decode(frames.meta())?.answer().encode();
                            let id = header.request_id;
                            self.bounded(frames.reply(Kind::Pong, id, &meta, &[])).await?;
                        }
                        Kind::GoAway => {
                            let _reason = GoAway::decode(frames.meta())?;
                            return Ok(());
                        }
                        // Nothing is asked from this side, so an answer means nothing; others do not
                        // pass the reader of this direction.
                        _ => {
                            let _unasked = Pong::decode(frames.meta())?;
                        }
                    }
                    frames.done();
                    yield_now().await;
                }
            }
        }
    }

    async fn next_event<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        frames: &mut Frames<S>,
        outbox: &Outbox,
        walk: Option<&Walk>,
        silent: Instant,
    ) -> Event {
        let told = async {
            outbox.wake.raised().await;
            Event::Outbox
        };
        let frame = async { Event::Frame(frames.receive().await) };
        let (due, meaning) = match walk {
            Some(walk) if walk.until < silent => (walk.until, Event::WalkOver),
            _ => (silent, Event::Silence),
        };
        let due = async {
            self.reactor.sleep_until(due).await;
            meaning
        };
        // The frame before the time: what has come counts before the silence does.
        or(told, or(frame, due)).await
    }

    /// One page. A walk goes on in the snapshot that it began with; another generation begins anew.
    fn page(&self, asked: &Describe, walk: &mut Option<Walk>) -> (Page, Vec<u8>) {
        let until = later(self.reactor.now(), self.handler);
        let going_on = walk.take().filter(|walk| {
            // Only forward, so that a walk, and what it holds, has an end.
            walk.generation == asked.generation && walk.cursor == asked.cursor
        });
        let held = going_on.unwrap_or_else(|| {
            let (generation, regions) = self.catalog.describe();
            // Zero means "no generation" on the wire.
            Walk { generation: generation.max(1), regions, cursor: 0, until }
        });
        let from = held.cursor;
        let size = u64::from(self.page_regions.clamp(1, PAGE_REGIONS_MAX));
        let all = held.regions.len() as u64;
        let (start, end) = (from.min(all), from.saturating_add(size).min(all));
        let regions = held.regions.get(start as usize..end as usize).unwrap_or_default();
        let mut payload = Vec::with_capacity(regions.len() * DESCRIPTOR_LEN);
        for region in regions {
            payload.extend_from_slice(&region.encode());
        }
        let next_cursor = if end < all { end } else { 0 };
        let page = Page { generation: held.generation, next_cursor, count: regions.len() as u32 };
        if next_cursor > 0 {
            *walk = Some(Walk { cursor: next_cursor, until, ..held });
        }
        (page, payload)
    }

    /// A reply that the peer does not take in time ends the connection: it holds memory.
    async fn bounded<T>(&self, write: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let deadline = later(self.reactor.now(), self.handler);
        self.reactor.until(deadline, write).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
    }
}
