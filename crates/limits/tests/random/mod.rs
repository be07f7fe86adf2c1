//! Random numbers for tests, the same for the same seed on every machine.

// Every binary of tests draws in its own ways.
#![allow(dead_code, unused_imports)]

mod seeds;

pub(crate) use seeds::{Seeds, any_seed, at_least, seeds, the_seed};

/// SplitMix64: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators",
/// OOPSLA 2014.
pub(crate) struct Random(u64);

impl Random {
    /// Random numbers from this seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// At least 0, below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// From `first` to `last`, both included.
    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// At least `low`, below `high`.
    pub(crate) fn real(&mut self, low: f64, high: f64) -> f64 {
        low + self.next() as f64 / 2f64.powi(64) * (high - low)
    }

    /// A time of this span.
    pub(crate) fn within(
        &mut self,
        span: core::ops::Range<core::time::Duration>,
    ) -> core::time::Duration {
        let nanos = (span.end - span.start).as_nanos() as u64;
        span.start + core::time::Duration::from_nanos(self.below(nanos.max(1)))
    }

    /// Picks an item, each as likely as any other.
    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len() as u64) as usize]
    }
}
