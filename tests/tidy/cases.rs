//! Every acceptance case of the core has a test that names it.
//!
//! A test names a case by `core_011` in its name or `CORE-011` in the documentation directly above it.

use std::collections::BTreeMap;

use super::tree::Source;

/// Cases that this version must show.
const CASES: &[u16] = &[
    1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 17, 18, 22, 24, 34, 35, 36, 37, 38, 39, 41, 44, 45,
    64, 66, 70, 78, 99, 100, 101, 106, 108, 156, 162,
];

/// Cases of `CASES` that no test names.
pub fn missing<'a>(sources: impl IntoIterator<Item = &'a Source>) -> Vec<u16> {
    let named = named(sources);
    CASES.iter().copied().filter(|case| !named.contains_key(case)).collect()
}

/// The tests of each case, as `path:line name`.
pub fn named<'a>(sources: impl IntoIterator<Item = &'a Source>) -> BTreeMap<u16, Vec<String>> {
    let mut found: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for source in sources {
        for at in 0..source.tokens.len() {
            let Some(name) = test_at(source, at) else { continue };
            let name = &source.tokens[name];
            let above = docs_above(source, source.tokens[at].line);
            let mut cases = numbers(&name.text, "core_");
            cases.extend(above.iter().flat_map(|text| numbers(text, "CORE-")));
            cases.sort_unstable();
            cases.dedup();
            for case in cases {
                let test = format!("{}:{} {}", source.path, name.line, name.text);
                found.entry(case).or_default().push(test);
            }
        }
    }
    found
}

/// If the first attribute of a function stands at `at` and one of its attributes is `test`: the token
/// with the function's name.
fn test_at(source: &Source, at: usize) -> Option<usize> {
    let continues = at > 0 && source.is(at - 1, "]");
    if !source.is(at, "#") || !source.is(at + 1, "[") || continues {
        return None;
    }
    let mut next = at;
    let mut is_test = false;
    while source.is(next, "#") && source.is(next + 1, "[") {
        is_test |= source.is(next + 2, "test") && source.is(next + 3, "]");
        next = super::lexer::group_end(&source.tokens, next + 1) + 1;
    }
    (is_test && source.is(next, "fn")).then_some(next + 1)
}

/// The comments on the lines directly above `line`.
fn docs_above(source: &Source, line: usize) -> Vec<&str> {
    let mut below = line;
    let above = source.comments.iter().rev().skip_while(|comment| comment.last >= line);
    let joined = above.map_while(|comment| {
        let joined = comment.last + 1 == below;
        below = comment.line;
        joined.then_some(comment.text.as_str())
    });
    joined.collect()
}

/// The numbers of three digits that follow `prefix`.
fn numbers(text: &str, prefix: &str) -> Vec<u16> {
    let after = text.split(prefix).skip(1);
    after.filter_map(|rest| rest.get(..3)?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_names_its_cases_by_name_or_docs() {
        let text = "
            /// CORE-001 and CORE-002: the rule
            /// over two lines.
            #[test]
            #[cfg(unix)]
            fn a_name() {}

            #[should_panic]
            #[test]
            fn core_004_core_005_x() {}

            // CORE-006 is far away.

            #[test]
            fn other() {}

            /// CORE-007: no test.
            fn core_008() {}
        ";
        let named = named(&[Source::new("tests/a.rs", text)]);
        assert_eq!(named.keys().copied().collect::<Vec<_>>(), [1, 2, 4, 5]);
        assert_eq!(named[&4], ["tests/a.rs:10 core_004_core_005_x"]);
    }

    #[test]
    fn a_case_without_a_test_is_missing() {
        assert_eq!(missing(&[]), CASES);
        let tests =
            CASES[1..].iter().map(|case| format!("#[test]\nfn core_{case:03}_holds() {{}}"));
        let text = tests.collect::<Vec<_>>().join("\n");
        assert_eq!(missing(&[Source::new("src/a.rs", &text)]), [1]);
    }
}
