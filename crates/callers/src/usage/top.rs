//! The most common functions, in bounded memory.
//!
//! This is the Space-Saving summary of A. Metwally, D. Agrawal, A. El Abbadi, "Efficient
//! Computation of Frequent and Top-k Elements in Data Streams" (ICDT 2005). It has a place for
//! each of sixteen functions. The seventeenth takes over the place of the least common one, with
//! its count, so the counts of all places always add up to everything counted. A function's count
//! is too high by at most the count that was taken over, which is at most a sixteenth of
//! everything. A function with more than a sixteenth always has a place. With sixteen functions
//! or fewer every count is exact.

use alloc::vec::Vec;

use super::FunctionId;
use super::halves::Half;
use tidegate_limits::bucket::TokenCount;

/// Functions that have a place.
pub(super) const PLACES: usize = 16;

/// How often calls of one function were made, and what they cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopEntry {
    pub(super) function: FunctionId,
    pub(super) calls: u32,
    pub(super) tokens: PackedTokens,
}

/// A [`TokenCount`] aligned to four bytes, so that slots and places need no padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PackedTokens([u32; 2]);

impl PackedTokens {
    pub(super) const fn new(count: TokenCount) -> Self {
        let micros = count.micros();
        Self([micros as u32, (micros >> 32) as u32])
    }

    pub(super) const fn get(self) -> TokenCount {
        let [low, high] = self.0;
        TokenCount::from_micros((high as u64) << 32 | low as u64)
    }

    pub(super) const fn add(&mut self, count: TokenCount) {
        *self = Self::new(self.get().saturating_add(count));
    }

    /// Adds `more` and takes `less` away.
    pub(super) const fn correct(&mut self, more: TokenCount, less: TokenCount) {
        *self = Self::new(self.get().saturating_add(more).saturating_sub(less));
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Top {
    places: Vec<TopEntry>,
    /// The largest count that was taken over.
    taken_over: u32,
    /// The largest error that merging may have caused.
    merged: u32,
}

impl Top {
    pub(super) fn count(&mut self, function: FunctionId, tokens: TokenCount) {
        if let Some(place) = self.place_of(function) {
            place.calls = place.calls.saturating_add(1);
            place.tokens.add(tokens);
        } else if self.places.len() < PLACES {
            self.places.push(TopEntry {
                function,
                calls: 1,
                tokens: PackedTokens::new(tokens),
            });
        } else {
            let least = self.places.iter_mut().min_by_key(|place| place.calls);
            let least = least.expect("all places are taken");
            self.taken_over = self.taken_over.max(least.calls);
            least.function = function;
            least.calls = least.calls.saturating_add(1);
            least.tokens.add(tokens);
        }
    }

    /// Corrects what calls of a function cost, if it has a place.
    pub(super) fn correct(&mut self, function: FunctionId, more: TokenCount, less: TokenCount) {
        if let Some(place) = self.place_of(function) {
            place.tokens.correct(more, less);
        }
    }

    fn place_of(&mut self, function: FunctionId) -> Option<&mut TopEntry> {
        self.places
            .iter_mut()
            .find(|place| place.function == function)
    }

    /// The largest error of a function's count; a function without a place counts 0.
    pub(super) fn error(&self) -> u32 {
        self.merged.saturating_add(self.taken_over)
    }

    pub(super) fn places(&self) -> &[TopEntry] {
        &self.places
    }

    /// Bytes allocated.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.places.capacity() * size_of::<TopEntry>()
    }
}

impl Half for Top {
    fn clear(&mut self) {
        self.places.clear();
        (self.taken_over, self.merged) = (0, 0);
    }

    /// The most common of both keep places; what the others counted goes to
    /// [`FunctionId::OTHER`].
    fn merge(&mut self, other: &Self) {
        let mut places = core::mem::take(&mut self.places);
        for theirs in &other.places {
            match places.iter_mut().find(|it| it.function == theirs.function) {
                Some(ours) => add(ours, theirs),
                None => places.push(*theirs),
            }
        }
        self.merged = self.error().saturating_add(other.error());
        self.taken_over = 0;
        if places.len() > PLACES {
            let of_other = |it: &TopEntry| it.function == FunctionId::OTHER;
            // `OTHER` comes first and needs a place, whether it has one yet or not.
            places.sort_by_key(|it| (!of_other(it), u32::MAX - it.calls));
            let kept = PLACES - usize::from(!of_other(&places[0]));
            let rest = places.split_off(kept);
            self.merged = self.merged.saturating_add(rest[0].calls);
            if !of_other(&places[0]) {
                let other = TopEntry {
                    function: FunctionId::OTHER,
                    calls: 0,
                    tokens: PackedTokens::default(),
                };
                places.insert(0, other);
            }
            rest.iter().for_each(|it| add(&mut places[0], it));
            places.shrink_to(PLACES);
        }
        self.places = places;
    }
}

fn add(place: &mut TopEntry, more: &TopEntry) {
    place.calls = place.calls.saturating_add(more.calls);
    place.tokens.add(more.tokens.get());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::seeds;
    use alloc::collections::BTreeMap;

    fn total(top: &Top) -> (u32, TokenCount) {
        let calls = top.places.iter().map(|place| place.calls).sum();
        (calls, top.places.iter().map(|it| it.tokens.get()).sum())
    }

    /// Counts `calls` calls of functions below `functions`, low ones more often.
    fn skewed(seed: u64, functions: u64, calls: u64) -> (Top, BTreeMap<u16, u32>) {
        let (mut top, mut exact) = (Top::default(), BTreeMap::new());
        let mut state = seed;
        for _ in 0..calls {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (a, b) = ((state >> 33) % functions, (state >> 45) % functions);
            let function = (a * b / functions) as u16;
            top.count(FunctionId(function), TokenCount::ONE);
            *exact.entry(function).or_insert(0) += 1;
        }
        (top, exact)
    }

    /// Every count is within the error, and functions without a place are no more common.
    fn check_error(top: &Top, exact: &BTreeMap<u16, u32>) {
        for (&function, &calls) in exact {
            let function = FunctionId(function);
            let told = top.places.iter().find(|it| it.function == function);
            let told = told.map_or(0, |place| place.calls);
            assert!(told.abs_diff(calls) <= top.error(), "{function:?}: {told}");
        }
    }

    #[test]
    fn sixteen_functions_are_counted_exactly() {
        let (top, exact) = skewed(1, 16, 5000);
        assert_eq!((top.error(), top.places.len()), (0, exact.len()));
        check_error(&top, &exact);
    }

    #[test]
    fn more_functions_are_counted_within_a_sixteenth_and_no_call_is_missing() {
        for seed in seeds(0..50) {
            let (top, exact) = skewed(seed, 80, 4000);
            assert_eq!(total(&top).0, 4000, "seed {seed}");
            assert_eq!(total(&top).1.tokens(), 4000.0, "seed {seed}");
            assert!(top.error() > 0 && top.error() <= 4000 / 16, "seed {seed}");
            check_error(&top, &exact);
            assert_eq!(top.heap_bytes(), PLACES * 16);
        }
    }

    #[test]
    fn merging_keeps_every_call_and_says_how_wrong_it_is() {
        for seed in seeds(0..50) {
            let (mut top, mut exact) = skewed(seed, 40, 3000);
            let (other, others) = skewed(seed + 1000, 70, 2000);
            top.merge(&other);
            for (function, calls) in others {
                *exact.entry(function).or_insert(0) += calls;
            }
            check_error(&top, &exact);
            // Counting goes on after that.
            for n in 0..3000 {
                let function = (n * n % 61) as u16;
                top.count(FunctionId(function), TokenCount::ONE);
                *exact.entry(function).or_insert(0) += 1;
            }
            check_error(&top, &exact);
            assert_eq!(total(&top).0, 8000, "seed {seed}");
            assert_eq!(total(&top).1.tokens(), 8000.0, "seed {seed}");
            assert!(top.places.len() <= PLACES && top.heap_bytes() == PLACES * 16);
        }
    }

    #[test]
    fn functions_lost_in_a_merge_count_as_other() {
        let with = |functions: core::ops::Range<u16>| {
            let mut top = Top::default();
            functions.for_each(|it| top.count(FunctionId(it), TokenCount::ONE));
            top
        };
        let mut top = with(0..16);
        top.merge(&with(16..20));
        top.merge(&with(20..24));
        let other = top
            .places
            .iter()
            .find(|it| it.function == FunctionId::OTHER);
        assert_eq!(other.map(|place| place.calls), Some(24 - 15));
        assert_eq!(total(&top).0, 24);
    }

    #[test]
    fn a_correction_moves_the_tokens_and_not_the_calls() {
        let mut top = Top::default();
        top.count(FunctionId(3), TokenCount::ONE);
        top.correct(FunctionId(3), TokenCount::ONE, TokenCount::ZERO);
        top.correct(FunctionId(4), TokenCount::ONE, TokenCount::ZERO);
        assert_eq!(total(&top), (1, TokenCount::new(2.0).expect("a count")));
        top.correct(FunctionId(3), TokenCount::ZERO, TokenCount::MAX);
        assert_eq!(total(&top), (1, TokenCount::ZERO));
    }
}
