//! A call arrives.

use alloc::sync::Arc;
use core::time::Duration;

use super::bucket::OnExcess;
use super::forecast::ForecastEntry;
use super::park::FlowKey;
use super::quota::{self, KeyMatch};
use super::refusal::{Refusal, RefusalReason};
use super::state::Scheduler;
use crate::bucket::TokenCount;
use crate::call::Call;
use crate::limiter::RETRY_UNMEASURED;
use crate::policy::WhenFull;
use crate::queue::account::Stay;
use crate::queue::{Budget, BudgetSet, QueuedCall, Ticket, WaitPlace};
use crate::quota::Coverage as QuotaAnswer;
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// The least time after which coming back makes sense; "now" would be a lie.
const RETRY_MIN: Duration = Duration::from_millis(1);

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
        call: Call,
        payload: T,
    ) -> Result<Ticket, (Refusal, T)> {
        let now = self.advance(now);
        let place = match self.has_place() {
            true => ArrivalPlace::New,
            false => ArrivalPlace::Full,
        };
        self.submit_at(now, call, payload, place)
    }

    /// Takes a call in at this place.
    pub(super) fn submit_at(
        &mut self,
        now: Timestamp,
        mut call: Call,
        payload: T,
        place: ArrivalPlace,
    ) -> Result<Ticket, (Refusal, T)> {
        call.class = self.clamp(call.class);
        // A call that is refused makes no ledger: another key would go for it.
        let found = self.budgets.quotas.find_all(&call);
        let mut meets = BudgetSet {
            set: self.budgets.set_of(&call),
            bucket: self.budgets.buckets.find(call.bucket),
            quotas: None,
        };
        if let Some((reason, by)) = self.refuse_at_once(now, &call, &meets, &found, place) {
            if let (
                RefusalReason::RateLimited,
                Some(RefusingBudget::Budget(Budget::Bucket(bucket))),
            ) = (reason, by)
            {
                self.budgets.buckets.all[bucket].counts.rejected += 1;
            }
            let limit = match by {
                Some(RefusingBudget::Budget(budget)) => self.budgets.name(budget),
                Some(RefusingBudget::Quota(found)) => {
                    self.budgets.quotas.refuse(now, found, call.tokens);
                    self.budgets.quotas.name_of(found)
                }
                None => None,
            };
            meets.quotas = quota::known(&found);
            let refusal = self.refusal(now, reason, limit, &meets, &call, None);
            return Err((refusal, payload));
        }
        let Ok(pinned) = self.budgets.quotas.pin(now, &call, &found) else {
            let first = call.quotas.as_ref().and_then(|keys| keys.first());
            let refusal = Refusal {
                limit: first.map(|of| Arc::clone(&of.quota)),
                reason: RefusalReason::QueueFull,
                retry_after: RETRY_UNMEASURED,
            };
            return Err((refusal, payload));
        };
        meets.quotas = pinned;
        let arrival = match place {
            ArrivalPlace::Kept(arrival) => Some(arrival),
            ArrivalPlace::New | ArrivalPlace::Full => None,
        };
        Ok(self.join(call, payload, meets, arrival))
    }

    /// Whether there is a place in the queue or at its door for one more call.
    fn has_place(&self) -> bool {
        let door = match self.policy.when_full() {
            WhenFull::Refuse => 0,
            WhenFull::Wait { door } => door,
        };
        let most = u64::from(self.policy.capacity()) + u64::from(door);
        (self.queue.calls.len() as u64) < most
    }

    fn refuse_at_once(
        &self,
        now: Timestamp,
        call: &Call,
        meets: &BudgetSet,
        quotas: &[KeyMatch],
        place: ArrivalPlace,
    ) -> Option<(RefusalReason, Option<RefusingBudget>)> {
        if self.draining {
            return Some((RefusalReason::Draining, None));
        }
        if call.deadline.is_some_and(|deadline| deadline < now) {
            return Some((RefusalReason::DeadlinePassed, None));
        }
        let mut last = (now, None);
        let mut opens = |moment, by| {
            if moment > last.0 {
                last = (moment, by);
            }
        };
        for (limit, limiter) in self.budgets.limits_of(meets) {
            let by = Some(RefusingBudget::Budget(Budget::Limit(limit)));
            if limiter.is_beyond(call) {
                return Some((RefusalReason::NeverPossible, by));
            }
            // Most deadlines are beyond whatever a limit could be waiting for.
            if let Some(deadline) = call.deadline
                && !limiter.is_growing()
                && deadline < limiter.opens_by(now)
            {
                let verdict = limiter.peek(now, call, 0);
                opens(limiter.earliest(now, call, verdict), by);
            }
        }
        if let Some(group) = self.budgets.servers_for(call) {
            let by = Some(RefusingBudget::Budget(Budget::Limit(group.limit)));
            match self.budgets.servers_open(now, group, call) {
                None => return Some((RefusalReason::NeverPossible, by)),
                Some(at) => opens(at, by),
            }
        }
        if let Some(key) = meets.bucket {
            let bucket = &self.budgets.buckets.all[key];
            let by = Some(RefusingBudget::Budget(Budget::Bucket(key)));
            if bucket.rule.on_excess == OnExcess::Reject
                && !bucket.wait_behind(now, call.tokens).is_zero()
            {
                return Some((RefusalReason::RateLimited, by));
            }
            if call.deadline.is_some()
                && let verdict = bucket.peek(now, TokenCount::ZERO, call.tokens)
                && let Verdict::NotBefore(moment) = verdict
            {
                opens(moment, by);
            }
        }
        for &found in quotas {
            let (answer, is_rejected) = self.budgets.quotas.ask(now, found, call);
            let by = Some(RefusingBudget::Quota(found));
            if answer == QuotaAnswer::Never {
                return Some((RefusalReason::NeverPossible, by));
            }
            if is_rejected {
                return Some((quota::reason(answer), by));
            }
            if let Verdict::NotBefore(moment) = answer.into() {
                opens(moment, by);
            }
        }
        if call.deadline.is_some_and(|deadline| deadline < last.0) {
            return Some((RefusalReason::DeadlineUnreachable, last.1));
        }
        matches!(place, ArrivalPlace::Full).then_some((RefusalReason::QueueFull, None))
    }

    /// A call begins to wait in its flow: at the end, or at its place before.
    #[inline]
    pub(super) fn join(
        &mut self,
        call: Call,
        payload: T,
        meets: BudgetSet,
        arrival: Option<u64>,
    ) -> Ticket {
        let arrival = arrival.unwrap_or_else(|| self.count_joining());
        let flow = self.flow(FlowKey::of(&call, &meets));
        let waiting = QueuedCall {
            call,
            payload,
            meets,
            arrival,
            place: WaitPlace::Flow(flow),
            is_suspended: false,
            held_by: None,
            postponed: 0,
            stay: Stay::new(self.now, self.parking.note_account(flow)),
            counted: None,
        };
        self.budgets.count(&waiting);
        let key = self.queue.insert(waiting);
        self.note_bound(key);
        self.refresh_head(flow);
        Ticket(key)
    }

    /// A refusal with the retry time as foreseen, or else of the slowest limit that the call meets, behind all
    /// waiting calls. `counted` is how the call is counted, if it still waits.
    pub(super) fn refusal(
        &self,
        now: Timestamp,
        reason: RefusalReason,
        limit: Option<Arc<str>>,
        meets: &BudgetSet,
        call: &Call,
        counted: Option<ForecastEntry>,
    ) -> Refusal {
        let retry_after = if let RefusalReason::NeverPossible | RefusalReason::Draining = reason {
            RETRY_UNMEASURED
        } else if let Some(at) = self.comes_back(now, reason, call, meets, counted) {
            at.since(now).max(RETRY_MIN)
        } else {
            let budgets = self.budgets.of(meets);
            let waits = budgets.map(|budget| self.budgets.wait(now, budget, call));
            waits.max().unwrap_or(RETRY_UNMEASURED).max(RETRY_MIN)
        };
        Refusal {
            limit,
            reason,
            retry_after,
        }
    }
}

/// The place of a call that arrives.
#[derive(Clone, Copy, Debug)]
pub(super) enum ArrivalPlace {
    /// The end of its flow.
    New,
    /// There is none.
    Full,
    /// The place that it had before, by its arrival.
    Kept(u64),
}

/// The budget that refuses a call at its arrival.
#[derive(Clone, Copy)]
enum RefusingBudget {
    Budget(Budget),
    Quota(KeyMatch),
}
