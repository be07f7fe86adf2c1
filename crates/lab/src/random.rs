//! Random numbers that are the same everywhere and in every release, so that a seed in a scenario
//! file keeps its meaning.

use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): a
/// counter and a mixer. More than enough to spread arrivals.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// Stream `stream` of a seed. Each purpose has its own stream, so a change of the limits does
    /// not change the arrivals.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut seeds = Self(seed);
        let first = seeds.next();
        let mut streams = Self(first ^ stream.wrapping_mul(GOLDEN));
        Self(streams.next())
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number in `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A whole number below another one that is not 0. The bias is below one in 2^32 for the small
    /// numbers used here.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// A time between the two, both included. Equal times cost no draw.
    pub(crate) fn between(&mut self, (min, max): (Duration, Duration)) -> Duration {
        if min == max {
            return min;
        }
        min + (max - min).mul_f64(self.unit())
    }

    /// The time to the next of events that happen `per_second` times a second, at random.
    pub(crate) fn gap(&mut self, per_second: f64) -> Duration {
        // 1 - unit is above zero, so its logarithm is finite.
        Duration::from_secs_f64(-(1.0 - self.unit()).ln() / per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_match_the_published_algorithm() {
        let mut random = Random(1_234_567);
        let drawn: Vec<_> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn streams_of_one_seed_differ() {
        let draw = |seed, stream| Random::new(seed, stream).next();
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }

    #[test]
    fn gaps_have_the_requested_mean() {
        let mut random = Random::new(1, 0);
        let total: Duration = (0..100_000).map(|_| random.gap(50.0)).sum();
        assert!(
            (1_960.0..2_040.0).contains(&total.as_secs_f64()),
            "{total:?}"
        );
    }
}
