//! One value of the document against its kind: taken and stored, or refused with what would be right.

use std::fmt;
use std::ops::RangeInclusive;

use super::hint::{nearest, one_of, shown};
use super::kinds::{Absent, Count, Draft, Kind, List, Off, Word};

/// A value as it was met, with as much of it as an error may repeat.
pub(super) enum Found<'a> {
    Null,
    Flag(bool),
    Integer(i128),
    Float(f64),
    Text(&'a str),
    List,
    Object,
}

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Flag(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(text) => write!(f, "the text \"{}\"", shown(text)),
            Self::List => f.write_str("a list"),
            Self::Object => f.write_str("an object"),
        }
    }
}

/// Stores a value that is neither an expected list nor an expected object.
pub(super) fn take(kind: &Kind, draft: &mut Draft, found: &Found<'_>) -> Result<(), String> {
    match (kind, found) {
        (Kind::Flag(flag), Found::Flag(value)) => (flag.set)(&mut draft.config, *value),
        (Kind::Flag(_), _) => return Err(format!("must be true or false; found {found}")),
        (Kind::Count(count), _) => {
            let value = integer(&count.range, found)?;
            power_of_two(count, value)?;
            (count.set)(&mut draft.config, value);
        }
        (Kind::Word(word), Found::Text(text)) => {
            named(word, text)?;
            (word.set)(&mut draft.config, text);
        }
        (Kind::Word(word), _) => {
            return Err(format!("must be {}; found {found}", one_of(word.names)));
        }
        (Kind::Text(text), Found::Text(value)) => (text.set)(draft, Some(value))?,
        (Kind::Text(text), Found::Null) if text.nullable => (text.set)(draft, None)?,
        (Kind::Text(text), _) => {
            let or_null = if text.nullable { " or null" } else { "" };
            return Err(format!("must be {} in quotes{or_null}; found {found}", text.form));
        }
        (Kind::List(List { text: Some(set), .. }), Found::Text(text)) => {
            set(draft, text)?;
        }
        (Kind::List(list), _) => {
            return Err(format!("must be a list, each element {}; found {found}", list.form));
        }
        (Kind::Object(_), _) => return Err(format!("must be an object; found {found}")),
        (Kind::Absent(absent), _) => off(absent, found)?,
    }
    Ok(())
}

/// Whether `found` leaves an absent part off.
fn off(absent: &Absent, found: &Found<'_>) -> Result<(), String> {
    let leaves_off = match (&absent.off, found) {
        (Off::Count(range, default), _) => integer(range, found)? == *default,
        (Off::Flag(default), Found::Flag(value)) => value == default,
        (Off::Flag(_), _) => return Err(format!("must be true or false; found {found}")),
        (Off::Null, Found::Null) | (Off::Object { .. }, Found::Null | Found::Flag(false)) => true,
        (Off::EmptyList, Found::List) | (Off::Null | Off::Object { .. }, _) => false,
        (Off::EmptyList, _) => return Err(format!("must be a list; found {found}")),
    };
    if leaves_off { Ok(()) } else { Err(absent.reason()) }
}

fn integer(range: &RangeInclusive<u64>, found: &Found<'_>) -> Result<u64, String> {
    let (low, high) = (range.start(), range.end());
    let advice = match found {
        Found::Integer(number) => match u64::try_from(*number) {
            Ok(value) if range.contains(&value) => return Ok(value),
            _ => return Err(format!("must be {low}..={high}; found {number}")),
        },
        Found::Float(_) => " without fraction or exponent",
        Found::Text(_) => " without quotes",
        _ => "",
    };
    Err(format!("must be an integer {low}..={high}{advice}; found {found}"))
}

/// The rule of a count that is more than a range.
pub(super) fn power_of_two(count: &Count, value: u64) -> Result<(), String> {
    if !count.power_of_two || value.is_power_of_two() {
        return Ok(());
    }
    let (low, high) = (count.range.start(), count.range.end());
    let (above, below) = (value.next_power_of_two(), value.next_power_of_two() / 2);
    Err(format!(
        "must be a power of two in {low}..={high}; found {value}, next to {below} and {above}"
    ))
}

fn named(word: &Word, text: &str) -> Result<(), String> {
    if word.names.contains(&text) {
        return Ok(());
    }
    let names = one_of(word.names);
    if let Some((_, reason)) = word.refused.iter().find(|(name, _)| *name == text) {
        return Err(format!("\"{text}\" {reason}; write {names}"));
    }
    Err(match nearest(text, word.names.iter().copied()) {
        Some(near) => {
            format!("must be {names}; found \"{}\"; did you mean \"{near}\"?", shown(text))
        }
        None => format!("must be {names}; found \"{}\"", shown(text)),
    })
}
