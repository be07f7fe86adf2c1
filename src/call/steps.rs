//! Steps of a call: the input to the scheduler about a call, and its decisions, each with its instant: with these
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
    /// The caller's turns for one turn of an ordinary caller.
    pub weight: Weight,
    /// The tokens that the call draws when it is admitted.
    pub tokens: Tokens,
    /// The bucket that it is charged to.
    pub bucket: Option<BucketId>,
    /// The quotas that it draws from.
    pub quotas: Option<Arc<[QuotaKey]>>,
    /// The last moment at which it may leave the queue; the latest there is without a bound, which takes no room.
    pub deadline: Timestamp,
}

/// A step of a call at the gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The instant of the scheduler.
    pub at: Timestamp,
    /// The step.
    pub what: What,
}

/// The input or the decision of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The call asked for its turn.
    Asked,
    /// The call was set aside until then, for a time that was drawn at random.
    Postponed(Timestamp),
    /// The call has another class while it waits. Boxed, because it is rare, and each step has room for it.
    Class(Box<Arc<str>>),
    /// The call has another deadline while it waits.
    Deadline(Timestamp),
    /// The call waits without a bound.
    NoDeadline,
    /// The call is charged to another bucket while it waits.
    Bucket(BucketId),
    /// The call is no longer charged to a bucket.
    NoBucket,
    /// The call was admitted.
    Admitted,
    /// The bytes of the call left for the backend.
    Sent,
    /// The first byte of its reply came.
    Replied,
    /// The call could not be sent, and waits again.
    Requeued,
    /// The call was admitted and never sent. What it drew came back.
    GivenBack,
    /// The call ended.
    Ended(Outcome),
    /// The call ended, with this actual cost.
    EndedAt(Outcome, Tokens),
    /// The call was refused when it asked.
    Refused,
    /// The call was refused while it waited.
    Expired,
    /// The client left while the call waited.
    Left,
    /// The call was refused because the process ends.
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

    /// The step of a call's end, with its actual cost if that was measured.
    #[must_use]
    pub fn ended(outcome: Outcome, measured: Option<Tokens>) -> Self {
        match measured {
            Some(measured) => Self::EndedAt(outcome, measured),
            None => Self::Ended(outcome),
        }
    }

    /// The word of the step in the access line.
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
