//! The calls of a scenario: how many arrive, when, and what they do.

use std::sync::Arc;
use std::time::Duration;

use tidegate_backends::ServiceDemand;
use tidegate_limits::Caller;

use super::setup;
use super::times::{nanos, time, time_above_zero, times};
use crate::random::Random;
use tidegate::admit::GateSettings;
use tidegate::options::kind::{NAME_MAX, ValueKind, choice, integer, line, number};
use tidegate::options::{Notes, Section, options, words};

/// The most calls in one scenario, which bounds its memory and its time.
const CALLS_MAX: u32 = 1_000_000;
/// The most groups of arrivals.
const GROUPS_MAX: usize = 1000;
/// How long the backend works on a call, if the scenario does not say.
const TAKES: Duration = Duration::from_millis(50);
/// How to say how fast calls arrive.
const RATE_CURE: &str = "give per_second = 50, or every = \"20ms\"";

options! {
    /// Calls that arrive in the same way.
    pub struct ArrivalsSection => Group + {
        /// The name in expectations.
        name: String,
        /// The caller as a number.
        caller: Caller,
        /// The mean time between two calls.
        gap: Duration,
    } {
        given_name: Option<String> = line(NAME_MAX, "storm").optional().key("name");
        function: Arc<str> = line(NAME_MAX, "guest_list")
            .map(Arc::from, |name: &Arc<str>| name.to_string())
            .or("guest_get_info".into());
        /// The class that they name; without one, their function decides.
        class: Option<String> = line(NAME_MAX, "batch").optional();
        caller_name: Option<String> = line(NAME_MAX, "nova").optional().key("caller");
        /// When the first arrives.
        at: Duration = time().or(Duration::ZERO);
        count: Option<u32> = integer(1..=CALLS_MAX).optional();
        /// Instead of a count: until when they arrive.
        length: Option<Duration> = time_above_zero().optional().key("for");
        every: Option<Duration> = time_above_zero().optional();
        /// Instead of a gap: a rate.
        per_second: Option<Duration> = gap().optional();
        spread: ArrivalSpread = choice().or(ArrivalSpread::Even);
        /// How long the backend works on a call.
        takes: (Duration, Duration) = times().or((TAKES, TAKES));
        /// Times are lognormal: `takes` is the median, and this is the standard deviation of the logarithm.
        tail: Option<Tail> = tail().optional();
        /// How long a call is on its way to the backend.
        reaches_after: (Duration, Duration) = times().or((Duration::ZERO, Duration::ZERO));
        /// How long after its arrival a client without an answer leaves.
        leaves_after: Option<Duration> = time().optional();
    }
}

words! {
    /// How arrivals are spread over time.
    pub(crate) enum ArrivalSpread {
        /// At equal distances.
        Even = "even",
        /// Each at random.
        Poisson = "poisson",
    }
}

/// The standard deviation of the logarithm of times, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail(u32);

impl Tail {
    fn sigma(self) -> f64 {
        f64::from(self.0) / 1000.0
    }
}

fn tail() -> ValueKind<Tail> {
    let take = |sigma: f64| {
        let fits = (0.0..=10.0).contains(&sigma);
        fits.then(|| Tail((sigma * 1000.0).round() as u32))
    };
    number("0 to 10", take, |tail| tail.sigma())
}

/// A rate, as the time between two calls.
fn gap() -> ValueKind<Duration> {
    let take = |rate: f64| {
        let fits = (0.001..=1_000_000.0).contains(&rate);
        fits.then(|| Duration::from_secs_f64(1.0 / rate))
    };
    number("0.001 to 1000000", take, |gap| 1.0 / gap.as_secs_f64())
}

/// A call before the scenario runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedCall {
    pub(super) group: usize,
    pub(super) arrives: Duration,
    pub(super) takes: Duration,
    pub(super) reaches_after: Duration,
}

/// Every call, in the order of arrival. Groups that arrive at the same moment take turns.
pub(super) fn calls(groups: &[Group], seed: u64) -> Vec<PlannedCall> {
    let mut calls = Vec::new();
    for (group, (index, stream)) in groups.iter().zip((0..).zip(1..)) {
        let mut random = Random::new(seed, stream);
        for (nth, arrives) in group.arrivals(&mut random).enumerate() {
            calls.push((arrives, nth, index));
        }
    }
    calls.sort_unstable();
    let mut lengths: Vec<_> = (0..groups.len() as u64)
        .map(|index| Random::new(seed, 1 << 32 | index))
        .collect();
    let planned = calls
        .into_iter()
        .map(|(arrives, _, index): (_, usize, usize)| {
            let (group, random) = (&groups[index], &mut lengths[index]);
            PlannedCall {
                group: index,
                arrives,
                takes: group.work(random),
                reaches_after: random.between(group.reaches_after),
            }
        });
    planned.collect()
}

impl Group {
    /// The approximate number of calls.
    fn calls_about(&self) -> f64 {
        match (self.count, self.length) {
            (Some(count), _) => f64::from(count),
            (None, Some(length)) if !self.gap.is_zero() => length.div_duration_f64(self.gap),
            // A mistake, which has been noted.
            (None, _) => 0.0,
        }
    }

    /// How long the backend would take for a call alone.
    fn work(&self, random: &mut Random) -> Duration {
        let Some(tail) = self.tail else {
            return random.between(self.takes);
        };
        let demand = ServiceDemand::lognormal(nanos(self.takes.0), tail.sigma());
        let demand = demand.expect("the range of its kind is the same");
        Duration::from_nanos(demand.quantile(random.unit()))
    }

    fn arrivals(&self, random: &mut Random) -> impl Iterator<Item = Duration> {
        let mut at = self.at;
        let mut nth = 0;
        std::iter::from_fn(move || {
            match self.spread {
                // By multiplying, so that rounding errors do not add up.
                ArrivalSpread::Even => at = self.at + self.gap * nth,
                ArrivalSpread::Poisson => at += random.gap(1.0 / self.gap.as_secs_f64()),
            }
            nth += 1;
            let is_over = match (self.count, self.length) {
                (Some(count), _) => nth > count,
                (None, length) => at >= self.at + length? || nth > CALLS_MAX,
            };
            (!is_over).then_some(at)
        })
    }
}

/// Reads the arrivals. `settings` are all that are in force at any time.
pub(super) fn groups(root: &Section<'_>, settings: &[&GateSettings]) -> Vec<Group> {
    let notes = root.notes();
    let at = root.mark().inside("arrivals");
    let Some(sections) = root.sections("arrivals", GROUPS_MAX) else {
        return Vec::new();
    };
    if sections.is_empty() {
        let cure = "add a section [[arrivals]], and below it count = 300";
        notes.missing(&at, "no call arrives", cure);
    }
    let mut groups: Vec<Group> = Vec::new();
    // The first has no name: it is `Caller::ANONYMOUS`, which is number 0.
    let mut callers = vec![None];
    let mut calls_left = f64::from(CALLS_MAX);
    for section in sections {
        let given: ArrivalsSection = section.read();
        check(&given, settings, notes);
        let caller_name = given.caller_name.value.clone();
        let name = given
            .given_name
            .value
            .clone()
            .or_else(|| caller_name.clone());
        let name = name.unwrap_or_else(|| given.function.value.to_string());
        if groups.iter().any(|other| other.name == name) {
            let cause = format!("two groups are named {name:?}");
            let cure = "give each a name of its own, such as name = \"first\"";
            notes.error(&given.given_name, cause, cure);
        }
        let caller = callers.iter().position(|known| *known == caller_name);
        let caller = caller.unwrap_or_else(|| {
            callers.push(caller_name);
            callers.len() - 1
        });
        let caller = Caller(caller as u64);
        let gap = given.every.value.or(given.per_second.value);
        let group = given.settings(name, caller, gap.unwrap_or_default());
        let enough = calls_left >= 0.0;
        calls_left -= group.calls_about();
        if enough && calls_left < 0.0 {
            let cause = format!("the scenario has more than {CALLS_MAX} calls");
            notes.error(&given.count, cause, "let fewer arrive");
        }
        groups.push(group);
    }
    groups
}

/// Notes what contradicts itself, or is missing.
fn check(given: &ArrivalsSection, settings: &[&GateSettings], notes: &Notes) {
    let ArrivalsSection {
        count,
        length,
        every,
        per_second,
        spread,
        class,
        takes,
        tail,
        ..
    } = given;
    if let Some(name) = &class.value
        && !settings.is_empty()
        && settings.iter().all(|it| setup::class(it, name).is_none())
    {
        let cure = format!("add a section [[config.class]] with name = {name:?}");
        notes.error(class, format!("there is no class {name:?}"), cure);
    }
    if tail.given && takes.value.0 != takes.value.1 {
        let cause = "takes is already spread over a range";
        notes.error(
            tail,
            cause,
            "leave it out, or give takes one time, the median",
        );
    }
    if count.given && length.given {
        let cause = "count already says when they end";
        notes.error(length, cause, "leave one of the two out");
    }
    if !count.given && !length.given {
        let cure = "give count = 300, or per_second = 50 and for = \"5s\"";
        notes.missing(count, "the number of calls is missing", cure);
    }
    if every.given && per_second.given {
        let cause = "every already says how fast";
        notes.error(per_second, cause, "leave one of the two out");
    }
    if every.given || per_second.given {
        return;
    }
    if length.given {
        notes.missing(length, "the rate of arrivals is missing", RATE_CURE);
    }
    if spread.value == ArrivalSpread::Poisson {
        let cause = "calls that arrive at once cannot be spread";
        notes.error(spread, cause, RATE_CURE);
    }
}
