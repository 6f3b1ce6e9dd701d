//! Texts that help a reader of an error: what was written, cut to a decent length, and the known name
//! that it was probably meant to be.

use std::fmt::Write as _;

/// Characters of foreign text that an error repeats.
const SHOWN_CHARS: usize = 64;

/// Longest name for which a neighbour is looked for, bytes. Longer ones are no typing errors.
const NAME_BYTES: usize = 48;

/// `text` with control characters escaped, cut after 64 characters.
pub(super) fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        out.push_str("...");
    }
    out
}

/// The candidate that `name` was probably meant to be.
pub(super) fn nearest<'a>(
    name: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    if name.is_empty() || name.len() > NAME_BYTES {
        return None;
    }
    candidates
        .map(|candidate| (distance(name.as_bytes(), candidate.as_bytes()), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len().min(name.len()) / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `"a", "b" or "c"`.
pub(super) fn one_of(names: &[&str]) -> String {
    let mut out = String::new();
    for (index, name) in names.iter().enumerate() {
        let lead = match index {
            0 => "",
            _ if index + 1 == names.len() => " or ",
            _ => ", ",
        };
        // Writing to a string cannot fail.
        let _ = write!(out, "{lead}\"{name}\"");
    }
    out
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`, ASCII case
/// aside. Both are at most a few dozen bytes, so the cost has a bound.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let replaced = above[j] + usize::from(!x.eq_ignore_ascii_case(&y));
            let mut best = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && x == b[j - 1] && a[i - 1] == y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = core::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_swaps() {
        for (a, b, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("tcp", "tcp", 0),
            ("tpc", "tcp", 1),
            ("TCP", "tcp", 0),
            ("cores", "core", 1),
            ("slice_byte", "slice_bytes", 1),
            ("abc", "xyz", 3),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), expected, "{a} {b}");
        }
    }

    #[test]
    fn a_typing_error_finds_its_neighbour_and_a_foreign_word_finds_none() {
        let names = ["max_peer_segments", "max_registrations", "tcp", "shm"];
        assert_eq!(nearest("max_peer_segmets", names.into_iter()), Some("max_peer_segments"));
        assert_eq!(nearest("tpc", names.into_iter()), Some("tcp"));
        assert_eq!(nearest("metadata_server", names.into_iter()), None);
        assert_eq!(nearest(&"x".repeat(100_000), names.into_iter()), None);
    }

    #[test]
    fn foreign_text_is_cut_and_escaped() {
        assert_eq!(shown("a\nb"), "a\\nb");
        let long = shown(&"ä".repeat(1000));
        assert!(long.ends_with("...") && long.chars().count() == 67, "{long}");
    }
}
