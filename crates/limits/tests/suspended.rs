//! Suspended calls: their places, and that nothing else changes by them.

mod random;

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_limits::policy::{ClassShare, LimitRule, Postpone, Scope, WhenFull};
use tidegate_limits::scheduler::{Outcome, RefusalReason};
use tidegate_limits::{
    Call, Caller, Class, Hold, Limit, Policy, Scheduler, Step, Ticket, Timestamp,
};

const SECOND: Duration = Duration::from_secs(1);

fn at(millis: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(millis)
}

fn policy(limits: Vec<LimitRule>, capacity: u32, postpone: Postpone) -> Policy {
    let classes = vec![ClassShare::new("user", 3), ClassShare::new("other", 1)];
    Policy::new(limits, capacity, WhenFull::Refuse, postpone, classes).expect("a policy")
}

fn one_at_once() -> Vec<LimitRule> {
    vec![LimitRule::new("all", Limit::Outstanding { max: 1 }).scope(Scope::Every)]
}

fn of(caller: u64, now: Timestamp) -> Call {
    Call::new("list", now).caller(Caller(caller))
}

/// A scheduler with one call that runs.
struct Busy {
    scheduler: Scheduler<u32>,
    hold: Option<Hold>,
}

impl Busy {
    fn new(policy: Policy) -> Self {
        let mut busy = Self {
            scheduler: Scheduler::new(policy),
            hold: None,
        };
        busy.submit(0, of(9, at(0)));
        assert_eq!(busy.next(at(0)), Some(0));
        busy
    }

    fn submit(&mut self, id: u32, call: Call) -> Ticket {
        let now = call.arrived;
        let taken = self.scheduler.submit(now, call, id);
        taken.expect("the call is taken in")
    }

    /// Ends the running call, and runs the next one.
    fn next(&mut self, now: Timestamp) -> Option<u32> {
        if let Some(hold) = self.hold.take() {
            self.scheduler.finish(now, hold, Outcome::Served, None);
        }
        loop {
            match self.scheduler.next(now, &mut || 0) {
                Step::Run { payload, hold, .. } => {
                    self.hold = Some(hold);
                    return Some(payload);
                }
                Step::Expired { .. } => {}
                Step::Idle | Step::SleepUntil(_) => {
                    self.scheduler.audit();
                    return None;
                }
            }
        }
    }

    fn suspend(&mut self, now: u64, ticket: Ticket, until: u64) {
        assert!(self.scheduler.suspend(at(now), ticket, at(until)));
    }

    fn resume(&mut self, now: u64, ticket: Ticket, id: u32, caller: u64) -> Ticket {
        let call = of(caller, at(now));
        let taken = self.scheduler.resume(at(now), ticket, call, id);
        taken.expect("the call is taken in")
    }
}

#[test]
fn a_call_whose_client_comes_back_has_the_place_that_it_had() {
    let mut busy = Busy::new(policy(one_at_once(), 10, Postpone::InTurn));
    let tickets = [1, 2, 3].map(|id| busy.submit(id, of(1, at(1))));
    busy.suspend(2, tickets[0], 10_000);
    busy.submit(4, of(1, at(3)));
    busy.resume(4, tickets[0], 11, 1);
    let order: Vec<_> = (5..9).map(|now| busy.next(at(now))).collect();
    assert_eq!(order, [Some(11), Some(2), Some(3), Some(4)]);
}

#[test]
fn a_call_whose_client_is_suspended_holds_up_no_other() {
    let mut busy = Busy::new(policy(one_at_once(), 10, Postpone::InTurn));
    let first = busy.submit(1, of(1, at(1)));
    busy.submit(2, of(1, at(1)));
    busy.submit(3, of(2, at(1)));
    busy.suspend(2, first, 10_000);
    assert_eq!(busy.next(at(3)), Some(2));
    assert_eq!(busy.next(at(4)), Some(3));
    assert_eq!(busy.next(at(5)), None, "it is not asked");
    assert!(busy.scheduler.is_suspended(first));
    // It comes late, and is the next one.
    busy.resume(6, first, 11, 1);
    assert_eq!(busy.next(at(6)), Some(11));
}

#[test]
fn it_counts_as_a_place_of_the_queue_until_its_time_is_over() {
    let mut busy = Busy::new(policy(one_at_once(), 2, Postpone::InTurn));
    let first = busy.submit(1, of(1, at(1)));
    busy.submit(2, of(1, at(1)));
    busy.suspend(2, first, 1_000);
    assert_eq!(busy.scheduler.queue_now(at(2)).suspended, 1);
    let full = busy.scheduler.submit(at(3), of(2, at(3)), 3);
    let (refusal, _) = full.expect_err("the queue is full");
    assert_eq!(refusal.reason, RefusalReason::QueueFull);
    assert!(refusal.retry_after <= SECOND, "a place is free by then");
    // A client that comes back finds its place, although the queue is full.
    let second = busy.resume(4, first, 11, 1);
    busy.suspend(5, second, 1_000);
    assert_eq!(busy.next(at(1_001)), Some(2));
    assert!(!busy.scheduler.is_suspended(second), "its time is over");
    busy.submit(4, of(2, at(1_002)));
    // Too late: it is a new call.
    busy.resume(1_003, second, 12, 2);
    assert_eq!(busy.next(at(1_003)), Some(4));
    assert_eq!(busy.next(at(1_004)), Some(12));
}

#[test]
fn what_is_cancelled_while_it_is_suspended_leaves_nothing() {
    let mut busy = Busy::new(policy(one_at_once(), 2, Postpone::InTurn));
    let first = busy.submit(1, of(1, at(1)));
    busy.suspend(2, first, 10_000);
    assert_eq!(busy.scheduler.cancel(at(3), first), Some(1));
    assert_eq!(busy.next(at(3)), None);
    assert!(busy.scheduler.is_at_rest());
}

#[test]
fn a_reload_keeps_the_place_of_a_suspended_call() {
    let mut busy = Busy::new(policy(one_at_once(), 10, Postpone::InTurn));
    let first = busy.submit(1, of(1, at(1)));
    busy.submit(2, of(1, at(1)));
    busy.suspend(2, first, 10_000);
    let mut limits = one_at_once();
    limits.push(LimitRule::new("list", Limit::sliding(1, SECOND)).scope(Scope::Every));
    busy.scheduler
        .apply(at(3), policy(limits, 10, Postpone::InTurn));
    busy.next(at(3));
    assert!(busy.scheduler.is_suspended(first));
    busy.resume(4, first, 11, 1);
    assert_eq!(busy.next(at(2_000)), Some(11));
}

#[test]
fn places_of_an_earlier_process_are_ahead_of_every_new_call_in_their_order() {
    let mut busy = Busy::new(policy(one_at_once(), 3, Postpone::InTurn));
    let kept = [1, 2].map(|id| {
        let place = Call::new("", at(0));
        let kept = busy.scheduler.reserve(at(0), place, id, at(10_000));
        kept.expect("there is room")
    });
    busy.submit(3, of(1, at(1)));
    let none = Call::new("", at(1));
    assert_eq!(busy.scheduler.reserve(at(1), none, 4, at(10_000)), None);
    busy.resume(2, kept[1], 12, 1);
    busy.resume(2, kept[0], 11, 1);
    let order: Vec<_> = (3..6).map(|now| busy.next(at(now))).collect();
    assert_eq!(order, [Some(11), Some(12), Some(3)]);
}

#[test]
fn a_pause_does_not_keep_a_place_for_longer() {
    let mut busy = Busy::new(policy(one_at_once(), 10, Postpone::InTurn));
    let [first, second] = [1, 2].map(|id| busy.submit(id, of(1, at(1)).deadline(at(500))));
    busy.suspend(2, first, 1_000);
    busy.scheduler
        .move_deadlines(|_, deadline| deadline + SECOND);
    assert_eq!(busy.scheduler.deadline(first), Some(Some(at(1_000))));
    assert_eq!(busy.scheduler.deadline(second), Some(Some(at(1_500))));
}

#[test]
fn with_jitter_it_is_asked_when_its_client_is_back() {
    let jitter = Postpone::Jitter {
        min: SECOND,
        max: 2 * SECOND,
    };
    let mut busy = Busy::new(policy(one_at_once(), 10, jitter));
    let first = busy.submit(1, of(1, at(1)));
    // Its flow is asked, and it is set aside.
    assert!(matches!(
        busy.scheduler.next(at(1), &mut || 0),
        Step::SleepUntil(_)
    ));
    busy.suspend(2, first, 100_000);
    assert_eq!(busy.next(at(50_000)), None);
    busy.resume(50_001, first, 11, 1);
    assert_eq!(busy.next(at(50_001)), Some(11));
}

// ---- The law: a call whose client is back before its turn starts as if the client had stayed.

/// A call of a run: when it comes, and when its client is absent.
#[derive(Clone, Debug)]
struct Plan {
    arrives: u64,
    caller: u64,
    class: u32,
    takes: u64,
    /// From when to when, in order.
    absences: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ComesBack {
    ToItsPlace,
    /// The negative control.
    ToTheEnd,
}

/// Runs the calls, millisecond by millisecond, and returns when each started.
fn starts(plans: &[Plan], at_once: u32, comes_back: ComesBack) -> BTreeMap<u32, u64> {
    let limit = Limit::Outstanding { max: at_once };
    let limits = vec![
        LimitRule::new("all", limit).scope(Scope::Every),
        LimitRule::new("window", Limit::sliding(3 * at_once, SECOND)).scope(Scope::Every),
    ];
    let mut scheduler = Scheduler::new(policy(limits, 1_000, Postpone::InTurn));
    let mut tickets = BTreeMap::new();
    let mut running: Vec<(u64, Hold)> = Vec::new();
    let mut starts = BTreeMap::new();
    for now in 0..200_000 {
        let moment = at(now);
        for (plan, id) in plans.iter().zip(0_u32..) {
            let call = of(plan.caller, moment).class(Class(plan.class));
            if plan.arrives == now {
                let taken = scheduler.submit(moment, call.clone(), id);
                tickets.insert(id, taken.expect("there is room"));
            }
            let comes_now = plan.absences.iter().any(|(_, back)| *back == now);
            if comes_now && !starts.contains_key(&id) {
                let ticket = tickets[&id];
                let taken = match comes_back {
                    ComesBack::ToItsPlace => scheduler.resume(moment, ticket, call.clone(), id),
                    ComesBack::ToTheEnd => {
                        scheduler.cancel(moment, ticket);
                        scheduler.submit(moment, call.clone(), id)
                    }
                };
                tickets.insert(id, taken.expect("there is room"));
            }
            let has_started = starts.contains_key(&id);
            if plan.absences.iter().any(|(from, _)| *from == now) && !has_started {
                assert!(scheduler.suspend(moment, tickets[&id], at(1_000_000)));
            }
        }
        for place in (0..running.len()).rev() {
            if running[place].0 <= now {
                let (_, hold) = running.swap_remove(place);
                scheduler.finish(moment, hold, Outcome::Served, None);
            }
        }
        loop {
            match scheduler.next(moment, &mut || 0) {
                Step::Run { payload, hold, .. } => {
                    scheduler.sent(moment, &hold);
                    starts.insert(payload, now);
                    running.push((now + plans[payload as usize].takes, hold));
                }
                Step::Expired { payload, .. } => panic!("{payload} expires"),
                Step::Idle | Step::SleepUntil(_) => break,
            }
        }
        scheduler.audit();
        if starts.len() == plans.len() {
            break;
        }
    }
    starts
}

/// Random calls of this many callers and classes.
fn plans(draw: &mut random::Random, callers: u64, classes: u64) -> Vec<Plan> {
    let plan = |_| Plan {
        arrives: draw.below(2_000),
        caller: draw.below(callers),
        class: draw.below(classes) as u32,
        takes: 1 + draw.below(400),
        absences: Vec::new(),
    };
    (0..40).map(plan).collect()
}

/// Lets the client of a call be absent now and then, and be back before this moment.
fn leaves_for_a_while(draw: &mut random::Random, plan: &mut Plan, before: u64) {
    let mut from = plan.arrives + 1;
    while from + 2 < before && (plan.absences.is_empty() || !draw.one_in(3)) {
        let left = from + draw.below(before - from - 1);
        let back = left + 1 + draw.below(before - left - 1);
        plan.absences.push((left, back));
        from = back + 1;
    }
}

/// Whether each call starts when it had started, with any number of clients absent now and then.
fn all_start_as_before(seed: u64, comes_back: ComesBack) -> bool {
    let mut draw = random::Random::new(seed);
    let at_once = 1 + draw.below(3) as u32;
    let (callers, classes) = (1 + draw.below(4), 1 + draw.below(2));
    let mut plans = plans(&mut draw, callers, classes);
    let stayed = starts(&plans, at_once, ComesBack::ToItsPlace);
    for (plan, id) in plans.iter_mut().zip(0_u32..) {
        leaves_for_a_while(&mut draw, plan, stayed[&id]);
    }
    starts(&plans, at_once, comes_back) == stayed
}

#[test]
fn clients_that_are_back_before_their_turns_wait_as_long_as_if_they_had_stayed() {
    for seed in random::seeds(0..500) {
        assert!(
            all_start_as_before(seed, ComesBack::ToItsPlace),
            "seed {seed}"
        );
    }
}

#[test]
fn the_law_finds_a_queue_that_forgets_places() {
    let mut seeds = 0..20;
    assert!(seeds.all(|seed| !all_start_as_before(seed, ComesBack::ToTheEnd)));
}
