//! Where a backend breaks: the lowest level from which calls fail, or take far longer.
//!
//! Both signs are compared with what the calls below that level show. Calls that fail at any level
//! do not count, and neither does a backend that shares its work: there, `n` calls take at most
//! `n` times as long.

use crate::interval::share;
use crate::runs::{BackendRun, RunEnding};

/// Calls in a bin of levels, at least.
const CALLS_MIN: usize = 20;
/// A level is broken if the lower bound of its share of failures is above the upper bound of the share
/// below it, and above [`TIMES_MORE`] times that share plus this.
const FAILING: f64 = 0.01;
/// See [`FAILING`].
const TIMES_MORE: f64 = 3.0;
/// A level is broken if times grow by this factor beyond what sharing explains, less three
/// standard errors.
const STRETCHED: f64 = 2.0;

/// A breaking point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakingPoint {
    /// The lowest level that is known to be broken. It is never advised.
    pub from: u32,
    /// The calls that met this level.
    pub calls: usize,
    /// The sign that showed it.
    pub sign: Sign,
}

/// A sign that a backend breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sign {
    /// Calls fail.
    Failures {
        /// The share of the calls that failed.
        share: f64,
        /// The share below that level.
        below: f64,
    },
    /// Times jump.
    Times {
        /// How many times longer calls take than one level below.
        times: f64,
    },
}

/// The result of a call at a level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelResult {
    pub(crate) level: u32,
    pub(crate) failed: bool,
    /// The logarithm of its time, less the mean of its function; of calls that were served.
    pub(crate) time: Option<f64>,
}

/// The results of runs at the levels that they met at most.
pub(crate) fn met(runs: &[BackendRun]) -> Vec<LevelResult> {
    let functions = runs.iter().map(|run| run.function).max().unwrap_or(0) + 1;
    let log = |run: &BackendRun| (run.took().max(1) as f64).ln();
    let mut means = vec![(0.0, 0.0); functions];
    let served = |run: &&BackendRun| run.end == RunEnding::Served;
    for run in runs.iter().filter(served) {
        let mean = &mut means[run.function];
        *mean = (mean.0 + log(run), mean.1 + 1.0);
    }
    let known = runs.iter().filter(|run| run.end != RunEnding::Unknown);
    known
        .map(|run| {
            let (sum, count) = means[run.function];
            LevelResult {
                level: run.most,
                failed: run.end == RunEnding::Failed,
                time: (run.end == RunEnding::Served).then(|| log(run) - sum / count),
            }
        })
        .collect()
}

/// Calls of neighbouring levels.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    from: u32,
    to: u32,
    calls: usize,
    failed: usize,
    served: f64,
    sum: f64,
    squares: f64,
    levels: f64,
}

impl Bin {
    fn add(&mut self, met: &LevelResult) {
        if self.calls == 0 {
            self.from = met.level;
        }
        self.to = met.level;
        self.calls += 1;
        self.failed += usize::from(met.failed);
        self.levels += f64::from(met.level);
        if let Some(time) = met.time {
            self.served += 1.0;
            self.sum += time;
            self.squares += time * time;
        }
    }

    /// The mean of the logarithms of times, and the variance of that mean.
    fn mean(&self) -> Option<(f64, f64)> {
        if self.served < CALLS_MIN as f64 / 2.0 {
            return None;
        }
        let mean = self.sum / self.served;
        let variance = (self.squares / self.served - mean * mean).max(0.0);
        Some((mean, variance / (self.served - 1.0)))
    }
}

/// The breaking point that calls show, if any.
pub(crate) fn breaking(mut met: Vec<LevelResult>) -> Option<BreakingPoint> {
    met.sort_unstable_by_key(|met| met.level);
    let mut bins: Vec<Bin> = Vec::new();
    for met in &met {
        let is_next = bins
            .last()
            .is_none_or(|bin| bin.calls >= CALLS_MIN && met.level > bin.to);
        if is_next {
            bins.push(Bin::default());
        }
        bins.last_mut().expect("pushed above").add(met);
    }
    let (mut calls, mut failed) = (0, 0);
    let mut before: Option<Bin> = None;
    for bin in bins {
        let below = share(failed, calls);
        let here = share(bin.failed, bin.calls);
        let is_more = here.low > TIMES_MORE * below.share + FAILING && here.low > below.high;
        if calls >= CALLS_MIN && is_more {
            let sign = Sign::Failures {
                share: here.share,
                below: below.share,
            };
            return Some(BreakingPoint {
                from: bin.from,
                calls: bin.calls,
                sign,
            });
        }
        if let Some(times) = before.and_then(|before| jump(&before, &bin)) {
            return Some(BreakingPoint {
                from: bin.from,
                calls: bin.calls,
                sign: Sign::Times { times },
            });
        }
        calls += bin.calls;
        failed += bin.failed;
        before = Some(bin);
    }
    None
}

/// By how many times calls take longer than in the bin before, if sharing does not explain it.
fn jump(before: &Bin, bin: &Bin) -> Option<f64> {
    let ((low, low_variance), (high, high_variance)) = (before.mean()?, bin.mean()?);
    let shared = (bin.levels / bin.calls as f64) / (before.levels / before.calls as f64);
    let least = high - low - 3.0 * (low_variance + high_variance).sqrt();
    (least > (STRETCHED * shared).ln()).then(|| (high - low).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;
    use crate::seeds::seeds;

    /// Calls at levels 1 to 20; `fails` and `stretch` by level.
    fn calls(
        seed: u64,
        fails: impl Fn(u32) -> f64,
        stretch: impl Fn(u32) -> f64,
    ) -> Vec<LevelResult> {
        let mut draw = Draw::new(seed);
        (0..4_000)
            .map(|_| {
                let level = 1 + draw.below(20) as u32;
                let failed = (draw.below(1_000_000) as f64) < fails(level) * 1e6;
                let noise = draw.below(1_000) as f64 / 500.0;
                let time = (!failed).then(|| stretch(level).ln() + noise);
                LevelResult {
                    level,
                    failed,
                    time,
                }
            })
            .collect()
    }

    #[test]
    fn failures_from_a_level_on_are_a_break_there() {
        for seed in seeds(0..100) {
            let fails = |level| if level >= 13 { 0.3 } else { 0.01 };
            let broken = breaking(calls(seed, fails, |_| 1.0)).expect("it breaks");
            assert_eq!(broken.from, 13, "seed {seed}");
        }
    }

    #[test]
    fn failures_at_any_level_are_none() {
        let breaks = (0..200).filter(|seed| breaking(calls(*seed, |_| 0.1, |_| 1.0)).is_some());
        assert!(breaks.count() <= 2);
    }

    #[test]
    fn times_that_jump_are_a_break_and_times_that_are_shared_are_not() {
        for seed in seeds(0..100) {
            let collapse = |level| if level >= 9 { 10.0 } else { 1.0 };
            let broken = breaking(calls(seed, |_| 0.0, collapse)).expect("it collapses");
            assert_eq!(broken.from, 9, "seed {seed}");
            assert_eq!(breaking(calls(seed, |_| 0.0, f64::from)), None);
            let pairs = |level: u32| 1.0 + 0.02 * f64::from(level * level);
            assert_eq!(breaking(calls(seed, |_| 0.0, pairs)), None);
        }
    }
}
