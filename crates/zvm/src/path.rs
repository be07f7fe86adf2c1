//! How a path is spelled, and which pattern it matches.
//!
//! A backend reads `//guests`, `/./guests`, `/x/../guests` and `/%67uests` as `/guests`, so limits
//! must, too.

use std::borrow::Cow;

use crate::userid;

/// The backend's reading of an encoded slash in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodedSlash {
    /// The slash separates segments, as in the z/VM SDK server and every other WSGI server.
    Separates,
    /// The slash is data.
    IsData,
}

/// The path as a backend reads it: unreserved characters decoded (RFC 3986, 6.2.2.2), slashes
/// merged, dot segments removed (5.2.4).
///
/// Borrowed if nothing changes, which takes one pass over the bytes. A single slash at the end makes
/// no difference to a route, and stays.
#[must_use]
pub fn as_read(path: &str, slash: EncodedSlash) -> Cow<'_, str> {
    if !may_change(path.as_bytes()) {
        return Cow::Borrowed(path);
    }
    let read = without_dots(&decode_unreserved(path, slash), EmptySegment::IsNone);
    if read == path {
        return Cow::Borrowed(path);
    }
    Cow::Owned(read)
}

/// Whether some server reads this path as one for which the test holds.
///
/// Servers take three steps in any order and leave out any of them: they decode unreserved characters, merge
/// slashes, and remove dot segments, some of them also those whose dots are encoded. The path as written is one of
/// the readings, and so is that of [`as_read`]. The test is made at most 30 times.
pub fn any_reading(path: &str, slash: EncodedSlash, mut test: impl FnMut(&str) -> bool) -> bool {
    let with_dots = decode(path, |byte| byte == b'.');
    let decoded = decode_unreserved(path, slash);
    for spelled in [path, &with_dots, &decoded] {
        if test(spelled) || test(&merge_slashes(spelled)) {
            return true;
        }
        if !has_dots(spelled) {
            continue;
        }
        let empty = [EmptySegment::IsNone, EmptySegment::IsSegment];
        for read in empty.map(|empty| without_dots(spelled, empty)) {
            let merged = merge_slashes(&read);
            let [read_then_decoded, merged_then_decoded] =
                [&*read, &*merged].map(|it| decode_unreserved(it, slash));
            let readings = [&*read, &*merged, &*read_then_decoded, &*merged_then_decoded];
            if readings.into_iter().any(&mut test) {
                return true;
            }
        }
    }
    false
}

/// The treatment of an empty segment where dot segments are removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EmptySegment {
    /// Slashes are merged first.
    IsNone,
    /// A segment, which `..` removes (RFC 3986, 5.2.4).
    IsSegment,
}

fn has_dots(path: &str) -> bool {
    path.split('/').any(|segment| matches!(segment, "." | ".."))
}

fn merge_slashes(path: &str) -> Cow<'_, str> {
    if !path.contains("//") {
        return Cow::Borrowed(path);
    }
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    Cow::Owned(merged)
}

/// The path without dot segments, and without empty ones if they are none.
fn without_dots(path: &str, empty: EmptySegment) -> String {
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_in_slash = false;
    for segment in path.strip_prefix('/').unwrap_or(path).split('/') {
        ends_in_slash = matches!(segment, "" | "." | "..");
        match segment {
            "." => {}
            "" if empty == EmptySegment::IsNone => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let mut read = String::with_capacity(path.len());
    for segment in &segments {
        read.push('/');
        read.push_str(segment);
    }
    if ends_in_slash && !read.ends_with('/') || segments.is_empty() {
        read.push('/');
    }
    read
}

/// Whether anything in it could change. May be true for a path that does not.
fn may_change(path: &[u8]) -> bool {
    let mut before = 0;
    for &byte in path {
        if byte == b'%' || before == b'/' && matches!(byte, b'/' | b'.') {
            return true;
        }
        before = byte;
    }
    false
}

fn decode_unreserved(path: &str, slash: EncodedSlash) -> Cow<'_, str> {
    let separates = slash == EncodedSlash::Separates;
    decode(path, |byte| {
        is_unreserved(byte) || byte == b'/' && separates
    })
}

/// The path with these encoded bytes decoded, each of them ASCII.
fn decode(path: &str, is_decoded: impl Fn(u8) -> bool) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        decoded.push_str(before);
        let byte = after
            .get(..2)
            .filter(|it| it.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte {
            Some(byte) if is_decoded(byte) => {
                decoded.push(char::from(byte));
                rest = &after[2..];
            }
            _ => {
                decoded.push('%');
                rest = after;
            }
        }
    }
    decoded.push_str(rest);
    Cow::Owned(decoded)
}

/// A character that means the same whether it is encoded or not.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether a backend may find a slash in it that [`as_read`] leaves as data.
#[must_use]
pub fn hides_a_slash(path: &str) -> bool {
    let bytes = path.as_bytes();
    let hidden = |three: &[u8]| matches!(three, b"%2f" | b"%2F" | b"%5c" | b"%5C");
    bytes.contains(&b'\\') || bytes.windows(3).any(hidden)
}

/// A request's path, split into segments.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    segments: [&'a str; Path::SEGMENTS_MAX],
    count: usize,
}

/// A pattern fits a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMatch<'a> {
    /// The segment at `{userid}`, if it can be a userid.
    pub target: Option<&'a str>,
}

impl<'a> Path<'a> {
    /// A path of more segments matches nothing.
    pub const SEGMENTS_MAX: usize = 16;

    /// Splits a path; none if it does not begin with a slash or has too many segments.
    #[must_use]
    pub fn split(path: &'a str) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        let mut segments = [""; Self::SEGMENTS_MAX];
        let (mut count, mut start, mut end) = (0, 0, path.len());
        // Byte by byte: for a few short segments, this is faster than a search.
        let bytes = path.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                b'/' => {
                    *segments.get_mut(count)? = &path[start..at];
                    (count, start) = (count + 1, at + 1);
                }
                b'?' => {
                    end = at;
                    break;
                }
                _ => {}
            }
            at += 1;
        }
        // A slash at the end begins no segment.
        if start < end {
            *segments.get_mut(count)? = &path[start..end];
            count += 1;
        }
        Some(Self { segments, count })
    }

    /// Matches the path against a pattern.
    #[must_use]
    pub fn matches<S: AsRef<str>>(&self, pattern: &[S]) -> Option<PathMatch<'a>> {
        let segments = &self.segments[..self.count];
        if pattern.len() != segments.len() {
            return None;
        }
        let fits = |pattern: &S, segment: &str| match pattern.as_ref() {
            open if open.starts_with('{') => !segment.is_empty(),
            fixed => fixed == segment,
        };
        let mut pairs = pattern.iter().zip(segments);
        if !pairs.all(|(pattern, segment)| fits(pattern, segment)) {
            return None;
        }
        let target = pattern
            .iter()
            .position(|pattern| pattern.as_ref() == "{userid}")
            .and_then(|index| userid(segments[index]));
        Some(PathMatch { target })
    }
}

#[cfg(test)]
mod tests;
