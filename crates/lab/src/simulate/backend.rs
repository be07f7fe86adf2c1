//! `[backend]` of a scenario: how calls at the backend slow one another, and when it breaks.
//!
//! Without this section a call takes as long as its arrivals say, whatever else the backend does.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_backends::{
    BackendModel, BreakBehaviour, OutOfRange, Scalability, Sharing, ValueProfile, Weight as Weighs,
};

use super::times::{nanos, time_above_zero};
use tidegate::options::kind::{ValueKind, choice, function_name, integer, number, table};
use tidegate::options::{Section, options, words};

/// The most steps, and the most functions with weights.
const STEPS_MAX: usize = 1000;
/// How long a collapse lasts, if the scenario does not say.
const RECOVERS: Duration = Duration::from_secs(5);

options! {
    /// How calls at the backend slow one another, and when it breaks.
    pub struct BackendSection {
        /// Calls that run at full speed at once. More calls share these servers evenly.
        servers: Option<u32> = integer(1..=1_000_000).optional();
        /// Universal scalability: the share of the work that only one call at a time can do.
        sigma: Option<f64> = share().optional();
        /// Universal scalability: the cost of each pair of calls.
        kappa: Option<f64> = share().optional();
        /// The highest load that it bears. The next call breaks it.
        breaks_at: Option<u32> = integer(1..=1_000_000).optional();
        /// The backend's reaction to that call.
        breaks: BreakReaction = choice().or(BreakReaction::Reset);
        /// How long it accepts no connection after a collapse.
        recovers_after: Duration = time_above_zero().or(RECOVERS);
        /// How much the calls of a function count in the load.
        weights: Vec<(String, f64)> = weights().or(Vec::new());
        /// After this time the steps begin again.
        day: Option<Duration> = time_above_zero().optional();
    }
}

options! {
    /// A change of the backend's capacity.
    pub struct StepSection {
        /// When it happens.
        at: Option<Duration> = time_above_zero().required("the time is missing", "add at = \"30s\"");
        /// The share of the full capacity from then on.
        capacity: Option<f64> = number("above 0 to 100", |it| (it > 0.0 && it <= 100.0).then_some(it), |it| *it)
            .required("the capacity is missing", "add capacity = 0.5");
    }
}

words! {
    /// The backend's reaction to a call above the load that it bears.
    pub(crate) enum BreakReaction {
        /// The backend resets the connection of the new call.
        Reset = "reset",
        /// All calls at the backend fail, and it accepts no connection for a time.
        Collapse = "collapse",
    }
}

fn share() -> ValueKind<f64> {
    let take = |share: f64| (0.0..=1.0).contains(&share).then_some(share);
    number("0 to 1", take, |share| *share)
}

fn weights() -> ValueKind<Vec<(String, f64)>> {
    let take = |calls: f64| Weighs::new(calls).is_ok().then_some(calls);
    let one = number("0.001 to 1000", take, |calls| *calls);
    let cure = "give functions and their weights, such as { guest_start = 4 }";
    let allowed = "functions and the calls that one of theirs counts as";
    table(allowed, STEPS_MAX, cure, function_name, one)
}

/// A backend that slows down or breaks.
#[derive(Clone, Debug)]
pub(super) struct Fragile {
    pub(super) backend: BackendModel,
    /// The functions with weights, by their numbers in the model.
    functions: Vec<String>,
}

impl Fragile {
    /// The number of a function. One without a weight counts as one call.
    pub(super) fn function(&self, name: &str) -> usize {
        let mut functions = self.functions.iter();
        functions.position(|it| it == name).unwrap_or(usize::MAX)
    }
}

/// Reads `[backend]`, if it is there.
pub(super) fn read(section: &Section<'_>) -> Option<Fragile> {
    let given: BackendSection = section.read();
    let steps: Vec<StepSection> = section.each("step", STEPS_MAX);
    if !given.section.given {
        return None;
    }
    check(&given, &steps, section);
    let steps: Vec<_> = steps
        .iter()
        .filter_map(|step| Some((nanos(step.at.value?), step.capacity.value?)))
        .collect();
    match backend(&given, &steps) {
        Ok(backend) => Some(Fragile {
            backend,
            functions: given
                .weights
                .value
                .into_iter()
                .map(|(name, _)| name)
                .collect(),
        }),
        Err(wrong) => {
            let cure = "let the moments of steps increase, and the day end after the last one";
            section
                .notes()
                .error(&section.mark(), wrong.to_string(), cure);
            None
        }
    }
}

/// Notes what contradicts itself, or does nothing.
fn check(given: &BackendSection, steps: &[StepSection], section: &Section<'_>) {
    let notes = section.notes();
    let scalability = [&given.sigma, &given.kappa];
    if given.servers.given
        && let Some(other) = scalability.into_iter().find(|it| it.given)
    {
        let cause = "servers already say how calls slow one another";
        notes.error(other, cause, "leave one of the two out");
    }
    let slows = given.servers.given || scalability.iter().any(|it| it.given);
    if !slows && !given.breaks_at.given {
        let cure = "add servers = 4, or sigma and kappa, or breaks_at = 10";
        notes.error(&given.section, "it neither slows down nor breaks", cure);
    }
    if let Some(step) = steps.first().filter(|_| !slows) {
        let cause = "calls do not slow one another, so the capacity does not matter";
        notes.error(&step.section, cause, "add servers = 4, or sigma and kappa");
    }
    let of_breaking = [
        (given.breaks.given, given.breaks.at()),
        (given.recovers_after.given, given.recovers_after.at()),
        (given.weights.given && !slows, given.weights.at()),
    ];
    for (_, at) in of_breaking.iter().filter(|(is_given, _)| *is_given) {
        if !given.breaks_at.given {
            notes.error(at, "the backend never breaks", "add breaks_at = 10");
        }
    }
    if given.day.given && steps.is_empty() {
        let cause = "there is no step that could begin again";
        notes.error(&given.day, cause, "add a section [[backend.step]]");
    }
}

fn backend(given: &BackendSection, steps: &[(u64, f64)]) -> Result<BackendModel, OutOfRange> {
    let sharing = match given.servers.value.and_then(NonZeroU32::new) {
        Some(servers) => Sharing::Servers(servers),
        None => {
            let (sigma, kappa) = (given.sigma.value, given.kappa.value);
            Sharing::Scalability(Scalability::new(
                sigma.unwrap_or_default(),
                kappa.unwrap_or_default(),
            )?)
        }
    };
    let capacity = ValueProfile::steps(1.0, steps)?;
    let capacity = match given.day.value {
        Some(day) => capacity.every(nanos(day))?,
        None => capacity,
    };
    let weights = given.weights.value.iter();
    let weights = weights.map(|(_, calls)| Weighs::new(*calls));
    let backend = BackendModel {
        capacity,
        weights: weights.collect::<Result<_, _>>()?,
        ..BackendModel::new(sharing)
    };
    let then = match given.breaks.value {
        BreakReaction::Reset => BreakBehaviour::Reset,
        BreakReaction::Collapse => BreakBehaviour::Collapse {
            restart: nanos(given.recovers_after.value),
        },
    };
    Ok(match given.breaks_at.value.and_then(NonZeroU32::new) {
        Some(above) => backend.breaks(above, then),
        None => backend,
    })
}
