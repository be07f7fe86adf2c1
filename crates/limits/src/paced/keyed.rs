//! A pace for each of very many keys.

use core::borrow::Borrow;
use core::fmt;
use core::hash::{BuildHasher, Hash};
use core::num::NonZeroU32;
use core::time::Duration;
use std::borrow::ToOwned;
use std::collections::HashMap;
use std::hash::RandomState;
use std::vec::Vec;

use crate::limiter::paced::{Pace, Paced, Pools};
use crate::limiter::{TokenLimiter, Tokens};
use crate::time::Timestamp;

/// For each key that may be remembered: so far are looks at all of them apart while few of them rest. A
/// look takes a few per cent of that, so however many new keys come, they cost little.
const LOOK_APART: Duration = Duration::from_micros(1);
/// Keys that a new one looks at before that, in turn. If one in so many of them rests, as many do among
/// all of them, and a look at all pays at once.
const SAMPLE: usize = 64;
const PAYS_ONE_IN: usize = 16;
/// Up to so many keys a look at all costs nothing to speak of.
const FEW: usize = 1024;

/// Limits every key of a set to the same pace, each for itself: 28 bytes of pools a key, and
/// what a map from keys to `u32` takes.
///
/// A new key may take as much at once as a pool holds without its burst ([`Pace::pool`]), such as two
/// operations where nothing else is said.
///
/// At most `keys_max` keys are remembered. When there are so many, those at rest are forgotten: those
/// whose pool is full. A key that is forgotten and comes back has its pool full again, so it gains
/// nothing and loses nothing, except what it had not caught up with yet. While no key is at rest, a new
/// one is refused. Where fewer than one in 16 of more than 1,024 keys rest, it may be refused for up to
/// a microsecond for each key that may be remembered, since rests are looked for no more often.
///
/// The moment is handed in, and nothing is locked: a program with threads keeps one of these
/// behind a lock, or several, each for the keys of one hash.
///
/// ```
/// # use std::num::NonZeroU32;
/// # use tidegate_limits::{BurstRatio, Pace, Rate, Timestamp, Tokens};
/// # use tidegate_limits::paced::PacedKeys;
/// let pace = Pace::new(Rate::new(10.0)?, BurstRatio::default());
/// let mut keys = PacedKeys::new(pace, NonZeroU32::new(10_000).expect("not zero"));
/// let now = Timestamp::ZERO;
/// assert_eq!(keys.try_acquire("anna", Tokens::ONE, now), Ok(true));
/// assert_eq!(keys.try_acquire("anna", Tokens::ONE, now), Ok(true));
/// assert_eq!(keys.try_acquire("anna", Tokens::ONE, now), Ok(false));
/// assert_eq!(keys.try_acquire("otto", Tokens::ONE, now), Ok(true));
/// # Ok::<(), tidegate_limits::OutOfRange>(())
/// ```
#[derive(Clone, Debug)]
pub struct PacedKeys<K, S = RandomState> {
    pace: Pace,
    keys_max: NonZeroU32,
    rows: HashMap<K, u32, S>,
    /// By row. A row that no key has is in `free`.
    pools: Vec<[u32; 7]>,
    free: Vec<u32>,
    /// Before this moment it is not worth looking at all keys for those at rest, unless many are.
    looks_again: Timestamp,
    /// The row at which the next new key looks first.
    hand: usize,
}

/// Every key that is remembered is in use, and there may be no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyKeys {
    /// How many keys may be remembered.
    pub max: NonZeroU32,
}

impl fmt::Display for TooManyKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys are in use, and there may be no more", self.max)
    }
}

impl core::error::Error for TooManyKeys {}

impl<K: Hash + Eq> PacedKeys<K> {
    /// No key yet, and at most `keys_max` at once.
    #[must_use]
    pub fn new(pace: Pace, keys_max: NonZeroU32) -> Self {
        Self::with_hasher(pace, keys_max, RandomState::new())
    }
}

impl<K: Hash + Eq, S: BuildHasher> PacedKeys<K, S> {
    /// The same, with keys hashed otherwise.
    #[must_use]
    pub fn with_hasher(pace: Pace, keys_max: NonZeroU32, hasher: S) -> Self {
        Self {
            pace,
            keys_max,
            rows: HashMap::with_hasher(hasher),
            pools: Vec::new(),
            free: Vec::new(),
            looks_again: Timestamp::ZERO,
            hand: 0,
        }
    }

    /// Takes `cost` from the key's pools if they have it now; otherwise nothing. A key that is
    /// not known yet begins with a full pool.
    ///
    /// # Errors
    ///
    /// [`TooManyKeys`] for a new key where every other is in use; nothing has changed then.
    pub fn try_acquire<Q>(
        &mut self,
        key: &Q,
        cost: Tokens,
        now: Timestamp,
    ) -> Result<bool, TooManyKeys>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let row = match self.rows.get(key) {
            Some(&row) => row,
            None => self.remember(key.to_owned(), now)?,
        };
        let pools = &mut self.pools[row as usize];
        let mut paced = Paced::from_pools(self.pace, Pools::from_words(*pools));
        let granted = paced.try_take(now, cost).is_ok();
        *pools = paced.pools().words();
        Ok(granted)
    }

    /// The limiter of one key as it is; `None` for one that is not remembered.
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<Paced>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let row = *self.rows.get(key)?;
        Some(Paced::from_pools(
            self.pace,
            Pools::from_words(self.pools[row as usize]),
        ))
    }

    /// How many keys are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The limit.
    #[must_use]
    pub const fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Changes the pace of all keys: what each has accrued stays, as time.
    pub fn set_pace(&mut self, pace: Pace, now: Timestamp) {
        for pools in &mut self.pools {
            let mut paced = Paced::from_pools(self.pace, Pools::from_words(*pools));
            paced.set_pace(now, pace);
            *pools = paced.pools().words();
        }
        self.pace = pace;
        self.looks_again = Timestamp::ZERO;
    }

    /// Forgets every key at rest. Looks at all of them. Returns how many it forgot.
    pub fn forget_idle(&mut self, now: Timestamp) -> usize {
        let Self {
            pace,
            rows,
            pools,
            free,
            ..
        } = self;
        let before = rows.len();
        rows.retain(|_, row| {
            let rests = rests(pace, pools[*row as usize], now);
            if rests {
                free.push(*row);
            }
            !rests
        });
        before - rows.len()
    }

    fn remember(&mut self, key: K, now: Timestamp) -> Result<u32, TooManyKeys> {
        if self.rows.len() >= self.keys_max.get() as usize {
            let too_many = TooManyKeys { max: self.keys_max };
            if now < self.looks_again && !self.many_rest(now) {
                return Err(too_many);
            }
            let forgotten = self.forget_idle(now);
            self.looks_again = now + LOOK_APART * self.keys_max.get();
            if forgotten == 0 {
                return Err(too_many);
            }
        }
        let new = Paced::full(now, self.pace).pools().words();
        let row = if let Some(row) = self.free.pop() {
            self.pools[row as usize] = new;
            row
        } else {
            self.pools.push(new);
            u32::try_from(self.pools.len() - 1).expect("no more rows than keys may be")
        };
        self.rows.insert(key, row);
        Ok(row)
    }

    /// Whether so many keys rest that a look at all of them pays, by those whose turn it is.
    fn many_rest(&mut self, now: Timestamp) -> bool {
        let all = self.pools.len();
        let looked = if all <= FEW { all } else { SAMPLE };
        let mut found = 0;
        for _ in 0..looked {
            self.hand = (self.hand + 1) % all;
            found += usize::from(rests(&self.pace, self.pools[self.hand], now));
        }
        found > 0 && (all <= FEW || found * PAYS_ONE_IN >= looked)
    }
}

/// Whether a key could do at least as much as a new one.
fn rests(pace: &Pace, pools: [u32; 7], now: Timestamp) -> bool {
    let level = Paced::from_pools(*pace, Pools::from_words(pools)).level(now);
    level.active >= pace.sizes().active
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::limiter::paced::{BurstRatio, Rate};
    use crate::random::Random;

    const SECOND: Duration = Duration::from_secs(1);

    fn keys(rate: f64, max: u32) -> PacedKeys<u64> {
        let pace = Pace::new(Rate::new(rate).expect("a rate"), BurstRatio::default());
        PacedKeys::new(pace, NonZeroU32::new(max).expect("not zero"))
    }

    #[test]
    fn each_key_is_limited_as_if_it_were_alone() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut keys = keys(7.0, 8);
            let pace = *keys.pace();
            let mut alone: HashMap<u64, Paced> = HashMap::new();
            let mut now = Timestamp::ZERO;
            for step in 0..500 {
                now = now + Duration::from_millis(random.below(40));
                let key = random.below(8);
                let one = alone.entry(key).or_insert_with(|| Paced::full(now, pace));
                let granted = keys.try_acquire(&key, Tokens::ONE, now);
                assert_eq!(
                    granted,
                    Ok(one.try_take(now, Tokens::ONE).is_ok()),
                    "seed {seed} step {step}"
                );
                assert_eq!(
                    keys.get(&key).as_ref(),
                    Some(&*one),
                    "seed {seed} step {step}"
                );
            }
        }
    }

    #[test]
    fn a_new_key_is_refused_while_all_others_are_in_use_and_let_in_once_one_rests() {
        let mut keys = keys(1.0, 3);
        for key in [0, 0, 1, 2] {
            assert_eq!(
                keys.try_acquire(&key, Tokens::ONE, Timestamp::ZERO),
                Ok(true)
            );
        }
        let too_many = TooManyKeys {
            max: NonZeroU32::new(3).expect("not zero"),
        };
        assert_eq!(
            keys.try_acquire(&3, Tokens::ONE, Timestamp::ZERO),
            Err(too_many)
        );
        assert_eq!(keys.len(), 3);
        // Whoever was there goes on being limited.
        assert_eq!(
            keys.try_acquire(&0, Tokens::ONE, Timestamp::ZERO),
            Ok(false)
        );
        let later = Timestamp::ZERO + SECOND;
        assert_eq!(keys.try_acquire(&0, Tokens::ONE, later), Ok(true));
        assert_eq!(keys.try_acquire(&3, Tokens::ONE, later), Ok(true));
        // 1 and 2 rested, 0 did not.
        assert!(keys.get(&0).is_some() && keys.get(&1).is_none() && keys.get(&2).is_none());
        assert_eq!(keys.len(), 2);
    }

    #[test]
    fn to_be_forgotten_and_come_back_gains_nothing() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            // So few places that everybody is forgotten again and again.
            let mut keys = keys(5.0, 4);
            let mut granted: HashMap<u64, Vec<Timestamp>> = HashMap::new();
            let mut now = Timestamp::ZERO;
            for _ in 0..2_000 {
                now = now + Duration::from_millis(random.below(30));
                let key = random.below(12);
                if keys.try_acquire(&key, Tokens::ONE, now) == Ok(true) {
                    granted.entry(key).or_default().push(now);
                }
                assert!(keys.len() <= 4, "seed {seed}");
            }
            // At rate 5 and ratio 1.1, in any span: what flows in, and one pool.
            for moments in granted.values() {
                for (first, &from) in moments.iter().enumerate() {
                    for (last, &to) in moments.iter().enumerate().skip(first) {
                        let most = 5.0 * 1.1 * to.since(from).as_secs_f64() + 2.0 * 1.1 + 1e-6;
                        assert!((last - first + 1) as f64 <= most + 1.0, "seed {seed}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_new_key_may_take_what_its_pool_holds() {
        let pace = Pace::new(Rate::new(10.0).expect("a rate"), BurstRatio::STRICT);
        let five = Tokens::new(5.0).expect("tokens");
        let large = pace.with_room_for(five);
        let wide = pace.with_pool_min(SECOND).expect("a pool");
        for pace in [large, wide] {
            let mut keys = PacedKeys::new(pace, NonZeroU32::new(1).expect("not zero"));
            let mut now = Timestamp::ZERO;
            // The key is forgotten for another one, and comes back: each time with a full pool.
            for key in [1, 2, 1, 2] {
                let granted = |keys: &mut PacedKeys<u64>| keys.try_acquire(&key, five, now);
                assert_eq!(granted(&mut keys), Ok(true));
                assert_eq!(granted(&mut keys), Ok(true));
                assert_eq!(granted(&mut keys), Ok(false));
                now = now + SECOND;
                assert!(keys.get(&key).is_some());
            }
        }
    }

    #[test]
    fn a_new_key_is_let_in_as_soon_as_many_others_rest() {
        let max = 20_000;
        let mut keys = keys(10.0, max);
        let first = Timestamp::ZERO;
        for key in 0..u64::from(max) {
            assert_eq!(keys.try_acquire(&key, Tokens::ONE, first), Ok(true));
        }
        // It looks at all of them in vain.
        let stranger = u64::from(max);
        assert!(keys.try_acquire(&stranger, Tokens::ONE, first).is_err());
        // None rests a moment before the pools are full, and all a moment later.
        let full = first + SECOND / 10;
        let before = Timestamp::from_nanos(full.as_nanos() - 1_000_000);
        assert!(before < first + LOOK_APART * max + SECOND / 10);
        assert!(keys.try_acquire(&stranger, Tokens::ONE, before).is_err());
        assert_eq!(keys.try_acquire(&stranger, Tokens::ONE, full), Ok(true));
        assert_eq!(keys.len(), 1);
    }

    #[test]
    fn while_few_of_many_rest_new_keys_look_at_few_of_them() {
        let max = 20_000;
        let mut keys = keys(10.0, max);
        for key in 0..u64::from(max) {
            keys.try_acquire(&key, Tokens::ONE, Timestamp::ZERO)
                .expect("there is room");
        }
        let soon = Timestamp::ZERO + SECOND / 20;
        for key in 1..u64::from(max) {
            keys.try_acquire(&key, Tokens::ONE, soon)
                .expect("it is known");
        }
        // One of them rests, and is found by the first look at all.
        let later = Timestamp::ZERO + SECOND / 10;
        assert_eq!(keys.try_acquire(&100_000, Tokens::ONE, later), Ok(true));
        let mut refused = 0;
        for key in 100_001..101_000 {
            refused += u32::from(keys.try_acquire(&key, Tokens::ONE, later).is_err());
        }
        assert_eq!(refused, 999);
        let again = later + LOOK_APART * max + SECOND / 10;
        assert_eq!(keys.try_acquire(&200_000, Tokens::ONE, again), Ok(true));
    }

    #[test]
    fn a_change_of_pace_holds_for_every_key() {
        let mut keys = keys(1.0, 10);
        assert_eq!(keys.try_acquire(&1, Tokens::ONE, Timestamp::ZERO), Ok(true));
        assert_eq!(keys.try_acquire(&1, Tokens::ONE, Timestamp::ZERO), Ok(true));
        let fast = Pace::new(Rate::new(10.0).expect("a rate"), BurstRatio::default());
        keys.set_pace(fast, Timestamp::ZERO);
        let soon = Timestamp::ZERO + SECOND / 10;
        assert_eq!(keys.try_acquire(&1, Tokens::ONE, soon), Ok(true));
        assert_eq!(keys.try_acquire(&1, Tokens::ONE, soon), Ok(false));
    }
}
