//! The gate's quotas, for the part that connects them to the store: requests go out and answers
//! come in, as plain values. The gate does not know the store.
//!
//! Quotas that only observe are in the shadow, the others in the scheduler that holds calls. A key
//! says in which of them it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tidegate_limits::Timestamp;
use tidegate_limits::call::QuotaKey;
use tidegate_limits::quota::{QuestionId, StoreReply, StoreTime, WindowRule};
use tidegate_limits::scheduler::{
    QuotaAsk, QuotaCounts, QuotaNow, QuotaRef, QuotaRule, QuotaTrouble,
};

use super::Gate;
use super::decision::Lane;
use super::journal::SchedulerEvent;
use super::lock::GateState;
use super::shadow::QuotaAsks;

/// A key of a quota at the gate. It is never given to another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuotaAt {
    /// The number of its shadow; `None` if its quota holds calls.
    shadow: Option<u32>,
    at: QuotaRef,
}

/// A request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaAsked {
    /// The key.
    pub at: QuotaAt,
    /// The key in words.
    pub of: QuotaKey,
    /// The question.
    pub ask: QuotaAsk,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaAnswer {
    /// The key.
    pub at: QuotaAt,
    /// The question.
    pub question: QuestionId,
    /// The result.
    pub outcome: StoreReply,
}

/// The quotas, by name.
#[derive(Clone, Debug, Default)]
pub struct QuotaRules {
    /// The quotas that hold calls.
    pub enforced: BTreeMap<Arc<str>, QuotaRule>,
    /// The quotas that only observe.
    pub observed: BTreeMap<Arc<str>, QuotaRule>,
    /// The most keys of all of either kind.
    pub keys_max: usize,
}

/// Everything that the gate has for the store.
#[derive(Debug, Default)]
pub struct QuotaWork {
    /// The requests.
    pub asked: Vec<QuotaAsked>,
    /// The keys that are no longer needed.
    pub forgotten: Vec<QuotaAt>,
    /// The troubles of keys that began or ended.
    pub troubles: Vec<QuotaTrouble>,
}

impl Gate {
    /// Sets the quotas.
    pub fn set_quotas(&self, rules: QuotaRules) {
        self.lock.change(|state, now| {
            let QuotaRules {
                enforced,
                observed,
                keys_max,
            } = rules;
            if !enforced.is_empty() || state.calls().has_quotas() {
                state.note(now, SchedulerEvent::Quotas);
            }
            state.observer.set_quotas(now, observed, keys_max);
            state.calls().set_quotas(now, enforced, keys_max);
        });
    }

    /// Overrules what its quota has for a key, or with `None` no longer. False if the key was
    /// forgotten.
    pub fn set_quota_rule(&self, at: QuotaAt, rule: Option<WindowRule>) -> bool {
        let Some(number) = at.shadow else {
            return self.lock.change(|state, now| {
                let rule_now = rule.as_ref();
                state.note_of_key(now, at.at, |of| SchedulerEvent::QuotaRule {
                    of,
                    rule: rule_now,
                });
                state.calls().set_quota_rule(now, at.at, rule)
            });
        };
        self.lock.change_shadow(|state, now| {
            let shadow = state.observer.shadow(number);
            shadow.is_some_and(|shadow| {
                shadow.change(now, |calls| calls.set_quota_rule(now, at.at, rule))
            })
        })
    }

    /// The number of sidecars that share the quotas. It only decides how much is drawn at once.
    pub fn set_quota_nodes(&self, nodes: u32) {
        self.lock.change(|state, now| {
            state.observe(now, SchedulerEvent::QuotaNodes(nodes));
            state.calls().set_quota_nodes(nodes);
        });
    }

    /// Learns what was spent of the sidecar's own shares before its start is known: nothing of a window that
    /// begins at `from` of the store's time, or later.
    pub fn set_quota_past(&self, from: Duration) {
        self.lock.change(|state, now| {
            state.observe(now, SchedulerEvent::QuotaPast(from));
            state.calls().set_quota_past(now, from);
        });
    }

    /// The end of the latest window that any own share was spent in, by the store's clock; the greatest
    /// if that is not known.
    #[must_use]
    pub fn quota_shares_until(&self) -> Duration {
        let mut state = self.lock.lock();
        let observed = state.observer.quota_shares_until();
        state.calls().quota_shares_until().max(observed)
    }

    /// The store's time.
    pub fn learn_store_time(&self, time: StoreTime) {
        self.lock.change(|state, now| {
            state.observe(now, SchedulerEvent::StoreTime(time));
            state.calls().learn_store_time(now, time);
        });
    }

    /// Passes answers of the store on, after the store's time that came with them.
    pub fn answer_quotas(&self, time: StoreTime, answers: impl IntoIterator<Item = QuotaAnswer>) {
        self.lock.change(|state, now| {
            let mut answers = answers.into_iter().peekable();
            // Each answer has a line with the time.
            if answers
                .peek()
                .is_none_or(|answer| answer.at.shadow.is_some())
            {
                state.note(now, SchedulerEvent::StoreTime(time));
            }
            state.calls().learn_store_time(now, time);
            state.observer.observe(now, SchedulerEvent::StoreTime(time));
            for answer in answers {
                state.answer_quota(now, time, answer);
            }
        });
    }

    /// The record of this key may have changed in the store.
    pub fn tell_quota(&self, at: QuotaAt) {
        let Some(number) = at.shadow else {
            return self.lock.change(|state, now| {
                state.note_of_key(now, at.at, |of| SchedulerEvent::QuotaChanged { of });
                state.calls().tell_quota(now, at.at);
            });
        };
        self.lock.change_shadow(|state, now| {
            if let Some(shadow) = state.observer.shadow(number) {
                shadow.change(now, |calls| calls.tell_quota(now, at.at));
            }
        });
    }

    /// The store answers again.
    pub fn store_is_back(&self) {
        self.lock.change(|state, now| {
            state.observe(now, SchedulerEvent::StoreBack);
            state.calls().store_is_back(now);
        });
    }

    /// Whether the answer to a request of this key is still useful.
    #[must_use]
    pub fn wants_quota_answer(&self, at: QuotaAt) -> bool {
        let mut state = self.lock.lock();
        match at.shadow {
            None => state.calls().wants_answer(at.at),
            Some(number) => {
                let shadow = state.observer.shadow(number);
                shadow.is_some_and(|shadow| shadow.scheduler().wants_answer(at.at))
            }
        }
    }

    /// Waits until there is something for [`quota_work`](Self::quota_work), also from before this
    /// call.
    pub async fn wait_for_quota_work(&self) {
        self.lock.asks.notified().await;
    }

    /// Takes everything that the gate has for the store.
    #[must_use]
    pub fn quota_work(&self) -> QuotaWork {
        let mut state = self.lock.lock();
        let mut work = QuotaWork::default();
        let calls = state.calls();
        let real = QuotaAsks {
            questions: calls.quota_questions(),
            forgotten: calls.forgotten_quotas(),
            troubles: calls.quota_troubles(),
        };
        let number = state.observer.numbered().map(|(number, _)| number);
        let (observed, forgotten) = state.observer.take_quota_questions();
        drop(state);
        let forgotten = forgotten.into_iter().map(|(number, at)| QuotaAt {
            shadow: Some(number),
            at,
        });
        work.forgotten.extend(forgotten);
        let holds = |at| QuotaAt { shadow: None, at };
        work.forgotten.extend(real.forgotten.into_iter().map(holds));
        for (asks, shadow) in [(real.questions, None), (observed.questions, number)] {
            work.asked.extend(asks.into_iter().map(|asked| QuotaAsked {
                at: QuotaAt {
                    shadow,
                    at: asked.at,
                },
                of: asked.of,
                ask: asked.ask,
            }));
        }
        work.troubles = real.troubles;
        work.troubles.extend(observed.troubles);
        work
    }

    /// At most this many keys of a quota: first those that calls wait for, or would wait for, then
    /// the most recently used.
    #[must_use]
    pub fn quotas_now(&self, quota: &str, most: usize) -> Vec<(QuotaAt, QuotaNow)> {
        self.lock.change_shadow(|state, now| {
            let (shadow, all) = if state.observer.has_quota(quota)
                && let Some((number, shadow)) = state.observer.numbered()
            {
                shadow.advance(now);
                let all = shadow.scheduler().quotas_now(now, quota, most);
                (Some(number), all)
            } else {
                (None, state.calls().quotas_now(now, quota, most))
            };
            let named = |it: QuotaNow| (QuotaAt { shadow, at: it.at }, it);
            all.into_iter().map(named).collect()
        })
    }

    /// The counts of a quota's keys; `None` if there is no such quota. If it only observes, they are
    /// what they would be.
    #[must_use]
    pub fn quota_counts(&self, quota: &str) -> Option<QuotaCounts> {
        let mut state = self.lock.lock();
        if let Some(counts) = state.calls().quota_counts(quota) {
            return Some(counts);
        }
        let (_, shadow) = state.observer.numbered()?;
        shadow.scheduler().quota_counts(quota)
    }
}

impl GateState {
    fn answer_quota(&mut self, now: Timestamp, time: StoreTime, answer: QuotaAnswer) {
        let QuotaAnswer {
            at: QuotaAt { shadow, at },
            question,
            outcome,
        } = answer;
        let entropy = self.entropy.next_u64();
        let Some(number) = shadow else {
            self.note_of_key(now, at, |of| SchedulerEvent::QuotaAnswer {
                of,
                question,
                reply: outcome,
                entropy,
                time,
            });
            let calls = self.calls();
            return calls.answer_quota(now, at, question, outcome, entropy);
        };
        if let Some(shadow) = self.observer.shadow(number) {
            shadow.change(now, |calls| {
                calls.answer_quota(now, at, question, outcome, entropy);
            });
        }
    }

    /// Notes something that the scheduler was given for a key. Of a forgotten key, it changes
    /// nothing.
    fn note_of_key<'a>(
        &'a self,
        now: Timestamp,
        at: QuotaRef,
        what: impl FnOnce(&'a QuotaKey) -> SchedulerEvent<'a>,
    ) {
        if self.journal.is_some()
            && let Some(of) = self.lanes[Lane::Limited as usize].quota_key(at)
        {
            self.note(now, what(of));
        }
    }
}
