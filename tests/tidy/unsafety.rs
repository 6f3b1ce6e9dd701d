//! Where unsafe code stands and what is written above it.
//!
//! The compiler and clippy refuse most of this already. Here the place counts too: below `src/` only
//! files named `sys.rs` and folders named `sys` may hold the word at all, so that a reader who looks
//! for what can break memory knows where to look. Examples and suites say why at the item.

use super::lexer::{Token, group_end};
use super::tree::Source;

/// What is wrong in one file.
pub fn check(source: &Source) -> Vec<String> {
    let Some(first) = source.tokens.iter().find(|t| t.is("unsafe")) else { return vec![] };
    let mut found = vec![];
    let engine = source.path.starts_with("src/");
    if engine && !is_sys(&source.path) {
        let place = "unsafe code stands in files named sys.rs and in folders named sys only";
        found.push(source.at(first.line, place));
    }
    if engine && !expects_unsafe(&source.tokens) {
        let head = "a file with unsafe code begins with #![expect(unsafe_code, reason = \"..\")]";
        found.push(source.at(first.line, head));
    }
    for (at, token) in source.tokens.iter().enumerate() {
        let argued = source.is(at + 1, "{") || source.is(at + 1, "impl");
        if token.is("unsafe") && argued && !has_argument(source, at) {
            let above = "no `// SAFETY:` comment stands directly above";
            found.push(source.at(token.line, above));
        }
    }
    found
}

fn is_sys(path: &str) -> bool {
    path.ends_with("/sys.rs") || path.contains("/sys/")
}

/// Whether one of the inner attributes at the head of the file expects unsafe code, with a reason.
fn expects_unsafe(tokens: &[Token]) -> bool {
    let mut at = 0;
    while tokens.get(at).is_some_and(|t| t.is("#")) && tokens.get(at + 1).is_some_and(|t| t.is("!"))
    {
        let end = group_end(tokens, at + 2).min(tokens.len());
        let has = |word: &str| tokens[at..end].iter().any(|t| t.is(word));
        if has("expect") && has("unsafe_code") && has("reason") {
            return true;
        }
        at = end + 1;
    }
    false
}

/// Whether the comment above the `unsafe` at `at`, or above the statement that it is in, argues.
fn has_argument(source: &Source, at: usize) -> bool {
    let line = source.tokens[at].line;
    let mut start = at;
    while start > 0 {
        let before = &source.tokens[start - 1];
        if before.is(";") || before.is("{") || before.is("}") {
            break;
        }
        start -= 1;
    }
    let statement = source.tokens[start].line;
    let ends_here = |last: usize| last + 1 >= statement && last < line;
    source.comments.iter().enumerate().any(|(index, comment)| {
        ends_here(comment.last) && block(source, index).any(|text| text.contains("SAFETY:"))
    })
}

/// The texts of the comments that stand on lines without a gap up to this one.
fn block(source: &Source, index: usize) -> impl Iterator<Item = &str> {
    let mut line = source.comments[index].line + 1;
    source.comments[..=index].iter().rev().map_while(move |comment| {
        let joined = comment.last + 1 >= line;
        line = comment.line;
        joined.then_some(comment.text.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "//! Docs.\n#![expect(unsafe_code, reason = \"calls\")]\n";

    fn check_text(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text))
    }

    #[test]
    fn unsafe_code_in_its_place_with_its_argument_passes() {
        for text in [
            "fn f() {\n // SAFETY: it holds,\n // for this reason.\n unsafe { g() }\n}",
            "fn f() {\n // SAFETY: it holds.\n let x = match unsafe { g() } { _ => 1 };\n}",
            "fn f() {\n // SAFETY: it holds.\n h(\n 1,\n unsafe { g() },\n );\n}",
            "fn f() {\n let x =\n // SAFETY: it holds.\n unsafe { g() };\n}",
            "// SAFETY: it holds.\nunsafe impl Send for X {}",
            "/// # Safety\n/// The caller vouches.\nunsafe fn f() {}",
            "#![cfg(unix)]\n// SAFETY: it holds.\nunsafe impl Send for X {}",
        ] {
            for path in ["src/sys/a.rs", "src/transport/tcp/sys.rs", "src/cuda/sys/a.rs"] {
                assert_eq!(check_text(path, &format!("{HEAD}{text}")), [""; 0], "{text}");
            }
        }
        let modelled =
            "#![cfg_attr(not(m), expect(unsafe_code, reason = \"r\"))]\nunsafe fn f() {}";
        assert_eq!(check_text("src/sys/a.rs", modelled), [""; 0]);
        let words = "// unsafe {\nconst A: &str = \"unsafe { }\"; fn not_unsafe() {}";
        assert_eq!(check_text("src/api/a.rs", words), [""; 0]);
        let example = "// SAFETY: it holds.\nunsafe impl Send for X {}";
        assert_eq!(check_text("examples/a.rs", example), [""; 0]);
    }

    #[test]
    fn unsafe_code_out_of_its_place_is_found() {
        for path in ["src/api/engine.rs", "src/shard/memory/host.rs", "src/system.rs"] {
            let found = check_text(path, &format!("{HEAD}unsafe fn f() {{}}"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("sys.rs"), "{found:?}");
        }
    }

    #[test]
    fn a_file_that_does_not_expect_it_first_is_found() {
        for text in [
            "unsafe fn f() {}",
            "#![expect(unsafe_code)]\nunsafe fn f() {}",
            "#![expect(dead_code, reason = \"r\")]\nunsafe fn f() {}",
            "use core::fmt;\n#[expect(unsafe_code, reason = \"r\")]\nunsafe fn f() {}",
        ] {
            let found = check_text("src/sys/a.rs", text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains("begins with"), "{found:?}");
        }
    }

    #[test]
    fn a_block_without_an_argument_is_found() {
        for text in [
            "fn f() { unsafe { g() } }",
            "fn f() {\n // It is safe.\n unsafe { g() }\n}",
            "fn f() {\n // SAFETY: of the first.\n unsafe { g() };\n unsafe { h() };\n}",
            "fn f() {\n // SAFETY: too far away.\n\n unsafe { g() }\n}",
            "unsafe impl Send for X {}",
        ] {
            let found = check_text("src/sys/a.rs", &format!("{HEAD}{text}"));
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains("SAFETY"), "{found:?}");
        }
    }
}
