//! What all limiters have in common that let calls through as tokens come.

use core::time::Duration;

use super::Tokens;
use crate::time::Timestamp;
use crate::verdict::{NotNow, Verdict};

/// Lets calls through as tokens come: a [`TokenBucket`](crate::TokenBucket) or a
/// [`Pacer`](crate::Pacer) limiter.
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

    /// Takes `tokens` more for a call that costs `whole` in all, whatever is there. Returns what was
    /// taken: less than `tokens` where the debt is at its greatest.
    fn take_more(&mut self, now: Timestamp, tokens: f64, whole: f64) -> f64;

    /// Puts back what was drawn, or takes more where `tokens` is below zero.
    fn put_back(&mut self, now: Timestamp, tokens: f64);

    /// What the limiter would say to a call of this cost. Takes nothing.
    #[inline]
    fn verdict(&self, now: Timestamp, cost: Tokens) -> Verdict {
        if self.has(now, cost) {
            Verdict::Ready
        } else {
            Verdict::NotBefore(self.available_at(now, cost))
        }
    }

    /// The same, behind others that take `ahead` tokens.
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

    /// How long until a call of this cost may go, if nothing is taken before it: up to the first
    /// nanosecond at which [`has`](Self::has) says so.
    fn delay_until_available(&self, now: Timestamp, cost: Tokens) -> Duration {
        self.available_at(now, cost).since(now)
    }

    /// Takes the cost, whatever is there. Returns what was taken: the cost, if [`has`](Self::has) says
    /// that the call may go; less where the debt is at its greatest.
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
