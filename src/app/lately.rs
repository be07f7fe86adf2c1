//! The calls under way, and the latest that have ended, for queries by id.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread;

use foldhash::HashMap;
use tidegate_callers::{CallerId, RateLimitId};
use tidegate_limits::Timestamp;
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::scheduler::Delays;
use tidegate_runtime::PerThread;

use crate::call::{Claim, Facts, Reason, Record, Verdict};
use crate::telemetry::calls::Durations;

/// The most remembered calls of one thread. Each takes about 200 bytes, and 40 for each limit that held it.
pub(super) const ENDED_MAX: usize = 10_000;

/// How often a call is looked for that is being reported.
const TRIES: usize = 1_000;

/// Calls under way and calls that ended recently.
#[derive(Debug, Default)]
pub(super) struct RecentCalls {
    under_way: PerThread<HashMap<u64, Weak<Record>>>,
    /// The oldest first.
    ended: PerThread<VecDeque<CallReport>>,
}

/// A call under way.
#[derive(Clone, Debug)]
pub(super) struct CallUnderWay {
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
pub(super) enum FoundCall {
    UnderWay(Arc<Record>),
    Ended(CallReport),
}

/// The facts of a call: how it ended, or how it is so far.
#[derive(Clone, Debug)]
pub(super) struct CallReport {
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

impl RecentCalls {
    pub(super) fn begun(&self, id: u64, record: Weak<Record>) {
        self.under_way.own().insert(id, record);
    }

    /// A call has ended.
    pub(super) fn ended(&self, facts: &Facts, took: &Durations) {
        let mut own = self.ended.own();
        if own.capacity() == 0 {
            // Room for all that it remembers, which takes no memory until it is used.
            own.reserve_exact(ENDED_MAX);
        }
        if own.len() >= ENDED_MAX {
            own.pop_front();
        }
        own.push_back(CallReport::of(facts, *took));
        drop(own);
        // Last, so that it is always in one of both. Nearly always it began on this thread, which is asked first.
        let mut removed = self.under_way.each(|begun| begun.remove(&facts.id));
        // Dropped here, without a lock.
        drop(removed.find(Option::is_some));
    }

    /// Looks at the latest calls that have ended, the latest first, at most `most`.
    pub(super) fn latest<T>(&self, most: usize, mut look: impl FnMut(&CallReport) -> T) -> Vec<T> {
        let of_threads = self.ended.each(|ended| {
            let latest = ended.iter().rev().take(most);
            Vec::from_iter(latest.map(|report| (report.ended_at(), look(report))))
        });
        let mut all: Vec<_> = of_threads.flatten().collect();
        all.sort_by_key(|(at, _)| Reverse(*at));
        all.into_iter()
            .take(most)
            .map(|(_, looked)| looked)
            .collect()
    }

    /// Looks at every call under way, in no order.
    pub(super) fn each_under_way(&self, mut look: impl FnMut(&Facts)) {
        let records = self.records();
        // Without the lock, because the last owner of a record reports its end.
        for record in records.iter().filter_map(Weak::upgrade) {
            record.note(|facts| look(facts));
        }
    }

    fn records(&self) -> Vec<Weak<Record>> {
        let of_threads = self
            .under_way
            .each(|calls| Vec::from_iter(calls.values().cloned()));
        of_threads.flatten().collect()
    }

    /// A call under way, or one that ended recently.
    pub(super) fn find(&self, id: u64) -> Option<FoundCall> {
        for _ in 0..TRIES {
            let known = self.under_way.each(|calls| calls.get(&id).cloned());
            let known = known.flatten().next();
            match known.map(|record| record.upgrade()) {
                Some(Some(record)) => return Some(FoundCall::UnderWay(record)),
                // Its last owner reports it at this moment.
                Some(None) => thread::yield_now(),
                None => break,
            }
        }
        // The latest are asked for most.
        let ended = self.ended.each(|all| {
            let ended = all.iter().rev().find(|report| report.id == id);
            ended.cloned()
        });
        ended.flatten().next().map(FoundCall::Ended)
    }

    /// When the call ended that is the next to be forgotten; `None` if every call is remembered.
    pub(super) fn remembered_since(&self) -> Option<Timestamp> {
        let first = self.ended.each(|all| {
            let first = all.front().filter(|_| all.len() >= ENDED_MAX);
            first.map(CallReport::ended_at)
        });
        // From then on no thread has forgotten one.
        first.flatten().max()
    }

    /// The calls under way, the oldest first.
    pub(super) fn under_way(&self) -> Vec<CallUnderWay> {
        let records = self.records();
        let mut all: Vec<CallUnderWay> = records
            .iter()
            // Without the lock, because the last owner of a record reports its end.
            .filter_map(Weak::upgrade)
            .map(|record| record.note(|facts| under_way(facts)))
            .collect();
        all.sort_by_key(|call| call.arrived);
        all
    }
}

impl CallReport {
    fn ended_at(&self) -> Timestamp {
        self.arrived + self.took.total
    }

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

fn under_way(facts: &Facts) -> CallUnderWay {
    let claim = facts.claim.as_ref();
    CallUnderWay {
        arrived: facts.origin.arrived,
        is_admitted: facts.admitted.is_some(),
        function: Arc::clone(&facts.function),
        class: Arc::clone(&facts.class),
        listener: Arc::clone(&facts.origin.identity.listener),
        caller: claim.map(|claim| claim.caller),
        rate_limit: claim.and_then(|claim| claim.charged.rate_limit()),
    }
}
