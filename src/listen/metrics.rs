//! Metrics of client connections.

tidegate_runtime::metrics! {
    /// Client connections.
    pub struct ConnectionMetrics: "tidegate_" {
        /// Client connections that are open.
        connections: Gauge(listener) in "connections",
        /// Client connections that may be open at once, over all listeners. It is
        /// `server.max_connections`, or less if there are not enough file descriptors.
        connections_limit: Gauge in "connections",
        /// Failed accepts, for example for lack of file descriptors.
        accept_errors_total: Counter in "accepts",
    }
}

/// An open connection; counted until it is dropped.
#[derive(Debug)]
pub struct OpenConnection(prometheus::Gauge);

impl ConnectionMetrics {
    /// A client has connected.
    #[must_use]
    pub fn opened(&self, listener: &str) -> OpenConnection {
        let open = self.connections(listener);
        open.inc();
        OpenConnection(open)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
