//! Calls that meet several busy limits, and backlogs at one limit of several, on a virtual clock.

mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use random::Random;
use tidegate_limits::policy::{
    ClassShare, LimitRule, Postpone, Reserve, Scope, WhenFull, WindowShape, WindowStamp,
};
use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Call, Caller, Class, Hold, Limit, Policy, Scheduler, Step, Timestamp};

const MS: u64 = 1_000_000;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis * MS)
}

fn window(name: &str, scope: Scope, max: u32) -> LimitRule {
    let limit = Limit::Window {
        max,
        length: Duration::from_secs(1),
        guard: Duration::from_millis(5),
        shape: WindowShape::Sliding,
        stamp: WindowStamp::Sent,
    };
    rule(name, scope, limit)
}

fn rule(name: &str, scope: Scope, limit: Limit) -> LimitRule {
    LimitRule::new(name, limit).scope(scope)
}

fn policy(limits: Vec<LimitRule>, classes: &[&str]) -> Policy {
    let classes = classes.iter().map(|&name| ClassShare::new(name, 1));
    let postpone = Postpone::InTurn;
    Policy::new(
        limits,
        100_000,
        WhenFull::Refuse,
        postpone,
        classes.collect(),
    )
    .expect("a policy")
}

/// A call of one token, without a deadline.
fn call(now: u64, class: u32, caller: u64, function: &str) -> Call {
    Call::new(function, at(now))
        .class(Class(class))
        .caller(Caller(caller))
}

/// The call that runs at this moment.
fn run<T: std::fmt::Debug>(now: u64, scheduler: &mut Scheduler<T>) -> (T, Hold) {
    match scheduler.next(at(now), &mut || 0) {
        Step::Run { payload, hold, .. } => {
            scheduler.sent(at(now), &hold);
            (payload, hold)
        }
        step => panic!("a call runs, not {step:?}"),
    }
}

/// Who comes, when, and how long the backend takes.   milliseconds
struct Arrivals {
    class: u32,
    caller: u64,
    function: &'static str,
    at: u64,
    every: u64,
    count: u64,
    takes: (u64, u64),
}

/// Lets them arrive, under a policy that is applied again every `reload` milliseconds. Returns how long
/// the calls of each group waited, and how many expired.
fn live(
    policy: Policy,
    reload: Option<u64>,
    seed: u64,
    groups: &[Arrivals],
) -> Vec<(Vec<u64>, usize)> {
    let mut random = Random::new(seed);
    let mut scheduler = Scheduler::new(policy.clone());
    let mut reload_at = reload;
    let mut coming = BTreeSet::new();
    for (group, of) in groups.iter().enumerate() {
        coming.extend((0..of.count).map(|nth| (of.at + nth * of.every, group, nth)));
    }
    let mut running: BTreeMap<(u64, u64), Hold> = BTreeMap::new();
    let mut told = groups.iter().map(|_| (Vec::new(), 0)).collect::<Vec<_>>();
    let (mut runs, mut now, mut wake) = (0, 0, None);
    loop {
        let arrival = coming.first().map(|&(moment, ..)| moment);
        let end = running.keys().next().map(|&(moment, _)| moment);
        let next = [arrival, end, wake].into_iter().flatten().min();
        let Some(next) = next else {
            return told;
        };
        let next = reload_at.map_or(next, |reload_at| next.min(reload_at));
        now = next.max(now);
        if let Some(moment) = reload_at.filter(|&moment| moment <= now) {
            scheduler.apply(at(now), policy.clone());
            reload_at = reload.map(|every| moment + every);
        }
        if end == Some(next) {
            let (_, hold) = running.pop_first().expect("it was just seen");
            scheduler.finish(at(now), hold, Outcome::Served, None);
        } else if arrival == Some(next) {
            let (_, group, _) = coming.pop_first().expect("it was just seen");
            let of = &groups[group];
            let call = call(now, of.class, of.caller, of.function).deadline(at(now + 60_000));
            let taken = scheduler.submit(at(now), call, (group, now));
            taken.expect("there is room");
        }
        wake = loop {
            match scheduler.next(at(now), &mut || random.next()) {
                Step::Run { payload, hold, .. } => {
                    scheduler.sent(at(now), &hold);
                    let (group, came) = payload;
                    let (least, most) = groups[group].takes;
                    runs += 1;
                    running.insert((now + random.between(least, most), runs), hold);
                    told[group].0.push(now - came);
                }
                Step::Expired { payload, .. } => told[payload.0].1 += 1,
                Step::SleepUntil(moment) => {
                    scheduler.audit();
                    break Some(moment.as_nanos().div_ceil(MS));
                }
                Step::Idle => break None,
            }
        };
    }
}

/// nova's lists and the collector's share `guest_list`, the collector's lists and polls its pool.
fn two_busy_limits(
    reload: Option<u64>,
    seed: u64,
    every: u64,
    count: u64,
) -> Vec<(Vec<u64>, usize)> {
    let limits = vec![
        window("guest_list", Scope::Function("guest_list".into()), 10),
        rule(
            "pool",
            Scope::Class(Class(0)),
            Limit::Outstanding { max: 2 },
        ),
    ];
    let group = |class, function, every, count| Arrivals {
        class,
        caller: 0,
        function,
        at: 0,
        every,
        count,
        takes: (100, 300),
    };
    let groups = [
        group(1, "guest_list", every, count),
        group(0, "guest_get_info", every, count),
        group(0, "guest_list", 5000, 40),
    ];
    let policy = policy(limits, &["collector", "polling"]);
    live(policy, reload, seed, &groups)
}

/// All 40 calls that meet both limits run, each with the same wait whether the policy is applied again
/// and again or not.
fn check_two_busy_limits(every: u64, count: u64, seeds: u64, reloads: &[u64], longest: u64) {
    for seed in 1..=seeds {
        let told = two_busy_limits(None, seed, every, count);
        let (waits, expired) = &told[2];
        let worst = waits.iter().max().copied().unwrap_or(0);
        let case = format!("every {every} ms, seed {seed}");
        println!("{case}: {} ran, at most {worst} ms", waits.len());
        assert_eq!((waits.len(), *expired), (40, 0), "{case}");
        assert!(worst <= longest, "{case}: {worst} ms");
        for &reload in reloads {
            let reloaded = two_busy_limits(Some(reload), seed, every, count);
            assert_eq!(reloaded, told, "{case}, a reload every {reload} ms");
        }
    }
}

#[test]
fn a_call_that_meets_two_busy_limits_runs_though_all_that_comes_after_it_could() {
    // 11 a second of 10, and 10 a second: nova and the polls continue for longer than the lists arrive.
    check_two_busy_limits(91, 2900, 5, &[], 45_000);
    check_two_busy_limits(100, 2600, 5, &[], 30_000);
}

#[test]
fn a_call_that_meets_two_busy_limits_runs_no_later_for_reloads() {
    check_two_busy_limits(91, 2900, 2, &[500, 100], 45_000);
    check_two_busy_limits(100, 2600, 2, &[500], 30_000);
}

#[test]
fn a_backlog_at_one_function_does_not_delay_later_callers() {
    for callers in [1, 2, 5, 50] {
        let limits = vec![
            window("total", Scope::Every, 30),
            window("guest_list", Scope::Function("guest_list".into()), 10),
        ];
        let group = |caller, function, at, every, count| Arrivals {
            class: 0,
            caller,
            function,
            at,
            every,
            count,
            takes: (50, 50),
        };
        let mut groups = vec![
            group(1, "guest_list", 0, 0, 300),
            group(2, "guest_get_info", 0, 55, 700),
        ];
        // Ten calls of one at once; or one a second of each of the others.
        for caller in 0..callers {
            groups.push(match callers {
                1 => group(3, "guest_list", 10_000, 0, 10),
                _ => group(10 + caller, "guest_list", 10_000, 1000, 5),
            });
        }
        let told = live(policy(limits, &["only"]), None, 1, &groups);
        let waits = told[2..].iter().flat_map(|(waits, _)| waits.clone());
        let worst = waits.max().unwrap_or(0);
        println!("{callers} beside the backlog: at most {worst} ms");
        // With the backlog they are one more than they are; each has its share of ten a second.
        let share = [(1, 1200), (2, 300), (5, 1200), (50, 27_000)];
        let (_, most) = share
            .into_iter()
            .find(|(of, _)| *of == callers)
            .expect("it is there");
        assert!(worst <= most, "{callers}: {worst} ms");
    }
}

#[test]
fn a_requeued_call_of_a_removed_class_waits_for_no_later_call() {
    let limits = || vec![rule("one", Scope::Every, Limit::Outstanding { max: 1 })];
    let mut scheduler = Scheduler::new(policy(limits(), &["gone", "stays"]));
    // The class is served a lot, so that its tags are far ahead.
    for id in 0..2000 {
        scheduler
            .submit(at(0), call(0, 0, 1, "f"), id)
            .expect("there is room");
    }
    for _ in 0..1000 {
        let (_, hold) = run(0, &mut scheduler);
        scheduler.finish(at(0), hold, Outcome::Served, None);
    }
    let (first, hold) = run(0, &mut scheduler);
    for id in 10_000..20_000 {
        scheduler
            .submit(at(0), call(0, 1, 2, "f"), id)
            .expect("there is room");
    }
    scheduler.apply(at(0), policy(limits(), &["stays"]));
    scheduler.requeue(at(0), hold, first);
    let served: Vec<u64> = (0..6)
        .map(|_| {
            let (id, hold) = run(0, &mut scheduler);
            scheduler.finish(at(0), hold, Outcome::Served, None);
            id
        })
        .collect();
    // The two callers take turns, and what came back is the first of its own.
    let own: Vec<_> = served.iter().filter(|&&id| id < 10_000).collect();
    assert_eq!(own, [&first, &(first + 1), &(first + 2)], "{served:?}");
}

#[test]
fn all_that_wait_are_ended_in_no_time() {
    let limits = vec![rule("one", Scope::Every, Limit::Outstanding { max: 1 })];
    let mut scheduler = Scheduler::new(policy(limits, &["only"]));
    for id in 0..65_536_u64 {
        let call = call(0, 0, id % 100, "f");
        scheduler.submit(at(0), call, id).expect("there is room");
    }
    let began = std::time::Instant::now();
    let mut ended = 0;
    while scheduler.evict(at(0)).is_some() {
        ended += 1;
    }
    println!("{ended} ended in {:?}", began.elapsed());
    assert_eq!(ended, 65_536);
    // Were it quadratic, it would take 11 s where this is built to be fast.
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn callers_take_turns_with_what_is_kept_for_their_class_too() {
    // One of two slots is kept for the first class; the second class has the other one for long.
    let limit = LimitRule {
        reserve: Some(Reserve {
            class: Class(0),
            amount: 1,
        }),
        ..rule("slots", Scope::Every, Limit::Outstanding { max: 2 })
    };
    let mut scheduler = Scheduler::new(policy(vec![limit], &["user", "polling"]));
    let submit = |scheduler: &mut Scheduler<u64>, class, caller| {
        scheduler
            .submit(at(0), call(0, class, caller, "f"), caller)
            .expect("there is room");
    };
    submit(&mut scheduler, 1, 9);
    let (_, long) = run(0, &mut scheduler);
    for _ in 0..300 {
        submit(&mut scheduler, 0, 1);
    }
    let mut served = Vec::new();
    for nth in 0..30 {
        if nth == 10 {
            for _ in 0..10 {
                submit(&mut scheduler, 0, 2);
            }
        }
        let (caller, hold) = run(0, &mut scheduler);
        let next = scheduler.next(at(0), &mut || 0);
        assert!(matches!(next, Step::Idle), "{next:?}");
        scheduler.finish(at(0), hold, Outcome::Served, None);
        served.push(caller);
    }
    let of_second = served.iter().filter(|&&caller| caller == 2).count();
    assert!((9..=11).contains(&of_second), "{served:?}");
    scheduler.finish(at(0), long, Outcome::Served, None);
}

#[test]
fn a_reserve_opens_for_its_class_while_another_class_goes_first() {
    // Two of three in 200 ms are kept for the second class.
    let limit = Limit::sliding(3, Duration::from_millis(200));
    let total = LimitRule {
        reserve: Some(Reserve {
            class: Class(1),
            amount: 2,
        }),
        ..rule("total", Scope::Every, limit)
    };
    let slots = rule("slots", Scope::Every, Limit::Outstanding { max: 1 });
    let mut scheduler = Scheduler::new(policy(vec![total, slots], &["other", "kept"]));
    let submit = |now, class, scheduler: &mut Scheduler<u32>| {
        let call = call(now, class, 0, "f");
        scheduler
            .submit(at(now), call, class)
            .expect("there is room");
    };
    // All three are drawn, and the last call has the slot.
    for (now, class) in [(0, 1), (10, 1), (20, 0)] {
        submit(now, class, &mut scheduler);
        let (_, hold) = run(now, &mut scheduler);
        if now == 20 {
            submit(25, 0, &mut scheduler);
            submit(25, 1, &mut scheduler);
            let step = scheduler.next(at(25), &mut || 0);
            assert!(matches!(step, Step::Idle), "{step:?}");
        }
        scheduler.finish(at(now + 10), hold, Outcome::Served, None);
    }
    // The slot is free. The first class goes first at the window, which opens for it at 220 ms, and
    // for the other class at 200 ms.
    match scheduler.next(at(30), &mut || 0) {
        Step::SleepUntil(wake) => assert_eq!(wake, at(200)),
        step => panic!("it sleeps, not {step:?}"),
    }
    let (class, hold) = run(200, &mut scheduler);
    assert_eq!(class, 1);
    scheduler.finish(at(210), hold, Outcome::Served, None);
}

#[test]
fn limits_that_open_together_serve_those_that_stood_at_either() {
    let limits = vec![
        window("g", Scope::Function("g".into()), 6),
        window("total", Scope::Every, 6),
    ];
    let mut scheduler = Scheduler::new(policy(limits, &["first", "second"]));
    let submit = |now, class, function: &str, scheduler: &mut Scheduler<u32>| {
        let call = call(now, class, 0, function);
        let taken = scheduler.submit(at(now), call, class);
        taken.expect("there is room");
    };
    let run_all = |now, scheduler: &mut Scheduler<u32>| {
        let mut served = Vec::new();
        while let Step::Run { payload, hold, .. } = scheduler.next(at(now), &mut || 0) {
            scheduler.sent(at(now), &hold);
            scheduler.finish(at(now), hold, Outcome::Served, None);
            served.push(payload);
        }
        served
    };
    // Both are full, and open at the same moment.
    (0..6).for_each(|_| submit(0, 0, "g", &mut scheduler));
    assert_eq!(run_all(0, &mut scheduler).len(), 6);
    // One class waits at the total, and the other one, whose calls came later, at its function.
    (0..12).for_each(|_| submit(1, 1, "f", &mut scheduler));
    (0..12).for_each(|_| submit(1, 0, "g", &mut scheduler));
    assert!(run_all(1, &mut scheduler).is_empty());
    let served = run_all(1005, &mut scheduler);
    let of_first = served.iter().filter(|&&class| class == 0).count();
    assert_eq!(served.len(), 6);
    assert!((2..=4).contains(&of_first), "{served:?}");
}

/// A scheduler with one slot, which a call has, and three calls that wait for it: two of one caller, and after them
/// one of another.
fn one_slot_and_two_callers() -> (Scheduler<&'static str>, Hold) {
    let mut scheduler = Scheduler::new(one_slot());
    let first = call(0, 0, 9, "f");
    scheduler
        .submit(at(0), first, "first")
        .expect("there is room");
    let (_, hold) = run(0, &mut scheduler);
    // In two lines, so that the order is not that of arrival.
    for (name, caller, function) in [("own", 1, "f"), ("own again", 1, "g"), ("other", 2, "f")] {
        let call = call(0, 0, caller, function);
        scheduler.submit(at(0), call, name).expect("there is room");
    }
    assert!(matches!(scheduler.next(at(0), &mut || 0), Step::Idle));
    (scheduler, hold)
}

fn one_slot() -> Policy {
    let slot = rule("one", Scope::Every, Limit::Outstanding { max: 1 });
    policy(vec![slot], &["only"])
}

#[test]
fn after_a_reload_a_caller_that_was_served_waits_for_those_that_were_not() {
    let (mut scheduler, mut hold) = one_slot_and_two_callers();
    let mut served = Vec::new();
    for _ in 0..3 {
        scheduler.finish(at(0), hold, Outcome::Served, None);
        let (name, next) = run(0, &mut scheduler);
        served.push(name);
        hold = next;
        scheduler.apply(at(0), one_slot());
        assert!(matches!(scheduler.next(at(0), &mut || 0), Step::Idle));
    }
    assert_eq!(served, ["own", "other", "own again"]);
}

#[test]
fn a_call_that_was_not_sent_gives_its_caller_the_turn_at_the_limit_back() {
    let (mut scheduler, hold) = one_slot_and_two_callers();
    scheduler.finish(at(0), hold, Outcome::Served, None);
    let (name, own) = run(0, &mut scheduler);
    assert_eq!(name, "own");
    // It has had nothing, so the turn is still its caller's.
    scheduler.give_back(at(0), own);
    let (name, _) = run(0, &mut scheduler);
    assert_eq!(name, "own again");
}
