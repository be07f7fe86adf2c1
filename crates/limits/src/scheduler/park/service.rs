//! Changes the orders by a service.

use super::flows::Parking;
use crate::call::Call;
use crate::queue::fair::{ClassFilter, FlowEntry, TurnAdvance};
use crate::queue::{Budget, FlowId};
use crate::slab::SlabKey;

impl Parking {
    /// The first call of this flow runs, and draws from these, with its service there. `next` is the
    /// one behind it. Returns which of all that were served it is.
    #[inline]
    pub(crate) fn served(
        &mut self,
        flow: FlowId,
        service: TurnAdvance,
        drawn_from: impl Iterator<Item = (Budget, TurnAdvance)>,
        next: Option<(u64, SlabKey)>,
    ) -> u64 {
        self.common.served += 1;
        let (entry, common) = (self.entry(flow), self.common);
        // Several calls that came at once wait for each other wherever they meet.
        let counts = self.ready.len() > 1;
        let state = &self.flows[flow as usize];
        // A flow in the order, and not at the front, stays there with its next call.
        let stands_at = state.parked_at.filter(|_| state.passed.is_none());
        if counts && state.parked_at.is_none() {
            self.ready.serve(entry, service, true, common);
        }
        for (budget, service) in drawn_from {
            if let (Some(list), Some((arrival, _))) = (stands_at, next)
                && list.budget() == budget
                && let Some(at) = self.at_mut(budget)
                && at.order.serve_first(entry, service, arrival)
            {
                self.flows[flow as usize].head = next;
                self.has_new_head(flow, list);
                continue;
            }
            if let Some(at) = self.at_mut(budget)
                && at.order.serve(entry, service, counts, common)
            {
                if at.order.is_empty() {
                    self.tagged.push(budget);
                } else {
                    self.reordered(budget);
                }
            }
        }
        common.served
    }

    /// A call runs that never waited, while no other does. Changes what [`served`](Self::served) would have, for
    /// a flow with this call only.
    pub(crate) fn served_alone(
        &mut self,
        call: &Call,
        arrival: u64,
        drawn_from: impl Iterator<Item = (Budget, TurnAdvance)>,
    ) -> u64 {
        self.common.served += 1;
        self.last_was_ready = Some(true);
        for (budget, service) in drawn_from {
            // Tags of calls that waited before are kept until the next one waits.
            if self.at(budget).is_some_and(|at| at.order.has_tags()) {
                self.serve_tags(call, arrival, budget, service);
            }
        }
        self.common.served
    }

    fn serve_tags(&mut self, call: &Call, arrival: u64, budget: Budget, service: TurnAdvance) {
        let entry = FlowEntry {
            class: call.class,
            caller: call.caller,
            arrival,
            flow: FlowId::MAX,
        };
        let common = self.common;
        let Some(at) = self.at_mut(budget) else {
            return;
        };
        at.order.serve(entry, service, false, common);
        self.tagged.push(budget);
    }

    /// No flow is ready any more: orders without flows start from zero.
    pub(super) fn tidy(&mut self) {
        while let Some(budget) = self.tagged.pop() {
            if let Some(at) = self.at_mut(budget) {
                at.order.tidy();
            }
            self.forget_if_empty(budget);
        }
    }

    /// Corrects the turns here by a call whose service was `counted`, and is `settled` in the end, or nothing if the call was
    /// not sent. Another flow may be first then: [`change`](Self::change) has it looked at.
    pub(crate) fn correct(
        &mut self,
        budget: Budget,
        call: &Call,
        counted: TurnAdvance,
        settled: TurnAdvance,
        served: u64,
    ) {
        if let Some(at) = self.at_mut(budget) {
            at.order.correct(call, counted, settled, served);
        }
    }

    /// Whether a flow with an earlier turn is parked here. `is_kept_for_it` returns whether the
    /// reserve of its class covers the head.
    #[inline]
    pub(crate) fn is_behind(
        &self,
        flow: FlowId,
        budget: Budget,
        is_kept_for_it: impl FnOnce() -> bool,
    ) -> bool {
        let Some(at) = self.at(budget).filter(|at| !at.order.is_empty()) else {
            return false;
        };
        let entry = self.entry(flow);
        if at.claims.contains_key(&(entry.arrival, flow)) {
            return false;
        }
        // A flow that is asked where it is parked is the first of its part.
        let is_here = self.parked_at(flow) == Some(budget);
        let is_behind = |part| at.order.is_behind(entry, part);
        match at.kept_for() {
            None => !is_here && is_behind(ClassFilter::All),
            Some(class) if class == entry.class => {
                (!is_here && is_behind(ClassFilter::Only(class)))
                    || (is_behind(ClassFilter::But(class)) && !is_kept_for_it())
            }
            Some(class) if is_here => is_behind(ClassFilter::Only(class)),
            Some(_) => is_behind(ClassFilter::All),
        }
    }
}
