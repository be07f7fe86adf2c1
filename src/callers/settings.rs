//! The settings of this stage.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate_callers::NewCaller;

pub use super::rate_limit::QuotaBy;
use super::rate_limit::{Profile, Rule};
use crate::call::costs::Costs;

/// The settings of this stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallersSettings {
    /// How callers register themselves.
    pub table: tidegate_callers::TableSettings,
    /// The callers of the config.
    pub callers: Vec<StaticCaller>,
    /// The rate limits of the config.
    pub rate_limits: Vec<StaticRateLimit>,
    /// The quotas that calls draw from, at most [`QUOTAS_MAX`].
    pub quotas: Vec<Quota>,
    /// Named sizes of rate limits.
    pub profiles: Vec<Profile>,
    /// The costs of calls.
    pub costs: Costs,
    /// Functions with statistics of their own.
    pub functions: Vec<Arc<str>>,
    /// Names of the config's limits that are not for callers, but stand beside theirs: no rate
    /// limit is made under one of them.
    pub reserved: Vec<Arc<str>>,
    /// Where what was made through the API is kept.
    pub state_file: Option<PathBuf>,
}

/// A `[[caller]]` of the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticCaller {
    /// The caller, without its rate limit.
    pub caller: NewCaller,
    /// The name of its rate limit.
    pub rate_limit: Option<Arc<str>>,
}

/// A `[[bucket]]`, or a `[[pace]]` of callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticRateLimit {
    /// The name, by which a reload finds the rate limit again.
    pub name: Arc<str>,
    /// The rule of the rate limit.
    pub rule: Rule,
}

/// The most quotas, each of which a call may meet.
pub const QUOTAS_MAX: usize = 8;

/// A quota, as far as a claim needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The name in refusals, logs and metrics, which begins with `rate_limit:`.
    pub name: Arc<str>,
    /// The unit that has a quota of its own.
    pub by: QuotaBy,
}
