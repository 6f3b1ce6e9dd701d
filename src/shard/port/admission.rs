//! Admission of one call: every range is resolved and its memory held, or nothing happens.

use std::sync::Arc;

use crate::error::{Error, Result, Side};
use crate::shard::memory::{Pinned, View};
use crate::shard::peer::{Found, Peer, Snapshot};
use crate::transfer::{Merger, Task};
use crate::types::{MAX_LENGTH, Priority, TransferOp, Transport};

use super::submission::Submission;

/// One request as the API was given it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub transport: Transport,
    pub local: u64,
    pub remote: u64,
    pub length: u64,
    pub priority: Priority,
    /// Nanoseconds since the engine started; 0 for none.
    pub deadline: u64,
}

/// Where a call goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim<'a> {
    pub op: TransferOp,
    pub peer: &'a Arc<Peer>,
    pub snapshot: &'a Snapshot,
}

/// Rules of the engine for every call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionRules {
    pub merge: bool,
    pub max_merge_bytes: u64,
    /// Requests of one call.
    pub max_requests: u32,
}

/// Why a call was not admitted.
pub(crate) enum Refusal {
    /// It names a range that the snapshot does not know: a newer one might.
    Unknown(Error),
    /// It cannot be admitted.
    Final(Error),
}

/// Fills an empty submission. On failure nothing stays held.
pub(crate) fn fill(
    submission: &mut Submission,
    view: &mut View,
    aim: Aim<'_>,
    asks: impl Iterator<Item = Ask>,
    rules: AdmissionRules,
) -> core::result::Result<(), Refusal> {
    view.refresh();
    let mut merger = Merger::new(rules.merge, rules.max_merge_bytes);
    for (index, ask) in asks.enumerate() {
        if index as u64 >= u64::from(rules.max_requests) {
            submission.discard();
            return Err(Refusal::Final(Error::InvalidRequest(format!(
                "more than {} requests in one call; split it",
                rules.max_requests
            ))));
        }
        match resolve(submission, view, aim, index, ask) {
            Ok(task) => {
                submission.bytes = submission.bytes.saturating_add(task.length);
                merger.push(&mut submission.owners, task);
            }
            Err(refusal) => {
                submission.discard();
                return Err(refusal);
            }
        }
    }
    submission.op = aim.op;
    submission.peer = Some(Arc::clone(aim.peer));
    submission.seal();
    Ok(())
}

fn resolve(
    submission: &mut Submission,
    view: &mut View,
    aim: Aim<'_>,
    index: usize,
    ask: Ask,
) -> core::result::Result<Task, Refusal> {
    check(index, ask).map_err(Refusal::Final)?;
    let (region, offset) = match aim.snapshot.find(aim.op, ask.remote, ask.length) {
        Found::At(region, offset) => (region, offset),
        Found::Denied(granted) => {
            let needed = match aim.op {
                TransferOp::Read => "remote read",
                TransferOp::Write => "remote write",
            };
            let side = Side::Remote;
            return Err(Refusal::Final(Error::PermissionDenied { side, needed, granted }));
        }
        Found::Nowhere => return Err(Refusal::Unknown(unknown_range(aim, index, ask))),
    };
    let pinned = view.pin_further(ask.local, ask.length, submission.pins());
    let registration = match pinned.map_err(Refusal::Final)? {
        Pinned::Held(at) => submission.pins().get(at).map(|pin| pin.record().key),
        Pinned::New(pin) => {
            let key = pin.record().key;
            submission.add_pin(pin);
            Some(key)
        }
    };
    let registration = registration
        .ok_or_else(|| Refusal::Final(Error::Internal("a pin that is not there".into())))?;
    let Ask { local, length, priority, deadline, .. } = ask;
    Ok(Task { local, registration, region, offset, length, priority, deadline })
}

fn check(index: usize, ask: Ask) -> Result<()> {
    let Ask { transport, local, remote, length, .. } = ask;
    if length == 0 {
        return Err(Error::InvalidRequest(format!(
            "request {index} has a length of 0; a request moves at least 1 byte"
        )));
    }
    if length > MAX_LENGTH {
        return Err(Error::InvalidRequest(format!(
            "request {index} has a length of {length}, over the limit of {MAX_LENGTH} bytes"
        )));
    }
    for (side, address) in [("local", local), ("remote", remote)] {
        if address.checked_add(length).is_none() {
            return Err(Error::InvalidRequest(format!(
                "request {index}: {length} bytes at {side} address {address:#x} wrap around the \
                 address space"
            )));
        }
    }
    match transport {
        Transport::Unspec | Transport::Tcp => Ok(()),
        other => Err(Error::Unavailable(format!(
            "request {index} asks for transport {other}, which this engine does not run; it has: \
             tcp. Use Transport::Unspec or Transport::Tcp"
        ))),
    }
}

fn unknown_range(aim: Aim<'_>, index: usize, ask: Ask) -> Error {
    Error::InvalidRequest(format!(
        "request {index}: {} bytes at {:#x} do not lie inside one region of {} at generation {}; {}",
        ask.length,
        ask.remote,
        aim.peer.endpoint_text,
        aim.snapshot.generation,
        nearest_region(ask.remote, ask.length, aim.snapshot.nearest(ask.remote))
    ))
}

/// What the range misses, and what to do. `nearest` is address and length of a region of the peer.
fn nearest_region(remote: u64, length: u64, nearest: Option<(u64, u64)>) -> String {
    /// No address of a process lies below (`vm.mmap_min_addr`).
    const LOWEST: u64 = 64 << 10;
    let Some((address, size)) = nearest else {
        return "the peer offers no region: register the range there with a remote permission, then \
                refresh the segment"
            .into();
    };
    let (end, region_end) = (remote.saturating_add(length), address.saturating_add(size));
    let region = format!("{size} bytes at {address:#x}");
    if remote >= address && remote < region_end {
        format!("the region there, {region}, ends {} bytes earlier", end - region_end)
    } else if remote < address && end > address {
        format!("the region there, {region}, begins {} bytes later", address - remote)
    } else if remote < LOWEST {
        format!(
            "a remote address is one of the peer's memory and no offset: add that of the region, such \
             as {address:#x}"
        )
    } else {
        format!(
            "the nearest region is {region}; if the range was registered there since, and not as \
             Local, which is not offered, refresh the segment"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::nearest_region;

    #[test]
    fn a_range_that_misses_its_region_is_told_by_how_much() {
        let near = Some((0x10_0000, 100));
        for (remote, length, part) in [
            (0x10_0000, 101, "ends 1 bytes earlier"),
            (0x10_0063, 2, "ends 1 bytes earlier"),
            (0x0f_fff0, 32, "begins 16 bytes later"),
            (0, 10, "no offset"),
            (0x10_0064, 1, "nearest region is 100 bytes at 0x100000"),
            (0x20_0000, 1, "not as Local"),
        ] {
            let text = nearest_region(remote, length, near);
            assert!(text.contains(part), "{remote:#x} {length}: {text}");
        }
        assert!(nearest_region(0x10_0000, 1, None).contains("offers no region"));
    }
}
