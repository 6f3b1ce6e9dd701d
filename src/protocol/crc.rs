//! CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4) of heads and payloads.
//!
//! The one place of this room that touches the `crc32c` crate, which needs `std` to ask the CPU for its
//! instruction. A build without `std` would exchange this file.

/// Bytes of a payload's checksum: little-endian, after the payload and not counted in `data_len`.
pub(crate) const TRAILER_LEN: usize = 4;

/// Checksum of what came before, whose checksum is `crc` (0 for nothing), and `bytes`.
#[inline]
pub(crate) fn append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_values_of_rfc_3720_hold_and_parts_add_up() {
        assert_eq!(append(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(append(0, &[0xff; 32]), 0x62a8_ab43);
        let rising: [u8; 32] = core::array::from_fn(|at| at as u8);
        assert_eq!(append(0, &rising), 0x46dd_794e);
        let (front, back) = rising.split_at(7);
        assert_eq!(append(append(0, front), back), 0x46dd_794e);
    }
}
