//! A new policy, in the middle of everything.
//!
//! Limits keep their state by name. Calls in flight keep what they drew, and are counted by
//! limits that are new to them; so a limit that is lowered or added admits nothing until what
//! is in use fits. Waiting calls keep their turn and are sorted into the new flows.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem;

use super::budgets::Budgets;
use super::hold::{BudgetDraw, HoldState};
use super::park::FlowKey;
use super::state::{Scheduler, SupplyTarget};
use crate::call::Class;
use crate::policy::{ClassShare, LimitId, Policy, Postpone, Scope};
use crate::queue::{Budget, QueuedCall, WaitPlace};
use crate::supply::Supplier;
use crate::time::Timestamp;

/// A limit of the policy before, for calls that drew from it.
struct Before {
    /// The limit that has its state now; `None` if it was removed or is of another kind.
    now: Option<LimitId>,
    /// Whether the same calls meet the limit, so that waiting calls keep their turns.
    keeps_order: bool,
}

impl<T> Scheduler<T> {
    /// Continues under another policy. Linear in the number of waiting calls. No call is lost or
    /// loses its turn, even if the capacity is smaller now. No call is refused either, except one
    /// that can never run any more: it is refused with [`Reason::NeverPossible`] when it is next
    /// asked. With `max: 0` that is every call that meets the limit. To close a limit for a while,
    /// keep its `max` and use [`supply`](Self::supply) with a capacity of 0: then its calls wait.
    ///
    /// [`Reason::NeverPossible`]: crate::scheduler::RefusalReason::NeverPossible
    ///
    /// Supplies stay in force. Classes are found by name. Calls of a removed class join the end of
    /// the last class.
    pub fn apply(&mut self, now: Timestamp, policy: Policy) {
        let now = self.advance(now);
        for (_, waiting) in self.queue.calls.iter_mut() {
            self.budgets.carry_over(now, waiting, &self.parking);
        }
        let before = self.policy.classes().iter();
        let place = |class: &ClassShare| {
            let mut classes = policy.classes().iter();
            classes.position(|new| new.name == class.name)
        };
        let classes: Vec<_> = before
            .map(|class| place(class).map(|place| Class(place as u32)))
            .collect();
        let before = self.replace_limits(now, &policy, &classes);
        self.policy = policy;
        self.redraw_holds(now, &before, &classes);
        self.sort_waiting(&before, &classes);
        self.expiries
            .retain(|(_, supplied)| matches!(supplied, SupplyTarget::Bucket(_)));
        for (limiter, id) in self.budgets.limits.iter().zip(0..) {
            for supplier in Supplier::ALL {
                let expires_at = limiter.supply(supplier).expires_at();
                let expires_at = expires_at.filter(|&moment| moment > now);
                let expiry = expires_at.map(|moment| (moment, SupplyTarget::Limit(id, supplier)));
                self.expiries.extend(expiry);
            }
        }
        // Also for limits that are new, or on a backend from now on.
        self.share_out(now);
        self.recount_forecast();
        self.recount_bound();
    }

    /// Puts the new limits in place, each with the state of the one of its name. Returns what
    /// became of each old limit.
    fn replace_limits(
        &mut self,
        now: Timestamp,
        policy: &Policy,
        classes: &[Option<Class>],
    ) -> Vec<Before> {
        let old = self.budgets.replace_limits(now, policy);
        let before = old.into_iter().map(|mut old| {
            let heir = self.find_limit(&old.rule.name).filter(|&id| {
                self.budgets.limits[id as usize].inherit(now, &mut old, |old, new| {
                    classes[old.0 as usize] == Some(new)
                })
            });
            let keeps_order = heir.is_some_and(|heir| {
                let new = &self.budgets.limits[heir as usize].rule.scope;
                is_same_scope(&old.rule.scope, new, classes)
            });
            Before {
                now: heir,
                keeps_order,
            }
        });
        before.collect()
    }

    /// Carries the stakes of calls in flight over to the new limits, and draws from limits that are
    /// new to them.
    fn redraw_holds(&mut self, now: Timestamp, before: &[Before], classes: &[Option<Class>]) {
        let last = Class(self.policy.classes().len() as u32 - 1);
        for (_, held) in self.holds.iter_mut() {
            held.call.class = classes[held.call.class.0 as usize].unwrap_or(last);
            let HoldState {
                call,
                server,
                drawn,
                progress,
                ..
            } = held;
            drawn.retain_mut(|drawn| {
                let BudgetDraw::Limit { limit, stake, .. } = drawn else {
                    return true;
                };
                let Some(heir) = before[*limit as usize].now else {
                    return false;
                };
                *limit = heir;
                self.budgets.limits[heir as usize].readopt(now, stake, *progress);
                true
            });
            let set = self.budgets.set_at(call, *server);
            for &limit in self.budgets.sets.limits(set).iter() {
                if drawn
                    .iter()
                    .any(|drawn| drawn.budget() == Budget::Limit(limit))
                {
                    continue;
                }
                drawn.push(BudgetDraw::Limit {
                    limit,
                    stake: self.budgets.limits[limit as usize].adopt(now, call, *progress),
                    is_kept: false,
                });
            }
            for drawn in drawn {
                if let BudgetDraw::Limit { limit, stake, .. } = *drawn {
                    self.budgets.limits[limit as usize].keep(now, call, stake);
                }
            }
        }
    }

    fn sort_waiting(&mut self, before: &[Before], classes: &[Option<Class>]) {
        let count = self.policy.classes().len();
        let last = Class(count as u32 - 1);
        let in_turn = self.policy.postpone() == Postpone::InTurn;
        let passed = self.parking.take_carried();
        let new = self
            .parking
            .reload(classes, count, self.budgets.second_lists(), |new| {
                let mut before = before.iter();
                let old = before.position(|old| old.now == Some(new) && old.keeps_order)?;
                Some(old as LimitId)
            });
        let old = mem::replace(&mut self.parking, new);
        let (budgets, parking, policy) = (&mut self.budgets, &mut self.parking, &self.policy);
        budgets.clear_queued();
        let mut parked = BTreeMap::new();
        self.queue.rebuild(|waiting| {
            let (call, place) = (&mut waiting.call, waiting.place);
            call.class = classes[call.class.0 as usize].unwrap_or(last);
            waiting.meets.set = budgets.set_of(call);
            waiting.held_by = waiting.held_by.and_then(|budget| heir(before, budget));
            budgets.count(waiting);
            let joins = match place {
                WaitPlace::Flow(_) => true,
                WaitPlace::Aside(_) => in_turn,
                WaitPlace::Passed => false,
            };
            if joins {
                let flow = parking.flow(FlowKey::of(&waiting.call, &waiting.meets));
                waiting.place = WaitPlace::Flow(flow);
                if let WaitPlace::Flow(from) = place
                    && let Some(budget) = old.parked_at(from)
                    && let Some(budget) = parks_at(before, budgets, policy, waiting, budget)
                {
                    parked.entry(flow).or_insert(budget);
                }
            }
        });
        self.queue.make_flows(self.parking.flows());
        for flow in 0..self.parking.flows() as u32 {
            self.refresh_head(flow);
        }
        // A call that is still the head of its flow keeps what it has claimed.
        for carried in passed {
            let waiting = &self.queue.calls[carried.head.1];
            if let WaitPlace::Flow(flow) = waiting.place
                && self.queue.head(flow) == Some(carried.head)
                && let Some(carried) = carried
                    .map(|budget| parks_at(before, &self.budgets, &self.policy, waiting, budget))
            {
                self.parking.restore(flow, carried, self.now);
            }
        }
        // Each flow waits where it did, in the order there.
        for (flow, budget) in parked {
            self.parking.park_again(flow, budget, self.now);
        }
        self.parking.reloaded();
    }
}

/// The present budget for one of the policy before.
fn heir(before: &[Before], budget: Budget) -> Option<Budget> {
    match budget {
        Budget::Limit(old) => before[old as usize].now.map(Budget::Limit),
        Budget::Bucket(_) | Budget::Quota(_) => Some(budget),
    }
}

/// The present budget for one of the policy before, if this call can be parked there.
fn parks_at<T>(
    before: &[Before],
    budgets: &Budgets,
    policy: &Policy,
    waiting: &QueuedCall<T>,
    budget: Budget,
) -> Option<Budget> {
    let budget = heir(before, budget)?;
    let parks = match budget {
        Budget::Limit(_) => {
            budgets.meets(&waiting.meets, budget) && policy.jitter(waiting.call.class).is_none()
        }
        Budget::Bucket(_) | Budget::Quota(_) => true,
    };
    parks.then_some(budget)
}

/// Whether the same calls are meant, if classes are other ones now.
fn is_same_scope(old: &Scope, new: &Scope, classes: &[Option<Class>]) -> bool {
    let now = |class: &Class| classes[class.0 as usize];
    match (old, new) {
        (Scope::Class(old), Scope::Class(new)) => now(old) == Some(*new),
        (Scope::EveryBut(old), Scope::EveryBut(new)) => {
            old.iter().map(now).eq(new.iter().copied().map(Some))
        }
        _ => old == new,
    }
}
