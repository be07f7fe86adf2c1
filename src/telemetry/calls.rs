//! The counts of calls that have ended.

use std::time::Duration;

use foldhash::HashMap;
use prometheus::local::{LocalHistogram, LocalIntCounter};
use tidegate_runtime::PerThread;
use tidegate_runtime::metric::Registry;

/// The prefix of rate limits in the label `limit`.
pub const RATE_LIMIT_PREFIX: &str = "rate_limit:";

/// The label without a deciding limit.
pub const NO_LIMIT: &str = "none";

tidegate_runtime::metrics! {
    /// Calls by how they ended, and how long they took.
    pub struct CallMetrics: "tidegate_" {
        /// Calls that have ended, by verdict.
        calls_total: Counter(listener, function, class, verdict) in "calls",
        /// Time from a call's arrival to its end. Every call counts.
        call_duration_seconds: WaitHistogram(function, class) in "s",
        /// Time from a call's arrival to a worker. Only calls that got a worker count.
        queue_wait_seconds: WaitHistogram(function, class) in "s",
        /// Time from the last byte sent until the backend was done. A backend that never finished
        /// counts until the proxy gave up; calls that were not sent do not count.
        backend_duration_seconds: ReplyHistogram(function, class) in "s",
        /// Calls delayed or refused by a limit. Each counts once, for the limit that held it longest.
        limit_hits_total: Counter(limit) in "calls",
        /// Time for which calls were held by a limit, each limit with its own part. Calls that left or
        /// were refused after a wait count as well, at their end; waiting for a turn counts for no limit.
        limit_held_seconds_total: FloatCounter(limit) in "s",
        /// How far the predicted start of a call was from the real one, in parts of its wait, or of 50 ms if it
        /// waited for less. The start is predicted when the call begins to wait.
        start_prediction_error_ratio: RatioHistogram in "of the wait",
        /// Calls answered with an error of the proxy's own. `limit` is `none` if no limit decided.
        refusals_total: Counter(limit, reason) in "calls",
    }
}

/// Counts calls as they end.
#[derive(Debug)]
pub struct EndedCalls {
    metrics: CallMetrics,
    /// The counts of each thread since metrics were last read.
    ended: PerThread<ByFunction>,
}

/// The children for an ended call: a look-up of each costs more than counting.
type ByFunction = HashMap<Box<str>, Vec<CallEndCounters>>;

/// The counters of an ended call, on one thread.
#[derive(Debug)]
struct CallEndCounters {
    listener: Box<str>,
    class: Box<str>,
    verdict: Box<str>,
    calls: LocalIntCounter,
    total: LocalHistogram,
    waited: LocalHistogram,
    backend: LocalHistogram,
}

/// The times of the parts of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durations {
    /// From arrival to the end.
    pub total: Duration,
    /// From arrival to a worker; `None` without one.
    pub waited: Option<Duration>,
    /// From the last byte sent to the last byte of the reply; `None` if it was not sent.
    pub backend: Option<Duration>,
}

impl Durations {
    /// From arrival to a worker, or to the end without one.
    #[must_use]
    pub fn queued(&self) -> Duration {
        self.waited.unwrap_or(self.total)
    }
}

impl EndedCalls {
    /// Registers the metrics.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        Self {
            metrics: CallMetrics::new(registry),
            ended: PerThread::default(),
        }
    }

    /// A call has ended. `function` and `class` are names from a table or the config.
    pub fn count(
        &self,
        listener: &str,
        function: &str,
        class: &str,
        verdict: &str,
        took: &Durations,
    ) {
        let is_it = |ended: &&mut CallEndCounters| {
            *ended.verdict == *verdict && *ended.listener == *listener && *ended.class == *class
        };
        let mut known = self.ended.own();
        if let Some(all) = known.get_mut(function)
            && let Some(ended) = all.iter_mut().find(is_it)
        {
            ended.count(took);
            return;
        }
        let metrics = &self.metrics;
        let of = calls_total {
            listener,
            function,
            class,
            verdict,
        };
        let total = metrics.call_duration_seconds(call_duration_seconds { function, class });
        let waited = metrics.queue_wait_seconds(queue_wait_seconds { function, class });
        let backend =
            metrics.backend_duration_seconds(backend_duration_seconds { function, class });
        let mut ended = CallEndCounters {
            listener: listener.into(),
            class: class.into(),
            verdict: verdict.into(),
            calls: metrics.calls_total(of).local(),
            total: total.local(),
            waited: waited.local(),
            backend: backend.local(),
        };
        ended.count(took);
        known.entry(function.into()).or_default().push(ended);
    }

    /// Adds up what the threads have counted, for a reader of the metrics.
    pub fn add_up(&self) {
        let adding = self.ended.each(|known| {
            known
                .values_mut()
                .flatten()
                .for_each(CallEndCounters::add_up);
        });
        adding.for_each(drop);
    }

    /// A call was delayed or refused by this limit.
    pub fn limit_hit(&self, limit: &str) {
        self.metrics.limit_hits_total(limit).inc();
    }

    /// A limit held a call for this long.
    pub fn limit_held(&self, limit: &str, time: Duration) {
        let held = self.metrics.limit_held_seconds_total(limit);
        held.inc_by(time.as_secs_f64());
    }

    /// The start of a call was predicted with this error, in parts of its wait.
    pub fn start_error(&self, error: f64) {
        self.metrics.start_prediction_error_ratio.observe(error);
    }

    /// A call was answered with an error of our own; without a limit, it counts under
    /// [`NO_LIMIT`].
    pub fn refused(&self, limit: Option<&str>, reason: &str) {
        let limit = limit.unwrap_or(NO_LIMIT);
        self.metrics
            .refusals_total(refusals_total { limit, reason })
            .inc();
    }

    /// Removes the series of removed limits.
    pub fn retain_limits(&self, stays: impl Fn(&str) -> bool) {
        self.metrics.retain("limit", stays);
    }
}

impl CallEndCounters {
    fn add_up(&mut self) {
        self.calls.flush();
        for times in [&self.total, &self.waited, &self.backend] {
            times.flush();
        }
    }

    fn count(&mut self, took: &Durations) {
        self.calls.inc();
        self.total.observe(took.total.as_secs_f64());
        if let Some(waited) = took.waited {
            self.waited.observe(waited.as_secs_f64());
        }
        if let Some(backend) = took.backend {
            self.backend.observe(backend.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Durations = Durations {
        total: Duration::from_millis(300),
        waited: Some(Duration::from_millis(200)),
        backend: None,
    };

    #[track_caller]
    fn has(registry: &Registry, line: &str) {
        let text = registry.text();
        assert!(
            text.lines().any(|given| given == line),
            "no line {line} in\n{text}"
        );
    }

    #[test]
    fn each_call_counts_once_under_its_own_labels() {
        let registry = Registry::default();
        let calls = EndedCalls::new(&registry);
        for verdict in ["passed", "delayed", "passed"] {
            calls.count("nova", "guest_list", "default", verdict, &TOOK);
        }
        calls.count("other", "guest_list", "default", "passed", &TOOK);
        calls.add_up();
        // Once more counts nothing twice.
        calls.add_up();
        let line = |listener, verdict, n| {
            format!(
                "tidegate_calls_total{{class=\"default\",function=\"guest_list\",\
                 listener=\"{listener}\",verdict=\"{verdict}\"}} {n}"
            )
        };
        has(&registry, &line("nova", "passed", 2));
        has(&registry, &line("nova", "delayed", 1));
        has(&registry, &line("other", "passed", 1));
        has(
            &registry,
            "tidegate_queue_wait_seconds_count{class=\"default\",function=\"guest_list\"} 4",
        );
        has(
            &registry,
            "tidegate_backend_duration_seconds_count{class=\"default\",function=\"guest_list\"} 0",
        );
    }

    #[test]
    fn calls_that_end_on_many_threads_at_once_are_all_counted() {
        let registry = Registry::default();
        let calls = EndedCalls::new(&registry);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        calls.count("nova", "f", "default", "passed", &TOOK);
                    }
                });
            }
        });
        calls.add_up();
        has(
            &registry,
            "tidegate_calls_total{class=\"default\",function=\"f\",listener=\"nova\",\
             verdict=\"passed\"} 4000",
        );
    }
}
