//! What the scheduler was told about a call, and what it decided, each with its instant: with these
//! steps, a replay of the log takes the same decisions again.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_limits::call::{BucketId, QuotaKey};
use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Timestamp, Tokens, Weight};

use super::Destination;

/// How a call asked for its turn.
#[derive(Clone, Debug, PartialEq)]
pub struct AskedAs {
    /// Where it was to go.
    pub destination: Destination,
    /// The name of the class in which it was submitted.
    pub class: Arc<str>,
    /// Its caller's turns for one turn of an ordinary caller.
    pub weight: Weight,
    /// What it draws when it is admitted.
    pub tokens: Tokens,
    /// The bucket that it is charged to.
    pub bucket: Option<BucketId>,
    /// The quotas that it draws from.
    pub quotas: Option<Arc<[QuotaKey]>>,
    /// The last moment at which it may leave the queue; the latest there is without a bound, which takes no room.
    pub deadline: Timestamp,
}

/// One step of a call at the gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The instant of the scheduler.
    pub at: Timestamp,
    /// The step.
    pub what: What,
}

/// What the scheduler was told about a call, or decided.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// It asked for its turn.
    Asked,
    /// It was set aside until then, for a time that was drawn at random.
    Postponed(Timestamp),
    /// It has another class while it waits. Boxed, because it is rare, and each step has room for it.
    Class(Box<Arc<str>>),
    /// It has another deadline while it waits.
    Deadline(Timestamp),
    /// It waits without a bound.
    NoDeadline,
    /// It is charged to another bucket while it waits.
    Bucket(BucketId),
    /// It is no longer charged to a bucket.
    NoBucket,
    /// Its turn came.
    Admitted,
    /// Its bytes left for the backend.
    Sent,
    /// The first byte of its reply came.
    Replied,
    /// It could not be sent, and waits again.
    Requeued,
    /// It was admitted and never sent. What it drew came back.
    GivenBack,
    /// It ended.
    Ended(Outcome),
    /// It ended, with this actual cost.
    EndedAt(Outcome, Tokens),
    /// It was refused when it asked.
    Refused,
    /// It was refused while it waited.
    Expired,
    /// Its client left while it waited.
    Left,
    /// It was refused because the process ends.
    Evicted,
}

labels! {
    /// The word of a step in the access line. docs/reference/access-log.md explains each.
    pub enum Word {
        /// [`What::Asked`].
        Asked = "asked",
        /// [`What::Postponed`].
        Postponed = "postponed",
        /// [`What::Class`].
        Class = "class",
        /// [`What::Deadline`].
        Deadline = "deadline",
        /// [`What::Bucket`].
        Bucket = "bucket",
        /// [`What::Admitted`].
        Admitted = "admitted",
        /// [`What::Sent`].
        Sent = "sent",
        /// [`What::Replied`].
        Replied = "replied",
        /// [`What::Requeued`].
        Requeued = "requeued",
        /// [`What::GivenBack`].
        GivenBack = "given_back",
        /// [`What::Ended`].
        Served = "served",
        /// [`What::Ended`].
        Overloaded = "overloaded",
        /// [`What::Ended`].
        Failed = "failed",
        /// [`What::Refused`].
        Refused = "refused",
        /// [`What::Expired`].
        Expired = "expired",
        /// [`What::Left`].
        Left = "left",
        /// [`What::Evicted`].
        Evicted = "evicted",
    }
}

impl Word {
    /// The word with this label.
    #[must_use]
    pub fn of(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|word| word.label() == label)
    }

    /// How the call ended, if this is an end at the backend.
    #[must_use]
    pub const fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Served => Some(Outcome::Served),
            Self::Overloaded => Some(Outcome::Overloaded),
            Self::Failed => Some(Outcome::Failed),
            _ => None,
        }
    }
}

impl What {
    /// Another deadline; `None` without a bound.
    #[must_use]
    pub fn deadline(at: Option<Timestamp>) -> Self {
        at.map_or(Self::NoDeadline, Self::Deadline)
    }

    /// Another bucket.
    #[must_use]
    pub fn bucket(to: Option<BucketId>) -> Self {
        to.map_or(Self::NoBucket, Self::Bucket)
    }

    /// It ended, with its actual cost if that was measured.
    #[must_use]
    pub fn ended(outcome: Outcome, measured: Option<Tokens>) -> Self {
        match measured {
            Some(measured) => Self::EndedAt(outcome, measured),
            None => Self::Ended(outcome),
        }
    }

    /// Its word in the access line.
    #[must_use]
    pub const fn word(&self) -> Word {
        match self {
            Self::Asked => Word::Asked,
            Self::Postponed(_) => Word::Postponed,
            Self::Class(_) => Word::Class,
            Self::Deadline(_) | Self::NoDeadline => Word::Deadline,
            Self::Bucket(_) | Self::NoBucket => Word::Bucket,
            Self::Admitted => Word::Admitted,
            Self::Sent => Word::Sent,
            Self::Replied => Word::Replied,
            Self::Requeued => Word::Requeued,
            Self::GivenBack => Word::GivenBack,
            Self::Ended(Outcome::Served) | Self::EndedAt(Outcome::Served, _) => Word::Served,
            Self::Ended(Outcome::Overloaded) | Self::EndedAt(Outcome::Overloaded, _) => {
                Word::Overloaded
            }
            Self::Ended(Outcome::Failed) | Self::EndedAt(Outcome::Failed, _) => Word::Failed,
            Self::Refused => Word::Refused,
            Self::Expired => Word::Expired,
            Self::Left => Word::Left,
            Self::Evicted => Word::Evicted,
        }
    }
}

/// The steps of a call. Those of an ordinary call need no allocation.
pub type Steps = SmallVec<[Step; 5]>;
