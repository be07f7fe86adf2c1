//! Values for a first config that logs support: `tidegate-lab advise` reads them.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_runtime::command::companion;

use crate::tools::programs::{LAB, missing};

/// A value, and the evidence for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LearnedValue {
    pub(super) value: u64,
    pub(super) why: String,
}

/// Values that the logs support.
#[derive(Debug, Default)]
pub(super) struct FromLogs {
    pub(super) outstanding: Option<LearnedValue>,
    pub(super) window_seconds: Option<LearnedValue>,
    pub(super) per_window: Option<LearnedValue>,
    pub(super) max_wait_seconds: Option<LearnedValue>,
    pub(super) capacity: Option<LearnedValue>,
    /// Values that the logs do not support, and why.
    pub(super) notes: Vec<String>,
    /// Whether their paths are those of the z/VM SDK server.
    pub(super) is_zvm: bool,
}

/// Reads logs and returns the advice. `max_wait` is how long a call may wait, in seconds.
///
/// # Errors
///
/// If a log cannot be read, does not have the times of its calls, or the program for logs is not there.
pub(super) fn learn(
    logs: &[PathBuf],
    format: Option<&str>,
    max_wait: u32,
) -> Result<FromLogs, String> {
    let mut command = Command::new(companion(LAB));
    command
        .arg0("tidegate")
        .args(["advise", "--json", "--max-wait", &format!("{max_wait}s")]);
    if let Some(format) = format {
        command.args(["--log-format", format]);
    }
    // Its notes go to the user as they are.
    command.arg("--").args(logs).stderr(Stdio::inherit());
    let output = command
        .output()
        .map_err(|cause| missing(LAB, "init --log", &cause))?;
    let advice: Value =
        serde_json::from_slice(&output.stdout).map_err(|_| "the logs gave no advice".to_owned())?;
    Ok(FromLogs::of(&advice))
}

impl FromLogs {
    fn of(advice: &Value) -> Self {
        let evidence = &advice["evidence"];
        let calls = evidence["at_backend"].as_u64().unwrap_or_default();
        let value = |name: &str| value(&advice[name], calls);
        let note = |about: &str, name: &str| {
            missing_value(&advice[name]).map(|why| format!("{about}: {why}"))
        };
        Self {
            outstanding: value("outstanding"),
            window_seconds: value("window_seconds"),
            per_window: value("per_window"),
            max_wait_seconds: value("max_wait_seconds"),
            capacity: value("capacity"),
            notes: [
                note("calls at once", "outstanding"),
                note("calls per window", "per_window"),
            ]
            .into_iter()
            .flatten()
            .collect(),
            is_zvm: evidence["is_zvm"] == true,
        }
    }
}

/// The value of an answer with its interval and its reason. Seconds are whole, and 1 at least.
fn value(answer: &Value, calls: u64) -> Option<LearnedValue> {
    let number = |name: &str| Some((answer[name].as_f64()? as u64).max(1));
    let (value, low, high) = (number("value")?, number("low")?, number("high")?);
    let interval = match low == high {
        true => String::new(),
        false => format!(", {low} to {high}"),
    };
    let why = answer["why"].as_str()?;
    let why = format!("from {calls} calls of the log{interval}: {why}");
    Some(LearnedValue { value, why })
}

/// Why an answer has no value.
fn missing_value(answer: &Value) -> Option<String> {
    if let Some(most) = answer["no_evidence_beyond"].as_u64() {
        return Some(format!(
            "the log shows up to {most} without strain, so it does not say what the backend can take"
        ));
    }
    let needs: Vec<_> = answer["needs"]
        .as_array()?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    Some(format!(
        "not enough in the log, it needs {}",
        needs.join("; ")
    ))
}
