//! Passes over values that are not wanted, checking every byte of them.
//!
//! Each function takes the bytes that are left of a body and returns those behind what it read, or
//! `None` if they do not fit. Strings and digits are read eight bytes at a time.

use memchr::memchr2;

const ONES: u64 = u64::MAX / 0xff;
const HIGH: u64 = ONES << 7;
/// Words of a string that are read before a search begins, which has a fixed cost.
const WORDS: usize = 6;

/// Passes over white space.
#[inline(always)]
pub(super) fn skip_space(mut rest: &[u8]) -> &[u8] {
    while let Some((byte, behind)) = rest.split_first()
        && is_space(*byte)
    {
        rest = behind;
    }
    rest
}

#[inline(always)]
fn is_space(byte: u8) -> bool {
    byte <= b' ' && matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// The next eight bytes, the first of them lowest.
#[inline(always)]
fn word(rest: &[u8]) -> Option<u64> {
    rest.first_chunk().copied().map(u64::from_le_bytes)
}

/// A word with the high bit set in the first byte that ends a run of a string: a quote, a backslash
/// or a control character. Bytes behind that one may be marked, too.
#[inline(always)]
fn string_ends(word: u64) -> u64 {
    let backslash = (word ^ (ONES * b'\\' as u64)).wrapping_sub(ONES);
    // This swaps a quote with a space, which makes it the next byte behind the control characters.
    let quote_or_control = (word ^ (ONES * 2)).wrapping_sub(ONES * 0x21);
    (backslash | quote_or_control) & !word & HIGH
}

/// A word with the high bit set in each byte that is not a digit.
#[inline(always)]
fn digit_ends(word: u64) -> u64 {
    let digits = word ^ (ONES * b'0' as u64);
    (((digits & !HIGH) + ONES * (0x80 - 10)) | digits) & HIGH
}

/// Passes over a string, whose opening quote has been read.
#[inline(always)]
pub(super) fn skip_string(mut rest: &[u8]) -> Option<&[u8]> {
    for _ in 0..WORDS {
        let Some(word) = word(rest) else { break };
        let ends = string_ends(word);
        if ends != 0 {
            let run = (ends.trailing_zeros() / 8) as usize;
            if (word >> (run * 8)) as u8 == b'"' {
                return Some(&rest[run + 1..]);
            }
            return skip_long_string(&rest[run..]);
        }
        rest = &rest[8..];
    }
    skip_long_string(rest)
}

/// Passes over the rest of a string.
#[inline(never)]
fn skip_long_string(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        let run = end_of_run(rest)?;
        match rest[run] {
            b'"' => return Some(&rest[run + 1..]),
            _ => rest = skip_escape(&rest[run + 1..])?,
        }
    }
}

/// Finds the first quote or backslash, if no control character is before it.
#[inline(always)]
fn end_of_run(rest: &[u8]) -> Option<usize> {
    let mut words = rest;
    for _ in 0..WORDS {
        let Some(word) = word(words) else { break };
        let ends = string_ends(word);
        if ends != 0 {
            let run = (ends.trailing_zeros() / 8) as usize;
            let is_control = (word >> (run * 8)) as u8 <= 0x1f;
            return (!is_control).then_some(rest.len() - words.len() + run);
        }
        words = &words[8..];
    }
    let run = memchr2(b'"', b'\\', words)?;
    let lowest = words[..run].iter().copied().fold(u8::MAX, u8::min);
    (lowest >= 0x20).then_some(rest.len() - words.len() + run)
}

/// Passes over an escape, whose backslash has been read.
#[inline(always)]
fn skip_escape(rest: &[u8]) -> Option<&[u8]> {
    let (escape, rest) = rest.split_first()?;
    match escape {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(rest),
        b'u' => {
            let (digits, rest) = rest.split_first_chunk::<4>()?;
            digits.iter().all(u8::is_ascii_hexdigit).then_some(rest)
        }
        _ => None,
    }
}

/// Passes over at least one digit.
#[inline(always)]
fn skip_digits(rest: &[u8]) -> Option<&[u8]> {
    let end = match word(rest).map(digit_ends) {
        Some(ends) if ends != 0 => (ends.trailing_zeros() / 8) as usize,
        _ => end_of_long_digits(rest),
    };
    if end == 0 { None } else { rest.get(end..) }
}

#[inline(never)]
fn end_of_long_digits(rest: &[u8]) -> usize {
    let end = rest.iter().position(|byte| !byte.is_ascii_digit());
    end.unwrap_or(rest.len())
}

/// Passes over a number.
#[inline(always)]
pub(super) fn skip_number(rest: &[u8]) -> Option<&[u8]> {
    let from = rest.strip_prefix(b"-").unwrap_or(rest);
    let behind = skip_digits(from)?;
    // No digit follows a zero.
    if from.first() == Some(&b'0') && behind.len() + 1 != from.len() {
        return None;
    }
    match behind.first() {
        Some(b'.' | b'e' | b'E') => skip_fraction(behind),
        _ => Some(behind),
    }
}

/// Passes over the fraction and the exponent of a number.
#[inline(never)]
fn skip_fraction(mut rest: &[u8]) -> Option<&[u8]> {
    if let Some(digits) = rest.strip_prefix(b".") {
        rest = skip_digits(digits)?;
    }
    let Some((b'e' | b'E', exponent)) = rest.split_first() else {
        return Some(rest);
    };
    match exponent.split_first() {
        Some((b'+' | b'-', digits)) => skip_digits(digits),
        _ => skip_digits(exponent),
    }
}

/// Passes over `true`, `false` or `null`.
#[inline(always)]
pub(super) fn skip_word(rest: &[u8]) -> Option<&[u8]> {
    match rest.first()? {
        b't' => rest.strip_prefix(b"true"),
        b'f' => rest.strip_prefix(b"false"),
        _ => rest.strip_prefix(b"null"),
    }
}

/// Passes over a key from its opening quote to the colon behind it.
#[inline(always)]
fn skip_key(rest: &[u8]) -> Option<&[u8]> {
    skip_colon(skip_string(rest.strip_prefix(b"\"")?)?)
}

/// Passes over the colon behind a key.
#[inline(always)]
pub(super) fn skip_colon(rest: &[u8]) -> Option<&[u8]> {
    match rest.split_first()? {
        (b':', behind) => Some(behind),
        _ => skip_space(rest).strip_prefix(b":"),
    }
}

/// Why a value cannot be passed over.
pub(super) enum Misfit {
    /// The first token that does not fit has this many bytes behind its beginning.
    Token {
        left: usize,
    },
    TooDeep,
}

/// Passes over one value and the white space before it. The value may open `depth_max` containers
/// in one another, at most 64.
pub(super) fn skip_value(mut rest: &[u8], depth_max: u32) -> Result<&[u8], Misfit> {
    // A bit for each open container, the innermost lowest: set for an object.
    let (mut open, mut depth) = (0u64, 0);
    loop {
        let misfit = Misfit::Token { left: rest.len() };
        let Some((byte, behind)) = rest.split_first() else {
            return Err(misfit);
        };
        let end = match byte {
            b'"' => skip_string(behind),
            b'-' | b'0'..=b'9' => skip_number(rest),
            b't' | b'f' | b'n' => skip_word(rest),
            b'{' | b'[' => {
                if depth == depth_max {
                    return Err(Misfit::TooDeep);
                }
                let is_object = *byte == b'{';
                let first = skip_space(behind);
                match first.split_first() {
                    Some((next, behind)) if *next == *byte + 2 => Some(behind),
                    _ => {
                        depth += 1;
                        open = open << 1 | u64::from(is_object);
                        if !is_object {
                            rest = first;
                        } else if let Some(value) = skip_key(first) {
                            rest = value;
                        } else {
                            return Err(Misfit::Token { left: first.len() });
                        }
                        continue;
                    }
                }
            }
            byte if is_space(*byte) => {
                rest = skip_space(behind);
                continue;
            }
            _ => None,
        };
        let Some(end) = end else { return Err(misfit) };
        rest = end;
        loop {
            if depth == 0 {
                return Ok(rest);
            }
            let is_object = open & 1 == 1;
            let misfit = Misfit::Token { left: rest.len() };
            let Some((byte, behind)) = rest.split_first() else {
                return Err(misfit);
            };
            if *byte == b',' {
                rest = behind;
                if is_object {
                    if rest.first() != Some(&b'"') {
                        rest = skip_space(rest);
                    }
                    let Some(value) = skip_key(rest) else {
                        return Err(Misfit::Token { left: rest.len() });
                    };
                    rest = value;
                }
                break;
            } else if *byte == (if is_object { b'}' } else { b']' }) {
                depth -= 1;
                open >>= 1;
                rest = behind;
            } else if is_space(*byte) {
                rest = skip_space(behind);
            } else {
                return Err(misfit);
            }
        }
    }
}
