//! The state of a paced limit, as a pure function of the time passed in.
//!
//! The model is the hybrid rate limiter of nosqlbench (design document of 2018: "active pool", "burst
//! pool", "waiting pool", "wait time"). There, a thread fills the pools a thousand times per second. Here,
//! no thread does. The pools hold a level and a moment, and a later level is computed on demand by the
//! same step from the same numbers. The result is that of a filler that runs at these moments:
//!
//! - A fill happens when something is taken or changed, and at the earlier moment at which the active
//!   pool reached its regular size. A filler that fires at the same moments has bit-identical pools.
//! - More fills in between would change only rounding, so this is the limit of ever faster fillers.
//!   A slow filler admits burst for a whole round at once, and slightly more or less each time demand
//!   starts and stops. Until demand pauses, it stays within one burst pool and one round of this one.
//!   Over many pauses it drifts, as slow fillers drift from one another.
//! - A late filler loses time. This one does not, and no caller waits for a next round.
//!
//! Reading changes nothing, so the frequency of reads does not matter.

use core::fmt;
use core::time::Duration;

use super::pools::{PoolLevel, Pools, Sizes, span, ticks};
use super::rule::Pace;
use super::spec::{PaceSpec, Verb};
use crate::bucket::{OutOfRange, TokenLimiter, Tokens};
use crate::time::{Timestamp, first_above, nanos};
use crate::verdict::Verdict;

/// Why a limiter was not started, or a [`PaceSpec`] not applied. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ApplyError {
    /// The limiter is to start, and runs already.
    AlreadyRunning,
    /// The largest operation of the limiter takes too long at that rate.
    OutOfRange(OutOfRange),
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadyRunning => "the limiter runs already; \"restart\" would begin anew",
            Self::OutOfRange(_) => "the limiter cannot apply the specification",
        })
    }
}

impl core::error::Error for ApplyError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::AlreadyRunning => None,
            Self::OutOfRange(cause) => Some(cause),
        }
    }
}

impl From<OutOfRange> for ApplyError {
    fn from(cause: OutOfRange) -> Self {
        Self::OutOfRange(cause)
    }
}

/// The pools of a paced limit, as time: what can be claimed, and how far behind demand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolsNow {
    /// Can be claimed at once without counting as burst.
    pub active: Duration,
    /// Available at once to callers behind schedule: the burst in use.
    pub burst: Duration,
    /// Time that no call claimed when it came. It becomes burst gradually.
    pub waiting: Duration,
    /// Time taken beyond what was available. It is repaid before anything else is granted.
    pub debt: Duration,
}

impl PoolsNow {
    /// How far behind schedule the demand is: all time that has passed and was not claimed.
    #[must_use]
    pub fn wait_time(&self) -> Duration {
        self.active
            .saturating_add(self.burst)
            .saturating_add(self.waiting)
            .saturating_sub(self.debt)
    }
}

/// Grants operations at a steady rate, and slightly more to late callers.
///
/// ```
/// # use std::time::Duration;
/// # use tidegate_limits::bucket::TokenLimiter;
/// # use tidegate_limits::pace::{BurstRatio, Pace, Pacer, Rate};
/// # use tidegate_limits::{NotNow, Timestamp, Tokens};
/// let pace = Pace::new(Rate::new(1000.0)?, BurstRatio::new(1.5)?);
/// let mut paced = Pacer::new(Timestamp::ZERO, pace);
/// // One operation may go at once, the next a millisecond later.
/// assert_eq!(paced.try_take(Timestamp::ZERO, Tokens::ONE), Ok(()));
/// let then = Timestamp::ZERO + Duration::from_millis(1);
/// assert_eq!(paced.try_take(Timestamp::ZERO, Tokens::ONE), Err(NotNow::NotBefore(then)));
/// // Two seconds late, three go at once, and more at 1500 a second.
/// let late = Timestamp::ZERO + Duration::from_secs(2);
/// for _ in 0..3 {
///     assert_eq!(paced.try_take(late, Tokens::ONE), Ok(()));
/// }
/// let wait = paced.delay_until_available(late, Tokens::ONE);
/// assert_eq!(wait, Duration::from_nanos(666_667));
/// # Ok::<(), tidegate_limits::bucket::OutOfRange>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pacer {
    pace: Pace,
    pools: Pools,
}

impl Pacer {
    /// A limiter that runs, in which one operation may go at once.
    #[must_use]
    pub fn new(now: Timestamp, pace: Pace) -> Self {
        let pools = Pools::running_from(now, pace.primed());
        Self { pace, pools }
    }

    /// A running limiter whose pool is full without its burst.
    #[cfg(feature = "std")]
    pub(crate) fn full(now: Timestamp, pace: Pace) -> Self {
        let level = PoolLevel {
            active: pace.sizes().active,
            waiting: 0,
        };
        let pools = Pools::running_from(now, level);
        Self { pace, pools }
    }

    /// A limiter with these pools, where many share one pace.
    #[must_use]
    pub const fn from_pools(pace: Pace, pools: Pools) -> Self {
        Self { pace, pools }
    }

    /// The state that is stored beside the pace.
    #[must_use]
    pub const fn pools(&self) -> Pools {
        self.pools
    }

    /// The limit.
    #[must_use]
    pub const fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The level at `now`; changes nothing.
    #[inline]
    pub(crate) fn level(&self, now: Timestamp) -> PoolLevel {
        self.level_after(self.pools.elapsed(now))
    }

    fn level_after(&self, elapsed: i128) -> PoolLevel {
        let level = self.pools.level();
        if elapsed == 0 {
            // A fill of nothing feeds no burst.
            return level;
        }
        let sizes = self.pace.sizes();
        let (level, passed) = level.filled_by_pools(elapsed, sizes);
        let elapsed = elapsed - passed;
        if elapsed == 0 {
            return level;
        }
        match self.full_after(level) {
            // From here on only the burst makes the active pool grow. One fill over both parts
            // would admit more than two fills in sequence.
            Some(full) if full < elapsed => level.filled(full, sizes).filled(elapsed - full, sizes),
            _ => level.filled(elapsed, sizes),
        }
    }

    /// How long after the last change the active pool reaches its regular size, in ticks; none
    /// if it was there already.
    fn full_after(&self, level: PoolLevel) -> Option<i128> {
        let lacking = self.pace.sizes().active - level.active;
        (lacking > 0).then(|| self.flow(lacking, level.waiting))
    }

    /// The fills that lead from the last change to `now`, each as the time it is for.
    #[cfg(test)]
    pub(super) fn fills(&self, now: Timestamp) -> alloc::vec::Vec<i128> {
        let elapsed = self.pools.elapsed(now);
        let sizes = self.pace.sizes();
        let (level, passed) = self.pools.level().filled_by_pools(elapsed, sizes);
        let whole = usize::try_from(passed / sizes.active).expect("a number of fills");
        let mut fills = alloc::vec![sizes.active; whole];
        match (elapsed - passed, self.full_after(level)) {
            (0, _) if whole > 0 => {}
            (left, Some(full)) if full < left => fills.extend([full, left - full]),
            (left, _) => fills.push(left),
        }
        fills
    }

    #[cfg(any(feature = "std", test))]
    pub(crate) fn set_level(&mut self, now: Timestamp, level: PoolLevel) {
        self.pools.set(now, level);
    }

    /// The level of the pools at `now`.
    #[must_use]
    pub fn peek_pools(&self, now: Timestamp) -> PoolsNow {
        pools_now(self.level(now), self.pace.sizes())
    }

    /// The time that the active pool must contain for an operation of this cost: a full pool, if
    /// the operation costs more.
    fn required(&self, cost: Tokens) -> i128 {
        self.pace.ticks(cost).min(self.pace.sizes().active)
    }

    /// The first moment, not before `now`, at which the active pool holds `wanted`, which must
    /// be no more than its regular size.
    pub(crate) fn reached_at(&self, now: Timestamp, wanted: i128) -> Timestamp {
        if self.level(now).active >= wanted {
            return now;
        }
        if !self.pools.is_running() {
            return Timestamp::MAX;
        }
        let since = self.pools.since();
        let has = |nanos: u64| {
            let level = self.level_after(ticks(Duration::from_nanos(nanos)));
            level.active >= wanted
        };
        let start = nanos(now.since(since));
        let guess = start.saturating_add(self.guess(wanted)).saturating_add(1);
        match first_above(start, guess, has) {
            Some(nanos) => since + Duration::from_nanos(nanos),
            None => Timestamp::MAX,
        }
    }

    /// About how many nanoseconds after the last change `wanted` is available, right except for
    /// rounding.
    fn guess(&self, wanted: i128) -> u64 {
        let level = self.pools.level();
        nanos(span(self.flow(wanted - level.active, level.waiting)))
    }

    /// How long it takes until this much has come into the active pool, in ticks: at the pace of
    /// the ratio while something waits, and at the rate from then on.
    fn flow(&self, lacking: i128, waiting: i128) -> i128 {
        let sizes = self.pace.sizes();
        let burst = (sizes.over - sizes.active) as f64 / sizes.over as f64;
        let from_waiting = ((lacking as f64 * burst) as i128).min(waiting);
        lacking - from_waiting
    }

    /// Takes up to the greatest debt of an operation that costs `whole` in all. Returns what was
    /// taken.
    pub(super) fn charge(
        &mut self,
        now: Timestamp,
        level: PoolLevel,
        ticks: i128,
        whole: i128,
    ) -> i128 {
        let debt_max = self.pace.debt_max(whole);
        let active = (level.active - ticks).max(-debt_max).min(level.active);
        self.pools.set(now, PoolLevel { active, ..level });
        level.active - active
    }

    /// Changes the limit in place. Time is kept, in the pools that it was in; what the active
    /// one no longer holds waits.
    pub fn set_pace(&mut self, now: Timestamp, pace: Pace) {
        if pace != self.pace {
            let level = self.level(now).within(pace.sizes());
            self.pace = pace;
            self.pools.set(now, level);
        }
    }

    /// Applies a specification: its numbers and its verb. The largest operation and the minimum
    /// size of the pool stay the same.
    ///
    /// # Errors
    ///
    /// If the verb is `start` and the limiter runs, or if its largest operation would take too
    /// long.
    pub fn apply(&mut self, now: Timestamp, spec: &PaceSpec) -> Result<(), ApplyError> {
        let pace = self.pace.at(spec.rate, spec.ratio)?;
        if spec.verb == Verb::Start && self.is_running() {
            return Err(ApplyError::AlreadyRunning);
        }
        self.set_pace(now, pace);
        match spec.verb {
            Verb::Configure => {}
            Verb::Start | Verb::Restart => self.restart(now),
            Verb::Stop => self.stop(now),
        }
        Ok(())
    }

    /// Forgets the time that nothing claimed when it came: nothing can catch up by it.
    pub(crate) fn forget_unclaimed(&mut self, now: Timestamp) {
        let level = self.level(now);
        let active = level.active.min(self.pace.sizes().active);
        self.pools.set(now, PoolLevel { active, waiting: 0 });
    }

    /// Restarts the accrual of time, with the present pools.
    pub(crate) fn resume(&mut self, now: Timestamp) {
        if !self.is_running() {
            self.pools.set(now, self.pools.level());
            self.pools.set_running(true);
        }
    }

    /// Stops the accrual of time. The contents of the pools remain available.
    pub fn stop(&mut self, now: Timestamp) {
        let level = self.level(now);
        self.pools.set(now, level);
        self.pools.set_running(false);
    }

    /// Starts again after a [`stop`](Self::stop), with one operation in the pools.
    ///
    /// # Errors
    ///
    /// If it runs.
    pub fn start(&mut self, now: Timestamp) -> Result<(), ApplyError> {
        if self.pools.is_running() {
            return Err(ApplyError::AlreadyRunning);
        }
        self.restart(now);
        Ok(())
    }

    /// Starts again, running or not, with one operation in the pools.
    pub fn restart(&mut self, now: Timestamp) {
        let level = self.pace.primed();
        // The clock may be behind what was stamped: no time accrues twice.
        self.pools = Pools::running_from(self.pools.since().max(now), level);
    }

    /// Whether time accrues.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        self.pools.is_running()
    }
}

/// Tokens are operations of cost 1.
///
/// An operation that costs more than the whole active pool may go when that is full, and what it took
/// beyond is a debt. To refuse it instead, compare its cost with [`Pace::largest`] first. A debt is at
/// most ten active pools, ten times two of the largest operations, or one cost, whichever is most. What
/// is put back and the active pool has no room for waits.
impl TokenLimiter for Pacer {
    fn peek(&self, now: Timestamp) -> f64 {
        self.pace.operations(self.level(now).active)
    }

    #[inline]
    fn has(&self, now: Timestamp, cost: Tokens) -> bool {
        self.level(now).active >= self.required(cost)
    }

    fn available_at(&self, now: Timestamp, cost: Tokens) -> Timestamp {
        self.reached_at(now, self.required(cost))
    }

    fn verdict(&self, now: Timestamp, cost: Tokens) -> Verdict {
        if self.has(now, cost) {
            Verdict::Ready
        } else if self.pools.is_running() {
            Verdict::NotBefore(self.available_at(now, cost))
        } else {
            Verdict::OnChange
        }
    }

    fn wait_behind(&self, now: Timestamp, ahead: f64, cost: Tokens) -> Duration {
        let level = self.level(now);
        let lacking = self.pace.ticks_of(ahead) + self.required(cost) - level.active;
        if lacking <= 0 {
            Duration::ZERO
        } else if self.pools.is_running() {
            span(self.flow(lacking, level.waiting)).saturating_add(Duration::from_nanos(1))
        } else {
            Timestamp::MAX.since(now)
        }
    }

    fn take_more(&mut self, now: Timestamp, operations: f64, whole: f64) -> f64 {
        let level = self.level(now);
        let (ticks, whole) = (self.pace.ticks_of(operations), self.pace.ticks_of(whole));
        let taken = self.charge(now, level, ticks, whole);
        self.pace.operations(taken)
    }

    fn put_back(&mut self, now: Timestamp, operations: f64) {
        let level = self.level(now);
        let ticks = self.pace.ticks_of(operations);
        if ticks < 0 {
            self.charge(now, level, -ticks, -ticks);
        } else {
            let level = level.with_back(ticks, self.pace.sizes());
            self.pools.set(now, level);
        }
    }
}

pub(crate) fn pools_now(level: PoolLevel, sizes: Sizes) -> PoolsNow {
    let regular = level.active.min(sizes.active);
    PoolsNow {
        active: span(regular),
        burst: span(level.active - regular),
        waiting: span(level.waiting),
        debt: span(-level.active),
    }
}
