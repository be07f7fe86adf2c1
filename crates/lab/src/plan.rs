//! `tidegate plan`: replays the logs of sidecars through the scheduler, also under another config.
//!
//! A log contains everything that a scheduler was given (docs/reference/access-log.md), and the scheduler is a
//! pure function of that. So the first thing to show is the identity: fed with the log, it takes
//! the same decision in every line.

mod compare;
mod feed;
mod free;
mod give;
mod given;
mod html;
mod load;
mod names;
mod plans;
mod report;
mod rules;
mod setup;
mod span;
mod steps;
mod stores;
mod timeline;
mod trace;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tidegate_runtime::command::{note, parse_duration, print, shows_progress, unprinted};

use self::feed::feed;
pub use self::load::Clients;
use self::plans::{FreeIdentity, Plan};
use self::report::{PlanReport, Replayed};
use self::setup::{KnownConfigs, Setup};
use self::span::JudgedSpan;
use self::trace::Trace;
use crate::logs::{Log, LogError};
use tidegate::config::{self, Config};
use tidegate::tools::failed;

/// The arguments of `tidegate plan LOG…`.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArguments {
    /// Logs in JSON, written with log.replay = true, in any order; `-` is standard input
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// Run the calls of the logs under this config
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Compare with this config instead of the one in the logs
    #[arg(long, value_name = "FILE", requires = "config")]
    pub against: Option<PathBuf>,
    /// A config that the logs do not contain, because a line with it would be larger than 48 KiB; its fingerprint
    /// shows which it is
    #[arg(long, value_name = "FILE")]
    pub config_of: Vec<PathBuf>,
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
    /// Write the plan as a page with the timeline of both configs
    #[arg(long, value_name = "FILE", requires = "config")]
    pub html: Option<PathBuf>,
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
pub(crate) fn run(arguments: &PlanArguments) -> ExitCode {
    let logs = arguments.logs.iter().map(|path| Log::open(path));
    let logs = match logs.collect::<Result<Vec<_>, _>>() {
        Ok(logs) => logs,
        Err(error) => return unusable(error),
    };
    let mut known = KnownConfigs::default();
    let mut open = |path: &PathBuf| load(path, &mut known);
    let new = arguments.config.as_ref().map(&mut open).transpose();
    let old = arguments.against.as_ref().map(&mut open).transpose();
    let others: Result<Vec<_>, _> = arguments.config_of.iter().map(&mut open).collect();
    let (new, old) = match (new, old, others) {
        (Ok(new), Ok(old), Ok(_)) => (new, old),
        (Err(code), ..) | (_, Err(code), _) | (.., Err(code)) => return code,
    };
    let progress = ReplayProgress::new();
    let trace = Trace::read(logs, known, |lines| {
        progress.show(&format!("{lines} lines read"));
    });
    let trace = match trace {
        Ok(trace) => trace,
        Err(error) => return unusable(error),
    };
    let mut report = identity(&trace, arguments.seed, &progress);
    let mut code = report.code();
    if let Some(new) = &new {
        if code == 0 || arguments.force {
            progress.show("the calls run under both configs");
            report.plans = plans(&report, arguments, new, old.as_ref());
            let is_unknown = report.plans.iter().any(|plan| !plan.unknown.is_empty());
            let is_beyond = report.plans.iter().any(|plan| arguments.is_beyond(plan));
            code = if is_unknown { 2 } else { u8::from(is_beyond) };
        } else {
            report.is_refused = true;
            code = 2;
        }
    }
    drop(progress);
    let text = match arguments.json {
        true => format!("{:#}\n", report.json()),
        false => report.text(),
    };
    let code = match print(&text) {
        Ok(()) => ExitCode::from(code),
        Err(error) => {
            let _: ExitCode = unprinted(error);
            ExitCode::from(2)
        }
    };
    if let Some(path) = &arguments.html
        && let Err(error) = std::fs::write(path, html::page(&report))
    {
        return unusable(HtmlError {
            path: path.clone(),
            error,
        });
    }
    code
}

/// The page cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
struct HtmlError {
    path: PathBuf,
    #[source]
    error: io::Error,
}

/// Progress that a person at a terminal sees while the logs are read and replayed.
struct ReplayProgress {
    shows: bool,
}

impl ReplayProgress {
    fn new() -> Self {
        Self {
            shows: shows_progress(),
        }
    }

    fn show(&self, what: &str) {
        if self.shows {
            note(format_args!("\r\x1b[K{what}"));
        }
    }
}

impl Drop for ReplayProgress {
    fn drop(&mut self) {
        self.show("");
    }
}

impl PlanArguments {
    /// Whether a plan exceeds a bound.
    fn is_beyond(&self, plan: &Plan) -> bool {
        let after = &plan.comparison.all.after;
        let most = self.max_refused;
        let p95 = self.max_p95_wait;
        most.is_some_and(|most| after.refused_share() > most)
            || p95.is_some_and(|most| after.wait(950) > most.as_secs_f64())
    }
}

fn load(path: &Path, known: &mut KnownConfigs) -> Result<Setup, ExitCode> {
    match config::load(path) {
        Ok(checked) => {
            known.add(&checked.config);
            Ok(Setup::of(&checked.config))
        }
        Err(error) => {
            let _: ExitCode = failed(error.render(false));
            Err(ExitCode::from(2))
        }
    }
}

/// Runs the calls under both configs, with each assumption about clients.
fn plans(
    report: &PlanReport<'_>,
    arguments: &PlanArguments,
    new: &Setup,
    old: Option<&Setup>,
) -> Vec<Plan> {
    let both = [Clients::Open, Clients::Closed].into_iter();
    let asked = both.filter(|it| arguments.clients.is_none_or(|only| only == *it));
    let known = report.free.as_ref().map(FreeIdentity::first_runs);
    let (trace, stores, seed) = (report.trace, report.stores(), arguments.seed);
    asked
        .map(|clients| plans::plan(trace, &stores, known, clients, new, old, seed))
        .collect()
}

fn unusable(why: impl std::error::Error) -> ExitCode {
    let cause = why.source().map(|cause| format!(": {cause}"));
    let _: ExitCode = failed(format!("{why}{}", cause.unwrap_or_default()));
    ExitCode::from(2)
}

/// The identity of each process, and a free run of all.
fn identity<'t>(trace: &'t Trace, seed: u64, progress: &ReplayProgress) -> PlanReport<'t> {
    let replayed = trace.processes.iter().map(|(started, process)| {
        progress.show(&format!("process {started} is replayed"));
        let span = JudgedSpan::of(trace, process);
        let fed = span.and_then(|span| Ok((span, feed(trace, process, &span)?)));
        Replayed {
            started_us: *started,
            process,
            fed,
        }
    });
    let mut report = PlanReport {
        trace,
        processes: replayed.collect(),
        free: None,
        plans: Vec::new(),
        is_refused: false,
    };
    progress.show("the calls run freely");
    report.free = FreeIdentity::of(trace, &report.stores(), seed).ok();
    report
}

/// A plan for another command.
pub(super) struct PlanOutput {
    pub(super) text: String,
    pub(super) json: serde_json::Value,
}

/// Why another command gets no plan.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoPlan {
    /// A log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Another program wrote them, or a sidecar without `log.replay`.
    #[error(
        "the logs have no line that a replay needs: a sidecar writes them with log.replay = true"
    )]
    NoReplay,
    /// The replay decides otherwise than the log, or what decided is not known.
    #[error("the replay does not explain the log; `tidegate plan LOG` shows why")]
    Unexplained,
}

/// The calls of logs under a config that is in no file yet, with clients that do not wait for answers.
pub(super) fn planned(logs: &[PathBuf], new: &Config, seed: u64) -> Result<PlanOutput, NoPlan> {
    let logs = logs.iter().map(|path| Log::open(path));
    let logs = logs.collect::<Result<Vec<_>, _>>()?;
    let progress = ReplayProgress::new();
    let trace = Trace::read(logs, KnownConfigs::default(), |lines| {
        progress.show(&format!("{lines} lines read"));
    })?;
    if trace.processes.is_empty() {
        return Err(NoPlan::NoReplay);
    }
    let mut report = identity(&trace, seed, &progress);
    if report.code() != 0 {
        return Err(NoPlan::Unexplained);
    }
    progress.show("the calls run under both configs");
    let new = Setup::of(new);
    let known = report.free.as_ref().map(FreeIdentity::first_runs);
    let (stores, open) = (report.stores(), Clients::Open);
    let plan = plans::plan(&trace, &stores, known, open, &new, None, seed);
    report.plans = vec![plan];
    Ok(PlanOutput {
        text: report.plans_text(),
        json: report.json()["plan"].take(),
    })
}
