//! What an operator says of a rate limit. The config, the API, the state file and the stage share
//! these types.
//!
//! [`Handling`] has every setting other than the size. It is also its form in the API and in the
//! state file.

use std::sync::Arc;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};
use tidegate_callers::{CallerId, Headroom, Label, Span};
use tidegate_limits::pace::{BurstRatio, Rate};
use tidegate_limits::scheduler::{BucketMode, BucketOrder, OnExcess};
use tidegate_limits::{Burst, Fill};

use super::claim::Deadline;
use crate::options::{Words, json, words};

/// How many calls a rate limit admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// All, and no other rate limit is asked.
    Exempt,
    /// Those for which a bucket has tokens.
    Bucket {
        /// The most tokens at once.
        burst: Burst,
        /// Tokens a second.
        fill: Fill,
    },
    /// Calls at a steady rate, and a little more while they are behind schedule.
    Paced {
        /// Tokens a second.
        rate: Rate,
        /// The burst ratio: late calls are admitted at this many times the rate.
        ratio: BurstRatio,
    },
}

impl Allowance {
    /// The figures of a bucket.
    #[must_use]
    pub const fn bucket(self) -> Option<(Burst, Fill)> {
        match self {
            Self::Bucket { burst, fill } => Some((burst, fill)),
            Self::Exempt | Self::Paced { .. } => None,
        }
    }

    /// The figures of a pace.
    #[must_use]
    pub const fn pace(self) -> Option<(Rate, BurstRatio)> {
        match self {
            Self::Paced { rate, ratio } => Some((rate, ratio)),
            Self::Exempt | Self::Bucket { .. } => None,
        }
    }
}

/// How a rate limit handles its calls: every setting other than its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handling {
    /// Whether it delays calls.
    #[serde(with = "word", alias = "observe")]
    pub mode: BucketMode,
    /// What happens to a call without tokens.
    #[serde(with = "word", alias = "reject")]
    pub on_excess: OnExcess,
    /// The order of its waiting calls.
    #[serde(with = "word", alias = "fifo")]
    pub order: BucketOrder,
    /// Whether calls are charged their final cost; `None` uses the setting of the costs.
    pub settle: Option<bool>,
    /// How long a call may wait.
    #[serde(with = "word", alias = "no_deadline")]
    pub deadline: Deadline,
}

/// A change of a [`Handling`]; `None` keeps a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Handling`")]
pub struct HandlingPatch {
    pub mode: Option<BucketMode>,
    pub on_excess: Option<OnExcess>,
    pub order: Option<BucketOrder>,
    pub settle: Option<Option<bool>>,
    pub deadline: Option<Deadline>,
}

words!(BucketMode { "enforce" => Enforce, "observe" => Observe });
words!(OnExcess { "delay" => Delay, "reject" => Reject });
words!(BucketOrder { "fair" => Fair, "fifo" => Fifo });
words!(Deadline { "ordinary" => Ordinary, "none" => None });

impl HandlingPatch {
    /// The names of the fields in the API.
    pub const FIELDS: [&'static str; 5] = ["mode", "on_excess", "order", "settle", "deadline"];

    /// Sets a field to a value from the API.
    ///
    /// # Errors
    ///
    /// What is valid instead.
    pub fn set(&mut self, field: &str, given: &serde_json::Value) -> Result<(), String> {
        match field {
            "mode" => self.mode = Some(json::choice(given)?),
            "on_excess" => self.on_excess = Some(json::choice(given)?),
            "order" => self.order = Some(json::choice(given)?),
            "settle" if given.is_null() => self.settle = Some(None),
            "settle" => self.settle = Some(Some(json::flag(given)?)),
            "deadline" => self.deadline = Some(json::choice(given)?),
            _ => unreachable!("{field} is not one of the fields"),
        }
        Ok(())
    }

    /// The changed handling.
    #[must_use]
    pub fn of(self, before: Handling) -> Handling {
        Handling {
            mode: self.mode.unwrap_or(before.mode),
            on_excess: self.on_excess.unwrap_or(before.on_excess),
            order: self.order.unwrap_or(before.order),
            settle: self.settle.unwrap_or(before.settle),
            deadline: self.deadline.unwrap_or(before.deadline),
        }
    }
}

/// A setting as its word. Older state files have a flag: whether it is the second word.
mod word {
    use super::{Deserialize, Deserializer, Serializer, Words, de, json};

    pub(super) fn serialize<T: Words, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(value.word())
    }

    pub(super) fn deserialize<'de, T: Words, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        match serde_json::Value::deserialize(from)? {
            serde_json::Value::Bool(is_second) => Ok(T::WORDS[usize::from(is_second)].1),
            given => json::choice(&given).map_err(de::Error::custom),
        }
    }
}

/// The size of a new rate limit.
#[derive(Clone, Debug, PartialEq)]
pub enum Size {
    /// That of a profile.
    Profile(Arc<str>),
    /// This one.
    Given(Allowance),
    /// From the usage of a caller.
    Derived(Derive),
}

/// The basis of a derived limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Derive {
    /// The caller.
    pub caller: CallerId,
    /// The span.
    pub span: Span,
    /// The factor by which the limit fills faster.
    pub headroom: Headroom,
}

/// A new rate limit.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRateLimit {
    /// Its name in metrics and in refusals; its id if absent.
    pub label: Option<Label>,
    /// Its size.
    pub size: Size,
    /// How it handles calls.
    pub handling: Handling,
    /// The callers that are charged to it.
    pub callers: Vec<CallerId>,
}

impl NewRateLimit {
    /// A rate limit of this size with defaults for everything else.
    #[must_use]
    pub fn of(size: Size) -> Self {
        Self {
            label: None,
            size,
            handling: Handling::default(),
            callers: Vec::new(),
        }
    }
}

/// A new size of a rate limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizePatch {
    /// That of a profile.
    Profile(Arc<str>),
    /// None: it admits everything.
    Exempt,
    /// A bucket; `None` keeps a value.
    Bucket {
        /// The most tokens at once.
        burst: Option<Burst>,
        /// Tokens a second.
        fill: Option<Fill>,
    },
    /// A pace; `None` keeps a value. A rate limit that had no ratio gets the default.
    Paced {
        /// Tokens a second.
        rate: Option<Rate>,
        /// The burst ratio: late calls are admitted at this many times the rate.
        ratio: Option<BurstRatio>,
    },
}

/// A change of a rate limit; `None` keeps a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitPatch {
    /// Its name in metrics and in refusals.
    pub label: Option<Label>,
    /// Its size.
    pub size: Option<SizePatch>,
    /// How it handles calls.
    pub handling: HandlingPatch,
}
