//! A capacity, shared by many holders that each have a lease on a part of it.
//!
//! A holder sends what it wants, gets a [`Lease`] on a part of it, and asks again before the
//! lease expires. [`Split`] decides the share of each holder, as a pure function of all demands.
//! [`Book`] keeps the leases, and grants each request its share, as far as others do not hold it
//! yet. An excess is never taken from a holder: it gets less at its next request, and later
//! requests find the rest free.
//!
//! For the splits that share ([`Split::shares`]), the leases never add up to more than the
//! capacity, for any requests in any order. The exceptions are leases that were learned
//! ([`Book::learn`]) or granted before the capacity was lowered. Then no holder gets more until
//! the sum fits again. No lease is ever larger than the demand, except a learned one. Nothing is
//! ever negative or not a number, because no [`Capacity`] is.
//!
//! The terms and the wire format are those of Doorman (the design document of 2016 and
//! youtube/doorman); fair shares are max-min fair as in D. Bertsekas and R. Gallager, "Data
//! Networks", 2nd edition, 1992, section 6.5.2, with weights.

mod demand;
mod due;
mod held;
mod outgoing;
mod rows;
mod share;
mod sums;

use core::num::NonZeroU64;
use core::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::bucket::OutOfRange;

pub use held::{Book, HeldLease};
pub use rows::Rows;

/// An amount of what is shared, such as calls per second: a number from 0 to 10^18.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Capacity(f64);

impl Capacity {
    /// A capacity of zero.
    pub const ZERO: Self = Self(0.0);
    /// The largest value. Sums over all possible holders are still exact enough to compare, and far
    /// from infinite.
    pub const MAX: Self = Self(1e18);

    /// Capacity of this amount. A larger value than [`Capacity::MAX`] counts as that, so any large number can mean
    /// "all you have".
    ///
    /// # Errors
    ///
    /// If it is negative, infinite or not a number.
    pub fn new(amount: f64) -> Result<Self, OutOfRange> {
        if amount.is_finite() && amount >= 0.0 {
            Ok(Self::saturating(amount))
        } else {
            Err(OutOfRange {
                what: "capacity",
                given: amount,
                min: 0.0,
                max: f64::MAX,
            })
        }
    }

    /// The result of a sum or a share, which rounding never makes negative.
    fn saturating(amount: f64) -> Self {
        Self(amount.clamp(0.0, Self::MAX.0))
    }

    /// How much.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// The smaller of two.
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        if other.0 < self.0 { other } else { self }
    }
}

/// The clients of one priority, and their demand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// A higher one is served first, if priorities count ([`Terms::by_priority`]).
    pub priority: i64,
    /// How many clients: the weight when shares are made. More than 2^32 - 1 count as that many.
    pub clients: NonZeroU64,
    /// The sum of their demand.
    pub wants: Capacity,
}

/// The request of a holder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HolderReport<'a> {
    /// The holder's demand: of a client in one band; of a server below, for its own clients, in one band for each
    /// priority. Bands of the same priority count as one.
    pub bands: &'a [Band],
    /// The capacity that the holder reports to have: that of the last lease that reached it and has not expired, or
    /// zero.
    pub has: Capacity,
}

/// A part of the capacity, until it expires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lease {
    /// How much.
    pub capacity: Capacity,
    /// The moment at which the lease expires.
    pub expires: Timestamp,
    /// How long the holder should wait before it asks again. Always shorter than the lease.
    pub refresh: Duration,
}

/// How the capacity is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// All get what they want, for any capacity.
    None,
    /// All get what they want, each up to the capacity: it is the capacity of each holder.
    Static,
    /// A holder that wants less than an equal share of the capacity for each client gets it. The
    /// rest is shared among the others in proportion to their demand beyond their equal shares.
    Proportional,
    /// Max-min fair: no holder can have more without less for another that already has no more for
    /// each client.
    Fair,
}

impl Split {
    /// Whether the capacity is one for all together, so that leases never add up to more.
    #[must_use]
    pub const fn shares(self) -> bool {
        matches!(self, Self::Proportional | Self::Fair)
    }
}

/// The terms of a resource's leases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// The capacity to share.
    pub capacity: Capacity,
    /// How it is shared.
    pub split: Split,
    /// Whether bands of a higher priority are served first, and the others share the rest. Without
    /// it, a holder's bands count as one, and priorities have no effect. A split that does not
    /// share has no priorities.
    pub by_priority: bool,
    /// How long a lease lasts.
    pub lease: Duration,
    /// How long a holder should wait before it asks again.
    pub refresh: Duration,
    /// A lowered or ended share is free for others only this long after its holder confirmed it, or
    /// after the larger lease expired. For a holder that limits by a window, set this to the window
    /// and a guard, because calls of the last window still count. With zero, as in Doorman, a share
    /// is free as soon as the lower lease is granted.
    pub frees_after: Duration,
}

/// The holder of a lease. The user of the book numbers the holders from zero: a book has a row
/// for every number up to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub u32);
