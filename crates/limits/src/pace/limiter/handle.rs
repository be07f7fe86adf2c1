//! The limiter as its callers see it, and the part of it that one worker holds.

use core::num::NonZeroUsize;

use super::error::AcquireError;
use super::shared::{PacedLimiterNow, SharedPacer};
use crate::clock::{Clock, MonotonicClock};
use crate::pace::pacer::{ApplyError, Pacer};
use crate::pace::rule::Pace;
use crate::pace::spec::PaceSpec;
use crate::time::Timestamp;

/// A paced limiter that threads and tasks share.
///
/// ```
/// # use tidegate_limits::pace::{AcquireError, BurstRatio, Pace, PacedLimiter, Rate};
/// let limiter = PacedLimiter::new(Pace::new(Rate::new(1000.0)?, BurstRatio::default()));
/// assert_eq!(limiter.try_acquire(1), Ok(()));
/// // The error contains the moment from which on another attempt makes sense.
/// assert!(matches!(limiter.try_acquire(1), Err(AcquireError::NotNow(_))));
/// assert_eq!(limiter.acquire_blocking(1), Ok(()));
/// # Ok::<(), tidegate_limits::bucket::OutOfRange>(())
/// ```
#[derive(Debug)]
pub struct PacedLimiter<C: Clock = MonotonicClock> {
    pub(super) shared: SharedPacer,
    pub(super) clock: C,
}

impl PacedLimiter {
    /// The default capacity of the queue.
    pub const WAITING_MAX: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

    /// A running limiter, in which one operation is available.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Self::with_clock(pace, MonotonicClock::new())
    }
}

impl<C: Clock> PacedLimiter<C> {
    /// A limiter with another clock.
    #[must_use]
    pub fn with_clock(pace: Pace, clock: C) -> Self {
        Self::with_waiting_max(pace, clock, PacedLimiter::WAITING_MAX)
    }

    /// A limiter with another capacity of the queue.
    #[must_use]
    pub fn with_waiting_max(pace: Pace, clock: C, waiting_max: NonZeroUsize) -> Self {
        let shared = SharedPacer::new(pace, waiting_max.get(), clock.now());
        Self { shared, clock }
    }

    /// Takes `n` operations if they are available and the queue is empty.
    ///
    /// From 1,000,000 operations per second on, the pool is refilled once per microsecond, so an attempt
    /// can be refused up to that much too long.
    ///
    /// # Errors
    ///
    /// [`AcquireError::NotNow`] contains the moment, by the limiter's [`clock`](Self::clock), before which
    /// another attempt fails too. It is found without a lock from the highest possible inflow. While late
    /// callers catch up it can be too early, by the part of the ratio above 1. An attempt at that moment is
    /// granted, or returns the exact moment behind the whole queue, as [`acquire_at`](Self::acquire_at)
    /// does. Other errors if `n` is 0 or above the largest operation. On an error, nothing is taken.
    #[inline]
    pub fn try_acquire(&self, n: u32) -> Result<(), AcquireError> {
        let cost = self.shared.cost(n)?;
        if self.shared.claim(cost) {
            return Ok(());
        }
        self.try_acquire_slowly(n, cost)
    }

    #[inline(never)]
    fn try_acquire_slowly(&self, n: u32, cost: i64) -> Result<(), AcquireError> {
        let now = self.clock.now();
        self.shared.not_surely_in_vain(cost, now)?;
        Ok(self.shared.fill_and_claim(n, 0, now)?)
    }

    /// The first moment, by the limiter's [`clock`](Self::clock), at which `n` operations are available
    /// behind the present queue, if no other call arrives or gives up. Takes nothing and does not wait.
    /// Try again at that moment. [`Timestamp::MAX`] while the limiter is stopped.
    ///
    /// # Errors
    ///
    /// If `n` is 0 or above the largest operation.
    pub fn acquire_at(&self, n: u32) -> Result<Timestamp, AcquireError> {
        self.shared.cost(n)?;
        Ok(self.shared.available_at(n, self.clock.now()))
    }

    /// Changes the limit while it is in use. Time is kept in the pools that contain it. Waiting calls
    /// that need more than the new largest operation fail with [`AcquireError::TooMany`]: if they were
    /// granted, the limiter would be closed for all others until their debt is repaid.
    pub fn set_pace(&self, pace: Pace) {
        self.change(|pacer, now| pacer.set_pace(now, pace));
    }

    /// Applies a specification: its numbers and its verb. Its scope is for the code that creates
    /// limiters.
    ///
    /// # Errors
    ///
    /// If the verb is `start` and the limiter runs, or if its largest operation would take too long.
    pub fn apply(&self, spec: &PaceSpec) -> Result<(), ApplyError> {
        self.change(|pacer, now| pacer.apply(now, spec))
    }

    /// Stops the accrual of time. The contents of the pools remain available. Calls that need more wait
    /// until the next start.
    pub fn stop(&self) {
        self.change(Pacer::stop);
    }

    /// Starts again after a [`stop`](Self::stop), with one operation in the pools.
    ///
    /// # Errors
    ///
    /// If it runs.
    pub fn start(&self) -> Result<(), ApplyError> {
        self.change(Pacer::start)
    }

    /// Starts again, running or not, with one operation in the pools.
    pub fn restart(&self) {
        self.change(Pacer::restart);
    }

    fn change<R>(&self, change: impl FnOnce(&mut Pacer, Timestamp) -> R) -> R {
        let now = self.clock.now();
        self.shared.change(now, |pacer| change(pacer, now))
    }

    /// The state and the counters of the limiter, for metrics.
    #[must_use]
    pub fn look(&self) -> PacedLimiterNow {
        self.shared.look(self.clock.now())
    }

    /// A part of the limiter for one worker. Use slices when several workers together need more than some
    /// millions of operations per second.
    #[must_use]
    pub fn slice(&self) -> Slice<'_, C> {
        self.shared.slice_made();
        Slice {
            limiter: self,
            held: 0,
        }
    }

    /// The limiter's clock.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }
}

/// A worker's own part of a shared limiter, so that the claims of several workers rarely collide.
///
/// From 1,000,000 operations per second on, a slice takes up to 50 µs worth of them at once from the
/// shared pool, and at most its share of a quarter of the pool. Below that rate it takes each operation
/// individually. All slices together hold at most a quarter of a pool back from the others. In any span,
/// at most that much more is granted than the limiter's pools and pace allow. A dropped slice returns
/// what it holds.
///
/// While calls wait in the queue, a slice grants what it holds and takes no more.
///
/// ```
/// # use tidegate_limits::pace::{BurstRatio, Pace, PacedLimiter, Rate};
/// let limiter = PacedLimiter::new(Pace::new(Rate::new(5e6)?, BurstRatio::STRICT));
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| {
///             let mut slice = limiter.slice();
///             let granted = (0..1000).filter(|_| slice.try_acquire(1).is_ok()).count();
///             assert!(granted <= 1000);
///         });
///     }
/// });
/// # Ok::<(), tidegate_limits::bucket::OutOfRange>(())
/// ```
#[derive(Debug)]
pub struct Slice<'a, C: Clock> {
    limiter: &'a PacedLimiter<C>,
    /// In ticks.
    held: i64,
}

impl<C: Clock> Slice<'_, C> {
    /// Takes `n` operations if they may go now.
    ///
    /// # Errors
    ///
    /// As for [`PacedLimiter::try_acquire`].
    #[inline]
    pub fn try_acquire(&mut self, n: u32) -> Result<(), AcquireError> {
        let cost = self.limiter.shared.cost(n)?;
        if self.held >= cost {
            self.held -= cost;
            return Ok(());
        }
        self.take_more(n, cost)
    }

    #[cold]
    fn take_more(&mut self, n: u32, cost: i64) -> Result<(), AcquireError> {
        let shared = &self.limiter.shared;
        let lacking = cost - self.held;
        if let Some(claimed) = shared.claim_batch(lacking) {
            self.held = claimed - lacking;
            return Ok(());
        }
        let now = self.limiter.clock.now();
        shared.not_surely_in_vain(lacking, now)?;
        shared.fill_and_claim(n, self.held, now)?;
        self.held = 0;
        Ok(())
    }
}

impl<C: Clock> Drop for Slice<'_, C> {
    fn drop(&mut self) {
        self.limiter.shared.slice_dropped();
        if self.held > 0 {
            let now = self.limiter.clock.now();
            self.limiter.shared.give_back(self.held, now);
        }
    }
}
