//! The vocabulary of the table of keys: what a value can be, and what a part that is not built takes.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::EngineConfig;
use super::value::Found;

/// One key of an object.
pub(super) struct Key {
    pub name: &'static str,
    pub kind: Kind,
}

/// What a key's value is.
pub(super) enum Kind {
    Flag(Flag),
    Count(Count),
    Word(Word),
    Text(Text),
    List(List),
    Object(&'static [Key]),
    Absent(Absent),
}

/// `true` or `false`.
pub(super) struct Flag {
    pub get: fn(&EngineConfig) -> bool,
    pub set: fn(&mut EngineConfig, bool),
}

/// A whole number in a range that its field can hold.
pub(super) struct Count {
    pub range: RangeInclusive<u64>,
    pub power_of_two: bool,
    pub get: fn(&EngineConfig) -> u64,
    pub set: fn(&mut EngineConfig, u64),
}

/// One of a few names.
pub(super) struct Word {
    pub names: &'static [&'static str],
    /// Names that are known and refused, with the reason.
    pub refused: &'static [(&'static str, &'static str)],
    pub get: fn(&EngineConfig) -> &'static str,
    pub set: fn(&mut EngineConfig, &str),
}

/// A text with a form of its own.
pub(super) struct Text {
    /// What is expected, for errors.
    pub form: &'static str,
    pub nullable: bool,
    pub get: fn(&EngineConfig) -> Option<String>,
    pub set: fn(&mut Draft, Option<&str>) -> Result<(), String>,
}

/// A list of scalars.
pub(super) struct List {
    /// What an element is, for errors.
    pub form: &'static str,
    pub most: usize,
    pub get: fn(&EngineConfig) -> Vec<Value>,
    pub push: fn(&mut Draft, &Found<'_>) -> Result<(), String>,
    /// The whole list as one text, where that is a form too.
    pub text: Option<SetText>,
}

/// Stores a value given as one text.
pub(super) type SetText = fn(&mut Draft, &str) -> Result<(), String>;

/// A key of a part that this version does not have.
pub(super) struct Absent {
    /// The part, as an error names it.
    pub part: &'static str,
    pub off: Off,
}

/// The values of an absent part that ask for nothing.
pub(super) enum Off {
    /// Its default, of that range.
    Count(RangeInclusive<u64>, u64),
    /// Its default.
    Flag(bool),
    /// Only `null`.
    Null,
    /// Only the empty list.
    EmptyList,
    /// `null`, `false`, `{"enable": false}`, and `{}` where that leaves it off.
    Object { empty: bool },
}

impl Absent {
    /// Why any other value is refused.
    pub fn reason(&self) -> String {
        let default = match &self.off {
            Off::Count(_, default) => default.to_string(),
            Off::Flag(default) => default.to_string(),
            Off::EmptyList => "[]".into(),
            Off::Null | Off::Object { .. } => "null".into(),
        };
        format!(
            "needs {}, which this version does not have; remove the key or write {default}",
            self.part
        )
    }
}

/// A configuration on its way in. Key files are only named here: they are read after all checks.
#[derive(Default)]
pub(super) struct Draft {
    pub config: EngineConfig,
    pub psk_file: Option<String>,
    pub previous_psk_file: Option<String>,
}
