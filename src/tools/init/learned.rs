//! What logs say about the values of a first config.

use tidegate_advice::advice::{Question, advise};
use tidegate_advice::setting::{Answer, Setting};

use crate::tools::advise::read::{Logs, Reading};
use crate::tools::logs::Log;

const SECOND: u64 = 1_000_000_000;

/// A value, and the evidence for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Learned {
    pub(super) value: u64,
    pub(super) why: String,
}

/// What the logs support.
#[derive(Debug, Default)]
pub(super) struct FromLogs {
    pub(super) outstanding: Option<Learned>,
    pub(super) window_seconds: Option<Learned>,
    pub(super) per_window: Option<Learned>,
    pub(super) max_wait_seconds: Option<Learned>,
    pub(super) capacity: Option<Learned>,
    /// What they do not support, and how the logs were read.
    pub(super) notes: Vec<String>,
    /// Whether their paths are those of the z/VM SDK server.
    pub(super) is_zvm: bool,
}

/// Reads logs and draws the advice. `max_wait` is how long a call may wait, in seconds.
///
/// # Errors
///
/// If a log cannot be read, or does not have the times of its calls.
pub(super) fn learn(
    logs: &[std::path::PathBuf],
    reading: &Reading,
    max_wait: u32,
) -> Result<FromLogs, String> {
    let full = |error: &dyn std::error::Error| match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let opened: Result<Vec<_>, _> = logs.iter().map(|path| Log::open(path)).collect();
    let opened = opened.map_err(|error| full(&error))?;
    let logs = Logs::read(opened, reading, |_| {}).map_err(|error| full(&error))?;
    let question = Question {
        max_wait: Some(u64::from(max_wait) * SECOND),
        seed: reading.seed,
        ..Question::default()
    };
    let advice = advise(&logs.samples, &question);
    let mut learned = FromLogs {
        notes: logs.notes,
        is_zvm: logs.is_zvm,
        ..FromLogs::default()
    };
    let calls = advice.evidence.runs;
    let mut note = |name: &str, answer: Option<String>| {
        if let Some(answer) = answer {
            learned.notes.push(format!("{name}: {answer}"));
        }
    };
    note("calls at once", missing(&advice.outstanding));
    note("calls per window", missing(&advice.per_window));
    let number = |set: &Setting<u32>| {
        (
            u64::from(set.value),
            u64::from(set.low),
            u64::from(set.high),
        )
    };
    let seconds = |set: &Setting<u64>| {
        let whole = |ns: u64| (ns / SECOND).max(1);
        (whole(set.value), whole(set.low), whole(set.high))
    };
    learned.outstanding = value(&advice.outstanding, calls, number);
    learned.window_seconds = value(&advice.window, calls, seconds);
    learned.per_window = value(&advice.per_window, calls, number);
    learned.max_wait_seconds = value(&advice.max_wait, calls, seconds);
    learned.capacity = value(&advice.capacity, calls, number);
    Ok(learned)
}

/// The value of an answer with its interval and its reason.
fn value<T>(
    answer: &Answer<T>,
    calls: usize,
    shown: impl Fn(&Setting<T>) -> (u64, u64, u64),
) -> Option<Learned> {
    let set = answer.setting()?;
    let (value, low, high) = shown(set);
    let interval = match low == high {
        true => String::new(),
        false => format!(", {low} to {high}"),
    };
    let why = format!("from {calls} calls of the log{interval}: {}", set.why);
    Some(Learned { value, why })
}

/// Why an answer has no value.
fn missing<T>(answer: &Answer<T>) -> Option<String> {
    match answer {
        Answer::Set(_) => None,
        Answer::NoEvidenceBeyond(most) => Some(format!(
            "the log shows up to {most} without strain, so it does not say what the backend can take"
        )),
        Answer::NotEnough(needs) => {
            let needs: Vec<_> = needs.iter().map(ToString::to_string).collect();
            Some(format!(
                "not enough in the log, it needs {}",
                needs.join("; ")
            ))
        }
    }
}
