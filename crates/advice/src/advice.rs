//! The advice: which limits a log supports.

mod named;
mod values;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use self::named::{callers, functions};
use self::values::{capacity, jobs, max_wait, outlook, outstanding, windows};
use crate::breaking::{BreakingPoint, breaking, met};
use crate::curve::Curve;
use crate::draw::Draw;
use crate::fit::{Fit, fit};
use crate::interval::Quantile;
use crate::runs::{BackendRun, PARTS, RunEnding, Runs, seen};
use crate::sample::Sample;
use crate::setting::{Need, Setting, SettingAnswer};
use crate::tokens::Bucket;

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
/// The questions to a log.
#[derive(Clone, Debug)]
pub struct AdviceRequest {
    /// Within what time calls must end, waits included; and the share of them, such as 0.95.
    pub slo: Option<Slo>,
    /// Today's length of a window, to be kept.   ns
    pub window: Option<u64>,
    /// How long calls may wait today.   ns
    pub max_wait: Option<u64>,
    /// The cost of a call in tokens.
    pub cost: f64,
    /// Costs of functions that have their own.
    pub costs: BTreeMap<Arc<str>, f64>,
    /// The seed of everything that is drawn.
    pub seed: u64,
}

impl Default for AdviceRequest {
    /// No bound, nothing known of today, one token for each call.
    fn default() -> Self {
        Self {
            slo: None,
            window: None,
            max_wait: None,
            cost: 1.0,
            costs: BTreeMap::new(),
            seed: 0,
        }
    }
}

/// A bound on times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// The share of the calls that must keep it, above 0 and below 1.
    pub share: f64,
    /// ns
    pub within: u64,
}

/// The evidence that the log has.
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

/// The facts about a function.
#[derive(Clone, Debug)]
pub struct FunctionAdvice {
    /// The name of the function.
    pub name: Arc<str>,
    /// The number of its calls at the backend.
    pub calls: usize,
    /// The most of them at once.
    pub most: u32,
    /// The median of what a call takes alone, by the curve.   ns
    pub alone: Option<Quantile>,
    /// The curve of its times against all calls at once.
    pub fit: Option<Fit>,
    /// A limit of its own, if its times or failures follow its own concurrency.
    pub outstanding: Option<Setting<u32>>,
}

/// The tokens of one caller.
#[derive(Clone, Debug)]
pub struct CallerAdvice {
    /// The caller's name in the log.
    pub name: Arc<str>,
    /// The number of its calls.
    pub calls: usize,
    /// The most that arrived in one minute.
    pub busiest_minute: usize,
    /// The caller's bucket.
    pub bucket: Result<Bucket, Need>,
}

/// The advice of a log.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The evidence that the advice is based on.
    pub evidence: Evidence,
    /// The curve of all functions.
    pub fit: Option<Fit>,
    /// Where the backend breaks, if the log shows it.
    pub broken: Option<BreakingPoint>,
    /// Calls at once.
    pub outstanding: SettingAnswer<u32>,
    /// The functions, those with the most calls first.
    pub functions: Vec<FunctionAdvice>,
    /// The length of a window.   ns
    pub window: SettingAnswer<u64>,
    /// Calls in a window of that length.
    pub per_window: SettingAnswer<u32>,
    /// Calls that may wait.
    pub capacity: SettingAnswer<u32>,
    /// How long a call may wait.   ns
    pub max_wait: SettingAnswer<u64>,
    /// The change that the advice brings, by the curve; `None` if calls at once change nothing that is known.
    pub outlook: Option<Outlook>,
    /// The callers, those with the most calls first.
    pub callers: Vec<CallerAdvice>,
}

/// The prediction for the calls of the log, by the fitted curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// With the most at once that was seen, and today's max_wait.
    pub seen: Expected,
    /// With the advice.
    pub advised: Expected,
}

/// The effect of a limit on the calls of the log, by the fitted curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Calls at once.
    pub outstanding: u32,
    /// How long a call waits at most, if there is a bound.   ns
    pub max_wait: Option<u64>,
    /// The share of calls that would wait longer.
    pub given_up: f64,
    /// The median of the waits of the others.   ns
    pub wait_p50: u64,
    /// Of a hundred of these waits, 95 are at most this.   ns
    pub wait_p95: u64,
    /// The median time at the backend.   ns
    pub took_p50: u64,
}

/// The advice of the calls of a log, in any order.
#[must_use]
pub fn advise(samples: &[Sample], question: &AdviceRequest) -> Advice {
    let runs = Runs::of(samples);
    let mut draw = Draw::new(question.seed);
    let lacks = lacks(&runs);
    let mut advice = Advice {
        evidence: evidence(samples, &runs),
        fit: None,
        broken: None,
        outstanding: SettingAnswer::NotEnough(lacks.clone()),
        functions: Vec::new(),
        window: SettingAnswer::NotEnough(lacks.clone()),
        per_window: SettingAnswer::NotEnough(lacks.clone()),
        capacity: SettingAnswer::NotEnough(lacks.clone()),
        max_wait: SettingAnswer::NotEnough(lacks.clone()),
        outlook: None,
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
    advice.max_wait = max_wait(samples, &jobs, &curve, limit.unwrap_or(seen), question);
    advice.capacity = capacity(&advice, &jobs, &curve, &mut draw);
    advice.outlook = outlook(&advice, &jobs, question);
    advice.callers = callers(samples, &runs, question, &mut draw);
    advice
}

/// The needs of a log that has no answer at all.
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
    let known = runs.all.iter().filter(|run| run.end != RunEnding::Unknown);
    let (known, served) = known.fold((0, 0), |(all, served), run| {
        (all + 1, served + usize::from(run.end == RunEnding::Served))
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
    Evidence {
        calls: samples.len(),
        runs: runs.all.len(),
        span: runs.span(),
        busiest_minute: busiest_minute(arrivals.into_iter()),
        most: runs.all.iter().map(|run| run.most).max().unwrap_or(0),
        seen: 0,
    }
}

/// The most arrivals, in order, within one minute.
fn busiest_minute(arrivals: impl Iterator<Item = u64>) -> usize {
    let mut latest = VecDeque::new();
    let mut busiest = 0;
    for at in arrivals {
        latest.push_back(at);
        while latest.front().is_some_and(|oldest| oldest + MINUTE <= at) {
            latest.pop_front();
        }
        busiest = busiest.max(latest.len());
    }
    busiest
}

/// The highest level up to `cap` that is known from enough calls.
fn seen_up_to(runs: &[BackendRun], cap: u32) -> u32 {
    let known = runs
        .iter()
        .filter(|run| run.end != RunEnding::Unknown && run.most <= cap);
    seen(
        known.map(|run| (run.most, run.part)),
        SEEN_CALLS,
        SEEN_PARTS,
    )
}
