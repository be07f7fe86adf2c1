//! Whether a store is asked: freely while it answers, by one question at a time once it does not.

/// After so many failures in a row the store counts as away. One may be chance: a connection
/// that was idle for too long, a leader that was just elected.
const FAILURES: u32 = 3;
/// Questions under way at once while the store answers.
pub(super) const AT_ONCE: usize = 64;

/// Counts failures in a row.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
}

impl Breaker {
    /// How many questions may be under way.
    pub(super) fn at_once(&self) -> usize {
        if self.is_open() { 1 } else { AT_ONCE }
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

    /// It did not.
    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_fails_thrice_in_a_row_is_asked_one_thing_at_a_time_until_it_answers() {
        let mut breaker = Breaker::default();
        for _ in 0..2 {
            breaker.failed();
            breaker.failed();
            assert_eq!(breaker.at_once(), AT_ONCE);
            assert!(!breaker.answered(), "it was never away");
        }
        for _ in 0..FAILURES {
            breaker.failed();
        }
        assert_eq!(breaker.at_once(), 1);
        breaker.failed();
        assert_eq!(breaker.at_once(), 1);
        assert!(breaker.answered());
        assert_eq!(breaker.at_once(), AT_ONCE);
        assert!(!breaker.answered());
    }
}
