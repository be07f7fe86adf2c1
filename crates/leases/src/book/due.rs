//! When to check a row again: a heap with a small entry for each, and little spare room.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use tidegate_limits::Timestamp;

#[derive(Clone, Debug, Default)]
pub(super) struct Due {
    /// The earliest moment first. Grows by a quarter and not to twice its size, because there is
    /// one entry for each holder.
    heap: BinaryHeap<Reverse<DueEntry>>,
}

/// A moment and a row in 12 bytes: a whole moment would be aligned, and make it 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DueEntry {
    upper: u32,
    lower: u32,
    place: u32,
}

impl DueEntry {
    fn new(moment: Timestamp, place: u32) -> Self {
        let nanos = moment.as_nanos();
        Self {
            upper: (nanos >> 32) as u32,
            lower: nanos as u32,
            place,
        }
    }

    fn moment(self) -> Timestamp {
        Timestamp::from_nanos(u64::from(self.upper) << 32 | u64::from(self.lower))
    }
}

impl Due {
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The earliest moment, and its row.
    pub(super) fn first(&self) -> Option<(Timestamp, u32)> {
        let Reverse(entry) = self.heap.peek()?;
        Some((entry.moment(), entry.place))
    }

    pub(super) fn push(&mut self, moment: Timestamp, place: u32) {
        if self.heap.len() == self.heap.capacity() {
            self.heap.reserve_exact(self.heap.len() / 4 + 4);
        }
        self.heap.push(Reverse(DueEntry::new(moment, place)));
    }

    /// Removes the first.
    pub(super) fn pop(&mut self) {
        self.heap.pop();
    }

    /// Keeps only those entries. O(n).
    pub(super) fn retain(&mut self, keep: impl Fn(Timestamp, u32) -> bool) {
        self.heap.retain(|Reverse(it)| keep(it.moment(), it.place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, seeds};
    use alloc::vec::Vec;

    #[test]
    fn the_earliest_comes_first() {
        for seed in seeds(0..50) {
            let mut random = Random::new(seed);
            let mut due = Due::default();
            let mut entries: Vec<(Timestamp, u32)> = Vec::new();
            for place in 0..1000 {
                if random.one_in(3) {
                    due.pop();
                    entries.sort_unstable();
                    if !entries.is_empty() {
                        entries.remove(0);
                    }
                } else {
                    // Many of the same moment, and many that differ in one half only.
                    let moment = random.below(4) << 32 | random.below(40);
                    let moment = Timestamp::from_nanos(moment);
                    due.push(moment, place);
                    entries.push((moment, place));
                }
                if random.one_in(100) {
                    due.retain(|_, place| place % 3 > 0);
                    entries.retain(|(_, place)| place % 3 > 0);
                }
                assert_eq!(due.len(), entries.len(), "seed {seed}");
                assert_eq!(due.first(), entries.iter().min().copied(), "seed {seed}");
            }
        }
    }

    #[test]
    fn an_entry_takes_12_bytes() {
        assert_eq!(size_of::<DueEntry>(), 12);
    }
}
