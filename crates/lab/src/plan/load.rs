//! The calls of a process as a free run gets them: how long the backend took for each, which call a client
//! makes after which, and how late the timer of the sidecar was.

use std::collections::BTreeMap;

use foldhash::HashMap;
use tidegate_limits::Tokens;
use tidegate_limits::scheduler::Outcome;

use super::span::JudgedSpan;
use super::steps::{StepEvent, is_decided};
use super::stores::StoreHistory;
use super::trace::{Trace, TracedCall, TracedProcess};
use crate::random::Random;

/// The sidecar's timer fires at whole milliseconds. With jitter this decides about calls: a call that arrives between two
/// of them takes a slot that has become free since the last one, before the calls that were set aside.   ns
pub(super) const TICK: u64 = 1_000_000;

/// How clients behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Clients {
    /// Calls arrive when they did in the log, whatever became of earlier ones.
    Open,
    /// A client asks again as long after its answer as it did in the log, as nova's workers do.
    Closed,
}

/// How long a backend took for a call, from its turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    pub(super) sent: u64,
    pub(super) replied: Option<u64>,
    pub(super) ended: u64,
    pub(super) outcome: Outcome,
    pub(super) measured: Option<Tokens>,
}

/// The last turn of a call that was sent, and what the backend took from then on.
pub(super) fn service(process: &TracedProcess, call: &TracedCall) -> Option<(u64, Service)> {
    let (mut admitted, mut sent, mut replied, mut end) = (None, None, None, None);
    for step in process.steps(call) {
        match step.what {
            StepEvent::Admitted => (admitted, sent, replied) = (Some(step.at), None, None),
            StepEvent::Sent => sent = Some(step.at),
            StepEvent::Replied => replied = Some(step.at),
            StepEvent::Ended(outcome, measured) => end = Some((step.at, outcome, measured)),
            _ => {}
        }
    }
    let (admitted, sent) = admitted.zip(sent)?;
    let (ended, outcome, measured) = end?;
    let since = |at: u64| at.saturating_sub(admitted);
    let service = Service {
        sent: since(sent),
        replied: replied.map(since),
        ended: since(ended),
        outcome,
        measured,
    };
    Some((admitted, service))
}

/// When the timer fires, if it is set to this instant.
fn tick(wake: u64) -> u64 {
    wake.div_ceil(TICK).saturating_mul(TICK)
}

/// The calls of a process, as they arrive.
pub(super) struct ProcessLoad<'t> {
    pub(super) trace: &'t Trace,
    pub(super) process: &'t TracedProcess,
    pub(super) span: JudgedSpan,
    /// For each call that was not sent in the log, the call whose service time it has; `None` if no
    /// call of the log was sent.
    pub(super) borrowed: HashMap<u32, Option<u32>>,
    pub(super) chains: Option<Chains>,
    /// By how much the timer of the sidecar was late, in the log.   ns
    pub(super) late: Vec<u32>,
    /// The store of quotas, as far as the log shows it.
    pub(super) store: &'t StoreHistory,
}

/// The order of each client's calls, one after another. As closed clients ask.
pub(super) struct Chains {
    /// The call after each call; `u32::MAX` if there is none.
    pub(super) after: Vec<u32>,
    /// Whether another call came before.
    follows: Vec<bool>,
}

impl<'t> ProcessLoad<'t> {
    /// Of one process. A call that was not sent gets the service of another one of its function.
    pub(super) fn new(
        trace: &'t Trace,
        process: &'t TracedProcess,
        span: JudgedSpan,
        store: &'t StoreHistory,
        clients: Clients,
        seed: u64,
    ) -> Self {
        let mut by_function: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        let mut unsent = Vec::new();
        for (call, nth) in process.calls.iter().zip(0..) {
            match service(process, call) {
                Some(_) => {
                    let function = trace.kind(call).function;
                    by_function.entry(function).or_default().push(nth);
                }
                None => unsent.push(nth),
            }
        }
        let mut borrowed = HashMap::default();
        if !unsent.is_empty() {
            let all: Vec<u32> = by_function.values().flatten().copied().collect();
            let mut random = Random::new(seed, 0);
            for call in unsent {
                let function = trace.kind(&process.calls[call as usize]).function;
                let like = by_function.get(&function).unwrap_or(&all);
                let nth = usize::try_from(random.below(like.len().max(1) as u64)).unwrap_or(0);
                borrowed.insert(call, like.get(nth).copied());
            }
        }
        Self {
            trace,
            process,
            span,
            borrowed,
            late: late(process, &span),
            store,
            chains: (clients == Clients::Closed).then(|| Chains::of(trace, process, &span)),
        }
    }

    /// Calls whose service time is another call's, because they were not sent in the log.
    pub(super) fn drawn(&self) -> u64 {
        self.borrowed.len() as u64
    }

    /// Whether a call arrives after the end of another one of its client.
    pub(super) fn follows(&self, call: u32) -> bool {
        let chains = self.chains.as_ref();
        chains.is_some_and(|chains| chains.follows[call as usize])
    }

    pub(super) fn service(&self, call: u32) -> Service {
        let like = self.borrowed.get(&call).copied().unwrap_or(Some(call));
        let like = like.map(|like| &self.process.calls[like as usize]);
        let service = like.and_then(|like| service(self.process, like));
        service.map_or(
            Service {
                sent: 0,
                replied: None,
                ended: 0,
                outcome: Outcome::Served,
                measured: None,
            },
            |(_, service)| service,
        )
    }
}

/// A timer of a loaded machine is late by less.   ns
const LATE_MAX: u64 = 50_000_000;
/// The number of moments that show how late it is.
const LATE_SAMPLES: usize = 10_000;

/// By how much the timer was late after its tick, for calls that were set aside, and for deadlines. A call that is set
/// aside until its deadline has its last turn then only if the timer is on time, which it is not.
fn late(process: &TracedProcess, span: &JudgedSpan) -> Vec<u32> {
    let within = span.calls(process);
    let mut late = Vec::new();
    for call in &process.calls[within.start as usize..within.end as usize] {
        let mut due = None;
        for step in process.steps(call) {
            let due_before = match step.what {
                StepEvent::Expired => due.min(call.deadline()).or(call.deadline()),
                _ => due,
            };
            due = match step.what {
                StepEvent::Postponed(aside) => Some(step.at + aside),
                _ => None,
            };
            let by = due_before.map(|due| step.at.saturating_sub(tick(due)));
            let by = by.filter(|by| *by <= LATE_MAX && is_decided(step.what));
            late.extend(by.and_then(|by| u32::try_from(by).ok()));
        }
        if late.len() >= LATE_SAMPLES {
            break;
        }
    }
    late
}

impl Chains {
    /// The call before of each call is the one of the same client that ended last before it
    /// arrived, and that no other call follows.
    fn of(trace: &Trace, process: &TracedProcess, span: &JudgedSpan) -> Self {
        let calls = &process.calls;
        let within = span.calls(process);
        let mut ends: Vec<(u64, u32)> = within
            .clone()
            .map(|nth| (process.last(&calls[nth as usize]).at, nth))
            .collect();
        ends.sort_unstable();
        let mut ends = ends.into_iter().peekable();
        let mut idle: HashMap<_, Vec<u32>> = HashMap::default();
        let client = |nth: u32| {
            let kind = trace.kind(&calls[nth as usize]);
            (kind.client, kind.caller)
        };
        let mut chains = Self {
            after: vec![u32::MAX; calls.len()],
            follows: vec![false; calls.len()],
        };
        // Calls are in the order in which they asked.
        for nth in within {
            let arrived = calls[nth as usize].arrived;
            while let Some((_, over)) = ends.next_if(|(at, _)| *at <= arrived) {
                idle.entry(client(over)).or_default().push(over);
            }
            if let Some(before) = idle.get_mut(&client(nth)).and_then(Vec::pop) {
                chains.after[before as usize] = nth;
                chains.follows[nth as usize] = true;
            }
        }
        chains
    }
}
