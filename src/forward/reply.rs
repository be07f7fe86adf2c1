//! Whether a reply of the socket backend is whole, and what it says.

use serde::Deserialize;
use serde_json::error::Category;

/// What was found in a reply that has ended.
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

/// Reads a reply that has ended. Only a reply that stops in the middle is `Cut`: whatever
/// else the backend says is its own word, and is passed on as it is.
pub(super) fn read(reply: &[u8]) -> Ending {
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

/// Counts brackets outside of strings, over any split of the bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Balance {
    depth: u64,
    in_string: bool,
    escaped: bool,
}

impl Balance {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.in_string {
                if self.escaped {
                    self.escaped = false;
                } else if byte == b'\\' {
                    self.escaped = true;
                } else if byte == b'"' {
                    self.in_string = false;
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
            }
        }
    }

    /// Whether something opened has not been closed.
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
    fn only_a_reply_that_stops_in_the_middle_is_cut() {
        check(r#"{"overallRC": 0, "output": ""}"#, Ending::Whole(Some(0)));
        check(r#"{"output": "x"}"#, Ending::Whole(None));
        check(r#"{"overallRC": 0, "output": NaN}"#, Ending::Whole(None));
        check("hello", Ending::Whole(None));
        check(r#"{"overallRC": 0, "out"#, Ending::Cut);
        check(r#"{"overallRC": 0, "output": NaN, "x": [1, "#, Ending::Cut);
        check(r#"{"overallRC": 0, "output": "\"}"#, Ending::Cut);
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
