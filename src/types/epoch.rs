//! The source epoch: the secret that names one life of one engine and gives the right to open it.

use core::fmt;

use alloc::string::ToString;

use super::ids::EngineId;

/// 128 random bits made once for each engine. Whoever knows them may open the engine as a peer, so
/// they are handed from program to program over a channel that both trust, and never logged.
///
/// Text form: 32 lower-case hexadecimal digits. `Debug` shows the first digits of the engine id (a
/// one-way digest) instead of the epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceEpoch([u8; 16]);

impl SourceEpoch {
    /// From 16 bytes. `None` for all zero, which no engine has.
    pub const fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        if u128::from_le_bytes(bytes) == 0 { None } else { Some(Self(bytes)) }
    }

    /// From 32 hexadecimal digits, lower case only. `None` for any other text and for all zero.
    pub fn from_hex(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 32 {
            return None;
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Self::from_bytes(bytes)
    }

    /// The 32 hexadecimal digits. The text is the secret itself: keep it out of logs and arguments.
    #[expect(clippy::format_collect, reason = "16 short writes on a cold path")]
    pub fn to_hex(&self) -> alloc::string::String {
        self.0.iter().map(|byte| alloc::format!("{byte:02x}")).collect()
    }

    /// The raw secret, for key derivation only.
    pub(crate) const fn secret_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

const fn digit(text: u8) -> Option<u8> {
    match text {
        b'0'..=b'9' => Some(text - b'0'),
        b'a'..=b'f' => Some(text - b'a' + 10),
        _ => None,
    }
}

impl fmt::Debug for SourceEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = EngineId::of(self).to_string();
        write!(f, "SourceEpoch(of engine {}..)", id.get(..8).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_nothing_else_is_taken() {
        let epoch = SourceEpoch::from_bytes([0xab; 16]).unwrap();
        assert_eq!(SourceEpoch::from_hex(&epoch.to_hex()), Some(epoch));
        for bad in ["", "ab", &"0".repeat(32), &"AB".repeat(16), &"g".repeat(32), &"ab".repeat(17)]
        {
            assert_eq!(SourceEpoch::from_hex(bad), None, "{bad}");
        }
    }

    #[test]
    fn debug_shows_the_engine_and_never_the_epoch() {
        let epoch = SourceEpoch::from_bytes([0x5a; 16]).unwrap();
        let shown = std::format!("{epoch:?}");
        assert!(!shown.contains("5a5a"), "{shown}");
        assert!(shown.contains(&std::format!("{}", EngineId::of(&epoch))[..8]), "{shown}");
    }
}
