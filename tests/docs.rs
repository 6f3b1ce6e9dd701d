//! Documents that name what the code decides are held to the code.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use orbite::EngineConfig;
use orbite::testing::config::{KeyFacts, keys};

/// The row of `docs/configuration.md` whose first cell is the key, as its cells.
fn row<'d>(document: &'d str, path: &str) -> Option<Vec<&'d str>> {
    let start = format!("| `{path}` |");
    let line = document.lines().find(|line| line.starts_with(&start))?;
    Some(line.trim_matches('|').split('|').map(str::trim).collect())
}

/// A number as the document writes it: sizes with the largest unit that divides them.
fn number(path: &str, value: u64) -> String {
    if !path.ends_with("_bytes") {
        return value.to_string();
    }
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.iter().find(|(_, bits)| value > 0 && value % (1 << bits) == 0);
    unit.map_or(format!("{value} B"), |(unit, bits)| format!("{} {unit}", value >> bits))
}

/// The default of a key, as the document writes it.
fn default(path: &str) -> String {
    let document: serde_json::Value =
        serde_json::from_str(&EngineConfig::default().to_json()).unwrap();
    let value = path.split('.').fold(&document, |value, name| value.get(name).unwrap());
    match value {
        serde_json::Value::Number(value) => number(path, value.as_u64().unwrap()),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What the document lacks or says differently about one key.
fn wrong(document: &str, key: &KeyFacts) -> Option<String> {
    let path = &key.path;
    let Some(cells) = row(document, path) else { return Some(format!("no row for `{path}`")) };
    if let Some((part, value)) = &key.absent {
        let expected = format!("| `{path}` | {part} | `{value}` |");
        let found = cells.len() == 3 && cells[1] == *part && cells[2] == format!("`{value}`");
        return (!found).then(|| format!("`{path}`: expected {expected}"));
    }
    if cells.len() != 4 || cells[3].is_empty() {
        return Some(format!("`{path}`: a row has key, range, default and effect"));
    }
    if let Some((low, high)) = key.range {
        let range = format!("{} to {}", number(path, low), number(path, high));
        // What follows a number's range is a further rule.
        if cells[1] != range && !cells[1].starts_with(&format!("{range},")) {
            return Some(format!("`{path}`: the range is {range}, not {}", cells[1]));
        }
    }
    if !key.names.is_empty() && cells[1] != key.names.join(", ") {
        return Some(format!("`{path}`: the names are {}", key.names.join(", ")));
    }
    let default = default(path);
    let found = cells[2].trim_matches('`') == default;
    (!found).then(|| format!("`{path}`: the default is {default}, not {}", cells[2]))
}

#[test]
fn every_key_is_documented_with_its_range_and_default() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let document = std::fs::read_to_string(path).unwrap();
    let keys = keys();
    assert!(keys.len() > 60, "the table was walked");
    let found: Vec<_> = keys.iter().filter_map(|key| wrong(&document, key)).collect();
    assert!(found.is_empty(), "docs/configuration.md:\n{}", found.join("\n"));

    let rows = document.lines().filter(|line| line.starts_with("| `"));
    let known =
        |line: &&str| keys.iter().any(|key| line.starts_with(&format!("| `{}` |", key.path)));
    let unknown: Vec<_> = rows.filter(|line| !known(line)).collect();
    assert!(unknown.is_empty(), "rows of keys that do not exist:\n{}", unknown.join("\n"));
}

#[test]
fn a_missing_or_wrong_row_is_found() {
    let key = keys().into_iter().find(|key| key.path == "shards.spin_us").unwrap();
    let good = "| `shards.spin_us` | 0 to 1000000 | 20 | spins |";
    assert_eq!(wrong(good, &key), None);
    for bad in [
        "",
        "| `shards.spin_us` | 0 to 1000 | 20 | spins |",
        "| `shards.spin_us` | 0 to 1000000 | 30 | spins |",
        "| `shards.spin_us` | 0 to 1000000 | 20 |  |",
        "| `shards.spin_us` | 0 to 1000000 | 20 |",
    ] {
        assert!(wrong(bad, &key).is_some(), "{bad}");
    }
}
