//! A call leaves the queue.

use alloc::vec::Vec;

use super::hold::{Drawn, Held, Hold};
use super::next::Step;
use super::park::{Asked, Own};
use super::refusal::Reason;
use super::state::Scheduler;
use crate::delay::Cause;
use crate::limiter::Progress;
use crate::queue::fair::Service;
use crate::queue::{Bar, Place, Ticket, Waiting};
use crate::slab::Key;
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    pub(super) fn run(&mut self, now: Timestamp, asked: Asked) -> Step<T> {
        let Asked { line, key, .. } = asked;
        let mut waiting = self.queue.remove(key).expect("the head of a line waits");
        let before = core::mem::take(&mut waiting.stay.before);
        let waited = self.waited_by(now, &waiting, before);
        self.discount(&waiting);
        let Waiting {
            call,
            payload,
            set,
            bucket,
            quotas,
            arrival,
            ..
        } = waiting;
        let weight = self.policy.classes()[call.class.0 as usize].weight;
        let service = Service::new(call.tokens, call.weight, weight);
        let draw = call.draw();
        let mut drawn = self.spare.pop().unwrap_or_default();
        for &limit in self.sets.limits(set).iter() {
            let limiter = &mut self.limits[limit as usize].limiter;
            drawn.push(Drawn::Limit {
                limit,
                is_kept: limiter.is_kept_for(now, call.class, draw),
                stake: limiter.take(now, call.class, draw),
            });
        }
        if let Some(bucket) = bucket {
            let taken = self.buckets.expect_mut(bucket).draw(now, call.tokens);
            drawn.push(Drawn::Bucket { bucket, taken });
        }
        let mut told = Vec::with_capacity(quotas.as_ref().map_or(0, |keys| keys.len()));
        for &quota in quotas.iter().flat_map(|keys| keys.iter()) {
            let was_held_by = |name: &str| {
                let mut delays = waited.delays.iter();
                delays.any(|delay| matches!(&delay.cause, Cause::Limit(limit) if **limit == *name))
            };
            let took = self
                .quotas
                .take(now, quota, call.tokens, call.arrived, was_held_by);
            let spent = took.spent;
            drawn.push(Drawn::Quota { quota, spent });
            told.push(took);
        }
        let from = drawn.iter().map(|drawn| {
            let is_kept = matches!(drawn, Drawn::Limit { is_kept: true, .. });
            (drawn.bar(), is_kept)
        });
        let next = self.queue.head(line);
        let served = self.parking.served(line, service, from, next);
        self.refresh_head(line);
        if let Some(keys) = quotas {
            self.quotas.unpin(now, &keys);
        }
        let held = Held {
            since: now,
            call,
            arrival,
            service,
            served,
            drawn,
            progress: Progress::default(),
        };
        let hold = Hold(self.holds.insert(held));
        Step::Run {
            payload,
            hold,
            waited,
            spent: told,
        }
    }

    pub(super) fn expire(
        &mut self,
        now: Timestamp,
        key: Key,
        reason: Reason,
        bar: Option<Bar>,
    ) -> Step<T> {
        let held_by = bar.or_else(|| self.held_by(self.queue.expect(key)));
        let reason = self.because_of_the_store(reason, held_by);
        let waited = self.waited(now, Ticket(key)).unwrap_or_default();
        if let Some(Bar::Quota(key)) = held_by {
            self.quotas.refused(key);
        }
        let own = Own::of(self.queue.expect(key));
        let waiting = self.take_out(key);
        let Waiting {
            call, payload, set, ..
        } = waiting;
        let limit = held_by.and_then(|bar| self.name(bar));
        let refusal = self.refusal(now, reason, limit, set, &own, &call);
        Step::Expired {
            payload,
            refusal,
            waited,
        }
    }

    /// Takes a call out of wherever it waits, without service.
    pub(super) fn take_out(&mut self, key: Key) -> Waiting<T> {
        let waiting = self.queue.remove(key).expect("the call waits");
        self.discount(&waiting);
        if let Place::Line(line) = waiting.place {
            self.refresh_head(line);
        }
        if let Some(keys) = &waiting.quotas {
            self.quotas.unpin(self.now, keys);
        }
        waiting
    }
}
