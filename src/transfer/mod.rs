//! Decisions about transfers: which requests share an owner, how owners are cut into slices, who holds
//! what while a slice is posted, and what an owner came to. Pure: no clock, no socket, no task.

pub(crate) mod ledger;
pub(crate) mod merge;
pub(crate) mod outcome;
pub(crate) mod report;
pub(crate) mod slicer;

pub(crate) use ledger::Ledger;
pub(crate) use merge::{Merger, Owner, Task};
pub(crate) use outcome::{Outcome, OwnerState};
pub(crate) use slicer::{Cursor, Cut, CutLimits};
