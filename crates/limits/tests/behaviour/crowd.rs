//! A hundred thousand calls wait, and cost no more than a few.

use crate::*;

/// A hundred thousand calls wait, of a hundred callers and three functions, and every limit is
/// closed.
fn crowd(deadline: Option<Timestamp>) -> (Gate, Hold, Vec<Ticket>) {
    let limits = vec![
        outstanding("outstanding", Scope::Every, 1),
        window("list", function("list"), 5),
        window("create", function("create"), 5),
    ];
    let mut gate = Gate::new(policy(limits));
    gate.submit(call(gate.now, "list"), 0);
    let (_, hold) = gate.run_and_send();
    let mut tickets = Vec::new();
    for id in 1..=100_000 {
        let function = ["list", "create", "other"][id as usize % 3];
        tickets.push(
            gate.submit(
                call(gate.now, function)
                    .caller(Caller(id % 100))
                    .deadline(deadline),
                id,
            ),
        );
    }
    let _ = gate.next();
    (gate, hold, tickets)
}

#[test]
fn a_closed_limit_costs_nothing_however_many_wait() {
    let (mut gate, hold, tickets) = crowd(None);
    let asked = |gate: &mut Gate, what: &dyn Fn(&mut Gate)| {
        let before = gate.scheduler.check_count();
        what(gate);
        gate.scheduler.check_count() - before
    };
    let looking = asked(&mut gate, &|gate| (0..1000).for_each(|_| gate.idles()));
    assert_eq!(
        looking, 0,
        "asking again when nothing has changed asks no call"
    );
    let behind = asked(&mut gate, &|gate| {
        for id in 0..1000 {
            gate.submit(call(gate.now, "list").caller(Caller(7)), id);
            gate.idles();
        }
    });
    assert_eq!(behind, 0, "who joins behind others is not asked");
    let leaving = asked(&mut gate, &|gate| {
        for ticket in &tickets[50_000..60_000] {
            assert!(gate.scheduler.cancel(gate.now, *ticket).is_some());
            gate.idles();
        }
    });
    assert!(
        leaving <= 100,
        "{leaving} were asked because 10,000 left from the middle"
    );
    let before = gate.scheduler.check_count();
    let mut hold = hold;
    for _ in 0..1000 {
        gate.now = gate.now + Duration::from_millis(250);
        gate.finish(hold);
        (_, hold) = gate.run_and_send();
        let step = gate.next();
        assert!(
            matches!(step, Step::Idle | Step::SleepUntil(_)),
            "one slot runs one call, not {step:?}"
        );
    }
    let opening = gate.scheduler.check_count() - before;
    assert!(opening <= 8 * 1000, "{opening} were asked to run 1,000");
}

#[test]
fn a_hundred_thousand_that_expire_at_once_are_asked_once_each_at_most() {
    let (mut gate, _hold, _) = crowd(Some(at(60_000)));
    let before = gate.scheduler.check_count();
    gate.now = at(60_001);
    for _ in 0..100_000 {
        gate.expire();
    }
    gate.idles();
    assert!(gate.scheduler.check_count() - before <= 3);
    assert_eq!(gate.scheduler.waiting(), 0);
}

#[test]
fn a_reload_with_a_hundred_thousand_waiting_calls_loses_none_and_asks_none() {
    let (mut gate, hold, tickets) = crowd(None);
    let before = gate.scheduler.check_count();
    let limits = vec![
        outstanding("outstanding", Scope::Every, 1),
        window("other", function("other"), 5),
    ];
    gate.scheduler.apply(gate.now, policy(limits));
    assert_eq!(gate.scheduler.check_count(), before);
    assert_eq!(gate.scheduler.waiting(), 100_000);
    gate.idles();
    gate.scheduler.audit();
    gate.finish(hold);
    for ticket in tickets {
        assert!(gate.scheduler.cancel(gate.now, ticket).is_some());
    }
    gate.idles();
    assert!(gate.scheduler.is_at_rest());
}
