//! Puts calls into the order in which they left.
//!
//! A line is written when its call has ended, so a call that took long stands after others
//! that left later. A heap holds back so many calls as its bound says and gives out the oldest
//! of them: whatever is out of place by less than that comes in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What is put in order.
pub(super) trait Stamped {
    /// By what.
    fn key(&self) -> (u64, u64);
}

/// Holds calls back until they can be told in order.
#[derive(Debug)]
pub(super) struct Order<T> {
    waiting: BinaryHeap<Reverse<ByKey<T>>>,
    max: usize,
    /// The key of the last that was given out.
    given: Option<(u64, u64)>,
    late: u64,
}

#[derive(Debug)]
struct ByKey<T>(T);

impl<T: Stamped> Order<T> {
    /// One that holds back at most so many.
    pub(super) fn new(max: usize) -> Self {
        Self {
            waiting: BinaryHeap::new(),
            max,
            given: None,
            late: 0,
        }
    }

    /// Takes one more, and may give out the oldest. One that comes too late is counted.
    pub(super) fn push(&mut self, item: T) -> Option<T> {
        if self.given.is_some_and(|given| item.key() < given) {
            self.late += 1;
            return None;
        }
        self.waiting.push(Reverse(ByKey(item)));
        if self.waiting.len() <= self.max {
            return None;
        }
        self.pop()
    }

    /// The oldest that is held back.
    pub(super) fn pop(&mut self) -> Option<T> {
        let Reverse(ByKey(item)) = self.waiting.pop()?;
        self.given = Some(item.key());
        Some(item)
    }

    /// How many came after others that left later had been given out.
    pub(super) fn late(&self) -> u64 {
        self.late
    }
}

impl<T: Stamped> Ord for ByKey<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.key().cmp(&other.0.key())
    }
}

impl<T: Stamped> PartialOrd for ByKey<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Stamped> PartialEq for ByKey<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl<T: Stamped> Eq for ByKey<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    impl Stamped for u64 {
        fn key(&self) -> (u64, u64) {
            (*self, 0)
        }
    }

    #[test]
    fn what_is_out_of_place_by_less_than_the_bound_comes_in_order_and_the_rest_is_counted() {
        let check = |max, given: &[u64], expected: &[u64], late| {
            let mut order = Order::new(max);
            let mut told: Vec<u64> = given.iter().filter_map(|it| order.push(*it)).collect();
            told.extend(std::iter::from_fn(|| order.pop()));
            assert_eq!((&told[..], order.late()), (expected, late));
        };
        check(2, &[3, 2, 1, 6, 5, 4], &[1, 2, 3, 4, 5, 6], 0);
        check(1, &[3, 2, 1, 6, 5, 4], &[2, 3, 5, 6], 2);
        check(0, &[1, 2, 3], &[1, 2, 3], 0);
    }
}
