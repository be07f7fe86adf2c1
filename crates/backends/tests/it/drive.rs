//! The driver: the fixed limit in front of a model.

use std::num::NonZeroU32;

use tidegate_backends::drive::{NextCall, drive_closed, goodput, merged, poisson};
use tidegate_backends::{
    Arrival, BackendModel, BreakBehaviour, CallEnding, DriveLimits, FinishedCall, SECOND,
    Scalability, ServiceDemand, ServiceOutcome, Sharing, ValueProfile, drive,
};

use crate::random::Random;
use crate::seeds::seeds;

const MS: u64 = 1_000_000;

fn servers(count: u32) -> BackendModel {
    let servers = NonZeroU32::new(count).expect("at least one");
    BackendModel::new(Sharing::Servers(servers))
}

fn at_once(count: u64, demand: u64) -> Vec<Arrival> {
    let arrival = |_| Arrival {
        at: 0,
        function: 0,
        demand,
    };
    (0..count).map(arrival).collect()
}

/// The most calls at the backend at once.
fn most(done: &[FinishedCall]) -> i32 {
    let started = done.iter().filter_map(|it| Some((it.started?, 1)));
    let ended = done.iter().filter(|it| it.started.is_some());
    let mut changes: Vec<_> = started.chain(ended.map(|it| (it.ended, -1))).collect();
    changes.sort_unstable();
    let mut now = 0;
    let counts = changes.iter().map(|(_, change)| {
        now += change;
        now
    });
    counts.max().unwrap_or(0)
}

#[test]
fn calls_above_the_limit_wait_in_order() {
    let done = drive(servers(8), &at_once(5, 10 * MS), &DriveLimits::total(2));
    let started: Vec<_> = done
        .iter()
        .map(|it| it.started.expect("it ran") / MS)
        .collect();
    assert_eq!(started, [0, 0, 10, 10, 20]);
    assert!(done.iter().all(FinishedCall::is_served));
}

#[test]
fn a_limit_below_the_breaking_point_is_never_crossed_and_one_above_is() {
    let above = NonZeroU32::new(5).expect("above 0");
    for then in [
        BreakBehaviour::Reset,
        BreakBehaviour::Collapse { restart: SECOND },
    ] {
        for seed in seeds(0..20) {
            let random = &mut Random(seed);
            let rate = ValueProfile::constant(200.0).expect("above 0");
            let demand = ServiceDemand::exponential(40 * MS);
            let arrivals = poisson(&rate, 5 * SECOND, 0, demand, &mut || random.unit());
            let run = |limit| {
                drive(
                    servers(4).breaks(above, then),
                    &arrivals,
                    &DriveLimits::total(limit),
                )
            };
            let safe = run(5);
            assert!(safe.iter().all(FinishedCall::is_served), "seed {seed}");
            assert_eq!(most(&safe), 5);
            let broken = run(6);
            assert!(!broken.iter().all(FinishedCall::is_served), "seed {seed}");
        }
    }
}

#[test]
fn calls_wait_while_the_backend_restarts() {
    let above = NonZeroU32::new(2).expect("above 0");
    let restart = SECOND;
    let backend = servers(2).breaks(above, BreakBehaviour::Collapse { restart });
    let mut arrivals = at_once(3, 10 * MS);
    arrivals.push(Arrival {
        at: 5 * MS,
        function: 0,
        demand: 10 * MS,
    });
    let done = drive(backend, &arrivals, &DriveLimits::default());
    let lost = CallEnding::Backend(ServiceOutcome::Collapsed);
    assert!(done[..3].iter().all(|it| it.ending == lost));
    assert_eq!(
        (done[3].started, done[3].ended),
        (Some(SECOND), SECOND + 10 * MS)
    );
}

#[test]
fn a_limit_of_a_function_does_not_hold_others() {
    let limits = DriveLimits {
        by_function: vec![NonZeroU32::new(1)],
        ..DriveLimits::total(3)
    };
    let mut arrivals = at_once(3, 10 * MS);
    arrivals.extend(
        at_once(3, 10 * MS)
            .into_iter()
            .map(|it| Arrival { function: 1, ..it }),
    );
    let done = drive(servers(8), &arrivals, &limits);
    let started: Vec<_> = done
        .iter()
        .map(|it| it.started.expect("it ran") / MS)
        .collect();
    assert_eq!(started, [0, 10, 20, 0, 0, 10]);
}

#[test]
fn a_call_gives_up_when_its_patience_ends() {
    let limits = DriveLimits {
        patience: Some(15 * MS),
        ..DriveLimits::total(1)
    };
    let done = drive(servers(1), &at_once(3, 10 * MS), &limits);
    assert_eq!(done[1].started, Some(10 * MS));
    assert_eq!((done[2].started, done[2].ended), (None, 15 * MS));
    assert_eq!(done[2].ending, CallEnding::GaveUp);
}

#[test]
fn goodput_has_its_peak_where_the_law_has_it() {
    let law = Scalability::new(0.05, 0.01).expect("in range");
    let random = &mut Random(5);
    let rate = ValueProfile::constant(200.0).expect("above 0");
    let demand = ServiceDemand::exponential(50 * MS);
    let arrivals = poisson(&rate, 100 * SECOND, 0, demand, &mut || random.unit());
    let at = |limit| {
        let done = drive(
            BackendModel::new(Sharing::Scalability(law)),
            &arrivals,
            &DriveLimits::total(limit),
        );
        goodput(&done, 100 * SECOND, None)
    };
    let best = (1..40)
        .max_by(|a, b| at(*a).total_cmp(&at(*b)))
        .expect("not empty");
    // The law is flat at its peak of 9.75.
    assert!((8..=12).contains(&best), "{best}");
    assert!(at(1) < 0.5 * at(best) && at(39) < 0.7 * at(best));
}

#[test]
fn workers_ask_again_after_their_answer() {
    let mut next = |_| NextCall {
        think: 10 * MS,
        function: 0,
        demand: 10 * MS,
    };
    let done = drive_closed(servers(8), &DriveLimits::default(), 3, SECOND, &mut next);
    // Each of three has a cycle of 20 ms.
    assert_eq!(done.len(), 3 * 50);
    assert_eq!(most(&done), 3);
    assert!(done.is_sorted_by_key(|it| it.arrived));
}

#[test]
fn two_functions_that_share_slow_each_other() {
    let random = &mut Random(2);
    let rate = ValueProfile::constant(5.0).expect("above 0");
    let lists: Vec<_> = [10 * MS, 150 * MS]
        .into_iter()
        .enumerate()
        .map(|(function, demand)| {
            let demand = ServiceDemand::fixed(demand);
            poisson(&rate, 400 * SECOND, function, demand, &mut || random.unit())
        })
        .collect();
    let mean = |arrivals: &[Arrival]| {
        let done = drive(servers(1), arrivals, &DriveLimits::default());
        let fast: Vec<_> = done.iter().filter(|it| it.function == 0).collect();
        let sum: u64 = fast.iter().map(|it| it.ended - it.arrived).sum();
        sum as f64 / fast.len() as f64 / MS as f64
    };
    let (alone, together) = (mean(&lists[0]), mean(&merged(&lists)));
    // 10/(1 − 0.05) and 10/(1 − 0.8).
    assert!((alone - 10.5).abs() < 0.5, "{alone}");
    assert!((together - 50.0).abs() < 6.0, "{together}");
}
