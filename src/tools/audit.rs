//! `tidegate audit`: says by the access logs of any number of sidecars whether a limit was ever
//! exceeded.
//!
//! Whatever a limiter may have thought, a log says when each call left, so that its promise can
//! be checked by who runs it. The sweep is exact and knows what it does not know: stamps are
//! cut to microseconds, clocks of hosts differ, and a call without a line may have left at any
//! moment. Where that could change the answer, the answer is that it cannot be told.
//! docs/audit.md has the format of the lines and an example.

mod judge;
mod limit;
mod line;
mod log;
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

use self::judge::{Event, Judge};
use self::line::Line;
use self::log::At;
use self::order::Order;
use self::report::{Broken, Sidecar};
use self::seen::Seen;
use self::twice::{Lately, Repeated};
use crate::config;

pub use self::limit::{Limit, Meets, Scope, Span};
pub use self::log::{Log, LogError};
pub use self::report::{Report, Row, Verdict};

/// Processes that can be told apart in one run.
const SIDECARS_MAX: usize = 4096;
/// Broken lines that are told of by file and line; the others are counted.
const BROKEN_SHOWN: usize = 10;
/// Largest error of clocks that is taken.
const CLOCK_ERROR_MAX: Duration = Duration::from_secs(60 * 60);

/// The arguments of `tidegate audit LOG…`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Access logs, as JSON, in any order; `-` is the standard input
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// Audit the windows and outstanding limits of this config, of each sidecar by itself
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Audit this limit over all sidecars together, such as total=30/1s, guest_list=10/1s:fixed,
    /// class:polling=5/1s, rate_limit:nova=100/1s or outstanding=10
    #[arg(long = "limit", value_name = "NAME=N/WINDOW")]
    pub limits: Vec<Limit>,
    /// Take each --limit as one of each sidecar by itself
    #[arg(long)]
    pub per_sidecar: bool,
    /// How far the clock of a host may be off the true time, in either direction
    #[arg(long, value_name = "DURATION", value_parser = super::parse_duration, default_value = "10ms")]
    pub clock_error: Duration,
    /// Calls held back to put them in order, 80 bytes each
    #[arg(long, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..=100_000_000), default_value_t = 1_000_000)]
    pub reorder: u32,
    /// Take it that calls without a line never left
    #[arg(long)]
    pub ignore_missing: bool,
}

/// What is audited, and what is known of the logs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The limits. Quotas need none: lines that drew from one have its total.
    pub limits: Vec<Limit>,
    /// How far the clock of a host may be off.
    pub clock_error: Duration,
    /// Calls held back to put them in order.
    pub reorder: usize,
    /// Whether calls without a line are taken never to have left.
    pub ignore_missing: bool,
}

/// Why nothing could be audited.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A log can't be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Lines of more processes than are told apart.
    #[error("{name}:{line} is of one sidecar more than {SIDECARS_MAX}; audit fewer logs at a time")]
    Sidecars {
        /// The log.
        name: String,
        /// Which line of it.
        line: u64,
    },
    /// Clocks err so much that nothing could be said.
    #[error(
        "--clock-error must be below an hour, and below half of the window of {limit}, which is {window:?}"
    )]
    ClockError {
        /// The limit's name.
        limit: Box<str>,
        /// Its window.
        window: Duration,
    },
}

/// Runs the command: exit code 0 if every limit was kept, 1 if one was exceeded, 2 if that
/// cannot be told, or is not asked as it should be. `graphical` draws the lines of a config
/// under its mistakes.
#[must_use]
pub fn run(arguments: &Arguments, graphical: bool) -> ExitCode {
    match write_report(arguments, graphical, &mut io::stdout(), &mut io::stderr()) {
        Ok(verdict) => verdict.into(),
        // Whoever closed the pipe has read enough, and was told nothing of the rest.
        Err(_) => Verdict::Unknown.into(),
    }
}

/// Runs the command, and writes what it found to `out` and what kept it from looking to
/// `complaints`.
///
/// # Errors
///
/// What can't be written.
pub fn write_report(
    arguments: &Arguments,
    graphical: bool,
    out: &mut impl Write,
    complaints: &mut impl Write,
) -> io::Result<Verdict> {
    let mut limits = Vec::new();
    if let Some(path) = &arguments.config {
        match config::load(path) {
            Ok(checked) => limits.extend(Limit::of(&checked.config)),
            Err(error) => {
                writeln!(complaints, "{}", error.render(graphical).trim_end())?;
                return Ok(Verdict::Unknown);
            }
        }
    }
    let scope = match arguments.per_sidecar {
        true => Scope::Sidecar,
        false => Scope::Together,
    };
    let given = arguments.limits.iter().cloned();
    limits.extend(given.map(|limit| Limit { scope, ..limit }));
    let settings = Settings {
        limits,
        clock_error: arguments.clock_error,
        reorder: arguments.reorder as usize,
        ignore_missing: arguments.ignore_missing,
    };
    let logs = arguments.logs.iter().map(|path| Log::open(path));
    let report = match logs.collect() {
        Ok(logs) => audit(logs, &settings),
        Err(error) => Err(AuditError::Log(error)),
    };
    match report {
        Ok(report) => {
            write!(out, "{}", report.render())?;
            out.flush()?;
            Ok(report.verdict)
        }
        Err(error) => {
            write!(complaints, "tidegate: {error}")?;
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                write!(complaints, ": {error}")?;
                cause = error.source();
            }
            writeln!(complaints)?;
            Ok(Verdict::Unknown)
        }
    }
}

/// Reads all logs to their ends and says what was found.
///
/// # Errors
///
/// A log that can't be read, more sidecars than are told apart, or clocks that err too much.
pub fn audit(mut logs: Vec<Log>, settings: &Settings) -> Result<Report, AuditError> {
    check_clock_error(settings)?;
    let mut audit = Audit {
        judge: Judge::new(settings),
        order: Order::new(settings.reorder),
        sidecars: Vec::new(),
        numbers: HashMap::new(),
        lately: Lately::default(),
        calls: 0,
        sent: 0,
        quotaless: 0,
        twice: 0,
        not_compared: 0,
        differ: 0,
        others: 0,
        lost: 0,
        broken: 0,
        broken_shown: Vec::new(),
        crowded: None,
    };
    let names: Vec<String> = logs.iter().map(|log| log.name().to_owned()).collect();
    log::merge(&mut logs, |at| audit.take(&names, &at))?;
    if let Some((name, line)) = audit.crowded {
        return Err(AuditError::Sidecars { name, line });
    }
    Ok(audit.finish(names.len(), settings.ignore_missing))
}

fn check_clock_error(settings: &Settings) -> Result<(), AuditError> {
    for limit in &settings.limits {
        let window = match limit.span {
            Span::Any(length) | Span::Aligned(length) => length,
            Span::AtOnce => 2 * CLOCK_ERROR_MAX,
        };
        if limit.scope == Scope::Together && 2 * settings.clock_error >= window
            || settings.clock_error > CLOCK_ERROR_MAX
        {
            return Err(AuditError::ClockError {
                limit: limit.name.clone(),
                window,
            });
        }
    }
    Ok(())
}

/// What was read so far.
struct Audit {
    judge: Judge,
    order: Order<Event>,
    sidecars: Vec<(Sidecar, Seen)>,
    /// Of each start of a process, its place among the sidecars.
    numbers: HashMap<u64, usize>,
    lately: Lately,
    calls: u64,
    sent: u64,
    /// Calls that left and met limits, and drew from no quota.
    quotaless: u64,
    twice: u64,
    not_compared: u64,
    differ: u64,
    others: u64,
    lost: u64,
    broken: u64,
    broken_shown: Vec<Broken>,
    /// The line of one sidecar too many.
    crowded: Option<(String, u64)>,
}

impl Audit {
    /// Takes one line; says how far the log has come by it.
    fn take(&mut self, names: &[String], at: &At<'_>) -> Option<u64> {
        let line = match at.line {
            Some(line) => line::read(line),
            None => Line::Broken("it is longer than a line can be"),
        };
        let call = match line {
            Line::Call(call) => *call,
            Line::Lost(lines) => {
                self.lost = self.lost.saturating_add(lines);
                return None;
            }
            Line::Other => {
                self.others += 1;
                return None;
            }
            Line::Broken(why) => {
                self.broken += 1;
                self.show(names, at, why);
                return None;
            }
        };
        let sidecars = self.sidecars.len();
        let number = *self.numbers.entry(call.started).or_insert(sidecars);
        if number == SIDECARS_MAX {
            self.numbers.remove(&call.started);
            self.crowded
                .get_or_insert((names[at.log].clone(), at.number));
            return None;
        }
        if number == sidecars {
            let sidecar = Sidecar::new(call.started, names[at.log].clone());
            self.sidecars.push((sidecar, Seen::default()));
        }
        let (sidecar, seen) = &mut self.sidecars[number];
        if !seen.insert(call.id) {
            self.twice += 1;
            match self.lately.again(number, &call) {
                Repeated::Same => {}
                Repeated::NotCompared => self.not_compared += 1,
                Repeated::Other => {
                    self.differ += 1;
                    self.show(
                        names,
                        at,
                        "it says something else than another line of the same call",
                    );
                }
            }
            return None;
        }
        self.lately.first(number, &call);
        self.calls += 1;
        sidecar.calls += 1;
        let sent = call.sent?;
        self.sent += 1;
        sidecar.sent += 1;
        self.quotaless += u64::from(sent.limited && sent.quota.is_empty());
        let event = self.judge.event(number, call.started, call.id, sent);
        let end = event.end();
        if let Some(next) = self.order.push(event) {
            self.judge.judge(next);
        }
        Some(end)
    }

    /// Has a line shown in the report, unless there are many already.
    fn show(&mut self, names: &[String], at: &At<'_>, why: &'static str) {
        if self.broken_shown.len() < BROKEN_SHOWN {
            self.broken_shown.push(Broken {
                log: names[at.log].clone(),
                line: at.number,
                why,
            });
        }
    }

    fn finish(mut self, logs: usize, ignore_missing: bool) -> Report {
        while let Some(next) = self.order.pop() {
            self.judge.judge(next);
        }
        let sidecars: Vec<Sidecar> = self
            .sidecars
            .into_iter()
            .map(|(sidecar, seen)| Sidecar {
                missing: seen.missing(),
                far: seen.far(),
                ..sidecar
            })
            .collect();
        let far: u64 = sidecars.iter().map(|sidecar| sidecar.far).sum();
        let missing: u64 = sidecars.iter().map(|sidecar| sidecar.missing).sum();
        let unread = Unread {
            // A line that was lost leaves a gap, but for the last ones.
            anywhere: self
                .lost
                .saturating_sub(missing)
                .saturating_add(self.broken),
            late: self.order.late(),
            ignored: ignore_missing,
            // Of lines that disagree nobody can say which is right, nor what is between ids that are
            // far apart.
            untold: self
                .differ
                .saturating_add(self.not_compared)
                .saturating_add(far),
        };
        let (rows, verdict) = self.judge.verdict(&sidecars, unread);
        Report {
            logs,
            calls: self.calls,
            sent: self.sent,
            twice: self.twice,
            not_compared: self.not_compared,
            differ: self.differ,
            others: self.others,
            quotaless: self.quotaless,
            far,
            missing,
            lost: self.lost,
            broken: self.broken,
            broken_shown: self.broken_shown,
            late: unread.late,
            ignored: ignore_missing,
            sidecars,
            rows,
            verdict,
        }
    }
}

/// Calls of which nothing could be counted, besides those missing of each sidecar.
#[derive(Clone, Copy, Debug)]
struct Unread {
    /// Lines that were lost or are broken, of whatever sidecar.
    anywhere: u64,
    /// Calls that came too late to be put in order.
    late: u64,
    /// Whether those without a line are taken never to have left.
    ignored: bool,
    /// What of the logs is in doubt, so that no count of them is whole.
    untold: u64,
}

impl Unread {
    /// How many more calls there may have been than were counted, where so many are missing.
    fn beside(self, missing: u64) -> u64 {
        let without_a_line = match self.ignored {
            true => 0,
            false => missing.saturating_add(self.anywhere),
        };
        match self.untold {
            0 => without_a_line.saturating_add(self.late),
            _ => u64::MAX,
        }
    }
}
