//! Whether the bytes that should have moved did, and no others.

use serde::{Deserialize, Serialize};

use super::pattern;
use crate::args::Depth;
use crate::failure::Failure;

/// Memory of one side, as the harness touches it outside the measured time.
pub(crate) trait Bytes {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Failure>;
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Failure>;
}

/// Bytes handled at a time.
const CHUNK: usize = 256 << 10;

/// Distance of the blocks that `Depth::Sample` looks at, and their size.
const SAMPLE_STEP: u64 = 64 * SAMPLE_BLOCK;
const SAMPLE_BLOCK: u64 = 4 << 10;

/// `length` bytes that came from offset `from` of the source and belong at `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moved {
    pub to: u64,
    pub from: u64,
    pub length: u64,
}

/// What the destination must hold: the pattern of `seed` in each range, zero in every other byte of
/// its first `footprint` bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Expected {
    pub seed: u64,
    pub footprint: u64,
    pub ranges: Vec<Moved>,
    pub depth: Depth,
}

/// What a wrong byte looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Looks {
    /// Cleared: nothing arrived here.
    Missing,
    /// Outside every range: something arrived that was not asked for.
    Outside,
    /// Other bytes than those asked for.
    Other,
}

impl Looks {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Missing => "nothing arrived there",
            Self::Outside => "written outside of every range",
            Self::Other => "other bytes than those asked for",
        }
    }
}

/// The first wrong byte of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mismatch {
    pub offset: u64,
    pub expected: u8,
    pub found: u8,
    pub looks: Looks,
}

/// Writes the pattern of `seed` into `[start, start + length)`, as its own source.
pub(crate) fn fill(memory: &dyn Bytes, seed: u64, start: u64, length: u64) -> Result<(), Failure> {
    chunks(start, length, |at, chunk| {
        pattern::fill(seed, at, chunk);
        memory.write(at, chunk)
    })
}

/// Writes zeros.
pub(crate) fn clear(memory: &dyn Bytes, start: u64, length: u64) -> Result<(), Failure> {
    chunks(start, length, |at, chunk| memory.write(at, chunk))
}

fn chunks(
    start: u64,
    length: u64,
    mut each: impl FnMut(u64, &mut [u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut scratch = vec![0; CHUNK.min(length as usize)];
    let mut done = 0;
    while done < length {
        let part = (length - done).min(CHUNK as u64);
        each(start + done, &mut scratch[..part as usize])?;
        done += part;
    }
    Ok(())
}

/// The first byte that is not as expected, in order of offsets; `None` if all that `depth` looks at
/// is right.
pub(crate) fn check(memory: &dyn Bytes, expected: &Expected) -> Result<Option<Mismatch>, Failure> {
    let mut ranges = expected.ranges.clone();
    ranges.sort_unstable_by_key(|range| range.to);
    let mut checker = Checker { memory, seed: expected.seed, found: Vec::new(), want: Vec::new() };
    match expected.depth {
        Depth::Off => Ok(None),
        Depth::Sample => {
            for range in &ranges {
                if let Some(wrong) = checker.sample(range)? {
                    return Ok(Some(wrong));
                }
            }
            Ok(None)
        }
        Depth::Full => {
            let mut at = 0;
            for range in &ranges {
                // Ranges of a destination do not overlap: the plan of a cell makes sure.
                if let Some(wrong) = checker.gap(at, range.to.saturating_sub(at))? {
                    return Ok(Some(wrong));
                }
                if let Some(wrong) = checker.range(range)? {
                    return Ok(Some(wrong));
                }
                at = range.to + range.length;
            }
            checker.gap(at, expected.footprint.saturating_sub(at))
        }
    }
}

struct Checker<'a> {
    memory: &'a dyn Bytes,
    seed: u64,
    found: Vec<u8>,
    want: Vec<u8>,
}

impl Checker<'_> {
    fn sample(&mut self, range: &Moved) -> Result<Option<Mismatch>, Failure> {
        let last = range.length.saturating_sub(SAMPLE_BLOCK);
        let mut skip = 0;
        loop {
            let length = (range.length - skip).min(SAMPLE_BLOCK);
            let part = Moved { to: range.to + skip, from: range.from + skip, length };
            if let Some(wrong) = self.range(&part)? {
                return Ok(Some(wrong));
            }
            if skip >= last {
                return Ok(None);
            }
            skip = (skip + SAMPLE_STEP).min(last);
        }
    }

    fn range(&mut self, range: &Moved) -> Result<Option<Mismatch>, Failure> {
        self.compare(range.to, range.length, Some(range.from))
    }

    fn gap(&mut self, at: u64, length: u64) -> Result<Option<Mismatch>, Failure> {
        self.compare(at, length, None)
    }

    fn compare(
        &mut self,
        to: u64,
        length: u64,
        from: Option<u64>,
    ) -> Result<Option<Mismatch>, Failure> {
        let mut done = 0;
        while done < length {
            let part = (length - done).min(CHUNK as u64) as usize;
            self.found.resize(part, 0);
            self.memory.read(to + done, &mut self.found)?;
            self.want.clear();
            self.want.resize(part, 0);
            if let Some(from) = from {
                pattern::fill(self.seed, from + done, &mut self.want);
            }
            if self.found != self.want {
                return Ok(self.first_difference(to + done, from.is_none()));
            }
            done += part as u64;
        }
        Ok(None)
    }

    fn first_difference(&self, at: u64, outside: bool) -> Option<Mismatch> {
        let pairs = || self.found.iter().copied().zip(self.want.iter().copied());
        let index = pairs().position(|(found, want)| found != want)?;
        let (found, expected) = pairs().nth(index)?;
        // A lone zero can be a wrong byte; a word of zeros is memory that nobody wrote.
        let untouched = self.found.iter().skip(index).take(8).all(|byte| *byte == 0);
        let looks = match (outside, untouched) {
            (true, _) => Looks::Outside,
            (false, true) => Looks::Missing,
            (false, false) => Looks::Other,
        };
        Some(Mismatch { offset: at + index as u64, expected, found, looks })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Memory for tests.
    pub(crate) struct Plain(pub RefCell<Vec<u8>>);

    impl Plain {
        pub(crate) fn new(length: usize) -> Self {
            Self(RefCell::new(vec![0; length]))
        }
    }

    impl Bytes for Plain {
        fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Failure> {
            let start = offset as usize;
            into.copy_from_slice(&self.0.borrow()[start..start + into.len()]);
            Ok(())
        }
        fn write(&self, offset: u64, from: &[u8]) -> Result<(), Failure> {
            let start = offset as usize;
            self.0.borrow_mut()[start..start + from.len()].copy_from_slice(from);
            Ok(())
        }
    }

    const SIZE: u64 = 1 << 20;

    /// A destination as it is after a faultless transfer of three scattered ranges.
    fn good(depth: Depth) -> (Plain, Expected) {
        let ranges = vec![
            Moved { to: 600_000, from: 8192, length: 300_000 },
            Moved { to: 0, from: 400_000, length: 4096 },
            Moved { to: 8192, from: 100_001, length: 100_003 },
        ];
        let memory = Plain::new(SIZE as usize);
        for range in &ranges {
            let mut bytes = vec![0; range.length as usize];
            pattern::fill(5, range.from, &mut bytes);
            memory.write(range.to, &bytes).unwrap();
        }
        (memory, Expected { seed: 5, footprint: SIZE, ranges, depth })
    }

    #[test]
    fn a_faultless_destination_passes_at_every_depth() {
        for depth in [Depth::Full, Depth::Sample, Depth::Off] {
            let (memory, expected) = good(depth);
            assert_eq!(check(&memory, &expected), Ok(None));
        }
    }

    /// LOG-071: the verifier is proven by planted errors.
    #[test]
    fn log_071_one_flipped_bit_anywhere_is_found() {
        for offset in [0, 4095, 8192, 50_000, 108_194, 600_000, 861_000, 899_999] {
            let (memory, expected) = good(Depth::Full);
            memory.0.borrow_mut()[offset as usize] ^= 1;
            let wrong = check(&memory, &expected).unwrap().unwrap();
            assert_eq!(wrong.offset, offset);
            assert_eq!(wrong.looks, Looks::Other);
            assert_eq!(wrong.expected ^ wrong.found, 1);
        }
    }

    #[test]
    fn log_071_a_stale_block_is_found() {
        let (memory, expected) = good(Depth::Full);
        let mut old = vec![0; 4096];
        pattern::fill(4, 12_288, &mut old);
        memory.write(604_096, &old).unwrap();
        let wrong = check(&memory, &expected).unwrap().unwrap();
        assert!((604_096..604_100).contains(&wrong.offset), "{wrong:?}");
        assert_eq!(wrong.looks, Looks::Other);
    }

    #[test]
    fn log_071_a_shifted_block_is_found() {
        for shift in [1, 8, 4096] {
            let (memory, expected) = good(Depth::Full);
            let mut bytes = vec![0; 4096];
            pattern::fill(5, 400_000 + shift, &mut bytes);
            memory.write(0, &bytes).unwrap();
            let wrong = check(&memory, &expected).unwrap().unwrap();
            assert!(wrong.offset < 4, "{wrong:?}");
        }
    }

    #[test]
    fn log_071_a_block_of_another_range_is_found() {
        let (memory, expected) = good(Depth::Full);
        let mut bytes = vec![0; 4096];
        memory.read(600_000, &mut bytes).unwrap();
        memory.write(0, &bytes).unwrap();
        assert!(check(&memory, &expected).unwrap().is_some());
    }

    #[test]
    fn a_range_that_never_arrived_is_called_missing() {
        let (memory, expected) = good(Depth::Full);
        clear(&memory, 8192, 100_003).unwrap();
        let wrong = check(&memory, &expected).unwrap().unwrap();
        assert!((8192..8196).contains(&wrong.offset), "{wrong:?}");
        assert_eq!(wrong.looks, Looks::Missing);
    }

    #[test]
    fn a_byte_outside_every_range_is_found() {
        for offset in [4096, 8191, 108_195, 599_999, 900_000, SIZE - 1] {
            let (memory, expected) = good(Depth::Full);
            memory.0.borrow_mut()[offset as usize] = 1;
            let wrong = check(&memory, &expected).unwrap().unwrap();
            assert_eq!((wrong.offset, wrong.looks), (offset, Looks::Outside));
        }
    }

    #[test]
    fn a_sample_sees_both_ends_of_each_range_and_no_gap() {
        for (offset, seen) in
            [(600_000, true), (899_999, true), (862_200, true), (700_000, false), (4096, false)]
        {
            let (memory, expected) = good(Depth::Sample);
            memory.0.borrow_mut()[offset] ^= 0xff;
            assert_eq!(check(&memory, &expected).unwrap().is_some(), seen, "{offset}");
        }
    }

    #[test]
    fn filling_in_chunks_gives_one_pattern() {
        let memory = Plain::new(CHUNK * 2 + 77);
        fill(&memory, 9, 0, (CHUNK * 2 + 77) as u64).unwrap();
        let mut whole = vec![0; CHUNK * 2 + 77];
        pattern::fill(9, 0, &mut whole);
        assert_eq!(*memory.0.borrow(), whole);
        clear(&memory, 0, (CHUNK * 2 + 77) as u64).unwrap();
        assert!(memory.0.borrow().iter().all(|byte| *byte == 0));
    }
}
