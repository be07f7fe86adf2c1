//! A free run: the calls of a log arrive at a scheduler that decides by itself, and a backend takes as
//! long for each as it took in the log.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use tidegate_limits::scheduler::{Jitter, Outcome};
use tidegate_limits::{Hold, Scheduler, Step as Next, Ticket, Timestamp, Tokens};

use super::feed::{give, submitted};
use super::line::Gate;
use super::setup::{CannotReplay, Setup, bucket, setup};
use super::span::Span;
use super::trace::{self, Name, Names, Process, Trace, What};
use crate::admit::Deadline;
use crate::tools::random::Random;

/// The stream of the seed for postponements.
const JITTER_STREAM: u64 = 1;

/// How clients behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Clients {
    /// Calls arrive when they did in the log, whatever became of earlier ones.
    Open,
    /// A client asks again as long after its answer as it did in the log, as nova's workers do.
    Closed,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It was sent, and the backend was done with it.
    Answered,
    /// It was refused, at once or after a wait.
    Refused,
    /// Its client left before it was sent, or the process ended.
    Left,
}

/// What became of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    /// When it asked for its turn.   ns
    pub(super) asked: u64,
    /// When it was sent.   ns
    pub(super) sent: Option<u64>,
    /// When its turn came, or it was refused, or left.   ns
    pub(super) left_queue: u64,
    /// When it was over.   ns
    pub(super) ended: u64,
    pub(super) ending: Ending,
    /// The limit that refused it, or held it longest.
    pub(super) limit: Option<Name>,
}

/// The calls of a process in one run.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// What became of each call; `None` if it was not in the run.
    pub(super) ran: Vec<Option<Ran>>,
    /// The limits that refused calls or held them.
    pub(super) limits: Names,
}

impl Run {
    /// The calls of the log as they ran in it.
    pub(super) fn logged(trace: &Trace, process: &Process, span: &Span) -> Self {
        let mut run = Self {
            ran: vec![None; process.calls.len()],
            limits: Names::default(),
        };
        let within = span.calls(process);
        for nth in within.start as usize..within.end as usize {
            let mut ran = Ran::logged(&process.calls[nth]);
            if let Some(ran) = &mut ran {
                let name = ran.limit.map(|limit| trace.names.get(limit));
                ran.limit = name.map(|name| run.limits.of(name));
            }
            run.ran[nth] = ran;
        }
        run
    }
}

/// How long a backend took for a call, from its turn.
#[derive(Clone, Copy, Debug)]
struct Service {
    sent: u64,
    replied: Option<u64>,
    ended: u64,
    outcome: Outcome,
    measured: Option<Tokens>,
}

impl Ran {
    /// What became of a call in the log; `None` if its line has no end.
    fn logged(call: &trace::Call) -> Option<Self> {
        let (first, last) = (call.steps.first()?, call.steps.last()?);
        let (admitted, service) =
            service(call).map_or((None, None), |(at, it)| (Some(at), Some(it)));
        Some(Self {
            asked: first.at,
            sent: admitted.zip(service).map(|(at, it)| at + it.sent),
            left_queue: admitted.unwrap_or(last.at),
            ended: last.at,
            ending: match last.what {
                What::Ended(..) => Ending::Answered,
                What::Refused | What::Expired => Ending::Refused,
                _ => Ending::Left,
            },
            limit: call.limit,
        })
    }

    /// How long it waited for its turn, or for its refusal.
    pub(super) fn waited(&self) -> u64 {
        self.left_queue.saturating_sub(self.asked)
    }
}

/// The last turn of a call that was sent, and what the backend took from then on.
fn service(call: &trace::Call) -> Option<(u64, Service)> {
    let at = |is: fn(What) -> bool| {
        let mut steps = call.steps.iter().rev();
        steps.find(|step| is(step.what)).map(|step| step.at)
    };
    let admitted = at(|what| what == What::Admitted)?;
    let sent = at(|what| what == What::Sent)?;
    let last = call.steps.last()?;
    let What::Ended(outcome, measured) = last.what else {
        return None;
    };
    let since = |at: u64| at.saturating_sub(admitted);
    let service = Service {
        sent: since(sent),
        replied: at(|what| what == What::Replied).map(since),
        ended: since(last.at),
        outcome,
        measured,
    };
    Some((admitted, service))
}

/// The calls of a process, as they arrive.
pub(super) struct Load<'t> {
    trace: &'t Trace,
    process: &'t Process,
    span: Span,
    services: Vec<Service>,
    /// Calls whose service time is another call's, because they were not sent in the log.
    pub(super) drawn: u64,
    /// The call before of the same client, and how long after its end it asked.
    before: Vec<Option<(u32, u64)>>,
}

impl<'t> Load<'t> {
    /// Of one process. A call that was not sent gets the service of another one of its function.
    pub(super) fn new(trace: &'t Trace, process: &'t Process, span: Span, seed: u64) -> Self {
        let sent = |call: &&trace::Call| service(call).is_some();
        let mut by_function: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        // Only where a call needs another one's time.
        if process.calls.iter().any(|call| service(call).is_none()) {
            for (call, nth) in process.calls.iter().zip(0..).filter(|(call, _)| sent(call)) {
                by_function.entry(call.function).or_default().push(nth);
            }
        }
        let all: Vec<u32> = by_function.values().flatten().copied().collect();
        let mut random = Random::new(seed, 0);
        let mut drawn = 0;
        let services = process.calls.iter().map(|call| {
            if let Some((_, service)) = service(call) {
                return service;
            }
            drawn += 1;
            let like = by_function.get(&call.function).unwrap_or(&all);
            let nth = usize::try_from(random.below(like.len().max(1) as u64)).unwrap_or(0);
            let like = like.get(nth).map(|&nth| &process.calls[nth as usize]);
            let like = like.and_then(service).map(|(_, service)| service);
            like.unwrap_or(Service {
                sent: 0,
                replied: None,
                ended: 0,
                outcome: Outcome::Served,
                measured: None,
            })
        });
        Self {
            services: services.collect(),
            trace,
            process,
            span,
            drawn,
            before: chains(process),
        }
    }
}

/// The call before of each call: the one of the same client that ended last before it arrived, and
/// that no other call follows.
fn chains(process: &Process) -> Vec<Option<(u32, u64)>> {
    let mut ends: Vec<(u64, u32)> = process
        .calls
        .iter()
        .zip(0..)
        .map(|(call, nth)| (call.over(), nth))
        .collect();
    ends.sort_unstable();
    let mut ends = ends.into_iter().peekable();
    let mut idle: HashMap<_, Vec<(u64, u32)>> = HashMap::new();
    let client = |call: &trace::Call| (call.client, call.caller);
    let mut before = Vec::with_capacity(process.calls.len());
    // Calls are in the order in which they asked.
    for call in &process.calls {
        while let Some(&(at, nth)) = ends.peek()
            && at <= call.arrived
        {
            idle.entry(client(&process.calls[nth as usize]))
                .or_default()
                .push((at, nth));
            ends.next();
        }
        let last = idle.get_mut(&client(call)).and_then(Vec::pop);
        before.push(last.map(|(at, nth)| (nth, call.asked().saturating_sub(at))));
    }
    before
}

/// Which config decides.
pub(super) enum By<'c> {
    /// Those of the log, with their reloads.
    Log,
    /// This one, from the start.
    Config(&'c Setup),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Given(u32),
    Ended(u32),
    Sent(u32),
    Replied(u32),
    Arrives(u32),
    Leaves(u32),
}

/// A call that is not over.
enum State {
    Waiting(Ticket),
    Held(Hold),
}

struct World<'t> {
    load: &'t Load<'t>,
    setup: Setup,
    /// The config of the log, whose rate limits are replaced; `None` if it decides itself.
    logged: Option<Setup>,
    phase: Duration,
    /// The instant of the line with the first config.   ns
    begin: u64,
    scheduler: Scheduler<u32>,
    states: HashMap<u32, State>,
    run: Run,
    /// The calls that follow each call, and how long after its end.
    after: BTreeMap<u32, (u32, u64)>,
    agenda: BinaryHeap<Reverse<(u64, Thing)>>,
}

/// Runs the calls of a process freely.
///
/// # Errors
///
/// If the log has no start, or a config that is not known.
pub(super) fn run(
    load: &Load<'_>,
    by: &By<'_>,
    clients: Clients,
    seed: u64,
) -> Result<Run, CannotReplay> {
    let (process, span) = (load.process, &load.span);
    let start = &process.given[span.first as usize];
    let (setup, logged) = match by {
        By::Log => (setup(start)?, None),
        By::Config(new) => (Setup::clone(new), Some(setup(start)?)),
    };
    let phase = Duration::from_nanos(start.phase_ns.unwrap_or(0));
    let mut world = World {
        scheduler: Scheduler::with_seed(setup.policy(phase), seed),
        setup,
        logged,
        phase,
        begin: start.at_ns,
        states: HashMap::new(),
        run: Run {
            ran: vec![None; process.calls.len()],
            limits: Names::default(),
        },
        after: BTreeMap::new(),
        agenda: BinaryHeap::new(),
        load,
    };
    let which = span.calls(process);
    for nth in which.clone() {
        match load.before[nth as usize] {
            Some((before, pause)) if clients == Clients::Closed && which.contains(&before) => {
                world.after.insert(before, (nth, pause));
            }
            _ => world.plan(process.calls[nth as usize].asked(), Thing::Arrives(nth)),
        }
    }
    for (gate, nth) in process.given.iter().zip(0..).skip(span.first as usize) {
        if gate.at_ns < span.until {
            world.plan(gate.at_ns, Thing::Given(nth));
        }
    }
    world.go_on(&mut Random::new(seed, JITTER_STREAM))?;
    Ok(world.run)
}

impl World<'_> {
    fn plan(&mut self, at: u64, thing: Thing) {
        self.agenda.push(Reverse((at, thing)));
    }

    fn go_on(&mut self, random: &mut Random) -> Result<(), CannotReplay> {
        let mut wake = None;
        loop {
            let thing = self.agenda.peek().map(|Reverse((at, _))| *at);
            let Some(now) = [thing, wake].into_iter().flatten().min() else {
                return Ok(());
            };
            if thing == Some(now) {
                let Reverse((_, thing)) = self.agenda.pop().expect("it was just looked at");
                self.happens(now, thing)?;
            }
            wake = self.let_through(now, random);
        }
    }

    fn happens(&mut self, at: u64, thing: Thing) -> Result<(), CannotReplay> {
        let now = Timestamp::from_nanos(at);
        match thing {
            Thing::Given(nth) => return self.given(now, nth),
            Thing::Arrives(call) => self.arrives(at, call),
            Thing::Leaves(call) => {
                if let Some(&State::Waiting(ticket)) = self.states.get(&call) {
                    self.scheduler.cancel(now, ticket);
                    self.ends(at, call, Ending::Left);
                }
            }
            Thing::Sent(call) => {
                if let Some(State::Held(hold)) = self.states.get(&call) {
                    self.scheduler.sent(now, hold);
                }
                if let Some(ran) = &mut self.run.ran[call as usize] {
                    ran.sent = Some(at);
                }
            }
            Thing::Replied(call) => {
                if let Some(State::Held(hold)) = self.states.get(&call) {
                    self.scheduler.replied(now, hold);
                }
            }
            Thing::Ended(call) => {
                if let Some(State::Held(hold)) = self.states.remove(&call) {
                    let Service {
                        outcome, measured, ..
                    } = self.load.services[call as usize];
                    self.scheduler.finish(now, hold, outcome, measured);
                }
                if let Some(ran) = &mut self.run.ran[call as usize] {
                    ran.ended = at;
                }
                self.next_of(at, call);
            }
        }
        Ok(())
    }

    /// A line of the gate. The health of the backend is what it was in the log: its probes, which
    /// depend on calls, are left out.
    fn given(&mut self, now: Timestamp, nth: u32) -> Result<(), CannotReplay> {
        let gate: &Gate = &self.load.process.given[nth as usize];
        let is_probe =
            gate.by.as_deref() == Some("health") && gate.capacity.is_some_and(|it| it > 0);
        if is_probe || gate.again && gate.at_ns != self.begin {
            return Ok(());
        }
        match (&*gate.event, &self.logged, &gate.rule) {
            ("reload", None, _) => {
                self.setup = setup(gate)?;
                let policy = self.setup.policy(self.phase);
                self.scheduler.apply(now, policy);
            }
            // The rate limit of this name in the other config, or none.
            ("bucket", Some(logged), Some(rule)) if self.setup.has(rule) || logged.has(rule) => {
                let rule = self.setup.named(rule);
                if let Some((rule, id)) = rule.zip(bucket(gate.bucket)) {
                    let _ = self.scheduler.set_bucket(now, id, rule);
                }
            }
            _ => give(&mut self.scheduler, now, gate, &self.setup),
        }
        Ok(())
    }

    fn arrives(&mut self, at: u64, number: u32) {
        let logged = &self.load.process.calls[number as usize];
        let (first, last) = (logged.steps[0].at, logged.steps[logged.steps.len() - 1]);
        let shifted = |instant: u64| (instant + at).saturating_sub(first);
        self.run.ran[number as usize] = Some(Ran {
            asked: at,
            sent: None,
            left_queue: at,
            ended: at,
            ending: Ending::Left,
            limit: None,
        });
        let now = Timestamp::from_nanos(at);
        let mut call = submitted(self.load.trace, &self.setup, logged, None);
        call.arrived = Timestamp::from_nanos(shifted(logged.arrived));
        let deadline = logged.deadline;
        call.deadline = match self.logged {
            None => deadline.map(|deadline| Timestamp::from_nanos(shifted(deadline))),
            Some(_) => self.deadline(logged, call.class.0 as usize, call.arrived, now),
        };
        match self.scheduler.submit(now, call, number) {
            Ok(ticket) => {
                self.states.insert(number, State::Waiting(ticket));
                if matches!(last.what, What::Left | What::GivenBack | What::Evicted) {
                    self.plan(shifted(last.at), Thing::Leaves(number));
                }
            }
            Err((refusal, _)) => self.refused(at, number, refusal.limit.as_deref()),
        }
    }

    /// The deadline by another config. A call that waited without a bound in a class with one was
    /// handed over, or its rate limit said so.
    fn deadline(
        &self,
        logged: &trace::Call,
        class: usize,
        arrived: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let settings = &self.setup.settings;
        let own = settings.classes[class].deadline;
        match (logged.deadline, own) {
            (None, Deadline::Threshold) => None,
            _ => own.of(settings.threshold, arrived, now),
        }
    }

    fn let_through(&mut self, at: u64, random: &mut Random) -> Option<u64> {
        let now = Timestamp::from_nanos(at);
        loop {
            let draw = &mut |_: &mut u32, jitter: Jitter| jitter.draw(now, random.next());
            match self.scheduler.next_with(now, draw) {
                Next::Run {
                    payload,
                    hold,
                    waited,
                    ..
                } => {
                    let held_by = waited.delays.longest().or(waited.held_by.as_ref());
                    let limit = held_by.map(|limit| self.run.limits.of(limit));
                    self.states.insert(payload, State::Held(hold));
                    if let Some(ran) = &mut self.run.ran[payload as usize] {
                        ran.left_queue = at;
                        ran.ending = Ending::Answered;
                        ran.limit = limit;
                    }
                    let service = self.load.services[payload as usize];
                    self.plan(at + service.sent, Thing::Sent(payload));
                    if let Some(replied) = service.replied {
                        self.plan(at + replied, Thing::Replied(payload));
                    }
                    // After it is sent, also if both take no time.
                    self.plan(
                        (at + service.ended).max(at + service.sent + 1),
                        Thing::Ended(payload),
                    );
                }
                Next::Expired {
                    payload, refusal, ..
                } => self.refused(at, payload, refusal.limit.as_deref()),
                Next::SleepUntil(wake) => return Some(wake.as_nanos()),
                Next::Idle => return None,
            }
        }
    }

    /// A call is refused by this limit.
    fn refused(&mut self, at: u64, call: u32, limit: Option<&str>) {
        if let Some(ran) = &mut self.run.ran[call as usize] {
            ran.limit = limit.map(|limit| self.run.limits.of(limit));
        }
        self.ends(at, call, Ending::Refused);
    }

    /// A call ends without a turn.
    fn ends(&mut self, at: u64, call: u32, ending: Ending) {
        self.states.remove(&call);
        if let Some(ran) = &mut self.run.ran[call as usize] {
            ran.ending = ending;
            ran.left_queue = at;
            ran.ended = at;
        }
        self.next_of(at, call);
    }

    /// The client of this call asks again.
    fn next_of(&mut self, at: u64, call: u32) {
        if let Some((next, pause)) = self.after.remove(&call) {
            self.plan(at + pause, Thing::Arrives(next));
        }
    }
}
