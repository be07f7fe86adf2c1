//! A call that waits.

use alloc::sync::Arc;

use super::account::Stay;
use super::budget::{Budget, FlowId};
use crate::call::Call;
use crate::policy::SetId;
use crate::scheduler::ForecastEntry;
use crate::slab::SlabKey;
use crate::time::Timestamp;

/// A call that waits, and where.
#[derive(Clone, Debug)]
pub(crate) struct QueuedCall<T> {
    pub(crate) call: Call,
    pub(crate) payload: T,
    pub(crate) meets: BudgetSet,
    /// The order of arrival among the calls of a flow: the lowest number goes first.
    pub(crate) arrival: u64,
    pub(crate) place: WaitPlace,
    /// The client has given up for a while, so the call does not run. Its deadline is the end of that.
    pub(crate) is_suspended: bool,
    /// The budget that had the call set aside last.
    pub(crate) held_by: Option<Budget>,
    /// Times it was set aside.
    pub(crate) postponed: u32,
    /// The causes of the wait so far.
    pub(crate) stay: Stay,
    /// How predictions count it; `None` if they do not.
    pub(crate) counted: Option<ForecastEntry>,
}

/// The budgets that a call draws from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BudgetSet {
    /// Limits of the policy.
    pub(crate) set: SetId,
    /// The bucket that is charged, if it exists.
    pub(crate) bucket: Option<SlabKey>,
    /// Quotas, if they have rules.
    pub(crate) quotas: Option<Arc<[SlabKey]>>,
}

impl BudgetSet {
    pub(crate) fn quotas(&self) -> impl Iterator<Item = Budget> {
        let quotas = self.quotas.iter().flat_map(|keys| keys.iter());
        quotas.map(|&quota| Budget::Quota(quota))
    }

    /// The budgets beside the limits of the policy.
    pub(crate) fn own(&self) -> impl Iterator<Item = Budget> {
        let bucket = self.bucket.map(Budget::Bucket);
        bucket.into_iter().chain(self.quotas())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPlace {
    Flow(FlowId),
    Aside(Timestamp),
    /// Nowhere: its turn came while it was suspended.
    Passed,
}

/// The calls that wait for a limit, bucket or quota, and the sum of their draws.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueTotals {
    pub(crate) calls: u64,
    pub(crate) draw: u64,
}

impl QueueTotals {
    #[inline]
    pub(crate) fn add(&mut self, draw: u64) {
        self.calls += 1;
        self.draw = self.draw.saturating_add(draw);
    }

    #[inline]
    pub(crate) fn remove(&mut self, draw: u64) {
        self.calls -= 1;
        self.draw = self.draw.saturating_sub(draw);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_call_stays_small() {
        // Thousands may wait. What each limit held it for takes 32 bytes of this, and the quotas that
        // it draws from another 32.
        let bytes = size_of::<QueuedCall<()>>();
        assert!(bytes <= 256, "{bytes} bytes for each call that waits");
    }
}
