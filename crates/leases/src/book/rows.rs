//! A list that grows without moving.
//!
//! A vector that grows is copied into a larger one. For a moment both exist, and afterwards there
//! is unused room. With a row for each of a hundred thousand holders, that is as much as some of
//! their fields. Here rows are in chunks, and only the first chunk ever moves, while it is small.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// Rows of one chunk: some kilobytes, a usual size for the allocator.
const CHUNK: usize = 256;

/// Rows by number, from zero. Reading and appending are O(1).
#[derive(Clone, Debug)]
pub struct Rows<T> {
    /// All are full except the last, and none is empty.
    chunks: Vec<Vec<T>>,
}

impl<T> Rows<T> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.chunks.as_slice() {
            [] => 0,
            [full @ .., last] => full.len() * CHUNK + last.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Appends one.
    pub fn push(&mut self, row: T) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => {
                if last.len() == last.capacity() {
                    last.reserve_exact(last.len().min(CHUNK - last.len()));
                }
                last.push(row);
            }
            last => {
                let room = if last.is_none() { 4 } else { CHUNK };
                let mut chunk = Vec::with_capacity(room);
                chunk.push(row);
                self.chunks.push(chunk);
            }
        }
    }

    /// The one of this number, if there is one.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&T> {
        self.chunks.get(number / CHUNK)?.get(number % CHUNK)
    }

    /// All, by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }
}

/// No rows.
impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T> Index<usize> for Rows<T> {
    type Output = T;

    fn index(&self, number: usize) -> &T {
        &self.chunks[number / CHUNK][number % CHUNK]
    }
}

impl<T> IndexMut<usize> for Rows<T> {
    fn index_mut(&mut self, number: usize) -> &mut T {
        &mut self.chunks[number / CHUNK][number % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_numbers_whatever_comes_behind_them() {
        let mut rows = Rows::default();
        for number in 0..3 * CHUNK + 7 {
            assert_eq!(rows.len(), number);
            rows.push(number);
        }
        assert_eq!(rows.get(3 * CHUNK + 7), None);
        rows[3] = 77;
        assert_eq!((rows[3], rows[5]), (77, 5));
        assert!(rows.iter().skip(4).copied().eq(4..3 * CHUNK + 7));
    }

    #[test]
    fn full_rows_have_no_spare_capacity() {
        let mut rows = Rows::default();
        (0..2 * CHUNK).for_each(|number| rows.push(number));
        let room: usize = rows.chunks.iter().map(Vec::capacity).sum();
        assert_eq!(room, 2 * CHUNK);
    }
}
