//! How long what held a waiting call.
//!
//! No times are recorded per call. A flow has an account, because whatever bars its head bars all
//! its calls: they meet the same limits. The account changes only when the head is parked at
//! something else. A call that joins keeps a pointer to the account at that time, which all calls
//! share that join between two changes. The difference when the call leaves is what it waited for,
//! to the nanosecond. Only a call that moves while it waits carries its times with it.
//!
//! The account starts from zero when its flow is empty. So the first call of a flow keeps no
//! pointer, and a call that finds no flow and no closed limit pays for none of this.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::budget::Budget;
use crate::delay::Delays;
use crate::time::Timestamp;

/// The reason why a call waits at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitCause {
    Budget(Budget),
    /// Other calls. Nothing is known to bar it.
    Turn,
}

/// The wait of the calls of a flow by cause, since the flow was last empty.
#[derive(Clone, Debug)]
pub(crate) struct WaitAccount {
    /// The present cause of the wait.
    behind: WaitCause,
    since: Timestamp,
    /// Earlier causes of the wait, with their times.
    charged: Vec<(WaitCause, Duration)>,
}

impl WaitAccount {
    pub(crate) const fn new() -> Self {
        Self {
            behind: WaitCause::Turn,
            since: Timestamp::ZERO,
            charged: Vec::new(),
        }
    }

    /// The flow has its first call.
    #[inline]
    pub(crate) fn begin(&mut self, now: Timestamp) {
        self.behind = WaitCause::Turn;
        self.since = now;
        self.charged.clear();
    }

    /// Notes a new cause of the wait. Returns false if it is the present one.
    pub(crate) fn charge(&mut self, now: Timestamp, behind: WaitCause) -> bool {
        if self.behind == behind {
            return false;
        }
        let time = now.since(self.since);
        let mut charged = self.charged.iter_mut();
        if let Some((_, sum)) = charged.find(|(before, _)| *before == self.behind) {
            *sum += time;
        } else if !time.is_zero() {
            self.charged.push((self.behind, time));
        }
        (self.behind, self.since) = (behind, now);
        true
    }

    /// The time charged to a cause, up to `now`.
    fn sum(&self, now: Timestamp, behind: WaitCause) -> Duration {
        let charged = self.charged.iter().find(|(before, _)| *before == behind);
        let charged = charged.map_or(Duration::ZERO, |(_, sum)| *sum);
        if self.behind == behind {
            charged + now.since(self.since)
        } else {
            charged
        }
    }

    /// The time charged since a call joined, by cause.
    pub(crate) fn since_joining(
        &self,
        now: Timestamp,
        stay: &Stay,
        mut charge: impl FnMut(WaitCause, Duration),
    ) {
        let before = self.charged.iter().map(|(behind, _)| *behind);
        let is_new = before.clone().all(|behind| behind != self.behind);
        for behind in before.chain(is_new.then_some(self.behind)) {
            let at_joining = stay.joined.as_ref();
            let at_joining = at_joining.map(|account| account.sum(stay.since, behind));
            charge(
                behind,
                self.sum(now, behind) - at_joining.unwrap_or_default(),
            );
        }
    }
}

/// Since when a call waits where it does, and what it has waited for elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Stay {
    pub(crate) since: Timestamp,
    /// The flow's account as it was last changed before the call joined; `None` if the call was
    /// the first in its flow.
    pub(crate) joined: Option<Arc<WaitAccount>>,
    pub(crate) before: Delays,
}

impl Stay {
    pub(crate) fn new(now: Timestamp, joined: Option<Arc<WaitAccount>>) -> Self {
        Self {
            since: now,
            joined,
            before: Delays::default(),
        }
    }
}
