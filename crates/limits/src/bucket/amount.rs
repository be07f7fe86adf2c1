//! Costs, bursts and rates in tokens.

use super::ranged;

ranged! {
    /// The cost of a call in tokens: a number from 0 to 1,000,000. By convention, one token is a tenth of a second
    /// of the backend's time.
    ///
    /// There are two scales. Costs, levels, bursts and rates are fractional tokens. Sums that must be
    /// exact in any order are whole millionths of a token: [`TokenCount`](crate::bucket::TokenCount).
    /// Quotas count whole tokens, and a call costs its tokens rounded up.
    Tokens, "tokens", 0.0 to 1_000_000.0, "tokens"
}

ranged! {
    /// The most tokens that a bucket holds: a number from 1e-6 to 1e9.
    Burst, "burst", 1e-6 to 1e9, "tokens"
}

ranged! {
    /// The rate at which a bucket fills, in tokens per second: a number from 1e-6 to 1e9.
    Fill, "fill", 1e-6 to 1e9, "tokens per second"
}

impl Tokens {
    /// A call that costs nothing. It passes any bucket that is not in debt.
    pub const ZERO: Self = Self::MIN;
    /// An ordinary call.
    pub const ONE: Self = Self(1.0);

    /// The cost in whole tokens, rounded up.
    #[must_use]
    pub fn whole(self) -> u64 {
        let whole = self.0 as u64;
        whole + u64::from((whole as f64) < self.0)
    }
}

impl Default for Tokens {
    fn default() -> Self {
        Self::ONE
    }
}
