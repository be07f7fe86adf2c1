//! A free run: the calls of a log arrive at a scheduler that decides by itself, and a backend takes as
//! long for each as it took in the log.

use std::ops::Range;
use std::time::Duration;

use foldhash::HashMap;
use tidegate_limits::call::BucketId;
use tidegate_limits::quota::StoreTime;
use tidegate_limits::scheduler::{QuotaAsk, QuotaQuestion, Supplier, Supply};
use tidegate_limits::{Call, Caller, Scheduler, Timestamp};
use tidegate_record::kind::BucketFields;
use tidegate_replay::{Decision, Predictions, Ranked, Replay};

use super::feed::submitted;
use super::give::{CarriedHolds, give, set_bucket};
use super::given::SchedulerInput;
use super::load::{ProcessLoad, Service, TICK, service};
use super::names::{Name, NameTable};
use super::rules::Matched;
use super::setup::{CannotReplay, Setup, setup};
use super::span::JudgedSpan;
use super::steps::StepEvent;
use super::stores::ReplayedStore;
use super::trace::{Trace, TracedCall, TracedProcess};
use crate::random::Random;
use tidegate::admit::ClassDeadline;
use tidegate::call::claim;

/// The stream of the seed for postponements.
const JITTER_STREAM: u64 = 1;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplayedEnding {
    /// The call was sent, and the backend finished it.
    Answered,
    /// The call was refused, at once or after a wait.
    Refused,
    /// The client left before its call was sent, or the process ended.
    Left,
}

/// The course of a call in one run. A run has one for each of its calls: 40 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallCourse {
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
    pub(super) ending: ReplayedEnding,
}

/// The calls of a process in one run.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeRun {
    /// The course of each call; `None` if the call was not in the run.
    pub(super) ran: Vec<Option<CallCourse>>,
    /// The limits that refused calls or held them.
    pub(super) limits: NameTable,
}

impl FreeRun {
    /// The calls of the log as they ran in it.
    pub(super) fn logged(trace: &Trace, process: &TracedProcess, span: &JudgedSpan) -> Self {
        let mut run = Self {
            ran: vec![None; process.calls.len()],
            limits: NameTable::default(),
        };
        let within = span.calls(process);
        for nth in within.start as usize..within.end as usize {
            let mut ran = CallCourse::logged(process, &process.calls[nth]);
            let name = ran.limit.map(|limit| trace.names.get(limit));
            ran.limit = name.map(|name| run.limits.of(name));
            run.ran[nth] = Some(ran);
        }
        run
    }
}

impl CallCourse {
    /// The course of a call in the log.
    pub(super) fn logged(process: &TracedProcess, call: &TracedCall) -> Self {
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
                StepEvent::Ended(..) => ReplayedEnding::Answered,
                StepEvent::Refused | StepEvent::Expired => ReplayedEnding::Refused,
                _ => ReplayedEnding::Left,
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

#[derive(Debug)]
enum FreeEvent {
    Given(u32),
    Ended(u32),
    Sent(u32),
    Replied(u32),
    Arrives(u32),
    Leaves(u32),
    /// A question to the store of quotas is answered, or the record that it watches has changed.
    Answered(Box<QuotaQuestion>),
}

/// Events of one instant happen in the order of their kinds, and then of the log.
impl Ranked for FreeEvent {
    type Rank = (u8, u32);

    fn rank(&self) -> Self::Rank {
        match *self {
            Self::Given(line) => (0, line),
            Self::Ended(call) => (1, call),
            Self::Sent(call) => (2, call),
            Self::Replied(call) => (3, call),
            Self::Arrives(call) => (4, call),
            Self::Leaves(call) => (5, call),
            Self::Answered(_) => (6, 0),
        }
    }
}

/// How the calls and rate limits of a log are those of another config.
struct CallMapping<'t> {
    matched: &'t Matched,
    /// Each bucket of the log, and the one that its calls are charged to: that of the same name; its
    /// own, under another number, if it was made through the API; or none.
    buckets: HashMap<BucketId, Option<BucketId>>,
}

/// Numbers of the log are moved by this, so that they are none of those of the config.
const MOVED: u64 = 1 << 32;

impl<'t> CallMapping<'t> {
    fn new(process: &TracedProcess, logged: &Setup, new: &Setup, matched: &'t Matched) -> Self {
        let rules = process.given.iter().filter_map(|given| match &given.what {
            SchedulerInput::Bucket(it) => Some((it.0, &it.1)),
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
    fn place(&self, setup: &Setup, logged: &TracedCall, call: &mut Call) -> claim::ClaimDeadline {
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

struct FreeReplay<'t> {
    load: &'t ProcessLoad<'t>,
    setup: Setup,
    /// How the calls of the log are those of another config; `None` if the log's own decides.
    other: Option<CallMapping<'t>>,
    phase: Duration,
    /// The instant of the line with the first config.   ns
    begin: u64,
    replay: Replay<u32, FreeEvent>,
    carried: CarriedHolds,
    run: FreeRun,
    /// Lines of the gate and calls of the log that are not planned yet. They keep the time that they have in the log, in
    /// order, so it is enough to plan one of each at a time.
    lines: Range<u32>,
    calls: Range<u32>,
    store: ReplayedStore<'t>,
}

/// Runs the calls of a process freely.
///
/// # Errors
///
/// If the log has no start, or a config that is not known.
pub(super) fn run<'t>(
    load: &'t ProcessLoad<'t>,
    by: &By<'t>,
    seed: u64,
) -> Result<FreeRun, CannotReplay> {
    let (process, span) = (load.process, &load.span);
    let start = &process.given[span.first as usize];
    let configured = start.what.configured().ok_or(CannotReplay::NoStart)?;
    let logged = setup(&load.trace.known, configured)?;
    let (setup, other) = match by {
        By::Log => (logged, None),
        By::Config(new, matched) => {
            let other = CallMapping::new(process, &logged, new, matched);
            (Setup::clone(new), Some(other))
        }
    };
    let phase = configured.phase;
    let until = process.given.partition_point(|given| given.at < span.until);
    let scheduler = Scheduler::with_seed(setup.policy(phase), seed).beginning(start.begins());
    let mut free = FreeReplay {
        replay: Replay::new(scheduler),
        setup,
        other,
        phase,
        begin: start.at,
        carried: CarriedHolds::default(),
        run: FreeRun {
            ran: vec![None; process.calls.len()],
            limits: NameTable::default(),
        },
        lines: span.first..u32::try_from(until).unwrap_or(u32::MAX),
        calls: span.calls(process),
        store: ReplayedStore::new(load.store),
        load,
    };
    free.replay.set_timer_step(Duration::from_nanos(TICK));
    free.set_predictions();
    if free.other.is_some() {
        let now = Timestamp::from_nanos(start.at);
        let (rules, keys_max) = free.setup.quotas();
        let scheduler = free.replay.scheduler_mut();
        if !rules.is_empty() {
            scheduler.set_quotas(now, rules, keys_max);
            // As long as the log has no better one.
            let clock = phase + now.since(Timestamp::ZERO);
            let time = StoreTime::between(now, clock, clock);
            scheduler.learn_store_time(now, time);
        }
        for (id, rule) in free.setup.buckets() {
            // There are no more than a sidecar may have.
            let _ = scheduler.set_bucket(now, id, rule.clone());
        }
    }
    free.go_on(&mut Random::new(seed, JITTER_STREAM))?;
    Ok(free.run)
}

impl FreeReplay<'_> {
    fn plan(&mut self, at: u64, event: FreeEvent) {
        self.replay.plan(Timestamp::from_nanos(at), event);
    }

    /// The present instant.   ns
    const fn at(&self) -> u64 {
        self.replay.now().as_nanos()
    }

    /// Without early refusals, predictions would change nothing in the result.
    fn set_predictions(&mut self) {
        let predictions = match self.setup.settings.early_refusal {
            true => Predictions::RefuseLate,
            false => Predictions::Off,
        };
        self.replay.set_predictions(predictions);
    }

    fn go_on(&mut self, random: &mut Random) -> Result<(), CannotReplay> {
        self.plan_line();
        self.plan_call();
        while let Some(now) = self.replay.next_moment() {
            self.replay.advance(now);
            if let Some(event) = self.replay.pop_due() {
                self.happens(event)?;
            }
            self.let_through(random);
            self.ask_store();
            if self.replay.wake().is_some() {
                let late = &self.load.late;
                let nth = usize::try_from(random.below(late.len().max(1) as u64)).unwrap_or(0);
                let late = late.get(nth).copied().map_or(0, u64::from);
                self.replay.delay_wake(Duration::from_nanos(late));
            }
        }
        Ok(())
    }

    /// Plans the next line of the gate.
    fn plan_line(&mut self) {
        if let Some(line) = self.lines.next() {
            let at = self.load.process.given[line as usize].at;
            self.plan(at, FreeEvent::Given(line));
        }
    }

    /// Plans the next call that keeps the time that it has in the log.
    fn plan_call(&mut self) {
        let load = self.load;
        if let Some(call) = self.calls.find(|&call| !load.follows(call)) {
            let asked = load.process.asked(&load.process.calls[call as usize]);
            self.plan(asked, FreeEvent::Arrives(call));
        }
    }

    fn happens(&mut self, event: FreeEvent) -> Result<(), CannotReplay> {
        let at = self.at();
        match event {
            FreeEvent::Given(line) => {
                self.plan_line();
                return self.given(line);
            }
            FreeEvent::Arrives(call) => {
                if !self.load.follows(call) {
                    self.plan_call();
                }
                self.arrives(call);
            }
            FreeEvent::Leaves(call) => {
                if self.replay.cancel(call) {
                    self.ends(call, ReplayedEnding::Left);
                }
            }
            FreeEvent::Sent(call) => {
                self.replay.sent(call);
                if let Some(ran) = &mut self.run.ran[call as usize] {
                    ran.sent = at;
                }
            }
            FreeEvent::Replied(call) => {
                self.replay.replied(call);
            }
            FreeEvent::Answered(question) => self.answered(*question),
            FreeEvent::Ended(call) => {
                let Service {
                    outcome, measured, ..
                } = self.load.service(call);
                self.replay.finish(call, outcome, measured);
                if let Some(ran) = &mut self.run.ran[call as usize] {
                    ran.ended = at;
                }
                self.next_of(call);
            }
        }
        Ok(())
    }

    /// Takes the questions to the store of quotas. Their answers come later.
    fn ask_store(&mut self) {
        let at = self.at();
        for question in self.replay.quota_questions() {
            let comes = match question.ask {
                QuotaAsk::Watch(_) => self.load.store.next_change(&question.of, at),
                // The log has what was configured.
                QuotaAsk::Settings => None,
                _ => Some(at + self.load.store.latency()),
            };
            if let Some(comes) = comes {
                self.plan(comes, FreeEvent::Answered(Box::new(question)));
            }
        }
    }

    fn answered(&mut self, question: QuotaQuestion) {
        let QuotaQuestion { at: key, of, ask } = question;
        let now = self.replay.now();
        let scheduler = self.replay.scheduler_mut();
        match self.store.answer(now.as_nanos(), &of, ask) {
            Some((question, reply)) => {
                // The ledger asks again after a time between these.
                let entropy = u64::MAX / 2;
                scheduler.answer_quota(now, key, question, reply, entropy);
            }
            None => scheduler.tell_quota(now, key),
        }
    }

    /// A line of the gate. The health of the backend is what it was in the log: its probes, which
    /// depend on calls, are left out.
    fn given(&mut self, nth: u32) -> Result<(), CannotReplay> {
        let ProcessLoad { trace, process, .. } = self.load;
        let given = &process.given[nth as usize];
        if given.again && given.at != self.begin {
            return Ok(());
        }
        let now = self.replay.now();
        let scheduler = self.replay.scheduler_mut();
        match (&given.what, &self.other) {
            (SchedulerInput::Reload(configured), None) => {
                self.setup = setup(&trace.known, configured)?;
                self.phase = configured.phase;
                scheduler.apply(now, self.setup.policy(self.phase));
                self.set_predictions();
            }
            (SchedulerInput::Costs(costs), None) => {
                self.setup.take_costs(costs);
                scheduler.apply(now, self.setup.policy(self.phase));
            }
            (SchedulerInput::Supply(it), _) if it.by == Supplier::Health && is_probe(it.supply) => {
            }
            (SchedulerInput::Bucket(it), Some(other)) => {
                if let Some(id) = other.made(it.0) {
                    set_bucket(scheduler, now, id, self.setup.rule(&it.1));
                }
            }
            (SchedulerInput::BucketGone(id), Some(other)) => {
                if let Some(id) = other.made(*id) {
                    scheduler.remove_bucket(now, id, |_| None);
                }
            }
            (SchedulerInput::Fill(it), Some(other)) => {
                if let Some(id) = other.bucket(it.0) {
                    scheduler.supply_fill(now, id, it.1);
                }
            }
            (SchedulerInput::QuotaAnswer(it), _) => scheduler.learn_store_time(now, it.time),
            (SchedulerInput::Quotas, Some(_)) | (SchedulerInput::QuotaChanged(_), _) => {}
            (event, _) => {
                let (setup, names) = (&self.setup, &trace.names);
                give(scheduler, now, event, setup, names, &mut self.carried);
            }
        }
        Ok(())
    }

    fn arrives(&mut self, number: u32) {
        let now = self.replay.now();
        let at = now.as_nanos();
        let process = self.load.process;
        let logged = &process.calls[number as usize];
        let (first, last) = (process.asked(logged), process.last(logged));
        let shifted = |instant: u64| (instant + at).saturating_sub(first);
        self.run.ran[number as usize] = Some(CallCourse {
            asked: at,
            sent: u64::MAX,
            left_queue: at,
            ended: at,
            ending: ReplayedEnding::Left,
            limit: None,
        });
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
        match self.replay.submit(number, call) {
            Ok(_) => {
                if matches!(
                    last.what,
                    StepEvent::Left
                        | StepEvent::Suspended(_)
                        | StepEvent::GivenBack
                        | StepEvent::Evicted
                ) {
                    self.plan(shifted(last.at), FreeEvent::Leaves(number));
                }
            }
            Err(refusal) => self.refused(number, refusal.limit.as_deref()),
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

    fn let_through(&mut self, random: &mut Random) {
        let at = self.at();
        // When a pause ends is not in the log.
        while let Some(decision) = self.replay.decide(&mut || random.next()) {
            let (call, waited) = match decision {
                Decision::Admitted { call, waited, .. } => (call, waited),
                Decision::Refused { call, refusal, .. } => {
                    self.refused(call, refusal.limit.as_deref());
                    continue;
                }
            };
            let held_by = waited.delays.longest().or(waited.held_by.as_ref());
            let limit = held_by.map(|limit| self.run.limits.of(limit));
            if let Some(ran) = &mut self.run.ran[call as usize] {
                ran.left_queue = at;
                ran.ending = ReplayedEnding::Answered;
                ran.limit = limit;
            }
            let service = self.load.service(call);
            self.plan(at + service.sent, FreeEvent::Sent(call));
            if let Some(replied) = service.replied {
                self.plan(at + replied, FreeEvent::Replied(call));
            }
            // After it is sent, also if both take no time.
            let ended = service.ended.max(service.sent + 1);
            self.plan(at + ended, FreeEvent::Ended(call));
        }
    }

    /// A call is refused by this limit.
    fn refused(&mut self, call: u32, limit: Option<&str>) {
        if let Some(ran) = &mut self.run.ran[call as usize] {
            ran.limit = limit.map(|limit| self.run.limits.of(limit));
        }
        self.ends(call, ReplayedEnding::Refused);
    }

    /// A call ends without a turn.
    fn ends(&mut self, call: u32, ending: ReplayedEnding) {
        let at = self.at();
        if let Some(ran) = &mut self.run.ran[call as usize] {
            ran.ending = ending;
            ran.left_queue = at;
            ran.ended = at;
        }
        self.next_of(call);
    }

    /// The client of this call asks again, as long after its end as it did in the log.
    fn next_of(&mut self, call: u32) {
        let Some(chains) = &self.load.chains else {
            return;
        };
        let next = chains.after[call as usize];
        if next < u32::MAX {
            let process = self.load.process;
            let over = process.last(&process.calls[call as usize]).at;
            let asked = process.asked(&process.calls[next as usize]);
            let asks = self.at() + asked.saturating_sub(over);
            self.plan(asks, FreeEvent::Arrives(next));
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
            size_of::<Option<CallCourse>>() <= 40,
            "{}",
            size_of::<Option<CallCourse>>()
        );
    }
}
