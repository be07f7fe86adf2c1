//! Finds instants within the second for logs that have whole seconds only.
//!
//! Apache and nginx write a line when a request ends. So the lines are in the order of the ends, and
//! each end is later than all before it and earlier than all behind it. With durations of
//! microseconds, that leaves far less than a second for most. What is left is drawn by the seed, in
//! the order of the lines.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tidegate_advice::sample::Sample;

use super::instant::SECOND;

/// By how much two lines may be swapped: they are written by several processes.   ns
const SWAPPED: u64 = 5_000_000;
/// If more of the lines contradict their order, the order says nothing.
const CONTRADICTIONS: usize = 1_000;

/// The uncertainty that is left after the order of the lines is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Blur {
    /// The median of the time within which an instant lies.   ns
    pub(super) open: u64,
    /// The median of how long requests take.   ns
    pub(super) took: u64,
}

impl Blur {
    /// Whether it is not known which calls ran at once.
    pub(super) const fn hides_concurrency(self) -> bool {
        self.open.saturating_mul(OPEN_TIMES) > self.took
    }
}

/// A call must take this many times what is open. Of 11 logs of worlds that keep this, all gave the
/// value of exact times; with once as much, some were off by half.
const OPEN_TIMES: u64 = 2;

/// Moves samples of one log, in the order of its lines, to instants within their seconds.
pub(super) fn spread(samples: &mut [Sample], seed: u64) -> Blur {
    let mut random = StdRng::seed_from_u64(seed);
    let own: Vec<u64> = samples.iter().map(|sample| sample.ended).collect();
    let bounds = bounds(&own);
    let mut open: Vec<u64> = bounds.iter().map(|(low, high)| high - low).collect();
    let mut took: Vec<u64> = samples.iter().map(|it| it.ended - it.arrived).collect();
    let mut drawn: Vec<u64> = bounds
        .iter()
        .map(|(low, high)| random.random_range(*low..=*high))
        .collect();
    // Both bounds only rise, so the drawn instants keep them in the order of the lines.
    drawn.sort_unstable();
    for ((sample, at), own) in samples.iter_mut().zip(drawn).zip(own) {
        let shift = at.clamp(own, own + SECOND - 1) - own;
        sample.arrived += shift;
        sample.ended += shift;
        sample.started = sample.started.map(|started| started + shift);
    }
    Blur {
        open: median(&mut open),
        took: median(&mut took),
    }
}

/// Between which instants each end lies. Without a usable order, that is its whole second.
fn bounds(own: &[u64]) -> Vec<(u64, u64)> {
    let mut bounds: Vec<(u64, u64)> = own.iter().map(|at| (*at, at + SECOND - 1)).collect();
    let mut latest = 0;
    for (low, _) in &mut bounds {
        latest = latest.max(*low);
        *low = latest;
    }
    let mut earliest = u64::MAX;
    for (_, high) in bounds.iter_mut().rev() {
        earliest = earliest.min(*high);
        *high = earliest;
    }
    let contradicts = |(low, high): &(u64, u64)| *low > high.saturating_add(SWAPPED);
    let contradictions = bounds.iter().filter(|it| contradicts(it)).count();
    if contradictions > own.len() / CONTRADICTIONS {
        return own.iter().map(|at| (*at, at + SECOND - 1)).collect();
    }
    for (low, high) in &mut bounds {
        *high = (*high).max(*low);
    }
    bounds
}

fn median(values: &mut [u64]) -> u64 {
    match values.len() {
        0 => 0,
        length => *values.select_nth_unstable(length / 2).1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_advice::sample::SampleEnding;

    /// Calls by their true ends and times, as a log with whole seconds of the start has them.
    fn logged(calls: &[(u64, u64)]) -> Vec<Sample> {
        let mut calls = calls.to_vec();
        calls.sort_unstable();
        let calls = calls.into_iter().map(|(ended, took)| {
            let second = (ended - took) / SECOND * SECOND;
            Sample {
                function: "f".into(),
                caller: None,
                arrived: second,
                started: Some(second),
                ended: second + took,
                ending: SampleEnding::Served,
            }
        });
        calls.collect()
    }

    fn random_calls(seed: u64, per_second: u64, took: u64) -> Vec<(u64, u64)> {
        let mut random = StdRng::seed_from_u64(seed);
        let calls = (0..2_000).map(|number| {
            let at = 100 * SECOND + number * SECOND / per_second;
            let took = random.random_range(took / 2..took * 2);
            (
                at + random.random_range(0..SECOND / per_second) + took,
                took,
            )
        });
        calls.collect()
    }

    #[test]
    fn each_instant_stays_in_its_second_and_in_the_order_of_the_lines() {
        for seed in 0..20 {
            let calls = random_calls(seed, 30, SECOND);
            let before = logged(&calls);
            let mut after = before.clone();
            spread(&mut after, seed);
            assert!(after.is_sorted_by_key(|it| it.ended), "seed {seed}");
            for (one, other) in before.iter().zip(&after) {
                assert_eq!(one.ended - one.arrived, other.ended - other.arrived);
                assert_eq!(other.arrived / SECOND, one.arrived / SECOND, "seed {seed}");
                assert_eq!(other.started, Some(other.arrived));
            }
        }
    }

    #[test]
    fn the_order_of_many_lines_leaves_little_open() {
        let blur = spread(&mut logged(&random_calls(1, 30, SECOND)), 1);
        assert!(blur.open < SECOND / 2, "{blur:?}");
        assert!(!blur.hides_concurrency());
        let blur = spread(&mut logged(&random_calls(1, 30, SECOND / 50)), 1);
        assert!(blur.hides_concurrency(), "{blur:?}");
    }

    #[test]
    fn lines_in_no_order_keep_their_seconds() {
        let mut samples = logged(&random_calls(3, 30, SECOND));
        samples.reverse();
        let before = samples.clone();
        let blur = spread(&mut samples, 3);
        assert_eq!(blur.open, SECOND - 1);
        for (one, other) in before.iter().zip(&samples) {
            assert_eq!(other.arrived / SECOND, one.arrived / SECOND);
        }
    }
}
