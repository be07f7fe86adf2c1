//! Every order of messages, deaths, pauses and seconds between lease clients and two servers, in bounded scopes.
//!
//! The machines are those of production: [`CapacityServer`](crate::server::CapacityServer) with its book, the client's
//! requests, leases and entitlement, and its way to the master. They are private, so this file is a part of the library's
//! tests. Each client counts by its own clock, which may fall behind. The limits are those of sidecars: fair shares of 6,
//! of which each of three clients always owns its safe capacity of 1.
//!
//! **Which orders are searched.** A step is urgent if a machine or the network takes it by itself within a second: a message
//! that is neither late nor lost, a request that is due or has timed out. Urgent steps happen in every order, and a second
//! passes only when none is left. Whatever else can happen is a fault, and a scope says how many of each kind: a message is
//! lost, late or doubled, a client is paused for 5 s, dies, or its clock misses a second; a master dies or loses its fence;
//! a demand changes. Each fault happens at each moment and in each order with the others.
//!
//! **Why this is enough.** All memory of a machine has an end: a lease after 3 s, its share 1 s later, learning after 4 s, a
//! pause or a late message after 5 s. So 5 s after the last fault, nothing of it is left, and a state is one of those
//! without faults. A scope of 8 s has each fault at each moment of the first lease and of its renewals, and then 5 s. A new
//! master needs its 4 s of learning and then a lease, so the scopes with one have 10 s: 3 s before it, and 7 s after. With two
//! faults it is 7 s, in which both fall into one lease, or the second one into what the first has left.
//!
//! **What is not here**: servers below servers, priorities, other splits than fair shares, several resources, and the calls of a
//! lease's user, which reports what it still uses (`share/laws`). True time passes in whole seconds.
//!
//! **Symmetry.** Clients differ only in their names and in no setting. States that are equal except for the places of clients
//! count as one, and so do states that differ only in numbers which decide nothing ([`World`]'s `Hash`).

#[path = "lease_model/world.rs"]
mod world;

#[path = "../../../handover/tests/search/mod.rs"]
mod search;

use stateright::{Model, Property};

use search::Machines;
use world::{CAPACITY, DigestGap, Mistake, Scope, Step, World};

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
            Property::always(CAPACITY_HOLDS, |_: &Self, world: &World| {
                world.usable() <= CAPACITY
            }),
            Property::always(LEASES_END, |scope: &Self, world: &World| {
                world.every_lease_ends(scope)
            }),
            Property::always(SAFE_AFTER_LOSS, |scope: &Self, world: &World| {
                world.is_safe_after_loss(scope)
            }),
            Property::sometimes(ALL_USED, |_: &Self, world: &World| {
                world.usable() == CAPACITY && world.sharers() >= 2
            }),
            Property::sometimes(ONE_HAS_ALL, |_: &Self, world: &World| {
                world.usable() == CAPACITY && world.sharers() == 1
            }),
            Property::sometimes(OUTLIVES_MASTER, |_: &Self, world: &World| {
                world.has_lease_of_another_master()
            }),
            Property::sometimes(LEARNED, |_: &Self, world: &World| world.has_learned()),
            Property::sometimes(GROWS_AGAIN, |_: &Self, world: &World| {
                world.grows_after_learning()
            }),
            Property::sometimes(FALLS, |_: &Self, world: &World| world.has_fallen()),
            Property::sometimes(TIME_ENDS, |scope: &Self, world: &World| {
                world.has_ended(scope)
            }),
        ]
    }
}

const CAPACITY_HOLDS: &str = "all clients together may use no more than the capacity";
const LEASES_END: &str = "each lease ends by its time";
const SAFE_AFTER_LOSS: &str = "without a lease, a client uses its safe capacity";
const ALL_USED: &str = "several clients use all of the capacity";
const ONE_HAS_ALL: &str = "one client uses all except the safe capacity of the others";
const OUTLIVES_MASTER: &str = "a lease outlives its master";
const LEARNED: &str = "a new master learns and renews a lease";
const GROWS_AGAIN: &str = "several clients use all of the capacity under a new master";
const FALLS: &str = "a client without a server falls to its safe capacity";
const TIME_ENDS: &str = "time ends";

/// Three clients that each want everything, and no fault.
const CALM: Scope = Scope {
    clients: 3,
    ends: 8,
    crashes: 0,
    resignations: 0,
    deaths: 0,
    faults: 0,
    slips: 0,
    demands: 0,
    ahead: 0,
    lease: 3,
    frees: 1,
    mistake: Mistake::Without,
};

/// Three clients and a master that dies.
const CRASH: Scope = Scope {
    ends: 10,
    crashes: 1,
    ..CALM
};

const MACHINES: Machines = Machines {
    name: "leases",
    bound: "every order until time ends; no memory of a machine outlasts 5 s, or learning and a lease",
};

#[test]
fn each_message_of_three_clients_is_lost_late_or_doubled_or_a_client_pauses() {
    let scope = Scope { faults: 1, ..CALM };
    MACHINES.check("a fault", scope, &[ALL_USED, FALLS, TIME_ENDS]);
}

#[test]
fn the_master_of_three_clients_dies_at_each_moment() {
    let found = &[ALL_USED, OUTLIVES_MASTER, LEARNED, GROWS_AGAIN, FALLS];
    MACHINES.check("a crash", CRASH, found);
}

#[test]
fn a_master_loses_its_fence_and_the_clock_of_the_next_one_is_ahead() {
    let scope = Scope {
        crashes: 0,
        resignations: 1,
        ahead: 1,
        ..CRASH
    };
    MACHINES.check(
        "a fence",
        scope,
        &[ALL_USED, OUTLIVES_MASTER, LEARNED, GROWS_AGAIN],
    );
}

#[test]
fn a_client_dies_and_its_clock_is_slow_and_a_message_is_lost() {
    let scope = Scope {
        clients: 2,
        deaths: 1,
        faults: 1,
        slips: 1,
        ..CALM
    };
    MACHINES.check("a death", scope, &[ALL_USED, ONE_HAS_ALL, FALLS, TIME_ENDS]);
}

#[test]
#[ignore = "minutes"]
fn a_new_master_learns_for_as_long_as_clocks_may_be_apart() {
    // A master that dies at once, and what it granted before.
    let scope = Scope {
        clients: 2,
        ends: 5,
        faults: 1,
        slips: 2,
        frees: 2,
        ..CRASH
    };
    MACHINES.check("a slow clock", scope, &[ALL_USED, OUTLIVES_MASTER, FALLS]);
}

#[test]
fn mistakes_are_found() {
    use Mistake::*;
    let check = |scope: Scope, finds: &[&'static str]| {
        MACHINES.check_mistake(scope.mistake, scope, finds);
    };
    let with = |mistake| Scope { mistake, ..CALM };
    let one = |mistake| Scope {
        clients: 1,
        ..with(mistake)
    };
    let two = |mistake| Scope {
        clients: 2,
        ..with(mistake)
    };
    check(
        Scope {
            faults: 1,
            ..two(FreesAtOnce)
        },
        &[CAPACITY_HOLDS],
    );
    check(
        Scope {
            crashes: 1,
            ..two(LearnsNothing)
        },
        &[CAPACITY_HOLDS],
    );
    check(
        Scope {
            ends: 5,
            crashes: 1,
            faults: 1,
            slips: 2,
            frees: 2,
            ..two(LearnsOnlyLeases)
        },
        &[CAPACITY_HOLDS],
    );
    check(
        Scope {
            faults: 1,
            ..one(CountsFromArrival)
        },
        &[LEASES_END],
    );
    check(
        Scope {
            faults: 1,
            slips: 2,
            ..one(ClockIsTooSlow)
        },
        &[LEASES_END],
    );
    check(
        Scope {
            faults: 2,
            ..one(TakesOldAnswers)
        },
        &[LEASES_END, SAFE_AFTER_LOSS],
    );
    check(
        Scope {
            ends: 12,
            faults: 1,
            resignations: 1,
            ..two(TwoMasters)
        },
        &[CAPACITY_HOLDS],
    );
    check(
        Scope {
            faults: 2,
            lease: 4,
            frees: 0,
            ..two(ReportsLostLeases)
        },
        &[CAPACITY_HOLDS],
    );
}

#[test]
fn a_digest_that_leaves_out_too_much_is_found() {
    let scope = Scope {
        clients: 2,
        faults: 1,
        ..CALM
    };
    MACHINES.check_digest("what servers keep of clients", scope, |_, world| {
        world.digest_except(DigestGap::Books)
    });
    MACHINES.check_digest("what clients keep", scope, |_, world| {
        world.digest_except(DigestGap::Leases)
    });
}

/// Larger scopes: `make model`.
#[test]
#[ignore = "minutes"]
fn a_master_dies_and_a_message_is_lost_late_or_doubled_or_a_client_pauses() {
    let scope = Scope { faults: 1, ..CRASH };
    let found = &[ALL_USED, OUTLIVES_MASTER, LEARNED, GROWS_AGAIN, FALLS];
    MACHINES.check("a crash and a fault", scope, found);
}

#[test]
#[ignore = "minutes"]
fn a_master_dies_and_clocks_are_apart() {
    let scope = Scope {
        clients: 2,
        faults: 1,
        slips: 1,
        ahead: 1,
        ..CRASH
    };
    let found = &[ALL_USED, ONE_HAS_ALL, OUTLIVES_MASTER, LEARNED, GROWS_AGAIN];
    MACHINES.check("a crash, a fault and clocks", scope, found);
}

#[test]
#[ignore = "minutes"]
fn two_messages_are_lost_late_or_doubled_or_clients_pause() {
    let scope = Scope {
        faults: 2,
        ends: 7,
        ..CALM
    };
    MACHINES.check(
        "two faults",
        scope,
        &[ALL_USED, ONE_HAS_ALL, FALLS, TIME_ENDS],
    );
}

#[test]
#[ignore = "minutes"]
fn demand_changes_while_a_clock_is_slow_and_a_message_is_lost() {
    let scope = Scope {
        faults: 1,
        slips: 1,
        demands: 1,
        ..CALM
    };
    MACHINES.check("demand", scope, &[ALL_USED, ONE_HAS_ALL, FALLS, TIME_ENDS]);
}

#[test]
#[ignore = "minutes"]
fn one_of_three_clients_dies_and_a_clock_is_slow_and_a_message_is_lost() {
    let scope = Scope {
        deaths: 1,
        faults: 1,
        slips: 1,
        ..CALM
    };
    MACHINES.check(
        "a death, a fault and a clock",
        scope,
        &[ALL_USED, FALLS, TIME_ENDS],
    );
}
