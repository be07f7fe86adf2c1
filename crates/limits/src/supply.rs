//! What a limit may give out, set from outside.

use crate::time::Timestamp;

/// The source of a [`Supply`]. Each source has its own supply, and the lowest one counts: none can raise
/// what another one lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Supplier {
    /// A health check of the backend behind the limit.
    Health,
    /// A coordinator that divides one capacity among several processes.
    Coordinator,
}

impl Supplier {
    /// All sources.
    pub const ALL: [Self; 2] = [Self::Health, Self::Coordinator];
}

/// What a limit may give out, set from outside: an amount `A`, which is the maximum of a limit or the rate
/// of a bucket.
///
/// A supply only lowers what the rule allows. The rule is what this backend can take from this process,
/// whatever is available elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supply<A = u32> {
    /// What the rule allows.
    #[default]
    Configured,
    /// At most this amount, until the next supply.
    Capacity {
        /// The amount. 0 closes a limit.
        capacity: A,
        /// When `then` replaces it; `None` for never.
        expires_at: Option<Timestamp>,
        /// The amount from `expires_at` on.
        then: A,
    },
}

impl<A: Copy> Supply<A> {
    /// `capacity` until the next supply. 0 closes the limit.
    #[must_use]
    pub const fn capacity(capacity: A) -> Self {
        Self::Capacity {
            capacity,
            expires_at: None,
            then: capacity,
        }
    }

    /// `capacity` until `expires_at`, and `then` from that moment on.
    #[must_use]
    pub const fn until(capacity: A, expires_at: Timestamp, then: A) -> Self {
        Self::Capacity {
            capacity,
            expires_at: Some(expires_at),
            then,
        }
    }

    /// The amount at `now`; `None` for what the rule allows.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Option<A> {
        match self {
            Self::Configured => None,
            Self::Capacity {
                expires_at: Some(end),
                then,
                ..
            } if now >= end => Some(then),
            Self::Capacity { capacity, .. } => Some(capacity),
        }
    }

    pub(crate) const fn expires_at(self) -> Option<Timestamp> {
        match self {
            Self::Configured => None,
            Self::Capacity { expires_at, .. } => expires_at,
        }
    }
}
