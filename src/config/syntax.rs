//! Parses the TOML and says what is wrong with it, line by line. What can be saved from a
//! broken file is read on, so that its other mistakes are told as well.

use std::collections::BTreeSet;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::problem::{Lines, Place, Problem, Severity};
use super::tree::{self, Table, quoted};

/// What came out of the file.
pub(super) struct Parsed {
    pub(super) tree: Table,
    pub(super) problems: Vec<Problem>,
    /// Lines whose TOML is broken.
    pub(super) broken: BTreeSet<usize>,
    /// Whether whole sections may be lost, because a header is broken.
    pub(super) lost: bool,
}

/// Parses a file.
pub(super) fn parse(text: &str) -> Parsed {
    let lines = Lines::of(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut parsed = Parsed {
        tree: tree::of_file(table.get_ref(), &lines),
        problems: Vec::new(),
        broken: BTreeSet::new(),
        lost: false,
    };
    for error in errors {
        let place = lines.place(error.span().unwrap_or_default());
        let Place::File { line: number, .. } = place else {
            continue;
        };
        // What follows on the same line is the echo of the first.
        if !parsed.broken.insert(number) {
            continue;
        }
        let (start, line) = lines.line(number);
        parsed.lost |= line.trim_start().starts_with('[');
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
            let (message, cure) = explained(error.message());
            Problem {
                severity: Severity::Error,
                place,
                key: String::new(),
                message,
                cure,
            }
        };
        parsed.problems.push(problem);
    }
    if let Some(text) = without_stray_lines(text, &lines, &parsed.broken) {
        let (table, _) = DeTable::parse_recoverable(&text);
        parsed.tree = tree::of_file(table.get_ref(), &lines);
    }
    parsed
}

/// A word without `=` swallows the line below it. The same file with such lines covered,
/// byte for byte, if there are any.
fn without_stray_lines(text: &str, lines: &Lines<'_>, broken: &BTreeSet<usize>) -> Option<String> {
    let mut covered = String::with_capacity(text.len());
    let mut done = 0;
    for &number in broken {
        let (start, line) = lines.line(number);
        if line.contains('=') || line.trim_start().starts_with('[') {
            continue;
        }
        covered.push_str(&text[done..start]);
        covered.extend(std::iter::repeat_n('#', line.len()));
        done = start + line.len();
    }
    covered.push_str(&text[done..]);
    (done > 0).then_some(covered)
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
    // A secret stands in no message.
    let shown = if key == "token" {
        "\"…\""
    } else {
        &quoted(value)
    };
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
