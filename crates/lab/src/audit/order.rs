//! Puts calls into the order in which they left.
//!
//! A line is written when its call ends, so the line of a long call comes after those of calls
//! that left later. A heap holds back up to a bound of calls and releases the oldest. Calls that
//! are out of place by less than the bound are put in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Holds items back until they can be released in order.
#[derive(Debug)]
pub(super) struct ReorderBuffer<T> {
    waiting: BinaryHeap<Reverse<T>>,
    max: usize,
    /// The latest that was released.
    given: Option<T>,
    /// Items that came after later ones had been released.
    pub(super) late: u64,
}

impl<T: Ord> ReorderBuffer<T> {
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
    pub(super) fn push(&mut self, item: T) -> Option<&T> {
        if self.given.as_ref().is_some_and(|given| item < *given) {
            self.late += 1;
            return None;
        }
        self.waiting.push(Reverse(item));
        if self.waiting.len() <= self.max {
            return None;
        }
        self.pop()
    }

    /// Releases the oldest.
    pub(super) fn pop(&mut self) -> Option<&T> {
        let Reverse(item) = self.waiting.pop()?;
        Some(self.given.insert(item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_within_the_bound_are_put_in_order_and_the_others_are_counted() {
        let check = |max, given: &[u64], expected: &[u64], late| {
            let mut order = ReorderBuffer::new(max);
            let given = given.iter();
            let mut released: Vec<u64> = given.filter_map(|it| order.push(*it).copied()).collect();
            released.extend(std::iter::from_fn(|| order.pop().copied()));
            assert_eq!((&released[..], order.late), (expected, late));
        };
        check(2, &[3, 2, 1, 6, 5, 4], &[1, 2, 3, 4, 5, 6], 0);
        check(1, &[3, 2, 1, 6, 5, 4], &[2, 3, 5, 6], 2);
        check(0, &[1, 2, 3], &[1, 2, 3], 0);
    }
}
