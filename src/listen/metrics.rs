//! Metrics of client connections.

use std::sync::Arc;

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

/// The connections of one accept loop, looked up once for all of them.
#[derive(Debug, Default)]
pub struct LookedUp(Option<(Arc<str>, prometheus::Gauge)>);

impl ConnectionMetrics {
    /// A client has connected.
    #[must_use]
    pub fn opened(&self, listener: &str) -> OpenConnection {
        OpenConnection::counted(self.connections(listener))
    }

    /// Counts a connection for the listener of one accept loop. It may have another name since a reload.
    #[must_use]
    pub fn opened_at(&self, known: &mut LookedUp, listener: &Arc<str>) -> OpenConnection {
        let (_, open) = match &mut known.0 {
            Some(known) if Arc::ptr_eq(&known.0, listener) => known,
            other => other.insert((Arc::clone(listener), self.connections(listener))),
        };
        OpenConnection::counted(open.clone())
    }
}

impl OpenConnection {
    fn counted(open: prometheus::Gauge) -> Self {
        open.inc();
        Self(open)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
