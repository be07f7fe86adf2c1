//! Runs a scenario: the real scheduler, and everything around it in virtual time.
//!
//! Time jumps from one event to the next. Events of the same moment happen in the order of
//! [`Thing`], and after each the scheduler is asked for the next call. So a scenario with the
//! same seed always runs the same way.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tidegate_backends::{self as backends, CallStart, Model};
use tidegate_limits::call::Backend;
use tidegate_limits::scheduler::{Outcome, Refusal, Supplier, Supply};
use tidegate_limits::{Call, Hold, Policy, Scheduler, Step, Ticket, Timestamp, Verdict};

use super::arrivals::{Planned, calls};
use super::figures::{AtBackend, Ending, Run, Tally};
use super::scenario::{Scenario, What};
use super::setup::class_of;
use super::times::nanos;
use crate::random::Random;
use tidegate::admit::GateSettings;
use tidegate::admit::backends::BackendHealth;
use tidegate::admit::policy::{backend_limit, limited};
use tidegate::call::{Destination, Generation};

/// Streams of the seed, besides those of the arrivals.
const JITTER_STREAM: u64 = 1 << 40;
const PROBE_STREAM: u64 = 2 << 40;

/// The only backend of a scenario.
const BACKEND: Destination = Destination::Socket;

/// The gate's own policy; fixed windows are counted from the scenario's start.
fn policy(settings: &GateSettings) -> Policy {
    limited(settings, Duration::ZERO)
}

/// An event. Events of the same moment happen in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Event(usize),
    Reply(usize),
    /// A call reaches a backend that is a model.
    Reaches(usize),
    /// A connect has failed.
    NoConnection(usize),
    Probe,
    Arrival(usize),
    Leaving(usize),
}

/// The progress of a call.
#[derive(Debug)]
enum State {
    /// Not arrived yet.
    Planned,
    Waiting(Ticket),
    /// The call was admitted, and the backend accepts no connection.
    Connecting(Hold),
    Running {
        hold: Hold,
        client: Client,
        /// When it reached the backend.
        reached: Timestamp,
    },
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Waits,
    Gone,
}

struct World<'s> {
    scenario: &'s Scenario,
    settings: &'s GateSettings,
    calls: Vec<(Planned, State)>,
    scheduler: Scheduler<usize>,
    /// Calls that have just come: they run, are refused as predicted late, or are counted as waiting.
    begun: Vec<(usize, Ticket)>,
    now: Timestamp,
    agenda: BinaryHeap<Reverse<(Timestamp, Thing)>>,
    running: BTreeSet<usize>,
    /// The model that decides when calls end, unless each takes its own time.
    model: Option<Model>,
    /// While the backend is down, how long a connect takes to fail.
    down: Option<Duration>,
    backends: BackendHealth,
    jitter: Random,
    spread: Random,
    run: Run,
}

/// Runs a scenario to its end.
pub(super) fn run(scenario: &Scenario, seed: u64) -> Run {
    let settings = &scenario.settings;
    let mut world = World {
        scenario,
        settings,
        calls: Vec::new(),
        scheduler: Scheduler::new(policy(settings)),
        begun: Vec::new(),
        now: Timestamp::ZERO,
        agenda: BinaryHeap::new(),
        running: BTreeSet::new(),
        model: scenario
            .backend
            .as_ref()
            .map(|it| Model::new(it.backend.clone())),
        down: None,
        backends: BackendHealth::default(),
        jitter: Random::new(seed, JITTER_STREAM),
        spread: Random::new(seed, PROBE_STREAM),
        run: Run {
            groups: vec![Tally::default(); scenario.groups.len()],
            ..Run::default()
        },
    };
    for (nth, event) in scenario.events.iter().enumerate() {
        world.plan(Timestamp::ZERO + event.at, Thing::Event(nth));
    }
    for (nth, call) in calls(&scenario.groups, seed).into_iter().enumerate() {
        let arrives = Timestamp::ZERO + call.arrives;
        world.plan(arrives, Thing::Arrival(nth));
        if let Some(patience) = scenario.groups[call.group].leaves_after {
            world.plan(arrives + patience, Thing::Leaving(nth));
        }
        world.calls.push((call, State::Planned));
    }
    world.go_on_to_the_end();
    world.run.at_backend = world.model.map(|model| AtBackend {
        most_at_once: model.most(),
        times_broken: model.times_broken(),
    });
    world.run
}

impl World<'_> {
    fn go_on_to_the_end(&mut self) {
        let mut wake = None;
        loop {
            let thing = self.agenda.peek().map(|Reverse((at, _))| *at);
            let model = self.model.as_ref().and_then(Model::wake);
            let model = model.map(Timestamp::from_nanos);
            let Some(next) = [thing, wake, model].into_iter().flatten().min() else {
                break;
            };
            self.advance(next);
            if model == Some(next) {
                self.work_ends();
            } else if thing == Some(next) {
                let Reverse((_, thing)) = self.agenda.pop().expect("it was just looked at");
                self.happens(thing);
            }
            wake = self.let_through();
            assert!(
                wake.is_none_or(|wake| wake > self.now),
                "a sleep ends in the future"
            );
        }
        assert!(
            self.scheduler.is_at_rest(),
            "at the end no call waits and nothing is drawn"
        );
    }

    fn plan(&mut self, at: Timestamp, thing: Thing) {
        self.agenda.push(Reverse((at, thing)));
    }

    /// Advances to `next`, and charges the time to the limits that are closed until then, once for
    /// each waiting call that meets them.
    fn advance(&mut self, next: Timestamp) {
        let now = mem::replace(&mut self.now, next);
        if next == now || self.scheduler.waiting() == 0 {
            return;
        }
        let mut charge = |limit: &Arc<str>, calls: u64, time: Duration| {
            let calls = u32::try_from(calls).unwrap_or(u32::MAX);
            let held = self.run.held.entry(Arc::clone(limit)).or_default();
            *held = held.saturating_add(time.saturating_mul(calls));
        };
        for limit in self.scheduler.limits_now(now) {
            let until = match limit.opens {
                Verdict::Ready => continue,
                Verdict::NotBefore(opens) => opens.min(next),
                Verdict::OnChange | Verdict::Never => next,
            };
            if limit.waiting > 0 {
                charge(&limit.name, limit.waiting, until.since(now));
            }
        }
    }

    fn happens(&mut self, thing: Thing) {
        match thing {
            Thing::Event(nth) => match &self.scenario.events[nth].what {
                What::Reload(settings) => {
                    self.settings = settings;
                    self.scheduler.apply(self.now, policy(settings));
                }
                What::BackendDown { refuses_after } => {
                    self.down = Some(*refuses_after);
                    for nth in mem::take(&mut self.running) {
                        if let Some(model) = &mut self.model {
                            model.leaves(self.now.as_nanos(), nth as u64);
                        }
                        self.lands(nth, Outcome::Failed, Ending::Failed);
                    }
                }
                What::BackendUp => self.down = None,
            },
            Thing::Reply(nth) => self.replies(nth),
            Thing::Reaches(nth) => self.reaches(nth),
            Thing::NoConnection(nth) => {
                // A client that left has taken its call along.
                let state = mem::replace(&mut self.calls[nth].1, State::Over);
                if let State::Connecting(hold) = state {
                    self.goes_back(nth, hold);
                }
            }
            Thing::Probe => {
                self.backends.due(self.now);
                let in_use = self.scheduler.in_use(&backend_limit(BACKEND)).unwrap_or(0);
                self.supply(Supply::capacity(in_use.saturating_add(1)));
            }
            Thing::Arrival(nth) => self.arrives(nth),
            Thing::Leaving(nth) => self.leaves(nth),
        }
    }

    fn arrives(&mut self, nth: usize) {
        let group = &self.scenario.groups[self.calls[nth].0.group];
        let settings = self.settings;
        let class = class_of(settings, group.class.as_deref(), &group.function);
        let deadline = settings.classes[class.0 as usize].deadline;
        let call = Call::new(Arc::clone(&group.function), self.now)
            .backend(Backend(BACKEND as u8))
            .class(class)
            .caller(group.caller)
            .deadline(deadline.of(settings.max_wait, self.now, self.now));
        let now = self.now;
        self.tallies(nth, |tally| tally.arrives(now));
        match self.scheduler.submit(now, call, nth) {
            Ok(ticket) => {
                self.calls[nth].1 = State::Waiting(ticket);
                self.begun.push((nth, ticket));
                self.let_through();
            }
            Err((refusal, nth)) => self.refuse(nth, refusal),
        }
    }

    fn leaves(&mut self, nth: usize) {
        match mem::replace(&mut self.calls[nth].1, State::Over) {
            State::Waiting(ticket) => {
                self.scheduler
                    .cancel(self.now, ticket)
                    .expect("a call is over when it no longer waits");
            }
            State::Connecting(hold) => self.scheduler.give_back(self.now, hold),
            State::Running { hold, reached, .. } => {
                let client = Client::Gone;
                self.calls[nth].1 = State::Running {
                    hold,
                    client,
                    reached,
                };
            }
            State::Planned => unreachable!("a client leaves after its arrival"),
            State::Over => return,
        }
        self.ends(nth, Ending::Left);
    }

    fn refuse(&mut self, nth: usize, refusal: Refusal) {
        self.calls[nth].1 = State::Over;
        let key = (refusal.reason.as_str(), refusal.limit);
        *self.run.told_no.entry(key).or_insert(0) += 1;
        let retry_after = refusal.retry_after;
        self.ends(nth, Ending::ToldNo { retry_after });
    }

    /// Admits every call that may run. Returns when to ask again.
    fn let_through(&mut self) -> Option<Timestamp> {
        loop {
            let jitter = &mut self.jitter;
            match self.scheduler.next(self.now, &mut || jitter.next()) {
                Step::Run { payload, hold, .. } => self.connects(payload, hold),
                Step::Expired {
                    payload, refusal, ..
                } => self.refuse(payload, refusal),
                Step::SleepUntil(_) | Step::Idle if self.refuse_late() => {}
                Step::SleepUntil(at) => return Some(at),
                Step::Idle => return None,
            }
        }
    }

    /// Calls that begin to wait are predicted, and refused if they would start too late and such calls are refused.
    fn refuse_late(&mut self) -> bool {
        let mut any = false;
        for (nth, ticket) in mem::take(&mut self.begun) {
            let now = self.now;
            let refuses = self.settings.early_refusal;
            let late = refuses.then(|| self.scheduler.refuse_if_late(now, ticket, None));
            if let Some((refusal, nth)) = late.flatten() {
                self.refuse(nth, refusal);
                any = true;
            } else if matches!(self.calls[nth].1, State::Waiting(_)) {
                self.scheduler.foresee(now, ticket, None);
            }
        }
        any
    }

    fn connects(&mut self, nth: usize, hold: Hold) {
        let now = self.now;
        let model = self.model.as_ref();
        let collapsed = model.and_then(|model| model.down_until(now.as_nanos()));
        match self.down.or(collapsed.map(|_| Duration::ZERO)) {
            None => {}
            Some(Duration::ZERO) => return self.goes_back(nth, hold),
            Some(refuses_after) => {
                self.calls[nth].1 = State::Connecting(hold);
                return self.plan(now + refuses_after, Thing::NoConnection(nth));
            }
        }
        self.scheduler.sent(now, &hold);
        if self.backends.succeeded(BACKEND, Generation::default()) {
            self.supply(Supply::Configured);
        }
        let call = self.calls[nth].0;
        let reaches = now + call.reaches_after;
        let waited = now.since(Timestamp::ZERO + call.arrives);
        self.tallies(nth, |tally| tally.sent(now, nth, waited, reaches));
        self.running.insert(nth);
        self.calls[nth].1 = State::Running {
            hold,
            client: Client::Waits,
            reached: reaches,
        };
        match self.model {
            None => self.plan(reaches + call.takes, Thing::Reply(nth)),
            Some(_) if reaches == now => self.reaches(nth),
            Some(_) => self.plan(reaches, Thing::Reaches(nth)),
        }
    }

    /// The model begins to work on a call, unless the call was lost on its way.
    fn reaches(&mut self, nth: usize) {
        let (Some(model), Some(fragile)) = (&mut self.model, &self.scenario.backend) else {
            return;
        };
        if !self.running.contains(&nth) {
            return;
        }
        let call = self.calls[nth].0;
        let function = fragile.function(&self.scenario.groups[call.group].function);
        let now = self.now.as_nanos();
        if let CallStart::Down(_) = model.starts(now, nth as u64, function, nanos(call.takes)) {
            self.running.remove(&nth);
            self.lands(nth, Outcome::Failed, Ending::Failed);
        }
    }

    /// Calls end at the model.
    fn work_ends(&mut self) {
        let now = self.now.as_nanos();
        let ended = self.model.as_mut().map(|model| model.due(now));
        for ended in ended.into_iter().flatten() {
            let nth = usize::try_from(ended.id).expect("ids are places in a list");
            self.running.remove(&nth);
            match ended.outcome {
                backends::ServiceOutcome::Served => {
                    self.lands(nth, Outcome::Served, Ending::Answered)
                }
                backends::ServiceOutcome::Reset | backends::ServiceOutcome::Collapsed => {
                    self.lands(nth, Outcome::Failed, Ending::Failed);
                }
            }
        }
    }

    /// A call that found no backend waits again.
    fn goes_back(&mut self, nth: usize, hold: Hold) {
        let ticket = self.scheduler.requeue(self.now, hold, nth);
        self.calls[nth].1 = State::Waiting(ticket);
        let spread = 0.5 + self.spread.unit() / 2.0;
        let is_planned = self.backends.wake().is_some();
        self.backends
            .failed(BACKEND, Generation::default(), self.now, spread);
        if let Some(next) = self.backends.wake().filter(|_| !is_planned) {
            self.plan(next, Thing::Probe);
        }
        self.supply(Supply::capacity(0));
    }

    fn replies(&mut self, nth: usize) {
        // A lost call has no reply.
        if self.running.remove(&nth) {
            self.lands(nth, Outcome::Served, Ending::Answered);
        }
    }

    fn lands(&mut self, nth: usize, outcome: Outcome, ending: Ending) {
        let state = mem::replace(&mut self.calls[nth].1, State::Over);
        let State::Running {
            hold,
            client,
            reached,
        } = state
        else {
            unreachable!("a running call is in this state");
        };
        if outcome == Outcome::Served {
            self.scheduler.replied(self.now, &hold);
        }
        self.scheduler.finish(self.now, hold, outcome, None);
        let service = (outcome == Outcome::Served).then(|| self.now.since(reached));
        self.tallies(nth, |tally| tally.landed(service));
        if client == Client::Waits {
            self.ends(nth, ending);
        }
    }

    fn supply(&mut self, supply: Supply) {
        let limit = backend_limit(BACKEND);
        let is_known = (self.scheduler).supply(self.now, &limit, Supplier::Health, supply);
        assert!(is_known, "every policy has the backend's limit");
    }

    fn ends(&mut self, nth: usize, ending: Ending) {
        let now = self.now;
        let arrived = Timestamp::ZERO + self.calls[nth].0.arrives;
        self.tallies(nth, |tally| tally.ends(now, arrived, ending));
    }

    /// Counts something for every group of a call.
    fn tallies(&mut self, nth: usize, mut count: impl FnMut(&mut Tally)) {
        let group = self.calls[nth].0.group;
        let function = &self.scenario.groups[group].function;
        count(&mut self.run.all);
        count(&mut self.run.groups[group]);
        count(self.run.functions.entry(Arc::clone(function)).or_default());
    }
}
