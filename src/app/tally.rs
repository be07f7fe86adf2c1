//! Counts between two samples of the series: a few additions at the start and end of a call.

use std::mem;
use std::time::Duration;

use tidegate_runtime::PerThread;

use crate::call::{Facts, Verdict};
use crate::series::{BACKENDS, Point, REASONS};

/// Four steps for each doubling of the time, from 1 µs to more than an hour. So a quantile is right
/// within an eighth.
const STEPS: usize = 128;

/// Counts since the last sample, of all threads.
#[derive(Debug, Default)]
pub(super) struct Tally(PerThread<Counts>);

#[derive(Debug)]
struct Counts {
    arrivals: u32,
    answered: u32,
    failed: [u32; BACKENDS],
    refused: [u32; REASONS],
    backend: [u32; STEPS],
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            arrivals: 0,
            answered: 0,
            failed: [0; BACKENDS],
            refused: [0; REASONS],
            backend: [0; STEPS],
        }
    }
}

impl Tally {
    /// A call arrived.
    pub(super) fn arrived(&self) {
        self.0.own().arrivals += 1;
    }

    /// A call has ended, after this time at the backend.
    pub(super) fn ended(&self, facts: &Facts, backend: Option<Duration>) {
        let counts = &mut *self.0.own();
        if facts.answered.is_some() {
            counts.answered += 1;
        }
        if facts.verdict == Verdict::Failed
            && let Some(destination) = facts.destination
            && let Some(failed) = counts.failed.get_mut(destination as usize)
        {
            *failed += 1;
        }
        // A client that has left got no answer.
        if let Some(reason) = facts.reason.filter(|_| facts.verdict != Verdict::Aborted) {
            counts.refused[reason as usize] += 1;
        }
        if let Some(took) = backend {
            counts.backend[step(took)] += 1;
        }
    }

    /// The counts since the last time, in a sample.
    pub(super) fn take(&self) -> Point {
        let mut all = Counts::default();
        for counts in self.0.each(mem::take) {
            all.add(&counts);
        }
        let mut sample = Point::sample();
        sample.arrivals = all.arrivals;
        sample.answered = all.answered;
        sample.failed = all.failed;
        sample.refused = all.refused;
        sample.backend_p50_ms = quantile(&all.backend, 50);
        sample.backend_p95_ms = quantile(&all.backend, 95);
        sample
    }
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.arrivals += other.arrivals;
        self.answered += other.answered;
        let sum = |to: &mut [u32], from: &[u32]| {
            for (to, from) in to.iter_mut().zip(from) {
                *to += from;
            }
        };
        sum(&mut self.failed, &other.failed);
        sum(&mut self.refused, &other.refused);
        sum(&mut self.backend, &other.backend);
    }
}

/// The step of a time.
fn step(took: Duration) -> usize {
    let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1);
    let doublings = micros.ilog2();
    let quarter = (u64::from(micros) << 2 >> doublings) & 3;
    doublings as usize * 4 + quarter as usize
}

/// A percentile of the times; NaN if there is no time.   ms
fn quantile(counts: &[u32; STEPS], percent: u64) -> f32 {
    let all: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let rank = (all * percent).div_ceil(100);
    let mut below = 0;
    let reaches = |count: &u32| {
        below += u64::from(*count);
        all > 0 && below >= rank
    };
    let Some(step) = counts.iter().position(reaches) else {
        return f32::NAN;
    };
    let (doublings, quarter) = (step / 4, step % 4);
    let micros = (1u64 << doublings) as f32 * (1.125 + quarter as f32 / 4.0);
    micros / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_right_within_an_eighth() {
        for micros in [1, 3, 17, 999, 12_345, 1_000_000, 3_000_000_000_u64] {
            let mut counts = [0; STEPS];
            counts[step(Duration::from_micros(micros))] = 7;
            let ms = f64::from(quantile(&counts, 95));
            let off = ms * 1e3 / micros as f64;
            assert!((0.87..=1.13).contains(&off), "{micros} µs read as {ms} ms");
        }
        assert_eq!(step(Duration::from_secs(1 << 40)), STEPS - 1);
    }

    #[test]
    fn quantiles_count_all_calls_and_nothing_is_nothing() {
        let mut counts = [0; STEPS];
        assert!(quantile(&counts, 50).is_nan());
        counts[step(Duration::from_millis(10))] = 94;
        counts[step(Duration::from_millis(500))] = 6;
        assert!((8.5..11.5).contains(&quantile(&counts, 50)));
        assert!((430.0..570.0).contains(&quantile(&counts, 95)));
    }
}
