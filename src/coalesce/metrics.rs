//! Metrics of reads that share a call.

use super::CoalesceNow;
use tidegate_runtime::metric::SetLevel;

tidegate_runtime::metrics! {
    /// Shared reads.
    pub struct CoalesceMetrics: "tidegate_" {
        /// Reads answered with the answer of an identical call, in flight or kept. They count against
        /// no limit.
        coalesced_total: Counter(function) in "calls",
        /// Calls in flight that identical reads share, or could.
        coalesce_calls: Gauge in "calls",
        /// Answers kept for identical reads.
        coalesce_kept_answers: Gauge in "answers",
        /// Memory used for both. That is keys, answers and 256 bytes each.
        coalesce_held_bytes: Gauge in "bytes",
    }
}

impl CoalesceMetrics {
    /// Shows a snapshot.
    pub fn mirror(&self, now: &CoalesceNow) {
        self.coalesce_calls.show(now.calls);
        self.coalesce_kept_answers.show(now.kept);
        self.coalesce_held_bytes.show(now.bytes);
    }
}
