//! How many sidecars share the store, without those that died recently.
//!
//! A process that is killed and started again is counted twice until the store gives up on the
//! first of the two. So a number is accepted once it held for as long as a dead member counts.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// No warning about the number comes sooner after one than this. Where processes die often, it is too
/// large again and again.
const WARN_AGAIN: Duration = Duration::from_secs(600);

/// The smallest number of members within the last moments.
#[derive(Debug, Default)]
pub(super) struct SettledCount {
    /// How long a dead member counts.
    lifetime: Duration,
    /// Each number with when it began to hold. The first one held at the beginning of the span.
    counts: VecDeque<(Instant, usize)>,
    members: usize,
    /// The last warning, and about how many members.
    warned: Option<(Instant, usize)>,
}

impl SettledCount {
    /// A count without members.
    pub(super) fn new(lifetime: Duration) -> Self {
        Self {
            lifetime,
            ..Self::default()
        }
    }

    /// The accepted number.
    pub(super) fn members(&self) -> usize {
        self.members
    }

    /// Sets the current number of members. Returns whether the accepted number has changed.
    pub(super) fn count(&mut self, now: Instant, members: usize) -> bool {
        if self.counts.back().is_none_or(|(_, last)| *last != members) {
            self.counts.push_back((now, members));
        }
        while self
            .counts
            .get(1)
            .is_some_and(|(since, _)| *since + self.lifetime <= now)
        {
            self.counts.pop_front();
        }
        let least = self.counts.iter().map(|(_, count)| *count).min();
        let least = least.unwrap_or(0);
        std::mem::replace(&mut self.members, least) != least
    }

    /// Whether to warn that the accepted number is too large: the first time, after a while, or if it
    /// is larger than before.
    pub(super) fn warns(&mut self, now: Instant) -> bool {
        let is_known =
            |(at, members): (Instant, usize)| now < at + WARN_AGAIN && self.members <= members;
        if self.warned.is_some_and(is_known) {
            return false;
        }
        self.warned = Some((now, self.members));
        true
    }

    /// When the accepted number may change by itself.
    pub(super) fn next(&self) -> Option<Instant> {
        let (since, _) = self.counts.get(1)?;
        Some(*since + self.lifetime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_killed_and_started_again_is_not_one_more() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut settled = SettledCount::new(Duration::from_secs(10));
        settled.count(at(0), 3);
        assert_eq!((settled.members(), settled.next()), (3, None));
        // Killed, started again, and its last session counted until it ends.
        assert!(!settled.count(at(20), 4));
        assert!(!settled.count(at(24), 3));
        assert_eq!(settled.members(), 3);
        // A real additional one.
        assert!(!settled.count(at(40), 4));
        assert_eq!(settled.next(), Some(at(50)));
        assert!(settled.count(at(50), 4));
        assert_eq!((settled.members(), settled.next()), (4, None));
        // And one that leaves.
        assert!(settled.count(at(60), 3));
        assert_eq!(settled.members(), 3);
    }

    #[test]
    fn members_that_die_and_come_back_bring_one_warning_now_and_then() {
        let start = Instant::now();
        let mut settled = SettledCount::new(Duration::from_secs(10));
        let mut warnings = Vec::new();
        // Each minute, one too many is there for longer than a dead one counts.
        for minute in 0..25 {
            for (second, members) in [(0, 4), (15, 4), (20, 3), (40, 3)] {
                let seconds = 60 * minute + second;
                let now = start + Duration::from_secs(seconds);
                if settled.count(now, members) && settled.members() > 3 && settled.warns(now) {
                    warnings.push(seconds);
                }
            }
        }
        assert_eq!(warnings, [0, 615, 1_215]);
        // More than before is news.
        let now = start + Duration::from_secs(1_500);
        settled.count(now, 5);
        let later = now + Duration::from_secs(11);
        assert!(settled.count(later, 5) && settled.warns(later));
        assert!(!settled.warns(later));
    }
}
