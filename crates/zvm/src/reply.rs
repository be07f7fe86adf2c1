//! Replies of the SDK server: whether one is complete, what its `overallRC` is, and errors in its
//! form.

use std::fmt::Write;

use memchr::memchr2;
use serde_json::error::Category;

use crate::python_json::{field, field_of_python, sound_field};

/// The module of errors that come from Tidegate. The SDK server's own modules have 1 to 120 and 400.
pub const MODULE_ID: u16 = 130;

/// The field of a reply that says how the call ended; 0 is success.
const OVERALL_RC: &str = "overallRC";

/// The state of a reply that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyEnding {
    /// The reply is complete. Its `overallRC`, if it has one.
    Whole(Option<i64>),
    /// The reply ended in the middle.
    Cut,
}

/// Reads a reply that has ended. Only a reply that stops in the middle is `Cut`: anything else that
/// the backend says is passed on as it is.
#[must_use]
pub fn read(reply: &[u8]) -> ReplyEnding {
    let unless_open = |overall_rc: &dyn Fn() -> Option<i64>| {
        let mut balance = Balance::default();
        balance.push(reply);
        if balance.is_open() {
            ReplyEnding::Cut
        } else {
            ReplyEnding::Whole(overall_rc())
        }
    };
    // As nearly every reply begins. Its brackets show its end; the rest is for the client.
    if let Some(overall_rc) = leading_overall_rc(reply) {
        return unless_open(&|| Some(overall_rc));
    }
    match sound_field(reply, OVERALL_RC) {
        Ok(found) => ReplyEnding::Whole(found.and_then(|value| value.parse().ok())),
        Err(error) if error.classify() == Category::Eof => ReplyEnding::Cut,
        // Python writes NaN and Infinity, which are not JSON: brackets show whether it is whole.
        Err(_) => unless_open(&|| field_of_python(reply, OVERALL_RC)?.parse().ok()),
    }
}

/// The `overallRC` of a reply; none if it has no such whole number or is not sound.
#[must_use]
pub fn overall_rc(reply: &[u8]) -> Option<i64> {
    field(reply, OVERALL_RC)?.parse().ok()
}

/// The `modID` of a reply, if it is a number: the module of the server that made the error.
#[must_use]
pub fn module(reply: &[u8]) -> Option<i64> {
    field(reply, "modID")?.parse().ok()
}

/// The HTTP status that sdkwsgi gives a reply with this `overallRC`.
#[must_use]
pub fn http_status(overall_rc: i64) -> u16 {
    match overall_rc {
        0 => 200,
        100 | 400 => 400,
        404 => 404,
        409 => 409,
        501 => 501,
        503 => 503,
        _ => 500,
    }
}

/// An error in the server's own form.
#[derive(Clone, Copy, Debug)]
pub struct ErrorReply<'a> {
    /// How the call ended.
    pub overall_rc: u16,
    /// The module that made it.
    pub module: u16,
    /// The module's own code.
    pub rc: i32,
    /// The module's own reason.
    pub rs: u16,
    /// A sentence for a person.
    pub errmsg: &'a str,
    /// Seconds until a retry makes sense.
    pub retry_after: Option<u64>,
}

impl ErrorReply<'_> {
    /// The reply as a JSON object, laid out as Python's `json.dumps` does it. It is pure ASCII, because the socket
    /// client decodes each block that it reads on its own.
    #[must_use]
    pub fn to_json(&self) -> String {
        let Self {
            overall_rc,
            module,
            rc,
            rs,
            errmsg,
            retry_after,
        } = *self;
        let mut json = format!(
            r#"{{"overallRC": {overall_rc}, "modID": {module}, "rc": {rc}, "rs": {rs}, "errmsg": ""#
        );
        push_escaped(&mut json, errmsg);
        json.push_str(r#"", "output": """#);
        if let Some(seconds) = retry_after {
            write!(json, r#", "retryAfter": {seconds}"#).expect("a String takes everything");
        }
        json.push('}');
        json
    }
}

/// Appends the inside of a JSON string in ASCII, escaped as Python escapes it.
fn push_escaped(json: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            ' '..='~' => json.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(json, "\\u{unit:04x}").expect("a String takes everything");
                }
            }
        }
    }
}

/// The `overallRC` of a reply that begins with it, as the sdkserver's do.
fn leading_overall_rc(reply: &[u8]) -> Option<i64> {
    let value = reply.strip_prefix(br#"{"overallRC": "#)?;
    let end = value.iter().position(|&byte| byte == b',')?;
    std::str::from_utf8(&value[..end]).ok()?.parse().ok()
}

/// The bytes that change a balance outside of strings. A look-up for each byte is the quickest way, because few
/// bytes lie between two of these.
const COUNTS: [bool; 256] = {
    let mut counts = [false; 256];
    let bytes = b"\"{[}]";
    let mut place = 0;
    while place < bytes.len() {
        counts[bytes[place] as usize] = true;
        place += 1;
    }
    counts
};

/// Where a string ends, or has an escape. Most strings of a reply are so short that a search for two bytes costs
/// more to begin than a look at each byte.
fn end_in_string(bytes: &[u8]) -> Option<usize> {
    const NEAR: usize = 16;
    let (near, far) = bytes.split_at(bytes.len().min(NEAR));
    let is_it = |&byte: &u8| matches!(byte, b'"' | b'\\');
    let at = near.iter().position(is_it);
    at.or_else(|| memchr2(b'"', b'\\', far).map(|at| near.len() + at))
}

/// Counts brackets outside of strings, over any split of the bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Balance {
    depth: u64,
    in_string: bool,
    escaped: bool,
}

impl Balance {
    /// Counts the next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if self.escaped && !bytes.is_empty() {
            self.escaped = false;
            bytes = &bytes[1..];
        }
        loop {
            if self.in_string {
                let Some(at) = end_in_string(bytes) else {
                    return;
                };
                if bytes[at] == b'"' {
                    self.in_string = false;
                    bytes = &bytes[at + 1..];
                } else if let Some(rest) = bytes.get(at + 2..) {
                    bytes = rest;
                } else {
                    self.escaped = true;
                    return;
                }
                continue;
            }
            let mut all = bytes.iter();
            let Some(at) = all.position(|&byte| COUNTS[usize::from(byte)]) else {
                return;
            };
            match bytes[at] {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                _ => self.depth = self.depth.saturating_sub(1),
            }
            bytes = &bytes[at + 1..];
        }
    }

    /// Whether a bracket or a string is still open.
    #[must_use]
    pub fn is_open(self) -> bool {
        self.in_string || self.depth > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reply: &str, ending: ReplyEnding) {
        assert_eq!(read(reply.as_bytes()), ending, "{reply}");
    }

    #[test]
    fn only_a_reply_that_stops_in_the_middle_is_cut() {
        check(
            r#"{"overallRC": 0, "output": ""}"#,
            ReplyEnding::Whole(Some(0)),
        );
        check(r#"{"output": "x"}"#, ReplyEnding::Whole(None));
        check(
            r#"{"overallRC": 0, "output": NaN}"#,
            ReplyEnding::Whole(Some(0)),
        );
        check(r#"{"output": NaN}"#, ReplyEnding::Whole(None));
        check(
            r#"{"overallRC": 503, "modID": 130}"#,
            ReplyEnding::Whole(Some(503)),
        );
        check(r#"{"overallRC": -1}"#, ReplyEnding::Whole(Some(-1)));
        check(r#"{"overallRC": 0"#, ReplyEnding::Cut);
        check(r#"{"overallRC": 0, "output": "\"#, ReplyEnding::Cut);
        check(
            r#"{"overallRC": 0, "output": "\\"}"#,
            ReplyEnding::Whole(Some(0)),
        );
        check("hello", ReplyEnding::Whole(None));
        check(r#"{"overallRC": 0, "out"#, ReplyEnding::Cut);
        check(
            r#"{"overallRC": 0, "output": NaN, "x": [1, "#,
            ReplyEnding::Cut,
        );
        check(r#"{"overallRC": 0, "output": "\"}"#, ReplyEnding::Cut);
    }

    #[test]
    fn brackets_are_counted_the_same_however_the_bytes_are_split() {
        let reply = br#"{"a": ["\\\"}", {"b": "]"}], "c": NaN}"#;
        for at in 0..=reply.len() {
            let mut balance = Balance::default();
            balance.push(&reply[..at]);
            assert_eq!(balance.is_open(), at > 0 && at < reply.len(), "at {at}");
            balance.push(&reply[at..]);
            assert!(!balance.is_open(), "split at {at}");
        }
    }
}
