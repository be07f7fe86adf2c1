//! `tidegate plan`: replays the logs of sidecars through the scheduler.
//!
//! A log contains everything that a scheduler was given (docs/access-log.md), and the scheduler is a
//! pure function of that. So the first thing to show is the identity: fed with the log, it takes
//! the same decision in every line.

mod feed;
mod line;
mod setup;
mod trace;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use self::feed::feed;
use self::trace::Trace;
use super::failed;
use super::logs::Log;

/// The arguments of `tidegate plan LOG…`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Access logs in JSON, in any order; `-` is standard input
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Replays the logs. Exit code 0 if every decision is the same, 1 if one is not, 2 if the logs cannot
/// be read or judged.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let logs = arguments.logs.iter().map(|path| Log::open(path));
    let logs = match logs.collect::<Result<Vec<_>, _>>() {
        Ok(logs) => logs,
        Err(error) => return unusable(error),
    };
    let shows = io::stderr().is_terminal();
    let trace = Trace::read(logs, |lines| {
        if shows {
            eprint!("\r{lines} lines read");
        }
    });
    if shows {
        eprint!("\r\x1b[K");
    }
    match trace {
        Ok(trace) => identity(&trace, arguments.json),
        Err(error) => unusable(error),
    }
}

fn unusable(why: impl std::error::Error) -> ExitCode {
    let cause = why.source().map(|cause| format!(": {cause}"));
    let _: ExitCode = failed(format!("{why}{}", cause.unwrap_or_default()));
    ExitCode::from(2)
}

/// Reports the identity of each process.
fn identity(trace: &Trace, is_json: bool) -> ExitCode {
    let mut rows = Vec::new();
    let mut code = 0;
    for (started, process) in &trace.processes {
        let mut row = json!({
            "started_us": started,
            "calls": process.calls.len(),
            "without_line": process.missing(),
        });
        match feed(trace, process) {
            Ok(fed) => {
                row["same"] = fed.same.into();
                row["of"] = fed.calls.into();
                if let Some(first) = fed.first {
                    code = code.max(1);
                    row["differs"] = json!({
                        "line": first.place,
                        "id": format!("{:016x}", first.id),
                        "at_ns": first.at,
                        "logged": first.logged,
                        "decided": first.decided,
                    });
                }
            }
            Err(error) => {
                code = 2;
                row["unknown"] = error.to_string().into();
            }
        }
        rows.push(row);
    }
    if trace.old > 0 || rows.is_empty() {
        code = 2;
    }
    let report = json!({
        "processes": rows,
        "lost_lines": trace.lost,
        "broken_lines": trace.broken,
        "broken_at": trace.broken_at,
        "lines_without_steps": trace.old,
        "calls_with_quotas": trace.with_quota,
    });
    let text = match is_json {
        true => format!("{report:#}\n"),
        false => rendered(&report),
    };
    // A reader that closed the pipe has read enough.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::from(code)
}

/// The report for people.
fn rendered(report: &Value) -> String {
    let mut text = String::new();
    let none = Vec::new();
    let rows = report["processes"].as_array().unwrap_or(&none);
    if rows.is_empty() {
        text += "no line of a sidecar with steps was found; log.access = true writes them\n";
    }
    for row in rows {
        let (calls, missing) = (&row["calls"], &row["without_line"]);
        text += &format!(
            "process {}: {calls} calls met limits, {missing} calls without a line\n",
            row["started_us"]
        );
        if let Some(why) = row["unknown"].as_str() {
            text += &format!("  identity unknown: {why}\n");
            continue;
        }
        let differs = &row["differs"];
        if differs.is_null() {
            text += &format!("  identity: the same decision in all {} lines\n", row["of"]);
            continue;
        }
        let word = |key: &str| differs[key].as_str().unwrap_or_default().to_owned();
        text += &format!(
            "  identity: the same decisions in {} of {} lines, until\n",
            row["same"], row["of"]
        );
        text += &format!(
            "  {} (call {}, {} ns after the start)\n",
            word("line"),
            word("id"),
            differs["at_ns"]
        );
        text += &format!(
            "    logged:  {}\n    decided: {}\n",
            word("logged"),
            word("decided")
        );
    }
    for (key, what) in [
        (
            "lost_lines",
            "lines were lost, because the log was read too slowly: the calls in them are not known",
        ),
        ("broken_lines", "lines cannot be read"),
        (
            "lines_without_steps",
            "access lines have no steps: the version that wrote them cannot be replayed",
        ),
        (
            "calls_with_quotas",
            "calls drew from quotas, whose stores' answers are not in the log: they are replayed without quotas",
        ),
    ] {
        if let Some(count @ 1..) = report[key].as_u64() {
            text += &format!("{count} {what}\n");
        }
    }
    text
}
