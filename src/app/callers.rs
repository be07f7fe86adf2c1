//! Callers, rate limits and costs as the admin address shows and changes them.
//!
//! A change is applied to the callers, then to the gate's buckets, then the state is saved, and
//! only then is it answered. One change is made at a time. A reload changes callers too, and does
//! not wait for a save.

mod explained;
#[expect(
    clippy::disallowed_methods,
    reason = "used at start, and on threads that wait"
)]
mod keeper;
mod stored;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_callers::{
    CallerId, Group, LastCall, NewCaller, Patch, RateLimitId, UsageNow, UsageSpan,
};
use tidegate_limits::Tokens;
use tidegate_limits::scheduler::{BucketNow, PacerNow};
use tidegate_runtime::lock;

pub(super) use self::keeper::Keeper;
use super::changes::Change;
use super::{AppState, follow, with_costs};
use crate::admin::{
    ApiRefusal, CallId, CallerState, CallerUsage, CallerUsed, CallersSource, CostsState,
    DryRunRequest, DryRunState, Explained, Figures, MatchState, Merge, Moment, ObjectKind,
    ObjectOrigin, PaceState, ProfileState, QueueRow, RateLimitState, RequestRow, RequestState,
    Suggested, UsageTable, Used, milliseconds, without_name,
};
use crate::call::claim::{Charged, drawn};
use crate::call::costs::{Costs, SuggestedCost};
use crate::call::rate_limit::{Derive, NewRateLimit, RateLimitPatch};
use crate::callers::rate_limit::RateLimitOrigin;
use crate::callers::shown::{CallerNow, RateLimitNow};
use crate::callers::{self, Callers, ChangeResult, Error};

impl AppState {
    /// Changes callers, rate limits or costs, and then the buckets. The result is saved within ten
    /// seconds. It does not wait for a disk.
    pub(super) fn change_callers<T, E>(
        &self,
        _one_at_a_time: &Change<'_>,
        change: impl FnOnce(&Callers) -> Result<ChangeResult<T>, E>,
    ) -> Result<T, E> {
        let ChangeResult { value, buckets } = change(&self.callers)?;
        follow(&self.gate, &self.callers, buckets);
        Ok(value)
    }

    /// Makes a change, and saves it before it returns.
    ///
    /// A change that cannot be saved is not made: room is reserved first. If the disk fails after
    /// that, the change stays in force, is reported so, and is saved later. Undoing it would
    /// promise too much. If the flush of the directory failed, it is unknown which state the disk
    /// has. To save the old state is as likely to fail as to save the new one. And calls may
    /// already have been admitted by the change.
    fn change_and_save<T>(
        &self,
        change: impl FnOnce(&Callers) -> Result<ChangeResult<T>, Error>,
    ) -> Result<T, ApiRefusal> {
        let mut keeper = lock(&self.keeper);
        keeper.reserve().map_err(|error| ApiRefusal::NotSaved {
            reason: error.to_string(),
        })?;
        let value = self
            .change_callers(&self.changes.begin()?, change)
            .map_err(refused)?;
        let saved = keeper.save(self.saved());
        saved.map_err(|error| ApiRefusal::NotYetSaved {
            reason: error.to_string(),
        })?;
        Ok(value)
    }

    /// Also saves the counts since the last time.
    pub(super) fn save_callers(&self) {
        let mut keeper = lock(&self.keeper);
        if keeper.is_on() {
            keeper.save_if_changed(self.saved());
        }
    }

    pub(super) fn saved(&self) -> callers::SavedCallers {
        let seconds = |at| seconds_since_1970(self.clock.wall(at));
        self.callers.saved(seconds)
    }

    /// When a caller was last called.
    fn last_access(&self, last: LastCall) -> Option<SystemTime> {
        match last {
            LastCall::Never => None,
            LastCall::Earlier(seconds) => Some(UNIX_EPOCH + Duration::from_secs(seconds)),
            LastCall::At(at) => Some(self.clock.wall(at)),
        }
    }

    fn caller_state(&self, caller: CallerNow) -> CallerState {
        let CallerNow { row, usage } = caller;
        let last_access = self.last_access(row.last_call);
        CallerState::new(row, last_access, &usage)
    }

    fn rate_limit_state(&self, limit: RateLimitNow) -> RateLimitState {
        let RateLimitNow {
            rate_limit,
            callers,
        } = limit;
        let bucket = self.gate.bucket_now(rate_limit.id.bucket());
        let paced = bucket.as_ref().and_then(|bucket| bucket.paced.as_ref());
        let of = |figure: fn(&BucketNow) -> u64| bucket.as_ref().map_or(0, figure);
        let rule = &rate_limit.rule;
        RateLimitState {
            id: rate_limit.id,
            label: rate_limit.label.to_string(),
            origin: match rate_limit.made_by {
                RateLimitOrigin::Config => ObjectOrigin::Config,
                RateLimitOrigin::Api => ObjectOrigin::Api,
            },
            profile: rule.profile.as_deref().map(ToOwned::to_owned),
            figures: rule.allowance.into(),
            pace: paced.map(pace_state),
            tokens: bucket.as_ref().map(|bucket| bucket.tokens),
            handling: rule.handling,
            callers,
            queued: of(|bucket| bucket.waiting),
            queued_tokens: bucket.as_ref().map_or(0.0, |it| it.waiting_tokens),
            charged: of(|bucket| bucket.counts.charged),
            would_have_delayed: self.gate.would_have_delayed(rate_limit.id.bucket()),
            rejected: of(|bucket| bucket.counts.rejected),
        }
    }
}

impl CallersSource for AppState {
    fn callers(&self) -> Vec<CallerState> {
        let callers = self.callers.all(self.clock.now()).into_iter();
        callers.map(|caller| self.caller_state(caller)).collect()
    }

    fn caller(&self, id: CallerId) -> Result<CallerState, ApiRefusal> {
        let caller = self.callers.get(self.clock.now(), id).map_err(refused)?;
        Ok(self.caller_state(caller))
    }

    fn create_caller(&self, new: NewCaller) -> Result<CallerState, ApiRefusal> {
        let id = self.change_and_save(|callers| callers.create(new))?;
        self.caller(id)
    }

    fn patch_caller(&self, id: CallerId, patch: Patch) -> Result<CallerState, ApiRefusal> {
        self.change_and_save(|callers| callers.patch(id, patch))?;
        self.caller(id)
    }

    fn delete_caller(&self, id: CallerId) -> Result<(), ApiRefusal> {
        self.change_and_save(|callers| callers.delete(id))
    }

    fn merge_callers(&self, merge: Merge) -> Result<CallerState, ApiRefusal> {
        let Merge { into, from, label } = merge;
        self.change_and_save(|callers| callers.merge(into, &from, label))?;
        self.caller(into)
    }

    fn caller_usage(&self, id: CallerId) -> Result<CallerUsage, ApiRefusal> {
        let caller = self.callers.get(self.clock.now(), id).map_err(refused)?;
        let last = self.last_access(caller.row.last_call);
        let named = |function| self.callers.function_name(function).to_string();
        Ok(CallerUsage::new(id, last, &caller.usage, named))
    }

    fn usage(&self, span: UsageSpan, group: Option<&Group>) -> Result<UsageTable, ApiRefusal> {
        let now = self.clock.now();
        let used = |usage: &UsageNow| Used::from(&usage.over(span).tally);
        let all = self.callers.all(now).into_iter();
        let mut callers: Vec<CallerUsed> = all
            .filter(|caller| group.is_none_or(|group| caller.row.groups.contains(group)))
            .map(|caller| CallerUsed {
                id: caller.row.id,
                used: used(&caller.usage),
                label: caller.row.label,
            })
            .collect();
        callers.sort_by(|a, b| b.used.tokens.total_cmp(&a.used.tokens));
        let total = match group {
            None => None,
            Some(group) => {
                let usage = self.callers.group_usage(now, group.as_str());
                let usage = usage.ok_or_else(|| ApiRefusal::unknown(ObjectKind::Group, group))?;
                Some(used(&usage))
            }
        };
        Ok(UsageTable {
            window: span,
            group: group.map(Group::to_string),
            total,
            callers,
        })
    }

    fn suggest(&self, derive: Derive) -> Result<Suggested, ApiRefusal> {
        let suggested = self.callers.suggest(self.clock.now(), derive);
        let (suggestion, nearest) = suggested.map_err(refused)?;
        Ok(Suggested::new(suggestion, nearest.as_deref()))
    }

    fn rate_limits(&self) -> Vec<RateLimitState> {
        let limits = self.callers.rate_limits().into_iter();
        limits.map(|limit| self.rate_limit_state(limit)).collect()
    }

    fn rate_limit(&self, id: RateLimitId) -> Result<RateLimitState, ApiRefusal> {
        let limit = self.callers.rate_limit(id).map_err(refused)?;
        Ok(self.rate_limit_state(limit))
    }

    fn create_rate_limit(&self, new: NewRateLimit) -> Result<RateLimitState, ApiRefusal> {
        let now = self.clock.now();
        let id = self.change_and_save(|callers| callers.create_rate_limit(now, new))?;
        self.rate_limit(id)
    }

    fn patch_rate_limit(
        &self,
        id: RateLimitId,
        patch: RateLimitPatch,
    ) -> Result<RateLimitState, ApiRefusal> {
        self.change_and_save(|callers| callers.patch_rate_limit(id, patch))?;
        self.rate_limit(id)
    }

    fn delete_rate_limit(&self, id: RateLimitId) -> Result<(), ApiRefusal> {
        self.change_and_save(|callers| callers.delete_rate_limit(id))
    }

    fn attach(&self, id: RateLimitId, caller: CallerId) -> Result<RateLimitState, ApiRefusal> {
        self.change_and_save(|callers| callers.attach(id, caller))?;
        self.rate_limit(id)
    }

    fn detach(&self, id: RateLimitId, caller: CallerId) -> Result<(), ApiRefusal> {
        self.change_and_save(|callers| callers.detach(id, caller))
    }

    fn profiles(&self) -> Vec<ProfileState> {
        let profiles = self.callers.profiles().into_iter();
        let shown = profiles.map(|profile| {
            let figures = Figures::from(profile.allowance);
            ProfileState {
                name: profile.name.to_string(),
                exempt: figures.exempt,
                burst: figures.burst,
                fill: figures.fill,
            }
        });
        shown.collect()
    }

    fn costs(&self) -> CostsState {
        self.callers.costs().into()
    }

    fn put_costs(&self, costs: Costs) -> Result<CostsState, ApiRefusal> {
        self.change_and_save(|callers| callers.put_costs(costs))?;
        // The costs of calls decide the size of a pool and of a debt.
        let Ok(_one_at_a_time) = self.changes.begin() else {
            // The process that takes over has the costs.
            return Ok(self.costs());
        };
        let config = self.config.get();
        if !config.admit.paced.is_empty() {
            let limits = with_costs(&config.admit, &self.callers);
            let at = self.gate.apply(&limits);
            self.journal.costs_changed(at, &limits);
        }
        Ok(self.costs())
    }

    fn suggested_costs(&self) -> Vec<SuggestedCost> {
        self.callers.suggested_costs(self.clock.now())
    }

    fn classify(&self, question: &DryRunRequest) -> DryRunState {
        let function = question.function.as_deref().unwrap_or_default();
        let found = self.callers.classify(&question.identity(), function);
        let bucket = found.charged.bucket();
        let tokens: Tokens = drawn(found.cost);
        // A bucket that only observes holds no call.
        let wait = bucket.map(|bucket| self.gate.bucket_wait(bucket, tokens).unwrap_or_default());
        let label = |id| self.callers.get(self.clock.now(), id).ok()?.row.label;
        DryRunState {
            matches: found
                .matches
                .iter()
                .map(|matched| MatchState {
                    caller: matched.caller(),
                    label: label(matched.caller()),
                    exact_fields: matched.specificity().exact_fields(),
                    literal_bits: matched.specificity().literal_bits(),
                    limited: matched.charge().limit().is_some(),
                })
                .collect(),
            charged: found.charged.rate_limit(),
            exempt: matches!(found.charged, Charged::Exempt(_)),
            cost: found.cost.tokens(),
            tokens: bucket
                .and_then(|bucket| self.gate.bucket_now(bucket))
                .map(|bucket| bucket.tokens),
            wait_ms: milliseconds(wait.unwrap_or_default()),
        }
    }

    fn queues(&self) -> Vec<QueueRow> {
        let queue = self.gate.queue_now();
        let rows = queue.functions.iter().map(|row| QueueRow {
            class: row.class.to_string(),
            call: row.function.to_string(),
            waits_for: row.held_by.as_deref().map(ToOwned::to_owned),
            waiting: row.waiting as u64,
        });
        rows.collect()
    }

    fn requests(&self) -> Vec<RequestRow> {
        let now = self.clock.now();
        let under_way = self.lately.under_way().into_iter();
        let rows = under_way.map(|call| RequestRow {
            state: if call.is_admitted {
                RequestState::Running
            } else {
                RequestState::Waiting
            },
            call: call.function.to_string(),
            class: call.class.to_string(),
            listener: call.listener.to_string(),
            caller: call.caller,
            rate_limit: call.rate_limit,
            arrived: Moment(self.clock.wall(call.arrived)),
            age_ms: milliseconds(now.since(call.arrived)),
        });
        rows.collect()
    }

    fn explain(&self, id: CallId) -> Result<Explained, ApiRefusal> {
        self.explained(id)
    }
}

/// The state of a pace.
pub(super) fn pace_state(paced: &PacerNow) -> PaceState {
    PaceState {
        achieved: paced.achieved,
        drawn: paced.drawn,
        wait_seconds: paced.pools.wait_time().as_secs_f64(),
        burst_seconds: paced.pools.burst.as_secs_f64(),
    }
}

/// Why a change was refused, in the form of the API.
fn refused(error: Error) -> ApiRefusal {
    let field = error.field().to_owned();
    let reason = without_name(&error.to_string(), &field);
    match error {
        Error::Table(error) => error.into(),
        Error::UnknownRateLimit(id) => ApiRefusal::unknown(ObjectKind::RateLimit, id),
        Error::UnknownProfile(name) => ApiRefusal::unknown(ObjectKind::Profile, name),
        Error::LabelTaken { holder, .. } => ApiRefusal::LabelExists { holder },
        Error::NotAttached { caller, .. } => ApiRefusal::unknown(ObjectKind::Caller, caller),
        Error::RateLimitIsStatic(_)
        | Error::TooManyRateLimits
        | Error::TooManyFunctions(_)
        | Error::SizeMissing(_)
        | Error::LabelInConfig(_)
        | Error::NothingUsed(_) => ApiRefusal::Conflict { field, reason },
        Error::LabelIsAnId(_) => ApiRefusal::Invalid { field, reason },
    }
}

fn seconds_since_1970(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
