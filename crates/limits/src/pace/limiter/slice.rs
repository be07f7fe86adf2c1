//! A worker's own part of a limiter.

use super::error::AcquireError;
use super::handle::PacedLimiter;
use crate::clock::Clock;

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

impl<'a, C: Clock> Slice<'a, C> {
    fn new(limiter: &'a PacedLimiter<C>) -> Self {
        limiter.shared.slice_made();
        Self { limiter, held: 0 }
    }

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

impl<C: Clock> PacedLimiter<C> {
    /// A part of the limiter for one worker. Use slices when several workers together need more than some
    /// millions of operations per second.
    #[must_use]
    pub fn slice(&self) -> Slice<'_, C> {
        Slice::new(self)
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
