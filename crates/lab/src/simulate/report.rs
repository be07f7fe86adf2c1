//! The result of a scenario, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::expect::{CheckedExpectation, Expectation, Whose};
pub use super::figures::ModelLoad;
use super::figures::{CallFigures, CallTally, ScenarioRun};
use super::scenario::Scenario;
use tidegate::tools::table::{Column, aligned};

/// The result of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScenarioReport {
    /// The file, as it was named.
    pub file: String,
    /// The description in the scenario.
    pub about: String,
    /// The seed of the run.
    pub seed: u64,
    /// The length of the window for the densest window.
    pub window_seconds: f64,
    /// The figures of all calls.
    pub all: CallFigures,
    /// The figures of each group of arrivals, in the order of the file.
    pub groups: Vec<Part>,
    /// The figures of each function, by name.
    pub functions: Vec<Part>,
    /// The load on the backend, if the scenario has a model of it.
    pub backend: Option<ModelLoad>,
    /// Limits that held calls, the longest time first.
    pub held: Vec<LimitDelay>,
    /// The refusals, by reason.
    pub told_no: Vec<ToldNo>,
    /// The expectations, in the order of the file.
    pub expectations: Vec<CheckedExpectation>,
}

/// The figures of some of the calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// The group or the function.
    pub name: String,
    /// Figures of the group or the function.
    pub figures: CallFigures,
}

/// How long a limit held calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitDelay {
    /// The limit.
    pub limit: String,
    /// The time that it was closed, counted once for each call that met it and waited. A call that
    /// two limits hold counts at both.
    pub call_seconds: f64,
}

/// Calls that were refused for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToldNo {
    /// The reason, as in replies and metrics.
    pub reason: &'static str,
    /// The limit that refused them, if any.
    pub limit: Option<String>,
    /// The number of calls.
    pub calls: u64,
}

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// For a terminal with colours.
    Coloured,
    /// For everything else.
    Plain,
}

impl ScenarioReport {
    pub(super) fn new(file: &str, seed: u64, scenario: &Scenario, run: &ScenarioRun) -> Self {
        let window = scenario.settings.window.as_ref();
        // Without windows, calls are counted per second.
        let window = window.map_or(Duration::from_secs(1), |window| window.length);
        let part = |name: &str, tally: &CallTally| Part {
            name: name.to_owned(),
            figures: tally.figures(window),
        };
        let all = run.all.figures(window);
        let groups = scenario.groups.iter().zip(&run.groups);
        let groups: Vec<_> = groups.map(|(it, tally)| part(&it.name, tally)).collect();
        let functions = run.functions.iter();
        let functions: Vec<_> = functions.map(|(name, tally)| part(name, tally)).collect();
        let held = run.held.iter().filter(|(_, time)| !time.is_zero());
        let mut held: Vec<_> = held
            .map(|(limit, time)| LimitDelay {
                limit: limit.to_string(),
                call_seconds: time.as_secs_f64(),
            })
            .collect();
        held.sort_by(|a, b| b.call_seconds.total_cmp(&a.call_seconds));
        let told_no = run.told_no.iter().map(|((reason, limit), calls)| ToldNo {
            reason,
            limit: limit.as_ref().map(ToString::to_string),
            calls: *calls,
        });
        let check = |expectation: &Expectation| match &expectation.whose {
            Whose::All => expectation.check(&all),
            Whose::Group(index, _) => expectation.check(&groups[*index].figures),
            Whose::Function(name) => {
                let part = functions.iter().find(|part| *part.name == **name);
                let part = part.expect("only functions that arrive can be named");
                expectation.check(&part.figures)
            }
            Whose::Between(span) => expectation.check(&span.figures(run, window)),
        };
        Self {
            file: file.to_owned(),
            about: scenario.about.clone(),
            seed,
            window_seconds: window.as_secs_f64(),
            expectations: scenario.expectations.iter().map(check).collect(),
            all,
            groups,
            functions,
            backend: run.at_backend,
            held,
            told_no: told_no.collect(),
        }
    }

    /// Whether all expectations hold.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.expectations.iter().all(|checked| checked.holds)
    }

    /// The report as a few lines and tables.
    #[must_use]
    pub fn render(&self, style: Style) -> String {
        let mut text = String::new();
        let verdict = match self.expectations.as_slice() {
            [] => "nothing expected".to_owned(),
            _ if self.holds() => style.good("holds"),
            _ => style.bad("BROKEN"),
        };
        let _ = writeln!(
            text,
            "{}  {verdict}  seed {}",
            style.bold(&self.file),
            self.seed
        );
        if !self.about.is_empty() {
            let _ = writeln!(text, "  {}", self.about);
        }
        let mut table = |lines: &[Vec<String>]| {
            text.push('\n');
            for line in aligned(lines, |column| column > 0).lines() {
                let _ = writeln!(text, "  {line}");
            }
        };
        table(&self.rows("", &COLUMNS));
        if let Some(backend) = &self.backend {
            let mut rows = self.rows("at the backend", &BACKEND_COLUMNS);
            for (nth, row) in rows.iter_mut().enumerate() {
                row.extend(match nth {
                    0 => ["most at once", "broken"].map(str::to_owned),
                    1 => [
                        backend.most_at_once.to_string(),
                        backend.times_broken.to_string(),
                    ],
                    // They are of all calls together.
                    _ => [String::new(), String::new()],
                });
            }
            table(&rows);
        }
        let heads = |first: &str, second: &str| vec![first.to_owned(), second.to_owned()];
        if !self.held.is_empty() {
            let held = self.held.iter();
            let held = held.map(|it| vec![it.limit.clone(), format!("{:.3}", it.call_seconds)]);
            let heads = std::iter::once(heads("held by", "call-seconds"));
            table(&heads.chain(held).collect::<Vec<_>>());
        }
        if !self.told_no.is_empty() {
            let told_no = self.told_no.iter().map(|cause| {
                let reason = match &cause.limit {
                    Some(limit) => format!("{}, {limit}", cause.reason),
                    None => cause.reason.to_owned(),
                };
                vec![reason, cause.calls.to_string()]
            });
            let heads = std::iter::once(heads("refused", "calls"));
            table(&heads.chain(told_no).collect::<Vec<_>>());
        }
        if !self.expectations.is_empty() {
            text.push('\n');
        }
        for checked in &self.expectations {
            let whose = match checked.whose.as_str() {
                "all" => String::new(),
                whose => format!("{whose}: "),
            };
            let line = format!("{whose}{}", checked.expected);
            let _ = if checked.holds {
                writeln!(text, "  {}   {line}", style.good("holds"))
            } else {
                let found = style.bold(&checked.found);
                writeln!(text, "  {}  {line}, found {found}", style.bad("BROKEN"))
            };
        }
        text
    }

    /// The figures of all calls, and of the groups and functions if there are several. The first row has the heads.
    fn rows(&self, head: &str, columns: &[Column<'static, CallFigures>]) -> Vec<Vec<String>> {
        let heads = columns.iter().map(|(head, _)| (*head).to_owned());
        let row = |name: &str, figures: &CallFigures| {
            let cells = columns.iter().map(|(_, cell)| cell(figures));
            std::iter::once(name.to_owned()).chain(cells).collect()
        };
        let of_part = |part: &Part| row(&part.name, &part.figures);
        let heads = std::iter::once(head.to_owned()).chain(heads);
        let mut rows = vec![heads.collect(), row("all", &self.all)];
        if self.groups.len() > 1 {
            rows.extend(self.groups.iter().map(of_part));
        }
        if self.functions.len() > 1 {
            // The calls of a function are often those of a group. The same line is not shown twice.
            let is_shown = |part: &&Part| {
                let mut groups = self.groups.iter();
                groups.any(|group| group.figures == part.figures)
            };
            let rest = self.functions.iter().filter(|part| !is_shown(part));
            rows.extend(rest.map(of_part));
        }
        rows
    }
}

/// The columns of the table, after the name.
const COLUMNS: [Column<'static, CallFigures>; 12] = [
    ("calls", &|it| it.calls.to_string()),
    ("answered", &|it| it.answered.to_string()),
    ("refused", &|it| it.refused.to_string()),
    ("expired", &|it| it.expired.to_string()),
    ("left", &|it| it.left.to_string()),
    ("failed", &|it| it.failed.to_string()),
    ("makespan", &|it| seconds(it.makespan_seconds)),
    ("wait p50", &|it| seconds(it.wait_seconds_p50)),
    ("p95", &|it| seconds(it.wait_seconds_p95)),
    ("max", &|it| seconds(it.wait_seconds_max)),
    ("densest", &|it| it.densest_window.to_string()),
    ("in flight", &|it| it.in_flight.to_string()),
];

/// The columns of the table of the backend, after the name.
const BACKEND_COLUMNS: [Column<'static, CallFigures>; 5] = [
    ("sent", &|it| it.sent.to_string()),
    ("failed", &|it| it.failed.to_string()),
    ("service p50", &|it| seconds(it.service_seconds_p50)),
    ("p95", &|it| seconds(it.service_seconds_p95)),
    ("max", &|it| seconds(it.service_seconds_max)),
];

fn seconds(time: Option<f64>) -> String {
    time.map_or("-".to_owned(), |time| format!("{time:.3}s"))
}

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Self::Coloured => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            Self::Plain => text.to_owned(),
        }
    }

    fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    fn bad(self, text: &str) -> String {
        self.paint("1;31", text)
    }
}
