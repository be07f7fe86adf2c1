//! The times that calls of each function took, for the process that follows a crash.
//!
//! A call that was at the backend at a crash is held as long as such calls usually take. Each call's record in the
//! ledger has that time as it was known at its admission, so the next process needs nothing else, and a process that
//! knows too little says so. It is the 99th percentile, rounded up by less than half, of the last thousands of calls.

use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;

/// Functions whose times are known. Of others none is.
const FUNCTIONS_MAX: usize = 256;

/// Fewest times of which one is known as the usual one.
const TIMES_MIN: u32 = 100;

/// Most times that count. Then all count half, so that a backend that has become slower shows soon.
const TIMES_MAX: u32 = 4096;

/// Buckets of times, two for each doubling from a millisecond on: the last ones are of days.
const BUCKETS: usize = 56;

/// The functions that a ledger knows.
#[derive(Debug, Default)]
pub(super) struct FunctionTable {
    known: HashMap<Arc<str>, KnownFunction>,
    times: Vec<ServiceTimes>,
}

/// A function, by its places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownFunction {
    /// The place among the names of the ledger; 0 is every function without a limit of its own.
    pub(super) name: u16,
    times: Option<u16>,
}

/// The times of one function.
#[derive(Clone, Debug)]
struct ServiceTimes {
    counts: [u16; BUCKETS],
    total: u32,
    /// Milliseconds; 0 while it is not known.
    usual_ms: u32,
}

impl FunctionTable {
    /// Names of a ledger, in their order, and the times that are known already.
    pub(super) fn new(names: impl IntoIterator<Item = Arc<str>>, before: Self) -> Self {
        let mut table = before;
        table.known.values_mut().for_each(|it| it.name = 0);
        for (name, place) in names.into_iter().zip(0..) {
            table.known.entry(name).or_default().name = place;
        }
        // A function that had a limit of its own, and no times.
        table.known.retain(|_, it| *it != KnownFunction::default());
        table
    }

    /// The places of a function, whose times are kept from now on if there is room.
    pub(super) fn find(&mut self, function: &Arc<str>) -> KnownFunction {
        if let Some(&known) = self.known.get(function)
            && (known.times.is_some() || self.times.len() == FUNCTIONS_MAX)
        {
            return known;
        }
        if self.times.len() == FUNCTIONS_MAX {
            return KnownFunction::default();
        }
        self.times.push(ServiceTimes::default());
        let known = self.known.entry(Arc::clone(function)).or_default();
        known.times = Some(self.times.len() as u16 - 1);
        *known
    }

    /// How long most calls of this function take, or how long the slowest of the few took that are known; 0 if none
    /// is.   milliseconds
    pub(super) fn usual_of(&self, function: &str) -> u32 {
        let known = self.known.get(function).and_then(|known| known.times);
        known.map_or(0, |times| {
            let times = &self.times[usize::from(times)];
            match times.usual_ms {
                0 => times.slowest_ms(),
                usual => usual,
            }
        })
    }

    /// A call of this function was answered after this time.
    pub(super) fn add(&mut self, function: KnownFunction, took: Duration) {
        if let Some(times) = function.times {
            self.times[usize::from(times)].add(took);
        }
    }

    /// How long most calls of this function take; 0 if that is not known.   milliseconds
    pub(super) fn usual_ms(&self, function: KnownFunction) -> u32 {
        let times = function.times.map(|times| &self.times[usize::from(times)]);
        times.map_or(0, |it| it.usual_ms)
    }
}

impl ServiceTimes {
    fn add(&mut self, took: Duration) {
        self.counts[bucket(took)] += 1;
        self.total += 1;
        if self.total == TIMES_MAX {
            self.total = 0;
            for count in &mut self.counts {
                *count /= 2;
                self.total += u32::from(*count);
            }
        }
        // Now and then, because it looks at all buckets. The first one is exact.
        if self.total.is_multiple_of(16) || self.total == TIMES_MIN {
            self.usual_ms = self.percentile_99();
        }
    }

    /// The longest time, rounded up; 0 if there is none.
    fn slowest_ms(&self) -> u32 {
        let slowest = self.counts.iter().rposition(|&count| count > 0);
        slowest.map_or(0, end_ms)
    }

    fn percentile_99(&self) -> u32 {
        if self.total < TIMES_MIN {
            return 0;
        }
        let mut slower = self.total / 100;
        for (bucket, &count) in self.counts.iter().enumerate().rev() {
            match slower.checked_sub(u32::from(count)) {
                Some(left) => slower = left,
                None => return end_ms(bucket),
            }
        }
        unreachable!("more times than slower ones")
    }
}

impl Default for ServiceTimes {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            total: 0,
            usual_ms: 0,
        }
    }
}

/// The bucket of a time.
fn bucket(took: Duration) -> usize {
    let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
    let doublings = ms.ilog2() as usize;
    // The second bit says which half of the doubling it is in.
    let half = doublings > 0 && ms >> (doublings - 1) & 1 == 1;
    (2 * doublings + usize::from(half)).min(BUCKETS - 1)
}

/// The first time behind a bucket.   ms
fn end_ms(bucket: usize) -> u32 {
    let begin = 1_u32 << (bucket / 2);
    match bucket % 2 {
        0 => (begin + begin.div_ceil(2)).max(2),
        _ => begin * 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn each_time_ends_before_the_end_of_its_bucket_and_that_is_less_than_twice_as_long() {
        for time in (0..100).chain((7..27).flat_map(|bit| [(1 << bit) - 1, 1 << bit, 3 << bit])) {
            let end = u64::from(end_ms(bucket(ms(time))));
            assert!(time < end, "{time} {end}");
            assert!(end <= 2 * time.max(1), "{time} {end}");
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
        assert_eq!(end_ms(BUCKETS - 1), 1 << 28);
    }

    #[test]
    fn the_usual_time_is_the_99th_percentile_of_at_least_a_hundred() {
        let mut table = FunctionTable::new(["".into(), "slow".into()], FunctionTable::default());
        let function = table.find(&"slow".into());
        assert_eq!(function.name, 1);
        for _ in 0..98 {
            table.add(function, ms(300));
        }
        table.add(function, ms(9_000));
        assert_eq!(table.usual_ms(function), 0);
        table.add(function, ms(300));
        assert_eq!(table.usual_ms(function), 384);
        // Two of a hundred are more than one.
        for _ in 0..28 {
            table.add(function, ms(9_000));
        }
        assert_eq!(table.usual_ms(function), 12_288);
    }

    #[test]
    fn a_backend_that_has_become_slower_shows_soon_and_one_that_has_become_faster_in_the_end() {
        let mut table = FunctionTable::default();
        let function = table.find(&"any".into());
        let add = |table: &mut FunctionTable, calls, took| {
            (0..calls).for_each(|_| table.add(function, took));
            table.usual_ms(function)
        };
        assert_eq!(add(&mut table, 100_000, ms(10)), 12);
        assert_eq!(add(&mut table, 64, ms(5_000)), 6_144);
        assert_eq!(add(&mut table, 10_000, ms(10)), 12);
    }

    #[test]
    fn times_outlive_a_change_of_the_limits_and_have_a_bound() {
        let mut table = FunctionTable::new(["".into(), "a".into()], FunctionTable::default());
        let (a, b) = (table.find(&"a".into()), table.find(&"b".into()));
        assert_eq!((a.name, b.name), (1, 0));
        (0..200).for_each(|_| table.add(b, ms(100)));
        let mut table = FunctionTable::new(["".into(), "b".into()], table);
        let (a, b) = (table.find(&"a".into()), table.find(&"b".into()));
        assert_eq!((a.name, b.name), (0, 1));
        assert_eq!(table.usual_ms(b), 128);
        for number in 0..1_000 {
            table.find(&format!("f{number}").into());
        }
        assert_eq!(table.times.len(), FUNCTIONS_MAX);
        assert_eq!(table.known.len(), FUNCTIONS_MAX);
        let beyond = table.find(&"f999".into());
        table.add(beyond, ms(1));
        assert_eq!(table.usual_ms(beyond), 0);
        assert_eq!(table.find(&"b".into()), b);
    }
}
