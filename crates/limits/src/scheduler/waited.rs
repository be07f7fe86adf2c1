//! The causes of the waits of calls, by name.

use alloc::sync::Arc;
use core::time::Duration;

use super::budgets::Budgets;
use super::park::Parking;
use super::state::Scheduler;
use crate::delay::{DelayCause, Delays};
use crate::queue::account::WaitCause;
use crate::queue::{QueuedCall, Ticket, WaitPlace};
use crate::time::Timestamp;

/// The causes of a call's wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitReport {
    /// The limit, bucket or quota that held it last; `None` if none did.
    pub held_by: Option<Arc<str>>,
    /// Times it was set aside; 0 with [`Postpone::InTurn`](crate::policy::Postpone::InTurn).
    pub postponed: u32,
    /// How long it waited for what: together the time since it was taken in or requeued.
    ///
    /// If several limits were closed at once, the time counts for the one where the call was
    /// parked: its bucket if that had no tokens, or else the strictest one by [`Verdict`] when it
    /// was asked. A call behind others waits for what they wait for. A call set aside waits for
    /// what set it aside.
    ///
    /// [`Verdict`]: crate::Verdict
    pub delays: Delays,
    /// When it began to wait, and the start that was foreseen then, if one was.
    pub foreseen: Option<(Timestamp, Timestamp)>,
}

impl Budgets {
    /// Adds what a call has waited for where it is now.
    fn add_stay<T>(
        &self,
        now: Timestamp,
        waiting: &QueuedCall<T>,
        parking: &Parking,
        delays: &mut Delays,
    ) {
        let stay = &waiting.stay;
        if now <= stay.since {
            return;
        }
        let mut add = |behind, time: Duration| {
            let cause = match behind {
                _ if time.is_zero() => return,
                WaitCause::Budget(budget) => self
                    .name(budget)
                    .map_or(DelayCause::Others, DelayCause::Limit),
                WaitCause::Turn => DelayCause::Turn,
            };
            delays.add(cause, time);
        };
        match waiting.place {
            WaitPlace::Flow(flow) => parking.account(flow).since_joining(now, stay, add),
            WaitPlace::Aside(_) => {
                let behind = waiting.held_by.map_or(WaitCause::Turn, WaitCause::Budget);
                add(behind, now.since(stay.since));
            }
            // No limit holds it.
            WaitPlace::Passed => {}
        }
    }

    /// A call is about to wait elsewhere, or for limits that will have other numbers: what it
    /// has waited for so far goes with it.
    pub(super) fn carry_over<T>(
        &self,
        now: Timestamp,
        waiting: &mut QueuedCall<T>,
        parking: &Parking,
    ) {
        let mut delays = core::mem::take(&mut waiting.stay.before);
        self.add_stay(now, waiting, parking, &mut delays);
        waiting.stay.before = delays;
        waiting.stay.since = now;
        waiting.stay.joined = None;
    }
}

impl<T> Scheduler<T> {
    /// The causes of the wait of a waiting call up to `now`; `None` if it no longer waits.
    #[must_use]
    pub fn waited(&self, now: Timestamp, ticket: Ticket) -> Option<WaitReport> {
        let waiting = self.queue.calls.get(ticket.0)?;
        let before = waiting.stay.before.clone();
        Some(self.waited_by(self.now.max(now), waiting, before))
    }

    /// The causes of a call's wait: `delays` where it was before, and the rest where it is or, if nothing has
    /// changed since it was taken out, was.
    #[inline]
    pub(super) fn waited_by(
        &self,
        now: Timestamp,
        waiting: &QueuedCall<T>,
        mut delays: Delays,
    ) -> WaitReport {
        self.budgets
            .add_stay(now, waiting, &self.parking, &mut delays);
        WaitReport {
            held_by: self
                .held_by(waiting)
                .and_then(|budget| self.budgets.name(budget)),
            postponed: waiting.postponed,
            delays,
            foreseen: waiting
                .counted
                .and_then(|counted| Some((counted.since, counted.starts()?))),
        }
    }
}
