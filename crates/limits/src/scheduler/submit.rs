//! A call arrives.

use alloc::sync::Arc;

use super::bucket_rule::OnExcess;
use super::moved::{count_waiting, count_waiting_own};
use super::park::{LineKey, Own};
use super::quota::{self, Found, NoRoomForKeys, Pinned};
use super::refusal::{Reason, Refusal};
use super::state::Scheduler;
use crate::bucket::TokenCount;
use crate::call::Call;
use crate::limiter::RETRY_UNMEASURED;
use crate::policy::{LimitId, SetId, WhenFull};
use crate::queue::account::Stay;
use crate::queue::{Bar, Place, Ticket, Waiting};
use crate::quota::Answer as QuotaAnswer;
use crate::slab::Key;
use crate::time::Timestamp;
use crate::verdict::Verdict;

impl<T> Scheduler<T> {
    /// Takes a call in. Its ticket cancels it. Whether it may run is decided by
    /// [`next`](Self::next), which still asks a call whose deadline is the same `now`.
    ///
    /// # Errors
    ///
    /// A refusal, with the payload, if the call could never run, could run only after its deadline
    /// even with no call ahead of it, or finds no place.
    pub fn submit(
        &mut self,
        now: Timestamp,
        mut call: Call,
        payload: T,
    ) -> Result<Ticket, (Refusal, T)> {
        let now = self.advance(now);
        call.class = self.clamp(call.class);
        let set = self.sets.find(&call.function, call.backend, call.class);
        let bucket = self.buckets.find(call.bucket);
        // A call that is refused makes no ledger: another key would go for it.
        let found = self.quotas.find_all(&call);
        if let Some((reason, by)) = self.refuse_at_once(now, &call, set, bucket, &found) {
            let limit = match by {
                Some(By::Limit(limit)) => self.name(Bar::Limit(limit)),
                Some(By::Bucket(bucket)) => {
                    if reason == Reason::RateLimited {
                        self.buckets.expect_mut(bucket).rejected += 1;
                    }
                    self.name(Bar::Bucket(bucket))
                }
                Some(By::Quota(found)) => {
                    self.quotas.refuse(now, found, call.tokens);
                    self.quotas.name_of(found)
                }
                None => None,
            };
            let quotas = quota::known(&found);
            let own = Own { bucket, quotas };
            let refusal = self.refusal(now, reason, limit, set, &own, &call);
            return Err((refusal, payload));
        }
        let quotas = match self.pin_quotas(now, &call, &found) {
            Ok(quotas) => quotas,
            Err(refusal) => return Err((refusal, payload)),
        };
        let own = Own { bucket, quotas };
        Ok(self.join(call, payload, set, own, None))
    }

    /// Finds the quotas of a call that comes in.
    fn pin_quotas(
        &mut self,
        now: Timestamp,
        call: &Call,
        found: &[Found],
    ) -> Result<Pinned, Refusal> {
        self.quotas.pin(now, call, found).map_err(|NoRoomForKeys| {
            let first = call.quotas.as_ref().and_then(|keys| keys.first());
            Refusal {
                limit: first.map(|of| Arc::clone(&of.quota)),
                reason: Reason::QueueFull,
                retry_after: RETRY_UNMEASURED,
            }
        })
    }

    fn refuse_at_once(
        &self,
        now: Timestamp,
        call: &Call,
        set: SetId,
        bucket: Option<Key>,
        quotas: &[Found],
    ) -> Option<(Reason, Option<By>)> {
        if self.draining {
            return Some((Reason::Draining, None));
        }
        if call.deadline.is_some_and(|deadline| deadline < now) {
            return Some((Reason::DeadlinePassed, None));
        }
        let mut last = (now, None);
        for &limit in self.sets.limits(set).iter() {
            let limiter = &self.limits[limit as usize].limiter;
            if limiter.is_beyond(call.class, call.draw()) {
                return Some((Reason::NeverPossible, Some(By::Limit(limit))));
            }
            // Most deadlines are beyond whatever a limit could be waiting for.
            if call
                .deadline
                .is_some_and(|deadline| deadline < limiter.opens_by(now))
            {
                let verdict = limiter.peek(now, call.class, call.draw(), 0);
                let earliest = limiter.earliest(now, call.class, call.draw(), verdict);
                if earliest > last.0 {
                    last = (earliest, Some(By::Limit(limit)));
                }
            }
        }
        if let Some(key) = bucket {
            let bucket = self.buckets.expect(key);
            if bucket.rule.on_excess == OnExcess::Reject
                && !bucket.wait_behind(now, call.tokens).is_zero()
            {
                return Some((Reason::RateLimited, Some(By::Bucket(key))));
            }
            if let (Some(_), Verdict::NotBefore(moment)) = (
                call.deadline,
                bucket.peek(now, TokenCount::ZERO, call.tokens),
            ) && moment > last.0
            {
                last = (moment, Some(By::Bucket(key)));
            }
        }
        for &found in quotas {
            let (answer, is_rejected) = self.quotas.ask(now, found, call.tokens);
            if answer == QuotaAnswer::Never {
                return Some((Reason::NeverPossible, Some(By::Quota(found))));
            }
            if is_rejected {
                return Some((quota::reason(answer), Some(By::Quota(found))));
            }
            if let Verdict::NotBefore(moment) = answer.into()
                && moment > last.0
            {
                last = (moment, Some(By::Quota(found)));
            }
        }
        if call.deadline.is_some_and(|deadline| deadline < last.0) {
            return Some((Reason::DeadlineUnreachable, last.1));
        }
        let door = match self.policy.when_full() {
            WhenFull::Refuse => 0,
            WhenFull::Wait { door } => door,
        };
        let most = u64::from(self.policy.capacity()) + u64::from(door);
        (self.queue.len() as u64 >= most).then_some((Reason::QueueFull, None))
    }

    /// A call begins to wait in its line: at the end, or at its place before.
    #[inline]
    pub(super) fn join(
        &mut self,
        call: Call,
        payload: T,
        set: SetId,
        own: Own,
        arrival: Option<u64>,
    ) -> Ticket {
        let joined = self.count_joining();
        let line = self.line(LineKey::new(set, &call, own.clone()));
        let waiting = Waiting {
            call,
            payload,
            set,
            bucket: own.bucket,
            quotas: own.quotas,
            arrival: arrival.unwrap_or(joined),
            place: Place::Line(line),
            joined,
            held_by: None,
            postponed: 0,
            stay: Stay::new(self.now, self.parking.note_account(line)),
        };
        count_waiting(&self.sets, &mut self.limits, &waiting);
        count_waiting_own(&mut self.quotas, &mut self.buckets, &waiting);
        let key = self.queue.insert(waiting);
        self.refresh_head(line);
        Ticket(key)
    }
}

/// What refuses a call that comes in.
#[derive(Clone, Copy)]
pub(super) enum By {
    Limit(LimitId),
    Bucket(Key),
    Quota(Found),
}
