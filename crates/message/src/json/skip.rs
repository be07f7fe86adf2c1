//! Passes over values that are not wanted, checking every byte of them.
//!
//! Strings and digits are read eight bytes at a time. Each function takes the position where it
//! begins, and returns the position behind what it read, or the byte that does not fit.

use memchr::memchr2;

use crate::unreadable::Unreadable;

const ONES: u64 = u64::MAX / 0xff;
const HIGH: u64 = ONES << 7;
/// Words of a string that are read before a search begins, which has a fixed cost.
const WORDS: usize = 4;

/// Passes over white space.
#[inline(always)]
pub(super) fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

/// A word with the high bit set in the first byte that ends a run of a string: a quote, a backslash
/// or a control character. Bytes behind that one may be marked, too.
#[inline(always)]
fn string_ends(word: u64) -> u64 {
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = quote.wrapping_sub(ONES) & !quote;
    let backslash = backslash.wrapping_sub(ONES) & !backslash;
    (quote | backslash | control) & HIGH
}

/// Finds the first quote, backslash or control character of a string.
#[inline(always)]
fn end_of_run(bytes: &[u8], mut at: usize) -> Result<usize, usize> {
    for _ in 0..WORDS {
        let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk) else {
            return end_of_run_in_tail(bytes, at);
        };
        let ends = string_ends(u64::from_le_bytes(*word));
        if ends != 0 {
            return Ok(at + (ends.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    end_of_long_run(bytes, at)
}

#[cold]
fn end_of_run_in_tail(bytes: &[u8], at: usize) -> Result<usize, usize> {
    let tail = bytes.get(at..).unwrap_or_default();
    let ends = |byte: &u8| matches!(byte, b'"' | b'\\' | ..0x20);
    let run = tail.iter().position(ends);
    run.map(|run| at + run).ok_or(bytes.len())
}

#[inline(never)]
fn end_of_long_run(bytes: &[u8], at: usize) -> Result<usize, usize> {
    let rest = &bytes[at..];
    let run = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
    let lowest = rest[..run].iter().copied().fold(u8::MAX, u8::min);
    if lowest < 0x20 || run == rest.len() {
        return end_of_run_in_tail(bytes, at);
    }
    Ok(at + run)
}

/// Passes over an escape, whose backslash is at `at`.
#[inline(always)]
pub(super) fn skip_escape(bytes: &[u8], at: usize) -> Result<usize, usize> {
    match bytes.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') => {
            let digits = bytes[at + 2..].iter().take(4);
            match digits.take_while(|byte| byte.is_ascii_hexdigit()).count() {
                4 => Ok(at + 6),
                count => Err(at + 2 + count),
            }
        }
        _ => Err(at + 1),
    }
}

/// Finds the closing quote of the string whose first byte is at `at`.
#[inline(always)]
pub(super) fn end_of_string(bytes: &[u8], at: usize) -> Result<usize, usize> {
    let end = end_of_run(bytes, at)?;
    match bytes[end] {
        b'"' => Ok(end),
        _ => end_of_escaped_string(bytes, end),
    }
}

#[inline(never)]
fn end_of_escaped_string(bytes: &[u8], mut at: usize) -> Result<usize, usize> {
    loop {
        match bytes[at] {
            b'"' => return Ok(at),
            b'\\' => at = end_of_run(bytes, skip_escape(bytes, at)?)?,
            _ => return Err(at),
        }
    }
}

/// Passes over digits, of which there may be none.
#[inline(always)]
fn skip_digits(bytes: &[u8], mut at: usize) -> usize {
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        let digits = u64::from_le_bytes(*word) ^ (ONES * b'0' as u64);
        // A byte above 9 carries into its high bit, or has it.
        let others = (((digits & !HIGH) + ONES * (0x80 - 10)) | digits) & HIGH;
        if others != 0 {
            return at + (others.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at
}

/// Passes over a number, which begins with a minus sign or a digit.
#[inline(always)]
pub(super) fn skip_number(bytes: &[u8], at: usize) -> Result<usize, usize> {
    let from = at + usize::from(bytes[at] == b'-');
    let end = skip_digits(bytes, from);
    // No digit, or a zero before others.
    if end == from || (end > from + 1 && bytes[from] == b'0') {
        return Err(from);
    }
    match bytes.get(end) {
        Some(b'.' | b'e' | b'E') => skip_fraction(bytes, end),
        _ => Ok(end),
    }
}

/// Passes over the fraction and the exponent of a number.
fn skip_fraction(bytes: &[u8], mut at: usize) -> Result<usize, usize> {
    if bytes[at] == b'.' {
        let end = skip_digits(bytes, at + 1);
        if end == at + 1 {
            return Err(end);
        }
        at = end;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        let signed = matches!(bytes.get(at + 1), Some(b'+' | b'-'));
        let from = at + 1 + usize::from(signed);
        at = skip_digits(bytes, from);
        if at == from {
            return Err(at);
        }
    }
    Ok(at)
}

/// Passes over `true`, `false` or `null`.
#[inline(always)]
pub(super) fn skip_word(bytes: &[u8], at: usize) -> Result<usize, usize> {
    let rest = &bytes[at..];
    let word: &[u8] = match rest.first() {
        Some(b't') => b"true",
        Some(b'f') => b"false",
        _ => b"null",
    };
    match rest.starts_with(word) {
        true => Ok(at + word.len()),
        false => Err(at),
    }
}

/// Passes over a key from its opening quote to the colon behind it.
#[inline(always)]
fn skip_key(bytes: &[u8], at: usize) -> Result<usize, usize> {
    if bytes.get(at) != Some(&b'"') {
        return Err(at);
    }
    let end = end_of_string(bytes, at + 1)? + 1;
    skip_colon(bytes, end)
}

/// Passes over the colon behind a key.
#[inline(always)]
pub(super) fn skip_colon(bytes: &[u8], at: usize) -> Result<usize, usize> {
    let at = skip_space(bytes, at);
    match bytes.get(at) {
        Some(b':') => Ok(at + 1),
        _ => Err(at),
    }
}

/// Why a value cannot be passed over.
pub(super) enum Misfit {
    /// The byte that does not fit.
    Byte(usize),
    TooDeep,
}

impl From<usize> for Misfit {
    fn from(at: usize) -> Self {
        Self::Byte(at)
    }
}

impl From<Misfit> for Unreadable {
    fn from(misfit: Misfit) -> Self {
        match misfit {
            Misfit::Byte(at) => Self::NotJson { at },
            Misfit::TooDeep => Self::TooDeep,
        }
    }
}

/// Passes over one value and the white space before it. It may open `depth_max` containers in one
/// another, at most 64.
pub(super) fn skip_value(bytes: &[u8], mut at: usize, depth_max: u32) -> Result<usize, Misfit> {
    // A bit for each open container, the innermost lowest: set for an object.
    let (mut open, mut depth) = (0u64, 0);
    loop {
        at = skip_space(bytes, at);
        let byte = *bytes.get(at).ok_or(Misfit::Byte(at))?;
        match byte {
            b'"' => at = end_of_string(bytes, at + 1)? + 1,
            b'-' | b'0'..=b'9' => at = skip_number(bytes, at)?,
            b'{' | b'[' => {
                if depth == depth_max {
                    return Err(Misfit::TooDeep);
                }
                let is_object = byte == b'{';
                at = skip_space(bytes, at + 1);
                if bytes.get(at) == Some(&(byte + 2)) {
                    at += 1;
                } else {
                    depth += 1;
                    open = open << 1 | u64::from(is_object);
                    if is_object {
                        at = skip_key(bytes, at)?;
                    }
                    continue;
                }
            }
            b't' | b'f' | b'n' => at = skip_word(bytes, at)?,
            _ => return Err(Misfit::Byte(at)),
        }
        loop {
            if depth == 0 {
                return Ok(at);
            }
            at = skip_space(bytes, at);
            let is_object = open & 1 == 1;
            match bytes.get(at) {
                Some(b',') => {
                    at += 1;
                    if is_object {
                        at = skip_key(bytes, skip_space(bytes, at))?;
                    }
                    break;
                }
                Some(b'}') if is_object => {}
                Some(b']') if !is_object => {}
                _ => return Err(Misfit::Byte(at)),
            }
            at += 1;
            depth -= 1;
            open >>= 1;
        }
    }
}
