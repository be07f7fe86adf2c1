//! `tidegate limits`: every limit, rate limit and quota, its use, and the calls that wait.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::client::{Admin, ClientError, figure, list, print, word};
use super::table::{Column, table};

/// Runs the command: exit code 0, or 1 if there is no answer.
pub(crate) fn run(admin: &Admin) -> ExitCode {
    print(admin, ask(admin), shown)
}

fn ask(admin: &Admin) -> Result<Value, ClientError> {
    let mut limits = admin.get("/v1/limits")?;
    let mut rate_limits = admin.get("/v1/rate-limits")?;
    let mut quotas = admin.get("/v1/quotas")?;
    Ok(json!({
        "limits": limits["limits"].take(),
        "buckets": limits["buckets"].take(),
        "rate_limits": rate_limits["rate_limits"].take(),
        "quotas": quotas["quotas"].take(),
        "quota_store": quotas["store"].take(),
    }))
}

fn shown(answer: &Value) -> String {
    let limits: [Column<'_, Value>; 6] = [
        ("LIMIT", &|it| word(&it["name"])),
        ("CALLS", &|it| word(&it["scope"])),
        ("BOUNDS", &bounds),
        ("USED", &|it| figure(used(it))),
        ("OF", &|it| figure(&it["in_force"])),
        ("OPENS", &|it| opens(&it["opens"])),
    ];
    let opens_of = |limit: &Value| {
        let mut buckets = list(answer, "buckets").iter();
        let bucket = buckets.find(|bucket| bucket["rate_limit"] == limit["id"]);
        bucket.map_or("-".to_owned(), |bucket| opens(&bucket["opens"]))
    };
    let rate_limits: [Column<'_, Value>; 14] = [
        ("RATE LIMIT", &|it| word(&it["id"])),
        ("LABEL", &|it| word(&it["label"])),
        ("FROM", &|it| word(&it["origin"])),
        ("KIND", &|it| word(&it["kind"])),
        ("BURST", &|it| figure(&it["burst"])),
        ("RATE/S", &|it| figure(either(it, "fill", "rate"))),
        ("ACHIEVED", &|it| figure(&it["pace"]["achieved"])),
        ("TOKENS", &|it| figure(&it["tokens"])),
        ("OPENS", &opens_of),
        ("DOES", &does),
        ("CALLERS", &|it| list(it, "callers").len().to_string()),
        ("QUEUED", &|it| figure(&it["queued"])),
        ("CHARGED", &|it| figure(&it["charged"])),
        ("REJECTED", &|it| figure(&it["rejected"])),
    ];
    format!(
        "{}\n{}{}",
        table(&limits, list(answer, "limits")),
        table(&rate_limits, list(answer, "rate_limits")),
        quotas(answer)
    )
}

/// Formats the table of quotas; empty if there are none.
fn quotas(answer: &Value) -> String {
    let rows = list(answer, "quotas");
    if rows.is_empty() {
        return String::new();
    }
    let admitted = |quota: &Value| {
        let ways = ["local", "drew", "waited"];
        let counts = ways.map(|way| quota["decisions"][way].as_u64().unwrap_or_default());
        counts.iter().sum::<u64>().to_string()
    };
    let columns: [Column<'_, Value>; 9] = [
        ("QUOTA", &|it| word(&it["name"])),
        ("TOTAL", &|it| figure(&it["total"])),
        ("WINDOW", &|it| {
            format!("{} s", figure(&it["window_seconds"]))
        }),
        ("OWN SHARE", &|it| figure(&it["safe_share"])),
        ("DOES", &does),
        ("KEYS", &|it| figure(&it["keys"])),
        ("ADMITTED", &admitted),
        ("REFUSED", &|it| figure(&it["decisions"]["refused"])),
        ("DRAWS", &|it| figure(&it["draws"])),
    ];
    format!(
        "\n{}{}\n",
        table(&columns, rows),
        kept_in(&answer["quota_store"])
    )
}

/// Where they are kept, and whether that is there.
fn kept_in(store: &Value) -> String {
    let engine = word(&store["engine"]);
    if engine == "memory" {
        return "Kept in the memory of this sidecar alone.".to_owned();
    }
    let (members, expected) = (
        figure(&store["members"]),
        figure(&store["expected_sidecars"]),
    );
    match (store["up"].as_bool(), store["trouble"]["text"].as_str()) {
        (Some(true), _) => {
            format!(
                "Kept in {engine}, which answers; {members} of at most {expected} sidecars share it."
            )
        }
        (Some(false), Some(_)) => format!("Kept in {engine}: {}.", word(&store["trouble"]["text"])),
        (Some(false), None) => format!("Kept in {engine}, which is unavailable."),
        (None, _) => format!("Kept in {engine}, which has not answered yet."),
    }
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

/// Formats the bounds of a limit, and the value of the config while less is in force: an operator, a lease, a ramp or a
/// pause lowered it.
fn bounds(limit: &Value) -> String {
    let bounds = span(limit);
    match &limit["configured"] {
        configured if configured != &limit["in_force"] => {
            format!("{bounds}, {} by the config", figure(configured))
        }
        _ => bounds,
    }
}

fn span(limit: &Value) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_lowered_shows_what_is_in_force() {
        let limit = |in_force: u64| {
            json!({
                "name": "outstanding", "scope": "all", "window_seconds": null, "used": 3,
                "configured": 10, "in_force": in_force, "opens": "now",
            })
        };
        let shown = shown(&json!({"limits": [limit(4), limit(10)]}));
        let rows: Vec<Vec<&str>> = shown
            .lines()
            .filter(|line| line.starts_with("outstanding"))
            .map(|line| line.split_whitespace().collect())
            .collect();
        let lowered = [
            "outstanding",
            "all",
            "at",
            "once,",
            "10",
            "by",
            "the",
            "config",
            "3",
            "4",
            "now",
        ];
        assert_eq!(rows[0], lowered);
        assert_eq!(
            rows[1],
            ["outstanding", "all", "at", "once", "3", "10", "now"]
        );
    }
}
