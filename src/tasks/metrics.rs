//! Metrics of calls that were handed over.

use super::TasksNow;
use tidegate_runtime::metric::{SetLevel, SetTotal};

tidegate_runtime::metrics! {
    /// Calls that were handed over.
    pub struct TaskMetrics: "tidegate_" {
        /// Calls that were handed over and are here, by state. The states are `waiting`, `running` and
        /// `ended`; see [tasks.md](../how-to/tasks.md).
        tasks: Gauge(state) in "calls",
        /// Memory used by calls that were handed over. That is their requests while they are in
        /// flight, and their answers.
        tasks_held_bytes: Gauge in "bytes",
        /// Calls that were handed over and have ended, by outcome. It is `answered`, `not_kept`,
        /// `cancelled` or `failed`.
        tasks_ended_total: Counter(outcome) in "calls",
    }
}

impl TaskMetrics {
    /// Shows a snapshot.
    pub fn mirror(&self, now: &TasksNow) {
        self.tasks("waiting").show(now.waiting);
        self.tasks("running").show(now.running);
        self.tasks("ended").show(now.ended);
        self.tasks_held_bytes.show(now.bytes);
        let ended = |outcome, count| self.tasks_ended_total(outcome).reach(count);
        ended("answered", now.counted.answered);
        ended("not_kept", now.counted.not_kept);
        ended("cancelled", now.counted.cancelled);
        ended("failed", now.counted.failed);
    }
}
