//! The settings of a config are taken: rows, rate limits, profiles and costs.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_callers::{Charge, CostModel, Fold, NewCaller, RateLimitId, TableError};

use super::groups::Members;
use super::quotas::ConfiguredQuotas;
use super::rate_limit::{RateLimit, RateLimitOrigin};
use super::{CallersSettings, CallersState};
use crate::call::costs::Costs;

/// The moment at which settings are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApplyTime {
    AtStart,
    Later,
}

impl CallersState {
    /// Takes the settings of a config.
    pub(super) fn apply(
        &mut self,
        settings: &CallersSettings,
        when: ApplyTime,
    ) -> Result<(), Vec<TableError>> {
        // Ids first, since the callers name them; nothing is changed until these are taken.
        let mut made = self.rate_limits_made;
        let limits: Vec<RateLimit> = settings
            .rate_limits
            .iter()
            .map(|limit| RateLimit {
                id: self.of_config(&limit.name).unwrap_or_else(|| {
                    made += 1;
                    RateLimitId(made)
                }),
                label: Arc::clone(&limit.name),
                made_by: RateLimitOrigin::Config,
                rule: limit.rule.clone(),
            })
            .collect();
        let charge = |name: &Arc<str>| {
            let limit = limits.iter().find(|limit| limit.label == *name);
            let limit = limit.expect("the config's check lets only names of rate limits through");
            Charge::Limit(limit.id)
        };
        let rows = settings.callers.iter().map(|row| NewCaller {
            charge: row.rate_limit.as_ref().map(charge).unwrap_or_default(),
            ..row.caller.clone()
        });
        // At the start no group has anything yet, and its callers bring what was kept of them.
        let before = match when {
            ApplyTime::AtStart => Members::new(),
            ApplyTime::Later => self.members(),
        };
        let reloaded = self.table.replace_static(rows.collect())?;

        let mut grown = Vec::new();
        for Fold { from, into } in reloaded.folded {
            self.fold(from, into);
            grown.push(into);
        }
        for id in reloaded.removed {
            self.accounts.remove(&id);
        }
        self.rate_limits_made = made;
        self.replace_rate_limits(limits);
        for label in &settings.reserved {
            self.take_label(label);
        }
        self.profiles.clone_from(&settings.profiles);
        self.follow_profiles();
        for id in self.table.configure(settings.table) {
            self.accounts.remove(&id);
            self.evicted += 1;
        }
        for function in &settings.functions {
            self.functions.add(function);
        }
        self.quotas = ConfiguredQuotas::new(&settings.quotas);
        let is_new = match when {
            // What was kept was given through the API, after the config.
            ApplyTime::AtStart => self.costs == Costs::default(),
            ApplyTime::Later => self.configured.costs != settings.costs,
        };
        if is_new {
            self.set_costs(settings.costs.clone());
        }
        self.configured = settings.clone();
        self.follow_groups(&before, &grown);
        Ok(())
    }

    /// Puts the rate limits of the config in the place of those that it had before.
    fn replace_rate_limits(&mut self, limits: Vec<RateLimit>) {
        let stays = |limit: &RateLimit| {
            limit.made_by == RateLimitOrigin::Api || limits.iter().any(|new| new.id == limit.id)
        };
        let gone: Vec<RateLimitId> = self
            .rate_limits
            .values()
            .filter(|limit| !stays(limit))
            .map(|limit| limit.id)
            .collect();
        for id in gone {
            self.rate_limits.remove(&id);
            self.table.detach(id);
        }
        for limit in limits {
            self.take_label(&limit.label);
            self.rate_limits.insert(limit.id, limit);
        }
    }

    /// Takes a label of the config from the API's rate limit that has it. The config wins, because
    /// labels distinguish rate limits in the metrics.
    fn take_label(&mut self, label: &Arc<str>) {
        let namesake =
            |other: &&mut RateLimit| other.made_by == RateLimitOrigin::Api && other.label == *label;
        if let Some(other) = self.rate_limits.values_mut().find(namesake) {
            tracing::warn!(label = %other.label, id = %other.id,
                "the config takes the label of a rate limit, which is known by its id now");
            other.label = other.id.to_string().into();
        }
    }

    /// Gives rate limits that are as large as a profile the size that it has now.
    fn follow_profiles(&mut self) {
        for limit in self.rate_limits.values_mut() {
            let Some(name) = &limit.rule.profile else {
                continue;
            };
            match self.profiles.iter().find(|profile| profile.name == *name) {
                Some(profile) => limit.rule.allowance = profile.allowance,
                None => limit.rule.profile = None,
            }
        }
    }

    /// Takes other costs.
    pub(super) fn set_costs(&mut self, costs: Costs) {
        let mut functions = BTreeMap::new();
        for (name, cost) in &costs.functions {
            // Only where thousands of names have been given over the time does one not have a
            // number of its own.
            functions.entry(self.functions.add(name)).or_insert(*cost);
        }
        let model = CostModel::new(costs.default, functions, costs.unit);
        self.cost_model = Arc::new(model);
        self.costs = costs;
    }

    /// The rate limit of the config with this name.
    fn of_config(&self, name: &str) -> Option<RateLimitId> {
        let mut limits = self.rate_limits.values();
        let found = limits.find(|it| it.made_by == RateLimitOrigin::Config && *it.label == *name);
        found.map(|limit| limit.id)
    }
}
