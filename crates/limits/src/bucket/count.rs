//! Tokens in whole millionths, so that sums are exact in any order.
//!
//! A bucket keeps fractional [`Tokens`], because the amount that flows in between two calls is rarely a
//! whole millionth. Sums over years must not drift, and what is added for a call must be subtracted exactly.

use core::iter::Sum;

use super::Tokens;

const MICROS_PER_TOKEN: f64 = 1e6;
/// Millionths of a token times nanoseconds of a second.
const MICROS_NANOS: u128 = 1_000_000 * 1_000_000_000;

/// A sum of tokens in millionths of a token, never negative: the scale of usage, of the tokens that calls
/// wait for, and of turns. The other scale is [`Tokens`].
///
/// Arithmetic saturates at zero and at 18 trillion tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenCount(u64);

impl TokenCount {
    /// No tokens.
    pub const ZERO: Self = Self(0);
    /// The default cost of a call: one token.
    pub const ONE: Self = Self(1_000_000);
    /// The largest sum.
    pub const MAX: Self = Self(u64::MAX);
    /// The least that a call takes of its caller's turns.
    const TURN_MIN: Self = Self(1000);

    /// `tokens`, rounded to millionths; `None` if it is negative or not finite.
    #[must_use]
    pub fn new(tokens: f64) -> Option<Self> {
        if !tokens.is_finite() || tokens < 0.0 {
            return None;
        }
        // A conversion to an integer saturates.
        Some(Self((tokens * MICROS_PER_TOKEN + 0.5) as u64))
    }

    /// A call's cost, rounded up.
    #[must_use]
    pub fn at_least(tokens: Tokens) -> Self {
        // The core library has no ceil. The number is at most 2^40, so all steps are exact.
        let exact = tokens.get() * MICROS_PER_TOKEN;
        let micros = exact as u64;
        Self(micros + u64::from((micros as f64) < exact))
    }

    /// How much of its caller's turns a call of this cost takes: at least a thousandth of a token, so that
    /// calls that cost nothing take turns, too.
    pub(crate) fn of_turn(tokens: Tokens) -> Self {
        Self::at_least(tokens).max(Self::TURN_MIN)
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

    /// The rate per second of a number of whole tokens in this time.
    pub(crate) fn a_second(tokens: u64, nanos: u128) -> Self {
        let micros = u128::from(tokens) * MICROS_NANOS / nanos.max(1);
        Self(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// The whole tokens in this time at this rate per second.
    pub(crate) fn whole_in(self, nanos: u128) -> u64 {
        let tokens = u128::from(self.0).saturating_mul(nanos) / MICROS_NANOS;
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// The sum.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The mean of two sums.
    pub(crate) const fn mean(self, other: Self) -> Self {
        Self(self.0 / 2 + other.0 / 2)
    }

    /// The difference; zero if `other` is larger.
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
    fn only_finite_numbers_from_zero_up_are_counts() {
        for wrong in [-1.0, -1e-300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(TokenCount::new(wrong), None, "{wrong}");
        }
        assert_eq!(TokenCount::new(-0.0), Some(TokenCount::ZERO));
        assert_eq!(TokenCount::new(1.0), Some(TokenCount::ONE));
        assert_eq!(TokenCount::new(f64::MAX), Some(TokenCount::MAX));
        assert_eq!(TokenCount::new(2.5).map(TokenCount::tokens), Some(2.5));
    }

    #[test]
    fn a_cost_is_rounded_up() {
        let count = |tokens| TokenCount::at_least(Tokens::new(tokens).expect("tokens")).micros();
        assert_eq!(
            (count(0.0), count(1.0), count(1e6)),
            (0, 1_000_000, 1_000_000_000_000)
        );
        assert_eq!((count(1e-9), count(1.0 + 1e-9)), (1, 1_000_001));
        // Whole millionths are exact.
        for micros in (0..2_000_000).step_by(7) {
            let tokens = micros as f64 / MICROS_PER_TOKEN;
            assert!(count(tokens) - micros <= 1, "{micros}");
        }
    }

    #[test]
    fn sums_saturate() {
        let (none, one, most) = (TokenCount::ZERO, TokenCount::ONE, TokenCount::MAX);
        assert_eq!(none.saturating_sub(one), none);
        assert_eq!(most.saturating_add(one), most);
        assert_eq!([most, one].into_iter().sum::<TokenCount>(), most);
    }
}
