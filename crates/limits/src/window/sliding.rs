//! A window that is used alone.

use core::time::Duration;

use super::{Window, WindowShape};
use crate::call::Cost;
use crate::time::Timestamp;
use crate::verdict::{NotNow, Verdict};

/// Admits at most `max` cost in any span of one length, wherever the span starts: exactly, without
/// buckets or averages.
///
/// It is the window of [`Scheduler`](crate::Scheduler) without a queue: a sliding window log. It remembers what went through
/// in the last window: 16 bytes for each moment, so for at most `max` of them. A try costs a search
/// among those.
///
/// Cost taken at `t` counts before `t + length`, and no longer at that moment. A clock that steps
/// back admits nothing more: cost counts as if it were taken at the latest moment so far.
///
/// ```
/// # use std::time::Duration;
/// # use tidegate_limits::{Cost, NotNow, SlidingWindow, Timestamp};
/// let at = |millis| Timestamp::ZERO + Duration::from_millis(millis);
/// let two = Cost::new(2).expect("not zero");
/// let mut window = SlidingWindow::new(3, Duration::from_secs(1));
/// assert_eq!(window.try_take(at(0), Cost::ONE), Ok(()));
/// assert_eq!(window.try_take(at(400), two), Ok(()));
/// // The first leaves the window after a second, the other two after 1.4 s.
/// assert_eq!(window.try_take(at(500), Cost::ONE), Err(NotNow::NotBefore(at(1000))));
/// assert_eq!(window.try_take(at(500), two), Err(NotNow::NotBefore(at(1400))));
/// assert_eq!(window.try_take(at(1000), Cost::ONE), Ok(()));
/// let four = Cost::new(4).expect("not zero");
/// assert_eq!(window.try_take(at(9000), four), Err(NotNow::Never));
/// ```
#[derive(Clone, Debug)]
pub struct SlidingWindow {
    max: u32,
    window: Window,
}

impl SlidingWindow {
    /// An empty window: at most `max` cost in any span of this length. Of no length, it only bounds
    /// the cost of a single try. One longer than 584 years is as long as that.
    #[must_use]
    pub fn new(max: u32, length: Duration) -> Self {
        Self {
            max,
            window: Window::new(length, Duration::ZERO, WindowShape::Sliding),
        }
    }

    /// The most cost in one window.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.max
    }

    /// How long what went through counts.
    #[must_use]
    pub const fn length(&self) -> Duration {
        self.window.length()
    }

    /// Changes the limit. Earlier cost continues to count, for the new length. Cost that has left
    /// the window does not come back.
    pub fn set(&mut self, max: u32, length: Duration) {
        self.max = max;
        self.window.set_length(length);
    }

    /// The cost that counts at `now`. May be above [`max`](Self::max) after that was lowered.
    #[must_use]
    pub fn used(&self, now: Timestamp) -> u64 {
        self.window.used(now)
    }

    /// The verdict for this cost. Takes nothing.
    #[must_use]
    pub fn verdict(&self, now: Timestamp, cost: Cost) -> Verdict {
        if cost.get() > self.max {
            return Verdict::Never;
        }
        self.window.peek(now, cost, self.max)
    }

    /// Takes this cost if it fits into the window that ends at `now`.
    ///
    /// # Errors
    ///
    /// The first nanosecond at which it fits if nothing else goes through before:
    /// [`NotNow::NotBefore`]. [`NotNow::Never`] if it costs more than `max`. Nothing is taken then.
    pub fn try_take(&mut self, now: Timestamp, cost: Cost) -> Result<(), NotNow> {
        let refused: Result<(), NotNow> = self.verdict(now, cost).into();
        refused?;
        self.window.stamp(now, cost);
        Ok(())
    }
}
