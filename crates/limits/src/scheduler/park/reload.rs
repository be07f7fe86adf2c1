//! Orders and claims on their way to another policy.

use alloc::vec::Vec;

use super::flow::{BudgetQueue, CarriedFlow, SecondList};
use super::flows::Parking;
use crate::call::Class;
use crate::policy::LimitId;
use crate::queue::FlowId;
use crate::queue::fair::OrderSettings;
use crate::time::Timestamp;

impl Parking {
    /// Continues without the flows, under another policy: `before` maps each limit to its former
    /// one.
    pub(crate) fn reload(
        &mut self,
        places: &[Option<Class>],
        classes: usize,
        second: impl Iterator<Item = Option<SecondList>>,
        before: impl Fn(LimitId) -> Option<LimitId>,
    ) -> Self {
        let mut new = Self::new(classes, self.common.seed, second);
        let common = OrderSettings {
            served: self.common.served,
            ..new.common
        };
        new.common = common;
        (new.list_checks, new.claims, new.idle) = (self.list_checks, self.claims, self.idle);
        for (at, id) in new.limits.iter_mut().zip(0..) {
            if let Some(old) = before(id) {
                let old = &mut self.limits[old as usize];
                at.idle = old.idle;
                at.order = core::mem::take(&mut old.order).reload(places, common);
            }
        }
        let reload = |old: BudgetQueue| BudgetQueue {
            order: old.order.reload(places, common),
            idle: old.idle,
            ..BudgetQueue::default()
        };
        new.buckets = self.buckets.drain(..).map(reload).collect();
        let quotas = core::mem::take(&mut self.quotas).into_iter();
        new.quotas = quotas.map(|(key, at)| (key, reload(at))).collect();
        new
    }

    /// Takes the flows whose heads were passed over, before a reload rebuilds the flows.
    pub(crate) fn take_carried(&mut self) -> Vec<CarriedFlow> {
        let mut carried = Vec::new();
        for flow in 0..self.flows.len() as FlowId {
            let state = &mut self.flows[flow as usize];
            let (Some(head), Some(list)) = (state.head, state.parked_at) else {
                continue;
            };
            let Some(passed) = state.passed.take() else {
                continue;
            };
            let own = (head.0, flow);
            let claim_at = |&budget| Some((budget, *self.at(budget)?.claims.get(&own)?));
            carried.push(CarriedFlow {
                head,
                at: list.budget(),
                claims: passed.turns.iter().filter_map(claim_at).collect(),
                passed,
            });
        }
        carried
    }

    /// Parks a flow that is ready where it was parked before a reload, with what was remembered of
    /// its head.
    pub(crate) fn restore(&mut self, flow: FlowId, carried: CarriedFlow, now: Timestamp) {
        for (budget, claim) in carried.claims {
            self.insert_claim(budget, flow, claim);
        }
        self.flows[flow as usize].passed = Some(carried.passed);
        self.park_again(flow, carried.at, now);
    }

    /// All flows are back after a reload.
    pub(crate) fn reloaded(&mut self) {
        let ats = self.limits.iter_mut().chain(&mut self.buckets);
        ats.for_each(|at| at.order.tidy());
        self.quotas.retain(|_, at| {
            at.order.tidy();
            !at.is_empty()
        });
    }
}
