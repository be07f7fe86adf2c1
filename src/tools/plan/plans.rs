//! The calls of a log under another config.

use std::collections::HashMap;

use super::compare::Comparison;
use super::free::{self, By, Clients, Load, Run};
use super::setup::{CannotReplay, Setup};
use super::span::Span;
use super::trace::{Call, Process, Trace, What};

/// A refused call that comes again within this time counts as tried again.   ns
const AGAIN_WITHIN: u64 = 60_000_000_000;

/// One plan: the calls under both configs, with one assumption about clients.
pub(super) struct Plan {
    pub(super) clients: Clients,
    pub(super) comparison: Comparison,
    /// Calls whose service time is another call's, because they were not sent in the log.
    pub(super) drawn: u64,
    /// Why processes are left out.
    pub(super) unknown: Vec<String>,
    /// Refused calls of the log, and how many of them came again.
    pub(super) retries: Retries,
}

/// Refused calls of the log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retries {
    pub(super) refused: u64,
    /// After them came a call of the same client, caller and function.
    pub(super) again: u64,
}

impl Clients {
    /// What is assumed.
    pub(super) const fn assumption(self) -> &'static str {
        match self {
            Self::Open => "calls arrive when they did in the log, whatever became of earlier ones",
            Self::Closed => "a client asks again as long after its answer as it did in the log",
        }
    }

    /// Its word.
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
        retries: Retries::default(),
    };
    for (started, process) in &trace.processes {
        let both = Span::of(process).and_then(|span| {
            let load = Load::new(trace, process, span, seed);
            plan.drawn += load.drawn;
            let before = old.map_or(By::Log, By::Config);
            let before = free::run(&load, &before, clients, seed)?;
            let after = free::run(&load, &By::Config(new), clients, seed)?;
            plan.retries.count(process, &span);
            Ok((Run::logged(trace, process, &span), before, after))
        });
        match both {
            Ok((logged, before, after)) => {
                let runs = (&logged, &before, &after);
                plan.comparison.add(trace, *started, process, runs);
            }
            Err(error) => plan.unknown.push(error.to_string()),
        }
    }
    plan.comparison.complete();
    plan
}

/// Whether the calls of a log end and wait in a free run as they did in the log.
pub(super) fn free_identity(trace: &Trace, seed: u64) -> Result<Comparison, CannotReplay> {
    let mut comparison = Comparison::default();
    for (started, process) in &trace.processes {
        let span = Span::of(process)?;
        let load = Load::new(trace, process, span, seed);
        let ran = free::run(&load, &By::Log, Clients::Open, seed)?;
        let logged = Run::logged(trace, process, &span);
        comparison.add(trace, *started, process, (&logged, &logged, &ran));
    }
    comparison.complete();
    Ok(comparison)
}

impl Retries {
    /// Each later call can be the retry of one earlier call.
    fn count(&mut self, process: &Process, span: &Span) {
        let within = span.calls(process);
        let calls = &process.calls[within.start as usize..within.end as usize];
        let refused = |call: &&Call| {
            let last = call.steps.last().map(|step| step.what);
            matches!(last, Some(What::Refused | What::Expired))
        };
        let mut over: Vec<&Call> = calls.iter().filter(refused).collect();
        over.sort_by_key(|call| call.over());
        self.refused += over.len() as u64;
        let of = |call: &Call| (call.client, call.caller, call.function);
        let mut open: HashMap<_, Vec<u64>> = HashMap::new();
        let mut over = over.into_iter().peekable();
        for call in calls {
            let asked = call.asked();
            while let Some(refused) = over.next_if(|refused| refused.over() <= asked) {
                open.entry(of(refused)).or_default().push(refused.over());
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
