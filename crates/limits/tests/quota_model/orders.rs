//! Every order of calls, questions, answers, deaths and moments, for the smallest quotas that can go wrong.
//!
//! The machine is the [`Ledger`](tidegate_limits::quota::Ledger) of production, one for each node, with its rule, its records
//! and its knowledge of the store's time. The store compares versions, as all engines do.
//!
//! **Which orders are searched.** All of them: nothing is urgent here. A node may rest at each place for any time, so pauses
//! beyond a window are in every scope, and a question, its answer and a call of another node come in any order. A question
//! can be lost before the store has it or after, be refused, be late by any time though its node has given it up, or arrive
//! twice. A node dies and begins again with an empty ledger. The store forgets everything, or its last write. A node leaves
//! and returns what it holds. A node knows the store's time to the nanosecond, or only within 60 ms on both sides.
//!
//! **Why this is enough.** A window begins with a new record, and tokens die with their window, so whatever goes wrong between
//! two windows goes wrong between the first two. The moments are one in each window and the border, where a node that knows
//! the time badly may take one window for the other. The total is the smallest for which each node can draw and one
//! remains, or all want one more: grants are of one token, so a larger total repeats the same steps. Each scope says how many
//! calls and faults it has. They are counted in the state, so each path ends, and its depth is no bound.
//!
//! **What is counted.** A call counts in the window that runs by the store's clock when it is paid. A store that forgets breaks
//! the total by design (docs/how-to/quotas.md): by no more than what was drawn and forgotten, which is searched too.
//!
//! **Symmetry.** Nodes differ only in what they know of the time. States that are equal except for the places of alike nodes
//! count as one.

mod world;

use stateright::{Model, Property};
use tidegate_limits::quota::OutagePolicy;

use self::world::{Forgets, Mistake, Scope, Step, World};
use crate::search::Machines;

impl Model for Scope {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let clocks = self.blurs.iter();
        clocks.map(|blurs| World::begin(self, blurs)).collect()
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
            Property::always(TOTAL, |scope: &Self, world: &World| {
                world
                    .windows()
                    .all(|window| window.spent <= scope.total + window.forgotten)
            }),
            Property::always(COVERED, |_: &Self, world: &World| {
                world
                    .windows()
                    .all(|window| window.drawn + window.returned <= window.committed)
            }),
            Property::always(NOTHING_WRONG, |_: &Self, world: &World| {
                world.wrong.is_none()
            }),
            Property::sometimes(ALL_USED, |scope: &Self, world: &World| {
                world.windows().any(|window| window.spent == scope.total)
            }),
            Property::sometimes(BOTH_USED, |scope: &Self, world: &World| {
                let windows = world.windows();
                windows.filter(|window| window.spent == scope.total).count() == 2
            }),
            Property::sometimes(LOST_GRANT, |scope: &Self, world: &World| {
                world.has_lost_grant(scope)
            }),
            Property::sometimes(OWN_SHARE, |_: &Self, world: &World| {
                world.windows().any(|window| window.spent > window.drawn)
            }),
            Property::sometimes(RETURNED, |_: &Self, world: &World| {
                world.windows().any(|window| window.returned > 0)
            }),
            Property::sometimes(BEYOND, |scope: &Self, world: &World| {
                world.windows().any(|window| window.spent > scope.total)
            }),
            Property::sometimes(TIME_ENDS, |scope: &Self, world: &World| {
                world.has_ended(scope)
            }),
        ]
    }
}

const TOTAL: &str = "no window is spent beyond its total, and what the store forgot of it";
const COVERED: &str = "all nodes spend no more than the store has granted";
const NOTHING_WRONG: &str = "each window is opened once and in its time, and spent in its time";
const ALL_USED: &str = "a window is used up";
const BOTH_USED: &str = "two windows are used up";
const LOST_GRANT: &str = "a grant is lost with its window, though a call waits";
const OWN_SHARE: &str = "a node spends its own share";
const RETURNED: &str = "a node that leaves returns tokens";
const BEYOND: &str = "a store that forgets lets a window be spent beyond its total";
const TIME_ENDS: &str = "time ends";

/// Two nodes of which one knows the store's time badly, and no fault.
const TWO: Scope = Scope {
    nodes: 2,
    calls: 1,
    total: 2,
    away: OutagePolicy::Deny,
    moments: &[1_900, 2_000, 2_500],
    blurs: &[[0, 60, 60]],
    crashes: 0,
    losses: 0,
    forgets: 0,
    forgets_what: Forgets::Nothing,
    leaves: 0,
    mistake: Mistake::Without,
};

/// Three nodes of which two know the store's time badly, and no fault.
const THREE: Scope = Scope { nodes: 3, ..TWO };

/// Each of three nodes owns one of six tokens, and three can be drawn.
const OWN: Scope = Scope {
    total: 6,
    away: OutagePolicy::Safe { percent: 50 },
    ..THREE
};

const MACHINES: Machines = Machines {
    name: "quotas",
    bound: "every order; calls, faults and moments are counted in the state, so each path ends; tokens die with their \
     window, so two windows show what can pass from one to the next",
};

#[test]
fn a_node_dies_and_a_question_or_answer_is_lost_late_or_doubled() {
    let scope = Scope {
        crashes: 1,
        losses: 1,
        ..TWO
    };
    MACHINES.check(
        "a death and a loss",
        scope,
        &[ALL_USED, LOST_GRANT, TIME_ENDS],
    );
}

#[test]
fn a_node_that_leaves_returns_its_tokens_once() {
    let scope = Scope {
        losses: 1,
        leaves: 1,
        ..TWO
    };
    MACHINES.check("a node leaves", scope, &[ALL_USED, RETURNED, TIME_ENDS]);
}

#[test]
fn three_nodes_spend_their_own_shares_and_one_dies() {
    let scope = Scope {
        crashes: 1,
        losses: 1,
        ..OWN
    };
    MACHINES.check("own shares", scope, &[OWN_SHARE, TIME_ENDS]);
}

#[test]
fn a_store_that_forgets_costs_no_more_than_what_it_forgot() {
    for (name, forgets_what) in [
        ("the store forgets all", Forgets::All),
        ("the store forgets a write", Forgets::LastWrite),
    ] {
        let scope = Scope {
            calls: 2,
            forgets: 1,
            forgets_what,
            ..TWO
        };
        MACHINES.check(name, scope, &[ALL_USED, BEYOND, TIME_ENDS]);
    }
}

#[test]
fn mistakes_are_found() {
    use Mistake::*;
    let check = |scope: Scope, finds: &[&'static str]| {
        MACHINES.check_mistake(scope.mistake, scope, finds);
    };
    let with = |mistake| Scope { mistake, ..TWO };
    let lossy = |mistake| Scope {
        losses: 1,
        ..with(mistake)
    };
    check(lossy(UnansweredIsGranted), &[COVERED]);
    check(
        Scope {
            calls: 2,
            leaves: 1,
            ..lossy(UnansweredIsNotWritten)
        },
        &[COVERED],
    );
    check(with(ComparesNothing), &[NOTHING_WRONG, TOTAL]);
    check(with(ClockIsWrong), &[NOTHING_WRONG]);
    check(
        Scope {
            calls: 2,
            crashes: 1,
            away: OutagePolicy::Safe { percent: 100 },
            ..with(ShareAfterDeath)
        },
        &[TOTAL],
    );
    check(
        Scope {
            calls: 2,
            forgets: 1,
            forgets_what: Forgets::All,
            ..with(ForgetsForNothing)
        },
        &[TOTAL],
    );
}

#[test]
fn a_digest_that_leaves_out_too_much_is_found() {
    let scope = Scope { losses: 1, ..TWO };
    MACHINES.check_digest("the ledgers", scope, |_, world| {
        world.digest_without_ledgers()
    });
    MACHINES.check_digest("late writes", scope, |_, world| {
        world.digest_without_late_writes()
    });
}

/// Larger scopes: `make model`.
#[test]
#[ignore = "minutes"]
fn a_node_dies_whatever_both_know_of_the_time() {
    let scope = Scope {
        calls: 2,
        total: 3,
        crashes: 1,
        blurs: &[[0; 3], [0, 60, 60], [60; 3]],
        ..TWO
    };
    MACHINES.check("clocks", scope, &[ALL_USED, LOST_GRANT, TIME_ENDS]);
}

#[test]
#[ignore = "minutes"]
fn three_nodes_use_up_two_windows() {
    let scope = Scope { calls: 2, ..THREE };
    MACHINES.check("three nodes", scope, &[ALL_USED, BOTH_USED, TIME_ENDS]);
}

#[test]
#[ignore = "minutes"]
fn one_of_three_nodes_dies() {
    let scope = Scope {
        crashes: 1,
        ..THREE
    };
    MACHINES.check(
        "one of three dies",
        scope,
        &[ALL_USED, LOST_GRANT, TIME_ENDS],
    );
}

#[test]
#[ignore = "minutes"]
fn a_question_or_answer_of_three_nodes_is_lost_late_or_doubled() {
    let scope = Scope { losses: 1, ..THREE };
    MACHINES.check(
        "three nodes and a loss",
        scope,
        &[ALL_USED, LOST_GRANT, TIME_ENDS],
    );
}

#[test]
#[ignore = "minutes"]
fn three_nodes_with_two_calls_spend_their_own_shares_and_one_dies() {
    let scope = Scope {
        calls: 2,
        crashes: 1,
        ..OWN
    };
    MACHINES.check("own shares, two calls", scope, &[OWN_SHARE, TIME_ENDS]);
}

#[test]
#[ignore = "minutes"]
fn a_store_forgets_and_a_question_or_answer_is_lost() {
    let scope = Scope {
        calls: 2,
        losses: 1,
        forgets: 1,
        forgets_what: Forgets::All,
        ..TWO
    };
    MACHINES.check(
        "the store forgets, and a loss",
        scope,
        &[ALL_USED, BEYOND, TIME_ENDS],
    );
}
