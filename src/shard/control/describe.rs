//! The requester's side of a control connection: walks through the catalog, pings, what comes unasked.

use std::fmt;

use futures_lite::future::yield_now;
use futures_lite::{AsyncRead, AsyncWrite};

use crate::protocol::control::catalog::{self, CatalogChanged, Describe, Page};
use crate::protocol::control::region::RegionDescriptor;
use crate::protocol::error::FrameError;
use crate::protocol::header::{Header, Kind};
use crate::protocol::notice::{GoAway, Ping, Pong};

use super::frames::{Fault, Frames};

/// Walks that may begin anew because the catalog changed under them.
const MAX_RESTARTS: u32 = 3;

/// Regions that one peer may have: the largest `max_registrations`.
const MAX_REGIONS: usize = 1 << 20;

/// Why a request over a control connection has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The connection is of no use any more.
    Fault(Fault),
    /// The peer takes nothing new.
    GoneAway,
    /// The catalog changed faster than it could be read.
    Restless { restarts: u32 },
}

impl<T: Into<Fault>> From<T> for Unanswered {
    fn from(fault: T) -> Self {
        Self::Fault(fault.into())
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::GoneAway => f.write_str("the peer is closing"),
            Self::Restless { restarts } => {
                write!(f, "the catalog changed during each of {} walks", restarts + 1)
            }
        }
    }
}

/// What a frame that nobody asked for means to a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unasked {
    /// Nothing more to do.
    Handled,
    /// The peer answered a ping.
    Pong { opaque: u64 },
    /// The peer takes nothing new.
    GoneAway,
    /// A page; wrong unless it was asked for.
    Page,
}

/// Regions of a peer at one generation.
#[derive(Debug)]
pub(super) struct Description {
    pub generation: u64,
    pub regions: Vec<RegionDescriptor>,
}

/// Deals with the frame that was received, except for a page's content.
pub(super) async fn take<S: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut Frames<S>,
    header: &Header,
) -> Result<Unasked, Fault> {
    let meaning = match header.kind {
        Kind::Ping => {
            let meta = Ping::decode(frames.meta())?.answer().encode();
            frames.reply(Kind::Pong, header.request_id, &meta, &[]).await?;
            Unasked::Handled
        }
        Kind::Pong => Unasked::Pong { opaque: Pong::decode(frames.meta())?.opaque },
        Kind::GoAway => {
            let _reason = GoAway::decode(frames.meta())?;
            Unasked::GoneAway
        }
        Kind::Page => return Ok(Unasked::Page),
        _ => {
            // A hint. Whoever meets an unknown range refreshes anyway.
            let _hint = CatalogChanged::decode(frames.meta())?;
            Unasked::Handled
        }
    };
    frames.done();
    // A peer that sends without pause holds up nobody.
    yield_now().await;
    Ok(meaning)
}

/// Reads the whole catalog at one generation. A catalog that changes during the walk begins it anew, at
/// most three times. The caller bounds the time; dropped in between, the connection is of no use.
pub(super) async fn describe<S: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut Frames<S>,
) -> Result<Description, Unanswered> {
    let mut asked = Describe { cursor: 0, generation: 0 };
    let mut restarts = 0;
    let mut regions = Vec::new();
    loop {
        let id = frames.send(Kind::Describe, &asked.encode()).await?;
        let header = page_of(frames, id).await?;
        let page = Page::decode(frames.meta(), header.data_len)?;
        if asked.generation != 0 && page.generation != asked.generation {
            if restarts == MAX_RESTARTS {
                return Err(Unanswered::Restless { restarts });
            }
            restarts += 1;
            regions.clear();
        }
        if regions.len() + page.count as usize > MAX_REGIONS {
            let (count, max) = (regions.len() as u64 + u64::from(page.count), MAX_REGIONS as u64);
            return Err(FrameError::TooMany { what: "regions of a peer", count, max }.into());
        }
        for region in catalog::regions(frames.payload()) {
            regions.push(region?);
        }
        let next = page.next(&asked)?;
        frames.done();
        match next {
            Some(next) => asked = next,
            None => return Ok(Description { generation: page.generation, regions }),
        }
    }
}

async fn page_of<S: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut Frames<S>,
    id: u64,
) -> Result<Header, Unanswered> {
    loop {
        let header = frames.receive().await?;
        match take(frames, &header).await? {
            Unasked::Page if header.request_id == id => return Ok(header),
            Unasked::Page => {
                let (what, value) = ("request id of a page", header.request_id);
                return Err(FrameError::Value { what, value, rule: "that of the request" }.into());
            }
            Unasked::GoneAway => return Err(Unanswered::GoneAway),
            Unasked::Handled | Unasked::Pong { .. } => {}
        }
    }
}

/// Sends a ping with this number and waits for its answer.
pub(super) async fn ping<S: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut Frames<S>,
    opaque: u64,
) -> Result<(), Unanswered> {
    frames.send(Kind::Ping, &Ping { opaque }.encode()).await?;
    loop {
        let header = frames.receive().await?;
        match take(frames, &header).await? {
            Unasked::Pong { opaque: answered } if answered == opaque => return Ok(()),
            Unasked::GoneAway => return Err(Unanswered::GoneAway),
            Unasked::Page => {
                let (what, value) = ("request id of a page", header.request_id);
                return Err(FrameError::Value { what, value, rule: "no page was asked for" }.into());
            }
            Unasked::Handled | Unasked::Pong { .. } => {}
        }
    }
}
