//! The values of single functions and callers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{AdviceRequest, CALLS_MIN, CallerAdvice, FunctionAdvice, busiest_minute, seen_up_to};
use crate::breaking::{breaking, met};
use crate::curve::Curve;
use crate::draw::Draw;
use crate::fit::{fit, work};
use crate::interval::quantile;
use crate::runs::{BackendRun, RunEnding, Runs};
use crate::sample::Sample;
use crate::setting::{Need, Reason, Setting};
use crate::tokens::bucket;

/// Functions, and callers, that get an answer of their own: those with the most calls.
const NAMED_MAX: usize = 50;
/// Calls of a function or caller that an answer for it needs.
const OWN_CALLS: usize = 400;
/// How much better a function's own level must explain its times than the level of all.
const OWN_BETTER: f64 = 0.9;

pub(super) fn functions(runs: &Runs, is_broken: bool, draw: &mut Draw) -> Vec<FunctionAdvice> {
    let mut counts = vec![0_usize; runs.functions.len()];
    for run in &runs.all {
        counts[run.function] += 1;
    }
    let mut order: Vec<_> = (0..counts.len()).collect();
    order.sort_unstable_by_key(|number| (std::cmp::Reverse(counts[*number]), *number));
    let asked = order.into_iter().take(NAMED_MAX);
    asked
        .map(|number| {
            let mut function = FunctionAdvice {
                name: Arc::clone(&runs.functions[number]),
                calls: counts[number],
                most: 0,
                alone: None,
                fit: None,
                outstanding: None,
            };
            let (_, own_runs) = runs.of_function(number);
            function.most = own_runs.iter().map(|run| run.most).max().unwrap_or(0);
            if counts[number] >= OWN_CALLS {
                own(&mut function, runs, number, is_broken, draw);
            }
            function
        })
        .collect()
}

/// Fills in the facts that the calls of one function show.
fn own(
    function: &mut FunctionAdvice,
    runs: &Runs,
    number: usize,
    is_broken: bool,
    draw: &mut Draw,
) {
    let of_all: Vec<BackendRun> = runs
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
        .filter(|run| run.end == RunEnding::Served)
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
            calls: fit.calls,
            value: fit.knee,
            low: fit.knee_low,
            high: fit.knee_high,
            why: Reason::Knee,
        }),
        (None, Some(broken)) if most > 0 => Some(Setting {
            calls: own.len(),
            value: most,
            low: most,
            high: most,
            why: Reason::Breaks(broken),
        }),
        _ => None,
    };
}

pub(super) fn callers(
    samples: &[Sample],
    runs: &Runs,
    question: &AdviceRequest,
    draw: &mut Draw,
) -> Vec<CallerAdvice> {
    let mut calls: BTreeMap<&Arc<str>, Vec<(u64, f64)>> = BTreeMap::new();
    for sample in samples {
        let Some(caller) = &sample.caller else {
            continue;
        };
        let cost = question
            .costs
            .get(&sample.function)
            .copied()
            .unwrap_or(question.cost);
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
            CallerAdvice {
                name: Arc::clone(name),
                calls: calls.len(),
                busiest_minute: busiest_minute(calls.iter().map(|call| call.0)),
                bucket,
            }
        })
        .collect()
}
