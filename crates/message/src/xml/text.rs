//! The text of elements and attributes.

use std::borrow::Cow;

use memchr::{memchr, memmem};

/// Checks a text, and returns its first byte that XML does not allow.
pub(super) fn check_text(text: &str) -> Result<(), usize> {
    let is_plain = |byte: u8| byte >= b' ' && byte != b'&' && byte != b']';
    if text.bytes().all(is_plain) {
        return Ok(());
    }
    check_characters(text)?;
    if let Some(at) = memmem::find(text.as_bytes(), b"]]>") {
        return Err(at);
    }
    check_references(text)
}

/// Checks that a text has no control characters, except white space.
pub(super) fn check_characters(text: &str) -> Result<(), usize> {
    let is_control = |byte: u8| byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r');
    let has_control = text.bytes().fold(false, |has, byte| has | is_control(byte));
    match has_control {
        true => Err(text.bytes().position(is_control).unwrap_or_default()),
        false => Ok(()),
    }
}

/// Checks that every ampersand begins a reference.
pub(super) fn check_references(text: &str) -> Result<(), usize> {
    let mut at = 0;
    while let Some(skipped) = memchr(b'&', &text.as_bytes()[at..]) {
        at += skipped;
        let (_, length) = reference(&text[at..]).ok_or(at)?;
        at += length;
    }
    Ok(())
}

/// The text as every parser reads it. It must have been checked.
pub(super) fn decoded(raw: &str) -> Cow<'_, str> {
    if !raw.contains(['&', '\r']) {
        return Cow::Borrowed(raw);
    }
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find(['&', '\r']) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        match reference(rest) {
            Some((character, length)) => {
                text.push(character);
                rest = &rest[length..];
            }
            // The end of a line is a line feed, however it is written.
            None => {
                text.push('\n');
                let line = &rest[1..];
                rest = line.strip_prefix('\n').unwrap_or(line);
            }
        }
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// Whether some server would cut off characters at an end of a text.
pub(super) fn has_space_around(text: &str) -> bool {
    let is_cut = |character: char| {
        character.is_whitespace() || character.is_control() || character == '\u{feff}'
    };
    text.starts_with(is_cut) || text.ends_with(is_cut)
}

/// The character of the reference at the beginning of a text, and the reference's length in bytes.
fn reference(text: &str) -> Option<(char, usize)> {
    // The longest possible: leading zeros are not needed.
    let window = text.as_bytes().get(..text.len().min(12))?;
    let end = memchr(b';', window)?;
    let name = text.get(..end)?.strip_prefix('&')?;
    let character = match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let number = name.strip_prefix('#')?;
            let (digits, radix) = match number.strip_prefix('x') {
                Some(digits) => (digits, 16),
                None => (number, 10),
            };
            let are_digits = digits.chars().all(|digit| digit.is_digit(radix));
            let code = are_digits.then(|| u32::from_str_radix(digits, radix).ok())?;
            let character = char::from_u32(code?)?;
            let is_allowed = match character {
                '\t' | '\n' | '\r' => true,
                '\u{fffe}' | '\u{ffff}' => false,
                other => other >= ' ',
            };
            is_allowed.then_some(character)?
        }
    };
    Some((character, end + 1))
}
