//! `tidegate callers`: the callers, what they use, and their limits; the most expensive first.

use std::process::ExitCode;

use serde_json::Value;

use super::client::{Admin, figure, print, table, word};

/// Runs the command: exit code 0, or 1 if there is no answer.
#[must_use]
pub fn run(admin: &Admin) -> ExitCode {
    let answer = admin.get("/v1/callers?sort=tokens_1h&limit=10000");
    print(admin, answer, shown)
}

fn shown(answer: &Value) -> String {
    let callers = answer["callers"].as_array().into_iter().flatten();
    let rows: Vec<_> = callers
        .map(|caller| {
            [
                word(&caller["id"]),
                word(&caller["label"]),
                patterns(&caller["match"]),
                word(&caller["origin"]),
                word(&caller["rate_limit"]),
                figure(&caller["calls"]["5m"]),
                figure(&caller["calls"]["1h"]),
                figure(&caller["tokens"]["1h"]),
                figure(&caller["tokens"]["24h"]),
                last_access(&caller["last_access"]),
            ]
        })
        .collect();
    let columns = [
        "ID",
        "LABEL",
        "MATCH",
        "FROM",
        "LIMIT",
        "CALLS 5M",
        "CALLS 1H",
        "TOKENS 1H",
        "TOKENS 24H",
        "LAST CALL",
    ];
    let mut out = table(columns, &rows);
    let total = answer["total"].as_u64().unwrap_or_default();
    if total > rows.len() as u64 {
        out.push_str(&format!("{} of {total} callers\n", rows.len()));
    }
    out
}

/// The first pattern, and the number of others.
fn patterns(patterns: &Value) -> String {
    let Some([first, others @ ..]) = patterns.as_array().map(Vec::as_slice) else {
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
