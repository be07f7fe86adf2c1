//! Promises of the scheduler, a sentence at a time.

mod behaviour {
    mod crowd;
    mod full_queue;
    mod supply_and_reload;
}

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_limits::call::Backend;
use tidegate_limits::policy::{ClassShare, LimitRule, Postpone, Scope, WhenFull};
use tidegate_limits::scheduler::{Jitter, Outcome, Refusal, RefusalReason, Supplier, Supply};
use tidegate_limits::{
    Call, Caller, Class, Cost, Hold, Limit, Policy, Scheduler, Step, Ticket, Timestamp, Tokens,
};

const SECOND: Duration = Duration::from_secs(1);

fn at(millis: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(millis)
}

fn outstanding(name: &str, scope: Scope, max: u32) -> LimitRule {
    LimitRule::new(name, Limit::Outstanding { max }).scope(scope)
}

fn window(name: &str, scope: Scope, max: u32) -> LimitRule {
    let limit = Limit::sliding(max, SECOND);
    LimitRule::new(name, limit).scope(scope)
}

fn function(name: &str) -> Scope {
    Scope::Function(name.into())
}

fn classes(weights: &[u32]) -> Vec<ClassShare> {
    weights
        .iter()
        .zip(0..)
        .map(|(&weight, n)| ClassShare::new(format!("class {n}"), weight))
        .collect()
}

fn policy(limits: Vec<LimitRule>) -> Policy {
    Policy::new(
        limits,
        1_000_000,
        WhenFull::Refuse,
        Postpone::InTurn,
        classes(&[1]),
    )
    .expect("a policy")
}

fn call(now: Timestamp, function: &str) -> Call {
    Call::new(function, now)
}

fn tokens(number: f64) -> Tokens {
    Tokens::new(number).expect("the tests' figures are in range")
}

fn cost(units: u32) -> Cost {
    Cost::new(units).expect("the tests' costs are above zero")
}

/// A scheduler on a clock that stands where it is put.
struct Gate {
    scheduler: Scheduler<u64>,
    now: Timestamp,
    random: u64,
}

impl Gate {
    fn new(policy: Policy) -> Self {
        Self {
            scheduler: Scheduler::new(policy),
            now: Timestamp::ZERO,
            random: 1,
        }
    }

    fn submit(&mut self, call: Call, id: u64) -> Ticket {
        self.scheduler
            .submit(self.now, call, id)
            .expect("the call is taken in")
    }

    fn refuse(&mut self, call: Call) -> Refusal {
        let (refusal, _) = self
            .scheduler
            .submit(self.now, call, 0)
            .expect_err("the call is refused");
        refusal
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

    /// Runs the one call that may run.
    fn run(&mut self) -> (u64, Hold) {
        match self.next() {
            Step::Run { payload, hold, .. } => (payload, hold),
            step => panic!("a call runs, not {step:?}"),
        }
    }

    fn run_and_send(&mut self) -> (u64, Hold) {
        let (id, hold) = self.run();
        self.scheduler.sent(self.now, &hold);
        (id, hold)
    }

    fn finish(&mut self, hold: Hold) {
        self.scheduler.finish(self.now, hold, Outcome::Served, None);
    }

    fn expire(&mut self) -> (u64, Refusal) {
        match self.next() {
            Step::Expired {
                payload, refusal, ..
            } => (payload, refusal),
            step => panic!("a call expires, not {step:?}"),
        }
    }

    #[track_caller]
    fn sleeps_until(&mut self, millis: u64) {
        match self.next() {
            Step::SleepUntil(moment) => assert_eq!(moment, at(millis)),
            step => panic!("nothing happens until {millis} ms, not {step:?}"),
        }
    }

    #[track_caller]
    fn idles(&mut self) {
        let step = self.next();
        assert!(matches!(step, Step::Idle), "nothing happens, not {step:?}");
    }

    /// Runs and finishes everything that may run at once; says whose it was.
    fn drain(&mut self, count: usize) -> Vec<u64> {
        (0..count)
            .map(|_| {
                let (id, hold) = self.run_and_send();
                self.finish(hold);
                id
            })
            .collect()
    }
}

#[test]
fn three_hundred_at_once_leave_thirty_a_second_and_the_moment_is_exact() {
    let mut gate = Gate::new(policy(vec![window("total", Scope::Every, 30)]));
    for id in 0..300 {
        gate.submit(call(gate.now, "f"), id);
    }
    let mut ids = Vec::new();
    for second in 0..10 {
        gate.now = at(1000 * second);
        ids.extend(gate.drain(30));
        if second < 9 {
            gate.sleeps_until(1000 * (second + 1));
            gate.now = Timestamp::from_nanos(at(1000 * (second + 1)).as_nanos() - 1);
            gate.sleeps_until(1000 * (second + 1));
        }
    }
    assert_eq!(ids, (0..300).collect::<Vec<_>>());
    gate.idles();
    assert!(gate.scheduler.is_at_rest());
}

#[test]
fn a_closed_function_limit_does_not_hold_up_calls_of_other_functions() {
    let mut gate = Gate::new(policy(vec![
        window("total", Scope::Every, 30),
        outstanding("list", function("list"), 1),
    ]));
    for id in 0..5 {
        gate.submit(call(gate.now, "list"), id);
    }
    gate.submit(call(gate.now, "create"), 5);
    let (first, hold) = gate.run_and_send();
    let (second, other) = gate.run_and_send();
    assert_eq!((first, second), (0, 5));
    gate.idles();
    gate.finish(hold);
    assert_eq!(gate.run().0, 1);
    gate.finish(other);
    gate.idles();
}

#[test]
fn an_expensive_call_whose_turn_it_is_holds_its_limits_tokens_back() {
    let mut gate = Gate::new(policy(vec![
        window("total", Scope::Every, 100),
        window("list", function("list"), 10),
    ]));
    gate.submit(call(gate.now, "list").cost(cost(6)), 0);
    gate.drain(1);
    gate.now = at(100);
    gate.submit(call(gate.now, "list").cost(cost(8)), 1);
    gate.submit(call(gate.now, "list"), 2);
    gate.submit(call(gate.now, "create"), 3);
    assert_eq!(gate.drain(1), [3]);
    gate.sleeps_until(1000);
    gate.now = at(1000);
    assert_eq!(gate.drain(2), [1, 2]);
}

#[test]
fn no_call_overtakes_an_expensive_one_at_the_limit_that_bars_it() {
    let mut gate = Gate::new(policy(vec![
        window("total", Scope::Every, 10),
        window("list", function("list"), 10),
    ]));
    gate.submit(call(gate.now, "create").cost(cost(6)), 0);
    gate.submit(call(gate.now, "list").cost(cost(8)), 1);
    gate.submit(call(gate.now, "create"), 2);
    assert_eq!(gate.drain(1), [0]);
    gate.sleeps_until(1000);
    gate.now = at(1000);
    assert_eq!(gate.drain(2), [1, 2]);
}

#[test]
fn an_expensive_call_holds_back_only_at_the_limit_that_bars_it() {
    // Call 1 waits for "list"; "total" has room, and those who meet only that go on.
    let mut gate = Gate::new(policy(vec![
        window("total", Scope::Every, 20),
        window("list", function("list"), 10),
    ]));
    gate.submit(call(gate.now, "list").cost(cost(6)), 0);
    gate.submit(call(gate.now, "list").cost(cost(8)), 1);
    for id in 2..10 {
        gate.submit(call(gate.now, "create"), id);
    }
    assert_eq!(gate.drain(9), [0, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn classes_share_by_weight_and_none_starves() {
    let limits = vec![outstanding("outstanding", Scope::Every, 1)];
    let policy = Policy::new(
        limits,
        10_000,
        WhenFull::Refuse,
        Postpone::InTurn,
        classes(&[3, 1]),
    )
    .expect("a policy");
    let mut gate = Gate::new(policy);
    for id in 0..1000 {
        gate.submit(call(gate.now, "f").class(Class((id % 2) as u32)), id);
    }
    let ids = gate.drain(400);
    for (served, id) in ids.iter().enumerate() {
        let polling = ids[..=served].iter().filter(|id| *id % 2 == 1).count();
        // Start-time fair queuing: never further from the share than one call of each.
        let share = (served + 1) as f64 / 4.0;
        assert!(
            (polling as f64 - share).abs() <= 1.0,
            "{polling} polls among the first {} (call {id})",
            served + 1
        );
    }
}

#[test]
fn a_class_does_not_save_up_what_it_did_not_use() {
    let limits = vec![outstanding("outstanding", Scope::Every, 1)];
    let policy = Policy::new(
        limits,
        10_000,
        WhenFull::Refuse,
        Postpone::InTurn,
        classes(&[1, 1]),
    )
    .expect("a policy");
    let mut gate = Gate::new(policy);
    for id in 0..200 {
        gate.submit(call(gate.now, "f").class(Class(1)), id);
    }
    gate.drain(100);
    for id in 200..300 {
        gate.submit(call(gate.now, "f"), id);
    }
    let newcomers = gate.drain(20).into_iter().filter(|&id| id >= 200).count();
    assert!((9..=11).contains(&newcomers), "{newcomers} of 20");
}

#[test]
fn a_greedy_caller_does_not_delay_a_modest_one() {
    let mut gate = Gate::new(policy(vec![outstanding("outstanding", Scope::Every, 1)]));
    for id in 0..1000 {
        gate.submit(call(gate.now, "f").caller(Caller(1)), id);
    }
    gate.drain(10);
    for id in 1000..1005 {
        gate.submit(call(gate.now, "f").caller(Caller(2)), id);
    }
    let ids = gate.drain(11);
    let modest: Vec<u64> = ids.iter().copied().filter(|&id| id >= 1000).collect();
    assert_eq!(modest, [1000, 1001, 1002, 1003, 1004], "{ids:?}");
}

#[test]
fn callers_share_by_cost_not_by_calls() {
    let mut gate = Gate::new(policy(vec![outstanding("outstanding", Scope::Every, 1)]));
    for id in 0..1000 {
        let (caller, units) = if id % 2 == 0 {
            (Caller(1), 4.0)
        } else {
            (Caller(2), 1.0)
        };
        gate.submit(call(gate.now, "f").caller(caller).tokens(tokens(units)), id);
    }
    let expensive = gate.drain(100).into_iter().filter(|id| id % 2 == 0).count();
    assert!(
        (19..=21).contains(&expensive),
        "{expensive} of 100 where a fifth was due"
    );
}

#[test]
fn a_call_whose_limits_open_only_after_its_deadline_is_refused_at_once() {
    let mut gate = Gate::new(policy(vec![window("total", Scope::Every, 1)]));
    gate.submit(call(gate.now, "f"), 0);
    gate.drain(1);
    gate.now = at(100);
    let refusal = gate.refuse(call(gate.now, "f").deadline(at(999)));
    let retry_after = Duration::from_millis(900);
    assert_eq!(
        refusal,
        Refusal {
            limit: Some("total".into()),
            reason: RefusalReason::DeadlineUnreachable,
            retry_after
        }
    );
    gate.submit(call(gate.now, "f").deadline(at(1000)), 1);
    gate.sleeps_until(1000);
    gate.now = at(1000);
    assert_eq!(gate.drain(1), [1]);
}

#[test]
fn a_threshold_of_zero_runs_at_once_or_not_at_all() {
    for postpone in [
        Postpone::InTurn,
        Postpone::Jitter {
            min: SECOND,
            max: 3 * SECOND,
        },
    ] {
        let limits = vec![outstanding("outstanding", Scope::Every, 1)];
        let policy =
            Policy::new(limits, 10, WhenFull::Refuse, postpone, classes(&[1])).expect("a policy");
        let mut gate = Gate::new(policy);
        let now = call(gate.now, "f").deadline(gate.now);
        gate.submit(now.clone(), 0);
        gate.submit(now, 1);
        let (id, hold) = gate.run_and_send();
        assert_eq!(id, 0);
        let (id, refusal) = gate.expire();
        assert_eq!(
            (id, refusal.reason, refusal.limit),
            (1, RefusalReason::DeadlinePassed, Some("outstanding".into()))
        );
        gate.finish(hold);
        gate.idles();
        assert!(gate.scheduler.is_at_rest());
    }
}

#[test]
fn a_call_that_costs_more_than_a_limit_is_never_possible() {
    let mut gate = Gate::new(policy(vec![window("total", Scope::Every, 5)]));
    let refusal = gate.refuse(call(gate.now, "f").cost(cost(6)));
    assert_eq!(
        (refusal.reason, refusal.limit),
        (RefusalReason::NeverPossible, Some("total".into()))
    );
}

#[test]
fn a_call_set_aside_comes_back_within_the_jitter_and_keeps_its_place_in_the_capacity() {
    let limits = vec![outstanding("outstanding", Scope::Every, 1)];
    let postpone = Postpone::Jitter {
        min: SECOND,
        max: 3 * SECOND,
    };
    let policy =
        Policy::new(limits, 100, WhenFull::Refuse, postpone, classes(&[1])).expect("a policy");
    let mut gate = Gate::new(policy);
    for id in 0..101 {
        if id == 1 {
            assert_eq!(gate.run().0, 0);
        }
        gate.submit(call(gate.now, "f"), id);
    }
    assert_eq!(
        gate.refuse(call(gate.now, "f")).reason,
        RefusalReason::QueueFull
    );
    let mut woken = BTreeMap::new();
    for _ in 0..100 {
        let Step::SleepUntil(moment) = gate.next() else {
            panic!("a hundred calls are aside")
        };
        if moment > at(3000) {
            break;
        }
        assert!(
            moment >= at(1000),
            "no call is back before the least jitter, not {moment:?}"
        );
        *woken.entry(moment.as_nanos() / 250_000_000).or_insert(0) += 1;
        gate.now = moment;
    }
    // Several come back together, so a hundred calls wake the scheduler less often.
    let wakes: i32 = woken.values().sum();
    assert!((40..=100).contains(&wakes), "{wakes} wakes");
    assert_eq!(woken.len(), 8, "the jitter fills the whole span: {woken:?}");
    assert_eq!(gate.scheduler.waiting(), 100);
}

#[test]
fn calls_that_are_set_aside_come_back_at_128_moments_within_the_jitter() {
    let (min, max) = (SECOND, 3 * SECOND);
    let jitter = Jitter { min, max };
    let randoms = (0..10_000_u64).map(|nth| nth * (u64::MAX / 10_000));
    let aside: BTreeSet<_> = randoms.map(|random| jitter.draw(at(1), random)).collect();
    assert!(aside.iter().all(|time| (min..=max).contains(time)));
    // The span need not begin at a moment of the common clock.
    assert!(matches!(aside.len(), 128..=129), "{} moments", aside.len());
}

/// A replay that begins later numbers the places of waiting calls otherwise, and decides the same.
#[test]
fn of_calls_that_come_back_at_the_same_moment_the_one_that_joined_first_is_asked_first() {
    let limits = vec![outstanding("outstanding", Scope::Every, 1)];
    let postpone = Postpone::Jitter {
        min: SECOND,
        max: 3 * SECOND,
    };
    let policy =
        Policy::new(limits, 100, WhenFull::Refuse, postpone, classes(&[1])).expect("a policy");
    let mut gate = Gate::new(policy);
    gate.submit(call(gate.now, "f"), 0);
    let (_, hold) = gate.run_and_send();
    let until = at(2000);
    let aside = |gate: &mut Gate, id| {
        let ticket = gate.submit(call(gate.now, "f"), id);
        let now = gate.now;
        let step = gate.scheduler.next_with(now, &mut |_, _| until.since(now));
        assert!(matches!(step, Step::SleepUntil(_)), "{step:?}");
        ticket
    };
    let leaves = aside(&mut gate, 1);
    gate.now = at(1);
    aside(&mut gate, 2);
    // The next call gets the place in memory of the one that left.
    gate.scheduler.cancel(gate.now, leaves);
    gate.now = at(2);
    aside(&mut gate, 3);
    gate.finish(hold);
    gate.now = until;
    assert_eq!(gate.run().0, 2);
}

#[test]
fn a_deadline_that_is_moved_holds_and_the_call_keeps_its_turn() {
    let mut gate = Gate::new(policy(vec![outstanding("outstanding", Scope::Every, 1)]));
    gate.submit(call(gate.now, "f"), 0);
    let (_, hold) = gate.run_and_send();
    let until = |deadline| call(at(0), "f").deadline(at(deadline));
    let first = gate.submit(until(1000), 1);
    let second = gate.submit(until(2000), 2);
    gate.sleeps_until(1000);
    assert!(gate.scheduler.set_deadline(first, Some(at(3000))));
    gate.sleeps_until(2000);
    gate.now = at(1500);
    let told = gate.scheduler.refusal_now(gate.now, first);
    let told = told.expect("it waits");
    assert_eq!(told.reason, RefusalReason::DeadlinePassed);
    assert_eq!(told.limit.as_deref(), Some("outstanding"));
    assert_eq!(
        gate.scheduler.waiting(),
        2,
        "to ask what it would be told changes nothing"
    );
    gate.now = at(2001);
    let (id, refusal) = gate.expire();
    assert_eq!((id, refusal.limit), (2, told.limit));
    assert!(!gate.scheduler.set_deadline(second, None));
    assert_eq!(gate.scheduler.refusal_now(gate.now, second), None);
    gate.sleeps_until(3000);
    assert!(gate.scheduler.set_deadline(first, None));
    gate.idles();
    gate.scheduler.audit();
    gate.submit(call(gate.now, "f"), 3);
    gate.finish(hold);
    assert_eq!(gate.run_and_send().0, 1);
}

#[test]
fn a_call_set_aside_is_asked_a_last_time_at_its_deadline() {
    let limits = vec![outstanding("outstanding", Scope::Every, 1)];
    let postpone = Postpone::Jitter {
        min: SECOND,
        max: 3 * SECOND,
    };
    let policy =
        Policy::new(limits, 100, WhenFull::Refuse, postpone, classes(&[1])).expect("a policy");
    let mut gate = Gate::new(policy);
    gate.submit(call(gate.now, "f"), 0);
    let (_, hold) = gate.run_and_send();
    gate.submit(call(gate.now, "f").deadline(at(500)), 1);
    gate.sleeps_until(500);
    gate.finish(hold);
    gate.now = at(500);
    let Step::Run {
        payload, waited, ..
    } = gate.next()
    else {
        panic!("the call runs at its deadline")
    };
    assert_eq!(
        (payload, waited.postponed, waited.held_by),
        (1, 1, Some("outstanding".into()))
    );
}

#[test]
fn a_call_that_waited_knows_what_held_it_and_one_that_did_not_knows_that() {
    let mut gate = Gate::new(policy(vec![outstanding("outstanding", Scope::Every, 1)]));
    gate.submit(call(gate.now, "f"), 0);
    let Step::Run { hold, waited, .. } = gate.next() else {
        panic!("the limit is open")
    };
    assert_eq!(waited.held_by, None);
    gate.submit(call(gate.now, "f"), 1);
    gate.submit(call(gate.now, "f"), 2);
    gate.idles();
    gate.finish(hold);
    let Step::Run { hold, waited, .. } = gate.next() else {
        panic!("the limit is open")
    };
    assert_eq!(waited.held_by.as_deref(), Some("outstanding"));
    gate.finish(hold);
    // Not the head while the line was held, and held all the same.
    let Step::Run { hold, waited, .. } = gate.next() else {
        panic!("the limit is open")
    };
    assert_eq!(waited.held_by.as_deref(), Some("outstanding"));
    gate.finish(hold);
    gate.submit(call(gate.now, "f"), 3);
    let Step::Run { waited, .. } = gate.next() else {
        panic!("the limit is open")
    };
    assert_eq!(waited.held_by, None);
}

#[test]
fn a_call_given_back_has_drawn_nothing_and_a_requeued_one_keeps_its_turn() {
    let mut gate = Gate::new(policy(vec![window("total", Scope::Every, 1)]));
    for id in 0..3 {
        gate.submit(call(gate.now, "f"), id);
    }
    let (_, hold) = gate.run();
    gate.idles();
    gate.scheduler.give_back(gate.now, hold);
    let (id, hold) = gate.run();
    assert_eq!(id, 1);
    let ticket = gate.scheduler.requeue(gate.now, hold, 1);
    let (id, hold) = gate.run_and_send();
    assert_eq!(id, 1);
    assert_eq!(gate.scheduler.cancel(gate.now, ticket), None);
    gate.finish(hold);
    gate.sleeps_until(1000);
}

#[test]
fn a_call_that_ends_without_a_word_of_its_departure_departs_then() {
    let mut gate = Gate::new(policy(vec![window("total", Scope::Every, 1)]));
    gate.submit(call(gate.now, "f"), 0);
    gate.submit(call(gate.now, "f"), 1);
    let (_, hold) = gate.run();
    gate.idles();
    gate.now = at(300);
    gate.finish(hold);
    gate.sleeps_until(1300);
}

#[test]
fn only_the_first_word_of_a_departure_counts() {
    let mut gate = Gate::new(policy(vec![window("total", Scope::Every, 1)]));
    gate.submit(call(gate.now, "f"), 0);
    gate.submit(call(gate.now, "f"), 1);
    let (_, hold) = gate.run_and_send();
    gate.now = at(400);
    gate.scheduler.sent(gate.now, &hold);
    gate.scheduler.replied(gate.now, &hold);
    gate.finish(hold);
    gate.sleeps_until(1000);
}

#[test]
fn a_call_put_into_a_heavier_class_runs_before_those_it_leaves() {
    let limits = vec![outstanding("outstanding", Scope::Every, 1)];
    let policy = Policy::new(
        limits,
        100,
        WhenFull::Refuse,
        Postpone::InTurn,
        classes(&[100, 1]),
    )
    .expect("a policy");
    let mut gate = Gate::new(policy);
    let tickets: Vec<Ticket> = (0..5)
        .map(|id| gate.submit(call(gate.now, "f").class(Class(1)), id))
        .collect();
    let (_, hold) = gate.run_and_send();
    gate.idles();
    assert!(gate.scheduler.reclass(gate.now, tickets[4], Class(0)));
    assert!(!gate.scheduler.reclass(gate.now, tickets[0], Class(0)));
    gate.finish(hold);
    assert_eq!(gate.drain(4), [4, 1, 2, 3]);
}

#[test]
fn nothing_is_taken_in_while_draining_and_what_waits_goes_on() {
    let mut gate = Gate::new(policy(vec![]));
    gate.submit(call(gate.now, "f"), 0);
    gate.scheduler.drain();
    assert_eq!(
        gate.refuse(call(gate.now, "f")).reason,
        RefusalReason::Draining
    );
    assert_eq!(gate.drain(1), [0]);
}

#[test]
fn a_snapshot_says_what_is_used_who_waits_and_for_what() {
    let mut gate = Gate::new(policy(vec![
        window("total", Scope::Every, 5),
        outstanding("list", function("list"), 1),
    ]));
    for id in 0..3 {
        gate.submit(call(gate.now, "list"), id);
    }
    let (_, hold) = gate.run_and_send();
    gate.idles();
    let limits = gate.scheduler.limits_now(gate.now);
    let seen: Vec<_> = limits
        .iter()
        .map(|limit| (&*limit.name, limit.max, limit.used, limit.waiting))
        .collect();
    assert_eq!(seen, [("total", 5, 1, 2), ("list", 1, 1, 2)]);
    gate.now = at(250);
    let queue = gate.scheduler.queue_now(gate.now);
    assert_eq!(
        (queue.waiting, queue.oldest, queue.oldest_waits),
        (2, Some(at(0)), Duration::from_millis(250))
    );
    assert_eq!(queue.functions.len(), 1);
    assert_eq!(
        (
            queue.functions[0].held_by.as_deref(),
            queue.functions[0].waiting
        ),
        (Some("list"), 2)
    );
    let demand: Vec<_> = gate
        .scheduler
        .demand()
        .into_iter()
        .map(|demand| (demand.need, demand.used))
        .collect();
    assert_eq!(demand, [(3, 1), (3, 1)]);
    assert!(gate.scheduler.demand().is_empty());
    gate.finish(hold);
    assert_eq!(gate.scheduler.demand().len(), 1);
}

#[test]
fn an_expired_call_gets_the_time_that_a_slot_takes() {
    let mut gate = Gate::new(policy(vec![outstanding("outstanding", Scope::Every, 2)]));
    gate.submit(call(gate.now, "f"), 0);
    let (_, hold) = gate.run();
    gate.now = at(400);
    gate.finish(hold);
    for id in 1..6 {
        let deadline = (id == 5).then_some(at(500));
        gate.submit(call(gate.now, "f").deadline(deadline), id);
    }
    let _running = [gate.run(), gate.run()];
    gate.sleeps_until(500);
    gate.now = at(500);
    let (id, refusal) = gate.expire();
    // Two wait, a slot is held for 400 ms, two slots: the third goes after 3/2 of that.
    assert_eq!((id, refusal.retry_after), (5, Duration::from_millis(600)));
}

#[test]
#[should_panic(expected = "a hold is used with the scheduler that gave it")]
fn a_hold_of_another_scheduler_is_our_bug() {
    let mut gate = Gate::new(policy(vec![]));
    gate.submit(call(gate.now, "f"), 0);
    let (_, hold) = gate.run();
    Scheduler::<u64>::new(policy(vec![])).finish(at(0), hold, Outcome::Served, None);
}
