//! `tidegate callers`: the callers, what they use, and their limits; the most expensive first.

use std::process::ExitCode;

use serde_json::Value;

use super::client::{Admin, figure, list, print, word};
use super::table::{Column, table};

/// Runs the command: exit code 0, or 1 if there is no answer.
pub(crate) fn run(admin: &Admin) -> ExitCode {
    let answer = admin.get("/v1/callers?sort=tokens_1h&limit=10000");
    print(admin, answer, shown)
}

fn shown(answer: &Value) -> String {
    let columns: [Column<'_, Value>; 10] = [
        ("ID", &|it| word(&it["id"])),
        ("LABEL", &|it| word(&it["label"])),
        ("MATCH", &|it| patterns(list(it, "match"))),
        ("FROM", &|it| word(&it["origin"])),
        ("LIMIT", &|it| word(&it["rate_limit"])),
        ("CALLS 5M", &|it| figure(&it["calls"]["5m"])),
        ("CALLS 1H", &|it| figure(&it["calls"]["1h"])),
        ("TOKENS 1H", &|it| figure(&it["tokens"]["1h"])),
        ("TOKENS 24H", &|it| figure(&it["tokens"]["24h"])),
        ("LAST CALL", &|it| last_access(&it["last_access"])),
    ];
    let callers = list(answer, "callers");
    let mut out = table(&columns, callers);
    let total = answer["total"].as_u64().unwrap_or_default();
    if total > callers.len() as u64 {
        out.push_str(&format!("{} of {total} callers\n", callers.len()));
    }
    out
}

/// The first pattern, and the number of others.
fn patterns(patterns: &[Value]) -> String {
    let [first, others @ ..] = patterns else {
        return "-".to_owned();
    };
    let fields = first.as_object().into_iter().flatten();
    let fields: Vec<String> = fields
        .map(|(field, value)| format!("{field}={}", word(value)))
        .collect();
    let mut text = fields.join(" ");
    if !others.is_empty() {
        text.push_str(&format!(" (+{})", others.len()));
    }
    text
}

/// A moment to the second.
fn last_access(moment: &Value) -> String {
    match moment.as_str().and_then(|text| text.split_once('.')) {
        Some((seconds, _)) => format!("{}Z", seconds.replace('T', " ")),
        None => "never".to_owned(),
    }
}
