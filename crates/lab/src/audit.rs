//! `tidegate audit`: checks in the access logs of any number of sidecars whether a limit was ever
//! exceeded.
//!
//! A log contains the time at which each call left, so an operator can check the limiter without
//! trusting it. The sweep is exact and accounts for what the logs leave open: stamps are cut to
//! microseconds, clocks of hosts differ, and a call without a line may have left at any moment.
//! Where that could change the verdict, the verdict is unknown.
//! docs/how-to/audit.md has the format of the lines and an example.

mod judge;
mod limit;
mod line;
mod lives;
mod order;
mod quota;
mod report;
mod seen;
mod sweep;
mod twice;

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tidegate_runtime::command::{parse_duration, unprinted};

use self::judge::{Judge, PendingDeparture, UncountedCalls};
use self::line::AuditLine;
use self::lives::Lives;
use self::order::ReorderBuffer;
use self::report::{Broken, Sidecar};
use self::seen::SeenIds;
use self::twice::{Recent, Repeated};
use crate::logs::{At, merge};
use tidegate::config;

pub use self::limit::{AuditedLimit, CountingScope, CountingSpan, Meets};
pub use self::report::{AuditReport, AuditVerdict, LimitRow};
pub use crate::logs::{Log, LogError};

/// Most processes in one run.
const SIDECARS_MAX: usize = 4096;
/// Broken lines that the report names by file and line. The others are counted.
const BROKEN_SHOWN: usize = 10;
/// Largest clock error that is accepted.
const CLOCK_ERROR_MAX: Duration = Duration::from_secs(60 * 60);

/// The arguments of `tidegate audit LOG…`.
#[derive(Clone, Debug, clap::Args)]
pub struct AuditArguments {
    /// Access logs in JSON, in any order; `-` is standard input
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// Audit the windows and outstanding limits of this config, for each sidecar separately
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Audit this limit over all sidecars together, such as total=30/1s, guest_list=10/1s:fixed,
    /// class:polling=5/1s, server:a=4, rate_limit:nova=100/1s or outstanding=10
    #[arg(long = "limit", value_name = "NAME=N/WINDOW")]
    pub limits: Vec<AuditedLimit>,
    /// Apply each --limit to each sidecar separately
    #[arg(long)]
    pub per_sidecar: bool,
    /// Assumptions about the logs
    #[command(flatten)]
    pub assumptions: Assumptions,
}

/// Assumptions about the logs.
#[derive(Clone, Debug, clap::Args)]
pub struct Assumptions {
    /// Largest difference between the clock of a host and the true time, in either direction
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10ms")]
    pub clock_error: Duration,
    /// Calls held back to put them in order, 80 bytes each
    #[arg(long, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..=100_000_000), default_value_t = 1_000_000)]
    pub reorder: u32,
    /// Assume that calls without a line never left
    #[arg(long)]
    pub ignore_missing: bool,
}

/// Why the audit could not run.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The logs have more than `SIDECARS_MAX` processes.
    #[error(
        "{name}:{line} belongs to one more sidecar than {SIDECARS_MAX}; audit fewer logs at a time"
    )]
    Sidecars {
        /// The log.
        name: String,
        /// The number of the line.
        line: u64,
    },
    /// The clock error is too large for any verdict.
    #[error(
        "--clock-error must be below an hour, and below half of the window of {limit}, which is {window:?}"
    )]
    ClockError {
        /// The limit's name.
        limit: Box<str>,
        /// The limit's window.
        window: Duration,
    },
}

/// Runs the command. Exit code 0 if every limit was kept, 1 if one was exceeded, 2 if that is
/// unknown or the usage is wrong. `graphical` draws the lines of a config under its mistakes.
pub(crate) fn run(arguments: &AuditArguments, graphical: bool) -> ExitCode {
    match write_report(arguments, graphical, &mut io::stdout(), &mut io::stderr()) {
        Ok(verdict) => verdict.into(),
        // The reader has no verdict.
        Err(error) => {
            let _: ExitCode = unprinted(error);
            AuditVerdict::Unknown.into()
        }
    }
}

/// Runs the command. Writes the report to `out`, and what prevented the audit to `complaints`.
///
/// # Errors
///
/// A failed write to `out`.
pub fn write_report(
    arguments: &AuditArguments,
    graphical: bool,
    out: &mut impl Write,
    complaints: &mut impl Write,
) -> io::Result<AuditVerdict> {
    let mut limits = Vec::new();
    if let Some(path) = &arguments.config {
        match config::load(path) {
            Ok(checked) => limits.extend(AuditedLimit::of(&checked.config)),
            Err(error) => {
                let _ = writeln!(complaints, "{}", error.render(graphical).trim_end());
                return Ok(AuditVerdict::Unknown);
            }
        }
    }
    let scope = match arguments.per_sidecar {
        true => CountingScope::Sidecar,
        false => CountingScope::Together,
    };
    let given = arguments.limits.iter().cloned();
    limits.extend(given.map(|limit| AuditedLimit { scope, ..limit }));
    let logs = arguments.logs.iter().map(|path| Log::open(path));
    let report = match logs.collect() {
        Ok(logs) => audit(logs, limits, &arguments.assumptions),
        Err(error) => Err(AuditError::Log(error)),
    };
    match report {
        Ok(report) => {
            write!(out, "{}", report.render())?;
            out.flush()?;
            Ok(report.verdict)
        }
        Err(error) => {
            let mut told = format!("tidegate: {error}");
            let cause = std::error::Error::source(&error);
            for cause in std::iter::successors(cause, |error| error.source()) {
                told.push_str(&format!(": {cause}"));
            }
            // If that cannot be written, the exit code still shows it.
            let _ = writeln!(complaints, "{told}");
            Ok(AuditVerdict::Unknown)
        }
    }
}

/// Reads all logs to their ends and makes the report.
///
/// # Errors
///
/// A log that cannot be read, too many sidecars, or a clock error that is too large.
pub fn audit(
    mut logs: Vec<Log>,
    limits: Vec<AuditedLimit>,
    assumptions: &Assumptions,
) -> Result<AuditReport, AuditError> {
    let clock_error = assumptions.clock_error;
    check_clock_error(clock_error, &limits)?;
    let mut audit = Audit {
        judge: Judge::new(limits, clock_error),
        order: ReorderBuffer::new(assumptions.reorder as usize),
        sidecars: Vec::new(),
        lives: Lives::default(),
        numbers: HashMap::new(),
        recent: Recent::default(),
        report: AuditReport {
            logs: logs.len(),
            ignored: assumptions.ignore_missing,
            ..AuditReport::default()
        },
        crowded: None,
    };
    merge(&mut logs, |at| audit.take(&at))?;
    if let Some((name, line)) = audit.crowded {
        return Err(AuditError::Sidecars { name, line });
    }
    Ok(audit.finish())
}

fn check_clock_error(clock_error: Duration, limits: &[AuditedLimit]) -> Result<(), AuditError> {
    for limit in limits {
        let window = match limit.span {
            CountingSpan::Any(length) | CountingSpan::Aligned(length) => length,
            CountingSpan::AtOnce => 2 * CLOCK_ERROR_MAX,
        };
        if limit.scope == CountingScope::Together && 2 * clock_error >= window
            || clock_error > CLOCK_ERROR_MAX
        {
            return Err(AuditError::ClockError {
                limit: limit.name.clone(),
                window,
            });
        }
    }
    Ok(())
}

/// The text read so far.
struct Audit {
    judge: Judge,
    order: ReorderBuffer<PendingDeparture>,
    sidecars: Vec<(Sidecar, SeenIds)>,
    lives: Lives,
    /// The index in `sidecars`, by the start time of the process.
    numbers: HashMap<u64, usize>,
    recent: Recent,
    /// Without its sidecars, rows and verdict, which come last.
    report: AuditReport,
    /// The first line of a sidecar beyond [`SIDECARS_MAX`].
    crowded: Option<(String, u64)>,
}

impl Audit {
    /// Takes one line. Returns the time up to which the log has been read, if the line contains it.
    fn take(&mut self, at: &At<'_>) -> Option<u64> {
        let call = match line::read(at) {
            AuditLine::Call(call) => *call,
            AuditLine::Lost(lines) => {
                self.report.lost = self.report.lost.saturating_add(lines);
                return None;
            }
            AuditLine::Other => {
                self.report.others += 1;
                return None;
            }
            AuditLine::Broken(why) => {
                self.report.broken += 1;
                self.show(at, why);
                return None;
            }
        };
        let sidecars = self.sidecars.len();
        let number = *self.numbers.entry(call.started).or_insert(sidecars);
        if number == SIDECARS_MAX {
            self.numbers.remove(&call.started);
            self.crowded.get_or_insert((at.log.to_owned(), at.number));
            return None;
        }
        if number == sidecars {
            let sidecar = Sidecar {
                first: call.came,
                log: at.log.to_owned(),
                ..Sidecar::default()
            };
            self.sidecars.push((sidecar, SeenIds::default()));
            self.lives.begin(at.log, call.started, call.came);
        }
        let (sidecar, seen) = &mut self.sidecars[number];
        if !seen.insert(call.id) {
            self.report.twice += 1;
            match self.recent.again(number, &call) {
                Repeated::Same => {}
                Repeated::NotCompared => self.report.not_compared += 1,
                Repeated::Other => {
                    self.report.differ += 1;
                    self.show(at, "another line of the same call differs");
                }
            }
            return None;
        }
        self.recent.first(number, &call);
        sidecar.calls += 1;
        sidecar.first = sidecar.first.min(call.came);
        self.lives.came(number, call.came);
        let sent = call.sent?;
        sidecar.sent += 1;
        self.report.quotaless += u64::from(sent.limited && sent.quota.is_empty());
        self.report.beyond += u64::from(sent.is_beyond);
        self.lives.left(number, call.started + sent.at);
        let first = self.lives.first(number);
        let event = self.judge.event(number, first, call.started, call.id, sent);
        let end = event.end();
        if let Some(next) = self.order.push(event) {
            self.judge.judge(next);
        }
        Some(end)
    }

    /// Names a line in the report, unless it names enough already.
    fn show(&mut self, at: &At<'_>, why: &'static str) {
        if self.report.broken_shown.len() < BROKEN_SHOWN {
            self.report.broken_shown.push(Broken {
                log: at.log.to_owned(),
                line: at.number,
                why,
            });
        }
    }

    fn finish(mut self) -> AuditReport {
        while let Some(next) = self.order.pop() {
            self.judge.judge(next);
        }
        let mut report = self.report;
        for (sidecar, seen) in self.sidecars {
            report.sidecars.push(Sidecar {
                missing: seen.missing(),
                far: seen.far(),
                ..sidecar
            });
        }
        report.late = self.order.late;
        let unread = UncountedCalls {
            // A lost line leaves a gap in the ids, except at the end of a log.
            anywhere: report
                .lost
                .saturating_sub(report.missing())
                .saturating_add(report.broken),
            late: report.late,
            ignored: report.ignored,
            // It is unknown which of two contradicting lines is right, and what lies between ids
            // that are far apart.
            in_doubt: report
                .differ
                .saturating_add(report.not_compared)
                .saturating_add(report.far()),
        };
        (report.rows, report.verdict) = self.judge.verdict(&report.sidecars, &self.lives, unread);
        report
    }
}
