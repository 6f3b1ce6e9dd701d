//! The kernel's list format for CPUs and nodes: `0-3,8` (Documentation/admin-guide/kernel-parameters,
//! "cpu lists"; without the `:` of grouped ranges, which the kernel accepts and never prints).

/// Numbers above this are taken for garbage. Kernels are built for at most 8192 CPUs today.
const NUMBER_MAX: u32 = 1 << 16;

/// The numbers of a list, ascending, each once. `None`: not such a list. An empty list is none either.
pub(crate) fn parse(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        // Overlapping ranges of full width could repeat for as long as the text is.
        if numbers.len() > NUMBER_MAX as usize {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

/// A plain decimal number; `parse` of the standard library would take a sign.
fn number(text: &str) -> Option<u32> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&number| number < NUMBER_MAX)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn ranges_and_single_numbers_are_joined_in_order() {
        for (text, numbers) in [
            ("0", &[0][..]),
            ("0-3,8", &[0, 1, 2, 3, 8]),
            ("8,0-2", &[0, 1, 2, 8]),
            ("2,1-3,2", &[1, 2, 3]),
            ("5-5", &[5]),
            ("0, 4", &[0, 4]),
            ("65535", &[65_535]),
        ] {
            assert_eq!(parse(text).as_deref(), Some(numbers), "{text}");
        }
    }

    #[test]
    fn anything_else_is_unknown() {
        for text in [
            "",
            ",",
            "0,",
            "-1",
            "-",
            "1-",
            "3-1",
            "+1",
            "0x3",
            "0-3:2/4",
            "all",
            "0 4",
            "65536",
            "0-4294967295",
            "99999999999",
            "0-65535,0-65535,0-65535",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
