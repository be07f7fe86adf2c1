//! The model against what queueing theory says about it.

use std::num::NonZeroU32;

use tidegate_backends::drive::poisson;
use tidegate_backends::{
    BackendModel, DriveLimits, SECOND, ServiceDemand, Sharing, ValueProfile, drive,
};

use crate::random::Random;

const MS: u64 = 1_000_000;

/// The mean time that calls spend at the backend, in units of their mean demand.
fn mean_stretch(servers: u32, demand: ServiceDemand, utilisation: f64, seed: u64) -> f64 {
    let per_second = utilisation * f64::from(servers) / demand.mean() * SECOND as f64;
    let rate = ValueProfile::constant(per_second).expect("above 0");
    let until = (150_000.0 / per_second * SECOND as f64) as u64;
    let random = &mut Random(seed);
    let arrivals = poisson(&rate, until, 0, demand, &mut || random.unit());
    let servers = NonZeroU32::new(servers).expect("at least one");
    let done = drive(
        BackendModel::new(Sharing::Servers(servers)),
        &arrivals,
        &DriveLimits::default(),
    );
    let sum: f64 = done.iter().map(|it| (it.ended - it.arrived) as f64).sum();
    sum / done.len() as f64 / demand.mean()
}

fn check(found: f64, right: f64) {
    assert!(
        (found / right - 1.0).abs() < 0.05,
        "{found:.3}, not {right:.3}"
    );
}

/// The mean time in a processor-sharing system with one server is E\[S\]/(1−ρ), whatever the
/// distribution of demands: M. Sakata, S. Noguchi, J. Oizumi, "An analysis of the M/G/1 queue under
/// round-robin scheduling", Operations Research 19(2), 1971.
#[test]
fn one_server_stretches_calls_as_theory_says_whatever_their_demands() {
    check(
        mean_stretch(1, ServiceDemand::exponential(50 * MS), 0.5, 1),
        2.0,
    );
    check(
        mean_stretch(1, ServiceDemand::exponential(50 * MS), 0.7, 2),
        1.0 / 0.3,
    );
    check(
        mean_stretch(1, ServiceDemand::fixed(50 * MS), 0.7, 3),
        1.0 / 0.3,
    );
    let lognormal = ServiceDemand::lognormal(50 * MS, 1.0).expect("in range");
    check(mean_stretch(1, lognormal, 0.6, 4), 2.5);
    let pareto = ServiceDemand::bounded_pareto(10 * MS, 1000 * MS, 1.5).expect("in range");
    check(mean_stretch(1, pareto, 0.6, 5), 2.5);
}

/// With exponential demands, the number of calls at c shared servers is that of M/M/c, so its mean time
/// is 1 + C(c, a) / (c − a) with Erlang's C.
#[test]
fn several_servers_stretch_calls_as_erlang_says() {
    // C(4, 3.2) = 0.5964, by the sum.
    check(
        mean_stretch(4, ServiceDemand::exponential(50 * MS), 0.8, 6),
        1.0 + 0.5964 / 0.8,
    );
}

/// The negative control: one call at a time is another system, and the check notices.
#[test]
fn a_limit_of_one_makes_it_first_come_first_served() {
    let rate = ValueProfile::constant(10.0).expect("above 0");
    let demand = ServiceDemand::fixed(50 * MS);
    let random = &mut Random(9);
    let arrivals = poisson(&rate, 20_000 * SECOND, 0, demand, &mut || random.unit());
    let backend = BackendModel::new(Sharing::Servers(NonZeroU32::MIN));
    let done = drive(backend, &arrivals, &DriveLimits::total(1));
    let sum: f64 = done.iter().map(|it| (it.ended - it.arrived) as f64).sum();
    // M/D/1 by Pollaczek and Khinchine: 1 + ρ/2(1−ρ) = 1.5, and not 2.
    check(sum / done.len() as f64 / demand.mean(), 1.5);
}
