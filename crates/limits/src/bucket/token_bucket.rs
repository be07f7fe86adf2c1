//! A bucket of tokens: a burst at once, and then a steady rate.
//!
//! It starts full and fills at a constant rate up to its burst. A call takes its cost in tokens,
//! which may be any part of one. A call that costs more than the whole bucket goes when the bucket is
//! full. What it takes beyond is a debt, repaid whole before another call takes anything. So in any
//! span the bucket gives no more than its burst, what flows in, and what the last call took beyond the
//! burst; and the call is served and does not wait for ever. After a call of cost `c` the bucket is
//! closed for (`c` - burst) / fill seconds at most.
//!
//! Only [`TokenLimiter::draw`], which takes tokens regardless of the level, could add up without a
//! bound. There, a debt is cut at the largest of three: [`DEBT_MAX_BURSTS`] times the burst, the
//! inflow of [`DEBT_MAX_FILL`], and the cost of the one call.
//!
//! The level is a number and a moment. A later level is computed from these two on demand, until
//! something is taken. So reading costs no accuracy, and the moment at which there is enough is the
//! first nanosecond at which a read shows it.
//!
//! The arithmetic is that of the token bucket in xen-api's `rate-limit` library without its
//! defects: there, a clock that steps back adds tokens, NaN and infinities are accepted and break
//! the level for ever, and a change of a parameter refunds the whole burst.

use core::time::Duration;

use super::{Burst, Fill, TokenLimiter, Tokens};
use crate::time::{Timestamp, first_above};

/// A debt of several calls is at most this many times the burst, or [`DEBT_MAX_FILL`] if that is more.
pub const DEBT_MAX_BURSTS: f64 = 10.0;

/// A debt of several calls is at most what flows in within this time, or [`DEBT_MAX_BURSTS`] if that is
/// more.
pub const DEBT_MAX_FILL: Duration = Duration::from_secs(3600);

const NANOS_PER_SECOND: f64 = 1e9;

/// Admits calls at a rate, with a burst at once.
///
/// ```
/// # use std::time::Duration;
/// # use tidegate_limits::bucket::TokenLimiter;
/// # use tidegate_limits::{Burst, Fill, NotNow, Timestamp, TokenBucket, Tokens};
/// let mut bucket = TokenBucket::new(Timestamp::ZERO, Burst::new(10.0)?, Fill::new(40.0)?);
/// assert_eq!(bucket.try_take(Timestamp::ZERO, Tokens::new(10.0)?), Ok(()));
/// let then = Timestamp::ZERO + Duration::from_millis(25);
/// assert_eq!(bucket.try_take(Timestamp::ZERO, Tokens::ONE), Err(NotNow::NotBefore(then)));
/// assert_eq!(bucket.try_take(then, Tokens::ONE), Ok(()));
/// # Ok::<(), tidegate_limits::bucket::OutOfRange>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    burst: Burst,
    fill: Fill,
    /// Tokens at `since`; below zero in debt.
    tokens: f64,
    since: Timestamp,
}

impl TokenBucket {
    /// A full bucket.
    #[must_use]
    pub const fn new(now: Timestamp, burst: Burst, fill: Fill) -> Self {
        Self {
            burst,
            fill,
            tokens: burst.get(),
            since: now,
        }
    }

    /// The most tokens that it holds.
    #[must_use]
    pub const fn burst(&self) -> Burst {
        self.burst
    }

    /// Tokens per second that flow in.
    #[must_use]
    pub const fn fill(&self) -> Fill {
        self.fill
    }

    /// Changes the parameters in place. Tokens and debt are kept, except for what is more than the
    /// new burst: a change refunds nothing.
    pub fn set_parameters(&mut self, now: Timestamp, burst: Burst, fill: Fill) {
        let tokens = self.peek(now);
        (self.burst, self.fill) = (burst, fill);
        self.set(now, tokens);
    }

    /// Lowers the level to what it would be if the bucket had held `tokens` at `since`. It never rises.
    pub(crate) fn lower(&mut self, now: Timestamp, tokens: f64, since: Timestamp) {
        let before = Self {
            tokens,
            since,
            ..self.clone()
        };
        self.set(now, self.peek(now).min(before.peek(now)));
    }

    /// A bucket that contained this number of tokens at `since`.
    #[cfg(feature = "std")]
    pub(crate) const fn holding(since: Timestamp, burst: Burst, fill: Fill, tokens: f64) -> Self {
        Self {
            burst,
            fill,
            tokens,
            since,
        }
    }

    /// How many tokens it held when something was taken or changed last, and when that was.
    #[cfg(feature = "std")]
    pub(crate) const fn holds(&self) -> (f64, Timestamp) {
        (self.tokens, self.since)
    }

    /// The level at which a call of this cost may go: a full bucket, if the call costs more.
    const fn required(&self, cost: Tokens) -> f64 {
        cost.get().min(self.burst.get())
    }

    /// The first moment, not before `now`, at which the bucket contains this number of tokens. The
    /// number is at most the burst, so counting the overflow here does no harm.
    pub(crate) fn reached_at(&self, now: Timestamp, level: f64) -> Timestamp {
        let reached = |nanos: u64| {
            let filled = nanos as f64 / NANOS_PER_SECOND * self.fill.get();
            self.tokens + filled >= level
        };
        let start = now.as_nanos().saturating_sub(self.since.as_nanos());
        if reached(start) {
            return now;
        }
        // Right except for rounding.
        let guess = ((level - self.tokens) / self.fill.get() * NANOS_PER_SECOND) as u64;
        match first_above(start, guess, reached) {
            Some(nanos) => self.since + Duration::from_nanos(nanos),
            None => Timestamp::MAX,
        }
    }

    fn set(&mut self, now: Timestamp, tokens: f64) {
        self.tokens = tokens.min(self.burst.get());
        self.since = self.since.max(now);
    }
}

impl TokenLimiter for TokenBucket {
    #[inline]
    fn peek(&self, now: Timestamp) -> f64 {
        let elapsed = now.as_nanos().saturating_sub(self.since.as_nanos());
        let filled = elapsed as f64 / NANOS_PER_SECOND * self.fill.get();
        (self.tokens + filled).min(self.burst.get())
    }

    #[inline]
    fn has(&self, now: Timestamp, cost: Tokens) -> bool {
        self.peek(now) >= self.required(cost)
    }

    fn available_at(&self, now: Timestamp, cost: Tokens) -> Timestamp {
        self.reached_at(now, self.required(cost))
    }

    fn wait_behind(&self, now: Timestamp, ahead: f64, cost: Tokens) -> Duration {
        // Earlier calls take tokens before they overflow.
        let lacking = ahead + self.required(cost) - self.peek(now);
        if lacking <= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_nanos(
            ((lacking / self.fill.get() * NANOS_PER_SECOND) as u64).saturating_add(1),
        )
    }

    fn take_more(&mut self, now: Timestamp, tokens: f64, whole: f64) -> f64 {
        let level = self.peek(now);
        let flows_in = self.fill.get() * DEBT_MAX_FILL.as_secs_f64();
        let debt_max = (DEBT_MAX_BURSTS * self.burst.get())
            .max(flows_in)
            .max(whole);
        self.set(now, (level - tokens).max(level.min(-debt_max)));
        level - self.tokens
    }

    fn put_back(&mut self, now: Timestamp, tokens: f64) {
        if tokens < 0.0 {
            self.take_more(now, -tokens, -tokens);
        } else {
            let level = self.peek(now);
            self.set(now, level + tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(burst: f64, fill: f64) -> TokenBucket {
        let burst = Burst::new(burst).expect("a burst");
        TokenBucket::new(Timestamp::ZERO, burst, Fill::new(fill).expect("a rate"))
    }

    fn tokens(number: f64) -> Tokens {
        Tokens::new(number).expect("tokens")
    }

    fn at(seconds: f64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn undoing_a_draw_leaves_no_trace() {
        let (mut drawn, mut untouched) = (bucket(10.0, 2.0), bucket(10.0, 2.0));
        for bucket in [&mut drawn, &mut untouched] {
            assert!(bucket.try_take(at(0.0), tokens(6.0)).is_ok());
        }
        let taken = drawn.draw(at(1.0), tokens(5.0));
        drawn.put_back(at(3.5), taken);
        assert_eq!(drawn.peek(at(3.5)), 10.0);
        assert_eq!(untouched.peek(at(3.5)), 10.0);
    }

    #[test]
    fn tokens_beyond_the_greatest_debt_are_not_put_back() {
        let mut bucket = bucket(1.0, 1e-6);
        bucket.draw(at(0.0), tokens(1.0));
        bucket.draw(at(0.0), tokens(9.0));
        let taken = bucket.draw(at(0.0), tokens(2.0));
        assert_eq!((taken, bucket.peek(at(0.0))), (1.0, -10.0));
        bucket.put_back(at(0.0), 10.0);
        bucket.put_back(at(0.0), taken);
        assert_eq!(bucket.peek(at(0.0)), 1.0);
    }

    #[test]
    fn the_moment_named_is_the_first_at_which_there_is_enough() {
        let rates = [1e-6, 0.3, 7.0, 1234.567, 1e9];
        for (burst, fill) in rates
            .into_iter()
            .flat_map(|fill| [(3.0, fill), (1e6, fill)])
        {
            for cost in [0.1, 1.0, 2.999, 700.0, 1e6] {
                let mut bucket = bucket(burst, fill);
                bucket.draw(at(12.345), tokens(burst.min(1e6)));
                let now = at(12.5);
                let moment = bucket.available_at(now, tokens(cost));
                if moment == Timestamp::MAX {
                    assert!(burst.min(cost) / fill > 5e11, "{bucket:?} {cost}");
                    continue;
                }
                assert!(bucket.has(moment, tokens(cost)), "{bucket:?} {cost}");
                if moment > now {
                    let before = Timestamp::from_nanos(moment.as_nanos() - 1);
                    assert!(!bucket.has(before, tokens(cost)), "{bucket:?} {cost}");
                }
            }
        }
    }

    #[test]
    fn a_call_behind_others_waits_for_their_tokens_too() {
        let mut bucket = bucket(10.0, 2.0);
        assert_eq!(
            bucket.wait_behind(at(0.0), 4.0, tokens(6.0)),
            Duration::ZERO
        );
        bucket.draw(at(0.0), tokens(10.0));
        let wait = bucket.wait_behind(at(0.0), 30.0, tokens(2.0));
        assert_eq!(wait, Duration::from_nanos(16_000_000_001));
    }
}
