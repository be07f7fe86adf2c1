//! Rate limits, fair turns, reserves and pools, a sentence at a time, on a virtual clock.

#[path = "vectors/queue.rs"]
mod queue;
mod random;

use std::collections::BTreeMap;
use std::time::Duration;

use queue::QUEUE;
use random::{Random, seeds};
use tidegate_limits::call::BucketId;
use tidegate_limits::policy::{ClassShare, LimitRule, Postpone, Reserve, Scope, WhenFull};
use tidegate_limits::scheduler::{
    BUCKETS_MAX, BucketLimit, BucketOrder, BucketRule, OnExcess, Outcome, Refusal, RefusalReason,
    Settlement, Supply, WaitReport,
};
use tidegate_limits::{
    Burst, Call, Caller, Class, Fill, Hold, Limit, Policy, Scheduler, Step, Ticket, Timestamp,
    Tokens, Weight,
};

const SECOND: Duration = Duration::from_secs(1);

fn at(millis: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(millis)
}

fn seconds(moment: Timestamp) -> f64 {
    moment.since(Timestamp::ZERO).as_secs_f64()
}

fn tokens(number: f64) -> Tokens {
    Tokens::new(number).expect("the tests' figures are in range")
}

fn bucket(burst: f64, fill: f64) -> BucketRule {
    BucketRule {
        name: "bucket".into(),
        limit: BucketLimit::Bucket {
            burst: Burst::new(burst).expect("the tests' figures are in range"),
            fill: Fill::new(fill).expect("the tests' figures are in range"),
        },
        on_excess: OnExcess::Delay,
        order: BucketOrder::Fair,
        settlement: Settlement::Estimate,
    }
}

fn rule(name: &str, scope: Scope, limit: Limit) -> LimitRule {
    LimitRule::new(name, limit).scope(scope)
}

fn outstanding(max: u32) -> Limit {
    Limit::Outstanding { max }
}

fn window(max: u32) -> Limit {
    Limit::sliding(max, SECOND)
}

fn policy(limits: Vec<LimitRule>, weights: &[u32], postpone: Postpone) -> Policy {
    let share = |(&weight, n): (&u32, u32)| ClassShare::new(format!("class {n}"), weight);
    let classes = weights.iter().zip(0..).map(share).collect();
    Policy::new(limits, 1_000_000, WhenFull::Refuse, postpone, classes).expect("a policy")
}

const BUCKET: BucketId = BucketId(7);

/// A scheduler on a clock that stands where it is put.
struct Gate {
    scheduler: Scheduler<u64>,
    now: Timestamp,
    random: u64,
}

impl Gate {
    fn new(limits: Vec<LimitRule>) -> Self {
        Self::with(policy(limits, &[1], Postpone::InTurn))
    }

    fn with(policy: Policy) -> Self {
        Self {
            scheduler: Scheduler::new(policy),
            now: Timestamp::ZERO,
            random: 1,
        }
    }

    /// A gate with a bucket, and no other limit.
    fn limited(rule: BucketRule) -> Self {
        let mut gate = Self::new(Vec::new());
        gate.set(rule);
        gate
    }

    fn set(&mut self, rule: BucketRule) {
        self.scheduler
            .set_bucket(self.now, BUCKET, rule)
            .expect("it is the only one");
    }

    fn call(&self, cost: f64) -> Call {
        Call::new("f", self.now).tokens(tokens(cost)).bucket(BUCKET)
    }

    fn submit(&mut self, call: Call, id: u64) -> Ticket {
        self.scheduler
            .submit(self.now, call, id)
            .expect("the call is taken in")
    }

    fn refuse(&mut self, call: Call) -> Refusal {
        self.scheduler
            .submit(self.now, call, 0)
            .expect_err("the call is refused")
            .0
    }

    fn next(&mut self) -> Step<u64> {
        let random = &mut self.random;
        self.scheduler.next(self.now, &mut || {
            *random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *random
        })
    }

    #[track_caller]
    fn run(&mut self) -> (u64, Hold) {
        match self.next() {
            Step::Run { payload, hold, .. } => (payload, hold),
            step => panic!("a call runs, not {step:?}"),
        }
    }

    #[track_caller]
    fn sleeps_until(&mut self, millis: u64) {
        match self.next() {
            Step::SleepUntil(moment) => assert_eq!(moment, at(millis)),
            step => panic!("nothing happens until {millis} ms, not {step:?}"),
        }
    }

    fn finish(&mut self, hold: Hold) {
        self.scheduler.finish(self.now, hold, Outcome::Served, None);
    }

    /// Runs and finishes whatever may run now.
    fn drain(&mut self) -> Vec<u64> {
        let mut ids = Vec::new();
        loop {
            match self.next() {
                Step::Run { payload, hold, .. } => {
                    self.scheduler.sent(self.now, &hold);
                    self.finish(hold);
                    ids.push(payload);
                }
                Step::Expired { .. } => panic!("no call here has a deadline"),
                Step::SleepUntil(_) | Step::Idle => return ids,
            }
        }
    }

    /// Lives until no call waits, every call taking no time. Returns when each ran, and what it waited for.
    fn live(&mut self) -> Vec<(u64, Timestamp, WaitReport)> {
        let mut ran = Vec::new();
        loop {
            match self.next() {
                Step::Run {
                    payload,
                    hold,
                    waited,
                    ..
                } => {
                    self.scheduler.sent(self.now, &hold);
                    self.finish(hold);
                    ran.push((payload, self.now, waited));
                }
                Step::Expired { .. } => panic!("no call here has a deadline"),
                Step::SleepUntil(moment) => self.now = moment,
                Step::Idle => return ran,
            }
        }
    }

    fn level(&self) -> f64 {
        let now = self.scheduler.bucket_now(self.now, BUCKET);
        now.expect("the bucket is there").tokens
    }
}

#[test]
fn every_case_of_the_source_is_let_through_when_it_is_there() {
    for case in QUEUE {
        for order in [BucketOrder::Fifo, BucketOrder::Fair] {
            let mut gate = Gate::limited(BucketRule {
                order,
                ..bucket(case.burst, case.fill)
            });
            let mut expected = Vec::new();
            let mut ran = Vec::new();
            for (nth, &(arrives, name, cost, granted)) in case.calls.iter().enumerate() {
                let arrives = Timestamp::ZERO + Duration::from_secs_f64(arrives);
                while let Step::Run { payload, hold, .. } = gate.next() {
                    ran.push((payload, gate.now, WaitReport::default()));
                    gate.finish(hold);
                }
                gate.now = arrives;
                // By arrival it does not matter who calls; one caller's calls stay in order.
                let caller = match order {
                    BucketOrder::Fifo => Caller(nth as u64),
                    BucketOrder::Fair => Caller(1),
                };
                let call = gate.call(cost).caller(caller);
                gate.submit(call, nth as u64);
                expected.push((name, granted));
            }
            ran.extend(gate.live());
            let order: Vec<u64> = ran.iter().map(|&(id, ..)| id).collect();
            assert!(order.is_sorted(), "{}: {order:?}", case.name);
            for ((_, moment, waited), (name, granted)) in ran.iter().zip(&expected) {
                let off = (seconds(*moment) - granted).abs();
                assert!(off <= 2e-9, "{}: {name} at {moment:?}", case.name);
                assert_eq!(
                    waited.held_by.is_some(),
                    *granted > 0.0,
                    "{}: delayed calls report it, and no others: {name}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn a_hundred_calls_at_forty_a_second_take_two_and_a_quarter_seconds() {
    let mut gate = Gate::limited(bucket(10.0, 40.0));
    for id in 0..100 {
        let call = gate.call(1.0);
        gate.submit(call, id);
    }
    let asked = gate.scheduler.check_count();
    let ran = gate.live();
    let took = seconds(ran.last().expect("a hundred ran").1);
    assert_eq!(ran.len(), 100);
    assert!((took - 2.25).abs() <= 0.0225, "{took} s");
    // Each opening is slept until, so each call is asked in vain at most once.
    let asked = gate.scheduler.check_count() - asked;
    assert!(asked <= 400, "{asked} asked");
}

#[test]
fn a_call_that_costs_more_than_the_bucket_passes_when_it_is_full_and_the_next_pays() {
    let mut gate = Gate::limited(bucket(100.0, 10.0));
    let (expensive, next) = (gate.call(150.0), gate.call(1.0));
    gate.submit(expensive, 1);
    gate.submit(next, 2);
    let ran: Vec<(u64, f64)> = gate
        .live()
        .into_iter()
        .map(|(id, at, _)| (id, seconds(at)))
        .collect();
    assert_eq!(ran.len(), 2);
    assert_eq!(ran[0], (1, 0.0));
    assert!((ran[1].1 - 5.1).abs() <= 0.051, "{ran:?}");
}

#[test]
fn callers_that_share_a_bucket_share_one_level() {
    let mut gate = Gate::limited(bucket(50.0, 1.0));
    for id in 0..60 {
        let call = gate.call(1.0).caller(Caller(id));
        gate.submit(call, id);
    }
    assert_eq!(gate.drain().len(), 50);
    assert_eq!(gate.level(), 0.0);
    gate.sleeps_until(1000);
}

/// Two callers on one bucket: one floods it, the other asks for something now and then. Returns
/// the longest that the quiet one waited, in seconds.
fn quiet_beside_greedy(order: BucketOrder, quiet_cost: f64, greedy_cost: f64) -> f64 {
    let fill = 10.0;
    let mut gate = Gate::limited(BucketRule {
        order,
        ..bucket(20.0, fill)
    });
    let mut arrived = BTreeMap::new();
    let (mut quiet, mut longest) = (0_u64, 0.0_f64);
    // The greedy one always has a hundred waiting.
    for id in 0..100 {
        let call = gate.call(greedy_cost).caller(Caller(1));
        gate.submit(call, 1_000_000 + id);
    }
    while quiet < 50 {
        match gate.next() {
            Step::Run { payload, hold, .. } => {
                gate.finish(hold);
                if let Some(came) = arrived.remove(&payload) {
                    longest = longest.max(gate.now.since(came).as_secs_f64());
                } else {
                    let call = gate.call(greedy_cost).caller(Caller(1));
                    gate.submit(call, payload);
                }
                if arrived.is_empty() && gate.now > at(1000 * (quiet + 1) * 3) {
                    let call = gate.call(quiet_cost).caller(Caller(2));
                    gate.submit(call, quiet);
                    arrived.insert(quiet, gate.now);
                    quiet += 1;
                }
            }
            Step::SleepUntil(moment) => gate.now = moment,
            step => panic!("the greedy one always waits: {step:?}"),
        }
    }
    longest
}

#[test]
fn a_caller_that_sends_a_hundred_times_as_much_delays_a_quiet_one_by_one_maximal_call() {
    for (quiet, greedy) in [
        (1.0, 1.0),
        (1.0, 20.0),
        (5.0, 2.0),
        (20.0, 20.0),
        (0.5, 3.0),
    ] {
        let bound = (quiet + f64::max(quiet, greedy)) / 10.0;
        let fair = quiet_beside_greedy(BucketOrder::Fair, quiet, greedy);
        assert!(
            fair <= bound + 1e-6,
            "{fair} s of at most {bound} s, costs {quiet} and {greedy}"
        );
        let fifo = quiet_beside_greedy(BucketOrder::Fifo, quiet, greedy);
        assert!(fifo >= 99.0 * greedy / 10.0, "by arrival it is {fifo} s");
    }
}

/// Callers with random weights and costs who all wait throughout, on a bucket or on a slot that
/// is held for random times. After every call, what any two were served per weight, since any
/// moment, differs by at most one maximal call of each.
fn check_goyals_bound(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let by_bucket = random.below(2) == 0;
    let callers = 2 + random.below(5);
    let traits: Vec<(u32, u64)> = (0..callers)
        .map(|_| (1 + random.below(4) as u32, 1 + random.below(40)))
        .collect();
    let mut gate = Gate::new(if by_bucket {
        Vec::new()
    } else {
        vec![rule("slots", Scope::Every, outstanding(1))]
    });
    gate.set(bucket(12.0, 8.0));
    let submit = |gate: &mut Gate, random: &mut Random, caller: u64| {
        let (weight, costliest) = traits[caller as usize];
        let call = (gate.call((1 + random.below(costliest)) as f64 / 4.0))
            .caller(Caller(caller))
            .weight(Weight::new(weight).expect("above zero"))
            .bucket(by_bucket.then_some(BUCKET));
        let cost = call.tokens.get();
        // The payload says whose it is and, in quarters, what it cost.
        gate.submit(call, caller << 32 | (cost * 4.0) as u64);
    };
    for caller in 0..callers {
        for _ in 0..20 {
            submit(&mut gate, &mut random, caller);
        }
    }
    let mut served = vec![0.0; callers as usize];
    // For each pair, the extremes so far of the difference of normalised service.
    let mut extremes = BTreeMap::new();
    for _ in 0..400 {
        let (payload, hold) = loop {
            match gate.next() {
                Step::Run { payload, hold, .. } => break (payload, hold),
                Step::SleepUntil(moment) => gate.now = moment,
                step => return Err(format!("a call always waits: {step:?}")),
            }
        };
        gate.now = gate.now + Duration::from_millis(random.below(50));
        gate.finish(hold);
        let caller = payload >> 32;
        let (weight, _) = traits[caller as usize];
        served[caller as usize] += (payload & 0xffff_ffff) as f64 / 4.0 / f64::from(weight);
        submit(&mut gate, &mut random, caller);
        for one in 0..callers as usize {
            for other in 0..one {
                let difference: f64 = served[one] - served[other];
                let (least, most) = extremes.entry((one, other)).or_insert((0.0, 0.0));
                *least = difference.min(*least);
                *most = difference.max(*most);
                let maximal = |caller: usize| {
                    let (weight, costliest) = traits[caller];
                    costliest as f64 / 4.0 / f64::from(weight)
                };
                let bound = maximal(one) + maximal(other);
                if *most - *least > bound + 1e-4 {
                    return Err(format!("{one} and {other}: {least} to {most} of {bound}"));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn while_two_callers_wait_their_service_differs_by_at_most_one_maximal_call_of_each() {
    for seed in seeds(0..2_000) {
        if let Err(violation) = check_goyals_bound(seed) {
            panic!("seed {seed}: {violation}");
        }
    }
}

#[test]
fn a_caller_of_three_times_the_weight_is_served_three_times_as_much() {
    let mut gate = Gate::limited(bucket(1.0, 10.0));
    for id in 0..1000 {
        let heavy = id % 2 == 0;
        let call = gate
            .call(1.0)
            .caller(Caller(id % 2))
            .weight(Weight::new(if heavy { 3 } else { 1 }).expect("above zero"));
        gate.submit(call, id);
    }
    let ran = gate.live();
    let heavy = ran.iter().take(400).filter(|(id, ..)| id % 2 == 0).count();
    assert!((299..=301).contains(&heavy), "{heavy} of 400");
}

#[test]
fn an_endless_stream_of_identities_does_not_take_all_turns() {
    let mut gate = Gate::limited(bucket(1.0, 10.0));
    let mut stranger = 1000;
    let mut join = |gate: &mut Gate| {
        stranger += 1;
        let call = gate.call(1.0).caller(Caller(stranger));
        gate.submit(call, stranger);
    };
    for id in 0..20 {
        let call = gate.call(1.0).caller(Caller(1));
        gate.submit(call, id);
    }
    for _ in 0..2000 {
        join(&mut gate);
    }
    let (mut old, mut served) = (0, 0);
    while old < 20 {
        match gate.next() {
            Step::Run { payload, hold, .. } => {
                gate.finish(hold);
                old += u64::from(payload < 20);
                served += 1;
                join(&mut gate);
            }
            Step::SleepUntil(moment) => gate.now = moment,
            step => panic!("a call always waits: {step:?}"),
        }
    }
    // 256 flows of their own and 128 that all others share, one call of each a round.
    assert!(served <= 20 * (256 + 128), "{served} were served meanwhile");
}

#[test]
fn an_expensive_call_whose_turn_it_is_holds_the_buckets_tokens_back_and_others_pass() {
    let mut gate = Gate::limited(bucket(10.0, 10.0));
    let drain = gate.call(10.0);
    gate.submit(drain, 0);
    assert_eq!(gate.drain(), [0]);
    let expensive = gate.call(10.0);
    gate.submit(expensive, 1);
    gate.now = at(20);
    let cheap = gate.call(0.1).caller(Caller(2));
    gate.submit(cheap, 2);
    let free = gate.call(1.0).bucket(None).quotas(None);
    gate.submit(free, 3);
    assert_eq!(gate.drain(), [3]);
    gate.sleeps_until(1000);
    gate.now = at(1000);
    assert_eq!(gate.drain(), [1]);
    gate.sleeps_until(1010);
    gate.now = at(1010);
    assert_eq!(gate.drain(), [2]);
}

#[test]
fn a_bucket_that_changes_keeps_its_tokens_and_its_queue() {
    let mut gate = Gate::limited(bucket(10.0, 1.0));
    for id in 0..5 {
        let call = gate.call(5.0);
        gate.submit(call, id);
    }
    assert_eq!(gate.drain(), [0, 1]);
    gate.sleeps_until(5000);
    gate.now = at(1000);
    gate.set(bucket(100.0, 4.0));
    assert_eq!(gate.level(), 1.0, "a change refunds nothing");
    gate.sleeps_until(2000);
    gate.now = at(2000);
    assert_eq!(gate.drain(), [2]);
    gate.set(bucket(5.0, 0.5));
    gate.sleeps_until(12_000);
}

#[test]
fn a_removed_bucket_loses_no_call_and_keeps_the_order() {
    let mut gate = Gate::limited(bucket(1.0, 1e-3));
    let other = BucketId(8);
    gate.scheduler
        .set_bucket(gate.now, other, bucket(400.0, 1.0))
        .expect("these are two");
    let drain = gate.call(1.0);
    gate.submit(drain, 0);
    assert_eq!(gate.drain(), [0]);
    for id in 1..=1000 {
        let call = gate.call(1.0).caller(Caller(id % 2));
        gate.submit(call, id);
    }
    assert_eq!(gate.drain(), []);
    let removed = gate.scheduler.remove_bucket(gate.now, BUCKET, |call| {
        (call.caller == Caller(0)).then_some(other)
    });
    assert!(removed);
    assert!(gate.scheduler.bucket_now(gate.now, BUCKET).is_none());
    let of = |ran: &[u64], caller| -> Vec<u64> {
        let of_caller = ran.iter().copied().filter(|id| id % 2 == caller);
        of_caller.collect()
    };
    let ran = gate.drain();
    assert_eq!(of(&ran, 1), (1..=1000).step_by(2).collect::<Vec<_>>());
    assert_eq!(of(&ran, 0), (2..=800).step_by(2).collect::<Vec<_>>());
    let rest: Vec<u64> = gate.live().into_iter().map(|(id, ..)| id).collect();
    assert_eq!(rest, (802..=1000).step_by(2).collect::<Vec<_>>());
    assert!(gate.scheduler.is_at_rest());
    assert!(!gate.scheduler.remove_bucket(gate.now, BUCKET, |_| None));
}

#[test]
fn an_unknown_bucket_holds_no_call() {
    let mut gate = Gate::new(Vec::new());
    let call = gate.call(1e6);
    gate.submit(call, 1);
    assert_eq!(gate.drain(), [1]);
}

#[test]
fn the_number_of_buckets_is_bounded() {
    let mut gate = Gate::new(Vec::new());
    let rule = bucket(1.0, 1.0);
    for id in 0..BUCKETS_MAX as u64 {
        let set = gate
            .scheduler
            .set_bucket(gate.now, BucketId(id), rule.clone());
        set.expect("not too many yet");
    }
    let id = BucketId(BUCKETS_MAX as u64);
    let one_more = gate.scheduler.set_bucket(gate.now, id, rule.clone());
    assert!(one_more.is_err());
    let changed = gate.scheduler.set_bucket(gate.now, BucketId(0), rule);
    assert!(changed.is_ok());
    assert!(
        gate.scheduler
            .remove_bucket(gate.now, BucketId(0), |_| None)
    );
    let replaced = gate.scheduler.set_bucket(gate.now, id, bucket(1.0, 1.0));
    assert!(replaced.is_ok());
    assert_eq!(gate.scheduler.bucket_ids().count(), BUCKETS_MAX);
}

#[test]
fn a_rejected_call_gets_the_limit_and_the_retry_time_at_once() {
    let mut gate = Gate::new(vec![rule("slots", Scope::Every, outstanding(1))]);
    gate.set(BucketRule {
        on_excess: OnExcess::Reject,
        ..bucket(2.0, 4.0)
    });
    let call = gate.call(1.0);
    gate.submit(call.clone(), 0);
    let (_, hold) = gate.run();
    // This one waits for the slot, and the tokens that are left are its own.
    gate.submit(call.clone(), 1);
    let refusal = gate.refuse(call.clone());
    assert_eq!(refusal.reason, RefusalReason::RateLimited);
    assert_eq!(refusal.limit.as_deref(), Some("bucket"));
    gate.now = at(250);
    gate.submit(call.clone(), 2);
    let refusal = gate.refuse(call);
    gate.finish(hold);
    assert_eq!(gate.drain(), [1, 2]);
    // A slot that is taken has a say in when to come back; the bucket alone would say this.
    assert!(
        refusal.retry_after >= Duration::from_millis(250),
        "{refusal:?}"
    );
    let expensive = gate.call(2.0);
    let refusal = gate.refuse(expensive);
    assert_eq!(refusal.retry_after, Duration::from_nanos(500_000_001));
    let now = gate.scheduler.bucket_now(gate.now, BUCKET);
    assert_eq!(now.expect("the bucket is there").counts.rejected, 3);
}

#[test]
fn a_call_whose_bucket_opens_only_after_its_deadline_is_refused_at_once() {
    let mut gate = Gate::limited(bucket(1.0, 1.0));
    let first = gate.call(1.0);
    gate.submit(first, 0);
    assert_eq!(gate.drain(), [0]);
    let late = gate.call(1.0).deadline(at(999));
    let refusal = gate.refuse(late);
    assert_eq!(refusal.reason, RefusalReason::DeadlineUnreachable);
    assert_eq!(refusal.limit.as_deref(), Some("bucket"));
    let in_time = gate.call(1.0).deadline(at(1000));
    gate.submit(in_time, 1);
    gate.sleeps_until(1000);
    gate.now = at(1000);
    assert_eq!(gate.drain(), [1]);
}

#[test]
fn a_call_that_never_left_gives_its_tokens_back() {
    let mut gate = Gate::limited(bucket(5.0, 1.0));
    let call = gate.call(3.0);
    gate.submit(call, 0);
    let (_, hold) = gate.run();
    assert_eq!(gate.level(), 2.0);
    gate.scheduler.requeue(gate.now, hold, 0);
    assert_eq!(gate.level(), 5.0);
    let (_, hold) = gate.run();
    gate.scheduler.give_back(gate.now, hold);
    assert_eq!(gate.level(), 5.0);
    assert!(gate.scheduler.is_at_rest());
}

#[test]
fn a_call_that_never_left_gives_its_caller_the_turn_at_the_bucket_back() {
    let mut gate = Gate::limited(bucket(10.0, 0.001));
    let of = |gate: &Gate, caller, tokens| gate.call(tokens).caller(Caller(caller));
    let calls = [(1, 10.0), (1, 1.0), (1, 1.0), (2, 1.0), (2, 1.0), (2, 1.0)];
    for ((caller, tokens), id) in calls.into_iter().zip(0..) {
        let call = of(&gate, caller, tokens);
        gate.submit(call, id);
    }
    let (first, hold) = gate.run();
    assert_eq!(first, 0);
    assert!(gate.drain().is_empty(), "the bucket is empty");
    gate.scheduler.give_back(gate.now, hold);
    // The first caller has had nothing, so the two go by turns.
    assert_eq!(gate.drain()[..4], [1, 3, 2, 4]);
}

#[test]
fn a_call_is_charged_all_its_limits_or_none() {
    let mut gate = Gate::new(vec![rule("slots", Scope::Every, outstanding(1))]);
    gate.set(bucket(5.0, 1.0));
    let call = gate.call(1.0);
    gate.submit(call.clone(), 0);
    let (_, hold) = gate.run();
    let waiting = gate.submit(call, 1);
    assert!(matches!(gate.next(), Step::Idle));
    assert_eq!(gate.level(), 4.0, "who waits for the slot has no token yet");
    gate.scheduler.cancel(gate.now, waiting);
    gate.finish(hold);
    assert_eq!(gate.level(), 4.0);
}

#[test]
fn the_actual_cost_is_settled_at_the_end_within_bounds() {
    let check = |measured: Option<f64>, settlement, left: f64| {
        let mut gate = Gate::limited(BucketRule {
            settlement,
            ..bucket(20.0, 1.0)
        });
        let call = gate.call(2.0);
        gate.submit(call, 0);
        let (_, hold) = gate.run();
        gate.scheduler.sent(gate.now, &hold);
        gate.scheduler.replied(gate.now, &hold);
        assert_eq!(gate.level(), 18.0, "not before it has ended");
        let measured = measured.map(tokens);
        gate.scheduler
            .finish(gate.now, hold, Outcome::Served, measured);
        assert_eq!(gate.level(), left, "{measured:?}");
    };
    check(Some(5.0), Settlement::Measured, 15.0);
    check(Some(0.5), Settlement::Measured, 19.5);
    check(Some(0.0), Settlement::Measured, 20.0);
    check(Some(1000.0), Settlement::Measured, 10.0);
    check(None, Settlement::Measured, 18.0);
    check(Some(5.0), Settlement::Estimate, 18.0);
}

#[test]
fn calls_that_turn_out_to_cost_more_keep_within_the_fill_too() {
    let mut gate = Gate::limited(BucketRule {
        settlement: Settlement::Measured,
        ..bucket(30.0, 3.0)
    });
    let (estimate, measured) = (200.0, 1000.0);
    let mut cost = 0.0;
    for id in 0..40 {
        let call = gate.call(estimate);
        gate.submit(call, id);
    }
    while seconds(gate.now) < 3600.0 {
        match gate.next() {
            Step::Run { hold, .. } => {
                cost += measured;
                let measured = Some(tokens(measured));
                gate.scheduler
                    .finish(gate.now, hold, Outcome::Served, measured);
            }
            Step::SleepUntil(moment) => gate.now = moment,
            step => panic!("{step:?}"),
        }
    }
    assert!(
        cost <= 30.0 + 3.0 * 3600.0 + measured,
        "{cost} were used in an hour"
    );
}

#[test]
fn the_debt_of_a_call_that_turns_out_to_cost_more_is_as_much_as_all_of_it() {
    let mut gate = Gate::limited(BucketRule {
        settlement: Settlement::Measured,
        ..bucket(1.0, 0.001)
    });
    let call = gate.call(10.0);
    gate.submit(call, 0);
    let (_, hold) = gate.run();
    assert_eq!(gate.level(), -9.0);
    let (now, measured) = (gate.now, Some(tokens(50.0)));
    gate.scheduler.finish(now, hold, Outcome::Served, measured);
    assert_eq!(gate.level(), -49.0, "nothing of it is forgiven");
}

#[test]
fn a_refund_lets_the_next_one_go_at_once_and_a_surcharge_makes_it_wait_longer() {
    let mut gate = Gate::limited(BucketRule {
        settlement: Settlement::Measured,
        ..bucket(10.0, 1.0)
    });
    for id in 0..3 {
        let call = gate.call(5.0);
        gate.submit(call, id);
    }
    let ((_, first), (_, second)) = (gate.run(), gate.run());
    gate.sleeps_until(5000);
    let finish = |gate: &mut Gate, hold, cost| {
        gate.scheduler
            .finish(gate.now, hold, Outcome::Served, Some(tokens(cost)));
    };
    finish(&mut gate, first, 7.0);
    gate.sleeps_until(7000);
    finish(&mut gate, second, 0.0);
    gate.sleeps_until(2000);
    gate.now = at(2000);
    assert_eq!(gate.drain(), [2]);
}

#[test]
fn a_caller_held_by_its_bucket_alone_brings_no_arrears() {
    let mut gate = Gate::new(vec![rule("slots", Scope::Every, outstanding(1))]);
    gate.set(bucket(1.0, 1e-6));
    for id in 0..100 {
        let held = gate.call(1.0).caller(Caller(1));
        gate.submit(held, id);
        let free = gate.call(1.0).caller(Caller(2)).bucket(None).quotas(None);
        gate.submit(free, 1000 + id);
    }
    let mut ids = Vec::new();
    for _ in 0..60 {
        let (id, hold) = gate.run();
        gate.finish(hold);
        ids.push(id);
    }
    assert_eq!(ids.iter().filter(|&&id| id < 1000).count(), 1);
    gate.set(bucket(1000.0, 1e6));
    gate.now = at(1);
    ids.clear();
    for _ in 0..40 {
        let (id, hold) = gate.run();
        gate.finish(hold);
        ids.push(id);
    }
    let held = ids.iter().filter(|&&id| id < 1000).count();
    assert!((19..=21).contains(&held), "{held} of 40: {ids:?}");
}

/// A user class of weight 10, and a polling class of weight 1.
fn two_classes(limits: Vec<LimitRule>, postpone: Postpone) -> Gate {
    Gate::with(policy(limits, &[10, 1], postpone))
}

const USER: Class = Class(0);
const POLLING: Class = Class(1);

fn keeping(amount: u32, rule: LimitRule) -> LimitRule {
    LimitRule {
        reserve: Some(Reserve {
            class: USER,
            amount,
        }),
        ..rule
    }
}

fn of_class(gate: &Gate, class: Class) -> Call {
    gate.call(1.0).class(class).bucket(None).quotas(None)
}

#[test]
fn reserved_slots_stay_free_for_their_class() {
    let slots = keeping(2, rule("slots", Scope::Every, outstanding(5)));
    let mut gate = two_classes(vec![slots], Postpone::InTurn);
    for id in 0..50 {
        let call = of_class(&gate, POLLING);
        gate.submit(call, id);
    }
    let running: Vec<_> = (0..3).map(|_| gate.run()).collect();
    assert!(matches!(gate.next(), Step::Idle), "two of five are kept");
    for id in 100..104 {
        let call = of_class(&gate, USER);
        gate.submit(call, id);
    }
    let users: Vec<_> = (0..2).map(|_| gate.run()).collect();
    assert_eq!([users[0].0, users[1].0], [100, 101]);
    assert!(matches!(gate.next(), Step::Idle), "all five are taken");
    // Its class may have the others' too, and goes first by weight.
    for (_, hold) in running {
        gate.finish(hold);
    }
    let (third, _hold) = gate.run();
    assert_eq!(third, 102);
    for (_, hold) in users {
        gate.finish(hold);
    }
    let ids: Vec<u64> = (0..3).map(|_| gate.run().0).collect();
    assert!(ids.contains(&103), "{ids:?}");
}

#[test]
fn the_reserve_of_a_window_opens_when_it_says() {
    let total = keeping(3, rule("total", Scope::Every, window(10)));
    let mut gate = two_classes(vec![total], Postpone::InTurn);
    for id in 0..30 {
        let call = of_class(&gate, POLLING);
        gate.submit(call, id);
    }
    assert_eq!(gate.drain().len(), 7);
    gate.sleeps_until(1000);
    gate.now = at(400);
    for id in 100..105 {
        let call = of_class(&gate, USER);
        gate.submit(call, id);
    }
    assert_eq!(gate.drain(), [100, 101, 102]);
    gate.sleeps_until(1000);
    gate.now = at(1000);
    // Seven departed at 0 and three users at 400: seven are free. Of ten turns at the limit the
    // others have one, and what users took of what is kept for them is none.
    let ran = gate.drain();
    assert_eq!((ran.len(), &ran[..3]), (7, &[103, 7, 104][..]));
    // The users' three free at 1400. Then they use two of the three that are kept for them, so
    // that one of those stays free, and the others may have what is left.
    gate.sleeps_until(1400);
    gate.now = at(1400);
    assert_eq!(gate.drain().len(), 2);
    gate.sleeps_until(2000);
}

/// Calls of one caller, function and class stand in one line only if they are charged to the same
/// bucket.
#[test]
fn calls_that_differ_only_in_their_bucket_wait_apart_and_in_order() {
    let (first, second) = (BUCKET, BucketId(8));
    let mut gate = Gate::limited(bucket(1.0, 1.0));
    gate.scheduler
        .set_bucket(gate.now, second, bucket(2.0, 1.0))
        .expect("there are two");
    let charged = |gate: &Gate, bucket| gate.call(1.0).bucket(bucket);
    let order = [
        Some(first),
        Some(first),
        Some(second),
        None,
        Some(first),
        Some(second),
        Some(second),
        Some(BucketId(9)),
    ];
    for (bucket, id) in order.into_iter().zip(0..) {
        let call = charged(&gate, bucket);
        gate.submit(call, id);
    }
    let mut now = gate.drain();
    now.sort_unstable();
    assert_eq!(now, [0, 2, 3, 5, 7], "only 1, 4 and 6 have no tokens");
    gate.now = at(1000);
    assert_eq!(gate.drain(), [1, 6]);
    // A call that is charged to another bucket leaves its line, and those behind it stay.
    let call = charged(&gate, Some(first));
    gate.submit(call, 8);
    let mut moved = Vec::new();
    gate.scheduler.reroute_waiting(
        gate.now,
        |_, &id| {
            (id == 4).then_some(Some(second)) // its bucket opens at the same moment
        },
        |&id, to| moved.push((id, to)),
    );
    assert_eq!(moved, [(4, Some(second))]);
    gate.now = at(2000);
    let mut went = gate.drain();
    went.sort_unstable();
    assert_eq!(went, [4, 8]);
}

/// Room for the waiting calls of a class with a reserve, when others wait for the same limit before them and what
/// is kept comes back.
#[test]
fn the_reserve_wakes_its_class_and_the_rest_wakes_the_others() {
    let slots = keeping(1, rule("slots", Scope::Every, outstanding(2)));
    let mut gate = two_classes(vec![slots], Postpone::InTurn);
    let submit = |gate: &mut Gate, class, id| {
        let call = of_class(gate, class);
        gate.submit(call, id)
    };
    submit(&mut gate, POLLING, 0);
    submit(&mut gate, USER, 100);
    let (user, of_user) = gate.run();
    let (polling, of_polling) = gate.run();
    assert_eq!((polling, user), (0, 100));
    for id in 1..3 {
        submit(&mut gate, POLLING, id);
    }
    let leaves = submit(&mut gate, USER, 101);
    submit(&mut gate, USER, 102);
    assert!(matches!(gate.next(), Step::Idle), "both slots are taken");
    // The first of the class leaves: the next one waits in its place.
    assert!(gate.scheduler.cancel(gate.now, leaves).is_some());
    assert!(matches!(gate.next(), Step::Idle));
    // What is kept comes back, as if it had not been drawn: the class's own has it, though others came
    // before.
    gate.scheduler.give_back(gate.now, of_user);
    let (user, of_user) = gate.run();
    assert_eq!(user, 102);
    assert!(matches!(gate.next(), Step::Idle));
    // The rest comes back: it is for the others.
    gate.finish(of_polling);
    let (polling, of_polling) = gate.run();
    assert_eq!(polling, 1);
    assert!(matches!(gate.next(), Step::Idle));
    // Without calls of its class, the reserve stays.
    gate.finish(of_user);
    assert!(matches!(gate.next(), Step::Idle), "one of two is kept");
    gate.finish(of_polling);
    let (polling, _hold) = gate.run();
    assert_eq!(polling, 2);
    submit(&mut gate, USER, 103);
    assert_eq!(gate.run().0, 103);
}

#[test]
fn the_reserve_goes_to_its_class_though_another_has_the_next_turn() {
    let slots = keeping(1, rule("slots", Scope::Every, outstanding(3)));
    let mut gate = two_classes(vec![slots], Postpone::InTurn);
    for id in 0..4 {
        let call = of_class(&gate, POLLING);
        gate.submit(call, id);
    }
    let mut running: BTreeMap<u64, Hold> = [(); 2].map(|()| gate.run()).into();
    assert!(matches!(gate.next(), Step::Idle));
    for id in 100..103 {
        let call = of_class(&gate, USER).tokens(tokens(100.0));
        gate.submit(call, id);
    }
    running.extend([gate.run()]);
    assert!(running.keys().eq(&[0, 1, 100]));
    // What ends, and what runs then. The users' first has what is kept for them, and their second a
    // turn of a hundred tokens, so the others are next: but not for what is kept.
    for (ends, runs) in [(0, 101), (100, 2), (101, 102), (1, 3)] {
        let hold = running.remove(&ends).expect("it runs");
        gate.finish(hold);
        let (id, hold) = gate.run();
        assert_eq!(id, runs, "{ends} ended");
        running.insert(id, hold);
        assert!(matches!(gate.next(), Step::Idle));
    }
}

#[test]
fn a_reload_keeps_a_reserve_and_its_use() {
    let policy_of = |amount| {
        let slots = keeping(amount, rule("slots", Scope::Every, outstanding(4)));
        let total = keeping(amount, rule("total", Scope::Every, window(4)));
        policy(vec![slots, total], &[10, 1], Postpone::InTurn)
    };
    let mut gate = Gate::with(policy_of(1));
    for (class, id) in [(USER, 100), (POLLING, 0)] {
        let call = of_class(&gate, class);
        gate.submit(call, id);
    }
    let (user, of_user) = gate.run();
    let (_, _polling) = gate.run();
    assert_eq!(user, 100);
    gate.scheduler.apply(gate.now, policy_of(2));
    // Two are kept, of which one is in flight: others have two in all.
    for id in 1..5 {
        let call = of_class(&gate, POLLING);
        gate.submit(call, id);
    }
    let (second, _second) = gate.run();
    assert_eq!(second, 1);
    assert!(matches!(gate.next(), Step::Idle), "one slot is kept");
    gate.scheduler.give_back(gate.now, of_user);
    assert!(matches!(gate.next(), Step::Idle), "two slots are kept");
    for id in 101..104 {
        let call = of_class(&gate, USER);
        gate.submit(call, id);
    }
    let users: Vec<_> = (0..2).map(|_| gate.run()).collect();
    assert_eq!([users[0].0, users[1].0], [101, 102]);
    assert!(matches!(gate.next(), Step::Idle));
    for (_, hold) in users {
        gate.scheduler.sent(gate.now, &hold);
        gate.finish(hold);
    }
    // The slots are free, and the window has what departed: two of the others are reserved in it.
    gate.sleeps_until(1000);
    gate.now = at(1000);
    assert_eq!(gate.run().0, 103);
    gate.scheduler.apply(gate.now, policy_of(0));
    let _last = gate.run();
    assert!(matches!(gate.next(), Step::Idle), "four are in flight");
}

#[test]
fn a_pool_caps_its_class_inside_the_total() {
    let limits = vec![
        rule("slots", Scope::Every, outstanding(4)),
        rule("pool", Scope::Class(POLLING), outstanding(2)),
    ];
    let mut gate = two_classes(limits, Postpone::InTurn);
    for id in 0..10 {
        let call = of_class(&gate, POLLING);
        gate.submit(call, id);
    }
    let deploys: Vec<_> = (0..2).map(|_| gate.run()).collect();
    assert!(matches!(gate.next(), Step::Idle), "the pool is full");
    for id in 100..105 {
        let call = of_class(&gate, USER);
        gate.submit(call, id);
    }
    let users: Vec<_> = (0..2).map(|_| gate.run()).collect();
    assert_eq!([users[0].0, users[1].0], [100, 101]);
    assert!(matches!(gate.next(), Step::Idle), "the total is full");
    for (_, hold) in deploys.into_iter().chain(users) {
        gate.finish(hold);
    }
    let ids: Vec<u64> = (0..4).map(|_| gate.run().0).collect();
    assert_eq!(ids.iter().filter(|&&id| id < 100).count(), 1, "{ids:?}");
}

#[test]
fn a_call_that_changes_its_class_meets_the_pool_of_the_new_one() {
    let limits = vec![rule("pool", Scope::Class(POLLING), outstanding(1))];
    let mut gate = two_classes(limits, Postpone::InTurn);
    let call = of_class(&gate, POLLING);
    gate.submit(call.clone(), 1);
    let (_, _hold) = gate.run();
    let ticket = gate.submit(call, 2);
    assert!(matches!(gate.next(), Step::Idle));
    assert!(gate.scheduler.reclass(gate.now, ticket, USER));
    assert_eq!(gate.run().0, 2);
}

/// 300 polls at once and a user call every 200 ms, through 10 slots and 30 a second, every call
/// taking 200 ms. Returns the median wait of the user calls, in seconds.
fn storm(postpone: Postpone, kept: Option<u32>, in_classes: bool) -> f64 {
    let keep = |rule| match kept {
        Some(amount) => keeping(amount, rule),
        None => rule,
    };
    let limits = vec![
        keep(rule("total", Scope::Every, window(30))),
        keep(rule("slots", Scope::Every, outstanding(10))),
    ];
    let mut gate = two_classes(limits, postpone);
    let class = |class| if in_classes { class } else { POLLING };
    for id in 0..300 {
        let call = of_class(&gate, class(POLLING));
        gate.submit(call, id);
    }
    let mut arrivals: Vec<Timestamp> = (0..40).map(|nth| at(100 + 200 * nth)).collect();
    arrivals.reverse();
    let mut ends: BTreeMap<(Timestamp, u64), Hold> = BTreeMap::new();
    let (mut users, mut waits) = (BTreeMap::new(), Vec::new());
    let mut ran = 0;
    while ran < 340 {
        let wake = match gate.next() {
            Step::Run { payload, hold, .. } => {
                gate.scheduler.sent(gate.now, &hold);
                ends.insert((gate.now + Duration::from_millis(200), payload), hold);
                if let Some(came) = users.remove(&payload) {
                    waits.push(gate.now.since(came).as_secs_f64());
                }
                ran += 1;
                continue;
            }
            Step::Expired { .. } => panic!("no call here has a deadline"),
            Step::SleepUntil(moment) => moment,
            Step::Idle => Timestamp::MAX,
        };
        let end = ends.keys().next().copied();
        let moments = [
            Some(wake),
            arrivals.last().copied(),
            end.map(|(end, _)| end),
        ];
        gate.now = moments
            .into_iter()
            .flatten()
            .min()
            .expect("there is a next");
        if let Some((_, hold)) = end
            .filter(|&(end, _)| end == gate.now)
            .and_then(|end| ends.remove_entry(&end))
        {
            gate.finish(hold);
        } else if arrivals.last() == Some(&gate.now) {
            arrivals.pop();
            let id = 1000 + arrivals.len() as u64;
            let call = of_class(&gate, class(USER));
            gate.submit(call, id);
            users.insert(id, gate.now);
        }
    }
    waits.sort_by(f64::total_cmp);
    assert_eq!(waits.len(), 40);
    waits[20]
}

#[test]
fn user_calls_pass_a_storm_of_polls_in_less_than_a_second() {
    let jitter = Postpone::Jitter {
        min: SECOND,
        max: 3 * SECOND,
    };
    let plain = storm(Postpone::InTurn, None, false);
    assert!(plain > 4.0, "by arrival they wait {plain} s");
    for (postpone, kept) in [
        (Postpone::InTurn, None),
        (Postpone::InTurn, Some(2)),
        (jitter, Some(0)),
        (jitter, Some(2)),
    ] {
        let waited = storm(postpone, kept, true);
        assert!(waited < 1.0, "{waited} s with {postpone:?}, {kept:?} kept");
    }
}

#[test]
fn a_call_for_whose_class_something_is_kept_is_never_set_aside() {
    let jitter = Postpone::Jitter {
        min: SECOND,
        max: 3 * SECOND,
    };
    let slots = keeping(0, rule("slots", Scope::Every, outstanding(1)));
    let mut gate = two_classes(vec![slots], jitter);
    let poll = of_class(&gate, POLLING);
    gate.submit(poll.clone(), 1);
    let (_, hold) = gate.run();
    let user = of_class(&gate, USER);
    gate.submit(user, 100);
    gate.submit(poll, 2);
    // The poll is set aside, and the user call is not: it runs when the slot is free.
    assert!(matches!(gate.next(), Step::SleepUntil(_)));
    gate.now = at(10);
    gate.finish(hold);
    match gate.next() {
        Step::Run {
            payload, waited, ..
        } => assert_eq!((payload, waited.postponed), (100, 0)),
        step => panic!("the user call runs, not {step:?}"),
    }
}

#[test]
fn a_supplied_rate_counts_from_then_on_and_refunds_nothing() {
    let fill = |rate| Fill::new(rate).expect("a rate");
    let mut gate = Gate::limited(bucket(100.0, 10.0));
    let level = |gate: &Gate, now| {
        let bucket = gate.scheduler.bucket_now(now, BUCKET);
        let bucket = bucket.expect("it was made");
        (bucket.tokens, bucket.per_second)
    };
    gate.submit(gate.call(100.0), 0);
    let _ = gate.run();
    assert_eq!(level(&gate, at(0)), (0.0, 10.0));
    let told = Supply::until(fill(2.0), at(4_000), fill(1.0));
    gate.now = at(1_000);
    assert!(gate.scheduler.supply_fill(gate.now, BUCKET, told));
    // A second at ten, three at two, and from then on one a second, although nothing looked.
    assert_eq!(level(&gate, at(1_000)), (10.0, 2.0));
    gate.now = at(6_000);
    gate.submit(gate.call(18.0), 1);
    assert_eq!(level(&gate, at(6_000)), (18.0, 1.0));
    let _ = gate.run();
    // What the rule says is the most.
    let more = Supply::capacity(fill(1_000.0));
    assert!(gate.scheduler.supply_fill(gate.now, BUCKET, more));
    assert_eq!(level(&gate, at(7_000)), (10.0, 10.0));
    // A rule that changes is slowed as the one before was.
    let slow = Supply::capacity(fill(0.5));
    assert!(gate.scheduler.supply_fill(gate.now, BUCKET, slow));
    gate.set(bucket(100.0, 20.0));
    assert_eq!(level(&gate, gate.now).1, 0.5);
    assert!(
        gate.scheduler
            .supply_fill(gate.now, BUCKET, Supply::Configured)
    );
    assert_eq!(level(&gate, gate.now).1, 20.0);
    assert!(!gate.scheduler.supply_fill(gate.now, BucketId(99), slow));
    let drawn = gate
        .scheduler
        .bucket_now(gate.now, BUCKET)
        .map(|bucket| bucket.counts.drawn);
    assert_eq!(drawn, Some(118.0));
}

#[test]
fn a_bucket_removed_before_its_supply_expires_does_no_harm() {
    let fill = |rate| Fill::new(rate).expect("a rate");
    let mut gate = Gate::limited(bucket(1.0, 1.0));
    let told = Supply::until(fill(0.5), at(1_000), fill(0.1));
    assert!(gate.scheduler.supply_fill(gate.now, BUCKET, told));
    assert!(gate.scheduler.remove_bucket(gate.now, BUCKET, |_| None));
    gate.now = at(2_000);
    gate.set(bucket(1.0, 1.0));
    let bucket = gate
        .scheduler
        .bucket_now(gate.now, BUCKET)
        .expect("it is made anew");
    assert_eq!(bucket.per_second, 1.0);
}
