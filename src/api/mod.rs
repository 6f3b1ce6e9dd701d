//! The public surface: what a program that embeds the engine sees.

pub(crate) mod backing;
pub(crate) mod config;
pub(crate) mod descriptor;
pub(crate) mod engine;
pub(crate) mod plan;
pub(crate) mod poll;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod segment;
pub(crate) mod stats;
