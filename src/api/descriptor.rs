//! One opaque string that names an engine to its peers.
//!
//! `orbite1.` and lower-case hexadecimal digits of: build id (8 bytes), epoch (16), length of the
//! endpoint (1), endpoint, CRC-32C of all that precedes (4, little-endian). The length makes any cut
//! visible, the checksum any single changed digit. No error ever repeats the text.

use std::fmt::{self, Write as _};

use crate::error::{Error, Result};
use crate::types::{Endpoint, SourceEpoch};

/// What every form of the text starts with. No numeric endpoint does.
const NAME: &str = "orbite";
/// The one form that this build writes and reads.
const FORM: &str = "1";

/// Bytes before the endpoint: build id, epoch, length.
const HEAD: usize = 8 + 16 + 1;
const CHECKSUM: usize = 4;
/// Longest body, so that a longer text is refused before any of it is decoded.
const MAX_BODY: usize = HEAD + u8::MAX as usize + CHECKSUM;

/// Endpoint, epoch and build of an engine in one string, to pass to a peer over any channel that both
/// trust: the text contains the epoch, which is the right to open the engine.
///
/// `Debug` and `Display` of errors never show it; [`as_str`](Self::as_str) does.
#[derive(Clone, PartialEq, Eq)]
pub struct Descriptor(String);

/// What a descriptor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorParts {
    /// Numeric endpoint.
    pub endpoint: String,
    /// The secret of the engine.
    pub epoch: SourceEpoch,
    /// Build id of the engine.
    pub build: [u8; 8],
}

impl Descriptor {
    /// The descriptor of an engine. `endpoint` is numeric, so it has far fewer than 256 bytes.
    pub(crate) fn new(endpoint: &str, epoch: &SourceEpoch, build: [u8; 8]) -> Self {
        let mut body = Vec::with_capacity(MAX_BODY);
        body.extend_from_slice(&build);
        body.extend_from_slice(epoch.secret_bytes());
        body.push(u8::try_from(endpoint.len()).unwrap_or(u8::MAX));
        body.extend_from_slice(endpoint.as_bytes());
        body.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        let mut text = format!("{NAME}{FORM}.");
        for byte in body {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
    }

    /// The text, secret included.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether `text` is meant as a descriptor, of whatever form, and not as an endpoint.
pub(crate) fn is_descriptor(text: &str) -> bool {
    text.trim_ascii().starts_with(NAME)
}

/// What the text of a descriptor says. Blanks and newlines around it are ignored, since it travels
/// through files and terminals. `InvalidRequest`, without any part of the text, for a cut, changed or
/// foreign text and for one of another form.
pub(crate) fn parse(text: &str) -> Result<DescriptorParts> {
    decode(text.trim_ascii()).map_err(|fault| Error::InvalidRequest(fault.to_string()))
}

/// Why a text is no descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error(
        "the text is no engine descriptor; pass the whole text that the peer's descriptor() gave"
    )]
    Foreign,
    #[error(
        "the engine descriptor has another form than the one this build reads ({FORM}); run the same \
         build on both sides"
    )]
    Form,
    #[error(
        "the engine descriptor is cut or has text added; copy the whole text that the peer's \
         descriptor() gave"
    )]
    Length,
    #[error(
        "the engine descriptor was changed on its way (its checksum does not match); copy the text \
         that the peer's descriptor() gave again"
    )]
    Changed,
}

fn decode(text: &str) -> core::result::Result<DescriptorParts, Fault> {
    let (form, digits) =
        text.strip_prefix(NAME).and_then(|rest| rest.split_once('.')).ok_or(Fault::Foreign)?;
    if form.is_empty() || form.len() > 4 || !form.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Fault::Foreign);
    }
    if form != FORM {
        return Err(Fault::Form);
    }
    if digits.len() > 2 * MAX_BODY || digits.len() % 2 != 0 {
        return Err(Fault::Length);
    }
    let body: Vec<u8> =
        digits.as_bytes().chunks_exact(2).map(byte).collect::<Option<_>>().ok_or(Fault::Changed)?;

    let (build, rest) = body.split_first_chunk::<8>().ok_or(Fault::Length)?;
    let (epoch, rest) = rest.split_first_chunk::<16>().ok_or(Fault::Length)?;
    let (length, rest) = rest.split_first().ok_or(Fault::Length)?;
    let (endpoint, checksum) = rest.split_last_chunk::<CHECKSUM>().ok_or(Fault::Length)?;
    if endpoint.len() != usize::from(*length) {
        return Err(Fault::Length);
    }
    let covered = body.get(..HEAD + endpoint.len()).ok_or(Fault::Length)?;
    if crc32c::crc32c(covered) != u32::from_le_bytes(*checksum) {
        return Err(Fault::Changed);
    }
    let epoch = SourceEpoch::from_bytes(*epoch).ok_or(Fault::Changed)?;
    let endpoint = core::str::from_utf8(endpoint).map_err(|_| Fault::Changed)?;
    Endpoint::parse(endpoint).map_err(|_| Fault::Changed)?;
    Ok(DescriptorParts { endpoint: endpoint.into(), epoch, build: *build })
}

/// A byte from two lower-case hexadecimal digits.
fn byte(pair: &[u8]) -> Option<u8> {
    let digit = |text: u8| match text {
        b'0'..=b'9' => Some(text - b'0'),
        b'a'..=b'f' => Some(text - b'a' + 10),
        _ => None,
    };
    match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    }
}

impl AsRef<str> for Descriptor {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Descriptor(<redacted>)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(endpoint: &str) -> DescriptorParts {
        let epoch = SourceEpoch::from_bytes(*b"epoch of a test!").unwrap();
        DescriptorParts { endpoint: endpoint.into(), epoch, build: *b"build id" }
    }

    fn text(parts: &DescriptorParts) -> String {
        Descriptor::new(&parts.endpoint, &parts.epoch, parts.build).as_str().into()
    }

    #[test]
    fn a_descriptor_says_what_it_was_made_of() {
        for endpoint in ["127.0.0.1:1", "[::1]:65535", "[fe80::1:2:3:4%4294967295]:7000"] {
            let parts = parts(endpoint);
            let text = text(&parts);
            assert!(is_descriptor(&text) && !is_descriptor(endpoint));
            assert_eq!(parse(&text).unwrap(), parts);
            assert_eq!(parse(&format!(" {text}\r\n")).unwrap(), parts);
        }
    }

    /// LOG-025: every prefix and every single-bit flip is an error or an equal descriptor.
    #[test]
    fn a_cut_or_changed_descriptor_is_refused_and_never_repeated() {
        let parts = parts("[2001:db8::17]:12345");
        let whole = text(&parts);
        let mut changed: Vec<String> = (0..whole.len()).map(|end| whole[..end].into()).collect();
        changed.extend((1..whole.len()).map(|start| whole[start..].into()));
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            changed.extend(String::from_utf8(bytes));
        }
        changed.extend((0..whole.len()).map(|at| format!("{}0{}", &whole[..at], &whole[at..])));
        for bad in changed {
            match parse(&bad) {
                Ok(same) => assert_eq!(same, parts, "{bad}"),
                Err(error) => {
                    assert_eq!(error.code(), "invalid_request");
                    let shown = format!("{error} {error:?}");
                    assert!(!shown.contains(&parts.epoch.to_hex()[..8]), "{shown}");
                    assert!(bad.len() < 12 || !shown.contains(&bad[8..12]), "{shown}");
                }
            }
        }
    }

    #[test]
    fn two_exchanged_digits_are_noticed() {
        let parts = parts("10.0.0.1:4000");
        let whole = text(&parts).into_bytes();
        for at in 8..whole.len() - 1 {
            let mut swapped = whole.clone();
            swapped.swap(at, at + 1);
            let same = swapped == whole;
            assert_eq!(parse(core::str::from_utf8(&swapped).unwrap()).is_ok(), same, "{at}");
        }
    }

    #[test]
    fn an_error_says_what_to_do() {
        let whole = text(&parts("10.0.0.1:4000"));
        for (bad, word) in [
            (whole[..40].to_owned(), "cut"),
            (whole.replacen("orbite1", "orbite2", 1), "same build"),
            (whole.to_uppercase().replacen("ORBITE", "orbite", 1), "changed"),
            (format!("orbite1.{}", "0".repeat(1_000_000)), "cut"),
            ("orbite".to_owned(), "whole text"),
            (String::new(), "whole text"),
        ] {
            let error = parse(&bad).unwrap_err().to_string();
            assert!(error.contains(word) && error.len() < 200, "{word}: {error}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let parts = parts("10.0.0.1:4000");
        let shown = format!("{:?} {parts:?}", Descriptor::new("10.0.0.1:1", &parts.epoch, [0; 8]));
        assert!(!shown.contains("epoch of") && !shown.contains(&parts.epoch.to_hex()), "{shown}");
    }
}
