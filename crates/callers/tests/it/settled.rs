//! Calls whose cost is known at their end, at a bucket of tokens: what is reserved, and how much of the bucket is used.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use tidegate_callers::{FunctionId, LearnedCosts};
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::call::BucketId;
use tidegate_limits::policy::{ClassShare, Postpone, WhenFull};
use tidegate_limits::scheduler::{
    BucketLimit, BucketOrder, BucketRule, OnExcess, Outcome, Settlement, Step,
};
use tidegate_limits::{Burst, Call, Caller, Fill, Policy, Scheduler, Timestamp, Tokens};

use crate::random::{Random, seeds};

const BUCKET: BucketId = BucketId(1);
/// Most tokens of a call.
const MOST: u64 = 8_192;
const BURST: f64 = 20_000.0;
const FILL: f64 = 500.0;
/// The time of a token at the backend.
const TOKEN: Duration = Duration::from_millis(20);
/// Calls that wait at any time.
const WAITING: u64 = 40;

/// The reservation of a call.
#[derive(Clone, Copy, Debug)]
enum Reserves {
    /// As much as any call can cost.
    Most,
    /// As much as 95 of 100 of the latest calls have cost, and at first the most.
    Learned,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
struct EndedCall {
    went: Timestamp,
    reserved: f64,
    cost: f64,
}

/// The tokens of a call, by a Pareto distribution: half cost less than 90, one in twenty more than 600, and a few
/// the most.
fn heavy_tail(random: &mut Random) -> u64 {
    let even = random.real(1e-9, 1.0);
    (50.0 * even.powf(-1.0 / 1.2)).min(MOST as f64) as u64
}

/// Lets calls run for this time, while more of them wait than may go.
fn run(seed: u64, reserves: Reserves, settled: bool, time: Duration) -> Vec<EndedCall> {
    let mut random = Random::new(seed);
    let classes = vec![ClassShare::new("user", 1)];
    let policy = Policy::new(
        Vec::new(),
        1_000,
        WhenFull::Refuse,
        Postpone::InTurn,
        classes,
    );
    let mut scheduler: Scheduler<u64> = Scheduler::new(policy.expect("sound"));
    let mut now = Timestamp::ZERO;
    let rule = BucketRule {
        name: "tokens".into(),
        limit: BucketLimit::Bucket {
            burst: Burst::new(BURST).expect("a burst"),
            fill: Fill::new(FILL).expect("a rate"),
        },
        on_excess: OnExcess::Delay,
        order: BucketOrder::Fair,
        settlement: if settled {
            Settlement::Measured
        } else {
            Settlement::Estimate
        },
    };
    scheduler.set_bucket(now, BUCKET, rule).expect("one bucket");
    let mut learned: LearnedCosts<()> = LearnedCosts::default();
    let function = FunctionId(1);
    let tokens = |count: f64| Tokens::new(count).expect("tokens");
    let (mut costs, mut running) = (BTreeMap::new(), BTreeMap::new());
    let mut ends = BinaryHeap::new();
    let mut ended = Vec::new();
    let (mut calls, mut waiting) = (0_u64, 0);
    while now < Timestamp::ZERO + time {
        while waiting < WAITING {
            let cost = heavy_tail(&mut random);
            let known = match reserves {
                Reserves::Most => None,
                Reserves::Learned => learned.reserve(function, ()),
            };
            let reserved = known.map_or(MOST as f64, TokenCount::tokens);
            let call = Call::new("chat", now)
                .caller(Caller(calls % 5))
                .tokens(tokens(reserved))
                .bucket(BUCKET)
                .is_settled(true);
            costs.insert(calls, (cost, reserved));
            scheduler.submit(now, call, calls).expect("there is room");
            calls += 1;
            waiting += 1;
        }
        match scheduler.next(now, &mut || 0) {
            Step::Run { payload, hold, .. } => {
                waiting -= 1;
                let (cost, _) = costs[&payload];
                running.insert(payload, (now, hold));
                ends.push(Reverse((now + TOKEN * cost as u32, payload)));
            }
            step => {
                let wakes = match step {
                    Step::SleepUntil(moment) => moment,
                    _ => Timestamp::MAX,
                };
                let next = ends.peek().map(|Reverse((moment, _))| *moment);
                now = next.map_or(wakes, |next| next.min(wakes));
                while let Some(&Reverse((moment, id))) = ends.peek()
                    && moment <= now
                {
                    ends.pop();
                    let (went, hold) = running.remove(&id).expect("it runs");
                    let (cost, reserved) = costs.remove(&id).expect("it ran");
                    let measured = tokens(cost as f64);
                    scheduler.finish(now, hold, Outcome::Served, Some(measured));
                    learned.count(function, (), TokenCount::from_micros(cost * 1_000_000));
                    ended.push(EndedCall {
                        went,
                        reserved,
                        cost: cost as f64,
                    });
                }
            }
        }
    }
    ended
}

/// The part of the bucket's tokens that calls have used.   percent
fn used(ended: &[EndedCall], time: Duration) -> f64 {
    let cost: f64 = ended.iter().map(|call| call.cost).sum();
    100.0 * cost / (BURST + FILL * time.as_secs_f64())
}

/// The promise, by looking at every span: what calls that went in it have cost, without what they exceeded their
/// reservations by, is at most the burst and what flowed in.
fn check(ended: &[EndedCall]) -> Result<(), String> {
    let mut calls = ended.to_vec();
    calls.sort_by_key(|call| call.went);
    for first in 0..calls.len() {
        let mut spent = 0.0;
        for call in &calls[first..] {
            spent += call.cost.min(call.reserved);
            let span = call.went.since(calls[first].went).as_secs_f64();
            let most = BURST + FILL * span;
            if spent > most + 1e-3 {
                return Err(format!(
                    "{spent} of {most} in {span} s from {:?}",
                    calls[first].went
                ));
            }
        }
    }
    Ok(())
}

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn learned_reservations_use_nearly_all_of_a_bucket_and_never_more() {
    for seed in seeds(0..20) {
        let learned = run(seed, Reserves::Learned, true, HOUR);
        let most = run(seed, Reserves::Most, true, HOUR);
        let kept = check(&learned).and_then(|()| check(&most));
        kept.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        let (learned, most) = (used(&learned, HOUR), used(&most, HOUR));
        println!("seed {seed}: learned {learned:.1} %, the most {most:.1} %");
        assert!(learned >= 95.0, "seed {seed}: {learned} %");
        assert!(most < learned, "seed {seed}: {most} %");
    }
}

#[test]
fn with_the_most_reserved_no_span_has_more_than_the_bucket() {
    for seed in seeds(0..20) {
        let ended = run(seed, Reserves::Most, true, HOUR / 4);
        assert!(ended.iter().all(|call| call.cost <= call.reserved));
        check(&ended).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

#[test]
fn without_settling_a_fixed_reservation_wastes_most_of_a_bucket() {
    let wasted = used(&run(1, Reserves::Most, false, HOUR), HOUR);
    assert!(wasted < 10.0, "{wasted} %");
}

#[test]
fn the_check_of_the_promise_finds_calls_that_reserved_nothing() {
    let mut ended = run(1, Reserves::Learned, true, HOUR / 4);
    for call in &mut ended {
        call.reserved = f64::MAX;
        call.cost *= 2.0;
    }
    assert!(check(&ended).is_err());
}
