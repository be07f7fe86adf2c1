//! Limits, buckets, quotas and leases in one list.

use tidegate_limits::Timestamp;
use tidegate_limits::policy::LimitRule;
use tidegate_limits::scheduler::{self, BucketLimit, BucketNow};

use super::super::AppState;
use super::super::shares::ShareNow;
use super::super::shown::{limit_state, opens, rate, shared};
use crate::admin::{LimitKind, LimitNow, Opens, QuotaState};

/// The keys of a quota that are looked at for its use.
const KEYS_MAX: usize = 8;

impl AppState {
    /// Limits in the order of the config, then buckets, quotas and leases; at most `most` in all.
    pub(in crate::app) fn limits_of_all_kinds(&self, most: usize) -> Vec<LimitNow> {
        let (limits, now) = self.gate.limits_now();
        let observed = self.gate.observed_now();
        let observed = observed.iter().flat_map(|it| &it.limits);
        let shares = self.coordination.shares();
        let enforced = limits.iter().map(|limit| (limit, false));
        let of_config = observed.map(|limit| (limit, true)).chain(enforced);
        let mut all: Vec<LimitNow> = of_config
            .take(most)
            .map(|((rule, state), observes)| LimitNow {
                shared: shared(&shares, &rule.name),
                observes,
                ..of_limit(rule, state, now)
            })
            .collect();
        for limit in self.callers.first_limits(most.saturating_sub(all.len())) {
            if let Some(bucket) = self.gate.bucket_now(limit.id.bucket()) {
                all.push(LimitNow {
                    shared: shared(&shares, &bucket.rule.name),
                    ..of_bucket(&bucket, now)
                });
            }
        }
        let quotas = self.quotas.state(KEYS_MAX).quotas.into_iter().map(quota);
        all.extend(quotas);
        all.extend(shares.iter().map(|share| LimitNow {
            shared: shared(&shares, &share.limit),
            ..of_lease(share)
        }));
        all.truncate(most);
        all
    }
}

/// A limit of the config, without its share.
fn of_limit(rule: &LimitRule, state: &scheduler::LimitNow, now: Timestamp) -> LimitNow {
    let shown = limit_state(rule, state, now);
    let (opens_in_seconds, open) = opening(shown.opens);
    let pace = state.paced.as_ref();
    let (kind, unit) = match shown.kind {
        LimitKind::Outstanding => ("outstanding", "calls"),
        LimitKind::Window => ("window", "calls"),
        LimitKind::Paced => ("paced", "tokens"),
    };
    LimitNow {
        used: pace.map_or(shown.used as f64, |pace| pace.achieved),
        allowed: pace.map_or(shown.in_force as f64, rate),
        configured: shown.configured as f64,
        waiting: state.waiting,
        shared: None,
        name: shown.name,
        scope: shown.scope,
        kind,
        opens_in_seconds,
        open,
        observes: false,
        unit,
    }
}

/// A bucket of callers, without its share.
fn of_bucket(bucket: &BucketNow, now: Timestamp) -> LimitNow {
    let (opens_in_seconds, open) = opening(opens(bucket.opens, now));
    let (used, allowed) = match bucket.rule.limit {
        BucketLimit::Bucket { burst, .. } => (burst.get() - bucket.tokens, burst.get()),
        BucketLimit::Paced(_) => {
            let pace = bucket.paced.as_ref();
            (pace.map_or(0.0, |it| it.achieved), pace.map_or(0.0, rate))
        }
    };
    LimitNow {
        name: bucket.rule.name.to_string(),
        kind: "bucket",
        scope: "callers".to_owned(),
        used,
        allowed,
        configured: allowed,
        waiting: bucket.waiting,
        opens_in_seconds,
        open,
        observes: false,
        shared: None,
        unit: "tokens",
    }
}

/// The lease of a limit.
fn of_lease(share: &ShareNow) -> LimitNow {
    let leased = share.lease.map_or(share.safe, |(capacity, _)| capacity);
    LimitNow {
        name: share.limit.to_string(),
        kind: "lease",
        scope: "all".to_owned(),
        used: share.wants,
        allowed: leased,
        configured: share.safe,
        waiting: 0,
        opens_in_seconds: None,
        open: leased > 0.0,
        observes: false,
        shared: None,
        unit: "calls",
    }
}

/// A quota, by the key of which the most is used.
fn quota(quota: QuotaState) -> LimitNow {
    let total = quota.total as f64;
    let used = |key: &crate::admin::QuotaKeyState| {
        let left = key.left? as f64 + key.held as f64;
        Some((key.window_total? as f64 - left).max(0.0))
    };
    let keys = quota.used_last.iter();
    let fullest = keys.clone().filter_map(used).fold(0.0, f64::max);
    LimitNow {
        waiting: keys.map(|key| key.waiting).sum(),
        kind: "quota",
        scope: "each key".to_owned(),
        used: fullest,
        allowed: total,
        configured: total,
        opens_in_seconds: None,
        open: fullest < total,
        observes: quota.mode == "observe",
        shared: None,
        unit: "tokens",
        name: quota.name,
    }
}

/// When it opens, if time decides that, and whether it is open.
fn opening(opens: Opens) -> (Option<f64>, bool) {
    match opens {
        Opens::Now => (Some(0.0), true),
        Opens::InSeconds(seconds) => (Some(seconds), false),
        Opens::OnChange => (None, false),
    }
}
