//! A free run: the calls of a log arrive at a scheduler that decides by itself, and a backend takes as
//! long for each as it took in the log.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::iter::Peekable;
use std::ops::Range;
use std::time::Duration;

use foldhash::HashMap;
use tidegate_limits::call::BucketId;
use tidegate_limits::quota::StoreTime;
use tidegate_limits::scheduler::{Jitter, QuotaAsk, QuotaQuestion, Supplier, Supply};
use tidegate_limits::{Call, Caller, Hold, Scheduler, Step as Next, Ticket, Timestamp};
use tidegate_record::kind::BucketFields;

use super::feed::submitted;
use super::give::{CarriedHolds, give, set_bucket};
use super::given::Event;
use super::load::{Load, Service, service, tick};
use super::names::{Name, Names};
use super::rules::Matched;
use super::setup::{CannotReplay, Setup, setup};
use super::span::Span;
use super::steps::What;
use super::stores::Store;
use super::trace::{self, Process, Trace};
use crate::random::Random;
use tidegate::admit::ClassDeadline;
use tidegate::call::claim;

/// The stream of the seed for postponements.
const JITTER_STREAM: u64 = 1;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The call was sent, and the backend finished it.
    Answered,
    /// The call was refused, at once or after a wait.
    Refused,
    /// The client left before its call was sent, or the process ended.
    Left,
}

/// The course of a call in one run. A run has one for each of its calls: 40 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    /// When it asked for its turn.   ns
    pub(super) asked: u64,
    /// When its turn came, or it was refused, or left.   ns
    pub(super) left_queue: u64,
    /// When it was sent; `u64::MAX` if never.   ns
    pub(super) sent: u64,
    /// When it was over.   ns
    pub(super) ended: u64,
    /// The limit that refused it, or held it longest.
    pub(super) limit: Option<Name>,
    pub(super) ending: Ending,
}

/// The calls of a process in one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// The course of each call; `None` if the call was not in the run.
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
            let mut ran = Ran::logged(process, &process.calls[nth]);
            let name = ran.limit.map(|limit| trace.names.get(limit));
            ran.limit = name.map(|name| run.limits.of(name));
            run.ran[nth] = Some(ran);
        }
        run
    }
}

impl Ran {
    /// The course of a call in the log.
    pub(super) fn logged(process: &Process, call: &trace::Call) -> Self {
        let last = process.last(call);
        let (admitted, service) = service(process, call).unzip();
        Self {
            asked: process.asked(call),
            sent: admitted
                .zip(service)
                .map_or(u64::MAX, |(at, it)| at + it.sent),
            left_queue: admitted.unwrap_or(last.at),
            ended: last.at,
            ending: match last.what {
                What::Ended(..) => Ending::Answered,
                What::Refused | What::Expired => Ending::Refused,
                _ => Ending::Left,
            },
            limit: call.limit,
        }
    }

    /// When it was sent.   ns
    pub(super) fn sent(&self) -> Option<u64> {
        (self.sent < u64::MAX).then_some(self.sent)
    }

    /// How long it waited for its turn, or for its refusal.
    pub(super) fn waited(&self) -> u64 {
        self.left_queue.saturating_sub(self.asked)
    }
}

/// The config that decides.
pub(super) enum By<'c> {
    /// The configs of the log, with their reloads.
    Log,
    /// Another config, from the start, with the classes and claims that its rules give to the calls.
    Config(&'c Setup, &'c Matched),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Given(u32),
    Ended(u32),
    Sent(u32),
    Replied(u32),
    Arrives(u32),
    Leaves(u32),
    /// A question to the store of quotas is answered, or the record that it watches has changed.
    Answered(u32),
}

/// A call that is not over.
enum State {
    Waiting(Ticket),
    Held(Hold),
}

/// How the calls and rate limits of a log are those of another config.
struct Other<'t> {
    matched: &'t Matched,
    /// Each bucket of the log, and the one that its calls are charged to: that of the same name; its
    /// own, under another number, if it was made through the API; or none.
    buckets: HashMap<BucketId, Option<BucketId>>,
}

/// Numbers of the log are moved by this, so that they are none of those of the config.
const MOVED: u64 = 1 << 32;

impl<'t> Other<'t> {
    fn new(process: &Process, logged: &Setup, new: &Setup, matched: &'t Matched) -> Self {
        let rules = process.given.iter().filter_map(|given| match &given.what {
            Event::Bucket(it) => Some((it.0, &it.1)),
            _ => None,
        });
        let bucket = |(id, rule): (BucketId, &BucketFields)| {
            let is_configured = logged.has(rule);
            let made = || (!is_configured).then_some(BucketId(id.0.wrapping_add(MOVED)));
            (id, new.named(rule).or_else(made))
        };
        Self {
            matched,
            buckets: rules.map(bucket).collect(),
        }
    }

    /// The bucket for one of the log.
    fn bucket(&self, id: BucketId) -> Option<BucketId> {
        self.buckets.get(&id).copied().flatten()
    }

    /// The bucket for one of the log that was made through the API; `None` for any other.
    fn made(&self, id: BucketId) -> Option<BucketId> {
        self.bucket(id).filter(|id| id.0 >= MOVED)
    }

    /// Puts a call into the class and charges it to the rate limit that the config's rules say, where
    /// the log has what they need. Returns how long its rate limit lets it wait.
    fn place(&self, setup: &Setup, logged: &trace::Call, call: &mut Call) -> claim::ClaimDeadline {
        let placed = self.matched.get(logged.kind);
        if let Some(class) = &placed.class {
            call.class = setup.class(class);
        }
        let Some(claim) = &placed.claim else {
            call.caller = Caller(call.caller.0.wrapping_add(MOVED));
            call.bucket = call.bucket.and_then(|id| self.bucket(id));
            return claim::ClaimDeadline::Ordinary;
        };
        call.caller = Caller(claim.caller.0);
        call.weight = claim.weight;
        call.bucket = claim.charged.bucket();
        call.quotas.clone_from(&claim.quotas);
        if placed.is_cost_known {
            call.tokens = claim::drawn(claim.cost);
        }
        claim.deadline()
    }
}

struct World<'t> {
    load: &'t Load<'t>,
    setup: Setup,
    /// How the calls of the log are those of another config; `None` if the log's own decides.
    other: Option<Other<'t>>,
    phase: Duration,
    /// The instant of the line with the first config.   ns
    begin: u64,
    scheduler: Scheduler<u32>,
    /// The call that has just come, if such are refused that are predicted to start too late.
    begun: Option<Ticket>,
    states: HashMap<u32, State>,
    carried: CarriedHolds,
    run: Run,
    /// Events that keep the time they have in the log, in order: lines of the gate, and calls.
    next_given: Peekable<Range<u32>>,
    next_call: Peekable<Range<u32>>,
    store: Store<'t>,
    /// All questions to it, until they are answered.
    questions: Vec<Option<QuotaQuestion>>,
    /// Events that follow from earlier ones in this run.
    agenda: BinaryHeap<Reverse<(u64, Thing)>>,
}

/// Runs the calls of a process freely.
///
/// # Errors
///
/// If the log has no start, or a config that is not known.
pub(super) fn run<'t>(load: &'t Load<'t>, by: &By<'t>, seed: u64) -> Result<Run, CannotReplay> {
    let (process, span) = (load.process, &load.span);
    let start = &process.given[span.first as usize];
    let configured = start.what.configured().ok_or(CannotReplay::NoStart)?;
    let logged = setup(&load.trace.known, configured)?;
    let (setup, other) = match by {
        By::Log => (logged, None),
        By::Config(new, matched) => {
            let other = Other::new(process, &logged, new, matched);
            (Setup::clone(new), Some(other))
        }
    };
    let phase = configured.phase;
    let until = process.given.partition_point(|given| given.at < span.until);
    let mut world = World {
        scheduler: Scheduler::with_seed(setup.policy(phase), seed).beginning(start.begins()),
        setup,
        begun: None,
        other,
        phase,
        begin: start.at,
        states: HashMap::default(),
        carried: CarriedHolds::default(),
        run: Run {
            ran: vec![None; process.calls.len()],
            limits: Names::default(),
        },
        next_given: (span.first..u32::try_from(until).unwrap_or(u32::MAX)).peekable(),
        next_call: span.calls(process).peekable(),
        store: Store::new(load.store),
        questions: Vec::new(),
        agenda: BinaryHeap::new(),
        load,
    };
    if world.other.is_some() {
        let now = Timestamp::from_nanos(start.at);
        let (rules, keys_max) = world.setup.quotas();
        if !rules.is_empty() {
            world.scheduler.set_quotas(now, rules, keys_max);
            // As long as the log has no better one.
            let clock = phase + now.since(Timestamp::ZERO);
            let time = StoreTime::between(now, clock, clock);
            world.scheduler.learn_store_time(now, time);
        }
        for (id, rule) in world.setup.buckets() {
            // There are no more than a sidecar may have.
            let _ = world.scheduler.set_bucket(now, id, rule.clone());
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
            let next = self.next();
            let at = next.map(|(at, _)| at);
            let Some(now) = [at, wake].into_iter().flatten().min() else {
                return Ok(());
            };
            if let Some((at, thing)) = next
                && at == now
            {
                self.take(thing);
                self.happens(now, thing)?;
            }
            let next = self.let_through(now, random);
            self.ask_store(now);
            wake = next.map(|wake| {
                let late = &self.load.late;
                let nth = usize::try_from(random.below(late.len().max(1) as u64)).unwrap_or(0);
                wake + late.get(nth).copied().map_or(0, u64::from)
            });
        }
    }

    /// Returns the next event and its instant. Events of one instant come in the order of [`Thing`].
    fn next(&mut self) -> Option<(u64, Thing)> {
        let process = self.load.process;
        // With closed clients, a call that follows another one comes after its end.
        let chains = self.load.chains.as_ref();
        let follows = |call: u32| chains.is_some_and(|chains| chains.follows[call as usize]);
        while self.next_call.next_if(|&call| follows(call)).is_some() {}
        let given = self.next_given.peek();
        let given = given.map(|&nth| (process.given[nth as usize].at, Thing::Given(nth)));
        let call = self.next_call.peek();
        let call = call.map(|&call| {
            let asked = process.asked(&process.calls[call as usize]);
            (asked, Thing::Arrives(call))
        });
        let planned = self.agenda.peek().map(|Reverse(planned)| *planned);
        [given, call, planned].into_iter().flatten().min()
    }

    /// Carries out an event that is due now.
    fn take(&mut self, thing: Thing) {
        let is_planned = |planned: Option<&Reverse<(u64, Thing)>>| {
            planned.is_some_and(|Reverse((_, planned))| *planned == thing)
        };
        match thing {
            Thing::Given(_) => drop(self.next_given.next()),
            _ if is_planned(self.agenda.peek()) => drop(self.agenda.pop()),
            _ => drop(self.next_call.next()),
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
                    ran.sent = at;
                }
            }
            Thing::Replied(call) => {
                if let Some(State::Held(hold)) = self.states.get(&call) {
                    self.scheduler.replied(now, hold);
                }
            }
            Thing::Answered(nth) => self.answered(at, nth),
            Thing::Ended(call) => {
                if let Some(State::Held(hold)) = self.states.remove(&call) {
                    let Service {
                        outcome, measured, ..
                    } = self.load.service(call);
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

    /// Takes the questions to the store of quotas. Their answers come later.
    fn ask_store(&mut self, at: u64) {
        if !self.scheduler.asks_of_quotas() {
            return;
        }
        drop(self.scheduler.forgotten_quotas());
        drop(self.scheduler.quota_troubles());
        for question in self.scheduler.quota_questions() {
            let comes = match question.ask {
                QuotaAsk::Watch(_) => self.load.store.next_change(&question.of, at),
                // The log has what was configured.
                QuotaAsk::Settings => None,
                _ => Some(at + self.load.store.latency()),
            };
            if let Some(comes) = comes {
                let nth = u32::try_from(self.questions.len()).expect("a run has fewer draws");
                self.questions.push(Some(question));
                self.plan(comes, Thing::Answered(nth));
            }
        }
    }

    fn answered(&mut self, at: u64, nth: u32) {
        let now = Timestamp::from_nanos(at);
        let question = self.questions[nth as usize].take();
        let QuotaQuestion { at: key, of, ask } = question.expect("it is answered once");
        match self.store.answer(at, &of, ask) {
            Some((question, reply)) => {
                // The ledger asks again after a time between these.
                let entropy = u64::MAX / 2;
                self.scheduler
                    .answer_quota(now, key, question, reply, entropy);
            }
            None => self.scheduler.tell_quota(now, key),
        }
    }

    /// A line of the gate. The health of the backend is what it was in the log: its probes, which
    /// depend on calls, are left out.
    fn given(&mut self, now: Timestamp, nth: u32) -> Result<(), CannotReplay> {
        let Load { trace, process, .. } = self.load;
        let given = &process.given[nth as usize];
        if given.again && given.at != self.begin {
            return Ok(());
        }
        match (&given.what, &self.other) {
            (Event::Reload(configured), None) => {
                self.setup = setup(&trace.known, configured)?;
                self.phase = configured.phase;
                let policy = self.setup.policy(self.phase);
                self.scheduler.apply(now, policy);
            }
            (Event::Costs(costs), None) => {
                self.setup.take_costs(costs);
                let policy = self.setup.policy(self.phase);
                self.scheduler.apply(now, policy);
            }
            (Event::Supply(it), _) if it.by == Supplier::Health && is_probe(it.supply) => {}
            (Event::Bucket(it), Some(other)) => {
                if let Some(id) = other.made(it.0) {
                    set_bucket(&mut self.scheduler, now, id, self.setup.rule(&it.1));
                }
            }
            (Event::BucketGone(id), Some(other)) => {
                if let Some(id) = other.made(*id) {
                    self.scheduler.remove_bucket(now, id, |_| None);
                }
            }
            (Event::Fill(it), Some(other)) => {
                if let Some(id) = other.bucket(it.0) {
                    self.scheduler.supply_fill(now, id, it.1);
                }
            }
            (Event::QuotaAnswer(it), _) => self.scheduler.learn_store_time(now, it.time),
            (Event::Quotas, Some(_)) | (Event::QuotaChanged(_), _) => {}
            (event, _) => {
                give(
                    &mut self.scheduler,
                    now,
                    event,
                    &self.setup,
                    &trace.names,
                    &mut self.carried,
                );
            }
        }
        Ok(())
    }

    fn arrives(&mut self, at: u64, number: u32) {
        let process = self.load.process;
        let logged = &process.calls[number as usize];
        let (first, last) = (process.asked(logged), process.last(logged));
        let shifted = |instant: u64| (instant + at).saturating_sub(first);
        self.run.ran[number as usize] = Some(Ran {
            asked: at,
            sent: u64::MAX,
            left_queue: at,
            ended: at,
            ending: Ending::Left,
            limit: None,
        });
        let now = Timestamp::from_nanos(at);
        let mut call = submitted(self.load.trace, &self.setup, logged, None);
        call.arrived = Timestamp::from_nanos(shifted(logged.arrived));
        let deadline = logged.deadline();
        call.deadline = match &self.other {
            None => deadline.map(|deadline| Timestamp::from_nanos(shifted(deadline))),
            Some(other) => {
                let bound = other.place(&self.setup, logged, &mut call);
                self.deadline(deadline, bound, &call, now)
            }
        };
        match self.scheduler.submit(now, call, number) {
            Ok(ticket) => {
                self.states.insert(number, State::Waiting(ticket));
                self.begun = self.setup.settings.early_refusal.then_some(ticket);
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
        logged: Option<u64>,
        bound: claim::ClaimDeadline,
        call: &Call,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let settings = &self.setup.settings;
        let own = settings.classes[call.class.0 as usize].deadline;
        match (logged, own, bound) {
            (_, _, claim::ClaimDeadline::None) | (None, ClassDeadline::Ordinary, _) => None,
            _ => own.of(settings.max_wait, call.arrived, now),
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
                    let service = self.load.service(payload);
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
                Next::SleepUntil(_) | Next::Idle if self.refuse_late(at) => {}
                Next::SleepUntil(wake) => return Some(tick(wake.as_nanos())),
                Next::Idle => return None,
            }
        }
    }

    /// Refuses the call that begins to wait if it is predicted to start too late. When a pause ends is not in the log.
    fn refuse_late(&mut self, at: u64) -> bool {
        let Some(ticket) = self.begun.take() else {
            return false;
        };
        let now = Timestamp::from_nanos(at);
        let Some((refusal, call)) = self.scheduler.refuse_if_late(now, ticket, None) else {
            self.scheduler.foresee(now, ticket, None);
            return false;
        };
        self.refused(at, call, refusal.limit.as_deref());
        true
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

    /// The client of this call asks again, as long after its end as it did in the log.
    fn next_of(&mut self, at: u64, call: u32) {
        let Some(chains) = &self.load.chains else {
            return;
        };
        let next = chains.after[call as usize];
        if next < u32::MAX {
            let process = self.load.process;
            let over = process.last(&process.calls[call as usize]).at;
            let asked = process.asked(&process.calls[next as usize]);
            self.plan(at + asked.saturating_sub(over), Thing::Arrives(next));
        }
    }
}

/// Whether a backend that is down is tried by one more call.
const fn is_probe(supply: Supply) -> bool {
    matches!(supply, Supply::Capacity { capacity: 1.., .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_a_call_is_small() {
        assert!(
            size_of::<Option<Ran>>() <= 40,
            "{}",
            size_of::<Option<Ran>>()
        );
    }
}
