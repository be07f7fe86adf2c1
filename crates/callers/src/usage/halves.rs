//! The events in the half of a span that is under way and in the half before it.
//!
//! For what is too large to be kept for each of sixty slots: the two halves together cover
//! between a half and the whole of the span.

/// Something kept for a half; `default()` is empty and without allocation.
pub(super) trait Half: Default {
    /// Empties it; it may keep its allocation.
    fn clear(&mut self);
    /// Adds another.
    fn merge(&mut self, other: &Self);
}

#[derive(Clone, Debug, Default)]
pub(super) struct Halves<T> {
    /// The number of the half under way, counted from the clock's start.
    number: u64,
    pub(super) current: T,
    pub(super) previous: T,
}

impl<T: Half> Halves<T> {
    /// Begins the half of this number, unless it has begun.
    pub(super) fn advance(&mut self, number: u64) {
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

    /// The half of this number, if it is kept.
    pub(super) fn half_at_mut(&mut self, number: u64) -> Option<&mut T> {
        match self.number.checked_sub(number)? {
            0 => Some(&mut self.current),
            1 => Some(&mut self.previous),
            _ => None,
        }
    }

    /// The half of this number, or the one under way if that is newer.
    pub(super) fn newest(&self, number: u64) -> u64 {
        self.number.max(number)
    }

    /// The halves that are still kept when `newest` is the newest: the earlier one first.
    pub(super) fn at(&self, newest: u64) -> [Option<&T>; 2] {
        match newest - self.number {
            0 => [Some(&self.previous), Some(&self.current)],
            1 => [Some(&self.current), None],
            _ => [None, None],
        }
    }

    /// Adds another's halves to those of the same time here.
    pub(super) fn merge(&mut self, other: &Self) {
        self.advance(other.number);
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

    fn sum(halves: &Halves<u32>, number: u64) -> (u64, u32) {
        let newest = halves.newest(number);
        (newest, halves.at(newest).into_iter().flatten().sum())
    }

    #[test]
    fn a_half_counts_until_two_newer_ones_have_begun() {
        let mut halves = Halves::<u32>::default();
        halves.advance(0);
        halves.current += 1;
        halves.advance(1);
        halves.current += 2;
        assert_eq!(sum(&halves, 0), (1, 3));
        assert_eq!(sum(&halves, 1), (1, 3));
        assert_eq!(sum(&halves, 2), (2, 2));
        assert_eq!(sum(&halves, 3), (3, 0));
        halves.advance(2);
        assert_eq!((halves.current, halves.previous), (0, 2));
        halves.advance(4);
        assert_eq!((halves.current, halves.previous), (0, 0));
    }

    #[test]
    fn merging_adds_what_is_of_the_same_time() {
        let with = |number, count| {
            let mut halves = Halves::<u32>::default();
            halves.advance(number);
            halves.current = count;
            halves
        };
        let check = |ours: u64, theirs: u64, expected: (u32, u32)| {
            let mut halves = with(ours, 1);
            halves.merge(&with(theirs, 2));
            assert_eq!((halves.previous, halves.current), expected);
        };
        check(1, 1, (0, 3));
        check(1, 2, (1, 2));
        check(2, 1, (2, 1));
        check(1, 3, (0, 2));
        check(3, 1, (0, 1));
    }
}
