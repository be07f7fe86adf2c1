//! The state that an operator or a coordinator may see.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::state::Scheduler;
use crate::call::Call;
use crate::limiter::{Limiter, PacerNow};
use crate::policy::{LimitId, LimitRule, Scope};
use crate::queue::{Budget, WaitPlace};
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// A limit, as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitNow {
    /// The name of the limit.
    pub name: Arc<str>,
    /// The calls that meet it.
    pub scope: Scope,
    /// The maximum by its rule: calls for an outstanding limit, cost for a window.
    pub configured: u32,
    /// The maximum in force, which a supply may have set.
    pub max: u32,
    /// Drawn and not back: calls in flight, or cost reserved and departed within the window.
    pub used: u64,
    /// The use plus the demand of waiting calls: calls, cost, or for a paced limit millionths of a
    /// token.
    pub need: u64,
    /// The verdict now for a call of the first class and cost 1 with no call ahead.
    pub opens: Verdict,
    /// Calls that wait and meet it, those at the door included.
    pub waiting: u64,
    /// The part of the present or next room that is claimed, in the unit of `used`.
    pub claimed: u64,
    /// For how long claims have kept room that their calls could not use yet, over all of them.
    pub idle: Duration,
    /// The pools and the pace, if the limit is a paced one.
    pub paced: Option<PacerNow>,
}

/// The queue, as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueNow {
    /// Calls in the queue; not those at the door.
    pub waiting: usize,
    /// Calls at the door: what waits above the capacity.
    pub at_door: usize,
    /// Of those that wait, the suspended calls.
    pub suspended: usize,
    /// Calls that may wait in the queue.
    pub capacity: u32,
    /// Arrival of the call that came first.
    pub oldest: Option<Timestamp>,
    /// How long ago that was.
    pub oldest_waits: Duration,
    /// The waiting calls, by function and limit.
    pub functions: Vec<FunctionNow>,
    /// How many wait in each class, those at the door included, in the policy's order.
    pub classes: Vec<ClassNow>,
    /// Claims made so far: a call that several limits passed over claims room.
    pub claims: u64,
    /// For how long claims that are over have kept room that others could have used, added up.
    pub claims_idle: Duration,
}

/// The waiting calls of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassNow {
    /// The class.
    pub name: Arc<str>,
    /// How many they are.
    pub waiting: usize,
}

/// The waiting calls of one function that one limit holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionNow {
    /// The function.
    pub function: Arc<str>,
    /// Their class.
    pub class: Arc<str>,
    /// The limit or bucket that holds them; `None` for those not yet asked.
    pub held_by: Option<Arc<str>>,
    /// How many they are.
    pub waiting: usize,
}

/// The demand for a limit, for dividing a shared capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitDemand {
    /// The limit's name.
    pub limit: Arc<str>,
    /// The use plus the demand of waiting calls.
    pub need: u64,
    /// Used: calls in flight, or cost reserved and departed within the window.
    pub used: u64,
}

impl Limiter {
    fn now(&self, now: Timestamp, (claimed, idle): (u64, Duration)) -> LimitNow {
        let used = self.used(now);
        LimitNow {
            name: self.rule.name.clone(),
            scope: self.rule.scope.clone(),
            configured: self.configured,
            max: self.max(now),
            used,
            need: used + self.queued.draw,
            opens: self.peek(now, &Call::new("", now), 0),
            waiting: self.queued.calls,
            claimed,
            idle,
            paced: self.paced_now(now),
        }
    }
}

impl<T> Scheduler<T> {
    /// Every limit as it is at `now`, in the policy's order.
    #[must_use]
    pub fn limits_now(&self, now: Timestamp) -> Vec<LimitNow> {
        let ids = 0..self.budgets.limits.len() as LimitId;
        ids.map(|id| self.limit_at(now, id)).collect()
    }

    /// The limit of this name as it is at `now`; `None` if there is none.
    #[must_use]
    pub fn limit_now(&self, now: Timestamp, limit: &str) -> Option<LimitNow> {
        Some(self.limit_at(now, self.find_limit(limit)?))
    }

    fn limit_at(&self, now: Timestamp, id: LimitId) -> LimitNow {
        let now = self.now.max(now);
        let claimed = self.parking.claimed(Budget::Limit(id), now);
        self.budgets.limits[id as usize].now(now, claimed)
    }

    /// The queue as it is at `now`. Looks at every waiting call.
    #[must_use]
    pub fn queue_now(&self, now: Timestamp) -> QueueNow {
        let mut functions = BTreeMap::new();
        let mut oldest = None;
        let mut suspended = 0;
        let shares = self.policy.classes().iter();
        let mut classes: Vec<_> = shares
            .map(|share| ClassNow {
                name: share.name.clone(),
                waiting: 0,
            })
            .collect();
        for (_, waiting) in self.queue.calls.iter() {
            let arrived = waiting.call.arrived;
            classes[waiting.call.class.0 as usize].waiting += 1;
            oldest = Some(oldest.map_or(arrived, |oldest: Timestamp| oldest.min(arrived)));
            suspended += usize::from(waiting.is_suspended);
            let held_by = match waiting.place {
                WaitPlace::Flow(flow) => self.parking.parked_at(flow).or(waiting.held_by),
                WaitPlace::Aside(_) | WaitPlace::Passed => waiting.held_by,
            };
            let key = (waiting.call.function.clone(), waiting.call.class, held_by);
            *functions.entry(key).or_insert(0) += 1;
        }
        let (claims, claims_idle) = self.parking.claims();
        QueueNow {
            claims,
            claims_idle,
            waiting: self.waiting(),
            at_door: self.at_door(),
            suspended,
            capacity: self.policy.capacity(),
            oldest,
            oldest_waits: oldest.map_or(Duration::ZERO, |arrived| now.since(arrived)),
            functions: functions
                .into_iter()
                .map(|((function, class, held_by), waiting)| FunctionNow {
                    function,
                    class: classes[class.0 as usize].name.clone(),
                    held_by: held_by.and_then(|budget| self.budgets.name(budget)),
                    waiting,
                })
                .collect(),
            classes,
        }
    }

    /// The arrival of the waiting call that came first. Looks at every waiting call.
    #[must_use]
    pub fn oldest(&self) -> Option<Timestamp> {
        let calls = self.queue.calls.iter();
        calls.map(|(_, waiting)| waiting.call.arrived).min()
    }

    /// The amount drawn from a limit and not back, as of the latest moment handed in: calls in flight, or cost
    /// reserved and departed within the window. `None` if no limit has this name.
    #[must_use]
    pub fn in_use(&self, limit: &str) -> Option<u32> {
        let id = self.find_limit(limit)?;
        let used = self.budgets.limits[id as usize].used(self.now);
        Some(u32::try_from(used).unwrap_or(u32::MAX))
    }

    /// The limits in force.
    pub fn rules(&self) -> impl Iterator<Item = &LimitRule> {
        self.budgets.limits.iter().map(|limiter| &limiter.rule)
    }

    /// The limits whose need or use has changed since the last call of this method.
    pub fn demand(&mut self) -> Vec<LimitDemand> {
        let now = self.now;
        let mut changed = Vec::new();
        for limiter in &mut self.budgets.limits {
            let used = limiter.used(now);
            let need = used + limiter.queued.draw;
            if limiter.reported != (need, used) {
                limiter.reported = (need, used);
                changed.push(LimitDemand {
                    limit: limiter.rule.name.clone(),
                    need,
                    used,
                });
            }
        }
        changed
    }
}
