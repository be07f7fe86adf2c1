//! A call, as the scheduler sees it.

use alloc::sync::Arc;
use core::num::NonZeroU32;

use crate::bucket::Tokens;
use crate::time::Timestamp;
use crate::verdict::Cost;

/// A backend, by a number of your choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend(pub u8);

/// How urgent a call is: the index of its class in [`Policy::classes`](crate::Policy::classes). An index
/// past the end counts as the last class, because a reload can remove classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(pub u32);

/// The caller, by a number of your choice. Callers of one class share by [`Call::weight`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller(pub u64);

impl Caller {
    /// An unknown caller. All unknown callers together count as one.
    pub const ANONYMOUS: Self = Self(0);
}

/// How many turns a caller takes for each turn of a caller of weight 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZeroU32);

impl Weight {
    /// The weight of an ordinary caller.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// A weight; `None` for zero, because such a caller would never be served.
    #[must_use]
    pub const fn new(weight: u32) -> Option<Self> {
        match NonZeroU32::new(weight) {
            Some(weight) => Some(Self(weight)),
            None => None,
        }
    }

    /// The weight, at least 1.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

/// A bucket of a rate limit, by a number of your choice. See
/// [`Scheduler::set_bucket`](crate::Scheduler::set_bucket).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketId(pub u64);

/// One of the budgets that a call draws from: a quota and a key.
///
/// The quota is the name of a rule passed to [`Scheduler::set_quotas`](crate::Scheduler::set_quotas). The
/// key is a user, a function, or anything else that has a budget of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaKey {
    /// The name of the rule.
    pub quota: Arc<str>,
    /// The owner of the budget. Empty for unknown owners, which share one budget.
    pub key: Arc<str>,
}

/// What the scheduler needs to know about a call.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limits::{Call, Caller, Timestamp, Weight};
///
/// let now = Timestamp::ZERO;
/// let call = Call::new("guest_list", now)
///     .caller(Caller(7))
///     .weight(Weight::new(2).expect("not zero"))
///     .deadline(now + Duration::from_secs(30));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// The function that is called.
    pub function: Arc<str>,
    /// The backend that would serve it.
    pub backend: Backend,
    /// How urgent it is.
    pub class: Class,
    /// Who is calling.
    pub caller: Caller,
    /// The caller's weight, against other callers. All calls of one caller should have the same weight.
    pub weight: Weight,
    /// How much of its windows the call draws.
    pub cost: Cost,
    /// The cost in tokens: what its bucket is charged, and how much of its caller's and its class's turns
    /// it takes.
    pub tokens: Tokens,
    /// The bucket that is charged. Any number of callers can share one. A bucket that does not exist
    /// delays no call: it may have been removed after the call was classified.
    pub bucket: Option<BucketId>,
    /// The quotas that it draws from: all or none, each once. It costs its tokens there, rounded up. A
    /// quota without a rule delays no call.
    pub quotas: Option<Arc<[QuotaKey]>>,
    /// When it arrived: when its connection was accepted, or its first byte was read.
    pub arrived: Timestamp,
    /// The last moment at which it can leave the queue; `None` waits without a limit. A call whose deadline
    /// is `now` is still asked once.
    pub deadline: Option<Timestamp>,
}

impl Call {
    /// An ordinary call of this function: of the first backend and class, of an unknown caller, of cost
    /// 1, without a bucket, quota or deadline.
    #[must_use]
    pub fn new(function: impl Into<Arc<str>>, arrived: Timestamp) -> Self {
        Self {
            function: function.into(),
            backend: Backend(0),
            class: Class(0),
            caller: Caller::ANONYMOUS,
            weight: Weight::ONE,
            cost: Cost::ONE,
            tokens: Tokens::ONE,
            bucket: None,
            quotas: None,
            arrived,
            deadline: None,
        }
    }

    /// The backend that would serve it.
    #[must_use]
    pub fn backend(self, backend: Backend) -> Self {
        Self { backend, ..self }
    }

    /// How urgent it is.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// Who is calling.
    #[must_use]
    pub fn caller(self, caller: Caller) -> Self {
        Self { caller, ..self }
    }

    /// The caller's weight.
    #[must_use]
    pub fn weight(self, weight: Weight) -> Self {
        Self { weight, ..self }
    }

    /// How much of its windows it draws.
    #[must_use]
    pub fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    /// Its cost in tokens.
    #[must_use]
    pub fn tokens(self, tokens: Tokens) -> Self {
        Self { tokens, ..self }
    }

    /// The bucket that is charged.
    #[must_use]
    pub fn bucket(self, bucket: impl Into<Option<BucketId>>) -> Self {
        Self {
            bucket: bucket.into(),
            ..self
        }
    }

    /// The quotas that it draws from.
    #[must_use]
    pub fn quotas(self, quotas: impl Into<Option<Arc<[QuotaKey]>>>) -> Self {
        Self {
            quotas: quotas.into(),
            ..self
        }
    }

    /// The last moment at which it can leave the queue.
    #[must_use]
    pub fn deadline(self, deadline: impl Into<Option<Timestamp>>) -> Self {
        Self {
            deadline: deadline.into(),
            ..self
        }
    }

    /// What it draws from the limits that it meets.
    pub(crate) const fn draw(&self) -> Draw {
        Draw {
            cost: self.cost,
            tokens: self.tokens,
        }
    }
}

/// What a call draws: its cost from a window, its tokens from a pace, and one slot from an outstanding
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draw {
    pub(crate) cost: Cost,
    pub(crate) tokens: Tokens,
}

impl Draw {
    /// What an ordinary call draws.
    pub(crate) const ONE: Self = Self {
        cost: Cost::ONE,
        tokens: Tokens::ONE,
    };
}
