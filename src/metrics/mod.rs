//! Counters that shards write and anyone reads. Observations, never receipts: nothing is decided by
//! them, and a reader's values need not be of one instant.

pub(crate) mod counters;
