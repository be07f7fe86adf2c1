//! Numbers by index, and their sum at any moment.
//!
//! A running total with additions and subtractions keeps the rounding errors of every number that
//! was ever in it. After a large number it may never be right again. Here nothing is subtracted:
//! a change is summed again up to the top of a tree of sums, so the total depends only on the
//! current numbers. Eight numbers make a node, which is one line of the processor's cache.
//!
//! Setting a number is O(log n), the total O(1).

use alloc::vec::Vec;

const WIDTH: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Sums {
    /// The numbers, then the sums of eight of the level before each, up to a level of one.
    levels: Vec<Vec<f64>>,
}

impl Sums {
    pub(super) const fn new() -> Self {
        Self { levels: Vec::new() }
    }

    pub(super) fn total(&self) -> f64 {
        self.levels.last().map_or(0.0, |top| top[0])
    }

    /// Sets the number at an index. New numbers before it are zero.
    pub(super) fn set(&mut self, index: usize, number: f64) {
        let mut index = index;
        let mut number = number;
        let mut depth = 0;
        loop {
            if depth == self.levels.len() {
                self.levels.push(Vec::new());
            }
            let level = &mut self.levels[depth];
            if index >= level.len() {
                grow(level, index + 1);
            }
            level[index] = number;
            if level.len() == 1 {
                return;
            }
            let first = index - index % WIDTH;
            let last = level.len().min(first + WIDTH);
            number = level[first..last].iter().sum();
            index /= WIDTH;
            depth += 1;
        }
    }
}

/// A quarter more than needed, not twice as much, because there is one for each holder.
fn grow(level: &mut Vec<f64>, len: usize) {
    if len > level.capacity() {
        level.reserve_exact(len + len / 4 - level.len());
    }
    level.resize(len, 0.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, seeds};

    #[test]
    fn the_total_is_that_of_what_is_there() {
        for seed in seeds(0..50) {
            let mut random = Random::new(seed);
            let mut sums = Sums::new();
            let mut numbers: Vec<f64> = Vec::new();
            for step in 0..500 {
                let index = random.below(numbers.len() as u64 + 1) as usize;
                let number = random.below(1000) as f64;
                if index == numbers.len() {
                    numbers.push(number);
                } else {
                    numbers[index] = number;
                }
                sums.set(index, number);
                // Whole numbers are summed without rounding.
                let total: f64 = numbers.iter().sum();
                assert_eq!(sums.total(), total, "seed {seed}, step {step}");
            }
        }
    }

    #[test]
    fn nothing_is_left_of_a_large_number_that_was_there() {
        let mut sums = Sums::new();
        for index in 0..100 {
            sums.set(index, 0.1);
        }
        let before = sums.total();
        sums.set(63, 1e18);
        sums.set(63, 0.1);
        assert_eq!(sums.total(), before);
    }
}
