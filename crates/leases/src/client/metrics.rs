//! The metrics of a lease client, with the names of Doorman's client, and some more.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

use super::leases::Ignored;
use super::route::ServerAddress;

/// The most servers with their own label; further ones are `other`. Redirects may name any
/// server.
const SERVERS_MAX: usize = 64;

/// The counters of one or more lease clients. Clones count together.
///
/// | name | labels | what |
/// |---|---|---|
/// | `doorman_client_requests` | server, method | requests sent |
/// | `doorman_client_request_errors` | server, method | of these, those without an answer of a master |
/// | `doorman_client_request_durations` | server, method | seconds until the answer or the failure |
/// | `tidegate_lease_client_ignored_total` | reason | parts of answers that were passed over |
///
/// The method is `GetCapacity` or `ReleaseCapacity`, the reason `capacity`, `expired`,
/// `unasked` or `safe_capacity`.
#[derive(Clone, Debug)]
pub struct ClientMetrics(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    requests: IntCounterVec,
    request_errors: IntCounterVec,
    request_durations: HistogramVec,
    ignored_total: IntCounterVec,
    servers: Mutex<BTreeSet<ServerAddress>>,
}

/// The requests to a server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Method {
    GetCapacity,
    ReleaseCapacity,
}

impl Method {
    const fn name(self) -> &'static str {
        match self {
            Self::GetCapacity => "GetCapacity",
            Self::ReleaseCapacity => "ReleaseCapacity",
        }
    }
}

impl Default for ClientMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl ClientMetrics {
    /// Counters at nothing.
    #[must_use]
    pub fn new() -> Self {
        let counter = |name, help, labels: &[&str]| {
            IntCounterVec::new(Opts::new(name, help), labels).expect("a good name")
        };
        let of_request = ["server", "method"];
        let durations = HistogramOpts::new(
            "doorman_client_request_durations",
            "Seconds from sending a request to its answer or failure",
        );
        Self(Arc::new(Counted {
            requests: counter(
                "doorman_client_requests",
                "Requests sent to capacity servers",
                &of_request,
            ),
            request_errors: counter(
                "doorman_client_request_errors",
                "Requests that no master answered",
                &of_request,
            ),
            request_durations: HistogramVec::new(durations, &of_request).expect("a good name"),
            ignored_total: counter(
                "tidegate_lease_client_ignored_total",
                "Parts of answers that were passed over",
                &["reason"],
            ),
            servers: Mutex::default(),
        }))
    }

    /// Shows them in a registry.
    ///
    /// # Errors
    ///
    /// If it has metrics of these names already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.0.requests.clone()))?;
        registry.register(Box::new(self.0.request_errors.clone()))?;
        registry.register(Box::new(self.0.request_durations.clone()))?;
        registry.register(Box::new(self.0.ignored_total.clone()))
    }

    pub(super) fn requested(
        &self,
        server: &ServerAddress,
        method: Method,
        took: Duration,
        is_answered: bool,
    ) {
        let labels = [self.label(server), method.name()];
        self.0.requests.with_label_values(&labels).inc();
        self.0
            .request_durations
            .with_label_values(&labels)
            .observe(took.as_secs_f64());
        if !is_answered {
            self.0.request_errors.with_label_values(&labels).inc();
        }
    }

    pub(super) fn ignored(&self, ignored: Ignored) {
        for (reason, count) in [
            ("capacity", ignored.capacity),
            ("expired", ignored.expired),
            ("unasked", ignored.unasked),
            ("safe_capacity", ignored.safe_capacity),
        ] {
            if count > 0 {
                self.0
                    .ignored_total
                    .with_label_values(&[reason])
                    .inc_by(count);
            }
        }
    }

    fn label<'a>(&self, server: &'a ServerAddress) -> &'a str {
        let mut servers = self
            .0
            .servers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if servers.contains(server) {
            return server.as_str();
        }
        if servers.len() < SERVERS_MAX {
            servers.insert(server.clone());
            return server.as_str();
        }
        "other"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_servers_than_a_few_have_a_label_of_their_own() {
        let metrics = ClientMetrics::new();
        let server = |n: usize| format!("s{n}:1").parse().expect("an address");
        for n in 0..SERVERS_MAX + 10 {
            metrics.requested(&server(n), Method::GetCapacity, Duration::ZERO, n % 2 == 0);
        }
        let registry = Registry::new();
        metrics.register(&registry).expect("names are free");
        assert!(metrics.register(&registry).is_err(), "names are taken");
        let others = metrics
            .0
            .requests
            .with_label_values(&["other", "GetCapacity"]);
        assert_eq!(others.get(), 10);
        let first = metrics
            .0
            .requests
            .with_label_values(&["s0:1", "GetCapacity"]);
        assert_eq!(first.get(), 1);
    }
}
