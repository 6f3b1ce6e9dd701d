//! Memory from the kernel: anonymous mappings, where they lie, and raw copies in and out of memory
//! that this process does not have to itself.
#![expect(unsafe_code, reason = "mmap, memory policy and raw copies")]

use std::io;
use std::ptr::{self, NonNull};

use crate::error::OsError;

/// Size of the huge pages asked for: the one size that x86-64 and aarch64 with 4 KiB pages share.
const HUGE_PAGE: u64 = 2 << 20;
/// Longest mapping, bytes: what fits the address space of either architecture.
const LEN_MAX: u64 = 1 << 47;
/// Nodes that a policy can name: more than any kernel is built for (`MAX_NUMNODES` is 1024).
const NODES_MAX: u32 = 4096;

/// Whether a mapping uses 2 MiB pages from the pool of `vm.nr_hugepages`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HugePages {
    /// Ordinary pages; the kernel may still join them (`transparent_hugepage/enabled` = `always`).
    #[default]
    None,
    /// From the pool if it has enough, else ordinary pages that the kernel is asked to join.
    Try,
    /// From the pool, or the mapping fails.
    Require,
}

/// Where and how a mapping is made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MappingOptions {
    /// NUMA node that every page comes from; `None` leaves it to the thread that touches it first.
    pub node: Option<u32>,
    /// Page size.
    pub huge_pages: HugePages,
}

/// Anonymous private memory of this process: page aligned, zeroed, unmapped on drop. The owner sees to
/// it that nobody uses the memory any more by then.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: u64,
    /// `len`, rounded up to whole pages.
    mapped: u64,
}

// SAFETY: the mapping belongs to the process and not to a thread, and this type never reads or writes
// through its pointer.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; a shared reference gives out numbers only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, `1..=2^47`.
    ///
    /// Fails with `EINVAL` for another length or for a node that does not exist, `ENOMEM` without
    /// address space, commit charge or huge pages, `EPERM` or `ENOSYS` where `mbind` is refused
    /// (container filter, kernel without NUMA). Nothing stays mapped then. Bound to a node, a page that
    /// the node cannot give kills the process as any lack of memory does.
    pub(crate) fn new(len: u64, options: MappingOptions) -> Result<Self, OsError> {
        if len == 0 || len > LEN_MAX {
            return Err(OsError::from_errno("mmap", libc::EINVAL));
        }
        if options.huge_pages != HugePages::None {
            match Self::from_pool(len, options.node) {
                Err(_refused) if options.huge_pages == HugePages::Try => {}
                answer => return answer,
            }
        }
        let mapping = Self::map(len, page_size(), 0)?;
        mapping.bind(options.node)?;
        if options.huge_pages == HugePages::Try {
            // Advice: a kernel without transparent huge pages refuses it, and ordinary pages remain.
            let _advised = mapping.advise(libc::MADV_HUGEPAGE);
        }
        Ok(mapping)
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// Number of bytes asked for. What follows up to the end of the last page belongs to nobody.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Huge pages, all of them made at once: a pool that another process, a cpuset or the node's share
    /// of it has emptied would otherwise end this process by `SIGBUS` at the first touch.
    fn from_pool(len: u64, node: Option<u32>) -> Result<Self, OsError> {
        let mapping = Self::map(len, HUGE_PAGE, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB)?;
        mapping.bind(node)?;
        match mapping.advise(libc::MADV_POPULATE_WRITE) {
            // Kernels before 5.14 do not know the advice; without a node the pool's reservation, which
            // mmap has made, is promise enough.
            Err(error) if error.errno() == libc::EINVAL && node.is_none() => Ok(mapping),
            answer => answer.map(|()| mapping),
        }
    }

    fn map(len: u64, page: u64, flags: i32) -> Result<Self, OsError> {
        let mapped = len.next_multiple_of(page);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice; it replaces nothing.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(last("mmap"));
        }
        let start = NonNull::new(start.cast()).ok_or(OsError::from_errno("mmap", libc::ENOMEM))?;
        Ok(Self { start, len, mapped })
    }

    fn bind(&self, node: Option<u32>) -> Result<(), OsError> {
        let Some(node) = node else { return Ok(()) };
        let mask = node_mask(node).ok_or(OsError::from_errno("mbind", libc::EINVAL))?;
        // SAFETY: the range is this mapping, which is live and has no page yet; `mask` is readable for
        // the number of bits given, of which the kernel uses one less.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.mapped as usize,
                libc::MPOL_BIND,
                mask.as_ptr(),
                mask.len() * 64 + 1,
                0_u32,
            )
        };
        if result == 0 { Ok(()) } else { Err(last("mbind")) }
    }

    fn advise(&self, advice: i32) -> Result<(), OsError> {
        // SAFETY: the range is this mapping, which is live; neither advice given here changes bytes.
        let result =
            unsafe { libc::madvise(self.start.as_ptr().cast(), self.mapped as usize, advice) };
        if result == 0 { Ok(()) } else { Err(last("madvise")) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns exactly this range, and whoever owns the value has seen to it that
        // nothing uses the memory any more.
        let _unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped as usize) };
    }
}

/// Has the calling thread take new pages from `node` as long as it has any, then from elsewhere.
/// Fails with `EINVAL` for a node that does not exist, `EPERM` or `ENOSYS` where the call is refused.
pub(crate) fn prefer_node(node: u32) -> Result<(), OsError> {
    const CALL: &str = "set_mempolicy";
    let mask = node_mask(node).ok_or(OsError::from_errno(CALL, libc::EINVAL))?;
    // SAFETY: `mask` is readable for the number of bits given, of which the kernel uses one less; the
    // policy of a thread changes where later pages lie and no byte.
    let result = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            mask.len() * 64 + 1,
        )
    };
    if result == 0 { Ok(()) } else { Err(last(CALL)) }
}

/// Size of an ordinary page, bytes.
pub(crate) fn page_size() -> u64 {
    // SAFETY: takes one integer and touches no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

/// Copies `into.len()` bytes that start at `address`.
///
/// A peer process, a device or another thread may write the memory at the same time: then each byte
/// copied is one that stood there before or after, and nothing may be concluded from the bytes before
/// the transfer that writes them has ended. The copy is one call into the C library and makes no
/// assumption about them. Source and target may overlap.
///
/// # Safety
/// `address..address + into.len()` is mapped and readable until the call returns.
pub(crate) unsafe fn copy_out(address: u64, into: &mut [u8]) {
    let source: *const u8 = ptr::with_exposed_provenance(address as usize);
    // SAFETY: the caller vouches for the source; the target is a live, exclusive slice of that length;
    // bytes need no alignment.
    let _the_target = unsafe { libc::memmove(into.as_mut_ptr().cast(), source.cast(), into.len()) };
}

/// Copies `from` to the memory that starts at `address`. As for [`copy_out`], others may use that
/// memory meanwhile, and see each byte as it was or as it becomes.
///
/// # Safety
/// `address..address + from.len()` is mapped and writable until the call returns, and no Rust reference
/// to it exists.
pub(crate) unsafe fn copy_in(address: u64, from: &[u8]) {
    let target: *mut u8 = ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller vouches for the target; the source is a live slice of that length; bytes need
    // no alignment.
    let _the_target = unsafe { libc::memmove(target.cast(), from.as_ptr().cast(), from.len()) };
}

fn node_mask(node: u32) -> Option<Vec<u64>> {
    if node >= NODES_MAX {
        return None;
    }
    let mut mask = vec![0_u64; node as usize / 64 + 1];
    *mask.last_mut()? = 1 << (node % 64);
    Some(mask)
}

fn last(call: &'static str) -> OsError {
    OsError::new(call, &io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> MappingOptions {
        MappingOptions::default()
    }

    #[test]
    fn memory_is_aligned_zeroed_and_holds_what_is_copied_in() {
        let mapping = Mapping::new(10_000, plain()).unwrap();
        assert_eq!(mapping.len(), 10_000);
        assert_eq!(mapping.address() % page_size(), 0);
        let mut bytes = vec![1_u8; 10_000];
        // SAFETY: the whole mapping, which is live.
        unsafe { copy_out(mapping.address(), &mut bytes) };
        assert!(bytes.iter().all(|&byte| byte == 0));
        // SAFETY: the last five bytes of it; nobody holds a reference.
        unsafe { copy_in(mapping.address() + 9_995, b"hello") };
        // SAFETY: as above.
        unsafe { copy_out(mapping.address(), &mut bytes) };
        assert_eq!(bytes[9_990..], *b"\0\0\0\0\0hello");
    }

    #[test]
    fn lengths_that_no_kernel_gives_are_errors() {
        for len in [0, LEN_MAX + 1, u64::MAX] {
            assert_eq!(Mapping::new(len, plain()).unwrap_err().errno(), libc::EINVAL);
        }
        // Some address spaces have room for the longest one.
        if let Err(error) = Mapping::new(LEN_MAX, plain()) {
            assert_eq!((error.call(), error.errno()), ("mmap", libc::ENOMEM));
        }
    }

    #[test]
    fn a_node_is_bound_or_the_refusal_is_told() {
        let on = |node| Mapping::new(1 << 20, MappingOptions { node: Some(node), ..plain() });
        for node in [NODES_MAX - 1, NODES_MAX, u32::MAX] {
            assert_eq!(on(node).unwrap_err().call(), "mbind");
        }
        match on(0) {
            Ok(mapping) => assert_eq!(mapping.len(), 1 << 20),
            Err(error) => assert!(matches!(error.errno(), libc::EPERM | libc::ENOSYS), "{error}"),
        }
    }

    #[test]
    fn a_preferred_node_must_exist() {
        let ask = || {
            assert!(prefer_node(NODES_MAX).is_err());
            assert!(prefer_node(NODES_MAX - 1).is_err());
            prefer_node(0)
        };
        let answer = std::thread::scope(|scope| scope.spawn(ask).join().unwrap());
        if let Err(error) = answer {
            assert!(matches!(error.errno(), libc::EPERM | libc::ENOSYS), "{error}");
        }
    }

    #[test]
    fn huge_pages_are_tried_without_failing() {
        let huge_pages = HugePages::Try;
        let mapping = Mapping::new(5 << 20, MappingOptions { huge_pages, ..plain() }).unwrap();
        // SAFETY: the last four bytes of the mapping, which is live; nobody holds a reference.
        unsafe { copy_in(mapping.address() + (5 << 20) - 4, b"last") };
        let huge_pages = HugePages::Require;
        match Mapping::new(5 << 20, MappingOptions { huge_pages, ..plain() }) {
            Ok(mapping) => assert_eq!(mapping.address() % HUGE_PAGE, 0),
            Err(error) => assert_eq!(error.call(), "mmap", "{error}"),
        }
    }
}
