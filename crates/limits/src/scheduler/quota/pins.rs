//! Keys that calls wait for, and keys that are forgotten.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::kinds::QuotaRef;
use super::table::{KeyList, KeyMatch, NamedQuota, QuotaTable};
use crate::call::{Call, QuotaKey};
use crate::recency::Recency;
use crate::slab::SlabKey;
use crate::time::Timestamp;

/// How many keys return their tokens at once: at most the maximum, and at most one in
/// `LEAVING_ONE_IN` of all possible keys, but at least the minimum.
const LEAVING_MAX: usize = 1_024;

const LEAVING_ONE_IN: usize = 8;

const LEAVING_MIN: usize = 16;

/// Calls wait for as many keys as there may be, or the store has not taken back yet what others hold.
#[derive(Debug)]
pub(crate) struct NoRoomForKeys;

/// The limiters that a call holds on to.
pub(crate) type Pinned = Option<Arc<[SlabKey]>>;

impl QuotaTable {
    /// The limiters of a call that comes in and for which this was found, made where there are none.
    /// They stay until [`unpin`](Self::unpin). Where there is no room for all of them nothing has
    /// changed.
    pub(crate) fn pin(
        &mut self,
        now: Timestamp,
        call: &Call,
        found: &[KeyMatch],
    ) -> Result<Pinned, NoRoomForKeys> {
        let Some(keys) = &call.quotas else {
            return Ok(None);
        };
        let is_simple = |(at, one): (usize, &KeyMatch)| match one {
            KeyMatch::Known(key) => {
                self.all[*key].rests != KeyList::Leaving && !found[..at].contains(one)
            }
            KeyMatch::New { .. } => false,
        };
        if found.iter().enumerate().all(is_simple) {
            let key = |&(KeyMatch::Known(key) | KeyMatch::New { named: key, .. }): &KeyMatch| key;
            let pinned: Arc<[SlabKey]> = found.iter().map(key).collect();
            for &key in pinned.iter() {
                self.pin_one(now, key);
            }
            return Ok((!pinned.is_empty()).then_some(pinned));
        }
        let pinned = self.pin_known(now, keys);
        let new = keys.iter().filter(|of| self.is_new(of)).count();
        if new > 0 && !self.has_room_for(new) {
            self.unpin(now, &pinned);
            return Err(NoRoomForKeys);
        }
        Ok(self.pin_new(now, keys, pinned))
    }

    /// Pins the keys for a call that was taken in before: it draws from what it names, whatever there is room for.
    /// There are never more keys of those than calls.
    pub(crate) fn pin_again(&mut self, now: Timestamp, keys: &[QuotaKey]) -> Pinned {
        let pinned = self.pin_known(now, keys);
        self.pin_new(now, keys, pinned)
    }

    /// Existing keys come first, so that none of them is evicted for another one.
    fn pin_known(&mut self, now: Timestamp, keys: &[QuotaKey]) -> Vec<SlabKey> {
        let mut pinned = Vec::with_capacity(keys.len());
        for of in keys {
            if let Some(&key) = self.by_key.get(of)
                && self.all[key].rests != KeyList::Leaving
            {
                self.pin_once(now, key, &mut pinned);
            }
        }
        pinned
    }

    /// Whether there is a rule for it and no ledger that stays.
    fn is_new(&self, of: &QuotaKey) -> bool {
        match self.by_key.get(of) {
            Some(&key) => self.all[key].rests == KeyList::Leaving,
            None => self.by_name.contains_key(&of.quota),
        }
    }

    /// Makes the ledgers that a call still lacks, and adds them.
    fn pin_new(&mut self, now: Timestamp, keys: &[QuotaKey], mut pinned: Vec<SlabKey>) -> Pinned {
        let known = pinned.len();
        for of in keys {
            if !self.is_new(of) {
                continue;
            }
            self.make_room(now, self.keys_max.saturating_sub(1));
            if let Some(&key) = self.by_key.get(of) {
                self.pin_once(now, key, &mut pinned);
                continue;
            }
            let named = self.by_name[&of.quota];
            if let Some(key) = self.make(of, named) {
                self.pin_once(now, key, &mut pinned);
            }
        }
        if pinned.len() > known {
            // In the order in which the call names them.
            let place = |key: &SlabKey| keys.iter().position(|of| *of == self.all[*key].of);
            pinned.sort_by_key(place);
        }
        (!pinned.is_empty()).then(|| pinned.into())
    }

    fn pin_once(&mut self, now: Timestamp, key: SlabKey, pinned: &mut Vec<SlabKey>) {
        if !pinned.contains(&key) && self.named_mut(key).rule.is_some() {
            pinned.push(key);
            self.pin_one(now, key);
        }
    }

    fn pin_one(&mut self, now: Timestamp, key: SlabKey) {
        let limiter = &mut self.all[key];
        limiter.used = now;
        limiter.pins += 1;
        if limiter.pins == 1 {
            self.rouse(key);
        }
    }

    /// A call that named these waits no more.
    pub(crate) fn unpin(&mut self, now: Timestamp, keys: &[SlabKey]) {
        for &key in keys {
            let limiter = &mut self.all[key];
            limiter.used = now;
            limiter.pins -= 1;
            if limiter.pins == 0 {
                self.rest(key);
            }
        }
        self.make_room(now, self.keys_max);
    }

    /// No call waits for a key any more: of those of its rule it was used last.
    pub(in crate::scheduler) fn rest(&mut self, key: SlabKey) {
        let limiter = &self.all[key];
        let holds = limiter.ledger.holds_tokens();
        let named = &mut self.named[limiter.named];
        let (list, rests) = if holds {
            (&mut named.holding, KeyList::Holding)
        } else {
            (&mut named.empty, KeyList::Empty)
        };
        list.push(&mut self.all, key);
        self.all[key].rests = rests;
    }

    /// A call waits for it, or it is on no list for another reason.
    pub(in crate::scheduler) fn rouse(&mut self, key: SlabKey) {
        let limiter = &self.all[key];
        let (rests, named) = (limiter.rests, limiter.named);
        let named = &mut self.named[named];
        match rests {
            KeyList::Not => return,
            KeyList::Empty => named.empty.remove(&mut self.all, key),
            KeyList::Holding => named.holding.remove(&mut self.all, key),
            KeyList::Leaving => {
                self.leaving.remove(&mut self.all, key);
                named.counts.keys += 1;
                self.all[key].ledger.stay();
            }
        }
        self.all[key].rests = KeyList::Not;
    }

    /// A key that no call waits for may hold tokens now, or none any more.
    pub(in crate::scheduler) fn rest_again(&mut self, key: SlabKey) {
        let limiter = &self.all[key];
        let holds = limiter.ledger.holds_tokens();
        if matches!(
            (limiter.rests, holds),
            (KeyList::Empty, true) | (KeyList::Holding, false)
        ) {
            self.rouse(key);
            self.rest(key);
        }
    }

    /// Known keys, except those that are leaving.
    pub(in crate::scheduler) fn known(&self) -> usize {
        self.all.len() - self.leaving.len()
    }

    pub(in crate::scheduler) fn leaving_max(&self) -> usize {
        (self.keys_max / LEAVING_ONE_IN).clamp(LEAVING_MIN, LEAVING_MAX)
    }

    /// Whether this number of new keys fits, after others are evicted.
    fn has_room_for(&self, new: usize) -> bool {
        let surplus = (self.known() + new).saturating_sub(self.keys_max);
        if surplus == 0 {
            return true;
        }
        let named = || self.named.iter().map(|(_, named)| named);
        let empty: usize = named().map(|named| named.empty.len()).sum();
        let idle: usize = named().map(NamedQuota::idle).sum();
        let to_leave = surplus.saturating_sub(empty);
        let is_free = self.leaving.len() + to_leave <= self.leaving_max();
        surplus <= idle && (is_free || self.next_to_drop().is_some())
    }

    /// Evicts the least recently used keys without waiting calls until at most this number is
    /// known: first keys without tokens. Others return their tokens first.
    pub(in crate::scheduler) fn make_room(&mut self, now: Timestamp, most: usize) {
        while self.known() > most {
            let oldest = |of: fn(&NamedQuota) -> &Recency| {
                let all = self.named.iter();
                let all = all.filter_map(|(_, named)| of(named).oldest());
                all.min_by_key(|&key| self.all[key].used)
            };
            if let Some(empty) = oldest(|named| &named.empty) {
                self.forget(empty);
                continue;
            }
            let Some(holding) = oldest(|named| &named.holding) else {
                return;
            };
            let time = self.time.at(now);
            if self.all[holding].ledger.worthless_at(&time) <= now {
                self.forget(holding);
                continue;
            }
            if self.leaving.len() >= self.leaving_max() {
                let Some(dropped) = self.next_to_drop() else {
                    return;
                };
                self.forget(dropped);
            }
            self.let_go(holding);
        }
    }

    /// Of the keys that wait for the store to take their tokens back, the one that has waited
    /// longest, if the store does not answer it or contains an unreadable record.
    fn next_to_drop(&self) -> Option<SlabKey> {
        let oldest = self.leaving.oldest();
        oldest.filter(|&key| {
            let ledger = &self.all[key].ledger;
            ledger.is_unanswered() || ledger.is_unavailable()
        })
    }

    /// Has a key give back what it holds, and forgets it then.
    fn let_go(&mut self, key: SlabKey) {
        self.rouse(key);
        let limiter = &mut self.all[key];
        limiter.rests = KeyList::Leaving;
        limiter.ledger.leave();
        let counts = &mut self.named_mut(key).counts;
        counts.keys -= 1;
        counts.forgotten += 1;
        self.leaving.push(&mut self.all, key);
        self.touch(key);
    }

    /// Forgets a key that no call waits for. What was drawn for it, if anything is left of it, is lost
    /// with its window.
    pub(in crate::scheduler) fn forget(&mut self, key: SlabKey) {
        let is_counted = self.all[key].rests == KeyList::Leaving;
        self.rouse(key);
        let mut limiter = self.all.remove(key).expect("it was just found");
        self.by_key.remove(&limiter.of);
        if let Some(wake) = limiter.wake {
            self.wakes.remove(&(wake, key));
        }
        self.unknown_since = self.unknown_since.max(limiter.spent);
        self.forgotten.push(QuotaRef(key));
        let named = &mut self.named[limiter.named];
        named.counts.keys -= 1;
        named.counts.troubled -= usize::from(limiter.trouble.is_some());
        named.counts.forgotten += u64::from(!is_counted);
        named.counts.ledgers.add(&limiter.ledger.take_counts());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_of_all_keys_may_be_leaving_within_bounds() {
        for (keys, leaving) in [
            (1, 16),
            (128, 16),
            (800, 100),
            (8_192, 1_024),
            (1_000_000, 1_024),
        ] {
            let mut quotas = QuotaTable::beginning(Timestamp::ZERO);
            quotas.keys_max = keys;
            assert_eq!(quotas.leaving_max(), leaving, "of {keys}");
        }
    }
}
