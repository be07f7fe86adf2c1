//! The amount that a limit may give out, set from outside.

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
    /// An operator, for a while.
    Operator,
}

impl Supplier {
    /// All sources.
    pub const ALL: [Self; 3] = [Self::Health, Self::Coordinator, Self::Operator];
}

/// The amount that a limit may give out, set from outside: `A` is the maximum of a limit or the rate of a bucket.
///
/// A supply only lowers what the rule allows. The rule is what this backend can take from this process,
/// whatever is available elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supply<A = u32> {
    /// The amount that the rule allows.
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

/// The part of every limit that may be given out, while a backend warms up: thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SupplyShare(u16);

impl SupplyShare {
    /// All of it.
    pub const FULL: Self = Self(1000);

    /// At least one thousandth, and at most all of it.
    #[must_use]
    pub const fn of_thousandths(thousandths: u16) -> Self {
        Self(match thousandths {
            0 => 1,
            more if more > 1000 => 1000,
            some => some,
        })
    }

    /// The thousandths: 1 to 1000.
    #[must_use]
    pub const fn thousandths(self) -> u16 {
        self.0
    }

    /// The share of an amount, rounded down: at least 1, except of nothing.
    #[inline]
    pub(crate) const fn of(self, amount: u32) -> u32 {
        let part = (amount as u64 * self.0 as u64 / 1000) as u32;
        if part == 0 && amount > 0 { 1 } else { part }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_at_least_one_and_never_more_than_the_whole() {
        let tenth = SupplyShare::of_thousandths(100);
        for (amount, part) in [
            (0, 0),
            (1, 1),
            (9, 1),
            (10, 1),
            (29, 2),
            (30, 3),
            (u32::MAX, 429_496_729),
        ] {
            assert_eq!(tenth.of(amount), part, "{amount}");
            assert_eq!(SupplyShare::FULL.of(amount), amount);
        }
        assert_eq!(SupplyShare::of_thousandths(0).thousandths(), 1);
        assert_eq!(SupplyShare::of_thousandths(2000), SupplyShare::FULL);
    }
}
