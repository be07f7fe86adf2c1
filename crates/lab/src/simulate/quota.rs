//! `tidegate simulate quota`: how sidecars (nodes) share a quota, in virtual time.
//!
//! Every node has the ledger of the sidecar ([`tidegate_limits::quota::Ledger`]). Only the clock,
//! the store and the network are simulated. Calls of random size arrive at all nodes alike. In
//! the second half of the run, most of them arrive at one node, so the quota must follow.

mod model;

use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::process::ExitCode;

use serde::Serialize;
use tidegate_runtime::command::{exit_code, printed, tell};

use tidegate::tools::table::Column;

pub(super) use model::QuotaArguments;
use model::{QuotaRun, run};

/// Runs it. Exit code 0 if no window was exceeded, 1 if one was, 2 if the quota is invalid.
pub(super) fn main(arguments: &QuotaArguments) -> ExitCode {
    let rule = match arguments.rule() {
        Ok(rule) => rule,
        Err(errors) => {
            for error in errors {
                tell(error);
            }
            return ExitCode::from(2);
        }
    };
    let report = QuotaReport::new(arguments, &run(arguments, rule));
    let mut text = Vec::new();
    let written = report.write(arguments.json, &mut text);
    written.expect("memory takes all");
    printed(&String::from_utf8_lossy(&text), exit_code(report.holds()))
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct QuotaReport {
    /// The seed, to repeat the run.
    seed: u64,
    /// The number of nodes.
    nodes: u32,
    /// The total of a window.
    total: u64,
    /// The half with even demand.
    even: HalfRow,
    /// The half in which most demand came to the first node.
    skewed: HalfRow,
}

/// The result of half a run, without its first window, in which the demand is unknown.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct HalfRow {
    /// The number of windows.
    windows: usize,
    /// The number of exceeded windows.
    exceeded: usize,
    /// The part spent, of the total or of the demand if that is less: mean over windows.
    used: f64,
    /// The part spent in the worst window.
    used_least: f64,
    /// The least amount that a node got in a window, as a part of an equal share.
    share_least: f64,
    /// The amount that the first node got, as a part of all: mean over windows.
    first: f64,
    /// Draws in a window.
    draws: f64,
    /// Failed writes for each draw.
    conflicts: f64,
    /// Surpluses returned in a window.
    relinquished: f64,
    /// The part of all calls that was decided without waiting for the store.
    local: f64,
}

impl QuotaReport {
    fn new(arguments: &QuotaArguments, run: &QuotaRun) -> Self {
        let half = run.windows.len() / 2;
        Self {
            seed: arguments.seed,
            nodes: arguments.nodes,
            total: arguments.total,
            even: HalfRow::new(arguments, run, 1..half),
            skewed: HalfRow::new(arguments, run, half + 1..run.windows.len()),
        }
    }

    /// Whether no window was exceeded.
    fn holds(&self) -> bool {
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

impl HalfRow {
    fn new(arguments: &QuotaArguments, run: &QuotaRun, part: Range<usize>) -> Self {
        let total = arguments.total;
        let (before, after) = (run.marks[part.start], run.marks[part.end]);
        let draws = after.draws - before.draws;
        let windows = &run.windows[part];
        let count = windows.len().max(1) as f64;
        let mut row = Self {
            windows: windows.len(),
            exceeded: 0,
            used: 0.0,
            used_least: f64::INFINITY,
            share_least: f64::INFINITY,
            first: 0.0,
            draws: draws as f64 / count,
            conflicts: (after.conflicts - before.conflicts) as f64 / draws.max(1) as f64,
            relinquished: (after.relinquished - before.relinquished) as f64 / count,
            local: 1.0
                - (after.waited - before.waited) as f64
                    / (after.decided - before.decided).max(1) as f64,
        };
        let share = total as f64 / f64::from(arguments.nodes);
        for window in windows {
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

impl fmt::Display for QuotaReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds() { "holds" } else { "EXCEEDED" };
        writeln!(
            out,
            "{} nodes share {} in a window: {verdict}, seed {}",
            self.nodes, self.total, self.seed
        )?;
        writeln!(out, "{:<34}{:>10}{:>10}", "", "even", "skewed")?;
        let percent = |part: f64| format!("{:.1} %", 100.0 * part);
        let lines: [Column<'_, HalfRow>; 10] = [
            ("windows", &|row| row.windows.to_string()),
            ("exceeded", &|row| row.exceeded.to_string()),
            ("spent of what could be", &|row| percent(row.used)),
            ("  in the worst window", &|row| percent(row.used_least)),
            ("the first node's part", &|row| percent(row.first)),
            ("the least of an equal share", &|row| {
                percent(row.share_least)
            }),
            ("decided without waiting", &|row| percent(row.local)),
            ("draws in a window", &|row| format!("{:.1}", row.draws)),
            ("conflicts for each draw", &|row| {
                format!("{:.2}", row.conflicts)
            }),
            ("given back in a window", &|row| {
                format!("{:.1}", row.relinquished)
            }),
        ];
        for (name, of) in lines {
            let (even, skewed) = (of(&self.even), of(&self.skewed));
            writeln!(out, "  {name:<32}{even:>10}{skewed:>10}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(arguments: &[&str]) -> QuotaReport {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            arguments: QuotaArguments,
        }
        let cli = <Cli as clap::Parser>::parse_from([&["quota"], arguments].concat());
        let rule = cli.arguments.rule().expect("a quota");
        QuotaReport::new(&cli.arguments, &run(&cli.arguments, rule))
    }

    #[test]
    fn eight_nodes_use_the_whole_quota_and_none_starves() {
        let report = report(&[]);
        assert!(report.holds(), "{report}");
        assert!(report.even.used >= 0.98, "{report}");
        assert!(report.even.share_least >= 0.5, "{report}");
        assert!(report.even.local >= 0.98, "{report}");
    }

    #[test]
    fn one_node_gets_what_the_others_leave() {
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
    fn safe_shares_exceed_nothing() {
        let report = report(&["--safe", "50", "--windows", "8"]);
        assert!(report.holds(), "{report}");
        assert!(report.even.used >= 0.98, "{report}");
    }
}
