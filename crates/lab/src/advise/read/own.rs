//! A line of Tidegate's own log: when its call was sent, when it was over, and how it ended.

use tidegate_advice::sample::SampleEnding;
use tidegate_limits::scheduler::Outcome;
use tidegate_record::step::read_steps;
use tidegate_record::{CallLine, StepKind};

/// The times of a call at the backend, since the start of the process.   ns
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CallTimes {
    pub(super) arrived: u64,
    /// When it was sent; `None` if it was not.
    pub(super) started: Option<u64>,
    pub(super) ended: u64,
    pub(super) ending: SampleEnding,
}

/// The limits of the backend, as a call shows them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shown {
    Times(CallTimes),
    /// The limits of the backend do not know it: it met none, or it got the answer of another call.
    OfNoLimit,
    /// The line has no times: an older version wrote it.
    Old,
    Broken,
}

/// The content of a line.
pub(super) fn shown(line: &CallLine<'_>) -> Shown {
    let Some(arrived) = line.arrived_ns else {
        return Shown::Old;
    };
    if line.limited == Some(false) {
        return Shown::OfNoLimit;
    }
    if line.schema.is_none() {
        return of_old(line, arrived);
    }
    if line.backend.is_none() {
        return Shown::OfNoLimit;
    }
    let nanos = |micros: u64| micros.checked_mul(1000);
    let after_arrival = |micros: Option<u64>| arrived.checked_add(nanos(micros?)?);
    let sent = line.sent_us.and_then(nanos);
    let (started, ended, ending) = match (line.outcome.as_deref(), line.verdict.as_deref()) {
        (Some(outcome), _) => {
            let ending = match outcome {
                "served" => SampleEnding::Served,
                "overloaded" => SampleEnding::Overloaded,
                _ => SampleEnding::Failed,
            };
            // A call that streams may have only its turn.
            let started = sent.or_else(|| after_arrival(line.queue_ms));
            let answered = sent.zip(line.backend_ms.and_then(nanos));
            let answered = answered.and_then(|(sent, took)| sent.checked_add(took));
            (
                started,
                answered.or_else(|| after_arrival(line.total_ms)),
                ending,
            )
        }
        (None, Some("refused" | "expired")) => {
            (None, after_arrival(line.total_ms), SampleEnding::Refused)
        }
        (None, _) => (None, after_arrival(line.total_ms), SampleEnding::Left),
    };
    ended.map_or(Shown::Broken, |ended| {
        Shown::Times(CallTimes {
            arrived,
            started,
            ended,
            ending,
        })
    })
}

/// A line of an older version has the times in its steps.
fn of_old(line: &CallLine<'_>, arrived: u64) -> Shown {
    let Some(raw) = line.steps else {
        return Shown::Old;
    };
    let Some(steps) = read_steps(raw) else {
        return Shown::Broken;
    };
    if steps.is_empty() {
        return Shown::OfNoLimit;
    }
    let mut started = None;
    for step in &steps {
        let ending = match step.what {
            StepKind::Admitted | StepKind::Sent => {
                started = Some(step.at);
                continue;
            }
            StepKind::Requeued => {
                started = None;
                continue;
            }
            StepKind::Ended(Outcome::Served, _) => SampleEnding::Served,
            StepKind::Ended(Outcome::Overloaded, _) => SampleEnding::Overloaded,
            StepKind::Ended(Outcome::Failed, _) => SampleEnding::Failed,
            StepKind::Refused | StepKind::Expired | StepKind::Evicted => SampleEnding::Refused,
            StepKind::Left | StepKind::Suspended(_) => SampleEnding::Left,
            StepKind::GivenBack => {
                started = None;
                SampleEnding::Left
            }
            _ => continue,
        };
        return Shown::Times(CallTimes {
            arrived,
            started,
            ended: step.at,
            ending,
        });
    }
    Shown::Broken
}
