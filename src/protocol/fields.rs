//! Little-endian fields of a fixed body, read and written from front to back.

/// Reads a body whose length the caller has checked.
///
/// A field that reaches past the end reads as zeros; [`finish`](Self::finish) tells. So no length, not
/// even one that a caller forgot to check, can panic here.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    clean: bool,
}

impl<'a> Fields<'a> {
    pub const fn new(body: &'a [u8]) -> Self {
        Self { rest: body, clean: true }
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        if let Some((field, rest)) = self.rest.split_first_chunk::<N>() {
            self.rest = rest;
            *field
        } else {
            self.rest = &[];
            self.clean = false;
            [0; N]
        }
    }

    #[inline]
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    #[inline]
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    #[inline]
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    #[inline]
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Passes over `N` reserved bytes and notes whether one of them is not zero.
    #[inline]
    pub fn reserved<const N: usize>(&mut self) {
        self.clean &= self.array::<N>() == [0; N];
    }

    /// Whether the body was exactly as long as what was read, and all reserved bytes were zero.
    #[inline]
    pub const fn finish(self) -> bool {
        self.clean && self.rest.is_empty()
    }
}

/// Writes the fields of a body that starts as zeros. What does not fit is dropped, which only a wrong
/// layout in this room can cause and debug builds refuse.
pub(crate) struct Put<'a> {
    rest: &'a mut [u8],
}

impl<'a> Put<'a> {
    pub const fn new(body: &'a mut [u8]) -> Self {
        Self { rest: body }
    }

    #[inline]
    pub fn array<const N: usize>(self, field: [u8; N]) -> Self {
        if let Some((place, rest)) = self.rest.split_first_chunk_mut::<N>() {
            *place = field;
            Self { rest }
        } else {
            debug_assert!(false, "a field of {N} bytes does not fit its body");
            Self { rest: &mut [] }
        }
    }

    #[inline]
    pub fn u8(self, field: u8) -> Self {
        self.array(field.to_le_bytes())
    }

    #[inline]
    pub fn u16(self, field: u16) -> Self {
        self.array(field.to_le_bytes())
    }

    #[inline]
    pub fn u32(self, field: u32) -> Self {
        self.array(field.to_le_bytes())
    }

    #[inline]
    pub fn u64(self, field: u64) -> Self {
        self.array(field.to_le_bytes())
    }

    /// `N` reserved bytes: zeros.
    #[inline]
    pub fn reserved<const N: usize>(self) -> Self {
        self.array([0; N])
    }

    /// Ends the body. Debug builds refuse a layout that leaves bytes over.
    #[inline]
    pub fn finish(self) {
        debug_assert!(self.rest.is_empty(), "{} bytes of the body are left over", self.rest.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_a_long_and_a_dirty_body_are_told() {
        let body = [1, 2, 0, 0, 0, 0];
        let mut fields = Fields::new(&body);
        assert_eq!(fields.u16(), 0x0201);
        fields.reserved::<4>();
        assert!(fields.finish());

        let mut long = Fields::new(&body);
        assert_eq!(long.u32(), 0x0201);
        assert!(!long.finish());

        let mut short = Fields::new(&body);
        assert_eq!(short.u64(), 0, "a field past the end is zero");
        assert_eq!(short.u8(), 0, "and so is what follows it");
        assert!(!short.finish());

        let mut dirty = Fields::new(&body);
        dirty.reserved::<6>();
        assert!(!dirty.finish());
    }

    #[test]
    fn what_is_put_is_read() {
        let mut body = [0xff; 19];
        Put::new(&mut body).u8(1).u16(2).u32(3).u64(4).reserved::<4>().finish();
        let mut fields = Fields::new(&body);
        assert_eq!((fields.u8(), fields.u16(), fields.u32(), fields.u64()), (1, 2, 3, 4));
        fields.reserved::<4>();
        assert!(fields.finish());
    }
}
