//! The metrics of all stages together.

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use super::jobs::metrics::JobMetrics;
use super::quotas::metrics::QuotaMetrics;
use super::shares::LeaseMetrics;
pub use super::shares::ShareNow;
use crate::admit::metrics::{GateMetrics, WouldHave};
use crate::call::Destination;
use crate::callers::metrics::CallerMetrics;
use crate::coalesce::metrics::CoalesceMetrics;
use crate::forward::metrics::BackendMetrics;
use crate::listen::metrics::ConnectionMetrics;
use crate::protocol::metrics::ProtocolMetrics;
use crate::tasks::metrics::TaskMetrics;
use crate::telemetry::calls::EndedCalls;
use crate::telemetry::process::{OfProcess, ProcessMetrics};
use tidegate_runtime::lock;
use tidegate_runtime::metric::{Registry, SetLevel, TimeLimits};

tidegate_runtime::metrics! {
    /// Reloads of the config.
    pub struct ConfigMetrics: "tidegate_" {
        /// Whether the last load of the config succeeded.
        config_last_reload_successful: Gauge in "0 or 1",
        /// When a config was last loaded.
        config_last_reload_success_timestamp_seconds: Gauge in "Unix s",
        /// Reloads, by whether the new config was `taken` or `refused`.
        config_reloads_total: Counter(outcome) in "reloads",
    }
}

tidegate_runtime::metrics! {
    /// The metrics that operators see first.
    pub struct StateMetrics: "tidegate_" {
        /// Whether calls are taken, as /readyz says. It is 0 while the process drains.
        ready: Gauge in "0 or 1",
        /// Whether an operator has lowered the limit for a while.
        limit_overridden: Gauge(limit) in "0 or 1",
        /// Departures of the process before that counted in windows when this one started.
        carried_departures: Gauge in "departures",
        /// Calls of the process before that hold slots, because they may still be at the backend.
        carried_calls: Gauge in "calls",
    }
}

impl StateMetrics {
    /// Shows whether calls are taken, of every limit whether it is lower for a while, and the departures and calls of
    /// the process before.
    pub fn mirror(&self, is_ready: bool, limits: &[(&str, bool)], carried: [usize; 2]) {
        self.ready().show(is_ready);
        let [departures, calls] = carried;
        self.carried_departures().show(departures);
        self.carried_calls().show(calls);
        self.retain("limit", |name| {
            limits.iter().any(|(limit, _)| *limit == name)
        });
        for (limit, is_lower) in limits {
            self.limit_overridden(limit).show(*is_lower);
        }
    }
}

/// The result of a reload.
const TAKEN: &str = "taken";
const REFUSED: &str = "refused";

/// The metrics of one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// A lock, so that one scrape at a time mirrors the levels.
    scraping: Mutex<()>,
    config: ConfigMetrics,
    /// The metrics that operators see first.
    pub state: StateMetrics,
    /// Calls that have ended.
    pub calls: EndedCalls,
    /// The queue, and limits over all callers.
    pub admit: GateMetrics,
    /// The counts of limits that only observe.
    pub would_have: WouldHave,
    /// Leased capacity.
    pub leases: LeaseMetrics,
    /// Shared reads.
    pub coalesce: CoalesceMetrics,
    /// Calls that were handed over.
    pub tasks: TaskMetrics,
    /// Work of the backend behind its answers.
    pub jobs: JobMetrics,
    /// Connections to backends.
    pub forward: BackendMetrics,
    /// Rate limits and callers.
    pub callers: CallerMetrics,
    /// Quotas.
    pub quotas: QuotaMetrics,
    /// Client connections.
    pub listen: ConnectionMetrics,
    /// Connections and identities that could not be used.
    pub protocol: ProtocolMetrics,
    /// Lines and spans that the process lost.
    pub process: ProcessMetrics,
    /// The process as the kernel sees it.
    pub of_process: OfProcess,
}

impl Metrics {
    /// Registers every metric. `revision` is the commit that was built.
    #[must_use]
    pub fn new(version: &str, revision: &str) -> Self {
        Self::with(TimeLimits::default(), version, revision)
    }

    /// Metrics with histograms for these times. They stay as they are until a restart, because counts in other
    /// buckets cannot be added to those there are.
    #[must_use]
    pub fn with(longest: TimeLimits, version: &str, revision: &str) -> Self {
        let registry = Registry::with(longest);
        let metrics = Self {
            calls: EndedCalls::new(&registry),
            admit: GateMetrics::new(&registry),
            would_have: WouldHave::new(&registry),
            leases: LeaseMetrics::new(&registry),
            coalesce: CoalesceMetrics::new(&registry),
            tasks: TaskMetrics::new(&registry),
            jobs: JobMetrics::new(&registry),
            forward: BackendMetrics::new(&registry),
            callers: CallerMetrics::new(&registry),
            quotas: QuotaMetrics::new(&registry),
            listen: ConnectionMetrics::new(&registry),
            protocol: ProtocolMetrics::new(&registry),
            config: ConfigMetrics::new(&registry),
            state: StateMetrics::new(&registry),
            process: ProcessMetrics::start(&registry, version, revision),
            of_process: OfProcess::new(&registry),
            scraping: Mutex::default(),
            registry,
        };
        // Counters for alerts exist before they count.
        for outcome in [TAKEN, REFUSED] {
            metrics.config.config_reloads_total(outcome);
        }
        for backend in [Destination::Socket, Destination::Http, Destination::Tcp] {
            metrics.forward.connect_shortages_total(backend.label());
        }
        metrics.config.config_last_reload_successful().show(true);
        metrics
    }

    /// Where metrics are registered.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A config was applied, at this time of the wall clock.
    pub fn config_taken(&self, at: SystemTime) {
        let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.config.config_last_reload_successful().show(true);
        self.config
            .config_last_reload_success_timestamp_seconds()
            .show(since_epoch);
    }

    /// A reload applied a config.
    pub fn config_reloaded(&self, at: SystemTime) {
        self.config.config_reloads_total(TAKEN).inc();
        self.config_taken(at);
    }

    /// A reload refused a config; the old one stays in force.
    pub fn config_refused(&self) {
        self.config.config_reloads_total(REFUSED).inc();
        self.config.config_last_reload_successful().show(false);
    }

    /// Everything in Prometheus's text format, after `mirror` has updated the levels.
    pub fn scrape(&self, mirror: impl FnOnce(&Self)) -> String {
        let _one_at_a_time = lock(&self.scraping);
        mirror(self);
        self.calls.add_up();
        self.registry.text()
    }
}
