//! Globs over resource ids, as Doorman's config has them.
//!
//! The rules are those of Go's `filepath.Match` over the whole id: `*` matches any characters
//! without a "/", `?` one character except "/", `[a-z]` one of a class, `[^a-z]` one outside of
//! it (also a "/"), and a backslash makes the next character literal. All ways to match are
//! followed at once, so the time is at most the product of both lengths.

use std::fmt;

/// A checked pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: String,
    tokens: Vec<Token>,
}

/// Why a text is not a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGlob {
    /// The glob is empty: it would match no id.
    #[error("is empty")]
    Empty,
    /// A backslash with nothing after it.
    #[error("ends in a backslash with nothing to escape")]
    LoneBackslash,
    /// A `[` without its `]`.
    #[error("opens a class with \"[\" and does not close it")]
    OpenClass,
    /// A class with nothing in it, or with a bare `-` or `]` where a character belongs.
    #[error("has a class without a character where one belongs (write \"\\-\" or \"\\]\")")]
    NoCharacter,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Run,
    One,
    Exactly(char),
    Class {
        outside: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Token {
    /// Whether it matches this character.
    fn takes(&self, character: char) -> bool {
        match self {
            Self::Run | Self::One => character != '/',
            Self::Exactly(expected) => *expected == character,
            Self::Class { outside, ranges } => {
                let inside = ranges
                    .iter()
                    .any(|(low, high)| (*low..=*high).contains(&character));
                inside != *outside
            }
        }
    }
}

impl Glob {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// What Go's `filepath.Match` calls a bad pattern, and the empty one.
    pub fn new(text: &str) -> Result<Self, BadGlob> {
        if text.is_empty() {
            return Err(BadGlob::Empty);
        }
        let mut tokens = Vec::new();
        let mut rest = text.chars();
        while let Some(character) = rest.next() {
            let token = match character {
                // Several in a row mean the same as one.
                '*' if tokens.last() == Some(&Token::Run) => continue,
                '*' => Token::Run,
                '?' => Token::One,
                '\\' => Token::Exactly(rest.next().ok_or(BadGlob::LoneBackslash)?),
                '[' => class(&mut rest)?,
                _ => Token::Exactly(character),
            };
            tokens.push(token);
        }
        Ok(Self {
            text: text.to_owned(),
            tokens,
        })
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the whole id is matched.
    #[must_use]
    pub fn matches(&self, id: &str) -> bool {
        // `reached[n]`: what was read so far can be matched by the first n tokens.
        let mut reached = vec![false; self.tokens.len() + 1];
        reached[0] = true;
        self.pass_runs(&mut reached);
        for character in id.chars() {
            let mut next = vec![false; self.tokens.len() + 1];
            for (at, token) in self.tokens.iter().enumerate() {
                if reached[at] && token.takes(character) {
                    // A run may go on.
                    next[if *token == Token::Run { at } else { at + 1 }] = true;
                }
            }
            self.pass_runs(&mut next);
            reached = next;
        }
        reached[self.tokens.len()]
    }

    /// A run may also be empty, or over.
    fn pass_runs(&self, reached: &mut [bool]) {
        for (at, token) in self.tokens.iter().enumerate() {
            if reached[at] && *token == Token::Run {
                reached[at + 1] = true;
            }
        }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Reads a class up to its `]`; its `[` has been read.
fn class(rest: &mut std::str::Chars<'_>) -> Result<Token, BadGlob> {
    let outside = rest.as_str().starts_with('^');
    if outside {
        rest.next();
    }
    let mut ranges = Vec::new();
    loop {
        if !ranges.is_empty() && rest.as_str().starts_with(']') {
            rest.next();
            return Ok(Token::Class { outside, ranges });
        }
        let low = class_character(rest)?;
        let high = if rest.as_str().starts_with('-') {
            rest.next();
            class_character(rest)?
        } else {
            low
        };
        ranges.push((low, high));
    }
}

fn class_character(rest: &mut std::str::Chars<'_>) -> Result<char, BadGlob> {
    match rest.next().ok_or(BadGlob::OpenClass)? {
        '-' | ']' => Err(BadGlob::NoCharacter),
        '\\' => rest.next().ok_or(BadGlob::LoneBackslash),
        character => Ok(character),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, matched: &[&str], others: &[&str]) {
        let glob = Glob::new(pattern).expect("a good pattern");
        for id in matched {
            assert!(glob.matches(id), "{pattern} should match {id}");
        }
        for id in others {
            assert!(!glob.matches(id), "{pattern} should not match {id}");
        }
    }

    #[test]
    fn a_run_and_a_question_mark_stop_at_a_slash() {
        check("*", &["", "abc", "a.b-c"], &["a/b", "/"]);
        check("a*", &["a", "abc"], &["ba", "a/"]);
        check("*/*", &["a/b", "/"], &["ab", "a/b/c"]);
        check("a?c", &["abc", "aßc"], &["ac", "a/c", "abbc"]);
        check("a**c", &["ac", "abc"], &["a/c"]);
        check("*a*b", &["ab", "xaxab", "aab"], &["ba", "a/b"]);
    }

    #[test]
    fn a_class_takes_one_of_its_characters_and_an_inverted_one_any_other() {
        check("a?c[xyz]", &["abcx", "a-cz"], &["abcd", "abc"]);
        check("[a-cx]", &["a", "b", "x"], &["d", "", "ab"]);
        check("[^x-z]", &["a", "/"], &["x", "y", "z"]);
        check(r"[\-\]]", &["-", "]"], &[r"\"]);
        check("[z-a]", &[], &["a", "m", "z"]);
        // Not the nearest way to match the class, but one.
        check("*[^a]*b", &["x/yb"], &["a/"]);
    }

    #[test]
    fn a_backslash_takes_the_next_character_as_it_stands() {
        check(r"a\*", &["a*"], &["ab", "a"]);
        check(r"\[a\]", &["[a]"], &["a"]);
        check(r"\a", &["a"], &[r"\a"]);
    }

    #[test]
    fn an_invalid_pattern_is_reported() {
        let bad = |text: &str| Glob::new(text).expect_err("a bad pattern");
        assert_eq!(bad(""), BadGlob::Empty);
        assert_eq!(bad(r"a\"), BadGlob::LoneBackslash);
        assert_eq!(bad("a[bc"), BadGlob::OpenClass);
        assert_eq!(bad("[a-"), BadGlob::OpenClass);
        assert_eq!(bad("[]"), BadGlob::NoCharacter);
        assert_eq!(bad("[]a]"), BadGlob::NoCharacter);
        assert_eq!(bad("[-a]"), BadGlob::NoCharacter);
        assert_eq!(bad("[a-]"), BadGlob::NoCharacter);
        assert_eq!(bad("[^]"), BadGlob::NoCharacter);
    }

    #[test]
    fn a_pattern_of_many_runs_takes_no_time_to_fail() {
        let glob = Glob::new(&"*a".repeat(100)).expect("a good pattern");
        assert!(!glob.matches(&"a".repeat(1_000).replace("aaaa", "aaab/")));
        assert!(glob.matches(&"a".repeat(1_000)));
    }
}
