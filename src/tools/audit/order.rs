//! Puts calls into the order in which they left.
//!
//! A line is written when its call ends, so the line of a long call comes after those of calls
//! that left later. A heap holds back up to a bound of calls and releases the oldest. Calls that
//! are out of place by less than the bound are put in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An item that has a place in an order.
pub(super) trait Stamped {
    /// Its place.
    fn key(&self) -> (u64, u64);
}

/// Holds calls back until they can be released in order.
#[derive(Debug)]
pub(super) struct Order<T> {
    waiting: BinaryHeap<Reverse<ByKey<T>>>,
    max: usize,
    /// The key of the latest that was released.
    given: Option<(u64, u64)>,
    late: u64,
}

#[derive(Debug)]
struct ByKey<T>(T);

impl<T: Stamped> Order<T> {
    /// Holds back at most `max` items.
    pub(super) fn new(max: usize) -> Self {
        Self {
            waiting: BinaryHeap::new(),
            max,
            given: None,
            late: 0,
        }
    }

    /// Takes an item, and may release the oldest. An item that comes too late is counted.
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

    /// Releases the oldest.
    pub(super) fn pop(&mut self) -> Option<T> {
        let Reverse(ByKey(item)) = self.waiting.pop()?;
        self.given = Some(item.key());
        Some(item)
    }

    /// Items that came after later ones had been released.
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
    fn items_within_the_bound_are_put_in_order_and_the_others_are_counted() {
        let check = |max, given: &[u64], expected: &[u64], late| {
            let mut order = Order::new(max);
            let mut released: Vec<u64> = given.iter().filter_map(|it| order.push(*it)).collect();
            released.extend(std::iter::from_fn(|| order.pop()));
            assert_eq!((&released[..], order.late()), (expected, late));
        };
        check(2, &[3, 2, 1, 6, 5, 4], &[1, 2, 3, 4, 5, 6], 0);
        check(1, &[3, 2, 1, 6, 5, 4], &[2, 3, 5, 6], 2);
        check(0, &[1, 2, 3], &[1, 2, 3], 0);
    }
}
