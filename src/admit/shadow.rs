//! The shadow: a second scheduler that gets the same calls and holds none of them.
//!
//! It has every limit, also those that only observe, and decides when each call would have had its
//! turn. Time passes in it only up to `now`, but in its own steps: each thing happens at its own
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
pub(super) enum Over {
    /// The backend was done with it.
    Ended {
        /// When its turn was.
        admitted: Timestamp,
        /// How.
        outcome: Outcome,
        /// Its cost, if that was measured.
        measured: Option<Tokens>,
    },
    /// It was refused.
    Refused,
    /// Its client left before it was sent, or the process ends.
    Left,
}

/// What a scheduler has for the store of its quotas.
#[derive(Debug, Default)]
pub(super) struct QuotaAsks {
    pub(super) questions: Vec<QuotaQuestion>,
    pub(super) forgotten: Vec<QuotaRef>,
    pub(super) troubles: Vec<QuotaTrouble>,
}

/// A decision of the shadow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decided {
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
enum Thing {
    Ended,
    Sent,
    Replied,
}

#[derive(Debug)]
enum Stage {
    Waits(Ticket),
    Holds { hold: Hold, since: Timestamp },
    Over,
}

#[derive(Debug)]
struct Shade {
    /// The id in its line.
    id: u64,
    function: Arc<str>,
    class: Arc<str>,
    asked: Timestamp,
    stage: Stage,
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
    calls: HashMap<ShadowId, Shade>,
    last_id: u64,
    agenda: BinaryHeap<Reverse<(Timestamp, Thing, ShadowId)>>,
    wake: Option<Timestamp>,
    /// Up to when everything has happened.
    now: Timestamp,
    random: StdRng,
    /// The last service of each function, and of all.
    services: HashMap<Arc<str>, Service>,
    last_service: Service,
    peak: usize,
    decided: Vec<Decided>,
}

impl Shadow {
    /// No call is in it. Ids begin after this one, so that those of an earlier shadow mean nothing.
    pub(super) fn new(policy: Policy, seed: u64, last_id: u64) -> Self {
        Self {
            scheduler: Scheduler::with_seed(policy, seed),
            calls: HashMap::default(),
            last_id,
            agenda: BinaryHeap::new(),
            wake: None,
            now: Timestamp::ZERO,
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
    pub(super) fn asks(
        &mut self,
        now: Timestamp,
        call: Call,
        class: Arc<str>,
        id: u64,
    ) -> ShadowId {
        self.advance(now);
        self.last_id += 1;
        let key = ShadowId(self.last_id);
        let function = Arc::clone(&call.function);
        let mut shade = Shade {
            id,
            function,
            class,
            asked: now,
            stage: Stage::Over,
            service: Service::default(),
            is_unserved: false,
            would: None,
            is_reported: false,
        };
        match self.scheduler.submit(now, call, key) {
            Ok(ticket) => shade.stage = Stage::Waits(ticket),
            Err((refusal, _)) => {
                let would = Would {
                    wait: Duration::ZERO,
                    limit: refusal.limit,
                    ending: WouldEnd::Refused(refusal.reason),
                };
                self.decided.push(shade.decide(now, would));
            }
        }
        self.calls.insert(key, shade);
        self.let_through(now);
        key
    }

    /// The bytes of the real call left, this long after its turn.
    pub(super) fn sent(&mut self, now: Timestamp, key: ShadowId, admitted: Timestamp) {
        self.learns(now, key, Thing::Sent, |service| {
            service.sent = Some(now.since(admitted));
        });
    }

    /// The first byte of its reply came.
    pub(super) fn replied(&mut self, now: Timestamp, key: ShadowId, admitted: Timestamp) {
        self.learns(now, key, Thing::Replied, |service| {
            service.replied = Some(now.since(admitted));
        });
    }

    fn learns(
        &mut self,
        now: Timestamp,
        key: ShadowId,
        thing: Thing,
        note: impl FnOnce(&mut Service),
    ) {
        self.advance(now);
        let Some(shade) = self.calls.get_mut(&key) else {
            return;
        };
        note(&mut shade.service);
        if let Stage::Holds { since, .. } = shade.stage
            && let Some(at) = shade.service.due(thing, since)
        {
            // Nothing else is due before `now`.
            if at <= now {
                self.happens(now, thing, key);
                self.let_through(now);
            } else {
                self.agenda.push(Reverse((at, thing, key)));
            }
        }
    }

    /// The real call is over. Returns what is known of what it would have met.
    pub(super) fn over(&mut self, now: Timestamp, key: ShadowId, over: Over) -> Option<Would> {
        match over {
            Over::Ended {
                admitted,
                outcome,
                measured,
            } => {
                let took = now.since(admitted);
                self.learns(now, key, Thing::Ended, |service| {
                    service.ended = Some((took, outcome, measured));
                });
                let shade = self.calls.get(&key)?;
                self.last_service = shade.service;
                if let Some(last) = self.services.get_mut(&shade.function) {
                    *last = shade.service;
                } else if self.services.len() < SERVICES_MAX {
                    let function = Arc::clone(&shade.function);
                    self.services.insert(function, shade.service);
                }
            }
            Over::Refused => {
                self.advance(now);
                self.calls.get_mut(&key)?.is_unserved = true;
                self.serve_as_usual(now, key);
                self.let_through(now);
            }
            Over::Left => {
                self.advance(now);
                self.leaves(now, key);
                self.let_through(now);
            }
        }
        let shade = self.calls.get_mut(&key)?;
        shade.is_reported = true;
        let would = shade.would.clone();
        let would = would.unwrap_or_else(|| {
            let ticket = match shade.stage {
                Stage::Waits(ticket) => self.scheduler.waited(now, ticket),
                Stage::Holds { .. } | Stage::Over => None,
            };
            shade.would(now, &ticket.unwrap_or_default(), WouldEnd::Waits)
        });
        if let Stage::Over = shade.stage {
            self.calls.remove(&key);
        }
        Some(would)
    }

    /// The real call never reached the backend, and its client has left.
    fn leaves(&mut self, now: Timestamp, key: ShadowId) {
        let Some(shade) = self.calls.get_mut(&key) else {
            return;
        };
        match std::mem::replace(&mut shade.stage, Stage::Over) {
            Stage::Waits(ticket) => {
                let waited = self.scheduler.waited(now, ticket).unwrap_or_default();
                self.scheduler.cancel(now, ticket);
                let would = shade.would(now, &waited, WouldEnd::Left);
                self.decided.push(shade.decide(now, would));
            }
            Stage::Holds { hold, .. } => self.scheduler.give_back(now, hold),
            Stage::Over => {}
        }
    }

    /// A call that the real scheduler refused has its turn here: the backend takes as long as for
    /// the last one of its function.
    fn serve_as_usual(&mut self, now: Timestamp, key: ShadowId) {
        let Some(shade) = self.calls.get_mut(&key) else {
            return;
        };
        let Stage::Holds { since, .. } = shade.stage else {
            return;
        };
        let usual = self.services.get(&shade.function);
        let mut service = *usual.unwrap_or(&self.last_service);
        service.sent.get_or_insert(Duration::ZERO);
        service
            .ended
            .get_or_insert((Duration::ZERO, Outcome::Served, None));
        shade.service = service;
        for thing in [Thing::Sent, Thing::Replied, Thing::Ended] {
            if let Some(at) = service.due(thing, since) {
                self.agenda.push(Reverse((at.max(now), thing, key)));
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
        let Some(shade) = self.calls.get_mut(&key) else {
            return;
        };
        if let Stage::Waits(ticket) = shade.stage {
            self.scheduler.set_deadline(ticket, deadline);
            self.scheduler.reclass(now, ticket, class.0);
            shade.class = class.1;
            self.let_through(now);
        }
    }

    /// No limit observes any more. What would still wait is decided: it left.
    pub(super) fn end(&mut self, now: Timestamp) {
        self.advance(now);
        // Their tokens expire with their window.
        self.scheduler.set_quotas(now, BTreeMap::new(), 0);
        let mut waiting: Vec<_> = self.calls.iter_mut().collect();
        waiting.sort_by_key(|(key, _)| **key);
        for (_, shade) in waiting {
            if let Stage::Waits(ticket) = shade.stage {
                let waited = self.scheduler.waited(now, ticket).unwrap_or_default();
                let would = shade.would(now, &waited, WouldEnd::Left);
                self.decided.push(shade.decide(now, would));
            }
        }
    }

    /// Lets everything happen up to `now`, each thing at its own instant.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        loop {
            let due = self.agenda.peek().map(|Reverse((at, ..))| *at);
            let next = [due, self.wake].into_iter().flatten().min();
            let Some(at) = next.filter(|at| *at <= now) else {
                return;
            };
            if due == Some(at)
                && let Some(Reverse((_, thing, key))) = self.agenda.pop()
            {
                self.happens(at, thing, key);
            }
            self.let_through(at);
        }
    }

    fn happens(&mut self, at: Timestamp, thing: Thing, key: ShadowId) {
        let Some(shade) = self.calls.get_mut(&key) else {
            return;
        };
        let Stage::Holds { hold, .. } = &shade.stage else {
            return;
        };
        match thing {
            Thing::Sent => self.scheduler.sent(at, hold),
            Thing::Replied => self.scheduler.replied(at, hold),
            Thing::Ended => {
                let (_, outcome, measured) = shade.service.ended.expect("it was planned by this");
                let stage = std::mem::replace(&mut shade.stage, Stage::Over);
                if let Stage::Holds { hold, .. } = stage {
                    self.scheduler.finish(at, hold, outcome, measured);
                }
                if shade.is_reported {
                    self.calls.remove(&key);
                }
            }
        }
    }

    /// Asks the scheduler until it sleeps.
    fn let_through(&mut self, at: Timestamp) {
        while !self.is_settled(at) {
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
                    let Some(shade) = self.calls.get_mut(&payload) else {
                        continue;
                    };
                    let ending = WouldEnd::Refused(refusal.reason);
                    let mut would = shade.would(at, &waited, ending);
                    would.limit = refusal.limit.or(would.limit);
                    shade.stage = Stage::Over;
                    self.decided.push(shade.decide(at, would));
                    if shade.is_reported {
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
    fn is_settled(&self, at: Timestamp) -> bool {
        self.wake.is_none_or(|wake| at < wake) && self.scheduler.has_nothing_to_ask()
    }

    fn runs(&mut self, at: Timestamp, key: ShadowId, hold: Hold, waited: &WaitReport) {
        let Some(shade) = self.calls.get_mut(&key) else {
            return self.scheduler.give_back(at, hold);
        };
        let would = shade.would(at, waited, WouldEnd::Runs);
        self.decided.push(shade.decide(at, would));
        shade.stage = Stage::Holds { hold, since: at };
        if shade.is_unserved {
            return self.serve_as_usual(at, key);
        }
        for thing in [Thing::Sent, Thing::Replied, Thing::Ended] {
            if let Some(due) = shade.service.due(thing, at) {
                self.agenda.push(Reverse((due, thing, key)));
            }
        }
    }

    /// Whether it has decided anything since the last time.
    pub(super) fn has_decided(&self) -> bool {
        !self.decided.is_empty()
    }

    /// Its decisions since the last time.
    pub(super) fn take_decided(&mut self) -> impl Iterator<Item = Decided> {
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

    /// Its limits, as they would be now.
    pub(super) fn limits_now(&self) -> Vec<(LimitRule, LimitNow)> {
        let rules = self.scheduler.rules().cloned();
        rules.zip(self.scheduler.limits_now(self.now)).collect()
    }

    /// One of its limits.
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
        self.let_through(now);
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
    fn due(&self, thing: Thing, since: Timestamp) -> Option<Timestamp> {
        match thing {
            Thing::Sent => Some(since + self.sent?),
            Thing::Replied => Some(since + self.replied?),
            Thing::Ended => {
                let (took, ..) = self.ended?;
                // After it is sent, also if both take no time.
                let sent = self.sent.map(|sent| sent + Duration::from_nanos(1));
                Some(since + sent.map_or(took, |sent| took.max(sent)))
            }
        }
    }
}

impl Shade {
    /// What would have happened by `at`.
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

    fn decide(&mut self, at: Timestamp, would: Would) -> Decided {
        self.would = Some(would.clone());
        Decided {
            at,
            class: Arc::clone(&self.class),
            would,
            late: self.is_reported.then_some(self.id),
        }
    }
}

#[cfg(test)]
mod tests;
