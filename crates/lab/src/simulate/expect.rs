//! The expectations of a scenario, and whether they hold.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_limits::Timestamp;

use super::arrivals::Group;
use super::figures::{CallFigures, CallTally, ScenarioRun, densest};
use super::times::time;
use tidegate::options::kind::{choice, line, number};
use tidegate::options::{LocatedKey, Notes, Section, did_you_mean, options, words};

/// A line of `[expect]`.
#[derive(Clone, Debug)]
pub(super) struct Expectation {
    pub(super) whose: Whose,
    wants: Wants,
}

/// Selects the calls whose figures are compared.
#[derive(Clone, Debug)]
pub(super) enum Whose {
    All,
    /// By its place in the file.
    Group(usize, String),
    Function(Arc<str>),
    /// Calls sent in a span of time.
    Between(ExpectedSpan),
}

/// Calls sent from one moment on and before another.
#[derive(Clone, Debug)]
pub(super) struct ExpectedSpan {
    from: Duration,
    to: Duration,
    /// Calls of this group only.
    group: Option<(usize, String)>,
}

#[derive(Clone, Debug)]
enum Wants {
    Figure {
        key: String,
        /// Field of the figure in [`CallFigures`].
        field: &'static str,
        bound: Bound,
        value: f64,
    },
    /// `order = "arrival"`
    OrderOfArrival,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Exactly,
    AtLeast,
    AtMost,
}

/// An expectation, compared with the result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckedExpectation {
    /// Scope of the expectation: `all`, or the section of the file, such as `function.guest_list`.
    pub whose: String,
    /// The line of the file.
    pub expected: String,
    /// The result.
    pub found: String,
    /// Whether it holds.
    pub holds: bool,
}

/// Bounds that a figure can have: the suffix of the key, and its meaning.
type FigureBounds = &'static [(&'static str, Bound)];
const COUNT: FigureBounds = &[
    ("", Bound::Exactly),
    ("_min", Bound::AtLeast),
    ("_max", Bound::AtMost),
];
const TIME: FigureBounds = &[("_min", Bound::AtLeast), ("_max", Bound::AtMost)];
/// The figure is the smallest of its kind.
const SMALLEST: FigureBounds = &[("", Bound::AtLeast)];
/// The figure is the largest of its kind.
const LARGEST: FigureBounds = &[("", Bound::AtMost)];

/// Every figure that can be expected, by its field in [`CallFigures`].
const FIGURES: [(&str, FigureBounds); 20] = [
    ("answered", COUNT),
    ("refused", COUNT),
    ("expired", COUNT),
    ("left", COUNT),
    ("failed", COUNT),
    ("sent", COUNT),
    ("makespan_seconds", TIME),
    ("wait_seconds_min", SMALLEST),
    ("wait_seconds_p50", TIME),
    ("wait_seconds_p95", TIME),
    ("wait_seconds_max", LARGEST),
    ("service_seconds_p50", TIME),
    ("service_seconds_p95", TIME),
    ("service_seconds_max", LARGEST),
    ("told_no_seconds_max", LARGEST),
    ("retry_after_seconds_min", SMALLEST),
    ("retry_after_seconds_max", LARGEST),
    ("densest_window", COUNT),
    ("densest_at_backend", COUNT),
    ("in_flight", COUNT),
];

/// Figures that can be expected of a span of time.
const SPAN_FIGURES: [&str; 2] = ["sent", "densest_window"];

options! {
    /// Expectations besides figures.
    pub struct OrderSection {
        /// In which order calls are sent.
        order: Option<CallOrder> = choice().optional();
    }
}

words! {
    pub(crate) enum CallOrder {
        Arrival = "arrival",
    }
}

options! {
    /// Calls that are sent in a span of time.
    pub struct SpanSection {
        /// The first moment.
        from: Duration = time().or(Duration::ZERO);
        /// The moment before which it ends.
        to: Duration = time().or(Duration::MAX);
        /// A group of arrivals.
        group: Option<String> = line(64, "storm").optional();
    }
}

/// The most `[[expect.between]]`.
const SPANS_MAX: usize = 1000;

/// Reads `[expect]`.
pub(super) fn read(section: &Section<'_>, groups: &[Group]) -> Vec<Expectation> {
    let mut expectations = Vec::new();
    let notes = section.notes();
    section.about("What is expected.");
    let functions = section.section("function");
    functions.about("What is expected of the calls of a function.");
    let spans = section.sections("between", SPANS_MAX).unwrap_or_default();
    let of_groups = section.other_sections();
    figures(section, Whose::All, &mut expectations);
    for (function, inner) in functions.other_sections() {
        if groups.iter().all(|group| *group.function != *function) {
            let cause = "no call of this function arrives";
            let cure = "name a function of [[arrivals]]";
            notes.error(&inner.mark(), cause, cure);
        }
        figures(&inner, Whose::Function(function.into()), &mut expectations);
    }
    for inner in spans {
        let whose = Whose::Between(span(&inner, groups));
        figures(&inner, whose, &mut expectations);
    }
    for (name, inner) in of_groups {
        if let Some(index) = group(name, groups, &inner.mark(), notes) {
            let whose = Whose::Group(index, name.to_owned());
            figures(&inner, whose, &mut expectations);
        }
    }
    expectations
}

/// Reads the figures of a section, in the order of [`FIGURES`].
fn figures(section: &Section<'_>, whose: Whose, expectations: &mut Vec<Expectation>) {
    let is_span = matches!(whose, Whose::Between(_));
    let order = (!is_span).then(|| section.read::<OrderSection>());
    let amount = number(
        "0 and more",
        |given| (given >= 0.0).then_some(given),
        |it| *it,
    );
    let mut given: BTreeMap<_, _> = section.others(&amount).into_iter().collect();
    let mut known = Vec::new();
    for (field, bounds) in FIGURES {
        if is_span && !SPAN_FIGURES.contains(&field) {
            continue;
        }
        for &(suffix, bound) in bounds {
            let key = format!("{field}{suffix}");
            if let Some(value) = given.remove(&*key).and_then(|given| given.value) {
                let whose = whose.clone();
                let wants = Wants::Figure {
                    key: key.clone(),
                    field,
                    bound,
                    value,
                };
                expectations.push(Expectation { whose, wants });
            }
            known.push(key);
        }
    }
    for (key, setting) in given {
        let meant = did_you_mean(key, known.iter().map(String::as_str));
        let cure = meant.unwrap_or_else(|| format!("known here: {}", known.join(", ")));
        let cause = format!("there is no figure {key:?}");
        section.notes().error(&setting, cause, cure);
    }
    if order.is_some_and(|it| it.order.value.is_some()) {
        let wants = Wants::OrderOfArrival;
        expectations.push(Expectation { whose, wants });
    }
}

fn span(section: &Section<'_>, groups: &[Group]) -> ExpectedSpan {
    let SpanSection {
        from, to, group, ..
    } = section.read();
    let notes = section.notes();
    if from.value >= to.value {
        notes.error(&to, "the span is empty", "let it end after it begins");
    }
    let name = group.value.clone();
    ExpectedSpan {
        from: from.value,
        to: to.value,
        group: name.and_then(|name| Some((self::group(&name, groups, &group, notes)?, name))),
    }
}

/// The index of a group. A name of none is a mistake.
fn group(name: &str, groups: &[Group], at: &LocatedKey, notes: &Notes) -> Option<usize> {
    let index = groups.iter().position(|group| group.name == name);
    if index.is_none() {
        let names: Vec<_> = groups.iter().map(|group| group.name.as_str()).collect();
        let cure = format!("name one of [[arrivals]]: {}", names.join(", "));
        notes.error(at, "no group has this name", cure);
    }
    index
}

impl Expectation {
    /// Compares it with these figures, which are those of its scope.
    pub(super) fn check(&self, figures: &CallFigures) -> CheckedExpectation {
        let (expected, found, holds) = match &self.wants {
            Wants::OrderOfArrival => {
                let found = match figures.in_order {
                    true => "in order of arrival",
                    false => "out of order",
                };
                let expected = "order = \"arrival\"".to_owned();
                (expected, found.to_owned(), figures.in_order)
            }
            Wants::Figure {
                key,
                field,
                bound,
                value,
            } => {
                let all = serde_json::to_value(figures).expect("figures are numbers");
                // Counts are far below 2^53, so a float holds them exactly.
                let found = all[field].as_f64();
                // A bound on something that was not measured does not hold.
                let holds = found.is_some_and(|found| match bound {
                    Bound::Exactly => found == *value,
                    Bound::AtLeast => found >= *value,
                    Bound::AtMost => found <= *value,
                });
                let found = found.map_or("none".to_owned(), |found| found.to_string());
                (format!("{key} = {value}"), found, holds)
            }
        };
        CheckedExpectation {
            whose: self.whose.to_string(),
            expected,
            found,
            holds,
        }
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Group(_, name) => f.write_str(name),
            Self::Function(name) => write!(f, "function.{name}"),
            Self::Between(span) => write!(f, "{span}"),
        }
    }
}

impl fmt::Display for ExpectedSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((_, name)) = &self.group {
            write!(f, "{name} ")?;
        }
        write!(f, "from {:?}", self.from)?;
        match self.to {
            Duration::MAX => Ok(()),
            to => write!(f, " to {to:?}"),
        }
    }
}

impl ExpectedSpan {
    /// The figures of the calls sent in it. Only [`SPAN_FIGURES`] have a meaning.
    pub(super) fn figures(&self, run: &ScenarioRun, window: Duration) -> CallFigures {
        let tally = match self.group {
            Some((index, _)) => &run.groups[index],
            None => &run.all,
        };
        let (from, to) = (Timestamp::ZERO + self.from, Timestamp::ZERO + self.to);
        let sent = tally.sent_between(from, to);
        CallFigures {
            sent: sent.len() as u64,
            densest_window: densest(sent, window),
            ..CallTally::default().figures(window)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_scenarios_names_every_figure() {
        let page = include_str!("../../../../docs/how-to/simulate.md");
        for (field, bounds) in FIGURES {
            // The page names a smallest and a largest figure once, without the bound.
            let name = match bounds {
                [("", Bound::AtLeast)] => field.strip_suffix("_min"),
                [("", Bound::AtMost)] => field.strip_suffix("_max"),
                _ => Some(field),
            };
            let name = name.expect("the bound is in its name");
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
