//! Parses the TOML and reports what is wrong with it, line by line. The readable rest of a broken
//! file is read as well, so that its other mistakes are reported too.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::kind::is_plain;
use super::place::{ConfigPlace, LineIndex};
use super::problem::Problem;
use super::shown;
use super::tree::{self, Table};

/// The result of parsing the file.
pub struct Parsed {
    /// The values, as far as they can be parsed.
    pub tree: Table,
    /// The lines that cannot be parsed.
    pub problems: Vec<Problem>,
    /// Lines whose TOML is broken.
    pub broken: BTreeSet<usize>,
    /// Whether whole sections may be lost, because a header is broken.
    pub lost: bool,
    /// The file with every secret covered, once it is needed.
    masked: OnceCell<String>,
}

/// How often a file is looked at again after a repair: each look may find what the last one
/// could not see.
const LOOKS_MAX: usize = 4;

/// Parses a file.
pub fn parse(text: &str) -> Parsed {
    let mut parsed = Parsed {
        tree: Table::new(),
        problems: Vec::new(),
        broken: BTreeSet::new(),
        lost: false,
        masked: OnceCell::new(),
    };
    let original = LineIndex::of(text);
    let mut repaired = RepairedText {
        text: Cow::Borrowed(text),
        added: Vec::new(),
    };
    // Words of inline tables and arrays without their quotes, by their lines.
    let mut words = BTreeMap::new();
    for look in 0..LOOKS_MAX {
        let lines = LineIndex::repaired(&repaired.text, text, &repaired.added);
        let (table, errors) = DeTable::parse_recoverable(&repaired.text);
        parsed.tree = tree::of_table(table.get_ref(), &|span| lines.place(span));
        let before = parsed.broken.len() + words.len();
        for error in errors {
            let place = lines.place(error.span().unwrap_or_default());
            if !parsed.note_words(text, &original, &place, look, &mut words) {
                parsed.note(text, &original, place, error.message());
            }
        }
        if parsed.broken.len() + words.len() == before {
            break;
        }
        match repair(text, &parsed.broken, &words) {
            Some(again) => repaired = again,
            None => break,
        }
    }
    parsed
}

/// A form of the file in which more can be read.
struct RepairedText<'a> {
    text: Cow<'a, str>,
    /// The bytes that the file does not have, in their order.
    added: Vec<usize>,
}

/// Words without their quotes, by the number of their line.
type WordsByLine = BTreeMap<usize, LineWords>;

/// The words of a line.
struct LineWords {
    /// The look that found them. Its further errors on that line are echoes.
    look: usize,
    /// Where they are in the line.
    words: Vec<Range<usize>>,
}

impl Parsed {
    /// Notes the strings without quotes in the inline tables and arrays of a line, all of them at
    /// once. False if there is none, or if they were noted before: then something else is wrong.
    fn note_words(
        &mut self,
        text: &str,
        lines: &LineIndex<'_>,
        place: &ConfigPlace,
        look: usize,
        words: &mut WordsByLine,
    ) -> bool {
        let ConfigPlace::File { line: number, .. } = *place else {
            return false;
        };
        if let Some(found) = words.get(&number) {
            return found.look == look;
        }
        if self.broken.contains(&number) {
            return false;
        }
        let (start, line) = lines.line(number);
        let mut slips = inline_words(line);
        if slips.is_empty() {
            slips.extend(unquoted(line));
        }
        if slips.is_empty() {
            return false;
        }
        let section = section_of(text, start);
        let problems = slips
            .iter()
            .map(|slip| slip.problem(lines, &section, start));
        self.problems.extend(problems);
        let found = slips.into_iter().map(|slip| slip.value).collect();
        words.insert(number, LineWords { look, words: found });
        true
    }

    /// Notes what is wrong with the TOML of a line.
    fn note(&mut self, text: &str, lines: &LineIndex<'_>, place: ConfigPlace, message: &str) {
        let ConfigPlace::File { line: number, .. } = place else {
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
            && shown::is_secret(key)
        {
            self.broken.insert(number + 1);
        }
        // With every secret covered.
        let masked = self.masked.get_or_init(|| shown::mask(text));
        let is_shown = masked[start..start + line.len()] == *line;
        let problem = explained(place, message, line, is_shown);
        self.problems.push(problem);
    }
}

/// Repairs a file, line by line, without what hides the rest: a line without `=` is covered, the header of a
/// section is closed, and words get their quotes. None if there is nothing of that.
fn repair<'a>(
    text: &str,
    broken: &BTreeSet<usize>,
    words: &WordsByLine,
) -> Option<RepairedText<'a>> {
    let mut repaired = String::with_capacity(text.len());
    let mut added = Vec::new();
    let mut is_changed = false;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let bare = line.trim_end_matches(['\r', '\n']);
        let end = &line[bare.len()..];
        if let Some(words) = words.get(&(index + 1)) {
            is_changed = true;
            let mut add_quote = |repaired: &mut String| {
                added.push(repaired.len());
                repaired.push('\'');
            };
            let mut done = 0;
            for word in &words.words {
                repaired.push_str(&bare[done..word.start]);
                let text = &bare[word.clone()];
                done = word.end;
                if let Some(inside) = in_typographic_quotes(text) {
                    // As long as before.
                    let rest = " ".repeat(text.len() - inside.len() - 2);
                    repaired.push_str(&format!("'{inside}'{rest}"));
                    continue;
                }
                add_quote(&mut repaired);
                repaired.push_str(text);
                add_quote(&mut repaired);
            }
            repaired.push_str(&bare[done..]);
        } else if !broken.contains(&(index + 1)) {
            repaired.push_str(bare);
        } else if bare.trim_start().starts_with('[') {
            let header = closed(bare);
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
    is_changed.then_some(RepairedText {
        text: Cow::Owned(repaired),
        added,
    })
}

/// The header of a section that lacks brackets, or has spaces where an underscore belongs, as
/// it was probably meant.
fn closed(line: &str) -> Option<String> {
    let line = line.trim_start();
    let brackets = line.bytes().take_while(|byte| *byte == b'[').count();
    let name = line[brackets..].split([']', '#']).next()?.trim();
    if !(1..=2).contains(&brackets) || name.is_empty() || !is_plain(name, "_-. ") {
        return None;
    }
    let name = name.split_whitespace().collect::<Vec<_>>().join("_");
    let (open, close) = ("[".repeat(brackets), "]".repeat(brackets));
    Some(format!("{open}{name}{close}"))
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

/// The message for a string without its quotes. Where its option would refuse it in quotes too, that is what is
/// reported.
pub(super) const UNQUOTED: &str = "a string stands here without its quotes";

/// A string without its quotes.
struct UnquotedString {
    /// The path of its key, without the section.
    key: String,
    /// The place of its value in the line.
    value: Range<usize>,
    cure: String,
}

impl UnquotedString {
    /// The mistake, in a line of this section that begins at `start`.
    fn problem(&self, lines: &LineIndex<'_>, section: &str, start: usize) -> Problem {
        let place = lines.place(start + self.value.start..start + self.value.end);
        Problem::error(
            place,
            format!("{section}{}", self.key),
            UNQUOTED,
            &*self.cure,
        )
    }
}

/// The most common slip, and the one that comes from pasting out of an ini file: a value
/// that is a string, without its quotes.
fn unquoted(line: &str) -> Option<UnquotedString> {
    let (before, rest) = line.split_once('=')?;
    let key = before.trim();
    let uncommented = rest.split('#').next().unwrap_or_default();
    let value = uncommented.trim();
    let spoilt = |c: char| matches!(c, '"' | '\'' | '[' | ']' | '{' | '}' | '\\') || c.is_control();
    if key.is_empty()
        || !is_plain(key, "_-.")
        || value.is_empty()
        || value.contains(spoilt)
        || !is_string(value)
    {
        return None;
    }
    let blank = uncommented.len() - uncommented.trim_start().len();
    let start = before.len() + 1 + blank;
    let inside = in_typographic_quotes(value).unwrap_or(value);
    let shown = shown::secret_or_quoted(key, inside);
    Some(UnquotedString {
        key: key.to_owned(),
        value: start..start + value.len(),
        cure: format!("write it in quotes: {key} = {shown}"),
    })
}

/// The strings without their quotes in the inline tables and arrays of a line.
fn inline_words(line: &str) -> Vec<UnquotedString> {
    let mut slips = Vec::new();
    let Some((before, rest)) = line.split_once('=') else {
        return slips;
    };
    let first = before.trim();
    if first.is_empty() || !is_plain(first, "_-. ") {
        return slips;
    }
    let base = before.len() + 1;
    // The brackets that are open, and the key of the value that comes next.
    let (mut open, mut key) = (Vec::new(), first);
    let mut is_value = true;
    let mut at = 0;
    while let Some(next) = rest[at..].chars().next() {
        let from = at;
        at += next.len_utf8();
        match next {
            '#' => break,
            '"' | '\'' => {
                at = after_string(rest, from, next);
                is_value = false;
            }
            '{' | '[' => {
                open.push(next);
                is_value = next == '[';
            }
            '}' | ']' => {
                open.pop();
                is_value = false;
            }
            ',' => is_value = open.last() == Some(&'['),
            '=' => is_value = true,
            c if c.is_whitespace() => {}
            _ => {
                let ends = |c: char| ",]}#=\"'{[".contains(c);
                let length = rest[from..].find(ends).unwrap_or(rest.len() - from);
                let word = rest[from..from + length].trim_end();
                at = from + length;
                if !is_value && open.last() == Some(&'{') {
                    key = word;
                } else if is_value && !open.is_empty() && is_string(word) {
                    let (path, name) = match key == first {
                        true => (first.to_owned(), String::new()),
                        false => (format!("{first}.{key}"), format!("{key} = ")),
                    };
                    // Nothing inside of a secret is shown.
                    let inside = in_typographic_quotes(word).unwrap_or(word);
                    let shown = shown::secret_or_quoted(&path, inside);
                    let cure = format!("write it in quotes: {name}{shown}");
                    slips.push(UnquotedString {
                        key: path,
                        value: base + from..base + from + word.len(),
                        cure,
                    });
                }
                is_value = false;
            }
        }
    }
    slips
}

/// The byte after a string that begins here, or the end where it has none.
fn after_string(text: &str, from: usize, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text[from + 1..].char_indices() {
        if c == quote && !is_escaped {
            return from + 1 + at + 1;
        }
        is_escaped = quote == '"' && c == '\\' && !is_escaped;
    }
    text.len()
}

/// Quotes that word processors write in place of plain ones.
const TYPOGRAPHIC: [char; 8] = ['“', '”', '„', '‟', '‘', '’', '‚', '‛'];

/// The text between typographic quotes, if it begins and ends with them.
fn in_typographic_quotes(text: &str) -> Option<&str> {
    let inside = text.strip_prefix(TYPOGRAPHIC)?;
    let inside = inside.strip_suffix(TYPOGRAPHIC)?;
    (!inside.contains(TYPOGRAPHIC)).then_some(inside)
}

/// Whether a character can be part of a number.
fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || "_.+-xXoObBeE".contains(c)
}

/// Whether a bare word was meant as a string.
fn is_string(word: &str) -> bool {
    !word.chars().any(char::is_control)
        && DeValue::parse(word).is_err()
        && (!word.chars().all(is_of_number) || word.parse::<std::net::IpAddr>().is_ok())
}

/// The line as it was probably meant, if one usual slip explains it.
fn meant(line: &str) -> Option<String> {
    let line = line.trim();
    let end = line.trim_end_matches([';', ',']);
    let comment = line.split_once(" //");
    let comment = comment.map(|(line, comment)| format!("{} # {}", line.trim(), comment.trim()));
    let name = line
        .strip_suffix(':')
        .map(|name| format!("[{}]", name.trim()));
    let assigned = |separator: fn(char) -> bool| {
        let (key, value) = line.split_once(separator)?;
        let is_key = !key.is_empty() && is_plain(key, "_-.");
        is_key.then(|| format!("{key} = {}", value.trim_start_matches(['=', ' '])))
    };
    let quoted = || {
        let (key, value) = line.split_once('=')?;
        let inside = value.trim().trim_matches(['"', '\'']);
        let is_text = !inside.contains(['"', '\'', '\\', '#']);
        // A number needs none.
        let value = match DeValue::parse(inside).is_ok() {
            true => inside.to_owned(),
            false => super::toml::string(inside),
        };
        is_text.then(|| format!("{} = {value}", key.trim()))
    };
    let candidates = [
        closed(line),
        (end.len() < line.len()).then(|| end.to_owned()),
        comment,
        name,
        assigned(|c| c == ':'),
        assigned(char::is_whitespace),
        quoted(),
    ];
    candidates.into_iter().flatten().find_map(|candidate| {
        let whole = match unquoted(&candidate) {
            Some(slip) => {
                let (before, rest) = candidate.split_at(slip.value.start);
                let (value, after) = rest.split_at(slip.value.len());
                format!("{before}{}{after}", super::toml::string(value))
            }
            None => candidate,
        };
        DeTable::parse(&whole).is_ok().then_some(whole)
    })
}

/// Whether a header has two brackets before its name and fewer behind it: then either may be meant.
fn is_half_array(line: &str) -> bool {
    line.trim_start().starts_with("[[") && !line.contains("]]")
}

/// The parser's message, and what to do about it.
/// `is_shown` if there is no secret in the line.
fn explained(place: ConfigPlace, message: &str, line: &str, is_shown: bool) -> Problem {
    let meant = meant(line).filter(|_| is_shown);
    let meant = meant.filter(|meant| meant.chars().count() <= shown::CHARACTERS_MAX);
    let concrete = meant.map(|meant| match is_half_array(line) {
        true => format!(
            "write the line as `{}`, or as `{meant}`",
            &meant[1..meant.len() - 1]
        ),
        false => format!("write the line as `{meant}`"),
    });
    let cure = if line.contains(TYPOGRAPHIC) {
        "write plain quotes, \" or ', in place of the typographic ones"
    } else if message.starts_with("duplicate key") {
        "it stands above already: leave one of the two out"
    } else if let Some(concrete) = &concrete {
        concrete
    } else if message.starts_with("unclosed table") {
        "close the name of the section: [limits] or [[listen]]"
    } else if message.starts_with("unclosed array") || message.starts_with("missing comma") {
        "close the array with ] and separate its values with commas"
    } else if message.contains("basic string") || message.contains("literal string") {
        "give the value in double quotes on one line: key = \"value\""
    } else {
        "write the line as key = value, with strings in quotes, or a section as [name]"
    };
    Problem::error(place, "", format!("not TOML: {message}"), cure)
}
