//! Reads one framed array, `[function, args, kwargs]`.
//!
//! The whole call is checked, so that the backend never gets one that it would not answer. Only the
//! name and the userid are taken out: the bytes are forwarded as they came. What only Python's parser
//! accepts, such as `NaN`, is accepted here too, because the real server has that parser.

use std::borrow::Cow;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::framer::end_of_string;
use crate::python_json::{as_sound_json, field};
use crate::userid;

/// Longest name of a function.   bytes
pub const FUNCTION_NAME_BYTES_MAX: usize = 128;

/// `[function, args, kwargs]`, checked and ready to be written in one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayCall {
    /// The array's own bytes, without white space around it, compacted where it had to fit.
    pub bytes: Bytes,
    /// The name of the function: the first element.
    pub function: Box<str>,
    /// The z/VM userid that it is about, if the first argument names one.
    pub target: Option<Box<str>>,
}

/// Why bytes are not a call. Never quotes them: arguments carry passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadArray {
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
        /// The size of the array, compacted.
        bytes: usize,
        /// The size that fits.
        bytes_max: usize,
    },
}

/// Reads one whole array. If it is larger than `bytes_max` but fits without the white space between
/// its tokens, that white space is removed.
///
/// # Errors
/// `Malformed`, if it is not JSON, not a call, or does not fit.
pub fn parse(bytes: &[u8], bytes_max: usize) -> Result<ArrayCall, BadArray> {
    let text = std::str::from_utf8(bytes).map_err(|_| BadArray::NotUtf8)?;
    let text = text.trim_matches(is_space);
    let sound;
    let elements = match serde_json::from_str(text) {
        Ok(elements) => elements,
        Err(_) => {
            sound = as_sound_json(text.as_bytes()).and_then(|it| String::from_utf8(it).ok());
            let text = sound.as_deref().unwrap_or(text);
            serde_json::from_str(text).map_err(|_| malformed(text))?
        }
    };
    let elements = Elements::of(elements)?;
    let bytes = if text.len() <= bytes_max {
        Bytes::copy_from_slice(text.as_bytes())
    } else {
        let compact = compact(text.as_bytes());
        if compact.len() > bytes_max {
            return Err(BadArray::TooLarge {
                bytes: compact.len(),
                bytes_max,
            });
        }
        compact.into()
    };
    Ok(ArrayCall {
        bytes,
        target: target(&elements),
        function: elements.function.into(),
    })
}

/// The elements of a call, as they stand in its text.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    /// The name of the function.
    pub function: Cow<'a, str>,
    /// A JSON array.
    pub args: &'a str,
    /// A JSON object.
    pub kwargs: &'a str,
}

impl<'a> Elements<'a> {
    /// Reads sound JSON; [`parse`] also accepts what only Python does.
    ///
    /// # Errors
    /// `Malformed`, if it is not JSON or not a call.
    pub fn read(text: &'a str) -> Result<Self, BadArray> {
        Self::of(serde_json::from_str(text).map_err(|_| malformed(text))?)
    }

    fn of(elements: [&'a RawValue; 3]) -> Result<Self, BadArray> {
        let [function, args, kwargs] = elements.map(RawValue::get);
        let function = name(function).ok_or(BadArray::BadName)?;
        if !args.starts_with('[') {
            return Err(BadArray::BadArgs);
        }
        if !kwargs.starts_with('{') {
            return Err(BadArray::BadKwargs);
        }
        Ok(Self {
            function,
            args,
            kwargs,
        })
    }
}

/// The white space of JSON, which is less than that of Unicode.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

/// Distinguishes valid JSON of another shape from text that is not JSON.
fn malformed(text: &str) -> BadArray {
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => BadArray::NotThree,
        // Its own message could quote what it found.
        Err(error) => BadArray::NotJson {
            line: error.line(),
            column: error.column(),
        },
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
    let possible = !name.is_empty()
        && name.len() <= FUNCTION_NAME_BYTES_MAX
        && !name.contains(char::is_control);
    possible.then_some(name)
}

/// The userid that the call is about: the first argument, or the keyword argument `userid`, of
/// functions that take one. Taken only if it looks like a userid, because it is logged.
fn target(call: &Elements<'_>) -> Option<Box<str>> {
    if !call.function.starts_with("guest_") && call.function != "get_volume_connector" {
        return None;
    }
    let first = call.args.strip_prefix('[')?.trim_start_matches(is_space);
    match first.strip_prefix('"') {
        Some(text) => userid(text.split_once('"')?.0).map(Box::from),
        None if first.starts_with(']') => {
            let raw = field(call.kwargs.as_bytes(), "userid")?;
            userid(raw.strip_prefix('"')?.strip_suffix('"')?).map(Box::from)
        }
        None => None,
    }
}

/// Removes the white space between tokens and keeps every other byte.
fn compact(json: &[u8]) -> Vec<u8> {
    let mut compact = Vec::with_capacity(json.len());
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b' ' | b'\t' | b'\n' | b'\r' => at += 1,
            b'"' => {
                let end = end_of_string(json, at + 1).expect("sound JSON closes its strings");
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
