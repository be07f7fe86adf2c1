//! Metrics of the queue and of limits over all callers.

use std::sync::Mutex;

use prometheus::Histogram;
use tidegate_limits::Limit;
use tidegate_limits::policy::LimitRule;
use tidegate_limits::scheduler::{LimitNow, QueueNow};
use tidegate_runtime::lock;
use tidegate_runtime::metric::{Registry, SetLevel, SetTotal};

use super::acts::{BackendControl, BackendControlNow};
use super::kept_places::TicketCounts;
use super::observe::ObservedNow;
use crate::call::{Would, WouldEnd};
use crate::telemetry::calls::NO_LIMIT;

tidegate_runtime::metrics! {
    /// The queue, and limits over all callers.
    pub struct GateMetrics: "tidegate_" {
        /// Waiting calls, including those at the door of a full queue.
        queue_depth: Gauge in "calls",
        /// Calls that may wait (`queue.capacity`).
        queue_capacity: Gauge in "calls",
        /// Time since the arrival of the oldest waiting call. It is 0 if no call waits.
        queue_oldest_seconds: Gauge in "s",
        /// Places in the queue of clients that have given up for a while. They are among the waiting calls.
        /// See [tickets.md](../how-to/tickets.md).
        suspended_calls: Gauge in "calls",
        /// Tickets by what became of them: `given` to refused calls, `used` in time, or `lapsed`. `taken`
        /// counts refused calls that got none, because the same call of the same caller had a place.
        tickets_total: Counter(event) in "tickets",
        /// How long a call may wait (`max_wait`). Classes and rate limits
        /// can have deadlines of their own.
        queue_max_wait_seconds: Gauge in "s",
        /// Claims of room by calls that several limits had passed over. See
        /// [classes.md](../how-to/classes.md).
        claims_total: Counter in "claims",
        /// Total time for which claims kept room that other calls could have used.
        claims_idle_seconds_total: FloatCounter in "s",
        /// Calls at the backend.
        outstanding: Gauge in "calls",
        /// Calls that may be at the backend at once (`outstanding` in `[limits]`). It is 0 if the
        /// limit is off.
        outstanding_limit: Gauge in "calls",
        /// Highest number of calls at the backend at once since the start.
        outstanding_peak: Gauge in "calls",
        /// Slots of a window limit that are reserved or not back yet.
        window_used: Gauge(limit) in "calls",
        /// Slots per window (`per_window` in `[limits]`).
        window_limit: Gauge(limit) in "calls",
        /// Whether an operator has paused the backend: calls wait, and nothing new is sent.
        paused: Gauge in "0 or 1",
        /// The share of the limits that is in force. It is below 1 while limits grow after a pause, or
        /// after a backend was down.
        ramp_share: Gauge in "0 to 1",
    }
}

tidegate_runtime::metrics! {
    /// What limits that only observe would have done.
    pub struct WouldHaveMetrics: "tidegate_" {
        /// Time that calls would have waited for their turn, while limits only observe. It is the
        /// whole wait, with what they really waited. See [observe.md](../how-to/observe.md).
        would_have_waited_seconds: WaitHistogram(class) in "s",
        /// Calls that would have waited, while limits only observe. Each counts once, for the limit
        /// that would have held it longest.
        would_have_delayed_total: Counter(limit) in "calls",
        /// Calls that would have been refused, while limits only observe. `limit` is `none` if no
        /// limit would have decided.
        would_have_refused_total: Counter(limit, reason) in "calls",
        /// Calls that would be waiting now, while limits only observe, also at the door.
        would_be_waiting: Gauge in "calls",
        /// Highest number of calls that would have waited at once since limits began to observe.
        would_be_waiting_peak: Gauge in "calls",
    }
}

/// The counts of limits that only observe: what they would have done to calls.
#[derive(Debug)]
pub struct WouldHave {
    metrics: WouldHaveMetrics,
    /// The histograms by class, because a look-up of each costs more than counting.
    waits: Mutex<Vec<(Box<str>, Histogram)>>,
}

impl WouldHave {
    /// Registers the metrics.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        Self {
            metrics: WouldHaveMetrics::new(registry),
            waits: Mutex::default(),
        }
    }

    /// Shows what would be now; `None` if nothing observes.
    pub fn mirror(&self, now: Option<&ObservedNow>) {
        let (depth, peak) = now.map_or((0, 0), |it| (it.depth, it.peak));
        self.metrics.would_be_waiting().show(depth);
        self.metrics.would_be_waiting_peak().show(peak);
    }

    /// Removes the series of removed limits.
    pub fn retain_limits(&self, stays: impl Fn(&str) -> bool) {
        self.metrics.retain("limit", stays);
    }

    /// Counts a decision about a call of this class.
    pub fn count(&self, class: &str, would: &Would) {
        let limit = would.limit.as_deref();
        match would.ending {
            WouldEnd::Runs => {
                if let Some(limit) = limit {
                    self.metrics.would_have_delayed_total(limit).inc();
                }
                let mut waits = lock(&self.waits);
                let known = waits.iter().find(|(known, _)| **known == *class);
                let waits = match known {
                    Some((_, waits)) => waits,
                    None => {
                        let new = self.metrics.would_have_waited_seconds(class);
                        waits.push((class.into(), new));
                        let (_, new) = waits.last().expect("it was just added");
                        new
                    }
                };
                waits.observe(would.wait.as_secs_f64());
            }
            WouldEnd::Refused(reason) => {
                let of = would_have_refused_total {
                    limit: limit.unwrap_or(NO_LIMIT),
                    reason: reason.as_str(),
                };
                self.metrics.would_have_refused_total(of).inc();
            }
            WouldEnd::Left | WouldEnd::Waits => {}
        }
    }
}

/// A snapshot of the gate.
pub struct GateNow {
    /// The acts of operators on the backend.
    pub acting: BackendControlNow,
    /// The queue.
    pub queue: QueueNow,
    /// Calls at the backend that meet limits.
    pub outstanding: usize,
    /// The most there have been.
    pub outstanding_peak: usize,
    /// Every limit that holds calls.
    pub limits: Vec<(LimitRule, LimitNow)>,
    /// Tickets by what became of them.
    pub tickets: TicketCounts,
}

impl GateMetrics {
    /// Shows a snapshot. At most `outstanding_max` calls may be at the backend.
    pub fn mirror(&self, now: &GateNow, outstanding_max: Option<u32>) {
        let queue = &now.queue;
        self.queue_depth.show(queue.waiting + queue.at_door);
        self.queue_capacity.show(queue.capacity);
        self.queue_oldest_seconds.show(queue.oldest_waits);
        self.claims_total.reach(queue.claims);
        self.suspended_calls.show(queue.suspended);
        let TicketCounts {
            given,
            used,
            lapsed,
            taken,
        } = now.tickets;
        let tickets = [
            ("given", given),
            ("used", used),
            ("lapsed", lapsed),
            ("taken", taken),
        ];
        for (event, count) in tickets {
            self.tickets_total(event).reach(count);
        }
        let idle = queue.claims_idle.as_secs_f64();
        self.claims_idle_seconds_total.reach(idle);
        self.outstanding.show(now.outstanding);
        self.outstanding_limit.show(outstanding_max.unwrap_or(0));
        self.outstanding_peak.show(now.outstanding_peak);
        let acting = &now.acting;
        self.paused()
            .show(matches!(acting.acting, BackendControl::Paused(_)));
        self.ramp_share()
            .show(f64::from(acting.share.thousandths()) / 1000.0);
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
