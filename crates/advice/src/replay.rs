//! The calls of a log behind a limit on calls at once, by a fitted curve.
//!
//! Calls wait in one line and start while fewer than the limit run. All of `n` running calls advance
//! at the speed `1 / s(n)`. This is the model of the fit, so it is as good as the fit is.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::curve::Curve;

/// A call to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// ns
    pub(crate) arrived: u64,
    /// The time that the call takes alone.   ns
    pub(crate) work: f64,
}

/// The results of the calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayResult {
    /// Calls that ended within the bound.
    pub(crate) in_time: usize,
    /// The times of those that ran, without their waits.   ns
    pub(crate) took: Vec<u64>,
    /// The waits of those that ran.   ns
    pub(crate) waits: Vec<u64>,
    /// Calls that waited too long.
    pub(crate) given_up: usize,
    /// The most that waited at once, by part of the log.
    pub(crate) depths: Vec<usize>,
}

/// Runs jobs, sorted by arrival, with `limit` at once. A call that waited `patience` is given up. It
/// is in time if it ends `within` ns of its arrival.
pub(crate) fn run(
    jobs: &[Job],
    curve: &Curve,
    limit: u32,
    within: u64,
    patience: u64,
    parts: usize,
) -> ReplayResult {
    let stretches: Vec<f64> = (0..=limit)
        .map(|n| curve.stretch(f64::from(n.max(1))))
        .collect();
    let mut ran = ReplayResult {
        depths: vec![0; parts],
        ..ReplayResult::default()
    };
    let first = jobs.first().map_or(0, |job| job.arrived);
    let span = jobs.last().map_or(0, |job| job.arrived) - first;
    let part_of = |at: f64| (at / (span as f64 + 1.0) * parts as f64) as usize;
    // Progress is the work that each running call has had since the start.
    let (mut now, mut progress) = (0.0_f64, 0.0_f64);
    let mut waiting: VecDeque<usize> = VecDeque::new();
    let mut running: BinaryHeap<Reverse<(FinishedJob, usize)>> = BinaryHeap::new();
    let mut starts = vec![0.0_f64; jobs.len()];
    let mut next = 0;
    loop {
        let stretch = stretches[running.len()];
        let ends = running
            .peek()
            .map(|Reverse((done, _))| now + (done.0 - progress).max(0.0) * stretch);
        let arrives = jobs.get(next).map(|job| (job.arrived - first) as f64);
        let is_end = match (ends, arrives) {
            (None, None) => return ran,
            (Some(ends), Some(arrives)) => ends <= arrives,
            (ends, _) => ends.is_some(),
        };
        let at = if is_end { ends } else { arrives }.expect("one of them is next");
        progress += (at - now) / stretch;
        now = at;
        if is_end {
            let Reverse((_, job)) = running.pop().expect("peeked above");
            let arrived = (jobs[job].arrived - first) as f64;
            ran.in_time += usize::from(now - arrived <= within as f64);
            ran.took.push((now - starts[job]) as u64);
        } else {
            waiting.push_back(next);
            next += 1;
        }
        while running.len() < limit as usize {
            let Some(job) = waiting.pop_front() else {
                break;
            };
            let waited = now - (jobs[job].arrived - first) as f64;
            if waited > patience as f64 {
                ran.given_up += 1;
            } else {
                ran.waits.push(waited as u64);
                starts[job] = now;
                running.push(Reverse((FinishedJob(progress + jobs[job].work), job)));
            }
        }
        let part = part_of(now).min(parts - 1);
        ran.depths[part] = ran.depths[part].max(waiting.len());
    }
}

/// The progress at which a call ends.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FinishedJob(f64);

impl Eq for FinishedJob {}

impl PartialOrd for FinishedJob {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FinishedJob {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn jobs(arrivals: &[u64], work: u64) -> Vec<Job> {
        let job = |arrived: &u64| Job {
            arrived: *arrived * SECOND,
            work: (work * SECOND) as f64,
        };
        arrivals.iter().map(job).collect()
    }

    #[test]
    fn one_at_a_time_waits_in_line() {
        let ran = run(
            &jobs(&[0, 0, 0, 10], 2),
            &Curve::Flat,
            1,
            4 * SECOND,
            u64::MAX,
            1,
        );
        assert_eq!(ran.in_time, 3);
        assert_eq!(ran.depths, [2]);
        assert!(ran.took.iter().all(|took| took.abs_diff(2 * SECOND) < 10));
    }

    #[test]
    fn shared_work_takes_longer_and_ends_together() {
        let curve = Curve::Sharing { servers: 1.0 };
        let ran = run(&jobs(&[0, 0, 0], 2), &curve, 3, 6 * SECOND, u64::MAX, 1);
        assert!(
            ran.took.iter().all(|took| took.abs_diff(6 * SECOND) < 10),
            "{ran:?}"
        );
        assert_eq!(ran.depths, [0]);
    }

    #[test]
    fn a_call_that_waited_too_long_is_given_up() {
        let ran = run(
            &jobs(&[0, 0, 0], 2),
            &Curve::Flat,
            1,
            u64::MAX,
            3 * SECOND,
            1,
        );
        assert_eq!((ran.took.len(), ran.given_up), (2, 1));
        assert!(ran.waits.iter().all(|wait| [0, 2 * SECOND].contains(wait)));
    }
}
