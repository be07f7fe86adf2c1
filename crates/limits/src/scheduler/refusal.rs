//! Why a call does not run, and when to come back.

use alloc::sync::Arc;
use core::time::Duration;

/// A call that does not run: a value, not an error. It has drawn nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The limit, bucket or quota that barred the call, if any.
    pub limit: Option<Arc<str>>,
    /// Why.
    pub reason: RefusalReason,
    /// When to retry: at least one millisecond. Has no meaning for [`RefusalReason::NeverPossible`].
    ///
    /// If starts are predicted ([`foresee`](crate::Scheduler::foresee)), a call that the queue or its deadline
    /// refused may come back when it would start behind the waiting calls of its own caller, and if the queue is
    /// full not before a place is free. Otherwise, when its limits have room for it behind all calls that wait.
    pub retry_after: Duration,
}

/// Why a call does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// There was no place in the queue, nor at the door.
    QueueFull,
    /// The call waited until its deadline.
    DeadlinePassed,
    /// The call's own limits open only after its deadline, even with no call ahead of it.
    DeadlineUnreachable,
    /// The call would start after its deadline, as far as can be predicted.
    PredictedLate,
    /// The call costs more than a limit will ever allow.
    NeverPossible,
    /// The call's bucket or one of its quotas has no tokens left for it, and lets no call wait.
    RateLimited,
    /// A quota of the call can't be drawn from: the store of quotas does not answer, or does not serve this
    /// key.
    StoreAway,
    /// The scheduler drains, and takes in no call.
    Draining,
}

impl RefusalReason {
    /// The word for it in replies, logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::DeadlinePassed => "deadline_passed",
            Self::DeadlineUnreachable => "deadline_unreachable",
            Self::PredictedLate => "predicted_late",
            Self::NeverPossible => "never_possible",
            Self::RateLimited => "rate_limited",
            Self::StoreAway => "quota_store_away",
            Self::Draining => "draining",
        }
    }
}
