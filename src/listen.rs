//! Accepts connections.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::call::Protocol;

/// One `[[listen]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its name in logs and metrics.
    pub name: Arc<str>,
    /// The address.
    pub bind: SocketAddr,
    /// What it speaks.
    pub protocol: Protocol,
    /// Whether an EOF on the socket protocol means that the client has left.
    pub cancel_on_eof: bool,
}

/// What this stage is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The listeners, at least one.
    pub listeners: Vec<Listener>,
    /// Connections open at once, over all listeners.
    pub max_connections: u32,
}
