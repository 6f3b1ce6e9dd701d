//! Vectored socket calls straight into and out of registered memory.
#![expect(unsafe_code, reason = "recvmsg and sendmsg take raw vectors; there is no safe form")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// One piece of memory for a vectored call.
///
/// Whoever makes one vouches that its bytes stay mapped and, for a receive, writable until the frame
/// that names them was retired: the lanes keep the lease of every registered piece until then, and
/// make pieces of their own buffers only inside the call that uses them.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct IoPiece(libc::iovec);

// SAFETY: a piece is an address and a length; what it names is governed by the lease beside it, which
// moves between threads with the frame.
unsafe impl Send for IoPiece {}

impl IoPiece {
    /// Registered bytes.
    pub fn registered(address: u64, length: u64) -> Self {
        let base = std::ptr::with_exposed_provenance_mut::<libc::c_void>(address as usize);
        Self(libc::iovec { iov_base: base, iov_len: length as usize })
    }

    /// Bytes of a buffer, to send within the borrow's life.
    pub fn of(bytes: &[u8]) -> Self {
        Self(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() })
    }

    /// Bytes of a buffer, to receive into within the borrow's life.
    pub fn of_mut(bytes: &mut [u8]) -> Self {
        Self(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() })
    }

    pub const fn len(self) -> u64 {
        self.0.iov_len as u64
    }

    /// Drops the first `bytes`, at most the length.
    pub fn advance(&mut self, bytes: u64) {
        let step = (bytes as usize).min(self.0.iov_len);
        self.0.iov_base = self.0.iov_base.wrapping_byte_add(step);
        self.0.iov_len -= step;
    }

    /// The first `bytes` only, at most the length.
    pub fn first(self, bytes: u64) -> Self {
        let iov_len = (bytes as usize).min(self.0.iov_len);
        Self(libc::iovec { iov_len, ..self.0 })
    }

    /// Continues a CRC-32C over the piece. The bytes are copied out in chunks: peers or the program may
    /// change them meanwhile, so no reference to them is made.
    pub fn crc(self, mut crc: u32, scratch: &mut [u8]) -> u32 {
        let mut rest = self;
        while rest.0.iov_len > 0 && !scratch.is_empty() {
            let step = rest.0.iov_len.min(scratch.len());
            // SAFETY: the piece's maker vouches that its bytes are mapped (see the type); `scratch` is
            // ours, at least `step` long and cannot overlap registered memory, being a private buffer.
            unsafe {
                libc::memcpy(scratch.as_mut_ptr().cast(), rest.0.iov_base, step);
            }
            crc = crc32c::crc32c_append(crc, &scratch[..step]);
            rest.advance(step as u64);
        }
        crc
    }
}

/// Longest vector of one call (`IOV_MAX` of Linux, `include/uapi/linux/uio.h`).
pub(crate) const PIECES_MAX: usize = 1024;

fn message(pieces: &[IoPiece]) -> libc::msghdr {
    // SAFETY: `msghdr` is plain data for which zero means "absent" in every field (recvmsg(2)).
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = pieces.as_ptr().cast_mut().cast();
    // The field is shorter on some C libraries; the number is at most `PIECES_MAX`.
    header.msg_iovlen = pieces.len().min(PIECES_MAX) as _;
    header
}

fn outcome(moved: isize) -> io::Result<usize> {
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// Sends the pieces in order, as far as the kernel takes them. Never blocks, never raises SIGPIPE.
pub(super) fn send(socket: BorrowedFd<'_>, pieces: &[IoPiece]) -> io::Result<usize> {
    let header = message(pieces);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `header` names `pieces`, whose makers vouch for their bytes; the kernel has copied what it
    // took when the call returns, and keeps no reference.
    outcome(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) })
}

/// Receives into the pieces in order. Never blocks. 0 means that the peer ended the stream.
pub(super) fn receive(socket: BorrowedFd<'_>, pieces: &[IoPiece]) -> io::Result<usize> {
    let mut header = message(pieces);
    // SAFETY: `header` names `pieces`, whose makers vouch that their bytes may be written until the
    // frame is retired; the kernel writes only during the call.
    outcome(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) })
}

/// Receives into a buffer. Never blocks. 0 means that the peer ended the stream.
pub(super) fn receive_buffer(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    let (base, length) = (into.as_mut_ptr().cast(), into.len());
    // SAFETY: `base` and `length` are those of an exclusive borrow that outlives the call.
    outcome(unsafe { libc::recv(socket.as_raw_fd(), base, length, libc::MSG_DONTWAIT) })
}
