//! Limits that change while calls run and wait: by what suppliers say, and by a reload.

use crate::*;

#[test]
fn a_waiting_call_that_a_reload_made_impossible_is_refused() {
    let mut gate = Gate::new(policy(vec![window("total", Scope::Every, 5)]));
    gate.submit(call(gate.now, "f").cost(cost(5)), 0);
    let (_, hold) = gate.run_and_send();
    gate.submit(call(gate.now, "f").cost(cost(4)), 1);
    gate.sleeps_until(1000);
    gate.scheduler
        .apply(gate.now, policy(vec![window("total", Scope::Every, 3)]));
    let (id, refusal) = gate.expire();
    assert_eq!((id, refusal.reason), (1, RefusalReason::NeverPossible));
    gate.finish(hold);
}

#[test]
fn a_limit_closed_by_supply_opens_for_one_probe() {
    let mut gate = Gate::new(policy(vec![outstanding(
        "backend",
        Scope::Backend(Backend(0)),
        u32::MAX,
    )]));
    gate.submit(call(gate.now, "f"), 0);
    let (_, hold) = gate.run_and_send();
    assert!(
        gate.scheduler
            .supply(gate.now, "backend", Supplier::Health, Supply::capacity(0))
    );
    gate.submit(call(gate.now, "f"), 1);
    gate.submit(call(gate.now, "f"), 2);
    gate.submit(call(gate.now, "f").backend(Backend(1)), 3);
    assert_eq!(gate.drain(1), [3]);
    gate.idles();
    let in_use = gate
        .scheduler
        .in_use("backend")
        .expect("there is such a limit");
    assert_eq!(in_use, 1);
    gate.scheduler.supply(
        gate.now,
        "backend",
        Supplier::Health,
        Supply::capacity(in_use + 1),
    );
    let (id, probe) = gate.run();
    assert_eq!(id, 1);
    gate.idles();
    gate.scheduler.requeue(gate.now, probe, 1);
    gate.scheduler
        .supply(gate.now, "backend", Supplier::Health, Supply::Configured);
    assert_eq!(gate.drain(2), [1, 2]);
    gate.finish(hold);
    assert!(
        !gate
            .scheduler
            .supply(gate.now, "unknown", Supplier::Health, Supply::Configured)
    );
}

#[test]
fn a_supply_that_runs_out_leaves_what_it_said_then() {
    let mut gate = Gate::new(policy(vec![outstanding("leased", Scope::Every, 9)]));
    gate.scheduler.supply(
        gate.now,
        "leased",
        Supplier::Coordinator,
        Supply::until(0, at(700), 1),
    );
    gate.submit(call(gate.now, "f"), 0);
    gate.submit(call(gate.now, "f"), 1);
    gate.sleeps_until(700);
    gate.now = at(700);
    let (_, hold) = gate.run();
    gate.idles();
    gate.finish(hold);
    assert_eq!(gate.run().0, 1);
}

#[test]
fn the_strictest_of_several_suppliers_counts_and_none_lifts_what_another_said() {
    let mut gate = Gate::new(policy(vec![outstanding("shared", Scope::Every, 4)]));
    let told = |gate: &mut Gate, supplier, supply| {
        assert!(gate.scheduler.supply(gate.now, "shared", supplier, supply));
        gate.scheduler.limits_now(gate.now)[0].max
    };
    let (health, share) = (Supplier::Health, Supplier::Coordinator);
    assert_eq!(told(&mut gate, share, Supply::until(3, at(700), 1)), 3);
    assert_eq!(told(&mut gate, health, Supply::capacity(0)), 0);
    // The backend is back: what is left is the share.
    assert_eq!(told(&mut gate, health, Supply::Configured), 3);
    assert_eq!(told(&mut gate, health, Supply::capacity(2)), 2);
    gate.now = at(700);
    assert_eq!(gate.scheduler.limits_now(gate.now)[0].max, 1);
    // Of a share that is larger than the rule, the rule is left.
    assert_eq!(told(&mut gate, health, Supply::Configured), 1);
    assert_eq!(told(&mut gate, share, Supply::capacity(9)), 4);
}

#[test]
fn a_lowered_limit_grants_nothing_until_its_use_is_below() {
    let mut gate = Gate::new(policy(vec![outstanding("outstanding", Scope::Every, 3)]));
    for id in 0..5 {
        gate.submit(call(gate.now, "f"), id);
    }
    let mut holds: Vec<Hold> = (0..3).map(|_| gate.run().1).collect();
    gate.scheduler.apply(
        gate.now,
        policy(vec![outstanding("outstanding", Scope::Every, 1)]),
    );
    gate.idles();
    for _ in 0..2 {
        let hold = holds.pop().expect("three ran");
        gate.finish(hold);
        gate.idles();
    }
    let hold = holds.pop().expect("three ran");
    gate.finish(hold);
    assert_eq!(gate.run().0, 3);
    gate.idles();
}

#[test]
fn a_limit_that_is_new_counts_the_calls_already_in_flight() {
    let mut gate = Gate::new(policy(vec![]));
    for id in 0..4 {
        gate.submit(call(gate.now, "f"), id);
    }
    let (_, sent) = gate.run_and_send();
    let (_, unsent) = gate.run();
    let limits = vec![
        outstanding("outstanding", Scope::Every, 3),
        window("total", Scope::Every, 3),
    ];
    gate.scheduler.apply(gate.now, policy(limits));
    assert_eq!(
        (
            gate.scheduler.in_use("outstanding"),
            gate.scheduler.in_use("total")
        ),
        (Some(2), Some(2))
    );
    let (_, hold) = gate.run_and_send();
    gate.idles();
    for hold in [sent, unsent, hold] {
        gate.finish(hold);
    }
    gate.sleeps_until(1000);
}
