//! Keys that have something to ask the store.

use core::mem;
use core::time::Duration;

use super::kinds::{QuotaAsk, QuotaQuestion, QuotaRef, QuotaTrouble};
use super::table::{KeyList, QuotaTable};
use crate::bucket::Tokens;
use crate::quota::{Action, Coverage, LedgerTrouble, StoreTime, WaitingCost};
use crate::slab::SlabKey;
use crate::time::Timestamp;

/// Troubles that wait to be taken; those beyond are only counted.
const TROUBLES_MAX: usize = 1_024;

impl QuotaTable {
    /// No key needs work before the next moment.
    #[inline]
    pub(crate) fn has_nothing_to_do(&self) -> bool {
        self.touched.is_empty()
    }

    /// The next moment at which a key needs work.
    #[inline]
    pub(crate) fn wake(&self) -> Option<Timestamp> {
        self.wakes.first().map(|&(moment, _)| moment)
    }

    /// Marks the keys whose moment has come.
    #[inline]
    pub(crate) fn wake_due(&mut self, now: Timestamp) {
        while let Some(&(moment, key)) = self.wakes.first()
            && moment <= now
        {
            self.wakes.pop_first();
            self.all[key].wake = None;
            self.touch(key);
        }
    }

    /// Works on all marked keys: afterwards their questions to the store are on the list. `first`
    /// returns the cost of the first call that waits for a key.
    pub(crate) fn settle(&mut self, now: Timestamp, first: impl Fn(SlabKey) -> Option<Tokens>) {
        let time = self.time.at(now);
        while let Some(key) = self.touched.pop() {
            let first = first(key);
            self.look_after(now, &time, key, first);
        }
    }

    fn look_after(
        &mut self,
        now: Timestamp,
        time: &StoreTime,
        key: SlabKey,
        first: Option<Tokens>,
    ) {
        let Some(limiter) = self.all.get_mut(key) else {
            return;
        };
        limiter.touched = false;
        let ledger = &mut limiter.ledger;
        if self.nodes > 0 {
            ledger.set_nodes(self.nodes);
        }
        let mut waiting = WaitingCost::default();
        let mut answer = Coverage::Covered;
        if let Some(first) = first {
            waiting.next = first.whole();
            waiting.sum = limiter.queued.draw;
            answer = ledger.peek(waiting.next, time);
            if answer != Coverage::Covered {
                ledger.want(answer);
            }
        }
        let mut ask = |ask| {
            self.questions.push(QuotaQuestion {
                at: QuotaRef(key),
                of: limiter.of.clone(),
                ask,
            });
        };
        let until = loop {
            match ledger.next(waiting, time) {
                Action::Sleep(until) => break until,
                Action::Time(question) => ask(QuotaAsk::Time(question)),
                Action::Read(question) => ask(QuotaAsk::Read(question)),
                Action::Write(question, write) => ask(QuotaAsk::Write(question, write)),
            }
        };
        // A conclusion without an answer, such as a timeout, opens the key like an answer does.
        if first.is_some() {
            let after = ledger.peek(waiting.next, time);
            if after == Coverage::Covered || after != answer {
                self.reopened.push(key);
            }
        }
        let watches = ledger.watches(time);
        if watches && !limiter.watched {
            ask(QuotaAsk::Watch(ledger.version()));
        }
        limiter.watched = watches;
        let trouble = ledger.trouble(time);
        let counts = ledger.take_counts();
        let until = if limiter.rests == KeyList::Leaving {
            until.min(ledger.worthless_at(time))
        } else {
            until
        };
        self.wake_at(key, until.max(now + Duration::from_nanos(1)));
        self.named_mut(key).counts.ledgers.add(&counts);
        self.note_trouble(key, trouble);
        if self.all[key].rests == KeyList::Leaving {
            if self.all[key].ledger.worthless_at(time) <= now {
                self.forget(key);
                self.make_room(now, self.keys_max);
            }
        } else {
            self.rest_again(key);
        }
    }

    /// Reports a trouble of a key when it begins, changes or ends.
    fn note_trouble(&mut self, key: SlabKey, trouble: Option<LedgerTrouble>) {
        let limiter = &mut self.all[key];
        let (had, has) = (limiter.trouble, trouble.as_ref().map(mem::discriminant));
        // While the store is unavailable nothing new is known of the key.
        if has == had || matches!(trouble, Some(LedgerTrouble::Away(_))) {
            return;
        }
        limiter.trouble = has;
        if self.troubles.len() < TROUBLES_MAX {
            self.troubles.push(QuotaTrouble {
                of: limiter.of.clone(),
                trouble,
            });
        }
        let counts = &mut self.named_mut(key).counts;
        counts.troubled += usize::from(had.is_none());
        counts.troubled -= usize::from(has.is_none());
    }

    /// Works on a key again at this moment; never at the greatest.
    fn wake_at(&mut self, key: SlabKey, at: Timestamp) {
        let wake = (at < Timestamp::MAX).then_some(at);
        let before = mem::replace(&mut self.all[key].wake, wake);
        if before != wake {
            before.map(|before| self.wakes.remove(&(before, key)));
            self.wakes.extend(wake.map(|wake| (wake, key)));
        }
    }

    /// A key whose first waiting call must be asked again.
    pub(crate) fn next_reopened(&mut self) -> Option<SlabKey> {
        self.reopened.pop()
    }
}
