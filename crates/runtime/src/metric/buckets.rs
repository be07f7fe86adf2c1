//! The buckets of histograms, which follow the times of the config.

use std::time::Duration;

/// The longest times that a config allows. The buckets of its histograms are finest there: an operator
/// asks how near to them the calls come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// How long a call may wait. It shapes each [`WaitHistogram`](super::WaitHistogram).
    pub wait: Duration,
    /// How long a backend may take. It shapes each [`ReplyHistogram`](super::ReplyHistogram).
    pub reply: Duration,
}

/// A minute and an hour.
impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(60),
            reply: Duration::from_secs(3600),
        }
    }
}

/// The first bound of the buckets: the answer of an idle backend.   microseconds
const FIRST_BUCKET: u64 = 1000;

/// The buckets end above this: calls may wait an hour whatever the threshold is.   microseconds
const LAST_BUCKET: u64 = 3_600_000_000;

/// The bounds around the longest time that is allowed, in hundredths of it.
const NEAR_LONGEST: [u64; 5] = [75, 100, 125, 150, 200];

/// Upper bounds of buckets in seconds: 1, 2 and 5 times each power of ten from a millisecond to an
/// hour or twice the longest time, the larger of the two. Around the longest time they are closer,
/// and it is a bound itself. There are at most 32.
#[must_use]
pub fn buckets(longest: Duration) -> Vec<f64> {
    let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX / 1000);
    let longest = longest.min(u64::MAX / 1000);
    let near: Vec<u64> = NEAR_LONGEST.iter().map(|of| longest * of / 100).collect();
    let (from, to) = (near[0], near[near.len() - 1]);
    // A bound just outside of those would add a series and no precision.
    let is_apart = |bound: &u64| bound * 11 < from * 10 || bound * 10 > to * 11;
    let end = LAST_BUCKET.max(to);
    let mut bounds: Vec<u64> = Vec::new();
    let mut decade = FIRST_BUCKET;
    while bounds.last().is_none_or(|&last| last < end) {
        bounds.extend([1, 2, 5].map(|of| of * decade));
        decade *= 10;
    }
    bounds.retain(is_apart);
    bounds.extend(near.into_iter().filter(|&bound| bound > 0));
    bounds.sort_unstable();
    bounds.dedup();
    // From whole numbers, so that each bound has a short form.
    bounds.into_iter().map(|it| it as f64 / 1e6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_is_a_bound_and_the_bounds_are_few_and_close() {
        let millis = [0, 1, 3, 40, 999, 1000, 7000, 10_000, 60_000, 86_400_000];
        for longest in millis.map(Duration::from_millis) {
            let bounds = buckets(longest);
            assert!(bounds.len() <= 32, "{longest:?}: {bounds:?}");
            assert!(bounds.is_sorted_by(|one, next| one < next), "{bounds:?}");
            assert!(longest.is_zero() || bounds.contains(&longest.as_secs_f64()));
            assert!(bounds[bounds.len() - 1] >= 3600.0, "{bounds:?}");
            for pair in bounds.windows(2) {
                assert!(pair[1] / pair[0] < 2.8, "{longest:?}: {pair:?}");
                let is_near = Duration::from_secs_f64(pair[1]) == longest;
                assert!(!is_near || pair[1] / pair[0] < 1.4, "{longest:?}: {pair:?}");
            }
        }
    }

    #[test]
    fn the_bounds_for_ten_seconds_have_short_forms() {
        let bounds: Vec<_> = buckets(Duration::from_secs(10))
            .iter()
            .map(f64::to_string)
            .collect();
        assert_eq!(
            bounds.join(" "),
            "0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 7.5 10 12.5 15 20 50 100 200 500 1000 2000 5000"
        );
    }

    #[test]
    fn a_time_without_an_end_is_no_overflow() {
        assert!(buckets(Duration::MAX).len() <= 64);
    }
}
