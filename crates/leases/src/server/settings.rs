//! Settings of a server.

use std::time::Duration;

use crate::wire::Epoch;

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The name by which the server above knows this one: the same for all candidates of one
    /// election, so that a new master continues with the lease of the old one.
    pub id: String,
    /// The address to which other candidates send clients.
    pub address: String,
    /// Where it stands in the tree.
    pub place: TreePlace,
    /// The relation of the process's time to the wire's.
    pub epoch: Epoch,
    /// A client that asks for a resource again within this time gets no answer about it and keeps
    /// its lease, unless its refresh interval is shorter. Zero answers always.
    pub minimum_interval: Duration,
    /// The treatment of an id without a matching template.
    pub unmatched: Unmatched,
    /// The bounds of the state.
    pub bounds: ServerBounds,
}

/// Where a server stands in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreePlace {
    /// At the top: the capacity comes from the config.
    Root,
    /// Below another server, which leases the capacity to it.
    Below,
}

/// The treatment of an id without a matching template. Below the root, the root decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// The client gets what it wants. It is counted and shown, but not kept.
    Grant,
    /// The request is refused.
    Refuse,
}

/// The bounds of the state. A request beyond them is refused as a whole, and others are not
/// affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerBounds {
    /// Resources.
    pub resources: usize,
    /// Resources that exist because one client asked for them. Those that a template names
    /// literally do not count, and neither do those that the client has left and others hold.
    pub resources_per_client: usize,
    /// Leases, over all resources.
    pub leases: usize,
    /// Leases of one client, and also resources in one request.
    pub leases_per_client: usize,
    /// Priorities in a server's request, for each resource.
    pub bands: usize,
    /// Bytes of an id.
    pub id_bytes: usize,
}

impl Default for ServerBounds {
    fn default() -> Self {
        Self {
            resources: 10_000,
            resources_per_client: 250,
            leases: 1_000_000,
            leases_per_client: 1_000,
            bands: 256,
            id_bytes: 1_024,
        }
    }
}

/// The bounds of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkBounds {
    /// The most open connections. Further ones wait to be accepted.
    pub connections: usize,
    /// The most requests at once, over all connections. Further ones are refused.
    pub requests: usize,
    /// Bytes of a request.
    pub message_bytes: usize,
    /// From a request's first byte to its answer.
    pub request_timeout: Duration,
    /// The time for a new connection to start HTTP/2.
    pub handshake_timeout: Duration,
    /// A connection without a request for this long is closed.
    pub idle_timeout: Duration,
}

impl Default for NetworkBounds {
    fn default() -> Self {
        Self {
            connections: 10_000,
            requests: 1_024,
            message_bytes: 4 << 20,
            request_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
        }
    }
}
