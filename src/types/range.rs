//! Lengths and ranges whose arithmetic was checked once.

use core::fmt;

/// Largest length of one allocation, registration or request: 2^47 bytes, the user half of an x86-64
/// address space with four-level page tables.
pub(crate) const MAX_LENGTH: u64 = 1 << 47;

/// A length in bytes, `1..=2^47`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ByteLen(u64);

impl ByteLen {
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes == 0 || bytes > MAX_LENGTH { None } else { Some(Self(bytes)) }
    }

    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Bytes `[start, start + len)` of one segment. The only constructor checks, so no value reaches
/// outside its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRange {
    start: u64,
    len: ByteLen,
}

/// A range that reaches outside its segment, or wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeError {
    pub start: u64,
    pub len: u64,
    pub segment: u64,
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, len, segment } = self;
        write!(f, "{len} bytes at offset {start} do not lie inside a segment of {segment} bytes")
    }
}

impl SegmentRange {
    pub const fn new(start: u64, len: u64, segment: u64) -> Result<Self, RangeError> {
        let error = RangeError { start, len, segment };
        let Some(length) = ByteLen::new(len) else { return Err(error) };
        match start.checked_add(len) {
            Some(end) if end <= segment => Ok(Self { start, len: length }),
            _ => Err(error),
        }
    }

    pub const fn start(self) -> u64 {
        self.start
    }

    pub const fn len(self) -> u64 {
        self.len.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_never_reaches_outside_its_segment() {
        assert!(SegmentRange::new(0, 10, 10).is_ok());
        assert!(SegmentRange::new(9, 1, 10).is_ok());
        for (start, len) in [(0, 0), (0, 11), (10, 1), (u64::MAX, 1), (1, u64::MAX), (5, 6)] {
            assert!(SegmentRange::new(start, len, 10).is_err(), "{start} {len}");
        }
        assert!(SegmentRange::new(0, MAX_LENGTH + 1, u64::MAX).is_err());
    }
}
