//! `tidegate plan`: replays the logs of sidecars through the scheduler, also under another config.
//!
//! A log contains everything that a scheduler was given (docs/access-log.md), and the scheduler is a
//! pure function of that. So the first thing to show is the identity: fed with the log, it takes
//! the same decision in every line.

mod compare;
mod feed;
mod free;
mod line;
mod setup;
mod trace;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_runtime::command::parse_duration;

use self::compare::Comparison;
use self::feed::{Fed, FeedError, feed};
pub use self::free::Clients;
use self::free::{By, Load, Ran};
use self::setup::Setup;
use self::trace::Trace;
use super::failed;
use super::logs::Log;
use crate::config;

/// The arguments of `tidegate plan LOG…`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Access logs in JSON, in any order; `-` is standard input
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// Run the calls of the logs under this config
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Compare with this config instead of the one in the logs
    #[arg(long, value_name = "FILE", requires = "config")]
    pub against: Option<PathBuf>,
    /// How clients behave; without it, both are shown
    #[arg(long, value_enum, requires = "config")]
    pub clients: Option<Clients>,
    /// Exit with 1 if more calls than this are refused, such as 0.1%
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "config")]
    pub max_refused: Option<f64>,
    /// Exit with 1 if the p95 of waits is longer
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "config")]
    pub max_p95_wait: Option<Duration>,
    /// Plan also with logs whose identity fails
    #[arg(long, requires = "config")]
    pub force: bool,
    /// The seed of postponements and of service times that are not in the log
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A share, from percent.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent: f64 = number
        .parse()
        .map_err(|_| format!("`{text}` is no percentage, such as 0.1%"))?;
    match (0.0..=100.0).contains(&percent) {
        true => Ok(percent / 100.0),
        false => Err(format!("`{text}` is not between 0% and 100%")),
    }
}

/// Replays the logs. Exit code 0 if every decision is the same and the bounds hold, 1 if not, 2 if the
/// logs cannot be read or judged.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let logs = arguments.logs.iter().map(|path| Log::open(path));
    let logs = match logs.collect::<Result<Vec<_>, _>>() {
        Ok(logs) => logs,
        Err(error) => return unusable(error),
    };
    let configs =
        [&arguments.config, &arguments.against].map(|path| path.as_deref().map(load).transpose());
    let [new, old] = configs;
    let (new, old) = match (new, old) {
        (Ok(new), Ok(old)) => (new, old),
        (Err(code), _) | (_, Err(code)) => return code,
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
    let trace = match trace {
        Ok(trace) => trace,
        Err(error) => return unusable(error),
    };
    let (mut report, mut code) = identity(&trace, arguments.seed);
    let mut tables = String::new();
    if let Some(new) = &new {
        if code == 0 || arguments.force {
            (report["plan"], tables, code) = plans(&trace, arguments, new, old.as_ref());
        } else {
            report["plan_refused"] = "the replay does not explain the log, so a plan would mean nothing; --force makes it".into();
            code = 2;
        }
    }
    let text = match arguments.json {
        true => format!("{report:#}\n"),
        false => rendered(&report) + &tables,
    };
    // A reader that closed the pipe has read enough.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::from(code)
}

fn load(path: &Path) -> Result<Setup, ExitCode> {
    match config::load(path) {
        Ok(checked) => Ok(Setup::of(&checked.config)),
        Err(error) => {
            let _: ExitCode = failed(error.render(false));
            Err(ExitCode::from(2))
        }
    }
}

/// Runs the calls under both configs. Returns the report in both forms, and the exit code.
fn plans(
    trace: &Trace,
    arguments: &Arguments,
    new: &Setup,
    old: Option<&Setup>,
) -> (Value, String, u8) {
    let mut report = json!({});
    let mut text = String::new();
    let (mut is_beyond, mut is_unknown) = (false, false);
    let both = [Clients::Open, Clients::Closed];
    for clients in both
        .into_iter()
        .filter(|it| arguments.clients.is_none_or(|only| only == *it))
    {
        let (name, assumption) = match clients {
            Clients::Open => (
                "open",
                "calls arrive when they did in the log, whatever became of earlier ones",
            ),
            Clients::Closed => (
                "closed",
                "a client asks again as long after its answer as it did in the log",
            ),
        };
        let mut comparison = Comparison::default();
        let mut drawn = 0;
        let mut unknown = Vec::new();
        for process in trace.processes.values() {
            let load = Load::new(trace, process, arguments.seed);
            let before = old.map_or(By::Log, By::Config);
            let run = |by: &By<'_>| free::run(&load, by, clients, arguments.seed);
            match (run(&before), run(&By::Config(new))) {
                (Ok(before), Ok(after)) => comparison.add(trace, process, &before, &after),
                (Err(error), _) | (_, Err(error)) => unknown.push(error.to_string()),
            }
            drawn += load.drawn;
        }
        comparison.complete();
        let after = &comparison.all.after;
        is_beyond |= arguments
            .max_refused
            .is_some_and(|most| after.refused_share() > most);
        let p95 = after.wait(950);
        is_beyond |= arguments
            .max_p95_wait
            .is_some_and(|most| p95 > most.as_secs_f64());
        let mut of = comparison.json();
        text += &format!("\n{name} clients: {assumption}\n{}", comparison.rendered());
        if drawn > 0 {
            text += &format!(
                "{drawn} calls were never sent in the log: they take as long as other calls of their functions\n"
            );
        }
        for why in &unknown {
            text += &format!("a process is left out: {why}\n");
        }
        is_unknown |= !unknown.is_empty();
        of["assumption"] = assumption.into();
        of["service_times_drawn"] = drawn.into();
        of["unknown"] = unknown.into();
        report[name] = of;
    }
    let code = if is_unknown { 2 } else { u8::from(is_beyond) };
    (report, text, code)
}

/// Whether the calls of a log end and wait in a free run as they did in the log.
fn free_identity(trace: &Trace, seed: u64) -> Result<Comparison, FeedError> {
    let mut comparison = Comparison::default();
    for process in trace.processes.values() {
        let load = Load::new(trace, process, seed);
        let ran = free::run(&load, &By::Log, Clients::Open, seed)?;
        let logged: Vec<_> = process.calls.iter().map(Ran::logged).collect();
        comparison.add(trace, process, &logged, &ran);
    }
    comparison.complete();
    Ok(comparison)
}

fn unusable(why: impl std::error::Error) -> ExitCode {
    let cause = why.source().map(|cause| format!(": {cause}"));
    let _: ExitCode = failed(format!("{why}{}", cause.unwrap_or_default()));
    ExitCode::from(2)
}

/// The identity of each process, and the exit code for it.
fn identity(trace: &Trace, seed: u64) -> (Value, u8) {
    let mut rows = Vec::new();
    let mut code = 0;
    for (started, process) in &trace.processes {
        let mut row = json!({
            "started_us": started,
            "calls": process.calls.len(),
            "without_line": process.missing(),
        });
        match feed(trace, process) {
            Ok(fed) => code = code.max(fed_row(&mut row, fed)),
            Err(error) => {
                code = 2;
                row["unknown"] = error.to_string().into();
            }
        }
        rows.push(row);
    }
    // What is in no line may have decided anything.
    if trace.old + trace.lost + trace.broken > 0 || rows.is_empty() {
        code = 2;
    }
    let free = match free_identity(trace, seed) {
        Ok(comparison) => {
            let mut free = comparison.all.json();
            free["same"] = comparison.all.same.into();
            free
        }
        Err(_) => Value::Null,
    };
    let report = json!({
        "processes": rows,
        "free": free,
        "lost_lines": trace.lost,
        "broken_lines": trace.broken,
        "broken_at": trace.broken_at,
        "lines_without_steps": trace.old,
        "calls_with_quotas": trace.with_quota,
    });
    (report, code)
}

/// What feeding one process has shown, and the exit code for it.
fn fed_row(row: &mut Value, fed: Fed) -> u8 {
    row["same"] = fed.same.into();
    row["of"] = fed.calls.into();
    let Some(first) = fed.first else {
        return 0;
    };
    row["differs"] = json!({
        "line": first.place,
        "id": format!("{:016x}", first.id),
        "at_ns": first.at,
        "logged": first.logged,
        "decided": first.decided,
    });
    1
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
    text += &rendered_free(&report["free"]);
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
    if let Some(why) = report["plan_refused"].as_str() {
        text += &format!("no plan is made: {why}\n");
    }
    text
}

/// What a free run of the log's own config came to.
fn rendered_free(free: &Value) -> String {
    let (calls, same) = (free["after"]["calls"].as_u64(), free["same"].as_u64());
    let (Some(calls @ 1..), Some(same)) = (calls, same) else {
        return String::new();
    };
    #[expect(clippy::cast_precision_loss, reason = "calls are counted to 2^32")]
    let share = same as f64 / calls as f64 * 100.0;
    let waits = |of: &str| {
        let waits = &free[of]["wait_seconds"];
        let wait = |key: &str| waits[key].as_f64().unwrap_or_default();
        format!(
            "{} refused; waits p50 {:.3} s, p95 {:.3} s, p99 {:.3} s",
            free[of]["refused"],
            wait("p50"),
            wait("p95"),
            wait("p99")
        )
    };
    format!(
        "free run of the arrivals and service times alone: {share:.2} % of the calls end in the same way\n  \
         in the log:      {}\n  in the free run: {}\n",
        waits("before"),
        waits("after"),
    )
}
