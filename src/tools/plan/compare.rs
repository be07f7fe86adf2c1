//! What two runs of the same calls came to, by function, class, caller and minute.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::free::{Ending, Ran, Run};
use super::timeline::Timeline;
use super::trace::{Process, Trace};
use crate::telemetry::access::Utc;
use crate::tools::table::{Column, table};

const SECOND: u64 = 1_000_000_000;
/// Rows of one kind that the report for people has.
const ROWS_MAX: usize = 12;

/// What some calls came to in one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) calls: u64,
    pub(super) refused: u64,
    pub(super) left: u64,
    /// How long those waited that got their turn.   ns, sorted once it is complete
    waits: Vec<u64>,
}

impl Figures {
    fn count(&mut self, ran: &Ran) {
        self.calls += 1;
        match ran.ending {
            Ending::Answered => self.waits.push(ran.waited()),
            Ending::Refused => self.refused += 1,
            Ending::Left => self.left += 1,
        }
    }

    /// The wait that this many in a thousand did not exceed.   s
    #[expect(clippy::cast_precision_loss, reason = "2^53 ns are 104 days")]
    pub(super) fn wait(&self, thousandth: usize) -> f64 {
        let last = self.waits.len().saturating_sub(1);
        let nth = (self.waits.len() * thousandth)
            .div_ceil(1000)
            .saturating_sub(1);
        let wait = self.waits.get(nth.min(last)).copied().unwrap_or(0);
        wait as f64 / SECOND as f64
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

/// The same calls in two runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Pair {
    pub(super) before: Figures,
    pub(super) after: Figures,
    /// Calls that were answered before, and are refused after.
    pub(super) now_refused: u64,
    /// Calls that were refused before, and are answered after.
    pub(super) now_answered: u64,
    /// Calls that ended in the same way.
    pub(super) same: u64,
}

impl Pair {
    fn count(&mut self, before: &Ran, after: &Ran) {
        self.before.count(before);
        self.after.count(after);
        match (before.ending, after.ending) {
            (Ending::Answered, Ending::Refused) => self.now_refused += 1,
            (Ending::Refused, Ending::Answered) => self.now_answered += 1,
            (before, after) => self.same += u64::from(before == after),
        }
    }

    fn complete(&mut self) {
        self.before.waits.sort_unstable();
        self.after.waits.sort_unstable();
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

/// What a backend got, over all processes.
#[derive(Clone, Debug, Default)]
pub(super) struct AtBackend {
    /// The first moment of each call at the backend, and the first after it.   ns since the epoch
    starts: Vec<u64>,
    ends: Vec<u64>,
    /// The most at once.
    pub(super) in_flight: usize,
    /// The most that were sent in any second.
    pub(super) densest_second: usize,
}

impl AtBackend {
    fn add(&mut self, started_us: u64, run: &Run) {
        let begin = started_us.saturating_mul(1000);
        for ran in run.ran.iter().flatten() {
            if let Some(sent) = ran.sent {
                self.starts.push(begin.saturating_add(sent));
                self.ends.push(begin.saturating_add(ran.ended));
            }
        }
    }

    /// The number of calls at the backend as each is sent, itself included.
    fn each(&self) -> impl Iterator<Item = (u64, usize)> {
        let mut ended = 0;
        self.starts.iter().enumerate().map(move |(nth, &at)| {
            while self.ends.get(ended).is_some_and(|&end| end <= at) {
                ended += 1;
            }
            (at, nth + 1 - ended)
        })
    }

    fn complete(&mut self) {
        self.starts.sort_unstable();
        self.ends.sort_unstable();
        self.in_flight = self.each().map(|(_, at_once)| at_once).max().unwrap_or(0);
        let mut first = 0;
        for (nth, &at) in self.starts.iter().enumerate() {
            while self.starts[first] + SECOND <= at {
                first += 1;
            }
            self.densest_second = self.densest_second.max(nth + 1 - first);
        }
    }

    /// Calls that are sent while more than this are at the backend.
    fn beyond(&self, seen: usize) -> usize {
        self.each().filter(|(_, at_once)| *at_once > seen).count()
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
    backend: (AtBackend, AtBackend),
    /// What the backend got in the log.
    logged: AtBackend,
    pub(super) timeline: Timeline,
}

impl Comparison {
    /// Adds the runs of the process that started then.
    pub(super) fn add(
        &mut self,
        trace: &Trace,
        started_us: u64,
        process: &Process,
        (logged, before, after): (&Run, &Run, &Run),
    ) {
        let begin = started_us.saturating_mul(1000);
        let runs = process.calls.iter().zip(&before.ran).zip(&after.ran);
        for ((call, before_it), after_it) in runs {
            // With closed clients a call may have no turn to arrive.
            let (Some(before_it), Some(after_it)) = (before_it, after_it) else {
                continue;
            };
            let asked = begin.saturating_add(call.asked());
            let keys = [
                ("function", trace.names.get(call.function).to_string()),
                ("class", trace.names.get(call.class).to_string()),
                ("caller", format!("c{}", call.caller)),
                ("minute", minute(asked)),
            ];
            self.all.count(before_it, after_it);
            for key in keys {
                self.rows.entry(key).or_default().count(before_it, after_it);
            }
            // A call may be held by one limit before, and by another one after.
            let mut by_limit = |run: &Run, ran: &Ran, of: fn(&mut Pair) -> &mut Figures| {
                let limit = ran.limit.map(|limit| run.limits.get(limit).to_string());
                let full = (ran.ending == Ending::Refused).then(|| "queue".to_owned());
                if let Some(limit) = limit.or(full) {
                    let key = ("limit", limit);
                    of(self.rows.entry(key).or_default()).count(ran);
                }
            };
            by_limit(before, before_it, |pair| &mut pair.before);
            by_limit(after, after_it, |pair| &mut pair.after);
            self.timeline.add(begin, before_it, after_it);
        }
        self.backend.0.add(started_us, before);
        self.backend.1.add(started_us, after);
        self.logged.add(started_us, logged);
    }

    /// Call it once, after the last process.
    pub(super) fn complete(&mut self) {
        self.all.complete();
        self.rows.values_mut().for_each(Pair::complete);
        let (before, after) = &mut self.backend;
        [before, after, &mut self.logged]
            .into_iter()
            .for_each(AtBackend::complete);
    }

    /// The most calls that the backend had at once in the log, and how many calls of the new config
    /// it would get while it has more.
    pub(super) fn evidence(&self) -> (usize, usize) {
        let seen = self.logged.in_flight;
        (seen, self.backend.1.beyond(seen))
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

/// The minute of a moment, in nanoseconds since the epoch, in UTC.
fn minute(at: u64) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_nanos(at);
    let mut text = Utc(at).to_string();
    text.truncate("2026-01-01T00:00".len());
    text + "Z"
}
