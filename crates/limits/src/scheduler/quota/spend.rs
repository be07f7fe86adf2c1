//! The answers of keys to calls, and the draws of calls.

use super::kinds::QuotaSpent;
use super::table::{KeyList, KeyMatch, QuotaTable};
use crate::bucket::Tokens;
use crate::call::Call;
use crate::quota::{Coverage, Payment};
use crate::scheduler::bucket::OnExcess;
use crate::scheduler::refusal::RefusalReason;
use crate::slab::SlabKey;
use crate::time::Timestamp;
use crate::verdict::Verdict;

impl QuotaTable {
    /// The answer of a quota to a call that arrives, and whether it refuses the call.
    pub(crate) fn ask(&self, now: Timestamp, found: KeyMatch, call: &Call) -> (Coverage, bool) {
        match found {
            KeyMatch::Known(key) => {
                let answer = self.peek(now, key, call.tokens);
                (answer, self.rejects(key, answer))
            }
            KeyMatch::New { named, at } => {
                let rule = self.named[named].rule.as_ref();
                let rule = rule.expect("what is found has a rule");
                let keys = call.quotas.as_deref().expect("it was found among them");
                let ledger = self.ledger(rule, &keys[at].key);
                let answer = ledger.peek(call.tokens.whole(), &self.time.at(now));
                (answer, rejects(rule.on_excess, answer))
            }
        }
    }

    /// A call was refused on account of this.
    pub(crate) fn refuse(&mut self, now: Timestamp, found: KeyMatch, tokens: Tokens) {
        match found {
            KeyMatch::Known(key) => {
                let answer = self.peek(now, key, tokens);
                self.held(key, answer);
                self.refused(key);
                let limiter = &mut self.all[key];
                limiter.used = now;
                if matches!(limiter.rests, KeyList::Empty | KeyList::Holding) {
                    self.rouse(key);
                    self.rest(key);
                }
            }
            KeyMatch::New { named, .. } => {
                let named = &mut self.named[named];
                named.counts.refused += 1;
            }
        }
    }

    /// The answer of a quota to a call of this cost.
    pub(crate) fn peek(&self, now: Timestamp, key: SlabKey, tokens: Tokens) -> Coverage {
        let ledger = &self.all[key].ledger;
        ledger.peek(tokens.whole(), &self.time.at(now))
    }

    /// The answer as a verdict, for a call behind claims of `ahead`.
    pub(crate) fn verdict(
        &self,
        now: Timestamp,
        key: SlabKey,
        ahead: u64,
        tokens: Tokens,
    ) -> Verdict {
        let ledger = &self.all[key].ledger;
        let cost = tokens.whole().saturating_add(ahead);
        match ledger.verdict(cost, &self.time.at(now)) {
            // Earlier calls will leave.
            Verdict::Never if ahead > 0 => Verdict::OnChange,
            verdict => verdict,
        }
    }

    /// Whether a call with this answer is refused instead of waiting.
    pub(crate) fn rejects(&self, key: SlabKey, answer: Coverage) -> bool {
        rejects(self.all[key].on_excess, answer)
    }

    /// Whether a call that is not covered waits because the store does not answer.
    pub(crate) fn is_unanswered(&self, key: SlabKey) -> bool {
        let limiter = self.all.get(key);
        limiter.is_some_and(|limiter| limiter.ledger.is_unanswered())
    }

    /// A call was held or refused by this answer.
    pub(crate) fn held(&mut self, key: SlabKey, answer: Coverage) {
        self.all[key].ledger.want(answer);
        self.touch(key);
    }

    /// Counts a call that was refused, or whose deadline passed.
    pub(crate) fn refused(&mut self, key: SlabKey) {
        if self.all.get(key).is_some() {
            self.named_mut(key).counts.refused += 1;
        }
    }

    /// Takes the tokens of a call that was found covered at this moment.
    pub(crate) fn take(
        &mut self,
        now: Timestamp,
        key: SlabKey,
        tokens: Tokens,
        came: Timestamp,
        was_held_by: impl Fn(&str) -> bool,
    ) -> QuotaSpent {
        let time = self.time.at(now);
        let cost = tokens.whole();
        let limiter = &mut self.all[key];
        (limiter.used, limiter.spent) = (now, now);
        let spent = limiter.ledger.spend(cost, &time);
        if spent.safe > 0 {
            let until = limiter.ledger.own_share_spent_until(&time);
            self.shares_until = self.shares_until.max(until);
        }
        let (window, total) = limiter.ledger.window(&time, spent.window);
        let begun = limiter.ledger.begun(&time);
        let told = QuotaSpent {
            of: limiter.of.clone(),
            window,
            total,
            cost,
            settled: None,
            spent,
        };
        let counts = &mut self.named_mut(key).counts;
        let counter = if !was_held_by(&told.of.quota) {
            &mut counts.local
        } else if begun.is_none_or(|begun| begun < now.since(came)) {
            &mut counts.waited
        } else {
            &mut counts.drew
        };
        *counter += 1;
        self.touch(key);
        told
    }

    /// The call that was paid with this never left.
    pub(crate) fn give_back(&mut self, key: SlabKey, spent: Payment) {
        if let Some(limiter) = self.all.get_mut(key) {
            limiter.ledger.give_back(spent);
            self.touch(key);
        }
    }

    /// The call that was paid with this has cost `settled` in the end, and not `reserved`.
    pub(crate) fn amend(
        &mut self,
        now: Timestamp,
        key: SlabKey,
        spent: Payment,
        reserved: Tokens,
        settled: Tokens,
    ) {
        let time = self.time.at(now);
        if let Some(limiter) = self.all.get_mut(key) {
            let ledger = &mut limiter.ledger;
            ledger.amend(spent, reserved.whole(), settled.whole(), &time);
            if settled > reserved {
                let until = ledger.own_share_spent_until(&time);
                self.shares_until = self.shares_until.max(until);
            }
            self.touch(key);
        }
    }

    /// The moment before which coming back makes no sense for a call of this cost.
    pub(crate) fn opens(&self, now: Timestamp, key: SlabKey, tokens: Tokens) -> Timestamp {
        if self.all.get(key).is_none() {
            return now;
        }
        match self.peek(now, key, tokens) {
            Coverage::Covered | Coverage::Draw | Coverage::Never => now,
            Coverage::Exhausted { until }
            | Coverage::Between { until }
            | Coverage::Away { until } => until,
        }
    }
}

/// The reason of a refusal with this answer.
pub(crate) fn reason(answer: Coverage) -> RefusalReason {
    match answer {
        Coverage::Away { .. } => RefusalReason::StoreAway,
        _ => RefusalReason::RateLimited,
    }
}

fn rejects(on_excess: OnExcess, answer: Coverage) -> bool {
    on_excess == OnExcess::Reject
        && matches!(answer, Coverage::Exhausted { .. } | Coverage::Away { .. })
}
