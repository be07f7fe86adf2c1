//! Laws of a model, and of the parts that it is made of.

use std::num::NonZeroU32;

use tidegate_backends::{
    BackendModel, BreakBehaviour, CallStart, Model, SECOND, Scalability, ServiceDemand,
    ServiceOutcome, Sharing, ValueProfile, Weight,
};

use crate::random::Random;
use crate::seeds::seeds;

const MS: u64 = 1_000_000;

fn servers(count: u32) -> BackendModel {
    let servers = NonZeroU32::new(count).expect("at least one");
    BackendModel::new(Sharing::Servers(servers))
}

/// All calls start at once; when each ended.
fn ends(backend: BackendModel, demands: &[u64]) -> Vec<(u64, u64)> {
    let mut model = Model::new(backend);
    for (id, demand) in (0..).zip(demands) {
        assert_eq!(model.starts(0, id, 0, *demand), CallStart::Taken);
    }
    let mut ends = Vec::new();
    while let Some(wake) = model.wake() {
        ends.extend(model.due(wake).iter().map(|it| (it.id, it.at)));
    }
    ends
}

#[test]
fn a_lone_call_takes_its_demand() {
    let law = Scalability::new(0.3, 0.02).expect("in range");
    for backend in [servers(1), BackendModel::new(Sharing::Scalability(law))] {
        assert_eq!(ends(backend, &[50 * MS]), [(0, 50 * MS)]);
    }
}

#[test]
fn calls_share_the_servers_evenly() {
    assert_eq!(
        ends(servers(1), &[10 * MS, 20 * MS]),
        [(0, 20 * MS), (1, 30 * MS)]
    );
    assert_eq!(
        ends(servers(2), &[10 * MS, 20 * MS]),
        [(0, 10 * MS), (1, 20 * MS)]
    );
    assert_eq!(ends(servers(2), &[10 * MS; 4]).last(), Some(&(3, 20 * MS)));
}

#[test]
fn the_scalability_law_has_its_peak_where_gunther_says() {
    let law = Scalability::new(0.05, 0.01).expect("in range");
    let throughput = |calls: u32| {
        let calls = f64::from(calls);
        calls / Sharing::Scalability(law).stretch(calls, 1.0)
    };
    let best = (1..100).max_by(|a, b| throughput(*a).total_cmp(&throughput(*b)));
    let peak = law.peak().expect("κ is above 0");
    assert!((peak - 9.75).abs() < 0.01, "{peak}");
    assert_eq!(best, Some(10));
    assert_eq!(Scalability::new(0.05, 0.0).expect("in range").peak(), None);
}

#[test]
fn the_work_done_is_the_work_that_came() {
    for seed in seeds(0..50) {
        let random = &mut Random(seed);
        let demands: Vec<u64> = (0..40).map(|_| random.below(90 * MS)).collect();
        let ends = ends(servers(1), &demands);
        let work: u64 = demands.iter().sum();
        let (_, last) = ends.last().expect("calls ended");
        assert!(last.abs_diff(work) <= 40, "seed {seed}: {last}, not {work}");
    }
}

#[test]
fn a_shorter_call_never_ends_after_a_longer_one_that_came_with_it() {
    for seed in seeds(0..50) {
        let random = &mut Random(seed);
        let demands: Vec<u64> = (0..20).map(|_| random.below(50 * MS)).collect();
        let ends = ends(servers(3), &demands);
        let is_sorted = ends.is_sorted_by_key(|(id, _)| demands[*id as usize]);
        assert!(is_sorted, "seed {seed}");
    }
}

#[test]
fn a_backend_resets_what_is_above_its_breaking_point() {
    let above = NonZeroU32::new(2).expect("above 0");
    let mut model = Model::new(servers(2).breaks(above, BreakBehaviour::Reset));
    for id in 0..3 {
        assert_eq!(model.starts(5, id, 0, 10), CallStart::Taken);
    }
    assert_eq!(model.wake(), Some(5));
    let ended: Vec<_> = model.due(5).iter().map(|it| (it.id, it.outcome)).collect();
    assert_eq!(ended, [(2, ServiceOutcome::Reset)]);
    assert_eq!(
        (model.calls(), model.most(), model.times_broken()),
        (2, 2, 1)
    );
    assert_eq!(model.wake(), Some(15));
}

#[test]
fn a_backend_that_collapses_loses_all_calls_and_is_down() {
    let above = NonZeroU32::new(2).expect("above 0");
    let restart = 100;
    let mut model = Model::new(servers(2).breaks(above, BreakBehaviour::Collapse { restart }));
    for id in 0..3 {
        assert_eq!(model.starts(5, id, 0, 10), CallStart::Taken);
    }
    let ended: Vec<_> = model.due(5).iter().map(|it| (it.id, it.outcome)).collect();
    let lost = ServiceOutcome::Collapsed;
    assert_eq!(ended, [(0, lost), (1, lost), (2, lost)]);
    assert_eq!(model.starts(104, 3, 0, 10), CallStart::Down(105));
    assert_eq!(
        (model.down_until(104), model.down_until(105)),
        (Some(105), None)
    );
    assert_eq!(model.starts(105, 3, 0, 10), CallStart::Taken);
    assert_eq!(model.wake(), Some(115));
}

#[test]
fn a_heavy_function_counts_as_several_calls() {
    let above = NonZeroU32::new(4).expect("above 0");
    let mut backend = servers(1).breaks(above, BreakBehaviour::Reset);
    backend.weights = vec![Weight::ONE, Weight::new(3.0).expect("in range")];
    let mut model = Model::new(backend);
    for (id, function) in [(0, 1), (1, 0), (2, 0)] {
        assert_eq!(model.starts(0, id, function, 10 * MS), CallStart::Taken);
    }
    let ended: Vec<_> = model.due(0).iter().map(|it| (it.id, it.outcome)).collect();
    assert_eq!(ended, [(2, ServiceOutcome::Reset)]);
    // A load of four on one server.
    assert_eq!(model.wake(), Some(40 * MS));
}

#[test]
fn half_of_the_capacity_does_not_slow_a_lone_call_on_servers() {
    let mut backend = servers(4);
    backend.capacity = ValueProfile::constant(0.5).expect("above 0");
    assert_eq!(ends(backend.clone(), &[10 * MS]), [(0, 10 * MS)]);
    assert_eq!(ends(backend, &[10 * MS; 4]).last(), Some(&(3, 20 * MS)));
}

#[test]
fn a_call_that_leaves_frees_its_share() {
    let mut model = Model::new(servers(1));
    for id in 0..2 {
        assert_eq!(model.starts(0, id, 0, 10 * MS), CallStart::Taken);
    }
    assert!(model.leaves(10 * MS, 0));
    assert!(!model.leaves(10 * MS, 0));
    assert_eq!(model.wake(), Some(15 * MS));
}

#[test]
fn ends_are_the_same_however_often_time_is_looked_at() {
    let run = |every: Option<u64>| {
        let random = &mut Random(7);
        let mut backend = servers(2);
        backend.capacity =
            ValueProfile::steps(1.0, &[(30 * MS, 0.3), (90 * MS, 1.0)]).expect("in order");
        let mut model = Model::new(backend);
        let mut ends = Vec::new();
        for id in 0..10 {
            let at = id * 7 * MS;
            assert_eq!(
                model.starts(at, id, 0, random.below(40 * MS)),
                CallStart::Taken
            );
            for nth in 0..every.unwrap_or(0) {
                ends.extend(model.due(at + nth * MS / 10));
            }
        }
        ends.extend(model.due(10 * SECOND));
        ends
    };
    let (seldom, often) = (run(None), run(Some(60)));
    assert_eq!(seldom.len(), 10);
    for (seldom, often) in seldom.iter().zip(&often) {
        assert_eq!(seldom.id, often.id);
        assert!(seldom.at.abs_diff(often.at) <= 1, "{seldom:?} {often:?}");
    }
}

#[test]
fn a_profile_has_its_value_until_the_next_step() {
    let profile = ValueProfile::steps(1.0, &[(10, 2.0), (20, 3.0)]).expect("in order");
    assert_eq!(profile.at(9), (1.0, Some(10)));
    assert_eq!(profile.at(10), (2.0, Some(20)));
    assert_eq!(profile.at(20), (3.0, None));
    let daily = profile.every(25).expect("after the last step");
    assert_eq!(daily.at(24), (3.0, Some(25)));
    assert_eq!(daily.at(25), (1.0, Some(35)));
    assert_eq!(daily.at(61), (2.0, Some(70)));
}

#[test]
fn a_profile_that_makes_no_sense_is_refused() {
    assert!(ValueProfile::constant(0.0).is_err());
    assert!(ValueProfile::constant(f64::NAN).is_err());
    assert!(ValueProfile::steps(1.0, &[(0, 2.0)]).is_err());
    assert!(ValueProfile::steps(1.0, &[(9, 2.0), (9, 3.0)]).is_err());
    let profile = ValueProfile::steps(1.0, &[(9, 2.0)]).expect("in order");
    assert!(profile.every(9).is_err());
}

#[test]
fn events_come_at_the_rate_of_the_hour() {
    let day = [(8 * SECOND, 200.0), (18 * SECOND, 20.0)];
    let profile = ValueProfile::steps(20.0, &day).expect("in order");
    let profile = profile.every(24 * SECOND).expect("a day");
    let random = &mut Random(3);
    let (mut at, mut by_day, mut by_night) = (0, 0, 0);
    loop {
        at = profile.next_event(at, random.unit());
        if at >= 240 * SECOND {
            break;
        }
        match (8..18).contains(&(at / SECOND % 24)) {
            true => by_day += 1,
            false => by_night += 1,
        }
    }
    // 20,000 and 2,800 on average; four standard deviations.
    assert!((19_430..=20_570).contains(&by_day), "{by_day}");
    assert!((2_588..=3_012).contains(&by_night), "{by_night}");
}

#[test]
fn the_mean_of_many_demands_is_the_mean() {
    let demands = [
        ("fixed", ServiceDemand::fixed(70 * MS)),
        (
            "even",
            ServiceDemand::even(40 * MS, 60 * MS).expect("in range"),
        ),
        ("exponential", ServiceDemand::exponential(50 * MS)),
        (
            "lognormal",
            ServiceDemand::lognormal(50 * MS, 1.0).expect("in range"),
        ),
        (
            "Pareto 1.5",
            ServiceDemand::bounded_pareto(10 * MS, 1000 * MS, 1.5).expect("in range"),
        ),
        (
            "Pareto 1",
            ServiceDemand::bounded_pareto(10 * MS, 1000 * MS, 1.0).expect("in range"),
        ),
    ];
    for (name, demand) in demands {
        let count = 200_000_u32;
        // Evenly spread numbers: the mean of quantiles is the mean.
        let numbers = (0..count).map(|nth| (f64::from(nth) + 0.5) / f64::from(count));
        let sum: f64 = numbers.map(|unit| demand.quantile(unit) as f64).sum();
        let (found, right) = (sum / f64::from(count), demand.mean());
        assert!(
            (found / right - 1.0).abs() < 1e-3,
            "{name}: {found}, not {right}"
        );
    }
}

#[test]
fn quantiles_increase_and_are_within_their_bounds() {
    let pareto = ServiceDemand::bounded_pareto(10, 1000, 1.2).expect("in range");
    let lognormal = ServiceDemand::lognormal(500, 2.0).expect("in range");
    assert_eq!((pareto.quantile(0.0), pareto.quantile(1.0)), (10, 1000));
    assert_eq!(lognormal.quantile(0.5), 500);
    for demand in [pareto, lognormal, ServiceDemand::exponential(500)] {
        let quantiles = (0..=1000).map(|nth| demand.quantile(f64::from(nth) / 1000.0));
        assert!(quantiles.is_sorted(), "{demand:?}");
    }
}
