//! The identity of a log: a scheduler that gets everything at the instants of the log must take
//! the same decision in every line.

use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use tidegate_limits::call::{Backend, BucketId, Cost, QuotaKey};
use tidegate_limits::scheduler::{Jitter, Refusal, RefusalReason};
use tidegate_limits::{Call, Caller, Scheduler, Timestamp, Weight};
use tidegate_replay::{Decision, Ranked, Replay};

use super::give::{CarriedHolds, give, quota_key};
use super::given::{Configured, LoggedKey, SchedulerInput};
use super::names::Name;
use super::setup::{CannotReplay, Setup, bucket, setup};
use super::span::JudgedSpan;
use super::steps::{StepEvent, is_decided};
use super::stores::StoreHistory;
use super::trace::{Trace, TracedCall, TracedProcess};

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
    pub(super) store: StoreHistory,
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

/// Something that the log has for an instant. The scheduler gets them in this order. A step is named by its word
/// ([`super::steps`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LogItem {
    /// A step of a call that the scheduler gets.
    Told { call: u32, step: u32 },
    /// A call is changed by another one.
    Changed { call: u32, step: u32 },
    /// A line of the gate.
    Given(u32),
    /// A step that the scheduler decides.
    Decided { call: u32, step: u32 },
}

/// An instant is sorted when it is complete: a step may be followed by another one of the same instant.
impl Ranked for LogItem {
    type Rank = ();

    fn rank(&self) {}
}

struct FedReplay<'t> {
    trace: &'t Trace,
    process: &'t TracedProcess,
    setup: Setup,
    phase: Duration,
    /// The instant of the line with the first config.   ns
    begin: u64,
    replay: Replay<u32, LogItem>,
    /// Lines of the gate and calls that are not planned yet. They are in order, and so are the steps of a call: it is enough
    /// to plan one line, one call, and one step of each call that has asked.
    lines: Range<u32>,
    calls: Range<u32>,
    carried: CarriedHolds,
    /// Steps that the log has for the present instant.
    expected: HashMap<u32, StepEvent>,
    /// Suspended calls, by the instants at which they were suspended.
    suspended: HashMap<u64, u32>,
    /// The call whose place the next one takes that asks.
    place_of: Option<u32>,
    store: StoreHistory,
}

/// Feeds the log of one process.
///
/// # Errors
///
/// If the log has no start, or a config that is not known.
pub(super) fn feed(
    trace: &Trace,
    process: &TracedProcess,
    span: &JudgedSpan,
) -> Result<Fed, CannotReplay> {
    if let cut @ 1.. = span.cut(process) {
        return Err(CannotReplay::Cut(cut));
    }
    let start = &process.given[span.first as usize];
    let configured = start.what.configured().ok_or(CannotReplay::NoStart)?;
    let Configured { phase, seed, .. } = *configured;
    let setup = setup(&trace.known, configured)?;
    let scheduler = Scheduler::with_seed(setup.policy(phase), seed).beginning(start.begins());
    let lines = u32::try_from(process.given.len()).unwrap_or(u32::MAX);
    let mut fed = FedReplay {
        trace,
        process,
        replay: Replay::new(scheduler),
        setup,
        phase,
        begin: start.at,
        lines: span.first..lines,
        calls: span.calls(process),
        carried: CarriedHolds::default(),
        expected: HashMap::default(),
        suspended: HashMap::default(),
        place_of: None,
        store: StoreHistory::default(),
    };
    fed.run(span)
}

impl FedReplay<'_> {
    fn run(&mut self, span: &JudgedSpan) -> Result<Fed, CannotReplay> {
        let which = span.calls(self.process);
        let judged = &self.process.calls[which.start as usize..which.end as usize];
        let is_over = |call: &&TracedCall| self.process.last(call).at < span.until;
        let mut fed = Fed {
            same: 0,
            calls: judged.iter().filter(is_over).count() as u64,
            first: None,
            store: StoreHistory::default(),
        };
        self.plan_line();
        self.plan_call();
        let mut items = Vec::new();
        // There is no timer: the log has every instant.
        while let Some(now) = self.replay.agenda_mut().next_moment()
            && now.as_nanos() < span.until
        {
            self.replay.advance(now);
            self.take_instant(&mut items);
            if let Err(difference) = self.instant(&items)? {
                fed.first = Some(difference);
                break;
            }
            let ended = items.iter().filter(|item| self.is_last(**item));
            fed.same += ended.count() as u64;
        }
        fed.store = mem::take(&mut self.store);
        Ok(fed)
    }

    /// Takes everything that the log has for this instant, and plans what follows in it.
    fn take_instant(&mut self, items: &mut Vec<LogItem>) {
        items.clear();
        while let Some(item) = self.replay.pop_due() {
            items.push(item);
            let (LogItem::Told { call, step }
            | LogItem::Changed { call, step }
            | LogItem::Decided { call, step }) = item
            else {
                self.plan_line();
                continue;
            };
            let steps = self.process.calls[call as usize].steps();
            if step == steps.first {
                self.plan_call();
            }
            if let (_, Some(after)) = self.process.step(call, step) {
                self.plan_step(call, after);
            }
        }
        items.sort_unstable();
    }

    /// Plans the next line of the gate.
    fn plan_line(&mut self) {
        if let Some(line) = self.lines.next() {
            let at = Timestamp::from_nanos(self.process.given[line as usize].at);
            self.replay.plan(at, LogItem::Given(line));
        }
    }

    /// Plans the first step of the next call.
    fn plan_call(&mut self) {
        if let Some(call) = self.calls.next() {
            self.plan_step(call, self.process.calls[call as usize].steps().first);
        }
    }

    fn plan_step(&mut self, call: u32, step: u32) {
        let (logged, _) = self.process.step(call, step);
        let item = match logged.what {
            what if is_decided(what) => LogItem::Decided { call, step },
            StepEvent::Class(_) | StepEvent::Deadline(_) | StepEvent::Bucket(_) => {
                LogItem::Changed { call, step }
            }
            _ => LogItem::Told { call, step },
        };
        self.replay.plan(Timestamp::from_nanos(logged.at), item);
    }

    /// Whether this is the last step of its call.
    fn is_last(&self, item: LogItem) -> bool {
        match item {
            LogItem::Told { call, step }
            | LogItem::Changed { call, step }
            | LogItem::Decided { call, step } => self.process.step(call, step).1.is_none(),
            LogItem::Given(_) => false,
        }
    }

    /// Everything of one instant: what the scheduler gets, then what it decides.
    fn instant(&mut self, items: &[LogItem]) -> Result<Result<(), Difference>, CannotReplay> {
        self.expected.clear();
        for &item in items {
            if let LogItem::Decided { call, step } = item {
                let what = self.process.step(call, step).0.what;
                self.expected.insert(call, what);
            }
        }
        self.reroute(items);
        for &item in items {
            match item {
                LogItem::Told { call, step } | LogItem::Changed { call, step } => {
                    let what = self.process.step(call, step).0.what;
                    if let Err(difference) = self.told(call, what) {
                        return Ok(Err(difference));
                    }
                }
                LogItem::Given(nth) => self.given(nth)?,
                LogItem::Decided { .. } => {}
            }
        }
        let decided = self.decide();
        for question in self.replay.quota_questions() {
            self.store.asked(self.replay.now().as_nanos(), question);
        }
        Ok(decided)
    }

    /// Charges waiting calls to other buckets, in the order of their turns, as the gate does.
    fn reroute(&mut self, items: &[LogItem]) {
        let changed = items.iter().filter_map(|item| match *item {
            LogItem::Changed { call, step } => match self.process.step(call, step).0.what {
                StepEvent::Bucket(to) => Some((call, bucket(to))),
                _ => None,
            },
            _ => None,
        });
        let to: HashMap<u32, Option<BucketId>> = changed.collect();
        if !to.is_empty() {
            let now = self.replay.now();
            let scheduler = self.replay.scheduler_mut();
            scheduler.reroute_waiting(now, |_, call| to.get(call).copied(), |_, _| ());
        }
    }

    /// Asks the scheduler until it sleeps, and compares what it decides.
    fn decide(&mut self) -> Result<(), Difference> {
        let mut wrong = None;
        loop {
            let expected = &mut self.expected;
            let draw = &mut |call: &mut u32, jitter: Jitter| match expected.remove(call) {
                Some(StepEvent::Postponed(aside)) => Duration::from_nanos(aside),
                other => {
                    wrong.get_or_insert((*call, other, "it is set aside".to_owned()));
                    jitter.min
                }
            };
            let (call, refusal) = match self.replay.decide_with(draw) {
                Some(Decision::Admitted { call, .. }) => (call, None),
                Some(Decision::Refused { call, refusal, .. }) => (call, Some(refusal)),
                None if self.refuse_late() => continue,
                None => break,
            };
            let logged = self.expected.remove(&call);
            // Its client did not come back in time, and it has no line any more.
            if refusal.is_some() && self.suspended.values().any(|it| *it == call) {
                self.suspended.retain(|_, it| *it != call);
                continue;
            }
            let is_same = match &refusal {
                None => logged == Some(StepEvent::Admitted),
                Some(refusal) => {
                    let call = &self.process.calls[call as usize];
                    logged == Some(StepEvent::Expired) && self.is_same(call, refusal)
                }
            };
            if !is_same {
                let decided = match &refusal {
                    None => "it is admitted".to_owned(),
                    Some(refusal) => format!("it is refused: {}", why(refusal)),
                };
                wrong.get_or_insert((call, logged, decided));
                break;
            }
        }
        let Some((call, logged, decided)) = wrong else {
            let left = self.expected.iter().min_by_key(|(call, _)| **call);
            return match left {
                Some((&call, &what)) => {
                    let decided = "nothing: the call still waits".to_owned();
                    Err(self.difference(call, Some(what), decided))
                }
                None => Ok(()),
            };
        };
        Err(self.difference(call, logged, decided))
    }

    /// Takes a call out that was refused at this instant because it was predicted to start late. The prediction
    /// itself is not made again.
    fn refuse_late(&mut self) -> bool {
        let mut calls = self.expected.keys().copied();
        let Some(call) = calls.find(|&call| self.is_predicted_late(call)) else {
            return false;
        };
        self.expected.remove(&call);
        self.replay.cancel(call)
    }

    fn is_predicted_late(&self, call: u32) -> bool {
        let reason = self.process.calls[call as usize].reason;
        let reason = reason.map(|reason| &**self.trace.names.get(reason));
        self.replay.ticket(call).is_some() && reason == Some(RefusalReason::PredictedLate.as_str())
    }

    fn difference(&self, call: u32, logged: Option<StepEvent>, decided: String) -> Difference {
        let call = &self.process.calls[call as usize];
        let at = self.replay.now().as_nanos();
        let name = |name: Option<Name>| name.map_or("none", |name| self.trace.names.get(name));
        let logged = match logged {
            Some(what @ (StepEvent::Refused | StepEvent::Expired)) => {
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
    fn told(&mut self, call: u32, what: StepEvent) -> Result<(), Difference> {
        let now = self.replay.now();
        let replay = &mut self.replay;
        let is_possible = match what {
            StepEvent::Asked(_) if replay.stage(call).is_none() => return self.asks(call),
            StepEvent::Sent => replay.sent(call),
            StepEvent::Replied => replay.replied(call),
            StepEvent::Ended(outcome, measured) => replay.finish(call, outcome, measured),
            StepEvent::GivenBack => replay.give_back(call),
            StepEvent::Requeued => replay.requeue(call).is_some(),
            StepEvent::Left | StepEvent::Evicted => replay.cancel(call),
            StepEvent::Suspended(until) => {
                self.suspended.insert(now.as_nanos(), call);
                replay.suspend(call, Timestamp::from_nanos(until))
            }
            StepEvent::Resumed(at) => {
                self.place_of = self.suspended.remove(&at);
                self.place_of.is_some()
            }
            // A change that came too late for its call changes nothing.
            StepEvent::Class(class) => {
                if let Some(ticket) = replay.ticket(call) {
                    let class = self.setup.class(self.trace.names.get(class));
                    replay.scheduler_mut().reclass(now, ticket, class);
                }
                true
            }
            StepEvent::Deadline(deadline) => {
                if let Some(ticket) = replay.ticket(call) {
                    let deadline = deadline.map(Timestamp::from_nanos);
                    replay.scheduler_mut().set_deadline(ticket, deadline);
                }
                true
            }
            // This was done for all such calls together.
            StepEvent::Bucket(_) => true,
            _ => false,
        };
        if is_possible {
            return Ok(());
        }
        let decided = "the call is not in a state in which this can happen".to_owned();
        Err(self.difference(call, Some(what), decided))
    }

    fn asks(&mut self, number: u32) -> Result<(), Difference> {
        let logged = &self.process.calls[number as usize];
        let call = submitted(self.trace, &self.setup, logged, logged.deadline());
        let submitted = match self.place_of.take() {
            Some(place) => self.replay.resume(number, call, place),
            None => self.replay.submit(number, call),
        };
        match submitted {
            Ok(_) => {
                if self.expected.get(&number) != Some(&StepEvent::Refused) {
                    return Ok(());
                }
                let decided = "it is taken in".to_owned();
                Err(self.difference(number, Some(StepEvent::Refused), decided))
            }
            Err(refusal) => match self.expected.remove(&number) {
                Some(StepEvent::Refused) if self.is_same(logged, &refusal) => Ok(()),
                other => {
                    let decided = format!("it is refused: {}", why(&refusal));
                    Err(self.difference(number, other, decided))
                }
            },
        }
    }

    /// Whether a refusal is the one in the line. A client that has left got none, and its line has
    /// no reason.
    fn is_same(&self, call: &TracedCall, refusal: &Refusal) -> bool {
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
    fn given(&mut self, nth: u32) -> Result<(), CannotReplay> {
        let given = &self.process.given[nth as usize];
        if given.again && given.at != self.begin {
            return Ok(());
        }
        let names = &self.trace.names;
        if let SchedulerInput::QuotaAnswer(answer) = &given.what {
            let of = quota_key(answer.key, names);
            self.store.answered(given.at, of, answer);
        }
        let now = self.replay.now();
        let scheduler = self.replay.scheduler_mut();
        match &given.what {
            SchedulerInput::Reload(configured) => {
                self.setup = setup(&self.trace.known, configured)?;
                self.phase = configured.phase;
                scheduler.apply(now, self.setup.policy(self.phase));
            }
            SchedulerInput::Costs(costs) => {
                self.setup.take_costs(costs);
                scheduler.apply(now, self.setup.policy(self.phase));
            }
            event => {
                let setup = &self.setup;
                give(scheduler, now, event, setup, names, &mut self.carried);
            }
        }
        Ok(())
    }
}

/// A call as it was submitted.
pub(super) fn submitted(
    trace: &Trace,
    setup: &Setup,
    call: &TracedCall,
    deadline: Option<u64>,
) -> Call {
    let kind = trace.kind(call);
    let function = Arc::clone(trace.names.get(kind.function));
    let quotas = kind.draws.as_ref().map(|draws| {
        let keys = draws.iter().map(|&(quota, key)| LoggedKey { quota, key });
        let keys = keys.map(|key| quota_key(key, &trace.names));
        keys.collect::<Arc<[QuotaKey]>>()
    });
    Call::new(function, Timestamp::from_nanos(call.arrived))
        .backend(Backend(kind.backend))
        .class(setup.class(trace.names.get(kind.class)))
        .caller(Caller(kind.caller))
        .weight(Weight::new(kind.weight).unwrap_or(Weight::ONE))
        .cost(Cost::new(kind.cost).unwrap_or(Cost::ONE))
        .tokens(kind.tokens())
        .bucket(bucket(kind.bucket))
        .quotas(quotas)
        .is_settled(kind.is_settled)
        .deadline(deadline.map(Timestamp::from_nanos))
}

fn why(refusal: &Refusal) -> String {
    let limit = refusal.limit.as_deref().unwrap_or("no limit");
    format!("{} ({limit})", refusal.reason.as_str())
}
