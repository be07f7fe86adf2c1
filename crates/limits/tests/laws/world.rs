//! The world around one scheduler: what happens to it, and when.

mod checks;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::call::{Backend, BucketId};
use tidegate_limits::policy::{LimitRule, Postpone, WhenFull};
use tidegate_limits::scheduler::{Outcome, Refusal, RefusalReason, Supplier, Supply};
use tidegate_limits::{
    Call, Caller, Class, Cost, Fill, Limit, Policy, Scheduler, Ticket, Timestamp, Tokens,
};
use tidegate_replay::{Decision, Ranked, Replay};

use crate::at;
use crate::laws::policies::{LIMITS, Shape, random_bucket, random_policy};
use crate::oracle::{CLOSE, End, Oracle, Violation, draw, meets};
use crate::random::Random;

/// The world around one scheduler: clients, backend, operator.
pub(crate) struct World {
    random: Random,
    shape: Shape,
    replay: Replay<usize, Event>,
    policy: Policy,
    oracle: Oracle,
    /// The latest moment that the scheduler was handed.
    handed: u64,
    calls: Vec<Submitted>,
    running: Vec<Running>,
    by_arrival: BTreeMap<u64, usize>,
    /// The longest that anyone may be aside, under this policy or one before.
    longest_aside: Duration,
    waits: Waits,
    /// How much calls claimed at each limit before this step, and claims made until then.
    claimed: BTreeMap<Arc<str>, u64>,
    /// The claimed tokens of buckets.
    claimed_tokens: BTreeMap<BucketId, f64>,
    claims: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Submit,
    Cancel(usize),
    Reclass(usize),
    Sent(usize),
    Replied(usize),
    End(usize),
    Supply,
    SupplyFill,
    Apply,
    SetBucket,
    RemoveBucket,
}

impl Ranked for Event {
    type Rank = ();

    fn rank(&self) {}
}

#[derive(Debug)]
enum Status {
    Waiting(Ticket),
    Running,
    Finished,
}

#[derive(Debug)]
struct Submitted {
    /// With the bucket that it waits for or was charged to.
    call: Call,
    /// The bucket that the scheduler knows it by.
    named: Option<BucketId>,
    rerouted: bool,
    status: Status,
    /// When it was last taken in or requeued.
    waits_since: u64,
    requeued: bool,
    reclassed: bool,
}

struct Running {
    call: usize,
    is_over: bool,
}

/// How long all calls together waited for what; `None` is for no limit.
#[derive(Default)]
struct Waits {
    /// Counted step by step: who waited for what while time passed.
    seen: BTreeMap<Option<Arc<str>>, Duration>,
    /// As each call was told in the end.
    told: BTreeMap<Option<Arc<str>>, Duration>,
}

impl World {
    pub(crate) fn new(seed: u64, shape: impl Fn(&mut Random) -> Shape) -> Self {
        let mut random = Random::new(seed);
        let shape = shape(&mut random);
        let policy = random_policy(&mut random, shape, None);
        let at_first = Shape {
            one_slot_more: false,
            ..shape
        };
        let mut world = Self {
            replay: Replay::new(Scheduler::new(policy.clone())),
            oracle: Oracle::new(&at_first.claims(policy.limits())),
            policy,
            random,
            shape,
            handed: 0,
            calls: Vec::new(),
            running: Vec::new(),
            by_arrival: BTreeMap::new(),
            longest_aside: Duration::ZERO,
            waits: Waits::default(),
            claimed: BTreeMap::new(),
            claimed_tokens: BTreeMap::new(),
            claims: 0,
        };
        world.note_policy();
        for id in 0..world.shape.buckets {
            world.set_bucket(BucketId(id));
        }
        world.plan();
        world
    }

    /// Whether the oracle's count of every limit is exact.
    pub(crate) fn is_exact_throughout(&self) -> bool {
        self.oracle.is_exact_throughout()
    }

    fn note_policy(&mut self) {
        if let Postpone::Jitter { max, .. } = self.policy.postpone() {
            self.longest_aside = self.longest_aside.max(max);
        }
    }

    fn plan(&mut self) {
        let calls = self.random.between(1, self.shape.calls);
        let span = self.random.between(1, 4 * calls);
        for _ in 0..calls {
            let moment = if self.random.one_in(3) {
                0
            } else {
                self.random.below(span)
            };
            self.schedule(moment, Event::Submit);
        }
        for _ in 0..self.random.below(6) {
            let moment = self.random.below(span);
            self.schedule(moment, Event::Supply);
        }
        if self.shape.buckets > 0 {
            for _ in 0..self.random.below(4) {
                let moment = self.random.below(span);
                self.schedule(moment, Event::SupplyFill);
            }
        }
        if self.shape.buckets > 0 && self.shape.reloads {
            for _ in 0..self.random.between(1, 4) {
                let moment = self.random.below(span);
                self.schedule(moment, Event::SetBucket);
            }
            for _ in 0..self.random.below(3) {
                let moment = self.random.below(span);
                self.schedule(moment, Event::RemoveBucket);
            }
        }
        if self.shape.reloads {
            for _ in 0..self.random.between(1, 3) {
                let moment = self.random.below(span);
                self.schedule(moment, Event::Apply);
            }
        }
    }

    fn schedule(&mut self, moment: u64, event: Event) {
        self.replay.plan(at(moment), event);
    }

    fn now(&self) -> u64 {
        self.replay.now().as_nanos()
    }

    /// Lives to the end of the plan, and checks that everything is at rest then.
    pub(crate) fn live(&mut self) -> Result<(), Violation> {
        self.settle()?;
        while let Some(moment) = self.replay.next_moment() {
            if self.next_event().is_none() && self.is_stuck(moment.as_nanos()) {
                break;
            }
            self.pass(moment);
            // Several things may happen at one moment before the scheduler is asked.
            while let Some(event) = self.replay.pop_due() {
                self.happen(event)?;
                let more = self.next_event() == Some(moment);
                if !more || self.random.one_in(2) {
                    break;
                }
            }
            self.settle()?;
        }
        self.end()
    }

    fn next_event(&mut self) -> Option<Timestamp> {
        self.replay.agenda_mut().next_moment()
    }

    /// Time passes. Every waiting call continues to wait for what it waits for.
    fn pass(&mut self, until: Timestamp) {
        let time = until.since(self.replay.now());
        if !time.is_zero() {
            let now = self.replay.now();
            for row in self.replay.scheduler().queue_now(now).functions {
                let calls = u32::try_from(row.waiting).expect("these are few");
                *self.waits.seen.entry(row.held_by).or_default() += time * calls;
            }
        }
        self.replay.advance(until);
    }

    /// Whether all that is left to happen is that calls wait for what never comes.
    fn is_stuck(&self, wake: u64) -> bool {
        wake > 1_000_000 || (self.shape.jitter && self.now() > 10_000)
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        if std::env::var_os("TIDEGATE_TRACE").is_some() {
            eprintln!("{}: {event:?}", self.now());
        }
        match event {
            Event::Submit => self.submit()?,
            Event::Cancel(call) => {
                if let Status::Waiting(ticket) = self.calls[call].status {
                    self.cancel(call, ticket)?;
                }
            }
            Event::Reclass(call) => {
                let class = Class(self.random.below(self.shape.classes) as u32);
                if let Status::Waiting(ticket) = self.calls[call].status {
                    self.handed = self.now();
                    let now = self.replay.now();
                    if !self.replay.scheduler_mut().reclass(now, ticket, class) {
                        return Err(format!(
                            "call {call} waits and could not be put into {class:?}"
                        ));
                    }
                    self.calls[call].call.class = class;
                    self.calls[call].reclassed = true;
                }
            }
            Event::Sent(run) => {
                if let Some(call) = self.runs(run) {
                    // A clock that steps back stands still for the scheduler.
                    let back = if self.random.one_in(20) {
                        self.random.below(self.now() + 1)
                    } else {
                        0
                    };
                    let now = self.replay.now();
                    self.replay.advance(at(self.now() - back));
                    self.replay.sent(call);
                    self.handed = self.handed.max(self.now());
                    self.replay.advance(now);
                    self.oracle.sent(run, self.handed);
                    return Ok(());
                }
            }
            Event::Replied(run) => {
                if let Some(call) = self.runs(run) {
                    self.replay.replied(call);
                    self.handed = self.now();
                    self.oracle.replied(run, self.now());
                }
            }
            Event::End(run) => self.end_run(run)?,
            Event::Supply => {
                self.handed = self.now();
                let index = self.random.below(LIMITS.len() as u64) as usize;
                let capacity = self.random.below(6) as u32;
                let supply = match self.random.below(3) {
                    0 => Supply::Configured,
                    1 => Supply::capacity(capacity),
                    _ => {
                        let end = self.now() + self.random.below(30);
                        Supply::until(capacity, at(end), self.random.below(4) as u32)
                    }
                };
                let rule = self
                    .oracle
                    .rules()
                    .iter()
                    .find(|rule| &*rule.name == LIMITS[index].0);
                let name = rule.map(|rule| rule.name.clone());
                let supplier = Supplier::ALL[self.random.below(2) as usize];
                let (now, limit) = (at(self.now()), LIMITS[index].0);
                if self
                    .replay
                    .scheduler_mut()
                    .supply(now, limit, supplier, supply)
                    != name.is_some()
                {
                    return Err(format!(
                        "supply found {:?} where there is {name:?}",
                        LIMITS[index].0
                    ));
                }
                if let Some(name) = name {
                    self.oracle.supplied(&name, supplier, supply);
                }
            }
            Event::SupplyFill => {
                self.handed = self.now();
                let id = BucketId(self.random.below(self.shape.buckets));
                let fill = |random: &mut Random| {
                    let quarters = random.between(1, 12) as f64 / 4.0;
                    Fill::new(quarters * 1e8).expect("a rate")
                };
                let capacity = fill(&mut self.random);
                let supply = match self.random.below(4) {
                    0 => Supply::Configured,
                    1 => Supply::capacity(capacity),
                    _ => {
                        let end = self.now() + self.random.below(30);
                        Supply::until(capacity, at(end), fill(&mut self.random))
                    }
                };
                let is_there = self.oracle.buckets().any(|(known, _)| known == id);
                let now = self.replay.now();
                if self.replay.scheduler_mut().supply_fill(now, id, supply) != is_there {
                    return Err(format!("{id:?} was supplied, and is there: {is_there}"));
                }
                if is_there {
                    self.oracle.bucket_supplied(id, supply, self.now());
                }
            }
            Event::Apply => {
                self.handed = self.now();
                self.policy = random_policy(&mut self.random, self.shape, Some(&self.policy));
                let now = self.replay.now();
                self.replay.scheduler_mut().apply(now, self.policy.clone());
                self.oracle
                    .applied(&self.shape.claims(self.policy.limits()), self.now());
                self.note_policy();
            }
            Event::SetBucket => {
                let id = BucketId(self.random.below(self.shape.buckets));
                self.set_bucket(id);
            }
            Event::RemoveBucket => {
                let id = BucketId(self.random.below(self.shape.buckets));
                self.remove_bucket(id)?;
            }
        }
        Ok(())
    }

    fn set_bucket(&mut self, id: BucketId) {
        self.handed = self.now();
        let rule = random_bucket(&mut self.random, self.shape);
        let now = self.replay.now();
        let set = self
            .replay
            .scheduler_mut()
            .set_bucket(now, id, rule.clone());
        set.expect("these are few");
        self.oracle.bucket_set(id, &rule, self.now());
    }

    fn remove_bucket(&mut self, id: BucketId) -> Result<(), Violation> {
        self.handed = self.now();
        let waits = |one: &Submitted| {
            matches!(one.status, Status::Waiting(_)) && one.call.bucket == Some(id)
        };
        let to = match self.random.below(3) {
            0 => None,
            1 => Some(BucketId(1000)),
            _ => Some(BucketId(self.random.below(self.shape.buckets))),
        };
        let was_there = self.oracle.buckets().any(|(one, _)| one == id);
        let expected = self.calls.iter().filter(|one| waits(one)).count();
        let mut asked = 0;
        let now = self.replay.now();
        let removed = self.replay.scheduler_mut().remove_bucket(now, id, |_| {
            asked += 1;
            to
        });
        if (removed, asked) != (was_there, expected) {
            return Err(format!(
                "{id:?} was there: {was_there}, removed: {removed}; {asked} of {expected} rerouted"
            ));
        }
        self.oracle.bucket_removed(id);
        let there = self.existing(to);
        for one in self.calls.iter_mut().filter(|one| waits(one)) {
            (one.named, one.call.bucket, one.rerouted) = (to, there, true);
        }
        Ok(())
    }

    fn existing(&self, id: Option<BucketId>) -> Option<BucketId> {
        let mut buckets = self.oracle.buckets();
        id.filter(|&id| buckets.any(|(one, _)| one == id))
    }

    /// The number of waiting calls, and the tokens that they would take from a bucket.
    fn waiting_for(&self, id: BucketId) -> (u64, f64) {
        let waiting = self.by_arrival.values();
        let calls = waiting.map(|&call| &self.calls[call].call);
        let tokens: Vec<f64> = calls
            .filter(|call| call.bucket == Some(id))
            .map(|call| call.tokens.get())
            .collect();
        (tokens.len() as u64, tokens.iter().sum())
    }

    fn submit(&mut self) -> Result<(), Violation> {
        self.handed = self.now();
        let deadline = match self.random.below(6) {
            0 => Some(at(self.now())),
            1..4 => Some(at(self.now() + self.random.below(60))),
            _ => None,
        };
        let functions = ["list", "create", "other", "more"];
        let call = Call::new(functions[self.random.below(4) as usize], at(self.now()))
            .backend(Backend(self.random.below(2) as u8))
            .class(Class(self.random.below(self.shape.classes) as u32))
            .caller(Caller(self.random.below(self.shape.callers)))
            .cost(
                Cost::new(if self.random.one_in(3) {
                    self.random.between(1, 5) as u32
                } else {
                    1
                })
                .expect("between 1 and 5"),
            )
            .tokens(if self.random.one_in(2) {
                Tokens::ONE
            } else {
                Tokens::new(self.random.between(1, 48) as f64 / 4.0).expect("a cost")
            })
            .bucket(
                (self.shape.buckets > 0 && !self.random.one_in(4))
                    .then(|| BucketId(self.random.below(self.shape.buckets + 1))),
            )
            .deadline(deadline);
        let named = call.bucket;
        let there = self.existing(named);
        let rejects = there.map(|id| {
            let (_, ahead) = self.waiting_for(id);
            let bucket = self.oracle.buckets().find(|&(one, _)| one == id);
            let (_, bucket) = bucket.expect("it is there");
            let cost = call.tokens.get();
            [CLOSE, -CLOSE].map(|spare| bucket.rejects(self.now(), ahead, cost, spare))
        });
        let id = self.calls.len();
        let door = match self.policy.when_full() {
            WhenFull::Refuse => 0,
            WhenFull::Wait { door } => door,
        };
        let full = self.by_arrival.len() >= (self.policy.capacity() + door) as usize;
        let status = match self.replay.submit(id, call.clone()) {
            Ok(ticket) => {
                if full || rejects.is_some_and(|[_, surely]| surely) {
                    return Err(format!("at {}: {call:?} was not rejected", self.now()));
                }
                self.by_arrival.insert(id as u64, id);
                if self.random.one_in(6) {
                    let moment = self.now() + self.random.below(40);
                    self.schedule(moment, Event::Cancel(id));
                }
                if self.random.one_in(10) {
                    let moment = self.now() + self.random.below(40);
                    self.schedule(moment, Event::Reclass(id));
                }
                Status::Waiting(ticket)
            }
            Err(refusal) => {
                if refusal.reason == RefusalReason::RateLimited
                    && !rejects.is_some_and(|[perhaps, _]| perhaps)
                {
                    return Err(format!("at {}: {call:?} was rejected", self.now()));
                }
                self.check_refused_at_once(&call, &refusal, full)?;
                Status::Finished
            }
        };
        let call = call.bucket(there);
        if let (Status::Waiting(_), Some(deadline)) = (&status, call.deadline) {
            // Departures alone are in the way until after the deadline: it should have been told.
            for rule in self.oracle.rules().iter().filter(|rule| meets(rule, &call)) {
                let (used, max) = (
                    self.oracle.used(rule, deadline.as_nanos()),
                    self.oracle.max(rule, self.now()),
                );
                let reserved = self.reserved(rule);
                let (departed, draw) = (used.saturating_sub(reserved), draw(&rule.limit, &call));
                if matches!(rule.limit, Limit::Window { .. })
                    && self.oracle.is_exact(rule)
                    && rule.reserve.is_none()
                    && max >= draw
                    && departed + draw > max
                {
                    return Err(format!(
                        "at {}: {call:?} waits in vain for {rule:?}",
                        self.now()
                    ));
                }
            }
        }
        self.calls.push(Submitted {
            call,
            named,
            waits_since: self.now(),
            rerouted: false,
            status,
            requeued: false,
            reclassed: false,
        });
        Ok(())
    }

    fn cancel(&mut self, call: usize, ticket: Ticket) -> Result<(), Violation> {
        self.handed = self.now();
        let waited = self.replay.scheduler().waited(at(self.now()), ticket);
        self.check_waited(call, &waited.expect("it waits"))?;
        if !self.replay.cancel(call) {
            return Err(format!("call {call} waits and could not be cancelled"));
        }
        let now = self.replay.now();
        let again = self.replay.scheduler_mut().cancel(now, ticket);
        if again.is_some() {
            return Err(format!("call {call} was cancelled twice"));
        }
        self.calls[call].status = Status::Finished;
        self.by_arrival.remove(&(call as u64));
        Ok(())
    }

    fn end_run(&mut self, run: usize) -> Result<(), Violation> {
        self.handed = self.now();
        let call = self.runs(run).expect("a run ends once");
        self.running[run].is_over = true;
        match self.random.below(8) {
            0 => {
                self.replay.give_back(call);
                self.oracle.ended(run, End::Undrawn(self.now()), None)?;
                self.calls[call].status = Status::Finished;
            }
            1 => {
                self.oracle.ended(run, End::Undrawn(self.now()), None)?;
                let ticket = self.replay.requeue(call).expect("it runs");
                self.calls[call].status = Status::Waiting(ticket);
                self.calls[call].requeued = true;
                self.calls[call].waits_since = self.now();
                let there = self.existing(self.calls[call].named);
                let one = &mut self.calls[call];
                one.rerouted |= there != one.call.bucket;
                one.call.bucket = there;
                self.by_arrival.insert(call as u64, call);
            }
            n => {
                let outcome =
                    [Outcome::Served, Outcome::Overloaded, Outcome::Failed][n as usize % 3];
                let measured = (n > 2).then(|| Tokens::new(n as f64).expect("a cost"));
                self.replay.finish(call, outcome, measured);
                self.oracle
                    .ended(run, End::Finished(self.now()), measured)?;
                self.calls[call].status = Status::Finished;
            }
        }
        Ok(())
    }

    /// Does what the scheduler says until it sleeps.
    fn settle(&mut self) -> Result<(), Violation> {
        self.handed = self.now();
        loop {
            self.note_claims();
            let random = &mut self.random;
            let decision = self.replay.decide(&mut || random.next());
            if std::env::var_os("TIDEGATE_TRACE").is_some() {
                eprintln!("{}: {decision:?}", self.now());
            }
            match decision {
                Some(Decision::Admitted { call, waited, .. }) => {
                    let keeps = self.keeps_its_place(&self.calls[call].call)
                        && !self.shape.reloads
                        && !self.calls[call].reclassed;
                    if (!self.shape.jitter || keeps) && waited.postponed > 0 {
                        return Err(format!("call {call} was set aside"));
                    }
                    self.check_waited(call, &waited)?;
                    self.run(call)?;
                }
                Some(Decision::Refused {
                    call,
                    refusal,
                    waited,
                }) => {
                    self.check_waited(call, &waited)?;
                    self.expire(call, &refusal)?;
                }
                None => {
                    let wake = self.replay.wake().map(Timestamp::as_nanos);
                    return self.check_asleep(wake);
                }
            }
        }
    }

    /// The call of a run that is not over.
    fn runs(&self, run: usize) -> Option<usize> {
        let Running { call, is_over } = self.running[run];
        (!is_over).then_some(call)
    }

    /// Whether a limit keeps anything for the call's class.
    fn keeps_its_place(&self, call: &Call) -> bool {
        let mut rules = self.oracle.rules().iter();
        rules.any(|rule| rule.reserve.is_some_and(|kept| kept.class == call.class))
    }

    fn note_claims(&mut self) {
        let limits = self
            .replay
            .scheduler()
            .limits_now(at(self.now()))
            .into_iter();
        let claimed = limits.filter(|limit| limit.claimed > 0);
        self.claimed = claimed.map(|limit| (limit.name, limit.claimed)).collect();
        let buckets = self.replay.scheduler().bucket_ids();
        let claimed = buckets.filter_map(|id| {
            let claimed = self
                .replay
                .scheduler()
                .bucket_now(at(self.now()), id)?
                .claimed;
            (claimed > 0.0).then_some((id, claimed))
        });
        self.claimed_tokens = claimed.collect();
        self.claims = self.claims_made();
    }

    fn claims_made(&self) -> u64 {
        self.replay.scheduler().queue_now(at(self.now())).claims
    }

    /// Whether a call claims room at a limit that this one meets: then it may go before one that came
    /// before it.
    fn meets_a_claim(&self, call: &Call) -> bool {
        let mut rules = self.oracle.rules().iter();
        let within_this_step = self.claims_made() > self.claims;
        let mut bucket = call.bucket.iter();
        within_this_step
            || bucket.any(|bucket| self.claimed_tokens.contains_key(bucket))
            || rules.any(|rule| meets(rule, call) && self.claimed.contains_key(&rule.name))
    }

    /// Whether a claim keeps room that this call needs: then it may wait though there is room.
    fn room_is_claimed(&self, call: &Call, now: u64) -> bool {
        let mut rules = self.oracle.rules().iter().filter(|rule| meets(rule, call));
        let within_this_step = self.claims_made() > self.claims;
        within_this_step
            || !self.has_tokens_beside_claims(call, now)
            || rules.any(|rule| !self.has_room_beside_claims(rule, call, now))
    }

    fn has_tokens_beside_claims(&self, call: &Call, now: u64) -> bool {
        let claimed = call.bucket.and_then(|id| self.claimed_tokens.get(&id));
        self.oracle
            .has_tokens(call, now, claimed.unwrap_or(&0.0) + CLOSE)
    }

    fn has_room_beside_claims(&self, rule: &LimitRule, call: &Call, now: u64) -> bool {
        let claimed = self.claimed.get(&rule.name).unwrap_or(&0);
        let needed = self.oracle.taken(rule, call, now) + draw(&rule.limit, call);
        needed + claimed <= self.oracle.max(rule, now)
    }

    /// Whether all waiting calls are of one flow, so that the order of turns is that of arrival.
    fn is_one_flow(&self) -> bool {
        self.shape.classes == 1 && self.shape.callers == 1 && self.shape.buckets == 0
    }

    fn run(&mut self, id: usize) -> Result<(), Violation> {
        self.check_not_overtaking(id)?;
        self.check_not_overtaking_at_bucket(id)?;
        let call = self.calls[id].call.clone();
        if !matches!(self.calls[id].status, Status::Waiting(_)) {
            return Err(format!("call {id} runs and is {:?}", self.calls[id].status));
        }
        if call
            .deadline
            .is_some_and(|deadline| deadline.as_nanos() < self.now())
        {
            return Err(format!(
                "at {}: {call:?} runs after its deadline",
                self.now()
            ));
        }
        if !self.shape.jitter {
            // Among calls of one caller and class that meet the same limits, the first goes first.
            for (_, &earlier) in self.by_arrival.range(..id as u64) {
                let other = &self.calls[earlier];
                let alike = other.call.caller == call.caller
                    && other.call.class == call.class
                    && other.call.function == call.function
                    && other.call.backend == call.backend
                    && other.call.bucket == call.bucket;
                let moved = |one: &Submitted| {
                    one.reclassed || one.rerouted || (one.requeued && one.call.bucket.is_some())
                };
                if alike && !moved(other) && !moved(&self.calls[id]) {
                    return Err(format!("call {id} overtook call {earlier}"));
                }
            }
        }
        self.by_arrival.remove(&(id as u64));
        self.calls[id].status = Status::Running;
        let run = self.oracle.ran(&call, self.now())?;
        let departs = self.now() + self.random.below(4);
        let replies = departs + self.random.below(8);
        let ends = replies + self.random.below(8);
        self.running.push(Running {
            call: id,
            is_over: false,
        });
        if !self.random.one_in(8) {
            self.schedule(departs, Event::Sent(run));
            if !self.random.one_in(8) {
                self.schedule(replies, Event::Replied(run));
            }
        }
        self.schedule(ends, Event::End(run));
        Ok(())
    }

    fn expire(&mut self, id: usize, refusal: &Refusal) -> Result<(), Violation> {
        let call = &self.calls[id].call;
        let wrong = |what: &str| {
            Err(format!(
                "at {}: call {id}, {call:?}, {refusal:?}: {what}",
                self.now()
            ))
        };
        if !matches!(self.calls[id].status, Status::Waiting(_)) {
            return wrong("does not wait");
        }
        if refusal.retry_after < Duration::from_millis(1) {
            return wrong("should not come back at once");
        }
        match refusal.reason {
            RefusalReason::DeadlinePassed => {
                let Some(deadline) = call.deadline.map(Timestamp::as_nanos) else {
                    return wrong("has no deadline");
                };
                if deadline > self.now() {
                    return wrong("was expired early");
                }
                if deadline < self.now() && !self.calls[id].requeued {
                    return wrong("was expired late");
                }
                if deadline == self.now() && !self.shape.jitter {
                    self.check_barred(id, self.now())?;
                }
            }
            RefusalReason::NeverPossible => {
                let mut own = self.oracle.rules().iter().filter(|rule| meets(rule, call));
                if own.all(|rule| {
                    draw(&rule.limit, call) <= self.oracle.reach(rule, call, self.now())
                }) {
                    return wrong("every limit is large enough");
                }
            }
            // A limit that rejects from now on, or that the call is charged to from now on, holds for
            // calls that wait as for new ones.
            RefusalReason::RateLimited => {
                let rejects = self.existing(call.bucket).is_some_and(|id| {
                    let (_, ahead) = self.waiting_for(id);
                    let mut buckets = self.oracle.buckets();
                    let (_, bucket) = buckets.find(|&(one, _)| one == id).expect("it is there");
                    bucket.rejects(self.now(), ahead, call.tokens.get(), CLOSE)
                });
                if !rejects {
                    return wrong("its bucket lets calls wait");
                }
            }
            RefusalReason::QueueFull
            | RefusalReason::DeadlineUnreachable
            | RefusalReason::PredictedLate
            | RefusalReason::StoreAway
            | RefusalReason::Draining => {
                return wrong("is no reason to stop waiting");
            }
        }
        self.calls[id].status = Status::Finished;
        self.by_arrival.remove(&(id as u64));
        Ok(())
    }
}
