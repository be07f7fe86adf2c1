//! Everything that the scheduler of limited calls is given besides calls: with it and the steps of
//! calls, a replay takes every decision again.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::call::{BucketId, QuotaKey};
use tidegate_limits::quota::{QuestionId, StoreReply, StoreTime, WindowRule};
use tidegate_limits::scheduler::{BucketRule, Supplier, Supply, SupplyShare};
use tidegate_limits::{Fill, Timestamp};

use super::Gate;
use crate::call::Would;

/// Where it is noted. Called under the lock of the gate, so it must not wait.
pub trait Journal: Send + Sync {
    /// The scheduler was given this, at this instant.
    fn given(&self, at: Timestamp, what: Given<'_>);

    /// Limits that only observe would have done this to a call of this class. `late` is its id, if
    /// its line was written without knowing.
    fn would(&self, at: Timestamp, class: &str, would: &Would, late: Option<u64>);
}

/// Something that the scheduler was given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Given<'a> {
    /// A limit may give out this much.
    Supply {
        /// The name of the limit.
        limit: &'a str,
        /// Who says so.
        by: Supplier,
        /// How much.
        supply: Supply,
    },
    /// Every limit gives out this part of what it would.
    Share(SupplyShare),
    /// A bucket, or another rule for it.
    Bucket {
        /// Its number.
        id: BucketId,
        /// Its rule.
        rule: &'a BucketRule,
    },
    /// A bucket fills at this rate.
    Fill {
        /// Its number.
        id: BucketId,
        /// Tokens per second.
        supply: Supply<Fill>,
    },
    /// Limited calls were asked at an instant that is in no other line, and none left the queue.
    Woke,
    /// A bucket was removed.
    BucketGone {
        /// Its number.
        id: BucketId,
    },
    /// The quotas of the config in force.
    Quotas,
    /// The store overrules what a quota has for a key, or with `None` no longer.
    QuotaRule {
        /// The key.
        of: &'a QuotaKey,
        /// Its rule.
        rule: Option<&'a WindowRule>,
    },
    /// The number of sidecars that share the quotas.
    QuotaNodes(u32),
    /// Own shares of windows that begin then, by the store's clock, or later, were not spent by the
    /// process before.
    QuotaPast(Duration),
    /// The time of the store of quotas.
    StoreTime(StoreTime),
    /// The store answered a question.
    QuotaAnswer {
        /// Of this key.
        of: &'a QuotaKey,
        /// Which.
        question: QuestionId,
        /// What it answered.
        reply: StoreReply,
        /// The random number with it, which decides when the key asks again.
        entropy: u64,
        /// The store's time with it.
        time: StoreTime,
    },
    /// The store may contain another record for this key.
    QuotaChanged {
        /// The key.
        of: &'a QuotaKey,
    },
    /// The store of quotas answers again.
    StoreBack,
}

impl Given<'_> {
    /// Whether it may come as often as calls, and is not in force afterwards: it is not
    /// remembered while the log is off.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Woke
                | Self::StoreTime(_)
                | Self::QuotaAnswer { .. }
                | Self::QuotaChanged { .. }
                | Self::StoreBack
        )
    }
}

impl Gate {
    /// Notes everything there from now on. `keeps_steps` lets each call note its steps for a replay.
    pub fn keep_journal(&self, journal: Arc<dyn Journal>, keeps_steps: bool) {
        let mut state = self.queue.lock();
        state.journal = Some(journal);
        state.keeps_steps = keeps_steps;
    }

    /// Looks at what the journal knows, at an instant that is not before any change.
    pub fn at_an_instant<R>(&self, look: impl FnOnce(Timestamp) -> R) -> R {
        self.queue.look(|state, now| look(now.max(state.last)))
    }

    /// The seed of the scheduler of limited calls.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.queue.lock().seed
    }
}
