//! The identity of a log: a scheduler that gets everything at the instants of the log must take
//! the same decision in every line.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use tidegate_limits::call::{Backend, BucketId, QuotaKey};
use tidegate_limits::scheduler::{Jitter, Refusal, RefusalReason};
use tidegate_limits::{Call, Caller, Hold, Scheduler, Step as Next, Ticket, Timestamp, Weight};

use super::agenda::{Agenda, Item};
use super::give::{CarriedHolds, give, quota_key};
use super::given::{Configured, Event, Key};
use super::names::Name;
use super::setup::{CannotReplay, Setup, bucket, setup};
use super::span::Span;
use super::steps::{What, is_decided};
use super::stores::Seen;
use super::trace::{self, Process, Trace};

/// Result of feeding a log to the scheduler.
#[derive(Debug)]
pub(super) struct Fed {
    /// Calls whose decisions were all the same.
    pub(super) same: u64,
    /// Calls of the log.
    pub(super) calls: u64,
    /// The first decision that was another one.
    pub(super) first: Option<Difference>,
    /// The store of quotas, as far as the log shows it.
    pub(super) store: Seen,
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
    /// Decision in the log.
    pub(super) logged: String,
    /// Decision of the scheduler.
    pub(super) decided: String,
}

/// A call that is under way.
enum State {
    Waiting(Ticket),
    Held(Hold),
}

struct Feeder<'t> {
    trace: &'t Trace,
    process: &'t Process,
    setup: Setup,
    phase: Duration,
    /// The instant of the line with the first config.   ns
    begin: u64,
    scheduler: Scheduler<u32>,
    /// Only of the calls that are under way: there are few at once.
    states: HashMap<u32, State>,
    carried: CarriedHolds,
    /// Steps that the log has for the present instant.
    expected: HashMap<u32, What>,
    store: Seen,
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
    let configured = start.what.configured().ok_or(CannotReplay::NoStart)?;
    let Configured { phase, seed, .. } = *configured;
    let setup = setup(&trace.known, configured)?;
    let mut feeder = Feeder {
        trace,
        process,
        scheduler: Scheduler::with_seed(setup.policy(phase), seed).beginning(start.begins()),
        setup,
        phase,
        begin: start.at,
        states: HashMap::default(),
        carried: CarriedHolds::default(),
        expected: HashMap::default(),
        store: Seen::default(),
    };
    feeder.run(span)
}

impl Feeder<'_> {
    fn run(&mut self, span: &Span) -> Result<Fed, CannotReplay> {
        let which = span.calls(self.process);
        let mut agenda = Agenda::new(self.process, which.clone(), span.first);
        let judged = &self.process.calls[which.start as usize..which.end as usize];
        let is_over = |call: &&trace::Call| self.process.last(call).at < span.until;
        let mut fed = Fed {
            same: 0,
            calls: judged.iter().filter(is_over).count() as u64,
            first: None,
            store: Seen::default(),
        };
        let mut items = Vec::new();
        while let Some(at) = agenda.next(&mut items)
            && at < span.until
        {
            if let Err(difference) = self.at(at, &items)? {
                fed.first = Some(difference);
                break;
            }
            let ended = items.iter().filter(|item| self.is_last(**item));
            fed.same += ended.count() as u64;
        }
        fed.store = mem::take(&mut self.store);
        Ok(fed)
    }

    /// Whether this is the last step of its call.
    fn is_last(&self, item: Item) -> bool {
        match item {
            Item::Told { call, step }
            | Item::Changed { call, step }
            | Item::Decided { call, step } => self.process.step(call, step).1.is_none(),
            Item::Given(_) => false,
        }
    }

    /// Everything of one instant: what the scheduler gets, then what it decides.
    fn at(&mut self, at: u64, group: &[Item]) -> Result<Result<(), Difference>, CannotReplay> {
        let now = Timestamp::from_nanos(at);
        let mut expected = mem::take(&mut self.expected);
        expected.clear();
        for &item in group {
            if let Item::Decided { call, step } = item {
                expected.insert(call, self.process.step(call, step).0.what);
            }
        }
        self.reroute(now, group);
        for &item in group {
            match item {
                Item::Told { call, step } | Item::Changed { call, step } => {
                    let what = self.process.step(call, step).0.what;
                    if let Err(difference) = self.told(now, call, what, &mut expected) {
                        return Ok(Err(difference));
                    }
                }
                Item::Given(nth) => self.given(now, nth)?,
                Item::Decided { .. } => {}
            }
        }
        let decided = self.decide(now, &mut expected);
        self.expected = expected;
        if self.scheduler.asks_of_quotas() {
            for question in self.scheduler.quota_questions() {
                self.store.asked(at, question);
            }
            drop(self.scheduler.forgotten_quotas());
            drop(self.scheduler.quota_troubles());
        }
        Ok(decided)
    }

    /// Charges waiting calls to other buckets, in the order of their turns, as the gate does.
    fn reroute(&mut self, now: Timestamp, group: &[Item]) {
        let changed = group.iter().filter_map(|item| match *item {
            Item::Changed { call, step } => match self.process.step(call, step).0.what {
                What::Bucket(to) => Some((call, bucket(to))),
                _ => None,
            },
            _ => None,
        });
        let to: HashMap<u32, Option<BucketId>> = changed.collect();
        if !to.is_empty() {
            let scheduler = &mut self.scheduler;
            scheduler.reroute_waiting(now, |_, call| to.get(call).copied(), |_, _| ());
        }
    }

    /// Asks the scheduler until it sleeps, and compares what it decides.
    fn decide(
        &mut self,
        now: Timestamp,
        expected: &mut HashMap<u32, What>,
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
            let (call, decided) = match self.scheduler.next_with(now, draw) {
                Next::Run { payload, hold, .. } => {
                    self.states.insert(payload, State::Held(hold));
                    (payload, Ok(()))
                }
                Next::Expired {
                    payload, refusal, ..
                } => {
                    self.states.remove(&payload);
                    let logged = &self.process.calls[payload as usize];
                    is_reason = self.is_same(logged, &refusal);
                    (payload, Err(refusal))
                }
                Next::SleepUntil(_) | Next::Idle if self.refuse_late(now, expected) => continue,
                Next::SleepUntil(_) | Next::Idle => break,
            };
            let logged = expected.remove(&call);
            let is_same = match decided {
                Ok(()) => logged == Some(What::Admitted),
                Err(_) => logged == Some(What::Expired),
            };
            if !is_same || !is_reason {
                let what = match decided {
                    Ok(()) => "it is admitted".to_owned(),
                    Err(refusal) => format!("it is refused: {}", why(&refusal)),
                };
                wrong.get_or_insert((call, logged, what));
                break;
            }
        }
        let Some((call, logged, decided)) = wrong else {
            return match expected.iter().min_by_key(|(call, _)| **call) {
                Some((&call, &what)) => {
                    let decided = "nothing: the call still waits".to_owned();
                    Err(self.difference(now, call, Some(what), decided))
                }
                None => Ok(()),
            };
        };
        Err(self.difference(now, call, logged, decided))
    }

    /// Takes a call out that was refused at this instant because it was predicted to start late. The prediction
    /// itself is not made again.
    fn refuse_late(&mut self, now: Timestamp, expected: &mut HashMap<u32, What>) -> bool {
        let mut calls = expected.keys().copied();
        let Some(call) = calls.find(|&call| self.is_predicted_late(call)) else {
            return false;
        };
        let Some(State::Waiting(ticket)) = self.states.remove(&call) else {
            return false;
        };
        expected.remove(&call);
        self.scheduler.cancel(now, ticket);
        true
    }

    fn is_predicted_late(&self, call: u32) -> bool {
        let reason = self.process.calls[call as usize].reason;
        let reason = reason.map(|reason| &**self.trace.names.get(reason));
        let waits = matches!(self.states.get(&call), Some(State::Waiting(_)));
        waits && reason == Some(RefusalReason::PredictedLate.as_str())
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
                let next = self
                    .process
                    .steps(call)
                    .find(|step| step.at > at && is_decided(step.what));
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
        let scheduler = &mut self.scheduler;
        let state = match (what, self.states.remove(&number)) {
            (What::Asked(_), None) => return self.asks(now, number, expected),
            (What::Sent, Some(State::Held(hold))) => {
                scheduler.sent(now, &hold);
                State::Held(hold)
            }
            (What::Replied, Some(State::Held(hold))) => {
                scheduler.replied(now, &hold);
                State::Held(hold)
            }
            (What::Ended(outcome, measured), Some(State::Held(hold))) => {
                scheduler.finish(now, hold, outcome, measured);
                return Ok(());
            }
            (What::GivenBack, Some(State::Held(hold))) => {
                scheduler.give_back(now, hold);
                return Ok(());
            }
            (What::Requeued, Some(State::Held(hold))) => {
                State::Waiting(scheduler.requeue(now, hold, number))
            }
            (What::Left | What::Evicted, Some(State::Waiting(ticket))) => {
                scheduler.cancel(now, ticket);
                return Ok(());
            }
            (What::Class(class), Some(State::Waiting(ticket))) => {
                let class = self.setup.class(self.trace.names.get(class));
                scheduler.reclass(now, ticket, class);
                State::Waiting(ticket)
            }
            (What::Deadline(deadline), Some(State::Waiting(ticket))) => {
                scheduler.set_deadline(ticket, deadline.map(Timestamp::from_nanos));
                State::Waiting(ticket)
            }
            // A change that came too late for it, or was made for all such calls together.
            (What::Class(_) | What::Deadline(_) | What::Bucket(_), Some(state)) => state,
            (What::Class(_) | What::Deadline(_) | What::Bucket(_), None) => return Ok(()),
            (what, _) => {
                let decided = "the call is not in a state in which this can happen".to_owned();
                return Err(self.difference(now, number, Some(what), decided));
            }
        };
        self.states.insert(number, state);
        Ok(())
    }

    fn asks(
        &mut self,
        now: Timestamp,
        number: u32,
        expected: &mut HashMap<u32, What>,
    ) -> Result<(), Difference> {
        let logged = &self.process.calls[number as usize];
        let call = submitted(self.trace, &self.setup, logged, logged.deadline());
        match self.scheduler.submit(now, call, number) {
            Ok(ticket) => {
                self.states.insert(number, State::Waiting(ticket));
                if expected.get(&number) != Some(&What::Refused) {
                    return Ok(());
                }
                let decided = "it is taken in".to_owned();
                Err(self.difference(now, number, Some(What::Refused), decided))
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
        let late = [
            RefusalReason::DeadlinePassed,
            RefusalReason::DeadlineUnreachable,
        ];
        // The gate says it so while the backend is down.
        let is_down = logged == "backend_unreachable" && late.contains(&refusal.reason);
        let is_reason = is_down || logged == refusal.reason.as_str();
        let is_limit = refusal.limit.is_none() || name(call.limit) == refusal.limit.as_deref();
        is_reason && is_limit
    }

    /// The scheduler is given something else.
    fn given(&mut self, now: Timestamp, nth: u32) -> Result<(), CannotReplay> {
        let given = &self.process.given[nth as usize];
        if given.again && given.at != self.begin {
            return Ok(());
        }
        if let Event::QuotaAnswer(answer) = &given.what {
            let of = quota_key(answer.key, &self.trace.names);
            self.store.answered(given.at, of, answer);
        }
        match &given.what {
            Event::Reload(configured) => {
                self.setup = setup(&self.trace.known, configured)?;
                self.phase = configured.phase;
                let policy = self.setup.policy(self.phase);
                self.scheduler.apply(now, policy);
            }
            Event::Costs(costs) => {
                self.setup.take_costs(costs);
                let policy = self.setup.policy(self.phase);
                self.scheduler.apply(now, policy);
            }
            event => give(
                &mut self.scheduler,
                now,
                event,
                &self.setup,
                &self.trace.names,
                &mut self.carried,
            ),
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
    let kind = trace.kind(call);
    let function = Arc::clone(trace.names.get(kind.function));
    let quotas = kind.draws.as_ref().map(|draws| {
        let keys = draws.iter().map(|&(quota, key)| Key { quota, key });
        let keys = keys.map(|key| quota_key(key, &trace.names));
        keys.collect::<Arc<[QuotaKey]>>()
    });
    Call::new(function, Timestamp::from_nanos(call.arrived))
        .backend(Backend(kind.backend))
        .class(setup.class(trace.names.get(kind.class)))
        .caller(Caller(kind.caller))
        .weight(Weight::new(kind.weight).unwrap_or(Weight::ONE))
        .tokens(kind.tokens())
        .bucket(bucket(kind.bucket))
        .quotas(quotas)
        .deadline(deadline.map(Timestamp::from_nanos))
}

fn why(refusal: &Refusal) -> String {
    let limit = refusal.limit.as_deref().unwrap_or("no limit");
    format!("{} ({limit})", refusal.reason.as_str())
}
