//! The quotas of a sidecar, as its config has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_limits::quota;
use tidegate_limits::scheduler::OnExcess;

use super::Engine;

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
