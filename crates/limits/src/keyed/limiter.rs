//! Limiters that can be kept for very many keys.

use core::fmt;

use crate::bucket::{Burst, Fill, TokenBucket, TokenLimiter};
use crate::pace::{Pace, Pacer, Pools};
use crate::time::Timestamp;

/// A limiter that can be kept for each of very many keys: they share a rule, and only the state of
/// each is stored.
pub trait KeyedLimiter: TokenLimiter + Sized {
    /// The rule that all keys share.
    type Rule: Copy + fmt::Debug;
    /// The state that is kept for each key.
    type State: Copy + fmt::Debug;

    /// A limiter that rests.
    fn full(now: Timestamp, rule: Self::Rule) -> Self;

    /// A limiter in this state.
    fn from_state(rule: Self::Rule, state: Self::State) -> Self;

    /// The state that is stored beside the rule.
    fn state(&self) -> Self::State;

    /// Changes the rule; nothing is refunded.
    fn set_rule(&mut self, now: Timestamp, rule: Self::Rule);

    /// Whether it could do at least as much as a new one.
    fn rests(&self, now: Timestamp) -> bool;

    /// The first moment, not before `now`, at which it rests if nothing is taken before.
    fn rests_at(&self, now: Timestamp) -> Timestamp;
}

/// 16 bytes a key: the tokens, and the moment at which they were counted.
impl KeyedLimiter for TokenBucket {
    type Rule = (Burst, Fill);
    type State = (f64, Timestamp);

    fn full(now: Timestamp, (burst, fill): (Burst, Fill)) -> Self {
        Self::new(now, burst, fill)
    }

    fn from_state((burst, fill): (Burst, Fill), (tokens, since): (f64, Timestamp)) -> Self {
        Self::holding(since, burst, fill, tokens)
    }

    fn state(&self) -> (f64, Timestamp) {
        self.holds()
    }

    fn set_rule(&mut self, now: Timestamp, (burst, fill): (Burst, Fill)) {
        self.set_parameters(now, burst, fill);
    }

    fn rests(&self, now: Timestamp) -> bool {
        self.peek(now) >= self.burst().get()
    }

    fn rests_at(&self, now: Timestamp) -> Timestamp {
        self.reached_at(now, self.burst().get())
    }
}

/// 28 bytes of pools a key.
impl KeyedLimiter for Pacer {
    type Rule = Pace;
    type State = [u32; 7];

    fn full(now: Timestamp, pace: Pace) -> Self {
        Self::full(now, pace)
    }

    fn from_state(pace: Pace, words: [u32; 7]) -> Self {
        Self::from_pools(pace, Pools::from_words(words))
    }

    fn state(&self) -> [u32; 7] {
        self.pools().words()
    }

    fn set_rule(&mut self, now: Timestamp, pace: Pace) {
        self.set_pace(now, pace);
    }

    fn rests(&self, now: Timestamp) -> bool {
        self.level(now).active >= self.pace().sizes().active
    }

    fn rests_at(&self, now: Timestamp) -> Timestamp {
        self.reached_at(now, self.pace().sizes().active)
    }
}
