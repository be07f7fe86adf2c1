//! Metrics of the queue and of limits over all callers.

use tidegate_limits::Limit;
use tidegate_limits::policy::LimitRule;
use tidegate_limits::scheduler::{LimitNow, QueueNow};
use tidegate_runtime::metric::{Reach, Show};

tidegate_runtime::metrics! {
    /// The queue, and limits over all callers.
    pub struct GateMetrics: "tidegate_" {
        /// Waiting calls, including those at the door of a full queue.
        queue_depth: Gauge in "calls",
        /// Calls that may wait (`queue.capacity`).
        queue_capacity: Gauge in "calls",
        /// Time since the arrival of the oldest waiting call. It is 0 if no call waits.
        queue_oldest_seconds: Gauge in "s",
        /// Claims of room by calls that several limits had passed over. See
        /// [classes.md](classes.md).
        claims_total: Counter in "claims",
        /// Total time for which claims kept room that other calls could have used.
        claims_idle_seconds_total: FloatCounter in "s",
        /// Calls at the backend.
        outstanding: Gauge in "calls",
        /// Calls that may be at the backend at once (`smapi_max_outstanding_requests`). It is 0 if the
        /// limit is off.
        outstanding_limit: Gauge in "calls",
        /// Highest number of calls at the backend at once since the start.
        outstanding_peak: Gauge in "calls",
        /// Slots of a window limit that are reserved or not back yet.
        window_used: Gauge(limit) in "calls",
        /// Slots per window (`smapi_rate_limit_per_window`).
        window_limit: Gauge(limit) in "calls",
    }
}

/// A snapshot of the gate.
pub struct GateNow {
    /// The queue.
    pub queue: QueueNow,
    /// Calls at the backend that meet limits.
    pub outstanding: usize,
    /// The most there have been.
    pub outstanding_peak: usize,
    /// Every limit.
    pub limits: Vec<(LimitRule, LimitNow)>,
}

impl GateMetrics {
    /// Shows a snapshot. At most `outstanding_max` calls may be at the backend.
    pub fn mirror(&self, now: &GateNow, outstanding_max: Option<u32>) {
        let queue = &now.queue;
        self.queue_depth.show(queue.waiting + queue.at_door);
        self.queue_capacity.show(queue.capacity);
        self.queue_oldest_seconds.show(queue.oldest_waits);
        self.claims_total.reach(queue.claims);
        let idle = queue.claims_idle.as_secs_f64();
        self.claims_idle_seconds_total.reach(idle);
        self.outstanding.show(now.outstanding);
        self.outstanding_limit.show(outstanding_max.unwrap_or(0));
        self.outstanding_peak.show(now.outstanding_peak);
        let is_window = |(rule, _): &&(LimitRule, _)| matches!(rule.limit, Limit::Window { .. });
        let windows = now.limits.iter().filter(is_window);
        self.retain("limit", |limit| {
            windows.clone().any(|(rule, _)| *rule.name == *limit)
        });
        for (rule, window) in windows.clone() {
            self.window_used(&rule.name).show(window.used);
            self.window_limit(&rule.name).show(window.configured);
        }
    }
}
