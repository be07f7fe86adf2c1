//! How long calls waited, as a histogram of fixed size.
//!
//! Buckets are linear within each power of two: four to an octave, from 1 ms to 2^22 ms. A
//! quantile is reported as the middle of its bucket, so its error is at most an eighth of itself
//! and half a millisecond. Waits above 70 minutes count as 70 minutes.

use alloc::boxed::Box;
use core::time::Duration;

use super::halves::Half;

/// Buckets to an octave, and the waits in milliseconds that have buckets of their own.
const STEPS: u64 = 4;
const OCTAVES: u64 = 20;
const BUCKETS: usize = (STEPS + OCTAVES * STEPS) as usize;

/// Waits of delayed calls; allocated with the first.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitCounts(Option<Box<[u32; BUCKETS]>>);

impl WaitCounts {
    pub(super) fn count(&mut self, wait: Duration) {
        let buckets = self.0.get_or_insert_with(|| Box::new([0; BUCKETS]));
        let bucket = &mut buckets[bucket_of(wait)];
        *bucket = bucket.saturating_add(1);
    }

    fn get(&self, bucket: usize) -> u64 {
        self.0.as_ref().map_or(0, |it| u64::from(it[bucket]))
    }

    /// Bytes allocated.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |_| size_of::<[u32; BUCKETS]>())
    }
}

impl Half for WaitCounts {
    fn clear(&mut self) {
        self.0 = None;
    }

    fn merge(&mut self, other: &Self) {
        if let Some(theirs) = &other.0 {
            let ours = self.0.get_or_insert_with(|| Box::new([0; BUCKETS]));
            for (ours, theirs) in ours.iter_mut().zip(theirs.iter()) {
                *ours = ours.saturating_add(*theirs);
            }
        }
    }
}

fn bucket_of(wait: Duration) -> usize {
    let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    if millis < STEPS {
        return millis as usize;
    }
    let octave = u64::from(millis.ilog2() - STEPS.ilog2());
    let step = (millis >> octave) - STEPS;
    ((octave + 1) * STEPS + step).min(BUCKETS as u64 - 1) as usize
}

fn middle_of(bucket: usize) -> Duration {
    let bucket = bucket as u64;
    let (lowest, width) = if bucket < STEPS {
        (bucket, 1)
    } else {
        let octave = bucket / STEPS - 1;
        ((STEPS + bucket % STEPS) << octave, 1 << octave)
    };
    Duration::from_micros(lowest * 1000 + width * 500)
}

/// The wait that a share of the calls did not exceed: the nearest rank, over several counts
/// together. `None` if nothing was counted.
pub(super) fn quantile<'a>(
    counts: impl Iterator<Item = &'a WaitCounts> + Clone,
    per_cent: u64,
) -> Option<Duration> {
    let in_bucket = |bucket| -> u64 { counts.clone().map(|counts| counts.get(bucket)).sum() };
    let total: u64 = (0..BUCKETS).map(in_bucket).sum();
    let rank = (total * per_cent).div_ceil(100).max(1);
    let mut below = 0;
    (0..BUCKETS)
        .find(|&bucket| {
            below += in_bucket(bucket);
            below >= rank
        })
        .map(middle_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_reported_within_an_eighth_and_half_a_millisecond() {
        let mut micros = 1;
        while micros < (1 << 22) * 1000 {
            let wait = Duration::from_micros(micros);
            let told = middle_of(bucket_of(wait));
            let error = told.abs_diff(wait);
            assert!(error <= wait / 8 + Duration::from_micros(500), "{wait:?}");
            micros += 1 + micros / 97;
        }
    }

    #[test]
    fn the_longest_wait_has_a_bucket() {
        let most = middle_of(BUCKETS - 1);
        assert_eq!(middle_of(bucket_of(Duration::MAX)), most);
        assert!(most > Duration::from_secs(60 * 60));
    }

    #[test]
    fn quantiles_are_nearest_ranks_over_all_counts() {
        let mut early = WaitCounts::default();
        let mut late = WaitCounts::default();
        assert_eq!(quantile([&early, &late].into_iter(), 50), None);
        (0..98).for_each(|_| early.count(Duration::from_millis(2)));
        (0..2).for_each(|_| late.count(Duration::from_secs(60)));
        let told = |per_cent| quantile([&early, &late].into_iter(), per_cent);
        assert_eq!(told(50), Some(Duration::from_micros(2500)));
        assert_eq!(told(98), Some(Duration::from_micros(2500)));
        let p99 = told(99).expect("there are waits");
        assert!(p99 > Duration::from_secs(52) && p99 < Duration::from_secs(68));
    }
}
