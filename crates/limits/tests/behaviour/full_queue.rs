//! The queue is full: refusals, the time to come back, and the door in front of it.

use crate::*;

#[test]
fn a_full_queue_refuses_and_says_when_to_come_back() {
    let limits = vec![window("total", Scope::Every, 2)];
    let policy = Policy::new(limits, 3, WhenFull::Refuse, Postpone::InTurn, classes(&[1]))
        .expect("a policy");
    let mut gate = Gate::new(policy);
    for id in 0..2 {
        gate.submit(call(gate.now, "f"), id);
    }
    gate.drain(2);
    for id in 2..5 {
        assert!(gate.scheduler.has_room());
        gate.submit(call(gate.now, "f"), id);
    }
    assert!(!gate.scheduler.has_room());
    gate.now = at(200);
    // Three wait, two go a second: the fourth finds room in the second second.
    let refusal = gate.refuse(call(gate.now, "f"));
    assert_eq!(
        (refusal.reason, refusal.limit),
        (RefusalReason::QueueFull, None)
    );
    assert_eq!(refusal.retry_after, Duration::from_millis(1800));
}

impl Gate {
    /// A call waits, and its start is predicted.
    fn wait(&mut self, call: Call, id: u64) {
        let ticket = self.submit(call, id);
        let step = self.next();
        let waits = matches!(step, Step::SleepUntil(_) | Step::Idle);
        assert!(waits, "the call waits, not {step:?}");
        self.scheduler.foresee(self.now, ticket, None);
    }

    /// When a call of this caller that is refused now comes back.
    fn comes_back(&mut self, function: &str, caller: u32) -> Timestamp {
        let refusal = self.refuse(call(self.now, function).caller(Caller(caller.into())));
        assert_eq!(refusal.reason, RefusalReason::QueueFull);
        self.now + refusal.retry_after
    }
}

/// A queue with ten places, which calls of caller 1 have filled: two of them leave each second.
fn filled_by_one_caller(postpone: Postpone) -> Gate {
    let limits = vec![window("list", function("list"), 2)];
    let policy = Policy::new(limits, 10, WhenFull::Refuse, postpone, classes(&[1]));
    let mut gate = Gate::new(policy.expect("a policy"));
    for id in 0..2 {
        gate.submit(call(gate.now, "list"), id);
    }
    gate.drain(2);
    for id in 2..12 {
        gate.wait(call(gate.now, "list").caller(Caller(1)), id);
    }
    gate.now = at(200);
    gate
}

#[test]
fn a_caller_comes_back_to_a_full_queue_when_its_own_calls_have_started_and_a_place_is_free() {
    let mut gate = filled_by_one_caller(Postpone::InTurn);
    // Ten of its own leave first.
    assert_eq!(gate.comes_back("list", 1), at(6_000));
    // It takes turns with the other caller.
    assert_eq!(gate.comes_back("list", 2), at(1_000));
    // Its limits are open, and the first place is free when a call leaves.
    assert_eq!(gate.comes_back("create", 2), at(1_000));
}

#[test]
fn a_call_comes_back_by_its_place_behind_all_where_the_order_is_random() {
    let (min, max) = (SECOND, 2 * SECOND);
    let mut gate = filled_by_one_caller(Postpone::Jitter { min, max });
    for caller in [1, 2] {
        assert_eq!(gate.comes_back("list", caller), at(6_000));
    }
}

#[test]
fn a_call_that_is_refused_in_a_pause_comes_back_after_it_and_what_is_ahead() {
    let backend = outstanding("backend", Scope::Backend(Backend(0)), 100);
    let mut gate = Gate::new(policy(vec![window("total", Scope::Every, 1), backend]));
    let (by, closed) = (Supplier::Operator, Supply::capacity(0));
    gate.scheduler.supply(gate.now, "backend", by, closed);
    gate.scheduler.set_reopens(Some(at(30_000)));
    for (id, caller) in [(0, 1), (1, 1), (2, 1), (3, 2)] {
        let deadline = (id >= 2).then_some(at(500));
        let call = call(gate.now, "f")
            .caller(Caller(caller))
            .deadline(deadline);
        gate.wait(call, id);
    }
    gate.now = at(500);
    // The first is behind two of its own and one of the other caller, the second behind one of two.
    for (expected, moment) in [(2, at(33_000)), (3, at(31_000))] {
        let (id, refusal) = gate.expire();
        assert_eq!(
            (id, refusal.reason),
            (expected, RefusalReason::DeadlinePassed)
        );
        assert_eq!(gate.now + refusal.retry_after, moment);
    }
}

#[test]
fn a_waiting_call_says_when_it_would_come_back_as_if_it_had_left() {
    let mut gate = Gate::new(policy(vec![window("total", Scope::Every, 1)]));
    gate.submit(call(gate.now, "f"), 0);
    gate.drain(1);
    gate.wait(call(gate.now, "f"), 1);
    let ticket = gate.submit(call(gate.now, "f"), 2);
    gate.sleeps_until(1_000);
    gate.scheduler.foresee(gate.now, ticket, None);
    let refusal = gate.scheduler.refusal_now(gate.now, ticket);
    let refusal = refusal.expect("it waits");
    assert_eq!(gate.now + refusal.retry_after, at(2_000));
}

/// A policy of a queue in which this many wait, and this many more at its door.
fn with_a_door(limits: Vec<LimitRule>, capacity: u32, door: u32, postpone: Postpone) -> Policy {
    let when_full = WhenFull::Wait { door };
    Policy::new(limits, capacity, when_full, postpone, classes(&[4, 1])).expect("a policy")
}

impl Gate {
    fn crowd(&self) -> (usize, usize) {
        (self.scheduler.waiting(), self.scheduler.at_door())
    }
}

#[test]
fn a_call_at_the_door_goes_in_its_turn_and_can_leave_from_there() {
    let limits = vec![outstanding("outstanding", Scope::Every, 1)];
    let mut gate = Gate::new(with_a_door(limits, 1, 3, Postpone::InTurn));
    gate.submit(call(gate.now, "f"), 0);
    let (_, hold) = gate.run_and_send();
    gate.submit(call(gate.now, "f"), 1);
    let tickets: Vec<Ticket> = (2..5)
        .map(|id| {
            let deadline = (id == 2).then_some(at(50));
            gate.submit(call(gate.now, "f").deadline(deadline), id)
        })
        .collect();
    assert!(!gate.scheduler.has_room());
    assert_eq!(
        gate.refuse(call(gate.now, "f")).reason,
        RefusalReason::QueueFull
    );
    assert_eq!(gate.crowd(), (1, 3));
    gate.sleeps_until(50);
    gate.now = at(50);
    let (id, refusal) = gate.expire();
    assert_eq!((id, refusal.limit.as_deref()), (2, Some("outstanding")));
    assert_eq!(gate.scheduler.cancel(gate.now, tickets[1]), Some(3));
    assert_eq!(gate.crowd(), (1, 1));
    gate.finish(hold);
    assert_eq!(gate.drain(1), [1]);
    assert_eq!(gate.crowd(), (1, 0));
    // The ticket got at the door is as good inside.
    assert_eq!(gate.scheduler.cancel(gate.now, tickets[2]), Some(4));
    gate.idles();
    assert!(gate.scheduler.is_at_rest());
}

#[test]
fn a_queue_that_calls_of_one_function_have_filled_holds_up_no_other() {
    let jitter = Postpone::Jitter {
        min: SECOND,
        max: 3 * SECOND,
    };
    for postpone in [Postpone::InTurn, jitter] {
        let limits = vec![outstanding("list", function("list"), 1)];
        let mut gate = Gate::new(with_a_door(limits, 2, 5, postpone));
        for id in 0..5 {
            gate.submit(call(gate.now, "list"), id);
        }
        let (_, hold) = gate.run_and_send();
        assert!(matches!(gate.next(), Step::Idle | Step::SleepUntil(_)));
        assert_eq!(gate.crowd(), (2, 2));
        gate.submit(call(gate.now, "create"), 10);
        assert_eq!(gate.drain(1), [10]);
        gate.finish(hold);
    }
}

#[test]
fn at_the_door_classes_share_by_weight_and_callers_of_a_class_take_turns() {
    let limits = vec![outstanding("outstanding", Scope::Every, 1)];
    let mut gate = Gate::new(with_a_door(limits, 5, 1000, Postpone::InTurn));
    let of = |gate: &Gate, class, caller| {
        call(gate.now, "f")
            .class(Class(class))
            .caller(Caller(caller))
    };
    gate.submit(of(&gate, 1, 1), 1);
    let (_, hold) = gate.run_and_send();
    for _ in 0..200 {
        gate.submit(of(&gate, 1, 1), 1);
    }
    assert!(matches!(gate.next(), Step::Idle));
    for _ in 0..10 {
        gate.submit(of(&gate, 1, 2), 2);
    }
    for _ in 0..40 {
        gate.submit(of(&gate, 0, 3), 3);
    }
    assert_eq!(gate.crowd(), (5, 245));
    gate.finish(hold);
    let mut count = BTreeMap::new();
    for caller in gate.drain(50) {
        *count.entry(caller).or_insert(0) += 1;
    }
    assert!((39..=40).contains(&count[&3]), "{count:?}");
    assert!((5..=6).contains(&count[&1]), "{count:?}");
    assert!((5..=6).contains(&count[&2]), "{count:?}");
}

#[test]
fn a_call_at_the_door_keeps_its_turn_over_reloads_and_takes_another_with_its_class() {
    let limits = || vec![outstanding("outstanding", Scope::Every, 1)];
    let policy = |capacity, door| with_a_door(limits(), capacity, door, Postpone::InTurn);
    let mut gate = Gate::new(policy(2, 4));
    let poll = |gate: &Gate, id| call(gate.now, "f").class(Class(1)).caller(Caller(id));
    gate.submit(poll(&gate, 0), 0);
    let (_, hold) = gate.run_and_send();
    let tickets: Vec<_> = (1..7).map(|id| gate.submit(poll(&gate, id), id)).collect();
    assert!(matches!(gate.next(), Step::Idle));
    assert_eq!(gate.crowd(), (2, 4));
    // A larger queue, and a smaller one, which puts no call out.
    gate.scheduler.apply(gate.now, policy(5, 4));
    assert_eq!(gate.crowd(), (5, 1));
    gate.scheduler.apply(gate.now, policy(1, 0));
    assert_eq!(gate.crowd(), (1, 5));
    assert_eq!(gate.refuse(poll(&gate, 9)).reason, RefusalReason::QueueFull);
    // One that had a place gets one, and goes before those that came later.
    gate.scheduler.requeue(gate.now, hold, 0);
    assert_eq!(gate.crowd(), (1, 6));
    // The last of all is a user's call by now.
    assert!(gate.scheduler.reclass(gate.now, tickets[5], Class(0)));
    assert_eq!(gate.drain(7), [6, 0, 1, 2, 3, 4, 5]);
    gate.idles();
    assert!(gate.scheduler.is_at_rest());
}

#[test]
fn calls_at_the_door_of_a_drained_queue_are_served_or_taken_out() {
    for postpone in [
        Postpone::InTurn,
        Postpone::Jitter {
            min: SECOND,
            max: 3 * SECOND,
        },
    ] {
        let limits = vec![outstanding("outstanding", Scope::Every, 1)];
        let mut gate = Gate::new(with_a_door(limits, 2, 10, postpone));
        for id in 0..10 {
            gate.submit(call(gate.now, "f"), id);
        }
        let (_, hold) = gate.run_and_send();
        assert!(matches!(gate.next(), Step::Idle | Step::SleepUntil(_)));
        gate.scheduler.drain();
        assert_eq!(
            gate.refuse(call(gate.now, "f")).reason,
            RefusalReason::Draining
        );
        gate.finish(hold);
        gate.now = at(4000);
        assert_eq!(gate.drain(4).len(), 4);
        let mut out = 0;
        while gate.scheduler.evict(gate.now).is_some() {
            out += 1;
        }
        assert_eq!(out, 5);
        gate.idles();
        assert!(gate.scheduler.is_at_rest());
    }
}

#[test]
fn a_thousand_calls_at_the_door_are_asked_no_more_often_than_in_the_queue() {
    let asked = |capacity| {
        let limits = vec![window("total", Scope::Every, 30)];
        let mut gate = Gate::new(with_a_door(limits, capacity, 2000, Postpone::InTurn));
        for id in 0..1000 {
            let caller = Caller(id % 100);
            gate.submit(call(gate.now, "f").caller(caller), id);
        }
        for second in 0..34 {
            gate.now = at(1000 * second);
            while let Step::Run { hold, .. } = gate.next() {
                gate.scheduler.sent(gate.now, &hold);
                gate.finish(hold);
            }
        }
        assert!(gate.scheduler.waiting() == 0);
        gate.scheduler.check_count()
    };
    assert_eq!(asked(1), asked(2000));
}
