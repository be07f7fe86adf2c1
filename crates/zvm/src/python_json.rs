//! JSON as Python reads it, which is more than JSON: `NaN`, `Infinity` and `-Infinity` are
//! numbers, and half of a surrogate pair may stand alone in a string.
//!
//! The real SDK server accepts all of these. A reader that rejected them would lose the name of the
//! function, and with it the limit of that function.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Rewrites JSON that only Python accepts as sound JSON, with each byte in its place; `None` if nothing in it needs
/// Python. It is only read: the bytes that came are forwarded.
#[must_use]
pub fn as_sound_json(json: &[u8]) -> Option<Vec<u8>> {
    let mut sound: Option<Vec<u8>> = None;
    let mut put = |at: usize, bytes: &[u8]| {
        let sound = sound.get_or_insert_with(|| json.to_vec());
        sound[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let mut at = 0;
    let mut is_in_string = false;
    while at < json.len() {
        let rest = &json[at..];
        at += match json[at] {
            b'"' => {
                is_in_string = !is_in_string;
                1
            }
            b'\\' if is_in_string => match surrogate(rest) {
                // A whole pair.
                Some(0xd800..=0xdbff)
                    if matches!(rest.get(6..).and_then(surrogate), Some(0xdc00..=0xdfff)) =>
                {
                    12
                }
                Some(_) => {
                    put(at + 2, b"fffd");
                    6
                }
                None => 2,
            },
            b'N' if !is_in_string && rest.starts_with(b"NaN") && begins_a_value(json, at) => {
                put(at, b"0  ");
                3
            }
            b'I' if !is_in_string && rest.starts_with(b"Infinity") => {
                let number = match at.checked_sub(1) {
                    Some(sign) if json[sign] == b'-' => sign,
                    _ => at,
                };
                if begins_a_value(json, number) {
                    put(at, b"0       ");
                }
                8
            }
            _ => 1,
        };
    }
    sound
}

/// Whether a value can begin after the preceding byte.
fn begins_a_value(json: &[u8], at: usize) -> bool {
    at.checked_sub(1).is_none_or(|before| {
        matches!(
            json[before],
            b'[' | b',' | b':' | b' ' | b'\t' | b'\r' | b'\n'
        )
    })
}

/// The half of a pair that begins here as `\uXXXX`, if one does.
fn surrogate(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    let digits = std::str::from_utf8(digits).ok()?;
    let code = u16::from_str_radix(digits, 16).ok()?;
    (0xd800..=0xdfff).contains(&code).then_some(code)
}

/// A field of an object, as it stands in the text. Of several with the same name the last counts, as in Python.
pub(crate) fn field<'a>(object: &'a [u8], name: &'static str) -> Option<Cow<'a, str>> {
    match sound_field(object, name) {
        Ok(found) => found.map(Cow::Borrowed),
        Err(_) => field_of_python(object, name).map(Cow::Owned),
    }
}

/// A field of an object that is no sound JSON, but may be to Python.
pub(crate) fn field_of_python(object: &[u8], name: &'static str) -> Option<String> {
    let sound = as_sound_json(object)?;
    sound_field(&sound, name).ok()?.map(str::to_owned)
}

/// A field of an object in sound JSON.
pub(crate) fn sound_field<'a>(
    object: &'a [u8],
    name: &'static str,
) -> serde_json::Result<Option<&'a str>> {
    let mut deserializer = serde_json::Deserializer::from_slice(object);
    let found = deserializer.deserialize_map(FieldVisitor(name))?;
    deserializer.end()?;
    Ok(found.map(RawValue::get))
}

struct FieldVisitor(&'static str);

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(FieldKey(key)) = map.next_key()? {
            if key == self.0 {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// A key, in place unless it has escapes.
#[derive(Deserialize)]
struct FieldKey<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, sound: &str) {
        let made = as_sound_json(json.as_bytes());
        let made = made.map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
        assert_eq!(made.as_deref().unwrap_or(json), sound);
        assert_eq!(json.len(), sound.len());
    }

    #[test]
    fn numbers_of_python_become_zero_and_all_else_stays() {
        check("[NaN,Infinity, -Infinity]", "[0  ,0       , -0       ]");
        check(r#"{"a":NaN}"#, r#"{"a":0  }"#);
        for same in [
            r#"["NaN", "\"Infinity", "\\", 1]"#,
            "[-NaN]",
            "[1NaN]",
            "[+Infinity]",
            "[--Infinity]",
            "[nan, infinity, Nan]",
            "[N",
            "[\"\\",
            "",
        ] {
            check(same, same);
        }
    }

    #[test]
    fn half_a_pair_is_replaced_and_a_whole_one_stays() {
        check(r#"["\ud800", "\uDFFFx"]"#, r#"["\ufffd", "\ufffdx"]"#);
        check(r#"["\ud83d\ude00"]"#, r#"["\ud83d\ude00"]"#);
        check(r#"["\ud83d\ud83d\ude00"]"#, r#"["\ufffd\ud83d\ude00"]"#);
        check(r#"["\\ud800"]"#, r#"["\\ud800"]"#);
        check(r#"["\u0041", "\ud8"]"#, r#"["\u0041", "\ud8"]"#);
    }
}
