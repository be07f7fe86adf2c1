//! Runs a scenario: the real scheduler, and everything around it in virtual time.
//!
//! Time jumps from one event to the next. Events of the same moment happen in the order of
//! [`SimulatedEvent`], and after each the scheduler is asked for the next call. So a scenario with the
//! same seed always runs the same way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_backends::{self as backends, CallStart, Model};
use tidegate_limits::call::Backend;
use tidegate_limits::scheduler::{Outcome, Refusal, Supplier, Supply};
use tidegate_limits::{Call, Policy, Scheduler, Timestamp, Verdict};
use tidegate_replay::{Decision, Predictions, Ranked, Replay};

use super::arrivals::{PlannedCall, calls};
use super::figures::{CallTally, ModelLoad, ScenarioRun, SimulatedEnding};
use super::scenario::{Scenario, ScenarioChange};
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

/// Events of the same moment happen in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulatedEvent {
    /// An event of the scenario.
    Scripted(usize),
    Reply(usize),
    /// A call reaches a backend that is a model.
    Reaches(usize),
    /// A connect has failed.
    NoConnection(usize),
    Probe,
    Arrival(usize),
    Leaving(usize),
}

impl Ranked for SimulatedEvent {
    type Rank = Self;

    fn rank(&self) -> Self {
        *self
    }
}

/// A call that was sent and has not ended.
struct SentCall {
    /// When it reached the backend.
    reached: Timestamp,
    has_client: bool,
}

struct Simulation<'s> {
    scenario: &'s Scenario,
    settings: &'s GateSettings,
    calls: Vec<PlannedCall>,
    /// A call that it says runs, and that was not sent, waits for its connect to fail.
    replay: Replay<usize, SimulatedEvent>,
    sent: BTreeMap<usize, SentCall>,
    /// The model that decides when calls end, unless each takes its own time.
    model: Option<Model>,
    /// While the backend is down, how long a connect takes to fail.
    down: Option<Duration>,
    backends: BackendHealth,
    jitter: Random,
    spread: Random,
    run: ScenarioRun,
}

/// Runs a scenario to its end.
pub(super) fn run(scenario: &Scenario, seed: u64) -> ScenarioRun {
    let settings = &scenario.settings;
    let mut simulation = Simulation {
        scenario,
        settings,
        calls: calls(&scenario.groups, seed),
        replay: Replay::new(Scheduler::new(policy(settings))),
        sent: BTreeMap::new(),
        model: scenario
            .backend
            .as_ref()
            .map(|it| Model::new(it.backend.clone())),
        down: None,
        backends: BackendHealth::default(),
        jitter: Random::new(seed, JITTER_STREAM),
        spread: Random::new(seed, PROBE_STREAM),
        run: ScenarioRun {
            groups: vec![CallTally::default(); scenario.groups.len()],
            ..ScenarioRun::default()
        },
    };
    let replay = &mut simulation.replay;
    replay.set_predictions(predictions(settings));
    for (nth, event) in scenario.events.iter().enumerate() {
        replay.plan(Timestamp::ZERO + event.at, SimulatedEvent::Scripted(nth));
    }
    for (nth, call) in simulation.calls.iter().enumerate() {
        let arrives = Timestamp::ZERO + call.arrives;
        replay.plan(arrives, SimulatedEvent::Arrival(nth));
        if let Some(patience) = scenario.groups[call.group].leaves_after {
            replay.plan(arrives + patience, SimulatedEvent::Leaving(nth));
        }
    }
    simulation.go_on_to_the_end();
    simulation.run.at_backend = simulation.model.map(|model| ModelLoad {
        most_at_once: model.most(),
        times_broken: model.times_broken(),
    });
    simulation.run
}

/// Starts are predicted also where no call is refused because of it.
const fn predictions(settings: &GateSettings) -> Predictions {
    match settings.early_refusal {
        true => Predictions::RefuseLate,
        false => Predictions::Starts,
    }
}

impl Simulation<'_> {
    fn go_on_to_the_end(&mut self) {
        loop {
            let model = self.model.as_ref().and_then(Model::wake);
            let model = model.map(Timestamp::from_nanos);
            let moments = [self.replay.next_moment(), model];
            let Some(next) = moments.into_iter().flatten().min() else {
                break;
            };
            self.advance(next);
            if model == Some(next) {
                self.work_ends();
            } else if let Some(event) = self.replay.pop_due() {
                self.happens(event);
            }
            self.let_through();
            assert!(
                self.replay.wake().is_none_or(|wake| wake > next),
                "a sleep ends in the future"
            );
        }
        assert!(
            self.replay.scheduler().is_at_rest(),
            "at the end no call waits and nothing is drawn"
        );
    }

    /// Advances to `next`, and charges the time to the limits that are closed until then, once for
    /// each waiting call that meets them.
    fn advance(&mut self, next: Timestamp) {
        let now = self.replay.now();
        self.replay.advance(next);
        if next == now || self.replay.scheduler().waiting() == 0 {
            return;
        }
        let mut charge = |limit: &Arc<str>, calls: u64, time: Duration| {
            let calls = u32::try_from(calls).unwrap_or(u32::MAX);
            let held = self.run.held.entry(Arc::clone(limit)).or_default();
            *held = held.saturating_add(time.saturating_mul(calls));
        };
        for limit in self.replay.scheduler().limits_now(now) {
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

    fn happens(&mut self, event: SimulatedEvent) {
        match event {
            SimulatedEvent::Scripted(nth) => match &self.scenario.events[nth].what {
                ScenarioChange::Reload(settings) => {
                    self.settings = settings;
                    let now = self.replay.now();
                    let scheduler = self.replay.scheduler_mut();
                    scheduler.apply(now, policy(settings));
                    self.replay.set_predictions(predictions(settings));
                }
                ScenarioChange::BackendDown { refuses_after } => {
                    self.down = Some(*refuses_after);
                    let sent: Vec<usize> = self.sent.keys().copied().collect();
                    for nth in sent {
                        if let Some(model) = &mut self.model {
                            model.leaves(self.replay.now().as_nanos(), nth as u64);
                        }
                        self.lands(nth, Outcome::Failed, SimulatedEnding::Failed);
                    }
                }
                ScenarioChange::BackendUp => self.down = None,
            },
            SimulatedEvent::Reply(nth) => {
                self.lands(nth, Outcome::Served, SimulatedEnding::Answered)
            }
            SimulatedEvent::Reaches(nth) => self.reaches(nth),
            SimulatedEvent::NoConnection(nth) => self.goes_back(nth),
            SimulatedEvent::Probe => {
                self.backends.due(self.replay.now());
                let in_use = self.replay.scheduler().in_use(&backend_limit(BACKEND));
                self.supply(Supply::capacity(in_use.unwrap_or(0).saturating_add(1)));
            }
            SimulatedEvent::Arrival(nth) => self.arrives(nth),
            SimulatedEvent::Leaving(nth) => self.leaves(nth),
        }
    }

    fn arrives(&mut self, nth: usize) {
        let now = self.replay.now();
        let group = &self.scenario.groups[self.calls[nth].group];
        let settings = self.settings;
        let class = class_of(settings, group.class.as_deref(), &group.function);
        let deadline = settings.classes[class.0 as usize].deadline;
        let call = Call::new(Arc::clone(&group.function), now)
            .backend(Backend(BACKEND as u8))
            .class(class)
            .caller(group.caller)
            .deadline(deadline.of(settings.max_wait, now, now));
        self.tallies(nth, |tally| tally.arrives(now));
        match self.replay.submit(nth, call) {
            Ok(_) => self.let_through(),
            Err(refusal) => self.refuse(nth, refusal),
        }
    }

    fn leaves(&mut self, nth: usize) {
        if let Some(sent) = self.sent.get_mut(&nth) {
            sent.has_client = false;
        } else if !self.replay.cancel(nth) && !self.replay.give_back(nth) {
            // The call is over.
            return;
        }
        self.ends(nth, SimulatedEnding::Left);
    }

    fn refuse(&mut self, nth: usize, refusal: Refusal) {
        let key = (refusal.reason.as_str(), refusal.limit);
        *self.run.told_no.entry(key).or_insert(0) += 1;
        let retry_after = refusal.retry_after;
        self.ends(nth, SimulatedEnding::ToldNo { retry_after });
    }

    /// Admits every call that may run.
    fn let_through(&mut self) {
        loop {
            let jitter = &mut self.jitter;
            match self.replay.decide(&mut || jitter.next()) {
                Some(Decision::Admitted { call, .. }) => self.connects(call),
                Some(Decision::Refused { call, refusal, .. }) => self.refuse(call, refusal),
                None => return,
            }
        }
    }

    fn connects(&mut self, nth: usize) {
        let now = self.replay.now();
        let model = self.model.as_ref();
        let collapsed = model.and_then(|model| model.down_until(now.as_nanos()));
        match self.down.or(collapsed.map(|_| Duration::ZERO)) {
            None => {}
            Some(Duration::ZERO) => return self.goes_back(nth),
            Some(refuses_after) => {
                let event = SimulatedEvent::NoConnection(nth);
                return self.replay.plan(now + refuses_after, event);
            }
        }
        self.replay.sent(nth);
        if self.backends.succeeded(BACKEND, Generation::default()) {
            self.supply(Supply::Configured);
        }
        let call = self.calls[nth];
        let reached = now + call.reaches_after;
        let waited = now.since(Timestamp::ZERO + call.arrives);
        self.tallies(nth, |tally| tally.sent(now, nth, waited, reached));
        let sent = SentCall {
            reached,
            has_client: true,
        };
        self.sent.insert(nth, sent);
        match self.model {
            None => (self.replay).plan(reached + call.takes, SimulatedEvent::Reply(nth)),
            Some(_) if reached == now => self.reaches(nth),
            Some(_) => self.replay.plan(reached, SimulatedEvent::Reaches(nth)),
        }
    }

    /// The model begins to work on a call, unless the call was lost on its way.
    fn reaches(&mut self, nth: usize) {
        let (Some(model), Some(fragile)) = (&mut self.model, &self.scenario.backend) else {
            return;
        };
        if !self.sent.contains_key(&nth) {
            return;
        }
        let call = self.calls[nth];
        let function = fragile.function(&self.scenario.groups[call.group].function);
        let now = self.replay.now().as_nanos();
        if let CallStart::Down(_) = model.starts(now, nth as u64, function, nanos(call.takes)) {
            self.lands(nth, Outcome::Failed, SimulatedEnding::Failed);
        }
    }

    /// Calls end at the model.
    fn work_ends(&mut self) {
        let now = self.replay.now().as_nanos();
        let ended = self.model.as_mut().map(|model| model.due(now));
        for ended in ended.into_iter().flatten() {
            let nth = usize::try_from(ended.id).expect("ids are places in a list");
            match ended.outcome {
                backends::ServiceOutcome::Served => {
                    self.lands(nth, Outcome::Served, SimulatedEnding::Answered)
                }
                backends::ServiceOutcome::Reset | backends::ServiceOutcome::Collapsed => {
                    self.lands(nth, Outcome::Failed, SimulatedEnding::Failed);
                }
            }
        }
    }

    /// A call that found no backend waits again, unless its client has left.
    fn goes_back(&mut self, nth: usize) {
        if self.replay.requeue(nth).is_none() {
            return;
        }
        let spread = 0.5 + self.spread.unit() / 2.0;
        let is_planned = self.backends.wake().is_some();
        let now = self.replay.now();
        (self.backends).failed(BACKEND, Generation::default(), now, spread);
        if let Some(next) = self.backends.wake().filter(|_| !is_planned) {
            self.replay.plan(next, SimulatedEvent::Probe);
        }
        self.supply(Supply::capacity(0));
    }

    /// A call that was sent ends, unless it is lost already.
    fn lands(&mut self, nth: usize, outcome: Outcome, ending: SimulatedEnding) {
        let Some(sent) = self.sent.remove(&nth) else {
            return;
        };
        let is_served = outcome == Outcome::Served;
        if is_served {
            self.replay.replied(nth);
        }
        let ended = self.replay.finish(nth, outcome, None);
        assert!(ended, "a call that was sent runs");
        let service = is_served.then(|| self.replay.now().since(sent.reached));
        self.tallies(nth, |tally| tally.landed(service));
        if sent.has_client {
            self.ends(nth, ending);
        }
    }

    fn supply(&mut self, supply: Supply) {
        let limit = backend_limit(BACKEND);
        let now = self.replay.now();
        let scheduler = self.replay.scheduler_mut();
        let is_known = scheduler.supply(now, &limit, Supplier::Health, supply);
        assert!(is_known, "every policy has the backend's limit");
    }

    fn ends(&mut self, nth: usize, ending: SimulatedEnding) {
        let now = self.replay.now();
        let arrived = Timestamp::ZERO + self.calls[nth].arrives;
        self.tallies(nth, |tally| tally.ends(now, arrived, ending));
    }

    /// Counts something for every group of a call.
    fn tallies(&mut self, nth: usize, mut count: impl FnMut(&mut CallTally)) {
        let group = self.calls[nth].group;
        let function = &self.scenario.groups[group].function;
        count(&mut self.run.all);
        count(&mut self.run.groups[group]);
        count(self.run.functions.entry(Arc::clone(function)).or_default());
    }
}
