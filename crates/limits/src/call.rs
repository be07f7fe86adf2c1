//! A call, as the scheduler sees it.

use alloc::sync::Arc;
use core::num::{NonZeroU16, NonZeroU32};

use crate::bucket::Tokens;
use crate::time::Timestamp;

/// Defines a method of the name of each field that returns the same value with another one there.
macro_rules! setters {
    ($($field:ident: $of:ty,)*) => {
        $(
            #[doc = concat!("The same with this [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
            #[must_use]
            pub fn $field(self, $field: impl Into<$of>) -> Self {
                Self {
                    $field: $field.into(),
                    ..self
                }
            }
        )*
    };
}
pub(crate) use setters;

/// A backend, by a number of your choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend(pub u8);

/// A server of a backend, by a number of your choice. The same number is the same server under a later policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerNumber(NonZeroU16);

impl ServerNumber {
    /// The highest number of a server.
    pub const MAX: u16 = 0x7fff;

    /// A server; `None` for 0, and above [`MAX`](Self::MAX).
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        match NonZeroU16::new(number) {
            Some(number) if number.get() <= Self::MAX => Some(Self(number)),
            _ => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

/// The servers of its backend that may serve a call. It has no effect if the backend has no limits of
/// [servers](crate::policy::Scope::Server). Two bytes, because thousands of calls may wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerChoice(u16);

impl ServerChoice {
    /// Any server.
    pub const ANY: Self = Self(0);

    const STICKY: u16 = 1 << 15;

    /// The server to which all calls with this key go, of which 15 bits count. A call that has waited for
    /// [`Policy::sticky_wait`](crate::Policy::sticky_wait) may go to any.
    #[must_use]
    pub const fn sticky(key: u16) -> Self {
        Self(Self::STICKY | key)
    }

    /// Only this server, or any if the policy does not name it.
    #[must_use]
    pub const fn only(server: ServerNumber) -> Self {
        Self(server.get())
    }

    /// Whether it goes by a key.
    #[must_use]
    pub const fn is_sticky(self) -> bool {
        self.0 & Self::STICKY != 0
    }

    /// A choice without its key: any server may serve the call, unless one is named.
    #[must_use]
    pub const fn without_key(self) -> Self {
        match self.is_sticky() {
            true => Self::ANY,
            false => self,
        }
    }

    /// The only server that may serve the call; `None` if it is not named.
    #[must_use]
    pub const fn named(self) -> Option<ServerNumber> {
        ServerNumber::new(self.0)
    }

    /// The key, with a bit that no server has.
    pub(crate) const fn key(self) -> u16 {
        self.0
    }
}

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

/// Defines a type for a whole number above zero.
macro_rules! above_zero {
    ($(#[$doc:meta])* $name:ident, $one:literal, $new:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(NonZeroU32);

        impl $name {
            #[doc = $one]
            pub const ONE: Self = Self(NonZeroU32::MIN);

            #[doc = $new]
            #[must_use]
            pub const fn new(number: u32) -> Option<Self> {
                match NonZeroU32::new(number) {
                    Some(number) => Some(Self(number)),
                    None => None,
                }
            }

            /// The number, at least 1.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0.get()
            }
        }
    };
}

above_zero! {
    /// How much of a window one call draws, in units. An outstanding limit counts calls, whatever their
    /// cost.
    Cost,
    "The cost of an ordinary call.",
    "A cost; `None` for zero, since a call that draws nothing is not limited."
}

above_zero! {
    /// How many turns a caller takes for each turn of a caller of weight 1.
    Weight,
    "The weight of an ordinary caller.",
    "A weight; `None` for zero, because such a caller would never be served."
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

/// A budget that a call draws from: a quota and a key.
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

/// The name of the function of a call that may be of any function: it meets the limits of each. No function has this name.
pub const ANY_FUNCTION: &str = "*";

/// A call as the scheduler sees it.
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
    /// The servers of that backend that may serve it.
    pub server: ServerChoice,
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
    /// Whether the cost that is measured at its end corrects its quotas and its turns, and not only its bucket.
    pub is_settled: bool,
}

impl Call {
    /// An ordinary call of this function: of the first backend and class, of an unknown caller, of cost
    /// 1, without a bucket, quota or deadline.
    #[must_use]
    pub fn new(function: impl Into<Arc<str>>, arrived: Timestamp) -> Self {
        Self {
            function: function.into(),
            backend: Backend(0),
            server: ServerChoice::ANY,
            class: Class(0),
            caller: Caller::ANONYMOUS,
            weight: Weight::ONE,
            cost: Cost::ONE,
            tokens: Tokens::ONE,
            bucket: None,
            quotas: None,
            arrived,
            deadline: None,
            is_settled: false,
        }
    }

    setters! {
        backend: Backend,
        server: ServerChoice,
        class: Class,
        caller: Caller,
        weight: Weight,
        cost: Cost,
        tokens: Tokens,
        bucket: Option<BucketId>,
        quotas: Option<Arc<[QuotaKey]>>,
        deadline: Option<Timestamp>,
        is_settled: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_of_nothing_does_not_exist() {
        assert_eq!(Cost::new(0), None);
        assert_eq!(Cost::new(7).map(Cost::get), Some(7));
    }
}
