//! The files of the repository, and which of them the compiler reaches.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::lexer::{self, Comment, Token};

/// A Rust file that was read.
#[derive(Debug)]
pub struct Source {
    /// From the top of the repository, with `/`.
    pub path: String,
    /// The whole file.
    pub text: String,
    /// Its code.
    pub tokens: Vec<Token>,
    /// Its comments.
    pub comments: Vec<Comment>,
    /// For each token: compiled for tests only.
    pub test_only: Vec<bool>,
}

impl Source {
    /// Reads `text` as the file `path`.
    pub fn new(path: &str, text: &str) -> Self {
        let lexer::Lexed { tokens, comments } = lexer::lex(text);
        let test_only = lexer::test_only(&tokens);
        Self { path: path.into(), text: text.into(), tokens, comments, test_only }
    }

    /// A finding of this file.
    pub fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path)
    }

    /// Whether the token at `at` is `text`.
    pub fn is(&self, at: usize, text: &str) -> bool {
        self.tokens.get(at).is_some_and(|t| t.is(text))
    }

    /// Whether `::` stands at `at`.
    pub fn is_path_mark(&self, at: usize) -> bool {
        self.is(at, ":") && self.is(at + 1, ":")
    }

    /// The whole file is a test module by its name, or belongs to a suite of the package.
    pub fn is_test_file(&self) -> bool {
        self.path.starts_with("tests/")
            || self.path.ends_with("/tests.rs")
            || self.path.contains("/tests/")
    }
}

/// Whether this is the path of Rust code.
pub fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "rs")
}

/// Every text file of the repository by its path. What a build or a run leaves is skipped.
pub fn read(top: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    walk(top, "", &mut files);
    files
}

fn walk(directory: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).expect("the repository can be read") {
        let entry = entry.expect("the repository can be read");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        // A link may lead outside, so it is not followed.
        let kind = entry.file_type().expect("the kind of a file is known");
        let hidden = name.starts_with('.') && !matches!(&*name, ".ci" | ".github" | ".gitignore");
        let left = matches!(&*name, "target" | "corpus" | "artifacts" | "__pycache__");
        if hidden || left {
            continue;
        }
        if kind.is_dir() {
            walk(&entry.path(), &format!("{path}/"), files);
        } else if kind.is_file() {
            if let Ok(text) = fs::read_to_string(entry.path()) {
                files.insert(path, text);
            }
        }
    }
}

/// Files that are the top of a crate: cargo finds them without a `mod` line.
pub fn is_root(path: &str, files: &BTreeMap<String, String>) -> bool {
    if matches!(path, "src/lib.rs" | "scripts/build.rs") {
        return true;
    }
    for folder in ["src/bin/", "tests/", "examples/", "benches/"] {
        if let Some(rest) = path.strip_prefix(folder) {
            let parts = rest.split('/').count();
            if parts == 1 || (parts == 2 && rest.ends_with("/main.rs")) {
                return true;
            }
        }
    }
    let lists = |manifest: &String, path| manifest.contains(&format!("path = \"{path}\""));
    if files.get("Cargo.toml").is_some_and(|manifest| lists(manifest, path)) {
        return true;
    }
    // Another package of the repository: its library, its program and the targets that it lists.
    let mut folder = path;
    while let Some((parent, _)) = folder.rsplit_once('/') {
        if let Some(manifest) = files.get(&format!("{parent}/Cargo.toml")) {
            let inside = &path[parent.len() + 1..];
            return matches!(inside, "src/lib.rs" | "src/main.rs" | "build.rs")
                || lists(manifest, inside);
        }
        folder = parent;
    }
    false
}

/// Rust files that no `mod` line reaches, and `mod` lines without a file.
pub fn dead_files(
    sources: &BTreeMap<String, Source>,
    files: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut found = vec![];
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> =
        sources.keys().map(String::as_str).filter(|path| is_root(path, files)).collect();
    while let Some(path) = open.pop() {
        if !reached.insert(path) {
            continue;
        }
        let Some(source) = sources.get(path) else { continue };
        for (line, candidates) in modules(source, is_root(path, files)) {
            let there = candidates.iter().find_map(|it| sources.get_key_value(it));
            if let Some((file, _)) = there {
                open.push(file);
            } else {
                let none = format!("this `mod` names none of {}", candidates.join(", "));
                found.push(source.at(line, none));
            }
        }
    }
    for path in sources.keys().filter(|path| !reached.contains(path.as_str())) {
        found.push(format!("{path}:1: no `mod` line reaches this file; it is never compiled"));
    }
    found
}

/// The `mod name;` lines of a file, each with the files that may be meant.
fn modules(source: &Source, root: bool) -> Vec<(usize, Vec<String>)> {
    let (folder, name) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let stem = name.trim_end_matches(".rs");
    let owns_folder = root || name == "mod.rs";
    let below = if owns_folder { folder.into() } else { join(folder, stem) };
    let mut inline: Vec<(usize, String)> = vec![];
    let mut found = vec![];
    let mut depth = 0;
    for (at, token) in source.tokens.iter().enumerate() {
        if token.is("{") {
            depth += 1;
        } else if token.is("}") {
            depth -= 1;
            inline.retain(|(level, _)| *level <= depth);
        }
        let Some(name) = source.tokens.get(at + 1).filter(|_| token.is("mod")) else { continue };
        if source.is(at + 2, "{") {
            inline.push((depth + 1, name.text.clone()));
        } else if source.is(at + 2, ";") {
            let mut base = below.clone();
            for (_, module) in &inline {
                base = join(&base, module);
            }
            let candidates = match path_attribute(source, at) {
                Some(path) if inline.is_empty() => vec![join(folder, path)],
                Some(path) => vec![join(&base, path)],
                None => vec![
                    join(&base, &format!("{}.rs", name.text)),
                    join(&base, &format!("{}/mod.rs", name.text)),
                ],
            };
            found.push((token.line, candidates));
        }
    }
    found
}

/// The text of `#[path = ".."]` among the attributes before the `mod` at `at`.
fn path_attribute(source: &Source, mut at: usize) -> Option<&str> {
    while at > 0 {
        at -= 1;
        let token = &source.tokens[at];
        if token.is(";") || token.is("}") || token.is("{") {
            return None;
        }
        if token.is("path") && source.is(at + 1, "=") {
            return source.tokens.get(at + 2).map(|t| t.text.as_str());
        }
    }
    None
}

/// `folder/path`, with `..` resolved.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(files: &[(&str, &str)]) -> Vec<String> {
        let texts = files.iter().map(|(p, t)| ((*p).into(), (*t).into())).collect();
        let rust = files.iter().filter(|(path, _)| is_rust(path));
        dead_files(&rust.map(|(p, t)| ((*p).into(), Source::new(p, t))).collect(), &texts)
    }

    #[test]
    fn every_way_to_name_a_module_is_followed() {
        let found = dead(&[
            ("Cargo.toml", "path = \"bench/crossing.rs\""),
            ("bench/crossing.rs", ""),
            ("src/lib.rs", "mod a; #[cfg(x)] #[path = \"odd/b.rs\"] pub mod b; mod c { mod d; }"),
            ("src/a.rs", "mod e;"),
            ("src/a/e.rs", ""),
            ("src/odd/b.rs", ""),
            ("src/c/d.rs", "mod f;"),
            ("src/c/d/f/mod.rs", "mod g;"),
            ("src/c/d/f/g.rs", ""),
            ("src/bin/orbite/main.rs", "mod args;"),
            ("src/bin/orbite/args.rs", ""),
            ("tests/suite.rs", ""),
            ("tests/config/main.rs", "mod files;"),
            ("tests/config/files.rs", ""),
            ("examples/one.rs", ""),
            ("tests/fuzz/Cargo.toml", "path = \"fuzz_targets/x.rs\""),
            ("tests/fuzz/fuzz_targets/x.rs", ""),
            ("tests/pure/Cargo.toml", ""),
            ("tests/pure/src/lib.rs", "#[path = \"../../../src/a.rs\"] mod a;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_file_without_a_mod_line_is_found() {
        let found = dead(&[("src/lib.rs", "// mod a;"), ("src/a.rs", "")]);
        assert_eq!(found, ["src/a.rs:1: no `mod` line reaches this file; it is never compiled"]);
        let found = dead(&[
            ("src/lib.rs", ""),
            ("tests/fuzz/Cargo.toml", "path = \"a.rs\""),
            ("tests/fuzz/b.rs", ""),
        ]);
        assert!(found[0].starts_with("tests/fuzz/b.rs:1"), "{found:?}");
    }

    #[test]
    fn a_mod_line_without_a_file_is_found() {
        let found = dead(&[("src/lib.rs", "\nmod gone;")]);
        assert_eq!(found, ["src/lib.rs:2: this `mod` names none of src/gone.rs, src/gone/mod.rs"]);
    }
}
