//! Tokens as they are counted: whole millionths, so that sums are exact in any order.
//!
//! A bucket keeps fractions of its own ([`Tokens`]), because what flows into it
//! between two calls is rarely a whole millionth; here years of sums must not drift, and what is added
//! for a call must go when it does.
//!
//! One token stands for a tenth of a second of the backend's time, unless the config says
//! otherwise.

use core::iter::Sum;

use crate::limiter::Tokens;

const MICROS_PER_TOKEN: f64 = 1e6;
/// Millionths of a token, and nanoseconds of a second.
const MICROS_NANOS: u128 = 1_000_000 * 1_000_000_000;

/// A number of tokens that is never negative, in millionths of a token: the scale of all sums, such as
/// usage, what waits for a limit, and turns. The other scale is [`Tokens`].
///
/// Arithmetic saturates: below at nothing, above at 18 trillion tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenCount(u64);

impl TokenCount {
    /// No tokens.
    pub const ZERO: Self = Self(0);
    /// One token, the cost of a call unless it has another.
    pub const ONE: Self = Self(1_000_000);
    /// The most that can be counted.
    pub const MAX: Self = Self(u64::MAX);

    /// `tokens`, rounded to millionths; `None` if that is not a number from 0 up.
    #[must_use]
    pub fn new(tokens: f64) -> Option<Self> {
        if !tokens.is_finite() || tokens < 0.0 {
            return None;
        }
        // A conversion to an integer saturates.
        Some(Self((tokens * MICROS_PER_TOKEN + 0.5) as u64))
    }

    /// What a call of this cost counts for, rounded up.
    #[must_use]
    pub fn at_least(tokens: Tokens) -> Self {
        // Rounded up by hand: the core library has no ceil. At most 2^40, so all of it is exact.
        let exact = tokens.get() * MICROS_PER_TOKEN;
        let micros = exact as u64;
        Self(micros + u64::from((micros as f64) < exact))
    }

    /// `micros` millionths of a token.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// In millionths of a token.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// In tokens; exact up to nine billion.
    #[must_use]
    pub fn tokens(self) -> f64 {
        self.0 as f64 / MICROS_PER_TOKEN
    }

    /// So many whole tokens in this time, as a rate: what that is a second.
    pub(crate) fn a_second(tokens: u64, nanos: u128) -> Self {
        let micros = u128::from(tokens) * MICROS_NANOS / nanos.max(1);
        Self(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// As a rate, this much a second: how many whole tokens that is in this time.
    pub(crate) fn whole_in(self, nanos: u128) -> u64 {
        let tokens = u128::from(self.0).saturating_mul(nanos) / MICROS_NANOS;
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// Both together.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Half of each.
    pub(crate) const fn mean(self, other: Self) -> Self {
        Self(self.0 / 2 + other.0 / 2)
    }

    /// What is left without `other`; nothing if that is more.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sum for TokenCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::ZERO, Self::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_from_nothing_up_are_counts() {
        for wrong in [-1.0, -1e-300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(TokenCount::new(wrong), None, "{wrong}");
        }
        assert_eq!(TokenCount::new(-0.0), Some(TokenCount::ZERO));
        assert_eq!(TokenCount::new(1.0), Some(TokenCount::ONE));
        assert_eq!(TokenCount::new(f64::MAX), Some(TokenCount::MAX));
        assert_eq!(TokenCount::new(2.5).map(TokenCount::tokens), Some(2.5));
    }

    #[test]
    fn a_cost_counts_for_no_less_than_it_is() {
        let count = |tokens| TokenCount::at_least(Tokens::new(tokens).expect("tokens")).micros();
        assert_eq!(
            (count(0.0), count(1.0), count(1e6)),
            (0, 1_000_000, 1_000_000_000_000)
        );
        assert_eq!((count(1e-9), count(1.0 + 1e-9)), (1, 1_000_001));
        // A number of millionths is that number, however it was written.
        for micros in (0..2_000_000).step_by(7) {
            let tokens = micros as f64 / MICROS_PER_TOKEN;
            assert!(count(tokens) - micros <= 1, "{micros}");
        }
    }

    #[test]
    fn counts_stop_at_their_ends() {
        let (none, one, most) = (TokenCount::ZERO, TokenCount::ONE, TokenCount::MAX);
        assert_eq!(none.saturating_sub(one), none);
        assert_eq!(most.saturating_add(one), most);
        assert_eq!([most, one].into_iter().sum::<TokenCount>(), most);
    }
}
