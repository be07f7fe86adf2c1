//! `tidegate explain`: which limits hold or held a call, how long each did, and when the call starts.

use std::process::ExitCode;

use serde_json::Value;

use super::client::{Admin, figure, list, print, word};
use super::table::{Column, table};

/// `tidegate explain ID`
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ExplainArguments {
    /// The id of the call's access line
    #[arg(value_parser = id)]
    pub id: String,
    #[command(flatten)]
    /// The sidecar to ask.
    pub admin: Admin,
}

fn id(text: &str) -> Result<String, String> {
    if text.len() == 16 && text.bytes().all(|c| c.is_ascii_hexdigit()) {
        return Ok(text.to_ascii_lowercase());
    }
    Err("an id has 16 hexadecimal digits; it is in the access line of the call".to_owned())
}

/// Runs the command: exit code 0, or 1 if the call is unknown or there is no answer.
pub(crate) fn run(arguments: &ExplainArguments) -> ExitCode {
    let admin = &arguments.admin;
    let answer = admin.get(&format!("/v1/calls/{}", arguments.id));
    print(admin, answer, shown)
}

fn shown(call: &Value) -> String {
    let word_of = |name: &str| word(&call[name]);
    let two = |first: &str, between: &str, second: &str| {
        format!("{}{between}{}", word_of(first), word_of(second))
    };
    let milliseconds = |name: &str| match call[name].as_f64() {
        Some(_) => format!("{} ms", figure(&call[name])),
        None => "-".to_owned(),
    };
    let charged = match (call["rate_limit"].as_str(), call["tokens"].as_f64()) {
        (None, _) => "no rate limit".to_owned(),
        (Some(_), None) => word_of("rate_limit"),
        (Some(_), Some(_)) => {
            let tokens = figure(&call["tokens"]);
            format!("{}, {tokens} tokens", word_of("rate_limit"))
        }
    };
    let (now, state) = match (call["verdict"].as_str(), call["reason"].as_str()) {
        (None, _) => ("now", word_of("sentence")),
        (Some(_), Some(_)) => ("ended", two("verdict", ", ", "reason")),
        (Some(_), None) => ("ended", word_of("verdict")),
    };
    let lines = [
        ("call", two("call", " of ", "userid")),
        ("arrived", two("arrived", " on ", "listener")),
        ("caller", two("caller", ", class ", "class")),
        ("charged to", charged),
        (now, state),
        ("queue", milliseconds("queued_ms")),
        ("backend", milliseconds("backend_ms")),
        ("total", milliseconds("total_ms")),
    ];
    let mut out = lines
        .map(|(name, text)| format!("{name:<12}{text}\n"))
        .concat();
    let held = list(call, "held");
    if !held.is_empty() {
        out.push('\n');
        let columns: [Column<'_, Value>; 2] =
            [("HELD BY", &held_by), ("MS", &|it| figure(&it["ms"]))];
        out.push_str(&table(&columns, held));
    }
    out
}

fn held_by(held: &Value) -> String {
    let what = match held["cause"].as_str() {
        Some("limit") => return word(&held["limit"]),
        Some("turn") => "waiting for its turn",
        Some("others") => "other limits",
        Some("shared_call") => "the call whose answer it shared",
        Some("elsewhere") => "elsewhere than in the queue",
        _ => return word(&held["cause"]),
    };
    what.to_owned()
}
