//! What travels over a control connection besides the notices: the catalog of a source's regions.

pub(crate) mod catalog;
pub(crate) mod region;
