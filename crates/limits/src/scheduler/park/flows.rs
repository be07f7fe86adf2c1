//! Where every flow is, and the wait lists that have changed.

use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use super::flow::{BudgetQueue, Flow, FlowKey, LastCheck, SecondList, WaitList};
use crate::queue::account::WaitAccount;
use crate::queue::fair::{FairOrder, FlowEntry, OrderSettings};
use crate::queue::{Budget, FlowId};
use crate::slab::SlabKey;
use crate::sorted::Sorted;
use crate::time::Timestamp;

/// Flows without a call that are kept for the next one: to make a flow costs more than to find it.
pub(super) const RESTING_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Parking {
    pub(super) common: OrderSettings,
    pub(super) flows: Vec<Flow>,
    pub(super) by_key: BTreeMap<FlowKey, FlowId>,
    /// Places in `flows` where none is.
    pub(super) free: Vec<FlowId>,
    /// Flows that became empty, the first one first. Some of them may have a call again.
    pub(super) resting: VecDeque<FlowId>,
    pub(super) limits: Vec<BudgetQueue>,
    /// By place.
    pub(super) buckets: Vec<BudgetQueue>,
    /// The quotas at which flows are parked or claim.
    pub(super) quotas: BTreeMap<SlabKey, BudgetQueue>,
    /// Flows that are to be asked.
    pub(super) ready: FairOrder,
    /// While there are any: whether one of them was asked last.
    pub(super) last_was_ready: Option<bool>,
    /// Orders that have tags because several flows were ready at once.
    pub(super) tagged: Vec<Budget>,
    /// Spots whose first flow must be asked again, each once, here or in `woken`.
    pub(super) changed: Vec<WaitList>,
    /// Of these, the ones that are being looked at: by round, then by when the first flow came.
    pub(super) lists_to_check: BinaryHeap<Reverse<(u64, u64, WaitList)>>,
    /// Rounds of asking changed wait lists. A wait list that changes again comes after those that were not
    /// asked yet. Otherwise flows parked there would get all the room of a limit, and flows whose
    /// other limit opened at the same moment would get none.
    pub(super) round: u64,
    /// When wait lists open for the flow that was asked last.
    pub(super) openings: Sorted<(Timestamp, WaitList)>,
    /// When claims lapse.
    pub(super) lapses: BTreeSet<(Timestamp, Budget, FlowId)>,
    /// Claims made so far.
    pub(super) claims: u64,
    /// For how long room was kept, over all claims that are over.
    pub(super) idle: Duration,
    /// Flows looked at because something changed.
    pub(super) list_checks: u64,
}

impl Parking {
    /// For this number of classes. `second` returns the second list of each limit.
    pub(crate) fn new(
        classes: usize,
        seed: u64,
        second: impl Iterator<Item = Option<SecondList>>,
    ) -> Self {
        let at_limit = |second| BudgetQueue {
            second,
            ..BudgetQueue::default()
        };
        Self {
            common: OrderSettings {
                classes,
                seed,
                served: 0,
            },
            limits: second.map(at_limit).collect(),
            ..Self::default()
        }
    }

    /// The flow of calls like these.
    #[inline]
    pub(crate) fn flow(&mut self, key: FlowKey) -> FlowId {
        if let Some(&flow) = self.by_key.get(&key) {
            return flow;
        }
        let new = Flow::new(key.clone());
        let flow = match self.free.pop() {
            Some(place) => {
                self.flows[place as usize] = new;
                place
            }
            None => {
                self.flows.push(new);
                self.flows.len() as FlowId - 1
            }
        };
        self.by_key.insert(key, flow);
        flow
    }

    /// A flow has become empty.
    pub(super) fn rest(&mut self, flow: FlowId) {
        let state = &mut self.flows[flow as usize];
        if !state.is_resting {
            state.is_resting = true;
            self.resting.push_back(flow);
        }
        while self.resting.len() > RESTING_MAX
            && let Some(flow) = self.resting.pop_front()
        {
            let state = &mut self.flows[flow as usize];
            state.is_resting = false;
            if state.head.is_none() {
                self.by_key.remove(&state.key);
                state.noted = None;
                self.free.push(flow);
            }
        }
    }

    /// The account that a call must keep when it joins a flow; `None` if the flow is empty.
    #[inline]
    pub(crate) fn note_account(&mut self, flow: FlowId) -> Option<Arc<WaitAccount>> {
        let state = &mut self.flows[flow as usize];
        state.head?;
        let account = &state.account;
        Some(Arc::clone(
            state.noted.get_or_insert_with(|| Arc::new(account.clone())),
        ))
    }

    /// The causes of the wait of a flow's calls.
    pub(crate) fn account(&self, flow: FlowId) -> &WaitAccount {
        &self.flows[flow as usize].account
    }

    /// How many flows there may be now.
    pub(crate) fn flows(&self) -> usize {
        self.flows.len()
    }

    /// The head of any flow.
    pub(crate) fn any(&self) -> Option<SlabKey> {
        // At most [`RESTING_MAX`] flows have no call.
        let mut flows = self.by_key.values();
        let head = flows.find_map(|&flow| self.flows[flow as usize].head);
        head.map(|(_, key)| key)
    }

    /// Where a flow is parked now.
    #[inline]
    pub(crate) fn parked_at(&self, flow: FlowId) -> Option<Budget> {
        Some(self.flows[flow as usize].parked_at?.budget())
    }

    /// The wait list of a flow that this bars.
    #[inline]
    pub(super) fn list_of(&self, flow: FlowId, budget: Budget) -> WaitList {
        match budget {
            Budget::Limit(limit)
                if self.limits[limit as usize].kept_for()
                    == Some(self.flows[flow as usize].key.class) =>
            {
                WaitList::Kept(limit)
            }
            _ => WaitList::At(budget),
        }
    }

    /// The flows at a budget; `None` at a quota where no call waits.
    #[inline]
    pub(super) fn at(&self, budget: Budget) -> Option<&BudgetQueue> {
        match budget {
            Budget::Limit(limit) => Some(&self.limits[limit as usize]),
            Budget::Bucket(bucket) => Some(&self.buckets[bucket.index() as usize]),
            Budget::Quota(quota) => self.quotas.get(&quota),
        }
    }

    #[inline]
    pub(super) fn at_mut(&mut self, budget: Budget) -> Option<&mut BudgetQueue> {
        match budget {
            Budget::Limit(limit) => Some(&mut self.limits[limit as usize]),
            Budget::Bucket(bucket) => Some(&mut self.buckets[bucket.index() as usize]),
            Budget::Quota(quota) => self.quotas.get_mut(&quota),
        }
    }

    #[inline]
    pub(super) fn last_check(&mut self, list: WaitList) -> Option<&mut LastCheck> {
        Some(self.at_mut(list.budget())?.last_check(list))
    }

    #[inline]
    pub(super) fn make_at(&mut self, budget: Budget) -> &mut BudgetQueue {
        if let Budget::Quota(quota) = budget {
            return self.quotas.entry(quota).or_default();
        }
        self.at_mut(budget).expect("limits and buckets are there")
    }

    pub(super) fn forget_if_empty(&mut self, budget: Budget) {
        if let Budget::Quota(quota) = budget
            && self.quotas.get(&quota).is_some_and(BudgetQueue::is_empty)
        {
            self.forget_verdict(WaitList::At(budget));
            self.quotas.remove(&quota);
        }
    }

    /// A flow, as an entry of orders.
    #[inline]
    pub(super) fn entry(&self, flow: FlowId) -> FlowEntry {
        let state = &self.flows[flow as usize];
        FlowEntry {
            class: state.key.class,
            caller: state.key.caller,
            arrival: self.head(flow).0,
            flow,
        }
    }

    #[inline]
    pub(crate) fn head(&self, flow: FlowId) -> (u64, SlabKey) {
        let head = self.flows[flow as usize].head;
        head.expect("only flows with a call in them are ready or parked")
    }

    /// The first flow at a wait list.
    #[inline]
    pub(super) fn first(&self, list: WaitList) -> Option<FlowId> {
        let at = self.at(list.budget())?;
        if !at.claims.is_empty() {
            let mut claims = at.claims.iter();
            let front = claims.find(|((_, flow), claim)| {
                claim.until.is_none() && self.flows[*flow as usize].parked_at == Some(list)
            });
            if let Some(((_, flow), _)) = front {
                return Some(*flow);
            }
        }
        at.order.first(at.part(list))
    }

    /// The head of a flow is now this one. It waits where the one before it did.
    pub(crate) fn set_head(&mut self, flow: FlowId, head: Option<(u64, SlabKey)>, now: Timestamp) {
        let state = &mut self.flows[flow as usize];
        if state.head == head {
            return;
        }
        if state.passed.is_some() {
            self.take_passed(flow, now);
        }
        let state = &mut self.flows[flow as usize];
        let (before, parked_at) = (state.head, state.parked_at);
        match (before, head) {
            (None, Some(_)) => {
                state.account.begin(now);
                state.noted = None;
                state.head = head;
                self.ready.insert(self.entry(flow), self.common);
            }
            (Some(_), Some((arrival, _))) => {
                let entry = self.entry(flow);
                self.flows[flow as usize].head = head;
                if let Some(list) = parked_at {
                    let at = self
                        .at_mut(list.budget())
                        .expect("the flow is parked there");
                    at.order.replace(entry, arrival);
                    self.has_new_head(flow, list);
                } else {
                    self.ready.replace(entry, arrival);
                }
            }
            (Some(_), None) => {
                if parked_at.is_some() {
                    self.unpark(flow, now);
                } else {
                    self.ready.remove(self.entry(flow));
                }
                self.flows[flow as usize].head = None;
                self.rest(flow);
            }
            (None, None) => {}
        }
    }

    /// A flow that is parked here has another head.
    #[inline]
    pub(super) fn has_new_head(&mut self, flow: FlowId, list: WaitList) {
        let at = self
            .at_mut(list.budget())
            .expect("the flow is parked there");
        if at.last_check(list).last_flow == Some(flow) {
            self.mark(list);
        }
        self.reordered(list.budget());
    }

    /// There is a bucket now, or its flows go in another order.
    pub(crate) fn set_bucket(&mut self, bucket: SlabKey, by_arrival: bool) {
        let place = bucket.index() as usize;
        if self.buckets.len() <= place {
            self.buckets.resize_with(place + 1, BudgetQueue::default);
        }
        let order = &self.buckets[place].order;
        if order.is_by_arrival() != by_arrival {
            let mut new = FairOrder::new(by_arrival);
            for flow in order.all() {
                new.insert(self.entry(flow), self.common);
            }
            self.buckets[place].order = new;
            self.reordered(Budget::Bucket(bucket));
        }
    }

    /// Removes a bucket for which no call waits.
    pub(crate) fn remove_bucket(&mut self, bucket: SlabKey) {
        let at = &mut self.buckets[bucket.index() as usize];
        assert!(
            at.is_empty(),
            "all calls that waited for the bucket were rerouted"
        );
        at.idle = Duration::ZERO;
    }

    /// Whether a flow has a call and is to be asked.
    #[inline]
    pub(crate) fn is_ready(&self, flow: FlowId) -> bool {
        let state = &self.flows[flow as usize];
        state.head.is_some() && state.parked_at.is_none()
    }

    /// Flows looked at so far.
    pub(crate) const fn list_checks(&self) -> u64 {
        self.list_checks
    }

    /// No flow waits, and no tag is remembered.
    pub(crate) fn is_at_rest(&self) -> bool {
        let mut ats = self.limits.iter().chain(&self.buckets);
        self.ready.is_empty() && ats.all(BudgetQueue::is_empty) && self.quotas.is_empty()
    }

    /// The quotas at which calls are parked.
    pub(crate) fn quotas_waited_for(&self) -> Vec<SlabKey> {
        self.quotas.keys().copied().collect()
    }

    /// The first call that waits for a quota.
    pub(crate) fn first_at_quota(&self, quota: SlabKey) -> Option<SlabKey> {
        let flow = self.first(WaitList::At(Budget::Quota(quota)))?;
        Some(self.head(flow).1)
    }
}
