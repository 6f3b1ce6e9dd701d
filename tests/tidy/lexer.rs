//! Rust text as words and marks, so that no rule takes a comment or a string for code.
//!
//! It knows what the rules ask for and no more: identifiers, single marks, and where literals and
//! comments end. It never fails: what it cannot read it takes for marks.

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An identifier or a keyword, without `r#`.
    Word,
    /// One character of punctuation.
    Mark,
    /// A number, a string or a character. The text of a string stands without its quotes.
    Literal,
    /// `'name`.
    Lifetime,
}

/// One token outside comments.
#[derive(Clone, Debug)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// Its text.
    pub text: String,
    /// Line of its first character, from 1.
    pub line: usize,
}

impl Token {
    /// This word or this mark.
    pub fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Mark) && self.text == text
    }
}

/// One comment, with its slashes or stars.
#[derive(Clone, Debug)]
pub struct Comment {
    /// Its text.
    pub text: String,
    /// First line.
    pub line: usize,
    /// Last line.
    pub last: usize,
}

/// A file that was read.
#[derive(Debug, Default)]
pub struct Lexed {
    /// Everything but comments and white space.
    pub tokens: Vec<Token>,
    /// The comments, documentation among them.
    pub comments: Vec<Comment>,
}

/// Reads a file.
pub fn lex(text: &str) -> Lexed {
    let mut cursor = Cursor { rest: text, line: 1 };
    let mut out = Lexed::default();
    while let Some(first) = cursor.peek(0) {
        let (line, start) = (cursor.line, cursor.rest);
        let next = cursor.peek(1);
        let mut token = |kind, text: &str| {
            out.tokens.push(Token { kind, text: text.into(), line });
        };
        if first.is_whitespace() {
            cursor.skip(1);
        } else if first == '/' && matches!(next, Some('/' | '*')) {
            if next == Some('/') {
                cursor.skip_while(|c| c != '\n');
            } else {
                cursor.skip_block_comment();
            }
            let text = cursor.since(start).into();
            out.comments.push(Comment { text, line, last: cursor.line });
        } else if let Some((prefix, hashes)) = string_start(start) {
            cursor.skip(prefix);
            let text = cursor.string(hashes);
            token(Kind::Literal, text);
        } else if first == '\'' || (first == 'b' && next == Some('\'')) {
            cursor.skip(usize::from(first == 'b'));
            let after = cursor.peek(1);
            if after == Some('\\') || cursor.peek(2) == Some('\'') {
                cursor.skip(if after == Some('\\') { 3 } else { 2 });
                cursor.skip_while(|c| c != '\'');
                cursor.skip(1);
                token(Kind::Literal, cursor.since(start));
            } else {
                cursor.skip(1);
                cursor.skip_while(is_word);
                token(Kind::Lifetime, cursor.since(start));
            }
        } else if first.is_ascii_digit() {
            let mut before = first;
            while let Some(c) = cursor.peek(0) {
                let fraction = c == '.' && cursor.peek(1).is_some_and(|c| c.is_ascii_digit());
                let exponent = matches!(c, '+' | '-')
                    && matches!(before, 'e' | 'E')
                    && !cursor.since(start).starts_with("0x");
                if !(is_word(c) || fraction || exponent) {
                    break;
                }
                before = c;
                cursor.skip(1);
            }
            token(Kind::Literal, cursor.since(start));
        } else if is_word(first) {
            let raw = start.starts_with("r#");
            cursor.skip(if raw { 2 } else { 1 });
            cursor.skip_while(is_word);
            token(Kind::Word, cursor.since(start).trim_start_matches("r#"));
        } else {
            cursor.skip(1);
            token(Kind::Mark, cursor.since(start));
        }
    }
    out
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Characters before the opening quote, and the hashes of a raw string (`None`: not raw).
fn string_start(text: &str) -> Option<(usize, Option<usize>)> {
    let letters = text.len() - text.trim_start_matches(['b', 'c', 'r']).len();
    let raw = text.get(..letters)?.contains('r');
    let rest = text.get(letters..)?;
    let hashes = if raw { rest.len() - rest.trim_start_matches('#').len() } else { 0 };
    let opens = letters <= 2 && rest.get(hashes..)?.starts_with('"');
    opens.then_some((letters + hashes, raw.then_some(hashes)))
}

struct Cursor<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.rest.chars().nth(ahead)
    }

    /// What was passed since `start`, an earlier `rest`.
    fn since(&self, start: &'a str) -> &'a str {
        &start[..start.len() - self.rest.len()]
    }

    fn skip(&mut self, characters: usize) {
        for _ in 0..characters {
            let Some(c) = self.peek(0) else { return };
            self.line += usize::from(c == '\n');
            self.rest = &self.rest[c.len_utf8()..];
        }
    }

    fn skip_while(&mut self, goes_on: impl Fn(char) -> bool) {
        while self.peek(0).is_some_and(&goes_on) {
            self.skip(1);
        }
    }

    fn skip_block_comment(&mut self) {
        let mut depth = 0;
        while !self.rest.is_empty() {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.skip(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.skip(2);
                if depth == 0 {
                    return;
                }
            } else {
                self.skip(1);
            }
        }
    }

    /// From the opening quote past the closing one; gives what stands between them.
    fn string(&mut self, hashes: Option<usize>) -> &'a str {
        self.skip(1);
        let start = self.rest;
        let end = format!("\"{}", "#".repeat(hashes.unwrap_or(0)));
        while !self.rest.is_empty() && !self.rest.starts_with(&end) {
            let escaped = hashes.is_none() && self.rest.starts_with('\\');
            self.skip(if escaped { 2 } else { 1 });
        }
        let text = self.since(start);
        self.skip(end.len());
        text
    }
}

/// For each token whether it is compiled for tests only: it belongs to an item, field or statement
/// under a `#[cfg(test)]`.
pub fn test_only(tokens: &[Token]) -> Vec<bool> {
    let mut marked = vec![false; tokens.len()];
    let mut at = 0;
    while at < tokens.len() {
        if !(tokens[at].is("#") && tokens.get(at + 1).is_some_and(|t| t.is("["))) {
            at += 1;
            continue;
        }
        let close = group_end(tokens, at + 1);
        if !is_test_condition(&tokens[at + 2..close.min(tokens.len())]) {
            at = close + 1;
            continue;
        }
        let end = item_end(tokens, close + 1).min(tokens.len());
        marked[at..end].fill(true);
        at = end;
    }
    marked
}

/// Index of the mark that closes the group opened at `open`, or the number of tokens.
pub fn group_end(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if token.is("(") || token.is("[") || token.is("{") {
            depth += 1;
        } else if token.is(")") || token.is("]") || token.is("}") {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return at;
            }
        }
    }
    tokens.len()
}

/// `cfg(..)` that holds in test builds only. `any` and `not` are taken to hold elsewhere too.
fn is_test_condition(attribute: &[Token]) -> bool {
    attribute.first().is_some_and(|t| t.is("cfg"))
        && attribute.iter().any(|t| t.is("test"))
        && !attribute.iter().any(|t| t.is("not") || t.is("any"))
}

const ITEMS: [&str; 14] = [
    "fn",
    "mod",
    "struct",
    "enum",
    "union",
    "impl",
    "trait",
    "use",
    "const",
    "static",
    "type",
    "unsafe",
    "extern",
    "macro_rules",
];

/// One past the last token of what begins at `start`: an item, a field, a variant or a statement.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let mut at = start;
    // Other attributes and the visibility stand before the word that tells what it is.
    loop {
        if tokens.get(at).is_some_and(|t| t.is("#")) {
            at = group_end(tokens, at + 1) + 1;
        } else if tokens.get(at).is_some_and(|t| t.is("pub")) {
            at += 1;
            if tokens.get(at).is_some_and(|t| t.is("(")) {
                at = group_end(tokens, at) + 1;
            }
        } else {
            break;
        }
    }
    let first = tokens.get(at).map_or("", |t| t.text.as_str());
    let function = tokens.iter().skip(at + 1).take(3).any(|t| t.is("fn"));
    let is_item = ITEMS.contains(&first) || function;
    // These may hold braces before they end.
    let to_semicolon =
        matches!(first, "use" | "static" | "type") || (first == "const" && !function);
    while at < tokens.len() {
        let token = &tokens[at];
        if token.is(";") || (token.is(",") && !is_item) {
            return at + 1;
        }
        if token.is(")") || token.is("]") || token.is("}") {
            return at;
        }
        if token.is("(") || token.is("[") || token.is("{") {
            let body = token.is("{") && is_item && !to_semicolon;
            at = group_end(tokens, at);
            if body {
                return at + 1;
            }
        }
        at += 1;
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let tokens = lex(text).tokens;
        tokens.into_iter().filter(|t| t.kind == Kind::Word).map(|t| t.text).collect()
    }

    #[test]
    fn comments_and_literals_hide_their_words() {
        let text = "a /* b /* c */ d */ \"e \\\" f\" r#\"g \" h\"# 'i' '\\'' b'j' // k\n'l: m r#n b\"o\" 1.5e-3 1..p";
        assert_eq!(words(text), ["a", "m", "n", "p"]);
        assert_eq!(lex(text).comments.len(), 2);
        assert_eq!(lex(text).tokens.last().unwrap().line, 2);
    }

    #[test]
    fn a_string_keeps_its_text_and_its_lines() {
        let lexed = lex("x(\"two\nlines\");\ny");
        assert_eq!(lexed.tokens[2].text, "two\nlines");
        assert_eq!(lexed.tokens.last().unwrap().line, 3);
    }

    #[test]
    fn what_is_for_tests_only_is_known() {
        for (text, outside) in [
            ("#[cfg(test)] mod tests { use a; } b", &["b"][..]),
            ("#[cfg(test)] #[path = \"x\"] pub(crate) mod tests; b", &["b"]),
            ("#[cfg(all(test, unix))] use a::{c, d}; b", &["b"]),
            ("#[cfg(test)] const A: [u8; 1] = { a }; b", &["b"]),
            ("#[cfg(test)] const fn a<T, U>() { c } b", &["b"]),
            ("struct S { #[cfg(test)] a: A<(T, U)>, b: B }", &["struct", "S", "b", "B"]),
            ("fn f() { #[cfg(test)] let a = { c }; b }", &["fn", "f", "b"]),
            ("#[cfg(not(test))] a", &["cfg", "not", "test", "a"]),
            ("#[cfg(unix)] a", &["cfg", "unix", "a"]),
        ] {
            let tokens = lex(text).tokens;
            let marked = test_only(&tokens);
            let left: Vec<&str> = tokens
                .iter()
                .zip(marked)
                .filter(|(t, test)| !test && t.kind == Kind::Word)
                .map(|(t, _)| t.text.as_str())
                .collect();
            assert_eq!(left, outside, "{text}");
        }
    }
}
