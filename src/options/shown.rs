//! Options that hold a secret, and what is shown instead: the one rule for messages, for drawings of the file, for
//! the log and for the config in effect.
//!
//! A line that is broken is a line whose secret has no value yet, so the rule goes by names and
//! lines, and hides too much rather than too little. A name that was probably meant to be that
//! of a secret counts as one.

use std::borrow::Cow;
use std::ops::Range;

use super::nearest::nearest;

/// The text in place of a secret in the config in effect.
pub const HIDDEN: &str = "(hidden)";

/// The options that hold one, in any config and any section.
const KEYS: [&str; 4] = ["token", "password", "sentinel_password", "auth"];

/// Whether an option holds a secret, by its name or its path.
pub fn is_secret(key: &str) -> bool {
    key.split('.').any(|name| {
        let name = name.trim_matches(is_around);
        // Most words of a file need no look at their letters.
        (3..=18).contains(&name.len()) && nearest(name, KEYS).is_some()
    })
}

/// The value of an option as a message may show it.
pub fn secret_or_quoted(key: &str, value: &str) -> String {
    if is_secret(key) {
        "\"…\"".to_owned()
    } else {
        quoted(value)
    }
}

/// A text as it would be written in TOML, shortened, without the password of an address or the content of a PEM
/// file.
pub fn quoted(text: &str) -> String {
    let shown = match is_content_of_pem(text) {
        true => Cow::Borrowed("…"),
        false => without_credentials(text),
    };
    format!("{:?}", shortened(&shown))
}

/// How many characters of base64 in a row are more than any name.
const BASE64_RUN: usize = 40;

/// Whether a text holds what a PEM file holds, such as a key.
pub fn is_content_of_pem(text: &str) -> bool {
    text.contains("-----BEGIN ") || base64_runs(text).next().is_some()
}

/// The long runs of base64 in a text. A path has dots, dashes or no digits.
fn base64_runs(text: &str) -> impl Iterator<Item = Range<usize>> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let from = at + text[at..].find(is_part)?;
            let length = text[from..].find(|c| !is_part(c));
            at = length.map_or(text.len(), |length| from + length);
            let run = &text[from..at];
            let has = |is: fn(&u8) -> bool| run.bytes().any(|byte| is(&byte));
            let is_mixed = has(u8::is_ascii_uppercase) && has(u8::is_ascii_digit);
            if run.len() >= BASE64_RUN && is_mixed && has(u8::is_ascii_lowercase) {
                return Some(from..at);
            }
        }
    })
}

/// The cure for a misspelt word: the one that was probably meant.
pub fn did_you_mean<'a>(
    given: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let near = nearest(given, candidates)?;
    Some(format!("did you mean {}?", quoted(near)))
}

/// Longest part of a message that is quoted.
pub const CHARACTERS_MAX: usize = 60;

/// A text that is not longer than a message should be.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A text without the user and the password of any address in it.
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut done = 0;
    for hidden in credentials(text) {
        shown.push_str(&text[done..hidden.start]);
        shown.push('…');
        done = hidden.end;
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    shown.push_str(&text[done..]);
    Cow::Owned(shown)
}

/// A file with every secret covered, so that a drawing of it gives nothing away. Lengths stay as
/// they are.
pub fn mask(source: &str) -> String {
    let mut masked = String::with_capacity(source.len());
    let mut open = OpenConstruct::Nothing;
    let mut is_in_pem = false;
    for line in source.split_inclusive('\n') {
        let mut hidden = open.hides(line);
        // A key can be given as the file itself, or in place of its path.
        is_in_pem |= line.contains("-----BEGIN ");
        match is_in_pem {
            true => hidden.push(0..line.len()),
            false => hidden.extend(base64_runs(line)),
        }
        is_in_pem &= !line.contains("-----END ");
        for (at, character) in line.char_indices() {
            let is_hidden = hidden.iter().any(|range| range.contains(&at));
            if is_hidden && !matches!(character, ' ' | '\r' | '\n') {
                masked.extend(std::iter::repeat_n('*', character.len_utf8()));
            } else {
                masked.push(character);
            }
        }
    }
    masked
}

/// A construct that goes on from the lines above.
enum OpenConstruct {
    Nothing,
    /// A secret's key has no value yet, so the next line may be it.
    Value,
    /// A secret that may have more lines: they end at the next key or section.
    Rest,
    /// A secret in these quotes, over several lines.
    Quotes(&'static str),
}

impl OpenConstruct {
    /// The parts of the next line to hide.
    fn hides(&mut self, line: &str) -> Vec<Range<usize>> {
        let all = 0..line.len();
        match self {
            Self::Quotes(quotes) => {
                if line.contains(*quotes) {
                    *self = Self::Nothing;
                }
                return vec![all];
            }
            Self::Value if !line.trim().is_empty() && !is_section(line) => {
                // It may be the value, or a key that holds a secret of its own.
                *self = match value_of_secret(line) {
                    Some(from) => Self::after(&line[from..]),
                    None => Self::Rest,
                };
                return vec![all];
            }
            Self::Rest if !is_section(line) && !is_key(line) => return vec![all],
            Self::Nothing | Self::Value | Self::Rest => {}
        }
        match value_of_secret(line) {
            Some(from) => {
                *self = Self::after(&line[from..]);
                credentials(line)
                    .chain(std::iter::once(from..line.len()))
                    .collect()
            }
            None => {
                if !line.trim().is_empty() {
                    *self = Self::Nothing;
                }
                credentials(line).collect()
            }
        }
    }

    /// The construct that goes on behind the value of a secret, as far as the value is on its line.
    fn after(value: &str) -> Self {
        let value = value.trim();
        let several = ["\"\"\"", "'''"].into_iter().find(|quotes| {
            let inside = value.strip_prefix(quotes);
            inside.is_some_and(|inside| !inside.contains(quotes))
        });
        match several {
            Some(quotes) => Self::Quotes(quotes),
            None if value.is_empty() => Self::Value,
            None => Self::Rest,
        }
    }
}

/// Where the value of a secret begins on a line that gives one, with `=` or without.
fn value_of_secret(line: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let mut at = 0;
    while let Some(begin) = line[at..].find(is_part) {
        let begin = at + begin;
        let end = line[begin..].find(|c| !is_part(c));
        let end = end.map_or(line.len(), |length| begin + length);
        at = end;
        if !is_secret(&line[begin..end]) {
            continue;
        }
        let rest = line[end..].trim_start_matches(is_around);
        if rest.starts_with(['=', ':']) {
            return Some(line.len() - rest.len() + 1);
        }
        let before = line[..begin].trim_matches(is_around);
        if before.is_empty() || before.ends_with('.') {
            return Some(end);
        }
    }
    None
}

/// Whether a character may surround a key, besides its name.
fn is_around(character: char) -> bool {
    matches!(character, ' ' | '\t' | '"' | '\'')
}

fn is_section(line: &str) -> bool {
    let inside = line.trim_start().strip_prefix('[');
    inside.is_some_and(|inside| inside.starts_with(|c: char| c == '[' || c.is_ascii_alphabetic()))
}

fn is_key(line: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.') || is_around(c);
    line.split_once('=')
        .is_some_and(|(key, _)| !key.trim().is_empty() && key.chars().all(plain))
}

/// The part before the `@` of each address: a user, and probably a password.
fn credentials(text: &str) -> impl Iterator<Item = Range<usize>> {
    let is_edge = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | '[' | ']' | '=');
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, edge) in text.match_indices(is_edge).chain([(text.len(), "")]) {
        pieces.push(start..at);
        start = at + edge.len();
    }
    pieces.into_iter().filter_map(move |piece| {
        let address = &text[piece.clone()];
        let end = address.rfind('@')?;
        let from = address.find("://").map(|at| at + 3);
        let from = from.or_else(|| address[..end].contains(':').then_some(0))?;
        (from < end).then(|| piece.start + from..piece.start + end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_meant_to_be_a_secret_counts_as_one() {
        for key in [
            "token",
            "admin.token",
            "quota_store.password",
            "passwrod",
            "Password",
            "pasword",
            "auth",
            "\"token\"",
            "tokne",
        ] {
            assert!(is_secret(key), "{key}");
        }
    }

    #[test]
    fn addresses_lose_user_and_password_and_nothing_else() {
        let check = |text: &str, shown: &str| assert_eq!(without_credentials(text), shown);
        check("http://me:hunter2@host:1/a", "http://…@host:1/a");
        check("redis://a:b@h, redis://:c@i", "redis://…@h, redis://…@i");
        check("me:hunter2@host", "…@host");
        check("http://me@host", "http://…@host");
        check("http://host:1", "http://host:1");
        check("ann@example", "ann@example");
    }

    #[test]
    fn a_key_is_never_quoted_or_drawn_and_a_path_is() {
        let key = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg";
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n");
        for text in [key, &pem, &pem.replace('\n', "\\n"), &format!("/etc/{key}")] {
            assert_eq!(quoted(text), "\"…\"", "{text}");
            for line in [
                format!("key = \"{text}\"\n"),
                format!("k = \"\"\"\n{text}\"\"\"\nb = 1\n"),
            ] {
                let drawn = mask(&line);
                assert_eq!(drawn.len(), line.len());
                assert!(!drawn.contains("AgEAMBMG"), "{drawn}");
            }
        }
        let path = "/etc/pki/tls/private/a/directory/with-Very/Many/PARTS/node7.key";
        assert_eq!(mask(path), path);
        assert!(quoted(path).contains("/etc/pki/tls"));
        assert!(mask(&format!("{pem}a = 1\n")).ends_with("\na = 1\n"));
    }
}
