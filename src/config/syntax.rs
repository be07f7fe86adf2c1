//! Parses the TOML and says what is wrong with it, line by line. What can be saved from a
//! broken file is read on, so that its other mistakes are told as well.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::problem::{Lines, Place, Problem, Severity};
use super::secret;
use super::tree::{self, Table};

/// What came out of the file.
pub(super) struct Parsed {
    pub(super) tree: Table,
    pub(super) problems: Vec<Problem>,
    /// Lines whose TOML is broken.
    pub(super) broken: BTreeSet<usize>,
    /// Whether whole sections may be lost, because a header is broken.
    pub(super) lost: bool,
}

/// How often a file is looked at again after a repair: each look may find what the last one
/// could not see.
const LOOKS_MAX: usize = 4;

/// Parses a file.
pub(super) fn parse(text: &str) -> Parsed {
    let mut parsed = Parsed {
        tree: Table::new(),
        problems: Vec::new(),
        broken: BTreeSet::new(),
        lost: false,
    };
    let original = Lines::of(text);
    let mut repaired = Cow::Borrowed(text);
    for _ in 0..LOOKS_MAX {
        let lines = Lines::repaired(&repaired, text);
        let (table, errors) = DeTable::parse_recoverable(&repaired);
        parsed.tree = tree::of_file(table.get_ref(), &lines);
        let before = parsed.broken.len();
        for error in errors {
            let place = lines.place(error.span().unwrap_or_default());
            parsed.note(text, &original, place, error.message());
        }
        if parsed.broken.len() == before {
            break;
        }
        match repair(text, &parsed.broken) {
            Some(again) => repaired = Cow::Owned(again),
            None => break,
        }
    }
    parsed
}

impl Parsed {
    /// Notes what is wrong with the TOML of a line.
    fn note(&mut self, text: &str, lines: &Lines<'_>, place: Place, message: &str) {
        let Place::File { line: number, .. } = place else {
            return;
        };
        // What follows on the same line is the echo of the first.
        if !self.broken.insert(number) {
            return;
        }
        let (start, line) = lines.line(number);
        self.lost |= line.trim_start().starts_with('[') && closed(line).is_none();
        // The value of a secret may be on the next line, and is no key.
        if let Some((key, value)) = line.split_once('=')
            && value.trim().is_empty()
            && secret::is_secret(key)
        {
            self.broken.insert(number + 1);
        }
        let problem = if let Some(slip) = unquoted(line) {
            let value = start + slip.value.start..start + slip.value.end;
            Problem {
                severity: Severity::Error,
                place: lines.place(value),
                key: format!("{}{}", section_of(text, start), slip.key),
                message: "a string stands here without its quotes".to_owned(),
                cure: slip.cure,
            }
        } else {
            let (message, cure) = explained(message);
            Problem {
                severity: Severity::Error,
                place,
                key: String::new(),
                message,
                cure,
            }
        };
        self.problems.push(problem);
    }
}

/// The same file, line by line, without what hides the lines below: a word without `=` is
/// covered, and the header of a section is closed. None if there is nothing of that.
fn repair(text: &str, broken: &BTreeSet<usize>) -> Option<String> {
    let mut repaired = String::with_capacity(text.len());
    let mut is_changed = false;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let bare = line.trim_end_matches(['\r', '\n']);
        let end = &line[bare.len()..];
        let header = || closed(bare);
        if !broken.contains(&(index + 1)) {
            repaired.push_str(bare);
        } else if bare.trim_start().starts_with('[') {
            let header = header();
            is_changed |= header.is_some();
            repaired.push_str(header.as_deref().unwrap_or(bare));
        } else if !bare.contains('=') {
            is_changed = true;
            repaired.extend(std::iter::repeat_n('#', bare.len()));
        } else {
            repaired.push_str(bare);
        }
        repaired.push_str(end);
    }
    is_changed.then_some(repaired)
}

/// The header of a section that lacks brackets, or has spaces where an underscore belongs, as
/// it was probably meant.
fn closed(line: &str) -> Option<String> {
    let line = line.trim_start();
    let brackets = line.bytes().take_while(|byte| *byte == b'[').count();
    let name = line[brackets..].split([']', '#']).next()?.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ');
    if !(1..=2).contains(&brackets) || name.is_empty() || !name.chars().all(plain) {
        return None;
    }
    let name = name.split_whitespace().collect::<Vec<_>>().join("_");
    Some(format!(
        "{}{name}{}",
        "[".repeat(brackets),
        "]".repeat(brackets)
    ))
}

/// The section that a line belongs to, with a dot: the last header above it.
fn section_of(text: &str, start: usize) -> String {
    // Only above a slip, of which a file has few; still, a file full of them is bounded
    // by looking at no more than the nearest headers.
    const BYTES_MAX: usize = 16 << 10;
    let mut from = start.saturating_sub(BYTES_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let header = text[from..start]
        .lines()
        .rev()
        .find_map(|line| line.trim().strip_prefix('['));
    let name = header.and_then(|rest| rest.trim_start_matches('[').split(']').next());
    name.map_or(String::new(), |name| format!("{}.", name.trim()))
}

/// A string without its quotes.
struct Unquoted<'a> {
    key: &'a str,
    /// Where its value stands in the line.
    value: Range<usize>,
    cure: String,
}

/// The most common slip, and the one that comes from pasting out of zvmsdk.conf: a value
/// that is a string, without its quotes.
fn unquoted(line: &str) -> Option<Unquoted<'_>> {
    let (before, rest) = line.split_once('=')?;
    let key = before.trim();
    let uncommented = rest.split('#').next().unwrap_or_default();
    let value = uncommented.trim();
    let plain_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let number_like = |c: char| c.is_ascii_digit() || "_.+-xXoObBeE".contains(c);
    let spoilt = |c: char| matches!(c, '"' | '\'' | '[' | ']' | '{' | '}' | '\\') || c.is_control();
    if key.is_empty()
        || !key.chars().all(plain_key)
        || value.is_empty()
        || value.contains(spoilt)
        || value.chars().all(number_like)
        || DeValue::parse(value).is_ok()
    {
        return None;
    }
    let blank = uncommented.len() - uncommented.trim_start().len();
    let start = before.len() + 1 + blank;
    let shown = secret::shown(key, value);
    Some(Unquoted {
        key,
        value: start..start + value.len(),
        cure: format!("write it in quotes: {key} = {shown}"),
    })
}

/// The parser's message, and what to do about it.
fn explained(message: &str) -> (String, String) {
    let cure = if message.starts_with("duplicate key") {
        "it stands above already: leave one of the two out"
    } else if message.starts_with("unclosed table") {
        "close the name of the section: [limits] or [[listen]]"
    } else if message.starts_with("unclosed array") || message.starts_with("missing comma") {
        "close the array with ] and separate its values with commas"
    } else if message.contains("basic string") || message.contains("literal string") {
        "give the value in double quotes on one line: key = \"value\""
    } else {
        "write the line as key = value, with strings in quotes, or a section as [name]"
    };
    (format!("not TOML: {message}"), cure.to_owned())
}
