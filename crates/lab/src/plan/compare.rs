//! Compares two runs of the same calls, by function, class, caller and minute.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use foldhash::HashMap;
use serde_json::{Value, json};

use super::free::{CallCourse, FreeRun, ReplayedEnding};
use super::names::Name;
use super::span::JudgedSpan;
use super::timeline::Timeline;
use super::trace::{Trace, TracedProcess};
use tidegate::tools::table::{Column, table};
use tidegate_record::digits::Utc;

const SECOND: u64 = 1_000_000_000;
/// Rows of one kind that the report for people has.
const ROWS_MAX: usize = 12;

/// Counts and waits of some calls in one run.
#[derive(Clone, Debug, Default)]
pub(super) struct RunFigures {
    pub(super) calls: u64,
    pub(super) refused: u64,
    pub(super) left: u64,
    waits: Waits,
}

/// How long those waited that got their turn, in seconds.
#[derive(Clone, Debug)]
enum Waits {
    /// Each. In 4 bytes, because every call is in a row of each kind; they are exact to a
    /// ten-millionth.
    Each(Vec<f32>),
    /// The quantiles of [`QUANTILES`].
    Quantiles([f64; QUANTILES.len()]),
}

/// In thousandths.
const QUANTILES: [usize; 4] = [500, 950, 990, 1000];

impl Default for Waits {
    fn default() -> Self {
        Self::Each(Vec::new())
    }
}

impl RunFigures {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "seven digits are enough for a wait"
    )]
    fn count(&mut self, ran: &CallCourse) {
        self.calls += 1;
        match ran.ending {
            ReplayedEnding::Answered => {
                if let Waits::Each(waits) = &mut self.waits {
                    waits.push((ran.waited() as f64 / SECOND as f64) as f32);
                }
            }
            ReplayedEnding::Refused => self.refused += 1,
            ReplayedEnding::Left => self.left += 1,
        }
    }

    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.refused += other.refused;
        self.left += other.left;
        if let (Waits::Each(waits), Waits::Each(others)) = (&mut self.waits, other.waits) {
            match waits.is_empty() {
                true => *waits = others,
                false => waits.extend(others),
            }
        }
    }

    /// No call is added any more.
    fn complete(&mut self) {
        let Waits::Each(waits) = &mut self.waits else {
            return;
        };
        waits.sort_unstable_by(f32::total_cmp);
        let last = waits.len().saturating_sub(1);
        let at = |thousandth: usize| {
            let nth = (waits.len() * thousandth).div_ceil(1000).saturating_sub(1);
            let wait = waits.get(nth.min(last)).copied().map_or(0.0, f64::from);
            (wait * 1e6).round() / 1e6
        };
        self.waits = Waits::Quantiles(QUANTILES.map(at));
    }

    /// The wait that this many in a thousand did not exceed, of [`QUANTILES`].   s
    pub(super) fn wait(&self, thousandth: usize) -> f64 {
        let nth = QUANTILES.iter().position(|it| *it == thousandth);
        match (&self.waits, nth) {
            (Waits::Quantiles(waits), Some(nth)) => waits[nth],
            _ => 0.0,
        }
    }

    /// Refused calls of all calls.
    #[expect(clippy::cast_precision_loss, reason = "calls are counted to 2^32")]
    pub(super) fn refused_share(&self) -> f64 {
        self.refused as f64 / self.calls.max(1) as f64
    }

    fn json(&self) -> Value {
        json!({
            "calls": self.calls,
            "refused": self.refused,
            "left": self.left,
            "wait_seconds": {
                "p50": self.wait(500),
                "p95": self.wait(950),
                "p99": self.wait(990),
                "max": self.wait(1000),
            },
        })
    }
}

/// Figures of the same calls in two runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Pair {
    pub(super) before: RunFigures,
    pub(super) after: RunFigures,
    /// Calls that were answered before, and are refused after.
    pub(super) now_refused: u64,
    /// Calls that were refused before, and are answered after.
    pub(super) now_answered: u64,
    /// Calls that ended in the same way.
    pub(super) same: u64,
}

impl Pair {
    fn count(&mut self, before: &CallCourse, after: &CallCourse) {
        self.before.count(before);
        self.after.count(after);
        match (before.ending, after.ending) {
            (ReplayedEnding::Answered, ReplayedEnding::Refused) => self.now_refused += 1,
            (ReplayedEnding::Refused, ReplayedEnding::Answered) => self.now_answered += 1,
            (before, after) => self.same += u64::from(before == after),
        }
    }

    fn add(&mut self, other: Self) {
        self.before.add(other.before);
        self.after.add(other.after);
        self.now_refused += other.now_refused;
        self.now_answered += other.now_answered;
        self.same += other.same;
    }

    fn complete(&mut self) {
        self.before.complete();
        self.after.complete();
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "before": self.before.json(),
            "after": self.after.json(),
            "now_refused": self.now_refused,
            "now_answered": self.now_answered,
        })
    }
}

/// Calls that a backend got, over all processes.
#[derive(Clone, Debug, Default)]
pub(super) struct BackendUse {
    /// The first moment of each call at the backend, and the first after it, until all are known.
    /// ns since the epoch
    starts: Vec<u64>,
    ends: Vec<u64>,
    /// The most at once.
    pub(super) in_flight: usize,
    /// The most that were sent in any second.
    pub(super) densest_second: usize,
    /// Calls that were sent while more than in the log were at the backend.
    beyond: usize,
}

impl BackendUse {
    fn add(&mut self, started_us: u64, ran: &CallCourse) {
        let begin = started_us.saturating_mul(1000);
        if let Some(sent) = ran.sent() {
            self.starts.push(begin.saturating_add(sent));
            self.ends.push(begin.saturating_add(ran.ended));
        }
    }

    /// The number of calls at the backend as each is sent, itself included.
    fn each(&self) -> impl Iterator<Item = usize> {
        let mut ended = 0;
        self.starts.iter().enumerate().map(move |(nth, &at)| {
            while self.ends.get(ended).is_some_and(|&end| end <= at) {
                ended += 1;
            }
            nth + 1 - ended
        })
    }

    /// All calls are known. `seen` is the most that the log ever had at once.
    fn complete(&mut self, seen: usize) {
        self.starts.sort_unstable();
        self.ends.sort_unstable();
        self.in_flight = self.each().max().unwrap_or(0);
        self.beyond = self.each().filter(|at_once| *at_once > seen).count();
        let mut first = 0;
        for (nth, &at) in self.starts.iter().enumerate() {
            while self.starts[first] + SECOND <= at {
                first += 1;
            }
            self.densest_second = self.densest_second.max(nth + 1 - first);
        }
        (self.starts, self.ends) = (Vec::new(), Vec::new());
    }

    fn json(&self) -> Value {
        json!({"in_flight": self.in_flight, "densest_second": self.densest_second})
    }
}

/// Two runs of all processes.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) all: Pair,
    /// By kind and name.
    rows: BTreeMap<(&'static str, String), Pair>,
    backend: (BackendUse, BackendUse),
    /// Calls that the backend got in the log.
    logged: BackendUse,
    pub(super) timeline: Timeline,
}

/// The rows of one process, by the numbers of their names: they are counted for every call.
#[derive(Default)]
struct Rows {
    functions: HashMap<Name, Pair>,
    classes: HashMap<Name, Pair>,
    callers: HashMap<u64, Pair>,
    limits: (HashMap<Option<Name>, Pair>, HashMap<Option<Name>, Pair>),
    minutes: HashMap<u64, Pair>,
}

impl Comparison {
    /// Adds the runs of the process that started then.
    pub(super) fn add(
        &mut self,
        trace: &Trace,
        started_us: u64,
        process: &TracedProcess,
        (before, after): (&FreeRun, &FreeRun),
    ) {
        let begin = started_us.saturating_mul(1000);
        let runs = process.calls.iter().zip(&before.ran).zip(&after.ran);
        let mut rows = Rows::default();
        for ((call, before_it), after_it) in runs {
            // With closed clients a call may have no turn to arrive.
            let (Some(before_it), Some(after_it)) = (before_it, after_it) else {
                continue;
            };
            let kind = trace.kind(call);
            let minute = begin.saturating_add(process.asked(call)) / (60 * SECOND);
            for pair in [
                &mut self.all,
                rows.functions.entry(kind.function).or_default(),
                rows.classes.entry(kind.class).or_default(),
                rows.callers.entry(kind.caller).or_default(),
                rows.minutes.entry(minute).or_default(),
            ] {
                pair.count(before_it, after_it);
            }
            // A call may be held by one limit before, and by another one after.
            let is_held =
                |ran: &CallCourse| ran.limit.is_some() || ran.ending == ReplayedEnding::Refused;
            if is_held(before_it) {
                let pair = rows.limits.0.entry(before_it.limit).or_default();
                pair.before.count(before_it);
            }
            if is_held(after_it) {
                let pair = rows.limits.1.entry(after_it.limit).or_default();
                pair.after.count(after_it);
            }
            self.timeline.add(begin, before_it, after_it);
            self.backend.0.add(started_us, before_it);
            self.backend.1.add(started_us, after_it);
        }
        let name = |name: Name| trace.names.get(name).to_string();
        // Without a limit, a full queue refused it.
        let limit = |run: &FreeRun, limit: Option<Name>| match limit {
            Some(limit) => run.limits.get(limit).to_string(),
            None => "queue".to_owned(),
        };
        let functions = rows.functions.into_iter();
        self.add_rows("function", functions.map(|(it, pair)| (name(it), pair)));
        let classes = rows.classes.into_iter();
        self.add_rows("class", classes.map(|(it, pair)| (name(it), pair)));
        let callers = rows.callers.into_iter();
        self.add_rows("caller", callers.map(|(it, pair)| (format!("c{it}"), pair)));
        let minutes = rows.minutes.into_iter();
        self.add_rows("minute", minutes.map(|(it, pair)| (minute(it), pair)));
        let limits = rows.limits.0.into_iter();
        self.add_rows("limit", limits.map(|(it, pair)| (limit(before, it), pair)));
        let limits = rows.limits.1.into_iter();
        self.add_rows("limit", limits.map(|(it, pair)| (limit(after, it), pair)));
    }

    fn add_rows(&mut self, kind: &'static str, rows: impl Iterator<Item = (String, Pair)>) {
        for (name, pair) in rows {
            self.rows.entry((kind, name)).or_default().add(pair);
        }
    }

    /// Adds what the backend got in the log.
    pub(super) fn add_logged(
        &mut self,
        started_us: u64,
        process: &TracedProcess,
        span: &JudgedSpan,
    ) {
        let within = span.calls(process);
        for call in &process.calls[within.start as usize..within.end as usize] {
            self.logged
                .add(started_us, &CallCourse::logged(process, call));
        }
    }

    /// Call it once, after the last process.
    pub(super) fn complete(&mut self) {
        self.all.complete();
        self.rows.values_mut().for_each(Pair::complete);
        self.logged.complete(usize::MAX);
        let seen = self.logged.in_flight;
        self.backend.0.complete(seen);
        self.backend.1.complete(seen);
    }

    /// The most calls that the backend had at once in the log, and how many calls of the new config
    /// it would get while it has more.
    pub(super) fn evidence(&self) -> (usize, usize) {
        (self.logged.in_flight, self.backend.1.beyond)
    }

    pub(super) fn json(&self) -> Value {
        let mut report = self.all.json();
        for ((kind, name), pair) in &self.rows {
            report[*kind][name] = pair.json();
        }
        let (before, after) = &self.backend;
        report["backend"] = json!({"before": before.json(), "after": after.json()});
        let (seen, beyond) = self.evidence();
        report["evidence"] = json!({"at_once": seen, "calls_beyond": beyond});
        report
    }

    /// The rows, those with the most calls of each kind first; the minutes in their order.
    pub(super) fn named(&self, most: usize) -> Vec<(String, &Pair)> {
        let mut rows = vec![("all".to_owned(), &self.all)];
        for kind in ["function", "class", "caller", "limit", "minute"] {
            let of = self.rows.iter().filter(|((of, _), _)| *of == kind);
            let mut of: Vec<_> = of.map(|((_, name), pair)| (name, pair)).collect();
            let calls = |pair: &Pair| pair.before.calls.max(pair.after.calls);
            of.sort_by_key(|(_, pair)| std::cmp::Reverse(calls(pair)));
            of.truncate(most);
            if kind == "minute" {
                of.sort_by_key(|(name, _)| *name);
            }
            let of = of.into_iter();
            rows.extend(of.map(|(name, pair)| (format!("{kind} {name}"), pair)));
        }
        rows
    }

    /// The report for people.
    pub(super) fn rendered(&self) -> String {
        let rows = self.named(ROWS_MAX);
        let seconds = |seconds: f64| format!("{seconds:.3}");
        let columns: [Column<'_, (String, &Pair)>; 14] = [
            ("", &|row| row.0.clone()),
            ("calls", &|row| row.1.before.calls.to_string()),
            ("refused", &|row| row.1.before.refused.to_string()),
            ("new", &|row| row.1.after.refused.to_string()),
            ("p50", &|row| seconds(row.1.before.wait(500))),
            ("new", &|row| seconds(row.1.after.wait(500))),
            ("p95", &|row| seconds(row.1.before.wait(950))),
            ("new", &|row| seconds(row.1.after.wait(950))),
            ("p99", &|row| seconds(row.1.before.wait(990))),
            ("new", &|row| seconds(row.1.after.wait(990))),
            ("max", &|row| seconds(row.1.before.wait(1000))),
            ("new", &|row| seconds(row.1.after.wait(1000))),
            ("now refused", &|row| row.1.now_refused.to_string()),
            ("now answered", &|row| row.1.now_answered.to_string()),
        ];
        let mut text = table(&columns, &rows);
        let (before, after) = &self.backend;
        text += &format!(
            "the backend sees at most {} at once (new {}), and {} in a second (new {})\n",
            before.in_flight, after.in_flight, before.densest_second, after.densest_second
        );
        text
    }
}

/// A minute, counted since the epoch, in UTC.
fn minute(minute: u64) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(60 * minute);
    let mut text = Utc(at).to_string();
    text.truncate("2026-01-01T00:00".len());
    text + "Z"
}
