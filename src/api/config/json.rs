//! The strict reader of the document.
//!
//! serde_json drives; each value is held against the table of `keys` at the moment it is met and
//! stored at once. So the first error in document order is the one that is told, the time is linear,
//! and the nesting is never deeper than the table's own, whatever the bytes are: a value that the
//! table does not expect ends the reading at its first character.

use std::borrow::Cow;
use std::fmt;

use serde::de::{
    Deserialize as _, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};

use super::hint::{nearest, shown};
use super::keys::{GROUP, ROOT, TRANSPORTS, object_of};
use super::kinds::{Absent, Draft, Key, Kind, List, Off};
use super::value::{Found, take};

const TWICE: &str = "the key stands twice in this object; keep one";

/// Why a document was refused.
pub(super) struct Fault {
    /// Dotted path of the key, or `document`.
    pub path: String,
    /// What is wrong and what would be right.
    pub reason: String,
    /// Where reading stopped: line and column, counted from 1.
    pub place: (usize, usize),
}

/// What the reading gave.
pub(super) struct Document {
    pub draft: Draft,
    /// Transport keys that stood inside `transports`.
    pub grouped: Vec<&'static str>,
}

/// Reads a whole document over the defaults.
pub(super) fn read(text: &str) -> Result<Document, Fault> {
    let mut reader = Reader::default();
    let mut json = serde_json::Deserializer::from_str(text);
    let root = Slot { target: Target::Root, reader: &mut reader };
    match root.deserialize(&mut json).and_then(|()| json.end()) {
        Ok(()) => {
            let grouped = reader.transports.iter().filter(|(_, inside)| *inside);
            Ok(Document { grouped: grouped.map(|(name, _)| *name).collect(), draft: reader.draft })
        }
        Err(error) => Err(reader.fault(&error)),
    }
}

#[derive(Default)]
struct Reader {
    draft: Draft,
    /// The keys and indices that lead to the present value.
    path: Vec<Cow<'static, str>>,
    /// Transport keys met so far, and whether they stood inside `transports`.
    transports: Vec<(&'static str, bool)>,
    /// The first error of ours. serde's own error type has no room for a path.
    refused: Option<(String, String)>,
}

impl Reader {
    fn here(&self) -> String {
        let mut path = String::new();
        for step in &self.path {
            if !path.is_empty() && !step.starts_with('[') {
                path.push('.');
            }
            path.push_str(step);
        }
        if path.is_empty() { "document".into() } else { path }
    }

    fn refuse<E: Error>(&mut self, reason: String) -> E {
        let here = self.here();
        self.refused.get_or_insert((here, reason));
        E::custom("refused")
    }

    /// `refuse` for a key below the present value.
    fn refuse_key<E: Error>(&mut self, name: &str, reason: String) -> E {
        self.path.push(Cow::Owned(shown(name)));
        self.refuse(reason)
    }

    fn fault(self, error: &serde_json::Error) -> Fault {
        let place = (error.line(), error.column());
        if let Some((path, reason)) = self.refused {
            return Fault { path, reason, place };
        }
        let told = error.to_string();
        let message = told.rsplit_once(" at line ").map_or(told.as_str(), |(told, _)| told);
        Fault { path: self.here(), reason: format!("not valid JSON: {message}"), place }
    }

    /// Takes a value that is neither an expected list nor an expected object.
    fn take(&mut self, target: Target, found: &Found<'_>) -> Result<(), String> {
        match target {
            Target::Root => Err(format!("must be an object; found {found}")),
            Target::Element(list) => (list.push)(&mut self.draft, found),
            Target::Value(kind) => take(kind, &mut self.draft, found),
            Target::Switch(absent) => match found {
                Found::Flag(false) => Ok(()),
                Found::Flag(true) => {
                    // The part is at fault, not its switch.
                    self.path.pop();
                    Err(absent.reason())
                }
                _ => Err(format!("must be true or false; found {found}")),
            },
        }
    }
}

/// What the next value is held against.
#[derive(Clone, Copy)]
enum Target {
    Root,
    Value(&'static Kind),
    Element(&'static List),
    /// `enable` of an absent part.
    Switch(&'static Absent),
}

/// The place of the next value.
struct Slot<'r> {
    target: Target,
    reader: &'r mut Reader,
}

impl<'de> DeserializeSeed<'de> for Slot<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl Slot<'_> {
    fn scalar<E: Error>(self, found: &Found<'_>) -> Result<(), E> {
        self.reader.take(self.target, found).map_err(|reason| self.reader.refuse(reason))
    }
}

impl<'de> Visitor<'de> for Slot<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of the configuration")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.scalar(&Found::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.scalar(&Found::Flag(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.scalar(&Found::Integer(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.scalar(&Found::Integer(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.scalar(&Found::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.scalar(&Found::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<(), A::Error> {
        match self.target {
            Target::Value(Kind::List(list)) => read_list(list, elements, self.reader),
            Target::Value(Kind::Absent(Absent { off: Off::EmptyList, .. })) => {
                // The first element, if there is one, is held against the part that is absent.
                read_elements(self.target, 0, elements, self.reader)
            }
            _ => self.scalar(&Found::List),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<(), A::Error> {
        match self.target {
            Target::Root => read_object(Level::Root, entries, self.reader),
            Target::Value(Kind::Object(keys)) => {
                let grouped = self.reader.path.len() == 1 && self.reader.path[0] == GROUP;
                let level = if grouped { Level::Transports } else { Level::Plain(keys) };
                read_object(level, entries, self.reader)
            }
            Target::Value(Kind::Absent(absent)) if matches!(absent.off, Off::Object { .. }) => {
                read_switch(absent, entries, self.reader)
            }
            _ => self.scalar(&Found::Object),
        }
    }
}

fn read_list<'de, A: SeqAccess<'de>>(
    list: &'static List,
    elements: A,
    reader: &mut Reader,
) -> Result<(), A::Error> {
    read_elements(Target::Element(list), list.most, elements, reader)
}

fn read_elements<'de, A: SeqAccess<'de>>(
    target: Target,
    most: usize,
    mut elements: A,
    reader: &mut Reader,
) -> Result<(), A::Error> {
    for index in 0.. {
        reader.path.push(Cow::Owned(format!("[{index}]")));
        let slot = ElementSlot { target, full: index >= most, most, reader: &mut *reader };
        let met = elements.next_element_seed(slot)?;
        reader.path.pop();
        if met.is_none() {
            break;
        }
    }
    Ok(())
}

/// The place of the next element; refuses it at its first character where the list is full.
struct ElementSlot<'r> {
    target: Target,
    full: bool,
    most: usize,
    reader: &'r mut Reader,
}

impl<'de> DeserializeSeed<'de> for ElementSlot<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        if !self.full {
            return Slot { target: self.target, reader: self.reader }.deserialize(json);
        }
        let reason = match self.target {
            Target::Value(Kind::Absent(absent)) => {
                self.reader.path.pop();
                absent.reason()
            }
            _ => format!("the list has more than {} elements", self.most),
        };
        Err(self.reader.refuse(reason))
    }
}

/// Which keys an object may have.
#[derive(Clone, Copy)]
enum Level {
    /// Its own and those of [`TRANSPORTS`].
    Root,
    /// Those of [`TRANSPORTS`] that the root has not.
    Transports,
    Plain(&'static [Key]),
}

fn read_object<'de, A: MapAccess<'de>>(
    level: Level,
    mut entries: A,
    reader: &mut Reader,
) -> Result<(), A::Error> {
    let mut seen = Vec::new();
    loop {
        let name = NameSlot { level, seen: &mut seen, reader: &mut *reader };
        let Some(key) = entries.next_key_seed(name)? else { return Ok(()) };
        reader.path.push(Cow::Borrowed(key.name));
        let value = Slot { target: Target::Value(&key.kind), reader: &mut *reader };
        entries.next_value_seed(value)?;
        reader.path.pop();
    }
}

/// The place of the next key of an object.
struct NameSlot<'r> {
    level: Level,
    seen: &'r mut Vec<&'static str>,
    reader: &'r mut Reader,
}

impl<'de> DeserializeSeed<'de> for NameSlot<'_> {
    type Value = &'static Key;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<&'static Key, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for NameSlot<'_> {
    type Value = &'static Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<&'static Key, E> {
        let find = |keys: &'static [Key]| keys.iter().find(|key| key.name == name);
        let (own, transport) = match self.level {
            Level::Root => (find(ROOT), find(TRANSPORTS)),
            Level::Transports => (None, find(TRANSPORTS)),
            Level::Plain(keys) => (find(keys), None),
        };
        let (key, fault) = match (own, transport) {
            (Some(key), _) => (key, repeated(self.seen, key.name)),
            (None, Some(key)) => {
                let inside = matches!(self.level, Level::Transports);
                (key, placed_twice(&mut self.reader.transports, key.name, inside))
            }
            (None, None) => {
                let reason = unknown(self.level, name);
                return Err(self.reader.refuse_key(name, reason));
            }
        };
        match fault {
            None => Ok(key),
            Some(reason) => Err(self.reader.refuse_key(name, reason)),
        }
    }
}

fn repeated(seen: &mut Vec<&'static str>, name: &'static str) -> Option<String> {
    if seen.contains(&name) {
        return Some(TWICE.into());
    }
    seen.push(name);
    None
}

fn placed_twice(
    seen: &mut Vec<(&'static str, bool)>,
    name: &'static str,
    inside: bool,
) -> Option<String> {
    match seen.iter().find(|(known, _)| *known == name) {
        None => {
            seen.push((name, inside));
            None
        }
        Some((_, before)) if *before == inside => Some(TWICE.into()),
        Some(_) => Some(format!("the key stands at the root and inside `{GROUP}`; keep one")),
    }
}

fn unknown(level: Level, name: &str) -> String {
    let (own, transports): (&[Key], &[Key]) = match level {
        Level::Root => (ROOT, TRANSPORTS),
        Level::Transports => (&[], TRANSPORTS),
        Level::Plain(keys) => (keys, &[]),
    };
    let known = || own.iter().chain(transports).map(|key| key.name);
    if let Some(object) = object_of(name) {
        return format!("no key of this object; `{name}` belongs to {object}");
    }
    if let Some(near) = nearest(name, known()) {
        return format!("unknown key; did you mean `{near}`?");
    }
    match level {
        Level::Root => "unknown key; remove it".into(),
        _ => format!("unknown key; this object has {}", known().collect::<Vec<_>>().join(", ")),
    }
}

/// Reads the object of an absent part: nothing, or `"enable": false` alone.
fn read_switch<'de, A: MapAccess<'de>>(
    absent: &'static Absent,
    mut entries: A,
    reader: &mut Reader,
) -> Result<(), A::Error> {
    let mut off = matches!(absent.off, Off::Object { empty: true });
    let mut seen = false;
    while let Some(is_switch) = entries.next_key_seed(SwitchSlot)? {
        if !is_switch {
            return Err(reader.refuse(absent.reason()));
        }
        if core::mem::replace(&mut seen, true) {
            return Err(reader.refuse_key("enable", TWICE.into()));
        }
        reader.path.push(Cow::Borrowed("enable"));
        entries.next_value_seed(Slot { target: Target::Switch(absent), reader: &mut *reader })?;
        reader.path.pop();
        off = true;
    }
    if off { Ok(()) } else { Err(reader.refuse(absent.reason())) }
}

/// Whether the next key is `enable`.
struct SwitchSlot;

impl<'de> DeserializeSeed<'de> for SwitchSlot {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<bool, D::Error> {
        Ok(Cow::<'de, str>::deserialize(json)? == "enable")
    }
}
