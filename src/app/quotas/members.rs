//! How many sidecars share the store, without those that died recently.
//!
//! A process that is killed and started again is counted twice until the store gives up on the
//! first of the two. So a number is accepted once it held for as long as a dead member counts.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The smallest number of members within the last moments.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// How long a dead member counts.
    lifetime: Duration,
    /// Each number with when it began to hold. The first one held at the beginning of the span.
    counts: VecDeque<(Instant, usize)>,
    members: usize,
}

impl Settled {
    /// None yet.
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
        let mut settled = Settled::new(Duration::from_secs(10));
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
}
