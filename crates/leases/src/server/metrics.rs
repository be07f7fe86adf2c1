//! The metrics: counts of requests, and the state at the scrape.
//!
//! The names that begin with `doorman_` are Doorman's own, so that its dashboards still work;
//! ours follow Prometheus's rules. A resource is a label only if the config names it literally,
//! or while there are few. Ids come from clients, and labels must not.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tonic::Code;

use super::{ResourceNow, Standing, Status};

/// The most resources that are labels although no template names them, the first by their ids.
const LABELLED_MAX: usize = 100;
/// The most resources that are labels because a template names them.
const LITERAL_MAX: usize = 1_000;
/// The label of all others together.
const OTHER: &str = "other";

/// Upper bounds of the buckets, as Doorman has them.   seconds
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Discovery,
    GetCapacity,
    GetServerCapacity,
    ReleaseCapacity,
    /// Nothing that there is.
    Other,
}

impl Method {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Discovery, "Discovery"),
        (Self::GetCapacity, "GetCapacity"),
        (Self::GetServerCapacity, "GetServerCapacity"),
        (Self::ReleaseCapacity, "ReleaseCapacity"),
        (Self::Other, OTHER),
    ];

    pub(super) fn of_path(path: &str) -> Self {
        let name = path.strip_prefix("/doorman.Capacity/");
        let found = Self::ALL.iter().find(|(_, known)| name == Some(known));
        found.map_or(Self::Other, |(method, _)| *method)
    }
}

/// The result of a request to the server above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParentOutcome {
    Answered,
    Redirected,
    Failed,
}

const PARENT_OUTCOMES: [(ParentOutcome, &str); 3] = [
    (ParentOutcome::Answered, "answered"),
    (ParentOutcome::Redirected, "redirected"),
    (ParentOutcome::Failed, "failed"),
];

/// Why a silent connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silent {
    /// It did not start HTTP/2.
    Handshake,
    /// It sent no request.
    Idle,
}

impl Silent {
    const ALL: [Self; 2] = [Self::Handshake, Self::Idle];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake_timeout",
            Self::Idle => "idle_timeout",
        }
    }
}

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

/// The counts since the start.
#[derive(Debug, Default)]
pub struct Metrics {
    /// By method and code.
    requests: [[AtomicU64; CODES.len()]; Method::ALL.len()],
    durations: [Durations; Method::ALL.len()],
    parent: [AtomicU64; PARENT_OUTCOMES.len()],
    /// Reloads that were applied, and refused.
    reloads: [AtomicU64; 2],
    /// Whether the last reload was applied.
    refused_last: AtomicU64,
    /// Open now.
    connections: AtomicU64,
    closed_silent: [AtomicU64; Silent::ALL.len()],
    accept_waits: AtomicU64,
}

#[derive(Debug, Default)]
struct Durations {
    /// Each with those of shorter buckets left out.
    buckets: [AtomicU64; BUCKETS.len()],
    longer: AtomicU64,
    nanos: AtomicU64,
}

impl Metrics {
    pub(super) fn answered(&self, method: Method, code: Code, took: Duration) {
        let method = method as usize;
        let code = (i32::from(code) as usize).min(CODES.len() - 1);
        self.requests[method][code].fetch_add(1, Ordering::Relaxed);
        let durations = &self.durations[method];
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.iter().position(|upper| seconds <= *upper);
        let bucket = bucket.map_or(&durations.longer, |at| &durations.buckets[at]);
        bucket.fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        durations.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(super) fn parent(&self, outcome: ParentOutcome) {
        self.parent[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// New rules were applied.
    pub fn reloaded(&self) {
        self.reloads[0].fetch_add(1, Ordering::Relaxed);
        self.refused_last.store(0, Ordering::Relaxed);
    }

    /// New rules were refused, and the old ones stay in force.
    pub fn reload_refused(&self) {
        self.reloads[1].fetch_add(1, Ordering::Relaxed);
        self.refused_last.store(1, Ordering::Relaxed);
    }

    pub(super) fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn connection_ended(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// A silent connection is closed. Returns how many were, for this reason.
    pub(super) fn closed_silent(&self, silent: Silent) -> u64 {
        self.closed_silent[silent as usize].fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Clients must wait to be accepted. Returns how often they had to.
    pub(super) fn accept_waits(&self) -> u64 {
        self.accept_waits.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn write_connections(&self, page: &mut Page) {
        page.one(
            "tidegate_lease_connections",
            "Connections that are open.",
            "gauge",
            self.connections.load(Ordering::Relaxed) as f64,
        );
        page.family(
            "tidegate_lease_connections_closed_total",
            "Connections that were closed because their peer was silent, by reason.",
            "counter",
        );
        for silent in Silent::ALL {
            let count = self.closed_silent[silent as usize].load(Ordering::Relaxed);
            page.sample("", &[("reason", silent.name())], count as f64);
        }
        page.one(
            "tidegate_lease_accept_waits_total",
            "Times that clients had to wait to be accepted: all connections, or all descriptors \
             of the process, were taken.",
            "counter",
            self.accept_waits.load(Ordering::Relaxed) as f64,
        );
    }

    /// Everything in Prometheus's text format.
    #[must_use]
    pub(super) fn text(&self, status: &Status, redirected: u64, wall: SystemTime) -> String {
        let mut page = Page::default();
        self.write_requests(&mut page);
        self.write_doormans(&mut page);
        self.write_connections(&mut page);
        write_state(&mut page, status);
        write_counts(&mut page, status, redirected);
        write_resources(&mut page, &status.resources);
        page.family(
            "tidegate_lease_parent_requests_total",
            "Questions to the server above, by what became of them.",
            "counter",
        );
        for (outcome, name) in PARENT_OUTCOMES {
            let count = self.parent[outcome as usize].load(Ordering::Relaxed);
            page.sample("", &[("outcome", name)], count as f64);
        }
        page.family(
            "tidegate_lease_config_reloads_total",
            "Times that the rules were read anew, by what became of them.",
            "counter",
        );
        for (at, outcome) in ["taken", "refused"].into_iter().enumerate() {
            let count = self.reloads[at].load(Ordering::Relaxed);
            page.sample("", &[("outcome", outcome)], count as f64);
        }
        page.one(
            "tidegate_lease_config_last_reload_successful",
            "1 if the rules that were read last are in force, else 0.",
            "gauge",
            1.0 - self.refused_last.load(Ordering::Relaxed) as f64,
        );
        page.one(
            "tidegate_lease_time_seconds",
            "The server's time since 1970: leases end by it.",
            "gauge",
            wall.duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs_f64(),
        );
        page.family(
            "tidegate_lease_build_info",
            "1, with the version that runs.",
            "gauge",
        );
        page.sample("", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        page.0
    }

    fn write_requests(&self, page: &mut Page) {
        page.family(
            "tidegate_lease_requests_total",
            "Requests that were answered, by method and gRPC status.",
            "counter",
        );
        for (method, name) in Method::ALL {
            for (at, code) in CODES.into_iter().enumerate() {
                let count = self.requests[method as usize][at].load(Ordering::Relaxed);
                if count > 0 || code == "ok" {
                    page.sample("", &[("method", name), ("code", code)], count as f64);
                }
            }
        }
        page.family(
            "tidegate_lease_request_duration_seconds",
            "Time from a request's head to its answer.",
            "histogram",
        );
        for (method, name) in Method::ALL {
            self.durations[method as usize].write(page, name);
        }
    }

    /// The metrics for Doorman's dashboards: for two methods, as there. Its counters have no
    /// `_total`, so they are exported without a kind.
    fn write_doormans(&self, page: &mut Page) {
        let both = [
            (Method::GetCapacity, "GetCapacity"),
            (Method::ReleaseCapacity, "ReleaseCapacity"),
        ];
        let sum = |method: Method, from: usize| -> u64 {
            let counts = self.requests[method as usize].iter().skip(from);
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        page.family(
            "doorman_server_requests",
            "Requests that were answered.",
            "untyped",
        );
        for (method, name) in both {
            page.sample("", &[("method", name)], sum(method, 0) as f64);
        }
        page.family(
            "doorman_server_request_errors",
            "Requests that were answered with an error.",
            "untyped",
        );
        for (method, name) in both {
            page.sample("", &[("method", name)], sum(method, 1) as f64);
        }
        page.family(
            "doorman_server_request_durations",
            "Seconds from a request's head to its answer.",
            "histogram",
        );
        for (method, name) in both {
            self.durations[method as usize].write(page, name);
        }
    }
}

impl Durations {
    fn write(&self, page: &mut Page, method: &str) {
        let mut count = 0;
        for (upper, bucket) in BUCKETS.iter().zip(&self.buckets) {
            count += bucket.load(Ordering::Relaxed);
            let labels = [("method", method), ("le", &upper.to_string())];
            page.sample("_bucket", &labels, count as f64);
        }
        count += self.longer.load(Ordering::Relaxed);
        let labels = [("method", method), ("le", "+Inf")];
        page.sample("_bucket", &labels, count as f64);
        let seconds = self.nanos.load(Ordering::Relaxed) as f64 / 1e9;
        page.sample("_sum", &[("method", method)], seconds);
        page.sample("_count", &[("method", method)], count as f64);
    }
}

fn write_state(page: &mut Page, status: &Status) {
    let is_master = matches!(status.standing, Standing::Master { .. });
    page.one(
        "tidegate_lease_master",
        "1 while this server is the master, else 0.",
        "gauge",
        f64::from(u8::from(is_master)),
    );
    page.one(
        "tidegate_lease_resources",
        "Resources that are kept.",
        "gauge",
        status.resources.len() as f64,
    );
    page.one(
        "tidegate_lease_holders",
        "Clients and servers that hold something.",
        "gauge",
        status.holders as f64,
    );
    let leases: usize = status.resources.iter().map(|it| it.leases_total).sum();
    page.one(
        "tidegate_lease_leases",
        "Leases that have not ended.",
        "gauge",
        leases as f64,
    );
}

fn write_counts(page: &mut Page, status: &Status, redirected: u64) {
    let counts = &status.counts;
    let counters = [
        (
            "early_total",
            "Resources left out of an answer because they were asked for again too soon.",
            counts.early,
        ),
        (
            "unmatched_total",
            "Requests for a resource that no template matches.",
            counts.unmatched,
        ),
        (
            "unrecorded_total",
            "Claims outside of learning mode to hold what there is no record of.",
            counts.unrecorded,
        ),
        (
            "overclaimed_total",
            "Claims in learning mode to hold more than there is of a resource.",
            counts.overclaimed,
        ),
        (
            "shortfalls_total",
            "Times that a capacity fell below what was lent out.",
            counts.shortfalls,
        ),
        (
            "rejected_total",
            "Requests that were refused whole.",
            counts.rejected,
        ),
        (
            "unreserved_total",
            "Clients for which no safe share was left.",
            counts.unreserved,
        ),
        (
            "parent_strays_total",
            "Answers of the server above that came too late or for something else.",
            counts.parent_strays,
        ),
        (
            "redirected_total",
            "Answers that only said who the master is.",
            redirected,
        ),
    ];
    for (name, help, count) in counters {
        let name = format!("tidegate_lease_{name}");
        page.one(&name, help, "counter", count as f64);
    }
    page.one(
        "tidegate_lease_shortfall_max",
        "The most by which a capacity fell below what was lent out.",
        "gauge",
        counts.shortfall_max,
    );
}

/// One figure of a resource, under its name.
type Figure = (&'static str, &'static str, fn(&ResourceNow) -> f64);

const FIGURES: [Figure; 7] = [
    ("doorman_server_has", "What is lent out.", |it| {
        it.held.get()
    }),
    ("doorman_server_wants", "What is asked for.", |it| {
        it.wanted.get()
    }),
    (
        "doorman_server_subclients",
        "Clients, those of servers below among them.",
        |it| it.clients as f64,
    ),
    ("tidegate_lease_capacity", "How much there is.", |it| {
        it.capacity.get()
    }),
    (
        "tidegate_lease_reserved_capacity",
        "What is set aside as safe shares.",
        |it| it.reserved.get(),
    ),
    (
        "tidegate_lease_safe_shares_used",
        "Clients that have a safe share.",
        |it| it.reserved_clients as f64,
    ),
    (
        "tidegate_lease_learning",
        "Resources that only learn who has what.",
        |it| f64::from(u8::from(it.learning_until.is_some())),
    ),
];

fn write_resources(page: &mut Page, resources: &[ResourceNow]) {
    let (mut literal, mut few) = (0, 0);
    let (labelled, others): (Vec<_>, Vec<_>) = resources.iter().partition(|resource| {
        let (count, max) = if resource.literal {
            (&mut literal, LITERAL_MAX)
        } else {
            (&mut few, LABELLED_MAX)
        };
        *count += 1;
        // A resource named like the rest is counted with the rest.
        *count <= max && resource.id != OTHER
    });
    for (name, help, figure) in FIGURES {
        page.family(name, help, "gauge");
        for resource in &labelled {
            page.sample("", &[("resource", &resource.id)], figure(resource));
        }
        if !others.is_empty() {
            let sum: f64 = others.iter().map(|resource| figure(resource)).sum();
            page.sample("", &[("resource", OTHER)], sum);
        }
    }
}

/// Text in Prometheus's format.
#[derive(Default)]
struct Page(String, String);

impl Page {
    fn family(&mut self, name: &str, help: &str, kind: &str) {
        let written = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        written.expect("writing to memory does not fail");
        self.1 = name.to_owned();
    }

    /// A value of the latest family.
    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(&self.1);
        self.0.push_str(suffix);
        for (at, (name, value)) in labels.iter().enumerate() {
            self.0.push(if at == 0 { '{' } else { ',' });
            self.0.push_str(name);
            self.0.push_str("=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        writeln!(self.0, " {value}").expect("writing to memory does not fail");
    }

    fn one(&mut self, name: &str, help: &str, kind: &str, value: f64) {
        self.family(name, help, kind);
        self.sample("", &[], value);
    }
}
