//! The interface that a token bucket and a pacer share.

use core::time::Duration;

use super::Tokens;
use crate::time::Timestamp;
use crate::verdict::{NotNow, Verdict};

/// Admits calls as tokens flow in: a [`TokenBucket`](crate::TokenBucket) or a
/// [`Pacer`](crate::pace::Pacer).
///
/// Every moment is handed in. A clock that steps back adds nothing.
pub trait TokenLimiter {
    /// Tokens that can be taken at `now`; below zero in debt.
    fn peek(&self, now: Timestamp) -> f64;

    /// Whether a call of this cost may go now. Takes nothing.
    fn has(&self, now: Timestamp, cost: Tokens) -> bool;

    /// The first moment, not before `now`, at which a call of this cost may go, if nothing is taken
    /// before it. [`Timestamp::MAX`] if it may never.
    fn available_at(&self, now: Timestamp, cost: Tokens) -> Timestamp;

    /// When a call of this cost may go at the earliest, behind others that take `ahead` tokens.
    fn wait_behind(&self, now: Timestamp, ahead: f64, cost: Tokens) -> Duration;

    /// Takes `tokens` more for a call that costs `whole` in all, even if that leaves a debt.
    /// Returns the number taken: less than `tokens` at the largest debt.
    fn take_more(&mut self, now: Timestamp, tokens: f64, whole: f64) -> f64;

    /// Puts back what was drawn, or takes more where `tokens` is below zero.
    fn put_back(&mut self, now: Timestamp, tokens: f64);

    /// The verdict for a call of this cost. Takes nothing.
    #[inline]
    fn verdict(&self, now: Timestamp, cost: Tokens) -> Verdict {
        if self.has(now, cost) {
            Verdict::Ready
        } else {
            Verdict::NotBefore(self.available_at(now, cost))
        }
    }

    /// The verdict for a call of this cost behind others that take `ahead` tokens.
    fn verdict_behind(&self, now: Timestamp, ahead: f64, cost: Tokens) -> Verdict {
        if ahead > 0.0 {
            match self.wait_behind(now, ahead, cost) {
                Duration::ZERO => Verdict::Ready,
                wait => Verdict::NotBefore(now + wait),
            }
        } else {
            self.verdict(now, cost)
        }
    }

    /// The time until a call of this cost may go, if nothing else is taken: up to the first
    /// nanosecond at which [`has`](Self::has) is true.
    fn delay_until_available(&self, now: Timestamp, cost: Tokens) -> Duration {
        self.available_at(now, cost).since(now)
    }

    /// Takes the cost, even if that leaves a debt. Returns the number taken: the cost, if
    /// [`has`](Self::has) is true; less at the largest debt.
    #[inline]
    fn draw(&mut self, now: Timestamp, cost: Tokens) -> f64 {
        self.take_more(now, cost.get(), cost.get())
    }

    /// Takes the whole cost if the call may go now.
    ///
    /// # Errors
    ///
    /// When it may. Nothing is taken then.
    #[inline]
    fn try_take(&mut self, now: Timestamp, cost: Tokens) -> Result<(), NotNow> {
        if self.has(now, cost) {
            self.draw(now, cost);
            return Ok(());
        }
        self.verdict(now, cost).into()
    }
}
