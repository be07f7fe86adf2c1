//! What two runs of the same calls came to, by function, class, caller and minute.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::free::{Ending, Ran};
use super::trace::{Process, Trace};
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

/// The most calls at the backend at once, and the most that were sent in any second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AtBackend {
    pub(super) in_flight: usize,
    pub(super) densest_second: usize,
}

impl AtBackend {
    fn of(ran: &[Option<Ran>]) -> Self {
        let sent = ran
            .iter()
            .flatten()
            .filter_map(|it| Some((it.sent?, it.ended)));
        let (mut starts, mut ends): (Vec<u64>, Vec<u64>) = sent.unzip();
        starts.sort_unstable();
        ends.sort_unstable();
        let mut most = Self::default();
        let (mut ended, mut first) = (0, 0);
        for (nth, &at) in starts.iter().enumerate() {
            while ends.get(ended).is_some_and(|&end| end <= at) {
                ended += 1;
            }
            while starts[first] + SECOND <= at {
                first += 1;
            }
            most.in_flight = most.in_flight.max(nth + 1 - ended);
            most.densest_second = most.densest_second.max(nth + 1 - first);
        }
        most
    }

    fn json(self) -> Value {
        json!({"in_flight": self.in_flight, "densest_second": self.densest_second})
    }
}

/// Two runs of all processes.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) all: Pair,
    /// By kind and name.
    rows: BTreeMap<(&'static str, String), Pair>,
    backends: Vec<(AtBackend, AtBackend)>,
}

impl Comparison {
    /// Adds the runs of one process.
    pub(super) fn add(
        &mut self,
        trace: &Trace,
        process: &Process,
        before: &[Option<Ran>],
        after: &[Option<Ran>],
    ) {
        for ((call, before), after) in process.calls.iter().zip(before).zip(after) {
            // With closed clients a call may have no turn to arrive.
            let (Some(before), Some(after)) = (before, after) else {
                continue;
            };
            let asked = call.steps.first().map_or(0, |step| step.at);
            let keys = [
                ("function", trace.names.get(call.function).to_string()),
                ("class", trace.names.get(call.class).to_string()),
                ("caller", format!("c{}", call.caller)),
                ("minute", format!("{:05}", asked / (60 * SECOND))),
            ];
            self.all.count(before, after);
            for key in keys {
                self.rows.entry(key).or_default().count(before, after);
            }
        }
        self.backends
            .push((AtBackend::of(before), AtBackend::of(after)));
    }

    /// Call it once, after the last process.
    pub(super) fn complete(&mut self) {
        self.all.complete();
        self.rows.values_mut().for_each(Pair::complete);
    }

    pub(super) fn json(&self) -> Value {
        let mut report = self.all.json();
        for ((kind, name), pair) in &self.rows {
            report[*kind][name] = pair.json();
        }
        let backends = self.backends.iter();
        let backends: Vec<_> = backends
            .map(|(before, after)| json!({"before": before.json(), "after": after.json()}))
            .collect();
        report["backend"] = backends.into();
        report
    }

    /// The report for people: the rows with the most calls, of each kind.
    pub(super) fn rendered(&self) -> String {
        let mut rows = vec![("all".to_owned(), &self.all)];
        for kind in ["function", "class", "caller", "minute"] {
            let of = self.rows.iter().filter(|((of, _), _)| *of == kind);
            let mut of: Vec<_> = of.map(|((_, name), pair)| (name, pair)).collect();
            of.sort_by_key(|(_, pair)| std::cmp::Reverse(pair.before.calls));
            let of = of.into_iter().take(ROWS_MAX);
            rows.extend(of.map(|(name, pair)| (format!("{kind} {name}"), pair)));
        }
        let seconds = |seconds: f64| format!("{seconds:.3}");
        let columns: [Column<'_, (String, &Pair)>; 12] = [
            ("", &|row| row.0.clone()),
            ("calls", &|row| row.1.after.calls.to_string()),
            ("refused", &|row| row.1.before.refused.to_string()),
            ("new", &|row| row.1.after.refused.to_string()),
            ("p50", &|row| seconds(row.1.before.wait(500))),
            ("new", &|row| seconds(row.1.after.wait(500))),
            ("p95", &|row| seconds(row.1.before.wait(950))),
            ("new", &|row| seconds(row.1.after.wait(950))),
            ("max", &|row| seconds(row.1.before.wait(1000))),
            ("new", &|row| seconds(row.1.after.wait(1000))),
            ("now refused", &|row| row.1.now_refused.to_string()),
            ("now answered", &|row| row.1.now_answered.to_string()),
        ];
        let mut text = table(&columns, &rows);
        for (before, after) in &self.backends {
            text += &format!(
                "the backend sees at most {} at once (new {}), and {} in a second (new {})\n",
                before.in_flight, after.in_flight, before.densest_second, after.densest_second
            );
        }
        text
    }
}
