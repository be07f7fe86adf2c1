//! Settings of a rate limit by an operator. The config, the API, the state file and the stage share these types.
//!
//! [`Handling`] has every setting other than the size. It is also its form in the API and in the
//! state file.

use std::sync::Arc;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};
use tidegate_callers::{CallerId, Headroom, Label, UsageSpan};
use tidegate_limits::pace::{BurstRatio, Rate};
use tidegate_limits::scheduler::{BucketOrder, OnExcess};
use tidegate_limits::{Burst, Fill};

use super::claim::ClaimDeadline;
use crate::options::{Words, json, words};

words! {
    /// Whether a limit holds calls.
    #[derive(Default)]
    pub enum LimitMode {
        /// The limit holds calls.
        #[default]
        Enforce = "enforce",
        /// The limit holds and refuses none. What it would do is reported.
        Observe = "observe",
    }
}

/// How many calls a rate limit admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// All, and no other rate limit is asked.
    Exempt,
    /// Calls pass for which a bucket has tokens.
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

/// Defines [`Handling`] and a change of it, which the API makes field by field. What follows `=`
/// reads a field of the API.
macro_rules! handling {
    ($($(#[$meta:meta])* $field:ident: $Type:ty = $read:expr;)*) => {
        /// How a rate limit handles its calls: every setting other than its size.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Handling {
            $($(#[$meta])* pub $field: $Type,)*
        }

        /// A change of a [`Handling`]; `None` keeps a value.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the fields are those of `Handling`")]
        pub struct HandlingPatch {
            $(pub $field: Option<$Type>,)*
        }

        impl HandlingPatch {
            /// The names of the fields in the API.
            pub const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];

            /// Sets a field to a value from the API.
            ///
            /// # Errors
            ///
            /// What is valid instead.
            pub fn set(&mut self, field: &str, given: &serde_json::Value) -> Result<(), String> {
                match field {
                    $(stringify!($field) => self.$field = Some($read(given)?),)*
                    _ => unreachable!("{field} is not one of the fields"),
                }
                Ok(())
            }

            /// The changed handling.
            #[must_use]
            pub fn of(self, before: Handling) -> Handling {
                Handling {
                    $($field: self.$field.unwrap_or(before.$field),)*
                }
            }
        }
    };
}

handling! {
    /// Whether it delays calls.
    #[serde(with = "word", alias = "observe")]
    mode: LimitMode = json::choice;
    /// The fate of a call without tokens.
    #[serde(with = "word", alias = "reject")]
    on_excess: OnExcess = json::choice;
    /// The order of its waiting calls.
    #[serde(with = "word", alias = "fifo")]
    order: BucketOrder = json::choice;
    /// Whether calls are charged their final cost; `None` uses the setting of the costs.
    settle: Option<bool> = json::flag_or_null;
    /// How long a call may wait.
    #[serde(with = "word", alias = "no_deadline")]
    deadline: ClaimDeadline = json::choice;
}

words!(OnExcess { "delay" => Delay, "reject" => Reject });
words!(BucketOrder { "fair" => Fair, "fifo" => Fifo });

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
    /// The size of a profile.
    Profile(Arc<str>),
    /// The given size.
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
    pub span: UsageSpan,
    /// The factor by which the limit fills faster.
    pub headroom: Headroom,
}

/// A new rate limit.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRateLimit {
    /// The name in metrics and in refusals; the id if absent.
    pub label: Option<Label>,
    /// The size of the rate limit.
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
    /// The size of a profile.
    Profile(Arc<str>),
    /// The rate limit admits every call.
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
    /// The name in metrics and in refusals.
    pub label: Option<Label>,
    /// The size of the rate limit.
    pub size: Option<SizePatch>,
    /// How it handles calls.
    pub handling: HandlingPatch,
}
