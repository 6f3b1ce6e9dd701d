//! An `eventfd(2)`: one bit that another thread sets and that `epoll` sees.
#![expect(unsafe_code, reason = "eventfd, and eight-byte reads and writes of its counter")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Non-blocking, closed on exec, closed on drop. Readable from a [`signal`](Self::signal) to the next
/// [`drain`](Self::drain), however many signals there were.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// A new one, not readable. Fails with the kernel's error: mostly `EMFILE` or `ENFILE`.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes two integers and touches no memory of ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes it readable and wakes who waits for that. From any thread; never blocks.
    ///
    /// The write fails only when the counter is one short of overflow (`EAGAIN`); then it is readable
    /// anyway, which is all that a signal promises.
    pub(crate) fn signal(&self) {
        let one = 1_u64;
        // SAFETY: the descriptor is open while `self` lives; the buffer is eight readable bytes.
        let _written = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Makes it unreadable again. Never blocks; does nothing when it was not readable.
    pub(crate) fn drain(&self) {
        let mut count = 0_u64;
        // SAFETY: the descriptor is open while `self` lives; the buffer is eight writable bytes.
        let _read = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// To put into an epoll set, with interest in reading.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::EventFd;
    use crate::sys::epoll::{Epoll, Events, Interest};

    #[test]
    fn a_signal_stays_until_it_is_drained() {
        let event = EventFd::new().unwrap();
        let epoll = Epoll::new().unwrap();
        let mut events = Events::with_capacity(4);
        epoll.add(event.as_fd(), 9, Interest::READ).unwrap();
        let mut ready = || epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(ready(), 0);
        event.signal();
        event.signal();
        assert_eq!(ready(), 1);
        assert_eq!(ready(), 1, "level triggered");
        event.drain();
        assert_eq!(ready(), 0);
        event.drain();
    }
}
