//! Whether a reply of the socket backend is whole, and what it contains.

use memchr::memchr2;
use serde::Deserialize;
use serde_json::error::Category;

/// The result for a reply that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It is whole; its `overallRC`, if it has one.
    Whole(Option<i64>),
    /// It ended in the middle.
    Cut,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "overallRC")]
    overall_rc: Option<i64>,
}

/// Judges a reply that has ended. Only a reply that stops in the middle is `Cut`. Anything else
/// is passed on unchanged.
pub(super) fn read(reply: &[u8]) -> Ending {
    // Nearly every reply begins so. Its brackets show its end, and the rest is for the client.
    if let Some(overall_rc) = leading_overall_rc(reply) {
        let mut balance = Balance::default();
        balance.push(reply);
        return if balance.is_open() {
            Ending::Cut
        } else {
            Ending::Whole(Some(overall_rc))
        };
    }
    match serde_json::from_slice::<Answer>(reply) {
        Ok(answer) => Ending::Whole(answer.overall_rc),
        Err(error) if error.classify() == Category::Eof => Ending::Cut,
        // Python writes NaN and Infinity, which are no JSON: count brackets instead.
        Err(_) => {
            let mut balance = Balance::default();
            balance.push(reply);
            if balance.is_open() {
                Ending::Cut
            } else {
                Ending::Whole(None)
            }
        }
    }
}

/// The `overallRC` of a reply that begins with it, like the sdkserver's.
fn leading_overall_rc(reply: &[u8]) -> Option<i64> {
    let value = reply.strip_prefix(br#"{"overallRC": "#)?;
    let end = value.iter().position(|&byte| byte == b',')?;
    std::str::from_utf8(&value[..end]).ok()?.parse().ok()
}

/// Counts brackets outside of strings, for any split of the bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Balance {
    depth: u64,
    in_string: bool,
    escaped: bool,
}

impl Balance {
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        if self.escaped && !bytes.is_empty() {
            self.escaped = false;
            bytes = &bytes[1..];
        }
        loop {
            if self.in_string {
                let Some(at) = memchr2(b'"', b'\\', bytes) else {
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
            let Some(at) = bytes
                .iter()
                .position(|byte| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']'))
            else {
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

    /// Whether an open bracket is not closed yet.
    pub(super) fn is_open(self) -> bool {
        self.in_string || self.depth > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reply: &str, ending: Ending) {
        assert_eq!(read(reply.as_bytes()), ending, "{reply}");
    }

    #[test]
    fn only_a_reply_that_stops_halfway_is_cut() {
        check(r#"{"overallRC": 0, "output": ""}"#, Ending::Whole(Some(0)));
        check(r#"{"output": "x"}"#, Ending::Whole(None));
        check(r#"{"overallRC": 0, "output": NaN}"#, Ending::Whole(Some(0)));
        check(r#"{"output": NaN}"#, Ending::Whole(None));
        check(
            r#"{"overallRC": 503, "modID": 130}"#,
            Ending::Whole(Some(503)),
        );
        check(r#"{"overallRC": -1}"#, Ending::Whole(Some(-1)));
        check(r#"{"overallRC": 0"#, Ending::Cut);
        check(r#"{"overallRC": 0, "output": "\"#, Ending::Cut);
        check(
            r#"{"overallRC": 0, "output": "\\"}"#,
            Ending::Whole(Some(0)),
        );
        check("hello", Ending::Whole(None));
        check(r#"{"overallRC": 0, "out"#, Ending::Cut);
        check(r#"{"overallRC": 0, "output": NaN, "x": [1, "#, Ending::Cut);
        check(r#"{"overallRC": 0, "output": "\"}"#, Ending::Cut);
    }

    #[test]
    fn brackets_are_counted_alike_for_any_split() {
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
