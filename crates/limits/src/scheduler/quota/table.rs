//! The keys of all quotas.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::Discriminant;
use core::time::Duration;

use super::kinds::{QuotaAsk, QuotaCounts, QuotaQuestion, QuotaRef, QuotaRule, QuotaTrouble};
use crate::call::{Call, QuotaKey};
use crate::queue::QueueTotals;
use crate::quota::{Ledger, LedgerTrouble, StoreTime};
use crate::recency::{Linked, Links, Recency};
use crate::scheduler::bucket::OnExcess;
use crate::slab::{Slab, SlabKey};
use crate::time::Timestamp;

/// The limiter of a key.
#[derive(Clone, Debug)]
pub(in crate::scheduler) struct QuotaLimiter {
    pub(in crate::scheduler) of: QuotaKey,
    /// The quota with its rule.
    pub(in crate::scheduler) named: SlabKey,
    pub(in crate::scheduler) ledger: Ledger,
    pub(in crate::scheduler) on_excess: OnExcess,
    /// Whether the rule is neither the quota's nor one that the quota has for the key.
    pub(in crate::scheduler) is_overruled: bool,
    /// Calls that wait for it. While there are any it is not forgotten.
    pub(in crate::scheduler) pins: u64,
    pub(in crate::scheduler) queued: QueueTotals,
    pub(in crate::scheduler) used: Timestamp,
    /// When it spent anything last.
    pub(in crate::scheduler) spent: Timestamp,
    /// On the list of those to look after.
    pub(in crate::scheduler) touched: bool,
    /// When it needs work.
    pub(in crate::scheduler) wake: Option<Timestamp>,
    /// The store was asked to report changes.
    pub(in crate::scheduler) watched: bool,
    /// The kind of trouble when the key was looked after last. That the store is unavailable is the store's
    /// trouble.
    pub(in crate::scheduler) trouble: Option<Discriminant<LedgerTrouble>>,
    pub(in crate::scheduler) rests: KeyList,
    pub(in crate::scheduler) links: Links,
}

/// On which list a key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::scheduler) enum KeyList {
    /// On none: calls wait for it.
    #[default]
    Not,
    /// No call waits for it, and nothing is lost if it is forgotten.
    Empty,
    /// No call waits for it, and it holds tokens.
    Holding,
    /// The key gives its tokens back, and is forgotten then.
    Leaving,
}

impl Linked for QuotaLimiter {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn linked(&self) -> &Links {
        &self.links
    }
}

/// A rule, and what its keys have in common.
#[derive(Clone, Debug, Default)]
pub(in crate::scheduler) struct NamedQuota {
    /// `None` while it is removed.
    pub(in crate::scheduler) rule: Option<QuotaRule>,
    pub(in crate::scheduler) counts: QuotaCounts,
    /// The keys that no call waits for, and that hold nothing.
    pub(in crate::scheduler) empty: Recency,
    /// Keys without waiting calls that hold tokens.
    pub(in crate::scheduler) holding: Recency,
}

impl NamedQuota {
    pub(in crate::scheduler) const fn idle(&self) -> usize {
        self.empty.len() + self.holding.len()
    }
}

/// A quota of a call that comes in, before anything is made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyMatch {
    /// The ledger exists.
    Known(SlabKey),
    /// The ledger is to be made.
    New {
        /// By this quota.
        named: SlabKey,
        /// The key's index among those of the call.
        at: usize,
    },
}

/// All quotas.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuotaTable {
    pub(in crate::scheduler) named: Slab<NamedQuota>,
    pub(in crate::scheduler) by_name: BTreeMap<Arc<str>, SlabKey>,
    pub(in crate::scheduler) by_key: BTreeMap<QuotaKey, SlabKey>,
    pub(in crate::scheduler) all: Slab<QuotaLimiter>,
    pub(in crate::scheduler) keys_max: usize,
    pub(in crate::scheduler) nodes: u32,
    pub(in crate::scheduler) time: StoreTime,
    pub(in crate::scheduler) touched: Vec<SlabKey>,
    pub(in crate::scheduler) wakes: BTreeSet<(Timestamp, SlabKey)>,
    pub(in crate::scheduler) questions: Vec<QuotaQuestion>,
    /// Keys that give back what they hold before they are forgotten.
    pub(in crate::scheduler) leaving: Recency,
    pub(in crate::scheduler) forgotten: Vec<QuotaRef>,
    /// Keys whose first waiting call must be asked again.
    pub(in crate::scheduler) reopened: Vec<SlabKey>,
    /// Troubles that began or ended.
    pub(in crate::scheduler) troubles: Vec<QuotaTrouble>,
    /// When the scheduler was made.
    pub(in crate::scheduler) began: Timestamp,
    /// Unknown keys have spent nothing after this.
    pub(in crate::scheduler) unknown_since: Timestamp,
    /// The node has spent no own share of a window that begins then, by the store's clock, or later,
    /// before this scheduler was made; `None` if that is not known.
    pub(in crate::scheduler) untouched_from: Option<Duration>,
    /// The end of the latest window that any own share was spent in, by the store's clock; the greatest
    /// if that is not known.
    pub(in crate::scheduler) shares_until: Duration,
}

impl QuotaTable {
    /// No quota yet, at this moment. An earlier run of the node may have spent its own shares up to it.
    pub(in crate::scheduler) fn beginning(now: Timestamp) -> Self {
        Self {
            time: StoreTime::unknown(now),
            began: now,
            unknown_since: now,
            ..Self::default()
        }
    }

    pub(in crate::scheduler) fn named_mut(&mut self, key: SlabKey) -> &mut NamedQuota {
        &mut self.named[self.all[key].named]
    }

    pub(in crate::scheduler) fn find(&self, name: &str) -> Option<&NamedQuota> {
        Some(&self.named[*self.by_name.get(name)?])
    }

    /// Finds the keys that a call names, if there is a rule for them. Makes nothing.
    pub(crate) fn find_all(&self, call: &Call) -> Vec<KeyMatch> {
        let Some(keys) = &call.quotas else {
            return Vec::new();
        };
        let found = |(at, of): (usize, &QuotaKey)| {
            let (named, found) = match self.by_key.get(of) {
                Some(&key) => (self.all[key].named, KeyMatch::Known(key)),
                None => {
                    let &named = self.by_name.get(&of.quota)?;
                    (named, KeyMatch::New { named, at })
                }
            };
            self.named[named].rule.as_ref().map(|_| found)
        };
        keys.iter().enumerate().filter_map(found).collect()
    }

    /// The name of a quota.
    pub(crate) fn name_of(&self, found: KeyMatch) -> Option<Arc<str>> {
        match found {
            KeyMatch::Known(key) => self.name(key),
            KeyMatch::New { named, .. } => {
                let mut names = self.by_name.iter();
                let (name, _) = names.find(|&(_, &one)| one == named)?;
                Some(Arc::clone(name))
            }
        }
    }

    /// Makes the ledger of a key by the rule of its quota; `None` if the quota is removed.
    pub(in crate::scheduler) fn make(&mut self, of: &QuotaKey, named: SlabKey) -> Option<SlabKey> {
        let rule = self.named[named].rule.as_ref()?;
        let (ledger, on_excess) = (self.ledger(rule, &of.key), rule.on_excess);
        let key = self.all.insert(QuotaLimiter {
            of: of.clone(),
            named,
            ledger,
            on_excess,
            is_overruled: false,
            pins: 0,
            queued: QueueTotals::default(),
            used: self.unknown_since,
            spent: self.unknown_since,
            touched: false,
            wake: None,
            watched: false,
            trouble: None,
            rests: KeyList::Not,
            links: Links::default(),
        });
        self.by_key.insert(of.clone(), key);
        self.named_mut(key).counts.keys += 1;
        self.questions.push(QuotaQuestion {
            at: QuotaRef(key),
            of: of.clone(),
            ask: QuotaAsk::Settings,
        });
        Some(key)
    }

    /// A ledger of a key that is not known.
    pub(in crate::scheduler) fn ledger(&self, rule: &QuotaRule, key: &str) -> Ledger {
        let mut ledger = Ledger::new(rule.of(key), self.unknown_since);
        // A key that was forgotten may have spent its share since.
        if let Some(from) = self.untouched_from
            && self.unknown_since == self.began
        {
            ledger.know_past(from);
        }
        ledger
    }

    pub(in crate::scheduler) fn touch(&mut self, key: SlabKey) {
        if let Some(limiter) = self.all.get_mut(key)
            && !limiter.touched
        {
            limiter.touched = true;
            self.touched.push(key);
        }
    }

    pub(crate) fn name(&self, key: SlabKey) -> Option<Arc<str>> {
        Some(Arc::clone(&self.all.get(key)?.of.quota))
    }

    /// Panics unless every quota knows the number of its waiting calls. `waiting` counts them.
    pub(crate) fn audit(&self) {
        assert!(self.touched.is_empty(), "all were looked after");
        let is_full = self.leaving.len() >= self.leaving_max();
        assert!(
            self.known() <= self.keys_max
                || is_full
                || self
                    .all
                    .iter()
                    .all(|(_, one)| one.pins > 0 || one.rests == KeyList::Leaving),
            "no more keys are known than may be"
        );
        for (_, limiter) in self.all.iter() {
            assert_eq!(limiter.pins, limiter.queued.calls, "what waits is pinned");
            let holds = limiter.ledger.holds_tokens();
            let rests = match limiter.rests {
                KeyList::Not => limiter.pins > 0,
                KeyList::Empty => limiter.pins == 0 && !holds,
                KeyList::Holding | KeyList::Leaving => limiter.pins == 0 && holds,
            };
            assert!(rests, "every key is on the list of those like it");
        }
        assert_eq!(self.by_key.len(), self.all.len(), "every key is found");
    }
}

/// The existing keys.
pub(crate) fn known(found: &[KeyMatch]) -> Option<Arc<[SlabKey]>> {
    let known = found.iter().filter_map(|found| match found {
        KeyMatch::Known(key) => Some(*key),
        KeyMatch::New { .. } => None,
    });
    let known: Arc<[SlabKey]> = known.collect();
    (!known.is_empty()).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_small() {
        // There may be a million, each with its name besides.
        let bytes = size_of::<QuotaLimiter>();
        assert!(bytes <= 768, "{bytes} bytes for each key");
    }
}
