//! How long to pause before the next attempt.

use std::time::Duration;

/// Pauses that grow with each failure in a row, up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackOff {
    first: Duration,
    growth: f64,
    max: Duration,
    failures: u32,
}

impl BackOff {
    /// Each pause is twice as long as the one before.
    #[must_use]
    pub const fn doubling(first: Duration, max: Duration) -> Self {
        Self {
            first,
            growth: 2.0,
            max,
            failures: 0,
        }
    }

    /// The pauses of Doorman's clients: each is 1.3 times as long as the one before, one minute at
    /// most.
    #[must_use]
    pub const fn gentle(first: Duration) -> Self {
        Self {
            first,
            growth: 1.3,
            max: Duration::from_secs(60),
            failures: 0,
        }
    }

    /// Counts one more failure and returns the pause after it.
    pub fn pause(&mut self) -> Duration {
        // Far below this exponent, the pause is the maximum already.
        let exponent = self.failures.min(100) as i32;
        self.failures = self.failures.saturating_add(1);
        let grown = self.first.as_secs_f64() * self.growth.powi(exponent);
        Duration::from_secs_f64(grown.min(self.max.as_secs_f64()))
    }

    /// Like [`Self::pause`], but a random length between half and all of it, so that clients
    /// that lost the same server do not come back together.
    pub fn pause_with_jitter(&mut self, entropy: u64) -> Duration {
        let share = entropy as f64 / u64::MAX as f64;
        self.pause().mul_f64(0.5 + 0.5 * share)
    }

    /// An attempt succeeded: the next pause is the first one again.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures in a row. All else is a setting, and a search that tells states apart relies on that.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        let Self {
            first: _,
            growth: _,
            max: _,
            failures,
        } = self;
        *failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn check(mut back_off: BackOff, entropy: u64, pause: Duration) {
        let given = back_off.pause_with_jitter(entropy);
        let difference = given.abs_diff(pause);
        assert!(
            difference < Duration::from_micros(1),
            "{given:?} by {back_off:?}"
        );
    }

    #[test]
    fn gentle_pauses_grow_to_a_minute_and_no_further() {
        let mut back_off = BackOff::gentle(Duration::from_secs(1));
        for nth in 0..16 {
            let pause = Duration::from_secs_f64(1.3_f64.powi(nth));
            check(back_off, u64::MAX, pause);
            check(back_off, 0, pause / 2);
            back_off.pause();
        }
        for failures in [16, 64, u32::MAX] {
            back_off.failures = failures;
            check(back_off, u64::MAX, MINUTE);
            check(back_off, 0, MINUTE / 2);
        }
        back_off.reset();
        check(back_off, u64::MAX, Duration::from_secs(1));
    }

    #[test]
    fn doubling_pauses_double_up_to_their_maximum() {
        let (first, max) = (Duration::from_millis(5), Duration::from_millis(80));
        let mut back_off = BackOff::doubling(first, max);
        let pauses: [_; 7] = std::array::from_fn(|_| back_off.pause().as_millis());
        assert_eq!(pauses, [5, 10, 20, 40, 80, 80, 80]);
        back_off.reset();
        assert_eq!(back_off.pause(), first);
    }
}
