//! Readiness of descriptors: `epoll(7)`, level triggered, with timeouts finer than a millisecond where
//! the kernel has them (`epoll_pwait2`, Linux 5.11).
#![expect(unsafe_code, reason = "the epoll calls and their event buffers")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Set once the kernel, or a filter in front of it, has refused `epoll_pwait2`; for the whole process.
static COARSE: AtomicBool = AtomicBool::new(false);

/// What a descriptor is watched for. An error and a hang-up are reported whatever is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    /// Bytes, a connection or the end of the stream to take.
    pub readable: bool,
    /// Room to send.
    pub writable: bool,
}

impl Interest {
    /// Reading alone.
    pub(crate) const READ: Self = Self { readable: true, writable: false };
    /// Both.
    #[cfg(test)]
    pub(crate) const BOTH: Self = Self { readable: true, writable: true };

    const fn bits(self) -> u32 {
        let readable = if self.readable { libc::EPOLLIN } else { 0 };
        let writable = if self.writable { libc::EPOLLOUT } else { 0 };
        (readable | writable) as u32
    }
}

/// One ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The number that [`Epoll::add`] was given.
    pub token: u64,
    /// Reading makes progress.
    pub readable: bool,
    /// Sending makes progress.
    pub writable: bool,
    /// `EPOLLHUP` or `EPOLLERR`: read, or ask for `SO_ERROR`, to learn why. Level triggered: it comes
    /// again until the descriptor is removed or closed.
    pub hangup: bool,
}

/// Room for the events of one wait, made once and filled again by each.
pub(crate) struct Events {
    buffer: Vec<libc::epoll_event>,
    len: usize,
}

impl Events {
    /// For at most `capacity` events in one wait, at least one. What does not fit comes with the next.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, 1 << 16);
        Self { buffer: vec![libc::epoll_event { events: 0, u64: 0 }; capacity], len: 0 }
    }

    /// What the last wait found, in the kernel's order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.buffer.iter().take(self.len).map(|event| {
            let bits = event.events;
            let has = |mask: i32| bits & mask as u32 != 0;
            Event {
                token: event.u64,
                readable: has(libc::EPOLLIN),
                writable: has(libc::EPOLLOUT),
                hangup: has(libc::EPOLLHUP | libc::EPOLLERR),
            }
        })
    }
}

/// An epoll set. It does not own what it watches; a descriptor leaves it when its last copy is closed.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set, closed on exec. Fails with the kernel's error: mostly `EMFILE` or `ENFILE`.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes one integer and touches no memory of ours.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches `fd` and reports it as `token`. Fails with `EEXIST` if it is watched already, `EPERM` if
    /// it is of a kind that cannot be watched (a plain file), `ENOSPC` or `ENOMEM` at a limit.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    /// Changes token and interest of a watched `fd`. Fails with `ENOENT` if it is not watched.
    pub(crate) fn modify(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    /// Stops watching `fd`. Events of it that a wait has already delivered stay in their [`Events`].
    /// Fails with `ENOENT` if it is not watched.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let none = Interest { readable: false, writable: false };
        self.control(libc::EPOLL_CTL_DEL, fd, 0, none)
    }

    fn control(
        &self,
        operation: i32,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.bits(), u64: token };
        // SAFETY: both descriptors are open, one owned and one borrowed; the kernel reads `event`
        // during the call only.
        let result = unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until something watched is ready, at most for `timeout` (`None`: without end, zero: only
    /// looks), fills `events` and says how many there are. A signal counts as no event. A kernel
    /// without `epoll_pwait2` rounds the timeout up to whole milliseconds.
    pub(crate) fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        events.len = 0;
        // The old call says "only look" and "without end" as well as the new one.
        let fine = timeout.is_some_and(|timeout| !timeout.is_zero());
        let found = if fine && !COARSE.load(Ordering::Relaxed) {
            self.wait_fine(events, timeout).or_else(|error| match error.raw_os_error() {
                // Old container filters answer unknown calls with EPERM, which this one never gives.
                Some(libc::ENOSYS | libc::EPERM) => {
                    COARSE.store(true, Ordering::Relaxed);
                    self.wait_coarse(events, timeout)
                }
                _ => Err(error),
            })
        } else {
            self.wait_coarse(events, timeout)
        };
        match found {
            Ok(count) => {
                events.len = count;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn wait_fine(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let limit = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the descriptor is open; the buffer is writable for as many events as its length says;
        // `limit` is null or points to `timeout`, which lives until the end of this function; a null
        // signal mask leaves the mask alone and its size is then ignored.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.0.as_raw_fd(),
                events.buffer.as_mut_ptr(),
                events.buffer.len() as i32,
                limit,
                ptr::null::<libc::sigset_t>(),
                0_usize,
            )
        };
        usize::try_from(count).map_err(|_negative| io::Error::last_os_error())
    }

    fn wait_coarse(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout.map_or(-1, |timeout| {
            i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        let capacity = events.buffer.len() as i32;
        // SAFETY: the descriptor is open; the buffer is writable for as many events as its length says.
        let count = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.buffer.as_mut_ptr(), capacity, timeout)
        };
        usize::try_from(count).map_err(|_negative| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::sys::eventfd::EventFd;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    #[test]
    fn interest_can_be_changed_and_withdrawn() {
        let (ours, _theirs) = pair();
        let epoll = Epoll::new().unwrap();
        let mut events = Events::with_capacity(4);
        let now = Some(Duration::ZERO);
        epoll.add(ours.as_fd(), 1, Interest::BOTH).unwrap();
        assert_eq!(epoll.wait(&mut events, now).unwrap(), 1);
        let writable = Event { token: 1, readable: false, writable: true, hangup: false };
        assert_eq!(events.iter().collect::<Vec<_>>(), [writable]);
        epoll.modify(ours.as_fd(), 2, Interest::READ).unwrap();
        assert_eq!(epoll.wait(&mut events, now).unwrap(), 0);
        assert_eq!(events.iter().count(), 0, "an empty wait leaves no old event");
        epoll.remove(ours.as_fd()).unwrap();
        assert_eq!(epoll.remove(ours.as_fd()).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn the_end_of_the_peer_is_a_hangup_and_readable() {
        let (ours, theirs) = pair();
        let epoll = Epoll::new().unwrap();
        let mut events = Events::with_capacity(4);
        epoll.add(ours.as_fd(), 5, Interest::READ).unwrap();
        drop(theirs);
        assert_eq!(epoll.wait(&mut events, None).unwrap(), 1);
        let end = Event { token: 5, readable: true, writable: false, hangup: true };
        assert_eq!(events.iter().collect::<Vec<_>>(), [end]);
    }

    #[test]
    fn what_does_not_fit_comes_with_the_next_wait() {
        let epoll = Epoll::new().unwrap();
        let ready: Vec<EventFd> = (0..5).map(|_| EventFd::new().unwrap()).collect();
        for (token, event) in ready.iter().enumerate() {
            epoll.add(event.as_fd(), token as u64, Interest::READ).unwrap();
            event.signal();
        }
        let mut events = Events::with_capacity(2);
        let mut seen = [false; 5];
        for _ in 0..5 {
            assert_eq!(epoll.wait(&mut events, None).unwrap(), 2);
            for event in events.iter() {
                seen[event.token as usize] = true;
                ready[event.token as usize].drain();
                ready[event.token as usize].signal();
            }
        }
        assert_eq!(seen, [true; 5], "none is starved");
    }

    #[test]
    fn both_calls_end_at_the_timeout() {
        let epoll = Epoll::new().unwrap();
        let mut events = Events::with_capacity(1);
        let short = Some(Duration::from_micros(50));
        assert_eq!(epoll.wait(&mut events, short).unwrap(), 0);
        assert_eq!(epoll.wait_coarse(&mut events, short).unwrap(), 0);
        assert_eq!(epoll.wait_coarse(&mut events, Some(Duration::ZERO)).unwrap(), 0);
    }

    #[test]
    fn an_endless_timeout_is_no_error() {
        let event = EventFd::new().unwrap();
        event.signal();
        let epoll = Epoll::new().unwrap();
        let mut events = Events::with_capacity(1);
        epoll.add(event.as_fd(), 0, Interest::READ).unwrap();
        assert_eq!(epoll.wait(&mut events, Some(Duration::MAX)).unwrap(), 1);
        assert_eq!(epoll.wait_coarse(&mut events, Some(Duration::MAX)).unwrap(), 1);
    }
}
