//! Paced limits in the scheduler: for all calls, for a function, and for calls that are charged to a
//! bucket, beside limits of other kinds.

mod random;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::bucket::TokenLimiter;
use tidegate_limits::call::BucketId;
use tidegate_limits::pace::{BurstRatio, Pace, Pacer, Rate};
use tidegate_limits::policy::{ClassShare, LimitRule, Postpone, Scope, WhenFull};
use tidegate_limits::scheduler::{
    BucketLimit, BucketOrder, BucketRule, OnExcess, Outcome, Settlement, Supplier, Supply,
};
use tidegate_limits::{
    Call, Fill, Hold, Limit, Policy, Scheduler, Step, Timestamp, Tokens, Verdict,
};

use random::{Random, seeds};

fn pace(rate: f64, ratio: f64) -> Pace {
    let ratio = BurstRatio::new(ratio).expect("a ratio");
    Pace::new(Rate::new(rate).expect("a rate"), ratio)
}

fn rule(name: &str, scope: Scope, limit: Limit) -> LimitRule {
    LimitRule::new(name, limit).scope(scope)
}

fn policy(limits: Vec<LimitRule>) -> Policy {
    let classes = vec![ClassShare::new("all", 1)];
    Policy::new(limits, 100_000, WhenFull::Refuse, Postpone::InTurn, classes).expect("sound")
}

fn call(function: &str, tokens: f64, now: Timestamp) -> Call {
    Call::new(function, now).tokens(Tokens::new(tokens).expect("a cost"))
}

fn paced_bucket(pace: Pace) -> BucketRule {
    BucketRule {
        name: "bucket".into(),
        limit: BucketLimit::Paced(pace),
        on_excess: OnExcess::Delay,
        order: BucketOrder::Fifo,
        settlement: Settlement::Estimate,
    }
}

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn next(scheduler: &mut Scheduler<usize>, now: Timestamp) -> Step<usize> {
    scheduler.next(now, &mut || unreachable!("no call is set aside"))
}

/// When each of the calls that wait is let through, if each ends at once.
fn run_out(scheduler: &mut Scheduler<usize>, mut now: Timestamp) -> Vec<(usize, Timestamp)> {
    let mut went = Vec::new();
    loop {
        match next(scheduler, now) {
            Step::Run { payload, hold, .. } => {
                went.push((payload, now));
                scheduler.sent(now, &hold);
                scheduler.finish(now, hold, Outcome::Served, None);
            }
            Step::SleepUntil(until) => now = until,
            Step::Idle => return went,
            Step::Expired { .. } => panic!("no call has a deadline"),
        }
    }
}

#[test]
fn calls_go_at_the_pace_and_what_they_cost_counts() {
    let limit = Limit::Paced {
        pace: pace(100.0, 1.0),
    };
    let mut scheduler = Scheduler::new(policy(vec![rule("total", Scope::Every, limit)]));
    for id in 0..10 {
        let tokens = if id == 4 { 2.0 } else { 1.0 };
        let ticket = scheduler.submit(at(0), call("f", tokens, at(0)), id);
        ticket.expect("there is room");
    }
    let went = run_out(&mut scheduler, at(0));
    let millis: Vec<_> = went
        .iter()
        .map(|(_, at)| at.as_nanos() / 1_000_000)
        .collect();
    // One at once; the expensive one waits for the second token it takes, and the rest behind it.
    assert_eq!(millis, [0, 10, 20, 30, 50, 60, 70, 80, 90, 100]);
}

#[test]
fn late_callers_catch_up_at_the_ratio_and_not_at_a_ratio_of_one() {
    let check = |ratio, least, most| {
        let limit = Limit::Paced {
            pace: pace(1000.0, ratio),
        };
        let mut scheduler = Scheduler::new(policy(vec![rule("total", Scope::Every, limit)]));
        // Two seconds without callers.
        let start = at(2_000_000_000);
        for id in 0..3_000 {
            let ticket = scheduler.submit(start, call("f", 1.0, start), id);
            ticket.expect("there is room");
        }
        let went = run_out(&mut scheduler, start);
        let took = went.last().expect("all went").1.since(start).as_secs_f64();
        assert!((least..most).contains(&took), "ratio {ratio}: {took} s");
    };
    check(1.5, 1.99, 2.01);
    check(1.1, 2.71, 2.74);
    check(1.0, 2.99, 3.01);
}

#[test]
fn a_paced_function_holds_up_no_other() {
    let slow = Limit::Paced {
        pace: pace(1.0, 1.0),
    };
    let scope = Scope::Function("slow".into());
    let mut scheduler = Scheduler::new(policy(vec![rule("function:slow", scope, slow)]));
    for id in 0..6 {
        let function = if id % 2 == 0 { "slow" } else { "quick" };
        let ticket = scheduler.submit(at(0), call(function, 1.0, at(0)), id);
        ticket.expect("there is room");
    }
    let went = run_out(&mut scheduler, at(0));
    let at_once = went.iter().filter(|(_, at)| *at == Timestamp::ZERO);
    let mut at_once: Vec<_> = at_once.map(|(id, _)| *id).collect();
    at_once.sort_unstable();
    assert_eq!(at_once, [0, 1, 3, 5]);
    assert_eq!(went[4..], [(2, at(1_000_000_000)), (4, at(2_000_000_000))]);
}

#[test]
fn a_call_that_is_not_sent_puts_its_time_back() {
    let limit = Limit::Paced {
        pace: pace(10.0, 1.0),
    };
    let mut scheduler = Scheduler::new(policy(vec![rule("total", Scope::Every, limit)]));
    let id = BucketId(1);
    let set = scheduler.set_bucket(at(0), id, paced_bucket(pace(10.0, 1.0)));
    set.expect("there is room");
    let before = scheduler.limits_now(at(5)).remove(0).paced;
    let bucket_before = scheduler.bucket_now(at(5), id);
    let mut charged = call("f", 1.0, at(5));
    charged.bucket = Some(id);
    scheduler.submit(at(5), charged, 0).expect("there is room");
    let Step::Run { hold, .. } = next(&mut scheduler, at(5)) else {
        panic!("it may go at once");
    };
    assert_ne!(scheduler.limits_now(at(5)).remove(0).paced, before);
    scheduler.give_back(at(5), hold);
    assert_eq!(scheduler.limits_now(at(5)).remove(0).paced, before);
    assert_eq!(scheduler.bucket_now(at(5), id), bucket_before);
    assert!(scheduler.is_at_rest());
}

#[test]
fn a_new_pace_takes_effect_at_once_and_loses_no_call() {
    let with = |rate| {
        let pace = pace(rate, 1.0);
        policy(vec![rule("total", Scope::Every, Limit::Paced { pace })])
    };
    let mut scheduler = Scheduler::new(with(1.0));
    for id in 0..1_000 {
        let ticket = scheduler.submit(at(0), call("f", 1.0, at(0)), id);
        ticket.expect("there is room");
    }
    let mut now = at(0);
    let mut went = 0;
    while went < 3 {
        match next(&mut scheduler, now) {
            Step::Run { hold, .. } => {
                went += 1;
                scheduler.finish(now, hold, Outcome::Served, None);
            }
            Step::SleepUntil(until) => now = until,
            other => panic!("{other:?}"),
        }
    }
    scheduler.apply(now, with(1_000.0));
    let rest = run_out(&mut scheduler, now);
    assert_eq!(rest.len(), 997);
    let took = rest.last().expect("all went").1.since(now);
    // The time that was there stays, at the new price.
    assert!(took <= Duration::from_millis(998), "{took:?}");
    assert!(took >= Duration::from_millis(990), "{took:?}");
}

#[test]
fn a_supply_is_the_rate_until_it_expires() {
    let limit = Limit::Paced {
        pace: pace(60.0, 1.0),
    };
    let mut scheduler: Scheduler<usize> =
        Scheduler::new(policy(vec![rule("total", Scope::Every, limit)]));
    let rate = |scheduler: &Scheduler<usize>, now| {
        let paced = scheduler.limits_now(now).remove(0).paced;
        paced.expect("it is paced").pace.rate().get()
    };
    let told = Supplier::Coordinator;
    assert!(scheduler.supply(at(0), "total", told, Supply::until(50, at(1_000), 2)));
    assert_eq!(rate(&scheduler, at(0)), 50.0);
    let _ = next(&mut scheduler, at(1_000));
    assert_eq!(rate(&scheduler, at(1_000)), 2.0);
    scheduler.supply(at(2_000), "total", told, Supply::capacity(0));
    let opens = scheduler.limits_now(at(10_000_000_000)).remove(0).opens;
    assert_eq!(opens, Verdict::OnChange);
    // What its rule says is the most, whatever there is elsewhere.
    scheduler.supply(at(3_000), "total", told, Supply::capacity(100));
    assert_eq!(rate(&scheduler, at(3_000)), 60.0);
    scheduler.supply(at(3_000), "total", told, Supply::Configured);
    assert_eq!(rate(&scheduler, at(3_000)), 60.0);
}

/// How many calls go within a time, where there are always more.
fn went_within(scheduler: &mut Scheduler<usize>, from: Timestamp, span: Duration) -> usize {
    let (mut now, mut went) = (from, 0);
    loop {
        match next(scheduler, now) {
            Step::Run { hold, .. } => {
                went += 1;
                scheduler.sent(now, &hold);
                scheduler.finish(now, hold, Outcome::Served, None);
            }
            Step::SleepUntil(until) if until <= from + span => now = until,
            Step::SleepUntil(_) | Step::Idle => return went,
            Step::Expired { .. } => panic!("no call has a deadline"),
        }
    }
}

fn seconds(seconds: u64) -> Timestamp {
    at(seconds * 1_000_000_000)
}

/// A limit for all calls, and one as a bucket, each with a thousand calls that wait for it from
/// `from` on.
fn with_backlog(
    pace: Pace,
    from: Timestamp,
    tell: impl Fn(&mut Scheduler<usize>),
) -> [Scheduler<usize>; 2] {
    let total = Scheduler::new(policy(vec![rule(
        "total",
        Scope::Every,
        Limit::Paced { pace },
    )]));
    let mut charged = Scheduler::new(policy(Vec::new()));
    charged
        .set_bucket(at(0), BucketId(1), paced_bucket(pace))
        .expect("it is the only one");
    [total, charged].map(|mut scheduler| {
        tell(&mut scheduler);
        for id in 0..1_000 {
            let mut call = call("f", 1.0, from);
            call.bucket = Some(BucketId(1));
            scheduler.submit(from, call, id).expect("it is taken in");
        }
        scheduler
    })
}

fn share_of(scheduler: &mut Scheduler<usize>, now: Timestamp, per_second: u32) {
    let told = Supplier::Coordinator;
    scheduler.supply(now, "total", told, Supply::capacity(per_second));
    let fill = Fill::new(f64::from(per_second)).expect("a rate");
    scheduler.supply_fill(now, BucketId(1), Supply::capacity(fill));
}

#[test]
fn a_share_of_a_pace_is_never_exceeded_however_late_the_calls_are() {
    // Nothing was taken for a minute, before or after the share was told.
    for told_at in [0, 60] {
        let schedulers = with_backlog(pace(100.0, 1.5), seconds(60), |scheduler| {
            share_of(scheduler, seconds(told_at), 10);
        });
        for mut scheduler in schedulers {
            let went = went_within(&mut scheduler, seconds(60), Duration::from_secs(60));
            // Two fit into the pool.
            assert!(
                (595..=602).contains(&went),
                "{went} of 600, told at {told_at} s"
            );
        }
    }
}

#[test]
fn unused_time_of_a_share_is_gone_when_the_share_ends() {
    for mut scheduler in with_backlog(pace(10.0, 2.0), seconds(60), |scheduler| {
        share_of(scheduler, seconds(0), 1);
        scheduler.supply(
            seconds(60),
            "total",
            Supplier::Coordinator,
            Supply::Configured,
        );
        scheduler.supply_fill(seconds(60), BucketId(1), Supply::Configured);
    }) {
        let went = went_within(&mut scheduler, seconds(60), Duration::from_secs(10));
        assert!((99..=104).contains(&went), "{went} of 100");
    }
}

#[test]
fn nothing_accrues_while_a_supply_of_0_closes_a_pace() {
    let pace = pace(10.0, 2.0);
    let limit = Limit::Paced { pace };
    let mut scheduler: Scheduler<usize> =
        Scheduler::new(policy(vec![rule("total", Scope::Every, limit)]));
    let told = Supplier::Health;
    scheduler.supply(at(0), "total", told, Supply::capacity(0));
    let waits = |scheduler: &Scheduler<usize>, now| {
        let paced = scheduler.limits_now(now).remove(0).paced;
        paced.expect("it is paced").pools.wait_time()
    };
    assert!(waits(&scheduler, seconds(60)) <= Duration::from_millis(200));
    for id in 0..1_000 {
        let call = call("f", 1.0, seconds(60));
        scheduler
            .submit(seconds(60), call, id)
            .expect("it is taken in");
    }
    assert_eq!(
        went_within(&mut scheduler, seconds(60), Duration::from_secs(1)),
        0
    );
    scheduler.supply(seconds(60), "total", told, Supply::Configured);
    let went = went_within(&mut scheduler, seconds(60), Duration::from_secs(10));
    assert!((99..=104).contains(&went), "{went} of 100");
    // A reload while it is closed changes nothing of that.
    scheduler.supply(seconds(70), "total", told, Supply::capacity(0));
    scheduler.apply(
        seconds(80),
        policy(vec![rule("total", Scope::Every, Limit::Paced { pace })]),
    );
    scheduler.supply(seconds(130), "total", told, Supply::Configured);
    let went = went_within(&mut scheduler, seconds(130), Duration::from_secs(10));
    assert!((99..=104).contains(&went), "{went} of 100");
}

#[test]
fn a_share_at_which_the_most_expensive_call_takes_a_lifetime_is_kept_too() {
    let expensive = pace(100.0, 1.5).with_room_for(Tokens::MAX);
    for told in [1e-6, 1e-3] {
        let mut scheduler: Scheduler<usize> = Scheduler::new(policy(Vec::new()));
        scheduler
            .set_bucket(at(0), BucketId(1), paced_bucket(expensive))
            .expect("it is the only one");
        let fill = Fill::new(told).expect("a rate");
        scheduler.supply_fill(at(0), BucketId(1), Supply::capacity(fill));
        let now = scheduler
            .bucket_now(at(0), BucketId(1))
            .expect("it is there");
        assert_eq!(now.per_second, told);
    }
}

/// Every draw is held against a limiter of its own, which the scheduler never sees: a call that went
/// could go, and whenever the scheduler slept while calls waited, the first one could not go.
#[test]
fn every_call_goes_when_its_paces_allow_and_no_sooner() {
    for seed in seeds(0..2_000) {
        check_load(seed);
    }
}

fn check_load(seed: u64) {
    let mut random = Random::new(seed);
    let ratios = [1.0, 1.1, 1.5, 3.0];
    let mut some_pace = |rates: u64| {
        let rate = 1.0 + random.below(rates) as f64;
        pace(rate, ratios[random.below(4) as usize])
    };
    let (total, slow, own) = (some_pace(200), some_pace(50), some_pace(50));
    let outstanding = 1 + random.below(4) as u32;
    let mut scheduler = Scheduler::new(policy(vec![
        rule("total", Scope::Every, Limit::Paced { pace: total }),
        rule(
            "workers",
            Scope::Every,
            Limit::Outstanding { max: outstanding },
        ),
        rule(
            "function:slow",
            Scope::Function("slow".into()),
            Limit::Paced { pace: slow },
        ),
    ]));
    let id = BucketId(7);
    let set = scheduler.set_bucket(at(0), id, paced_bucket(own));
    set.expect("there is room");

    let mut models: BTreeMap<&str, Pacer> = [("total", total), ("slow", slow), ("own", own)]
        .map(|(name, pace)| (name, Pacer::new(at(0), pace)))
        .into();
    let met = |call: &Call| {
        let mut met = vec!["total"];
        met.extend((&*call.function == "slow").then_some("slow"));
        met.extend(call.bucket.map(|_| "own"));
        met
    };
    let mut calls: Vec<Call> = Vec::new();
    let mut waiting: Vec<usize> = Vec::new();
    let mut running: Vec<(u64, Hold)> = Vec::new();
    let mut now = 0;
    let mut left = 40;
    loop {
        match next(&mut scheduler, at(now)) {
            Step::Run { payload, hold, .. } => {
                let call = &calls[payload];
                for name in met(call) {
                    let model = models.get_mut(name).expect("there are three");
                    assert!(
                        model.try_take(at(now), call.tokens).is_ok(),
                        "seed {seed}: at {now}, {name} had nothing for call {payload}"
                    );
                }
                waiting.retain(|&id| id != payload);
                if random.below(8) == 0 {
                    // It could not be sent.
                    for name in met(&calls[payload]) {
                        let model = models.get_mut(name).expect("there are three");
                        model.put_back(at(now), calls[payload].tokens.get());
                    }
                    scheduler.give_back(at(now), hold);
                } else {
                    scheduler.sent(at(now), &hold);
                    running.push((now + random.below(300_000_000), hold));
                }
            }
            step @ (Step::SleepUntil(_) | Step::Idle) => {
                // With a worker free, the first of those that meet the same cannot go yet.
                if running.len() < outstanding as usize {
                    let mut seen: Vec<(Arc<str>, bool)> = Vec::new();
                    let someone = waiting.iter().find(|&&id| {
                        let call = &calls[id];
                        let line = (call.function.clone(), call.bucket.is_some());
                        if seen.contains(&line) {
                            return false;
                        }
                        seen.push(line);
                        met(call)
                            .iter()
                            .all(|name| models[name].has(at(now), call.tokens))
                    });
                    if let Some(&first) = someone {
                        // Unless another is first in turn for a limit that both meet.
                        let behind = waiting.iter().any(|&id| {
                            id != first
                                && met(&calls[id])
                                    .iter()
                                    .any(|name| !models[name].has(at(now), calls[id].tokens))
                        });
                        assert!(behind, "seed {seed}: at {now}, call {first} could go");
                    }
                }
                let end = running.iter().map(|(end, _)| *end).min();
                let arrival = (left > 0).then(|| now + random.below(60_000_000));
                let opening = match step {
                    Step::SleepUntil(until) => Some(until.as_nanos()),
                    _ => None,
                };
                let Some(then) = [end, arrival, opening].into_iter().flatten().min() else {
                    break;
                };
                now = then.max(now);
                if end == Some(then) {
                    let index = running.iter().position(|(end, _)| *end == then);
                    let (_, hold) = running.swap_remove(index.expect("it ends now"));
                    scheduler.finish(at(now), hold, Outcome::Served, None);
                } else if arrival == Some(then) {
                    left -= 1;
                    let function = if random.below(2) == 0 {
                        "slow"
                    } else {
                        "quick"
                    };
                    let tokens = 0.25 * (1 + random.below(8)) as f64;
                    let mut call = call(function, tokens, at(now));
                    call.bucket = (random.below(2) == 0).then_some(id);
                    calls.push(call.clone());
                    let payload = calls.len() - 1;
                    waiting.push(payload);
                    scheduler
                        .submit(at(now), call, payload)
                        .expect("there is room");
                }
            }
            Step::Expired { .. } => panic!("no call has a deadline"),
        }
    }
    assert!(waiting.is_empty(), "seed {seed}: {waiting:?} never went");
    assert!(scheduler.is_at_rest(), "seed {seed}");
}

#[test]
fn a_call_that_was_in_flight_before_there_was_a_pace_gives_nothing_back_to_it() {
    let mut scheduler = Scheduler::new(policy(Vec::new()));
    scheduler
        .submit(at(0), call("f", 1.0, at(0)), 0)
        .expect("there is room");
    let Step::Run { hold, .. } = next(&mut scheduler, at(0)) else {
        panic!("nothing limits it");
    };
    let limit = Limit::Paced {
        pace: pace(1.0, 1.0),
    };
    scheduler.apply(at(0), policy(vec![rule("new", Scope::Every, limit)]));
    scheduler.give_back(at(0), hold);
    for id in 1..3 {
        scheduler
            .submit(at(0), call("f", 1.0, at(0)), id)
            .expect("there is room");
    }
    let went = run_out(&mut scheduler, at(0));
    assert_eq!(went, [(1, at(0)), (2, at(1_000_000_000))]);
}

/// A call that never left gives back the time that it took, whatever the pace has become by then: by a
/// reload, by a new rule of its bucket, or by a supply of either.
#[test]
fn a_call_returns_all_its_time_after_reloads_and_supplies() {
    let ten = Tokens::new(10.0).expect("a cost");
    let (fast, slow) = (pace(10.0, 1.0), pace(1.0, 1.0));
    let (fast, slow) = (fast.with_room_for(ten), slow.with_room_for(ten));
    let with = |pace| policy(vec![rule("total", Scope::Every, Limit::Paced { pace })]);
    let start = |drawn: bool, from: Pace| {
        let mut scheduler = Scheduler::new(with(from));
        let made = scheduler.set_bucket(at(0), BucketId(1), paced_bucket(from));
        made.expect("it is the only one");
        let now = at(60_000_000_000);
        let hold = drawn.then(|| {
            let call = call("f", 10.0, now).bucket(BucketId(1));
            scheduler.submit(now, call, 0).expect("there is room");
            let Step::Run { hold, .. } = next(&mut scheduler, now) else {
                panic!("the pools are full");
            };
            hold
        });
        (scheduler, hold)
    };
    // At the same moment: no time flows in between that one has room for and the other has not.
    let later = at(60_000_000_000);
    type Change<'a> = &'a dyn Fn(&mut Scheduler<usize>, Pace);
    let changes: [Change<'_>; 3] = [
        &|scheduler, to| {
            scheduler.apply(later, with(to));
            let set = scheduler.set_bucket(later, BucketId(1), paced_bucket(to));
            set.expect("it is there");
        },
        &|scheduler, to| {
            let rate = to.rate().get() as u32;
            assert!(scheduler.supply(
                later,
                "total",
                Supplier::Coordinator,
                Supply::capacity(rate)
            ));
            let fill = Fill::new(f64::from(rate)).expect("a rate");
            assert!(scheduler.supply_fill(later, BucketId(1), Supply::capacity(fill)));
        },
        &|_, _| {},
    ];
    for change in changes {
        for (from, to) in [(fast, slow), (slow, fast)] {
            let waits = |drawn| {
                let (mut scheduler, hold) = start(drawn, from);
                change(&mut scheduler, to);
                if let Some(hold) = hold {
                    scheduler.give_back(later, hold);
                }
                let limit = scheduler.limit_now(later, "total").expect("it is there");
                let bucket = scheduler
                    .bucket_now(later, BucketId(1))
                    .expect("it is there");
                [limit.paced, bucket.paced].map(|paced| {
                    let pools = paced.expect("it is a pace").pools;
                    (pools.wait_time().as_secs_f64() - pools.debt.as_secs_f64()) * 1e3
                })
            };
            for (with, without) in waits(true).into_iter().zip(waits(false)) {
                assert!((with - without).abs() < 1e-3, "{with} ms, not {without}");
            }
        }
    }
}
