//! What every file owes its reader, and what must not be left in one.

use super::lexer::group_end;
use super::tree::Source;

/// Lines past which a file says why it is not two.
const LINES: usize = 600;
/// Lines past which no reason helps.
const LINES_MAX: usize = 900;
/// How a file says why, in its head.
const REASON: &str = "//! Longer than 600 lines: ";

/// A file that has grown too long.
pub fn length(source: &Source) -> Vec<String> {
    let lines = source.text.lines().count();
    let reason = source.text.lines().find_map(|line| line.strip_prefix(REASON));
    if lines > LINES_MAX {
        vec![source.at(lines, format_args!("{lines} lines; {LINES_MAX} are the most; split it"))]
    } else if lines > LINES && reason.is_none_or(|reason| reason.trim().len() < 10) {
        let say = format!("{lines} lines; find a seam, or say `{REASON}<why>` in the head");
        vec![source.at(lines, say)]
    } else {
        vec![]
    }
}

/// A file without a word about itself.
pub fn docs(source: &Source) -> Vec<String> {
    let says = source.comments.iter().any(|comment| {
        let text = comment.text.strip_prefix("//!").or_else(|| comment.text.strip_prefix("/*!"));
        text.is_some_and(|text| text.trim().len() >= 10)
    });
    if says { vec![] } else { vec![source.at(1, "no `//!` says what this file is for")] }
}

/// Marks of unfinished work and of debugging.
pub fn leftovers(source: &Source) -> Vec<String> {
    let mut found = vec![];
    for (at, token) in source.tokens.iter().enumerate() {
        let left = ["todo", "unimplemented", "dbg"].iter().any(|name| token.is(name));
        if left && source.is(at + 1, "!") {
            found.push(source.at(token.line, format_args!("`{}!` was left", token.text)));
        }
    }
    // Built here, so that this file does not find itself.
    let marks = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["XX", "X"].concat()];
    for comment in &source.comments {
        let words = || comment.text.split(|c: char| !c.is_alphanumeric());
        if let Some(mark) = marks.iter().find(|mark| words().any(|word| word == *mark)) {
            found.push(source.at(comment.line, format_args!("`{mark}` was left in a comment")));
        }
    }
    found
}

/// The one file that may choose between features besides `mod` lines.
const REGISTRY: &str = "src/transport/registry.rs";

/// A feature that decides elsewhere than on a `mod` line or in the registry.
pub fn features(source: &Source) -> Vec<String> {
    if !source.path.starts_with("src/") || source.path == REGISTRY {
        return vec![];
    }
    let mut found = vec![];
    for (at, token) in source.tokens.iter().enumerate() {
        let condition = token.is("cfg") || token.is("cfg_attr");
        let open = if source.is(at + 1, "!") { at + 2 } else { at + 1 };
        if !condition || !source.is(open, "(") {
            continue;
        }
        let close = group_end(&source.tokens, open).min(source.tokens.len());
        let asks = (open..close).any(|at| source.is(at, "feature") && source.is(at + 1, "="));
        if asks && !(source.is(close + 1, "]") && before_mod(source, close + 2)) {
            let place = "`feature` is asked on `mod` lines and in the registry only";
            found.push(source.at(token.line, place));
        }
    }
    found
}

/// Whether more attributes and a visibility lead to a `mod`.
fn before_mod(source: &Source, mut at: usize) -> bool {
    while source.is(at, "#") {
        at = group_end(&source.tokens, at + 1) + 1;
    }
    if source.is(at, "pub") {
        at += 1;
        if source.is(at, "(") {
            at = group_end(&source.tokens, at) + 1;
        }
    }
    source.is(at, "mod")
}

/// Paths of one machine and names that mean nothing to a reader elsewhere, in any text file.
pub fn machine(path: &str, text: &str) -> Vec<String> {
    // Each is built from halves, so that this file does not find itself.
    let patterns = [
        ["/ho", "me/"],
        ["/ro", "ot/"],
        ["/Us", "ers/"],
        ["/wo", "rk/"],
        ["/tmp/", "i2"],
        ["..", "/shared/"],
        ["C:", "\\"],
        ["claude", " code"],
        ["anthr", "opic"],
        ["co", "-authored-by"],
        ["a-se", "ed-"],
    ]
    .map(|halves| halves.concat());
    let mut found = vec![];
    for (index, line) in text.lines().enumerate() {
        let small = line.to_lowercase();
        if let Some(pattern) = patterns.iter().find(|it| small.contains(&it.to_lowercase())) {
            let line = index + 1;
            found.push(format!("{path}:{line}: `{pattern}` belongs to one machine or workplace"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rule = fn(&Source) -> Vec<String>;

    fn clean(rule: Rule, text: &str) {
        assert_eq!(rule(&Source::new("src/shard/a.rs", text)), [""; 0], "{text}");
    }

    fn caught(rule: Rule, text: &str, part: &str) {
        let found = rule(&Source::new("src/shard/a.rs", text));
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].contains(part), "{found:?}");
    }

    #[test]
    fn a_long_file_needs_a_reason_and_a_very_long_one_a_seam() {
        let reason = "//! Longer than 600 lines: one table that is read as a whole.\n";
        clean(length, &"\n".repeat(600));
        clean(length, &format!("{reason}{}", "\n".repeat(899)));
        caught(length, &"\n".repeat(601), "601 lines");
        caught(length, &format!("{REASON}yes\n{}", "\n".repeat(700)), "701 lines");
        caught(length, &format!("{reason}{}", "\n".repeat(900)), "901 lines; 900 are the most");
    }

    #[test]
    fn a_file_says_what_it_is_for() {
        clean(docs, "//! Cuts work into slices.\n");
        caught(docs, "/// An item.\nfn f() {}\n// A comment that is long enough.", "`//!`");
        caught(docs, "//!\nfn f() {}", "`//!`");
    }

    #[test]
    fn unfinished_work_is_found() {
        clean(leftovers, "// todo!() and dbg!\nfn todo() { let x = \"dbg!(1)\"; }");
        caught(leftovers, &["fn f() { to", "do!() }"].concat(), "todo!");
        caught(leftovers, &["fn f() { unimple", "mented!(\"x\") }"].concat(), "unimplemented!");
        caught(leftovers, &["fn f() { d", "bg!(1); }"].concat(), "dbg!");
        caught(leftovers, &["// TO", "DO: later"].concat(), "in a comment");
    }

    #[test]
    fn features_choose_modules_only() {
        clean(features, "#[cfg(feature = \"rdma\")]\n#[doc(hidden)]\npub(crate) mod rdma;");
        clean(features, "#[cfg(all(feature = \"rdma\", unix))] mod rdma;");
        clean(features, "#[cfg(unix)] fn f() { let feature = 1; }");
        caught(features, "#[cfg(feature = \"rdma\")] fn f() {}", "registry");
        caught(features, "#[cfg(not(feature = \"rdma\"))] use a::b;", "registry");
        caught(features, "fn f() -> bool { cfg!(feature = \"rdma\") }", "registry");
        caught(features, "#[cfg_attr(feature = \"x\", derive(Debug))] struct S;", "registry");
        let registry = Source::new(REGISTRY, "#[cfg(feature = \"rdma\")] fn f() {}");
        assert_eq!(features(&registry), [""; 0]);
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        assert_eq!(machine("docs/a.md", "Homework at /sys/devices, /tmp, https://a/b\n"), [""; 0]);
        for line in [["see /ho", "me/me/x"], ["cd /wo", "rk/x"], ["Anth", "ropic"]] {
            let found = machine("docs/a.md", &format!("\n{}\n", line.concat()));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with("docs/a.md:2: "), "{found:?}");
        }
    }
}
