//! Flows are parked, and asked again when something has changed where they are.

use core::cmp::Reverse;

use super::flow::{FlowKey, SecondList, WaitList};
use super::flows::Parking;
use crate::policy::LimitId;
use crate::queue::account::WaitCause;
use crate::queue::fair::ClassFilter;
use crate::queue::{Budget, FlowId};
use crate::slab::SlabKey;
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// The flow and the call whose turn may have come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) flow: FlowId,
    pub(crate) key: SlabKey,
    /// The wait list where the turn has come.
    pub(crate) turn: Option<WaitList>,
}

impl Parking {
    /// Another flow may be first now.
    pub(super) fn reordered(&mut self, budget: Budget) {
        let first = self.first(WaitList::At(budget));
        let is_first_asked = self.at(budget).is_none_or(|at| at.all.last_flow == first);
        // With a reserve, the order of the two wait lists may have changed even if neither's first flow has.
        if !is_first_asked || self.second_list(budget).is_some() {
            self.change(budget);
        }
    }

    /// Where other flows wait for a limit.
    #[inline]
    fn second_list(&self, budget: Budget) -> Option<WaitList> {
        let Budget::Limit(limit) = budget else {
            return None;
        };
        let second = self.limits[limit as usize].second;
        second.map(|second| match second {
            SecondList::Kept(_) => WaitList::Kept(limit),
            SecondList::AnyServer(limit) => WaitList::At(Budget::Limit(limit)),
        })
    }

    /// Something drew less or was given more here.
    #[inline]
    pub(crate) fn change(&mut self, budget: Budget) {
        self.mark(WaitList::At(budget));
        if let Some(second) = self.second_list(budget) {
            self.mark(second);
        }
    }

    #[inline]
    pub(super) fn mark(&mut self, list: WaitList) {
        if let Some(at) = self.at_mut(list.budget())
            && !at.is_empty()
            && !at.last_check(list).changed
        {
            at.last_check(list).changed = true;
            self.changed.push(list);
        }
    }

    /// A stake in this limit became a departure, which frees at a known moment. That matters to
    /// flows that wait for a change, not to flows that wait for a moment.
    #[inline]
    pub(crate) fn note_change(&mut self, limit: LimitId) {
        let at = &self.limits[limit as usize];
        let waits_for_a_moment = at.is_empty() || at.all.opens.is_some();
        if !waits_for_a_moment || at.second.is_some() {
            self.change(Budget::Limit(limit));
        }
    }

    /// Marks wait lists whose moment has come, and ends claims that have lasted long enough.
    #[inline]
    pub(crate) fn open_due(&mut self, now: Timestamp) {
        while let Some((opens, list)) = self.openings.first()
            && opens <= now
        {
            self.openings.remove(&(opens, list));
            if let Some(look) = self.last_check(list) {
                look.opens = None;
            }
            self.mark(list);
        }
        while let Some(&(until, budget, flow)) = self.lapses.first()
            && until <= now
        {
            self.drop_claim(budget, flow, now);
            if let Some(passed) = &mut self.flows[flow as usize].passed {
                passed.lapses = passed.lapses.saturating_add(1);
            }
        }
    }

    /// The next moment at which a wait list opens for the first flow parked at it, or a claim lapses.
    #[inline]
    pub(crate) fn next_opening(&self) -> Option<Timestamp> {
        let opens = self.openings.first().map(|(opens, _)| opens);
        let lapses = self.lapses.first().map(|&(until, ..)| until);
        [opens, lapses].into_iter().flatten().min()
    }

    /// The next flow to ask: one that is ready, or the first one where something has changed.
    /// `meets` returns whether the calls of a flow meet something.
    #[inline]
    pub(crate) fn next(&mut self, meets: impl Fn(&FlowKey, Budget) -> bool) -> Option<Candidate> {
        let ready = self.ready.first(ClassFilter::All);
        if let Some(flow) = ready {
            if self.goes_first(flow, meets) {
                self.last_was_ready = Some(true);
                return Some(self.candidate(flow, None));
            }
        } else {
            self.tidy();
        }
        while let Some(list) = self.next_changed() {
            self.forget_verdict(list);
            if let Some(flow) = self.first(list) {
                self.list_checks += 1;
                self.last_was_ready = ready.map(|_| false);
                return Some(self.candidate(flow, Some(list)));
            }
        }
        self.last_was_ready = ready.map(|_| true);
        Some(self.candidate(ready?, None))
    }

    pub(super) fn candidate(&self, flow: FlowId, turn: Option<WaitList>) -> Candidate {
        let (_, key) = self.head(flow);
        Candidate { flow, key, turn }
    }

    /// Whether a ready flow is asked before the first flow where something has changed. If it meets
    /// that limit, it is asked first and either waits there or goes before. Otherwise the earlier
    /// arrival starts, and then they alternate.
    fn goes_first(&mut self, flow: FlowId, meets: impl Fn(&FlowKey, Budget) -> bool) -> bool {
        self.wake_changed();
        let Some(&Reverse((_, arrival, list))) = self.lists_to_check.peek() else {
            return true;
        };
        meets(&self.flows[flow as usize].key, list.budget())
            || match self.last_was_ready {
                Some(last_was_ready) => !last_was_ready,
                None => self.head(flow).0 < arrival,
            }
    }

    fn wake_changed(&mut self) {
        while let Some(list) = self.changed.pop() {
            let first = self.first(list);
            let arrival = first.map_or(0, |flow| self.head(flow).0);
            self.lists_to_check
                .push(Reverse((self.round, arrival, list)));
        }
    }

    /// The changed wait list to look at next.
    #[inline]
    pub(super) fn next_changed(&mut self) -> Option<WaitList> {
        let list = if self.lists_to_check.is_empty() && self.changed.len() < 2 {
            self.changed.pop()?
        } else {
            self.wake_changed();
            let Reverse((round, _, list)) = self.lists_to_check.pop()?;
            self.round = round + 1;
            list
        };
        if let Some(look) = self.last_check(list) {
            look.changed = false;
        }
        Some(list)
    }

    /// Whether no flow has changed since it was last looked at.
    pub(crate) fn has_nothing_to_do(&self) -> bool {
        self.changed.is_empty() && self.lists_to_check.is_empty()
    }

    /// Drops all changes: no flow waits for them.
    pub(crate) fn forget_changes(&mut self) {
        while self.next_changed().is_some() {}
    }

    #[inline]
    pub(super) fn remember_verdict(&mut self, list: WaitList, flow: FlowId, verdict: Verdict) {
        let look = self.last_check(list).expect("the flow is parked there");
        look.last_flow = Some(flow);
        if let Verdict::NotBefore(opens) = verdict {
            look.opens = Some(opens);
            self.openings.insert((opens, list));
        }
    }

    #[inline]
    pub(super) fn forget_verdict(&mut self, list: WaitList) {
        if let Some(look) = self.last_check(list) {
            look.last_flow = None;
            if let Some(opens) = look.opens.take() {
                self.openings.remove(&(opens, list));
            }
        }
    }
}

impl Parking {
    /// A flow was asked, and this bars it: it parks there, at the front if it may.
    pub(crate) fn park(
        &mut self,
        candidate: Candidate,
        budget: Budget,
        verdict: Verdict,
        front: Option<u64>,
        now: Timestamp,
    ) {
        let flow = candidate.flow;
        let list = self.list_of(flow, budget);
        if self.flows[flow as usize].parked_at != Some(list) {
            if candidate.turn.is_some() {
                self.unpark(flow, now);
            } else {
                self.ready.remove(self.entry(flow));
            }
            if let Some(draw) = front {
                self.claim(budget, flow, draw, now, None);
            }
            self.stand(flow, list, now);
        }
        if front.is_some() {
            // What bars it may be another before which it goes now.
            self.change(budget);
        } else if self.first(list) == Some(flow) {
            self.forget_verdict(list);
            self.remember_verdict(list, flow, verdict);
        }
        // Behind the first flow it changes nothing: another flow that waits makes no call go sooner.
    }

    /// Puts a flow at a wait list: into the order, unless it claims the front.
    pub(super) fn stand(&mut self, flow: FlowId, list: WaitList, now: Timestamp) {
        let (budget, entry, common) = (list.budget(), self.entry(flow), self.common);
        let at = self.make_at(budget);
        let claim = at.claims.get(&(entry.arrival, flow));
        if claim.is_none_or(|claim| claim.until.is_some()) {
            at.order.insert(entry, common);
        }
        let state = &mut self.flows[flow as usize];
        state.parked_at = Some(list);
        if state.account.charge(now, WaitCause::Budget(budget)) {
            state.noted = None;
        }
    }

    /// Parks a flow that is ready, to be asked there.
    pub(crate) fn park_again(&mut self, flow: FlowId, budget: Budget, now: Timestamp) {
        if !self.is_ready(flow) {
            return;
        }
        self.ready.remove(self.entry(flow));
        self.stand(flow, self.list_of(flow, budget), now);
        self.change(budget);
    }

    /// Takes a flow from where it is parked. If it was the one asked, the next must be.
    pub(super) fn unpark(&mut self, flow: FlowId, now: Timestamp) {
        self.leave_front(flow, now);
        let state = &mut self.flows[flow as usize];
        let Some(list) = state.parked_at.take() else {
            return;
        };
        let entry = self.entry(flow);
        let at = self
            .at_mut(list.budget())
            .expect("the flow is parked there");
        at.order.remove(entry);
        if at
            .last_check(list)
            .last_flow
            .is_none_or(|last| last == flow)
        {
            self.forget_verdict(list);
            // The flow behind it at the limit's other wait list may be first now.
            self.change(list.budget());
        }
        // If another flow was asked here, that one stays first, or its wait list is marked as changed.
        self.forget_if_empty(list.budget());
    }
}
