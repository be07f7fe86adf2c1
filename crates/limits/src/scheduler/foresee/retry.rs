//! When a refused call may come back, from the counts of the forecast. No waiting call is looked at.

use alloc::vec::Vec;

use super::super::forecast::{Counted, Draw, Own, PlaceAt};
use super::super::refusal::Reason;
use super::super::state::Scheduler;
use super::estimate::{Later, SETS_MAX};
use crate::call::Call;
use crate::policy::SetId;
use crate::queue::fair::Service;
use crate::queue::{Bar, Meets};
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// When a call that is refused now would start behind all that waits of its own caller, in turn with the others;
    /// and not before a full queue has a place. `None` if no prediction says that: the order is random, the calls
    /// that wait are not counted, or a limit is closed and no moment is known at which it opens.
    ///
    /// `counted` is how the call itself is counted, if it still waits.
    pub(in crate::scheduler) fn comes_back(
        &self,
        now: Timestamp,
        reason: Reason,
        call: &Call,
        meets: &Meets,
        counted: Option<Counted>,
    ) -> Option<Timestamp> {
        let waits = match reason {
            Reason::QueueFull
            | Reason::DeadlinePassed
            | Reason::DeadlineUnreachable
            | Reason::PredictedLate => true,
            Reason::NeverPossible | Reason::RateLimited | Reason::StoreAway | Reason::Draining => {
                false
            }
        };
        let is_counted = self.queue.calls.is_empty() || !self.forecast.sets.is_empty();
        if !waits || !is_counted || self.policy.jitter(call.class).is_some() {
            return None;
        }
        let place = self.behind_its_own(call, meets, counted);
        // Behind the calls that wait: of those that come later, no call is promised a turn before it.
        let starts = self.estimate(now, call, meets, Some(&place), self.reopens, Later::None);
        let starts = starts.starts?;
        Some(match reason {
            Reason::QueueFull => starts.max(self.next_place(now).unwrap_or(starts)),
            _ => starts,
        })
    }

    /// The place behind all calls of its own flow, except itself.
    fn behind_its_own(&self, call: &Call, meets: &Meets, counted: Option<Counted>) -> PlaceAt {
        let one = Service::new(call.tokens, call.weight, 1).of_caller();
        let ahead = self.bars.of(meets).filter_map(|bar| {
            let mut own = Own::default();
            let bar = match bar {
                Bar::Limit(limit) => {
                    let first = self.bars.sets.first_peer(limit);
                    let flow = self.forecast.flows.get(&(first, call.class, call.caller));
                    let flow = flow.copied().unwrap_or_default();
                    (own.depth, own.draw) = (flow.depth, flow.draw);
                    Bar::Limit(first)
                }
                // All calls that meet it are in there, whatever holds them.
                Bar::Bucket(bucket) => {
                    own.draw = Draw::of_tokens(self.bars.buckets.all[bucket].queued.draw);
                    bar
                }
                Bar::Quota(_) => return None,
            };
            let is_bucket = matches!(bar, Bar::Bucket(_));
            if counted.is_some_and(|counted| is_bucket || counted.at == Some(bar)) {
                own.depth = own.depth.saturating_sub(one);
                own.draw = own.draw.without(Draw::of(call));
            }
            Some((bar, own))
        });
        let itself = counted.map(|counted| {
            let set = (counted.at, meets.set, call.class);
            (set, Draw::of(call))
        });
        PlaceAt {
            ahead: ahead.collect(),
            behind: Vec::from_iter(itself),
        }
    }

    /// When the first of the waiting calls leaves the queue, as far as that is known.
    fn next_place(&self, now: Timestamp) -> Option<Timestamp> {
        let sets = self.forecast.sets.keys().take(SETS_MAX);
        let starts = sets.filter_map(|&(at, set, _)| self.first_starts(now, at, set));
        let expires = self.queue.first_deadline().map(|(at, _)| at);
        starts.chain(expires).min()
    }

    /// When the first of the calls starts that meet these limits and wait for this.
    fn first_starts(&self, now: Timestamp, at: Option<Bar>, set: SetId) -> Option<Timestamp> {
        let call = Call::new("", now);
        let meets = Meets {
            set,
            ..Meets::default()
        };
        let mut from = now;
        for (_, limiter) in self.bars.limits_of(&meets) {
            from = from.max(limiter.supplied_from(now, self.reopens)?);
        }
        let mut opens = from;
        for (limit, _) in self.bars.limits_of(&meets) {
            opens = opens.max(self.opening(from, limit, &call, &meets, 0, 0)?);
        }
        match at {
            Some(Bar::Bucket(bucket)) => {
                let bucket = self.bars.buckets.all.get(bucket)?;
                Some(opens.max(from + bucket.wait_with(from, 0, call.tokens)))
            }
            Some(Bar::Limit(_)) | None => Some(opens),
            Some(Bar::Quota(_)) => None,
        }
    }
}
