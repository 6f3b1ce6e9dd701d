//! How a requester walks through the catalog of a source: Describe asks, Page answers, CatalogChanged
//! hints that it is worth asking again.

use crate::protocol::control::region::{DESCRIPTOR_LEN, RegionDescriptor};
use crate::protocol::error::FrameError;
use crate::protocol::fields::{Fields, Put};
use crate::protocol::limits::CONTROL_DATA_MAX;

/// Most regions on one page.
pub(crate) const PAGE_REGIONS_MAX: u32 = (CONTROL_DATA_MAX / DESCRIPTOR_LEN as u64) as u32;

/// Asks for a page: cursor u64, generation u64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Describe {
    /// 0 for the first page, then what the page before gave as next.
    pub cursor: u64,
    /// Generation of the walk; 0 on its first page.
    pub generation: u64,
}

impl Describe {
    /// Length of the meta, bytes.
    pub const LEN: usize = 16;

    /// The meta.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut meta = [0; Self::LEN];
        Put::new(&mut meta).u64(self.cursor).u64(self.generation).finish();
        meta
    }

    /// Fails for a wrong length.
    pub fn decode(meta: &[u8]) -> Result<Self, FrameError> {
        let mut fields = exact("Describe", meta, Self::LEN)?;
        Ok(Self { cursor: fields.u64(), generation: fields.u64() })
    }
}

/// The head of a page: generation u64, next_cursor u64, count u32, reserved u32. The payload is `count`
/// descriptors of [`DESCRIPTOR_LEN`] bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// Generation of the catalog that the page was taken from; at least 1. If it differs from the one
    /// asked for, the page is the first of a newer catalog and the walk begins again with it.
    pub generation: u64,
    /// Cursor of the next page; 0: this was the last.
    pub next_cursor: u64,
    /// Regions on the page.
    pub count: u32,
}

impl Page {
    /// Length of the meta, bytes.
    pub const LEN: usize = 24;

    /// The meta.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut meta = [0; Self::LEN];
        Put::new(&mut meta)
            .u64(self.generation)
            .u64(self.next_cursor)
            .u32(self.count)
            .reserved::<4>()
            .finish();
        meta
    }

    /// Reads the meta of a page whose payload has `data_len` bytes. Nothing of the payload is needed,
    /// so it can be read afterwards into a buffer of known size.
    ///
    /// Fails for a wrong length, reserved bytes that are not zero, generation 0, more than
    /// [`PAGE_REGIONS_MAX`] regions, and a payload of another length than `count` descriptors.
    pub fn decode(meta: &[u8], data_len: u64) -> Result<Self, FrameError> {
        let mut fields = exact("Page", meta, Self::LEN)?;
        let generation = fields.u64();
        let next_cursor = fields.u64();
        let count = fields.u32();
        fields.reserved::<4>();
        if !fields.finish() {
            return Err(FrameError::Reserved { what: "a page" });
        }
        if generation == 0 {
            let (what, rule) = ("catalog generation", "at least 1");
            return Err(FrameError::Value { what, value: 0, rule });
        }
        if count > PAGE_REGIONS_MAX {
            let (count, max) = (count.into(), PAGE_REGIONS_MAX.into());
            return Err(FrameError::TooMany { what: "regions on a page", count, max });
        }
        let expected = u64::from(count) * DESCRIPTOR_LEN as u64;
        if data_len != expected {
            let what = "descriptors of a page";
            return Err(FrameError::Length { what, len: data_len, expected });
        }
        Ok(Self { generation, next_cursor, count })
    }

    /// The request for the page after this one, or `None` if this answers `asked` and was the last.
    ///
    /// Fails where the walk would not come forward: a further cursor that is not higher than the one
    /// asked for, or an empty page that is not the last. So a walk has an end even if the source does
    /// not want it to.
    pub fn next(&self, asked: &Describe) -> Result<Option<Describe>, FrameError> {
        let restarted = asked.generation != 0 && asked.generation != self.generation;
        let at = if restarted { 0 } else { asked.cursor };
        let Self { generation, next_cursor, count } = *self;
        match next_cursor {
            0 => Ok(None),
            cursor if cursor > at && count > 0 => Ok(Some(Describe { cursor, generation })),
            value => {
                let (what, rule) = ("next cursor", "higher than the one asked for, after a region");
                Err(FrameError::Value { what, value, rule })
            }
        }
    }
}

/// The regions in a page's payload, in its order. Bytes that make no whole descriptor at the end are
/// left out; [`Page::decode`] has refused such a payload.
pub(crate) fn regions(
    payload: &[u8],
) -> impl Iterator<Item = Result<RegionDescriptor, FrameError>> + '_ {
    payload
        .chunks_exact(DESCRIPTOR_LEN)
        .filter_map(<[u8]>::first_chunk)
        .map(RegionDescriptor::decode)
}

/// Tells that the catalog has a new generation: generation u64. A hint: it may be left out or late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CatalogChanged {
    pub generation: u64,
}

impl CatalogChanged {
    /// Length of the meta, bytes.
    pub const LEN: usize = 8;

    /// The meta.
    pub const fn encode(self) -> [u8; Self::LEN] {
        self.generation.to_le_bytes()
    }

    /// Fails for a wrong length.
    pub fn decode(meta: &[u8]) -> Result<Self, FrameError> {
        let mut fields = exact("CatalogChanged", meta, Self::LEN)?;
        Ok(Self { generation: fields.u64() })
    }
}

fn exact<'a>(
    what: &'static str,
    meta: &'a [u8],
    expected: usize,
) -> Result<Fields<'a>, FrameError> {
    if meta.len() == expected {
        Ok(Fields::new(meta))
    } else {
        let (len, expected) = (meta.len() as u64, expected as u64);
        Err(FrameError::Length { what, len, expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{MemoryLocation, Permission, RegionKey};
    use std::vec::Vec;

    #[test]
    fn metas_round_trip() {
        let describe = Describe { cursor: 3, generation: 9 };
        assert_eq!(Describe::decode(&describe.encode()), Ok(describe));
        let changed = CatalogChanged { generation: 10 };
        assert_eq!(CatalogChanged::decode(&changed.encode()), Ok(changed));
        let page = Page { generation: 9, next_cursor: 5, count: 2 };
        assert_eq!(Page::decode(&page.encode(), 144), Ok(page));
        for len in 0..24 {
            assert!(Page::decode(&page.encode()[..len], 144).is_err());
            assert!(len == 16 || Describe::decode(&page.encode()[..len]).is_err());
            assert!(len == 8 || CatalogChanged::decode(&page.encode()[..len]).is_err());
        }
    }

    /// CORE-100: the page's count is compared with its limit and with the payload.
    #[test]
    fn core_100_a_page_holds_what_it_says() {
        let page = |count| Page { generation: 1, next_cursor: 0, count }.encode();
        assert!(Page::decode(&page(PAGE_REGIONS_MAX), 910 * 72).is_ok());
        let error = Page::decode(&page(911), 911 * 72).unwrap_err();
        assert_eq!(error, FrameError::TooMany { what: "regions on a page", count: 911, max: 910 });
        assert!(Page::decode(&page(u32::MAX), u64::MAX).is_err());
        for data_len in [0, 71, 73, 144, 1 << 63] {
            assert!(Page::decode(&page(1), data_len).is_err(), "{data_len}");
        }
        assert!(
            Page::decode(&Page { generation: 0, next_cursor: 0, count: 0 }.encode(), 0).is_err()
        );
    }

    #[test]
    fn a_page_gives_its_regions_in_order() {
        let region = |id| {
            let key = RegionKey { id, generation: 1 };
            let place = MemoryLocation::Cpu(None);
            RegionDescriptor::new(key, id << 20, 4096, Permission::RemoteRead, place, 0).unwrap()
        };
        let made: Vec<_> = (1..=512).map(region).collect();
        let payload: Vec<u8> = made.iter().flat_map(RegionDescriptor::encode).collect();
        assert_eq!(payload.len(), 36 * 1024);
        let read: Result<Vec<_>, _> = regions(&payload).collect();
        assert_eq!(read, Ok(made));
    }

    #[test]
    fn a_walk_comes_forward_or_ends() {
        let first = Describe { cursor: 0, generation: 0 };
        let page = Page { generation: 4, next_cursor: 512, count: 512 };
        let second = page.next(&first).unwrap().unwrap();
        assert_eq!(second, Describe { cursor: 512, generation: 4 });
        let last = Page { generation: 4, next_cursor: 0, count: 0 };
        assert_eq!(last.next(&second), Ok(None));
        assert!(page.next(&second).is_err(), "the same cursor again");
        let newer = Page { generation: 5, next_cursor: 100, count: 100 };
        let again = newer.next(&second).unwrap().unwrap();
        assert_eq!(again, Describe { cursor: 100, generation: 5 }, "a newer catalog starts over");
        let empty = Page { generation: 4, next_cursor: 600, count: 0 };
        assert!(empty.next(&second).is_err(), "a page without regions that is not the last");
    }
}
