//! The retained owner behind a registration.

use std::sync::Arc;

use crate::error::Result;
use crate::types::{MemoryLocation, MemoryType};

use super::host::HostMemory;

/// What owns the bytes. A clone is one more reference to the same owner.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Host memory.
    Host(Arc<HostMemory>),
}

/// Two backings are the same owner exactly if their identities are equal while either lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity(usize);

impl Backing {
    pub fn address(&self) -> u64 {
        let Self::Host(memory) = self;
        memory.address()
    }

    pub fn len(&self) -> u64 {
        let Self::Host(memory) = self;
        memory.len()
    }

    pub fn memory_type(&self) -> MemoryType {
        let Self::Host(_) = self;
        MemoryType::Cpu
    }

    pub fn location(&self) -> MemoryLocation {
        let Self::Host(memory) = self;
        memory.memory_location()
    }

    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let Self::Host(memory) = self;
        memory.read_at(offset, into)
    }

    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let Self::Host(memory) = self;
        memory.write_at(offset, from)
    }

    pub(super) fn identity(&self) -> Identity {
        let Self::Host(memory) = self;
        Identity(Arc::as_ptr(memory) as usize)
    }
}
