//! What can be said of each key without its meaning: for the test that holds the document of keys to
//! the table.

use super::keys::{GROUP, ROOT, TRANSPORTS, join};
use super::kinds::{Key, Kind, Off};

/// One key of the configuration document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyFacts {
    /// Dotted path, transport keys without their group.
    pub path: String,
    /// Lowest and highest value of a number.
    pub range: Option<(u64, u64)>,
    /// The names that are taken, where the value is one of a few.
    pub names: Vec<&'static str>,
    /// The part that is not built and the value, as JSON, that asks for nothing of it.
    pub absent: Option<(&'static str, String)>,
}

/// Every key that has a value of its own, in the order of the table.
pub(crate) fn facts() -> Vec<KeyFacts> {
    let mut all = Vec::new();
    collect(ROOT, "", &mut all);
    collect(TRANSPORTS, "", &mut all);
    all
}

fn collect(keys: &'static [Key], above: &str, all: &mut Vec<KeyFacts>) {
    for key in keys {
        let mut facts = KeyFacts { path: join(above, key.name), ..KeyFacts::default() };
        match &key.kind {
            Kind::Object(inner) => {
                // Keys of the group are those of the second table, which is walked by itself.
                if key.name != GROUP {
                    collect(inner, &facts.path, all);
                }
                continue;
            }
            Kind::Count(count) => facts.range = Some((*count.range.start(), *count.range.end())),
            Kind::Word(word) => facts.names = word.names.to_vec(),
            Kind::Absent(absent) => facts.absent = Some((absent.part, off(&absent.off))),
            Kind::Flag(_) | Kind::Text(_) | Kind::List(_) => {}
        }
        all.push(facts);
    }
}

fn off(off: &Off) -> String {
    match off {
        Off::Count(_, default) => default.to_string(),
        Off::Flag(default) => default.to_string(),
        Off::EmptyList => "[]".into(),
        Off::Null | Off::Object { .. } => "null".into(),
    }
}
