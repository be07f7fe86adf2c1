//! Metrics of connections to backends.

tidegate_runtime::metrics! {
    /// Connections to backends.
    pub struct BackendMetrics: "tidegate_" {
        /// Whether the last connect to the backend succeeded.
        backend_up: Gauge(backend) in "0 or 1",
        /// Whether the last connect to a server succeeded, if the HTTP backend has several.
        server_up: Gauge(server) in "0 or 1",
        /// Calls at a server now, if the HTTP backend has several.
        server_calls: Gauge(server) in "calls",
        /// Failed connects to a backend because this process lacked file descriptors, ports or memory.
        /// The call tries again; the log has the cause at most every 10 s.
        connect_shortages_total: Counter(backend) in "connects",
        /// Connections to a backend that came to no TLS, by cause. The log has the cause in words and what
        /// to do.
        backend_tls_failures_total: Counter(backend, cause) in "connections",
    }
}
