//! What must hold, for tests.

use super::state::Scheduler;
use crate::queue::Waiting;

impl<T> Scheduler<T> {
    /// Calls asked so far: for tests that count work instead of timing it.
    #[doc(hidden)]
    #[must_use]
    pub const fn asked_count(&self) -> u64 {
        self.asked + self.parking.looked()
    }

    /// Claims made so far: for tests.
    #[doc(hidden)]
    #[must_use]
    pub const fn claims_made(&self) -> u64 {
        self.parking.claims().0
    }

    /// Panics if an invariant is violated that holds whenever [`next`](Self::next) returns a moment
    /// to sleep until.
    #[doc(hidden)]
    pub fn audit(&self) {
        self.parking.audit();
        for met in &self.limits {
            let meets = |waiting: &Waiting<T>| {
                let set = self.sets.limits(waiting.set);
                set.iter()
                    .any(|&id| self.limits[id as usize].rule.name == met.rule.name)
            };
            let waiting = self
                .queue
                .iter()
                .filter(|(_, waiting)| meets(waiting))
                .count();
            assert_eq!(
                met.waiting, waiting as u64,
                "every limit knows how many wait for it"
            );
        }
        for (key, bucket) in self.buckets.iter() {
            let meets = |waiting: &Waiting<T>| waiting.bucket == Some(key);
            let waiting = self.queue.iter().filter(|(_, waiting)| meets(waiting));
            assert_eq!(
                bucket.waiting,
                waiting.count() as u64,
                "every bucket knows how many wait for it"
            );
        }
        self.quotas.audit(|key| {
            let meets = |waiting: &&Waiting<T>| {
                let mut keys = waiting.quotas.iter().flat_map(|keys| keys.iter());
                keys.any(|&met| met == key)
            };
            self.queue
                .iter()
                .map(|(_, waiting)| waiting)
                .filter(meets)
                .count() as u64
        });
    }
}
