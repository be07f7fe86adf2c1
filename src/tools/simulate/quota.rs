//! `tidegate simulate quota`: how nodes share a quota, in virtual time.
//!
//! Every node has the ledger of the sidecar ([`tidegate_limits::quota::Ledger`]); only the clock,
//! the store and the way there are made up. Calls of random size come to all nodes alike; in the
//! second half of the run most of them come to one node, so that the quota has to follow.

mod model;

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tidegate_limits::quota::{Away, Rule, RuleError, Settings};

pub use model::{Half, Outcome, Plan, run};

/// The arguments of `tidegate simulate quota`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// How many nodes share the quota
    #[arg(long, default_value_t = 8, value_name = "NUMBER",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub nodes: u32,
    /// What all of them may spend in one window
    #[arg(long, default_value_t = 50_000, value_name = "TOKENS",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub total: u64,
    /// The smallest grant; by default a hundredth of an equal share
    #[arg(long, value_name = "TOKENS")]
    pub base: Option<u64>,
    /// How long a window is
    #[arg(long, default_value_t = 10_000, value_name = "MILLISECONDS",
          value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub window: u64,
    /// How many windows are run
    #[arg(long, default_value_t = 20, value_name = "NUMBER",
          value_parser = clap::value_parser!(u32).range(4..=1_000))]
    pub windows: u32,
    /// What is asked for in a window, as percent of the total
    #[arg(long, default_value_t = 150, value_name = "PERCENT",
          value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub load: u64,
    /// The dearest call; calls cost from 1 to this, at random
    #[arg(long, default_value_t = 14, value_name = "TOKENS",
          value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub dearest: u64,
    /// What part of all calls comes to the first node, from the middle of the run on
    #[arg(long, default_value_t = 80, value_name = "PERCENT",
          value_parser = clap::value_parser!(u64).range(0..=100))]
    pub skew: u64,
    /// What part of an equal share each node owns in case the store is away; 0 for none
    #[arg(long, default_value_t = 0, value_name = "PERCENT",
          value_parser = clap::value_parser!(u32).range(0..=100))]
    pub safe: u32,
    /// The seed
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub seed: u64,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    /// What to run.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the quota.
    pub fn plan(&self) -> Result<Plan, Vec<RuleError>> {
        let mut settings = Settings::new(self.total, Duration::from_millis(self.window));
        settings.base = self.base;
        settings.nodes_expected = self.nodes;
        settings.away = match self.safe {
            0 => Away::Deny,
            percent => Away::Safe { percent },
        };
        Ok(Plan {
            rule: Rule::check(settings)?,
            windows: self.windows,
            load_percent: self.load,
            dearest: self.dearest,
            skew_percent: self.skew,
            seed: self.seed,
        })
    }
}

/// Runs it. Exit code 0 if no window was exceeded, 1 if one was, 2 if there is no such quota.
#[must_use]
pub fn main(arguments: &Arguments) -> ExitCode {
    let plan = match arguments.plan() {
        Ok(plan) => plan,
        Err(errors) => {
            for error in errors {
                eprintln!("tidegate: {error}");
            }
            return ExitCode::from(2);
        }
    };
    let report = Report::new(&plan, &run(&plan));
    match report.write(arguments.json, &mut io::stdout()) {
        Ok(()) if report.holds() => ExitCode::SUCCESS,
        Ok(()) | Err(_) => ExitCode::FAILURE,
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// By which it can be had again.
    pub seed: u64,
    /// How many nodes there were.
    pub nodes: u32,
    /// What they might spend in a window.
    pub total: u64,
    /// While demand was even.
    pub even: Row,
    /// While most of it was the first node's.
    pub skewed: Row,
}

/// What came of half a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// How many windows it had.
    pub windows: usize,
    /// Such as were exceeded.
    pub exceeded: usize,
    /// What was spent, of the total or of what was asked for if that is less: mean over windows.
    pub used: f64,
    /// The same of the worst window.
    pub used_least: f64,
    /// What the node with the least got in a window, as part of an equal share.
    pub share_least: f64,
    /// What the first node got, as part of all: mean over windows.
    pub first: f64,
    /// Draws in a window.
    pub draws: f64,
    /// Writes for nothing, for each draw.
    pub conflicts: f64,
    /// Surpluses given back, in a window.
    pub relinquished: f64,
    /// Calls that were decided without waiting for the store, of all.
    pub local: f64,
}

impl Report {
    /// What came of a run.
    #[must_use]
    pub fn new(plan: &Plan, outcome: &Outcome) -> Self {
        let settings = plan.rule.settings();
        Self {
            seed: plan.seed,
            nodes: settings.nodes_expected,
            total: settings.total,
            even: Row::new(plan, &outcome.even),
            skewed: Row::new(plan, &outcome.skewed),
        }
    }

    /// Whether no window was exceeded.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.even.exceeded + self.skewed.exceeded == 0
    }

    fn write(&self, json: bool, out: &mut impl Write) -> io::Result<()> {
        if json {
            serde_json::to_writer_pretty(&mut *out, self)?;
            return writeln!(out);
        }
        write!(out, "{self}")
    }
}

impl Row {
    fn new(plan: &Plan, half: &Half) -> Self {
        let settings = plan.rule.settings();
        let total = settings.total;
        let count = half.windows.len().max(1) as f64;
        let mut row = Self {
            windows: half.windows.len(),
            exceeded: 0,
            used: 0.0,
            used_least: f64::INFINITY,
            share_least: f64::INFINITY,
            first: 0.0,
            draws: half.counts.draws as f64 / count,
            conflicts: half.counts.conflicts as f64 / half.counts.draws.max(1) as f64,
            relinquished: half.counts.relinquished as f64 / count,
            local: 1.0 - half.waited as f64 / half.decided.max(1) as f64,
        };
        let share = total as f64 / f64::from(settings.nodes_expected);
        for window in &half.windows {
            let spent: u64 = window.spent.iter().sum();
            let used = spent as f64 / total.min(window.asked).max(1) as f64;
            let least = window.spent.iter().min().copied().unwrap_or(0);
            row.exceeded += usize::from(spent > total);
            row.used += used / count;
            row.used_least = row.used_least.min(used);
            row.share_least = row.share_least.min(least as f64 / share);
            row.first += window.spent[0] as f64 / spent.max(1) as f64 / count;
        }
        row
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds() { "holds" } else { "EXCEEDED" };
        writeln!(
            out,
            "{} nodes share {} in a window: {verdict}, seed {}",
            self.nodes, self.total, self.seed
        )?;
        writeln!(out, "{:<34}{:>10}{:>10}", "", "even", "skewed")?;
        let mut line = |name: &str, of: &dyn Fn(&Row) -> String| {
            let (even, skewed) = (of(&self.even), of(&self.skewed));
            writeln!(out, "  {name:<32}{even:>10}{skewed:>10}")
        };
        let percent = |part: f64| format!("{:.1} %", 100.0 * part);
        line("windows", &|row| row.windows.to_string())?;
        line("exceeded", &|row| row.exceeded.to_string())?;
        line("spent of what could be", &|row| percent(row.used))?;
        line("  in the worst window", &|row| percent(row.used_least))?;
        line("the first node's part", &|row| percent(row.first))?;
        line("the least of an equal share", &|row| {
            percent(row.share_least)
        })?;
        line("decided without waiting", &|row| percent(row.local))?;
        line("draws in a window", &|row| format!("{:.1}", row.draws))?;
        line("conflicts for each draw", &|row| {
            format!("{:.2}", row.conflicts)
        })?;
        line("given back in a window", &|row| {
            format!("{:.1}", row.relinquished)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(arguments: &[&str]) -> Report {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            arguments: Arguments,
        }
        let cli = <Cli as clap::Parser>::parse_from([&["quota"], arguments].concat());
        let plan = cli.arguments.plan().expect("a quota");
        let report = Report::new(&plan, &run(&plan));
        println!("{report}");
        report
    }

    #[test]
    fn eight_nodes_use_what_there_is_and_nobody_starves() {
        let report = report(&[]);
        assert!(report.holds(), "{report}");
        assert!(report.even.used >= 0.98, "{report}");
        assert!(report.even.share_least >= 0.5, "{report}");
        assert!(report.even.local >= 0.98, "{report}");
    }

    #[test]
    fn what_others_leave_goes_to_the_one_who_wants_it() {
        let report = report(&["--load", "110"]);
        assert!(report.holds(), "{report}");
        assert!(report.skewed.first >= 0.7, "{report}");
        assert!(report.skewed.used >= 0.98, "{report}");
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        assert_eq!(report(&["--windows", "6"]), report(&["--windows", "6"]));
        assert_ne!(
            report(&["--windows", "6"]),
            report(&["--windows", "6", "--seed", "2"])
        );
    }

    #[test]
    fn a_safe_share_of_its_own_exceeds_nothing() {
        let report = report(&["--safe", "50", "--windows", "8"]);
        assert!(report.holds(), "{report}");
        assert!(report.even.used >= 0.98, "{report}");
    }
}
