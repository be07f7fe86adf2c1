//! The identity of a log: a scheduler that gets everything at the instants of the log must take
//! the same decision in every line.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_limits::call::Backend;
use tidegate_limits::scheduler::{Jitter, Reason, Refusal, Supplier, Supply};
use tidegate_limits::{
    Call, Caller, Fill, Hold, Scheduler, Step as Next, Ticket, Timestamp, Weight,
};

use super::agenda::{Agenda, Item};
use super::line::Gate;
use super::setup::{CannotReplay, Setup, bucket, setup};
use super::span::Span;
use super::trace::{self, Name, Process, Trace, What};

/// What feeding a log has shown.
#[derive(Debug)]
pub(super) struct Fed {
    /// Calls whose decisions were all the same.
    pub(super) same: u64,
    /// Calls of the log.
    pub(super) calls: u64,
    /// The first decision that was another one.
    pub(super) first: Option<Difference>,
}

/// A decision that differs from the log's.
#[derive(Debug)]
pub(super) struct Difference {
    /// The line of the call.
    pub(super) place: String,
    /// The call.
    pub(super) id: u64,
    /// The instant, since the start of the process.   ns
    pub(super) at: u64,
    /// What the log has.
    pub(super) logged: String,
    /// What the scheduler decided.
    pub(super) decided: String,
}

/// The progress of a call.
enum State {
    Before,
    Waiting(Ticket),
    Held(Hold),
    Over,
}

struct Feeder<'t> {
    trace: &'t Trace,
    process: &'t Process,
    setup: Setup,
    phase: Duration,
    /// The instant of the line with the first config.   ns
    begin: u64,
    scheduler: Scheduler<u32>,
    states: Vec<State>,
}

/// Feeds the log of one process.
///
/// # Errors
///
/// If the log has no start, or a config that is not known.
pub(super) fn feed(trace: &Trace, process: &Process, span: &Span) -> Result<Fed, CannotReplay> {
    if let cut @ 1.. = span.cut(process) {
        return Err(CannotReplay::Cut(cut));
    }
    let start = &process.given[span.first as usize];
    let setup = setup(start)?;
    let phase = Duration::from_nanos(start.phase_ns.unwrap_or(0));
    let seed = start.seed.as_deref();
    let seed = seed.and_then(|seed| u64::from_str_radix(seed, 16).ok());
    let mut feeder = Feeder {
        trace,
        process,
        scheduler: Scheduler::with_seed(setup.policy(phase), seed.unwrap_or(0)),
        setup,
        phase,
        begin: start.at_ns,
        states: process.calls.iter().map(|_| State::Before).collect(),
    };
    feeder.run(span)
}

impl Feeder<'_> {
    fn run(&mut self, span: &Span) -> Result<Fed, CannotReplay> {
        let which = span.calls(self.process);
        let (calls, given) = (&self.process.calls, &self.process.given);
        let mut agenda = Agenda::new(calls, which.clone(), given, span.first);
        let judged = calls[which.start as usize..which.end as usize].iter();
        let mut fed = Fed {
            same: 0,
            calls: judged.filter(|call| call.over() < span.until).count() as u64,
            first: None,
        };
        let mut items = Vec::new();
        while let Some(at) = agenda.next(&mut items)
            && at < span.until
        {
            if let Err(difference) = self.at(at, &items)? {
                fed.first = Some(difference);
                return Ok(fed);
            }
            let ended = items.iter().filter(|item| self.is_last(**item));
            fed.same += ended.count() as u64;
        }
        Ok(fed)
    }

    /// Whether this is the last step of its call.
    fn is_last(&self, item: Item) -> bool {
        match item {
            Item::Told { call, step }
            | Item::Changed { call, step }
            | Item::Decided { call, step } => {
                usize::from(step) + 1 == self.process.calls[call as usize].steps.len()
            }
            Item::Given(_) => false,
        }
    }

    /// Everything of one instant: what the scheduler gets, then what it decides.
    fn at(&mut self, at: u64, group: &[Item]) -> Result<Result<(), Difference>, CannotReplay> {
        let now = Timestamp::from_nanos(at);
        let mut expected: HashMap<u32, What> = HashMap::new();
        for &item in group {
            if let Item::Decided { call, step } = item {
                let what = self.process.calls[call as usize].steps[usize::from(step)].what;
                expected.insert(call, what);
            }
        }
        for &item in group {
            match item {
                Item::Told { call, step } | Item::Changed { call, step } => {
                    let what = self.process.calls[call as usize].steps[usize::from(step)].what;
                    if let Err(difference) = self.told(now, call, what, &mut expected) {
                        return Ok(Err(difference));
                    }
                }
                Item::Given(nth) => self.given(now, nth)?,
                Item::Decided { .. } => {}
            }
        }
        Ok(self.decide(now, expected))
    }

    /// Asks the scheduler until it sleeps, and compares what it decides.
    fn decide(
        &mut self,
        now: Timestamp,
        mut expected: HashMap<u32, What>,
    ) -> Result<(), Difference> {
        let mut wrong = None;
        let mut is_reason = true;
        loop {
            let draw = &mut |call: &mut u32, jitter: Jitter| match expected.remove(call) {
                Some(What::Postponed(aside)) => Duration::from_nanos(aside),
                other => {
                    wrong.get_or_insert((*call, other, "it is set aside".to_owned()));
                    jitter.min
                }
            };
            let (call, decided, what) = match self.scheduler.next_with(now, draw) {
                Next::Run { payload, hold, .. } => {
                    self.states[payload as usize] = State::Held(hold);
                    (payload, What::Admitted, "it is admitted".to_owned())
                }
                Next::Expired {
                    payload, refusal, ..
                } => {
                    self.states[payload as usize] = State::Over;
                    let logged = &self.process.calls[payload as usize];
                    is_reason = self.is_same(logged, &refusal);
                    let what = format!("it is refused: {}", why(&refusal));
                    (payload, What::Expired, what)
                }
                Next::SleepUntil(_) | Next::Idle => break,
            };
            let logged = expected.remove(&call);
            if logged != Some(decided) || !is_reason {
                wrong.get_or_insert((call, logged, what));
                break;
            }
        }
        let Some((call, logged, decided)) = wrong else {
            return match expected.into_iter().min_by_key(|(call, _)| *call) {
                Some((call, what)) => {
                    let decided = "nothing: the call still waits".to_owned();
                    Err(self.difference(now, call, Some(what), decided))
                }
                None => Ok(()),
            };
        };
        Err(self.difference(now, call, logged, decided))
    }

    fn difference(
        &self,
        now: Timestamp,
        call: u32,
        logged: Option<What>,
        decided: String,
    ) -> Difference {
        let call = &self.process.calls[call as usize];
        let at = now.as_nanos();
        let name = |name: Option<Name>| name.map_or("none", |name| self.trace.names.get(name));
        let logged = match logged {
            Some(what @ (What::Refused | What::Expired)) => {
                let (reason, limit) = (name(call.reason), name(call.limit));
                format!("{what:?} at this instant: {reason} ({limit})")
            }
            Some(what) => format!("{what:?} at this instant"),
            None => {
                let next = call
                    .steps
                    .iter()
                    .find(|step| step.at > at && step.what.is_decided());
                next.map_or("nothing at this instant".to_owned(), |step| {
                    format!("{:?}, {} ns later", step.what, step.at - at)
                })
            }
        };
        Difference {
            place: self.trace.place(call),
            id: call.id,
            at,
            logged,
            decided,
        }
    }

    /// The scheduler gets one step of a call.
    fn told(
        &mut self,
        now: Timestamp,
        number: u32,
        what: What,
        expected: &mut HashMap<u32, What>,
    ) -> Result<(), Difference> {
        let index = number as usize;
        let scheduler = &mut self.scheduler;
        match (
            what,
            std::mem::replace(&mut self.states[index], State::Over),
        ) {
            (What::Asked, State::Before) => return self.asks(now, number, expected),
            (What::Sent, State::Held(hold)) => {
                scheduler.sent(now, &hold);
                self.states[index] = State::Held(hold);
            }
            (What::Replied, State::Held(hold)) => {
                scheduler.replied(now, &hold);
                self.states[index] = State::Held(hold);
            }
            (What::Ended(outcome, measured), State::Held(hold)) => {
                scheduler.finish(now, hold, outcome, measured);
            }
            (What::GivenBack, State::Held(hold)) => scheduler.give_back(now, hold),
            (What::Requeued, State::Held(hold)) => {
                let ticket = scheduler.requeue(now, hold, number);
                self.states[index] = State::Waiting(ticket);
            }
            (What::Left | What::Evicted, State::Waiting(ticket)) => {
                scheduler.cancel(now, ticket);
            }
            (What::Class(class), State::Waiting(ticket)) => {
                let class = self.setup.class(self.trace.names.get(class));
                scheduler.reclass(now, ticket, class);
                self.states[index] = State::Waiting(ticket);
            }
            (What::Deadline(deadline), State::Waiting(ticket)) => {
                scheduler.set_deadline(ticket, deadline.map(Timestamp::from_nanos));
                self.states[index] = State::Waiting(ticket);
            }
            (What::Bucket(to), State::Waiting(ticket)) => {
                self.states[index] = State::Waiting(ticket);
                scheduler.reroute_waiting(now, |_, &call| (call == number).then_some(bucket(to)));
            }
            // A change that came too late for it.
            (What::Class(_) | What::Deadline(_) | What::Bucket(_), state) => {
                self.states[index] = state;
            }
            (what, _) => {
                let decided = "the call is not in a state in which this can happen".to_owned();
                return Err(self.difference(now, number, Some(what), decided));
            }
        }
        Ok(())
    }

    fn asks(
        &mut self,
        now: Timestamp,
        number: u32,
        expected: &mut HashMap<u32, What>,
    ) -> Result<(), Difference> {
        let logged = &self.process.calls[number as usize];
        let call = submitted(self.trace, &self.setup, logged, logged.deadline);
        match self.scheduler.submit(now, call, number) {
            Ok(ticket) if expected.get(&number) == Some(&What::Refused) => {
                self.states[number as usize] = State::Waiting(ticket);
                let decided = "it is taken in".to_owned();
                Err(self.difference(now, number, Some(What::Refused), decided))
            }
            Ok(ticket) => {
                self.states[number as usize] = State::Waiting(ticket);
                Ok(())
            }
            Err((refusal, _)) => match expected.remove(&number) {
                Some(What::Refused) if self.is_same(logged, &refusal) => Ok(()),
                other => {
                    let decided = format!("it is refused: {}", why(&refusal));
                    Err(self.difference(now, number, other, decided))
                }
            },
        }
    }

    /// Whether a refusal is the one in the line. A client that has left got none, and its line has
    /// no reason.
    fn is_same(&self, call: &trace::Call, refusal: &Refusal) -> bool {
        let name = |name: Option<Name>| name.map(|name| &**self.trace.names.get(name));
        let Some(logged) = name(call.reason) else {
            return true;
        };
        let late = [Reason::DeadlinePassed, Reason::DeadlineUnreachable];
        // The gate says it so while the backend is down.
        let is_down = logged == "backend_unreachable" && late.contains(&refusal.reason);
        let is_reason = is_down || logged == refusal.reason.as_str();
        let is_limit = refusal.limit.is_none() || name(call.limit) == refusal.limit.as_deref();
        is_reason && is_limit
    }

    /// The scheduler is given something else.
    fn given(&mut self, now: Timestamp, nth: u32) -> Result<(), CannotReplay> {
        let gate = &self.process.given[nth as usize];
        if gate.again && gate.at_ns != self.begin {
            return Ok(());
        }
        give(&mut self.scheduler, now, gate, &self.setup);
        if gate.event == "reload" {
            self.setup = setup(gate)?;
            let policy = self.setup.policy(self.phase);
            self.scheduler.apply(now, policy);
        }
        Ok(())
    }
}

/// A call as it was submitted.
pub(super) fn submitted(
    trace: &Trace,
    setup: &Setup,
    call: &trace::Call,
    deadline: Option<u64>,
) -> Call {
    let function = std::sync::Arc::clone(trace.names.get(call.function));
    Call::new(function, Timestamp::from_nanos(call.arrived))
        .backend(Backend(call.backend))
        .class(setup.class(trace.names.get(call.class)))
        .caller(Caller(call.caller))
        .weight(Weight::new(call.weight).unwrap_or(Weight::ONE))
        .tokens(call.tokens)
        .bucket(bucket(call.bucket))
        .deadline(deadline.map(Timestamp::from_nanos))
}

/// Gives a line of the gate to a scheduler, except a config.
pub(super) fn give(scheduler: &mut Scheduler<u32>, now: Timestamp, gate: &Gate, setup: &Setup) {
    let until = gate.until_ns.map(Timestamp::from_nanos);
    match (&*gate.event, &gate.limit, bucket(gate.bucket)) {
        ("supply", Some(limit), _) => {
            let by = match gate.by.as_deref() {
                Some("health") => Supplier::Health,
                _ => Supplier::Coordinator,
            };
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it was written from a u32"
            )]
            let then = gate.then.unwrap_or(0.0) as u32;
            let supply = gate
                .capacity
                .map_or(Supply::Configured, |capacity| Supply::Capacity {
                    capacity,
                    expires_at: until,
                    then,
                });
            scheduler.supply(now, limit, by, supply);
        }
        ("fill", _, Some(id)) => {
            let fill = |fill: Option<f64>| fill.and_then(|fill| Fill::new(fill).ok());
            let supply = match (fill(gate.fill), fill(gate.then)) {
                (Some(capacity), Some(then)) => Supply::Capacity {
                    capacity,
                    expires_at: until,
                    then,
                },
                _ => Supply::Configured,
            };
            scheduler.supply_fill(now, id, supply);
        }
        ("bucket", _, Some(id)) => {
            if let Some(rule) = gate.rule.as_ref().and_then(|rule| setup.rule(rule)) {
                // There are no more than the sidecar had.
                let _ = scheduler.set_bucket(now, id, rule);
            }
        }
        ("bucket_gone", _, Some(id)) => {
            scheduler.remove_bucket(now, id, |_| None);
        }
        _ => {}
    }
}

fn why(refusal: &Refusal) -> String {
    let limit = refusal.limit.as_deref().unwrap_or("no limit");
    format!("{} ({limit})", refusal.reason.as_str())
}
