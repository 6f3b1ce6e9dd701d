//! The CPUs that a thread may run on: `sched_getaffinity(2)` and `sched_setaffinity(2)`, with masks as
//! long as the kernel's, not the 1024 CPUs of the C library's fixed type.
#![expect(unsafe_code, reason = "the affinity calls take raw masks of any length")]

use std::io;

/// Longest mask tried, words of 64 CPUs. Kernels are built for at most 8192 CPUs today.
const WORDS_MAX: usize = 1 << 14;

/// CPUs that the calling thread may run on, ascending. The kernel has already taken away what the
/// cpuset forbids and what is offline. Never empty: where the kernel does not say, CPUs `0..` as many
/// as are online.
pub(crate) fn allowed_cpus() -> Vec<u32> {
    let mut words = 16;
    while words <= WORDS_MAX {
        let mut mask = vec![0_u64; words];
        match read_mask(&mut mask) {
            Ok(()) => {
                let cpus = members(&mask);
                if cpus.is_empty() {
                    break;
                }
                return cpus;
            }
            // The kernel's own mask is longer than ours.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => words *= 2,
            Err(_refused) => break,
        }
    }
    (0..online()).collect()
}

/// Binds the calling thread to `cpu`; threads that it starts later inherit that. Fails with `EINVAL`
/// if the CPU does not exist, is offline or is outside the cpuset, with `EPERM` if a filter forbids the
/// call. Afterwards the thread already runs there.
pub(crate) fn pin_current_thread(cpu: u32) -> io::Result<()> {
    let word = cpu as usize / 64;
    if word >= WORDS_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask = vec![0_u64; word + 1];
    mask[word] = 1 << (cpu % 64);
    // SAFETY: thread 0 is the caller; `mask` is readable for the number of bytes given. The C library
    // hands both to the kernel as they are, which takes shorter and longer masks than its own.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&*mask), mask.as_ptr().cast()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn read_mask(mask: &mut [u64]) -> io::Result<()> {
    // SAFETY: thread 0 is the caller; `mask` is writable for the number of bytes given.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(mask), mask.as_mut_ptr().cast()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn online() -> u32 {
    // SAFETY: takes one integer and touches no memory of ours.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(online).unwrap_or(1).max(1)
}

fn members(mask: &[u64]) -> Vec<u32> {
    let bits = (0_u32..).zip(mask).flat_map(|(index, word)| {
        (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * 64 + bit)
    });
    bits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_read_past_1024_cpus() {
        let mut mask = vec![0_u64; 20];
        mask[0] = 0b101;
        mask[19] = 1 << 63;
        assert_eq!(members(&mask), [0, 2, 1279]);
    }

    #[test]
    fn a_pinned_thread_is_allowed_one_cpu() {
        let allowed = allowed_cpus();
        assert!(!allowed.is_empty());
        for cpu in allowed {
            let seen = std::thread::scope(|scope| {
                scope.spawn(|| pin_current_thread(cpu).map(|()| allowed_cpus())).join().unwrap()
            });
            assert_eq!(seen.unwrap(), [cpu]);
        }
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error() {
        for cpu in [100_000, u32::MAX] {
            let error = pin_current_thread(cpu).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
    }
}
