//! Tracks which calls of a process have a line.
//!
//! A process numbers its calls one after another. A number in between without a line is a call of
//! which nothing is known: it had not ended when the log did, its line was lost, or its file was
//! not given. The numbers come nearly in order, so they form few ranges, however long the log is.

use std::collections::BTreeMap;

/// A longer run of ids is not a gap: no process has that many calls without a line. Ids behind it
/// come from damage, or from another process.
const GAP_MAX: u64 = 1 << 32;
/// Most ranges of one process.
const RANGES_MAX: usize = 65_536;

/// The ids of one process that have a line.
#[derive(Debug, Default)]
pub(super) struct SeenIds {
    /// The last id of each range, by its first. Numbers count from the middle, which is the first
    /// id that was seen: ids begin anywhere and may wrap around zero.
    ranges: BTreeMap<u64, u64>,
    origin: Option<u64>,
    /// Calls without a line in gaps that were merged away.
    closed: u64,
    /// Of those gaps, how many were longer than [`GAP_MAX`].
    closed_far: u64,
}

impl SeenIds {
    /// Notes an id. Returns false if it was seen before.
    pub(super) fn insert(&mut self, id: u64) -> bool {
        let origin = *self.origin.get_or_insert(id);
        let number = id.wrapping_sub(origin).wrapping_add(1 << 63);
        let before = self.ranges.range(..=number).next_back();
        let before = before.map(|(&first, &last)| (first, last));
        if before.is_some_and(|(_, last)| number <= last) {
            return false;
        }
        let first = match before {
            Some((first, last)) if last + 1 == number => first,
            _ => number,
        };
        let last = match number.checked_add(1) {
            Some(next) => self.ranges.remove(&next).unwrap_or(number),
            None => number,
        };
        self.ranges.insert(first, last);
        if self.ranges.len() > RANGES_MAX {
            self.close_lowest_gap();
        }
        true
    }

    /// Calls between the first and the last that have no line.
    pub(super) fn missing(&self) -> u64 {
        self.closed + self.gaps().filter(|gap| *gap <= GAP_MAX).sum::<u64>()
    }

    /// How many gaps are longer than [`GAP_MAX`].
    pub(super) fn far(&self) -> u64 {
        self.closed_far + self.gaps().filter(|gap| *gap > GAP_MAX).count() as u64
    }

    fn gaps(&self) -> impl Iterator<Item = u64> {
        let ranges = self.ranges.iter().zip(self.ranges.keys().skip(1));
        ranges.map(|((_, last), next)| next - last - 1)
    }

    fn close_lowest_gap(&mut self) {
        let (first, last) = self.ranges.pop_first().expect("there are many ranges");
        let (next, end) = self.ranges.pop_first().expect("there are many ranges");
        match next - last - 1 {
            gap if gap > GAP_MAX => self.closed_far += 1,
            gap => self.closed = self.closed.saturating_add(gap),
        }
        self.ranges.insert(first, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_in_between_without_a_line_are_missing() {
        let check = |ids: &[u64], missing: u64, twice: usize| {
            let mut seen = SeenIds::default();
            let repeated = ids.iter().filter(|id| !seen.insert(**id)).count();
            assert_eq!((seen.missing(), repeated), (missing, twice), "{ids:?}");
        };
        check(&[], 0, 0);
        check(&[7], 0, 0);
        check(&[7, 8, 6, 5], 0, 0);
        check(&[7, 9, 12], 3, 0);
        check(&[7, 9, 12, 8, 10, 11], 0, 0);
        check(&[7, 9, 7, 9, 9], 1, 3);
        check(&[u64::MAX, 1, 0], 0, 0);
        check(&[1, u64::MAX], 1, 0);
    }

    #[test]
    fn a_distant_id_is_not_counted_as_a_gap() {
        let mut seen = SeenIds::default();
        for id in [7, 8, 5_490_775_474_554_930_463, 10] {
            assert!(seen.insert(id));
        }
        assert_eq!((seen.missing(), seen.far()), (1, 1));
    }

    #[test]
    fn a_log_full_of_gaps_stays_within_its_bound_and_loses_no_call() {
        let mut seen = SeenIds::default();
        let ids = 3 * RANGES_MAX as u64;
        for id in 0..ids {
            assert!(seen.insert(2 * id));
        }
        assert_eq!(seen.ranges.len(), RANGES_MAX);
        assert_eq!(seen.missing(), ids - 1);
    }
}
