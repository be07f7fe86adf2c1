//! A limiter for each of very many keys.
//!
//! [`Keys`] is for threads that share it: it has a clock and a lock, remembers a bounded number of keys,
//! and forgets those that rest. [`BucketKeys`] gives each key a [`TokenBucket`], [`PacedKeys`] a
//! [`Pacer`] limiter.

use core::borrow::Borrow;
use core::error::Error;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::num::NonZeroU32;
use core::time::Duration;
use std::borrow::ToOwned;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use crate::bucket::{Burst, Fill, TokenBucket, TokenLimiter, Tokens};
use crate::clock::{Clock, MonotonicClock};
use crate::pace::{Pace, Pacer, Pools};
use crate::time::Timestamp;
use crate::verdict::NotNow;

/// The least time between two looks at all keys while few of them rest, for each key that may be
/// remembered. A look takes a few per cent of that, so new keys cost little, however many come.
const LOOK_APART: Duration = Duration::from_micros(1);
/// Before such a look, a new key looks at this number of other keys, in turn. If at least one in
/// [`PAYS_ONE_IN`] of them rests, a look at all keys is worth its time at once.
const SAMPLE: usize = 64;
const PAYS_ONE_IN: usize = 16;
/// Up to this number of keys, the cost of a look at all of them does not matter.
const FEW: usize = 1024;

/// A limiter of which there may be one for each of very many keys: they share a rule, and of each only
/// its state is kept.
pub trait Keyed: TokenLimiter + Sized {
    /// What all keys have in common.
    type Rule: Copy + fmt::Debug;
    /// What is kept of one.
    type State: Copy + fmt::Debug;

    /// A limiter that rests.
    fn full(now: Timestamp, rule: Self::Rule) -> Self;

    /// A limiter in this state.
    fn from_state(rule: Self::Rule, state: Self::State) -> Self;

    /// What has to be kept beside the rule.
    fn state(&self) -> Self::State;

    /// Changes the rule; nothing is refunded.
    fn set_rule(&mut self, now: Timestamp, rule: Self::Rule);

    /// Whether it could do at least as much as a new one.
    fn rests(&self, now: Timestamp) -> bool;

    /// The first moment, not before `now`, at which it rests if nothing is taken before.
    fn rests_at(&self, now: Timestamp) -> Timestamp;
}

/// 16 bytes a key: the tokens, and the moment at which they were counted.
impl Keyed for TokenBucket {
    type Rule = (Burst, Fill);
    type State = (f64, Timestamp);

    fn full(now: Timestamp, (burst, fill): (Burst, Fill)) -> Self {
        Self::new(now, burst, fill)
    }

    fn from_state((burst, fill): (Burst, Fill), (tokens, since): (f64, Timestamp)) -> Self {
        Self::holding(since, burst, fill, tokens)
    }

    fn state(&self) -> (f64, Timestamp) {
        self.holds()
    }

    fn set_rule(&mut self, now: Timestamp, (burst, fill): (Burst, Fill)) {
        self.set_parameters(now, burst, fill);
    }

    fn rests(&self, now: Timestamp) -> bool {
        self.peek(now) >= self.burst().get()
    }

    fn rests_at(&self, now: Timestamp) -> Timestamp {
        self.reached_at(now, self.burst().get())
    }
}

/// 28 bytes of pools a key.
impl Keyed for Pacer {
    type Rule = Pace;
    type State = [u32; 7];

    fn full(now: Timestamp, pace: Pace) -> Self {
        Self::full(now, pace)
    }

    fn from_state(pace: Pace, words: [u32; 7]) -> Self {
        Self::from_pools(pace, Pools::from_words(words))
    }

    fn state(&self) -> [u32; 7] {
        self.pools().words()
    }

    fn set_rule(&mut self, now: Timestamp, pace: Pace) {
        self.set_pace(now, pace);
    }

    fn rests(&self, now: Timestamp) -> bool {
        self.level(now).active >= self.pace().sizes().active
    }

    fn rests_at(&self, now: Timestamp) -> Timestamp {
        self.reached_at(now, self.pace().sizes().active)
    }
}

/// A token bucket for each key.
///
/// ```
/// # use std::num::NonZeroU32;
/// # use tidegate_limits::keyed::{BucketKeys, KeyError};
/// # use tidegate_limits::{Burst, Fill, Tokens};
/// let rule = (Burst::new(2.0)?, Fill::new(0.1)?);
/// let keys = BucketKeys::new(rule, NonZeroU32::new(10_000).expect("not zero"));
/// assert_eq!(keys.try_acquire("anna", Tokens::ONE), Ok(()));
/// assert_eq!(keys.try_acquire("anna", Tokens::ONE), Ok(()));
/// // The error says from when on there is a token again.
/// assert!(matches!(keys.try_acquire("anna", Tokens::ONE), Err(KeyError::NotNow(_))));
/// assert_eq!(keys.try_acquire("otto", Tokens::ONE), Ok(()));
/// # Ok::<(), tidegate_limits::bucket::OutOfRange>(())
/// ```
pub type BucketKeys<K, C = MonotonicClock, S = RandomState> = Keys<TokenBucket, K, C, S>;

/// A pace for each key.
///
/// A new key may take as much at once as a pool holds without its burst ([`Pace::pool`]), such as two
/// operations where nothing else is said.
pub type PacedKeys<K, C = MonotonicClock, S = RandomState> = Keys<Pacer, K, C, S>;

/// Limits every key of a set by the same rule, each for itself. A key takes the [`Keyed::State`] of its
/// limiter, and what a map from keys to `u32` takes.
///
/// At most `keys_max` keys are remembered. At that number, the keys at rest are forgotten: those
/// whose limiter is full. A key that is forgotten and comes back is full again, so it gains nothing and
/// loses nothing, except what a pace had not caught up with yet. A key that is not full, or even in debt,
/// is never forgotten: while no key is at rest, a new one is refused. Where fewer than one in 16 of more
/// than 1,024 keys rest, it may be refused for up to a microsecond for each key that may be remembered,
/// since rests are looked for no more often.
///
/// Threads share one, behind a lock that is held for a search and some arithmetic. The clock is read
/// inside the lock.
#[derive(Debug)]
pub struct Keys<L: Keyed, K, C: Clock = MonotonicClock, S = RandomState> {
    clock: C,
    table: Mutex<Table<L, K, S>>,
}

#[derive(Debug)]
struct Table<L: Keyed, K, S> {
    rule: L::Rule,
    keys_max: NonZeroU32,
    rows: HashMap<K, u32, S>,
    /// By row. A row that no key has is in `free`.
    states: Vec<L::State>,
    free: Vec<u32>,
    /// No key rests before this.
    none_rests_before: Timestamp,
    /// Before this moment it is not worth looking at all keys for those at rest, unless many are.
    looks_again: Timestamp,
    /// The row at which the next new key looks first.
    hand: usize,
}

/// Why a key takes nothing now, and when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// Its own limiter lets nothing through.
    NotNow(NotNow),
    /// It is not remembered, and there is no place for it.
    TooManyKeys(TooManyKeys),
}

/// Every key that is remembered is in use, and there may be no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyKeys {
    /// How many keys may be remembered.
    pub max: NonZeroU32,
    /// When a place may be free: with up to 1,024 keys the first moment at which one rests, if nothing
    /// is taken from it before; with more, when all of them are looked at next. Sooner, where many come
    /// to rest.
    pub retry_at: Timestamp,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the key takes nothing now")
    }
}

impl Error for KeyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(match self {
            Self::NotNow(cause) => cause,
            Self::TooManyKeys(cause) => cause,
        })
    }
}

impl fmt::Display for TooManyKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys are in use, and there may be no more", self.max)
    }
}

impl Error for TooManyKeys {}

impl<L: Keyed, K: Hash + Eq> Keys<L, K> {
    /// No key yet, and at most `keys_max` at once.
    #[must_use]
    pub fn new(rule: L::Rule, keys_max: NonZeroU32) -> Self {
        Self::with_clock(rule, keys_max, MonotonicClock::new())
    }
}

impl<L: Keyed, K: Hash + Eq, C: Clock> Keys<L, K, C> {
    /// The same on another clock.
    #[must_use]
    pub fn with_clock(rule: L::Rule, keys_max: NonZeroU32, clock: C) -> Self {
        Self::with_hasher(rule, keys_max, clock, RandomState::new())
    }
}

impl<L: Keyed, K: Hash + Eq, C: Clock, S: BuildHasher> Keys<L, K, C, S> {
    /// The same, with keys hashed otherwise.
    #[must_use]
    pub fn with_hasher(rule: L::Rule, keys_max: NonZeroU32, clock: C, hasher: S) -> Self {
        let table = Table {
            rule,
            keys_max,
            rows: HashMap::with_hasher(hasher),
            states: Vec::new(),
            free: Vec::new(),
            none_rests_before: Timestamp::ZERO,
            looks_again: Timestamp::ZERO,
            hand: 0,
        };
        let table = Mutex::new(table);
        Self { clock, table }
    }

    fn lock(&self) -> MutexGuard<'_, Table<L, K, S>> {
        // What a key's own code could leave behind when it panics is a row that no key has.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `cost` from the key's limiter if it may now. A key that is not known yet begins with a
    /// full one.
    ///
    /// # Errors
    ///
    /// When it may, by the [`clock`](Self::clock): [`KeyError::NotNow`]. For a new key where every other
    /// is in use, when to try again: [`KeyError::TooManyKeys`]. Nothing is taken then.
    pub fn try_acquire<Q>(&self, key: &Q, cost: Tokens) -> Result<(), KeyError>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut table = self.lock();
        let now = self.clock.now();
        let row = match table.rows.get(key) {
            Some(&row) => row,
            None => {
                let row = table.new_row(now).map_err(KeyError::TooManyKeys)?;
                table.rows.insert(key.to_owned(), row);
                row
            }
        };
        let rule = table.rule;
        let state = &mut table.states[row as usize];
        let mut limiter = L::from_state(rule, *state);
        limiter.try_take(now, cost).map_err(KeyError::NotNow)?;
        *state = limiter.state();
        Ok(())
    }

    /// The limiter of one key as it is; `None` for one that is not remembered.
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<L>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let table = self.lock();
        let row = *table.rows.get(key)?;
        Some(L::from_state(table.rule, table.states[row as usize]))
    }

    /// How many keys are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().rows.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The limit of each key.
    #[must_use]
    pub fn rule(&self) -> L::Rule {
        self.lock().rule
    }

    /// The clock that it goes by.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// Changes the limit of all keys; what each has is kept, and nothing is refunded. Linear in the
    /// keys.
    pub fn set_rule(&self, rule: L::Rule) {
        let mut table = self.lock();
        let now = self.clock.now();
        let before = core::mem::replace(&mut table.rule, rule);
        for state in &mut table.states {
            let mut limiter = L::from_state(before, *state);
            limiter.set_rule(now, rule);
            *state = limiter.state();
        }
        table.none_rests_before = Timestamp::ZERO;
        table.looks_again = Timestamp::ZERO;
    }

    /// Forgets every key at rest. Looks at all of them. Returns how many it forgot.
    pub fn forget_idle(&self) -> usize {
        let mut table = self.lock();
        let now = self.clock.now();
        table.forget_idle(now)
    }
}

impl<L: Keyed, K: Hash + Eq, S: BuildHasher> Table<L, K, S> {
    fn forget_idle(&mut self, now: Timestamp) -> usize {
        let Self {
            rule,
            rows,
            states,
            free,
            ..
        } = self;
        let before = rows.len();
        rows.retain(|_, row| {
            let rests = L::from_state(*rule, states[*row as usize]).rests(now);
            if rests {
                free.push(*row);
            }
            !rests
        });
        before - rows.len()
    }

    /// A row for a new key, with a full limiter.
    fn new_row(&mut self, now: Timestamp) -> Result<u32, TooManyKeys> {
        if self.rows.len() >= self.keys_max.get() as usize {
            self.make_room(now).map_err(|retry_at| TooManyKeys {
                max: self.keys_max,
                retry_at,
            })?;
        }
        let new = L::full(now, self.rule).state();
        let row = if let Some(row) = self.free.pop() {
            self.states[row as usize] = new;
            row
        } else {
            self.states.push(new);
            u32::try_from(self.states.len() - 1).expect("no more rows than keys may be")
        };
        // Its key may take nothing.
        self.none_rests_before = Timestamp::ZERO;
        Ok(row)
    }

    /// Forgets those at rest. If there are none, or it is not worth a look: when to try again.
    fn make_room(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        if now < self.none_rests_before {
            return Err(self.none_rests_before);
        }
        let is_small = self.states.len() <= FEW;
        if !is_small && now < self.looks_again && !self.many_rest(now) {
            return Err(self.looks_again);
        }
        let forgotten = self.forget_idle(now);
        self.looks_again = now + LOOK_APART * self.keys_max.get();
        if forgotten > 0 {
            return Ok(());
        }
        if !is_small {
            return Err(self.looks_again);
        }
        let limiters = self.states.iter().map(|&it| L::from_state(self.rule, it));
        let first = limiters.map(|limiter| limiter.rests_at(now)).min();
        self.none_rests_before = first.unwrap_or(Timestamp::MAX);
        Err(self.none_rests_before)
    }

    /// Whether a look at all keys is worth its time, judged by the keys whose turn it is to be looked at.
    fn many_rest(&mut self, now: Timestamp) -> bool {
        let mut found = 0;
        for _ in 0..SAMPLE {
            self.hand = (self.hand + 1) % self.states.len();
            let limiter = L::from_state(self.rule, self.states[self.hand]);
            found += usize::from(limiter.rests(now));
        }
        found * PAYS_ONE_IN >= SAMPLE
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;
    use crate::pace::{BurstRatio, Rate};
    use crate::random::Random;

    /// A clock that is set by hand.
    #[derive(Debug, Default)]
    struct HandClock(AtomicU64);

    impl Clock for HandClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_nanos(self.0.load(SeqCst))
        }
    }

    /// Keys on a clock that is set before each try.
    struct Hand<L: Keyed, K> {
        keys: Keys<L, K, Arc<HandClock>>,
        clock: Arc<HandClock>,
    }

    impl<L: Keyed, K: Hash + Eq + Clone> Hand<L, K> {
        fn new(rule: L::Rule, max: u32) -> Self {
            let clock = Arc::new(HandClock::default());
            let max = NonZeroU32::new(max).expect("not zero");
            let keys = Keys::with_clock(rule, max, Arc::clone(&clock));
            Self { keys, clock }
        }

        fn set(&self, now: Timestamp) {
            self.clock.0.store(now.as_nanos(), SeqCst);
        }

        fn try_acquire(&self, key: &K, cost: Tokens, now: Timestamp) -> Result<(), KeyError> {
            self.set(now);
            self.keys.try_acquire(key, cost)
        }

        /// Whether it is granted; there is a place for it.
        fn granted(&self, key: &K, cost: Tokens, now: Timestamp) -> bool {
            match self.try_acquire(key, cost, now) {
                Ok(()) => true,
                Err(KeyError::NotNow(NotNow::NotBefore(then))) => {
                    assert!(then > now);
                    false
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn pace(rate: f64) -> Pace {
        Pace::new(Rate::new(rate).expect("a rate"), BurstRatio::default())
    }

    fn bucket(burst: f64, fill: f64) -> (Burst, Fill) {
        let burst = Burst::new(burst).expect("a burst");
        (burst, Fill::new(fill).expect("a rate"))
    }

    fn too_many(max: u32, retry_at: Timestamp) -> Result<(), KeyError> {
        let max = NonZeroU32::new(max).expect("not zero");
        Err(KeyError::TooManyKeys(TooManyKeys { max, retry_at }))
    }

    /// Each key is limited as if it were alone.
    fn check_alone<L: Keyed + PartialEq + fmt::Debug>(rule: L::Rule) {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let keys: Hand<L, u64> = Hand::new(rule, 8);
            let mut alone: HashMap<u64, L> = HashMap::new();
            let mut now = Timestamp::ZERO;
            for step in 0..500 {
                now = now + Duration::from_millis(random.below(40));
                let key = random.below(8);
                let one = alone.entry(key).or_insert_with(|| L::full(now, rule));
                let cost = Tokens::new(random.below(5) as f64 / 2.0).expect("tokens");
                let granted = keys.try_acquire(&key, cost, now);
                let should = one.try_take(now, cost).map_err(KeyError::NotNow);
                assert_eq!(granted, should, "seed {seed} step {step}");
                let got = keys.keys.get(&key);
                assert_eq!(got.as_ref(), Some(&*one), "seed {seed} step {step}");
            }
        }
    }

    #[test]
    fn each_key_is_limited_as_if_it_were_alone() {
        check_alone::<Pacer>(pace(7.0));
        check_alone::<TokenBucket>(bucket(3.0, 11.0));
    }

    #[test]
    fn a_new_key_is_refused_while_all_others_are_in_use_and_let_in_once_one_rests() {
        let keys: Hand<Pacer, u64> = Hand::new(pace(1.0), 3);
        let start = Timestamp::ZERO;
        for key in [0, 0, 1, 2] {
            assert!(keys.granted(&key, Tokens::ONE, start));
        }
        // The moment is that at which 1 and 2 have what they took: one operation later.
        let later = start + SECOND;
        let refused = too_many(3, later);
        assert_eq!(keys.try_acquire(&3, Tokens::ONE, start), refused);
        let early = Timestamp::from_nanos(later.as_nanos() - 1);
        assert_eq!(keys.try_acquire(&3, Tokens::ONE, early), refused);
        assert_eq!(keys.keys.len(), 3);
        // A key that was there goes on being limited.
        assert!(!keys.granted(&0, Tokens::ONE, start));
        assert!(keys.granted(&0, Tokens::ONE, later));
        assert!(keys.granted(&3, Tokens::ONE, later));
        // 1 and 2 rested, 0 did not.
        let is_there = |key| keys.keys.get(&key).is_some();
        assert!(is_there(0) && !is_there(1) && !is_there(2));
        assert_eq!(keys.keys.len(), 2);
    }

    #[test]
    fn a_key_in_debt_is_never_forgotten_and_one_that_took_nothing_goes_first() {
        let keys: Hand<TokenBucket, u64> = Hand::new(bucket(2.0, 1.0), 2);
        let (start, ten) = (Timestamp::ZERO, Tokens::new(10.0).expect("tokens"));
        assert!(keys.granted(&0, ten, start));
        assert!(keys.granted(&1, Tokens::ONE, start));
        let second = start + SECOND;
        assert_eq!(
            keys.try_acquire(&2, Tokens::ONE, start),
            too_many(2, second)
        );
        // 1 is full again and goes, 0 owes eight.
        assert!(keys.granted(&2, Tokens::ZERO, second));
        assert!(keys.keys.get(&0).is_some() && keys.keys.get(&1).is_none());
        // 2 took nothing, and goes for the next at once.
        assert!(keys.granted(&3, Tokens::ONE, second));
        assert!(keys.keys.get(&0).is_some() && keys.keys.get(&2).is_none());
        let then = start + 10 * SECOND;
        assert!(!keys.granted(&0, Tokens::new(2.0).expect("tokens"), start + 9 * SECOND));
        assert!(keys.granted(&0, Tokens::new(2.0).expect("tokens"), then));
    }

    /// To be forgotten and come back gains nothing: in any span, `at_once` and what flows in.
    fn check_no_gain<L: Keyed>(rule: L::Rule, at_once: f64, per_second: f64) {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            // So few places that everybody is forgotten again and again.
            let keys: Hand<L, u64> = Hand::new(rule, 4);
            let mut granted: HashMap<u64, Vec<Timestamp>> = HashMap::new();
            let (mut now, mut refused) = (Timestamp::ZERO, 0);
            for _ in 0..2_000 {
                now = now + Duration::from_millis(random.below(30));
                let key = random.below(12);
                match keys.try_acquire(&key, Tokens::ONE, now) {
                    Ok(()) => granted.entry(key).or_default().push(now),
                    Err(KeyError::NotNow(NotNow::NotBefore(then))) => assert!(then > now),
                    Err(KeyError::TooManyKeys(it)) => {
                        refused += 1;
                        assert!(it.retry_at > now, "seed {seed}");
                    }
                    Err(error) => panic!("{error:?}"),
                }
                assert!(keys.keys.len() <= 4, "seed {seed}");
            }
            assert!(refused > 0, "seed {seed}");
            for moments in granted.values() {
                for (first, &from) in moments.iter().enumerate() {
                    for (last, &to) in moments.iter().enumerate().skip(first) {
                        let most = at_once + per_second * to.since(from).as_secs_f64() + 1e-6;
                        assert!((last - first + 1) as f64 <= most + 1.0, "seed {seed}");
                    }
                }
            }
        }
    }

    #[test]
    fn to_be_forgotten_and_come_back_gains_nothing() {
        check_no_gain::<Pacer>(pace(5.0), 2.0 * 1.1, 5.0 * 1.1);
        check_no_gain::<TokenBucket>(bucket(2.0, 5.0), 2.0, 5.0);
    }

    #[test]
    fn a_new_key_may_take_what_its_pool_holds() {
        let pace = Pace::new(Rate::new(10.0).expect("a rate"), BurstRatio::STRICT);
        let five = Tokens::new(5.0).expect("tokens");
        let large = pace.with_room_for(five);
        let wide = pace.with_pool_min(SECOND).expect("a pool");
        for pace in [large, wide] {
            let keys: Hand<Pacer, u64> = Hand::new(pace, 1);
            let mut now = Timestamp::ZERO;
            // The key is forgotten for another one, and comes back: each time with a full pool.
            for key in [1, 2, 1, 2] {
                let granted = [(); 3].map(|()| keys.granted(&key, five, now));
                assert_eq!(granted, [true, true, false]);
                now = now + SECOND;
                assert!(keys.keys.get(&key).is_some());
            }
        }
    }

    #[test]
    fn a_new_key_is_let_in_as_soon_as_many_others_rest() {
        let max = 20_000;
        let keys: Hand<Pacer, u64> = Hand::new(pace(10.0), max);
        let first = Timestamp::ZERO;
        for key in 0..u64::from(max) {
            assert!(keys.granted(&key, Tokens::ONE, first));
        }
        // It looks at all of them in vain.
        let stranger = u64::from(max);
        let refused = too_many(max, first + LOOK_APART * max);
        assert_eq!(keys.try_acquire(&stranger, Tokens::ONE, first), refused);
        // None rests a moment before the pools are full, and all a moment later.
        let full = first + SECOND / 10;
        let before = Timestamp::from_nanos(full.as_nanos() - 1_000_000);
        assert!(before < first + LOOK_APART * max + SECOND / 10);
        assert!(keys.try_acquire(&stranger, Tokens::ONE, before).is_err());
        assert!(keys.granted(&stranger, Tokens::ONE, full));
        assert_eq!(keys.keys.len(), 1);
    }

    #[test]
    fn while_few_of_many_rest_new_keys_look_at_few_of_them() {
        let max = 20_000;
        let keys: Hand<Pacer, u64> = Hand::new(pace(10.0), max);
        for key in 0..u64::from(max) {
            assert!(keys.granted(&key, Tokens::ONE, Timestamp::ZERO));
        }
        let soon = Timestamp::ZERO + SECOND / 20;
        for key in 1..u64::from(max) {
            assert!(keys.granted(&key, Tokens::ONE, soon));
        }
        // One of them rests, and is found by the first look at all.
        let later = Timestamp::ZERO + SECOND / 10;
        assert!(keys.granted(&100_000, Tokens::ONE, later));
        let again = later + LOOK_APART * max;
        for key in 100_001..101_000 {
            let refused = keys.try_acquire(&key, Tokens::ONE, later);
            assert_eq!(refused, too_many(max, again));
        }
        assert!(keys.granted(&200_000, Tokens::ONE, again + SECOND / 10));
    }

    #[test]
    fn a_changed_rule_holds_for_every_key_and_refunds_nothing() {
        let keys: Hand<Pacer, u64> = Hand::new(pace(1.0), 10);
        let (start, soon) = (Timestamp::ZERO, Timestamp::ZERO + SECOND / 10);
        assert!(keys.granted(&1, Tokens::ONE, start) && keys.granted(&1, Tokens::ONE, start));
        keys.keys.set_rule(pace(10.0));
        assert!(keys.granted(&1, Tokens::ONE, soon));
        assert!(!keys.granted(&1, Tokens::ONE, soon));

        let keys: Hand<TokenBucket, u64> = Hand::new(bucket(2.0, 1.0), 10);
        assert!(keys.granted(&1, Tokens::ONE, start) && keys.granted(&1, Tokens::ONE, start));
        keys.keys.set_rule(bucket(5.0, 10.0));
        assert_eq!(keys.keys.rule(), bucket(5.0, 10.0));
        assert!(!keys.granted(&1, Tokens::ONE, start));
        assert!(keys.granted(&1, Tokens::ONE, soon));
        assert!(!keys.granted(&1, Tokens::ONE, soon));
    }

    #[test]
    fn threads_that_share_the_keys_take_no_more_than_each_key_has() {
        let keys: Hand<TokenBucket, u64> = Hand::new(bucket(50.0, 1.0), 4);
        let granted: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..400 {
                        let key = round % 4;
                        if keys.keys.try_acquire(&key, Tokens::ONE).is_ok() {
                            granted[key as usize].fetch_add(1, SeqCst);
                        }
                    }
                });
            }
        });
        assert!(granted.iter().all(|granted| granted.load(SeqCst) == 50));
    }

    #[test]
    fn errors_say_what_they_are_about() {
        let then = NotNow::NotBefore(Timestamp::ZERO + SECOND);
        let error = KeyError::NotNow(then);
        let source = error.source().expect("it has one");
        assert_eq!(
            std::format!("{error}: {source}"),
            "the key takes nothing now: there is no room before 1s after the start of the clock"
        );
        let Err(error) = too_many(3, Timestamp::ZERO) else {
            unreachable!("it is an error");
        };
        let source = error.source().expect("it has one");
        assert_eq!(
            std::format!("{source}"),
            "3 keys are in use, and there may be no more"
        );
    }
}
