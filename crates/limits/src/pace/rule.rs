//! The rule: how fast, and how much faster for late callers.

use core::time::Duration;

use super::pools::{PoolLevel, Sizes, TICKS_PER_NANO, span, ticks};
use crate::bucket::{DEBT_MAX_BURSTS, OutOfRange, Tokens, in_range, ranged};
use crate::call::Cost;

ranged! {
    /// Operations per second: a number from 1e-7 (one in 116 days) to 1e9.
    Rate, "rate", 1e-7 to 1e9, "operations per second"
}

ranged! {
    /// How many times the rate a late caller gets while it catches up: a number from 1 to 100.
    BurstRatio, "burst ratio", 1.0 to 100.0, "multiples of the rate"
}

impl Rate {
    /// The time between two operations on schedule, rounded to nanoseconds.
    #[must_use]
    pub fn interval(self) -> Duration {
        Duration::from_nanos((1e9 / self.0 + 0.5) as u64)
    }

    /// The cost of an operation, in ticks. The resulting rate is wrong by less than 1e-5 at the fastest rate, and
    /// by less than 4e-7 up to 50,000,000 per second.
    fn price(self) -> i128 {
        (TICKS_PER_NANO as f64 * 1e9 / self.0 + 0.5) as i128
    }
}

impl BurstRatio {
    /// No caller ever catches up: never more than the rate and one pool.
    pub const STRICT: Self = Self::MIN;
}

/// A tenth above the rate.
impl Default for BurstRatio {
    fn default() -> Self {
        Self(1.1)
    }
}

/// A paced limit as configured: a rate, a burst ratio, the most expensive operation, and the
/// minimum size of the active pool.
///
/// The active pool contains the time of two of the most expensive operations, or of two of those
/// set by [`with_pool_for`](Self::with_pool_for). It contains at least one millisecond, or the time
/// set by [`with_pool_min`](Self::with_pool_min).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    rate: Rate,
    ratio: BurstRatio,
    largest: Cost,
    /// The active pool holds two of these, or two of the largest if this is not set.
    pool_for: Option<Tokens>,
    pool_min: Duration,
    price: i128,
    sizes: Sizes,
}

/// The active pool is no longer than this with its burst: 146 years.
const OVER_NANOS_MAX: f64 = (1_u64 << 62) as f64;

/// A debt is no longer than this: 292 years, as much as pools can hold.
const DEBT_TICKS_MAX: i128 = i64::MAX as i128 * TICKS_PER_NANO;

/// The most expensive operation of which an active pool can contain two.
fn largest_max(rate: Rate, ratio: BurstRatio) -> f64 {
    OVER_NANOS_MAX / (ratio.0 * 2e9 / rate.0)
}

/// The cost, or the largest possible one if that is less.
fn largest_up_to(cost: u32, rate: Rate, ratio: BurstRatio) -> Cost {
    let most = largest_max(rate, ratio) as u32;
    Cost::new(cost.min(most)).unwrap_or(Cost::ONE)
}

impl Pace {
    /// The default minimum of the active pool.
    pub const POOL_MIN: Duration = Duration::from_millis(1);
    /// The most that can be asked for as the least that an active pool holds.
    pub const POOL_MIN_MAX: Duration = Duration::from_secs(3600);

    /// Operations that cost 1 each, at this rate.
    #[must_use]
    pub fn new(rate: Rate, ratio: BurstRatio) -> Self {
        let pace = Self {
            rate,
            ratio,
            largest: Cost::ONE,
            pool_for: None,
            pool_min: Self::POOL_MIN,
            price: 0,
            sizes: Sizes { active: 0, over: 0 },
        };
        pace.sized()
            .expect("two operations of the slowest rate, a hundredfold, are 63 years")
    }

    /// With operations that cost up to `largest`.
    ///
    /// # Errors
    ///
    /// If two of them would take longer at this rate than 146 years divided by the ratio.
    pub fn with_largest(self, largest: Cost) -> Result<Self, OutOfRange> {
        Self { largest, ..self }.sized()
    }

    /// With operations that cost up to `costliest`, rounded up. If two of those would take too long
    /// at this rate, the limit is the most expensive operation of which two would not. An operation
    /// that costs more goes when the pool is full, and leaves a debt.
    #[must_use]
    pub fn with_room_for(self, costliest: Tokens) -> Self {
        let whole = costliest.get() as u32;
        let up = u32::from(f64::from(whole) < costliest.get());
        let wanted = whole.saturating_add(up).max(1);
        let largest = largest_up_to(wanted, self.rate, self.ratio);
        self.with_largest(largest)
            .expect("no more than the largest that there may be")
    }

    /// With an active pool for two operations of this cost, in place of two of the largest: what
    /// is cheap cannot go in a burst because something else is expensive. An operation that
    /// costs more than the pool holds goes when the pool is full. It leaves a debt, which is
    /// repaid before anything else goes.
    ///
    /// A [`PacedLimiter`](super::PacedLimiter) grants operations only from the pool, so it refuses
    /// operations that the pool cannot contain.
    #[must_use]
    pub fn with_pool_for(self, cheapest: Tokens) -> Self {
        let most = f64::from(self.largest.get());
        let cheapest = Tokens::new(cheapest.get().min(most)).expect("no more than a cost");
        let pool_for = Some(cheapest);
        Self { pool_for, ..self }
            .sized()
            .expect("the largest operation is as it was")
    }

    /// With an active pool of at least this time. If you wait on a timer that is late by t on
    /// average, use 2 t or more: time beyond the pool is granted only at the pace of the ratio.
    ///
    /// # Errors
    ///
    /// If it is not from 1 ms to an hour.
    pub fn with_pool_min(self, pool_min: Duration) -> Result<Self, OutOfRange> {
        let (min, max) = (Self::POOL_MIN, Self::POOL_MIN_MAX);
        let [given, min, max] = [pool_min, min, max].map(|span| span.as_secs_f64());
        in_range("pool seconds", given, min, max)?;
        Self { pool_min, ..self }.sized()
    }

    /// Computes the price and the sizes, which follow from the other fields.
    fn sized(self) -> Result<Self, OutOfRange> {
        let price = self.rate.price();
        let largest = self.largest.get();
        let largest_max = largest_max(self.rate, self.ratio);
        in_range("largest cost", f64::from(largest), 1.0, largest_max)?;
        let two = match self.pool_for {
            None => 2 * i128::from(largest) * price,
            // Rounded up: two that just fit must fit.
            Some(cost) => (2.0 * cost.get() * price as f64) as i128 + 1,
        };
        let active = two.max(ticks(self.pool_min));
        let over = ((active as f64 * self.ratio.0 + 0.5) as i128).max(active);
        let sizes = Sizes { active, over };
        Ok(Self {
            price,
            sizes,
            ..self
        })
    }

    /// Operations per second.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// How many times the rate a late caller is allowed.
    #[must_use]
    pub const fn ratio(&self) -> BurstRatio {
        self.ratio
    }

    /// The most expensive operation.
    #[must_use]
    pub const fn largest(&self) -> Cost {
        self.largest
    }

    /// The size of the active pool without its burst, as time.
    #[must_use]
    pub fn pool(&self) -> Duration {
        span(self.sizes.active)
    }

    /// The size of the burst pool, as time.
    #[must_use]
    pub fn burst_pool(&self) -> Duration {
        span(self.sizes.over - self.sizes.active)
    }

    /// Another rate and ratio for the same operations.
    ///
    /// # Errors
    ///
    /// As for [`with_largest`](Self::with_largest).
    pub fn at(self, rate: Rate, ratio: BurstRatio) -> Result<Self, OutOfRange> {
        Self {
            rate,
            ratio,
            ..self
        }
        .sized()
    }

    /// The most that can go at once after a silence, in operations of cost 1.
    #[must_use]
    pub fn burst(&self) -> f64 {
        self.operations(self.sizes.over)
    }

    /// The pace of a share of one capacity: this rate, without catching up, because another process
    /// may have used the time that this one left unused. If the largest operation would take too
    /// long at this rate, it is made smaller, so that any rate is kept.
    pub(crate) fn share(self, rate: Rate) -> Self {
        let ratio = BurstRatio::STRICT;
        let largest = largest_up_to(self.largest.get(), rate, ratio);
        Self { largest, ..self }
            .at(rate, ratio)
            .expect("no more than the largest that there may be")
    }

    pub(crate) const fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The greatest debt after an operation of this cost, in ticks: ten pools, ten times two of the
    /// largest operations where the pool is smaller than that, or all of the operation.
    pub(super) fn debt_max(&self, whole: i128) -> i128 {
        let two = 2 * i128::from(self.largest.get()) * self.price;
        let times = DEBT_MAX_BURSTS as i128;
        let most = self.sizes.active.max(two) * times;
        most.max(whole).min(DEBT_TICKS_MAX)
    }

    /// The cost of one operation, in ticks.
    pub(crate) const fn price(&self) -> i128 {
        self.price
    }

    /// A cost, in ticks.
    pub(super) fn ticks(&self, cost: Tokens) -> i128 {
        self.ticks_of(cost.get())
    }

    /// The cost of any number of operations, in ticks: exact where the number is whole. What is longer than the age
    /// of the universe is no longer than that, so that sums of a few never overflow.
    pub(super) fn ticks_of(&self, operations: f64) -> i128 {
        const TICKS_MAX: i128 = 1 << 100;
        let whole = operations as i64;
        let part = (operations - whole as f64) * self.price as f64;
        let half = if part < 0.0 { -0.5 } else { 0.5 };
        i128::from(whole)
            .saturating_mul(self.price)
            .saturating_add((part + half) as i128)
            .clamp(-TICKS_MAX, TICKS_MAX)
    }

    pub(super) fn operations(&self, ticks: i128) -> f64 {
        ticks as f64 / self.price() as f64
    }

    /// A level at which one operation may go at once, and nothing more.
    pub(super) const fn primed(&self) -> PoolLevel {
        PoolLevel {
            active: self.price(),
            waiting: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_has_room_for_two_of_the_most_expensive_that_fit() {
        let pace = |rate, ratio| {
            Pace::new(
                Rate::new(rate).expect("a rate"),
                BurstRatio::new(ratio).expect("a ratio"),
            )
        };
        let check = |pace: Pace, costliest, largest| {
            let costliest = Tokens::new(costliest).expect("tokens");
            let pace = pace.with_room_for(costliest);
            assert_eq!(pace.largest().get(), largest);
            let cost = costliest.get().min(f64::from(largest) - 1.0);
            assert!(pace.sizes.active as f64 >= 2.0 * cost * pace.price as f64);
        };
        check(pace(10.0, 1.1), 0.0, 1);
        check(pace(10.0, 1.1), 1.0, 1);
        check(pace(10.0, 1.1), 1.25, 2);
        check(pace(10.0, 1.1), 600.0, 600);
        check(pace(1e9, 1.0), 1e6, 1_000_000);
        // A million of them would take 317,000 years.
        check(pace(1e-7, 100.0), 1e6, 2);
        check(pace(1e-7, 1.0), 1e6, 230);
    }

    #[test]
    fn the_pool_is_made_larger_for_two_of_the_cheapest() {
        let tokens = |tokens| Tokens::new(tokens).expect("tokens");
        let rate = Rate::new(10.0).expect("a rate");
        let pace = Pace::new(rate, BurstRatio::new(1.1).expect("a ratio"));
        let pace = pace.with_room_for(tokens(40.0)).with_pool_for(tokens(2.5));
        assert_eq!(pace.sizes.active, 5 * pace.price + 1);
        let ten_times_two = 800 * pace.price;
        assert_eq!(pace.debt_max(0), ten_times_two, "of the largest");
        assert_eq!(pace.debt_max(2 * ten_times_two), 2 * ten_times_two);
    }
}
