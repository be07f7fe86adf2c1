//! Who asks, what it costs, and which rate limit is charged.
//!
//! Every call gets a [`Claim`](crate::call::claim::Claim) where it comes in: it is counted for every caller it belongs
//! to, and charged to the rate limit of the most specific of them that has one. What became of
//! it is counted when it has ended.
//!
//! Everything is behind one lock, held for the look-up and a few counters; it is never held
//! while the gate's is asked for. The buckets themselves are the gate's: whatever changes rate
//! limits returns what has to be done to them, and `app` does it.

mod changes;
mod claims;
mod error;
mod functions;
pub mod metrics;
pub(crate) mod options;
mod quotas;
pub mod rate_limit;
mod saved;
pub mod settings;
pub mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::HashMap;
use tidegate_callers::{
    CallerId, CallerTable, Charge, CostModel, Fold, FunctionId, Group, Matches, NewCaller,
    RateLimitId, ServiceTimes, TableError, Usage,
};
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::call::BucketId;
use tidegate_limits::scheduler::BucketRule;

pub use self::error::Error;
use self::functions::FunctionNames;
use self::quotas::ConfiguredQuotas;
pub use self::rate_limit::{BucketChange, NewRateLimit, RateLimitPatch};
use self::rate_limit::{Profile, RateLimit, RateLimitOrigin};
pub use self::saved::{SavedCallers, SavedRow};
pub use self::settings::CallersSettings;
use crate::call::costs::Costs;
use crate::call::{Identity, LimitMode};

/// Whether a call meets limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meets {
    /// The call meets the limits, and is charged.
    Limits,
    /// The call meets no limit, and is only counted.
    NoLimits,
}

/// A change that was made, and what has to be done to the buckets for it.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "the buckets have to follow"]
pub struct ChangeResult<T> {
    /// The result of the change.
    pub value: T,
    /// To be done to the gate, in this order.
    pub buckets: Vec<BucketChange>,
}

/// All callers, rate limits and costs.
#[derive(Clone, Debug)]
pub struct Callers {
    state: Arc<Mutex<CallersState>>,
}

#[derive(Debug, Default)]
struct CallersState {
    table: CallerTable,
    /// Kept from call to call, so that a look-up allocates nothing.
    matches: Matches,
    /// The accounts of rows: data beside what the table keeps. Only rows have one.
    accounts: HashMap<CallerId, Account>,
    groups: BTreeMap<Group, GroupUse>,
    rate_limits: BTreeMap<RateLimitId, RateLimit>,
    rate_limits_made: u32,
    profiles: Vec<Profile>,
    functions: FunctionNames,
    quotas: ConfiguredQuotas,
    costs: Costs,
    cost_model: Arc<CostModel>,
    /// The settings that the config had last, to see what a reload changes.
    configured: CallersSettings,
    service_times: ServiceTimes,
    /// Rows forgotten so far.
    evicted: u64,
}

/// The account of a caller.
#[derive(Debug, Default)]
struct Account {
    /// The usage, once a call was counted: most of what is kept of a caller is this, and a config may have
    /// thousands of callers that never call.
    usage: Option<Box<Usage>>,
    /// Who made its latest call: what a call that waits is classified by when its rate limit
    /// is removed.
    seen: Option<Arc<Identity>>,
    /// The key in quotas by caller, once a call asked for it. Forgotten with each change, since it is made of its
    /// name.
    quota_key: Option<Arc<str>>,
}

impl Account {
    fn usage(&mut self) -> &mut Usage {
        self.usage.get_or_insert_default()
    }

    /// Notes that this client made the caller's latest call.
    fn is_seen_as(&mut self, identity: &Arc<Identity>) {
        let seen = self.seen.as_ref();
        if !seen.is_some_and(|seen| Arc::ptr_eq(seen, identity)) {
            self.seen = Some(Arc::clone(identity));
        }
    }
}

/// The callers of each group.
type Members = BTreeMap<Group, BTreeSet<CallerId>>;

/// The usage of a group.
#[derive(Debug, Default)]
struct GroupUse {
    usage: Usage,
    /// Calls that have ended.
    calls: u64,
    /// The final cost of the calls that were admitted.
    tokens: TokenCount,
}

impl Callers {
    /// Begins with what an earlier run kept, as far as the config does not say otherwise.
    ///
    /// # Errors
    /// If what was kept leaves no room for the callers of the config.
    pub fn start(
        settings: &CallersSettings,
        saved: Option<SavedCallers>,
    ) -> Result<ChangeResult<Self>, Vec<TableError>> {
        let mut state = CallersState {
            table: CallerTable::new(settings.table),
            ..CallersState::default()
        };
        if let Some(saved) = saved {
            state.restore(saved);
        }
        state.apply(settings, ApplyTime::AtStart)?;
        let buckets = difference(&BTreeMap::new(), state.buckets());
        let value = Self {
            state: Arc::new(Mutex::new(state)),
        };
        Ok(ChangeResult { value, buckets })
    }

    /// Takes new settings. Callers and rate limits of the config are found again by their
    /// names, and keep their ids, statistics and tokens; what was made through the API stays.
    /// Costs given through the API stay until the config says others than before.
    ///
    /// # Errors
    /// If what was made through the API leaves no room for the callers of the config; then
    /// nothing has changed.
    pub fn apply(&self, settings: &CallersSettings) -> Result<ChangeResult<()>, Vec<TableError>> {
        self.recharge(|state| state.apply(settings, ApplyTime::Later))
    }

    fn lock(&self) -> MutexGuard<'_, CallersState> {
        tidegate_runtime::lock(&self.state)
    }

    /// Changes something, and says what the buckets have to follow.
    fn change<T, E>(
        &self,
        change: impl FnOnce(&mut CallersState) -> Result<T, E>,
    ) -> Result<ChangeResult<T>, E> {
        let mut state = self.lock();
        let before = state.buckets();
        let value = change(&mut state)?;
        for account in state.accounts.values_mut() {
            account.quota_key = None;
        }
        let buckets = difference(&before, state.buckets());
        Ok(ChangeResult { value, buckets })
    }

    /// Makes a change after which calls may be charged to another bucket.
    fn recharge<T, E>(
        &self,
        change: impl FnOnce(&mut CallersState) -> Result<T, E>,
    ) -> Result<ChangeResult<T>, E> {
        let mut changed = self.change(change)?;
        changed.buckets.push(BucketChange::Recharge);
        Ok(changed)
    }
}

/// The moment at which settings are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApplyTime {
    AtStart,
    Later,
}

impl CallersState {
    fn apply(
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

    fn set_costs(&mut self, costs: Costs) {
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

    fn of_config(&self, name: &str) -> Option<RateLimitId> {
        let mut limits = self.rate_limits.values();
        let found = limits.find(|it| it.made_by == RateLimitOrigin::Config && *it.label == *name);
        found.map(|limit| limit.id)
    }

    /// Every bucket there is to be.
    fn buckets(&self) -> BTreeMap<BucketId, (BucketRule, LimitMode)> {
        let (settles, costs) = (self.costs.settle, self.costs.range(None));
        self.rate_limits
            .values()
            .filter_map(|limit| {
                let mode = limit.rule.handling.mode;
                let rule = limit.bucket(settles, costs)?;
                Some((limit.id.bucket(), (rule, mode)))
            })
            .collect()
    }

    /// The statistics of a caller, if it has any.
    fn usage_of(&self, id: CallerId) -> Result<Option<&Usage>, TableError> {
        self.table.get(id).ok_or(TableError::Unknown(id))?;
        let account = self.accounts.get(&id);
        Ok(account.and_then(|account| account.usage.as_deref()))
    }

    /// Adds the statistics of a row that is gone to another.
    fn fold(&mut self, from: CallerId, into: CallerId) {
        let gone = self.accounts.remove(&from);
        if let Some(usage) = gone.and_then(|gone| gone.usage) {
            let account = self.accounts.entry(into).or_default();
            account.usage().merge(&usage);
        }
    }

    /// The groups that each of them is in.
    fn groups_of(
        &self,
        callers: impl IntoIterator<Item = CallerId>,
    ) -> Vec<(CallerId, Vec<Group>)> {
        let groups = |id| {
            let row = self.table.get(id);
            row.map(|row| row.groups.to_vec()).unwrap_or_default()
        };
        callers.into_iter().map(|id| (id, groups(id))).collect()
    }

    /// Adds the statistics of a caller, which becomes a part of another, to the groups of that one
    /// in which it was not before: what a caller used and what its group used must agree.
    fn bring_into_groups(&mut self, part: CallerId, before: &[Group], into: CallerId) {
        let account = self.accounts.get(&part);
        let Some(usage) = account.and_then(|account| account.usage.as_deref()) else {
            return;
        };
        let row = self.table.get(into);
        for group in row.map(|row| &*row.groups).unwrap_or_default() {
            if !before.contains(group) {
                let used = self.groups.entry(group.clone()).or_default();
                used.usage.merge(usage);
            }
        }
    }

    /// The callers of each group.
    fn members(&self) -> Members {
        let mut members = Members::new();
        for row in self.table.rows() {
            for group in &row.groups {
                members.entry(group.clone()).or_default().insert(row.id);
            }
        }
        members
    }

    /// Follows callers that joined groups or left them: what a group has used is what its callers
    /// have. `grown` are callers that others became a part of.
    fn follow_groups(&mut self, before: &Members, grown: &[CallerId]) {
        let none = BTreeSet::new();
        for (group, now) in self.members() {
            let was = before.get(&group).unwrap_or(&none);
            let has_lost = !was.is_subset(&now) || grown.iter().any(|id| was.contains(id));
            if !has_lost && was.len() == now.len() {
                continue;
            }
            let used = self.groups.entry(group).or_default();
            if has_lost {
                used.usage = Usage::default();
            }
            for id in now.iter().filter(|id| has_lost || !was.contains(id)) {
                let account = self.accounts.get(id);
                if let Some(usage) = account.and_then(|account| account.usage.as_deref()) {
                    used.usage.merge(usage);
                }
            }
        }
        self.forget_empty_groups();
    }

    fn forget_empty_groups(&mut self) {
        let table = &self.table;
        self.groups
            .retain(|group, _| table.groups().any(|(known, _)| known == group));
    }
}

/// The changes that the scheduler's buckets need to follow.
fn difference(
    before: &BTreeMap<BucketId, (BucketRule, LimitMode)>,
    after: BTreeMap<BucketId, (BucketRule, LimitMode)>,
) -> Vec<BucketChange> {
    let gone: Vec<BucketId> = before
        .keys()
        .filter(|id| !after.contains_key(id))
        .copied()
        .collect();
    let set = after
        .into_iter()
        .filter(|(id, bucket)| before.get(id) != Some(bucket))
        .map(|(id, (rule, mode))| BucketChange::Set(id, rule, mode));
    // Removed last, because calls that waited there may go to a new one.
    set.chain(gone.into_iter().map(BucketChange::Remove))
        .collect()
}

/// The name of a function in statistics.
impl Callers {
    /// The name that a function's number stands for.
    #[must_use]
    pub fn function_name(&self, id: FunctionId) -> Arc<str> {
        Arc::clone(self.lock().functions.name(id))
    }
}
