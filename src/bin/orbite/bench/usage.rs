//! What a process uses: CPU time, memory, threads. And the real clock of the runner.

use std::fs;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::runner::Clock;

/// What this process used so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// User and system time of all threads, finished ones too.
    pub cpu_ns: u64,
    /// Resident memory; 0 if the kernel does not say.
    pub rss_kib: u64,
    /// Threads now; 0 if the kernel does not say.
    pub threads: u64,
}

impl Usage {
    pub(crate) fn of_this_process() -> Self {
        // The clock first: the files below cost time of their own.
        let cpu_ns = process_cpu_ns();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self { cpu_ns, rss_kib: number(&status, "VmRSS:"), threads: number(&status, "Threads:") }
    }

    pub(crate) fn rss_mb(&self) -> f64 {
        super::stats::round(self.rss_kib as f64 / 1024.0, 1)
    }
}

/// CPU time of this process, exact to the nanosecond, running threads included
/// (`CLOCK_PROCESS_CPUTIME_ID`, `clock_gettime(2)`).
fn process_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn number(status: &str, name: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// The clocks of the machine.
pub(crate) struct RealClock {
    start: Instant,
}

impl RealClock {
    pub(crate) fn start() -> Self {
        Self { start: now() }
    }
}

impl Clock for RealClock {
    fn now(&mut self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn cpu(&mut self) -> u64 {
        process_cpu_ns()
    }
}

/// The monotonic clock.
#[expect(clippy::disallowed_methods, reason = "the harness is an entry point: it measures time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let before = Usage::of_this_process();
        assert!(before.cpu_ns > 0 && before.rss_kib > 0 && before.threads > 0, "{before:?}");
        let mut work = 0u64;
        while Usage::of_this_process().cpu_ns == before.cpu_ns {
            work += 1;
        }
        assert!(work < 1_000_000);
    }

    #[test]
    fn numbers_of_a_status_file() {
        let status = "Threads:\t7\nVmRSS:\t    2048 kB\n";
        assert_eq!((number(status, "Threads:"), number(status, "VmRSS:")), (7, 2048));
        assert_eq!(number(status, "VmHWM:"), 0);
    }
}
