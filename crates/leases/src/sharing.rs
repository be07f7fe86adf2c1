//! Which of a sidecar's limits are shares of something that several have together.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Fill;

use crate::client::ServerAddress;

/// What the sidecar is told about those with whom it shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How the capacity servers are reached, and as whom.
    pub servers: Servers,
    /// How many sidecars there are at most, each of which always owns its safe share.
    pub expected_sidecars: NonZeroU32,
    /// The limits, each once, each with a resource of its own.
    pub limits: Vec<SharedLimit>,
}

/// How the capacity servers are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// Where they listen; at least one.
    pub addresses: Vec<ServerAddress>,
    /// Who this sidecar says it is. None: something that nobody else says.
    pub id: Option<Arc<str>>,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// No resource is asked for again before this.
    pub interval_min: Duration,
}

/// A limit that takes its capacity from a leased resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLimit {
    /// The name of the limit, as in metrics.
    pub limit: Arc<str>,
    /// The id of the resource.
    pub resource: Arc<str>,
    /// What this sidecar always owns of it.
    pub safe: Safe,
}

/// A safe share, and of what kind of limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safe {
    /// Of a limit that counts calls or cost, or of a pace in tokens a second.
    Whole(NonZeroU32),
    /// Of a bucket: tokens a second.
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
