//! Metrics for Prometheus: requests as they are answered, and the state at the scrape.
//!
//! The names that begin with `doorman_` are Doorman's own, so that its dashboards keep working;
//! ours follow Prometheus's rules. A resource is a label only if the config names it literally, or
//! while there are few: ids come from clients, and a label must not.

use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::{Histogram, IntCounter};
use tidegate_runtime::metric::{Figure, Registry, SetLevel, SetTotal};
use tidegate_runtime::{Causes, lock};
use tonic::Code;

use super::{ResourceNow, ServerRole, ServerStatus};

/// The most resources that are labels although no template names them, the first by their ids.
const LABELLED_MAX: usize = 100;
/// The most resources that are labels because a template names them.
const LITERAL_MAX: usize = 1_000;
/// The label of all others together.
const OTHER: &str = "other";

tidegate_runtime::metrics! {
    /// A lease server, under names of ours.
    pub struct LeaseServerMetrics: "tidegate_lease_" {
        /// Answered requests, by method and gRPC status.
        requests_total: Counter(method, code) in "requests",
        /// Time from a request's head to its answer.
        request_duration_seconds: Histogram(method) in "s",
        /// Open connections.
        connections: Gauge in "connections",
        /// Connections closed because the peer was silent or TLS failed, by reason.
        connections_closed_total: Counter(reason) in "connections",
        /// Times that clients had to wait to be accepted. All connections, or all file descriptors of
        /// the process, were in use.
        accept_waits_total: Counter in "waits",
        /// Whether this server is the master.
        master: Gauge in "0 or 1",
        /// Resources in memory.
        resources: Gauge in "resources",
        /// Clients and servers that hold a lease.
        holders: Gauge in "holders",
        /// Leases that have not expired.
        leases: Gauge in "leases",
        /// Resources left out of an answer because they were requested again too soon.
        early_total: Counter in "resources",
        /// Requests for a resource that no template matches.
        unmatched_total: Counter in "requests",
        /// Claims, outside of learning mode, to hold a lease of which there is no record.
        unrecorded_total: Counter in "claims",
        /// Claims, in learning mode, to hold more than the capacity of a resource.
        overclaimed_total: Counter in "claims",
        /// Times that a capacity fell below what was leased out.
        shortfalls_total: Counter in "times",
        /// Requests that were refused whole.
        rejected_total: Counter in "requests",
        /// Clients for which no safe share was left.
        unreserved_total: Counter in "clients",
        /// Answers of the parent server that came too late or for something else.
        parent_strays_total: Counter in "answers",
        /// Answers that contained only the address of the master.
        redirected_total: Counter in "answers",
        /// The most by which a capacity fell below what was leased out.
        shortfall_max: Gauge in "units of the resource",
        /// Capacity of a resource.
        capacity: Gauge(resource) in "units of the resource",
        /// Capacity that is reserved for safe shares.
        reserved_capacity: Gauge(resource) in "units of the resource",
        /// Clients that have a safe share.
        safe_shares_used: Gauge(resource) in "clients",
        /// Whether a resource is in learning mode.
        learning: Gauge(resource) in "0 or 1",
        /// Requests to the parent server, by outcome.
        parent_requests_total: Counter(outcome) in "requests",
        /// Times that the rules were reloaded, by outcome.
        config_reloads_total: Counter(outcome) in "reloads",
        /// Whether the last reload of the rules succeeded.
        config_last_reload_successful: Gauge in "0 or 1",
        /// The server's time, by which leases expire.
        time_seconds: Gauge in "Unix s",
        /// Always 1; the label is the version that runs.
        build_info: Gauge(version) in "1",
    }
}

tidegate_runtime::metrics! {
    /// A lease server, under Doorman's names. Its dashboards know two methods.
    pub struct DoormanServerMetrics: "doorman_server_" {
        /// Answered requests.
        requests: UntypedCounter(method) in "requests",
        /// Requests answered with an error.
        request_errors: UntypedCounter(method) in "requests",
        /// Time from a request's head to its answer.
        request_durations: Histogram(method) in "s",
        /// Capacity that is leased out.
        has: Gauge(resource) in "units of the resource",
        /// Capacity that clients request.
        wants: Gauge(resource) in "units of the resource",
        /// Clients, including those of servers below.
        subclients: Gauge(resource) in "clients",
    }
}

/// The methods of the service; the last is for anything that does not exist.
const METHODS: [&str; 5] = [
    "Discovery",
    "GetCapacity",
    "GetServerCapacity",
    "ReleaseCapacity",
    OTHER,
];

/// Results of a request to the parent server.
pub(super) const ANSWERED: &str = "answered";
pub(super) const REDIRECTED: &str = "redirected";
pub(super) const FAILED: &str = "failed";

/// Why a connection was closed: it did not start TLS or HTTP/2 in time, it sent no request, or TLS
/// failed.
pub(super) const HANDSHAKE_TIMEOUT: &str = "handshake_timeout";
pub(super) const TLS_HANDSHAKE: &str = "tls_handshake";
pub(super) const IDLE_TIMEOUT: &str = "idle_timeout";

/// Status codes by their numbers.
const CODES: [&str; 17] = [
    "ok",
    "cancelled",
    "unknown",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "aborted",
    "out_of_range",
    "unimplemented",
    "internal",
    "unavailable",
    "data_loss",
    "unauthenticated",
];

/// A figure of a resource.
type OfResource = fn(&ResourceNow) -> f64;

/// Results of a reload.
const TAKEN: &str = "taken";
const REFUSED: &str = "refused";

/// The counts since the start.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub(super) ours: LeaseServerMetrics,
    doormans: DoormanServerMetrics,
    /// Why connections were closed, as logged.
    pub(super) closings: Causes,
    /// By method: to look each of these up costs more than counting.
    methods: [OfMethod; METHODS.len()],
    /// Levels are mirrored by one scrape at a time.
    scraping: Mutex<()>,
}

/// The counters of one method.
#[derive(Debug)]
pub(super) struct OfMethod {
    name: &'static str,
    ok: IntCounter,
    took: Histogram,
    /// The counters under Doorman's names, with the errors.
    doormans: Option<(IntCounter, IntCounter, Histogram)>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::default();
        let ours = LeaseServerMetrics::new(&registry);
        let doormans = DoormanServerMetrics::new(&registry);
        for outcome in [ANSWERED, REDIRECTED, FAILED] {
            ours.parent_requests_total(outcome);
        }
        for reason in [HANDSHAKE_TIMEOUT, IDLE_TIMEOUT, TLS_HANDSHAKE] {
            ours.connections_closed_total(reason);
        }
        for outcome in [TAKEN, REFUSED] {
            ours.config_reloads_total(outcome);
        }
        ours.config_last_reload_successful.show(true);
        ours.build_info(env!("CARGO_PKG_VERSION")).show(true);
        let methods = METHODS.map(|name| OfMethod {
            name,
            ok: ours.requests_total(requests_total {
                method: name,
                code: CODES[0],
            }),
            took: ours.request_duration_seconds(name),
            doormans: matches!(name, "GetCapacity" | "ReleaseCapacity").then(|| {
                (
                    doormans.requests(name),
                    doormans.request_errors(name),
                    doormans.request_durations(name),
                )
            }),
        });
        Self {
            registry,
            ours,
            doormans,
            closings: Causes::default(),
            methods,
            scraping: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Where they are registered.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The counters for the requests of a path.
    pub(super) fn method(&self, path: &str) -> &OfMethod {
        let name = path.strip_prefix("/doorman.Capacity/");
        let [known @ .., other] = &self.methods;
        known
            .iter()
            .find(|it| name == Some(it.name))
            .unwrap_or(other)
    }

    pub(super) fn answered(&self, of: &OfMethod, code: Code, took: Duration) {
        let is_ok = code == Code::Ok;
        if is_ok {
            of.ok.inc();
        } else {
            let code = (i32::from(code) as usize).min(CODES.len() - 1);
            let labels = requests_total {
                method: of.name,
                code: CODES[code],
            };
            self.ours.requests_total(labels).inc();
        }
        let seconds = took.as_secs_f64();
        of.took.observe(seconds);
        if let Some((requests, errors, durations)) = &of.doormans {
            requests.inc();
            errors.inc_by(u64::from(!is_ok));
            durations.observe(seconds);
        }
    }

    /// New rules were applied.
    pub fn reloaded(&self) {
        self.ours.config_reloads_total(TAKEN).inc();
        self.ours.config_last_reload_successful.show(true);
    }

    /// New rules were refused, and the old ones stay in force.
    pub fn reload_refused(&self) {
        self.ours.config_reloads_total(REFUSED).inc();
        self.ours.config_last_reload_successful.show(false);
    }

    /// Everything in Prometheus's text format.
    #[must_use]
    pub(super) fn text(&self, status: &ServerStatus, redirected: u64, wall: SystemTime) -> String {
        let _one_at_a_time = lock(&self.scraping);
        let since_epoch = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.ours.time_seconds.show(since_epoch);
        self.mirror(status, redirected);
        self.mirror_resources(&status.resources);
        self.registry.text()
    }

    fn mirror(&self, status: &ServerStatus, redirected: u64) {
        let ours = &self.ours;
        let is_master = matches!(status.standing, ServerRole::Master { .. });
        ours.master.show(is_master);
        ours.resources.show(status.resources.len());
        ours.holders.show(status.holders);
        let leases = status.resources.iter().map(|it| it.leases_total);
        ours.leases.show(leases.sum::<usize>());
        let counts = &status.counts;
        ours.early_total.reach(counts.early);
        ours.unmatched_total.reach(counts.unmatched);
        ours.unrecorded_total.reach(counts.unrecorded);
        ours.overclaimed_total.reach(counts.overclaimed);
        ours.shortfalls_total.reach(counts.shortfalls);
        ours.rejected_total.reach(counts.rejected);
        ours.unreserved_total.reach(counts.unreserved);
        ours.parent_strays_total.reach(counts.parent_strays);
        ours.redirected_total.reach(redirected);
        ours.shortfall_max.show(counts.shortfall_max);
    }

    fn mirror_resources(&self, resources: &[ResourceNow]) {
        let (mut literal, mut few) = (0, 0);
        let (labelled, others): (Vec<_>, Vec<_>) = resources.iter().partition(|resource| {
            let (count, max) = if resource.literal {
                (&mut literal, LITERAL_MAX)
            } else {
                (&mut few, LABELLED_MAX)
            };
            *count += 1;
            // A resource with the name of the rest is shown with the rest.
            *count <= max && resource.id != OTHER
        });
        let (ours, doormans) = (&self.ours, &self.doormans);
        let figures: [(_, OfResource); 7] = [
            (&doormans.has, |it| it.held.get()),
            (&doormans.wants, |it| it.wanted.get()),
            (&doormans.subclients, |it| it.clients as f64),
            (&ours.capacity, |it| it.capacity.get()),
            (&ours.reserved_capacity, |it| it.reserved.get()),
            (&ours.safe_shares_used, |it| it.reserved_clients as f64),
            (&ours.learning, |it| it.learning_until.is_some().figure()),
        ];
        for (metric, figure) in figures {
            metric.reset();
            for resource in &labelled {
                let of = metric.with_label_values(&[&*resource.id]);
                of.set(figure(resource));
            }
            if !others.is_empty() {
                let sum: f64 = others.iter().map(|resource| figure(resource)).sum();
                metric.with_label_values(&[OTHER]).set(sum);
            }
        }
    }
}
