//! Whether a store is asked: freely while it answers, by one question now and then once it does
//! not.

use std::time::Duration;

use tokio::time::Instant;

/// After so many failures in a row the store counts as away. One may be chance: a connection
/// that was idle for too long, a leader that was just elected.
const FAILURES: u32 = 3;
/// Questions under way at once while the store answers.
const AT_ONCE: usize = 64;
/// From one failure to the next question while it does not.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// The same where it wants somebody else: some stores spend much on finding that out.
pub(super) const PAUSE_STRANGER: Duration = Duration::from_secs(1);

/// Counts failures in a row.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    not_before: Option<Instant>,
}

impl Breaker {
    /// Whether one more question may be sent where so many are under way.
    pub(super) fn lets_through(&self, under_way: usize, now: Instant) -> bool {
        if !self.is_open() {
            return under_way < AT_ONCE;
        }
        under_way == 0 && self.not_before.is_none_or(|then| now >= then)
    }

    /// Whether the store counts as away.
    pub(super) fn is_open(&self) -> bool {
        self.failures >= FAILURES
    }

    /// The store answered. Returns whether it counted as away.
    pub(super) fn answered(&mut self) -> bool {
        let was_open = self.is_open();
        self.failures = 0;
        was_open
    }

    /// It did not, and while it is away is not asked again before so long.
    pub(super) fn failed(&mut self, now: Instant, pause: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_fails_thrice_in_a_row_is_asked_one_thing_now_and_then_until_it_answers() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        let lets = |breaker: &Breaker, under_way| breaker.lets_through(under_way, now);
        for _ in 0..2 {
            breaker.failed(now, PAUSE);
            breaker.failed(now, PAUSE);
            assert!(lets(&breaker, AT_ONCE - 1) && !lets(&breaker, AT_ONCE));
            assert!(!breaker.answered(), "it was never away");
        }
        for _ in 0..FAILURES {
            breaker.failed(now, PAUSE);
        }
        assert!(!lets(&breaker, 0));
        assert!(breaker.lets_through(0, now + PAUSE));
        assert!(!breaker.lets_through(1, now + PAUSE));
        breaker.failed(now + PAUSE, PAUSE);
        assert!(!breaker.lets_through(0, now + PAUSE));
        assert!(breaker.answered());
        assert!(lets(&breaker, AT_ONCE - 1) && !lets(&breaker, AT_ONCE));
        assert!(!breaker.answered());
    }
}
