//! How long to pause before whoever does not answer is asked again.
//!
//! By Doorman, whose clients wait 1 s × 1.3^k after the k-th failure in a row, and a minute at most.

use std::time::Duration;

/// Each pause is so many times as long as the one before.
const GROWTH: f64 = 1.3;
/// No pause is longer.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Pauses that grow with each failure in a row.
#[derive(Clone, Debug)]
pub(super) struct BackOff {
    first: Duration,
    failures: u32,
}

impl BackOff {
    /// The first pause is this long.
    pub(super) const fn new(first: Duration) -> Self {
        Self { first, failures: 0 }
    }

    /// How long to pause after one more failure: by chance all of the pause or as little as half of
    /// it, so that those who lost the same server do not come back together.
    pub(super) fn failed(&mut self, entropy: u64) -> Duration {
        // Far below this it is the longest already.
        let exponent = self.failures.min(100) as i32;
        self.failures = self.failures.saturating_add(1);
        let grown = self.first.as_secs_f64() * GROWTH.powi(exponent);
        let whole = grown.min(PAUSE_MAX.as_secs_f64());
        let share = entropy as f64 / u64::MAX as f64;
        Duration::from_secs_f64(whole * (0.5 + 0.5 * share))
    }

    /// Somebody answered.
    pub(super) fn answered(&mut self) {
        self.failures = 0;
    }

    /// Failures since somebody answered last.
    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(back_off: &BackOff, entropy: u64, pause: Duration) {
        let given = back_off.clone().failed(entropy);
        let difference = given.abs_diff(pause);
        assert!(
            difference < Duration::from_micros(1),
            "{given:?} by {back_off:?}"
        );
    }

    #[test]
    fn pauses_grow_to_a_minute_and_no_further() {
        let mut back_off = BackOff::new(Duration::from_secs(1));
        for nth in 0..16 {
            let pause = Duration::from_secs_f64(1.3_f64.powi(nth));
            check(&back_off, u64::MAX, pause);
            check(&back_off, 0, pause / 2);
            back_off.failed(u64::MAX);
        }
        for failures in [16, 64, u32::MAX] {
            back_off.failures = failures;
            check(&back_off, u64::MAX, PAUSE_MAX);
            check(&back_off, 0, PAUSE_MAX / 2);
        }
        back_off.answered();
        check(&back_off, u64::MAX, Duration::from_secs(1));
    }
}
