//! The quotas that a call draws from, and with which key.
//!
//! Sidecars share a quota by its key, so each of them must derive the same key from the same call.
//! A key is therefore made of names, never of numbers that one sidecar assigned.

use std::sync::Arc;

use tidegate_callers::FunctionId;
use tidegate_limits::call::{ANY_FUNCTION, QuotaKey};

use super::functions::FunctionNames;
use super::settings::{QUOTAS_MAX, Quota, QuotaBy};
use crate::call::Identity;
use crate::call::identity::fitting;
use crate::telemetry::calls::RATE_LIMIT_PREFIX;

/// The quotas of the config.
#[derive(Debug, Default)]
pub(super) struct ConfiguredQuotas(Vec<ConfiguredQuota>);

/// A quota, and the key that many of its calls share.
#[derive(Debug)]
struct ConfiguredQuota {
    quota: Quota,
    /// The key of calls without an identity: the quota's own, or the common one.
    key: Arc<str>,
}

/// The parts of a call that decide its keys.
pub(super) struct QuotaKeyParts<'a> {
    pub(super) identity: &'a Identity,
    pub(super) function: &'a str,
    pub(super) functions: &'a FunctionNames,
    pub(super) function_id: FunctionId,
    /// Whether its caller is exempt from rate limits.
    pub(super) is_exempt: bool,
}

impl ConfiguredQuotas {
    pub(super) fn new(quotas: &[Quota]) -> Self {
        let kept = quotas.iter().take(QUOTAS_MAX).map(|quota| {
            let key = match &quota.by {
                QuotaBy::Total => {
                    let bare = quota.name.strip_prefix(RATE_LIMIT_PREFIX);
                    bare.unwrap_or(&quota.name).into()
                }
                QuotaBy::Function(Some(function)) => Arc::clone(function),
                QuotaBy::Function(None) | QuotaBy::Caller | QuotaBy::User => Arc::default(),
            };
            ConfiguredQuota {
                quota: quota.clone(),
                key,
            }
        });
        Self(kept.collect())
    }

    /// Every key that a call draws from. Without quotas, nothing is allocated. `caller` returns the
    /// name of its caller, and is called at most once.
    pub(super) fn of(
        &self,
        asking: &QuotaKeyParts<'_>,
        caller: impl FnOnce() -> Option<Arc<str>>,
    ) -> Option<Arc<[QuotaKey]>> {
        if self.0.is_empty() {
            return None;
        }
        let is_met = |kept: &&ConfiguredQuota| match &kept.quota.by {
            QuotaBy::Total | QuotaBy::Function(None) => true,
            QuotaBy::Function(Some(function)) => {
                **function == *asking.function || asking.function == ANY_FUNCTION
            }
            QuotaBy::Caller | QuotaBy::User => !asking.is_exempt,
        };
        let met = || self.0.iter().filter(is_met);
        let by_caller = met().any(|kept| kept.quota.by == QuotaBy::Caller);
        let caller = by_caller.then(caller).flatten();
        let keys = met().map(|kept| {
            let own = match &kept.quota.by {
                QuotaBy::Total | QuotaBy::Function(Some(_)) => None,
                QuotaBy::Function(None) => Some(asking.function_key()),
                QuotaBy::Caller => caller.clone(),
                QuotaBy::User => asking.identity.user.clone(),
            };
            QuotaKey {
                quota: Arc::clone(&kept.quota.name),
                key: own.unwrap_or_else(|| Arc::clone(&kept.key)),
            }
        });
        let keys: Arc<[QuotaKey]> = keys.collect();
        (!keys.is_empty()).then_some(keys)
    }
}

impl QuotaKeyParts<'_> {
    fn function_key(&self) -> Arc<str> {
        let known = self.functions.name(self.function_id);
        if **known == *self.function {
            return Arc::clone(known);
        }
        fitting(self.function.into()).as_ref().into()
    }
}
