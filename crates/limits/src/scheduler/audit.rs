//! Facts that must hold, for tests.

use super::state::Scheduler;
use crate::queue::Budget;

impl<T> Scheduler<T> {
    /// Calls asked so far: for tests that count work instead of timing it.
    #[doc(hidden)]
    #[must_use]
    pub const fn asked_count(&self) -> u64 {
        self.turn_checks + self.parking.list_checks()
    }

    /// Panics if an invariant is violated that holds whenever [`next`](Self::next) returns a moment
    /// to sleep until.
    #[doc(hidden)]
    pub fn audit(&self) {
        self.parking.audit();
        let waiting_for = |bar| {
            let calls = self.queue.calls.iter();
            let meet = calls.filter(|(_, waiting)| self.bars.meets(&waiting.meets, bar));
            meet.count() as u64
        };
        let limits = self.bars.limits.iter().zip(0..);
        let limits = limits.map(|(limiter, id)| (Budget::Limit(id), limiter.queued));
        let buckets = self.bars.buckets.all.iter();
        let buckets = buckets.map(|(key, bucket)| (Budget::Bucket(key), bucket.queued));
        let quotas = self.bars.quotas.all.iter();
        let quotas = quotas.map(|(key, quota)| (Budget::Quota(key), quota.queued));
        for (bar, queued) in limits.chain(buckets).chain(quotas) {
            let waiting = waiting_for(bar);
            assert_eq!(queued.calls, waiting, "{bar:?} counts what waits for it");
        }
        self.bars.quotas.audit();
    }
}
