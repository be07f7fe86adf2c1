//! Metrics of quotas that sidecars share.

use tidegate_runtime::metric::{SetLevel, SetTotal};

use crate::admin::{QuotaState, QuotasState};

tidegate_runtime::metrics! {
    /// Quotas.
    pub struct QuotaMetrics: "tidegate_" {
        /// Calls that met a quota, by how they passed it. `local`: admitted with tokens held here.
        /// `drew`: admitted after waiting for a draw. `waited`: admitted after waiting longer, such as for
        /// the next window. `refused`: refused by the quota, or held until the deadline.
        quota_decisions_total: Counter(limit, how) in "calls",
        /// Draws confirmed by the store.
        quota_draws_total: Counter(limit) in "draws",
        /// Time from sending a draw to the store's answer. Conflicts count as well; no call waits for it
        /// while tokens are held.
        quota_draw_seconds: WaitHistogram(limit) in "s",
        /// Writes that were not done because another sidecar was first.
        quota_conflicts_total: Counter(limit) in "writes",
        /// Requests to the store that got no answer. What such a draw may have taken is lost until the
        /// window ends.
        quota_unknown_total: Counter(limit) in "requests",
        /// Requests that could not be sent, or were not because the store is unavailable.
        quota_unavailable_total: Counter(limit) in "requests",
        /// Surpluses returned to the store.
        quota_relinquished_total: Counter(limit) in "writes",
        /// Tokens used without a draw while the store was unavailable (`when_store_away = "allow"`).
        quota_allowed_tokens_total: Counter(limit) in "tokens",
        /// Tokens used on account and not drawn by the end of the window (`mode = "optimistic"`).
        quota_overshot_tokens_total: Counter(limit) in "tokens",
        /// Keys in memory. `keys_max` bounds their sum.
        quota_keys: Gauge(limit) in "keys",
        /// Evicted keys, because there were `keys_max`. They return what they hold.
        quota_keys_forgotten_total: Counter(limit) in "keys",
        /// Keys with a problem in the store. For example: a record of another tool, a record that vanished
        /// or belongs to a later window, an invalid setting, or access denied. `/quotas` has the cause of
        /// each.
        quota_keys_in_trouble: Gauge(limit) in "keys",
        /// Whether the store reads and writes. It is 0 if requests or heartbeats fail, if the store denies
        /// access, if it reads and does not write, or if it was silent for 15 s. There is no series until
        /// this is known.
        quota_store_up: Gauge(engine) in "0 or 1",
        /// Keys that Redis removed to make room since this sidecar asked first, of all programs that use it.
        /// The window of an evicted record is granted again. There is no series while this is unknown.
        quota_store_evictions_total: Counter(engine) in "keys",
        /// Uncertainty of the store's time. It is `+Inf` if the time is unknown.
        quota_store_time_uncertainty_seconds: Gauge(engine) in "s",
        /// Live sidecars that share the quotas, this one included. It is 0 until the store has answered.
        /// Sidecars that died count for some seconds.
        quota_members: Gauge(engine) in "sidecars",
        /// Sidecars beyond `expected_sidecars`, for longer than a dead one is counted. More than 0 is a
        /// mistake.
        quota_members_unexpected: Gauge(engine) in "sidecars",
    }
}

impl QuotaMetrics {
    /// Shows the current quotas and their store, and no others.
    pub fn mirror(&self, state: &QuotasState) {
        let QuotasState { store, quotas } = state;
        self.retain("limit", |limit| quotas.iter().any(|it| it.name == limit));
        self.retain("engine", |engine| {
            store.as_ref().is_some_and(|store| store.engine == engine)
        });
        for quota in quotas {
            self.mirror_quota(quota);
        }
        let Some(store) = store else { return };
        match store.up {
            Some(up) => self.quota_store_up(store.engine).show(up),
            None => self.quota_store_up.reset(),
        }
        if let Some(evictions) = store.evictions {
            self.quota_store_evictions_total(store.engine)
                .reach(evictions);
        }
        let uncertainty = store.time_uncertainty_seconds.unwrap_or(f64::INFINITY);
        let shown = self.quota_store_time_uncertainty_seconds(store.engine);
        shown.show(uncertainty);
        self.quota_members(store.engine).show(store.members);
        let unexpected = self.quota_members_unexpected(store.engine);
        unexpected.show(store.unexpected_members);
    }

    fn mirror_quota(&self, quota: &QuotaState) {
        let limit = &*quota.name;
        let decisions = &quota.decisions;
        for (how, count) in [
            ("local", decisions.local),
            ("drew", decisions.drew),
            ("waited", decisions.waited),
            ("refused", decisions.refused),
        ] {
            let of = quota_decisions_total { limit, how };
            self.quota_decisions_total(of).reach(count);
        }
        for (counter, count) in [
            (&self.quota_draws_total, quota.draws),
            (&self.quota_conflicts_total, quota.conflicts),
            (&self.quota_unknown_total, quota.unknown),
            (&self.quota_unavailable_total, quota.unavailable),
            (&self.quota_relinquished_total, quota.relinquished),
            (&self.quota_allowed_tokens_total, quota.allowed_tokens),
            (&self.quota_overshot_tokens_total, quota.overshot_tokens),
            (&self.quota_keys_forgotten_total, quota.keys_forgotten),
        ] {
            counter.with_label_values(&[limit]).reach(count);
        }
        self.quota_keys(limit).show(quota.keys);
        self.quota_keys_in_trouble(limit)
            .show(quota.keys_in_trouble);
    }
}
