//! Fits a curve to runs: how much longer calls take among others.
//!
//! **The idea.** With the right curve `s`, the *work* of a call, `w = ∫ dt / s(n(t))` over its run,
//! does not depend on how many others were there. Each curve of a list is tried. The calls are
//! sorted into buckets by the level that they met when they started, which does not depend on how
//! long they will take. (The mean level during a call does: long calls see an average, and short
//! ones the extremes.) The curve wins whose mean of `ln w`, less that of the call's function,
//! differs least between the buckets (between-group sum of squares). So functions with different
//! base times are fitted together, and one extreme time has little weight.
//!
//! **The interval.** Calls at nearly one time are alike, so resampling single calls would promise
//! too much. Runs of neighbouring parts of the log are drawn instead (H. R. Künsch, "The jackknife
//! and the bootstrap for general stationary observations", Annals of Statistics 17, 1989), and
//! the curve is chosen anew for each draw.

use crate::curve::Curve;
use crate::draw::Draw;
use crate::levels::Levels;
use crate::runs::{BackendRun, PARTS, RunEnding};

/// Runs that are used for one fit, at most; more change nothing that can be seen.
const RUNS_MAX: usize = 12_000;
/// Runs in a bucket of levels, at least.
const BUCKET_MIN: usize = 20;
/// Draws of the bootstrap.
const DRAWS: usize = 200;
/// Parts that are drawn together: about the cube root of their number.
const TOGETHER: usize = 4;
/// The knee is where the backend has this share of its highest throughput.
pub(crate) const KNEE: f64 = 0.95;
/// The share of draws that must say so before the backend counts as near its limit.
const SURELY: f64 = 0.98;
/// How much better than none the curve must be.
const GAIN_MIN: f64 = 20.0;
/// A residual counts at most as this many standard deviations.
const WINSOR: f64 = 3.0;

/// A fitted curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The curve.
    pub curve: Curve,
    /// The runs that it was fitted to.
    pub calls: usize,
    /// The highest level that it is known for. Nothing is said about more.
    pub most: u32,
    /// The smallest level with 95 % of the highest throughput up to `most`, with the bounds of 95
    /// of 100 draws.
    pub knee: u32,
    /// The lower bound of the knee.
    pub knee_low: u32,
    /// The upper bound of the knee.
    pub knee_high: u32,
    /// The share of the draws whose knee is clearly below `most`: where this is high, the
    /// backend is near its limit within what was seen.
    pub strained: f64,
    /// How much better the curve explains the buckets than no stretch at all: the difference of the
    /// two sums of squares, in variances of `ln w`. By chance alone it is rarely above 10.
    pub gain: f64,
    /// The variance of `ln w` that is left.
    pub left: f64,
}

/// A run, as the fit needs it.
struct Point {
    function: usize,
    bucket: usize,
    part: usize,
    /// Levels and how long they lasted, in ns.
    levels: Vec<(u32, f64)>,
}

/// Fits the runs whose levels are at most `most`; `None` if there are fewer than two buckets.
pub(crate) fn fit(runs: &[BackendRun], levels: &Levels, most: u32, draw: &mut Draw) -> Option<Fit> {
    let usable: Vec<&BackendRun> = runs
        .iter()
        .filter(|run| run.end == RunEnding::Served && run.most <= most && run.took() > 0)
        .collect();
    let edges = buckets(&usable)?;
    let step = usable.len().div_ceil(RUNS_MAX);
    let points: Vec<Point> = usable
        .iter()
        .step_by(step)
        .map(|run| point(run, levels, &edges))
        .collect();
    let sums: Vec<Sums> = Curve::candidates(most)
        .into_iter()
        .map(|curve| Sums::of(curve, &points, edges.len()))
        .collect();
    let once = [1.0; PARTS];
    let best = chosen(&sums, &once);
    let mut knees: Vec<u32> = (0..DRAWS)
        .map(|_| chosen(&sums, &drawn(draw)).curve.knee(most, KNEE))
        .collect();
    knees.sort_unstable();
    let clearly_below = |knee: &&u32| f64::from(**knee) < 0.9 * f64::from(most);
    let knee = best.curve.knee(most, KNEE);
    Some(Fit {
        curve: best.curve,
        calls: usable.len(),
        most,
        knee,
        knee_low: knees[DRAWS / 40].min(knee),
        knee_high: knees[DRAWS - 1 - DRAWS / 40].max(knee),
        strained: knees.iter().filter(clearly_below).count() as f64 / DRAWS as f64,
        gain: (sums[0].error(&once) - best.error(&once)) / best.left.max(1e-9),
        left: best.left,
    })
}

impl Fit {
    /// Whether it is clear that the backend is near its limit within what was seen.
    #[must_use]
    pub fn is_strained(&self) -> bool {
        self.strained >= SURELY && self.gain >= GAIN_MIN
    }
}

/// The work of a call by a curve.   ns
pub(crate) fn work(run: &BackendRun, levels: &Levels, curve: &Curve) -> f64 {
    let parts = levels.between(run.started, run.ended);
    parts
        .map(|(level, lasted)| lasted as f64 / curve.stretch(f64::from(level.max(1))))
        .sum()
}

/// The lowest level of each bucket.
fn buckets(runs: &[&BackendRun]) -> Option<Vec<u32>> {
    let mut entries: Vec<_> = runs.iter().map(|run| run.entry).collect();
    entries.sort_unstable();
    let each = BUCKET_MIN.max(entries.len() / 40);
    let mut edges: Vec<u32> = Vec::new();
    let mut count = 0;
    for (at, entry) in entries.iter().enumerate() {
        let is_new = at == 0 || entries[at - 1] != *entry;
        if is_new && (edges.is_empty() || count >= each) && entries.len() - at >= BUCKET_MIN {
            edges.push(*entry);
            count = 0;
        }
        count += 1;
    }
    (edges.len() >= 2).then_some(edges)
}

fn point(run: &BackendRun, levels: &Levels, edges: &[u32]) -> Point {
    let mut by_level: Vec<(u32, f64)> = Vec::new();
    for (level, lasted) in levels.between(run.started, run.ended) {
        let level = level.max(1);
        match by_level.iter_mut().find(|(known, _)| *known == level) {
            Some((_, sum)) => *sum += lasted as f64,
            None => by_level.push((level, lasted as f64)),
        }
    }
    Point {
        function: run.function,
        bucket: edges.partition_point(|edge| *edge <= run.entry) - 1,
        part: run.part.min(PARTS - 1),
        levels: by_level,
    }
}

/// Sums of `ln w` by one curve, by part and bucket.
struct Sums {
    curve: Curve,
    /// Count and sum of each bucket, by part.
    by_part: Vec<Vec<(f64, f64)>>,
    left: f64,
}

impl Sums {
    fn of(curve: Curve, points: &[Point], buckets: usize) -> Self {
        let mut stretches = Vec::new();
        let logs: Vec<f64> = points
            .iter()
            .map(|point| {
                let work: f64 = point
                    .levels
                    .iter()
                    .map(|(level, lasted)| lasted * inverse(&mut stretches, &curve, *level))
                    .sum();
                work.max(1e-3).ln()
            })
            .collect();
        let functions = points.iter().map(|point| point.function).max().unwrap_or(0) + 1;
        let mut means = vec![(0.0, 0.0); functions];
        for (point, log) in points.iter().zip(&logs) {
            let mean = &mut means[point.function];
            *mean = (mean.0 + log, mean.1 + 1.0);
        }
        let residual = |point: &Point, log: f64| {
            let (sum, count) = means[point.function];
            log - sum / count
        };
        let squares: f64 = points
            .iter()
            .zip(&logs)
            .map(|(point, log)| residual(point, *log).powi(2))
            .sum();
        let left = squares / points.len().max(1) as f64;
        let most = WINSOR * left.sqrt();
        let mut by_part = vec![vec![(0.0, 0.0); buckets]; PARTS];
        for (point, log) in points.iter().zip(&logs) {
            let sum = &mut by_part[point.part][point.bucket];
            sum.0 += 1.0;
            sum.1 += residual(point, *log).clamp(-most, most);
        }
        Self {
            curve,
            by_part,
            left,
        }
    }

    /// By how much the buckets differ, with each part of the log counted this often.
    fn error(&self, times: &[f64; PARTS]) -> f64 {
        let buckets = self.by_part[0].len();
        let mut sums = vec![(0.0, 0.0); buckets];
        for (part, times) in self.by_part.iter().zip(times) {
            if *times > 0.0 {
                for (sum, (count, logs)) in sums.iter_mut().zip(part) {
                    sum.0 += times * count;
                    sum.1 += times * logs;
                }
            }
        }
        let (count, total) = sums
            .iter()
            .fold((0.0, 0.0), |all, sum| (all.0 + sum.0, all.1 + sum.1));
        let between: f64 = sums
            .iter()
            .filter(|(count, _)| *count > 0.0)
            .map(|(count, sum)| sum * sum / count)
            .sum();
        between - total * total / f64::max(count, 1.0)
    }
}

/// The inverse of the stretch at a level, computed once.
fn inverse(known: &mut Vec<f64>, curve: &Curve, level: u32) -> f64 {
    let level = level as usize;
    while known.len() <= level {
        known.push(1.0 / curve.stretch(known.len() as f64));
    }
    known[level]
}

/// The curve whose buckets differ least; of equal ones the first, which is the simplest.
fn chosen<'a>(sums: &'a [Sums], times: &[f64; PARTS]) -> &'a Sums {
    let errors = sums.iter().map(|sums| (sums.error(times), sums));
    errors
        .reduce(|best, next| if next.0 < best.0 { next } else { best })
        .expect("Flat is always tried")
        .1
}

/// How often each part is in one draw.
fn drawn(draw: &mut Draw) -> [f64; PARTS] {
    let mut times = [0.0; PARTS];
    for _ in 0..PARTS / TOGETHER {
        let first = draw.below(PARTS - TOGETHER + 1);
        for part in &mut times[first..first + TOGETHER] {
            *part += 1.0;
        }
    }
    times
}
