//! The parts of host memory that touch bytes through bare addresses.
#![expect(unsafe_code, reason = "owns a vector as raw parts and copies from and to its bytes")]

use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::error::Result;
use crate::sys::memory::{copy_in, copy_out};

use super::host::HostMemory;

/// A vector as its raw parts. Kept so, because a vector or box that moves would claim to be the only
/// way to its bytes, which the engine's pointers contradict.
pub(super) struct VecBytes {
    address: usize,
    len: usize,
    capacity: usize,
}

impl VecBytes {
    pub fn new(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        let (len, capacity) = (bytes.len(), bytes.capacity());
        Self { address: bytes.as_mut_ptr().expose_provenance(), len, capacity }
    }

    pub const fn address(&self) -> u64 {
        self.address as u64
    }

    pub const fn len(&self) -> u64 {
        self.len as u64
    }
}

impl Drop for VecBytes {
    fn drop(&mut self) {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.address);
        // SAFETY: the three parts come from one vector that was not dropped (`new`), and they are put
        // together once, here. No pointer into it is used afterwards: whoever holds one holds the
        // `HostMemory` around this value.
        drop(unsafe { Vec::from_raw_parts(start, self.len, self.capacity) });
    }
}

impl HostMemory {
    /// Memory that something else owns: `len` bytes at `ptr`, kept alive by `owner`.
    ///
    /// `owner` is dropped once, after the last handle, registration and admitted operation let go, on a
    /// caller's thread or on the engine's reaper thread, never on a shard. Fails with `InvalidRequest`
    /// for a null pointer, for a length outside `1..=2^47` and for a range that wraps; `owner` is then
    /// dropped at once.
    ///
    /// # Safety
    /// Until `owner` is dropped: the `len` bytes at `ptr` are mapped, readable and writable, and stay
    /// where they are; and no Rust reference to any of them is used while a registration of them, or a
    /// copy through this value, may access them.
    pub unsafe fn from_external(
        ptr: *mut u8,
        len: u64,
        owner: Arc<dyn Send + Sync>,
    ) -> Result<Arc<Self>> {
        Self::external(ptr.expose_provenance() as u64, len, owner)
    }

    /// Copies `into.len()` bytes from `offset` out. Fails with `InvalidRequest` and copies nothing if
    /// they do not lie inside. Where bytes move meanwhile the copy holds old and new ones mixed.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let address = self.checked("read", offset, into.len())?;
        // SAFETY: `checked` proved that the range lies inside this memory, which lives at least as long
        // as `self`. Other threads reach these bytes through copies like this one, the kernel or a
        // device; raw pointers of callers are theirs to order (`as_ptr`, `from_external`).
        unsafe { copy_out(address, into) };
        Ok(())
    }

    /// Copies `from` to `offset`. Fails with `InvalidRequest` and copies nothing if the bytes would not
    /// lie inside.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let address = self.checked("write", offset, from.len())?;
        // SAFETY: as in `read_at`, and all memory here is writable: mapped so, a vector of ours, or
        // promised by the caller of `from_external`.
        unsafe { copy_in(address, from) };
        Ok(())
    }
}

/// Memory that lives for ever and may be changed through shared references, with an owner to watch.
#[cfg(test)]
pub(super) fn external_atomics(
    bytes: &'static [std::sync::atomic::AtomicU8],
    owner: Arc<dyn Send + Sync>,
) -> Arc<HostMemory> {
    let ptr = bytes.as_ptr().cast::<u8>().cast_mut();
    // SAFETY: the bytes are static, so mapped for ever, and atomics, so writable through shared
    // references that may be in use meanwhile.
    unsafe { HostMemory::from_external(ptr, bytes.len() as u64, owner) }.unwrap()
}
