//! A line of Tidegate's own access log: docs/reference/access-log.md.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use tidegate_advice::sample::SampleEnding;

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
    pub(super) limited: bool,
    pub(super) arrived_ns: Option<u64>,
    #[serde(borrow)]
    pub(super) steps: Option<Vec<Step<'a>>>,
}

/// A line of the gate.
#[derive(Deserialize)]
pub(super) struct Gate {
    pub(super) event: Box<str>,
    pub(super) started_us: u64,
    pub(super) at_ns: u64,
    pub(super) config: Option<String>,
}

/// A step: its word and its instant.
pub(super) struct Step<'a>(Cow<'a, str>, pub(super) u64);

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
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Step(word.into(), at))
            }
        }
        deserializer.deserialize_seq(Parts)
    }
}

/// When the call was sent, when it was over, and how it ended; `None` if its steps have no end.
pub(super) fn outcome(steps: &[Step<'_>]) -> Option<(Option<u64>, u64, SampleEnding)> {
    let mut started = None;
    for Step(word, at) in steps {
        let ending = match &**word {
            // What the backend works on begins with the last byte; a call that streams has only
            // its turn.
            "admitted" | "sent" => {
                started = Some(*at);
                continue;
            }
            "requeued" => {
                started = None;
                continue;
            }
            "served" => SampleEnding::Served,
            "overloaded" => SampleEnding::Overloaded,
            "failed" => SampleEnding::Failed,
            "refused" | "expired" | "evicted" => SampleEnding::Refused,
            "left" => SampleEnding::Left,
            "given_back" => {
                started = None;
                SampleEnding::Left
            }
            _ => continue,
        };
        return Some((started, *at, ending));
    }
    None
}
