//! How many callers may register themselves in a second.

use alloc::collections::VecDeque;
use core::time::Duration;

use tidegate_limits::Timestamp;

const SECOND: Duration = Duration::from_secs(1);

/// Admits at most this many in any second. A clock that steps back admits none early.
#[derive(Debug)]
pub(super) struct Churn {
    per_second: u16,
    /// The evictions of the last second, the earliest first.
    recent: VecDeque<Timestamp>,
}

impl Churn {
    pub(super) const fn new(per_second: u16) -> Self {
        Self {
            per_second,
            recent: VecDeque::new(),
        }
    }

    /// Changes the number; those of the last second still count.
    pub(super) fn set(&mut self, per_second: u16) {
        self.per_second = per_second;
    }

    pub(super) fn admit(&mut self, now: Timestamp) -> bool {
        let now = self.recent.back().map_or(now, |last| now.max(*last));
        while let Some(first) = self.recent.front()
            && now.since(*first) >= SECOND
        {
            self.recent.pop_front();
        }
        let has_room = self.recent.len() < usize::from(self.per_second);
        if has_room {
            self.recent.push_back(now);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_has_more_than_it_may() {
        let mut churn = Churn::new(3);
        let mut check = |millis: u64, passes: bool| {
            let now = Timestamp::ZERO + Duration::from_millis(millis);
            assert_eq!(churn.admit(now), passes, "at {millis} ms");
        };
        check(5000, true);
        check(5400, true);
        check(5900, true);
        check(5999, false);
        check(6000, true);
        check(6399, false);
        check(6400, true);
        // The clock steps back: none is admitted until it is where it was.
        check(0, false);
        check(6899, false);
        check(6900, true);
    }

    #[test]
    fn a_lower_number_counts_who_came_before() {
        let mut churn = Churn::new(3);
        assert!((0..3).all(|_| churn.admit(Timestamp::ZERO)));
        churn.set(1);
        assert!(!churn.admit(Timestamp::ZERO + Duration::from_millis(999)));
        assert!(churn.admit(Timestamp::ZERO + Duration::from_millis(1000)));
        churn.set(0);
        assert!(!churn.admit(Timestamp::MAX));
    }
}
