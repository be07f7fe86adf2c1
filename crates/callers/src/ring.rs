//! The newest sixty slots of time, each with what happened in it.
//!
//! Slots are aligned to the clock's start. The newest stands in the ring itself; the others
//! are allocated when there is something to keep in them, and freed when all of them are too
//! old. So a caller that called once has no allocation, and one that has been silent for the
//! whole span has none again.

use alloc::boxed::Box;

use tidegate_limits::Timestamp;

/// Slots in a ring.
pub(crate) const SLOTS: usize = 60;
const KEPT: u64 = SLOTS as u64;

/// The contents of a slot of a ring; `default()` is a slot without events.
pub(crate) trait RingSlot: Copy + Default + PartialEq {}

#[derive(Clone, Debug, Default)]
pub(crate) struct Ring<S, const SECONDS: u64> {
    /// The newest slot's number, counted from the clock's start.
    number: u64,
    newest: S,
    /// Slot `n` stands at `n % SLOTS`; the newest one's place is not used.
    older: Option<Box<[S; SLOTS]>>,
}

impl<S: RingSlot, const SECONDS: u64> Ring<S, SECONDS> {
    pub(crate) const fn number_at(now: Timestamp) -> u64 {
        now.as_nanos() / (SECONDS * 1_000_000_000)
    }

    /// When the slot of this number begins.
    pub(crate) const fn start_of(number: u64) -> Timestamp {
        Timestamp::from_nanos(number.saturating_mul(SECONDS * 1_000_000_000))
    }

    /// The oldest slot that counts while `newest` is the newest.
    pub(crate) const fn oldest(newest: u64) -> u64 {
        newest.saturating_sub(KEPT - 1)
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Makes `number` the newest slot, unless a newer one is. Clears at most sixty slots.
    pub(crate) fn advance(&mut self, number: u64) {
        if number <= self.number {
            return;
        }
        if number - self.number >= KEPT {
            self.older = None;
        } else if self.older.is_some() || self.newest != S::default() {
            let empty = [S::default(); SLOTS];
            let older = self.older.get_or_insert_with(|| Box::new(empty));
            older[place(self.number)] = self.newest;
            for silent in self.number + 1..number {
                older[place(silent)] = S::default();
            }
        }
        self.newest = S::default();
        self.number = number;
    }

    pub(crate) fn newest_mut(&mut self) -> &mut S {
        &mut self.newest
    }

    /// The contents of a slot; empty for one that is too old or in the future.
    pub(crate) fn get(&self, number: u64) -> S {
        if number == self.number {
            return self.newest;
        }
        match &self.older {
            Some(older) if self.keeps(number) => older[place(number)],
            _ => S::default(),
        }
    }

    /// A slot to change; `None` for one that is too old or not yet.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut S> {
        if number == self.number {
            return Some(&mut self.newest);
        }
        if !self.keeps(number) {
            return None;
        }
        let empty = [S::default(); SLOTS];
        let older = self.older.get_or_insert_with(|| Box::new(empty));
        Some(&mut older[place(number)])
    }

    /// Whether the slot stands among the older ones.
    fn keeps(&self, number: u64) -> bool {
        number < self.number && self.number - number < KEPT
    }

    /// The slots that count at `now`, oldest first, with their numbers.
    pub(crate) fn at(&self, now: Timestamp) -> impl Iterator<Item = (u64, S)> + Clone {
        let newest = Self::number_at(now).max(self.number);
        (Self::oldest(newest)..=newest).map(|number| (number, self.get(number)))
    }

    /// Adds another ring, slot by slot.
    pub(crate) fn merge(&mut self, other: &Self, add: impl Fn(&mut S, S)) {
        self.advance(other.number);
        for number in Self::oldest(self.number)..=self.number {
            let theirs = other.get(number);
            if theirs != S::default()
                && let Some(ours) = self.get_mut(number)
            {
                add(ours, theirs);
            }
        }
    }

    /// Bytes allocated.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.older.as_ref().map_or(0, |_| size_of::<[S; SLOTS]>())
    }
}

fn place(number: u64) -> usize {
    (number % KEPT) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    impl RingSlot for u32 {}

    type Minutes = Ring<u32, 60>;

    fn sum(ring: &Minutes, seconds: u64) -> u32 {
        let now = Timestamp::from_nanos(seconds * 1_000_000_000);
        ring.at(now).map(|(_, slot)| slot).sum()
    }

    fn count(ring: &mut Minutes, seconds: u64) {
        let now = Timestamp::from_nanos(seconds * 1_000_000_000);
        ring.advance(Minutes::number_at(now));
        *ring.newest_mut() += 1;
    }

    #[test]
    fn a_slot_counts_until_sixty_newer_ones_have_begun() {
        let mut ring = Minutes::default();
        count(&mut ring, 119);
        count(&mut ring, 120);
        let check = |seconds, expected| assert_eq!(sum(&ring, seconds), expected, "{seconds} s");
        check(120, 2);
        check(61 * 60 - 1, 2);
        check(61 * 60, 1);
        check(62 * 60 - 1, 1);
        check(62 * 60, 0);
    }

    #[test]
    fn one_slot_needs_no_allocation_and_silence_frees_it() {
        let mut ring = Minutes::default();
        count(&mut ring, 10);
        count(&mut ring, 59);
        assert_eq!((ring.heap_bytes(), sum(&ring, 59)), (0, 2));
        count(&mut ring, 60);
        assert_eq!((ring.heap_bytes(), sum(&ring, 60)), (240, 3));
        count(&mut ring, 61 * 60);
        assert_eq!((ring.heap_bytes(), sum(&ring, 61 * 60)), (0, 1));
    }

    #[test]
    fn a_place_that_is_used_again_keeps_nothing_of_its_old_slot() {
        let mut ring = Minutes::default();
        for minute in 0..200 {
            count(&mut ring, minute * 60);
        }
        count(&mut ring, 230 * 60);
        // Minutes 171 to 199, and 230.
        assert_eq!(sum(&ring, 230 * 60), 30);
    }
}
