//! The text that the command prints.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use tidegate::tools::table::{Column, table};
use tidegate_record::digits::Utc;

/// Sidecars that the report lists.
const SIDECARS_SHOWN: usize = 20;

/// Whether a limit was kept. The worst is the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditVerdict {
    /// The limit was kept, for any content of the missing lines.
    Kept,
    /// The missing lines could change the result.
    #[default]
    Unknown,
    /// The limit was exceeded, for any content of the missing lines.
    Exceeded,
}

impl AuditVerdict {
    fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Unknown => "unknown",
            Self::Exceeded => "EXCEEDED",
        }
    }
}

impl From<AuditVerdict> for ExitCode {
    fn from(verdict: AuditVerdict) -> Self {
        match verdict {
            AuditVerdict::Kept => Self::SUCCESS,
            AuditVerdict::Exceeded => Self::FAILURE,
            AuditVerdict::Unknown => Self::from(2),
        }
    }
}

/// The content of the logs, and the verdict on each limit.
#[derive(Clone, Debug, Default)]
pub struct AuditReport {
    /// Logs that were read.
    pub logs: usize,
    /// Further lines of calls that have a line already.
    pub twice: u64,
    /// Of these, lines whose first line was too long ago to compare with.
    pub not_compared: u64,
    /// Lines that differ from another line of the same call.
    pub differ: u64,
    /// Lines that are not about a call.
    pub others: u64,
    /// Calls that left and met limits, and drew from no quota.
    pub quotaless: u64,
    /// Calls whose answers said that they had cost more than they had drawn from a quota.
    pub beyond: u64,
    /// Lines that the sidecars reported as lost.
    pub lost: u64,
    /// Lines that cannot be read.
    pub broken: u64,
    /// The first of these.
    pub broken_shown: Vec<Broken>,
    /// Calls that could not be put in order.
    pub late: u64,
    /// Whether calls without a line are assumed never to have left.
    pub ignored: bool,
    /// The processes that wrote the logs.
    pub sidecars: Vec<Sidecar>,
    /// A row for each limit.
    pub rows: Vec<LimitRow>,
    /// The verdict on all limits.
    pub verdict: AuditVerdict,
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The log.
    pub log: String,
    /// The number of the line, from 1.
    pub line: u64,
    /// The reason.
    pub why: &'static str,
}

/// A process whose calls the logs contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sidecar {
    /// When the first of these calls came in.   µs since the epoch
    pub first: u64,
    /// The log with its first line.
    pub log: String,
    /// Calls of the process that have a line.
    pub calls: u64,
    /// Of these, calls that left.
    pub sent: u64,
    /// Calls of the process that have no line, by the gaps in the ids.
    pub missing: u64,
    /// Ids of the process that are too far from the others to count the ids between as calls.
    pub far: u64,
}

/// The result for one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRow {
    /// The limit's name.
    pub limit: String,
    /// The limit in words.
    pub allowed: String,
    /// The most that it counted.
    pub densest: String,
    /// When the first of these calls left, and how much later the last one.
    pub when: String,
    /// The ids of these two calls.
    pub calls: String,
    /// The sidecar.
    pub sidecar: String,
    /// Whether it was kept.
    pub verdict: AuditVerdict,
    /// The reason, if there is one to give.
    pub why: String,
}

impl AuditReport {
    /// The report as text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = self.logs_in_words();
        out.push('\n');
        if self.rows.is_empty() {
            out.push_str("nothing to audit: give --config or --limit\n");
            return out;
        }
        let columns: [Column<'_, LimitRow>; 7] = [
            ("LIMIT", &|row| row.limit.clone()),
            ("ALLOWED", &|row| row.allowed.clone()),
            ("DENSEST", &|row| row.densest.clone()),
            ("WHEN", &|row| row.when.clone()),
            ("CALLS", &|row| row.calls.clone()),
            ("SIDECAR", &|row| row.sidecar.clone()),
            ("VERDICT", &|row| match (row.verdict.word(), &*row.why) {
                (verdict, "") => verdict.to_owned(),
                (verdict, why) => format!("{verdict}: {why}"),
            }),
        ];
        out.push_str(&table(&columns, &self.rows));
        writeln!(out, "\n{}", self.verdict.word()).expect("writing to memory does not fail");
        out
    }

    /// Calls without a line, of all sidecars.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.sum(|sidecar| sidecar.missing)
    }

    /// Ids that are far from all others of their sidecar.
    pub(super) fn far(&self) -> u64 {
        self.sum(|sidecar| sidecar.far)
    }

    fn sum(&self, of: impl Fn(&Sidecar) -> u64) -> u64 {
        self.sidecars.iter().map(of).sum()
    }

    /// The lines about the logs: what they contain, and what is wrong with them.
    fn logs_in_words(&self) -> String {
        let mut out = String::new();
        let mut say = |name: &str, text: String| {
            writeln!(out, "{name:<11}{text}").expect("writing to memory does not fail");
        };
        let logs = self.logs;
        let (calls, sent) = (self.sum(|it| it.calls), self.sum(|it| it.sent));
        let unsent = calls - sent;
        say(
            "calls",
            format!("{calls} in {logs} logs: {sent} left for the backend, {unsent} never did"),
        );
        for (number, sidecar) in self.sidecars.iter().enumerate().take(SIDECARS_SHOWN) {
            let Sidecar {
                calls,
                sent,
                missing,
                log,
                ..
            } = sidecar;
            let name = format!("sidecar {}", sidecar_name(number));
            let first = moment(sidecar.first);
            let text = format!(
                "from {first} on: {calls} calls, {sent} left, {missing} without a line; {log}"
            );
            say(&name, text);
        }
        let more = self.sidecars.len().saturating_sub(SIDECARS_SHOWN);
        if more > 0 {
            say("", format!("and {more} more sidecars"));
        }
        let ignored = match self.ignored {
            true => ", assumed never to have left",
            false => "",
        };
        let compared = match self.not_compared {
            0 => String::new(),
            calls => format!(", {calls} of them too long ago to compare"),
        };
        let has_quotas = self.rows.iter().any(|row| row.limit.starts_with("quota:"));
        let quotaless = if has_quotas { self.quotaless } else { 0 };
        let far = "ids are far from all others of their process: a damaged or missing log";
        let lost = "lines were lost, as the logs say";
        let twice = "lines repeat an earlier one";
        let differ = "lines differ from another line of the same call";
        let no_quota = "calls left without drawing from a quota";
        let beyond =
            "calls have cost more than they had reserved of a quota, which may be exceeded by that";
        let late = "calls could not be put in order: give a larger --reorder";
        let counts = [
            ("missing", self.missing(), "calls have no line", ignored),
            ("lost", self.lost, lost, ignored),
            ("broken", self.broken, "lines cannot be read", ignored),
            ("far", self.far(), far, ""),
            ("differ", self.differ, differ, ""),
            ("twice", self.twice, twice, &*compared),
            ("others", self.others, "lines are not about a call", ""),
            ("no quota", quotaless, no_quota, ""),
            ("beyond", self.beyond, beyond, ""),
            ("late", self.late, late, ""),
        ];
        for (name, count, text, more) in counts {
            if count > 0 {
                say(name, format!("{count} {text}{more}"));
            }
            // The lines behind the counts so far.
            if name == "differ" {
                for Broken { log, line, why } in &self.broken_shown {
                    say("", format!("{log}:{line}: {why}"));
                }
            }
        }
        out
    }
}

/// The name of a sidecar in the report, by its index.
pub(super) fn sidecar_name(number: usize) -> String {
    (number + 1).to_string()
}

/// A time in UTC, from microseconds since the epoch.
pub(super) fn moment(micros: u64) -> String {
    Utc(UNIX_EPOCH + Duration::from_micros(micros)).to_string()
}
