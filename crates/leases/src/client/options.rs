//! Options of a client and a resource, the errors of opening them, and the state of a resource.

use std::sync::Arc;
use std::time::Duration;

use super::entitlement::{AfterExpiry, Allowance, NotACapacity, SafeCapacity};
use super::metrics::ClientMetrics;
use super::{ID_BYTES_MAX, RESOURCES_MAX};
use crate::dial::{Dial, TcpDial};

/// The settings of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The client's id, which must differ between clients. `None`: host, process, a number and a random part.
    pub client_id: Option<String>,
    /// The time of one request, with its connections and redirects. Default 5 s.
    pub request_timeout: Duration,
    /// No resource is requested again before this. Servers leave resources out of their answers
    /// that are requested more often. Default 5 s.
    pub interval_min: Duration,
    /// The client's counters.
    pub metrics: ClientMetrics,
    /// How it connects. Default [`TcpDial`].
    pub dial: Arc<dyn Dial>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            client_id: None,
            request_timeout: Duration::from_secs(5),
            interval_min: Duration::from_secs(5),
            metrics: ClientMetrics::default(),
            dial: Arc::new(TcpDial),
        }
    }
}

/// The options of a resource, from a user that opens it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResourceOptions {
    /// A higher one is more urgent. Of several handles the highest counts. Default 0.
    pub priority: i64,
    /// The demand of this handle: operations a second, or holders at once. `None`, the default:
    /// measured from use.
    pub wants: Option<f64>,
    /// The minimum demand for the first ten seconds, if it is measured. With 0, the default,
    /// nothing is requested until an operation waits, and the servers learn of operations in the
    /// five seconds after that only later.
    pub wants_at_first: f64,
    /// The use that is allowed after the lease has ended, or before there is one. Of several handles the first
    /// one's counts.
    pub after_expiry: AfterExpiry,
    /// The capacity that may be used in [`AfterExpiry::Safe`] until a server has sent a value.
    pub safe_capacity: Option<SafeCapacity>,
    /// The most that may wait at once; further ones are refused. Of several handles the first one's
    /// counts. Default 100,000.
    pub waiting_max: usize,
}

impl Default for ResourceOptions {
    fn default() -> Self {
        Self {
            priority: 0,
            wants: None,
            wants_at_first: 0.0,
            after_expiry: AfterExpiry::default(),
            safe_capacity: None,
            waiting_max: 100_000,
        }
    }
}

/// Why there is no client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No server was named.
    #[error("a lease client needs the address of a capacity server")]
    NoServer,
    /// The options are invalid.
    #[error("{0} must be above zero")]
    Zero(&'static str),
}

/// Why a resource was not opened.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpenError {
    /// The id is empty or too long.
    #[error("a resource's id has 1 to {ID_BYTES_MAX} bytes, not {0}")]
    BadId(usize),
    /// The id is already in use as a resource of another kind.
    #[error("resource {0:?} is used already, and as the other kind")]
    OtherKind(String),
    /// The client has the most resources.
    #[error("the client uses {RESOURCES_MAX} resources already")]
    TooMany,
    /// The demand is not a capacity.
    #[error(transparent)]
    NotACapacity(#[from] NotACapacity),
    /// The client was closed.
    #[error("the lease client was closed")]
    Closed,
}

/// The kind of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceKind {
    /// The capacity is operations a second.
    Rate,
    /// The capacity is holders at once.
    Gauge,
}

/// The state of a resource.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceState {
    /// The id of the resource.
    pub id: String,
    /// The kind of the resource.
    pub kind: ResourceKind,
    /// The amount that may be used now.
    pub allowance: Allowance,
    /// The capacity of its lease and the remaining time; `None` if it has ended.
    pub lease: Option<(f64, Duration)>,
    /// The amount that is wanted.
    pub wants: f64,
    /// The number of users that wait.
    pub waiting: usize,
    /// Places of a gauge that are taken.
    pub held: u64,
    /// Handles to it.
    pub handles: usize,
}
