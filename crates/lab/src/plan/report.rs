//! The report of a replay, for people and as JSON.

use serde_json::{Value, json};

use super::compare::Comparison;
use super::feed::Fed;
use super::plans::{FreeIdentity, Plan, RunSpread, Stores};
use super::setup::CannotReplay;
use super::span::JudgedSpan;
use super::trace::{Trace, TracedProcess};

/// Everything that a run of the command found.
pub(super) struct PlanReport<'t> {
    pub(super) trace: &'t Trace,
    pub(super) processes: Vec<Replayed<'t>>,
    /// Free runs of the log's own config; `None` if there are none.
    pub(super) free: Option<FreeIdentity>,
    pub(super) plans: Vec<Plan>,
    /// A plan was asked for and is not made.
    pub(super) is_refused: bool,
}

/// A process of the log, and the result of feeding it.
pub(super) struct Replayed<'t> {
    /// When it started.   us since the epoch
    pub(super) started_us: u64,
    pub(super) process: &'t TracedProcess,
    pub(super) fed: Result<(JudgedSpan, Fed), CannotReplay>,
}

/// Counts of lines that a log may lack, and what each means.
const LACKS: [(&str, &str); 4] = [
    (
        "lost_lines",
        "lines were lost, because the log was read too slowly: the calls in them are not known",
    ),
    ("broken_lines", "lines cannot be read"),
    (
        "calls_without_replay",
        "calls have no line for a replay, because log.replay was off: set log.replay = true in the config of the \
         sidecar, restart it, and give the log that it writes from then on",
    ),
    (
        "calls_with_quotas",
        "calls drew from quotas, whose stores' answers are not in the log: they are replayed without quotas",
    ),
];

const NEVER_IDLE: &str = "the log begins in the middle, and the sidecar was never idle for as long as its limits \
                          remember calls, so what they had counted is not known";

const REFUSED: &str =
    "the replay does not explain the log, so a plan would mean nothing; --force makes it";

impl Replayed<'_> {
    /// 0 if every decision is the same, 1 if one differs, 2 if that is unknown.
    pub(super) fn code(&self) -> u8 {
        match &self.fed {
            Ok((span, _)) if !span.is_exact => 2,
            Ok((_, fed)) => u8::from(fed.first.is_some()),
            Err(_) => 2,
        }
    }

    /// Calls before and after the part that is judged.
    fn left_out(&self, span: &JudgedSpan) -> (usize, usize) {
        let within = span.calls(self.process);
        let all = self.process.calls.len();
        (within.start as usize, all - within.end as usize)
    }

    fn json(&self) -> Value {
        let mut row = json!({
            "started_us": self.started_us,
            "calls": self.process.calls.len(),
            "without_line": self.process.missing,
        });
        let (span, fed) = match &self.fed {
            Ok(fed) => fed,
            Err(error) => {
                row["unknown"] = error.to_string().into();
                return row;
            }
        };
        let (before, after) = self.left_out(span);
        row["left_out"] = json!({"before": before, "after": after});
        if !span.is_exact {
            row["unknown"] = NEVER_IDLE.into();
            return row;
        }
        row["same"] = fed.same.into();
        row["of"] = fed.calls.into();
        if let Some(first) = &fed.first {
            row["differs"] = json!({
                "line": first.place,
                "id": format!("{:016x}", first.id),
                "at_ns": first.at,
                "logged": first.logged,
                "decided": first.decided,
            });
        }
        row
    }

    fn text(&self) -> String {
        let (calls, missing) = (self.process.calls.len(), self.process.missing);
        let mut text = format!(
            "process {}: {calls} calls met limits, {missing} calls without a line\n",
            self.started_us
        );
        let (span, fed) = match &self.fed {
            Ok(fed) => fed,
            Err(error) => return text + &format!("  identity unknown: {error}\n"),
        };
        if !span.is_exact {
            return text + &format!("  identity unknown: {NEVER_IDLE}\n");
        }
        let (before, after) = self.left_out(span);
        if before > 0 {
            text += &format!(
                "  the log begins in the middle: {before} calls are left out, up to the first moment at which \
                 nothing waited or ran and all limits were full\n"
            );
        }
        if after > 0 {
            text += &format!(
                "  the log has no end: {after} calls are left out, which asked after a call that has no line yet\n"
            );
        }
        match &fed.first {
            None => text += &format!("  identity: the same decision in all {} lines\n", fed.calls),
            Some(first) => {
                text += &format!(
                    "  identity: the same decisions in {} of {} lines, until\n  {} (call {:016x}, {} ns after the start)\n    \
                     logged:  {}\n    decided: {}\n",
                    fed.same,
                    fed.calls,
                    first.place,
                    first.id,
                    first.at,
                    first.logged,
                    first.decided
                );
            }
        }
        text
    }
}

impl PlanReport<'_> {
    /// Collects the stores of quotas that feeding the logs has shown.
    pub(super) fn stores(&self) -> Stores<'_> {
        let mut stores = Stores::default();
        for row in &self.processes {
            if let Ok((_, fed)) = &row.fed {
                stores.add(row.started_us, &fed.store);
            }
        }
        stores
    }

    fn lacks(&self) -> [u64; 4] {
        let trace = self.trace;
        [
            trace.lost,
            trace.broken,
            trace.without_replay,
            trace.with_quota,
        ]
    }

    /// The identity: 0, 1 or 2, as the exit code.
    pub(super) fn code(&self) -> u8 {
        let trace = self.trace;
        // What is in no line may have decided anything.
        let is_unknown =
            trace.without_replay + trace.lost + trace.broken > 0 || self.processes.is_empty();
        let codes = self.processes.iter().map(Replayed::code);
        codes.max().unwrap_or(2).max(if is_unknown { 2 } else { 0 })
    }

    /// As JSON.
    pub(super) fn json(&self) -> Value {
        let rows: Vec<_> = self.processes.iter().map(Replayed::json).collect();
        let mut report = json!({
            "processes": rows,
            "free": self.free.as_ref().and_then(free_json),
            "broken_at": self.trace.broken_at,
        });
        for ((key, _), count) in LACKS.iter().zip(self.lacks()) {
            report[*key] = count.into();
        }
        for plan in &self.plans {
            report["plan"][plan.clients.word()] = plan.json();
        }
        if self.is_refused {
            report["plan_refused"] = REFUSED.into();
        }
        report
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = self.identity_text();
        for plan in &self.plans {
            text += &plan.text();
        }
        text
    }

    /// The plans alone.
    pub(super) fn plans_text(&self) -> String {
        self.plans.iter().map(Plan::text).collect()
    }

    /// Whether the logs explain themselves.
    pub(super) fn identity_text(&self) -> String {
        let mut text = String::new();
        if self.processes.is_empty() {
            text += "no line for a replay was found; log.replay = true writes them\n";
        }
        for row in &self.processes {
            text += &row.text();
        }
        if let Some(free) = &self.free {
            text += &free_text(free);
        }
        for ((_, what), count) in LACKS.iter().zip(self.lacks()) {
            if count > 0 {
                text += &format!("{count} {what}\n");
            }
        }
        if self.is_refused {
            text += &format!("no plan is made: {REFUSED}\n");
        }
        text
    }
}

/// How many calls ended in the same way, of all.
#[expect(clippy::cast_precision_loss, reason = "calls are counted to 2^32")]
fn same_share(run: &Comparison) -> f64 {
    run.all.same as f64 / run.all.after.calls.max(1) as f64
}

/// How many calls were refused.
#[expect(clippy::cast_precision_loss, reason = "calls are counted to 2^32")]
fn refused(run: &Comparison) -> f64 {
    run.all.after.refused as f64
}

/// The names of the quantiles of waits, and their thousandths.
const WAITS: [(&str, usize); 3] = [("p50", 500), ("p95", 950), ("p99", 990)];

fn free_json(free: &FreeIdentity) -> Option<Value> {
    let first = &free.first()?.all;
    let mut it = first.json();
    it["same"] = first.same.into();
    it["runs"] = free.runs().into();
    let spread = |of: &RunSpread| json!({"least": of.least, "mean": of.mean, "most": of.most});
    it["spread"]["same_share"] = spread(&free.spread(same_share));
    it["spread"]["refused"] = spread(&free.spread(refused));
    for (name, thousandth) in WAITS {
        let of = free.spread(|run| run.all.after.wait(thousandth));
        it["spread"]["wait_seconds"][name] = spread(&of);
    }
    Some(it)
}

/// Describes the free runs of the log's own config.
fn free_text(free: &FreeIdentity) -> String {
    let Some(first) = free.first().filter(|run| run.all.after.calls > 0) else {
        return String::new();
    };
    let waits = |of: &dyn Fn(usize) -> String| {
        let waits = WAITS.map(|(name, thousandth)| format!("{name} {}", of(thousandth)));
        waits.join(", ")
    };
    let before = &first.all.before;
    let logged = waits(&|thousandth| format!("{:.3} s", before.wait(thousandth)));
    let share = free.spread(same_share);
    let (least, mean, most) = (100.0 * share.least, 100.0 * share.mean, 100.0 * share.most);
    let refusals = free.spread(refused);
    let ran = match free.runs() {
        1 => {
            let after = &first.all.after;
            let waits = waits(&|thousandth| format!("{:.3} s", after.wait(thousandth)));
            format!("{} refused; waits {waits}", after.refused)
        }
        _ => {
            let waits = waits(&|thousandth| {
                let of = free.spread(|run| run.all.after.wait(thousandth));
                format!("{:.3} s ({:.3} to {:.3})", of.mean, of.least, of.most)
            });
            format!(
                "{:.0} refused ({:.0} to {:.0}); waits {waits}",
                refusals.mean, refusals.least, refusals.most
            )
        }
    };
    let logged = format!("{} refused; waits {logged}", before.refused);
    match free.runs() {
        1 => format!(
            "free run of the arrivals and service times alone: {mean:.2} % of the calls end in the same way\n  \
             in the log:      {logged}\n  in the free run: {ran}\n"
        ),
        runs => format!(
            "{runs} free runs of the arrivals and service times alone: {mean:.2} % ({least:.2} to {most:.2}) of the \
             calls end in the same way\n  which call comes back at the right moment is luck: compare the sums, not \
             single calls\n  in the log:       {logged}\n  in the free runs: {ran}\n"
        ),
    }
}

impl Plan {
    fn json(&self) -> Value {
        let mut of = self.comparison.json();
        of["assumption"] = self.clients.assumption().into();
        of["service_times_drawn"] = self.drawn.into();
        of["unknown"] = self.unknown.clone().into();
        of["kept"] = json!({"class": self.kept.class, "caller": self.kept.caller});
        of["retries"] = json!({"refused": self.retries.refused, "again": self.retries.again});
        of
    }

    fn text(&self) -> String {
        format!(
            "\n{} clients: {}\n{}{}",
            self.clients.word(),
            self.clients.assumption(),
            self.comparison.rendered(),
            self.notes().concat()
        )
    }

    /// Assumptions and gaps of this plan, a line each.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let (seen, beyond) = self.comparison.evidence();
        if beyond > 0 {
            notes.push(format!(
                "no evidence beyond {seen} at once: the log never has more at the backend, and {beyond} calls of \
                 the new config would be sent while it has more; they take as long here as in the log, and may take longer\n"
            ));
        }
        if self.drawn > 0 {
            notes.push(format!(
                "{} calls were never sent in the log: they take as long as other calls of their functions\n",
                self.drawn
            ));
        }
        for (count, what) in [
            (self.kept.class, "their class"),
            (self.kept.caller, "their caller, cost and rate limit"),
        ] {
            if count > 0 {
                notes.push(format!(
                    "{count} calls keep {what}: the log does not have what the rules of the new config need, such as \
                     headers, or the log's own rules do not explain what it has\n"
                ));
            }
        }
        let retries = self.retries;
        if retries.again > 0 {
            notes.push(format!(
                "{} of the {} calls that were refused in the log came again within a minute (same client, caller and \
                 function); the plan has them all, but where a call is answered at once its client does not ask again\n",
                retries.again, retries.refused
            ));
        }
        for why in &self.unknown {
            notes.push(format!("a process is left out: {why}\n"));
        }
        notes
    }
}
