//! A set whose smallest entry is read all the time.
//!
//! Deadlines and places in a line nearly always come in ascending order, and leave from the
//! front. A tree pays for every one of them what only the exception needs. Here what comes in
//! order is appended to a run, what leaves first is popped, and both cost the same however many
//! there are. What comes out of order goes into a tree beside the run; what leaves from the
//! middle stays behind as a tombstone, and before tombstones outnumber the living they are
//! swept out, so memory follows what is in the set.
//!
//! With n entries: [`first`](Sorted::first) is exact and O(1), except for a look at the tree.
//! Insert and remove are amortised O(1) in order and O(log n) out of order.

use alloc::collections::{BTreeSet, VecDeque};

/// A run this short is shifted to make room in the middle, which beats a tree.
const SHORT: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct Sorted<E> {
    /// Ascending. The first and the last one are alive.
    run: VecDeque<SortedEntry<E>>,
    /// Tombstones in the run.
    dead: usize,
    /// The items that came out of order.
    strays: BTreeSet<E>,
}

#[derive(Clone, Copy, Debug)]
struct SortedEntry<E> {
    value: E,
    alive: bool,
}

impl<E> Default for Sorted<E> {
    fn default() -> Self {
        Self {
            run: VecDeque::new(),
            dead: 0,
            strays: BTreeSet::new(),
        }
    }
}

impl<E: Copy + Ord> Sorted<E> {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.run.len() - self.dead + self.strays.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // The first of the run is alive if there is one.
        self.run.is_empty() && self.strays.is_empty()
    }

    /// The least entry.
    #[inline]
    pub(crate) fn first(&self) -> Option<E> {
        let first = self.run.front().map(|entry| entry.value);
        if self.strays.is_empty() {
            return first;
        }
        self.strays.first().copied().into_iter().chain(first).min()
    }

    /// All entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = E> {
        let run = self.run.iter().filter(|entry| entry.alive);
        run.map(|entry| entry.value)
            .chain(self.strays.iter().copied())
    }

    /// Puts an entry in. False if it was there.
    #[inline]
    pub(crate) fn insert(&mut self, value: E) -> bool {
        if self.run.back().is_some_and(|last| last.value >= value) {
            return self.insert_out_of_order(value);
        }
        let new = !self.is_stray(&value);
        if new {
            self.run.push_back(SortedEntry { value, alive: true });
        }
        new
    }

    fn insert_out_of_order(&mut self, value: E) -> bool {
        match self.find(&value) {
            Ok(index) => {
                let entry = &mut self.run[index];
                if entry.alive {
                    return false;
                }
                entry.alive = true;
                self.dead -= 1;
                true
            }
            Err(index) if self.run.len() < SHORT && !self.is_stray(&value) => {
                self.run.insert(index, SortedEntry { value, alive: true });
                true
            }
            Err(_) => self.strays.insert(value),
        }
    }

    /// Takes an entry out. False if it was not there.
    #[inline]
    pub(crate) fn remove(&mut self, value: &E) -> bool {
        match self.run.front() {
            Some(first) if first.value == *value => {
                self.run.pop_front();
                self.trim_front();
                true
            }
            _ => self.remove_from_the_middle(value),
        }
    }

    fn remove_from_the_middle(&mut self, value: &E) -> bool {
        let Ok(index) = self.find(value) else {
            return self.strays.remove(value);
        };
        if !self.run[index].alive {
            return false;
        }
        if index + 1 == self.run.len() || self.run.len() <= SHORT {
            self.run.remove(index);
            while self.run.back().is_some_and(|last| !last.alive) {
                self.run.pop_back();
                self.dead -= 1;
            }
            return true;
        }
        self.run[index].alive = false;
        self.dead += 1;
        if self.dead > self.run.len() / 2 {
            self.run.retain(|entry| entry.alive);
            self.dead = 0;
        }
        true
    }

    #[inline]
    fn trim_front(&mut self) {
        while self.dead > 0 && self.run.front().is_some_and(|first| !first.alive) {
            self.run.pop_front();
            self.dead -= 1;
        }
    }

    #[inline]
    fn is_stray(&self, value: &E) -> bool {
        !self.strays.is_empty() && self.strays.contains(value)
    }

    fn find(&self, value: &E) -> Result<usize, usize> {
        self.run.binary_search_by(|entry| entry.value.cmp(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, seeds};

    /// Does the same to a tree and compares after every step. `disorder` is how far entries
    /// may come before the greatest so far.
    fn compare_with_a_tree(seed: u64, disorder: u64, leave_first: u64) {
        let mut random = Random::new(seed);
        let mut sorted = Sorted::default();
        let mut tree = BTreeSet::new();
        let mut greatest = 0_u64;
        for step in 0..3000 {
            let context = (seed, disorder, leave_first, step);
            let crowd = 1 + random.below(400) as usize;
            if tree.len() < crowd {
                greatest += random.below(3);
                let value = greatest.saturating_sub(random.below(disorder + 1));
                assert_eq!(sorted.insert(value), tree.insert(value), "{context:?}");
            } else if random.below(10) < leave_first {
                let first = *tree.first().expect("a crowd has a first");
                assert!(sorted.remove(&first) && tree.remove(&first), "{context:?}");
            } else {
                let value = greatest.saturating_sub(random.below(2 * disorder + 400));
                assert_eq!(sorted.remove(&value), tree.remove(&value), "{context:?}");
            }
            assert_eq!(sorted.first(), tree.first().copied(), "{context:?}");
            assert_eq!(sorted.len(), tree.len(), "{context:?}");
            assert_eq!(sorted.is_empty(), tree.is_empty(), "{context:?}");
            assert!(
                sorted.run.len() <= 2 * (sorted.run.len() - sorted.dead) + SHORT,
                "{context:?}: {} of {} are tombstones",
                sorted.dead,
                sorted.run.len()
            );
        }
        while let Some(first) = tree.pop_first() {
            assert_eq!(sorted.first(), Some(first));
            assert!(sorted.remove(&first));
        }
        assert!(sorted.is_empty() && sorted.dead == 0);
    }

    #[test]
    fn it_says_what_a_tree_says_in_order_and_out_of_order() {
        for seed in seeds(0..60) {
            for disorder in [0, 1, 5, 100, 1000] {
                compare_with_a_tree(seed, disorder, 10);
                compare_with_a_tree(seed, disorder, 5);
                compare_with_a_tree(seed, disorder, 0);
            }
        }
    }

    #[test]
    fn memory_follows_what_is_left_and_not_what_was() {
        let mut sorted = Sorted::default();
        for value in 0..100_000_u64 {
            assert!(sorted.insert(value));
        }
        // The first and the last stay, and everything between them leaves.
        for value in 1..99_999 {
            assert!(sorted.remove(&value));
        }
        assert_eq!(sorted.len(), 2);
        assert!(sorted.run.len() <= SHORT, "{} are kept", sorted.run.len());
    }
}
