//! The list of operations in a Read or Write frame.
//!
//! Meta: n u32, reserved u32, then n operations of [`OP_LEN`] bytes: region id u64, offset u64,
//! length u64, generation u32, reserved u32, then padding ([`padded_meta`]). The payload of a Write, and
//! of the answer to a Read, is the ranges' bytes in the order of the list, nothing between them.

use alloc::vec::Vec;

use crate::protocol::error::FrameError;
use crate::protocol::fields::{Fields, Put};
use crate::protocol::limits::padded_meta;
use crate::types::RegionKey;

/// Length of one operation, bytes.
pub(crate) const OP_LEN: usize = 32;

/// Length of what stands before the first operation, bytes.
pub(crate) const OPS_HEAD_LEN: usize = 8;

/// One range of one region of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub region: RegionKey,
    /// First byte, from the region's start.
    pub offset: u64,
    /// Number of bytes; at least 1 in a list that was decoded.
    pub length: u64,
}

impl Op {
    fn encode(&self) -> [u8; OP_LEN] {
        let mut bytes = [0; OP_LEN];
        Put::new(&mut bytes)
            .u64(self.region.id)
            .u64(self.offset)
            .u64(self.length)
            .u32(self.region.generation)
            .reserved::<4>()
            .finish();
        bytes
    }

    /// The operation, and whether its reserved bytes are zero.
    #[inline]
    fn decode(bytes: &[u8]) -> (Self, bool) {
        let mut fields = Fields::new(bytes);
        let id = fields.u64();
        let offset = fields.u64();
        let length = fields.u64();
        let generation = fields.u32();
        fields.reserved::<4>();
        (Self { region: RegionKey { id, generation }, offset, length }, fields.finish())
    }
}

/// Starts a list in `meta`, whose former content is dropped and whose capacity stays.
#[inline]
pub(crate) fn begin(meta: &mut Vec<u8>) {
    meta.clear();
    meta.extend_from_slice(&[0; OPS_HEAD_LEN]);
}

/// Appends an operation to a list that was begun.
#[inline]
pub(crate) fn push(meta: &mut Vec<u8>, op: &Op) {
    meta.extend_from_slice(&op.encode());
}

/// Ends the list, once: writes the number of its operations into its head, appends the padding, and
/// returns the number.
#[inline]
pub(crate) fn finish(meta: &mut Vec<u8>) -> u32 {
    let n = (meta.len().saturating_sub(OPS_HEAD_LEN) / OP_LEN) as u32;
    if let Some(head) = meta.first_chunk_mut() {
        *head = n.to_le_bytes();
    }
    meta.resize(padded_meta(meta.len()), 0);
    n
}

/// A list that was checked as a whole: at least one operation, none of them empty, no end and no sum
/// beyond 64 bits. Whether regions exist and contain the ranges is for the source to find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ops<'a> {
    body: &'a [u8],
    total: u64,
}

impl<'a> Ops<'a> {
    /// Reads the meta of a Read (`data_len` is `None`) or of a Write with a payload of `data_len` bytes.
    ///
    /// Fails for more than `max_ops` operations and for anything that breaks a rule above or the
    /// layout, padding that is not zero included. The total of a Read may be any number: the source compares it with what one frame may
    /// carry and refuses, since nothing is malformed.
    pub fn decode(meta: &'a [u8], max_ops: u32, data_len: Option<u64>) -> Result<Self, FrameError> {
        let Some((head, body)) = meta.split_first_chunk::<OPS_HEAD_LEN>() else {
            return Err(FrameError::Length {
                what: "operation list",
                len: meta.len() as u64,
                expected: padded_meta(OPS_HEAD_LEN + OP_LEN) as u64,
            });
        };
        let mut fields = Fields::new(head);
        let n = fields.u32();
        fields.reserved::<4>();
        if !fields.finish() {
            return Err(FrameError::Reserved { what: "an operation list" });
        }
        if n == 0 {
            let rule = "at least 1";
            return Err(FrameError::Value { what: "number of operations", value: 0, rule });
        }
        if n > max_ops {
            let (count, max) = (n.into(), max_ops.into());
            return Err(FrameError::TooMany { what: "operations", count, max });
        }
        let ops = n as usize * OP_LEN;
        let expected = padded_meta(OPS_HEAD_LEN + ops);
        let Some((body, padding)) = body.split_at_checked(ops).filter(|_| meta.len() == expected)
        else {
            let (len, expected) = (meta.len() as u64, expected as u64);
            return Err(FrameError::Length { what: "operation list", len, expected });
        };
        if padding.iter().any(|byte| *byte != 0) {
            return Err(FrameError::Reserved { what: "the padding of an operation list" });
        }
        let mut total = 0_u64;
        for (index, bytes) in (0_u32..).zip(body.chunks_exact(OP_LEN)) {
            let (op, clean) = Op::decode(bytes);
            if !clean {
                return Err(FrameError::Reserved { what: "an operation" });
            }
            let Op { offset, length, .. } = op;
            if length == 0 {
                return Err(FrameError::EmptyOp { index });
            }
            if offset.checked_add(length).is_none() {
                return Err(FrameError::OpOverflow { index, offset, length });
            }
            total = total.checked_add(length).ok_or(FrameError::SumOverflow { index })?;
        }
        match data_len {
            Some(data_len) if data_len != total => {
                Err(FrameError::SumMismatch { sum: total, data_len })
            }
            _ => Ok(Self { body, total }),
        }
    }

    /// The operations in the order of the list.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Op> + Clone + 'a {
        self.body.chunks_exact(OP_LEN).map(|bytes| Op::decode(bytes).0)
    }

    /// Sum of the lengths, bytes.
    #[inline]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Number of operations, at least 1.
    #[inline]
    pub const fn len(&self) -> u32 {
        (self.body.len() / OP_LEN) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn op(offset: u64, length: u64) -> Op {
        Op { region: RegionKey { id: 5, generation: 3 }, offset, length }
    }

    fn list(ops: &[Op]) -> Vec<u8> {
        let mut meta = vec![9; 3];
        begin(&mut meta);
        for op in ops {
            push(&mut meta, op);
        }
        assert_eq!(finish(&mut meta) as usize, ops.len());
        meta
    }

    #[test]
    fn a_list_keeps_its_order_and_its_sum() {
        let ops = [op(0, 10), op(u64::MAX - 7, 7), op(3, 1)];
        let meta = list(&ops);
        let read = Ops::decode(&meta, 3, None).unwrap();
        assert_eq!((read.len(), read.total()), (3, 18));
        assert!(read.iter().eq(ops));
        assert_eq!(Ops::decode(&meta, 3, Some(18)), Ok(read));
        assert_eq!(
            &meta[8..40],
            &[
                5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0,
                0, 0, 0, 0, 0
            ]
        );
    }

    #[test]
    fn a_list_that_breaks_a_rule_is_refused() {
        let good = list(&[op(0, 10), op(20, 5)]);
        let count = Ops::decode(&good, 1, None).unwrap_err();
        assert_eq!(count, FrameError::TooMany { what: "operations", count: 2, max: 1 });
        let sum = Ops::decode(&good, 2, Some(16)).unwrap_err();
        assert_eq!(sum, FrameError::SumMismatch { sum: 15, data_len: 16 });
        let empty = Ops::decode(&list(&[op(0, 10), op(1, 0)]), 2, None).unwrap_err();
        assert_eq!(empty, FrameError::EmptyOp { index: 1 });
        assert!(matches!(Ops::decode(&list(&[]), 2, None), Err(FrameError::Value { .. })));
        for len in 0..good.len() {
            assert!(Ops::decode(&good[..len], 2, None).is_err(), "prefix of {len} bytes");
        }
        for at in [4, 7, 36, 39, 68, 71] {
            let mut dirty = good.clone();
            dirty[at] = 1;
            assert!(matches!(Ops::decode(&dirty, 2, None), Err(FrameError::Reserved { .. })));
        }
        let mut more = good.clone();
        more[0] = 3;
        assert!(matches!(Ops::decode(&more, 4, None), Err(FrameError::Length { .. })));
    }

    /// One and two operations have metas of one length: neither passes for the other.
    #[test]
    fn padding_is_no_operation_and_an_operation_no_padding() {
        let (mut one, mut two) = (list(&[op(0, 10)]), list(&[op(0, 10), op(20, 5)]));
        assert_eq!((one.len(), two.len()), (96, 96));
        two[0] = 1;
        let error = FrameError::Reserved { what: "the padding of an operation list" };
        assert_eq!(Ops::decode(&two, 2, None), Err(error));
        one[0] = 2;
        assert_eq!(Ops::decode(&one, 2, None), Err(FrameError::EmptyOp { index: 1 }));
    }

    #[test]
    fn lists_of_each_length_are_padded_with_zeros_to_whole_lines() {
        for n in 1..=70 {
            let ops: Vec<Op> = (0..n).map(|at| op(at << 12, 1 + at)).collect();
            let meta = list(&ops);
            let (fields, right) = (8 + 32 * n as usize, meta.len());
            assert!(right % 64 == 32 && right - fields < 64, "{right} bytes for {n}");
            let read = Ops::decode(&meta, 70, None).unwrap();
            assert!(read.iter().eq(ops.iter().copied()) && u64::from(read.len()) == n);
            for bit in fields * 8..right * 8 {
                let mut dirty = meta.clone();
                dirty[bit / 8] |= 1 << (bit % 8);
                let error = FrameError::Reserved { what: "the padding of an operation list" };
                assert_eq!(Ops::decode(&dirty, 70, None), Err(error), "bit {bit} of {n}");
            }
            for len in (0..=right + 64).filter(|len| *len != right) {
                let mut other = meta.clone();
                other.resize(len, 0);
                let error = Ops::decode(&other, 70, None).unwrap_err();
                assert!(matches!(error, FrameError::Length { .. }), "{len} for {n}");
            }
        }
    }

    /// CORE-100: sums and ends beyond 64 bits, and a declared number far above the bytes that came.
    #[test]
    fn core_100_overflow_is_refused() {
        let end = Ops::decode(&list(&[op(u64::MAX, 1)]), 2, None).unwrap_err();
        assert_eq!(end, FrameError::OpOverflow { index: 0, offset: u64::MAX, length: 1 });
        let sum = Ops::decode(&list(&[op(0, u64::MAX), op(0, 1)]), 2, None).unwrap_err();
        assert_eq!(sum, FrameError::SumOverflow { index: 1 });
        let mut claimed = list(&[op(0, 1)]);
        claimed[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(Ops::decode(&claimed, 4096, None), Err(FrameError::TooMany { .. })));
        assert!(matches!(Ops::decode(&claimed, u32::MAX, None), Err(FrameError::Length { .. })));
    }

    #[test]
    fn a_list_is_built_without_allocation_after_warm_up() {
        let mut meta = list(&[op(0, 1); 16]);
        let (place, room) = (meta.as_ptr(), meta.capacity());
        for _ in 0..10 {
            begin(&mut meta);
            (0..16).for_each(|at| push(&mut meta, &op(at, 1)));
            finish(&mut meta);
        }
        assert_eq!((place, room), (meta.as_ptr(), meta.capacity()));
    }
}
