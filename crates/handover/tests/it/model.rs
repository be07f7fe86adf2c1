//! Every order of messages, calls, crashes and lost connections, in a bounded scope.

use stateright::{Model, Property};

use crate::search::{Machines, digest};
use crate::world::{Life, Mistake, Scope, Stage, Step, World};

impl Model for Scope {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::begin(self)]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Step>) {
        state.steps(self, actions);
    }

    fn next_state(&self, state: &World, step: Step) -> Option<World> {
        let mut next = state.clone();
        next.take(step, self);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WINDOW, |scope: &Self, world: &World| {
                let [sent, replied] = world.in_window;
                sent <= scope.window && scope.replies.is_none_or(|max| replied <= max)
            }),
            Property::always(AT_ONCE, |scope: &Self, world: &World| {
                world.at_backend.len() <= scope.at_once
            }),
            Property::always(ONE_ADMITS, |_: &Self, world: &World| {
                world.processes.iter().filter(|it| it.admits).count() <= 1
            }),
            Property::always(ENDS_ONCE, |_: &Self, world: &World| {
                let mut calls = world.calls.iter();
                calls.all(|call| u8::from(call.stage == Stage::Over) == call.ends)
            }),
            Property::always(NOTHING_WRONG, |_: &Self, world: &World| {
                world.wrong.is_none()
            }),
            Property::always(WAY_OUT, |scope: &Self, world: &World| {
                is_settled(world) || has_progress(scope, world)
            }),
            Property::always(NOTHING_LOST, |scope: &Self, world: &World| {
                let is_calm = scope.breaks == 0 && scope.stops == 0 && !scope.timeouts;
                let is_one_upgrade = scope.processes == 2 && !scope.alone;
                !(is_calm && is_one_upgrade && world.calls.iter().any(|call| call.is_lost))
            }),
            Property::sometimes(ALL_USED, |scope: &Self, world: &World| {
                let of = |id| move |call: &&usize| world.calls[**call].at == id;
                let of_both = [0, 1].iter().all(|&id| {
                    let mut calls = world.at_backend.iter();
                    world.processes[id].life == Life::Alive && calls.any(|call| of(id)(&call))
                });
                let used = world.at_backend.len() == scope.at_once;
                used && (of_both || scope.at_once == 1)
            }),
            Property::sometimes(CARRIED_ACROSS, |_: &Self, world: &World| {
                let is_over = world.processes[0].life == Life::Gone && world.crashes == 0;
                let serves = world.processes.iter().skip(1).any(|it| it.admits);
                let mut calls = world.calls.iter();
                is_over && serves && calls.any(|call| call.has_crossed && call.is_served)
            }),
            Property::sometimes(TAKEN_BACK, |_: &Self, world: &World| {
                let old = &world.processes[0];
                let crossed = world.calls.iter().any(|call| call.has_crossed);
                old.admits && crossed
            }),
        ]
    }
}

const WINDOW: &str = "never more than N in a window";
const AT_ONCE: &str = "never more than N at once";
const ONE_ADMITS: &str = "at most one process admits";
const ENDS_ONCE: &str = "each call ends exactly once";
const NOTHING_WRONG: &str = "both sides agree with their processes";
const WAY_OUT: &str = "no state without a way out";
const NOTHING_LOST: &str = "neither an upgrade nor the death of a process refuses a call";
const ALL_USED: &str = "calls of both processes use all that the limit allows";
const CARRIED_ACROSS: &str =
    "an upgrade completes, and serves a call that waited in the old process";
const TAKEN_BACK: &str = "the old process serves again";

/// No call is under way, and each process that lives admits.
fn is_settled(world: &World) -> bool {
    let mut calls = world.calls.iter();
    let mut processes = world.processes.iter();
    calls.all(|call| matches!(call.stage, Stage::Unborn | Stage::Over))
        && processes.all(|it| it.life != Life::Alive || it.admits)
}

fn has_progress(scope: &Scope, world: &World) -> bool {
    let mut steps = Vec::new();
    world.steps(scope, &mut steps);
    steps.iter().any(|step| step.is_progress())
}

const SMALL: Scope = Scope {
    processes: 2,
    calls: 2,
    window: 1,
    replies: None,
    at_once: 1,
    crashes: 1,
    breaks: 1,
    stops: 0,
    waiting_max: 3,
    leaves: true,
    timeouts: true,
    refusals: true,
    requeues: true,
    failures: true,
    alone: true,
    stranger: false,
    mistake: Mistake::Without,
};

/// A scope in which no process or connection fails.
const QUIET: Scope = Scope {
    crashes: 0,
    breaks: 0,
    refusals: false,
    failures: false,
    alone: false,
    requeues: false,
    ..SMALL
};

const MACHINES: Machines = Machines {
    name: "hand-over",
    bound: "all orders: calls, crashes, broken connections and stops are counted in the state, so each path ends",
};

#[test]
fn an_upgrade_of_two_calls_with_a_crash_and_a_lost_connection() {
    MACHINES.check(
        "two processes, two calls",
        SMALL,
        &[CARRIED_ACROSS, TAKEN_BACK],
    );
}

#[test]
fn a_digest_without_the_messages_on_their_way_is_found() {
    MACHINES.check_digest("the messages to old processes", SMALL, |_, world| {
        let mut world = world.clone();
        let links = world.links.iter_mut().flatten();
        links.for_each(|link| link.to_old.clear());
        digest(&world)
    });
}

#[test]
fn calls_of_both_processes_use_all_of_two_limits() {
    let scope = Scope {
        calls: 3,
        window: 2,
        at_once: 2,
        ..QUIET
    };
    MACHINES.check(
        "two processes, three calls",
        scope,
        &[CARRIED_ACROSS, ALL_USED],
    );
}

#[test]
fn the_death_of_the_new_process_costs_the_old_one_no_call() {
    let scope = Scope {
        breaks: 0,
        timeouts: false,
        alone: false,
        ..SMALL
    };
    MACHINES.check("nothing is lost", scope, &[CARRIED_ACROSS, TAKEN_BACK]);
}

#[test]
fn a_window_that_counts_replies() {
    let scope = Scope {
        window: 2,
        replies: Some(1),
        at_once: 2,
        requeues: false,
        refusals: false,
        failures: false,
        ..SMALL
    };
    MACHINES.check("a window of replies", scope, &[CARRIED_ACROSS, TAKEN_BACK]);
}

#[test]
fn the_queue_of_the_new_process_is_full() {
    let scope = Scope {
        calls: 3,
        waiting_max: 1,
        ..QUIET
    };
    MACHINES.check("a full queue", scope, &[CARRIED_ACROSS]);
}

/// Three processes, and clients that wait for as long as it takes.
const CHAIN: Scope = Scope {
    processes: 3,
    leaves: false,
    timeouts: false,
    refusals: false,
    failures: false,
    requeues: false,
    ..SMALL
};

#[test]
fn a_third_process_starts_after_a_crash() {
    let scope = Scope { breaks: 0, ..CHAIN };
    MACHINES.check(
        "three processes, a crash",
        scope,
        &[CARRIED_ACROSS, TAKEN_BACK],
    );
}

#[test]
fn a_third_process_starts_after_a_lost_connection() {
    let scope = Scope {
        crashes: 0,
        ..CHAIN
    };
    MACHINES.check(
        "three processes, a lost connection",
        scope,
        &[CARRIED_ACROSS],
    );
}

#[test]
fn processes_are_asked_to_end_at_any_moment() {
    let scope = Scope { stops: 1, ..SMALL };
    MACHINES.check(
        "two processes, a stop",
        scope,
        &[CARRIED_ACROSS, TAKEN_BACK],
    );
}

#[test]
fn a_process_of_another_version_waits_for_the_end_of_the_old_one() {
    let scope = Scope {
        stranger: true,
        stops: 1,
        ..SMALL
    };
    MACHINES.check("another version", scope, &[]);
}

fn check_mistake(mistake: Mistake, scope: Scope, finds: &[&'static str]) {
    let scope = Scope { mistake, ..scope };
    MACHINES.check_mistake(mistake, scope, finds);
}

#[test]
fn mistakes_are_found() {
    let three = Scope { calls: 3, ..QUIET };
    let lost = Scope { breaks: 1, ..QUIET };
    let dies = Scope {
        crashes: 1,
        ..QUIET
    };
    let patient = Scope {
        timeouts: false,
        ..dies
    };
    // The first process takes back, and commits to the third; then the second claims with the commit that it has.
    let third = Scope {
        processes: 3,
        leaves: false,
        timeouts: false,
        ..lost
    };
    let limits = &[AT_ONCE, WINDOW];
    check_mistake(Mistake::AdmitsAfterCommit, QUIET, &[ONE_ADMITS]);
    check_mistake(Mistake::ForgetsRunningCalls, QUIET, limits);
    check_mistake(Mistake::GivesBackTwice, three, limits);
    check_mistake(Mistake::TakesBackFromTheLiving, lost, &[ONE_ADMITS]);
    check_mistake(Mistake::TakesBackWithOldLedger, dies, limits);
    check_mistake(Mistake::NeverTakesBack, patient, &[NOTHING_LOST]);
    check_mistake(Mistake::HoldsOnlyUntilTheConnectionIsLost, lost, limits);
    check_mistake(Mistake::CountsBeforeTheCommit, QUIET, limits);
    check_mistake(Mistake::ClaimIsNeverAnswered, lost, &[WAY_OUT]);
    check_mistake(
        Mistake::HandsOverTooEarly,
        Scope {
            processes: 3,
            ..QUIET
        },
        &[NOTHING_WRONG],
    );
    check_mistake(Mistake::RaisesNoTerm, third, limits);
}

/// Larger scopes: `make model`.
#[test]
#[ignore = "minutes"]
fn a_third_process_starts_after_a_crash_and_a_lost_connection() {
    MACHINES.check(
        "three processes, both",
        CHAIN,
        &[CARRIED_ACROSS, TAKEN_BACK],
    );
}

#[test]
#[ignore = "minutes"]
fn a_third_process_starts_after_two_crashes() {
    let scope = Scope {
        crashes: 2,
        ..CHAIN
    };
    MACHINES.check(
        "three processes, two crashes",
        scope,
        &[CARRIED_ACROSS, TAKEN_BACK],
    );
}

#[test]
#[ignore = "minutes"]
fn three_calls_with_a_crash_and_a_lost_connection() {
    let scope = Scope {
        calls: 3,
        window: 2,
        at_once: 2,
        alone: false,
        failures: false,
        requeues: false,
        refusals: false,
        ..SMALL
    };
    MACHINES.check("three calls, both", scope, &[CARRIED_ACROSS, ALL_USED]);
}
