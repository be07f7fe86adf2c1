//! What happened in the half of a span that is under way and in the half before it.
//!
//! For what is too large to be kept for each of sixty slots: the two halves together cover
//! between a half and the whole of the span.

use tidegate_limits::Timestamp;

/// Something kept for a half; `default()` is empty and without allocation.
pub(super) trait Half: Default {
    /// Empties it; it may keep its allocation.
    fn clear(&mut self);
    /// Adds another.
    fn merge(&mut self, other: &Self);
}

#[derive(Clone, Debug, Default)]
pub(super) struct Halves<T, const SECONDS: u64> {
    /// The number of the half under way, counted from the clock's start.
    number: u64,
    pub(super) current: T,
    pub(super) previous: T,
}

impl<T: Half, const SECONDS: u64> Halves<T, SECONDS> {
    const fn number_at(now: Timestamp) -> u64 {
        now.as_nanos() / (SECONDS * 1_000_000_000)
    }

    /// Begins the half in which `now` lies, unless it has begun.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.advance_to(Self::number_at(now));
    }

    fn advance_to(&mut self, number: u64) {
        if number <= self.number {
            return;
        }
        if number - self.number == 1 {
            core::mem::swap(&mut self.current, &mut self.previous);
            self.current.clear();
        } else {
            self.current = T::default();
            self.previous = T::default();
        }
        self.number = number;
    }

    /// The half that a moment lies in, if it is kept.
    pub(super) fn half_at_mut(&mut self, moment: Timestamp) -> Option<&mut T> {
        match self.number.checked_sub(Self::number_at(moment))? {
            0 => Some(&mut self.current),
            1 => Some(&mut self.previous),
            _ => None,
        }
    }

    /// From when on the halves kept at `now` cover, and those that are still kept then: the
    /// earlier one first.
    pub(super) fn at(&self, now: Timestamp) -> (Timestamp, [Option<&T>; 2]) {
        let number = Self::number_at(now).max(self.number);
        let halves = match number - self.number {
            0 => [Some(&self.previous), Some(&self.current)],
            1 => [Some(&self.current), None],
            _ => [None, None],
        };
        let since = number.saturating_sub(1) * (SECONDS * 1_000_000_000);
        (Timestamp::from_nanos(since), halves)
    }

    /// Adds another's halves to those of the same time here.
    pub(super) fn merge(&mut self, other: &Self) {
        self.advance_to(other.number);
        match self.number - other.number {
            0 => {
                self.current.merge(&other.current);
                self.previous.merge(&other.previous);
            }
            1 => self.previous.merge(&other.current),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Half for u32 {
        fn clear(&mut self) {
            *self = 0;
        }

        fn merge(&mut self, other: &Self) {
            *self += other;
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    fn sum(halves: &Halves<u32, 10>, seconds: u64) -> (u64, u32) {
        let (since, halves) = halves.at(at(seconds));
        let seconds = since.as_nanos() / 1_000_000_000;
        (seconds, halves.into_iter().flatten().sum())
    }

    #[test]
    fn a_half_counts_until_two_newer_ones_have_begun() {
        let mut halves = Halves::<u32, 10>::default();
        halves.advance(at(9));
        halves.current += 1;
        halves.advance(at(10));
        halves.current += 2;
        assert_eq!(sum(&halves, 19), (0, 3));
        assert_eq!(sum(&halves, 20), (10, 2));
        assert_eq!(sum(&halves, 30), (20, 0));
        halves.advance(at(20));
        assert_eq!((halves.current, halves.previous), (0, 2));
        halves.advance(at(40));
        assert_eq!((halves.current, halves.previous), (0, 0));
    }

    #[test]
    fn merging_adds_what_is_of_the_same_time() {
        let with = |seconds, count| {
            let mut halves = Halves::<u32, 10>::default();
            halves.advance(at(seconds));
            halves.current = count;
            halves
        };
        let check = |ours: u64, theirs: u64, expected: (u32, u32)| {
            let mut halves = with(ours, 1);
            halves.merge(&with(theirs, 2));
            assert_eq!((halves.previous, halves.current), expected);
        };
        check(15, 19, (0, 3));
        check(15, 25, (1, 2));
        check(25, 15, (2, 1));
        check(15, 35, (0, 2));
        check(35, 15, (0, 1));
    }
}
