//! Moments, in nanoseconds since a start of your choice.

use core::ops::Add;
use core::time::Duration;

/// Nanoseconds since start, handed in by the caller.
///
/// Arithmetic saturates: a clock that steps back never adds anything, and a moment past the
/// end of time is [`Timestamp::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The start.
    pub const ZERO: Self = Self(0);
    /// The end of time, 584 years after the start: what saturates stops here.
    pub const MAX: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

/// The nanoseconds of a span; one too long for 64 bits counts as the longest that fits.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The first number above `no` for which this holds, if any. It must hold for all numbers above the
/// first one, and not for `no`. The closer the guess, the quicker.
pub(crate) fn first_above(no: u64, guess: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut no, mut yes) = (no, guess.max(no.saturating_add(1)));
    let mut step = 1_u64;
    while !holds(yes) {
        if yes == u64::MAX {
            return None;
        }
        no = yes;
        yes = yes.saturating_add(step);
        step = step.saturating_mul(2);
    }
    step = 1;
    while yes - no > step && holds(yes - step) {
        yes -= step;
        step = step.saturating_mul(2);
    }
    no = no.max(yes.saturating_sub(step));
    while yes - no > 1 {
        let middle = no + (yes - no) / 2;
        if holds(middle) {
            yes = middle;
        } else {
            no = middle;
        }
    }
    Some(yes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_steps_back_adds_nothing() {
        let (early, late) = (Timestamp::from_nanos(5), Timestamp::from_nanos(9));
        assert_eq!(late.since(early), Duration::from_nanos(4));
        assert_eq!(early.since(late), Duration::ZERO);
    }

    #[test]
    fn times_past_the_end_are_cut_to_the_end() {
        assert_eq!(Timestamp::from_nanos(1) + Duration::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::MAX + Duration::from_nanos(1), Timestamp::MAX);
    }
}
