//! When a refused call may come back, from the counts of the forecast. No waiting call is looked at.

use alloc::vec::Vec;

use super::super::forecast::{DrawAmounts, FlowPosition, ForecastEntry, OwnDraws};
use super::super::refusal::RefusalReason;
use super::super::state::Scheduler;
use super::estimate::{LaterArrivals, SETS_MAX};
use crate::call::Call;
use crate::policy::SetId;
use crate::queue::fair::TurnAdvance;
use crate::queue::{Budget, BudgetSet};
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// When a call that is refused now would start behind all that waits of its own caller, in turn with the others;
    /// and not before a full queue has a place. `None` if no prediction says that: the order is random, the calls
    /// that wait are not counted, or a limit is closed and no moment is known at which it opens.
    ///
    /// `counted` is how the call itself is counted, if it still waits.
    pub(in crate::scheduler) fn comes_back(
        &self,
        now: Timestamp,
        reason: RefusalReason,
        call: &Call,
        meets: &BudgetSet,
        counted: Option<ForecastEntry>,
    ) -> Option<Timestamp> {
        let waits = match reason {
            RefusalReason::QueueFull
            | RefusalReason::DeadlinePassed
            | RefusalReason::DeadlineUnreachable
            | RefusalReason::PredictedLate => true,
            RefusalReason::NeverPossible
            | RefusalReason::RateLimited
            | RefusalReason::StoreAway
            | RefusalReason::Draining => false,
        };
        let is_counted = self.queue.calls.is_empty() || !self.forecast.sets.is_empty();
        if !waits || !is_counted || self.policy.jitter(call.class).is_some() {
            return None;
        }
        let place = self.behind_its_own(call, meets, counted);
        // Behind the calls that wait: of those that come later, no call is promised a turn before it.
        let starts = self.estimate(
            now,
            call,
            meets,
            Some(&place),
            self.reopens,
            LaterArrivals::None,
        );
        let starts = starts.starts?;
        Some(match reason {
            RefusalReason::QueueFull => starts.max(self.next_place(now).unwrap_or(starts)),
            _ => starts,
        })
    }

    /// The place behind all calls of its own flow, except itself.
    fn behind_its_own(
        &self,
        call: &Call,
        meets: &BudgetSet,
        counted: Option<ForecastEntry>,
    ) -> FlowPosition {
        let one = TurnAdvance::new(call.tokens, call.weight, 1).of_caller();
        let ahead = self.budgets.of(meets).filter_map(|budget| {
            let mut own = OwnDraws::default();
            let budget = match budget {
                Budget::Limit(limit) => {
                    let first = self.budgets.sets.first_peer(limit);
                    let load = self.forecast.loads.get(&(first, call.class, call.caller));
                    let load = load.copied().unwrap_or_default();
                    (own.depth, own.draw) = (load.depth, load.draw);
                    Budget::Limit(first)
                }
                // All calls that meet it are in there, whatever holds them.
                Budget::Bucket(bucket) => {
                    own.draw = DrawAmounts::of_tokens(self.budgets.buckets.all[bucket].queued.draw);
                    budget
                }
                Budget::Quota(_) => return None,
            };
            let is_bucket = matches!(budget, Budget::Bucket(_));
            if counted.is_some_and(|counted| is_bucket || counted.at == Some(budget)) {
                own.depth = own.depth.saturating_sub(one);
                own.draw = own.draw.without(DrawAmounts::of(call));
            }
            Some((budget, own))
        });
        let itself = counted.map(|counted| {
            let set = (counted.at, meets.set, call.class);
            (set, DrawAmounts::of(call))
        });
        FlowPosition {
            ahead: ahead.collect(),
            behind: Vec::from_iter(itself),
        }
    }

    /// When the first of the waiting calls leaves the queue, as far as that is known.
    fn next_place(&self, now: Timestamp) -> Option<Timestamp> {
        let sets = self.forecast.sets.keys().take(SETS_MAX);
        let starts = sets.filter_map(|&(at, set, _)| self.first_starts(now, at, set));
        let expires = self.queue.first_deadline().map(|(at, _)| at);
        starts.chain(expires).min()
    }

    /// When the first of the calls starts that meet these limits and wait for this.
    fn first_starts(&self, now: Timestamp, at: Option<Budget>, set: SetId) -> Option<Timestamp> {
        let call = Call::new("", now);
        let meets = BudgetSet {
            set,
            ..BudgetSet::default()
        };
        let mut from = now;
        for (_, limiter) in self.budgets.limits_of(&meets) {
            from = from.max(limiter.supplied_from(now, self.reopens)?);
        }
        let mut opens = from;
        for (limit, _) in self.budgets.limits_of(&meets) {
            opens = opens.max(self.opening(from, limit, &call, &meets, 0, 0)?);
        }
        match at {
            Some(Budget::Bucket(bucket)) => {
                let bucket = self.budgets.buckets.all.get(bucket)?;
                Some(opens.max(from + bucket.wait_with(from, 0, call.tokens)))
            }
            Some(Budget::Limit(_)) | None => Some(opens),
            Some(Budget::Quota(_)) => None,
        }
    }
}
