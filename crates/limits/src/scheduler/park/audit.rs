//! Facts that must hold between two questions.

use super::flow::WaitList;
use super::flows::Parking;
use crate::policy::LimitId;
use crate::queue::Budget;

impl Parking {
    /// Checks the facts that must hold between calls to [`Scheduler::next`](crate::Scheduler::next) for nothing to
    /// be overlooked; panics with the fact that does not.
    pub(crate) fn audit(&self) {
        assert!(
            self.lists_to_check.is_empty(),
            "every change has been looked at"
        );
        assert!(self.changed.is_empty(), "every change has been looked at");
        assert!(self.ready.is_empty(), "every ready flow has been asked");
        let limits = (0..self.limits.len() as LimitId).map(Budget::Limit);
        let quotas = self.quotas.keys().map(|&quota| Budget::Quota(quota));
        for budget in limits.chain(quotas) {
            let at = self.at(budget).expect("it is there");
            let first = |list| self.first(list);
            assert_eq!(
                at.all.last_flow,
                first(WaitList::At(budget)),
                "the first flow parked at {budget:?} was asked last"
            );
            if let (Some(_), Budget::Limit(limit)) = (at.kept_for(), budget) {
                assert_eq!(
                    at.kept.last_flow,
                    first(WaitList::Kept(limit)),
                    "and so was that of the class for which it keeps something"
                );
            }
            assert!(!at.all.changed && !at.kept.changed);
            let sum: u64 = at.claims.values().map(|claim| claim.draw).sum();
            assert_eq!(at.claimed, sum, "what is claimed is counted");
        }
        let (mut parked, mut lapses) = (0, 0);
        for at in self
            .limits
            .iter()
            .chain(&self.buckets)
            .chain(self.quotas.values())
        {
            let lapsing = at.claims.values().filter(|claim| claim.until.is_some());
            let lapsing = lapsing.count();
            lapses += lapsing;
            parked += at.order.len() as usize + at.claims.len() - lapsing;
        }
        assert_eq!(lapses, self.lapses.len(), "every claim lapses");
        let heads = self.flows.iter().filter(|flow| flow.head.is_some());
        assert_eq!(parked, heads.count(), "every flow with a head is parked");
        assert_eq!(
            self.flows.len(),
            self.by_key.len() + self.free.len(),
            "every flow is in use or free"
        );
    }
}
