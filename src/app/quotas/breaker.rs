//! Whether a store is asked: without limit while it does what is asked of it, by single trials once it
//! does not.
//!
//! The evidence is that of the connection and of writes. A request without an answer counts only if
//! nothing was answered since it was sent. Requests that failed together count as one failure,
//! because the end of a session fails everything under way. The number of waiting keys, and the
//! result of one key, are no evidence.
//!
//! A store that reads and does not write is of no use: a primary that was demoted, an etcd without space. So
//! after a failed write only a write shows that the store is back. A read would close the breaker
//! again and again.

use std::time::Duration;

use tokio::time::Instant;

/// After this many failures in a row, the store counts as unavailable. A single one may be
/// random: a connection that was idle for too long, a leader that was just elected.
const FAILURES: u32 = 3;
/// The most requests under way while the store answers.
pub(super) const AT_ONCE: usize = 64;
/// The pause from one failure to the next probe while it does not.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// The pause if the store requires other credentials, because that check is expensive for some stores.
pub(super) const PAUSE_STRANGER: Duration = Duration::from_secs(1);

/// The kind of a request to the store, and what its answer shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The store answers.
    Read,
    /// The store also writes.
    Write,
}

/// Counts failures in a row.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    /// When the store answered last.
    answered: Option<Instant>,
    /// When the store wrote last.
    wrote: Option<Instant>,
    /// When the last failure was counted.
    failed: Option<Instant>,
    not_before: Option<Instant>,
    /// Whether the store failed with a specific error.
    is_wrong: bool,
    /// A write is among the failures, so only a write ends them.
    needs_write: bool,
}

impl Breaker {
    /// Whether the store counts as unavailable.
    pub(super) fn is_open(&self) -> bool {
        self.failures >= FAILURES
    }

    /// Whether the store never answered, and no error of it is known: it may only be slow to start.
    pub(super) fn is_cold(&self) -> bool {
        self.answered.is_none() && !self.is_wrong
    }

    /// When the next trial is due while the store counts as unavailable.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        self.not_before.filter(|_| self.is_open())
    }

    /// The store answered. Returns whether it counted as unavailable and no longer does.
    pub(super) fn answered(&mut self, now: Instant, proof: Proof) -> bool {
        self.answered = Some(now);
        if proof == Proof::Write {
            self.wrote = Some(now);
        } else if self.needs_write {
            return false;
        }
        let was_open = self.is_open();
        self.failures = 0;
        self.is_wrong = false;
        self.needs_write = false;
        was_open
    }

    /// A request of that moment had no answer in time.
    pub(super) fn late(&mut self, sent: Instant, now: Instant, asked: Proof) {
        if self.proven(asked).is_some_and(|proven| proven >= sent) {
            return;
        }
        self.count(now, PAUSE, asked);
    }

    /// A request of that moment failed. The next trial comes after the pause.
    pub(super) fn failed(&mut self, sent: Instant, now: Instant, asked: Proof, pause: Duration) {
        self.is_wrong = true;
        let is_news = self.failed.is_none_or(|failed| sent >= failed);
        let is_over = self.proven(asked).is_some_and(|proven| proven > sent);
        if is_news && !is_over {
            self.count(now, pause, asked);
        }
    }

    /// The store denies this sidecar what every key needs. No further failure would say more.
    pub(super) fn denied(&mut self, now: Instant) {
        self.is_wrong = true;
        self.failures = self.failures.max(FAILURES - 1);
        self.count(now, PAUSE_STRANGER, Proof::Write);
    }

    fn proven(&self, asked: Proof) -> Option<Instant> {
        match asked {
            Proof::Read => self.answered,
            Proof::Write => self.wrote,
        }
    }

    fn count(&mut self, now: Instant, pause: Duration, asked: Proof) {
        self.failures = self.failures.saturating_add(1);
        self.failed = Some(now);
        self.not_before = Some(now + pause);
        self.needs_write |= asked == Proof::Write;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_store_that_fails_three_times_in_a_row_is_probed_now_and_then_until_it_answers() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for round in 0..2 {
            breaker.failed(
                start + ms(round * 10),
                start + ms(round * 10 + 5),
                Proof::Read,
                PAUSE,
            );
            assert!(!breaker.is_open() && breaker.probe_at().is_none());
        }
        assert!(
            !breaker.answered(start + ms(30), Proof::Read),
            "it was never unavailable"
        );
        for round in 4..7 {
            breaker.failed(
                start + ms(round * 10),
                start + ms(round * 10 + 5),
                Proof::Read,
                PAUSE,
            );
        }
        assert!(breaker.is_open());
        assert_eq!(breaker.probe_at(), Some(start + ms(65) + PAUSE));
        assert!(breaker.answered(start + ms(200), Proof::Read));
        assert!(!breaker.is_open());
    }

    #[test]
    fn failures_at_the_same_time_count_once() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..AT_ONCE {
            breaker.failed(start, start + ms(5), Proof::Read, PAUSE);
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn a_late_answer_says_nothing_where_others_were_answered_meanwhile() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        breaker.answered(start + ms(150), Proof::Read);
        for _ in 0..AT_ONCE {
            breaker.late(start, start + ms(200), Proof::Read);
        }
        assert!(!breaker.is_open());
        for _ in 0..FAILURES {
            breaker.late(start + ms(160), start + ms(360), Proof::Read);
        }
        assert!(breaker.is_open());
    }

    #[test]
    fn a_store_that_was_never_heard_of_is_cold_until_something_is_wrong_with_it() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES {
            breaker.late(start, start + ms(200), Proof::Read);
        }
        assert!(breaker.is_open() && breaker.is_cold());
        breaker.failed(start + ms(300), start + ms(301), Proof::Read, PAUSE);
        assert!(!breaker.is_cold());
    }

    #[test]
    fn a_store_that_reads_and_does_not_write_stays_unavailable_until_it_writes() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for round in 0..6 {
            let sent = start + ms(round * 10);
            breaker.failed(sent, sent + ms(2), Proof::Write, PAUSE);
            assert!(!breaker.answered(sent + ms(5), Proof::Read));
        }
        assert!(breaker.is_open());
        assert!(!breaker.answered(start + ms(100), Proof::Read) && breaker.is_open());
        assert!(breaker.answered(start + ms(110), Proof::Write) && !breaker.is_open());
    }

    #[test]
    fn a_write_without_an_answer_counts_although_reads_are_answered() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for round in 0..u64::from(FAILURES) {
            let sent = start + ms(round * 300);
            breaker.answered(sent + ms(100), Proof::Read);
            breaker.late(sent, sent + ms(200), Proof::Write);
        }
        assert!(breaker.is_open());
    }

    #[test]
    fn a_store_that_denies_everything_is_unavailable_at_once() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        breaker.answered(start, Proof::Read);
        breaker.denied(start + ms(5));
        assert!(breaker.is_open());
        assert_eq!(breaker.probe_at(), Some(start + ms(5) + PAUSE_STRANGER));
        assert!(breaker.answered(start + ms(2_000), Proof::Write));
    }
}
