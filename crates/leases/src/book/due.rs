//! When to check a row again: a binary heap that never moves when it grows.
//!
//! The standard library's heap would take a third more for each entry, because of alignment, and
//! up to twice the memory while its vector grows.

use tidegate_limits::Timestamp;

use super::rows::Rows;

#[derive(Debug)]
pub(super) struct Due {
    /// None is before the one at half its number.
    heap: Rows<Entry>,
}

/// A moment and a row in 12 bytes: a whole moment would be aligned, and make it 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    upper: u32,
    lower: u32,
    place: u32,
}

impl Entry {
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
    pub(super) const fn new() -> Self {
        Self { heap: Rows::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The earliest moment, and its row.
    pub(super) fn first(&self) -> Option<(Timestamp, u32)> {
        self.heap.get(0).map(|entry| (entry.moment(), entry.place))
    }

    pub(super) fn push(&mut self, moment: Timestamp, place: u32) {
        let mut at = self.heap.len();
        self.heap.push(Entry::new(moment, place));
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent] <= self.heap[at] {
                return;
            }
            self.heap.swap(parent, at);
            at = parent;
        }
    }

    /// Removes the first.
    pub(super) fn pop(&mut self) {
        let Some(last) = self.heap.pop() else {
            return;
        };
        let len = self.heap.len();
        if len == 0 {
            return;
        }
        self.heap[0] = last;
        let mut at = 0;
        loop {
            let left = 2 * at + 1;
            if left >= len {
                return;
            }
            let right = left + 1;
            let next = if right < len && self.heap[right] < self.heap[left] {
                right
            } else {
                left
            };
            if last <= self.heap[next] {
                return;
            }
            self.heap.swap(at, next);
            at = next;
        }
    }

    pub(super) fn clear(&mut self) {
        self.heap = Rows::new();
    }

    /// Keeps only those entries. O(n log n).
    pub(super) fn retain(&mut self, keep: impl Fn(Timestamp, u32) -> bool) {
        let all = core::mem::take(&mut self.heap);
        for entry in all.iter().filter(|it| keep(it.moment(), it.place)) {
            self.push(entry.moment(), entry.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use alloc::vec::Vec;

    #[test]
    fn the_earliest_comes_first() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut due = Due::new();
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
        assert_eq!(size_of::<Entry>(), 12);
    }
}
