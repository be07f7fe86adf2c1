//! The tokens of each five seconds of the latest hour.
//!
//! The newest sixty stand in the ring of slots, exactly. What leaves the ring is kept here in
//! two bytes each, rounded up by less than a thousandth, so that a limit derived from it is
//! rather too large than too small.

use alloc::boxed::Box;

use super::FineRing;
use super::rounded::RoundedUp;
use crate::ring::SLOTS;
use tidegate_limits::bucket::TokenCount;

/// Slots of five seconds in an hour.
pub(super) const CELLS: usize = 720;
const KEPT: u64 = CELLS as u64;
const IN_RING: u64 = SLOTS as u64;

/// Allocated with the first call that leaves the ring, freed after an hour of silence.
#[derive(Clone, Debug, Default)]
pub(super) struct UsageHistory(Option<Box<[RoundedUp; CELLS]>>);

impl UsageHistory {
    /// Keeps what will leave the ring when it advances to slot `to`. Touches at most an hour's
    /// slots.
    pub(super) fn keep(&mut self, ring: &FineRing, to: u64) {
        let newest = ring.number();
        if to.saturating_sub(newest) >= KEPT {
            self.0 = None;
            return;
        }
        for number in newest.saturating_sub(IN_RING - 1)..to.saturating_sub(IN_RING - 1) {
            self.put(number, RoundedUp::new(ring.get(number).tokens.get()));
        }
    }

    fn put(&mut self, number: u64, count: RoundedUp) {
        if self.0.is_none() && count == RoundedUp::ZERO {
            return;
        }
        let cells = self
            .0
            .get_or_insert_with(|| Box::new([RoundedUp::ZERO; CELLS]));
        cells[place(number)] = count;
    }

    /// The tokens of a slot, in the ring or out of it; `None` if it is too old or not yet.
    pub(super) fn tokens(&self, ring: &FineRing, number: u64) -> Option<TokenCount> {
        let age = ring.number().checked_sub(number)?;
        if age < IN_RING {
            return Some(ring.get(number).tokens.get());
        }
        let cell = |cells: &[RoundedUp; CELLS]| cells[place(number)].count();
        (age < KEPT).then(|| self.0.as_deref().map_or(TokenCount::ZERO, cell))
    }

    /// Corrects the tokens of a slot that has left the ring.
    pub(super) fn correct(
        &mut self,
        ring: &FineRing,
        number: u64,
        more: TokenCount,
        less: TokenCount,
    ) {
        let age = ring.number().saturating_sub(number);
        if age >= IN_RING
            && let Some(tokens) = self.tokens(ring, number)
        {
            let tokens = tokens.saturating_add(more).saturating_sub(less);
            self.put(number, RoundedUp::new(tokens));
        }
    }

    /// Adds another's; both rings stand at the same slot or `other`'s at an older one.
    pub(super) fn merge(&mut self, ring: &FineRing, other: &Self, other_ring: &FineRing) {
        let newest = ring.number();
        for number in newest.saturating_sub(KEPT - 1)..(newest + 1).saturating_sub(IN_RING) {
            if let Some(theirs) = other.tokens(other_ring, number) {
                self.correct(ring, number, theirs, TokenCount::ZERO);
            }
        }
    }

    /// Bytes allocated.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.0
            .as_ref()
            .map_or(0, |_| size_of::<[RoundedUp; CELLS]>())
    }
}

fn place(number: u64) -> usize {
    (number % KEPT) as usize
}
