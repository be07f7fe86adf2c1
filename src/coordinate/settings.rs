//! Which of a sidecar's limits are shares of something that several have together.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::{Fill, OnExcess, quota};

use super::lease_client::ServerAddress;
use super::quota_store::Engine;

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

/// The quotas of a sidecar, and where they are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// The store.
    pub engine: Engine,
    /// How many keys are kept at once, of all quotas together.
    pub keys_max: usize,
    /// How many sidecars there are at most, each of which owns its safe share. At least 1.
    pub expected_sidecars: u32,
    /// The quotas, each with a name and a namespace of its own; at least one.
    pub limits: Vec<QuotaLimit>,
}

impl Quotas {
    /// As they are in force: a store in this process is never unavailable, and no other sidecar has a
    /// share of it, so nothing is set aside.
    #[must_use]
    pub fn in_force(&self) -> Self {
        let mut quotas = self.clone();
        if quotas.engine == Engine::Memory {
            for limit in &mut quotas.limits {
                limit.rule = limit.rule.without_safe_share();
                for rule in limit.totals.values_mut() {
                    *rule = rule.without_safe_share();
                }
            }
        }
        quotas
    }
}

/// What all sidecars together may spend on each key in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaLimit {
    /// Its name in refusals, logs and metrics, which begins with `rate_limit:`.
    pub name: Arc<str>,
    /// What holds for each key that has no total of its own.
    pub rule: quota::Rule,
    /// What is done with a call for which there are no tokens.
    pub on_excess: OnExcess,
    /// What holds for the keys that do.
    pub totals: BTreeMap<Arc<str>, quota::Rule>,
    /// What its keys begin with in the store, so that those of two quotas differ; none for
    /// nothing.
    pub namespace: Option<Arc<str>>,
}
