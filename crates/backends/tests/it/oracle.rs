//! The model against a brute-force oracle: time in small steps, and the work that is left of each call.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use tidegate_backends::{
    BackendModel, BreakBehaviour, CallStart, EndedCall, Model, Scalability, ServiceOutcome,
    Sharing, ValueProfile, Weight,
};

use crate::random::Random;
use crate::seeds::at_least;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
/// The oracle's step. Its error is at most one step for each event.
const STEP: u64 = US;
const CALLS: u64 = 30;
const TOLERANCE: u64 = 2 * (CALLS + 5) * STEP;

#[derive(Clone, Copy)]
struct Given {
    at: u64,
    function: usize,
    demand: u64,
    leaves: Option<u64>,
}

/// The fate of a call: when it ended and how, or when it found the backend down, or left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Ended(u64, ServiceOutcome),
    Down,
    Left,
}

fn by_model(backend: &BackendModel, given: &[Given]) -> Vec<Fate> {
    let mut model = Model::new(backend.clone());
    let mut fates = vec![Fate::Left; given.len()];
    let mut todo: Vec<(u64, bool, usize)> = Vec::new();
    for (nth, it) in given.iter().enumerate() {
        todo.push((it.at, true, nth));
        todo.extend(it.leaves.map(|leaves| (it.at + leaves, false, nth)));
    }
    todo.sort_unstable_by_key(|(at, starts, nth)| (*at, !*starts, *nth));
    let mut note = |ended: Vec<EndedCall>| {
        for EndedCall { id, at, outcome } in ended {
            fates[id as usize] = Fate::Ended(at, outcome);
        }
    };
    let mut down = Vec::new();
    for (at, starts, nth) in todo {
        while let Some(wake) = model.wake().filter(|wake| *wake <= at) {
            note(model.due(wake));
        }
        if starts {
            let it = given[nth];
            match model.starts(at, nth as u64, it.function, it.demand) {
                CallStart::Taken => {}
                CallStart::Down(_) => down.push(nth),
            }
        } else {
            model.leaves(at, nth as u64);
        }
    }
    while let Some(wake) = model.wake() {
        note(model.due(wake));
    }
    assert_eq!(model.calls(), 0);
    for nth in down {
        fates[nth] = Fate::Down;
    }
    fates
}

fn by_oracle(backend: &BackendModel, given: &[Given]) -> Vec<Fate> {
    let mut fates = vec![Fate::Left; given.len()];
    let mut inside: BTreeMap<usize, f64> = BTreeMap::new();
    let weight = |nth: usize| match given[nth].function {
        1 => 2.5,
        _ => 1.0,
    };
    let (mut now, mut down_until, mut next) = (0, 0, 0);
    while next < given.len() || !inside.is_empty() {
        inside.retain(|nth, left| {
            let is_over = *left <= 0.0;
            if is_over {
                fates[*nth] = Fate::Ended(now, ServiceOutcome::Served);
            }
            !is_over
        });
        inside.retain(|nth, _| {
            given[*nth]
                .leaves
                .is_none_or(|it| given[*nth].at + it > now)
        });
        while next < given.len() && given[next].at <= now {
            let nth = next;
            next += 1;
            if now < down_until {
                fates[nth] = Fate::Down;
                continue;
            }
            let load: f64 = inside.keys().map(|nth| weight(*nth)).sum();
            let breaking = backend.breaking;
            match breaking.filter(|it| load + weight(nth) > f64::from(it.above.get())) {
                None => _ = inside.insert(nth, given[nth].demand as f64),
                Some(breaking) => match breaking.then {
                    BreakBehaviour::Reset => fates[nth] = Fate::Ended(now, ServiceOutcome::Reset),
                    BreakBehaviour::Collapse { restart } => {
                        down_until = now + restart;
                        for nth in inside.keys().copied().chain([nth]) {
                            fates[nth] = Fate::Ended(now, ServiceOutcome::Collapsed);
                        }
                        inside.clear();
                    }
                },
            }
        }
        let load: f64 = inside.keys().map(|nth| weight(*nth)).sum();
        // The laws once more, in other words.
        let capacity = backend.capacity.at(now).0;
        let speed = match backend.sharing {
            Sharing::Servers(servers) => (f64::from(servers.get()) * capacity / load).min(1.0),
            Sharing::Scalability(_) => {
                capacity / (1.0 + 0.1 * (load - 1.0) + 0.01 * load * (load - 1.0))
            }
        };
        for left in inside.values_mut() {
            *left -= speed * STEP as f64;
        }
        now += STEP;
    }
    fates
}

/// Random calls, in order, one or more steps apart.
fn calls(random: &mut Random, leaving: bool) -> Vec<Given> {
    let mut at = 0;
    let mut call = || {
        at += (1 + random.below(3_000)) * STEP;
        let leaves = (leaving && random.unit() < 0.3).then(|| (1 + random.below(9_000)) * STEP);
        Given {
            at,
            function: random.below(3) as usize,
            demand: 100 * US + random.below(9 * MS),
            leaves,
        }
    };
    (0..CALLS).map(|_| call()).collect()
}

/// Whether two events are so close that small steps may see them in the other order.
fn is_close(given: &[Given], fates: &[Fate]) -> bool {
    let ends = fates.iter().filter_map(|fate| match fate {
        Fate::Ended(at, ServiceOutcome::Served) => Some(*at),
        _ => None,
    });
    let departures = given.iter().filter_map(|it| Some(it.at + it.leaves?));
    ends.clone().any(|end| {
        let mut others = given.iter().map(|it| it.at).chain(departures.clone());
        others.any(|at| at.abs_diff(end) <= TOLERANCE)
    })
}

fn check(backend: &BackendModel, leaving: bool) {
    let (mut compared, mut endings) = (0, BTreeMap::new());
    for seed in at_least(60, 0..60) {
        let given = calls(&mut Random(seed), leaving);
        let model = by_model(backend, &given);
        let breaks = backend.breaking.is_some() || leaving;
        if breaks && is_close(&given, &model) {
            continue;
        }
        compared += 1;
        let oracle = by_oracle(backend, &given);
        for (nth, (model, oracle)) in model.iter().zip(&oracle).enumerate() {
            let (kind, agree) = match (model, oracle) {
                (Fate::Ended(at, how), Fate::Ended(by, what)) => (
                    format!("{how:?}"),
                    how == what && at.abs_diff(*by) <= TOLERANCE,
                ),
                (model, oracle) => (format!("{model:?}"), model == oracle),
            };
            assert!(
                agree,
                "seed {seed}, call {nth}: {model:?}, oracle: {oracle:?}"
            );
            *endings.entry(kind).or_insert(0) += 1;
        }
    }
    assert!(
        compared >= 5,
        "only {compared} seeds without events close together"
    );
    let expected = match backend.breaking.map(|it| it.then) {
        None => vec!["Served"],
        Some(BreakBehaviour::Reset) => vec!["Reset", "Served"],
        Some(BreakBehaviour::Collapse { .. }) => vec!["Collapsed", "Down", "Served"],
    };
    for kind in expected {
        assert!(
            endings.contains_key(kind),
            "no call was {kind}: {endings:?}"
        );
    }
}

fn servers(count: u32) -> BackendModel {
    let servers = NonZeroU32::new(count).expect("at least one");
    weighted(BackendModel::new(Sharing::Servers(servers)))
}

fn scalability() -> BackendModel {
    let law = Scalability::new(0.1, 0.01).expect("in range");
    weighted(BackendModel::new(Sharing::Scalability(law)))
}

/// The second function counts as two and a half calls.
fn weighted(mut backend: BackendModel) -> BackendModel {
    backend.weights = vec![Weight::ONE, Weight::new(2.5).expect("in range")];
    backend
}

fn steps() -> ValueProfile {
    let steps = [(7 * MS, 0.5), (19 * MS, 0.25), (40 * MS, 1.0)];
    ValueProfile::steps(1.0, &steps).expect("in order")
}

#[test]
fn sharing_matches_the_oracle() {
    check(&servers(1), false);
    check(&servers(3), false);
}

#[test]
fn the_scalability_law_matches_the_oracle() {
    check(&scalability(), false);
}

#[test]
fn steps_of_capacity_match_the_oracle() {
    for mut backend in [servers(4), scalability()] {
        backend.capacity = steps();
        check(&backend, false);
        backend.capacity = steps().every(50 * MS).expect("after the last step");
        check(&backend, false);
    }
}

#[test]
fn a_breaking_point_matches_the_oracle() {
    let above = NonZeroU32::new(7).expect("above 0");
    let restart = 9 * MS + 500;
    check(&servers(3).breaks(above, BreakBehaviour::Reset), false);
    check(
        &servers(3).breaks(above, BreakBehaviour::Collapse { restart }),
        false,
    );
    check(&scalability().breaks(above, BreakBehaviour::Reset), false);
}

#[test]
fn calls_that_leave_match_the_oracle() {
    check(&servers(2), true);
    check(&scalability(), true);
}

/// The negative control: the oracle notices a server too many.
#[test]
#[should_panic(expected = "oracle")]
fn another_backend_does_not_match_the_oracle() {
    let given = calls(&mut Random(1), false);
    let model = by_model(&servers(3), &given);
    let oracle = by_oracle(&servers(2), &given);
    for (model, oracle) in model.iter().zip(&oracle) {
        let (Fate::Ended(model, _), Fate::Ended(oracle, _)) = (model, oracle) else {
            continue;
        };
        assert!(
            model.abs_diff(*oracle) <= TOLERANCE,
            "{model}, oracle: {oracle}"
        );
    }
}
