//! Buckets of rate limits, and the shares of what several sidecars have together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_callers::CallerId;
use tidegate_limits::call::BucketId;
use tidegate_limits::scheduler::{
    BucketNow, BucketRule, LimitNow, Supplier, Supply, TooManyBuckets,
};
use tidegate_limits::{Call, Caller, Fill, Timestamp, Tokens};

use super::Gate;
use super::decision::WaitingCall;
use super::journal::SchedulerEvent;
use super::lock::GateState;
use crate::call::claim::Charged;
use crate::call::steps::StepKind;
use crate::call::{Identity, LimitMode, RateLimitStatus, Record};

impl Gate {
    /// Makes the bucket of a rate limit, or changes it in place: its tokens and waiting calls are
    /// kept. One that only observes is in the shadow alone; it is full when it begins to hold calls.
    ///
    /// # Errors
    /// If there are too many.
    pub fn set_bucket(
        &self,
        id: BucketId,
        rule: BucketRule,
        mode: LimitMode,
    ) -> Result<(), TooManyBuckets> {
        self.lock.change(|state, now| {
            let changed = SchedulerEvent::Bucket {
                id,
                rule: &rule,
                mode,
            };
            state.observe(now, changed);
            match mode {
                LimitMode::Enforce => {
                    let is_new = state.calls().bucket_name(id).is_none();
                    state.calls().set_bucket(now, id, rule)?;
                    let supply = state.observer.fill_of(id);
                    // While it only observed, its share of a rate that several sidecars have was told to the shadow alone.
                    if is_new && supply != Supply::Configured {
                        state.observe(now, SchedulerEvent::Fill { id, supply });
                        state.calls().supply_fill(now, id, supply);
                    }
                    Ok(())
                }
                LimitMode::Observe => {
                    state.forget_level(id);
                    // They wait for it again if it holds calls again.
                    state.calls().remove_bucket(now, id, |call| call.bucket);
                    Ok(())
                }
            }
        })
    }

    /// Whether a bucket holds calls: there is one, and it does not only observe.
    #[must_use]
    pub fn bucket_holds_calls(&self, id: BucketId) -> bool {
        self.lock.lock().calls().bucket_name(id).is_some()
    }

    /// Removes a bucket. `reroute` returns the bucket to which each waiting call is charged
    /// instead. Without one it waits only for its other limits.
    pub fn remove_bucket(&self, id: BucketId, mut reroute: impl FnMut(Caller) -> Option<BucketId>) {
        // Calls of one caller get the same charge, and there are usually many of them.
        let mut known: HashMap<Caller, Option<BucketId>> = HashMap::new();
        let mut records = Vec::new();
        self.lock.change(|state, now| {
            let to = |call: &Call, _: &WaitingCall| {
                let _ = call.bucket.filter(|bucket| *bucket == id)?;
                let caller = call.caller;
                Some(*known.entry(caller).or_insert_with(|| reroute(caller)))
            };
            state.calls().reroute_waiting(now, to, |waiter, to| {
                records.extend(note_moved(waiter, now, to));
            });
            state.forget_level(id);
            state.observe(now, SchedulerEvent::BucketRemoved { id });
            state.calls().remove_bucket(now, id, |_| None)
        });
        drop(records);
    }

    /// Charges each waiting call like a call that arrives now. `charge` returns the charge of an
    /// identity, and is called once for each.
    pub fn reroute(&self, mut charge: impl FnMut(&Identity) -> Charged) {
        let mut known: HashMap<Arc<Identity>, Charged> = HashMap::new();
        // Dropping a record reports it, which must not happen under the lock.
        let (mut looked_at, mut records) = (Vec::new(), Vec::new());
        self.lock.change(|state, now| {
            let to = |_: &Call, waiter: &WaitingCall| {
                let record = waiter.record.upgrade()?;
                let bucket = record.note(|facts| {
                    let identity = &facts.origin.identity;
                    let charged = match known.get(identity) {
                        Some(charged) => charged,
                        None => known
                            .entry(Arc::clone(identity))
                            .or_insert_with(|| charge(identity)),
                    };
                    if let Some(claim) = &mut facts.claim
                        && claim.charged != *charged
                    {
                        claim.charged = charged.clone();
                    }
                    charged.bucket()
                });
                looked_at.push(record);
                Some(bucket)
            };
            state.calls().reroute_waiting(now, to, |waiter, to| {
                records.extend(note_moved(waiter, now, to));
            });
        });
        drop((looked_at, records));
    }

    /// The current state of a bucket, in the shadow if it only observes.
    #[must_use]
    pub fn bucket_now(&self, id: BucketId) -> Option<BucketNow> {
        self.lock.look(|state, now| state.bucket_now(now, id))
    }

    /// Calls that a bucket that only observes would have delayed longest of all limits.
    #[must_use]
    pub fn would_have_delayed(&self, id: BucketId) -> u64 {
        self.lock.lock().observer.would_have_delayed(id)
    }

    /// The rest of a bucket, for the charged caller; `None` if it delays no call.
    #[must_use]
    pub fn quota(&self, id: BucketId, caller: CallerId) -> Option<RateLimitStatus> {
        let now = |state: &mut GateState, now| state.calls().bucket_now(now, id);
        let BucketNow { rule, tokens, .. } = self.lock.look(now)?;
        let most = rule.limit.most();
        let reset = (most - tokens) / rule.limit.per_second();
        let reset = Duration::try_from_secs_f64(reset.max(0.0));
        Some(RateLimitStatus {
            caller,
            // A conversion to an integer saturates: a debt becomes 0.
            limit: most as u64,
            remaining: tokens.min(most) as u64,
            reset: reset.unwrap_or(Duration::MAX),
        })
    }

    /// How long a call of this cost would wait for the bucket now; `None` if there is no such
    /// bucket that holds calls.
    #[must_use]
    pub fn bucket_wait(&self, id: BucketId, tokens: Tokens) -> Option<Duration> {
        self.lock
            .look(|state, now| state.calls().bucket_wait(now, id, tokens))
    }

    /// Sets a limit's share of a capacity that several proxies share. Returns its state at the same
    /// moment; `None` if there is no such limit.
    pub fn supply(&self, limit: &str, supply: Supply) -> Option<LimitNow> {
        self.lock.change(|state, now| {
            let by = Supplier::Coordinator;
            state.observe(now, SchedulerEvent::Supply { limit, by, supply });
            let observed = state.observer.limit_now(limit);
            let calls = &mut state.calls();
            calls.supply(now, limit, by, supply);
            observed.or_else(|| calls.limit_now(now, limit))
        })
    }

    /// The current state of the limit with this name, among those that limited calls meet.
    #[must_use]
    pub fn limit_now(&self, limit: &str) -> Option<LimitNow> {
        self.lock.look(|state, now| {
            state.observer.advance(now);
            let observed = state.observer.limit_now(limit);
            observed.or_else(|| state.calls().limit_now(now, limit))
        })
    }

    /// Sets the rate at which a bucket fills, its share of a rate that several proxies share.
    /// Returns its state; `None` if there is no such bucket.
    pub fn supply_fill(&self, id: BucketId, supply: Supply<Fill>) -> Option<BucketNow> {
        self.lock.change(|state, now| {
            state.observe(now, SchedulerEvent::Fill { id, supply });
            state.calls().supply_fill(now, id, supply);
            state.bucket_now(now, id)
        })
    }
}

impl GateState {
    fn bucket_now(&mut self, now: Timestamp, id: BucketId) -> Option<BucketNow> {
        self.observer.advance(now);
        let observed = self.observer.bucket_now(now, id);
        observed.or_else(|| self.calls().bucket_now(now, id))
    }
}

/// Notes that a waiting call is charged to another bucket, in each case in which the scheduler moves it: a replay moves
/// these calls and no others. The record must be dropped without the lock.
fn note_moved(waiter: &WaitingCall, now: Timestamp, to: Option<BucketId>) -> Option<Arc<Record>> {
    let record = waiter.record.upgrade()?;
    record.note(|facts| facts.step(now, StepKind::Bucket(to.map(|to| to.0))));
    Some(record)
}
