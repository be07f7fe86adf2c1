//! Logs of modelled backends, as a sidecar writes them.

use serde_json::{Value, json};
use tidegate_backends::{CallEnding, DriveLimits, FinishedCall, ServiceOutcome, drive};

use crate::advice_worlds::{Kind, World};

/// A process that began at this moment.   us since the epoch
const STARTED_US: u64 = 1_795_519_722_062_733;
const HOUR: u64 = 3_600_000_000_000;
const FIRST_ID: u64 = 0x7b20_3bf7_0e10_6e9c;

pub(super) fn config(outstanding: u32) -> String {
    format!(
        r#"# Today's config.
[[listen]]
name = "test"
bind = "127.0.0.1:0"
protocol = "socket"

[backend]
socket = "127.0.0.1:1"

[queue]
postpone = "in_turn"
capacity = 9000 # a guess

[limits]
per_window = "total:100"
outstanding = {outstanding}
max_wait = "86400s"

[callers]
auto_register = 0

[[caller]]
label = "Nova's computes"
match = {{ listener = "test" }}
"#
    )
}

/// A line of the gate.
pub(super) fn gate(event: &str, at_ns: u64, config: &str) -> Value {
    let mut line = json!({
        "target": "gate", "event": event, "started_us": STARTED_US, "at_ns": at_ns,
    });
    if event == "start" {
        line["config"] = config.into();
        line["phase_ns"] = (STARTED_US * 1000).into();
        line["seed"] = "84c304e33e0efdb1".into();
        line["fingerprint"] = "53a04005feecaff9fcd0315bb73ba2a3".into();
    }
    line
}

/// The access line of a call.
fn line(number: u64, done: &FinishedCall) -> Value {
    let function = ["guest_capture", "guest_list"][done.function];
    let asked = done.arrived;
    let end = match done.ending {
        CallEnding::Backend(ServiceOutcome::Served) => "served",
        CallEnding::Backend(_) => "failed",
        CallEnding::GaveUp => "left",
    };
    let mut steps = vec![json!(["asked", asked, "polling"])];
    if let Some(at) = done.started {
        // Its bytes leave a microsecond later.
        let sent = (at + 1_000).min(done.ended - 1);
        steps.extend([json!(["admitted", at]), json!(["sent", sent])]);
    }
    steps.push(match end {
        "left" => json!([end, done.ended]),
        _ => json!([end, done.ended, null]),
    });
    json!({
        "target": "access", "id": format!("{:016x}", FIRST_ID + number),
        "started_us": STARTED_US, "function": function, "caller": "c1", "client": "127.0.0.1",
        "reason": null, "limit": null, "limited": true, "quota": null, "arrived_ns": asked,
        "backend": "socket", "weight": 1, "estimate": 1, "bucket": null,
        "deadline_ns": asked + 24 * HOUR, "steps": steps,
    })
}

/// The log of a sidecar that had these calls under this config.
pub(super) fn log_of(done: &[FinishedCall], config: &str) -> String {
    let mut lines: Vec<(u64, Value)> = (0..)
        .zip(done)
        .map(|(number, done)| (done.ended, line(number, done)))
        .collect();
    lines.sort_by_key(|(ended, _)| *ended);
    let last = lines.last().map_or(0, |(ended, _)| ended + 1);
    let mut text = format!("{}\n", gate("start", 0, config));
    for (_, line) in lines {
        text += &format!("{line}\n");
    }
    text + &format!("{}\n", gate("end", last, config))
}

/// The calls of a modelled backend under a limit, of the first hour.
pub(super) fn calls(world: &World, limit: u32) -> Vec<FinishedCall> {
    calls_that_leave(world, limit, None)
}

/// Calls whose clients leave after a wait.   ns
pub(super) fn calls_that_leave(world: &World, limit: u32, after: Option<u64>) -> Vec<FinishedCall> {
    let arrivals = world.arrivals.iter().filter(|it| it.at < HOUR);
    let arrivals: Vec<_> = arrivals.copied().collect();
    let mut limits = DriveLimits::total(limit);
    limits.patience = after;
    drive(world.backend.clone(), &arrivals, &limits)
}

/// A backend that shares its work, behind a limit of 80 % of what it bears.
pub(super) fn sufficient() -> (World, String) {
    let world = World::new(Kind::Sharing, 7_000);
    let log = log_of(&calls(&world, world.limit), &config(world.limit));
    (world, log)
}

/// When a process began, by its own clock, in seconds.
const BEGAN: u64 = 25 * 60 * 60;

/// A line of a log in which every instant is this many times later after the start.
pub(super) fn slower(line: &str, times: u64) -> String {
    let Ok(mut line) = serde_json::from_str::<Value>(line) else {
        return line.to_owned();
    };
    let later = |instant: &mut Value, second: u64| {
        if let Some(at) = instant.as_u64() {
            let began = BEGAN * second;
            *instant = (began + (at - began) * times).into();
        }
    };
    for (name, second) in [
        ("arrived_ns", 1_000_000_000),
        ("deadline_ns", 1_000_000_000),
        ("at_ns", 1_000_000_000),
        ("sent_us", 1_000_000),
    ] {
        if let Some(instant) = line.get_mut(name) {
            later(instant, second);
        }
    }
    for name in ["queue_ms", "backend_ms", "total_ms"] {
        if let Some(time) = line.get(name).and_then(Value::as_f64) {
            line[name] = (time * times as f64).into();
        }
    }
    for step in line["steps"].as_array_mut().into_iter().flatten() {
        later(&mut step[1], 1_000_000_000);
    }
    if let Some(config) = line.get("config").and_then(Value::as_str) {
        let (now, then) = ("max_wait_seconds = 60", "max_wait_seconds = 54000");
        line["config"] = config.replace(now, then).into();
    }
    line.to_string()
}
