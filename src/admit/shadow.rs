//! The shadow: a second scheduler that gets the same calls and holds none of them.
//!
//! It has every limit, also those that only observe, and decides when each call would have had its
//! turn. Time passes in it only up to `now`, but in its own steps: each event happens at its own
//! instant, not at the one at which it is looked at.
//!
//! The backend takes as long for a call as it took, whatever else it would have had to do. A call of the
//! shadow that has its turn at T is sent at T + (sent − admitted), and so on, by the instants of
//! the real one. These are known by then, because a call has its real turn no later than here.
//! Where that is not so, as after a failed connect, it happens as soon as it is known. `tidegate
//! plan` makes the same run from a log, so both have the same figures.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidegate_limits::policy::LimitRule;
use tidegate_limits::scheduler::{
    Delays, Jitter, LimitNow, Outcome, QuotaQuestion, QuotaRef, QuotaTrouble, WaitReport,
};
use tidegate_limits::{Call, Class, Hold, Policy, Scheduler, Step, Ticket, Timestamp, Tokens};

use crate::call::{Would, WouldEnd};

/// Functions whose last service time is known; beyond it, that of the last call of all counts.
const SERVICES_MAX: usize = 256;

/// The timer of the real scheduler fires at whole milliseconds, and so does that of a plan.   ns
const TICK: u64 = 1_000_000;

/// When a timer fires that is set to this instant.
fn tick(wake: Timestamp) -> Timestamp {
    Timestamp::from_nanos(wake.as_nanos().div_ceil(TICK).saturating_mul(TICK))
}

/// A call in the shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ShadowId(u64);

/// How the real call ended at the gate.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallEnd {
    /// The backend was done with it.
    Finished {
        /// When its turn was.
        admitted: Timestamp,
        /// How.
        outcome: Outcome,
        /// The cost of the call, if that was measured.
        measured: Option<Tokens>,
    },
    /// The call was refused.
    Refused,
    /// The client left before the call was sent, or the process ends.
    Left,
}

/// Requests and reports of a scheduler for the store of its quotas.
#[derive(Debug, Default)]
pub(super) struct QuotaAsks {
    pub(super) questions: Vec<QuotaQuestion>,
    pub(super) forgotten: Vec<QuotaRef>,
    pub(super) troubles: Vec<QuotaTrouble>,
}

/// A decision of the shadow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShadowDecision {
    /// The instant.
    pub(super) at: Timestamp,
    /// The class of the call.
    pub(super) class: Arc<str>,
    /// The decision.
    pub(super) would: Would,
    /// The id of the call, if its line was written before.
    pub(super) late: Option<u64>,
}

/// How long the backend took for a call, from its turn, as far as that is known.
#[derive(Clone, Copy, Debug, Default)]
struct Service {
    sent: Option<Duration>,
    replied: Option<Duration>,
    ended: Option<(Duration, Outcome, Option<Tokens>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ServiceEvent {
    Ended,
    Sent,
    Replied,
}

#[derive(Debug)]
enum ShadowStage {
    Waits(Ticket),
    Holds { hold: Hold, since: Timestamp },
    Finished,
}

#[derive(Debug)]
struct ShadowCall {
    /// The id in its line.
    id: u64,
    function: Arc<str>,
    class: Arc<str>,
    asked: Timestamp,
    stage: ShadowStage,
    service: Service,
    /// The real one never reaches the backend.
    is_unserved: bool,
    would: Option<Would>,
    /// The real one is over, and so is its line.
    is_reported: bool,
}

/// The second scheduler, and the calls in it.
#[derive(Debug)]
pub(super) struct Shadow {
    scheduler: Scheduler<ShadowId>,
    calls: HashMap<ShadowId, ShadowCall>,
    last_id: u64,
    agenda: BinaryHeap<Reverse<(Timestamp, ServiceEvent, ShadowId)>>,
    wake: Option<Timestamp>,
    /// Up to when everything has happened.
    now: Timestamp,
    random: StdRng,
    /// The last service of each function, and of all.
    services: HashMap<Arc<str>, Service>,
    last_service: Service,
    peak: usize,
    decided: Vec<ShadowDecision>,
}

impl Shadow {
    /// No call is in it. Ids begin after this one, so that those of an earlier shadow mean nothing.
    pub(super) fn new(policy: Policy, seed: u64, last_id: u64, now: Timestamp) -> Self {
        Self {
            scheduler: Scheduler::with_seed(policy, seed).beginning(now),
            calls: HashMap::default(),
            last_id,
            agenda: BinaryHeap::new(),
            wake: None,
            now,
            random: StdRng::seed_from_u64(seed),
            services: HashMap::default(),
            last_service: Service::default(),
            peak: 0,
            decided: Vec::new(),
        }
    }

    /// The last id that it gave out.
    pub(super) fn last_id(&self) -> u64 {
        self.last_id
    }

    /// A call asks for its turn. `id` is that of its line.
    pub(super) fn begin_call(
        &mut self,
        now: Timestamp,
        request: Call,
        class: Arc<str>,
        id: u64,
    ) -> ShadowId {
        self.advance(now);
        self.last_id += 1;
        let key = ShadowId(self.last_id);
        let function = Arc::clone(&request.function);
        let mut call = ShadowCall {
            id,
            function,
            class,
            asked: now,
            stage: ShadowStage::Finished,
            service: Service::default(),
            is_unserved: false,
            would: None,
            is_reported: false,
        };
        match self.scheduler.submit(now, request, key) {
            Ok(ticket) => call.stage = ShadowStage::Waits(ticket),
            Err((refusal, _)) => {
                let would = Would {
                    wait: Duration::ZERO,
                    limit: refusal.limit,
                    ending: WouldEnd::Refused(refusal.reason),
                };
                self.decided.push(call.decide(now, would));
            }
        }
        self.calls.insert(key, call);
        self.admit_ready(now);
        key
    }

    /// The bytes of the real call left, this long after its turn.
    pub(super) fn sent(&mut self, now: Timestamp, key: ShadowId, admitted: Timestamp) {
        self.learns(now, key, ServiceEvent::Sent, |service| {
            service.sent = Some(now.since(admitted));
        });
    }

    /// The first byte of its reply came.
    pub(super) fn replied(&mut self, now: Timestamp, key: ShadowId, admitted: Timestamp) {
        self.learns(now, key, ServiceEvent::Replied, |service| {
            service.replied = Some(now.since(admitted));
        });
    }

    fn learns(
        &mut self,
        now: Timestamp,
        key: ShadowId,
        event: ServiceEvent,
        note: impl FnOnce(&mut Service),
    ) {
        self.advance(now);
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        note(&mut call.service);
        if let ShadowStage::Holds { since, .. } = call.stage
            && let Some(at) = call.service.due(event, since)
        {
            // Nothing else is due before `now`.
            if at <= now {
                self.happens(now, event, key);
                self.admit_ready(now);
            } else {
                self.agenda.push(Reverse((at, event, key)));
            }
        }
    }

    /// The real call is over. Returns what is known of what it would have met.
    pub(super) fn end_call(
        &mut self,
        now: Timestamp,
        key: ShadowId,
        end: CallEnd,
    ) -> Option<Would> {
        match end {
            CallEnd::Finished {
                admitted,
                outcome,
                measured,
            } => {
                let took = now.since(admitted);
                self.learns(now, key, ServiceEvent::Ended, |service| {
                    service.ended = Some((took, outcome, measured));
                });
                let call = self.calls.get(&key)?;
                self.last_service = call.service;
                if let Some(last) = self.services.get_mut(&call.function) {
                    *last = call.service;
                } else if self.services.len() < SERVICES_MAX {
                    let function = Arc::clone(&call.function);
                    self.services.insert(function, call.service);
                }
            }
            CallEnd::Refused => {
                self.advance(now);
                self.calls.get_mut(&key)?.is_unserved = true;
                self.serve_as_usual(now, key);
                self.admit_ready(now);
            }
            CallEnd::Left => {
                self.advance(now);
                self.leaves(now, key);
                self.admit_ready(now);
            }
        }
        let call = self.calls.get_mut(&key)?;
        call.is_reported = true;
        let would = call.would.clone();
        let would = would.unwrap_or_else(|| {
            let ticket = match call.stage {
                ShadowStage::Waits(ticket) => self.scheduler.waited(now, ticket),
                ShadowStage::Holds { .. } | ShadowStage::Finished => None,
            };
            call.would(now, &ticket.unwrap_or_default(), WouldEnd::Waits)
        });
        if let ShadowStage::Finished = call.stage {
            self.calls.remove(&key);
        }
        Some(would)
    }

    /// The real call never reached the backend, and its client has left.
    fn leaves(&mut self, now: Timestamp, key: ShadowId) {
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        match std::mem::replace(&mut call.stage, ShadowStage::Finished) {
            ShadowStage::Waits(ticket) => {
                let waited = self.scheduler.waited(now, ticket).unwrap_or_default();
                self.scheduler.cancel(now, ticket);
                let would = call.would(now, &waited, WouldEnd::Left);
                self.decided.push(call.decide(now, would));
            }
            ShadowStage::Holds { hold, .. } => self.scheduler.give_back(now, hold),
            ShadowStage::Finished => {}
        }
    }

    /// A call that the real scheduler refused has its turn here: the backend takes as long as for
    /// the last one of its function.
    fn serve_as_usual(&mut self, now: Timestamp, key: ShadowId) {
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        let ShadowStage::Holds { since, .. } = call.stage else {
            return;
        };
        let usual = self.services.get(&call.function);
        let mut service = *usual.unwrap_or(&self.last_service);
        service.sent.get_or_insert(Duration::ZERO);
        service
            .ended
            .get_or_insert((Duration::ZERO, Outcome::Served, None));
        call.service = service;
        for event in [
            ServiceEvent::Sent,
            ServiceEvent::Replied,
            ServiceEvent::Ended,
        ] {
            if let Some(at) = service.due(event, since) {
                self.agenda.push(Reverse((at.max(now), event, key)));
            }
        }
    }

    /// How long the call may wait, and its class, have changed, as they do for a call that many share.
    pub(super) fn wait_as(
        &mut self,
        now: Timestamp,
        key: ShadowId,
        deadline: Option<Timestamp>,
        class: (Class, Arc<str>),
    ) {
        self.advance(now);
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        if let ShadowStage::Waits(ticket) = call.stage {
            self.scheduler.set_deadline(ticket, deadline);
            self.scheduler.reclass(now, ticket, class.0);
            call.class = class.1;
            self.admit_ready(now);
        }
    }

    /// No limit observes any more. What would still wait is decided: it left.
    pub(super) fn end(&mut self, now: Timestamp) {
        self.advance(now);
        // Their tokens expire with their window.
        self.scheduler.set_quotas(now, BTreeMap::new(), 0);
        let mut waiting: Vec<_> = self.calls.iter_mut().collect();
        waiting.sort_by_key(|(key, _)| **key);
        for (_, call) in waiting {
            if let ShadowStage::Waits(ticket) = call.stage {
                let waited = self.scheduler.waited(now, ticket).unwrap_or_default();
                let would = call.would(now, &waited, WouldEnd::Left);
                self.decided.push(call.decide(now, would));
            }
        }
    }

    /// Lets everything happen up to `now`, each event at its own instant.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        loop {
            let due = self.agenda.peek().map(|Reverse((at, ..))| *at);
            let next = [due, self.wake].into_iter().flatten().min();
            let Some(at) = next.filter(|at| *at <= now) else {
                return;
            };
            if due == Some(at)
                && let Some(Reverse((_, event, key))) = self.agenda.pop()
            {
                self.happens(at, event, key);
            }
            self.admit_ready(at);
        }
    }

    fn happens(&mut self, at: Timestamp, event: ServiceEvent, key: ShadowId) {
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        let ShadowStage::Holds { hold, .. } = &call.stage else {
            return;
        };
        match event {
            ServiceEvent::Sent => self.scheduler.sent(at, hold),
            ServiceEvent::Replied => self.scheduler.replied(at, hold),
            ServiceEvent::Ended => {
                let (_, outcome, measured) = call.service.ended.expect("it was planned by this");
                let stage = std::mem::replace(&mut call.stage, ShadowStage::Finished);
                if let ShadowStage::Holds { hold, .. } = stage {
                    self.scheduler.finish(at, hold, outcome, measured);
                }
                if call.is_reported {
                    self.calls.remove(&key);
                }
            }
        }
    }

    /// Asks the scheduler until it sleeps.
    fn admit_ready(&mut self, at: Timestamp) {
        while !self.has_nothing_to_do(at) {
            let random = &mut self.random;
            let draw = &mut |_: &mut ShadowId, jitter: Jitter| jitter.draw(at, random.next_u64());
            match self.scheduler.next_with(at, draw) {
                Step::Run {
                    payload,
                    hold,
                    waited,
                    ..
                } => self.runs(at, payload, hold, &waited),
                Step::Expired {
                    payload,
                    refusal,
                    waited,
                } => {
                    let Some(call) = self.calls.get_mut(&payload) else {
                        continue;
                    };
                    let ending = WouldEnd::Refused(refusal.reason);
                    let mut would = call.would(at, &waited, ending);
                    would.limit = refusal.limit.or(would.limit);
                    call.stage = ShadowStage::Finished;
                    self.decided.push(call.decide(at, would));
                    if call.is_reported {
                        self.calls.remove(&payload);
                    }
                }
                Step::SleepUntil(wake) => {
                    self.wake = Some(tick(wake));
                    break;
                }
                Step::Idle => {
                    self.wake = None;
                    break;
                }
            }
        }
        self.peak = self.peak.max(self.depth());
    }

    /// Whether the scheduler would do nothing.
    fn has_nothing_to_do(&self, at: Timestamp) -> bool {
        self.wake.is_none_or(|wake| at < wake) && self.scheduler.has_nothing_to_ask()
    }

    fn runs(&mut self, at: Timestamp, key: ShadowId, hold: Hold, waited: &WaitReport) {
        let Some(call) = self.calls.get_mut(&key) else {
            return self.scheduler.give_back(at, hold);
        };
        let would = call.would(at, waited, WouldEnd::Runs);
        self.decided.push(call.decide(at, would));
        call.stage = ShadowStage::Holds { hold, since: at };
        if call.is_unserved {
            return self.serve_as_usual(at, key);
        }
        for event in [
            ServiceEvent::Sent,
            ServiceEvent::Replied,
            ServiceEvent::Ended,
        ] {
            if let Some(due) = call.service.due(event, at) {
                self.agenda.push(Reverse((due, event, key)));
            }
        }
    }

    /// Whether it has decided anything since the last time.
    pub(super) fn has_decided(&self) -> bool {
        !self.decided.is_empty()
    }

    /// Decisions of the shadow since the last time.
    pub(super) fn take_decided(&mut self) -> impl Iterator<Item = ShadowDecision> {
        self.decided.drain(..)
    }

    /// Calls that would wait, also at the door.
    pub(super) fn depth(&self) -> usize {
        self.scheduler.waiting() + self.scheduler.at_door()
    }

    /// The most that would have waited at once.
    pub(super) fn peak(&self) -> usize {
        self.peak
    }

    /// Up to when everything has happened, if something will happen by itself.
    pub(super) fn busy_since(&self) -> Option<Timestamp> {
        let is_busy = !self.agenda.is_empty() || self.depth() > 0;
        is_busy.then_some(self.now)
    }

    /// Calls in it: those that wait or run here, and those that run in reality.
    #[cfg(test)]
    pub(super) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Limits of the shadow, as they would be now.
    pub(super) fn limits_now(&self) -> Vec<(LimitRule, LimitNow)> {
        let rules = self.scheduler.rules().cloned();
        rules.zip(self.scheduler.limits_now(self.now)).collect()
    }

    /// A limit of the shadow.
    pub(super) fn limit_now(&self, limit: &str) -> Option<LimitNow> {
        self.scheduler.limit_now(self.now, limit)
    }

    /// Looks at the scheduler, as it is after the last change.
    pub(super) fn scheduler(&self) -> &Scheduler<ShadowId> {
        &self.scheduler
    }

    /// Changes the scheduler, and lets calls go that may then.
    pub(super) fn change<R>(
        &mut self,
        now: Timestamp,
        change: impl FnOnce(&mut Scheduler<ShadowId>) -> R,
    ) -> R {
        self.advance(now);
        let result = change(&mut self.scheduler);
        self.admit_ready(now);
        result
    }

    /// Takes the questions of quotas to their store, the keys that are forgotten, and the troubles of
    /// keys.
    pub(super) fn take_quota_questions(&mut self) -> QuotaAsks {
        QuotaAsks {
            questions: self.scheduler.quota_questions(),
            forgotten: self.scheduler.forgotten_quotas(),
            troubles: self.scheduler.quota_troubles(),
        }
    }
}

impl Service {
    /// When this happens to a call whose turn is at `since`; `None` while it is not known.
    fn due(&self, event: ServiceEvent, since: Timestamp) -> Option<Timestamp> {
        match event {
            ServiceEvent::Sent => Some(since + self.sent?),
            ServiceEvent::Replied => Some(since + self.replied?),
            ServiceEvent::Ended => {
                let (took, ..) = self.ended?;
                // After it is sent, also if both take no time.
                let sent = self.sent.map(|sent| sent + Duration::from_nanos(1));
                Some(since + sent.map_or(took, |sent| took.max(sent)))
            }
        }
    }
}

impl ShadowCall {
    /// The fate of the call by `at`.
    fn would(&self, at: Timestamp, waited: &WaitReport, ending: WouldEnd) -> Would {
        let WaitReport {
            held_by, delays, ..
        } = waited;
        Would {
            wait: at.since(self.asked),
            limit: Delays::longest(delays).or(held_by.as_ref()).cloned(),
            ending,
        }
    }

    fn decide(&mut self, at: Timestamp, would: Would) -> ShadowDecision {
        self.would = Some(would.clone());
        ShadowDecision {
            at,
            class: Arc::clone(&self.class),
            would,
            late: self.is_reported.then_some(self.id),
        }
    }
}

#[cfg(test)]
mod tests;
