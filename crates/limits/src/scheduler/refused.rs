//! When a refused call should retry.

use alloc::sync::Arc;
use core::time::Duration;

use super::park::Own;
use super::refusal::{Reason, Refusal};
use super::state::Scheduler;
use crate::call::Call;
use crate::limiter::RETRY_UNMEASURED;
use crate::policy::SetId;
use crate::time::Timestamp;

/// The least time after which coming back makes sense; "now" would be a lie.
const RETRY_MIN: Duration = Duration::from_millis(1);

impl<T> Scheduler<T> {
    /// A refusal with the retry time of the slowest limit that the call meets, behind all waiting
    /// calls.
    pub(super) fn refusal(
        &self,
        now: Timestamp,
        reason: Reason,
        limit: Option<Arc<str>>,
        set: SetId,
        own: &Own,
        call: &Call,
    ) -> Refusal {
        let retry_after = match reason {
            Reason::NeverPossible | Reason::Draining => RETRY_UNMEASURED,
            Reason::QueueFull
            | Reason::DeadlinePassed
            | Reason::DeadlineUnreachable
            | Reason::RateLimited
            | Reason::StoreAway => {
                let limits = self.sets.limits(set).iter().map(|&id| {
                    let met = &self.limits[id as usize];
                    met.limiter
                        .wait_behind(now, call.class, met.waiting_draw, call.draw())
                });
                let bucket = own.bucket.and_then(|bucket| self.buckets.get(bucket));
                let bucket = bucket.map(|bucket| bucket.wait_behind(now, call.tokens));
                let quotas = own.quotas.iter().flat_map(|keys| keys.iter());
                let quotas = quotas.map(|&key| self.quotas.opens(now, key, call.tokens).since(now));
                limits
                    .chain(bucket)
                    .chain(quotas)
                    .max()
                    .unwrap_or(RETRY_UNMEASURED)
                    .max(RETRY_MIN)
            }
        };
        Refusal {
            limit,
            reason,
            retry_after,
        }
    }
}
