//! The gate's quotas, for the part that connects them to the store: requests go out and answers
//! come in, as plain values. The gate does not know the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::Rng;
use tidegate_limits::quota::{Question, Rule, StoreReply, StoreTime};
use tidegate_limits::scheduler::{
    QuotaCounts, QuotaNow, QuotaQuestion, QuotaRef, QuotaRule, QuotaTrouble,
};

use super::Gate;

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaAnswer {
    /// Its key.
    pub at: QuotaRef,
    /// Which.
    pub question: Question,
    /// Its result.
    pub outcome: StoreReply,
}

impl Gate {
    /// Sets the quotas, by name, and the most keys of all of them.
    pub fn set_quotas(&self, rules: BTreeMap<Arc<str>, QuotaRule>, keys_max: usize) {
        self.queue
            .change_beside(|state, now| state.calls().set_quotas(now, rules, keys_max));
    }

    /// Gives one key its own rule, or with `None` the rule of its quota. False if the key was
    /// forgotten.
    pub fn set_quota_rule(&self, at: QuotaRef, rule: Option<Rule>) -> bool {
        self.queue
            .change_beside(|state, now| state.calls().set_quota_rule(now, at, rule))
    }

    /// The number of sidecars that share the quotas. It only decides how much is drawn at once.
    pub fn set_quota_nodes(&self, nodes: u32) {
        self.queue
            .change_beside(|state, _| state.calls().set_quota_nodes(nodes));
    }

    /// The store's time.
    pub fn learn_store_time(&self, time: StoreTime) {
        self.queue
            .change_beside(|state, now| state.calls().learn_store_time(now, time));
    }

    /// Passes answers of the store on, after the store's time that came with them.
    pub fn answer_quotas(&self, time: StoreTime, answers: impl IntoIterator<Item = QuotaAnswer>) {
        self.queue.change_beside(|state, now| {
            state.calls().learn_store_time(now, time);
            for QuotaAnswer {
                at,
                question,
                outcome,
            } in answers
            {
                let entropy = state.entropy.next_u64();
                state
                    .calls()
                    .answer_quota(now, at, question, outcome, entropy);
            }
        });
    }

    /// The record of this key may have changed in the store.
    pub fn tell_quota(&self, at: QuotaRef) {
        self.queue
            .change_beside(|state, now| state.calls().tell_quota(now, at));
    }

    /// The store answers again.
    pub fn store_is_back(&self) {
        self.queue
            .change_beside(|state, now| state.calls().store_is_back(now));
    }

    /// Whether the answer to a request of this key is still useful.
    #[must_use]
    pub fn wants_quota_answer(&self, at: QuotaRef) -> bool {
        self.queue.lock().calls().wants_answer(at)
    }

    /// Waits until there is something for [`quota_questions`](Self::quota_questions), also from
    /// before this call.
    pub async fn quota_asked(&self) {
        self.queue.asks.notified().await;
    }

    /// Takes the requests to the store, the keys that are no longer needed, and the troubles of
    /// keys that began or ended.
    #[must_use]
    pub fn quota_questions(&self) -> (Vec<QuotaQuestion>, Vec<QuotaRef>, Vec<QuotaTrouble>) {
        let mut state = self.queue.lock();
        let calls = state.calls();
        (
            calls.quota_questions(),
            calls.forgotten_quotas(),
            calls.quota_troubles(),
        )
    }

    /// At most this many keys of a quota: first those that calls wait for, then the most recently
    /// used.
    #[must_use]
    pub fn quotas_now(&self, quota: &str, most: usize) -> Vec<QuotaNow> {
        self.queue
            .look(|state, now| state.calls().quotas_now(now, quota, most))
    }

    /// The counts of a quota's keys; `None` if there is no such quota.
    #[must_use]
    pub fn quota_counts(&self, quota: &str) -> Option<QuotaCounts> {
        self.queue.lock().calls().quota_counts(quota)
    }
}
