//! `tidegate limits`: every limit and rate limit, its use, and the calls that wait.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::client::{Admin, ClientError, figure, print, table, word};

/// Runs the command: exit code 0, or 1 if there is no answer.
#[must_use]
pub fn run(admin: &Admin) -> ExitCode {
    print(admin, ask(admin), shown)
}

fn ask(admin: &Admin) -> Result<Value, ClientError> {
    let mut limits = admin.get("/v1/limits")?;
    let mut rate_limits = admin.get("/v1/rate-limits")?;
    Ok(json!({
        "limits": limits["limits"].take(),
        "buckets": limits["buckets"].take(),
        "rate_limits": rate_limits["rate_limits"].take(),
    }))
}

fn shown(answer: &Value) -> String {
    let limits = answer["limits"].as_array().into_iter().flatten();
    let rows: Vec<_> = limits
        .map(|limit| {
            [
                word(&limit["name"]),
                word(&limit["scope"]),
                bounds(limit),
                figure(used(limit)),
                figure(&limit["configured"]),
                opens(&limit["opens"]),
            ]
        })
        .collect();
    let mut out = table(["LIMIT", "CALLS", "BOUNDS", "USED", "OF", "OPENS"], &rows);
    let opens_of = |id: &Value| {
        let mut buckets = answer["buckets"].as_array().into_iter().flatten();
        let bucket = buckets.find(|bucket| bucket["rate_limit"] == *id);
        bucket.map_or("-".to_owned(), |bucket| opens(&bucket["opens"]))
    };
    let rate_limits = answer["rate_limits"].as_array().into_iter().flatten();
    let rows: Vec<_> = rate_limits
        .map(|limit| {
            [
                word(&limit["id"]),
                word(&limit["label"]),
                word(&limit["origin"]),
                word(&limit["kind"]),
                figure(&limit["burst"]),
                figure(either(limit, "fill", "rate")),
                figure(&limit["pace"]["achieved"]),
                figure(&limit["tokens"]),
                opens_of(&limit["id"]),
                does(limit),
                limit["callers"].as_array().map_or(0, Vec::len).to_string(),
                figure(&limit["queued"]),
                figure(&limit["charged"]),
                figure(&limit["rejected"]),
            ]
        })
        .collect();
    out.push('\n');
    let columns = [
        "RATE LIMIT",
        "LABEL",
        "FROM",
        "KIND",
        "BURST",
        "RATE/S",
        "ACHIEVED",
        "TOKENS",
        "OPENS",
        "DOES",
        "CALLERS",
        "QUEUED",
        "CHARGED",
        "REJECTED",
    ];
    out.push_str(&table(columns, &rows));
    out
}

/// The first of two figures that exists.
fn either<'a>(limit: &'a Value, first: &str, second: &str) -> &'a Value {
    match &limit[first] {
        Value::Null => &limit[second],
        figure => figure,
    }
}

/// The use of a limit; for a pace, its recent rate.
fn used(limit: &Value) -> &Value {
    match &limit["pace"] {
        Value::Null => &limit["used"],
        pace => &pace["achieved"],
    }
}

fn bounds(limit: &Value) -> String {
    if let (Some(ratio), Some(wait)) = (
        limit["ratio"].as_f64(),
        limit["pace"]["wait_seconds"].as_f64(),
    ) {
        return format!("tokens/s, {ratio} times if late; {wait:.2} s late");
    }
    match limit["window_seconds"].as_f64() {
        Some(seconds) => format!("in any {seconds} s"),
        None => "at once".to_owned(),
    }
}

fn opens(opens: &Value) -> String {
    match (opens.as_str(), opens["in_seconds"].as_f64()) {
        (Some("now"), _) => "now".to_owned(),
        (_, Some(seconds)) => format!("in {seconds:.2} s"),
        _ => "when a call ends".to_owned(),
    }
}

/// The effect on an excess call.
fn does(limit: &Value) -> String {
    if limit["exempt"] == true {
        return "exempts".to_owned();
    }
    match (limit["mode"].as_str(), limit["on_excess"].as_str()) {
        (Some("observe"), _) => "observes".to_owned(),
        (_, Some("reject")) => "rejects".to_owned(),
        _ => "delays".to_owned(),
    }
}
