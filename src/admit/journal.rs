//! Everything that the scheduler of limited calls gets besides calls: with it and the steps of
//! calls, a replay takes every decision again.

use std::sync::Arc;
use std::time::Duration;

use tidegate_ledger::JobRecord;
use tidegate_limits::call::Cost;
use tidegate_limits::call::{BucketId, QuotaKey};
use tidegate_limits::policy::WindowStamp;
use tidegate_limits::quota::{QuestionId, StoreReply, StoreTime, WindowRule};
use tidegate_limits::scheduler::{BucketRule, Supplier, Supply, SupplyShare};
use tidegate_limits::{Call, Fill, Timestamp};

use super::Gate;
use crate::call::{LimitMode, Would};

/// The place where events are noted. Called under the lock of the gate, so it must not wait.
pub trait Journal: Send + Sync {
    /// Notes an event of this instant.
    fn note(&self, at: Timestamp, event: SchedulerEvent<'_>);

    /// Limits that only observe would have done this to a call of this class. `late` is its id, if
    /// its line was written without knowing.
    fn would(&self, at: Timestamp, class: &str, would: &Would, late: Option<u64>);
}

/// State that counts of the process before, in the words of this one.
#[derive(Debug, PartialEq)]
pub struct CarriedState {
    /// By the name of the limit, the departures.
    pub windows: Vec<(String, Vec<(Timestamp, Cost)>)>,
    /// The levels of buckets, and since when they were so.
    pub levels: Vec<(BucketId, f64, Timestamp)>,
    /// The levels of paces that are no rate limits of callers, by their names.
    pub paces: Vec<(String, f64, Timestamp)>,
    /// The calls that may still be at the backend, in the order in which they are finished.
    pub calls: Vec<CarriedCall>,
}

/// A call that may still be at the backend.
#[derive(Debug, PartialEq)]
pub struct CarriedCall {
    /// The call.
    pub call: Call,
    /// The name of its class.
    pub class: Arc<str>,
    /// When it was admitted.
    pub since: Timestamp,
    /// Since when it has been held as a call of a process before.
    pub held_since: Timestamp,
    /// Until when it is held.
    pub held_until: Timestamp,
    /// How long most such calls take, if that is known.
    pub usual: Option<Duration>,
    /// The job that it has begun, which ends as others do.
    pub job: Option<JobRecord>,
    /// The departures that windows count already.
    pub departed: &'static [WindowStamp],
}

/// An event that the scheduler of limited calls gets besides calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SchedulerEvent<'a> {
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
        /// The number of the bucket.
        id: BucketId,
        /// The rule of the bucket.
        rule: &'a BucketRule,
        /// Whether it holds calls.
        mode: LimitMode,
    },
    /// A bucket fills at this rate.
    Fill {
        /// The number of the bucket.
        id: BucketId,
        /// Tokens per second.
        supply: Supply<Fill>,
    },
    /// Limited calls were asked at an instant that is in no other line, and none left the queue.
    Woke,
    /// A bucket was removed.
    BucketRemoved {
        /// The number of the bucket.
        id: BucketId,
    },
    /// State of the process before counts.
    Carried(&'a CarriedState),
    /// Every window counts as used up, because nothing is known of the process before.
    CarriedFull,
    /// Some calls of processes before count no longer: this many, in their order.
    CarriedDone(usize),
    /// The quotas of the config in force.
    Quotas,
    /// The store overrules what a quota has for a key, or with `None` no longer.
    QuotaRule {
        /// The key.
        of: &'a QuotaKey,
        /// The rule of the key.
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
        /// The question.
        question: QuestionId,
        /// The answer.
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

impl Gate {
    /// Notes everything there from now on. `keeps_steps` lets each call note its steps for a replay.
    pub fn keep_journal(&self, journal: Arc<dyn Journal>, keeps_steps: bool) {
        let mut state = self.lock.lock();
        state.journal = Some(journal);
        state.keeps_steps = keeps_steps;
    }

    /// Looks at what the journal knows, at an instant that is not before any change.
    pub fn at_an_instant<R>(&self, look: impl FnOnce(Timestamp) -> R) -> R {
        self.lock.look(|state, now| look(now.max(state.last)))
    }

    /// The seed of the scheduler of limited calls.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.lock.lock().seed
    }
}
