//! One capacity, shared by many who each hold a lease on a part of it.
//!
//! A holder says what it wants, gets a [`Lease`] on some of it, and asks again before the lease
//! runs out. [`Split`] says who ought to have how much, as a pure function of what all want;
//! [`Book`] keeps who holds what, and answers each who asks with what it ought to have, as far as
//! the others do not hold it yet. What a holder has too much is never taken from it: it gets
//! less when it asks the next time, and whoever asks after that finds it free.
//!
//! For the splits that share ([`Split::shares`]), what is held never adds up to more than the
//! capacity, whatever is asked in whatever order; but for what was learned ([`Book::learn`]) or
//! held before the capacity was lowered, and then nobody gets more until it does not. No lease
//! is ever on more than was wanted, but for one that was learned. Nothing is ever negative or
//! not a number, because no [`Capacity`] is.
//!
//! The words and the wire are those of Doorman (the design document of 2016 and
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

use tidegate_limits::{OutOfRange, Timestamp};

pub use held::{Book, Held};
pub use rows::Rows;

/// An amount of what is shared, such as calls per second: a number from 0 to 10^18.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Capacity(f64);

impl Capacity {
    /// Nothing.
    pub const ZERO: Self = Self(0.0);
    /// The most there is. Sums of as many as there can be holders are still exact enough to
    /// compare, and far from infinite.
    pub const MAX: Self = Self(1e18);

    /// So much. What is more than [`Capacity::MAX`] counts as that, so that "all you have" may be
    /// said with any large number.
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

    /// What a sum or a share came to, which no rounding makes negative.
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

/// What some clients of one priority want together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// The greater, the sooner served, where priorities count ([`Terms::by_priority`]).
    pub priority: i64,
    /// How many clients: the weight when shares are made. Beyond 2^32 - 1 they count as so many.
    pub clients: NonZeroU64,
    /// What they want together.
    pub wants: Capacity,
}

/// What a holder asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim<'a> {
    /// What it wants: a client in one band; a server of the level below, for its own clients, in
    /// one band for each priority. Bands of the same priority count as one.
    pub bands: &'a [Band],
    /// What it holds, by its own account: the capacity of the last lease that reached it and has
    /// not run out, zero if there is none.
    pub has: Capacity,
}

/// A part of the capacity, until it expires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lease {
    /// How much.
    pub capacity: Capacity,
    /// From this moment on it is no longer the holder's.
    pub expires: Timestamp,
    /// How long the holder should wait before it asks again. Always shorter than the lease.
    pub refresh: Duration,
}

/// Who ought to have how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// All get what they want, whatever the capacity.
    None,
    /// All get what they want, each up to the capacity: it is the capacity of each holder.
    Static,
    /// Whoever wants less than an equal share of the capacity for each client gets it. What
    /// these leave is shared among the others in proportion to what they want beyond theirs.
    Proportional,
    /// Max-min fair: nobody could have more without somebody having less who has no more for each
    /// client already.
    Fair,
}

impl Split {
    /// Whether the capacity is one for all together, so that leases never add up to more.
    #[must_use]
    pub const fn shares(self) -> bool {
        matches!(self, Self::Proportional | Self::Fair)
    }
}

/// What a resource is leased by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// What there is to share.
    pub capacity: Capacity,
    /// How it is shared.
    pub split: Split,
    /// Whether bands of a greater priority are served first, and the others share what those leave.
    /// Without it, a holder's bands count as one, and priorities mean nothing. A split that does
    /// not share knows no priorities.
    pub by_priority: bool,
    /// How long a lease lasts.
    pub lease: Duration,
    /// How long a holder should wait before it asks again.
    pub refresh: Duration,
    /// A share that was lowered or ended is free for others only this long after its holder
    /// confirmed that it knows, or after the greater lease expired. A holder that limits by a window
    /// has used what it had during the window that is just past: there this is the window and a
    /// guard. Zero, as with Doorman: a share is free as soon as the lower lease is given.
    pub frees_after: Duration,
}

/// Who holds a lease. Whoever keeps the book gives each holder a number of its own, from zero on:
/// a book has a row for every number up to the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub u32);
