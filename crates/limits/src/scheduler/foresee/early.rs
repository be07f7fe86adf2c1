//! Refuses a call at once that would wait past its deadline, as far as can be predicted.

use core::time::Duration;

use super::estimate::{Estimate, LaterArrivals};
use crate::queue::{Budget, QueuedCall, Ticket};
use crate::scheduler::refusal::{Refusal, RefusalReason};
use crate::scheduler::{Scheduler, Step};
use crate::time::Timestamp;

/// A start is predicted late if it is after the deadline by more than this part of the wait, and by [`LEAST`]. So
/// fewer than 1 of 100 calls that are refused would have made it: `tests/forecast.rs`.
const MARGIN: f64 = 0.25;

/// The margin where only calls of the same caller and class wait: they start in the order of their arrival, so less
/// is unknown. Calls that are admitted within the margin wait, and most of them are refused when they are late.
const MARGIN_IN_ORDER: f64 = 0.1;

/// The least margin, however short the wait is.
const LEAST: Duration = Duration::from_millis(50);

impl<T> Scheduler<T> {
    /// Takes a call out that has just begun to wait, if it would start after its deadline even if no call came
    /// after it. Ask before [`foresee`](Self::foresee). With a margin, because a prediction has an error. `None` for
    /// a call without a deadline or without a prediction, while its limits grow, and if it may be set aside at
    /// random.
    pub fn refuse_if_late(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        reopens: Option<Timestamp>,
    ) -> Option<(Refusal, T)> {
        let now = self.now.max(now);
        let waiting = self.queue.calls.get(ticket.0)?;
        let (call, meets) = (&waiting.call, &waiting.meets);
        let deadline = call.deadline?;
        let grows = self.budgets.limits_of(meets).any(|(_, it)| it.is_growing());
        if grows || self.policy.jitter(call.class).is_some() {
            return None;
        }
        let estimate = self.without_later(now, ticket, reopens)?;
        let is_in_order = match estimate.by {
            Some(Budget::Limit(limit)) => {
                let limit = self.budgets.sets.first_peer(limit);
                let QueuedCall { call, .. } = &self.queue.calls[ticket.0];
                self.forecast.holds_only(limit, call.class, call.caller)
            }
            _ => false,
        };
        let margin = if is_in_order { MARGIN_IN_ORDER } else { MARGIN };
        let wait = estimate.starts?.since(now).mul_f64(1.0 - margin);
        if now + wait <= deadline + LEAST {
            return None;
        }
        let Step::Expired {
            payload, refusal, ..
        } = self.expire(now, ticket.0, RefusalReason::PredictedLate, estimate.by)
        else {
            return None;
        };
        Some((refusal, payload))
    }

    /// When a call that has just begun to wait starts if no call comes after it, as an early refusal goes by; `None`
    /// as with [`foresee`](Self::foresee), which is called after this.
    #[must_use]
    pub fn foresee_at_least(
        &self,
        now: Timestamp,
        ticket: Ticket,
        reopens: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let now = self.now.max(now);
        self.without_later(now, ticket, reopens)?.starts
    }

    fn without_later(
        &self,
        now: Timestamp,
        ticket: Ticket,
        reopens: Option<Timestamp>,
    ) -> Option<Estimate> {
        let QueuedCall { call, meets, .. } = self.queue.calls.get(ticket.0)?;
        Some(self.estimate(now, call, meets, None, reopens, LaterArrivals::None))
    }
}
