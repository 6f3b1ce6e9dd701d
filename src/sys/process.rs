//! Facts and limits of this process, and giving the CPU away.
#![expect(unsafe_code, reason = "resource limits and CPU clocks have no function in std")]

use std::mem::MaybeUninit;
use std::time::Duration;

/// A resource limit. `None`: without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// What holds now. The process may raise it up to `hard`.
    pub soft: Option<u64>,
    /// Only a privileged process may go above.
    pub hard: Option<u64>,
}

/// Descriptors that the process may have open (`RLIMIT_NOFILE`): each number is below this.
pub(crate) fn open_files() -> Limit {
    // SAFETY: `read_limit` passes a pointer to a writable structure of this type.
    read_limit(|limit| unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, limit) })
}

fn read_limit(read: impl FnOnce(*mut libc::rlimit) -> libc::c_int) -> Limit {
    let mut raw = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // It fails for an unknown resource only, and then leaves `raw` alone.
    let _known = read(&raw mut raw);
    let finite = |value| (value != libc::RLIM_INFINITY).then_some(value);
    Limit { soft: finite(raw.rlim_cur), hard: finite(raw.rlim_max) }
}

/// Number of this process. Differs in a forked child, which is how it is told from its parent.
pub(crate) fn pid() -> u32 {
    std::process::id()
}

/// Lets another runnable thread of this CPU go first (`sched_yield(2)`); returns at once if there is none.
pub(crate) fn yield_now() {
    std::thread::yield_now();
}

/// Times that the calling thread lost its CPU to another one while it could have gone on, by a yield or
/// by the end of its slice (`ru_nivcsw`, getrusage(2)). `None`: the kernel does not tell.
pub(crate) fn involuntary_switches() -> Option<u64> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a writable structure of the type that the call fills.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: all its fields are integers, and zero bytes are a value of each.
    let usage = unsafe { usage.assume_init() };
    if result == 0 { u64::try_from(usage.ru_nivcsw).ok() } else { None }
}

/// CPU time of the calling thread since its start.
#[cfg(test)]
pub(crate) fn thread_cpu_time() -> Duration {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// CPU time of all threads of process `pid`, ended ones too, but not of its children. `None`: there is
/// no such process. Needs no right over it.
pub(crate) fn process_cpu_time(pid: u32) -> Option<Duration> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is writable; the call only computes an id from the number.
    let result = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if result == 0 { read_clock(clock) } else { None }
}

fn read_clock(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a writable structure of the type that the call fills.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if result != 0 {
        return None;
    }
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).ok()?);
    Some(seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        let limit = open_files();
        assert!(limit.soft.unwrap_or(u64::MAX) <= limit.hard.unwrap_or(u64::MAX), "{limit:?}");
        assert!(open_files().soft.is_none_or(|files| files > 3));
    }

    #[test]
    fn switches_are_counted() {
        let before = involuntary_switches().unwrap();
        yield_now();
        assert!(involuntary_switches().unwrap() >= before);
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let (thread, process) = (thread_cpu_time(), process_cpu_time(pid()).unwrap());
        while thread_cpu_time() == thread {
            yield_now();
        }
        assert!(process_cpu_time(pid()).unwrap() > process);
        assert_eq!(process_cpu_time(u32::MAX), None);
    }
}
