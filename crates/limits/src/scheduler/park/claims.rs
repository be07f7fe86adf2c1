//! Claims: see the law in `queue/fair.rs`.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::flow::{BudgetQueue, PassedHead, RoomClaim, WaitList};
use super::flows::Parking;
use crate::queue::{Budget, FlowId};
use crate::time::Timestamp;

impl Parking {
    /// The turn of a flow came, and another budget than the present one bars it. True if it goes to
    /// the front there; then room is kept for it where its turn has come. `opens` is when that
    /// opens, if known. `claim` returns how long a claim at a limit lasts, and how much it is for.
    pub(crate) fn pass_over(
        &mut self,
        flow: FlowId,
        turn: WaitList,
        budget: Budget,
        opens: Option<Timestamp>,
        now: Timestamp,
        claim: impl Fn(Budget) -> (Duration, u64),
    ) -> bool {
        let mut passed = self.take_passed(flow, now).unwrap_or_else(|| {
            Box::new(PassedHead {
                due: now + claim(turn.budget()).0,
                turns: Vec::new(),
                lapses: 0,
            })
        });
        if !passed.turns.contains(&turn.budget()) {
            passed.turns.push(turn.budget());
        }
        let claims = passed.may_claim(budget, now);
        if claims {
            for &at in passed.turns.iter().filter(|&&at| at != budget) {
                let (window, draw) = claim(at);
                if opens.is_none_or(|opens| opens.since(now) <= window) {
                    let factor = 1_u32.checked_shl(passed.lapses).unwrap_or(u32::MAX);
                    let until = now + window.saturating_mul(factor);
                    self.claim(at, flow, draw, now, Some(until));
                }
            }
        }
        self.flows[flow as usize].passed = Some(passed);
        claims
    }

    pub(super) fn claim(
        &mut self,
        budget: Budget,
        flow: FlowId,
        draw: u64,
        now: Timestamp,
        until: Option<Timestamp>,
    ) {
        self.claims += 1;
        let claim = RoomClaim {
            draw,
            since: now,
            until,
        };
        self.insert_claim(budget, flow, claim);
    }

    pub(super) fn insert_claim(&mut self, budget: Budget, flow: FlowId, claim: RoomClaim) {
        let own = (self.head(flow).0, flow);
        let at = self.make_at(budget);
        at.claimed += claim.draw;
        let before = at.claims.insert(own, claim);
        debug_assert!(before.is_none(), "a call claims once at a limit");
        if let Some(until) = claim.until {
            self.lapses.insert((until, budget, flow));
        }
    }

    /// A flow claims nothing here any more, if it did.
    pub(super) fn drop_claim(&mut self, budget: Budget, flow: FlowId, now: Timestamp) {
        let own = (self.head(flow).0, flow);
        let Some(at) = self.at_mut(budget) else {
            return;
        };
        let Some(claim) = at.claims.remove(&own) else {
            return;
        };
        at.claimed -= claim.draw;
        if let Some(until) = claim.until {
            let idle = now.since(claim.since);
            at.idle += idle;
            self.idle += idle;
            self.lapses.remove(&(until, budget, flow));
        }
        self.change(budget);
        self.forget_if_empty(budget);
    }

    /// A flow claims nothing any more. Returns what its head was passed over at.
    pub(super) fn take_passed(&mut self, flow: FlowId, now: Timestamp) -> Option<Box<PassedHead>> {
        self.leave_front(flow, now);
        let passed = self.flows[flow as usize].passed.take()?;
        for &budget in &passed.turns {
            self.drop_claim(budget, flow, now);
        }
        Some(passed)
    }

    /// A flow at the front of a limit joins the order of that limit.
    pub(super) fn leave_front(&mut self, flow: FlowId, now: Timestamp) {
        let Some(list) = self.flows[flow as usize].parked_at else {
            return;
        };
        let entry = self.entry(flow);
        let common = self.common;
        let at = self
            .at_mut(list.budget())
            .expect("the flow is parked there");
        let claim = at.claims.get(&(entry.arrival, flow));
        if claim.is_some_and(|claim| claim.until.is_none()) {
            at.order.insert(entry, common);
            self.drop_claim(list.budget(), flow, now);
        }
    }

    /// How much is claimed here ahead of the head of this flow.
    ///
    /// A head that may claim here is only behind earlier heads, whether it claims yet or not.
    /// Otherwise two limits could send it back and forth: each would be closed until it was parked
    /// there.
    #[inline]
    pub(crate) fn ahead(&self, flow: FlowId, budget: Budget, now: Timestamp) -> u64 {
        match self.at(budget) {
            Some(at) if !at.claims.is_empty() => self.claimed_ahead(at, flow, budget, now),
            Some(_) | None => 0,
        }
    }

    /// The claims ahead of a flow where there are some.
    #[inline(never)]
    fn claimed_ahead(&self, at: &BudgetQueue, flow: FlowId, budget: Budget, now: Timestamp) -> u64 {
        let own = (self.head(flow).0, flow);
        let passed = self.flows[flow as usize].passed.as_ref();
        let may_claim = passed.is_some_and(|passed| passed.may_claim(budget, now));
        if !may_claim && !at.claims.contains_key(&own) {
            return at.claimed;
        }
        let before = at.claims.range(..own);
        before.map(|(_, claim)| claim.draw).sum()
    }

    /// The claims on this budget now, and for how long claims have kept room.
    pub(crate) fn claimed(&self, budget: Budget, now: Timestamp) -> (u64, Duration) {
        let Some(at) = self.at(budget) else {
            return (0, Duration::ZERO);
        };
        let claims = at.claims.values().filter(|claim| claim.until.is_some());
        let idle = claims.map(|claim| now.since(claim.since));
        (at.claimed, at.idle + idle.sum::<Duration>())
    }

    /// Claims made so far, and for how long the ended ones kept room.
    pub(crate) const fn claims(&self) -> (u64, Duration) {
        (self.claims, self.idle)
    }
}
