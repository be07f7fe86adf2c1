//! The keys, and which of them are forgotten.

use core::hash::{BuildHasher, Hash};
use core::num::NonZeroU32;
use core::time::Duration;
use std::collections::HashMap;
use std::vec::Vec;

use crate::time::Timestamp;

use super::error::TooManyKeys;
use super::limiter::Keyed;

/// The shortest time between two searches of all keys while few of them are idle, per key that may
/// be remembered. A search takes a few percent of that time, so new keys cost little.
pub(super) const LOOK_APART: Duration = Duration::from_micros(1);

/// Before such a look, a new key looks at this number of other keys, in turn. If at least one in
/// [`PAYS_ONE_IN`] of them rests, a look at all keys is worth its time at once.
const SAMPLE: usize = 64;

const PAYS_ONE_IN: usize = 16;

/// Up to this number of keys, the cost of a look at all of them does not matter.
const FEW: usize = 1024;

#[derive(Debug)]
pub(super) struct Table<L: Keyed, K, S> {
    pub(super) rule: L::Rule,
    pub(super) keys_max: NonZeroU32,
    pub(super) rows: HashMap<K, u32, S>,
    /// By row. A row that no key has is in `free`.
    pub(super) states: Vec<L::State>,
    pub(super) free: Vec<u32>,
    /// No key rests before this.
    pub(super) none_rests_before: Timestamp,
    /// Before this moment it is not worth looking at all keys for those at rest, unless many are.
    pub(super) looks_again: Timestamp,
    /// The row at which the next new key looks first.
    pub(super) hand: usize,
}

impl<L: Keyed, K: Hash + Eq, S: BuildHasher> Table<L, K, S> {
    pub(super) fn forget_idle(&mut self, now: Timestamp) -> usize {
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
    pub(super) fn new_row(&mut self, now: Timestamp) -> Result<u32, TooManyKeys> {
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
    pub(super) fn make_room(&mut self, now: Timestamp) -> Result<(), Timestamp> {
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
