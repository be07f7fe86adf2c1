//! The result of a scenario, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::expect::{Checked, Whose};
use super::figures::{Figures, Run};
use super::scenario::Scenario;

/// The result of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The file, as it was named.
    pub file: String,
    /// The description in the scenario.
    pub about: String,
    /// The seed of the run.
    pub seed: u64,
    /// The length of the window for the densest window.
    pub window_seconds: f64,
    /// The figures of all calls.
    pub all: Figures,
    /// The figures of each group of arrivals, in the order of the file.
    pub groups: Vec<Part>,
    /// The figures of each function, by name.
    pub functions: Vec<Part>,
    /// What held calls, the most first.
    pub held: Vec<Held>,
    /// The refusals, by reason.
    pub told_no: Vec<ToldNo>,
    /// The expectations, in the order of the file.
    pub expectations: Vec<Checked>,
}

/// The figures of some of the calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// The group or the function.
    pub name: String,
    /// Its figures.
    pub figures: Figures,
}

/// How long a limit held calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Held {
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

impl Report {
    pub(super) fn new(file: &str, seed: u64, scenario: &Scenario, run: Run) -> Self {
        let window = scenario.settings.window.as_ref();
        // Without windows, calls are counted per second.
        let window = window.map_or(Duration::from_secs(1), |window| window.length);
        let of_spans: Vec<_> = scenario
            .expectations
            .iter()
            .map(|expectation| match &expectation.whose {
                Whose::Between(span) => Some(span.figures(&run, window)),
                _ => None,
            })
            .collect();
        let mut held: Vec<_> = run
            .held
            .into_iter()
            .filter(|(_, time)| !time.is_zero())
            .map(|(limit, time)| Held {
                limit: limit.to_string(),
                call_seconds: time.as_secs_f64(),
            })
            .collect();
        held.sort_by(|a, b| b.call_seconds.total_cmp(&a.call_seconds));
        let names = scenario.groups.iter().map(|group| group.name.clone());
        let groups = names.zip(run.groups).map(|(name, tally)| Part {
            name,
            figures: tally.figures(window),
        });
        let functions = run.functions.into_iter().map(|(name, tally)| Part {
            name: name.to_string(),
            figures: tally.figures(window),
        });
        let mut report = Self {
            file: file.to_owned(),
            about: scenario.about.clone(),
            seed,
            window_seconds: window.as_secs_f64(),
            all: run.all.figures(window),
            groups: groups.collect(),
            functions: functions.collect(),
            held,
            told_no: run
                .told_no
                .into_iter()
                .map(|((reason, limit), calls)| ToldNo {
                    reason,
                    limit: limit.map(|limit| limit.to_string()),
                    calls,
                })
                .collect(),
            expectations: Vec::new(),
        };
        let checked = scenario.expectations.iter().zip(of_spans);
        report.expectations = checked
            .map(
                |(expectation, of_span)| match (&expectation.whose, of_span) {
                    (_, Some(figures)) => expectation.check(&figures),
                    (Whose::Group(index, _), None) => {
                        expectation.check(&report.groups[*index].figures)
                    }
                    (Whose::Function(name), None) => {
                        let part = report.functions.iter().find(|part| *part.name == **name);
                        expectation.check(
                            &part
                                .expect("only functions that arrive can be named")
                                .figures,
                        )
                    }
                    (Whose::All | Whose::Between(_), None) => expectation.check(&report.all),
                },
            )
            .collect();
        report
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
        text.push('\n');
        table(&mut text, &self.figures_table());
        if !self.held.is_empty() {
            text.push('\n');
            let mut rows = vec![vec!["held by".to_owned(), "call-seconds".to_owned()]];
            rows.extend(
                self.held
                    .iter()
                    .map(|held| vec![held.limit.clone(), format!("{:.3}", held.call_seconds)]),
            );
            table(&mut text, &rows);
        }
        if !self.told_no.is_empty() {
            text.push('\n');
            let mut rows = vec![vec!["refused".to_owned(), "calls".to_owned()]];
            rows.extend(self.told_no.iter().map(|told| {
                let reason = match &told.limit {
                    Some(limit) => format!("{}, {limit}", told.reason),
                    None => told.reason.to_owned(),
                };
                vec![reason, told.calls.to_string()]
            }));
            table(&mut text, &rows);
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

    fn figures_table(&self) -> Vec<Vec<String>> {
        let head = [
            "",
            "calls",
            "answered",
            "refused",
            "expired",
            "left",
            "failed",
            "makespan",
            "wait p50",
            "p95",
            "max",
            "densest",
            "in flight",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec(), row("all", &self.all)];
        if self.groups.len() > 1 {
            rows.extend(
                self.groups
                    .iter()
                    .map(|part| row(&part.name, &part.figures)),
            );
        }
        if self.functions.len() > 1 {
            // The calls of a function are often those of a group. The same line is not shown twice.
            let is_shown = |part: &Part| {
                self.groups
                    .iter()
                    .any(|group| group.figures == part.figures)
            };
            let rest = self.functions.iter().filter(|part| !is_shown(part));
            rows.extend(rest.map(|part| row(&part.name, &part.figures)));
        }
        rows
    }
}

fn row(name: &str, figures: &Figures) -> Vec<String> {
    let count = |count: u64| count.to_string();
    let seconds = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.3}s"));
    vec![
        name.to_owned(),
        count(figures.calls),
        count(figures.answered),
        count(figures.refused),
        count(figures.expired),
        count(figures.left),
        count(figures.failed),
        seconds(figures.makespan_seconds),
        seconds(figures.wait_seconds_p50),
        seconds(figures.wait_seconds_p95),
        seconds(figures.wait_seconds_max),
        count(figures.densest_window),
        count(figures.in_flight),
    ]
}

/// Writes rows, with the first column left-aligned and the others right-aligned.
fn table(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        let _ = write!(text, "  {:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
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
