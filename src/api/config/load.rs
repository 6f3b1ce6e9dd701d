//! The ways into a configuration and out of it.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

use super::check::{self, Violation};
use super::file::{open_regular, quoted, read_into};
use super::hint::shown;
use super::json;
use super::keys::{GROUP, ROOT, TRANSPORTS};
use super::kinds::{Key, Kind};
use super::{EngineConfig, PresharedKey};

/// Longest document, bytes.
const MAX_BYTES: usize = 1 << 20;

/// The only variable that is looked at.
const VARIABLE: &str = "ORBITE_CONF";

impl EngineConfig {
    /// Reads what `ORBITE_CONF` names, and nothing else of the environment. Absent or empty: the
    /// defaults. A value whose first non-blank character is `{`: the document itself. Any other: the
    /// path of a document, as for [`from_file`](Self::from_file).
    ///
    /// Fails with [`Error::Config`]. The environment is only read, and only now.
    pub fn from_env() -> Result<Self> {
        let value = std::env::var_os(VARIABLE).unwrap_or_default();
        if value.is_empty() {
            return Ok(Self::default());
        }
        match value.to_str() {
            Some(text) if text.trim_ascii_start().starts_with('{') => read(text, ""),
            Some(text) => from_path(Path::new(text), VARIABLE),
            None => Err(Error::config(VARIABLE, "the value is not UTF-8")),
        }
    }

    /// Reads a JSON document: an object whose keys are the field names of this type, at most
    /// 1 048 576 bytes of UTF-8 without a byte-order mark. What is not written keeps its default.
    /// Transport keys may be grouped under `transports`.
    ///
    /// Fails with [`Error::Config`] for bad syntax, an unknown or repeated key, a wrong type, a value
    /// out of its range, a key of a part that this version does not have, fields that contradict each
    /// other, or an unusable key file. `path` names the key; of several errors the first in the
    /// document is told. Key files are read now, after all else was checked, and never again.
    pub fn from_json(text: &str) -> Result<Self> {
        read(text, "")
    }

    /// Reads a document from a regular file. Fails as [`from_json`](Self::from_json), and for what is
    /// no readable regular file: it never waits for a FIFO or a device.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        from_path(path.as_ref(), "document")
    }

    /// A document with every field of this version. [`from_json`](Self::from_json) of it gives an
    /// equal configuration, if this one came from a document and its key files still stand.
    ///
    /// It never contains a secret: a key from a file is written as that file's path, a key made in
    /// code as `"<redacted>"`, which no document may contain.
    pub fn to_json(&self) -> String {
        let mut root = object(self, ROOT);
        root.extend(object(self, TRANSPORTS));
        format!("{:#}", Value::Object(root))
    }
}

/// Any bytes: a configuration or an error.
pub(crate) fn from_bytes(bytes: &[u8]) -> Result<EngineConfig> {
    read(text_of(bytes, "")?, "")
}

fn from_path(path: &Path, place: &str) -> Result<EngineConfig> {
    let bytes = bytes_of(path).map_err(|reason| {
        let hint = if place == VARIABLE {
            "; the variable holds a path, or a document that starts with {"
        } else {
            ""
        };
        Error::config(place, format!("{}{hint}", long(&reason)))
    })?;
    let of = format!(" of {}", long(&quoted(path)));
    read(text_of(&bytes, &of)?, &of)
}

/// The whole content of a regular file, one byte more than a document may have at most.
fn bytes_of(path: &Path) -> std::result::Result<Vec<u8>, String> {
    let (mut file, metadata) = open_regular(path)?;
    // The length is only a hint: the file may grow, and files of procfs have none.
    let expected = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    let mut bytes = vec![0; expected.saturating_add(1).min(MAX_BYTES + 1)];
    let mut length = read_into(&mut file, path, &mut bytes)?;
    if length == bytes.len() && length <= MAX_BYTES {
        bytes.resize(MAX_BYTES + 1, 0);
        let rest = bytes.get_mut(length..).unwrap_or_default();
        length += read_into(&mut file, path, rest)?;
    }
    bytes.truncate(length);
    Ok(bytes)
}

fn text_of<'b>(bytes: &'b [u8], of: &str) -> Result<&'b str> {
    too_long(bytes.len(), of)?;
    core::str::from_utf8(bytes).map_err(|error| {
        Error::config("document", format!("byte {}{of} is not UTF-8", error.valid_up_to() + 1))
    })
}

fn too_long(length: usize, of: &str) -> Result<()> {
    if length <= MAX_BYTES {
        return Ok(());
    }
    let whole = if of.is_empty() { " in the document" } else { of };
    Err(Error::config("document", format!("more than {MAX_BYTES} bytes{whole}; shorten it")))
}

/// Reads, checks, and only then opens the key files. `of` names the document's file in errors.
fn read(text: &str, of: &str) -> Result<EngineConfig> {
    too_long(text.len(), of)?;
    if text.starts_with('\u{feff}') {
        let reason = format!("a byte-order mark stands before the document{of}; remove it");
        return Err(Error::config("document", reason));
    }
    let json::Document { draft, grouped } = json::read(text).map_err(|fault| {
        let (line, column) = fault.place;
        let place = format!("(line {line}, column {column}{of})");
        Error::config(fault.path, format!("{} {place}", fault.reason))
    })?;
    let mut config = draft.config;
    let given = check::Keys {
        present: draft.psk_file.is_some(),
        previous: draft.previous_psk_file.is_some(),
    };
    check::run(&config, given).map_err(|Violation { path, reason }| {
        let top = path.split('.').next().unwrap_or_default();
        let path = if grouped.contains(&top) { format!("{GROUP}.{path}") } else { path };
        Error::config(
            path,
            if of.is_empty() { reason } else { format!("{reason} (the document{of})") },
        )
    })?;
    let key = |path: &'static str, file: Option<String>| {
        file.map(|file| PresharedKey::read(Path::new(&file)))
            .transpose()
            .map_err(|reason| Error::config(path, reason))
    };
    config.security.psk = key("security.psk_file", draft.psk_file)?;
    config.security.previous_psk = key("security.previous_psk_file", draft.previous_psk_file)?;
    Ok(config)
}

/// The keys of this version with their values. An object all of whose keys are absent is left out.
fn object(config: &EngineConfig, keys: &'static [Key]) -> Map<String, Value> {
    let value = |key: &'static Key| match &key.kind {
        Kind::Flag(flag) => Some(Value::Bool((flag.get)(config))),
        Kind::Count(count) => Some(Value::from((count.get)(config))),
        Kind::Word(word) => Some(Value::from((word.get)(config))),
        Kind::Text(text) => Some((text.get)(config).map_or(Value::Null, Value::String)),
        Kind::List(list) => Some(Value::Array((list.get)(config))),
        Kind::Object(_) if key.name == GROUP => None,
        Kind::Object(inner) => {
            let inner = object(config, inner);
            (!inner.is_empty()).then_some(Value::Object(inner))
        }
        Kind::Absent(_) => None,
    };
    keys.iter().filter_map(|key| Some((key.name.into(), value(key)?))).collect()
}

/// A sentence that may hold a path of the kernel's longest length, and no more than that.
fn long(text: &str) -> String {
    const MOST: usize = 4500;
    if text.len() <= MOST { text.into() } else { shown(text) }
}
