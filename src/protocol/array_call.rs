//! Reads one framed array, `[function, args, kwargs]`, and what little has to be known of
//! a reply.
//!
//! The call is checked as a whole, so that the backend never sees what it would answer with
//! nothing at all, but only its name and its userid are taken out: the bytes go on as they
//! came. What only Python's parser takes, such as `NaN`, is taken here too: the real server has
//! that parser.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use memchr::memchr2;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use thiserror::Error;

use super::framer::{Framed, Framer};
use crate::call::python_json::as_sound_json;
use crate::call::{ArrayCall, Reason, Refusal, userid};

/// Longest function name taken.   bytes
pub const NAME_MAX: usize = 128;

/// Why bytes are not a call. Never says anything of what stood in them: arguments carry
/// passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Not UTF-8.
    #[error("the request is not UTF-8")]
    NotUtf8,
    /// Not JSON, or more than one value.
    #[error("the request is not one valid JSON value: line {line}, column {column}")]
    NotJson {
        /// From 1.
        line: usize,
        /// From 1, in bytes.
        column: usize,
    },
    /// Not an array of three.
    #[error("the request must be a JSON array of three: [function, args, kwargs]")]
    NotThree,
    /// The first of the three is not a string that could be a name.
    #[error("the function must be a string of 1 to 128 bytes without control characters")]
    BadName,
    /// The second of the three is not an array.
    #[error("the args must be a JSON array")]
    BadArgs,
    /// The third of the three is not an object.
    #[error("the kwargs must be a JSON object")]
    BadKwargs,
    /// Too large for the backend, even without its white space.
    #[error("the request has {bytes} bytes without white space, and the backend reads {bytes_max}")]
    TooLarge {
        /// Its size, compacted.
        bytes: usize,
        /// What fits.
        bytes_max: usize,
    },
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        let reason = match malformed {
            Malformed::TooLarge { .. } => Reason::TooLarge,
            _ => Reason::BadRequest,
        };
        Self::new(reason, malformed.to_string())
    }
}

/// Reads one whole array. Where it is larger than `bytes_max` and fits without the white
/// space between its tokens, it is taken without.
///
/// # Errors
/// [`Malformed`], where it is not JSON, not a call, or does not fit.
pub fn parse(bytes: &[u8], bytes_max: usize) -> Result<ArrayCall, Malformed> {
    let text = std::str::from_utf8(bytes).map_err(|_| Malformed::NotUtf8)?;
    let text = text.trim_matches(is_space);
    let sound;
    let Three(elements) = match serde_json::from_str(text) {
        Ok(three) => three,
        Err(_) => {
            sound = as_sound_json(text.as_bytes()).and_then(|it| String::from_utf8(it).ok());
            let text = sound.as_deref().unwrap_or(text);
            serde_json::from_str(text).map_err(|_| malformed(text))?
        }
    };
    let [function, args, kwargs] = elements.map(RawValue::get);
    let function = name(function).ok_or(Malformed::BadName)?;
    if !args.starts_with('[') {
        return Err(Malformed::BadArgs);
    }
    if !kwargs.starts_with('{') {
        return Err(Malformed::BadKwargs);
    }
    let bytes = if text.len() <= bytes_max {
        Bytes::copy_from_slice(text.as_bytes())
    } else {
        let compact = compact(text.as_bytes());
        if compact.len() > bytes_max {
            return Err(Malformed::TooLarge {
                bytes: compact.len(),
                bytes_max,
            });
        }
        compact.into()
    };
    Ok(ArrayCall {
        bytes,
        target: target(&function, args, kwargs),
        function: function.into(),
    })
}

/// The white space of JSON, which is less than that of Unicode.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

/// Tells sound JSON of another shape from what is no JSON at all.
fn malformed(text: &str) -> Malformed {
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => Malformed::NotThree,
        // Its own message could quote what it found.
        Err(error) => Malformed::NotJson {
            line: error.line(),
            column: error.column(),
        },
    }
}

/// The three elements of a call, as they stand in the text.
struct Three<'a>([&'a RawValue; 3]);

impl<'de> Deserialize<'de> for Three<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ThreeVisitor).map(Three)
    }
}

struct ThreeVisitor;

impl<'de> Visitor<'de> for ThreeVisitor {
    type Value = [&'de RawValue; 3];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of three")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut next = |index| {
            seq.next_element()?
                .ok_or_else(|| serde::de::Error::invalid_length(index, &self))
        };
        // The parser itself refuses a fourth, where it wants the closing bracket.
        Ok([next(0)?, next(1)?, next(2)?])
    }
}

/// The function's name, if it can be one.
fn name(raw: &str) -> Option<Cow<'_, str>> {
    let inside = raw.strip_prefix('"')?.strip_suffix('"')?;
    let name = if inside.contains('\\') {
        Cow::Owned(serde_json::from_str(raw).ok()?)
    } else {
        Cow::Borrowed(inside)
    };
    let possible = !name.is_empty() && name.len() <= NAME_MAX && !name.contains(char::is_control);
    possible.then_some(name)
}

/// The userid that the call is about: the first argument, or the one of that name, of the
/// functions that begin with one. Taken only if it looks like one, because whatever is
/// taken is logged.
fn target(function: &str, args: &str, kwargs: &str) -> Option<Box<str>> {
    if !function.starts_with("guest_") && function != "get_volume_connector" {
        return None;
    }
    let first = args.strip_prefix('[')?.trim_start_matches(is_space);
    match first.strip_prefix('"') {
        Some(text) => userid(text.split_once('"')?.0).map(Box::from),
        None if first.starts_with(']') => {
            let raw = field(kwargs.as_bytes(), "userid")?;
            userid(raw.strip_prefix('"')?.strip_suffix('"')?).map(Box::from)
        }
        None => None,
    }
}

/// Drops the white space between tokens and leaves every other byte as it is.
fn compact(json: &[u8]) -> Vec<u8> {
    let mut compact = Vec::with_capacity(json.len());
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b' ' | b'\t' | b'\n' | b'\r' => at += 1,
            b'"' => {
                let end = end_of_string(json, at + 1);
                compact.extend_from_slice(&json[at..end]);
                at = end;
            }
            byte => {
                compact.push(byte);
                at += 1;
            }
        }
    }
    compact
}

/// Just past the closing quote of the string whose inside begins at `at`.
fn end_of_string(json: &[u8], mut at: usize) -> usize {
    loop {
        let run = memchr2(b'"', b'\\', &json[at..]).expect("sound JSON closes its strings");
        at += run + 1;
        if json[at - 1] == b'"' {
            return at;
        }
        at += 1;
    }
}

/// Whether a reply is one whole JSON object, with nothing but white space around it. Only
/// its brackets and strings are looked at: a reply is cut, or it is not.
#[must_use]
pub fn is_whole_reply(reply: &[u8]) -> bool {
    match Framer::reply(reply.len()).push(reply) {
        Framed::End(end) => reply[end..].iter().all(u8::is_ascii_whitespace),
        Framed::More | Framed::Bad(_) => false,
    }
}

/// The `overallRC` of a reply; none if it has no such whole number or is not sound.
#[must_use]
pub fn overall_rc(reply: &[u8]) -> Option<i64> {
    field(reply, "overallRC")?.parse().ok()
}

/// One field of an object, as it stands in the text. Of several the last is taken, as
/// Python takes it.
fn field<'a>(object: &'a [u8], name: &'static str) -> Option<Cow<'a, str>> {
    if let Some(found) = sound_field(object, name) {
        return Some(Cow::Borrowed(found));
    }
    let sound = as_sound_json(object)?;
    sound_field(&sound, name).map(|found| Cow::Owned(found.to_owned()))
}

fn sound_field<'a>(object: &'a [u8], name: &'static str) -> Option<&'a str> {
    let mut deserializer = serde_json::Deserializer::from_slice(object);
    let found = deserializer.deserialize_map(FieldVisitor(name)).ok()?;
    deserializer.end().ok()?;
    found.map(RawValue::get)
}

struct FieldVisitor(&'static str);

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Key(matches)) = map.next_key_seed(KeySeed(self.0))? {
            if matches {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Whether a key is the one looked for.
struct Key(bool);

struct KeySeed(&'static str);

impl<'de> serde::de::DeserializeSeed<'de> for KeySeed {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        Ok(Key(key == self.0))
    }
}
