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
mod groups;
pub mod metrics;
pub(crate) mod options;
mod quotas;
pub mod rate_limit;
mod reload;
mod saved;
pub mod settings;
pub mod shown;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::HashMap;
use tidegate_callers::{
    CallerId, CallerTable, CostModel, FunctionId, Group, LearnedCosts, Matches, RateLimitId,
    ServiceTimes, TableError, Usage,
};
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::call::BucketId;
use tidegate_limits::scheduler::BucketRule;

pub use self::error::Error;
use self::functions::FunctionNames;
use self::quotas::ConfiguredQuotas;
pub use self::rate_limit::{BucketChange, NewRateLimit, RateLimitPatch};
use self::rate_limit::{Profile, RateLimit};
use self::reload::ApplyTime;
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
    /// The costs of calls by their answers, by function and class.
    learned: LearnedCosts<Arc<str>>,
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

    /// The name that a function's number stands for.
    #[must_use]
    pub fn function_name(&self, id: FunctionId) -> Arc<str> {
        Arc::clone(self.lock().functions.name(id))
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

impl CallersState {
    /// Every bucket there is to be.
    fn buckets(&self) -> BTreeMap<BucketId, (BucketRule, LimitMode)> {
        let costs = self.costs.range(None);
        self.rate_limits
            .values()
            .filter_map(|limit| {
                let mode = limit.rule.handling.mode;
                let rule = limit.bucket(costs)?;
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
