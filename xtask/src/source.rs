//! Rust source as the checks need it: the tracked files, and their words without comments and literals.
//!
//! Owns: a tokenizer that knows just enough of the grammar to tell code from text.
//! Never: understands what the code means.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// Fixtures of the checks, where violations stand on purpose. Nothing below it is part of the workspace.
pub(crate) const FIXTURES: &str = "xtask/fixtures/";

/// A word or a punctuation mark of the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// An identifier, keyword or number; or `::`; or one other character.
    pub(crate) text: String,
    /// Line it stands on, from 1.
    pub(crate) line: usize,
}

/// All `.rs` files that git tracks or would track, relative to `root`, except the fixtures.
///
/// # Errors
///
/// If git cannot list them.
pub(crate) fn rust_files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "-z", "--", "*.rs"])
        .current_dir(root)
        .output()
        .context("failed to start git")?;
    anyhow::ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(text
        .split_terminator('\0')
        .filter(|path| !path.starts_with(FIXTURES))
        .map(PathBuf::from)
        .filter(|path| root.join(path).exists()) // deleted but not yet committed
        .collect())
}

/// The tokens of `source`; comments, strings, characters and lifetimes are left out.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let mut scanner = Scanner { rest: source, line: 1 };
    let mut tokens = Vec::new();
    while let Some(text) = scanner.next_token() {
        tokens.push(Token { text: text.to_owned(), line: scanner.line });
    }
    tokens
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Scanner<'a> {
    fn next_token(&mut self) -> Option<&'a str> {
        loop {
            let first = self.rest.chars().next()?;
            if first.is_whitespace() {
                self.take(first.len_utf8());
            } else if self.rest.starts_with("//") {
                self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                self.skip_block_comment();
            } else if first == '"' {
                self.skip_string();
            } else if first == '\'' {
                self.skip_character_or_lifetime();
            } else if first.is_alphanumeric() || first == '_' {
                let end = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
                let word = self.take(end);
                if !self.skip_literal_after(word) {
                    return Some(word);
                }
            } else if self.rest.starts_with("::") {
                return Some(self.take(2));
            } else {
                return Some(self.take(first.len_utf8()));
            }
        }
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn skip_block_comment(&mut self) {
        let mut depth = 0_usize;
        loop {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.take(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.take(2);
                if depth == 0 {
                    return;
                }
            } else {
                let Some(next) = self.rest.chars().next() else { return };
                self.take(next.len_utf8());
            }
        }
    }

    fn skip_string(&mut self) {
        self.take(1);
        while let Some(end) = self.rest.find(['"', '\\']) {
            let escape = self.rest[end..].starts_with('\\');
            self.take(end + 1);
            if !escape {
                return;
            }
            let escaped = self.rest.chars().next().map_or(0, char::len_utf8);
            self.take(escaped);
        }
        self.take(self.rest.len());
    }

    /// After a prefix of a literal (`b`, `c`, `r`, `br`, `cr`): skips the literal, if it is one. `r#name` is a word.
    fn skip_literal_after(&mut self, word: &str) -> bool {
        if !matches!(word, "b" | "c" | "r" | "br" | "cr") {
            return false;
        }
        let hashes = self.rest.len() - self.rest.trim_start_matches('#').len();
        if word.ends_with('r') && self.rest[hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            self.take(hashes + 1);
            let end = self.rest.find(&close).map_or(self.rest.len(), |at| at + close.len());
            self.take(end);
            true
        } else if self.rest.starts_with('"') {
            self.skip_string();
            true
        } else if word == "b" && self.rest.starts_with('\'') {
            self.skip_character_or_lifetime();
            true
        } else {
            if word == "r" && hashes == 1 {
                self.take(1); // a raw identifier: the word after it is looked at like any other
                return true;
            }
            false
        }
    }

    fn skip_character_or_lifetime(&mut self) {
        self.take(1);
        let mut characters = self.rest.chars();
        match (characters.next(), characters.next()) {
            (Some('\\'), Some(escaped)) => {
                self.take(1 + escaped.len_utf8());
                let end = self.rest.find('\'').map_or(self.rest.len(), |at| at + 1);
                self.take(end);
            }
            (Some(character), Some('\'')) => {
                self.take(character.len_utf8() + 1);
            }
            // A lifetime, whose name must not be taken for a word: `'unsafe` is none, `'static` is.
            _ => {
                let end = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
                self.take(end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &[&str]) {
        let words: Vec<String> = tokens(source).into_iter().map(|token| token.text).collect();
        assert_eq!(words, expected);
    }

    #[test]
    fn text_is_told_from_code() {
        check("a // b\nc /* d /* e */ f */ g", &["a", "c", "g"]);
        check(r#"x("a \" b", c"d", b"e")"#, &["x", "(", ",", ",", ")"]);
        check("r#\"a \" b\"# br##\"c\"# \"## d", &["d"]);
        check(r"'a' '\'' '\u{1F600}' b'x' b'\\' &'static str", &["&", "str"]);
        check("r#unsafe std :: fs", &["unsafe", "std", "::", "fs"]);
        check("fn f<'a>(x: &'a u8) {}", &["fn", "f", "<", ">", "(", "x", ":", "&", "u8", ")", "{", "}"]);
        check("\"open", &[]);
    }

    #[test]
    fn tokens_know_their_line() {
        let lines: Vec<usize> = tokens("a\n/* \n */ b \"\n\" c").into_iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 3, 4]);
    }
}
