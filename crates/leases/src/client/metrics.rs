//! The metrics of a lease client, with the names of Doorman's client, and some more.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_runtime::lock;
use tidegate_runtime::metric::Registry;

use super::leases::Ignored;
use crate::sharing::ServerAddress;

/// The most servers with their own label; further ones are `other`. Redirects may name any
/// server.
const SERVERS_MAX: usize = 64;

tidegate_runtime::metrics! {
    /// Requests of lease clients, under the names of Doorman's client.
    struct RequestMetrics: "doorman_client_" {
        /// Requests sent to capacity servers.
        requests: Counter(server, method) in "requests",
        /// Requests that no master answered.
        request_errors: Counter(server, method) in "requests",
        /// Time from sending a request to its answer or failure.
        request_durations: Histogram(server, method) in "s",
    }
}

tidegate_runtime::metrics! {
    /// Counters that Doorman's client does not have.
    struct AnswerMetrics: "tidegate_lease_client_" {
        /// Ignored parts of answers, by reason. `capacity`: negative or not a number. `expired`: the
        /// lease had expired. `unasked`: a resource that was not requested. `safe_capacity`: not a valid
        /// safe capacity.
        ignored_total: Counter(reason) in "parts",
    }
}

/// The counters of one or more lease clients. Clones count together. `server` is an address, or
/// `other` after the first 64; `method` is `GetCapacity` or `ReleaseCapacity`.
#[derive(Clone, Debug)]
pub struct ClientMetrics(Arc<ClientCounters>);

#[derive(Debug)]
struct ClientCounters {
    requests: RequestMetrics,
    answers: AnswerMetrics,
    servers: Mutex<BTreeSet<ServerAddress>>,
}

/// Counters that no registry shows.
impl Default for ClientMetrics {
    fn default() -> Self {
        Self::new(&Registry::default())
    }
}

impl ClientMetrics {
    /// Counters at 0, which the registry shows.
    ///
    /// # Panics
    ///
    /// If it has metrics of these names already.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        Self(Arc::new(ClientCounters {
            requests: RequestMetrics::new(registry),
            answers: AnswerMetrics::new(registry),
            servers: Mutex::default(),
        }))
    }

    pub(super) fn requested(
        &self,
        server: &ServerAddress,
        method: &str,
        took: Duration,
        is_answered: bool,
    ) {
        let server = self.label(server);
        let of = &self.0.requests;
        of.requests(requests { server, method }).inc();
        let durations = of.request_durations(request_durations { server, method });
        durations.observe(took.as_secs_f64());
        if !is_answered {
            of.request_errors(request_errors { server, method }).inc();
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
                self.0.answers.ignored_total(reason).inc_by(count);
            }
        }
    }

    fn label<'a>(&self, server: &'a ServerAddress) -> &'a str {
        let mut servers = lock(&self.0.servers);
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
        let metrics = ClientMetrics::default();
        let server = |n: usize| format!("s{n}:1").parse().expect("an address");
        for n in 0..SERVERS_MAX + 10 {
            metrics.requested(&server(n), "GetCapacity", Duration::ZERO, n % 2 == 0);
        }
        let of = |server| {
            let method = "GetCapacity";
            metrics
                .0
                .requests
                .requests(requests { server, method })
                .get()
        };
        assert_eq!((of("other"), of("s0:1")), (10, 1));
    }
}
