//! Bytes that tell where they belong: a function of a seed and of the offset in the source.
//!
//! Bytes of another offset (shifted), of an earlier seed (stale) or of another range are different
//! bytes, but for one in 256 by chance, and never a whole word of eight.

/// Fills `into` with the pattern of `seed` from byte `offset` on.
pub(crate) fn fill(seed: u64, offset: u64, into: &mut [u8]) {
    let key = mix(seed);
    let mut index = offset / 8;
    let mut rest = into;
    let skip = (offset % 8) as usize;
    if skip != 0 {
        let (head, tail) = rest.split_at_mut(rest.len().min(8 - skip));
        head.copy_from_slice(&word(key, index)[skip..skip + head.len()]);
        rest = tail;
        index += 1;
    }
    let mut words = rest.chunks_exact_mut(8);
    for chunk in &mut words {
        chunk.copy_from_slice(&word(key, index));
        index += 1;
    }
    let tail = words.into_remainder();
    tail.copy_from_slice(&word(key, index)[..tail.len()]);
}

/// A seed for one measurement, different for each (`base`, `cell`, `trial`).
pub(crate) fn seed(base: u64, cell: u64, trial: u64) -> u64 {
    mix(mix(mix(base) ^ cell).wrapping_add(trial))
}

/// Eight bytes at word `index`. Odd multiplications and xor-shifts are one-to-one, so two indices of
/// one key never give the same word.
fn word(key: u64, index: u64) -> [u8; 8] {
    mix(key.wrapping_add(index)).to_le_bytes()
}

const fn mix(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x6A09_E667_F3BC_C909).wrapping_mul(0x9E6C_63D0_876A_3F35);
    x = (x ^ (x >> 31)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(seed: u64, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        fill(seed, offset, &mut bytes);
        bytes
    }

    #[test]
    fn any_cut_of_the_pattern_gives_the_same_bytes() {
        let whole = bytes(7, 0, 100);
        for start in 0..40 {
            for length in [0, 1, 3, 7, 8, 9, 17, 60] {
                let end = start + length;
                assert_eq!(bytes(7, start as u64, length), whole[start..end], "{start} {length}");
            }
        }
    }

    #[test]
    fn shifted_and_stale_bytes_are_other_bytes() {
        let here = bytes(1, 4096, 4096);
        let equal = |other: &[u8]| here.iter().zip(other).filter(|(a, b)| a == b).count();
        for other in [bytes(1, 4097, 4096), bytes(1, 4104, 4096), bytes(1, 0, 4096)] {
            assert!(equal(&other) < 64, "shifted");
        }
        let stale = bytes(seed(1, 0, 0), 4096, 4096);
        assert!(equal(&stale) < 64, "stale");
    }

    #[test]
    fn seeds_of_a_sweep_are_all_different() {
        let mut seeds: Vec<u64> =
            (0..20).flat_map(|cell| (0..20).map(move |trial| seed(1, cell, trial))).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 400);
    }
}
