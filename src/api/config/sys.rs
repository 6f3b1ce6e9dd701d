//! The one fact about this process that the standard library does not tell: its effective user.
#![expect(unsafe_code, reason = "geteuid has no safe form in the standard library")]

/// Effective user id of the process.
pub(super) fn effective_uid() -> u32 {
    // SAFETY: geteuid(2) takes no argument, touches no memory of ours and cannot fail (POSIX.1-2008).
    unsafe { libc::geteuid() }
}
