//! The gate's quotas, for the part that connects them to the store: requests go out and answers
//! come in, as plain values. The gate does not know the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::Rng;
use tidegate_limits::quota::{Outcome, Question, Rule, StoreTime};
use tidegate_limits::{
    QuotaCounts, QuotaNow, QuotaQuestion, QuotaRef, QuotaRule, QuotaTrouble, Scheduler,
};

use super::{Gate, Lane, State, Waiter};

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaAnswer {
    /// Whose question it was.
    pub at: QuotaRef,
    /// Which.
    pub question: Question,
    /// What came of it.
    pub outcome: Outcome,
}

impl State {
    fn calls(&mut self) -> &mut Scheduler<Waiter> {
        &mut self.lanes[Lane::Limited as usize]
    }
}

impl Gate {
    /// Takes the quotas that there are from now on, by name, and how many keys of all of them are
    /// known at once.
    pub fn set_quotas(&self, rules: BTreeMap<Arc<str>, QuotaRule>, keys_max: usize) {
        self.core
            .change(|state, now| state.calls().set_quotas(now, rules, keys_max));
    }

    /// Gives one key a rule of its own, or with `None` that of its quota again. False if the key was
    /// forgotten.
    pub fn set_quota_rule(&self, at: QuotaRef, rule: Option<Rule>) -> bool {
        self.core
            .change(|state, now| state.calls().set_quota_rule(now, at, rule))
    }

    /// How many sidecars share the quotas, which decides only how much is drawn at once.
    pub fn set_quota_nodes(&self, nodes: u32) {
        self.core
            .change(|state, _| state.calls().set_quota_nodes(nodes));
    }

    /// What is known of the store's time.
    pub fn learn_store_time(&self, time: StoreTime) {
        self.core
            .change(|state, now| state.calls().learn_store_time(now, time));
    }

    /// Answers questions, after what was learned of the store's time with the answers.
    pub fn answer_quotas(
        &self,
        time: Option<StoreTime>,
        answers: impl IntoIterator<Item = QuotaAnswer>,
    ) {
        self.core.change(|state, now| {
            if let Some(time) = time {
                state.calls().learn_store_time(now, time);
            }
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

    /// Something else may stand in the store for this key.
    pub fn tell_quota(&self, at: QuotaRef) {
        self.core
            .change(|state, now| state.calls().tell_quota(now, at));
    }

    /// The store answers again.
    pub fn store_is_back(&self) {
        self.core
            .change(|state, now| state.calls().store_is_back(now));
    }

    /// Whether the answer to a question of this key is still of use.
    #[must_use]
    pub fn wants_quota_answer(&self, at: QuotaRef) -> bool {
        self.core.lock().calls().wants_answer(at)
    }

    /// Waits until there is something to take for [`quota_questions`](Self::quota_questions), be it
    /// that it came before this is waited for.
    pub async fn quota_asked(&self) {
        self.core.asks.notified().await;
    }

    /// Takes what is to be asked of the store, which keys nothing has to be known of any more, and what
    /// began or ended of the troubles of keys.
    #[must_use]
    pub fn quota_questions(&self) -> (Vec<QuotaQuestion>, Vec<QuotaRef>, Vec<QuotaTrouble>) {
        let mut state = self.core.lock();
        let calls = state.calls();
        (
            calls.quota_questions(),
            calls.forgotten_quotas(),
            calls.quota_troubles(),
        )
    }

    /// The keys of a quota, at most so many: first those that calls wait for, then those that were
    /// used last.
    #[must_use]
    pub fn quotas_now(&self, quota: &str, most: usize) -> Vec<QuotaNow> {
        let mut state = self.core.lock();
        let now = self.core.clock.now();
        state.calls().quotas_now(now, quota, most)
    }

    /// What happened to a quota's keys; none if there is no such quota.
    #[must_use]
    pub fn quota_counts(&self, quota: &str) -> Option<QuotaCounts> {
        self.core.lock().calls().quota_counts(quota)
    }
}
