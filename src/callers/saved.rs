//! State that survives a restart: callers, rate limits and costs; of the counts, the totals.

use tidegate_callers::{CallerId, CallerRow, LastCall, Usage, UsageTally};
use tidegate_limits::Timestamp;

use super::rate_limit::RateLimit;
use super::{Account, Callers, CallersState};
use crate::call::costs::Costs;

/// The state that is kept from one run to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedCallers {
    /// Every row of the table.
    pub callers: Vec<SavedRow>,
    /// The highest id that a caller has had: no id is given twice.
    pub caller_ids_given: u64,
    /// Every rate limit; those of the config too, so that they keep their ids.
    pub rate_limits: Vec<RateLimit>,
    /// How many rate limits there have been: no id is given twice.
    pub rate_limits_made: u32,
    /// The costs of calls, if they were set through the API.
    pub costs: Option<Costs>,
}

/// A row as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRow {
    /// The row.
    pub caller: CallerRow,
    /// The usage in all.
    pub total: UsageTally,
}

impl Callers {
    /// The state to keep. `moment` says a time of this run as a number that grows from run to run, such as seconds
    /// since 1970.
    #[must_use]
    pub fn saved(&self, moment: impl Fn(Timestamp) -> u64) -> SavedCallers {
        let state = self.lock();
        let now = Timestamp::ZERO;
        let row = |row: &CallerRow| {
            let account = state.accounts.get(&row.id);
            SavedRow {
                caller: CallerRow {
                    last_call: match row.last_call {
                        LastCall::At(at) => LastCall::Earlier(moment(at)),
                        before => before,
                    },
                    ..row.clone()
                },
                total: account
                    .and_then(|account| account.usage.as_ref())
                    .map(|usage| usage.snapshot(now).total)
                    .unwrap_or_default(),
            }
        };
        SavedCallers {
            callers: state.table.rows().map(row).collect(),
            caller_ids_given: state.table.ids_given(),
            rate_limits: state.rate_limits.values().cloned().collect(),
            rate_limits_made: state.rate_limits_made,
            costs: (state.costs != state.configured.costs).then(|| state.costs.clone()),
        }
    }
}

impl CallersState {
    /// Restores the state of an earlier run, before the config is applied. A row that cannot be
    /// restored is left out and logged.
    pub(super) fn restore(&mut self, saved: SavedCallers) {
        let highest = saved.rate_limits.iter().map(|limit| limit.id.0).max();
        self.rate_limits_made = saved.rate_limits_made.max(highest.unwrap_or(0));
        for limit in saved.rate_limits {
            self.rate_limits.insert(limit.id, limit);
        }
        self.table.count_ids_as_given(saved.caller_ids_given);
        let mut totals = Vec::new();
        let rows = saved.callers.into_iter().map(|row| {
            totals.push((row.caller.id, row.total));
            row.caller
        });
        let restored = self.table.restore(rows.collect());
        for (id, mistake) in &restored.refused {
            // The unknown row is always there, and an empty change of it changes nothing.
            if *id != CallerId::UNKNOWN {
                tracing::warn!(%id, error = %mistake, "a caller of the state file is left out");
            }
        }
        for (id, total) in totals {
            if self.table.get(id).is_some() && total != UsageTally::default() {
                let account = Account {
                    usage: Some(Box::new(Usage::with_total(total))),
                    ..Account::default()
                };
                self.accounts.insert(id, account);
            }
        }
        // A row of the config whose rate limit is not kept any more gets its own from there;
        // any other loses it.
        let charged = self.table.rows().filter_map(|row| row.charge.limit());
        let is_unknown = |id: &_| !self.rate_limits.contains_key(id);
        let dangling: Vec<_> = charged.filter(is_unknown).collect();
        for limit in dangling {
            self.table.detach(limit);
        }
        if let Some(costs) = saved.costs {
            self.set_costs(costs);
        }
    }
}
