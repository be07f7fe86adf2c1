//! The advice as text and as JSON.

use std::fmt::Display;

use serde_json::{Value, json};
use tidegate_advice::advice::{Advice, CallerAdvice, Expected, FunctionAdvice};
use tidegate_advice::breaking::{BreakingPoint, Sign};
use tidegate_advice::curve::Curve;
use tidegate_advice::setting::{Need, Reason, Setting, SettingAnswer};
use tidegate_advice::tokens::DELAYED_MAX;

use super::edit::Edited;
use super::read::Logs;
use crate::plan::PlanOutput;
use tidegate::tools::table::{aligned, table};

/// Functions and callers in the text; JSON has all.
const ROWS_MAX: usize = 20;

fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

fn time(ns: u64) -> String {
    format!("{} s", (seconds(ns) * 1000.0).round() / 1000.0)
}

fn needs(needs: &[Need]) -> String {
    let needs: Vec<_> = needs.iter().map(ToString::to_string).collect();
    format!("not enough data: needs {}", needs.join("; "))
}

/// The cells of a row: the value, its interval, the calls behind it, and why.
fn cells<T>(name: &str, answer: &SettingAnswer<T>, shown: impl Fn(&T) -> String) -> Vec<String> {
    let dash = || "-".to_owned();
    let [value, interval, calls, why] = match answer {
        SettingAnswer::Set(set) => [
            shown(&set.value),
            format!("{} to {}", shown(&set.low), shown(&set.high)),
            set.calls.to_string(),
            set.why.to_string(),
        ],
        SettingAnswer::NoEvidenceBeyond(most) => [
            dash(),
            dash(),
            dash(),
            format!(
                "no evidence beyond {most}: that many were no strain, and no call waited for more"
            ),
        ],
        SettingAnswer::NotEnough(lacks) => [dash(), dash(), dash(), needs(lacks)],
    };
    vec![name.to_owned(), value, interval, calls, why]
}

fn number(number: &impl Display) -> String {
    number.to_string()
}

const FASTER: &str = "the plan keeps the time that each call took; with fewer at once, calls of this backend take less, \
                      so fewer wait or are refused than is planned here: the lines \"by the curve\" have both\n";

/// Everything that is printed.
pub(super) struct AdviceReport {
    pub(super) advice: Advice,
    /// The advice as a config, to be pasted.
    pub(super) pasted: String,
    /// Today's config with the advice in it.
    pub(super) edited: Option<Edited>,
    /// Unified diff from today's config to the advised one.
    pub(super) diff: Option<String>,
    /// The plan of the calls under the advised config, or why there is none.
    pub(super) plan: Result<PlanOutput, String>,
}

impl AdviceReport {
    /// Whether there is a value at least.
    pub(super) fn has_values(&self) -> bool {
        !self.pasted.is_empty()
    }

    /// Whether calls are likely to take less under the advice than they did in the log.
    fn is_faster(&self) -> bool {
        let outlook = self.advice.outlook;
        outlook.is_some_and(|it| it.advised.outstanding < it.seen.outstanding)
    }

    /// For people.
    pub(super) fn text(&self, logs: &Logs) -> String {
        let mut text = evidence(&self.advice);
        if logs.sidecars > 1 {
            text += &format!(
                "the logs are of {} sidecars at once: the table is for all of them together, and the config for each\n",
                logs.sidecars
            );
        }
        text += &functions(&self.advice.functions);
        text += &callers(&self.advice.callers);
        text += &left_out(logs);
        if !self.has_values() {
            return text;
        }
        text += &format!("\nas a config:\n\n{}", self.pasted);
        match self.diff.as_deref() {
            Some("") => text += "\nno diff: today's config says this already\n",
            Some(diff) => text += &format!("\nas a diff:\n\n{diff}"),
            None => {}
        }
        for (part, why) in self.edited.iter().flat_map(|edited| &edited.left_out) {
            text += &format!("not in the diff: {part}: {why}\n");
        }
        match &self.plan {
            Ok(plan) => {
                text += &format!("\na plan of it:\n{}", plan.text);
                if self.is_faster() {
                    text += FASTER;
                }
            }
            Err(why) => text += &format!("\nno plan: {why}\n"),
        }
        text
    }
}

/// Describes what the whole log shows, and the values for all calls.
fn evidence(advice: &Advice) -> String {
    let evidence = advice.evidence;
    let mut text = format!(
        "{} calls, {} of them at the backend within {:.1} hours that the log shows whole\n\
         busiest minute: {} calls; most at once: {}; met by enough calls: {}\n\n",
        evidence.calls,
        evidence.runs,
        seconds(evidence.span) / 3600.0,
        evidence.busiest_minute,
        evidence.most,
        evidence.seen,
    );
    let heads = ["setting", "value", "interval", "calls", "why"];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    lines.push(cells("calls at once", &advice.outstanding, number));
    lines.push(cells("window", &advice.window, |it| time(*it)));
    lines.push(cells("calls per window", &advice.per_window, number));
    lines.push(cells("max_wait", &advice.max_wait, |it| time(*it)));
    lines.push(cells("queue capacity", &advice.capacity, number));
    text += &aligned(&lines, |_| false);
    text += "\n";
    if let Some(fit) = &advice.fit {
        text += &format!(
            "times by calls at once: {} ({} calls, up to {} at once)\n",
            curve(&fit.curve),
            fit.calls,
            fit.most
        );
    }
    for expected in advice.outlook.iter().flat_map(|it| [it.seen, it.advised]) {
        text += &by_curve(&expected);
    }
    if let Some(broken) = advice.broken {
        text += &format!(
            "it breaks from {} at once: {}\n",
            broken.from,
            sign(&broken)
        );
    }
    text
}

/// Describes the effect of a limit on the calls of the log.
fn by_curve(expected: &Expected) -> String {
    let max_wait = expected
        .max_wait
        .map_or("without a bound".to_owned(), |it| {
            format!("up to {}", time(it))
        });
    format!(
        "by the curve, with {} at once and waits {max_wait}: {:.1} % are refused; the others wait p50 {}, p95 {}, and take p50 {}\n",
        expected.outstanding,
        expected.given_up * 100.0,
        time(expected.wait_p50),
        time(expected.wait_p95),
        time(expected.took_p50)
    )
}

/// Describes the sign that the backend breaks.
fn sign(broken: &BreakingPoint) -> String {
    match broken.sign {
        Sign::Failures { share, below } => format!(
            "{:.1} % of {} calls failed, below it {:.1} %",
            share * 100.0,
            broken.calls,
            below * 100.0
        ),
        Sign::Times { times } => {
            format!("calls take {times:.1} times as long ({})", broken.calls)
        }
    }
}

/// Lists the parts of the logs that are not used, a line each.
pub(super) fn left_out(logs: &Logs) -> String {
    let all = [
        (
            logs.lost,
            "lines were lost: calls at once may have been more than is known, so values may be too low",
        ),
        (
            logs.old,
            "access lines are of a version that did not write when calls ended, and are left out",
        ),
        (logs.broken, "lines cannot be read"),
        (
            logs.beyond,
            "calls are left out, because the logs have too many",
        ),
    ];
    let mut text = String::new();
    for (count, what) in all {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    }
    text
}

fn curve(curve: &Curve) -> String {
    match curve {
        Curve::Flat => "no call delays another".to_owned(),
        Curve::Scalability { sigma, kappa } => {
            format!("universal scalability law, σ {sigma}, κ {kappa}")
        }
        Curve::Sharing { servers } => format!("processor sharing, {servers} servers"),
    }
}

fn functions(functions: &[FunctionAdvice]) -> String {
    let rows: Vec<&FunctionAdvice> = functions.iter().take(ROWS_MAX).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = table(
        &[
            ("function", &|it: &&FunctionAdvice| it.name.to_string()),
            ("calls", &|it| it.calls.to_string()),
            ("at once", &|it| it.most.to_string()),
            ("alone, median", &|it| {
                it.alone.map_or("-".into(), |alone| {
                    let bounds = (time(alone.low), time(alone.high));
                    format!("{} ({} to {})", time(alone.value), bounds.0, bounds.1)
                })
            }),
            ("by calls at once", &|it| {
                it.fit.as_ref().map_or("-".into(), |fit| curve(&fit.curve))
            }),
            ("limit of its own", &|it| match &it.outstanding {
                Some(set) => format!("{} ({} to {}): {}", set.value, set.low, set.high, set.why),
                None => "none".into(),
            }),
        ],
        &rows,
    );
    format!("\n{head}")
}

fn callers(callers: &[CallerAdvice]) -> String {
    let rows: Vec<&CallerAdvice> = callers.iter().take(ROWS_MAX).collect();
    if rows.is_empty() {
        return String::new();
    }
    let range = |(low, high): (f64, f64)| format!("{low:.1} to {high:.1}");
    let bucket = |it: &&CallerAdvice,
                  shown: &dyn Fn(&tidegate_advice::tokens::Bucket) -> String| {
        it.bucket.as_ref().map_or("-".into(), shown)
    };
    let head = table(
        &[
            ("caller", &|it: &&CallerAdvice| it.name.to_string()),
            ("calls", &|it| it.calls.to_string()),
            ("busiest minute", &|it| it.busiest_minute.to_string()),
            ("burst", &|it| bucket(it, &|b| b.burst.to_string())),
            ("interval", &|it| bucket(it, &|b| range(b.burst_bounds))),
            ("fill", &|it| bucket(it, &|b| b.fill.to_string())),
            ("interval", &|it| bucket(it, &|b| range(b.fill_bounds))),
            ("would delay", &|it| match &it.bucket {
                Ok(bucket) => format!("{:.2} %", bucket.delayed * 100.0),
                Err(need) => needs(std::slice::from_ref(need)),
            }),
        ],
        &rows,
    );
    format!(
        "\n{head}tokens: fill is the busiest minute, and burst the least that delays at most {} % of the calls\n",
        DELAYED_MAX * 100.0
    )
}

fn setting<T>(set: &Setting<T>, shown: impl Fn(&T) -> Value) -> Value {
    let mut row = json!({
        "value": shown(&set.value),
        "low": shown(&set.low),
        "high": shown(&set.high),
        "calls": set.calls,
        "why": set.why.to_string(),
    });
    if let Reason::InTime {
        share,
        most,
        at_most,
    } = set.why
    {
        row["in_time"] = json!({ "share": share, "most": most, "at_most": at_most });
    }
    row
}

fn answer<T>(answer: &SettingAnswer<T>, shown: impl Fn(&T) -> Value) -> Value {
    match answer {
        SettingAnswer::Set(set) => setting(set, shown),
        SettingAnswer::NoEvidenceBeyond(most) => json!({ "no_evidence_beyond": most }),
        SettingAnswer::NotEnough(lacks) => {
            let lacks: Vec<_> = lacks.iter().map(ToString::to_string).collect();
            json!({ "needs": lacks })
        }
    }
}

fn function_json(it: &FunctionAdvice) -> Value {
    json!({
        "function": *it.name,
        "calls": it.calls,
        "most_at_once": it.most,
        "alone_seconds": it.alone.map(|alone| json!({
            "p50": seconds(alone.value), "low": seconds(alone.low), "high": seconds(alone.high)
        })),
        "curve": it.fit.as_ref().map(|fit| curve(&fit.curve)),
        "outstanding": it.outstanding.as_ref().map(|set| setting(set, |it| json!(it))),
    })
}

fn expected_json(it: &Expected) -> Value {
    json!({
        "outstanding": it.outstanding,
        "max_wait_seconds": it.max_wait.map(seconds),
        "refused": it.given_up,
        "wait_seconds": { "p50": seconds(it.wait_p50), "p95": seconds(it.wait_p95) },
        "backend_seconds": { "p50": seconds(it.took_p50) },
    })
}

fn caller_json(it: &CallerAdvice) -> Value {
    let mut row = json!({
        "caller": *it.name,
        "calls": it.calls,
        "busiest_minute": it.busiest_minute,
    });
    let figure =
        |value: f64, (low, high): (f64, f64)| json!({ "value": value, "low": low, "high": high });
    match &it.bucket {
        Ok(bucket) => {
            row["burst"] = figure(bucket.burst, bucket.burst_bounds);
            row["fill"] = figure(bucket.fill, bucket.fill_bounds);
            row["delayed"] = bucket.delayed.into();
        }
        Err(need) => row["needs"] = json!([need.to_string()]),
    }
    row
}

impl AdviceReport {
    /// For programs.
    pub(super) fn json(&self, logs: &Logs) -> Value {
        let advice = &self.advice;
        let evidence = advice.evidence;
        let number = |it: &u32| json!(it);
        let time = |it: &u64| json!(seconds(*it));
        let left_out = self.edited.iter().flat_map(|edited| &edited.left_out);
        let left_out = left_out.map(|(part, why)| json!({ "part": part, "why": why }));
        json!({
            "evidence": {
                "calls": evidence.calls,
                "at_backend": evidence.runs,
                "seconds": seconds(evidence.span),
                "busiest_minute": evidence.busiest_minute,
                "most_at_once": evidence.most,
                "met_by_enough_calls": evidence.seen,
                "sidecars": logs.sidecars,
                "lost_lines": logs.lost,
                "lines_without_steps": logs.old,
                "broken_lines": logs.broken,
                "calls_left_out": logs.beyond,
                "is_zvm": logs.is_zvm,
            },
            "curve": advice.fit.as_ref().map(|fit| curve(&fit.curve)),
            "by_curve": advice.outlook.map(|it| json!({
                "seen": expected_json(&it.seen),
                "advised": expected_json(&it.advised),
            })),
            "breaks_from": advice.broken.map(|broken| broken.from),
            "outstanding": answer(&advice.outstanding, number),
            "window_seconds": answer(&advice.window, time),
            "per_window": answer(&advice.per_window, number),
            "max_wait_seconds": answer(&advice.max_wait, time),
            "capacity": answer(&advice.capacity, number),
            "functions": advice.functions.iter().map(function_json).collect::<Vec<_>>(),
            "callers": advice.callers.iter().map(caller_json).collect::<Vec<_>>(),
            "config": self.pasted,
            "diff": self.diff,
            "not_in_the_diff": left_out.collect::<Vec<_>>(),
            "plan": self.plan.as_ref().map_or(Value::Null, |plan| plan.json.clone()),
            "no_plan": self.plan.as_ref().err(),
            "plan_is_pessimistic": self.is_faster(),
        })
    }
}
