//! Steps: what the scheduler was given about one call, and what it decided, each with its instant.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tidegate_limits::Tokens;
use tidegate_limits::scheduler::Outcome;

use crate::digits::decimal;
use crate::kind::{Whole, Word, fraction, string};

/// A step of a call at the gate. `N` is the name of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateStep<N> {
    /// The instant of the scheduler, since the start of the process.   ns
    pub at: u64,
    /// The event.
    pub what: StepKind<N>,
}

/// The event of a step. [`WORDS`] explains each.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the table below has the meaning of each, once")]
pub enum StepKind<N> {
    Asked(N),
    Postponed(u64),
    Class(N),
    Deadline(Option<u64>),
    Bucket(Option<u64>),
    Admitted,
    Requeued,
    Sent,
    Replied,
    Ended(Outcome, Option<Tokens>),
    GivenBack,
    Refused,
    Expired,
    Left,
    Evicted,
    Suspended(u64),
    Resumed(u64),
}

/// The value of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepValue<N> {
    /// The step has none.
    Absent,
    /// The step has one that does not apply.
    Null,
    /// Nanoseconds, or the number of a bucket.
    Whole(u64),
    /// Tokens.
    Tokens(f64),
    /// The name of a class.
    Name(N),
}

/// The type of the value of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepType {
    /// No value.
    Absent,
    /// The name of a class.
    Class,
    /// Nanoseconds.
    Nanos,
    /// Nanoseconds, or `null`.
    NanosOrNull,
    /// The number of a bucket, or `null`.
    BucketOrNull,
    /// Tokens, or `null`.
    TokensOrNull,
}

impl StepType {
    const fn words(self) -> &'static str {
        match self {
            Self::Absent => "",
            Self::Class => "class",
            Self::Nanos => "ns",
            Self::NanosOrNull => "ns or `null`",
            Self::BucketOrNull => "number or `null`",
            Self::TokensOrNull => "tokens or `null`",
        }
    }
}

/// Every step: its word in the log, the type of its value, and its meaning.
pub const WORDS: [(&str, StepType, &str); 19] = [
    (
        "asked",
        StepType::Class,
        "the call asked for its turn, in this class",
    ),
    (
        "postponed",
        StepType::Nanos,
        "the call met a closed limit and was set aside for this time, which was drawn at random",
    ),
    (
        "class",
        StepType::Class,
        "the call was put into another class while it waited",
    ),
    (
        "deadline",
        StepType::NanosOrNull,
        "the deadline moved while the call waited",
    ),
    (
        "bucket",
        StepType::BucketOrNull,
        "the call is charged to another bucket while it waits",
    ),
    (
        "admitted",
        StepType::Absent,
        "the turn came, and the call drew from its limits",
    ),
    (
        "requeued",
        StepType::Absent,
        "the backend took no connection: everything came back, and the call waits again",
    ),
    (
        "sent",
        StepType::Absent,
        "the bytes left: from here the call counts in windows that go by `\"sent\"`",
    ),
    (
        "replied",
        StepType::Absent,
        "the first byte of the reply came: from here the call counts in windows that go by `\"replied\"`. A reply that came whole at once has only its end",
    ),
    (
        "served",
        StepType::TokensOrNull,
        "the call was served, and its slots came back; the value is the actual cost, if that was measured",
    ),
    (
        "overloaded",
        StepType::TokensOrNull,
        "the same, but the backend had too much to do",
    ),
    (
        "failed",
        StepType::TokensOrNull,
        "the same, but the backend failed otherwise",
    ),
    (
        "given_back",
        StepType::Absent,
        "the call was admitted and never sent, and everything came back",
    ),
    (
        "refused",
        StepType::Absent,
        "the call was refused when it asked; `reason` and `limit` say why",
    ),
    (
        "expired",
        StepType::Absent,
        "the call was refused after a wait",
    ),
    (
        "left",
        StepType::Absent,
        "the client left while the call waited",
    ),
    (
        "evicted",
        StepType::Absent,
        "the call was refused because the process ends",
    ),
    (
        "suspended",
        StepType::Nanos,
        "the call was refused before its client gave up, and keeps its place until this instant",
    ),
    (
        "resumed",
        StepType::Nanos,
        "the call takes the place of the one that was suspended at this instant",
    ),
];

/// The table of steps.
#[must_use]
pub fn steps_table() -> String {
    let mut rows = String::from("| step | value | meaning |\n|---|---|---|\n");
    for (word, value, meaning) in WORDS {
        rows.push_str(&format!("| `{word}` | {} | {meaning} |\n", value.words()));
    }
    rows
}

impl<N> StepKind<N> {
    /// The number of the word in [`WORDS`], and the value.
    pub fn into_parts(self) -> (u8, StepValue<N>) {
        let or_null = |value: Option<u64>| value.map_or(StepValue::Null, StepValue::Whole);
        match self {
            Self::Asked(class) => (0, StepValue::Name(class)),
            Self::Postponed(aside) => (1, StepValue::Whole(aside)),
            Self::Class(class) => (2, StepValue::Name(class)),
            Self::Deadline(deadline) => (3, or_null(deadline)),
            Self::Bucket(bucket) => (4, or_null(bucket)),
            Self::Admitted => (5, StepValue::Absent),
            Self::Requeued => (6, StepValue::Absent),
            Self::Sent => (7, StepValue::Absent),
            Self::Replied => (8, StepValue::Absent),
            Self::Ended(outcome, measured) => {
                let measured = measured.map_or(StepValue::Null, |it| StepValue::Tokens(it.get()));
                (9 + outcome as u8, measured)
            }
            Self::GivenBack => (12, StepValue::Absent),
            Self::Refused => (13, StepValue::Absent),
            Self::Expired => (14, StepValue::Absent),
            Self::Left => (15, StepValue::Absent),
            Self::Evicted => (16, StepValue::Absent),
            Self::Suspended(until) => (17, StepValue::Whole(until)),
            Self::Resumed(at) => (18, StepValue::Whole(at)),
        }
    }

    /// The event with these parts; `None` if the value is not one of it.
    #[must_use]
    pub fn of_parts(word: u8, value: StepValue<N>) -> Option<Self> {
        let ended = |outcome, value: &StepValue<N>| {
            let measured = match value {
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "a cost has fewer than 2^53 tokens"
                )]
                StepValue::Whole(tokens) => Tokens::new(*tokens as f64).ok(),
                StepValue::Tokens(tokens) => Tokens::new(*tokens).ok(),
                _ => None,
            };
            Self::Ended(outcome, measured)
        };
        Some(match (word, value) {
            (0, StepValue::Name(class)) => Self::Asked(class),
            (1, StepValue::Whole(aside)) => Self::Postponed(aside),
            (2, StepValue::Name(class)) => Self::Class(class),
            (3, StepValue::Whole(deadline)) => Self::Deadline(Some(deadline)),
            (3, StepValue::Null) => Self::Deadline(None),
            (4, StepValue::Whole(bucket)) => Self::Bucket(Some(bucket)),
            (4, StepValue::Null) => Self::Bucket(None),
            (5, _) => Self::Admitted,
            (6, _) => Self::Requeued,
            (7, _) => Self::Sent,
            (8, _) => Self::Replied,
            (9, value) => ended(Outcome::Served, &value),
            (10, value) => ended(Outcome::Overloaded, &value),
            (11, value) => ended(Outcome::Failed, &value),
            (12, _) => Self::GivenBack,
            (13, _) => Self::Refused,
            (14, _) => Self::Expired,
            (15, _) => Self::Left,
            (16, _) => Self::Evicted,
            (17, StepValue::Whole(until)) => Self::Suspended(until),
            (18, StepValue::Whole(at)) => Self::Resumed(at),
            _ => return None,
        })
    }
}

/// Appends the steps in the order of their instants. Those of two tasks may be out of order.
pub(crate) fn write_steps<N: AsRef<str> + Clone>(out: &mut Vec<u8>, steps: &[GateStep<N>]) {
    let mut in_order: Vec<&GateStep<N>> = steps.iter().collect();
    in_order.sort_by_key(|step| step.at);
    out.push(b'[');
    for (nth, step) in in_order.into_iter().enumerate() {
        let (word, value) = step.what.clone().into_parts();
        out.extend_from_slice(if nth == 0 { b"[\"" } else { b",[\"" });
        out.extend_from_slice(WORDS[usize::from(word)].0.as_bytes());
        out.extend_from_slice(b"\",");
        decimal(out, step.at);
        match value {
            StepValue::Absent => {}
            StepValue::Null => out.extend_from_slice(b",null"),
            StepValue::Whole(value) => {
                out.push(b',');
                decimal(out, value);
            }
            StepValue::Tokens(tokens) => {
                out.push(b',');
                fraction(out, tokens);
            }
            StepValue::Name(name) => {
                out.push(b',');
                string(out, name.as_ref());
            }
        }
        out.push(b']');
    }
    out.push(b']');
}

/// Decodes the steps of a line; `None` if one of them cannot be read.
#[must_use]
pub fn read_steps(steps: &RawValue) -> Option<Vec<GateStep<Cow<'_, str>>>> {
    serde_json::from_str(steps.get()).ok()
}

impl<'de: 'a, 'a> Deserialize<'de> for StepValue<Cow<'a, str>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        // By hand: an untagged enum keeps a copy of each value, which took a third of the time.
        impl<'de> Visitor<'de> for Any {
            type Value = StepValue<Cow<'de, str>>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a name or null")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
                Ok(StepValue::Whole(value))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
                Ok(crate::kind::whole(value).map_or(StepValue::Tokens(value), StepValue::Whole))
            }

            fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Self::Value, E> {
                Ok(StepValue::Name(value.into()))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
                Ok(StepValue::Name(value.to_owned().into()))
            }

            fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
                Ok(StepValue::Null)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for GateStep<Cow<'a, str>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = GateStep<Cow<'de, str>>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a word, an instant, and for some steps a value")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let missing = || A::Error::custom("a step is cut");
                let Word(word) = seq.next_element()?.ok_or_else(missing)?;
                let Whole(at) = seq.next_element()?.ok_or_else(missing)?;
                let value = seq.next_element()?.unwrap_or(StepValue::Absent);
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                let word = WORDS
                    .iter()
                    .zip(0..)
                    .find(|((known, ..), _)| *known == word);
                let what = word.and_then(|(_, number)| StepKind::of_parts(number, value));
                let what = what.ok_or_else(|| A::Error::custom("a step is unknown"))?;
                Ok(GateStep { at, what })
            }
        }
        deserializer.deserialize_seq(Parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_back_as_they_were_written() {
        let tokens = Tokens::new(2.5).ok();
        let steps = [
            StepKind::Asked("us\"er".into()),
            StepKind::Postponed(77),
            StepKind::Class("polling".into()),
            StepKind::Deadline(None),
            StepKind::Deadline(Some(5)),
            StepKind::Bucket(Some(3)),
            StepKind::Bucket(None),
            StepKind::Admitted,
            StepKind::Requeued,
            StepKind::Sent,
            StepKind::Replied,
            StepKind::Ended(Outcome::Served, Tokens::new(2.0).ok()),
            StepKind::Ended(Outcome::Overloaded, tokens),
            StepKind::Ended(Outcome::Failed, None),
            StepKind::GivenBack,
            StepKind::Refused,
            StepKind::Expired,
            StepKind::Left,
            StepKind::Evicted,
            StepKind::Suspended(7),
            StepKind::Resumed(6),
        ];
        let steps: Vec<GateStep<Cow<'_, str>>> = steps
            .into_iter()
            .zip(1..)
            .map(|(what, at)| GateStep { at, what })
            .collect();
        let mut out = Vec::new();
        write_steps(&mut out, &steps);
        let text = String::from_utf8(out).expect("text");
        let raw: &RawValue = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read_steps(raw), Some(steps.clone()), "{text}");
        let spaced = text.replace(',', " ,\t").replace("77", "7.7e1");
        let raw: &RawValue = serde_json::from_str(&spaced).expect("JSON");
        assert_eq!(read_steps(raw), Some(steps), "{spaced}");
    }

    #[test]
    fn a_step_that_lacks_its_value_is_no_step() {
        let check = |text: &str| {
            let raw: &RawValue = serde_json::from_str(text).expect("JSON");
            assert_eq!(read_steps(raw), None, "{text}");
        };
        check(r#"[["asked",1]]"#);
        check(r#"[["asked",1,7]]"#);
        check(r#"[["deadline",1]]"#);
        check(r#"[["postponed",1,"x"]]"#);
        check(r#"[["admitted"]]"#);
        check(r#"[["dreamt",1]]"#);
    }
}
