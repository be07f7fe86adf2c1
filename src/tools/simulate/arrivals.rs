//! The calls of a scenario: how many arrive, when, and what they do.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Caller;

use super::random::Random;
use super::reader::{
    Mistake, Section, choice, duration, duration_above_zero, integer, name, number, time_or_span,
};
use super::setup::Setup;

/// The most calls in one scenario, which bounds its memory and its time.
const CALLS_MAX: u32 = 1_000_000;
/// The most groups of arrivals.
const GROUPS_MAX: usize = 1000;

/// Calls that arrive in the same way.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) function: Arc<str>,
    /// The class that they name; without one, their function decides.
    pub(super) class: Option<String>,
    pub(super) caller: Caller,
    /// How long after its arrival a client without an answer leaves.
    pub(super) leaves_after: Option<Duration>,
    at: Duration,
    timing: Timing,
    /// How long the backend works on a call.
    takes: (Duration, Duration),
    /// How long a call is on its way to the backend.
    reaches_after: (Duration, Duration),
}

/// How many calls, how far apart.
#[derive(Clone, Copy, Debug)]
struct Timing {
    gap: Gap,
    until: Until,
}

#[derive(Clone, Copy, Debug)]
enum Gap {
    Even(Duration),
    /// This many a second on average, each at random.
    Poisson(f64),
}

#[derive(Clone, Copy, Debug)]
enum Until {
    Count(u32),
    Elapsed(Duration),
}

/// A call before the scenario runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) group: usize,
    pub(super) arrives: Duration,
    pub(super) takes: Duration,
    pub(super) reaches_after: Duration,
}

/// Every call, in the order of arrival. Groups that arrive at the same moment take turns.
pub(super) fn calls(groups: &[Group], seed: u64) -> Vec<Planned> {
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
            Planned {
                group: index,
                arrives,
                takes: random.between(group.takes),
                reaches_after: random.between(group.reaches_after),
            }
        });
    planned.collect()
}

impl Group {
    fn arrivals(&self, random: &mut Random) -> impl Iterator<Item = Duration> {
        let mut at = self.at;
        let mut nth = 0;
        std::iter::from_fn(move || {
            match self.timing.gap {
                // By multiplying, so that rounding errors do not add up.
                Gap::Even(gap) => at = self.at + gap * nth,
                Gap::Poisson(per_second) => at += random.gap(per_second),
            }
            nth += 1;
            let is_over = match self.timing.until {
                Until::Count(count) => nth > count,
                Until::Elapsed(time) => at >= self.at + time || nth > CALLS_MAX,
            };
            (!is_over).then_some(at)
        })
    }
}

/// Reads the arrivals. `setups` are all that are in force at any time.
pub(super) fn groups(root: &mut Section<'_>, setups: &[&Setup]) -> Vec<Group> {
    let sections = root.sections("arrivals");
    if sections.is_empty() && !root.has("arrivals") {
        let cure = "add a section [[arrivals]], and below it count = 300";
        root.complain("arrivals", Mistake::new("no call arrives", cure));
    }
    if sections.len() > GROUPS_MAX {
        let cure = format!("give at most {GROUPS_MAX}");
        root.complain("arrivals", Mistake::new("there are too many groups", cure));
        return Vec::new();
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut callers = Vec::new();
    let mut calls_left = f64::from(CALLS_MAX);
    for mut section in sections {
        let group = group(&mut section, setups, &mut callers);
        if groups.iter().any(|other| other.name == group.name) {
            let cure = "give each a name of its own, such as name = \"first\"";
            let message = format!("two groups are named {:?}", group.name);
            section.complain("name", Mistake::new(message, cure));
        }
        let enough = calls_left >= 0.0;
        calls_left -= group.timing.calls_about();
        if enough && calls_left < 0.0 {
            let message = format!("the scenario has more than {CALLS_MAX} calls");
            section.complain("count", Mistake::new(message, "let fewer arrive"));
        }
        section.finish();
        groups.push(group);
    }
    groups
}

impl Timing {
    /// The approximate number of calls.
    fn calls_about(self) -> f64 {
        match (self.until, self.gap) {
            (Until::Count(count), _) => f64::from(count),
            (Until::Elapsed(time), Gap::Even(gap)) => time.as_secs_f64() / gap.as_secs_f64(),
            (Until::Elapsed(time), Gap::Poisson(per_second)) => per_second * time.as_secs_f64(),
        }
    }
}

fn group(section: &mut Section<'_>, setups: &[&Setup], callers: &mut Vec<String>) -> Group {
    let given_name = section.read("name", name);
    let function = section
        .read("function", name)
        .unwrap_or_else(|| "guest_get_info".to_owned());
    let class = section.read("class", name);
    if let Some(class) = &class
        && !setups.is_empty()
        && setups.iter().all(|setup| setup.class(class).is_none())
    {
        let cure = format!("add a section [[config.class]] with name = {class:?}");
        let message = format!("there is no class {class:?}");
        section.complain("class", Mistake::new(message, cure));
    }
    let caller = section.read("caller", name);
    let group_name = given_name
        .or_else(|| caller.clone())
        .unwrap_or_else(|| function.clone());
    let caller = caller.map_or(Caller::ANONYMOUS, |caller| {
        let index = callers.iter().position(|known| *known == caller);
        let index = index.unwrap_or_else(|| {
            callers.push(caller);
            callers.len() - 1
        });
        Caller(index as u64 + 1)
    });
    Group {
        name: group_name,
        class,
        function: function.into(),
        caller,
        at: section.read("at", duration).unwrap_or_default(),
        timing: timing(section),
        takes: section
            .read("takes", time_or_span)
            .unwrap_or((Duration::from_millis(50), Duration::from_millis(50))),
        reaches_after: section
            .read("reaches_after", time_or_span)
            .unwrap_or_default(),
        leaves_after: section.read("leaves_after", duration),
    }
}

fn timing(section: &mut Section<'_>) -> Timing {
    let count = section.read("count", integer(1..=CALLS_MAX));
    let every = section.read("every", duration_above_zero);
    let per_second = section.read("per_second", rate);
    let time = section.read("for", duration_above_zero);
    let is_poisson = section
        .read("spread", choice(&[("even", false), ("poisson", true)]))
        .unwrap_or(false);
    let until = match (count, time) {
        (Some(count), None) => Until::Count(count),
        (None, Some(time)) => Until::Elapsed(time),
        (Some(_), Some(_)) => {
            let mistake = Mistake::new(
                "count already says when they end",
                "leave one of the two out",
            );
            section.complain("for", mistake);
            Until::Count(0)
        }
        (None, None) => {
            if !section.has("count") && !section.has("for") {
                let cure = "give count = 300, or per_second = 50 and for = \"5s\"";
                section.complain(
                    "count",
                    Mistake::new("the number of calls is missing", cure),
                );
            }
            Until::Count(0)
        }
    };
    let is_paced = every.is_some() || per_second.is_some();
    if every.is_some() && per_second.is_some() {
        let mistake = Mistake::new("every already says how fast", "leave one of the two out");
        section.complain("per_second", mistake);
    }
    if time.is_some() && !is_paced && !section.has("every") && !section.has("per_second") {
        let cure = "give per_second = 50, or every = \"20ms\"";
        section.complain("for", Mistake::new("the rate of arrivals is missing", cure));
    }
    let even = every.or_else(|| Some(Duration::from_secs_f64(1.0 / per_second?)));
    let gap = match even {
        Some(even) if is_poisson => Gap::Poisson(1.0 / even.as_secs_f64()),
        Some(even) => Gap::Even(even),
        None => {
            if is_poisson {
                let cure = "give per_second = 50, or every = \"20ms\"";
                let message = "calls that arrive at once cannot be spread";
                section.complain("spread", Mistake::new(message, cure));
            }
            Gap::Even(Duration::ZERO)
        }
    };
    // A time without a rate was complained about; it would never end.
    let until = match (until, even) {
        (Until::Elapsed(_), None) => Until::Count(0),
        _ => until,
    };
    Timing { gap, until }
}

fn rate(value: &toml::de::DeValue<'_>) -> Result<f64, Mistake> {
    let per_second = number(value)?;
    if !(0.001..=1_000_000.0).contains(&per_second) {
        let cure = "give 0.001 to 1000000 calls a second";
        return Err(Mistake::new("it is out of range", cure));
    }
    Ok(per_second)
}
