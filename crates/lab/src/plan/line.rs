//! Parses the lines of a log that a replay needs: docs/reference/access-log.md.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};

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
    pub(super) rate_limit: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) client: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) reason: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) limit: Option<Cow<'a, str>>,
    pub(super) limited: bool,
    #[serde(borrow)]
    pub(super) listener: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) user: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) dialect: Option<Cow<'a, str>>,
    /// Whether it drew from quotas.
    #[serde(default, deserialize_with = "is_some")]
    pub(super) quota: bool,
    /// The quotas that it named, with their keys; not in lines of older versions.
    #[serde(borrow, default)]
    pub(super) draws: Option<Vec<(Cow<'a, str>, Cow<'a, str>)>>,
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

fn is_some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::<IgnoredAny>::deserialize(deserializer).map(|value| value.is_some())
}

/// A step as written.
pub(super) struct Step<'a> {
    pub(super) word: Cow<'a, str>,
    pub(super) at: u64,
    pub(super) value: Value<'a>,
}

/// The value of a step.
pub(super) enum Value<'a> {
    /// Nanoseconds, or the number of a bucket.
    Whole(u64),
    /// Tokens.
    Tokens(f64),
    /// The name of a class.
    Name(Cow<'a, str>),
    /// `null`, or no value.
    None,
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        // By hand: an untagged enum keeps a copy of each value, which took a third of the time.
        impl<'de> Visitor<'de> for Any {
            type Value = Value<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a name or null")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Value<'de>, E> {
                Ok(Value::Whole(value))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Value<'de>, E> {
                Ok(Value::Tokens(value))
            }

            fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Value<'de>, E> {
                Ok(Value::Name(value.into()))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Value<'de>, E> {
                Ok(Value::Name(value.to_owned().into()))
            }

            fn visit_unit<E: Error>(self) -> Result<Value<'de>, E> {
                Ok(Value::None)
            }
        }
        deserializer.deserialize_any(Any)
    }
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
                let value = seq.next_element()?;
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
    pub(super) share_thousandths: Option<u16>,
    pub(super) bucket: Option<u64>,
    pub(super) fill: Option<f64>,
    pub(super) rule: Option<Rule>,
    pub(super) costs: Option<Vec<Costs>>,
    pub(super) key: Option<String>,
    pub(super) question: Option<u64>,
    pub(super) reply: Option<String>,
    pub(super) version: Option<u64>,
    pub(super) record: Option<String>,
    pub(super) entropy: Option<u64>,
    pub(super) seen_ns: Option<u64>,
    pub(super) earliest_ns: Option<u64>,
    pub(super) latest_ns: Option<u64>,
    pub(super) total: Option<u64>,
    pub(super) base: Option<u64>,
    pub(super) nodes: Option<u32>,
    /// It was given before, and is in the log again for replays that begin here.
    #[serde(default)]
    pub(super) again: bool,
}

/// The costs of the calls that meet a paced limit, as written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Costs {
    pub(super) name: String,
    pub(super) cheapest: f64,
    pub(super) most_expensive: f64,
}

/// The rule of a bucket as written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) limit: Figures,
    pub(super) observes: bool,
    pub(super) rejects: bool,
    pub(super) by_arrival: bool,
    pub(super) settles: bool,
}

/// The figures of a bucket, or of a pace, which has a rate.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
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
    let target = |words: &[u8]| memchr::memmem::find(object, words).is_some();
    if target(br#""target":"access""#) {
        return match serde_json::from_slice::<Call<'_>>(object) {
            Ok(call) if call.steps.is_none() => Line::Old,
            Ok(call) => Line::Call(Box::new(call)),
            Err(_) => Line::Broken,
        };
    }
    if target(br#""target":"gate""#) {
        return serde_json::from_slice(object).map_or(Line::Broken, Line::Gate);
    }
    if memchr::memmem::find(object, b"access lines lost").is_some() {
        let lost: Result<serde_json::Value, _> = serde_json::from_slice(object);
        return match lost.ok().and_then(|lost| lost["lines"].as_u64()) {
            Some(lines) => Line::Lost(lines),
            None => Line::Broken,
        };
    }
    Line::Other
}
