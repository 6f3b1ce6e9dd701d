//! Values of the command line that have a unit, a list or a range.

use std::str::FromStr;
use std::time::Duration;

/// Units of sizes. Powers of 1024 alone, under their own names.
const UNITS: [(&str, u64); 5] =
    [("tib", 1 << 40), ("gib", 1 << 30), ("mib", 1 << 20), ("kib", 1 << 10), ("b", 1)];

/// Bytes of `4096`, `4KiB`, `64MiB`. The unit's case does not matter.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((lower.strip_suffix(name)?, *unit)))
        .unwrap_or((&lower, 1));
    let digits = digits.trim_end();
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(format!(
            "`{text}` is no size; write bytes, or a whole number with KiB, MiB, GiB"
        ));
    }
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| format!("`{text}` is more than 2^64 bytes"))
}

/// `bytes` inside `low..=high`.
pub(crate) fn bytes_between(text: &str, low: u64, high: u64) -> Result<u64, String> {
    let size = bytes(text)?;
    if (low..=high).contains(&size) {
        return Ok(size);
    }
    Err(format!("{} is outside {}..={}", show(size), show(low), show(high)))
}

/// `4 KiB` where the number is whole in that unit, else the number of bytes.
pub(crate) fn show(size: u64) -> String {
    let names = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (name, unit) in names {
        if size >= unit && size % unit == 0 {
            return format!("{} {name}", size / unit);
        }
    }
    format!("{size} B")
}

/// Several sizes, or several counts: `4KiB,1MiB`, or `4KiB..64MiB`, doubling from the first while it
/// is not over the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Steps(pub Vec<u64>);

/// Most members of one list.
const STEPS_MAX: usize = 64;

impl Steps {
    fn parse(text: &str, one: impl Fn(&str) -> Result<u64, String>) -> Result<Self, String> {
        let mut steps = Vec::new();
        for part in text.split(',') {
            let Some((first, last)) = part.split_once("..") else {
                steps.push(one(part)?);
                continue;
            };
            let (first, last) = (one(first)?, one(last.strip_prefix('=').unwrap_or(last))?);
            if first > last {
                return Err(format!("`{part}` runs backwards"));
            }
            let mut step = Some(first);
            while let Some(size) = step.filter(|size| *size <= last) {
                steps.push(size);
                step = size.checked_mul(2);
            }
        }
        if steps.len() > STEPS_MAX {
            return Err(format!("{} values are more than {STEPS_MAX}", steps.len()));
        }
        Ok(Self(steps))
    }

    /// Block sizes, 1 byte to 1 GiB each.
    pub(crate) fn blocks(text: &str) -> Result<Self, String> {
        Self::parse(text, |part| bytes_between(part, 1, 1 << 30))
    }

    /// Requests in a batch, 1 to 4096 each.
    pub(crate) fn batches(text: &str) -> Result<Self, String> {
        Self::parse(text, |part| match part.trim().parse() {
            Ok(count @ 1..=4096) => Ok(count),
            _ => Err(format!("`{part}` is no number in 1..=4096")),
        })
    }
}

/// A time such as `1.5s`, `200ms`, `50us`, up to one hour.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];
    let wrong = || format!("`{text}` is no time; write 1.5s or 200ms, at most 3600s");
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))
        .ok_or_else(wrong)?;
    let plain = |c: char| c.is_ascii_digit() || c == '.';
    if !number.chars().all(plain) {
        return Err(wrong());
    }
    let seconds = f64::from_str(number).map_err(|_| wrong())? * unit;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| *time <= Duration::from_secs(3600))
        .ok_or_else(wrong)
}

/// [`duration`], but not zero.
pub(crate) fn some_duration(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time.is_zero() { Err(format!("`{text}` is no time at all")) } else { Ok(time) }
}

/// CPU numbers of `0-3,8`, in the order written. Each once.
pub(crate) fn cpu_list(text: &str) -> Result<Vec<u32>, String> {
    let wrong = || format!("`{text}` is no list of CPUs; write numbers such as 0,2 or 0-3");
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.parse().map_err(|_| wrong())?;
        let last: u32 = last.parse().map_err(|_| wrong())?;
        if first > last || last >= 1 << 16 {
            return Err(wrong());
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(format!("CPU {cpu} is named twice in `{text}`"));
            }
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_powers_of_1024() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("1B", 1),
            ("4KiB", 4096),
            ("4 kib", 4096),
            ("64MiB", 64 << 20),
            ("1GiB", 1 << 30),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for bad in ["", "KiB", "-1", "1.5MiB", "4KB", "4K", "0x10", "1e3", "99999999999TiB", "1 1"]
        {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert!(bytes_between("1KiB", 4096, 8192).is_err());
        assert_eq!(bytes_between("4KiB", 4096, 8192), Ok(4096));
    }

    #[test]
    fn sizes_are_shown_in_their_largest_whole_unit() {
        for (size, text) in [(1, "1 B"), (4096, "4 KiB"), (4097, "4097 B"), (3 << 30, "3 GiB")] {
            assert_eq!(show(size), text);
        }
    }

    #[test]
    fn ranges_double_and_lists_are_kept_in_order() {
        assert_eq!(Steps::blocks("4KiB..16KiB"), Ok(Steps(vec![4096, 8192, 16384])));
        assert_eq!(Steps::blocks("3..13"), Ok(Steps(vec![3, 6, 12])));
        assert_eq!(Steps::blocks("1MiB,4KiB"), Ok(Steps(vec![1 << 20, 4096])));
        assert_eq!(Steps::batches("1,64"), Ok(Steps(vec![1, 64])));
        for bad in ["", "0", "2GiB", "8..4", "4KiB..", ","] {
            assert!(Steps::blocks(bad).is_err(), "{bad}");
        }
        for bad in ["0", "4097", "1KiB", "x", "1,,2"] {
            assert!(Steps::batches(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_a_unit_and_a_bound() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(duration("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for bad in ["", "1", "s", "-1s", "1h", "3601s", "infs", "nans", "1e3s", "1.2.3s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert!(some_duration("0ms").is_err());
    }

    #[test]
    fn cpus_are_listed_once_each() {
        assert_eq!(cpu_list("0-2,8"), Ok(vec![0, 1, 2, 8]));
        assert_eq!(cpu_list("3,1"), Ok(vec![3, 1]));
        for bad in ["", "a", "1,1", "0-2,1", "3-1", "0-99999999", "-1"] {
            assert!(cpu_list(bad).is_err(), "{bad}");
        }
    }
}
