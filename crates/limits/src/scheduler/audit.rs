//! Facts that must hold, for tests.

use super::state::Scheduler;
use crate::queue::Budget;

impl<T> Scheduler<T> {
    /// Calls asked so far: for tests that count work instead of timing it.
    #[doc(hidden)]
    #[must_use]
    pub const fn check_count(&self) -> u64 {
        self.turn_checks + self.parking.list_checks()
    }

    /// Panics if an invariant is violated that holds whenever [`next`](Self::next) returns a moment
    /// to sleep until.
    #[doc(hidden)]
    pub fn audit(&self) {
        self.parking.audit();
        let waiting_for = |budget| {
            let calls = self.queue.calls.iter();
            let meet = calls.filter(|(_, waiting)| self.budgets.meets(&waiting.meets, budget));
            meet.count() as u64
        };
        let limits = self.budgets.limits.iter().zip(0..);
        let limits = limits.map(|(limiter, id)| (Budget::Limit(id), limiter.queued));
        let buckets = self.budgets.buckets.all.iter();
        let buckets = buckets.map(|(key, bucket)| (Budget::Bucket(key), bucket.queued));
        let quotas = self.budgets.quotas.all.iter();
        let quotas = quotas.map(|(key, quota)| (Budget::Quota(key), quota.queued));
        for (budget, queued) in limits.chain(buckets).chain(quotas) {
            let waiting = waiting_for(budget);
            assert_eq!(queued.calls, waiting, "{budget:?} counts what waits for it");
        }
        self.budgets.quotas.audit();
    }
}
