//! How owners are cut into frames: as few as the limits allow, in order.
//!
//! A cut is either a group of whole owners, which share one scatter frame, or one part of an owner that
//! is longer than a slice. So every owner has one outcome and every frame one list of ranges.

use super::merge::Owner;

/// Limits of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutLimits {
    /// Ranges in one frame, at least 1. 1 means that owners do not share frames.
    pub ops: u32,
    /// Payload of one frame, at least 1.
    pub bytes: u64,
}

/// Position in a list of owners: all before it were cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub owner: u32,
    pub skip: u64,
}

/// One frame's share of the owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// First owner.
    pub owner: u32,
    /// Number of owners; 1 when the cut is a part of one.
    pub owners: u32,
    /// Bytes of the first owner that lie before this cut.
    pub skip: u64,
    /// Payload.
    pub bytes: u64,
    /// Whether the last owner of the cut ends in it.
    pub last: bool,
}

impl Cut {
    /// Whether the cut is only a part of its owner.
    pub const fn is_part(&self) -> bool {
        self.skip > 0 || !self.last
    }
}

impl Cursor {
    /// The next cut of `owners[..end]`, or `None` at the end.
    pub fn next(&mut self, owners: &[Owner], limits: CutLimits) -> Option<Cut> {
        let first = owners.get(self.owner as usize)?;
        if self.skip > 0 || first.length > limits.bytes {
            let rest = first.length - self.skip;
            let bytes = rest.min(limits.bytes);
            let (owner, skip, last) = (self.owner, self.skip, bytes == rest);
            *self = if last {
                Self { owner: owner + 1, skip: 0 }
            } else {
                Self { owner, skip: skip + bytes }
            };
            return Some(Cut { owner, owners: 1, skip, bytes, last });
        }
        let (mut count, mut bytes) = (0, 0);
        for owner in owners[self.owner as usize..].iter().take(limits.ops.max(1) as usize) {
            if count > 0 && bytes + owner.length > limits.bytes {
                break;
            }
            count += 1;
            bytes += owner.length;
        }
        let owner = self.owner;
        self.owner += count;
        Some(Cut { owner, owners: count, skip: 0, bytes, last: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::RegionKey;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn owners(lengths: &[u64]) -> Vec<Owner> {
        let region = RegionKey { id: 1, generation: 1 };
        let of = |(i, length): (usize, &u64)| {
            let (first, length) = (i as u32, *length);
            Owner { first, tasks: 1, local: 0, region, offset: 0, length }
        };
        lengths.iter().enumerate().map(of).collect()
    }

    fn cuts(owners: &[Owner], limits: CutLimits) -> Vec<Cut> {
        let mut cursor = Cursor::default();
        core::iter::from_fn(|| cursor.next(owners, limits)).collect()
    }

    /// CORE-039: 64 scattered 4 KiB owners are one frame.
    #[test]
    fn core_039_scattered_blocks_share_one_frame() {
        let cuts = cuts(&owners(&[4096; 64]), CutLimits { ops: 256, bytes: 4 << 20 });
        assert_eq!(cuts.len(), 1);
        assert_eq!((cuts[0].owners, cuts[0].bytes), (64, 64 * 4096));
    }

    #[test]
    fn a_long_owner_is_cut_and_nothing_joins_its_parts() {
        let cuts = cuts(&owners(&[10, 25, 10]), CutLimits { ops: 8, bytes: 10 });
        let shape: Vec<_> = cuts.iter().map(|c| (c.owner, c.owners, c.skip, c.bytes)).collect();
        assert_eq!(
            shape,
            [(0, 1, 0, 10), (1, 1, 0, 10), (1, 1, 10, 10), (1, 1, 20, 5), (2, 1, 0, 10)]
        );
        assert_eq!(
            cuts.iter().map(Cut::is_part).collect::<Vec<_>>(),
            [false, true, true, true, false]
        );
    }

    proptest! {
        /// Every byte of every owner is in exactly one cut, in order, within the limits.
        #[test]
        fn cuts_cover_all_bytes_once_in_order(
            lengths in proptest::collection::vec(1u64..50, 1..40),
            ops in 1u32..9,
            bytes in 1u64..60,
        ) {
            let owners = owners(&lengths);
            let mut at = Cursor::default();
            for cut in cuts(&owners, CutLimits { ops, bytes }) {
                prop_assert_eq!((cut.owner, cut.skip), (at.owner, at.skip));
                prop_assert!(cut.bytes <= bytes && cut.bytes > 0 && cut.owners <= ops);
                if cut.is_part() {
                    prop_assert_eq!(cut.owners, 1);
                    let end = cut.skip + cut.bytes;
                    prop_assert_eq!(cut.last, end == lengths[cut.owner as usize]);
                    at = if cut.last { Cursor { owner: cut.owner + 1, skip: 0 } }
                        else { Cursor { owner: cut.owner, skip: end } };
                } else {
                    let whole = cut.owner as usize..(cut.owner + cut.owners) as usize;
                    prop_assert_eq!(lengths[whole].iter().sum::<u64>(), cut.bytes);
                    at = Cursor { owner: cut.owner + cut.owners, skip: 0 };
                }
            }
            prop_assert_eq!(at, Cursor { owner: lengths.len() as u32, skip: 0 });
        }
    }
}
