//! What a source says to a READ or WRITE: an [`Answer`] (meta of ReadData and WriteAck) or a
//! [`Refusal`] (meta of Refuse).

use alloc::vec::Vec;

use crate::protocol::error::FrameError;
use crate::protocol::fields::{Fields, Put};
use crate::protocol::limits::padded_meta;
use crate::types::{Refused, RemoteEffect};

/// Length of an answer's own fields, bytes: status u16, reserved u16, ops_done u32, bytes_done u64,
/// notification u32.
const ANSWER_FIELDS_LEN: usize = 20;

/// Length of the meta of ReadData and WriteAck, bytes: the fields, then padding.
pub(crate) const ANSWER_LEN: usize = padded_meta(ANSWER_FIELDS_LEN);

/// Length of a refusal before its bitmap, bytes: class u16, effect u8, reserved u8, first_bad u32,
/// count u32, reserved u32.
pub(crate) const REFUSAL_HEAD_LEN: usize = 16;

/// Operations of a frame whose refusal is as short as an answer that carries no data.
pub(crate) const SHORT_REFUSAL_OPS: u32 = ((ANSWER_LEN - REFUSAL_HEAD_LEN) * 8) as u32;

/// How far the source came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Status {
    /// Everything that was asked.
    Complete = 0,
    /// Only the first `ops_done` operations, `bytes_done` bytes in all; what happened to the rest of a
    /// WRITE is unknown. Only in a WriteAck: a ReadData announces all its bytes.
    Partial = 1,
}

/// The answer to a frame that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub status: Status,
    /// Operations done, in the order of the list.
    pub ops_done: u32,
    /// Bytes in place (WriteAck) or following (ReadData).
    pub bytes_done: u64,
    /// What became of the attached notification; 0: there was none.
    pub notification: u32,
}

impl Answer {
    /// Everything done, no notification.
    pub const fn complete(ops_done: u32, bytes_done: u64) -> Self {
        Self { status: Status::Complete, ops_done, bytes_done, notification: 0 }
    }

    /// The meta.
    #[inline]
    pub fn encode(&self) -> [u8; ANSWER_LEN] {
        let mut meta = [0; ANSWER_LEN];
        Put::new(&mut meta)
            .u16(self.status as u16)
            .reserved::<2>()
            .u32(self.ops_done)
            .u64(self.bytes_done)
            .u32(self.notification)
            .reserved::<{ ANSWER_LEN - ANSWER_FIELDS_LEN }>()
            .finish();
        meta
    }

    /// Fails for a wrong length, reserved bytes or padding that are not zero, or an unknown status.
    /// Whether the
    /// numbers fit the frame that was asked is told by [`fits`](Self::fits).
    #[inline]
    pub fn decode(meta: &[u8]) -> Result<Self, FrameError> {
        if meta.len() != ANSWER_LEN {
            let (len, expected) = (meta.len() as u64, ANSWER_LEN as u64);
            return Err(FrameError::Length { what: "answer", len, expected });
        }
        let mut fields = Fields::new(meta);
        let status = fields.u16();
        fields.reserved::<2>();
        let ops_done = fields.u32();
        let bytes_done = fields.u64();
        let notification = fields.u32();
        fields.reserved::<{ ANSWER_LEN - ANSWER_FIELDS_LEN }>();
        if !fields.finish() {
            return Err(FrameError::Reserved { what: "an answer" });
        }
        let status = match status {
            0 => Status::Complete,
            1 => Status::Partial,
            _ => {
                let rule = "0 is complete, 1 is partial";
                let value = status.into();
                return Err(FrameError::Value { what: "answer status", value, rule });
            }
        };
        Ok(Self { status, ops_done, bytes_done, notification })
    }

    /// Whether this can be the answer to a frame of `ops` operations with `bytes` bytes in all. A
    /// requester that finds it cannot cuts the connection: it does not know what the source did.
    #[inline]
    pub const fn fits(&self, ops: u32, bytes: u64) -> bool {
        match self.status {
            Status::Complete => self.ops_done == ops && self.bytes_done == bytes,
            Status::Partial => self.ops_done < ops && self.bytes_done < bytes,
        }
    }
}

/// A frame that was not done. The connection stays usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Of the first bad operation, or of the frame.
    pub class: Refused,
    /// [`RemoteEffect::None`] or [`RemoteEffect::Unknown`], never `Applied`.
    pub effect: RemoteEffect,
    /// The first operation that is marked bad; `count` where none is.
    pub first_bad: u32,
    /// Operations of the frame that is refused.
    pub count: u32,
}

impl Refusal {
    /// Writes a refusal into `meta`, whose former content is dropped: one `bad` flag for each operation
    /// of the frame that is refused, in its order. `Applied` is no effect of a refusal and is written as
    /// `Unknown`.
    pub fn encode(
        meta: &mut Vec<u8>,
        class: Refused,
        effect: RemoteEffect,
        bad: impl IntoIterator<Item = bool>,
    ) -> Self {
        meta.clear();
        meta.resize(REFUSAL_HEAD_LEN, 0);
        let (mut count, mut first_bad, mut byte) = (0_u32, None, 0_u8);
        for bad in bad {
            if bad {
                byte |= 1 << (count % 8);
                first_bad = first_bad.or(Some(count));
            }
            count += 1;
            if count % 8 == 0 {
                meta.push(byte);
                byte = 0;
            }
        }
        if count % 8 != 0 {
            meta.push(byte);
        }
        meta.resize(REFUSAL_HEAD_LEN + bitmap_len(count), 0);
        let effect = match effect {
            RemoteEffect::None => RemoteEffect::None,
            RemoteEffect::Applied | RemoteEffect::Unknown => RemoteEffect::Unknown,
        };
        let refusal = Self { class, effect, first_bad: first_bad.unwrap_or(count), count };
        if let Some(head) = meta.first_chunk_mut::<REFUSAL_HEAD_LEN>() {
            Put::new(head)
                .u16(class as u16)
                .u8(effect as u8)
                .reserved::<1>()
                .u32(refusal.first_bad)
                .u32(count)
                .reserved::<4>()
                .finish();
        }
        refusal
    }

    /// Reads the refusal of a frame of `ops_asked` operations.
    ///
    /// Fails for another number of operations, a wrong length, reserved bytes, spare bits of the bitmap
    /// or padding that are not zero, an unknown class or effect, or a `first_bad` that is not the first
    /// marked operation.
    pub fn decode(meta: &[u8], ops_asked: u32) -> Result<(Self, BadOps<'_>), FrameError> {
        let expected = (REFUSAL_HEAD_LEN + bitmap_len(ops_asked)) as u64;
        let length = FrameError::Length { what: "refusal", len: meta.len() as u64, expected };
        let (head, bitmap) = meta.split_first_chunk::<REFUSAL_HEAD_LEN>().ok_or(length)?;
        if meta.len() as u64 != expected {
            return Err(length);
        }
        let mut fields = Fields::new(head);
        let class = fields.u16();
        let effect = fields.u8();
        fields.reserved::<1>();
        let first_bad = fields.u32();
        let count = fields.u32();
        fields.reserved::<4>();
        if !fields.finish() {
            return Err(FrameError::Reserved { what: "a refusal" });
        }
        let wrong = |what, value: u32, rule| FrameError::Value { what, value: value.into(), rule };
        if count != ops_asked {
            return Err(wrong("operations of a refusal", count, "as many as the frame asked for"));
        }
        let Some(known) = u8::try_from(class).ok().and_then(Refused::from_number) else {
            return Err(wrong("refusal class", class.into(), "1..=8"));
        };
        let effect = match effect {
            0 => RemoteEffect::None,
            2 => RemoteEffect::Unknown,
            _ => return Err(wrong("refusal effect", effect.into(), "0 is none, 2 is unknown")),
        };
        let bad = BadOps { bitmap, count };
        if bad.has_spare_bits() {
            return Err(FrameError::Reserved { what: "a refusal's bitmap" });
        }
        let first = bad.first().unwrap_or(count);
        if first_bad != first {
            return Err(wrong("first bad operation", first_bad, "the first one marked, or count"));
        }
        if known.marks_ops() && first == count {
            return Err(wrong("refusal class", class.into(), "1, 2 and 3 mark an operation"));
        }
        Ok((Self { class: known, effect, first_bad, count }, bad))
    }
}

/// Bytes behind the head: one bit for each operation, the lowest of the first byte first, then zeros to
/// the end of the padded meta.
const fn bitmap_len(count: u32) -> usize {
    padded_meta(REFUSAL_HEAD_LEN + (count as usize).div_ceil(8)) - REFUSAL_HEAD_LEN
}

/// Which operations of a refused frame are bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadOps<'a> {
    /// All that follows the head, padding included.
    bitmap: &'a [u8],
    count: u32,
}

impl<'a> BadOps<'a> {
    /// Whether operation `index` is bad; false past the end.
    pub fn is_bad(&self, index: u32) -> bool {
        index < self.count && self.bit(index as usize)
    }

    /// One flag for each operation of the frame, in its order.
    pub fn iter(&self) -> impl Iterator<Item = bool> + 'a {
        let bad = *self;
        (0..bad.count).map(move |index| bad.is_bad(index))
    }

    fn bit(&self, index: usize) -> bool {
        self.bitmap.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 != 0)
    }

    fn first(&self) -> Option<u32> {
        let at = self.bitmap.iter().position(|byte| *byte != 0)?;
        let byte = self.bitmap.get(at)?;
        Some((at * 8) as u32 + byte.trailing_zeros())
    }

    fn has_spare_bits(&self) -> bool {
        let used = self.count as usize;
        let mut spare = used..self.bitmap.len() * 8;
        spare.any(|index| self.bit(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn an_answer_says_exactly_how_far_the_source_came() {
        let whole = Answer::complete(3, 700);
        assert_eq!(Answer::decode(&whole.encode()), Ok(whole));
        assert!(whole.fits(3, 700) && !whole.fits(4, 700) && !whole.fits(3, 701));
        let part =
            Answer { status: Status::Partial, ops_done: 1, bytes_done: 200, notification: 0 };
        assert_eq!(Answer::decode(&part.encode()), Ok(part));
        assert!(part.fits(3, 700) && !part.fits(1, 700) && !part.fits(3, 200));
        for bit in (16..32).chain(20 * 8..32 * 8) {
            let mut dirty = whole.encode();
            dirty[bit / 8] |= 1 << (bit % 8);
            assert_eq!(Answer::decode(&dirty), Err(FrameError::Reserved { what: "an answer" }));
        }
        for len in (0..=96).filter(|len| *len != 32) {
            let mut other = whole.encode().to_vec();
            other.resize(len, 0);
            let error = FrameError::Length { what: "answer", len: len as u64, expected: 32 };
            assert_eq!(Answer::decode(&other), Err(error));
        }
        let mut unknown = whole.encode();
        unknown[0] = 2;
        assert!(matches!(Answer::decode(&unknown), Err(FrameError::Value { .. })));
    }

    #[test]
    fn a_refusal_marks_each_bad_operation() {
        let mut meta = vec![1; 5];
        for count in (1..=70_u32).chain([127, 128, 129, 256, 639, 640, 641, 4096]) {
            for last in [false, true] {
                let flags: Vec<bool> =
                    (0..count).map(|op| op == count / 2 || last && op == count - 1).collect();
                let made = Refusal::encode(
                    &mut meta,
                    Refused::Range,
                    RemoteEffect::None,
                    flags.iter().copied(),
                );
                assert!(meta.len() >= ANSWER_LEN, "the least length towards a requester");
                assert!(meta.len() % 64 == 32, "whole lines with the header");
                assert!(meta.len() - 16 - flags.len().div_ceil(8) < 64, "no line is only padding");
                let (read, bad) = Refusal::decode(&meta, count).unwrap();
                assert_eq!(read, made);
                assert_eq!(read.first_bad, count / 2);
                assert!(bad.iter().eq(flags));
                assert!(bad.is_bad(count / 2) && !bad.is_bad(count));
                assert!(Refusal::decode(&meta, count + 1).is_err(), "another frame's refusal");
            }
        }
    }

    #[test]
    fn a_refusal_has_its_padded_length_and_zeros_at_its_end() {
        let mut meta = Vec::new();
        for count in (1..=70_u32).chain([127, 128, 129, 640, 641]) {
            let all = (0..count).map(|_| true);
            Refusal::encode(&mut meta, Refused::Range, RemoteEffect::None, all);
            let right = meta.len();
            assert!(Refusal::decode(&meta, count).is_ok());
            for bit in 16 * 8 + count as usize..right * 8 {
                let mut dirty = meta.clone();
                dirty[bit / 8] |= 1 << (bit % 8);
                let error = FrameError::Reserved { what: "a refusal's bitmap" };
                assert_eq!(Refusal::decode(&dirty, count), Err(error), "bit {bit} of {count}");
            }
            for len in (0..=right + 64).filter(|len| *len != right) {
                let mut other = meta.clone();
                other.resize(len, 0);
                let error = Refusal::decode(&other, count).unwrap_err();
                assert!(matches!(error, FrameError::Length { .. }), "{len} for {count}");
            }
        }
    }

    #[test]
    fn a_whole_frame_is_refused_without_a_mark() {
        let mut meta = Vec::new();
        let made = Refusal::encode(&mut meta, Refused::Busy, RemoteEffect::None, [false; 3]);
        assert_eq!((made.first_bad, made.count), (3, 3));
        assert_eq!(Refusal::decode(&meta, 3).unwrap().0, made);
        meta[0] = Refused::Permission as u8;
        assert!(Refusal::decode(&meta, 3).is_err(), "a permission is missing for some operation");
    }

    #[test]
    fn a_refusal_claims_no_success_and_hides_nothing() {
        let mut meta = Vec::new();
        let bad = [true, false, true];
        let made = Refusal::encode(&mut meta, Refused::Corrupt, RemoteEffect::Applied, bad);
        assert_eq!(made.effect, RemoteEffect::Unknown);
        let refused = |at: usize, value: u8| {
            let mut changed = meta.clone();
            changed[at] = value;
            Refusal::decode(&changed, 3).is_err()
        };
        assert!(refused(0, 0) && refused(0, 9), "class");
        assert!(refused(2, 1) && refused(2, 3), "effect");
        assert!(refused(3, 1) && refused(12, 1), "reserved");
        assert!(refused(4, 1) && refused(4, 3), "first bad");
        assert!(refused(8, 2) && refused(8, 4), "count");
        assert!(refused(16, 0b1101), "spare bits");
        assert!((17..32).all(|at| refused(at, 1) && refused(at, 0x80)), "padding");
        for len in 0..meta.len() {
            assert!(Refusal::decode(&meta[..len], 3).is_err(), "{len}");
        }
    }
}
