//! `tidegate explain`: which limits held a call that ended recently, and how long each did.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::Value;

use super::client::{Admin, figure, print, table, word};

/// `tidegate explain ID`
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
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
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    let admin = &arguments.admin;
    let answer = admin.get(&format!("/v1/calls/{}", arguments.id));
    print(admin, answer, shown)
}

fn shown(call: &Value) -> String {
    let mut out = String::new();
    let mut say = |name: &str, text: String| {
        writeln!(out, "{name:<12}{text}").expect("writing to memory does not fail");
    };
    let milliseconds = |value: &Value| match value.as_f64() {
        Some(_) => format!("{} ms", figure(value)),
        None => "-".to_owned(),
    };
    say(
        "call",
        format!("{} of {}", word(&call["call"]), word(&call["userid"])),
    );
    say(
        "arrived",
        format!("{} on {}", word(&call["arrived"]), word(&call["listener"])),
    );
    say(
        "caller",
        format!("{}, class {}", word(&call["caller"]), word(&call["class"])),
    );
    let charged = match call["rate_limit"].as_str() {
        Some(_) => format!(
            "{}, {} tokens",
            word(&call["rate_limit"]),
            figure(&call["tokens"])
        ),
        None => "no rate limit".to_owned(),
    };
    say("charged to", charged);
    let ended = match call["reason"].as_str() {
        Some(_) => format!("{}, {}", word(&call["verdict"]), word(&call["reason"])),
        None => word(&call["verdict"]),
    };
    say("ended", ended);
    say("queue", milliseconds(&call["queued_ms"]));
    say("backend", milliseconds(&call["backend_ms"]));
    say("total", milliseconds(&call["total_ms"]));
    let held = call["held"].as_array().into_iter().flatten();
    let rows: Vec<_> = held
        .map(|held| {
            let by = match held["cause"].as_str() {
                Some("limit") => word(&held["limit"]),
                Some("turn") => "waiting for its turn".to_owned(),
                Some("others") => "other limits".to_owned(),
                Some("shared_call") => "the call whose answer it shared".to_owned(),
                Some("elsewhere") => "elsewhere than in the queue".to_owned(),
                _ => word(&held["cause"]),
            };
            [by, figure(&held["ms"])]
        })
        .collect();
    if !rows.is_empty() {
        out.push('\n');
        out.push_str(&table(["HELD BY", "MS"], &rows));
    }
    out
}
