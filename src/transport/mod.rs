//! Ways to move slices. Each has a cold half, a provider, and a hot half, a rail.

pub(crate) mod provider;
pub(crate) mod rail;
pub(crate) mod tcp;
