//! Which limits of a sidecar are shares of a common capacity.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Fill;

use crate::client::ServerAddress;

/// The settings of shared limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The connection to the capacity servers, and the id of this sidecar.
    pub servers: Servers,
    /// The expected maximum of sidecars, each of which always owns its safe share.
    pub expected_sidecars: NonZeroU32,
    /// The limits, each once, each with its own resource.
    pub limits: Vec<SharedLimit>,
}

/// The connection to the capacity servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// Their addresses; at least one.
    pub addresses: Vec<ServerAddress>,
    /// The id of this sidecar. `None`: a unique one.
    pub id: Option<Arc<str>>,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// No resource is requested again before this.
    pub interval_min: Duration,
}

/// A limit that takes its capacity from a leased resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLimit {
    /// The name of the limit, as in metrics.
    pub limit: Arc<str>,
    /// The id of the resource.
    pub resource: Arc<str>,
    /// The safe share of this sidecar.
    pub safe: Safe,
}

/// A safe share, and of what kind of limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safe {
    /// For a limit on calls or cost, or for a pace in tokens a second.
    Whole(NonZeroU32),
    /// For a bucket: tokens a second.
    Rate(Fill),
}

impl Safe {
    /// As a number.
    #[must_use]
    pub fn get(self) -> f64 {
        match self {
            Self::Whole(safe) => f64::from(safe.get()),
            Self::Rate(safe) => safe.get(),
        }
    }
}
