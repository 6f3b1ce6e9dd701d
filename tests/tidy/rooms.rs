//! Which room may use which.
//!
//! A room is a folder (or one file) directly below `src/`. Every path that begins at the crate's top
//! (`crate::x`, or enough `super::`) is compared with the table, whether it stands in a `use` or not.
//! Test code may use `testing` besides.

use super::tree::Source;

/// A room and the rooms that it may use, itself apart. `error` holds the one public error.
const ROOMS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("error", &["types"]),
    ("protocol", &["types"]),
    ("transfer", &["types"]),
    ("sys", &["error", "types"]),
    ("topology", &["error", "types", "sys"]),
    ("cuda", &["error", "types", "sys"]),
    ("metrics", &["error", "types", "sys"]),
    ("transport", &["error", "types", "sys", "protocol", "cuda", "metrics"]),
    (
        "shard",
        &[
            "error",
            "types",
            "sys",
            "protocol",
            "transfer",
            "topology",
            "cuda",
            "metrics",
            "transport",
        ],
    ),
    ("diagnostics", &["error", "types", "topology", "metrics"]),
    ("api", &["error", "types", "topology", "metrics", "diagnostics", "shard"]),
];

/// Rooms that compile without the standard library.
const WITHOUT_STD: &[&str] = &["types", "protocol", "transfer"];

/// Folders whose code sees the public API alone. Benchmarks of inner parts go through `testing`.
const OUTSIDE: &[&str] = &["src/bin/", "examples/"];

/// The room of a file, if it is in one.
fn room(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("src/")?;
    let name = inside.split('/').next()?;
    (!matches!(name, "lib.rs" | "bin")).then(|| name.trim_end_matches(".rs"))
}

/// What breaks the table in one file.
pub fn check(source: &Source) -> Vec<String> {
    if OUTSIDE.iter().any(|folder| source.path.starts_with(folder)) {
        return check_outside(source);
    }
    let Some(room) = room(&source.path) else { return vec![] };
    // Bodies and rigs for tests reach into every room.
    if room == "testing" {
        return vec![];
    }
    let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
        return vec![source.at(1, format_args!("`{room}` is no room of the table in tests/tidy"))];
    };
    let mut found = vec![];
    let test_file = source.is_test_file();
    for used in top_paths(source) {
        let in_test = test_file || source.test_only[used.at];
        let name = used.name.as_str();
        let fits = name == room || allowed.contains(&name) || (in_test && name == "testing");
        if fits {
            continue;
        }
        let line = source.tokens[used.at].line;
        let known = name == "testing" || ROOMS.iter().any(|(known, _)| *known == name);
        found.push(source.at(
            line,
            if known {
                format!("`{room}` may not use `{name}`, only {}", list(allowed))
            } else {
                format!("`crate::{name}` is not the path of a room; name the room it comes from")
            },
        ));
    }
    if WITHOUT_STD.contains(&room) && !test_file {
        for (at, token) in source.tokens.iter().enumerate() {
            let starts = token.is("std") && source.is_path_mark(at + 1);
            if starts && !source.test_only[at] {
                found.push(source.at(
                    token.line,
                    format_args!("`{room}` compiles without `std`; use `core` or `alloc`"),
                ));
            }
        }
    }
    found
}

fn list(rooms: &[&str]) -> String {
    if rooms.is_empty() { "itself".into() } else { rooms.join(", ") }
}

/// Programs and examples use what an embedder can use.
fn check_outside(source: &Source) -> Vec<String> {
    let mut found = vec![];
    for (at, token) in source.tokens.iter().enumerate() {
        let hidden = token.is("orbite")
            && source.is_path_mark(at + 1)
            && group(source, at + 3).iter().any(|it| it.name == "testing");
        if hidden {
            found.push(source.at(token.line, "`orbite::testing` is no part of the public API"));
        }
        if token.is("#") && source.is(at + 1, "[") && source.is(at + 2, "path") {
            found.push(source.at(token.line, "`#[path]` would reach past the public API"));
        }
    }
    found
}

/// One name directly below the top of the crate, and the token where the path says so.
struct Used {
    name: String,
    at: usize,
}

fn top_paths(source: &Source) -> Vec<Used> {
    let mut found = vec![];
    let file_depth = depth(&source.path);
    let mut inline: Vec<usize> = vec![];
    let mut braces = 0;
    let mut at = 0;
    while at < source.tokens.len() {
        let token = &source.tokens[at];
        if token.is("{") {
            braces += 1;
            if at >= 2 && source.is(at - 2, "mod") {
                inline.push(braces);
            }
        } else if token.is("}") {
            inline.retain(|level| *level < braces);
            braces = braces.saturating_sub(1);
        } else if token.is("crate") && source.is_path_mark(at + 1) {
            found.extend(group(source, at + 3));
        } else if token.is("super") && source.is_path_mark(at + 1) {
            let mut supers = 1;
            while source.is(at + 3, "super") {
                at += 3;
                supers += 1;
            }
            if supers == file_depth + inline.len() && source.is_path_mark(at + 1) {
                found.extend(group(source, at + 3));
            }
        }
        at += 1;
    }
    found
}

/// How many modules a file lies below the top of the crate.
fn depth(path: &str) -> usize {
    let inside = path.strip_prefix("src/").unwrap_or(path);
    inside.split('/').count() - usize::from(inside.ends_with("/mod.rs"))
}

/// The first names of a path or of a braced list of paths that begins at `at`.
fn group(source: &Source, at: usize) -> Vec<Used> {
    if !source.is(at, "{") {
        let name = source.tokens.get(at).map_or(String::new(), |t| t.text.clone());
        return vec![Used { name, at }];
    }
    let mut found = vec![];
    let mut braces = 0;
    let mut starts = false;
    for (at, token) in source.tokens.iter().enumerate().skip(at) {
        if token.is("{") {
            braces += 1;
            starts = braces == 1;
        } else if token.is("}") {
            braces -= 1;
            if braces == 0 {
                break;
            }
        } else if token.is(",") {
            starts = braces == 1;
        } else if starts {
            starts = false;
            if !token.is("self") {
                found.push(Used { name: token.text.clone(), at });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text))
    }

    #[test]
    fn a_room_uses_itself_and_what_the_table_says() {
        for (path, text) in [
            ("src/protocol/data/mod.rs", "use crate::types::X; use crate::protocol::fields;"),
            ("src/protocol/data/reader.rs", "use super::super::super::types::X; use super::ops;"),
            ("src/transport/tcp/lane.rs", "use crate::{error::{Error, Result}, sys, types};"),
            ("src/shard/core.rs", "fn f() { crate::transfer::slicer::cut() }"),
            ("src/api/engine.rs", "use crate::shard::ShardSet; pub(crate) fn f() {}"),
            ("src/api/x.rs", "#[cfg(test)] mod tests { use crate::testing::rigs; use super::*; }"),
            ("src/api/config/tests.rs", "use crate::testing::config;"),
            ("src/testing/conformance.rs", "use crate::{shard, EngineConfig};"),
            ("src/lib.rs", "pub use api::x; use crate::sys;"),
            ("src/error.rs", "use crate::types::Transport;"),
            (
                "src/types/a.rs",
                "// crate::sys\n/// [`x`](crate::Error)\nconst A: &str = \"crate::sys\";",
            ),
            ("src/types/a.rs", "use core::fmt; #[cfg(test)] mod tests { use std::vec; }"),
            ("src/bin/orbite/main.rs", "use crate::args; use orbite::{Error, EngineConfig};"),
            ("examples/a.rs", "use orbite::Error;"),
            ("tests/a.rs", "use orbite::testing::wire;"),
        ] {
            assert_eq!(check_text(path, text), [""; 0], "{path}: {text}");
        }
    }

    #[test]
    fn a_use_against_the_table_is_found() {
        for (path, text, part) in [
            ("src/types/a.rs", "use crate::error::Error;", "`types` may not use `error`"),
            ("src/protocol/a.rs", "\nuse crate::{types, error};", "src/protocol/a.rs:2: "),
            ("src/transfer/a.rs", "use crate::protocol::x;", "only types"),
            ("src/sys/a.rs", "use crate::topology;", "`sys` may not use `topology`"),
            ("src/transport/rail.rs", "use crate::transfer::x;", "may not use `transfer`"),
            ("src/transport/tcp/a.rs", "use super::super::super::shard::x;", "`shard`"),
            ("src/transport/mod.rs", "use super::shard;", "may not use `shard`"),
            ("src/api/a.rs", "fn f(x: crate::sys::X) {}", "may not use `sys`"),
            ("src/api/a.rs", "mod m { fn f(x: super::super::super::sys::X) {} }", "`sys`"),
            ("src/api/a.rs", "use crate::{shard::{x, y}, transport::{z}};", "`transport`"),
            ("src/shard/a.rs", "use crate::api::x;", "may not use `api`"),
            ("src/shard/a.rs", "use crate::testing::x;", "may not use `testing`"),
            ("src/shard/a.rs", "#[cfg(test)] use crate::testing::x; use crate::api;", "`api`"),
            ("src/shard/a.rs", "use crate::Error;", "name the room"),
            ("src/shard/a.rs", "use crate::*;", "`crate::*`"),
            ("src/diagnostics/a.rs", "use crate::shard::x;", "may not use `shard`"),
            ("src/error.rs", "use crate::sys::x;", "may not use `sys`"),
            ("src/attic/a.rs", "", "`attic` is no room"),
            ("src/attic.rs", "", "`attic` is no room"),
            ("src/transfer/a.rs", "use std::collections::BTreeMap;", "without `std`"),
            ("src/bin/orbite/main.rs", "use orbite::{Error, testing::wire};", "public API"),
            ("src/bin/orbite/main.rs", "#[path = \"../../sys/mod.rs\"] mod sys;", "#[path]"),
            ("examples/a.rs", "orbite::testing::config::check();", "public API"),
        ] {
            let found = check_text(path, text);
            assert_eq!(found.len(), 1, "{path}: {text}: {found:?}");
            assert!(found[0].contains(part), "{path}: {text}: {found:?}");
        }
    }
}
