//! The world around one scheduler: who calls, how long calls run, a store of quotas, an operator.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_limits::call::{BucketId, QuotaKey};
use tidegate_limits::policy::{ClassShare, LimitRule, Postpone, Reserve, Scope, WhenFull};
use tidegate_limits::scheduler::{Outcome, Supplier, Supply};
use tidegate_limits::{Call, Caller, Class, Policy, Scheduler, Timestamp, Tokens, Weight};
use tidegate_replay::{Decision, Ranked, Replay};

use super::checks::{Compared, Pair};
use super::make::{FUNCTIONS, Made, Stream};
use super::met::{Kind, Met, Who};
use super::store::{Answer, Store};
use super::{MS, Worst};
use crate::random::Random;

pub(crate) const BUCKET: BucketId = BucketId(1);
const QUOTA: &str = "quota";
const DOOR: u32 = 1_000_000;

/// A violation of a law, as a sentence.
pub(crate) type Violation = String;

/// A check of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// How long a call waits.
    Wait,
    /// The service of callers and classes at a limit is fair.
    Fairness,
    /// Calls that could run do.
    Work,
    /// All calls run.
    Rest,
}

/// A fault that the world makes in the scheduler from outside, so that a check has to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A limit admits no call for long, which the oracle does not know.
    Closes,
    /// The service of others counts for one caller.
    Favours,
    /// A call that runs is taken for one that waits.
    Forgets,
}

/// A call.
pub(crate) struct Submitted {
    pub(crate) stream: usize,
    pub(crate) kind: Kind,
    /// When it came, or was put back to wait.
    pub(crate) arrived: u64,
    /// How long it waits at most.
    pub(crate) bound: f64,
    pub(crate) tokens: f64,
    /// The call is never set aside.
    pub(crate) keeps_place: bool,
    /// Limits of which it took what is kept for its class.
    kept_of: Vec<usize>,
}

/// An event at a scheduler.
#[derive(Debug)]
pub(crate) enum Event {
    Closes,
    Ends(usize),
    Answers(Answer),
    Leaves(usize),
    /// A call of a stream.
    Arrives(usize),
}

impl Ranked for Event {
    type Rank = u8;

    fn rank(&self) -> u8 {
        match self {
            Self::Closes => 0,
            Self::Ends(_) => 1,
            Self::Answers(_) => 2,
            Self::Leaves(_) => 3,
            Self::Arrives(_) => 4,
        }
    }
}

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) streams: Vec<Stream>,
    /// Of the classes that there are and that there were.
    pub(crate) weights: Vec<u32>,
    /// The least weight that each ever had: what it was served before a reload counts by the weight
    /// of then.
    pub(crate) lightest: Vec<u32>,
    /// The classes that exist.
    classes: Vec<usize>,
    pub(crate) limits: Vec<Met>,
    pub(crate) in_turn: bool,
    capacity: Option<u32>,
    refunds: bool,
    pub(crate) reloads: bool,
    leaves: bool,
    pub(crate) replay: Replay<usize, Event>,
    store: Store,
    pub(crate) calls: Vec<Submitted>,
    /// The call that each payload stands for.
    stands_for: Vec<usize>,
    pub(crate) waiting: BTreeSet<usize>,
    /// The payload that each call runs as.
    running: BTreeMap<usize, usize>,
    /// Calls that will come.
    coming: usize,
    pub(crate) pairs: BTreeMap<Compared, Pair>,
    /// The longest that a call runs.
    pub(crate) longest: u64,
    pub(crate) worst: Worst,
    /// Claims made so far.
    pub(crate) claims: u64,
    /// The only check that is made, if not all.
    only: Option<Check>,
    broken: Option<Broken>,
}

pub(crate) fn at(moment: u64) -> Timestamp {
    Timestamp::from_nanos(moment)
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let made = Made::new(&mut random);
        let classes: Vec<usize> = (0..made.weights.len()).collect();
        let mut world = Self {
            refunds: random.one_in(4),
            reloads: random.one_in(3),
            leaves: random.one_in(4),
            replay: Replay::new(Scheduler::with_seed(
                policy(
                    &made.limits,
                    &classes,
                    &made.weights,
                    made.capacity,
                    made.in_turn,
                ),
                seed,
            )),
            store: Store::new(made.silent),
            random,
            streams: made.streams,
            lightest: made.weights.clone(),
            weights: made.weights,
            classes,
            limits: made.limits,
            in_turn: made.in_turn,
            capacity: made.capacity,
            calls: Vec::new(),
            stands_for: Vec::new(),
            waiting: BTreeSet::new(),
            running: BTreeMap::new(),
            coming: 0,
            pairs: BTreeMap::new(),
            longest: made.longest,
            worst: Worst::default(),
            claims: 0,
            only: None,
            broken: None,
        };
        if let Some(rule) = made.bucket {
            let set = world.replay.scheduler_mut().set_bucket(at(0), BUCKET, rule);
            set.expect("there is room");
        }
        if let Some(rule) = &made.quota {
            let rules = BTreeMap::from([(QUOTA.into(), rule.clone())]);
            let time = Store::time(0, &mut world.random);
            let scheduler = world.replay.scheduler_mut();
            scheduler.set_quota_nodes(1);
            scheduler.set_quotas(at(0), rules, 16);
            scheduler.learn_store_time(at(0), time);
        }
        world
    }

    /// Only this check is made, and this is done to the scheduler.
    pub(crate) fn broken(self, broken: Broken, only: Check) -> Self {
        Self {
            broken: Some(broken),
            only: Some(only),
            leaves: false,
            ..self
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.replay.now().as_nanos()
    }

    pub(crate) fn checks(&self, check: Check) -> bool {
        self.only.is_none_or(|only| only == check)
    }

    /// Lives until no call comes any more and all have run.
    pub(crate) fn live(mut self) -> Result<Worst, Violation> {
        let span = self.random.between(5, 30) * 1000 * MS;
        self.plan_arrivals(span);
        if self.broken == Some(Broken::Closes) {
            self.replay.plan(at(span / 2), Event::Closes);
        }
        while self.coming > 0 || !self.running.is_empty() || !self.waiting.is_empty() {
            let Some(next) = self.replay.next_moment() else {
                break;
            };
            self.replay.advance(next);
            match self.replay.pop_due() {
                Some(Event::Closes) => self.close(),
                Some(Event::Ends(id)) => self.end(id),
                Some(Event::Answers(answer)) => self.answer(&answer),
                Some(Event::Leaves(id)) => self.leave(id),
                Some(Event::Arrives(stream)) => self.arrive(stream),
                None => {}
            }
            if self.reloads && self.random.one_in(60) {
                self.reload();
            }
            self.settle()?;
            self.check_overdue()?;
        }
        if self.checks(Check::Rest) {
            if !self.waiting.is_empty() {
                let never = self.waiting.len();
                return Err(format!("{never} calls never run, at {}", self.now()));
            }
            if !self.replay.scheduler().is_at_rest() {
                return Err("it is not at rest".into());
            }
        }
        Ok(self.worst)
    }

    fn plan_arrivals(&mut self, span: u64) {
        for id in 0..self.streams.len() {
            let every = self.streams[id].every;
            let mut moment = self.random.below(every.max(1));
            // A backlog at once, for some.
            let backlog = self.random.below(2) * self.random.below(20);
            let mut moments = vec![moment; backlog as usize];
            while moment < span {
                moments.push(moment);
                moment += every / 2 + self.random.below(every.max(1)) + 1;
            }
            self.coming += moments.len();
            for moment in moments {
                self.replay.plan(at(moment), Event::Arrives(id));
            }
        }
    }

    /// The class of calls of a stream that come now.
    pub(crate) fn class_of(&self, stream: &Stream) -> usize {
        let is_there = self.classes.contains(&stream.class);
        let last = *self.classes.last().expect("there is a class");
        if is_there { stream.class } else { last }
    }

    fn index_of(&self, class: usize) -> Class {
        let place = self.classes.iter().position(|&one| one == class);
        Class(place.expect("the class is there") as u32)
    }

    fn call(&self, id: usize) -> Call {
        let submitted = &self.calls[id];
        let stream = &self.streams[submitted.stream];
        Call::new(FUNCTIONS[stream.function], at(self.now()))
            .class(self.index_of(submitted.kind.class))
            .caller(Caller(stream.caller))
            .weight(Weight::new(stream.weight).expect("above zero"))
            .tokens(Tokens::new(submitted.tokens).expect("tokens"))
            .bucket(stream.has_bucket.then_some(BUCKET))
            .quotas(stream.has_quota.then(|| {
                let (quota, key) = (QUOTA.into(), "all".into());
                [QuotaKey { quota, key }].into()
            }))
    }

    fn arrive(&mut self, stream: usize) {
        self.coming -= 1;
        let one = &self.streams[stream];
        let kind = one.kind(self.class_of(one));
        let tokens = self.random.between(1, one.tokens) as f64;
        let id = self.calls.len();
        self.calls.push(Submitted {
            stream,
            kind,
            arrived: self.now(),
            bound: self.bound(stream, kind),
            tokens,
            keeps_place: self.in_turn || self.keeps_place(kind),
            kept_of: Vec::new(),
        });
        self.stands_for.push(id);
        self.submit(id);
        self.waiting.insert(id);
        if self.leaves && self.random.one_in(20) {
            let moment = self.now() + self.random.below(5000 * MS);
            self.replay.plan(at(moment), Event::Leaves(id));
        }
    }

    fn submit(&mut self, id: usize) {
        let call = self.call(id);
        let taken = self.replay.submit(id, call);
        taken.expect("there is room, and nothing has a deadline");
    }

    /// Whether calls of this kind are never set aside.
    fn keeps_place(&self, kind: Kind) -> bool {
        let mut kept = self.limits.iter().filter(|met| met.is_there);
        kept.any(|met| met.kept.is_some_and(|(class, _)| class == kind.class))
    }

    fn leave(&mut self, id: usize) {
        if self.waiting.remove(&id) {
            assert!(self.replay.cancel(id), "it waits");
        }
    }

    fn answer(&mut self, answer: &Answer) {
        let time = Store::time(self.now(), &mut self.random);
        let entropy = self.random.next();
        let now = self.replay.now();
        let scheduler = self.replay.scheduler_mut();
        scheduler.learn_store_time(now, time);
        scheduler.answer_quota(now, answer.to, answer.question, answer.outcome, entropy);
    }

    /// The limits in force that a call draws from, by their calls and their classes of now.
    pub(crate) fn met_by(&self, kind: Kind) -> impl Iterator<Item = (usize, &Met)> {
        let limits = self.limits.iter().enumerate();
        limits.filter(move |(_, met)| met.is_there && met.meets(kind))
    }

    /// Who takes turns at a limit: the weight of each caller, by class.
    fn callers(&self, met: &Met) -> BTreeMap<(usize, u64), u32> {
        let streams = self.streams.iter();
        let coming = streams.map(|stream| (stream, stream.kind(self.class_of(stream))));
        let calls = self.waiting.iter().map(|&id| &self.calls[id]);
        let here = calls.map(|call| (&self.streams[call.stream], call.kind));
        coming
            .chain(here)
            .filter(|&(_, kind)| met.meets(kind))
            .map(|(stream, kind)| ((kind.class, stream.caller), stream.weight))
            .collect()
    }

    fn costliest(&self) -> f64 {
        let costliest = self.streams.iter().map(|one| one.tokens).max();
        costliest.unwrap_or(1) as f64
    }

    /// Tokens for one of this call, when all others that may come take their turns.
    fn share(&self, callers: &BTreeMap<(usize, u64), u32>, weight: u32, class: usize) -> f64 {
        let of_class = callers.iter().filter(|((one, _), _)| *one == class);
        let weights: u32 = of_class.map(|(_, weight)| weight).sum();
        let classes: BTreeSet<usize> = callers.keys().map(|&(class, _)| class).collect();
        let heavy: u32 = classes.iter().map(|&class| self.weights[class]).sum();
        f64::from(weights) / f64::from(weight) * f64::from(heavy) / f64::from(self.weights[class])
    }

    /// How long a call of a stream waits at most, as the law has it, if it comes now.
    fn bound(&self, stream: usize, kind: Kind) -> f64 {
        let own = &self.streams[stream];
        let costliest = self.costliest();
        let claims = 2.0 * self.streams.len() as f64;
        let mut bound = 0.0;
        let mut patience: f64 = 1e9;
        for (_, met) in self.met_by(kind) {
            let ahead = self
                .waiting
                .iter()
                .chain(self.running.keys())
                .filter(|&&id| {
                    let other = &self.calls[id];
                    let caller = self.streams[other.stream].caller;
                    (caller, other.kind.class) == (own.caller, kind.class) && met.meets(other.kind)
                });
            let callers = self.callers(met);
            let classes: BTreeSet<usize> = callers.keys().map(|&(class, _)| class).collect();
            let share = self.share(&callers, own.weight, kind.class);
            // What is ahead, and one maximal call of each other on top.
            let tokens = (ahead.count() + 1) as f64 * costliest * share
                + (callers.len() + classes.len()) as f64 * costliest;
            let turn = met.lets.takes(self.longest, tokens, met.kept_amount());
            let room = met.lets.next_room(self.longest, costliest);
            // Of each stream that meets it one call claims at once, in each class that it has.
            bound += 2.0 * turn + 2.0 * (claims + 1.0) * room;
            patience = patience.max(met.lets.window().unwrap_or(0) as f64);
        }
        bound + patience
    }

    /// Delays others by one more maximal call at each limit that this call meets: it was served, and was not after
    /// all.
    fn delay_others(&mut self, id: usize) {
        let costliest = self.costliest();
        let mut longer = Vec::new();
        for &other in &self.waiting {
            let call = &self.calls[other];
            let stream = &self.streams[call.stream];
            let shared = self.met_by(call.kind);
            let shared = shared.filter(|(_, met)| met.meets(self.calls[id].kind));
            let delay: f64 = shared
                .map(|(_, met)| {
                    let share = self.share(&self.callers(met), stream.weight, call.kind.class);
                    2.0 * met
                        .lets
                        .takes(self.longest, costliest * share, met.kept_amount())
                })
                .sum();
            longer.push((other, delay));
        }
        for (other, delay) in longer {
            self.calls[other].bound += delay;
        }
    }

    fn end(&mut self, id: usize) {
        let payload = self.running.remove(&id).expect("a call ends once");
        let (stream, kind) = (self.calls[id].stream, self.calls[id].kind);
        for met in self.limits.iter_mut().filter(|met| met.meets(kind)) {
            met.ends(kind.class);
        }
        match self.random.below(12) {
            0 if self.refunds => {
                self.undo(id);
                self.replay.give_back(payload);
            }
            1 if self.refunds => {
                self.undo(id);
                self.replay.requeue(payload).expect("it runs");
                self.stands_for[payload] = id;
                let bound = self.bound(stream, kind);
                let call = &mut self.calls[id];
                call.arrived = self.replay.now().as_nanos();
                call.bound = bound;
                self.waiting.insert(id);
            }
            _ => drop(self.replay.finish(payload, Outcome::Served, None)),
        }
    }

    /// Takes the service of a call back.
    fn undo(&mut self, id: usize) {
        let call = &self.calls[id];
        let (kind, tokens) = (call.kind, call.tokens);
        let caller = self.streams[call.stream].caller;
        for (place, met) in self.limits.iter_mut().enumerate() {
            if met.meets(kind) {
                *met.served.entry((kind.class, caller)).or_default() -= tokens;
                if call.kept_of.contains(&place) {
                    *met.served_kept.entry(kind.class).or_default() -= tokens;
                }
                *met.owed.entry((kind.class, caller)).or_default() += tokens;
                // It may run again before anything is compared.
                let pairs = self.pairs.iter_mut();
                for (_, pair) in pairs.filter(|((at, ..), _)| *at == place) {
                    pair.slack += tokens;
                }
            }
        }
        self.delay_others(id);
    }

    /// Limits and classes come and go, and classes have other weights.
    fn reload(&mut self) {
        let all = self.weights.len();
        let classes_before = self.classes.clone();
        if self.random.one_in(2) {
            let gone = self.random.below(2 * all as u64) as usize;
            self.classes = (0..all).filter(|&class| class != gone).collect();
            if self.classes.is_empty() {
                self.classes = vec![0];
            }
        }
        if self.random.one_in(3) {
            let class = self.random.below(all as u64) as usize;
            let weight = self.random.between(1, 4) as u32;
            self.weights[class] = weight;
            self.lightest[class] = self.lightest[class].min(weight);
        }
        let gone = self.random.below(2 * self.limits.len() as u64 + 1) as usize;
        let have_changed = classes_before != self.classes;
        let now = self.now();
        for (place, met) in self.limits.iter_mut().enumerate() {
            let is_of_policy = met.limit.is_some();
            let has_class = match met.who {
                Who::Class(class) => self.classes.contains(&class),
                _ => true,
            };
            let was_there = std::mem::replace(
                &mut met.is_there,
                !is_of_policy || (place != gone && has_class),
            );
            // A limit that is new counts what is in flight, and nothing that is over.
            let by_class = matches!(met.who, Who::Class(_)) || met.kept.is_some();
            if !was_there || (have_changed && by_class) {
                let counts_for = met.lets.window().unwrap_or(0).max(self.longest);
                met.exact_from = now + counts_for;
            }
        }
        let last = *self.classes.last().expect("there is a class");
        for call in &mut self.calls {
            if !self.classes.contains(&call.kind.class) {
                call.kind.class = last;
            }
        }
        let policy = policy(
            &self.limits,
            &self.classes,
            &self.weights,
            self.capacity,
            self.in_turn,
        );
        let now = self.replay.now();
        self.replay.scheduler_mut().apply(now, policy);
        for place in 0..self.limits.len() {
            let running = self.running.keys().map(|&id| self.calls[id].kind);
            let met = &self.limits[place];
            let mut in_flight = BTreeMap::new();
            for kind in running.filter(|&kind| met.meets(kind)) {
                *in_flight.entry(kind.class).or_default() += 1;
            }
            self.limits[place].in_flight = in_flight;
        }
        // What waits, waits as if it came now, with what is ahead of it.
        for id in self.waiting.clone() {
            let (stream, kind) = (self.calls[id].stream, self.calls[id].kind);
            let waited = (self.now() - self.calls[id].arrived) as f64;
            let bound = waited + self.bound(stream, kind);
            let call = &mut self.calls[id];
            call.bound = call.bound.max(bound);
        }
        for id in 0..self.calls.len() {
            self.calls[id].keeps_place &= self.in_turn || self.keeps_place(self.calls[id].kind);
        }
        self.pairs.clear();
    }

    fn settle(&mut self) -> Result<(), Violation> {
        let opened_together = self.opened().count() > 1;
        loop {
            let random = &mut self.random;
            match self.replay.decide(&mut || random.next()) {
                Some(Decision::Admitted { call, .. }) => self.run(call)?,
                Some(Decision::Refused { call, .. }) => {
                    return Err(format!("call {call} has no deadline"));
                }
                None => break,
            }
        }
        for question in self.replay.quota_questions() {
            if let Some((after, answer)) = self.store.ask(&question, &mut self.random) {
                let arrives = self.replay.now() + after;
                self.replay.plan(arrives, Event::Answers(answer));
            }
        }
        self.replay.scheduler_mut().audit();
        self.note_claims(None);
        self.check(opened_together)
    }

    fn run(&mut self, payload: usize) -> Result<(), Violation> {
        let now = self.now();
        if self.broken == Some(Broken::Forgets) && payload == self.stands_for.len() / 2 {
            // It waits for ever, as far as anybody can see.
            self.replay.finish(payload, Outcome::Served, None);
            return Ok(());
        }
        let id = match self.broken {
            Some(Broken::Favours) => self.favour(payload),
            _ => payload,
        };
        if !self.waiting.remove(&id) {
            return Err(format!("call {id} runs twice"));
        }
        self.check_wait(id)?;
        self.replay.sent(payload);
        let call = &mut self.calls[id];
        let (kind, tokens) = (call.kind, call.tokens);
        call.kept_of.clear();
        let caller = self.streams[call.stream].caller;
        for (place, met) in self.limits.iter_mut().enumerate() {
            if met.meets(kind) && met.serve(now, kind.class, caller, tokens) {
                call.kept_of.push(place);
            }
        }
        self.note_claims(Some(id));
        let ends = now + 1 + self.random.below(self.longest);
        self.replay.plan(at(ends), Event::Ends(id));
        self.running.insert(id, payload);
        Ok(())
    }

    fn check_wait(&mut self, id: usize) -> Result<(), Violation> {
        let call = &self.calls[id];
        if !call.keeps_place || !self.checks(Check::Wait) {
            return Ok(());
        }
        let (wait, bound) = ((self.now() - call.arrived) as f64, call.bound);
        self.worst.wait(wait / bound);
        if wait <= bound {
            return Ok(());
        }
        let (wait, bound, stream) = (wait / 1e9, bound / 1e9, call.stream);
        Err(format!(
            "at {} call {id} of stream {stream} waited {wait:.3} s of {bound:.3} s",
            self.now()
        ))
    }

    /// Checks that no call waits beyond its bound, whether it runs some day or not.
    fn check_overdue(&mut self) -> Result<(), Violation> {
        let Some(&first) = self.waiting.first() else {
            return Ok(());
        };
        // To look at one call is enough: it comes to all.
        let nth = first + self.random.below((self.calls.len() - first) as u64) as usize;
        match self.waiting.range(nth..).next() {
            Some(&id) => self.check_wait(id),
            None => Ok(()),
        }
    }

    // ---- What is done to the scheduler, for checks that have to notice.

    /// A limit is closed for a long time.
    fn close(&mut self) {
        let mut limits = self.limits.iter();
        if let Some(met) = limits.find(|met| met.limit.is_some() && met.is_there) {
            let now = self.replay.now();
            let supply = Supply::until(0, now + Duration::from_millis(1_000_000), u32::MAX);
            let scheduler = self.replay.scheduler_mut();
            scheduler.supply(now, &met.name, Supplier::Health, supply);
        }
    }

    /// A call of the first caller that is like the one that runs counts as the one that ran.
    fn favour(&mut self, payload: usize) -> usize {
        let id = self.stands_for[payload];
        let like = |&&other: &&usize| {
            let (one, other) = (&self.calls[id], &self.calls[other]);
            let callers = [one, other].map(|call| self.streams[call.stream].caller);
            callers[0] != 1
                && callers[1] == 1
                && (one.kind, one.tokens) == (other.kind, other.tokens)
        };
        let Some(&instead) = self.waiting.iter().find(like) else {
            return id;
        };
        let of = self.stands_for.iter().position(|&one| one == instead);
        self.stands_for[of.expect("it waits")] = id;
        instead
    }
}

fn policy(
    limits: &[Met],
    classes: &[usize],
    weights: &[u32],
    capacity: Option<u32>,
    in_turn: bool,
) -> Policy {
    let index = |class: usize| {
        let place = classes.iter().position(|&one| one == class);
        place.map(|place| Class(place as u32))
    };
    let rule = |met: &Met| {
        let limit = met.limit.clone().filter(|_| met.is_there)?;
        let scope = match met.who {
            Who::Function(function) => Scope::Function(FUNCTIONS[function].into()),
            Who::Class(class) => Scope::Class(index(class)?),
            Who::Every | Who::Bucket | Who::Quota => Scope::Every,
        };
        let reserve = met.kept.and_then(|(class, amount)| {
            Some(Reserve {
                class: index(class)?,
                amount: amount as u32,
            })
        });
        Some(
            LimitRule::new(met.name.as_str(), limit)
                .scope(scope)
                .reserve(reserve),
        )
    };
    let rules = limits.iter().filter_map(rule).collect();
    let shares = classes
        .iter()
        .map(|&class| ClassShare::new(format!("class {class}"), weights[class]));
    let postpone = if in_turn {
        Postpone::InTurn
    } else {
        Postpone::Jitter {
            min: Duration::from_millis(100),
            max: Duration::from_millis(300),
        }
    };
    let (capacity, when_full) = match capacity {
        Some(capacity) => (capacity, WhenFull::Wait { door: DOOR }),
        None => (1_000_000, WhenFull::Refuse),
    };
    Policy::new(rules, capacity, when_full, postpone, shares.collect()).expect("a policy")
}
