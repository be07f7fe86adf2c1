//! Quotas of a scheduler: their rules, the answers of the store, and what is known.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::mem;
use core::time::Duration;

use super::quota::{NamedQuota, QuotaLimiter, QuotaTable};
use super::quota::{QuotaCounts, QuotaNow, QuotaQuestion, QuotaRef, QuotaRule, QuotaTrouble};
use super::state::Scheduler;
use crate::call::QuotaKey;
use crate::queue::Budget;
use crate::quota::{QuestionId, StoreReply, StoreTime, WindowRule};
use crate::slab::SlabKey;
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// Sets the quotas, by name. Keys keep their tokens. Keys of a removed quota are forgotten, and
    /// calls that wait for it wait for their other limits only. At most `keys_max` keys are known
    /// at once. For a new key, the least recently used key without waiting calls is evicted: one
    /// without tokens if possible, or else one that first returns its tokens, beside `keys_max`. At
    /// most 1,024 do that at once (16, or an eighth of `keys_max` if that is more). If the store
    /// does not answer the first of them, it is evicted with its tokens. If the store does answer,
    /// a new key is refused meanwhile. A call that was admitted to the queue has its keys in any
    /// case.
    ///
    /// Linear in the keys, and in the calls that wait.
    pub fn set_quotas(
        &mut self,
        now: Timestamp,
        rules: BTreeMap<Arc<str>, QuotaRule>,
        keys_max: usize,
    ) {
        let now = self.advance(now);
        let QuotaTable { named, by_name, .. } = &mut self.budgets.quotas;
        for (name, &mut key) in by_name.iter_mut() {
            named[key].rule = rules.get(name).cloned();
        }
        for (name, rule) in rules {
            by_name.entry(name).or_insert_with(|| {
                named.insert(NamedQuota {
                    rule: Some(rule),
                    ..NamedQuota::default()
                })
            });
        }
        self.budgets.quotas.keys_max = keys_max;
        let keys: Vec<SlabKey> = self.budgets.quotas.all.iter().map(|(key, _)| key).collect();
        for key in keys {
            let QuotaTable { named, all, .. } = &mut self.budgets.quotas;
            let limiter = &mut all[key];
            let Some(rule) = &named[limiter.named].rule else {
                continue;
            };
            limiter.on_excess = rule.on_excess;
            if !limiter.is_overruled {
                limiter.ledger.apply(rule.of(&limiter.of.key));
            }
            self.changed_quota(key);
        }
        self.repin(now);
        let quotas = &mut self.budgets.quotas;
        let is_gone = |limiter: &QuotaLimiter| quotas.named[limiter.named].rule.is_none();
        let gone = quotas.all.iter().filter(|(_, limiter)| is_gone(limiter));
        let gone: Vec<SlabKey> = gone.map(|(key, _)| key).collect();
        for key in gone {
            quotas.forget(key);
        }
        let named = &mut quotas.named;
        quotas.by_name.retain(|_, &mut key| {
            let stays = named[key].rule.is_some();
            if !stays {
                named.remove(key);
            }
            stays
        });
        quotas.make_room(now, keys_max);
    }

    /// Finds the quotas of all waiting calls again.
    fn repin(&mut self, now: Timestamp) {
        for key in self.queue.in_order(|waiting| waiting.call.quotas.is_some()) {
            let waiting = &self.queue.calls[key];
            let named = waiting.call.quotas.as_deref().unwrap_or_default();
            let after = self.budgets.quotas.pin_again(now, named);
            let before = waiting.meets.quotas.clone();
            if before != after {
                let arrival = waiting.arrival;
                self.change_call(key, arrival, |_, waiting| waiting.meets.quotas = after);
            }
            if let Some(before) = &before {
                self.budgets.quotas.unpin(now, before);
            }
        }
    }

    /// Something may be spent that could not be, or could be and can't.
    fn changed_quota(&mut self, key: SlabKey) {
        self.parking.change(Budget::Quota(key));
        self.budgets.quotas.touch(key);
    }

    /// Overrules what its quota has for a key, or with `None` no longer. False if the key was
    /// forgotten.
    pub fn set_quota_rule(
        &mut self,
        now: Timestamp,
        at: QuotaRef,
        rule: Option<WindowRule>,
    ) -> bool {
        self.advance(now);
        if self.budgets.quotas.all.get(at.0).is_none() {
            return false;
        }
        let QuotaTable { named, all, .. } = &mut self.budgets.quotas;
        let limiter = &mut all[at.0];
        let quota = named[limiter.named].rule.as_ref();
        let quota = quota.expect("keys of a rule that is gone are forgotten with it");
        limiter.is_overruled = rule.is_some();
        let own = rule.unwrap_or_else(|| quota.of(&limiter.of.key));
        limiter.ledger.apply(own);
        self.changed_quota(at.0);
        true
    }

    /// Notes that the spending of the node's own shares before this scheduler was made is known: nothing of a
    /// window that begins at `from` of the store's time, or later. Without this, no share of the window that runs
    /// at the start is spent. Linear in the keys.
    pub fn set_quota_past(&mut self, now: Timestamp, from: Duration) {
        self.advance(now);
        self.budgets.quotas.untouched_from = Some(from);
        if self.budgets.quotas.unknown_since > self.budgets.quotas.began {
            return;
        }
        let keys: Vec<SlabKey> = self.budgets.quotas.all.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.budgets.quotas.all[key].ledger.know_past(from);
            self.changed_quota(key);
        }
    }

    /// The end of the latest window that any own share was spent in, by the store's clock; the greatest
    /// if that is not known.
    #[must_use]
    pub fn quota_shares_until(&self) -> Duration {
        self.budgets.quotas.shares_until
    }

    /// Sets the number of nodes that share the quotas, which decides only the size of draws; 0 if
    /// it is unknown.
    pub fn set_quota_nodes(&mut self, nodes: u32) {
        self.budgets.quotas.nodes = nodes;
    }

    /// Takes the store's time, seen from a moment that is not after `now`.
    pub fn learn_store_time(&mut self, now: Timestamp, time: StoreTime) {
        let now = self.advance(now);
        let (before, after) = (self.budgets.quotas.time.at(now), time.at(now));
        self.budgets.quotas.time = time;
        let contradicts = after.earliest() > before.latest() || after.latest() < before.earliest();
        if contradicts || after.width() < before.width() / 2 {
            for key in self.parking.quotas_waited_for() {
                self.parking.change(Budget::Quota(key));
                self.budgets.quotas.touch(key);
            }
        }
    }

    /// Takes the pending questions to the store. Each is returned once.
    pub fn quota_questions(&mut self) -> Vec<QuotaQuestion> {
        mem::take(&mut self.budgets.quotas.questions)
    }

    /// Takes the keys that were forgotten. State kept for them elsewhere can be dropped.
    pub fn forgotten_quotas(&mut self) -> Vec<QuotaRef> {
        mem::take(&mut self.budgets.quotas.forgotten)
    }

    /// Whether there is anything to take for [`quota_questions`](Self::quota_questions),
    /// [`forgotten_quotas`](Self::forgotten_quotas) or [`quota_troubles`](Self::quota_troubles).
    #[must_use]
    pub fn asks_of_quotas(&self) -> bool {
        let QuotaTable {
            questions,
            forgotten,
            troubles,
            ..
        } = &self.budgets.quotas;
        !(questions.is_empty() && forgotten.is_empty() && troubles.is_empty())
    }

    /// Whether [`next`](Self::next) has nothing to do before the moment that it named: no call waits, also not at the
    /// door, and no quota needs work.
    #[inline]
    #[must_use]
    pub fn has_nothing_to_ask(&self) -> bool {
        self.queue.calls.is_empty() && self.budgets.quotas.has_nothing_to_do()
    }

    /// Whether there are any quotas.
    #[must_use]
    pub fn has_quotas(&self) -> bool {
        !self.budgets.quotas.by_name.is_empty()
    }

    /// Whether any key needs work at this moment: [`next`](Self::next) does it, and a replay has to do
    /// it at the same moment.
    #[must_use]
    pub fn has_due_quotas(&self, now: Timestamp) -> bool {
        let quotas = &self.budgets.quotas;
        !quotas.has_nothing_to_do() || quotas.wake().is_some_and(|wake| wake <= self.now.max(now))
    }

    /// The number of a key; `None` if nothing is known of it.
    #[must_use]
    pub fn quota_ref(&self, of: &QuotaKey) -> Option<QuotaRef> {
        self.budgets.quotas.by_key.get(of).copied().map(QuotaRef)
    }

    /// The key of this number; `None` if it was forgotten.
    #[must_use]
    pub fn quota_key(&self, at: QuotaRef) -> Option<&QuotaKey> {
        self.budgets.quotas.all.get(at.0).map(|limiter| &limiter.of)
    }

    /// Answers a question. `entropy` is any number, another one each time. An answer to a question
    /// that is no longer asked is passed over.
    pub fn answer_quota(
        &mut self,
        now: Timestamp,
        at: QuotaRef,
        question: QuestionId,
        outcome: StoreReply,
        entropy: u64,
    ) {
        let now = self.advance(now);
        let time = self.budgets.quotas.time.at(now);
        if let Some(limiter) = self.budgets.quotas.all.get_mut(at.0) {
            limiter.ledger.done(question, outcome, &time, entropy);
            self.changed_quota(at.0);
        }
    }

    /// The store may contain another record for a key. The key is read again before a call is
    /// refused because of it.
    pub fn tell_quota(&mut self, now: Timestamp, at: QuotaRef) {
        self.advance(now);
        if let Some(limiter) = self.budgets.quotas.all.get_mut(at.0) {
            limiter.watched = false;
            limiter.ledger.told();
            self.changed_quota(at.0);
        }
    }

    /// The store answers again. Calls that wait have their questions asked at once, and a key that no
    /// call waits for is asked about when the next one comes. Linear in the keys.
    pub fn store_is_back(&mut self, now: Timestamp) {
        self.advance(now);
        let keys: Vec<SlabKey> = self.budgets.quotas.all.iter().map(|(key, _)| key).collect();
        for key in keys {
            let limiter = &mut self.budgets.quotas.all[key];
            limiter.watched = false;
            limiter.ledger.store_is_back();
            self.changed_quota(key);
        }
    }

    /// Whether the answer to a question is still of use: a call waits for it, or something is held
    /// that it adds to.
    #[must_use]
    pub fn wants_answer(&self, at: QuotaRef) -> bool {
        let limiter = self.budgets.quotas.all.get(at.0);
        limiter.is_some_and(|limiter| limiter.pins > 0 || limiter.ledger.asks_ahead())
    }

    /// Takes what began or ended of the troubles of keys since this was asked last.
    pub fn quota_troubles(&mut self) -> Vec<QuotaTrouble> {
        mem::take(&mut self.budgets.quotas.troubles)
    }

    /// A key's budget as it is now; `None` if nothing is known of it.
    #[must_use]
    pub fn quota_now(&self, now: Timestamp, of: &QuotaKey) -> Option<QuotaNow> {
        let key = *self.budgets.quotas.by_key.get(of)?;
        Some(self.budget(self.now.max(now), key))
    }

    fn budget(&self, now: Timestamp, key: SlabKey) -> QuotaNow {
        let (claimed, idle) = self.parking.claimed(Budget::Quota(key), now);
        let limiter = &self.budgets.quotas.all[key];
        QuotaNow {
            at: QuotaRef(key),
            of: limiter.of.clone(),
            rule: *limiter.ledger.rule(),
            ledger: limiter.ledger.now(&self.budgets.quotas.time.at(now)),
            waiting: limiter.pins,
            waiting_tokens: limiter.queued.draw,
            claimed,
            idle,
            used: limiter.used,
        }
    }

    /// At most `most` keys of a quota: first those with waiting calls, then the most recently used
    /// ones.
    #[must_use]
    pub fn quotas_now(&self, now: Timestamp, quota: &str, most: usize) -> Vec<QuotaNow> {
        let Some(named) = self.budgets.quotas.find(quota) else {
            return Vec::new();
        };
        let all = &self.budgets.quotas.all;
        let waited_for = self.parking.quotas_waited_for().into_iter();
        let waited_for = waited_for.filter(|&key| *all[key].of.quota == *quota);
        let idle = named.empty.newest_first(all).take(most);
        let idle = idle.chain(named.holding.newest_first(all).take(most));
        let mut idle: Vec<_> = idle.collect();
        idle.sort_by_key(|(_, limiter)| Reverse(limiter.used));
        let keys = waited_for.chain(idle.into_iter().map(|(key, _)| key));
        let now = self.now.max(now);
        keys.take(most).map(|key| self.budget(now, key)).collect()
    }

    /// Counts of events at a quota's keys; `None` if there is no such quota.
    #[must_use]
    pub fn quota_counts(&self, quota: &str) -> Option<QuotaCounts> {
        Some(self.budgets.quotas.find(quota)?.counts)
    }

    /// Looks after the quotas for which something has changed.
    #[inline]
    pub(super) fn settle_quotas(&mut self, now: Timestamp) {
        self.budgets.quotas.wake_due(now);
        if self.budgets.quotas.has_nothing_to_do() {
            return;
        }
        let (parking, queue) = (&self.parking, &self.queue);
        self.budgets.quotas.settle(now, |key| {
            let head = parking.first_at_quota(key)?;
            Some(queue.calls[head].call.tokens)
        });
        while let Some(key) = self.budgets.quotas.next_reopened() {
            self.parking.change(Budget::Quota(key));
        }
    }
}
