//! Host memory and its owners. The bytes are never lent out as a Rust slice, because peers and the
//! kernel may change them at any time; they are reached through a pointer or by copies.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, OsError, Result};
use crate::sys::memory::{self, Mapping, MappingOptions};
use crate::types::{MAX_LENGTH, MemoryLocation, RangeLocation, SegmentRange};

use super::sys::VecBytes;

/// Wish for huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Ordinary pages. The default.
    #[default]
    None,
    /// Huge pages where the kernel has some free, else ordinary ones.
    Try,
    /// Huge pages, or the allocation fails with [`Error::Unavailable`].
    Require,
}

/// How [`HostMemory::allocate`] maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostAllocation {
    /// NUMA node that the pages are bound to. `None` leaves the choice to the kernel.
    pub numa_node: Option<u32>,
    /// Wish for huge pages.
    pub huge_pages: HugePages,
}

impl HostAllocation {
    /// The same, bound to a NUMA node.
    #[must_use]
    pub const fn with_numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }

    /// The same with another wish for huge pages.
    #[must_use]
    pub const fn with_huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }
}

/// What keeps the bytes alive. Only ever dropped.
#[expect(dead_code, reason = "held for its drop alone")]
pub(super) enum Owner {
    Mapping(Mapping),
    Vec(VecBytes),
    External(Arc<dyn Send + Sync>),
}

/// Host memory that the engine can register: `1..=2^47` bytes that stay where they are until the last
/// handle, registration and admitted operation let go of them.
///
/// The bytes may be changed at any time by whoever may use a registration of them, so there is no way
/// to borrow them as a slice. [`read_at`](Self::read_at) and [`write_at`](Self::write_at) copy;
/// [`as_ptr`](Self::as_ptr) is for callers who order their accesses themselves.
pub struct HostMemory {
    address: u64,
    len: u64,
    location: MemoryLocation,
    owner: Owner,
}

impl HostMemory {
    /// Anonymous, page-aligned, zeroed memory of `len` bytes, `1..=2^47`.
    ///
    /// Fails with `InvalidRequest` for another length, with `Unavailable` if the NUMA node or the huge
    /// pages cannot be had, with `ResourceExhausted` if the process is at the kernel's limit of
    /// mappings (`vm.max_map_count`), and with `Io` for any other refusal of the kernel.
    pub fn allocate(len: u64, options: &HostAllocation) -> Result<Arc<Self>> {
        check_length(len)?;
        let mapping = Mapping::new(len, mapping_options(options))
            .map_err(|error| refused(len, options, error))?;
        let location = MemoryLocation::Cpu(options.numa_node);
        Ok(Arc::new(Self {
            address: mapping.address(),
            len: mapping.len(),
            location,
            owner: Owner::Mapping(mapping),
        }))
    }

    /// Takes over a vector without copying: its first byte stays at its address, its spare capacity is
    /// kept and not used. Fails with `InvalidRequest` for an empty vector, which is dropped.
    pub fn from_vec(bytes: Vec<u8>) -> Result<Arc<Self>> {
        check_length(bytes.len() as u64)?;
        let bytes = VecBytes::new(bytes);
        Ok(Arc::new(Self {
            address: bytes.address(),
            len: bytes.len(),
            location: MemoryLocation::Cpu(None),
            owner: Owner::Vec(bytes),
        }))
    }

    /// Takes over a boxed slice without copying. Fails with `InvalidRequest` for an empty one.
    pub fn from_boxed(bytes: Box<[u8]>) -> Result<Arc<Self>> {
        Self::from_vec(Vec::from(bytes))
    }

    /// The checks of [`from_external`](Self::from_external), which is declared where unsafe code may
    /// stand and is the one caller, since what it promises of the range holds here, too.
    pub(super) fn external(
        address: u64,
        len: u64,
        owner: Arc<dyn Send + Sync>,
    ) -> Result<Arc<Self>> {
        check_length(len)?;
        if address == 0 {
            return Err(Error::InvalidRequest("external memory at the null address".into()));
        }
        if address.checked_add(len).is_none() {
            return Err(Error::InvalidRequest(format!(
                "external memory of {len} bytes at {address:#x} reaches past the end of the address \
                 space"
            )));
        }
        let location = MemoryLocation::Cpu(None);
        Ok(Arc::new(Self { address, len, location, owner: Owner::External(owner) }))
    }

    /// Number of bytes, `1..=2^47`.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: memory has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// First byte. Good for reads and writes of [`len`](Self::len) bytes while this value lives; the
    /// caller orders its accesses against registered use of the same bytes.
    pub fn as_ptr(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.address as usize)
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Where `length` bytes from `offset` lie. Memory that was bound to a NUMA node at its allocation
    /// names it; all other memory answers that its node is unknown. Fails with `InvalidRequest` if the
    /// range is empty or does not lie inside. Takes no lock and asks no driver.
    pub fn location(&self, offset: u64, length: u64) -> Result<RangeLocation> {
        let range = SegmentRange::new(offset, length, self.len)
            .map_err(|error| Error::InvalidRequest(format!("location: {error}")))?;
        Ok(RangeLocation::new(self.address + range.start(), range.len(), self.location))
    }

    pub(super) const fn memory_location(&self) -> MemoryLocation {
        self.location
    }

    /// The address of `length` bytes at `offset`, or why they cannot be `action`ed: they must lie
    /// inside; none at all is fine.
    pub(super) fn checked(&self, action: &str, offset: u64, length: usize) -> Result<u64> {
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.len => Ok(self.address + offset),
            _ => Err(Error::InvalidRequest(format!(
                "cannot {action} {length} bytes at offset {offset}: the limit is the memory's length, \
                 {} bytes",
                self.len
            ))),
        }
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match &self.owner {
            Owner::Mapping(_) => "mapping",
            Owner::Vec(_) => "vector",
            Owner::External(_) => "external",
        };
        f.debug_struct("HostMemory")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .field("location", &format_args!("{}", self.location))
            .field("owner", &owner)
            .finish()
    }
}

fn check_length(len: u64) -> Result<()> {
    if len == 0 || len > MAX_LENGTH {
        return Err(Error::InvalidRequest(format!(
            "memory of {len} bytes: the length must be 1..={MAX_LENGTH} (2^47)"
        )));
    }
    Ok(())
}

fn mapping_options(options: &HostAllocation) -> MappingOptions {
    MappingOptions {
        node: options.numa_node,
        huge_pages: match options.huge_pages {
            HugePages::None => memory::HugePages::None,
            HugePages::Try => memory::HugePages::Try,
            HugePages::Require => memory::HugePages::Require,
        },
    }
}

/// Names the limit behind the kernel's refusal, as far as the kernel lets us know it.
#[cold]
fn refused(len: u64, options: &HostAllocation, source: OsError) -> Error {
    if let Some(node) = options.numa_node.filter(|_| source.call() == "mbind") {
        return Error::Unavailable(format!(
            "{len} bytes on NUMA node {node}: {source}; is the node online and in this process's \
             cpuset?"
        ));
    }
    let near_limit = (source.errno() == libc::ENOMEM).then(mappings_near_limit).flatten();
    if let Some((limit, in_use)) = near_limit {
        let resource = "vm.max_map_count (mappings of this process)";
        return Error::ResourceExhausted { resource, limit, in_use, requested: 1 };
    }
    if options.huge_pages == HugePages::Require {
        return Error::Unavailable(format!(
            "{len} bytes in huge pages: {source}; reserve more with vm.nr_hugepages, or ask with \
             HugePages::Try"
        ));
    }
    Error::Io { op: format!("map {len} bytes of host memory"), source }
}

/// The kernel answers `ENOMEM` for too many mappings as it does for too little memory (mmap(2)). The
/// limit and the count, where the count is within 1 % of the limit.
fn mappings_near_limit() -> Option<(u64, u64)> {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?;
    let limit: u64 = limit.trim().parse().ok()?;
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let in_use = maps.split_inclusive(|&byte| byte == b'\n').count() as u64;
    (in_use >= limit - limit / 100).then_some((limit, in_use))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T: fmt::Debug>(result: Result<T>) -> &'static str {
        result.unwrap_err().code()
    }

    #[test]
    fn core_024_no_memory_of_an_impossible_length() {
        let options = HostAllocation::default();
        for len in [0, MAX_LENGTH + 1, u64::MAX] {
            assert_eq!(code(HostMemory::allocate(len, &options)), "invalid_request", "{len}");
            let owner = Arc::new(());
            assert_eq!(code(HostMemory::external(4096, len, owner)), "invalid_request", "{len}");
        }
        assert_eq!(code(HostMemory::external(0, 1, Arc::new(()))), "invalid_request");
        assert_eq!(code(HostMemory::external(u64::MAX, 2, Arc::new(()))), "invalid_request");
        assert_eq!(code(HostMemory::from_vec(Vec::with_capacity(16))), "invalid_request");
        assert_eq!(code(HostMemory::from_boxed(Box::default())), "invalid_request");
        let error = HostMemory::allocate(0, &options).unwrap_err().to_string();
        assert!(error.contains("140737488355328"), "{error}");
    }

    #[test]
    fn allocated_memory_is_aligned_zeroed_and_keeps_what_is_written() {
        let memory = HostMemory::allocate(10_000, &HostAllocation::default()).unwrap();
        assert_eq!((memory.len(), memory.address() % 4096), (10_000, 0));
        assert_eq!(memory.as_ptr().addr() as u64, memory.address());
        let mut all = vec![1; 10_000];
        memory.read_at(0, &mut all).unwrap();
        assert!(all.iter().all(|&byte| byte == 0));
        memory.write_at(9_993, b"the end").unwrap();
        let mut end = [0; 7];
        memory.read_at(9_993, &mut end).unwrap();
        assert_eq!(&end, b"the end");
    }

    #[test]
    fn copies_stay_inside_and_touch_nothing_else() {
        let memory = HostMemory::from_vec(vec![7; 64]).unwrap();
        for (offset, len) in [(60, 5), (65, 0), (u64::MAX, 2)] {
            let error = memory.write_at(offset, &vec![1; len]).unwrap_err();
            assert_eq!(error.code(), "invalid_request");
            let text = error.to_string();
            assert!(text.contains(&offset.to_string()) && text.contains("64 bytes"), "{text}");
            assert_eq!(code(memory.read_at(offset, &mut vec![0; len])), "invalid_request");
        }
        memory.write_at(64, &[]).unwrap();
        for offset in 0..16 {
            for len in 0..24 {
                let memory = HostMemory::from_vec(vec![7; 64]).unwrap();
                memory.write_at(offset as u64, &vec![9; len]).unwrap();
                let mut all = [0; 64];
                memory.read_at(0, &mut all).unwrap();
                let expected = |at: usize| if (offset..offset + len).contains(&at) { 9 } else { 7 };
                assert!(all.iter().enumerate().all(|(at, &byte)| byte == expected(at)));
                let mut part = vec![0; len];
                memory.read_at(offset as u64, &mut part).unwrap();
                assert!(part.iter().all(|&byte| byte == 9));
            }
        }
    }

    #[test]
    fn a_vector_stays_where_it_was() {
        let bytes: Vec<u8> = (0..=255).collect();
        let address = bytes.as_ptr().addr() as u64;
        let memory = HostMemory::from_vec(bytes).unwrap();
        assert_eq!(memory.address(), address);
        let mut copy = [0; 256];
        memory.read_at(0, &mut copy).unwrap();
        assert!(copy.iter().zip(0..=255).all(|(a, b)| *a == b));
        assert!(!memory.is_empty());
    }

    #[test]
    fn core_030_a_location_is_clipped_to_what_was_asked() {
        let memory = HostMemory::from_boxed(vec![0; 4096].into()).unwrap();
        let part = memory.location(1000, 24).unwrap();
        assert_eq!((part.address, part.length), (memory.address() + 1000, 24));
        assert_eq!(part.location.to_string(), "*");
        assert_eq!(code(memory.location(4000, 97)), "invalid_request");
        assert_eq!(code(memory.location(0, 0)), "invalid_request");
    }

    #[test]
    fn memory_on_a_numa_node_says_so_or_why_not() {
        match HostMemory::allocate(4096, &HostAllocation::default().with_numa_node(0)) {
            Ok(memory) => {
                assert_eq!(memory.location(0, 1).unwrap().location, MemoryLocation::Cpu(Some(0)));
            }
            // A container may refuse the call or the node.
            Err(error) => assert_eq!(error.code(), "unavailable", "{error}"),
        }
        let nowhere = HostAllocation::default().with_numa_node(1_000_000);
        let error = HostMemory::allocate(4096, &nowhere).unwrap_err();
        assert_eq!(error.code(), "unavailable");
        assert!(error.to_string().contains("NUMA node 1000000"), "{error}");
    }

    #[test]
    fn huge_pages_are_a_wish_or_a_condition() {
        let wish = HostAllocation::default().with_huge_pages(HugePages::Try);
        let memory = HostMemory::allocate(3 << 20, &wish).unwrap();
        memory.write_at((3 << 20) - 1, &[1]).unwrap();
        let condition = HostAllocation::default().with_huge_pages(HugePages::Require);
        if let Err(error) = HostMemory::allocate(1 << 40, &condition) {
            assert_eq!(error.code(), "unavailable");
            assert!(error.to_string().contains("vm.nr_hugepages"), "{error}");
        }
    }
}
