//! The rules of the house that neither the compiler nor clippy checks.
//!
//! Each rule is a function over the text of one file or of all, and has tests of its own in which it
//! must find a violation that was put there for it. Here they are run over the repository.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "tidy/cases.rs"]
mod cases;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/lexer.rs"]
mod lexer;
#[path = "tidy/rooms.rs"]
mod rooms;
#[path = "tidy/tree.rs"]
mod tree;
#[path = "tidy/unsafety.rs"]
mod unsafety;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use tree::Source;

/// The repository as it lies on the disk.
struct Repository {
    /// All text files.
    files: BTreeMap<String, String>,
    /// The Rust files among them.
    sources: BTreeMap<String, Source>,
}

impl Repository {
    fn read() -> Self {
        let files = tree::read(Path::new(env!("CARGO_MANIFEST_DIR")));
        let rust = files.iter().filter(|(path, _)| tree::is_rust(path));
        let sources = rust.map(|(path, text)| (path.clone(), Source::new(path, text))).collect();
        Self { files, sources }
    }

    /// Read once for all rules.
    fn get() -> &'static Self {
        static REPOSITORY: OnceLock<Repository> = OnceLock::new();
        let repository = REPOSITORY.get_or_init(Self::read);
        assert!(repository.sources.contains_key("src/lib.rs"), "the sources were found");
        repository
    }

    fn each(rule: fn(&Source) -> Vec<String>) {
        none(&Self::get().sources.values().flat_map(rule).collect::<Vec<_>>());
    }
}

#[track_caller]
fn none(found: &[String]) {
    assert!(found.is_empty(), "{} found:\n{}", found.len(), found.join("\n"));
}

#[test]
fn rooms_use_only_what_the_table_allows() {
    Repository::each(rooms::check);
}

#[test]
fn unsafe_code_stands_in_its_place_with_its_argument() {
    Repository::each(unsafety::check);
}

#[test]
fn no_file_is_too_long() {
    Repository::each(files::length);
}

#[test]
fn every_file_says_what_it_is_for() {
    Repository::each(files::docs);
}

#[test]
fn nothing_unfinished_is_left() {
    Repository::each(files::leftovers);
}

#[test]
fn features_choose_modules_only() {
    Repository::each(files::features);
}

#[test]
fn every_file_is_reached() {
    let repository = Repository::get();
    none(&tree::dead_files(&repository.sources, &repository.files));
}

#[test]
fn nothing_names_one_machine() {
    let repository = Repository::get();
    let found = repository.files.iter().flat_map(|(path, text)| files::machine(path, text));
    none(&found.collect::<Vec<_>>());
}

/// With `--nocapture` it prints the tests of each case.
#[test]
fn every_acceptance_case_has_a_test() {
    let repository = Repository::get();
    for (case, tests) in cases::named(repository.sources.values()) {
        println!("CORE-{case:03}  {}", tests.join("\n          "));
    }
    let missing = cases::missing(repository.sources.values());
    let missing: Vec<_> = missing.iter().map(|case| format!("CORE-{case:03}")).collect();
    assert!(missing.is_empty(), "no test names {}", missing.join(" "));
}
