//! Types that a scheduler takes and returns for quotas.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::time::Duration;

use crate::call::QuotaKey;
use crate::quota::{
    LedgerCounts, LedgerNow, LedgerTrouble, Payment, QuestionId, RecordVersion, RecordWrite,
    WindowRule,
};
use crate::scheduler::bucket::OnExcess;
use crate::slab::SlabKey;
use crate::time::Timestamp;

/// A quota as a scheduler keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaRule {
    /// The rule for each key without a rule of its own: how much it may spend, and how it is drawn.
    pub rule: WindowRule,
    /// The rules of the keys that have one. They hold from a key's first call.
    pub own: Arc<BTreeMap<Arc<str>, WindowRule>>,
    /// The fate of a call that the rest of the window does not cover.
    pub on_excess: OnExcess,
}

impl QuotaRule {
    /// The rule of a key.
    #[must_use]
    pub fn of(&self, key: &str) -> WindowRule {
        *self.own.get(key).unwrap_or(&self.rule)
    }
}

/// A key's budget, by a number that is never given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaRef(pub(in crate::scheduler) SlabKey);

/// A question that the ledger of a key has for the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaQuestion {
    /// The key.
    pub at: QuotaRef,
    /// The quota and the key in words.
    pub of: QuotaKey,
    /// The question.
    pub ask: QuotaAsk,
}

/// A question to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaAsk {
    /// The store's time. To be answered when it is known better.
    Time(QuestionId),
    /// To read the record.
    Read(QuestionId),
    /// To write, if the store still contains what this replaces.
    Write(QuestionId, RecordWrite),
    /// To report ([`Scheduler::tell_quota`](crate::Scheduler::tell_quota)), once, when the store
    /// contains another version than this one. Calls are refused because nothing is left, and
    /// another node may return tokens.
    Watch(Option<RecordVersion>),
    /// To look up what the store configures for a key that is new. The key may spend its own share
    /// without any other question.
    Settings,
}

/// The payment of a call from one of its quotas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaSpent {
    /// The budget that paid.
    pub of: QuotaKey,
    /// The window in which it counts, if known.
    pub window: Option<u64>,
    /// The total that all nodes together may spend in that window.   tokens
    pub total: u64,
    /// The draw of the call.   tokens
    pub cost: u64,
    /// The cost of the call in the end, once that is known.   tokens
    pub settled: Option<u64>,
    /// The tokens that paid.
    pub spent: Payment,
}

/// A key's budget as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaNow {
    /// The number of the quota's key.
    pub at: QuotaRef,
    /// The quota and the key.
    pub of: QuotaKey,
    /// The rule for windows to be opened.
    pub rule: WindowRule,
    /// The ledger: the record and the tokens held. Its counts are those since it was last looked after: the whole
    /// is in [`Scheduler::quota_counts`](crate::Scheduler::quota_counts).
    pub ledger: LedgerNow,
    /// Calls in the queue that meet it, whatever holds them.
    pub waiting: u64,
    /// The cost of the waiting calls.   tokens
    pub waiting_tokens: u64,
    /// Tokens, available now or next, that are claimed.
    pub claimed: u64,
    /// For how long claims have kept tokens that their calls could not use yet, over all of them.
    pub idle: Duration,
    /// When a call named it last.
    pub used: Timestamp,
}

/// LedgerCounts of events at all keys of a quota since it was made, those forgotten included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaCounts {
    /// Calls that it admitted without delay.
    pub local: u64,
    /// Calls that it admitted after a delay within the window in which they arrived: they waited
    /// for a reply of the store.
    pub drew: u64,
    /// Calls that it admitted after a delay until a later window.
    pub waited: u64,
    /// Calls that it refused, or held until their deadline.
    pub refused: u64,
    /// LedgerCounts between its ledgers and the store. `refused` and `missed` are for direct users of a
    /// ledger and stay 0: calls are counted above.
    pub ledgers: LedgerCounts,
    /// Keys that are known now.
    pub keys: usize,
    /// Keys that were forgotten, because there were too many; those included that give back what they
    /// hold first.
    pub forgotten: u64,
    /// Keys with a trouble in the store.
    pub troubled: usize,
}

/// The start or end of a trouble of a key, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaTrouble {
    /// The quota and the key.
    pub of: QuotaKey,
    /// The trouble from now on; `None` if there is none.
    pub trouble: Option<LedgerTrouble>,
}
