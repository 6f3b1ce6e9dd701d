//! The copy of the simulated rail.
#![expect(unsafe_code, reason = "the simulated rail copies between two registered ranges")]

/// Copies `length` bytes, as a device with access to both memories would. Both ranges are leased by the
/// test that posted the slice, and a test drives its rail from one thread.
pub(crate) fn copy(to: u64, from: u64, length: u64) {
    let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
    // SAFETY: the callers hold both memories for the length of the call, checked the ranges against
    // them, and use them on this thread alone; `copy` allows overlap.
    unsafe { std::ptr::copy(from, to, length as usize) };
}
