//! A limiter for each key, for threads that share it, and which keys are forgotten.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::num::NonZeroU32;
use core::time::Duration;
use std::borrow::ToOwned;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use crate::bucket::{TokenBucket, Tokens};
use crate::clock::{Clock, MonotonicClock};
use crate::pace::Pacer;
use crate::time::Timestamp;

use super::error::{KeyError, TooManyKeys};
use super::limiter::KeyedLimiter;
use super::queues::KeyQueues;

/// The shortest time between two searches of all keys while few of them are idle, per key that may
/// be remembered. A search takes a few percent of that time, so new keys cost little.
pub(super) const LOOK_APART: Duration = Duration::from_micros(1);

/// Before such a look, a new key looks at this number of other keys, in turn. If at least one in
/// [`PAYS_ONE_IN`] of them rests, a look at all keys is worth its time at once.
const SAMPLE: usize = 64;

const PAYS_ONE_IN: usize = 16;

/// Up to this number of keys, the cost of a look at all of them does not matter.
const FEW: usize = 1024;

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
/// A new key may take as much at once as a pool contains without its burst
/// ([`Pace::pool`](crate::pace::Pace::pool)): two operations by default.
pub type PacedKeys<K, C = MonotonicClock, S = RandomState> = Keys<Pacer, K, C, S>;

/// Limits every key of a set by the same rule, each for itself. A key takes the [`KeyedLimiter::State`] of its
/// limiter, and what a map from keys to `u32` takes.
///
/// At most `keys_max` keys are remembered. At that number, idle keys are forgotten: those whose
/// limiter is full. A forgotten key that comes back is full again, so it gains and loses nothing,
/// except what a pace had not caught up with. A key that is not full is never forgotten: while no
/// key is idle, a new one is refused. If fewer than one in 16 of more than 1,024 keys are idle, a
/// new key may be refused for up to one microsecond per key that may be remembered, because idle
/// keys are searched for no more often.
///
/// Threads share one, behind a lock that is held for a search and some arithmetic. The clock is read
/// inside the lock.
#[derive(Debug)]
pub struct Keys<L: KeyedLimiter, K, C: Clock = MonotonicClock, S = RandomState> {
    clock: C,
    table: Mutex<KeyTable<L, K, S>>,
    queues: Mutex<KeyQueues<K>>,
}

impl<L: KeyedLimiter, K: Hash + Eq> Keys<L, K> {
    /// No key yet, and at most `keys_max` at once.
    #[must_use]
    pub fn new(rule: L::Rule, keys_max: NonZeroU32) -> Self {
        Self::with_clock(rule, keys_max, MonotonicClock::new())
    }
}

impl<L: KeyedLimiter, K: Hash + Eq, C: Clock> Keys<L, K, C> {
    /// Limiters of one rule, on the given clock.
    #[must_use]
    pub fn with_clock(rule: L::Rule, keys_max: NonZeroU32, clock: C) -> Self {
        Self::with_hasher(rule, keys_max, clock, RandomState::new())
    }
}

impl<L: KeyedLimiter, K: Hash + Eq, C: Clock, S: BuildHasher> Keys<L, K, C, S> {
    /// Limiters of one rule, on the given clock, with keys hashed by `hasher`.
    #[must_use]
    pub fn with_hasher(rule: L::Rule, keys_max: NonZeroU32, clock: C, hasher: S) -> Self {
        let table = KeyTable {
            rule,
            keys_max,
            rows: HashMap::with_hasher(hasher),
            states: Vec::new(),
            free: Vec::new(),
            none_rests_before: Timestamp::ZERO,
            looks_again: Timestamp::ZERO,
            hand: 0,
        };
        Self {
            clock,
            table: Mutex::new(table),
            queues: Mutex::default(),
        }
    }

    /// The calls that wait.
    pub(super) fn queues(&self) -> MutexGuard<'_, KeyQueues<K>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, KeyTable<L, K, S>> {
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
    #[inline]
    pub fn try_acquire<Q>(&self, key: &Q, cost: Tokens) -> Result<(), KeyError>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.try_acquire_as(key, cost, || key.to_owned())
    }

    /// Admits a call for a key that is only borrowed: `own` makes the key that is remembered, and is called only
    /// for a key that is not. So `Arc<str>` keys are found by a `&str`, and keys of several parts by their borrowed
    /// form. `own` runs inside the lock, and has to return a key equal to `key`.
    ///
    /// # Errors
    ///
    /// As for [`try_acquire`](Self::try_acquire).
    ///
    /// ```
    /// # use std::num::NonZeroU32;
    /// # use std::sync::Arc;
    /// # use tidegate_limits::keyed::BucketKeys;
    /// # use tidegate_limits::{Burst, Fill, Tokens};
    /// let rule = (Burst::new(2.0)?, Fill::new(0.1)?);
    /// let max = NonZeroU32::new(10_000).expect("not zero");
    /// let keys: BucketKeys<Arc<str>> = BucketKeys::new(rule, max);
    /// let name = "anna";
    /// assert_eq!(keys.try_acquire_as(name, Tokens::ONE, || name.into()), Ok(()));
    /// # Ok::<(), tidegate_limits::bucket::OutOfRange>(())
    /// ```
    pub fn try_acquire_as<Q>(
        &self,
        key: &Q,
        cost: Tokens,
        own: impl FnOnce() -> K,
    ) -> Result<(), KeyError>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut table = self.lock();
        let now = self.clock.now();
        let row = match table.rows.get(key) {
            Some(&row) => row,
            None => {
                let row = table.new_row(now).map_err(KeyError::TooManyKeys)?;
                table.rows.insert(own(), row);
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

    /// Forgets every key at rest, and returns the memory that the others do not need. Looks at all of them.
    /// Returns how many it forgot.
    pub fn forget_idle(&self) -> usize {
        let mut table = self.lock();
        let now = self.clock.now();
        let forgotten = table.forget_idle(now);
        table.shrink();
        forgotten
    }
}

#[derive(Debug)]
pub(super) struct KeyTable<L: KeyedLimiter, K, S> {
    rule: L::Rule,
    keys_max: NonZeroU32,
    pub(super) rows: HashMap<K, u32, S>,
    /// By row. A row that no key has is in `free`.
    pub(super) states: Vec<L::State>,
    free: Vec<u32>,
    /// No key rests before this.
    none_rests_before: Timestamp,
    /// Before this moment it is not worth looking at all keys for those at rest, unless many are.
    looks_again: Timestamp,
    /// The row at which the next new key looks first.
    hand: usize,
}

impl<L: KeyedLimiter, K: Hash + Eq, S: BuildHasher> KeyTable<L, K, S> {
    fn forget_idle(&mut self, now: Timestamp) -> usize {
        let before = self.rows.len();
        self.rows.retain(|_, row| {
            let limiter = L::from_state(self.rule, self.states[*row as usize]);
            let rests = limiter.rests(now);
            if rests {
                self.free.push(*row);
            }
            !rests
        });
        before - self.rows.len()
    }

    /// Returns the memory of rows that no key has.
    fn shrink(&mut self) {
        let states = self.rows.values_mut().enumerate().map(|(new, row)| {
            let state = self.states[*row as usize];
            *row = u32::try_from(new).expect("no more rows than keys may be");
            state
        });
        let mut states: Vec<L::State> = states.collect();
        states.shrink_to_fit();
        self.states = states;
        self.rows.shrink_to_fit();
        self.free = Vec::new();
        self.hand = 0;
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

    /// Whether a search of all keys is worthwhile, estimated from the next keys in turn.
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
