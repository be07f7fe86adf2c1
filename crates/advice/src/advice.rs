//! The advice: which limits a log supports.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::breaking::{Break, Met, breaking, met};
use crate::curve::Curve;
use crate::draw::Draw;
use crate::fit::{Fit, fit, work};
use crate::interval::{Quantile, quantile, values_needed};
use crate::replay::{Job, Ran, run};
use crate::runs::{End, PARTS, Run, Runs, seen};
use crate::sample::{Ending, Sample};
use crate::setting::{Answer, Need, Setting, Why, resampled_highest, round_up};
use crate::tokens::{Bucket, bucket};

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
/// Calls at the backend that an answer needs.
const CALLS_MIN: usize = 200;
/// Time that an answer needs.   ns
const SPAN_MIN: u64 = 30 * MINUTE;
/// Parts of the log with calls that an answer needs.
const PARTS_MIN: usize = 10;
/// The share of calls that the backend must serve.
const SERVED_MIN: f64 = 0.5;
/// The number of calls that must have met a level before it counts as seen. If none of 60 fails, at most
/// 6 % of all fail (the 95 % interval of 0 of 60).
const SEEN_CALLS: usize = 60;
/// The number of parts of the log in which they must have met it.
const SEEN_PARTS: usize = 3;
/// A shorter wait is the proxy's own time.   ns
const WAIT_MIN: u64 = 1_000_000;
/// Functions, and callers, that get an answer of their own: those with the most calls.
const NAMED_MAX: usize = 50;
/// Calls of a function or caller that an answer for it needs.
const OWN_CALLS: usize = 400;
/// Calls that are run through a fitted curve: of a longer log, the busiest stretch.
const JOBS_MAX: usize = 100_000;
/// How much better a function's own level must explain its times than the level of all.
const OWN_BETTER: f64 = 0.9;
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

/// What is asked of a log.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Within what time calls must end, waits included; and the share of them, such as 0.95.
    pub slo: Option<Slo>,
    /// Today's length of a window, to be kept.   ns
    pub window: Option<u64>,
    /// How long calls may wait today.   ns
    pub threshold: Option<u64>,
    /// Costs of functions in tokens; 1 for those that are not in it.
    pub costs: BTreeMap<Arc<str>, f64>,
    /// The seed of everything that is drawn.
    pub seed: u64,
}

/// A bound on times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// The share of the calls that must keep it, above 0 and below 1.
    pub share: f64,
    /// ns
    pub within: u64,
}

/// What the log has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Calls that arrived.
    pub calls: usize,
    /// Calls at the backend whose concurrency is known.
    pub runs: usize,
    /// From the first to the last of these.   ns
    pub span: u64,
    /// The most that arrived in one minute.
    pub busiest_minute: usize,
    /// The most at once.
    pub most: u32,
    /// The most at once that enough calls met, in several parts of the log.
    pub seen: u32,
}

/// What is known of one function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: Arc<str>,
    /// Its calls at the backend.
    pub calls: usize,
    /// The median of what a call takes alone, by the curve.   ns
    pub alone: Option<Quantile>,
    /// The curve of its times against all calls at once.
    pub fit: Option<Fit>,
    /// A limit of its own, if its times or failures follow its own concurrency.
    pub outstanding: Option<Setting<u32>>,
}

/// The tokens of one caller.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Its name in the log.
    pub name: Arc<str>,
    /// Its calls.
    pub calls: usize,
    /// Its bucket.
    pub bucket: Result<Bucket, Need>,
}

/// The advice of a log.
#[derive(Clone, Debug)]
pub struct Advice {
    /// What it is based on.
    pub evidence: Evidence,
    /// The curve of all functions.
    pub fit: Option<Fit>,
    /// Where the backend breaks, if the log shows it.
    pub broken: Option<Break>,
    /// Calls at once.
    pub outstanding: Answer<u32>,
    /// The functions, those with the most calls first.
    pub functions: Vec<Function>,
    /// The length of a window.   ns
    pub window: Answer<u64>,
    /// Calls in a window of that length.
    pub per_window: Answer<u32>,
    /// Calls that may wait.
    pub capacity: Answer<u32>,
    /// How long a call may wait.   ns
    pub threshold: Answer<u64>,
    /// The callers, those with the most calls first.
    pub callers: Vec<Caller>,
}

/// The advice of the calls of a log, in any order.
#[must_use]
pub fn advise(samples: &[Sample], question: &Question) -> Advice {
    let runs = Runs::of(samples);
    let mut draw = Draw::new(question.seed);
    let lacks = lacks(&runs);
    let mut advice = Advice {
        evidence: evidence(samples, &runs),
        fit: None,
        broken: None,
        outstanding: Answer::NotEnough(lacks.clone()),
        functions: Vec::new(),
        window: Answer::NotEnough(lacks.clone()),
        per_window: Answer::NotEnough(lacks.clone()),
        capacity: Answer::NotEnough(lacks.clone()),
        threshold: Answer::NotEnough(lacks.clone()),
        callers: Vec::new(),
    };
    if !lacks.is_empty() {
        return advice;
    }
    advice.broken = breaking(met(&runs.all));
    let cap = advice.broken.map_or(u32::MAX, |at| at.from - 1);
    advice.evidence.seen = seen_up_to(&runs.all, cap);
    let seen = advice.evidence.seen;
    advice.fit = fit(&runs.all, &runs.levels, seen, &mut draw);
    let curve = advice.fit.as_ref().map_or(Curve::Flat, |fit| fit.curve);
    let jobs = jobs(samples, &runs, &curve, &mut draw);
    advice.outstanding = outstanding(&runs, &advice, &jobs, question);
    advice.functions = functions(&runs, advice.broken.is_some(), &mut draw);
    let limit = advice.outstanding.setting().map(|set| set.value);
    (advice.window, advice.per_window) =
        windows(&runs, limit.is_some(), question.window, &mut draw);
    advice.threshold = threshold(samples, &jobs, &curve, limit.unwrap_or(seen), question);
    advice.capacity = capacity(&advice, &jobs, &curve, &mut draw);
    advice.callers = callers(samples, &runs, question, &mut draw);
    advice
}

/// What a log lacks for any answer.
fn lacks(runs: &Runs) -> Vec<Need> {
    let mut needs = Vec::new();
    let has = runs.all.len();
    if has < CALLS_MIN {
        needs.push(Need::Calls {
            has,
            needs: CALLS_MIN,
        });
    }
    if runs.span() < SPAN_MIN {
        needs.push(Need::Span {
            has: runs.span(),
            needs: SPAN_MIN,
        });
    }
    let mut parts = [false; PARTS];
    for run in &runs.all {
        parts[run.part.min(PARTS - 1)] = true;
    }
    let parts = parts.into_iter().filter(|has| *has).count();
    if parts < PARTS_MIN {
        needs.push(Need::Parts {
            has: parts,
            needs: PARTS_MIN,
        });
    }
    let known = runs.all.iter().filter(|run| run.end != End::Unknown);
    let (known, served) = known.fold((0, 0), |(all, served), run| {
        (all + 1, served + usize::from(run.end == End::Served))
    });
    let share = served as f64 / known.max(1) as f64;
    if has >= CALLS_MIN && share < SERVED_MIN {
        needs.push(Need::Served { share });
    }
    let timeless = runs.all.iter().filter(|run| run.took() == 0).count();
    if timeless > has / 2 {
        needs.push(Need::FinerTimes);
    }
    needs
}

fn evidence(samples: &[Sample], runs: &Runs) -> Evidence {
    let mut arrivals: Vec<_> = samples.iter().map(|sample| sample.arrived).collect();
    arrivals.sort_unstable();
    let mut oldest = 0;
    let mut busiest_minute = 0;
    for (newest, at) in arrivals.iter().enumerate() {
        while arrivals[oldest] + MINUTE <= *at {
            oldest += 1;
        }
        busiest_minute = busiest_minute.max(newest + 1 - oldest);
    }
    Evidence {
        calls: samples.len(),
        runs: runs.all.len(),
        span: runs.span(),
        busiest_minute,
        most: runs.all.iter().map(|run| run.most).max().unwrap_or(0),
        seen: 0,
    }
}

/// The highest level up to `cap` that is known from enough calls.
fn seen_up_to(runs: &[Run], cap: u32) -> u32 {
    let known = runs
        .iter()
        .filter(|run| run.end != End::Unknown && run.most <= cap);
    seen(
        known.map(|run| (run.most, run.part)),
        SEEN_CALLS,
        SEEN_PARTS,
    )
}

/// Every call that arrived while the log shows all calls, with its work alone. A call that was never
/// sent gets the work of a random call of its function.
fn jobs(samples: &[Sample], runs: &Runs, curve: &Curve, draw: &mut Draw) -> Vec<Job> {
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

fn outstanding(runs: &Runs, advice: &Advice, jobs: &[Job], question: &Question) -> Answer<u32> {
    let seen = advice.evidence.seen;
    if seen == 0 {
        return Answer::NotEnough(vec![Need::Repeated]);
    }
    let strained = advice.fit.as_ref().filter(|fit| fit.is_strained());
    if let Some(fit) = strained {
        return Answer::Set(at_knee(fit, jobs, question));
    }
    let why = match advice.broken {
        Some(broken) => Why::Breaks(broken),
        None if is_waited_for(&runs.all, seen) => Why::Waited,
        None => return Answer::NoEvidenceBeyond(seen),
    };
    Answer::Set(Setting {
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
fn at_knee(fit: &Fit, jobs: &[Job], question: &Question) -> Setting<u32> {
    let knee = Setting {
        value: fit.knee,
        low: fit.knee_low,
        high: fit.knee_high,
        why: Why::Knee,
    };
    let Some(slo) = question.slo else {
        return knee;
    };
    let patience = question.threshold.unwrap_or(u64::MAX);
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
    let hits = tried
        .iter()
        .find(|(limit, _)| *limit == value)
        .map_or(0, |(_, hits)| *hits);
    Setting {
        value,
        low: fit.knee_low.min(value),
        high: fit.knee_high.max(value),
        why: Why::InTime {
            share: hits as f64 / jobs.len().max(1) as f64,
        },
    }
}

/// Whether enough calls waited until they could start at about this level.
fn is_waited_for(runs: &[Run], seen_level: u32) -> bool {
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

fn functions(runs: &Runs, is_broken: bool, draw: &mut Draw) -> Vec<Function> {
    let mut counts = vec![0_usize; runs.functions.len()];
    for run in &runs.all {
        counts[run.function] += 1;
    }
    let mut order: Vec<_> = (0..counts.len()).collect();
    order.sort_unstable_by_key(|number| (std::cmp::Reverse(counts[*number]), *number));
    let asked = order.into_iter().take(NAMED_MAX);
    asked
        .map(|number| {
            let mut function = Function {
                name: Arc::clone(&runs.functions[number]),
                calls: counts[number],
                alone: None,
                fit: None,
                outstanding: None,
            };
            if counts[number] >= OWN_CALLS {
                own(&mut function, runs, number, is_broken, draw);
            }
            function
        })
        .collect()
}

/// What the calls of one function show.
fn own(function: &mut Function, runs: &Runs, number: usize, is_broken: bool, draw: &mut Draw) {
    let of_all: Vec<Run> = runs
        .all
        .iter()
        .filter(|run| run.function == number)
        .copied()
        .collect();
    let most = seen_up_to(&of_all, u32::MAX);
    let by_all = fit(&of_all, &runs.levels, most, draw);
    let curve = by_all.as_ref().map_or(Curve::Flat, |fit| fit.curve);
    let mut alone: Vec<u64> = of_all
        .iter()
        .filter(|run| run.end == End::Served)
        .map(|run| work(run, &runs.levels, &curve) as u64)
        .collect();
    alone.sort_unstable();
    function.alone = quantile(&alone, 0.5);
    let left_by_all = by_all.as_ref().map_or(f64::INFINITY, |fit| fit.left);
    function.fit = by_all;
    if runs.functions.len() < 2 {
        return;
    }
    let (levels, own) = runs.of_function(number);
    let broken = if is_broken { None } else { breaking(met(&own)) };
    let most = seen_up_to(&own, broken.map_or(u32::MAX, |at| at.from - 1));
    let fit = fit(&own, &levels, most, draw);
    let strained = fit.filter(|fit| fit.is_strained() && fit.left < OWN_BETTER * left_by_all);
    function.outstanding = match (strained, broken) {
        (Some(fit), _) => Some(Setting {
            value: fit.knee,
            low: fit.knee_low,
            high: fit.knee_high,
            why: Why::Knee,
        }),
        (None, Some(broken)) if most > 0 => Some(Setting {
            value: most,
            low: most,
            high: most,
            why: Why::Breaks(broken),
        }),
        _ => None,
    };
}

/// The length of a window, and the calls in it.
fn windows(
    runs: &Runs,
    is_known: bool,
    today: Option<u64>,
    draw: &mut Draw,
) -> (Answer<u64>, Answer<u32>) {
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
    let length = today
        .filter(|length| *length > 0)
        .unwrap_or_else(|| length_of(high));
    let window = Answer::Set(Setting {
        value: length,
        low: length_of(high).min(length),
        high: length_of(low).max(length),
        why: Why::Window,
    });
    // The starts in the window that ends with each start.
    let mut oldest = 0;
    let mut levels = Vec::with_capacity(runs.all.len());
    for (newest, run) in runs.all.iter().enumerate() {
        while runs.all[oldest].started + length <= run.started {
            oldest += 1;
        }
        levels.push((newest + 1 - oldest) as u32);
    }
    let met_there: Vec<Met> = runs
        .all
        .iter()
        .zip(&levels)
        .filter(|(run, _)| run.end != End::Unknown)
        .map(|(run, level)| Met {
            level: *level,
            failed: run.end == End::Failed,
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
    // A window that is full once holds many calls, so its last call stands for it.
    let value = seen(levels.into_iter(), SEEN_PARTS, SEEN_PARTS);
    let (low, _) = resampled_highest(&highest, draw);
    let why = match broken {
        Some(broken) => Why::Breaks(broken),
        None if is_known => Why::Taken,
        None => return (window, Answer::NoEvidenceBeyond(value)),
    };
    let per_window = Answer::Set(Setting {
        value,
        low: (low as u32).min(value),
        high: value,
        why,
    });
    (window, per_window)
}

/// How long a call may wait.
fn threshold(
    samples: &[Sample],
    jobs: &[Job],
    curve: &Curve,
    limit: u32,
    question: &Question,
) -> Answer<u64> {
    let mut left: Vec<u64> = samples
        .iter()
        .filter(|sample| sample.ending == Ending::Left && sample.started.is_none())
        .map(|sample| sample.ended.saturating_sub(sample.arrived))
        .collect();
    left.sort_unstable();
    let patience = quantile(&left, 0.05).map(|it| Setting {
        value: it.value,
        low: it.low,
        high: it.high,
        why: Why::Left,
    });
    let by_slo = question.slo.and_then(|slo| {
        let mut took = run(jobs, curve, limit, u64::MAX, slo.within, PARTS).took;
        took.sort_unstable();
        let took = quantile(&took, slo.share)?;
        let rest = |took: u64| slo.within.saturating_sub(took);
        Some(Setting {
            value: rest(took.value),
            low: rest(took.high),
            high: rest(took.low),
            why: Why::Slo,
        })
    });
    let both = patience.into_iter().chain(by_slo);
    match both.min_by_key(|it| it.value) {
        Some(setting) => Answer::Set(setting),
        None => Answer::NotEnough(vec![Need::Bound {
            left: left.len(),
            needs: values_needed(0.05),
        }]),
    }
}

/// Calls that may wait.
fn capacity(advice: &Advice, jobs: &[Job], curve: &Curve, draw: &mut Draw) -> Answer<u32> {
    let Some(outstanding) = advice.outstanding.setting() else {
        return Answer::NotEnough(vec![Need::Outstanding]);
    };
    let patience = advice.threshold.setting().map(|set| set.value);
    let depths = |limit: u32| {
        let patience = patience.unwrap_or(u64::MAX);
        let Ran { depths, .. } = run(jobs, curve, limit.max(1), u64::MAX, patience, PARTS);
        let mut parts = [0.0; PARTS];
        for (part, depth) in parts.iter_mut().zip(depths) {
            *part = depth as f64;
        }
        parts
    };
    let (low, deepest) = resampled_highest(&depths(outstanding.value), draw);
    if deepest < 1.0 {
        return Answer::NotEnough(vec![Need::Waits]);
    }
    let (_, deepest_at_low) = resampled_highest(&depths(outstanding.low), draw);
    // A call behind more than are completed in its patience would be given up in the end.
    let work: f64 = jobs.iter().map(|job| job.work).sum::<f64>() / jobs.len().max(1) as f64;
    let in_patience = patience.map_or(f64::INFINITY, |patience| {
        patience as f64 / work * curve.throughput(outstanding.value)
    });
    let (needed, why) = match in_patience < deepest {
        true => (in_patience.max(1.0), Why::Patience),
        false => (deepest, Why::Depth),
    };
    let value = round_up(needed, 2);
    Answer::Set(Setting {
        value: value as u32,
        low: low.clamp(1.0, value) as u32,
        high: deepest_at_low.min(1e6).max(value) as u32,
        why,
    })
}

fn callers(samples: &[Sample], runs: &Runs, question: &Question, draw: &mut Draw) -> Vec<Caller> {
    let mut calls: BTreeMap<&Arc<str>, Vec<(u64, f64)>> = BTreeMap::new();
    for sample in samples {
        let Some(caller) = &sample.caller else {
            continue;
        };
        let cost = question.costs.get(&sample.function).copied().unwrap_or(1.0);
        calls
            .entry(caller)
            .or_default()
            .push((sample.arrived, cost));
    }
    let mut callers: Vec<_> = calls.into_iter().collect();
    callers.sort_by_key(|(_, calls)| std::cmp::Reverse(calls.len()));
    callers.truncate(NAMED_MAX);
    callers
        .into_iter()
        .map(|(name, mut calls)| {
            calls.sort_unstable_by_key(|call| call.0);
            let few = Need::Calls {
                has: calls.len(),
                needs: CALLS_MIN,
            };
            let bucket = match calls.len() < CALLS_MIN {
                true => Err(few),
                false => bucket(&calls, runs.from, runs.to, draw).ok_or(few),
            };
            Caller {
                name: Arc::clone(name),
                calls: calls.len(),
                bucket,
            }
        })
        .collect()
}
