//! Callers, rate limits and costs, as operators may see them. Each look takes the lock for one row only, so that no
//! list holds up a call.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_callers::{
    CallerId, CallerRow, DELAYED_MAX, Group, Identity, Match, Matches, RateLimitId, RowKind,
    ServiceTime, Suggestion, TableError, Usage, UsageNow,
};
use tidegate_limits::Timestamp;
use tidegate_limits::bucket::TokenCount;

use super::claims::{charge, charged_to};
use super::rate_limit::{Derive, Profile, RateLimit};
use super::{Callers, Error};
use crate::call::claim::Charged;
use crate::call::costs::{Costs, SuggestedCost};

/// A caller.
#[derive(Clone, Debug, PartialEq)]
pub struct CallerNow {
    /// The row of the caller.
    pub row: CallerRow,
    /// The usage of the caller.
    pub usage: UsageNow,
}

/// A rate limit, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitNow {
    /// The rate limit.
    pub rate_limit: RateLimit,
    /// Who has it, in the order of their ids.
    pub callers: Vec<CallerId>,
}

/// The usage of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupNow {
    /// The name of the group.
    pub group: Group,
    /// Callers in it.
    pub callers: u32,
    /// The number of its calls that have ended.
    pub calls: u64,
    /// The final cost of those that were admitted.
    pub tokens: TokenCount,
}

/// Rows by where they come from, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallerCounts {
    /// In the config.
    pub from_config: u64,
    /// Made through the API, or kept because it was changed there.
    pub made: u64,
    /// By their own calls.
    pub auto: u64,
    /// Rows that have been forgotten since the start.
    pub evicted: u64,
}

/// The result of a dry run.
#[derive(Clone, Debug, PartialEq)]
pub struct DryRun {
    /// Every caller that a call would be counted for, the most specific first.
    pub matches: Vec<Match>,
    /// The charge that the call would have.
    pub charged: Charged,
    /// The estimated cost that the call would have.
    pub cost: TokenCount,
}

impl Callers {
    /// The ids of all callers, in order; the unknown row first.
    #[must_use]
    pub fn ids(&self) -> Vec<CallerId> {
        self.lock().table.rows().map(|row| row.id).collect()
    }

    /// All callers, in the order of their ids. Who goes meanwhile is left out.
    #[must_use]
    pub fn all(&self, now: Timestamp) -> Vec<CallerNow> {
        let ids = self.ids().into_iter();
        ids.filter_map(|id| self.get(now, id).ok()).collect()
    }

    /// The state of a caller.
    ///
    /// # Errors
    /// If there is none of that id.
    pub fn get(&self, now: Timestamp, id: CallerId) -> Result<CallerNow, Error> {
        let state = self.lock();
        let row = state.table.get(id).ok_or(TableError::Unknown(id))?;
        let usage = state.usage_of(id)?.map(|usage| usage.snapshot(now));
        Ok(CallerNow {
            row: row.clone(),
            usage: usage.unwrap_or_else(|| Usage::default().snapshot(now)),
        })
    }

    /// The usage of a group.
    #[must_use]
    pub fn group_usage(&self, now: Timestamp, group: &str) -> Option<UsageNow> {
        let state = self.lock();
        let known = state.table.groups().any(|(it, _)| it.as_str() == group);
        let usage = state.groups.get(group).map(|it| it.usage.snapshot(now));
        known.then(|| usage.unwrap_or_else(|| Usage::default().snapshot(now)))
    }

    /// Every group, by name.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupNow> {
        let state = self.lock();
        let groups = state.table.groups().map(|(group, callers)| {
            let used = state.groups.get(group);
            GroupNow {
                group: group.clone(),
                callers,
                calls: used.map_or(0, |used| used.calls),
                tokens: used.map_or(TokenCount::ZERO, |used| used.tokens),
            }
        });
        groups.collect()
    }

    /// How many rows there are, and have been forgotten. Asks every row.
    #[must_use]
    pub fn registered(&self) -> CallerCounts {
        let state = self.lock();
        let mut registered = CallerCounts {
            evicted: state.evicted,
            ..CallerCounts::default()
        };
        for row in state.table.rows() {
            match row.kind {
                RowKind::Static => registered.from_config += 1,
                RowKind::Made => registered.made += 1,
                RowKind::Auto => registered.auto += 1,
                RowKind::Unknown => {}
            }
        }
        registered
    }

    /// Every rate limit, in the order of their ids, without whose they are.
    #[must_use]
    pub fn limits(&self) -> Vec<RateLimit> {
        self.lock().rate_limits.values().cloned().collect()
    }

    /// The first rate limits in the order of their ids, at most `most`.
    #[must_use]
    pub fn first_limits(&self, most: usize) -> Vec<RateLimit> {
        let state = self.lock();
        state.rate_limits.values().take(most).cloned().collect()
    }

    /// Every rate limit, in the order of their ids. Asks every row.
    #[must_use]
    pub fn rate_limits(&self) -> Vec<RateLimitNow> {
        let state = self.lock();
        let mut callers: BTreeMap<RateLimitId, Vec<CallerId>> = BTreeMap::new();
        for row in state.table.rows() {
            if let Some(id) = row.charge.limit() {
                callers.entry(id).or_default().push(row.id);
            }
        }
        let limits = state.rate_limits.values().map(|limit| RateLimitNow {
            rate_limit: limit.clone(),
            callers: callers.remove(&limit.id).unwrap_or_default(),
        });
        limits.collect()
    }

    /// The state of a rate limit. Asks every row.
    ///
    /// # Errors
    /// If there is none of that id.
    pub fn rate_limit(&self, id: RateLimitId) -> Result<RateLimitNow, Error> {
        let state = self.lock();
        let limit = state.rate_limits.get(&id);
        let rate_limit = limit.ok_or(Error::UnknownRateLimit(id))?.clone();
        let has_it = |row: &&CallerRow| row.charge.limit() == Some(id);
        let callers = state
            .table
            .rows()
            .filter(has_it)
            .map(|row| row.id)
            .collect();
        Ok(RateLimitNow {
            rate_limit,
            callers,
        })
    }

    /// Named sizes of rate limits.
    #[must_use]
    pub fn profiles(&self) -> Vec<Profile> {
        self.lock().profiles.clone()
    }

    /// The costs of calls.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.lock().costs.clone()
    }

    /// The suggested costs of functions that were called within the latest day.
    #[must_use]
    pub fn suggested_costs(&self, now: Timestamp) -> Vec<SuggestedCost> {
        let state = self.lock();
        let suggest = |it: ServiceTime| SuggestedCost {
            call: state.functions.name(it.function).to_string(),
            samples: it.samples,
            mean_seconds: it.mean.as_secs_f64(),
            cost: state.cost_model.cost(it.function).tokens(),
            suggested: state.cost_model.suggest(it.mean),
        };
        state.service_times.at(now).map(suggest).collect()
    }

    /// The rate limit that would have admitted the usage of a caller, and the nearest profile of those
    /// that would have delayed few of its tokens ([`DELAYED_MAX`]).
    ///
    /// # Errors
    /// If no caller has the id, or it used nothing.
    pub fn suggest(
        &self,
        now: Timestamp,
        derive: Derive,
    ) -> Result<(Suggestion, Option<Arc<str>>), Error> {
        // Over a day that takes a while: from a copy, without the lock.
        let (usage, profiles) = {
            let state = self.lock();
            let usage = state.usage_of(derive.caller)?.cloned();
            (usage, state.profiles.clone())
        };
        let suggestion = suggestion(now, derive, usage.as_ref())?;
        let buckets = profiles.iter().filter_map(|it| {
            let (burst, fill) = it.allowance.bucket()?;
            let (burst, fill) = (burst.get(), fill.get());
            let late = usage.as_ref()?.would_delay(now, derive.span, fill, burst)?;
            (late <= DELAYED_MAX).then_some((&it.name, fill, burst))
        });
        Ok((suggestion, suggestion.nearest(buckets).cloned()))
    }

    /// Says who would be counted and charged, without counting or charging anybody.
    #[must_use]
    pub fn classify(&self, identity: &Identity<'_>, function: &str) -> DryRun {
        let state = self.lock();
        let mut matches = Matches::default();
        state.table.classify(identity, &mut matches);
        DryRun {
            matches: matches.as_slice().to_vec(),
            charged: charged_to(&state.rate_limits, &matches).map_or(Charged::Nothing, charge),
            cost: state.cost_model.cost(state.functions.find(function)),
        }
    }
}

/// The size that suits the usage of a caller, rounded up to figures that are easily read.
pub(super) fn suggestion(
    now: Timestamp,
    derive: Derive,
    usage: Option<&Usage>,
) -> Result<Suggestion, Error> {
    let suggestion = usage.and_then(|usage| usage.suggest(now, derive.span, derive.headroom));
    let suggestion = suggestion.ok_or(Error::NothingUsed(derive.caller))?;
    Ok(suggestion.rounded_up())
}
