//! `tidegate pause`, `resume`, `lower` and `restore`: send nothing new to the backend for a while, and
//! send again; lower a limit for a while, and end that.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate_runtime::command::{note, parse_duration};

use super::client::{Admin, ClientError, figure, print, word};
use super::failed;

/// The time between two questions whether calls still run.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// Why an operator acts.
#[derive(Debug, clap::Args)]
struct ReasonArgument {
    /// The reason, for the log and for other operators
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    why: String,
}

/// The arguments of `tidegate pause`.
#[derive(Debug, clap::Args)]
pub(crate) struct PauseArguments {
    /// The pause ends by itself after this time, such as 300s; at most 24 hours
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    hold: Duration,
    #[command(flatten)]
    reason: ReasonArgument,
    /// Let calls wait longer by the time that they were paused
    #[arg(long)]
    extend_deadlines: bool,
    /// Return only when no call is at the backend any more. Exit 1 if the pause ends before that
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    admin: Admin,
}

/// The arguments of `tidegate resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArguments {
    /// How long the limits grow from a tenth to full; without it, as `backend.ramp` says
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    ramp: Option<Duration>,
    #[command(flatten)]
    reason: ReasonArgument,
    #[command(flatten)]
    admin: Admin,
}

/// The arguments of `tidegate lower`.
#[derive(Debug, clap::Args)]
pub(crate) struct LowerArguments {
    /// The limit, as in `tidegate limits`, or its function
    name: String,
    /// The most that it gives out; not more than the config allows
    value: u32,
    /// It has its own value again after this time, such as 30m; at most 24 hours
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    time: Duration,
    #[command(flatten)]
    reason: ReasonArgument,
    #[command(flatten)]
    admin: Admin,
}

/// The arguments of `tidegate restore`.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArguments {
    /// The limit that was lowered, as in `tidegate limits`, or its function
    name: String,
    #[command(flatten)]
    admin: Admin,
}

/// The path of a limit at the admin address.
fn path_of(limit: &str) -> String {
    let name = limit.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b':' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    });
    format!("/v1/limits/{}", name.collect::<String>())
}

/// Lowers a limit for a while: exit code 0, or 1 if that was refused.
pub(crate) fn lower(arguments: &LowerArguments) -> ExitCode {
    let asked = json!({
        "value": arguments.value,
        "for_seconds": arguments.time.as_secs_f64(),
        "why": arguments.reason.why,
    });
    let state = arguments.admin.post(&path_of(&arguments.name), &asked);
    print(&arguments.admin, state, |state| {
        let (limit, value) = (word(&state["limit"]), figure(&state["value"]));
        format!(
            "Limit {limit} is at most {value}, and ends {}.\n{}",
            ends(state),
            unsaved(state)
        )
    })
}

/// Lets a lowered limit have its own value again: exit code 0, or 1 if that was refused.
pub(crate) fn restore(arguments: &RestoreArguments) -> ExitCode {
    let restored = arguments.admin.delete(&path_of(&arguments.name));
    let restored = restored.map(|()| json!({"limit": arguments.name}));
    print(&arguments.admin, restored, |restored| {
        let limit = word(&restored["limit"]);
        format!("Limit {limit} has its own value again.\n")
    })
}

/// Pauses the backend: exit code 0, or 1 if that was refused or calls did not end in time.
pub(crate) fn pause(arguments: &PauseArguments) -> ExitCode {
    let admin = &arguments.admin;
    let asked = json!({
        "hold_seconds": arguments.hold.as_secs_f64(),
        "why": arguments.reason.why,
        "extend_deadlines": arguments.extend_deadlines,
    });
    let mut state = admin.post("/v1/backend/pause", &asked);
    if arguments.wait {
        state = state.and_then(|state| until_nothing_runs(admin, state, arguments.hold));
    }
    let still_runs = arguments.wait && state.as_ref().is_ok_and(|it| it["in_flight"] != 0);
    let told = print(admin, state, shown);
    if still_runs {
        return failed("the pause ended before every call had ended");
    }
    told
}

/// Asks until no call runs or the backend is no longer paused, for at most the hold.
fn until_nothing_runs(
    admin: &Admin,
    mut state: Value,
    hold: Duration,
) -> Result<Value, ClientError> {
    let begun = Instant::now();
    let mut told = None;
    while state["in_flight"] != 0 && state["state"] == "paused" && begun.elapsed() < hold {
        let running = state["in_flight"].as_u64();
        if told != running && !admin.json {
            told = running;
            note(format_args!(
                "{} calls still run\n",
                figure(&state["in_flight"])
            ));
        }
        wait(ASK_EVERY);
        state = admin.get("/v1/backend")?;
    }
    Ok(state)
}

#[expect(clippy::disallowed_methods, reason = "this command serves no calls")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// Resumes: exit code 0, or 1 if that was refused.
pub(crate) fn resume(arguments: &ResumeArguments) -> ExitCode {
    let mut asked = json!({"why": arguments.reason.why});
    if let Some(ramp) = arguments.ramp {
        asked["ramp_seconds"] = ramp.as_secs_f64().into();
    }
    let state = arguments.admin.post("/v1/backend/resume", &asked);
    print(&arguments.admin, state, shown)
}

fn shown(state: &Value) -> String {
    let running = figure(&state["in_flight"]);
    let (ends, unsaved) = (|| ends(state), unsaved(state));
    match state["state"].as_str() {
        Some("paused") => format!(
            "The backend is paused, and {running} calls still run. It ends {}, or with `tidegate \
             resume`.\n{unsaved}",
            ends()
        ),
        Some("ramping") => {
            let share = state["share"].as_f64().unwrap_or(1.0) * 100.0;
            format!(
                "Calls are sent by {share:.0} % of the limits, and by all of them {}.\n{unsaved}",
                ends()
            )
        }
        Some("running") => "Calls are sent by the limits of the config.\n".to_owned(),
        _ => format!("The backend is {}.\n", word(&state["state"])),
    }
}

/// How long until the end.
fn ends(state: &Value) -> String {
    let ends = state["ends_unix_ms"].as_u64().unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_millis());
    let rest = u128::from(ends).saturating_sub(now);
    format!("in {} s", rest.div_ceil(1000))
}

fn unsaved(state: &Value) -> &'static str {
    match state["survives_restart"] == true {
        true => "",
        false => "It does not survive a restart: set callers.state_file for that.\n",
    }
}
