//! The calls of a log under another config.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::compare::Comparison;
use super::free::{self, By, FreeRun};
use super::load::{Clients, ProcessLoad};
use super::rules::Matched;
use super::setup::{CannotReplay, Setup, setup};
use super::span::JudgedSpan;
use super::steps::StepEvent;
use super::stores::StoreHistory;
use super::trace::{Trace, TracedCall, TracedProcess};
use tidegate::admit::Postpone;

/// A refused call that comes again within this time counts as tried again.   ns
const AGAIN_WITHIN: u64 = 60_000_000_000;

/// A plan: the calls under both configs, with one assumption about clients.
pub(super) struct Plan {
    pub(super) clients: Clients,
    pub(super) comparison: Comparison,
    /// Calls whose service time is another call's, because they were not sent in the log.
    pub(super) drawn: u64,
    /// Why processes are left out.
    pub(super) unknown: Vec<String>,
    /// Calls that keep their class, caller or rate limit of the log.
    pub(super) kept: UnmappedCalls,
    /// Refused calls of the log, and how many of them came again.
    pub(super) retries: Retries,
}

/// Calls for which the log does not have what the rules of the new config need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnmappedCalls {
    /// Their class.
    pub(super) class: u64,
    /// Their caller, cost and rate limit.
    pub(super) caller: u64,
}

/// Refused calls of the log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retries {
    pub(super) refused: u64,
    /// After them came a call of the same client, caller and function.
    pub(super) again: u64,
}

impl Clients {
    /// The assumption, in words.
    pub(super) const fn assumption(self) -> &'static str {
        match self {
            Self::Open => "calls arrive when they did in the log, whatever became of earlier ones",
            Self::Closed => "a client asks again as long after its answer as it did in the log",
        }
    }

    /// The word for the assumption, in JSON and in headings.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

/// Runs the calls under both configs; the old one is the log's if there is no other.
pub(super) fn plan(
    trace: &Trace,
    stores: &Stores<'_>,
    known: Option<&Runs>,
    clients: Clients,
    new: &Setup,
    old: Option<&Setup>,
    seed: u64,
) -> Plan {
    let mut plan = Plan {
        clients,
        comparison: Comparison::default(),
        drawn: 0,
        unknown: Vec::new(),
        kept: UnmappedCalls::default(),
        retries: Retries::default(),
    };
    for (started, process) in &trace.processes {
        let both = JudgedSpan::of(trace, process).and_then(|span| {
            let load = ProcessLoad::new(trace, process, span, stores.of(*started), clients, seed);
            plan.drawn += load.drawn();
            let logged = logged(trace, process)?;
            let matched = Matched::of(trace, &logged, new);
            let matched_old = old.map(|old| (old, Matched::of(trace, &logged, old)));
            let done = known.filter(|_| clients == Clients::Open && old.is_none());
            let before = match (&matched_old, done.and_then(|runs| runs.get(started))) {
                (None, Some(done)) => Cow::Borrowed(done),
                (None, None) => Cow::Owned(free::run(&load, &By::Log, seed)?),
                (Some((old, matched)), _) => {
                    Cow::Owned(free::run(&load, &By::Config(old, matched), seed)?)
                }
            };
            let after = free::run(&load, &By::Config(new, &matched), seed)?;
            plan.kept.count(process, &span, &matched);
            plan.retries.count(trace, process, &span);
            Ok((span, before, after))
        });
        match both {
            Ok((span, before, after)) => {
                plan.comparison
                    .add(trace, *started, process, (&before, &after));
                plan.comparison.add_logged(*started, process, &span);
            }
            Err(error) => plan.unknown.push(error.to_string()),
        }
    }
    plan.comparison.complete();
    plan
}

/// Views of the stores of quotas that the logs show, by process.
#[derive(Default)]
pub(super) struct Stores<'t> {
    seen: BTreeMap<u64, &'t StoreHistory>,
    nothing: StoreHistory,
}

impl<'t> Stores<'t> {
    /// Adds what feeding the log of a process has shown.
    pub(super) fn add(&mut self, started_us: u64, seen: &'t StoreHistory) {
        self.seen.insert(started_us, seen);
    }

    fn of(&self, started_us: u64) -> &StoreHistory {
        self.seen.get(&started_us).copied().unwrap_or(&self.nothing)
    }
}

/// The configs of a log.
fn logged(trace: &Trace, process: &TracedProcess) -> Result<Vec<Setup>, CannotReplay> {
    let configured = process.given.iter().filter_map(|it| it.what.configured());
    let mut known = BTreeSet::new();
    let configured = configured.filter(|it| known.insert(it.fingerprint.clone()));
    configured.map(|it| setup(&trace.known, it)).collect()
}

impl UnmappedCalls {
    fn count(&mut self, process: &TracedProcess, span: &JudgedSpan, matched: &Matched) {
        let within = span.calls(process);
        for call in &process.calls[within.start as usize..within.end as usize] {
            let placed = matched.get(call.kind);
            self.class += u64::from(placed.class.is_none());
            self.caller += u64::from(placed.claim.is_none() || !placed.is_cost_known);
        }
    }
}

/// Free runs of the log's own config, each with another seed; the first has the seed that was asked
/// for.
pub(super) struct FreeIdentity {
    comparisons: Vec<Comparison>,
    /// The run with the first seed, by process: a plan begins with it.
    first: Runs,
}

/// A run of each process, by its start.
pub(super) type Runs = BTreeMap<u64, FreeRun>;

/// A figure over several runs.
pub(super) struct RunSpread {
    pub(super) least: f64,
    pub(super) mean: f64,
    pub(super) most: f64,
}

/// Free runs of a log with delays that are drawn at random: which call comes back at the right moment
/// is luck, and one run shows only one case.
const SEEDS: u64 = 5;
/// With more calls, one run is enough, and takes long.
const SEEDS_CALLS_MAX: usize = 100_000;

impl FreeIdentity {
    /// Whether the calls of a log end and wait in free runs as they did in the log.
    ///
    /// # Errors
    ///
    /// If a process cannot be replayed.
    pub(super) fn of(trace: &Trace, stores: &Stores<'_>, seed: u64) -> Result<Self, CannotReplay> {
        let calls: usize = trace.processes.values().map(|it| it.calls.len()).sum();
        let mut draws = false;
        for process in trace.processes.values() {
            let logged = logged(trace, process)?;
            let is_random = |it: &Setup| matches!(it.settings.postpone, Postpone::Jitter { .. });
            draws |= logged.iter().any(is_random);
        }
        let runs = if draws && calls <= SEEDS_CALLS_MAX {
            SEEDS
        } else {
            1
        };
        let mut identity = Self {
            comparisons: Vec::new(),
            first: Runs::new(),
        };
        for nth in 0..runs {
            let (comparison, ran) = free_run(trace, stores, seed.saturating_add(nth))?;
            identity.comparisons.push(comparison);
            if nth == 0 {
                identity.first = ran;
            }
        }
        Ok(identity)
    }

    /// The run with the seed that was asked for, of open clients under the log's own config.
    pub(super) const fn first_runs(&self) -> &Runs {
        &self.first
    }

    /// The number of runs.
    pub(super) fn runs(&self) -> usize {
        self.comparisons.len()
    }

    /// The run with the seed that was asked for.
    pub(super) fn first(&self) -> Option<&Comparison> {
        self.comparisons.first()
    }

    /// A figure of all runs.
    pub(super) fn spread(&self, of: impl Fn(&Comparison) -> f64) -> RunSpread {
        let figures: Vec<f64> = self.comparisons.iter().map(of).collect();
        #[expect(clippy::cast_precision_loss, reason = "there are few runs")]
        let count = figures.len().max(1) as f64;
        RunSpread {
            least: figures.iter().copied().fold(f64::INFINITY, f64::min),
            mean: figures.iter().sum::<f64>() / count,
            most: figures.iter().copied().fold(0.0, f64::max),
        }
    }
}

fn free_run(
    trace: &Trace,
    stores: &Stores<'_>,
    seed: u64,
) -> Result<(Comparison, Runs), CannotReplay> {
    let mut comparison = Comparison::default();
    let mut runs = Runs::new();
    for (started, process) in &trace.processes {
        let span = JudgedSpan::of(trace, process)?;
        let store = stores.of(*started);
        let load = ProcessLoad::new(trace, process, span, store, Clients::Open, seed);
        let ran = free::run(&load, &By::Log, seed)?;
        let logged = FreeRun::logged(trace, process, &span);
        comparison.add(trace, *started, process, (&logged, &ran));
        runs.insert(*started, ran);
    }
    comparison.complete();
    Ok((comparison, runs))
}

impl Retries {
    /// Each later call can be the retry of one earlier call.
    fn count(&mut self, trace: &Trace, process: &TracedProcess, span: &JudgedSpan) {
        let within = span.calls(process);
        let calls = &process.calls[within.start as usize..within.end as usize];
        let refused = calls.iter().filter_map(|call| {
            let last = process.last(call);
            matches!(last.what, StepEvent::Refused | StepEvent::Expired).then_some((last.at, call))
        });
        let mut over: Vec<(u64, &TracedCall)> = refused.collect();
        over.sort_by_key(|(at, _)| *at);
        self.refused += over.len() as u64;
        let of = |call: &TracedCall| {
            let kind = trace.kind(call);
            (kind.client, kind.caller, kind.function)
        };
        let mut open: HashMap<_, Vec<u64>> = HashMap::new();
        let mut over = over.into_iter().peekable();
        for call in calls {
            let asked = process.asked(call);
            while let Some((at, refused)) = over.next_if(|(at, _)| *at <= asked) {
                open.entry(of(refused)).or_default().push(at);
            }
            let Some(waiting) = open.get_mut(&of(call)) else {
                continue;
            };
            if waiting.pop().is_some_and(|at| asked - at <= AGAIN_WITHIN) {
                self.again += 1;
            }
        }
    }
}
