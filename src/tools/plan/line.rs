//! Parses the lines of a log that a replay needs: docs/access-log.md.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The content of a line.
pub(super) enum Line<'a> {
    /// A call has ended.
    Call(Box<Call<'a>>),
    /// Something else was given to the scheduler.
    Gate(Box<Gate>),
    /// This many lines were lost.
    Lost(u64),
    /// An access line of a version without steps.
    Old,
    /// Something else.
    Other,
    /// It cannot be read.
    Broken,
}

/// An access line.
#[derive(Deserialize)]
pub(super) struct Call<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    pub(super) started_us: u64,
    #[serde(borrow)]
    pub(super) function: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) caller: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) client: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) reason: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) limit: Option<Cow<'a, str>>,
    pub(super) limited: bool,
    #[serde(borrow)]
    pub(super) quota: Option<&'a RawValue>,
    pub(super) arrived_ns: Option<u64>,
    #[serde(borrow)]
    pub(super) backend: Option<Cow<'a, str>>,
    pub(super) weight: Option<u32>,
    pub(super) estimate: Option<f64>,
    pub(super) bucket: Option<u64>,
    pub(super) deadline_ns: Option<u64>,
    #[serde(borrow)]
    pub(super) steps: Option<Vec<Step<'a>>>,
}

/// A step as written.
pub(super) struct Step<'a> {
    pub(super) word: Cow<'a, str>,
    pub(super) at: u64,
    pub(super) value: Value<'a>,
}

/// The value of a step.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Value<'a> {
    /// Nanoseconds, or the number of a bucket.
    Whole(u64),
    /// Tokens.
    Tokens(f64),
    /// The name of a class.
    Name(#[serde(borrow)] Cow<'a, str>),
    /// `null`, or no value.
    None,
}

impl<'de: 'a, 'a> Deserialize<'de> for Step<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Step<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a word, an instant, and for some steps a value")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Step<'de>, A::Error> {
                let missing = || A::Error::custom("a step is cut");
                let word: &str = seq.next_element()?.ok_or_else(missing)?;
                let at = seq.next_element()?.ok_or_else(missing)?;
                let value = seq.next_element::<Option<Value<'de>>>()?.flatten();
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                let value = value.unwrap_or(Value::None);
                Ok(Step {
                    word: word.into(),
                    at,
                    value,
                })
            }
        }
        deserializer.deserialize_seq(Parts)
    }
}

/// A line of the gate.
#[derive(Deserialize)]
pub(super) struct Gate {
    pub(super) event: String,
    pub(super) started_us: u64,
    pub(super) at_ns: u64,
    pub(super) phase_ns: Option<u64>,
    pub(super) seed: Option<String>,
    pub(super) fingerprint: Option<String>,
    pub(super) config: Option<String>,
    pub(super) limit: Option<String>,
    pub(super) by: Option<String>,
    pub(super) capacity: Option<u32>,
    pub(super) until_ns: Option<u64>,
    pub(super) then: Option<f64>,
    pub(super) bucket: Option<u64>,
    pub(super) fill: Option<f64>,
    pub(super) rule: Option<Rule>,
    /// It was given before, and is in the log again for replays that begin here.
    #[serde(default)]
    pub(super) again: bool,
}

/// The rule of a bucket as written.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) limit: Figures,
    pub(super) observes: bool,
    pub(super) rejects: bool,
    pub(super) by_arrival: bool,
    pub(super) settles: bool,
}

/// The figures of a bucket, or of a pace, which has a rate.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Figures {
    pub(super) burst: f64,
    pub(super) fill: Option<f64>,
    pub(super) rate: Option<f64>,
}

/// Parses a line without its end.
pub(super) fn read(line: &[u8]) -> Line<'_> {
    let Some(start) = memchr::memchr(b'{', line) else {
        return Line::Other;
    };
    let object = &line[start..];
    let has = |words: &[u8]| memchr::memmem::find(object, words).is_some();
    if has(br#""target":"access""#) {
        return match serde_json::from_slice::<Call<'_>>(object) {
            Ok(call) if call.steps.is_none() => Line::Old,
            Ok(call) => Line::Call(Box::new(call)),
            Err(_) => Line::Broken,
        };
    }
    if has(br#""target":"gate""#) {
        return serde_json::from_slice(object).map_or(Line::Broken, Line::Gate);
    }
    if has(b"access lines lost") {
        let lost: Result<serde_json::Value, _> = serde_json::from_slice(object);
        return match lost.ok().and_then(|lost| lost["lines"].as_u64()) {
            Some(lines) => Line::Lost(lines),
            None => Line::Broken,
        };
    }
    Line::Other
}
