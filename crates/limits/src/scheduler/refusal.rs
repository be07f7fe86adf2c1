//! Why a call does not run, and when to come back.

use alloc::sync::Arc;
use core::time::Duration;

use super::Scheduler;
use crate::limiter::RETRY_UNMEASURED;
use crate::policy::{LimitId, SetId};
use crate::time::Timestamp;
use crate::verdict::Cost;

/// The least time after which coming back makes sense; "now" would be a lie.
const RETRY_MIN: Duration = Duration::from_millis(1);

/// A call that does not run: a value, not an error. It has drawn nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The limit that stood in the way, if one did.
    pub limit: Option<Arc<str>>,
    /// Why.
    pub reason: Reason,
    /// When coming back makes sense, from the limits' state: at least a millisecond. Says
    /// nothing for [`Reason::NeverPossible`].
    pub retry_after: Duration,
}

/// Why a call does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There was no place in the queue, nor at the door.
    QueueFull,
    /// It waited until its deadline.
    DeadlinePassed,
    /// Its own limits open only after its deadline, even with nobody ahead of it.
    DeadlineUnreachable,
    /// It costs more than a limit will ever allow.
    NeverPossible,
    /// Nothing new is taken in.
    Draining,
}

impl Reason {
    /// The word for it in replies, logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::DeadlinePassed => "deadline_passed",
            Self::DeadlineUnreachable => "deadline_unreachable",
            Self::NeverPossible => "never_possible",
            Self::Draining => "draining",
        }
    }
}

impl<T> Scheduler<T> {
    /// A refusal whose time to come back is that of the slowest limit the call meets, behind
    /// all who wait there now.
    pub(super) fn refusal(
        &self,
        now: Timestamp,
        reason: Reason,
        limit: Option<LimitId>,
        set: SetId,
        cost: Cost,
    ) -> Refusal {
        let limit = limit.map(|id| self.limits[id as usize].rule.name.clone());
        let retry_after = match reason {
            Reason::NeverPossible | Reason::Draining => RETRY_UNMEASURED,
            Reason::QueueFull | Reason::DeadlinePassed | Reason::DeadlineUnreachable => self
                .sets
                .limits(set)
                .iter()
                .map(|&id| &self.limits[id as usize])
                .map(|met| met.limiter.wait_behind(now, met.waiting_draw, cost))
                .max()
                .unwrap_or(RETRY_UNMEASURED)
                .max(RETRY_MIN),
        };
        Refusal {
            limit,
            reason,
            retry_after,
        }
    }
}
