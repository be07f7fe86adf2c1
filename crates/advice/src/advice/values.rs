//! The values for all calls: calls at once, windows, the max_wait and the queue.

use std::collections::BTreeMap;

use super::{Advice, AdviceRequest, Expected, Outlook, SECOND, SEEN_CALLS, SEEN_PARTS};
use crate::breaking::{LevelResult, breaking};
use crate::curve::Curve;
use crate::draw::Draw;
use crate::fit::{Fit, work};
use crate::interval::{quantile, values_needed};
use crate::replay::{Job, ReplayResult, run};
use crate::runs::{BackendRun, PARTS, RunEnding, Runs, seen};
use crate::sample::{Sample, SampleEnding};
use crate::setting::{Need, Reason, Setting, SettingAnswer, resampled_highest, round_up};

/// A shorter wait is the proxy's own time.   ns
const WAIT_MIN: u64 = 1_000_000;
/// Calls that are run through a fitted curve: of a longer log, the busiest stretch.
const JOBS_MAX: usize = 100_000;
/// Lengths of windows.   ns
const WINDOWS: [u64; 6] = [
    SECOND,
    2 * SECOND,
    5 * SECOND,
    10 * SECOND,
    30 * SECOND,
    60 * SECOND,
];
/// Calls that a window holds at least, so that one more is a small step.
const WINDOW_CALLS: f64 = 10.0;

/// Every call that arrived while the log shows all calls, with its work alone. A call that was never
/// sent gets the work of a random call of its function.
pub(super) fn jobs(samples: &[Sample], runs: &Runs, curve: &Curve, draw: &mut Draw) -> Vec<Job> {
    let mut known: Vec<Vec<f64>> = vec![Vec::new(); runs.functions.len()];
    let mut jobs = Vec::with_capacity(samples.len());
    for run in &runs.all {
        let work = work(run, &runs.levels, curve);
        known[run.function].push(work);
        jobs.push(Job {
            arrived: run.arrived,
            work,
        });
    }
    let numbers: BTreeMap<_, _> = runs.functions.iter().zip(0..).collect();
    for sample in samples {
        let is_in = (runs.from..runs.to).contains(&sample.arrived);
        if sample.started.is_some() || !is_in {
            continue;
        }
        let number: Option<&usize> = numbers.get(&sample.function);
        let works = number.map(|number| &known[*number]);
        let work = match works {
            Some(works) if !works.is_empty() => works[draw.below(works.len())],
            _ => continue,
        };
        jobs.push(Job {
            arrived: sample.arrived,
            work,
        });
    }
    jobs.sort_unstable_by_key(|job| job.arrived);
    let busiest = (0..=jobs.len().saturating_sub(JOBS_MAX))
        .step_by(1_000)
        .min_by_key(|first| {
            let last = (first + JOBS_MAX).min(jobs.len());
            jobs[*first..last]
                .last()
                .map_or(u64::MAX, |job| job.arrived - jobs[*first].arrived)
        });
    jobs.drain(..busiest.unwrap_or(0));
    jobs.truncate(JOBS_MAX);
    jobs
}

pub(super) fn outstanding(
    runs: &Runs,
    advice: &Advice,
    jobs: &[Job],
    question: &AdviceRequest,
) -> SettingAnswer<u32> {
    let seen = advice.evidence.seen;
    if seen == 0 {
        return SettingAnswer::NotEnough(vec![Need::Repeated]);
    }
    let strained = advice.fit.as_ref().filter(|fit| fit.is_strained());
    if let Some(fit) = strained {
        return SettingAnswer::Set(at_knee(fit, jobs, question));
    }
    let why = match advice.broken {
        Some(broken) => Reason::Breaks(broken),
        None if is_waited_for(&runs.all, seen) => Reason::Waited,
        None => return SettingAnswer::NoEvidenceBeyond(seen),
    };
    let met = runs.all.iter().filter(|run| {
        let cap = advice.broken.map_or(u32::MAX, |at| at.from - 1);
        run.end != RunEnding::Unknown && (seen..=cap).contains(&run.most)
    });
    SettingAnswer::Set(Setting {
        calls: met.count(),
        value: seen,
        low: advice
            .fit
            .as_ref()
            .map_or(seen, |fit| fit.knee_low.min(seen)),
        high: seen,
        why,
    })
}

/// The knee, or the limit with which clearly more calls end in time.
fn at_knee(fit: &Fit, jobs: &[Job], question: &AdviceRequest) -> Setting<u32> {
    let knee = Setting {
        calls: fit.calls,
        value: fit.knee,
        low: fit.knee_low,
        high: fit.knee_high,
        why: Reason::Knee,
    };
    let Some(slo) = question.slo else {
        return knee;
    };
    let patience = question.max_wait.unwrap_or(u64::MAX);
    let in_time = |limit: u32| run(jobs, &fit.curve, limit, slo.within, patience, PARTS).in_time;
    let step = (fit.most / 24).max(1);
    let tried = (1..=fit.most).step_by(step as usize);
    let tried: Vec<_> = tried
        .chain([fit.knee, fit.most])
        .map(|limit| (limit, in_time(limit)))
        .collect();
    let best = tried.iter().map(|(_, hits)| *hits).max().unwrap_or(0);
    let is_good = |hits: usize| hits as f64 >= 0.99 * best as f64;
    let good = tried
        .iter()
        .filter(|(_, hits)| is_good(*hits))
        .map(|(limit, _)| *limit);
    // Of those that are as good, the nearest to the knee.
    let Some(value) = good
        .clone()
        .min_by_key(|limit| (limit.abs_diff(fit.knee), *limit))
    else {
        return knee;
    };
    let share = |limit: u32| {
        let mut tried = tried.iter();
        let hits = tried.find(|(tried, _)| *tried == limit);
        hits.map_or(0, |(_, hits)| *hits) as f64 / jobs.len().max(1) as f64
    };
    Setting {
        calls: fit.calls,
        value,
        low: fit.knee_low.min(value),
        high: fit.knee_high.max(value),
        why: Reason::InTime {
            share: share(value),
            most: fit.most,
            at_most: share(fit.most),
        },
    }
}

/// Whether enough calls waited until they could start at about this level.
fn is_waited_for(runs: &[BackendRun], seen_level: u32) -> bool {
    let near = f64::from(seen_level) * 0.9;
    let waited = runs
        .iter()
        .filter(|run| run.started - run.arrived >= WAIT_MIN && f64::from(run.entry) >= near);
    seen(
        waited.map(|run| (run.entry, run.part)),
        SEEN_CALLS,
        SEEN_PARTS,
    ) > 0
}

/// Starts in the window that ends with each start.
fn starts_in_windows(runs: &Runs, length: u64) -> Vec<u32> {
    let mut oldest = 0;
    let mut levels = Vec::with_capacity(runs.all.len());
    for (newest, run) in runs.all.iter().enumerate() {
        while runs.all[oldest].started + length <= run.started {
            oldest += 1;
        }
        levels.push((newest + 1 - oldest) as u32);
    }
    levels
}

/// The length of a window, and the calls in it.
pub(super) fn windows(
    runs: &Runs,
    is_known: bool,
    today: Option<u64>,
    draw: &mut Draw,
) -> (SettingAnswer<u64>, SettingAnswer<u32>) {
    let mut counts = [0.0_f64; PARTS];
    for run in &runs.all {
        counts[run.part.min(PARTS - 1)] += 1.0;
    }
    let (low, high) = resampled_highest(&counts, draw);
    let length_of = |calls: f64| {
        let gap = runs.span() as f64 / PARTS as f64 / calls.max(1.0);
        let fits = WINDOWS
            .into_iter()
            .find(|length| *length as f64 >= WINDOW_CALLS * gap);
        fits.unwrap_or(WINDOWS[WINDOWS.len() - 1])
    };
    let today = today.filter(|length| *length > 0);
    let length = today.unwrap_or_else(|| length_of(high));
    let window = SettingAnswer::Set(Setting {
        calls: runs.all.len(),
        value: length,
        low: length_of(high).min(length),
        high: length_of(low).max(length),
        why: match today {
            Some(_) => Reason::Kept,
            None => Reason::Window,
        },
    });
    let levels = starts_in_windows(runs, length);
    let met_there: Vec<LevelResult> = runs
        .all
        .iter()
        .zip(&levels)
        .filter(|(run, _)| run.end != RunEnding::Unknown)
        .map(|(run, level)| LevelResult {
            level: *level,
            failed: run.end == RunEnding::Failed,
            time: None,
        })
        .collect();
    let broken = breaking(met_there);
    let cap = broken.map_or(u32::MAX, |at| at.from - 1);
    let mut highest = [0.0_f64; PARTS];
    let levels: Vec<(u32, usize)> = levels
        .into_iter()
        .zip(&runs.all)
        .filter(|(level, _)| *level <= cap)
        .map(|(level, run)| (level, run.part.min(PARTS - 1)))
        .collect();
    for (level, part) in &levels {
        highest[*part] = highest[*part].max(f64::from(*level));
    }
    let full_from = |value: u32| levels.iter().filter(|(level, _)| *level >= value).count();
    // A window that is full once holds many calls, so its last call stands for it.
    let value = seen(levels.iter().copied(), SEEN_PARTS, SEEN_PARTS);
    let full = full_from(value);
    let (low, _) = resampled_highest(&highest, draw);
    let why = match broken {
        Some(broken) => Reason::Breaks(broken),
        None if is_known => Reason::Taken,
        None => return (window, SettingAnswer::NoEvidenceBeyond(value)),
    };
    let per_window = SettingAnswer::Set(Setting {
        calls: full,
        value,
        low: (low as u32).min(value),
        high: value,
        why,
    });
    (window, per_window)
}

/// How long a call may wait.
pub(super) fn max_wait(
    samples: &[Sample],
    jobs: &[Job],
    curve: &Curve,
    limit: u32,
    question: &AdviceRequest,
) -> SettingAnswer<u64> {
    let mut left: Vec<u64> = samples
        .iter()
        .filter(|sample| sample.ending == SampleEnding::Left && sample.started.is_none())
        .map(|sample| sample.ended.saturating_sub(sample.arrived))
        .collect();
    left.sort_unstable();
    let patience = quantile(&left, 0.05).map(|it| Setting {
        calls: left.len(),
        value: it.value,
        low: it.low,
        high: it.high,
        why: Reason::Left,
    });
    let by_slo = question.slo.and_then(|slo| {
        let mut took = run(jobs, curve, limit, u64::MAX, slo.within, PARTS).took;
        took.sort_unstable();
        let calls = took.len();
        let took = quantile(&took, slo.share)?;
        let rest = |took: u64| slo.within.saturating_sub(took);
        Some(Setting {
            calls,
            value: rest(took.value),
            low: rest(took.high),
            high: rest(took.low),
            why: Reason::Slo,
        })
    });
    let both = patience.into_iter().chain(by_slo);
    match both.min_by_key(|it| it.value) {
        Some(setting) => SettingAnswer::Set(setting),
        None => SettingAnswer::NotEnough(vec![Need::Bound {
            left: left.len(),
            needs: values_needed(0.05),
        }]),
    }
}

/// The change that the advice brings, if the fitted curve says that calls at once do.
pub(super) fn outlook(advice: &Advice, jobs: &[Job], question: &AdviceRequest) -> Option<Outlook> {
    let fit = advice.fit.as_ref().filter(|fit| fit.is_strained())?;
    let advised = advice.outstanding.setting()?.value;
    let max_wait = advice.max_wait.setting().map(|set| set.value);
    let expected = |outstanding: u32, max_wait: Option<u64>| {
        let patience = max_wait.unwrap_or(u64::MAX);
        let mut ran = run(jobs, &fit.curve, outstanding, u64::MAX, patience, PARTS);
        ran.waits.sort_unstable();
        ran.took.sort_unstable();
        let at = |values: &[u64], share: f64| {
            let rank = (values.len() as f64 * share) as usize;
            values.get(rank).or(values.last()).copied().unwrap_or(0)
        };
        Expected {
            outstanding,
            max_wait,
            given_up: ran.given_up as f64 / jobs.len().max(1) as f64,
            wait_p50: at(&ran.waits, 0.5),
            wait_p95: at(&ran.waits, 0.95),
            took_p50: at(&ran.took, 0.5),
        }
    };
    Some(Outlook {
        seen: expected(fit.most, question.max_wait),
        advised: expected(advised, max_wait.or(question.max_wait)),
    })
}

/// Calls that may wait.
pub(super) fn capacity(
    advice: &Advice,
    jobs: &[Job],
    curve: &Curve,
    draw: &mut Draw,
) -> SettingAnswer<u32> {
    let Some(outstanding) = advice.outstanding.setting() else {
        return SettingAnswer::NotEnough(vec![Need::Outstanding]);
    };
    let patience = advice.max_wait.setting().map(|set| set.value);
    let depths = |limit: u32| {
        let patience = patience.unwrap_or(u64::MAX);
        let ReplayResult { depths, .. } = run(jobs, curve, limit.max(1), u64::MAX, patience, PARTS);
        let mut parts = [0.0; PARTS];
        for (part, depth) in parts.iter_mut().zip(depths) {
            *part = depth as f64;
        }
        parts
    };
    let (low, deepest) = resampled_highest(&depths(outstanding.value), draw);
    if deepest < 1.0 {
        return SettingAnswer::NotEnough(vec![Need::Waits]);
    }
    let (_, deepest_at_low) = resampled_highest(&depths(outstanding.low), draw);
    // A call behind more than are completed in its patience would be given up in the end.
    let work: f64 = jobs.iter().map(|job| job.work).sum::<f64>() / jobs.len().max(1) as f64;
    let in_patience = patience.map_or(f64::INFINITY, |patience| {
        patience as f64 / work * curve.throughput(outstanding.value)
    });
    let (needed, why) = match in_patience < deepest {
        true => (in_patience.max(1.0), Reason::Patience),
        false => (deepest, Reason::Depth),
    };
    let value = round_up(needed, 2);
    SettingAnswer::Set(Setting {
        calls: jobs.len(),
        value: value as u32,
        low: low.clamp(1.0, value) as u32,
        high: deepest_at_low.min(1e6).max(value) as u32,
        why,
    })
}
