//! Bodies that the test suites and the fuzz targets share. No part of the stable surface: anything
//! here may change in any release.

pub mod config;
pub mod crossing;
pub mod raw_peer;
pub mod wire;

#[cfg(test)]
pub(crate) mod conformance;
#[cfg(test)]
mod lanes;
#[cfg(test)]
pub(crate) mod rigs;
#[cfg(test)]
pub(crate) mod sys;

/// An epoch as a new engine makes it.
///
/// # Errors
/// When the operating system's generator fails.
pub fn new_epoch() -> crate::Result<crate::SourceEpoch> {
    crate::api::engine::new_epoch()
}
