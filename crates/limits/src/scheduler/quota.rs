//! Quotas: budgets of keys in windows, drawn from a store that several nodes share.
//!
//! A call names the budgets that it draws from, such as its user's and that of all. Each is a
//! [`Ledger`], made when a call that is taken in names it first. There may be very many, so when
//! there are too many the least recently used is forgotten: first those that hold no tokens, then
//! others, which give back to the store what they hold before they go. A call that is refused makes
//! no ledger, so it takes nothing from any key. What a ledger has to ask the store is collected
//! here ([`Scheduler::quota_questions`]) and answered whenever the answer comes
//! ([`Scheduler::answer_quota`]): nothing here waits for anything.
//!
//! What a quota bars waits in turn, whatever the policy's [`Postpone`] says: a draw is a matter of
//! a reply, and the moment at which a window ends is known. Calls of another key never wait
//! behind it.
//!
//! [`Postpone`]: crate::Postpone

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::{OnExcess, Reason, Scheduler};
use crate::bucket::Tokens;
use crate::call::{Call, QuotaKey};
use crate::queue::Bar;
use crate::quota::{
    Answer, Counts, Ledger, LedgerNow, Outcome, Question, Rule, Spent, Step, StoreTime, Trouble,
    Version, Waiting, Write,
};
use crate::recency::{Linked, Links, Recency};
use crate::slab::{Key, Slab};
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// A quota as a scheduler keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaRule {
    /// What each key may spend, and how it is drawn.
    pub rule: Rule,
    /// What happens to a call that what is left of the window does not cover.
    pub on_excess: OnExcess,
}

/// A key's budget, by a number that is never given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaRef(Key);

/// What a key's ledger has to know of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaQuestion {
    /// Whose it is.
    pub at: QuotaRef,
    /// The same in words.
    pub of: QuotaKey,
    /// What it asks.
    pub ask: QuotaAsk,
}

/// A question to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaAsk {
    /// The store's time. To be answered when it is known better.
    Time(Question),
    /// What stands there.
    Read(Question),
    /// To write, if what it replaces stands there.
    Write(Question, Write),
    /// To tell ([`Scheduler::tell_quota`]) when something else stands there than this version, once:
    /// calls are refused because nothing is left, and somebody may give something back.
    Watch(Option<Version>),
}

/// What a call was paid with from one of its quotas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaSpent {
    /// Which budget.
    pub of: QuotaKey,
    /// The window that it counts in, as far as that is known.
    pub window: Option<u64>,
    /// What all nodes together may spend in that window.   tokens
    pub total: u64,
    /// What the call costs.   tokens
    pub cost: u64,
    /// What it was paid with.
    pub spent: Spent,
}

/// A key's budget as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaNow {
    /// Its number.
    pub at: QuotaRef,
    /// Which it is.
    pub of: QuotaKey,
    /// Its rule, for windows to be opened.
    pub rule: Rule,
    /// What is known and held. Its counts are those since it was last looked after: the whole is in
    /// [`Scheduler::quota_counts`].
    pub ledger: LedgerNow,
    /// Calls in the queue that meet it, whatever holds them.
    pub waiting: u64,
    /// What they cost.   tokens
    pub waiting_tokens: u64,
    /// Of the tokens that are there or come next, so many are claimed.
    pub claimed: u64,
    /// For how long claims have kept tokens that their calls could not use yet, over all of them.
    pub idle: Duration,
    /// When a call named it last.
    pub used: Timestamp,
}

/// What happened to all keys of a quota since it was made, those forgotten included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaCounts {
    /// Calls that it let go and never held.
    pub local: u64,
    /// Calls that it let go after it had held them in the window in which they came: for a reply
    /// of the store.
    pub drew: u64,
    /// Calls that it let go after it had held them for a window that began after they came.
    pub waited: u64,
    /// Calls that it refused, or held until their deadline.
    pub refused: u64,
    /// What happened between its ledgers and the store. `refused` and `missed` are for who takes
    /// from a ledger directly, and stay 0: what became of calls is counted above.
    pub ledgers: Counts,
    /// Keys that are known now.
    pub keys: usize,
    /// Keys that were forgotten, because there were too many; those included that give back what they
    /// hold first.
    pub forgotten: u64,
    /// Keys of which something is wrong in the store.
    pub troubled: usize,
}

/// Something began or ended that an operator should know of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaTrouble {
    /// Which key.
    pub of: QuotaKey,
    /// What is wrong from now on; none if nothing is.
    pub trouble: Option<Trouble>,
}

/// One key's limiter.
#[derive(Debug)]
struct Limiter {
    of: QuotaKey,
    /// Its rule.
    named: Key,
    ledger: Ledger,
    on_excess: OnExcess,
    /// Its rule does not follow the quota's.
    has_own_rule: bool,
    /// Calls that wait for it. While there are any it is not forgotten.
    pins: u64,
    waiting_tokens: u64,
    used: Timestamp,
    /// When it spent anything last.
    spent: Timestamp,
    /// On the list of those to look after.
    touched: bool,
    /// When it is to be looked after by itself.
    wake: Option<Timestamp>,
    /// The store was asked to tell of changes.
    watched: bool,
    /// What was wrong when it was looked after last.
    trouble: Wrong,
    rests: Rests,
    links: Links,
}

/// On which list a key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rests {
    /// On none: calls wait for it.
    #[default]
    Not,
    /// No call waits for it, and nothing is lost if it is forgotten.
    Empty,
    /// No call waits for it, and it holds tokens.
    Holding,
    /// It gives its tokens back, and is forgotten then.
    Leaving,
}

/// What kind of trouble a key has. That the store is unavailable is the store's trouble.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wrong {
    #[default]
    Nothing,
    Unreadable,
    Lost,
    Ahead,
    OtherReserve,
}

impl Wrong {
    fn of(trouble: Option<Trouble>) -> Self {
        match trouble {
            None | Some(Trouble::Away(_)) => Self::Nothing,
            Some(Trouble::Unreadable(_)) => Self::Unreadable,
            Some(Trouble::Lost) => Self::Lost,
            Some(Trouble::Ahead(_)) => Self::Ahead,
            Some(Trouble::OtherReserve { .. }) => Self::OtherReserve,
        }
    }
}

impl Linked for Limiter {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn linked(&self) -> &Links {
        &self.links
    }
}

/// A rule, and what its keys have in common.
#[derive(Debug)]
struct Named {
    /// None while it is taken away.
    rule: Option<QuotaRule>,
    counts: QuotaCounts,
    /// Its keys that no call waits for, and that hold nothing.
    empty: Recency,
    /// Those that no call waits for, and that hold tokens.
    holding: Recency,
}

impl Named {
    const fn idle(&self) -> usize {
        self.empty.len() + self.holding.len()
    }
}

/// A quota of a call that comes in, before anything is made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Its ledger is there.
    Known(Key),
    /// Its ledger is to be made, by this rule.
    New(Key),
}

/// All quotas.
#[derive(Debug)]
pub(super) struct Quotas {
    named: Slab<Named>,
    by_name: BTreeMap<Arc<str>, Key>,
    by_key: BTreeMap<QuotaKey, Key>,
    all: Slab<Limiter>,
    keys_max: usize,
    nodes: u32,
    time: StoreTime,
    touched: Vec<Key>,
    wakes: BTreeSet<(Timestamp, Key)>,
    questions: Vec<QuotaQuestion>,
    /// Keys that give back what they hold before they are forgotten.
    leaving: Recency,
    forgotten: Vec<QuotaRef>,
    /// Keys whose first waiting call is to be asked again.
    reopened: Vec<Key>,
    /// Troubles that began or ended.
    troubles: Vec<QuotaTrouble>,
    /// Whoever is not known here spent nothing after this.
    unknown_since: Timestamp,
}

const RULED: &str = "a rule is there for as long as its keys are";

/// Troubles that wait to be taken; those beyond are only counted.
const TROUBLES_MAX: usize = 1_024;

/// Keys that give back what they hold at once are no more than this, and no more than one in so many
/// of those that there may be, but at least so many.
const LEAVING_MAX: usize = 1_024;
const LEAVING_ONE_IN: usize = 8;
const LEAVING_MIN: usize = 16;

/// Calls wait for as many keys as there may be, or the store has not taken back yet what others hold.
#[derive(Debug)]
pub(super) struct TooManyKeys;

/// The limiters that a call holds on to.
pub(super) type Pinned = Option<Arc<[Key]>>;

/// For whom keys are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// A call that comes in: as far as there is room.
    Newcomer,
    /// One that was taken in before: it draws from what it names, whatever there is room for. There
    /// are never more of those than calls.
    Known,
}

impl Quotas {
    pub(super) fn new() -> Self {
        Self {
            named: Slab::default(),
            by_name: BTreeMap::new(),
            by_key: BTreeMap::new(),
            all: Slab::default(),
            keys_max: 0,
            nodes: 0,
            time: StoreTime::unknown(Timestamp::ZERO),
            touched: Vec::new(),
            wakes: BTreeSet::new(),
            questions: Vec::new(),
            leaving: Recency::default(),
            forgotten: Vec::new(),
            reopened: Vec::new(),
            troubles: Vec::new(),
            unknown_since: Timestamp::ZERO,
        }
    }

    /// A quota that calls wait for is never forgotten.
    fn expect(&self, key: Key) -> &Limiter {
        self.all
            .get(key)
            .expect("the quota of a waiting call is there")
    }

    fn expect_mut(&mut self, key: Key) -> &mut Limiter {
        self.all
            .get_mut(key)
            .expect("the quota of a waiting call is there")
    }

    fn named_mut(&mut self, key: Key) -> &mut Named {
        let named = self.expect(key).named;
        self.named.get_mut(named).expect(RULED)
    }

    fn find(&self, name: &str) -> Option<&Named> {
        let named = *self.by_name.get(name)?;
        Some(self.named.get(named).expect(RULED))
    }

    /// No call waits for a key any more: of those of its rule it was used last.
    fn rest(&mut self, key: Key) {
        let limiter = self.expect(key);
        let holds = limiter.ledger.holds_tokens();
        let named = self.named.get_mut(limiter.named).expect(RULED);
        let (list, rests) = if holds {
            (&mut named.holding, Rests::Holding)
        } else {
            (&mut named.empty, Rests::Empty)
        };
        list.push(&mut self.all, key);
        self.expect_mut(key).rests = rests;
    }

    /// A call waits for it, or it is on no list for another reason.
    fn rouse(&mut self, key: Key) {
        let limiter = self.expect(key);
        let (rests, named) = (limiter.rests, limiter.named);
        let named = self.named.get_mut(named).expect(RULED);
        match rests {
            Rests::Not => return,
            Rests::Empty => named.empty.remove(&mut self.all, key),
            Rests::Holding => named.holding.remove(&mut self.all, key),
            Rests::Leaving => {
                self.leaving.remove(&mut self.all, key);
                named.counts.keys += 1;
                self.expect_mut(key).ledger.stay();
            }
        }
        self.expect_mut(key).rests = Rests::Not;
    }

    /// A key that no call waits for may hold tokens now, or none any more.
    fn rest_again(&mut self, key: Key) {
        let limiter = self.expect(key);
        let holds = limiter.ledger.holds_tokens();
        if matches!(
            (limiter.rests, holds),
            (Rests::Empty, true) | (Rests::Holding, false)
        ) {
            self.rouse(key);
            self.rest(key);
        }
    }

    /// What a call names, as far as there is a rule for it. Makes nothing.
    pub(super) fn find_all(&self, call: &Call) -> Vec<Found> {
        let Some(keys) = &call.quotas else {
            return Vec::new();
        };
        let found = |of: &QuotaKey| match self.by_key.get(of) {
            Some(&key) => {
                let named = self.named.get(self.expect(key).named).expect(RULED);
                named.rule.map(|_| Found::Known(key))
            }
            None => {
                let named = *self.by_name.get(&of.quota)?;
                let rule = self.named.get(named).expect(RULED).rule;
                rule.map(|_| Found::New(named))
            }
        };
        keys.iter().filter_map(found).collect()
    }

    /// What a quota says to a call of this cost that comes in, and whether that refuses it.
    pub(super) fn ask(&self, now: Timestamp, found: Found, tokens: Tokens) -> (Answer, bool) {
        match found {
            Found::Known(key) => {
                let answer = self.peek(now, key, tokens);
                (answer, self.rejects(key, answer))
            }
            Found::New(named) => {
                let rule = self.named.get(named).expect(RULED).rule;
                let rule = rule.expect("what is found has a rule");
                let ledger = Ledger::new(rule.rule, self.unknown_since);
                let answer = ledger.peek(tokens.whole(), &self.time.at(now));
                (answer, rejects(rule.on_excess, answer))
            }
        }
    }

    /// A call was refused on account of this.
    pub(super) fn refuse(&mut self, now: Timestamp, found: Found, tokens: Tokens) {
        match found {
            Found::Known(key) => {
                let answer = self.peek(now, key, tokens);
                self.held(key, answer);
                self.refused(key);
                let limiter = self.expect_mut(key);
                limiter.used = now;
                if matches!(limiter.rests, Rests::Empty | Rests::Holding) {
                    self.rouse(key);
                    self.rest(key);
                }
            }
            Found::New(named) => {
                let named = self.named.get_mut(named).expect(RULED);
                named.counts.refused += 1;
            }
        }
    }

    /// The name of a quota.
    pub(super) fn name_of(&self, found: Found) -> Option<Arc<str>> {
        match found {
            Found::Known(key) => self.name(key),
            Found::New(named) => {
                let mut names = self.by_name.iter();
                let (name, _) = names.find(|&(_, &one)| one == named)?;
                Some(Arc::clone(name))
            }
        }
    }

    /// The limiters of a call that comes in and for which this was found, made where there are none.
    /// They stay until [`unpin`](Self::unpin). Where there is no room for all of them nothing has
    /// changed.
    pub(super) fn pin(
        &mut self,
        now: Timestamp,
        call: &Call,
        found: &[Found],
    ) -> Result<Pinned, TooManyKeys> {
        let Some(keys) = &call.quotas else {
            return Ok(None);
        };
        let is_simple = |(at, one): (usize, &Found)| match one {
            Found::Known(key) => {
                self.expect(*key).rests != Rests::Leaving && !found[..at].contains(one)
            }
            Found::New(_) => false,
        };
        if !found.iter().enumerate().all(is_simple) {
            return self.pin_for(For::Newcomer, now, keys);
        }
        let key = |one: &Found| match *one {
            Found::Known(key) | Found::New(key) => key,
        };
        let pinned: Arc<[Key]> = found.iter().map(key).collect();
        for &key in pinned.iter() {
            self.pin_one(now, key);
        }
        Ok((!pinned.is_empty()).then_some(pinned))
    }

    /// The same for a call that was taken in before.
    pub(super) fn pin_again(&mut self, now: Timestamp, keys: &[QuotaKey]) -> Pinned {
        let pinned = self.pin_for(For::Known, now, keys);
        pinned.expect("there is room for whoever was taken in")
    }

    fn pin_for(
        &mut self,
        whom: For,
        now: Timestamp,
        keys: &[QuotaKey],
    ) -> Result<Pinned, TooManyKeys> {
        let mut pinned = Vec::with_capacity(keys.len());
        // Those that are there first: none of them is to go for another one.
        for of in keys {
            if let Some(&key) = self.by_key.get(of)
                && self.expect(key).rests != Rests::Leaving
            {
                self.pin_once(now, key, &mut pinned);
            }
        }
        let is_new = |of: &QuotaKey, quotas: &Self| match quotas.by_key.get(of) {
            Some(&key) => quotas.expect(key).rests == Rests::Leaving,
            None => quotas.by_name.contains_key(&of.quota),
        };
        let new = keys.iter().filter(|&of| is_new(of, self)).count();
        if new > 0 {
            if !self.has_room_for(new) && whom == For::Newcomer {
                self.unpin(now, &pinned);
                return Err(TooManyKeys);
            }
            for of in keys {
                if !is_new(of, self) {
                    continue;
                }
                self.make_room(now, self.keys_max.saturating_sub(1));
                if let Some(&key) = self.by_key.get(of) {
                    self.pin_once(now, key, &mut pinned);
                    continue;
                }
                let named = self.by_name[&of.quota];
                if let Some(rule) = self.named.get(named).expect(RULED).rule {
                    let key = self.make(of, named, rule);
                    self.pin_once(now, key, &mut pinned);
                }
            }
            // In the order in which the call names them.
            let place = |key: &Key| keys.iter().position(|of| *of == self.expect(*key).of);
            pinned.sort_by_key(place);
        }
        Ok((!pinned.is_empty()).then(|| pinned.into()))
    }

    fn pin_once(&mut self, now: Timestamp, key: Key, pinned: &mut Vec<Key>) {
        if !pinned.contains(&key) && self.named_mut(key).rule.is_some() {
            pinned.push(key);
            self.pin_one(now, key);
        }
    }

    fn pin_one(&mut self, now: Timestamp, key: Key) {
        let limiter = self.expect_mut(key);
        limiter.used = now;
        limiter.pins += 1;
        if limiter.pins == 1 {
            self.rouse(key);
        }
    }

    /// A call that named these waits no more.
    pub(super) fn unpin(&mut self, now: Timestamp, keys: &[Key]) {
        for &key in keys {
            let limiter = self.expect_mut(key);
            limiter.used = now;
            limiter.pins -= 1;
            if limiter.pins == 0 {
                self.rest(key);
            }
        }
        self.make_room(now, self.keys_max);
    }

    fn make(&mut self, of: &QuotaKey, named: Key, rule: QuotaRule) -> Key {
        let key = self.all.insert(Limiter {
            of: of.clone(),
            named,
            ledger: Ledger::new(rule.rule, self.unknown_since),
            on_excess: rule.on_excess,
            has_own_rule: false,
            pins: 0,
            waiting_tokens: 0,
            used: self.unknown_since,
            spent: self.unknown_since,
            touched: false,
            wake: None,
            watched: false,
            trouble: Wrong::Nothing,
            rests: Rests::Not,
            links: Links::default(),
        });
        self.by_key.insert(of.clone(), key);
        self.named_mut(key).counts.keys += 1;
        key
    }

    /// Keys that are known, without those that are on their way out.
    fn known(&self) -> usize {
        self.all.len() - self.leaving.len()
    }

    fn leaving_max(&self) -> usize {
        (self.keys_max / LEAVING_ONE_IN).clamp(LEAVING_MIN, LEAVING_MAX)
    }

    /// Whether so many more keys can be known, once others are forgotten.
    fn has_room_for(&self, new: usize) -> bool {
        let surplus = (self.known() + new).saturating_sub(self.keys_max);
        if surplus == 0 {
            return true;
        }
        let named = || self.named.iter().map(|(_, named)| named);
        let empty: usize = named().map(|named| named.empty.len()).sum();
        let idle: usize = named().map(Named::idle).sum();
        let to_leave = surplus.saturating_sub(empty);
        let is_free = self.leaving.len() + to_leave <= self.leaving_max();
        surplus <= idle && (is_free || self.next_to_drop().is_some())
    }

    /// Forgets whichever was used least recently until there are no more than this, as far as no call
    /// waits for them: those that hold nothing first. Others give back what they hold before.
    fn make_room(&mut self, now: Timestamp, most: usize) {
        while self.known() > most {
            let oldest = |of: fn(&Named) -> &Recency| {
                let all = self.named.iter();
                let all = all.filter_map(|(_, named)| of(named).oldest());
                all.min_by_key(|&key| self.expect(key).used)
            };
            if let Some(empty) = oldest(|named| &named.empty) {
                self.forget(empty);
                continue;
            }
            let Some(holding) = oldest(|named| &named.holding) else {
                return;
            };
            let time = self.time.at(now);
            if self.expect(holding).ledger.worthless_at(&time) <= now {
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

    /// Of those that wait for the store to take back what they hold, the one that waits longest, if
    /// the store does not answer it, or holds what can't be read.
    fn next_to_drop(&self) -> Option<Key> {
        let oldest = self.leaving.oldest();
        oldest.filter(|&key| {
            let ledger = &self.expect(key).ledger;
            ledger.is_unanswered() || ledger.is_away()
        })
    }

    /// Has a key give back what it holds, and forgets it then.
    fn let_go(&mut self, key: Key) {
        self.rouse(key);
        let limiter = self.expect_mut(key);
        limiter.rests = Rests::Leaving;
        limiter.ledger.leave();
        let counts = &mut self.named_mut(key).counts;
        counts.keys -= 1;
        counts.forgotten += 1;
        self.leaving.push(&mut self.all, key);
        self.touch(key);
    }

    /// Forgets a key that no call waits for. What was drawn for it, if anything is left of it, is lost
    /// with its window.
    fn forget(&mut self, key: Key) {
        let is_counted = self.expect(key).rests == Rests::Leaving;
        self.rouse(key);
        let mut limiter = self.all.remove(key).expect("it was just found");
        self.by_key.remove(&limiter.of);
        if let Some(wake) = limiter.wake {
            self.wakes.remove(&(wake, key));
        }
        self.unknown_since = self.unknown_since.max(limiter.spent);
        self.forgotten.push(QuotaRef(key));
        let named = self.named.get_mut(limiter.named).expect(RULED);
        named.counts.keys -= 1;
        named.counts.troubled -= usize::from(limiter.trouble != Wrong::Nothing);
        named.counts.forgotten += u64::from(!is_counted);
        named.counts.ledgers.add(&limiter.ledger.take_counts());
    }

    fn touch(&mut self, key: Key) {
        if let Some(limiter) = self.all.get_mut(key)
            && !limiter.touched
        {
            limiter.touched = true;
            self.touched.push(key);
        }
    }

    /// Nobody has to be looked after before the next moment that was told.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.touched.is_empty()
    }

    /// The next moment at which somebody has to be looked after.
    #[inline]
    pub(super) fn wake(&self) -> Option<Timestamp> {
        self.wakes.first().map(|&(moment, _)| moment)
    }

    /// Those whose moment has come have to be looked after.
    #[inline]
    pub(super) fn wake_due(&mut self, now: Timestamp) {
        while let Some(&(moment, key)) = self.wakes.first()
            && moment <= now
        {
            self.wakes.pop_first();
            self.expect_mut(key).wake = None;
            self.touch(key);
        }
    }

    /// What a quota says to a call of this cost.
    pub(super) fn peek(&self, now: Timestamp, key: Key, tokens: Tokens) -> Answer {
        let ledger = &self.expect(key).ledger;
        ledger.peek(tokens.whole(), &self.time.at(now))
    }

    /// The same as a verdict, for a call that waits behind those that claim `ahead` of it.
    pub(super) fn verdict(&self, now: Timestamp, key: Key, ahead: u64, tokens: Tokens) -> Verdict {
        let ledger = &self.expect(key).ledger;
        let cost = tokens.whole().saturating_add(ahead);
        match ledger.verdict(cost, &self.time.at(now)) {
            // Those before it leave some day.
            Verdict::Never if ahead > 0 => Verdict::WhenTold,
            verdict => verdict,
        }
    }

    /// Whether a call to which this is said does not wait.
    pub(super) fn rejects(&self, key: Key, answer: Answer) -> bool {
        rejects(self.expect(key).on_excess, answer)
    }

    /// Whether a call that is not covered waits because the store does not answer.
    pub(super) fn is_unanswered(&self, key: Key) -> bool {
        let limiter = self.all.get(key);
        limiter.is_some_and(|limiter| limiter.ledger.is_unanswered())
    }

    /// A call was held or refused by this answer.
    pub(super) fn held(&mut self, key: Key, answer: Answer) {
        self.expect_mut(key).ledger.want(answer);
        self.touch(key);
    }

    /// A call that was refused, or waited in vain.
    pub(super) fn refused(&mut self, key: Key) {
        if self.all.get(key).is_some() {
            self.named_mut(key).counts.refused += 1;
        }
    }

    pub(super) fn count_waiting(&mut self, keys: Option<&Arc<[Key]>>, tokens: Tokens) {
        for &key in keys.into_iter().flat_map(|keys| keys.iter()) {
            let limiter = self.expect_mut(key);
            limiter.waiting_tokens += tokens.whole();
        }
    }

    pub(super) fn discount_waiting(&mut self, keys: Option<&Arc<[Key]>>, tokens: Tokens) {
        for &key in keys.into_iter().flat_map(|keys| keys.iter()) {
            let limiter = self.expect_mut(key);
            limiter.waiting_tokens -= tokens.whole();
        }
    }

    /// Takes the tokens of a call that was found covered at this moment.
    pub(super) fn take(
        &mut self,
        now: Timestamp,
        key: Key,
        tokens: Tokens,
        came: Timestamp,
        was_held_by: impl Fn(&str) -> bool,
    ) -> QuotaSpent {
        let time = self.time.at(now);
        let cost = tokens.whole();
        let limiter = self.expect_mut(key);
        (limiter.used, limiter.spent) = (now, now);
        let spent = limiter.ledger.spend(cost, &time);
        let (window, total) = limiter.ledger.window(&time, spent.window);
        let begun = limiter.ledger.begun(&time);
        let told = QuotaSpent {
            of: limiter.of.clone(),
            window,
            total,
            cost,
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
    pub(super) fn give_back(&mut self, key: Key, spent: Spent) {
        if let Some(limiter) = self.all.get_mut(key) {
            limiter.ledger.give_back(spent);
            self.touch(key);
        }
    }

    /// Looks after whoever was touched: what there is to ask the store is on the list of
    /// questions afterwards. `first` is what the first call costs that waits for a key.
    pub(super) fn settle(&mut self, now: Timestamp, first: impl Fn(Key) -> Option<Tokens>) {
        let time = self.time.at(now);
        while let Some(key) = self.touched.pop() {
            let first = first(key);
            self.look_after(now, &time, key, first);
        }
    }

    fn look_after(&mut self, now: Timestamp, time: &StoreTime, key: Key, first: Option<Tokens>) {
        let Some(limiter) = self.all.get_mut(key) else {
            return;
        };
        limiter.touched = false;
        let ledger = &mut limiter.ledger;
        if self.nodes > 0 {
            ledger.set_nodes(self.nodes);
        }
        let mut waiting = Waiting::default();
        let mut answer = Answer::Covered;
        if let Some(first) = first {
            waiting.next = first.whole();
            waiting.sum = limiter.waiting_tokens;
            answer = ledger.peek(waiting.next, time);
            if answer != Answer::Covered {
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
                Step::Sleep(until) => break until,
                Step::Time(question) => ask(QuotaAsk::Time(question)),
                Step::Read(question) => ask(QuotaAsk::Read(question)),
                Step::Write(question, write) => ask(QuotaAsk::Write(question, write)),
            }
        };
        // What was concluded by itself, such as that a question was not answered, opens the key like
        // an answer does.
        if first.is_some() {
            let after = ledger.peek(waiting.next, time);
            if after == Answer::Covered || after != answer {
                self.reopened.push(key);
            }
        }
        let watches = ledger.watches(time);
        if watches && !limiter.watched {
            ask(QuotaAsk::Watch(ledger.version()));
        }
        limiter.watched = watches;
        let trouble = ledger.trouble(time);
        let (before, wrong) = (limiter.trouble, Wrong::of(trouble));
        // While the store is unavailable nothing new is known of the key.
        let is_news = wrong != before && !matches!(trouble, Some(Trouble::Away(_)));
        if is_news {
            limiter.trouble = wrong;
            if self.troubles.len() < TROUBLES_MAX {
                self.troubles.push(QuotaTrouble {
                    of: limiter.of.clone(),
                    trouble,
                });
            }
        }
        let counts = ledger.take_counts();
        let until = if limiter.rests == Rests::Leaving {
            until.min(ledger.worthless_at(time))
        } else {
            until
        };
        let wake = (until < Timestamp::MAX).then(|| until.max(now + Duration::from_nanos(1)));
        if limiter.wake != wake {
            if let Some(before) = limiter.wake {
                self.wakes.remove(&(before, key));
            }
            if let Some(wake) = wake {
                self.wakes.insert((wake, key));
            }
            limiter.wake = wake;
        }
        let all = &mut self.named_mut(key).counts;
        all.ledgers.add(&counts);
        if is_news {
            all.troubled += usize::from(before == Wrong::Nothing);
            all.troubled -= usize::from(wrong == Wrong::Nothing);
        }
        if self.expect(key).rests == Rests::Leaving {
            if self.expect(key).ledger.worthless_at(time) <= now {
                self.forget(key);
                self.make_room(now, self.keys_max);
            }
        } else {
            self.rest_again(key);
        }
    }

    /// A key whose first waiting call is to be asked again, since it was looked after.
    pub(super) fn next_reopened(&mut self) -> Option<Key> {
        self.reopened.pop()
    }

    pub(super) fn name(&self, key: Key) -> Option<Arc<str>> {
        Some(Arc::clone(&self.all.get(key)?.of.quota))
    }

    /// The moment before which coming back makes no sense for a call of this cost.
    pub(super) fn opens(&self, now: Timestamp, key: Key, tokens: Tokens) -> Timestamp {
        if self.all.get(key).is_none() {
            return now;
        }
        match self.peek(now, key, tokens) {
            Answer::Covered | Answer::Draw | Answer::Never => now,
            Answer::Exhausted { until } | Answer::Between { until } | Answer::Away { until } => {
                until
            }
        }
    }

    fn now(
        &self,
        time: &StoreTime,
        key: Key,
        limiter: &Limiter,
        (claimed, idle): (u64, Duration),
    ) -> QuotaNow {
        QuotaNow {
            at: QuotaRef(key),
            of: limiter.of.clone(),
            rule: *limiter.ledger.rule(),
            ledger: limiter.ledger.now(time),
            waiting: limiter.pins,
            waiting_tokens: limiter.waiting_tokens,
            claimed,
            idle,
            used: limiter.used,
        }
    }

    /// Panics unless every quota knows how many wait for it. `waiting` counts them.
    pub(super) fn audit(&self, waiting: impl Fn(Key) -> u64) {
        assert!(self.touched.is_empty(), "all were looked after");
        for (key, limiter) in self.all.iter() {
            assert_eq!(
                limiter.pins,
                waiting(key),
                "every quota knows how many wait for it"
            );
        }
        let is_full = self.leaving.len() >= self.leaving_max();
        assert!(
            self.known() <= self.keys_max
                || is_full
                || self
                    .all
                    .iter()
                    .all(|(_, one)| one.pins > 0 || one.rests == Rests::Leaving),
            "no more keys are known than may be"
        );
        for (_, limiter) in self.all.iter() {
            let holds = limiter.ledger.holds_tokens();
            let rests = match limiter.rests {
                Rests::Not => limiter.pins > 0,
                Rests::Empty => limiter.pins == 0 && !holds,
                Rests::Holding | Rests::Leaving => limiter.pins == 0 && holds,
            };
            assert!(rests, "every key is on the list of those like it");
        }
        assert_eq!(self.by_key.len(), self.all.len(), "every key is found");
    }
}

/// Those that are there already.
pub(super) fn known(found: &[Found]) -> Option<Arc<[Key]>> {
    let known = found.iter().filter_map(|found| match found {
        Found::Known(key) => Some(*key),
        Found::New(_) => None,
    });
    let known: Arc<[Key]> = known.collect();
    (!known.is_empty()).then_some(known)
}

/// Why a call to which this is said is refused.
pub(super) fn reason(answer: Answer) -> Reason {
    match answer {
        Answer::Away { .. } => Reason::StoreAway,
        _ => Reason::RateLimited,
    }
}

fn rejects(on_excess: OnExcess, answer: Answer) -> bool {
    on_excess == OnExcess::Reject
        && matches!(answer, Answer::Exhausted { .. } | Answer::Away { .. })
}

impl<T> Scheduler<T> {
    /// Takes the quotas that there are from now on, by name. Keys keep what they hold; those of a
    /// quota that is gone are forgotten, and calls that wait for it wait for the rest of what they
    /// meet. At most `keys_max` keys are known at once. For a new one the least recently used is
    /// forgotten that no call waits for: one that holds no tokens if there is any, or else one that
    /// gives back what it holds before, beside `keys_max`. At most 1,024 do that at once (16, or an
    /// eighth of `keys_max` if that is more); if the store does not answer the first of them, it is
    /// forgotten with what it holds, and if it does, a new key is refused meanwhile. A call that was
    /// taken in already has its keys whatever there is room for.
    ///
    /// Linear in the keys, and in the calls that wait.
    pub fn set_quotas(
        &mut self,
        now: Timestamp,
        rules: BTreeMap<Arc<str>, QuotaRule>,
        keys_max: usize,
    ) {
        let now = self.advance(now);
        let Quotas { named, by_name, .. } = &mut self.quotas;
        for (name, &mut key) in by_name.iter_mut() {
            named.get_mut(key).expect(RULED).rule = rules.get(name).copied();
        }
        for (name, rule) in rules {
            by_name.entry(name).or_insert_with(|| {
                named.insert(Named {
                    rule: Some(rule),
                    counts: QuotaCounts::default(),
                    empty: Recency::default(),
                    holding: Recency::default(),
                })
            });
        }
        self.quotas.keys_max = keys_max;
        let keys: Vec<Key> = self.quotas.all.iter().map(|(key, _)| key).collect();
        for key in keys {
            let Some(rule) = self.quotas.named_mut(key).rule else {
                continue;
            };
            let limiter = self.quotas.expect_mut(key);
            limiter.on_excess = rule.on_excess;
            if !limiter.has_own_rule {
                limiter.ledger.apply(rule.rule);
            }
            self.changed_quota(key);
        }
        self.repin(now);
        let quotas = &mut self.quotas;
        let is_gone = |limiter: &Limiter| {
            let named = quotas.named.get(limiter.named).expect(RULED);
            named.rule.is_none()
        };
        let gone: Vec<Key> = quotas
            .all
            .iter()
            .filter(|(_, limiter)| is_gone(limiter))
            .map(|(key, _)| key)
            .collect();
        for key in gone {
            quotas.forget(key);
        }
        let named = &mut quotas.named;
        quotas.by_name.retain(|_, &mut key| {
            let stays = named.get(key).expect(RULED).rule.is_some();
            if !stays {
                named.remove(key);
            }
            stays
        });
        quotas.make_room(now, keys_max);
    }

    /// Finds the quotas of all waiting calls anew.
    fn repin(&mut self, now: Timestamp) {
        let waiting = self.queue.iter();
        let names = waiting.filter(|(_, waiting)| waiting.call.quotas.is_some());
        let mut all: Vec<_> = names.map(|(key, waiting)| (waiting.arrival, key)).collect();
        all.sort_unstable();
        for (_, key) in all {
            let waiting = self.queue.expect_mut(key);
            let named = waiting.call.quotas.clone();
            let (before, place) = (waiting.quotas.clone(), waiting.place);
            let (tokens, arrival) = (waiting.call.tokens, waiting.arrival);
            let named = named.as_deref().unwrap_or_default();
            let after = self.quotas.pin_again(now, named);
            if before != after {
                self.quotas.discount_waiting(before.as_ref(), tokens);
                self.quotas.count_waiting(after.as_ref(), tokens);
                self.queue.expect_mut(key).quotas = after;
                self.replace(key, place, arrival);
            }
            if let Some(before) = &before {
                self.quotas.unpin(now, before);
            }
        }
    }

    /// Something may be spent that could not be, or could be and can't.
    fn changed_quota(&mut self, key: Key) {
        self.parking.change(Bar::Quota(key));
        self.quotas.touch(key);
    }

    /// Gives one key a rule of its own, or with `None` that of its quota again. False if the key
    /// was forgotten.
    pub fn set_quota_rule(&mut self, now: Timestamp, at: QuotaRef, rule: Option<Rule>) -> bool {
        self.advance(now);
        if self.quotas.all.get(at.0).is_none() {
            return false;
        }
        let common = self.quotas.named_mut(at.0).rule;
        let common = common.expect("keys of a rule that is gone are forgotten with it");
        let limiter = self.quotas.expect_mut(at.0);
        limiter.has_own_rule = rule.is_some();
        limiter.ledger.apply(rule.unwrap_or(common.rule));
        self.changed_quota(at.0);
        true
    }

    /// How many nodes share the quotas, which decides only how much is drawn at once; 0 if nobody
    /// knows.
    pub fn set_quota_nodes(&mut self, nodes: u32) {
        self.quotas.nodes = nodes;
    }

    /// What is known of the store's time, seen from a moment that is not after `now`.
    pub fn learn_store_time(&mut self, now: Timestamp, time: StoreTime) {
        let now = self.advance(now);
        let (before, after) = (self.quotas.time.at(now), time.at(now));
        self.quotas.time = time;
        let contradicts = after.earliest() > before.latest() || after.latest() < before.earliest();
        if contradicts || after.width() < before.width() / 2 {
            for key in self.parking.quotas_waited_for() {
                self.parking.change(Bar::Quota(key));
                self.quotas.touch(key);
            }
        }
    }

    /// Takes the questions that the store has to be asked. Each is told once.
    pub fn quota_questions(&mut self) -> Vec<QuotaQuestion> {
        mem::take(&mut self.quotas.questions)
    }

    /// Takes those that were forgotten: nothing has to be known of them any more.
    pub fn forgotten_quotas(&mut self) -> Vec<QuotaRef> {
        mem::take(&mut self.quotas.forgotten)
    }

    /// Whether there is anything to take for [`quota_questions`](Self::quota_questions),
    /// [`forgotten_quotas`](Self::forgotten_quotas) or [`quota_troubles`](Self::quota_troubles).
    #[must_use]
    pub fn asks_of_quotas(&self) -> bool {
        let Quotas {
            questions,
            forgotten,
            troubles,
            ..
        } = &self.quotas;
        !(questions.is_empty() && forgotten.is_empty() && troubles.is_empty())
    }

    /// Whether [`next`](Self::next) has anything to do for quotas before the moment that it named.
    #[must_use]
    pub fn has_settled_quotas(&self) -> bool {
        self.quotas.is_settled()
    }

    /// Answers a question. `entropy` is any number, another one each time. An answer to a question
    /// that is no longer asked is passed over.
    pub fn answer_quota(
        &mut self,
        now: Timestamp,
        at: QuotaRef,
        question: Question,
        outcome: Outcome,
        entropy: u64,
    ) {
        let now = self.advance(now);
        let time = self.quotas.time.at(now);
        if let Some(limiter) = self.quotas.all.get_mut(at.0) {
            limiter.ledger.done(question, outcome, &time, entropy);
            self.changed_quota(at.0);
        }
    }

    /// Something else may stand in the store for a key: it is looked at before a call is refused on
    /// its account.
    pub fn tell_quota(&mut self, now: Timestamp, at: QuotaRef) {
        self.advance(now);
        if let Some(limiter) = self.quotas.all.get_mut(at.0) {
            limiter.watched = false;
            limiter.ledger.told();
            self.changed_quota(at.0);
        }
    }

    /// The store answers again. Calls that wait have their questions asked at once, and a key that no
    /// call waits for is asked about when the next one comes. Linear in the keys.
    pub fn store_is_back(&mut self, now: Timestamp) {
        self.advance(now);
        let keys: Vec<Key> = self.quotas.all.iter().map(|(key, _)| key).collect();
        for key in keys {
            let limiter = self.quotas.expect_mut(key);
            limiter.watched = false;
            limiter.ledger.store_is_back();
            self.changed_quota(key);
        }
    }

    /// Whether the answer to a question is still of use: a call waits for it, or something is held
    /// that it adds to.
    #[must_use]
    pub fn wants_answer(&self, at: QuotaRef) -> bool {
        let limiter = self.quotas.all.get(at.0);
        limiter.is_some_and(|limiter| limiter.pins > 0 || limiter.ledger.asks_ahead())
    }

    /// Takes what began or ended of the troubles of keys since this was asked last.
    pub fn quota_troubles(&mut self) -> Vec<QuotaTrouble> {
        mem::take(&mut self.quotas.troubles)
    }

    /// A key's budget as it is now; `None` if nothing is known of it.
    #[must_use]
    pub fn quota_now(&self, now: Timestamp, of: &QuotaKey) -> Option<QuotaNow> {
        let now = self.now.max(now);
        let time = self.quotas.time.at(now);
        let key = *self.quotas.by_key.get(of)?;
        let claimed = self.parking.claimed(Bar::Quota(key), now);
        let limiter = self.quotas.expect(key);
        Some(self.quotas.now(&time, key, limiter, claimed))
    }

    /// The keys of a quota, at most so many: first those that calls wait for, then those that were
    /// used last.
    #[must_use]
    pub fn quotas_now(&self, now: Timestamp, quota: &str, most: usize) -> Vec<QuotaNow> {
        let Some(named) = self.quotas.find(quota) else {
            return Vec::new();
        };
        let now = self.now.max(now);
        let time = self.quotas.time.at(now);
        let waited_for = self.parking.quotas_waited_for().into_iter();
        let waited_for = waited_for.map(|key| (key, self.quotas.expect(key)));
        let waited_for = waited_for.filter(|(_, limiter)| *limiter.of.quota == *quota);
        let idle = merged(
            named.empty.newest_first(&self.quotas.all),
            named.holding.newest_first(&self.quotas.all),
        );
        let all = waited_for.chain(idle).take(most);
        let now_of = |(key, limiter)| {
            let claimed = self.parking.claimed(Bar::Quota(key), now);
            self.quotas.now(&time, key, limiter, claimed)
        };
        all.map(now_of).collect()
    }

    /// What happened to a quota's keys; `None` if there is no such quota.
    #[must_use]
    pub fn quota_counts(&self, quota: &str) -> Option<QuotaCounts> {
        Some(self.quotas.find(quota)?.counts)
    }

    /// Looks after the quotas for which something has changed.
    #[inline]
    pub(super) fn settle_quotas(&mut self, now: Timestamp) {
        self.quotas.wake_due(now);
        if self.quotas.is_settled() {
            return;
        }
        let (parking, queue) = (&self.parking, &self.queue);
        self.quotas.settle(now, |key| {
            let head = parking.first_at_quota(key)?;
            Some(queue.expect(head).call.tokens)
        });
        while let Some(key) = self.quotas.next_reopened() {
            self.parking.change(Bar::Quota(key));
        }
    }
}

/// Two lists in which those that were used last come first, as one.
fn merged<'a>(
    one: impl Iterator<Item = (Key, &'a Limiter)>,
    other: impl Iterator<Item = (Key, &'a Limiter)>,
) -> impl Iterator<Item = (Key, &'a Limiter)> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    core::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some((_, of_one)), Some((_, of_other))) if of_one.used >= of_other.used => one.next(),
        (_, Some(_)) => other.next(),
        (_, None) => one.next(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_small() {
        // There may be a million, each with its name besides.
        let bytes = size_of::<Limiter>();
        assert!(bytes <= 768, "{bytes} bytes for each key");
    }
}
