//! Counts how calls ended and how long they took.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use tidegate_runtime::lock;

use super::client::{CallAnswer, CallFailure};

/// Longest latency in the histogram.   nanoseconds, one hour
const LATENCY_MAX: u64 = 3_600_000_000_000;

/// The result of a load. Latencies are of successful calls only: a refusal is fast, and would
/// improve the figures.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadReport {
    /// Calls started.
    pub calls: u64,
    /// Answered with `overallRC` 0.
    pub ok: u64,
    /// Refused by the proxy (`modID` 130).
    pub refused: u64,
    /// Answered with another error, or not answered.
    pub failed: u64,
    /// Clients that left on purpose.
    pub left: u64,
    /// Calls of an open loop that never started because all connections were busy until
    /// the end.
    pub unsent: u64,
    /// Failures by kind.
    pub failures: BTreeMap<CallFailure, u64>,
    /// From the start of the load to the end of its last call.
    pub seconds: f64,
    /// Successful calls per second of `seconds`.
    pub per_second: f64,
    /// Median latency, microseconds.
    pub p50_us: f64,
    /// 90th percentile, microseconds.
    pub p90_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// 99.9th percentile, microseconds.
    pub p999_us: f64,
    /// Longest, microseconds.
    pub max_us: f64,
    /// How late the median call started, microseconds.
    pub lag_p50_us: f64,
    /// How late the call at the 99th percentile started, microseconds.
    pub lag_p99_us: f64,
    /// From the start of the load to the last successful answer.
    pub makespan_s: f64,
    /// Of a storm: share of pairs of successful answers that came in another order than their
    /// calls; 0 is first come, first served, 0.5 is random.
    pub inversions: Option<f64>,
    /// Silent connections opened.
    pub held: usize,
    /// Silent connections still open at the end.
    pub held_open: usize,
    /// Time it took to open them.
    pub held_after_s: f64,
}

impl LoadReport {
    pub(super) fn held(held: usize, held_open: usize, after: Duration, took: Duration) -> Self {
        Self {
            held,
            held_open,
            held_after_s: after.as_secs_f64(),
            seconds: took.as_secs_f64(),
            ..Self::default()
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.held > 0 {
            return write!(
                f,
                "{} connections opened in {:.2} s, {} still open after {:.2} s",
                self.held, self.held_after_s, self.held_open, self.seconds
            );
        }
        writeln!(
            f,
            "{} calls in {:.2} s, {:.1} answered a second, the last after {:.2} s",
            self.calls, self.seconds, self.per_second, self.makespan_s
        )?;
        writeln!(
            f,
            "ok {}  refused {}  failed {}  left {}  unsent {}",
            self.ok, self.refused, self.failed, self.left, self.unsent
        )?;
        for (failure, count) in &self.failures {
            writeln!(f, "  failed: {failure:?} {count}")?;
        }
        writeln!(
            f,
            "latency  p50 {}  p90 {}  p99 {}  p99.9 {}  max {}",
            shown(self.p50_us),
            shown(self.p90_us),
            shown(self.p99_us),
            shown(self.p999_us),
            shown(self.max_us)
        )?;
        write!(
            f,
            "lag      p50 {}  p99 {}",
            shown(self.lag_p50_us),
            shown(self.lag_p99_us)
        )?;
        if let Some(inversions) = self.inversions {
            write!(f, "\nout of order {:.2} % of pairs", inversions * 100.0)?;
        }
        Ok(())
    }
}

/// A latency in the most readable unit.
fn shown(micros: f64) -> String {
    match micros {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.1} us"),
    }
}

/// Counts behind one lock.
pub(super) struct LoadTally {
    start: Instant,
    counts: Mutex<Counts>,
}

struct Counts {
    /// The counts. The other figures are computed at the end.
    report: LoadReport,
    latency: Histogram<u64>,
    lag: Histogram<u64>,
    last_ok: Instant,
    last_end: Instant,
    /// Successful calls, by launch order, in the order of their answers. Of a storm only: its
    /// number of clients bounds the list.
    order: Option<Vec<u64>>,
}

impl LoadTally {
    pub(super) fn new(start: Instant, keep_order: bool) -> Self {
        let histogram = || {
            Histogram::new_with_bounds(100, LATENCY_MAX, 3).expect("bounds and digits are valid")
        };
        Self {
            start,
            counts: Mutex::new(Counts {
                report: LoadReport::default(),
                latency: histogram(),
                lag: histogram(),
                last_ok: start,
                last_end: start,
                order: keep_order.then(Vec::new),
            }),
        }
    }

    pub(super) fn started(&self, intended: Instant) {
        let lag = nanoseconds(intended.elapsed());
        let mut counts = lock(&self.counts);
        counts.report.calls += 1;
        counts.lag.saturating_record(lag);
    }

    pub(super) fn ended(
        &self,
        call: u64,
        intended: Instant,
        outcome: Result<CallAnswer, CallFailure>,
    ) {
        let mut counts = lock(&self.counts);
        let now = Instant::now();
        counts.last_end = now;
        match outcome {
            Ok(CallAnswer::Ok) => {
                counts.report.ok += 1;
                counts.last_ok = now;
                counts
                    .latency
                    .saturating_record(nanoseconds(now.duration_since(intended)));
                if let Some(order) = &mut counts.order {
                    order.push(call);
                }
            }
            Ok(CallAnswer::Refused) => counts.report.refused += 1,
            Err(failure) => *counts.report.failures.entry(failure).or_default() += 1,
        }
    }

    pub(super) fn left(&self) {
        lock(&self.counts).report.left += 1;
    }

    pub(super) fn begun(&self) -> u64 {
        lock(&self.counts).report.calls
    }

    pub(super) fn report(&self, unsent: u64) -> LoadReport {
        let counts = lock(&self.counts);
        let micros = |histogram: &Histogram<u64>, quantile| {
            // Tenths would be more than three digits.
            (histogram.value_at_quantile(quantile) as f64 / 100.0).round() / 10.0
        };
        let seconds = counts.last_end.duration_since(self.start).as_secs_f64();
        let report = &counts.report;
        LoadReport {
            failed: report.failures.values().sum(),
            unsent,
            seconds,
            per_second: if seconds > 0.0 {
                report.ok as f64 / seconds
            } else {
                0.0
            },
            p50_us: micros(&counts.latency, 0.5),
            p90_us: micros(&counts.latency, 0.9),
            p99_us: micros(&counts.latency, 0.99),
            p999_us: micros(&counts.latency, 0.999),
            max_us: micros(&counts.latency, 1.0),
            lag_p50_us: micros(&counts.lag, 0.5),
            lag_p99_us: micros(&counts.lag, 0.99),
            makespan_s: counts.last_ok.duration_since(self.start).as_secs_f64(),
            inversions: counts.order.as_deref().map(share_of_inversions),
            ..report.clone()
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Share of pairs in another order than their numbers.
fn share_of_inversions(order: &[u64]) -> f64 {
    let pairs = order.len() * order.len().saturating_sub(1) / 2;
    if pairs == 0 {
        return 0.0;
    }
    inversions(&mut order.to_vec()) as f64 / pairs as f64
}

/// A merge sort that counts the pairs it swaps.
fn inversions(order: &mut [u64]) -> usize {
    if order.len() < 2 {
        return 0;
    }
    let middle = order.len() / 2;
    let mut count = inversions(&mut order[..middle]) + inversions(&mut order[middle..]);
    let mut merged = Vec::with_capacity(order.len());
    let (mut left, mut right) = (0, middle);
    while left < middle || right < order.len() {
        if right == order.len() || (left < middle && order[left] <= order[right]) {
            merged.push(order[left]);
            left += 1;
        } else {
            merged.push(order[right]);
            right += 1;
            count += middle - left;
        }
    }
    order.copy_from_slice(&merged);
    count
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::seeds::seeds;

    #[test]
    fn inversions_match_a_count_of_every_pair() {
        for seed in seeds(0..50) {
            let mut rng = StdRng::seed_from_u64(seed);
            let order: Vec<u64> = (0..rng.random_range(0..40))
                .map(|_| rng.random_range(0..1000))
                .collect();
            let by_force = (0..order.len())
                .flat_map(|i| (i + 1..order.len()).map(move |j| (i, j)))
                .filter(|&(i, j)| order[i] > order[j])
                .count();
            assert_eq!(inversions(&mut order.clone()), by_force, "seed {seed}");
        }
        assert!((share_of_inversions(&[3, 2, 1]) - 1.0).abs() < f64::EPSILON);
        assert!(share_of_inversions(&[1, 2, 3]).abs() < f64::EPSILON);
    }

    #[test]
    fn only_good_answers_count_as_latency() {
        let start = Instant::now();
        let tally = LoadTally::new(start, true);
        let ten_ms_ago = start
            .checked_sub(Duration::from_millis(10))
            .expect("up that long");
        let long_ago = start
            .checked_sub(Duration::from_secs(5))
            .expect("up that long");
        for (call, intended, outcome) in [
            (1, ten_ms_ago, Ok(CallAnswer::Ok)),
            (0, ten_ms_ago, Ok(CallAnswer::Ok)),
            (2, long_ago, Ok(CallAnswer::Refused)),
            (3, long_ago, Err(CallFailure::Cut)),
        ] {
            tally.started(intended);
            tally.ended(call, intended, outcome);
        }
        tally.started(start);
        tally.left();
        let report = tally.report(0);
        assert_eq!((report.calls, report.ok, report.refused), (5, 2, 1));
        assert_eq!((report.failed, report.left), (1, 1));
        assert_eq!(report.inversions, Some(1.0));
        assert!(
            (10_000.0..4_000_000.0).contains(&report.max_us),
            "{}",
            report.max_us
        );
    }
}
