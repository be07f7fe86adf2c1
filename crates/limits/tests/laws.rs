//! The laws of the scheduler, over random policies and histories on a virtual clock.
//!
//! Each seed makes a policy and a plan: calls that arrive, are cancelled, sent, replied to,
//! finished, given back, requeued, put into other classes; supplies and reloads in between. The
//! clock jumps to the next event or to the moment the scheduler asked to be woken at. After
//! every step the oracle recounts the full history.
//!
//! `TIDEGATE_SEED=n` replays one seed, `TIDEGATE_SEEDS=n` sets how many are run,
//! `TIDEGATE_TRACE=1` prints what happens.

mod oracle;
mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use oracle::{CLOSE, End, Oracle, Violation, draw, meets};
use random::Random;
use tidegate_limits::{
    Backend, BucketId, BucketLimit, BucketMode, BucketOrder, BucketRule, Burst, Call, Caller,
    Cause, Class, ClassShare, Cost, Fill, Hold, Limit, LimitRule, OnExcess, Outcome, Policy,
    Postpone, Reason, Refusal, Reserve, Scheduler, Scope, Settlement, Step, Supplier, Supply,
    Ticket, Timestamp, TokenBucket, Tokens, Waited, Weight, WhenFull, WindowShape, WindowStamp,
};

const SEEDS: u64 = 12_000;

fn nanos(span: u64) -> Duration {
    Duration::from_nanos(span)
}

fn at(moment: u64) -> Timestamp {
    Timestamp::from_nanos(moment)
}

/// Says which seed was running when a test panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with TIDEGATE_SEED={}", self.0);
        }
    }
}

/// The seeds of a run: as many as promised, or those that the environment asks for.
fn seeds() -> Range<u64> {
    let number = |name: &str| {
        let value = std::env::var(name).ok()?;
        Some(
            value
                .parse::<u64>()
                .unwrap_or_else(|_| panic!("{name} must be a number, not {value:?}")),
        )
    };
    match number("TIDEGATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TIDEGATE_SEEDS").unwrap_or(SEEDS),
    }
}

/// Runs `law` with each seed, prints the first violation and counts them.
fn count_violations(seeds: Range<u64>, law: impl Fn(u64) -> Result<(), Violation>) -> u64 {
    let mut violations = 0;
    for seed in seeds {
        let _seed = Seed(seed);
        if let Err(violation) = law(seed) {
            if violations == 0 {
                eprintln!("TIDEGATE_SEED={seed}: {violation}");
            }
            violations += 1;
        }
    }
    violations
}

fn random_limit(random: &mut Random, window: bool) -> Limit {
    let max = match random.below(12) {
        0 => u32::MAX,
        1 => 0,
        n => n as u32 % 6 + 1,
    };
    if !window {
        return Limit::Outstanding { max };
    }
    let length = match random.below(10) {
        0 => Duration::ZERO,
        1 => Duration::MAX,
        _ => nanos(random.between(1, 25)),
    };
    let guard = if random.one_in(2) {
        Duration::ZERO
    } else {
        nanos(random.below(4))
    };
    let shape = match random.below(3) {
        0 => WindowShape::Fixed {
            phase: nanos(random.below(30)),
        },
        _ => WindowShape::Sliding,
    };
    let stamp = if random.one_in(3) {
        WindowStamp::Replied
    } else {
        WindowStamp::Sent
    };
    Limit::Window {
        max,
        length,
        guard,
        shape,
        stamp,
    }
}

/// The limits that a policy may have. A name always has the same scope and kind.
const LIMITS: [(&str, Scope, bool); 10] = [
    ("total", Scope::Every, true),
    ("outstanding", Scope::Every, false),
    ("first backend", Scope::Backend(Backend(0)), false),
    ("slow backend", Scope::Backend(Backend(1)), true),
    ("zero", Scope::Every, true),
    ("list", Scope::Every, true),
    ("create", Scope::Every, false),
    ("pool", Scope::Class(Class(0)), false),
    ("class", Scope::Class(Class(0)), true),
    ("others", Scope::Every, false),
];

fn scope(name: &str, scope: &Scope) -> Scope {
    match name {
        "list" | "create" => Scope::Function(name.into()),
        "others" => Scope::EveryBut([Class(0)].into()),
        _ => scope.clone(),
    }
}

#[derive(Clone, Copy)]
struct Shape {
    classes: u64,
    callers: u64,
    calls: u64,
    buckets: u64,
    reserves: bool,
    reloads: bool,
    jitter: bool,
    /// Negative control: fixed windows are passed off as sliding ones.
    fixed_as_sliding: bool,
}

impl Shape {
    /// The limits as the oracle is told.
    fn claims(self, rules: &[LimitRule]) -> Vec<LimitRule> {
        let mut rules = rules.to_vec();
        for rule in &mut rules {
            if let (true, Limit::Window { shape, .. }) = (self.fixed_as_sliding, &mut rule.limit) {
                *shape = WindowShape::Sliding;
            }
        }
        rules
    }
}

fn random_reserve(random: &mut Random, shape: Shape, limit: &Limit) -> Option<Reserve> {
    (shape.reserves && random.one_in(2)).then(|| Reserve {
        class: Class(random.below(shape.classes) as u32),
        amount: random.below(u64::from(limit.max().min(4)) + 1) as u32,
    })
}

/// Numbers of tokens that add up without rounding; a nanosecond is as long as a second elsewhere.
fn random_bucket(random: &mut Random, shape: Shape) -> BucketRule {
    let quarters = |random: &mut Random, most| random.between(1, most) as f64 / 4.0;
    let burst = Burst::new(quarters(random, 40)).expect("a burst");
    let fill = Fill::new(quarters(random, 12) * 1e8).expect("a rate");
    BucketRule {
        name: "bucket".into(),
        limit: BucketLimit::Bucket { burst, fill },
        mode: if random.one_in(5) {
            BucketMode::Observe
        } else {
            BucketMode::Enforce
        },
        on_excess: if random.one_in(4) {
            OnExcess::Reject
        } else {
            OnExcess::Delay
        },
        order: if random.one_in(3) {
            BucketOrder::Fifo
        } else {
            BucketOrder::Fair
        },
        settlement: if shape.reloads && random.one_in(2) {
            Settlement::Measured
        } else {
            Settlement::Estimate
        },
    }
}

fn random_policy(random: &mut Random, shape: Shape, before: Option<&Policy>) -> Policy {
    let mut rules = Vec::new();
    for (name, everyone, window) in &LIMITS {
        let kept =
            before.and_then(|policy| policy.limits().iter().find(|rule| &*rule.name == *name));
        let rule = match kept {
            // Most reloads touch some limits and leave the others.
            Some(rule) if random.one_in(2) => Some(rule.clone()),
            Some(rule) if random.one_in(2) => {
                let mut rule = rule.clone();
                match &mut rule.limit {
                    Limit::Paced { .. } => unreachable!("no paced limit is in these policies"),
                    Limit::Outstanding { max } | Limit::Window { max, .. } => {
                        *max = random.between(1, 6) as u32
                    }
                }
                rule.reserve = random_reserve(random, shape, &rule.limit);
                Some(rule)
            }
            _ => random.one_in(2).then(|| {
                let limit = random_limit(random, *window);
                LimitRule {
                    name: (*name).into(),
                    scope: scope(name, everyone),
                    reserve: random_reserve(random, shape, &limit),
                    limit,
                }
            }),
        };
        rules.extend(rule);
    }
    let capacity = if random.one_in(2) {
        random.between(1, 8)
    } else {
        1000
    } as u32;
    let when_full = if random.one_in(2) {
        WhenFull::Refuse
    } else {
        WhenFull::Wait {
            door: random.between(0, 10) as u32,
        }
    };
    let postpone = if shape.jitter {
        let min = random.below(10);
        Postpone::Jitter {
            min: nanos(min),
            max: nanos(min + random.between(1, 10)),
        }
    } else {
        Postpone::InTurn
    };
    let weights = (0..shape.classes).map(|_| random.between(1, 4) as u32);
    let classes = weights
        .zip(0..)
        .map(|(weight, n)| ClassShare {
            name: format!("class {n}").into(),
            weight,
        })
        .collect();
    Policy::new(rules, capacity, when_full, postpone, classes).expect("a random policy is a policy")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

#[derive(Debug)]
enum Status {
    Waiting(Ticket),
    Running,
    Over,
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
    hold: Option<Hold>,
}

/// The world around one scheduler: clients, backend, operator.
struct World {
    random: Random,
    shape: Shape,
    scheduler: Scheduler<usize>,
    policy: Policy,
    oracle: Oracle,
    /// By moment, then in the order they were planned.
    events: BTreeSet<(u64, u64, Event)>,
    planned: u64,
    now: u64,
    /// The latest moment that the scheduler was handed.
    handed: u64,
    calls: Vec<Submitted>,
    running: Vec<Running>,
    by_arrival: BTreeMap<u64, usize>,
    /// The longest that anyone may be aside, under this policy or one before.
    longest_aside: Duration,
    waits: Waits,
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
    fn new(seed: u64, shape: impl Fn(&mut Random) -> Shape) -> Self {
        let mut random = Random::new(seed);
        let shape = shape(&mut random);
        let policy = random_policy(&mut random, shape, None);
        let mut world = Self {
            scheduler: Scheduler::new(policy.clone()),
            oracle: Oracle::new(&shape.claims(policy.limits())),
            policy,
            random,
            shape,
            events: BTreeSet::new(),
            planned: 0,
            now: 0,
            handed: 0,
            calls: Vec::new(),
            running: Vec::new(),
            by_arrival: BTreeMap::new(),
            longest_aside: Duration::ZERO,
            waits: Waits::default(),
        };
        world.note_policy();
        for id in 0..world.shape.buckets {
            world.set_bucket(BucketId(id));
        }
        world.plan();
        world
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
        self.planned += 1;
        self.events.insert((moment, self.planned, event));
    }

    /// Lives to the end of the plan, and checks that everything is at rest then.
    fn live(&mut self) -> Result<(), Violation> {
        let mut sleep = self.settle()?;
        loop {
            let next = self.events.first().map(|&(moment, ..)| moment);
            match (next, sleep) {
                (None, None) => break,
                (Some(moment), Some(wake)) if wake < moment => self.pass(wake),
                (None, Some(wake)) => {
                    if self.is_stuck(wake) {
                        break;
                    }
                    self.pass(wake);
                }
                (Some(moment), _) => {
                    self.pass(moment);
                    // Several things may happen at one moment before anybody asks.
                    loop {
                        let (_, _, event) = self
                            .events
                            .pop_first()
                            .expect("there is an event at this moment");
                        self.happen(event)?;
                        let more = self
                            .events
                            .first()
                            .is_some_and(|&(next, ..)| next == moment);
                        if !more || self.random.one_in(2) {
                            break;
                        }
                    }
                }
            }
            sleep = self.settle()?;
        }
        self.end()
    }

    /// Time passes. Everybody who waits goes on waiting for what he waits for.
    fn pass(&mut self, until: u64) {
        let time = nanos(until.saturating_sub(self.now));
        if !time.is_zero() {
            for row in self.scheduler.queue_now(at(self.now)).functions {
                let calls = u32::try_from(row.waiting).expect("these are few");
                *self.waits.seen.entry(row.held_by).or_default() += time * calls;
            }
        }
        self.now = until;
    }

    /// A call waits no more, and is told what it waited for.
    fn check_waited(&mut self, call: usize, waited: &Waited) -> Result<(), Violation> {
        let wait = nanos(self.now - self.calls[call].waits_since);
        if waited.delays.total() != wait {
            return Err(format!(
                "at {}: call {call} waited {wait:?}, and is told {waited:?}",
                self.now
            ));
        }
        for delay in waited.delays.iter() {
            let limit = match &delay.cause {
                Cause::Limit(name) => Some(name.clone()),
                Cause::Turn | Cause::Door => None,
                Cause::Others => return Err(format!("few limits, and not told apart: {waited:?}")),
            };
            *self.waits.told.entry(limit).or_default() += delay.time;
        }
        Ok(())
    }

    /// Whether all that is left to happen is that calls wait for what never comes.
    fn is_stuck(&self, wake: u64) -> bool {
        wake > 1_000_000 || (self.shape.jitter && self.now > 10_000)
    }

    fn end(&mut self) -> Result<(), Violation> {
        for index in 0..self.calls.len() {
            if let Status::Waiting(ticket) = self.calls[index].status {
                if self.calls[index]
                    .call
                    .deadline
                    .is_some_and(|deadline| deadline.as_nanos() < self.now)
                {
                    return Err(format!(
                        "{:?} still waits after its deadline, at {}",
                        self.calls[index], self.now
                    ));
                }
                self.cancel(index, ticket)?;
            }
        }
        self.settle()?;
        if !self.scheduler.is_at_rest() {
            return Err("not at rest after the last call".into());
        }
        if self.waits.told != self.waits.seen {
            return Err(format!(
                "calls waited {:?}, and were told {:?}",
                self.waits.seen, self.waits.told
            ));
        }
        self.oracle.check_spans()?;
        self.oracle.check_peaks()?;
        self.oracle.check_rates()?;
        for limit in self.scheduler.limits_now(at(self.now + 1_000_000)) {
            let rule = self
                .oracle
                .rules()
                .iter()
                .find(|rule| rule.name == limit.name);
            let maximal = matches!(
                rule,
                Some(LimitRule {
                    limit: Limit::Window {
                        length: Duration::MAX,
                        ..
                    },
                    ..
                })
            );
            if limit.used != 0 && !maximal {
                return Err(format!("{} is lost in {limit:?}", limit.used));
            }
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        if std::env::var_os("TIDEGATE_TRACE").is_some() {
            eprintln!("{}: {event:?}", self.now);
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
                    self.handed = self.now;
                    if !self.scheduler.reclass(at(self.now), ticket, class) {
                        return Err(format!(
                            "call {call} waits and could not be put into {class:?}"
                        ));
                    }
                    self.calls[call].call.class = class;
                    self.calls[call].reclassed = true;
                }
            }
            Event::Sent(run) => {
                if let Some(hold) = &self.running[run].hold {
                    // A clock that steps back stands still for the scheduler.
                    let back = if self.random.one_in(20) {
                        self.random.below(self.now + 1)
                    } else {
                        0
                    };
                    self.scheduler.sent(at(self.now - back), hold);
                    self.handed = self.handed.max(self.now - back);
                    self.oracle.sent(run, self.handed);
                    return Ok(());
                }
            }
            Event::Replied(run) => {
                if let Some(hold) = &self.running[run].hold {
                    self.scheduler.replied(at(self.now), hold);
                    self.handed = self.now;
                    self.oracle.replied(run, self.now);
                }
            }
            Event::End(run) => self.end_run(run)?,
            Event::Supply => {
                self.handed = self.now;
                let index = self.random.below(LIMITS.len() as u64) as usize;
                let capacity = self.random.below(6) as u32;
                let supply = match self.random.below(3) {
                    0 => Supply::configured(),
                    1 => Supply::capacity(capacity),
                    _ => {
                        let end = self.now + self.random.below(30);
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
                let (now, limit) = (at(self.now), LIMITS[index].0);
                if self.scheduler.supply(now, limit, supplier, supply) != name.is_some() {
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
                self.handed = self.now;
                let id = BucketId(self.random.below(self.shape.buckets));
                let fill = |random: &mut Random| {
                    let quarters = random.between(1, 12) as f64 / 4.0;
                    Fill::new(quarters * 1e8).expect("a rate")
                };
                let capacity = fill(&mut self.random);
                let supply = match self.random.below(4) {
                    0 => Supply::configured(),
                    1 => Supply::capacity(capacity),
                    _ => {
                        let end = self.now + self.random.below(30);
                        Supply::until(capacity, at(end), fill(&mut self.random))
                    }
                };
                let is_there = self.oracle.buckets().any(|(known, _)| known == id);
                if self.scheduler.supply_fill(at(self.now), id, supply) != is_there {
                    return Err(format!("{id:?} was supplied, and is there: {is_there}"));
                }
                if is_there {
                    self.oracle.bucket_supplied(id, supply, self.now);
                }
            }
            Event::Apply => {
                self.handed = self.now;
                self.policy = random_policy(&mut self.random, self.shape, Some(&self.policy));
                self.scheduler.apply(at(self.now), self.policy.clone());
                self.oracle
                    .applied(&self.shape.claims(self.policy.limits()), self.now);
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
        self.handed = self.now;
        let rule = random_bucket(&mut self.random, self.shape);
        let set = self.scheduler.set_bucket(at(self.now), id, rule.clone());
        set.expect("these are few");
        self.oracle.bucket_set(id, &rule, self.now);
    }

    fn remove_bucket(&mut self, id: BucketId) -> Result<(), Violation> {
        self.handed = self.now;
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
        let removed = self.scheduler.remove_bucket(at(self.now), id, |_| {
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

    /// What those that wait in the queue would take from a bucket.
    fn waiting_for(&self, id: BucketId) -> (u64, f64) {
        let door = self.at_door();
        let waiting = self.by_arrival.values().filter(|id| !door.contains(id));
        let calls = waiting.map(|&call| &self.calls[call].call);
        let tokens: Vec<f64> = calls
            .filter(|call| call.bucket == Some(id))
            .map(|call| call.tokens.get())
            .collect();
        (tokens.len() as u64, tokens.iter().sum())
    }

    fn submit(&mut self) -> Result<(), Violation> {
        self.handed = self.now;
        let deadline = match self.random.below(6) {
            0 => Some(at(self.now)),
            1..4 => Some(at(self.now + self.random.below(60))),
            _ => None,
        };
        let functions = ["list", "create", "other", "more"];
        let call = Call {
            function: functions[self.random.below(4) as usize].into(),
            backend: Backend(self.random.below(2) as u8),
            class: Class(self.random.below(self.shape.classes) as u32),
            caller: Caller(self.random.below(self.shape.callers)),
            weight: Weight::ONE,
            cost: Cost::new(if self.random.one_in(3) {
                self.random.between(1, 5) as u32
            } else {
                1
            })
            .expect("between 1 and 5"),
            tokens: if self.random.one_in(2) {
                Tokens::ONE
            } else {
                Tokens::new(self.random.between(1, 48) as f64 / 4.0).expect("a cost")
            },
            bucket: (self.shape.buckets > 0 && !self.random.one_in(4))
                .then(|| BucketId(self.random.below(self.shape.buckets + 1))),
            quotas: None,
            arrived: at(self.now),
            deadline,
        };
        let named = call.bucket;
        let there = self.existing(named);
        let rejects = there.map(|id| {
            let (_, ahead) = self.waiting_for(id);
            let bucket = self.oracle.buckets().find(|&(one, _)| one == id);
            let (_, bucket) = bucket.expect("it is there");
            let cost = call.tokens.get();
            [CLOSE, -CLOSE].map(|spare| bucket.rejects(self.now, ahead, cost, spare))
        });
        let id = self.calls.len();
        let full = !self.scheduler.has_room();
        let status = match self.scheduler.submit(at(self.now), call.clone(), id) {
            Ok(ticket) => {
                if rejects.is_some_and(|[_, surely]| surely) {
                    return Err(format!("at {}: {call:?} was not rejected", self.now));
                }
                self.by_arrival.insert(id as u64, id);
                if self.random.one_in(6) {
                    let moment = self.now + self.random.below(40);
                    self.schedule(moment, Event::Cancel(id));
                }
                if self.random.one_in(10) {
                    let moment = self.now + self.random.below(40);
                    self.schedule(moment, Event::Reclass(id));
                }
                Status::Waiting(ticket)
            }
            Err((refusal, payload)) => {
                if payload != id {
                    return Err(format!(
                        "call {id} was refused with the payload of {payload}"
                    ));
                }
                if refusal.reason == Reason::RateLimited
                    && !rejects.is_some_and(|[perhaps, _]| perhaps)
                {
                    return Err(format!("at {}: {call:?} was rejected", self.now));
                }
                self.check_refused_at_once(&call, &refusal, full)?;
                Status::Over
            }
        };
        let call = Call {
            bucket: there,
            ..call
        };
        if let (Status::Waiting(_), Some(deadline)) = (&status, call.deadline) {
            // Departures alone are in the way until after the deadline: it should have been told.
            for rule in self.oracle.rules().iter().filter(|rule| meets(rule, &call)) {
                let (used, max) = (
                    self.oracle.used(rule, deadline.as_nanos()),
                    self.oracle.max(rule, self.now),
                );
                let reserved = self.reserved(rule);
                let (departed, draw) = (used.saturating_sub(reserved), draw(&rule.limit, &call));
                if matches!(rule.limit, Limit::Window { .. })
                    && self.oracle.is_exact()
                    && rule.reserve.is_none()
                    && max >= draw
                    && departed + draw > max
                {
                    return Err(format!(
                        "at {}: {call:?} waits in vain for {rule:?}",
                        self.now
                    ));
                }
            }
        }
        self.calls.push(Submitted {
            call,
            named,
            waits_since: self.now,
            rerouted: false,
            status,
            requeued: false,
            reclassed: false,
        });
        Ok(())
    }

    /// What of a window is drawn and not departed: it counts however late one looks.
    fn reserved(&self, rule: &LimitRule) -> u64 {
        match rule.limit {
            Limit::Paced { .. } => unreachable!("no paced limit is in these policies"),
            Limit::Outstanding { .. } => 0,
            Limit::Window {
                length: Duration::MAX,
                ..
            } => self
                .running
                .iter()
                .enumerate()
                .filter(|(_, running)| {
                    running.hold.is_some() && meets(rule, &self.calls[running.call].call)
                })
                .filter(|&(run, _)| !self.oracle.has_departed(rule, run))
                .map(|(_, running)| draw(&rule.limit, &self.calls[running.call].call))
                .sum(),
            Limit::Window { .. } => self.oracle.used(rule, 1 << 40),
        }
    }

    fn check_refused_at_once(
        &self,
        call: &Call,
        refusal: &Refusal,
        full: bool,
    ) -> Result<(), Violation> {
        let wrong = |what: &str| {
            Err(format!(
                "at {}: {call:?} was refused, {refusal:?}, but {what}",
                self.now
            ))
        };
        if refusal.retry_after < Duration::from_millis(1) {
            return wrong("should not come back at once");
        }
        let mut own = self.oracle.rules().iter().filter(|rule| meets(rule, call));
        match refusal.reason {
            Reason::QueueFull if !full => wrong("there was room"),
            Reason::QueueFull => Ok(()),
            Reason::NeverPossible => {
                let never = own
                    .any(|rule| draw(&rule.limit, call) > self.oracle.reach(rule, call, self.now));
                if never {
                    Ok(())
                } else {
                    wrong("every limit is large enough")
                }
            }
            Reason::DeadlineUnreachable => {
                let deadline = call
                    .deadline
                    .expect("what has no deadline can reach it")
                    .as_nanos();
                let closed = own.any(|rule| {
                    self.oracle.taken(rule, call, deadline) + draw(&rule.limit, call)
                        > self.oracle.max(rule, self.now)
                });
                let closed = closed || !self.oracle.has_tokens_by(call, self.now, deadline);
                // Where a reload made the count inexact, it may well be higher than it looks.
                if closed || !self.oracle.is_exact() {
                    Ok(())
                } else {
                    wrong("its limits open in time")
                }
            }
            Reason::RateLimited => Ok(()),
            Reason::DeadlinePassed | Reason::Draining => wrong("there is no such reason"),
        }
    }

    fn cancel(&mut self, call: usize, ticket: Ticket) -> Result<(), Violation> {
        self.handed = self.now;
        let waited = self.scheduler.waited(at(self.now), ticket);
        self.check_waited(call, &waited.expect("it waits"))?;
        if self.scheduler.cancel(at(self.now), ticket) != Some(call) {
            return Err(format!("call {call} waits and could not be cancelled"));
        }
        if self.scheduler.cancel(at(self.now), ticket).is_some() {
            return Err(format!("call {call} was cancelled twice"));
        }
        self.calls[call].status = Status::Over;
        self.by_arrival.remove(&(call as u64));
        Ok(())
    }

    fn end_run(&mut self, run: usize) -> Result<(), Violation> {
        self.handed = self.now;
        let hold = self.running[run].hold.take().expect("a run ends once");
        let call = self.running[run].call;
        let now = at(self.now);
        match self.random.below(8) {
            0 => {
                self.scheduler.give_back(now, hold);
                self.oracle.ended(run, End::Undrawn(self.now), None)?;
                self.calls[call].status = Status::Over;
            }
            1 => {
                self.oracle.ended(run, End::Undrawn(self.now), None)?;
                let ticket = self.scheduler.requeue(now, hold, call);
                self.calls[call].status = Status::Waiting(ticket);
                self.calls[call].requeued = true;
                self.calls[call].waits_since = self.now;
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
                self.scheduler.finish(now, hold, outcome, measured);
                self.oracle.ended(run, End::Finished(self.now), measured)?;
                self.calls[call].status = Status::Over;
            }
        }
        Ok(())
    }

    /// Does what the scheduler says until it sleeps; returns until when.
    fn settle(&mut self) -> Result<Option<u64>, Violation> {
        self.handed = self.now;
        loop {
            // Who is at the door, before the step lets anyone in.
            let door = self.at_door();
            let random = &mut self.random;
            let step = self.scheduler.next(at(self.now), &mut || random.next());
            if std::env::var_os("TIDEGATE_TRACE").is_some() {
                eprintln!("{}: {step:?}", self.now);
            }
            match step {
                Step::Run {
                    payload,
                    hold,
                    waited,
                    ..
                } => {
                    let keeps = self.keeps_its_place(&self.calls[payload].call)
                        && !self.shape.reloads
                        && !self.calls[payload].reclassed;
                    if (!self.shape.jitter || keeps) && waited.postponed > 0 {
                        return Err(format!("call {payload} was set aside"));
                    }
                    self.check_waited(payload, &waited)?;
                    self.run(payload, hold, &door)?;
                }
                Step::Expired {
                    payload,
                    refusal,
                    waited,
                } => {
                    self.check_waited(payload, &waited)?;
                    self.expire(payload, &refusal, &door)?;
                }
                Step::SleepUntil(moment) => {
                    self.check_asleep(Some(moment.as_nanos()))?;
                    return Ok(Some(moment.as_nanos()));
                }
                Step::Idle => {
                    self.check_asleep(None)?;
                    return Ok(None);
                }
            }
        }
    }

    /// Whether a limit keeps anything for the call's class.
    fn keeps_its_place(&self, call: &Call) -> bool {
        let mut rules = self.oracle.rules().iter();
        rules.any(|rule| rule.reserve.is_some_and(|kept| kept.class == call.class))
    }

    /// Whether all waiting calls are of one flow, so that the order of turns is that of arrival.
    fn is_one_flow(&self) -> bool {
        self.shape.classes == 1 && self.shape.callers == 1 && self.shape.buckets == 0
    }

    /// With one caller in one class: the first of those that meet a bucket is not overtaken
    /// there as long as nothing else bars it.
    fn check_not_overtaking_at_bucket(
        &self,
        id: usize,
        door: &BTreeSet<usize>,
    ) -> Result<(), Violation> {
        let one = &self.calls[id];
        let (Some(bucket), 1, 1) = (one.call.bucket, self.shape.classes, self.shape.callers) else {
            return Ok(());
        };
        if self.shape.jitter {
            return Ok(());
        }
        let mut queue = self.by_arrival.values().filter(|id| !door.contains(id));
        let first = queue.find(|&&other| self.calls[other].call.bucket == Some(bucket));
        let Some(&first) = first.filter(|&&first| first < id) else {
            return Ok(());
        };
        let (other, now) = (&self.calls[first], self.now);
        let moved = |one: &Submitted| one.rerouted || one.requeued || one.reclassed;
        // It may be behind somebody else, at another limit.
        let is_behind = self.by_arrival.values().any(|&ahead| {
            let ahead = &self.calls[ahead].call;
            let rules = self.oracle.rules().iter();
            let mut shared = rules.filter(|rule| meets(rule, ahead) && meets(rule, &other.call));
            shared.any(|rule| !self.oracle.has_room(rule, ahead, now))
        });
        let rules = self.oracle.rules().iter();
        let mut own = rules.filter(|rule| meets(rule, &other.call));
        if !moved(one)
            && !moved(other)
            && !is_behind
            && self.oracle.is_exact()
            && own.all(|rule| self.oracle.has_room(rule, &other.call, now))
            && !self.oracle.has_tokens(&other.call, now, -CLOSE)
        {
            return Err(format!(
                "at {now} call {id}, {:?}, overtook call {first}, {other:?}, at its bucket: {:?}, {:?}",
                one.call,
                self.oracle.rules(),
                self.oracle
                    .bucket(&other.call)
                    .map(|bucket| bucket.level(now))
            ));
        }
        Ok(())
    }

    /// With one flow, where the order of turns is that of arrival: the first of those that meet
    /// a limit is not overtaken at the one limit that bars it.
    fn check_not_overtaking(&self, id: usize, door: &BTreeSet<usize>) -> Result<(), Violation> {
        if !self.is_one_flow() || self.shape.jitter || !self.oracle.is_exact() {
            return Ok(());
        }
        let rules = self.oracle.rules();
        let queue: Vec<usize> = self
            .by_arrival
            .values()
            .copied()
            .filter(|other| !door.contains(other))
            .collect();
        for &first in queue.iter().filter(|&&first| first < id) {
            let call = &self.calls[first].call;
            let own = || rules.iter().filter(|rule| meets(rule, call));
            let shares = |other: usize| own().any(|rule| meets(rule, &self.calls[other].call));
            if queue.iter().any(|&other| other < first && shares(other)) {
                continue;
            }
            let mut closed = own().filter(|rule| !self.oracle.has_room(rule, call, self.now));
            if let (Some(bar), None) = (closed.next(), closed.next())
                && meets(bar, &self.calls[id].call)
            {
                let now = self.now;
                return Err(format!(
                    "at {now} call {id} overtook call {first}, {call:?}, at {bar:?}"
                ));
            }
        }
        Ok(())
    }

    fn run(&mut self, id: usize, hold: Hold, door: &BTreeSet<usize>) -> Result<(), Violation> {
        self.check_not_overtaking(id, door)?;
        self.check_not_overtaking_at_bucket(id, door)?;
        let call = self.calls[id].call.clone();
        if !matches!(self.calls[id].status, Status::Waiting(_)) {
            return Err(format!("call {id} runs and is {:?}", self.calls[id].status));
        }
        if call
            .deadline
            .is_some_and(|deadline| deadline.as_nanos() < self.now)
        {
            return Err(format!("at {}: {call:?} runs after its deadline", self.now));
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
        let run = self.oracle.ran(&call, self.now)?;
        let departs = self.now + self.random.below(4);
        let replies = departs + self.random.below(8);
        let ends = replies + self.random.below(8);
        self.running.push(Running {
            call: id,
            hold: Some(hold),
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

    fn expire(
        &mut self,
        id: usize,
        refusal: &Refusal,
        door: &BTreeSet<usize>,
    ) -> Result<(), Violation> {
        let call = &self.calls[id].call;
        let wrong = |what: &str| {
            Err(format!(
                "at {}: call {id}, {call:?}, {refusal:?}: {what}",
                self.now
            ))
        };
        if !matches!(self.calls[id].status, Status::Waiting(_)) {
            return wrong("does not wait");
        }
        if refusal.retry_after < Duration::from_millis(1) {
            return wrong("should not come back at once");
        }
        match refusal.reason {
            Reason::DeadlinePassed => {
                let Some(deadline) = call.deadline.map(Timestamp::as_nanos) else {
                    return wrong("has no deadline");
                };
                if deadline > self.now {
                    return wrong("was expired early");
                }
                if deadline < self.now && !self.calls[id].requeued {
                    return wrong("was expired late");
                }
                if deadline == self.now && !self.shape.jitter && !door.contains(&id) {
                    self.check_barred(id, self.now, door)?;
                }
            }
            Reason::NeverPossible => {
                let mut own = self.oracle.rules().iter().filter(|rule| meets(rule, call));
                if own
                    .all(|rule| draw(&rule.limit, call) <= self.oracle.reach(rule, call, self.now))
                {
                    return wrong("every limit is large enough");
                }
            }
            Reason::QueueFull
            | Reason::DeadlineUnreachable
            | Reason::RateLimited
            | Reason::Draining => {
                return wrong("is no reason to stop waiting");
            }
        }
        self.calls[id].status = Status::Over;
        self.by_arrival.remove(&(id as u64));
        Ok(())
    }

    /// Calls at the door: those that came last.
    fn at_door(&self) -> BTreeSet<usize> {
        self.by_arrival
            .values()
            .rev()
            .take(self.scheduler.at_door())
            .copied()
            .collect()
    }

    /// If the limits of a waiting call have room for it, then a call whose turn it is before it
    /// must be waiting at one of them.
    fn check_barred(&self, id: usize, now: u64, door: &BTreeSet<usize>) -> Result<(), Violation> {
        let call = &self.calls[id].call;
        if !self.oracle.is_exact() || !self.oracle.could_run(call, now) {
            return Ok(());
        }
        let one_flow = self.is_one_flow();
        let barred = self
            .by_arrival
            .values()
            .filter(|&&other| other != id && !door.contains(&other))
            .any(|&other| {
                let earlier = !one_flow || other < id;
                let rules = self.oracle.rules().iter();
                let mut shared =
                    rules.filter(|rule| meets(rule, call) && meets(rule, &self.calls[other].call));
                let bucket = call.bucket.is_some()
                    && call.bucket == self.calls[other].call.bucket
                    && !self.oracle.has_tokens(&self.calls[other].call, now, CLOSE);
                earlier
                    && (bucket
                        || shared
                            .any(|rule| !self.oracle.has_room(rule, &self.calls[other].call, now)))
            });
        if barred {
            Ok(())
        } else {
            Err(format!(
                "at {now} call {id}, {call:?}, could run and does not: {:?}, {:?}",
                self.oracle.rules(),
                self.oracle.bucket(call).map(|bucket| bucket.level(now))
            ))
        }
    }

    fn check_asleep(&self, wake: Option<u64>) -> Result<(), Violation> {
        self.scheduler.audit();
        if wake.is_some_and(|wake| wake <= self.now) {
            return Err(format!(
                "at {} the scheduler would sleep until {wake:?}",
                self.now
            ));
        }
        let waiting = self.scheduler.waiting() + self.scheduler.at_door();
        if waiting != self.by_arrival.len() {
            return Err(format!("{waiting} wait, {} should", self.by_arrival.len()));
        }
        let held = self.running.iter().filter(|run| run.hold.is_some()).count();
        if self.scheduler.in_flight() != held {
            return Err(format!(
                "{} are in flight, {held} should",
                self.scheduler.in_flight()
            ));
        }
        for (limit, rule) in self
            .scheduler
            .limits_now(at(self.now))
            .iter()
            .zip(self.oracle.rules())
        {
            let used = self.oracle.used(rule, self.now);
            if limit.used < used || (self.oracle.is_exact() && limit.used != used) {
                return Err(format!(
                    "at {}: {used} of {rule:?} are in use, not {limit:?}",
                    self.now
                ));
            }
        }
        for (id, bucket) in self.oracle.buckets() {
            let is = self.scheduler.bucket_now(at(self.now), id);
            let is = is.ok_or_else(|| format!("{id:?} is not there"))?;
            let (level, _) = bucket.level(self.now);
            let (waiting, tokens) = self.waiting_for(id);
            if (is.tokens - level).abs() > CLOSE
                || (is.waiting, is.waiting_tokens) != (waiting, tokens)
            {
                return Err(format!(
                    "at {}: {level} are there, {waiting} wait for {tokens}, not {is:?}",
                    self.now
                ));
            }
        }
        let wake = wake.unwrap_or(u64::MAX);
        let door = self.at_door();
        for &id in self.by_arrival.values() {
            let call = &self.calls[id].call;
            if call
                .deadline
                .is_some_and(|deadline| deadline.as_nanos() < wake)
            {
                return Err(format!(
                    "call {id} has its deadline before {wake}: {call:?}"
                ));
            }
            if door.contains(&id) {
                continue;
            }
            match self.policy.postpone() {
                // These keep their place.
                Postpone::Jitter { .. } if call.bucket.is_some() || self.keeps_its_place(call) => {}
                Postpone::Jitter { .. } => {
                    if at(wake) > at(self.now) + self.longest_aside {
                        return Err(format!(
                            "call {id} is aside for longer than {:?}",
                            self.longest_aside
                        ));
                    }
                }
                Postpone::InTurn => {
                    self.check_barred(id, self.now, &door)?;
                    let openings = self
                        .oracle
                        .openings(call, self.now)
                        .into_iter()
                        .chain(self.oracle.expiries());
                    for moment in openings.filter(|&moment| moment > self.now && moment < wake) {
                        self.check_barred(id, moment, &door)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn check_laws(shape: impl Fn(&mut Random) -> Shape) {
    let violations = count_violations(seeds(), |seed| World::new(seed, &shape).live());
    assert_eq!(violations, 0, "the first one is printed above");
}

#[test]
fn one_flow_in_turn_keeps_every_law_and_its_order() {
    check_laws(|random| Shape {
        classes: 1,
        callers: 1,
        calls: 40,
        buckets: 0,
        reserves: false,
        reloads: random.one_in(3),
        jitter: false,
        fixed_as_sliding: false,
    });
}

#[test]
fn many_flows_in_turn_keep_every_law() {
    check_laws(|random| Shape {
        classes: random.between(1, 3),
        callers: random.between(1, 4),
        calls: 40,
        buckets: 0,
        reserves: false,
        reloads: random.one_in(3),
        jitter: false,
        fixed_as_sliding: false,
    });
}

#[test]
fn calls_set_aside_keep_every_law_but_order() {
    check_laws(|random| Shape {
        classes: random.between(1, 2),
        callers: random.between(1, 3),
        calls: 30,
        buckets: 0,
        reserves: false,
        reloads: random.one_in(3),
        jitter: true,
        fixed_as_sliding: false,
    });
}

#[test]
fn buckets_in_turn_keep_every_law() {
    check_laws(|random| Shape {
        classes: random.between(1, 2),
        callers: random.between(1, 3),
        calls: 40,
        buckets: random.between(1, 3),
        reserves: false,
        reloads: random.one_in(3),
        jitter: false,
        fixed_as_sliding: false,
    });
}

#[test]
fn buckets_with_calls_set_aside_keep_every_law_but_order() {
    check_laws(|random| Shape {
        classes: random.between(1, 2),
        callers: random.between(1, 3),
        calls: 30,
        buckets: random.between(1, 3),
        reserves: random.one_in(2),
        reloads: random.one_in(3),
        jitter: true,
        fixed_as_sliding: false,
    });
}

#[test]
fn what_is_kept_for_a_class_is_there_for_it_and_for_nobody_else() {
    check_laws(|random| Shape {
        classes: random.between(1, 3),
        callers: random.between(1, 3),
        calls: 40,
        buckets: random.below(2),
        reserves: true,
        reloads: random.one_in(4),
        jitter: false,
        fixed_as_sliding: false,
    });
}

#[test]
fn the_oracle_catches_a_scheduler_whose_windows_are_fixed() {
    let shape = Shape {
        classes: 1,
        callers: 1,
        calls: 40,
        buckets: 0,
        reserves: false,
        reloads: false,
        jitter: false,
        fixed_as_sliding: true,
    };
    let caught = count_violations(0..200, |seed| World::new(seed, |_| shape).live());
    assert!(
        caught >= 20,
        "{caught} of 200 runs with fixed windows were caught"
    );
}

/// When a small limiter of its own, not ours, draws what it has found free.
#[derive(Clone, Copy)]
enum Model {
    /// At once, from a sliding window: as it should be.
    Exact,
    /// At once, from an aligned window.
    Fixed,
    /// Some time after it looked.
    CheckThenAct,
}

/// Lets random arrivals through the model and has the oracle look at what departed and what
/// was in flight.
fn model(seed: u64, model: Model) -> Result<(), Violation> {
    const MAX: u32 = 3;
    const LENGTH: u64 = 10;
    const TAKES: u64 = 5;
    let limit = Limit::Window {
        max: MAX,
        length: nanos(LENGTH),
        guard: Duration::ZERO,
        shape: WindowShape::Sliding,
        stamp: WindowStamp::Sent,
    };
    let mut oracle = Oracle::new(&[
        LimitRule {
            name: "window".into(),
            scope: Scope::Every,
            limit,
            reserve: None,
        },
        LimitRule {
            name: "outstanding".into(),
            scope: Scope::Every,
            limit: Limit::Outstanding { max: MAX },
            reserve: None,
        },
    ]);
    let mut random = Random::new(seed);
    let mut arrivals: Vec<u64> = (0..60).map(|_| random.below(100)).collect();
    arrivals.sort_unstable();
    let mut drawn: Vec<u64> = Vec::new();
    for now in arrivals {
        let counts = |at: u64| match model {
            Model::Fixed => at / LENGTH == now / LENGTH,
            Model::Exact | Model::CheckThenAct => at <= now && now - at < LENGTH,
        };
        if drawn.iter().filter(|&&at| counts(at)).count() >= MAX as usize {
            continue;
        }
        let departs = match model {
            Model::Exact | Model::Fixed => now,
            Model::CheckThenAct => now + random.below(3),
        };
        drawn.push(departs);
        let call = Call {
            function: "f".into(),
            backend: Backend(0),
            class: Class(0),
            caller: Caller::ANONYMOUS,
            weight: Weight::ONE,
            cost: Cost::ONE,
            tokens: Tokens::ONE,
            bucket: None,
            quotas: None,
            arrived: at(now),
            deadline: None,
        };
        let run = oracle.ran_unasked(&call, departs);
        oracle.sent(run, departs);
        oracle.ended(run, End::Finished(departs + TAKES), None)?;
    }
    oracle.check_spans()?;
    oracle.check_peaks()
}

#[test]
fn the_oracle_catches_a_fixed_window_and_a_check_then_act_but_not_an_exact_limiter() {
    let caught = |kind| count_violations(0..500, |seed| model(seed, kind));
    assert_eq!(caught(Model::Exact), 0);
    assert!(caught(Model::Fixed) >= 250);
    assert!(caught(Model::CheckThenAct) >= 250);
}

/// What a small limiter does to its bucket when the rule changes.
#[derive(Clone, Copy, PartialEq)]
enum Reload {
    InPlace,
    /// It makes a new one, which is full.
    Refund,
}

/// Lets random arrivals through a bucket of its own whose rule changes now and then, and has
/// the oracle look at what was let through.
fn bucket_model(seed: u64, reload: Reload) -> Result<(), Violation> {
    let mut random = Random::new(seed);
    let shape = Shape {
        classes: 1,
        callers: 1,
        calls: 0,
        buckets: 1,
        reserves: false,
        reloads: false,
        jitter: false,
        fixed_as_sliding: false,
    };
    let rule = |random: &mut Random| BucketRule {
        mode: BucketMode::Enforce,
        ..random_bucket(random, shape)
    };
    let first = rule(&mut random);
    let size = |rule: &BucketRule| match rule.limit {
        BucketLimit::Bucket { burst, fill } => (burst, fill),
        BucketLimit::Paced(_) => unreachable!("the random ones are buckets"),
    };
    let (burst, fill) = size(&first);
    let mut bucket = TokenBucket::new(at(0), burst, fill);
    let mut oracle = Oracle::new(&[]);
    let id = BucketId(0);
    oracle.bucket_set(id, &first, 0);
    let mut now = 0;
    for _ in 0..60 {
        now += random.below(4);
        if random.one_in(10) {
            let rule = rule(&mut random);
            oracle.bucket_set(id, &rule, now);
            let (burst, fill) = size(&rule);
            match reload {
                Reload::InPlace => bucket.set_parameters(at(now), burst, fill),
                Reload::Refund => bucket = TokenBucket::new(at(now), burst, fill),
            }
        }
        let tokens = Tokens::new(random.between(1, 20) as f64 / 4.0).expect("a cost");
        if bucket.take(at(now), tokens) {
            let call = Call {
                function: "f".into(),
                backend: Backend(0),
                class: Class(0),
                caller: Caller::ANONYMOUS,
                weight: Weight::ONE,
                cost: Cost::ONE,
                tokens,
                bucket: Some(id),
                quotas: None,
                arrived: at(now),
                deadline: None,
            };
            oracle.ran(&call, now)?;
        }
    }
    oracle.check_rates()
}

#[test]
fn the_oracle_catches_a_bucket_that_refunds_when_it_changes_but_not_one_that_keeps_its_tokens() {
    let caught = |reload| count_violations(0..500, |seed| bucket_model(seed, reload));
    assert_eq!(caught(Reload::InPlace), 0);
    let refunds = caught(Reload::Refund);
    assert!(refunds >= 250, "{refunds} of 500 refunds were caught");
}
