//! The quotas of a sidecar, as in its config.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_limits::quota;
use tidegate_limits::scheduler::OnExcess;

use super::Engine;

/// The quotas of a sidecar, and their store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaSettings {
    /// The store.
    pub engine: Engine,
    /// The maximum number of keys at once, of all quotas together.
    pub keys_max: usize,
    /// The maximum number of sidecars, each of which owns its safe share. At least 1.
    pub expected_sidecars: u32,
    /// The quotas, each with its own name and namespace; at least one.
    pub limits: Vec<QuotaLimit>,
}

impl QuotaSettings {
    /// The effective settings: a store in this process is never unavailable, and no other sidecar
    /// has a share of it, so no safe share is set aside.
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

/// The total that all sidecars together can spend on each key per window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaLimit {
    /// The limit's name in refusals, logs and metrics; begins with `rate_limit:`.
    pub name: Arc<str>,
    /// The rule of each key without its own total.
    pub rule: quota::WindowRule,
    /// The handling of a call without tokens.
    pub on_excess: OnExcess,
    /// Whether it only observes: it draws, and holds no call.
    pub observes: bool,
    /// The rules of the keys with one.
    pub totals: BTreeMap<Arc<str>, quota::WindowRule>,
    /// The prefix of its keys in the store, so that those of two quotas differ; `None` for no
    /// prefix.
    pub namespace: Option<Arc<str>>,
}

impl QuotaLimit {
    /// The rule of a key, as the config has it.
    #[must_use]
    pub fn of(&self, key: &str) -> &quota::WindowRule {
        self.totals.get(key).unwrap_or(&self.rule)
    }
}
