//! What the command says.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use crate::telemetry::access::Utc;
use crate::tools::client::table;

/// Sidecars that are listed.
const SIDECARS_SHOWN: usize = 20;

/// Whether a limit was kept. The worst is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Whatever is not known, there was never more than it allows.
    Kept,
    /// What is not known could make the difference.
    Unknown,
    /// Whatever is not known, there was more.
    Exceeded,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Unknown => "cannot be told",
            Self::Exceeded => "EXCEEDED",
        }
    }
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Kept => Self::SUCCESS,
            Verdict::Exceeded => Self::FAILURE,
            Verdict::Unknown => Self::from(2),
        }
    }
}

/// What was found in the logs.
#[derive(Clone, Debug)]
pub struct Report {
    /// Logs that were read.
    pub logs: usize,
    /// Calls that have a line.
    pub calls: u64,
    /// Of these, how many left for the backend.
    pub sent: u64,
    /// Lines that were there before.
    pub twice: u64,
    /// Of these, those whose first line was too long ago to compare with.
    pub not_compared: u64,
    /// Lines that say something else than another one of the same call.
    pub differ: u64,
    /// Lines that are of something else than a call.
    pub others: u64,
    /// Calls that left and met limits, and drew from no quota.
    pub quotaless: u64,
    /// Ids that are so far from the others that what is between them says nothing.
    pub far: u64,
    /// Calls that have none, by the gaps in the ids.
    pub missing: u64,
    /// Lines that the sidecars say were lost.
    pub lost: u64,
    /// Lines that can't be read.
    pub broken: u64,
    /// The first of these.
    pub broken_shown: Vec<Broken>,
    /// Calls that could not be put in order.
    pub late: u64,
    /// Whether calls without a line are taken never to have left.
    pub ignored: bool,
    /// The processes that wrote.
    pub sidecars: Vec<Sidecar>,
    /// Each limit.
    pub rows: Vec<Row>,
    /// All of them.
    pub verdict: Verdict,
}

/// A line that can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The log.
    pub log: String,
    /// Which line of it, from 1.
    pub line: u64,
    /// Why not.
    pub why: &'static str,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// When it started.   µs since the epoch
    pub started: u64,
    /// The log with its first line.
    pub log: String,
    /// Calls of it that have a line.
    pub calls: u64,
    /// Of these, how many left.
    pub sent: u64,
    /// Calls that have none.
    pub missing: u64,
    /// Ids far from all others.
    pub far: u64,
}

impl Sidecar {
    pub(super) fn new(started: u64, log: String) -> Self {
        Self {
            started,
            log,
            calls: 0,
            sent: 0,
            missing: 0,
            far: 0,
        }
    }
}

/// What became of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name.
    pub limit: String,
    /// What it allows.
    pub allowed: String,
    /// The most that there was.
    pub densest: String,
    /// When the first of these calls left, and how much later the last.
    pub when: String,
    /// The ids of these two.
    pub calls: String,
    /// Of which sidecar.
    pub sidecar: String,
    /// Whether it was kept.
    pub verdict: Verdict,
    /// What else is to be said.
    pub why: String,
}

impl Report {
    /// As text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        let mut say = |name: &str, text: String| {
            writeln!(out, "{name:<11}{text}").expect("writing to memory does not fail");
        };
        say(
            "calls",
            format!(
                "{} in {} logs: {} left for the backend, {} never did",
                self.calls,
                self.logs,
                self.sent,
                self.calls - self.sent
            ),
        );
        for (number, sidecar) in self.sidecars.iter().enumerate().take(SIDECARS_SHOWN) {
            say(
                &format!("sidecar {}", sidecar_name(number)),
                format!(
                    "started {}: {} calls, {} left, {} without a line; {}",
                    moment(sidecar.started),
                    sidecar.calls,
                    sidecar.sent,
                    sidecar.missing,
                    sidecar.log
                ),
            );
        }
        let more = self.sidecars.len().saturating_sub(SIDECARS_SHOWN);
        if more > 0 {
            say("", format!("and {more} sidecars more"));
        }
        let ignored = match self.ignored {
            true => ", taken never to have left",
            false => "",
        };
        for (name, count, what) in [
            ("missing", self.missing, "calls have no line"),
            ("lost", self.lost, "lines were lost, as the logs say"),
            ("broken", self.broken, "lines can't be read"),
        ] {
            if count > 0 {
                say(name, format!("{count} {what}{ignored}"));
            }
        }
        if self.far > 0 {
            let far = self.far;
            say(
                "far",
                format!(
                    "{far} ids are far from all others of their process: damage, or no log of it"
                ),
            );
        }
        if self.differ > 0 {
            let differ = self.differ;
            say(
                "differ",
                format!("{differ} lines say something else than another line of the same call"),
            );
        }
        for broken in &self.broken_shown {
            say(
                "",
                format!("{}:{}: {}", broken.log, broken.line, broken.why),
            );
        }
        if self.twice > 0 {
            let compared = match self.not_compared {
                0 => String::new(),
                calls => format!(", {calls} of them too long ago to compare"),
            };
            say(
                "twice",
                format!("{} lines were there before{compared}", self.twice),
            );
        }
        if self.others > 0 {
            say(
                "others",
                format!("{} lines are of something else than a call", self.others),
            );
        }
        let has_quotas = self.rows.iter().any(|row| row.limit.starts_with("quota:"));
        if has_quotas && self.quotaless > 0 {
            let calls = self.quotaless;
            say(
                "no quota",
                format!("{calls} calls left without drawing from one"),
            );
        }
        if self.late > 0 {
            let late = self.late;
            say(
                "late",
                format!("{late} calls could not be put in order: give a larger --reorder"),
            );
        }
        out.push('\n');
        let rows: Vec<[String; 7]> = self.rows.iter().map(Row::cells).collect();
        if rows.is_empty() {
            out.push_str("nothing to audit: give --config or --limit\n");
            return out;
        }
        let heads = [
            "LIMIT", "ALLOWED", "DENSEST", "WHEN", "CALLS", "SIDECAR", "VERDICT",
        ];
        out.push_str(&table(heads, &rows));
        writeln!(out, "\n{}", self.verdict.word()).expect("writing to memory does not fail");
        out
    }
}

impl Row {
    fn cells(&self) -> [String; 7] {
        let verdict = self.verdict.word();
        let verdict = match self.why.is_empty() {
            true => verdict.to_owned(),
            false => format!("{verdict}: {}", self.why),
        };
        [
            self.limit.clone(),
            self.allowed.clone(),
            self.densest.clone(),
            self.when.clone(),
            self.calls.clone(),
            self.sidecar.clone(),
            verdict,
        ]
    }
}

/// What a sidecar is called, by its place.
pub(super) fn sidecar_name(number: usize) -> String {
    (number + 1).to_string()
}

/// A moment in UTC, of microseconds since the epoch.
pub(super) fn moment(micros: u64) -> String {
    Utc(UNIX_EPOCH + Duration::from_micros(micros)).to_string()
}
