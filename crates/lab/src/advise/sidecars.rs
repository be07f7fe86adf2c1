//! How many sidecars ran at once.
//!
//! Advice is for all calls that reach the backend, and a config is for one sidecar. A restart overlaps
//! with the next process for a moment only, so what counts is the most for a tenth of the time.

use std::collections::BTreeMap;

/// The share of the time for which a number of sidecars must run.
const SHARE: f64 = 0.1;

/// The most processes at once, from each call's process, arrival and end; at least 1.
pub(super) fn at_once(calls: impl Iterator<Item = (u64, u64, u64)>) -> u32 {
    let mut spans: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (process, from, to) in calls {
        let span = spans.entry(process).or_insert((from, to));
        *span = (span.0.min(from), span.1.max(to));
    }
    let mut changes: Vec<(u64, i32)> = Vec::new();
    for (from, to) in spans.into_values() {
        changes.extend([(from, 1), (to, -1)]);
    }
    changes.sort_unstable();
    let whole = match (changes.first(), changes.last()) {
        (Some(first), Some(last)) => (last.0 - first.0) as f64,
        _ => return 1,
    };
    let mut lasted: BTreeMap<u32, f64> = BTreeMap::new();
    let mut count = 0_u32;
    for pair in changes.windows(2) {
        count = count.saturating_add_signed(pair[0].1);
        *lasted.entry(count).or_default() += (pair[1].0 - pair[0].0) as f64;
    }
    // With more at once, there were also this many.
    let mut longer = 0.0;
    let mut most = lasted.into_iter().rev();
    let found = most.find(|(_, time)| {
        longer += time;
        longer >= SHARE * whole
    });
    found.map_or(1, |(count, _)| count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spans: &[(u64, u64, u64)], expected: u32) {
        assert_eq!(at_once(spans.iter().copied()), expected, "{spans:?}");
    }

    #[test]
    fn processes_count_while_they_overlap_for_long() {
        check(&[], 1);
        check(&[(1, 0, 0)], 1);
        check(&[(1, 0, 10), (1, 90, 100)], 1);
        check(&[(1, 0, 100), (2, 0, 100), (3, 50, 100)], 3);
        // One after the other, with a restart of a moment.
        check(&[(1, 0, 51), (2, 50, 100)], 1);
        check(&[(1, 0, 60), (2, 45, 100)], 2);
    }
}
