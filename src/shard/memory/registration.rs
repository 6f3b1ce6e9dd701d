//! A registration as its handles share it: a claim on a range of a backing, with a record that is
//! published.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::Permission;

use super::backing::{Backing, Identity};
use super::record::Record;
use super::registry::Registry;

/// One range to register.
#[derive(Clone, Debug)]
pub(crate) struct RegistrationRequest {
    /// The owner of the bytes.
    pub backing: Backing,
    /// First byte within it.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// What peers may do.
    pub permission: Permission,
}

/// What makes two registrations the same one.
pub(super) type RangeId = (Identity, u64, u64);

impl RegistrationRequest {
    pub(super) fn id(&self) -> RangeId {
        (self.backing.identity(), self.offset, self.length)
    }
}

/// A claim on a range, shared by all references to it. The last one that is dropped withdraws it, unless
/// that was tried before: what came of it is the registry's then, and the drop does not wait.
pub(crate) struct Registration {
    record: Arc<Record>,
    /// A reference of our own, so that the bytes stay valid for handles whatever becomes of the record.
    backing: Backing,
    offset: u64,
    registry: Arc<Registry>,
}

impl Registration {
    pub(super) const fn new(
        record: Arc<Record>,
        backing: Backing,
        offset: u64,
        registry: Arc<Registry>,
    ) -> Self {
        Self { record, backing, offset, registry }
    }

    pub(super) const fn shared_record(&self) -> &Arc<Record> {
        &self.record
    }

    /// What is published.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether `registry` made it.
    pub fn is_of(&self, registry: &Arc<Registry>) -> bool {
        Arc::ptr_eq(&self.registry, registry)
    }

    /// Who made it.
    #[cfg(test)]
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Takes it out of use; see [`Registry::withdraw`].
    pub fn withdraw(&self, timeout: Duration) -> Result<()> {
        self.registry.withdraw(self, timeout)
    }

    /// Withdraws it within the registry's own bound.
    pub fn withdraw_in_time(&self) -> Result<()> {
        self.withdraw(self.registry.withdrawal_timeout())
    }

    /// Copies bytes out. Fails with `InvalidRequest` if they do not lie inside the registration.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.check("read", offset, into.len())?;
        self.backing.read_at(self.offset + offset, into)
    }

    /// Copies bytes in. Fails with `InvalidRequest` if they do not lie inside the registration.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.check("write", offset, from.len())?;
        self.backing.write_at(self.offset + offset, from)
    }

    fn check(&self, action: &str, offset: u64, length: usize) -> Result<()> {
        let limit = self.record.length;
        if offset.checked_add(length as u64).is_some_and(|end| end <= limit) {
            return Ok(());
        }
        Err(Error::InvalidRequest(format!(
            "cannot {action} {length} bytes at offset {offset}: the limit is the registration's length, \
             {limit} bytes"
        )))
    }

    pub(super) fn id(&self) -> RangeId {
        (self.backing.identity(), self.offset, self.record.length)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.registry.is_forked() {
            // The owner belongs to the parent's engine: its drop must not run here, too.
            std::mem::forget(self.backing.clone());
            return;
        }
        // A withdrawal closed it, and the registry holds what that one could not wait for.
        if self.record.is_closed() {
            return;
        }
        if let Err(error) = self.withdraw_in_time() {
            tracing::warn!(%error, "a registration was dropped before every shard let go of it");
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("record", &self.record).finish_non_exhaustive()
    }
}
