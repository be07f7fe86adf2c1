//! The budgets that calls draw from: the limits of the policy, buckets and quotas, behind one interface.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::bucket::Buckets;
use super::park::SecondList;
use super::quota::QuotaTable;
use crate::bucket::TokenCount;
use crate::call::{Call, ServerNumber};
use crate::limiter::Limiter;
use crate::policy::{LimitId, LimitSets, Policy, ServedBy, ServerGroup, SetId, groups_of};
use crate::queue::fair::WINDOW;
use crate::queue::{Budget, BudgetSet, QueueTotals, QueuedCall};
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// Everything that calls draw from.
#[derive(Clone, Debug)]
pub(super) struct Budgets {
    pub(super) sets: LimitSets,
    pub(super) limits: Vec<Limiter>,
    /// The backends that have servers.
    pub(super) groups: Vec<ServerGroup>,
    pub(super) buckets: Buckets,
    pub(super) quotas: QuotaTable,
}

impl Budgets {
    pub(super) fn new(policy: &Policy, now: Timestamp) -> Self {
        Self {
            sets: LimitSets::new(policy.limits()),
            limits: limits_of(policy, now),
            groups: groups_of(policy),
            buckets: Buckets::default(),
            quotas: QuotaTable::beginning(now),
        }
    }

    /// Replaces the limits by those of this policy, at rest. Returns those before.
    pub(super) fn replace_limits(&mut self, now: Timestamp, policy: &Policy) -> Vec<Limiter> {
        self.sets = LimitSets::new(policy.limits());
        self.groups = groups_of(policy);
        mem::replace(&mut self.limits, limits_of(policy, now))
    }

    /// The flows that wait for each limit, but not with the others.
    pub(super) fn second_lists(&self) -> impl Iterator<Item = Option<SecondList>> {
        self.limits.iter().zip(0..).map(|(limiter, limit)| {
            let any_server = || self.wait_limit_of(limit).map(SecondList::AnyServer);
            limiter.kept_for().map(SecondList::Kept).or_else(any_server)
        })
    }

    /// The set of limits that a call meets.
    #[inline]
    pub(super) fn set_of(&self, call: &Call) -> SetId {
        if self.has_servers() {
            return self.set_at(call, self.bound(call));
        }
        let place = ServedBy::new(call.backend, None);
        self.sets.find(&call.function, place, call.class)
    }

    /// The set of limits that a call meets at this server.
    #[inline(never)]
    pub(super) fn set_at(&self, call: &Call, server: Option<ServerNumber>) -> SetId {
        let place = self.sets.place_of(call.backend, server);
        self.sets.find(&call.function, place, call.class)
    }

    /// The limits of the policy that such calls meet.
    #[inline]
    pub(super) fn limits_of(&self, meets: &BudgetSet) -> impl Iterator<Item = (LimitId, &Limiter)> {
        let limits = self.sets.limits(meets.set).iter();
        limits.map(|&limit| (limit, &self.limits[limit as usize]))
    }

    /// The limits that a call meets, as budgets.
    pub(super) fn limits_as_bars(&self, meets: &BudgetSet) -> impl Iterator<Item = Budget> {
        let limits = self.sets.limits(meets.set).iter();
        limits.map(|&limit| Budget::Limit(limit))
    }

    /// All that such calls meet.
    pub(super) fn of(&self, meets: &BudgetSet) -> impl Iterator<Item = Budget> {
        self.limits_as_bars(meets).chain(meets.own())
    }

    /// Whether such calls meet this.
    pub(super) fn meets(&self, meets: &BudgetSet, budget: Budget) -> bool {
        self.of(meets).any(|met| met == budget)
    }

    /// The name of a limit, bucket or quota; `None` if it was removed.
    pub(super) fn name(&self, budget: Budget) -> Option<Arc<str>> {
        match budget {
            Budget::Limit(limit) => Some(self.limits[limit as usize].rule.name.clone()),
            Budget::Bucket(bucket) => Some(self.buckets.all.get(bucket)?.rule.name.clone()),
            Budget::Quota(quota) => self.quotas.name(quota),
        }
    }

    /// The draw of a call from a budget, in its unit.
    #[inline]
    pub(super) fn draw_of(&self, budget: Budget, call: &Call) -> u64 {
        match budget {
            Budget::Limit(limit) => self.limits[limit as usize].draw_of(call),
            Budget::Bucket(_) => TokenCount::of_turn(call.tokens).micros(),
            Budget::Quota(_) => call.tokens.whole(),
        }
    }

    /// The verdict of this on a call, behind claims of `ahead`.
    #[inline]
    pub(super) fn peek(&self, now: Timestamp, budget: Budget, call: &Call, ahead: u64) -> Verdict {
        match budget {
            Budget::Limit(limit) => {
                let is_kept = ahead > 0 && self.is_kept_for(now, budget, call);
                let ahead = if is_kept { 0 } else { ahead };
                self.limits[limit as usize].peek(now, call, ahead)
            }
            Budget::Bucket(bucket) => {
                let ahead = TokenCount::from_micros(ahead);
                self.buckets.all[bucket].peek(now, ahead, call.tokens)
            }
            Budget::Quota(quota) => self.quotas.verdict(now, quota, ahead, call.tokens),
        }
    }

    /// Whether what this keeps for the class of a call covers the call.
    pub(super) fn is_kept_for(&self, now: Timestamp, budget: Budget, call: &Call) -> bool {
        match budget {
            Budget::Limit(limit) => self.limits[limit as usize].is_kept_for(now, call),
            Budget::Bucket(_) | Budget::Quota(_) => false,
        }
    }

    /// How long a call that arrives now would wait for this.
    pub(super) fn wait(&self, now: Timestamp, budget: Budget, call: &Call) -> Duration {
        match budget {
            Budget::Limit(limit) => self.limits[limit as usize].wait_behind(now, call),
            Budget::Bucket(bucket) => self.buckets.all[bucket].wait_behind(now, call.tokens),
            Budget::Quota(quota) => self.quotas.opens(now, quota, call.tokens).since(now),
        }
    }

    /// How long a claim of such calls at this lasts: its window, the longest window that they meet,
    /// or [`WINDOW`].
    pub(super) fn window(&self, budget: Budget, meets: &BudgetSet) -> Duration {
        let own = match budget {
            Budget::Limit(limit) => self.limits[limit as usize].window(),
            Budget::Bucket(_) | Budget::Quota(_) => None,
        };
        own.unwrap_or_else(|| {
            let windows = self.limits_of(meets);
            let windows = windows.filter_map(|(_, limiter)| limiter.window());
            windows.max().unwrap_or(WINDOW)
        })
    }

    /// A call waits from now on.
    #[inline(always)]
    pub(super) fn count<T>(&mut self, waiting: &QueuedCall<T>) {
        self.each_queued(&waiting.call, &waiting.meets, QueueTotals::add);
    }

    /// A call that waited waits no more.
    #[inline]
    pub(super) fn discount<T>(&mut self, waiting: &QueuedCall<T>) {
        self.each_queued(&waiting.call, &waiting.meets, QueueTotals::remove);
    }

    #[inline(always)]
    fn each_queued(
        &mut self,
        call: &Call,
        meets: &BudgetSet,
        change: impl Fn(&mut QueueTotals, u64),
    ) {
        for &limit in self.sets.limits(meets.set).iter() {
            let limiter = &mut self.limits[limit as usize];
            let draw = limiter.draw_of(call);
            change(&mut limiter.queued, draw);
        }
        if let Some(bucket) = meets.bucket {
            let draw = self.draw_of(Budget::Bucket(bucket), call);
            change(&mut self.buckets.all[bucket].queued, draw);
        }
        for &quota in meets.quotas.iter().flat_map(|keys| keys.iter()) {
            let draw = self.draw_of(Budget::Quota(quota), call);
            change(&mut self.quotas.all[quota].queued, draw);
        }
    }

    /// Whether no call waits, and no draw is open that only the end of a call brings back.
    pub(super) fn is_at_rest(&self) -> bool {
        let mut limits = self.limits.iter();
        let mut buckets = self.buckets.all.iter();
        limits.all(|limiter| limiter.is_at_rest() && limiter.queued.calls == 0)
            && buckets.all(|(_, bucket)| bucket.queued.calls == 0)
    }

    /// No call is counted as waiting.
    pub(super) fn clear_queued(&mut self) {
        let limits = self.limits.iter_mut().map(|limiter| &mut limiter.queued);
        let buckets = self.buckets.all.iter_mut();
        let buckets = buckets.map(|(_, bucket)| &mut bucket.queued);
        let quotas = self.quotas.all.iter_mut();
        let quotas = quotas.map(|(_, quota)| &mut quota.queued);
        for queued in limits.chain(buckets).chain(quotas) {
            *queued = QueueTotals::default();
        }
    }
}

fn limits_of(policy: &Policy, now: Timestamp) -> Vec<Limiter> {
    let rules = policy.limits().iter();
    rules.map(|rule| Limiter::new(now, rule)).collect()
}
