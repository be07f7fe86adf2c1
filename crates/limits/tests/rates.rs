//! Rate limits, fair turns, reserves and pools, a sentence at a time, on a virtual clock.

#[path = "vectors/queue.rs"]
mod queue;
mod random;
mod rates {
    mod fair_turns;
    mod reserves;
}

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
    let bucket = gate.scheduler.bucket_now(gate.now, BUCKET);
    let counts = bucket.expect("the bucket is there").counts;
    assert_eq!((counts.charged, counts.drawn), (0, 0.0));
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
fn the_actual_cost_is_settled_at_the_end() {
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
    // A debt, which is paid before the next call goes.
    check(Some(1000.0), Settlement::Measured, -980.0);
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
