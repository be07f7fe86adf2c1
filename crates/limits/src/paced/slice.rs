//! A worker's own part of a limiter.

use super::clock::Clock;
use super::{AcquireError, PacedLimiter};

/// A worker's own part of a shared limiter: claims of several workers do not meet.
///
/// From 1,000,000 operations a second on it takes up to 50 µs worth of them at once from what
/// they share, and no more than its share of a quarter of what is there; below that it takes
/// each by itself. So all slices together hold back at most a quarter of a pool from the others,
/// who may be refused for its sake, and in any span at most so much more goes than the limiter's
/// pools and its pace allow. What a slice holds when it is dropped goes back.
///
/// While anybody waits, a slice gives out what it holds, and takes no more.
///
/// ```
/// # use tidegate_limits::{BurstRatio, Pace, Rate};
/// # use tidegate_limits::paced::PacedLimiter;
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
/// # Ok::<(), tidegate_limits::OutOfRange>(())
/// ```
#[derive(Debug)]
pub struct Slice<'a, C: Clock> {
    limiter: &'a PacedLimiter<C>,
    /// In ticks.
    held: i64,
}

impl<'a, C: Clock> Slice<'a, C> {
    pub(super) fn new(limiter: &'a PacedLimiter<C>) -> Self {
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

impl<C: Clock> Drop for Slice<'_, C> {
    fn drop(&mut self) {
        self.limiter.shared.slice_dropped();
        if self.held > 0 {
            let now = self.limiter.clock.now();
            self.limiter.shared.give_back(self.held, now);
        }
    }
}
