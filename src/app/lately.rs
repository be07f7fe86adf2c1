//! The calls under way, and the latest that have ended, for queries by id.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use foldhash::HashMap;
use tidegate_callers::{CallerId, RateLimitId};
use tidegate_limits::Timestamp;
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::scheduler::Delays;
use tidegate_runtime::lock;

use crate::call::{Claim, Facts, Reason, Record, Verdict};
use crate::telemetry::calls::Durations;

/// The most remembered calls. Each takes about 200 bytes, and 40 for each limit that held it.
pub(super) const ENDED_MAX: usize = 10_000;

/// How often a call is looked for that is being reported.
const TRIES: usize = 1_000;

/// Calls under way and calls that ended recently.
#[derive(Debug)]
pub(super) struct Lately {
    under_way: Mutex<HashMap<u64, Weak<Record>>>,
    ended: Mutex<VecDeque<Report>>,
}

/// A call under way.
#[derive(Clone, Debug)]
pub(super) struct UnderWay {
    pub(super) arrived: Timestamp,
    pub(super) is_admitted: bool,
    pub(super) function: Arc<str>,
    pub(super) class: Arc<str>,
    pub(super) listener: Arc<str>,
    pub(super) caller: Option<CallerId>,
    pub(super) rate_limit: Option<RateLimitId>,
}

/// A call that is known by its id.
#[derive(Debug)]
pub(super) enum Found {
    UnderWay(Arc<Record>),
    Ended(Report),
}

/// What is known of a call: how it ended, or how it is so far.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) id: u64,
    pub(super) arrived: Timestamp,
    pub(super) listener: Arc<str>,
    pub(super) function: Arc<str>,
    pub(super) class: Arc<str>,
    pub(super) target: Option<Box<str>>,
    pub(super) caller: Option<CallerId>,
    pub(super) rate_limit: Option<Arc<str>>,
    pub(super) tokens: Option<TokenCount>,
    pub(super) verdict: Verdict,
    pub(super) reason: Option<Reason>,
    pub(super) shared: bool,
    pub(super) delays: Delays,
    pub(super) took: Durations,
}

/// Has room for all that it remembers, which takes no memory until it is used.
impl Default for Lately {
    fn default() -> Self {
        Self {
            under_way: Mutex::default(),
            ended: Mutex::new(VecDeque::with_capacity(ENDED_MAX)),
        }
    }
}

impl Lately {
    pub(super) fn begun(&self, id: u64, record: Weak<Record>) {
        lock(&self.under_way).insert(id, record);
    }

    /// A call has ended.
    pub(super) fn ended(&self, facts: &Facts, took: &Durations) {
        let mut all = lock(&self.ended);
        if all.len() >= ENDED_MAX {
            all.pop_front();
        }
        all.push_back(Report::of(facts, *took));
        drop(all);
        // Last, so that it is always in one of both.
        lock(&self.under_way).remove(&facts.id);
    }

    /// Looks at the latest calls that have ended, the latest first, at most `most`.
    pub(super) fn latest<T>(&self, most: usize, look: impl FnMut(&Report) -> T) -> Vec<T> {
        lock(&self.ended)
            .iter()
            .rev()
            .take(most)
            .map(look)
            .collect()
    }

    /// Looks at every call under way, in no order.
    pub(super) fn each_under_way(&self, mut look: impl FnMut(&Facts)) {
        let records: Vec<_> = lock(&self.under_way).values().cloned().collect();
        // Without the lock, because the last owner of a record reports its end.
        for record in records.iter().filter_map(Weak::upgrade) {
            record.note(|facts| look(facts));
        }
    }

    /// A call under way, or one that ended recently.
    pub(super) fn find(&self, id: u64) -> Option<Found> {
        for _ in 0..TRIES {
            let known = lock(&self.under_way).get(&id).map(Weak::upgrade);
            match known {
                Some(Some(record)) => return Some(Found::UnderWay(record)),
                // Its last owner reports it at this moment.
                Some(None) => thread::yield_now(),
                None => break,
            }
        }
        // The latest are asked for most.
        let all = lock(&self.ended);
        let ended = all.iter().rev().find(|report| report.id == id);
        ended.cloned().map(Found::Ended)
    }

    /// When the call ended that is the next to be forgotten; `None` if every call is remembered.
    pub(super) fn remembered_since(&self) -> Option<Timestamp> {
        let all = lock(&self.ended);
        let first = all.front().filter(|_| all.len() >= ENDED_MAX)?;
        Some(first.arrived + first.took.total)
    }

    /// The calls under way, the oldest first.
    pub(super) fn under_way(&self) -> Vec<UnderWay> {
        let records: Vec<_> = lock(&self.under_way).values().cloned().collect();
        let mut all: Vec<UnderWay> = records
            .iter()
            // Without the lock, because the last owner of a record reports its end.
            .filter_map(Weak::upgrade)
            .map(|record| record.note(|facts| under_way(facts)))
            .collect();
        all.sort_by_key(|call| call.arrived);
        all
    }
}

impl Report {
    pub(super) fn of(facts: &Facts, took: Durations) -> Self {
        let claim = facts.claim.as_ref();
        let charged = claim.filter(|claim| claim.rate_limit().is_some());
        Self {
            id: facts.id,
            arrived: facts.origin.arrived,
            listener: Arc::clone(&facts.origin.identity.listener),
            function: Arc::clone(&facts.function),
            class: Arc::clone(&facts.class),
            target: facts.target.clone(),
            caller: claim.map(|claim| claim.caller),
            rate_limit: claim.and_then(Claim::rate_limit).cloned(),
            // A call that was never admitted has drawn nothing.
            tokens: charged.filter(|_| facts.sent.is_some()).map(|claim| {
                facts
                    .rare()
                    .settled
                    .map_or(claim.cost, |settled| settled.charged)
            }),
            verdict: facts.verdict,
            reason: facts.reason,
            shared: facts.shared,
            delays: facts.delays.clone(),
            took,
        }
    }
}

/// The times of the parts of a call until now.
pub(super) fn durations(facts: &Facts, now: Timestamp) -> Durations {
    let arrived = facts.origin.arrived;
    Durations {
        total: now.since(arrived),
        waited: facts.admitted.map(|admitted| admitted.since(arrived)),
        // A backend that never finished counts for as long as the call waited for it, so that
        // the slowest calls are included.
        backend: facts
            .sent
            .map(|sent| facts.answered.unwrap_or(now).since(sent)),
    }
}

fn under_way(facts: &Facts) -> UnderWay {
    let claim = facts.claim.as_ref();
    UnderWay {
        arrived: facts.origin.arrived,
        is_admitted: facts.admitted.is_some(),
        function: Arc::clone(&facts.function),
        class: Arc::clone(&facts.class),
        listener: Arc::clone(&facts.origin.identity.listener),
        caller: claim.map(|claim| claim.caller),
        rate_limit: claim.and_then(|claim| claim.charged.rate_limit()),
    }
}
