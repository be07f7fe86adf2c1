//! Backends and their logs, by seed.
//!
//! Nothing of the advice is in here: the backends are those of `tidegate-backends`, and the logs show what a
//! proxy with a limit would have written.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use tidegate_advice::sample::{Sample, SampleEnding};
use tidegate_backends::drive::{merged, poisson};
use tidegate_backends::{
    Arrival, BackendModel, BreakBehaviour, DriveLimits, FinishedCall, SECOND, Scalability,
    ServiceDemand, ServiceOutcome, Sharing, ValueProfile, drive,
};

/// The seeds that the advice was written with.
pub(crate) const TUNED: Range<u64> = 0..3;
/// The seeds that judge it. They first ran when it was written, and nothing in it was changed after
/// that. A change of the advice moves this range on.
pub(crate) const JUDGED: Range<u64> = 7_000..7_003;

/// Seconds of a log.
pub(crate) const LOG: u64 = 3 * 3600;
const MINUTE: u64 = 60 * SECOND;

/// Even random numbers, of a kind that the advice does not use (Marsaglia, "Xorshift RNGs",
/// Journal of Statistical Software 8, 2003).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn unit(&mut self) -> f64 {
        for _ in 0..2 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
        }
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    fn whole(&mut self, low: u32, high: u32) -> u32 {
        low + (self.unit() * f64::from(high - low + 1)) as u32
    }
}

/// The twelve kinds. The first eight logs reach 80 % of the breaking point, the others far less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sharing,
    SharingHeavyTail,
    Scalability,
    ScalabilityLarge,
    NoStrainBeforeItBreaks,
    TwoFunctions,
    DayAndNight,
    CapacitySteps,
    LightSharing,
    LightScalability,
    LightTwoFunctions,
    LightDayAndNight,
}

pub(crate) const NEAR: [Kind; 8] = [
    Kind::Sharing,
    Kind::SharingHeavyTail,
    Kind::Scalability,
    Kind::ScalabilityLarge,
    Kind::NoStrainBeforeItBreaks,
    Kind::TwoFunctions,
    Kind::DayAndNight,
    Kind::CapacitySteps,
];
pub(crate) const FAR: [Kind; 4] = [
    Kind::LightSharing,
    Kind::LightScalability,
    Kind::LightTwoFunctions,
    Kind::LightDayAndNight,
];

/// A backend with what is asked of it.
pub(crate) struct World {
    pub(crate) backend: BackendModel,
    /// The highest load that it bears.
    pub(crate) bears: u32,
    pub(crate) arrivals: Vec<Arrival>,
    /// Within what time a call must end.   ns
    pub(crate) within: u64,
    /// The limit that the log was made with; 0 for none.
    pub(crate) limit: u32,
}

impl World {
    pub(crate) fn new(kind: Kind, seed: u64) -> Self {
        let mut random = Random::new(seed * 31 + kind as u64);
        let random = &mut random;
        let is_light = FAR.contains(&kind);
        let (sharing, bears) = law(kind, random);
        let then = match random.unit() < 0.5 {
            true => BreakBehaviour::Reset,
            false => BreakBehaviour::Collapse {
                restart: 20 * SECOND,
            },
        };
        let mut backend =
            BackendModel::new(sharing).breaks(NonZeroU32::new(bears).expect("above 0"), then);
        if kind == Kind::CapacitySteps {
            let at = |share: f64| (LOG as f64 * share) as u64 * SECOND;
            let lower = random.between(0.6, 0.8);
            backend.capacity =
                ValueProfile::steps(1.0, &[(at(0.4), lower), (at(0.7), 1.0)]).expect("steps");
        }
        let limit = (f64::from(bears) * 0.8).round() as u32;
        let mean = random.between(0.3, 2.0) * SECOND as f64;
        // What the backend completes in a second at most.
        let throughput = |n: u32| f64::from(n) / sharing.stretch(f64::from(n), 1.0);
        let best = (1..=limit).map(throughput).fold(0.0, f64::max);
        let full = best / mean * SECOND as f64;
        let rate = match is_light {
            true => full * random.between(0.05, 0.08),
            false => full * random.between(0.75, 0.85),
        };
        let arrivals = arrivals(kind, random, mean, rate, is_light);
        let within = (mean * random.between(12.0, 20.0)) as u64;
        Self {
            backend,
            bears,
            arrivals,
            within,
            limit: if is_light { 0 } else { limit },
        }
    }

    /// The results of the calls with this limit; 0 for none.
    pub(crate) fn under(&self, limit: u32) -> Vec<FinishedCall> {
        let mut limits = DriveLimits::total(limit);
        limits.patience = Some(self.within);
        drive(self.backend.clone(), &self.arrivals, &limits)
    }

    /// The log of the world.
    pub(crate) fn log(&self) -> Vec<Sample> {
        samples(&self.under(self.limit))
    }
}

fn law(kind: Kind, random: &mut Random) -> (Sharing, u32) {
    let servers = |servers: u32| Sharing::Servers(NonZeroU32::new(servers).expect("above 0"));
    let scalability = |sigma: f64, kappa: f64| {
        Sharing::Scalability(Scalability::new(sigma, kappa).expect("in range"))
    };
    match kind {
        Kind::Sharing | Kind::SharingHeavyTail | Kind::TwoFunctions | Kind::CapacitySteps => {
            let count = random.whole(3, 9);
            (servers(count), count * random.whole(3, 5))
        }
        Kind::Scalability | Kind::DayAndNight => {
            let law = scalability(random.between(0.03, 0.08), random.between(0.004, 0.01));
            (law, random.whole(24, 34))
        }
        Kind::ScalabilityLarge => {
            let law = scalability(random.between(0.01, 0.03), random.between(0.001, 0.002));
            (law, random.whole(50, 70))
        }
        Kind::NoStrainBeforeItBreaks => {
            let bears = random.whole(8, 16);
            (servers(bears), bears)
        }
        Kind::LightSharing | Kind::LightTwoFunctions | Kind::LightDayAndNight => {
            let count = random.whole(24, 32);
            (servers(count), count * 2)
        }
        Kind::LightScalability => {
            let law = scalability(random.between(0.003, 0.006), random.between(0.0001, 0.0003));
            (law, random.whole(60, 80))
        }
    }
}

/// Calls at a rate that rises above what the backend completes, for some minutes in each hour.
fn arrivals(kind: Kind, random: &mut Random, mean: f64, rate: f64, is_light: bool) -> Vec<Arrival> {
    let storm = random.between(1.5, 1.9);
    let hour = 60 * MINUTE;
    let steps = match kind {
        Kind::DayAndNight | Kind::LightDayAndNight => {
            vec![
                (20 * MINUTE, 1.0),
                (30 * MINUTE, storm),
                (38 * MINUTE, 1.0),
                (50 * MINUTE, 0.3),
            ]
        }
        _ => vec![
            (20 * MINUTE, storm),
            (26 * MINUTE, 0.9),
            (45 * MINUTE, storm),
            (49 * MINUTE, 0.8),
        ],
    };
    let first = if steps.len() == 4 && steps[0].1 < storm {
        0.3
    } else {
        0.9
    };
    let per_second = |rate: f64| {
        let steps: Vec<_> = steps
            .iter()
            .map(|(at, times)| (*at, times * rate))
            .collect();
        ValueProfile::steps(first * rate, &steps)
            .and_then(|it| it.every(hour))
            .expect("steps")
    };
    let until = LOG * SECOND;
    let spread = match kind {
        Kind::SharingHeavyTail => random.between(1.2, 1.6),
        _ => random.between(0.3, 0.7),
    };
    let demand = |mean: f64| {
        let median = (mean / (spread * spread / 2.0).exp()) as u64;
        ServiceDemand::lognormal(median, spread).expect("in range")
    };
    let mut unit = || random.unit();
    match kind {
        Kind::TwoFunctions | Kind::LightTwoFunctions => {
            // Half of the work each: few slow calls beside many fast ones.
            let slow = poisson(
                &per_second(rate / 8.0),
                until,
                0,
                demand(mean * 4.0),
                &mut unit,
            );
            let fast = poisson(
                &per_second(rate * 2.0),
                until,
                1,
                demand(mean / 4.0),
                &mut unit,
            );
            merged(&[slow, fast])
        }
        _ => {
            let rate = if is_light { rate * 1.2 } else { rate };
            poisson(&per_second(rate), until, 0, demand(mean), &mut unit)
        }
    }
}

/// The samples that a log shows of these calls.
pub(crate) fn samples(done: &[FinishedCall]) -> Vec<Sample> {
    let names: [Arc<str>; 2] = ["slow".into(), "fast".into()];
    let caller: Arc<str> = "nova".into();
    done.iter()
        .map(|done| Sample {
            function: Arc::clone(&names[done.function]),
            caller: Some(Arc::clone(&caller)),
            arrived: done.arrived,
            started: done.started,
            ended: done.ended,
            ending: match done.ending {
                tidegate_backends::CallEnding::Backend(ServiceOutcome::Served) => {
                    SampleEnding::Served
                }
                tidegate_backends::CallEnding::Backend(_) => SampleEnding::Failed,
                tidegate_backends::CallEnding::GaveUp => SampleEnding::Left,
            },
        })
        .collect()
}
