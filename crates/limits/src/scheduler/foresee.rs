//! Predictions of starts, from the counts of the [`forecast`](super::forecast).

mod early;
mod estimate;
mod memo;
mod retry;

use alloc::vec::Vec;

use self::estimate::LaterArrivals;
use super::forecast::{
    DrawAmounts, FlowPosition, Forecast, ForecastEntry, OwnDraws, Prediction, add,
};
use super::state::Scheduler;
use crate::queue::fair::TurnAdvance;
use crate::queue::{Budget, QueuedCall, Ticket};
use crate::slab::SlabKey;
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// Predicts when a call that has just begun to wait starts, and counts it for the predictions of others.
    /// Until then it is ahead of no call. `None` if that is not known, or if it waits no more.
    ///
    /// `reopens` is when limits open that [`Supplier::Operator`](crate::scheduler::Supplier::Operator) closes.
    /// Takes time by the limits that the call meets, not by the number of waiting calls.
    pub fn foresee(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        reopens: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let now = self.now.max(now);
        let is_new = self.queue.calls.get(ticket.0)?.counted.is_none();
        let counted = self.count_for_forecast(now, ticket.0, reopens)?;
        if is_new {
            self.forecast.arrived(now, &self.queue.calls[ticket.0]);
        }
        counted.starts()
    }

    fn count_for_forecast(
        &mut self,
        now: Timestamp,
        key: SlabKey,
        reopens: Option<Timestamp>,
    ) -> Option<ForecastEntry> {
        let waiting = self.queue.calls.get(key)?;
        if waiting.counted.is_some() {
            return waiting.counted;
        }
        let (call, meets) = (&waiting.call, &waiting.meets);
        let estimate = self.estimate(now, call, meets, None, reopens, LaterArrivals::AsLately);
        let counted = ForecastEntry {
            at: estimate.by.map(|budget| self.first_peer(budget)),
            since: now,
            starts: estimate.starts.unwrap_or(Timestamp::MAX),
        };
        self.forecast.count(waiting, counted.at);
        self.queue.calls[key].counted = Some(counted);
        Some(counted)
    }

    /// A call leaves the queue, or changes: it is not counted any more.
    #[inline]
    pub(super) fn forecast_without(&mut self, waiting: &QueuedCall<T>, served: bool) {
        self.forecast.discount(waiting, served);
    }

    fn first_peer(&self, budget: Budget) -> Budget {
        match budget {
            Budget::Limit(limit) => Budget::Limit(self.budgets.sets.first_peer(limit)),
            Budget::Bucket(_) | Budget::Quota(_) => budget,
        }
    }

    /// Counts a call again that has changed. What was foreseen when it began to wait stays.
    pub(super) fn count_again(&mut self, key: SlabKey, before: Option<ForecastEntry>) {
        let Some(before) = before else { return };
        self.count_for_forecast(self.now, key, None);
        if let Some(new) = &mut self.queue.calls[key].counted {
            (new.since, new.starts) = (before.since, before.starts);
        }
    }

    /// Counts all calls again: their limits have changed. Linear in the number of waiting calls.
    pub(super) fn recount_forecast(&mut self) {
        self.forecast = Forecast::default();
        for key in self.queue.in_order(|waiting| waiting.counted.is_some()) {
            let before = self.queue.calls[key].counted.take();
            self.count_again(key, before);
        }
    }

    /// Predicts the start of waiting calls, one for each ticket; `None` for a call that waits no more. Looks at
    /// every waiting call.
    #[must_use]
    pub fn foreseen(
        &self,
        now: Timestamp,
        tickets: &[Ticket],
        reopens: Option<Timestamp>,
    ) -> Vec<Option<Prediction>> {
        let now = self.now.max(now);
        let mut places: Vec<Option<(&QueuedCall<T>, FlowPosition)>> = tickets
            .iter()
            .map(|ticket| Some((self.queue.calls.get(ticket.0)?, FlowPosition::default())))
            .collect();
        for (_, other) in self.queue.calls.iter() {
            let Some(ForecastEntry { at, .. }) = other.counted else {
                continue;
            };
            for (waiting, place) in places.iter_mut().flatten() {
                if other.call.caller != waiting.call.caller
                    || other.call.class != waiting.call.class
                {
                    continue;
                }
                if other.arrival >= waiting.arrival {
                    let set = (at, other.meets.set, other.call.class);
                    add(&mut place.behind, set, |draw: &mut DrawAmounts| {
                        *draw += DrawAmounts::of(&other.call);
                    });
                } else if let Some(at) = at {
                    add(&mut place.ahead, at, |own: &mut OwnDraws| {
                        let service = TurnAdvance::new(other.call.tokens, other.call.weight, 1);
                        own.depth += service.of_caller();
                        own.draw += DrawAmounts::of(&other.call);
                    });
                }
            }
        }
        let all = places.into_iter().map(|of| {
            let (waiting, place) = of?;
            let own = Some(&place);
            let (call, meets) = (&waiting.call, &waiting.meets);
            let estimate = self.estimate(now, call, meets, own, reopens, LaterArrivals::AsLately);
            Some(Prediction {
                starts: estimate.starts,
                ahead: estimate.ahead,
                by: estimate.by.and_then(|budget| self.budgets.name(budget)),
            })
        });
        all.collect()
    }

    /// When the last of the calls that wait now starts; `None` if that is not known, or if no call waits.
    #[must_use]
    pub fn all_started(&self, now: Timestamp, reopens: Option<Timestamp>) -> Option<Timestamp> {
        let now = self.now.max(now);
        let mut last = None;
        let mut known = true;
        let mut seen = None;
        for &(at, set, _) in self.forecast.sets.keys() {
            let Some(at) = at else { continue };
            if seen.replace(at) == Some(at) {
                continue;
            }
            let ends = self.drained(now, at, set, reopens);
            known &= ends.is_some();
            last = last.max(ends);
        }
        last.filter(|_| known)
    }
}
