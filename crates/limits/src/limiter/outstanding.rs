//! At most N calls in flight.

use core::time::Duration;

use super::RETRY_UNMEASURED;
use crate::verdict::Verdict;

/// One hold's part of the running mean is 1/8: the last dozen or two decide.
const MEAN_DIVISOR: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Outstanding {
    pub(super) in_use: u32,
    /// Running mean of how long a slot was held; `None` until one came back.
    mean_hold: Option<Duration>,
}

impl Outstanding {
    pub(super) fn peek(&self, max: u32) -> Verdict {
        if self.in_use < max {
            Verdict::Ready
        } else {
            Verdict::WhenTold
        }
    }

    pub(super) fn release(&mut self, held: Option<Duration>) {
        self.in_use -= 1;
        let Some(held) = held else { return };
        self.mean_hold = Some(match self.mean_hold {
            None => held,
            Some(mean) => mean - mean / MEAN_DIVISOR + held / MEAN_DIVISOR,
        });
    }

    /// A slot comes free every mean hold over N, and those ahead take one each.
    pub(super) fn wait_behind(&self, max: u32, ahead: u64) -> Duration {
        if u64::from(self.in_use) + ahead < u64::from(max) {
            return Duration::ZERO;
        }
        let (Some(mean), 1..) = (self.mean_hold, max) else {
            return RETRY_UNMEASURED;
        };
        let turns = u32::try_from(ahead.saturating_add(1)).unwrap_or(u32::MAX);
        mean.saturating_mul(turns) / max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn nothing_measured_means_a_second() {
        let full = Outstanding {
            in_use: 2,
            mean_hold: None,
        };
        assert_eq!(full.wait_behind(2, 0), Duration::from_secs(1));
    }

    #[test]
    fn the_wait_is_the_mean_hold_times_those_ahead_over_the_slots() {
        let full = Outstanding {
            in_use: 10,
            mean_hold: Some(100 * MS),
        };
        assert_eq!(full.wait_behind(10, 0), 10 * MS);
        assert_eq!(full.wait_behind(10, 99), 1000 * MS);
        assert_eq!(
            Outstanding {
                in_use: 1,
                mean_hold: Some(MS)
            }
            .wait_behind(10, 3),
            Duration::ZERO
        );
    }

    #[test]
    fn a_closed_limit_has_no_mean_to_go_by() {
        let closed = Outstanding {
            in_use: 0,
            mean_hold: Some(MS),
        };
        assert_eq!(closed.peek(0), Verdict::WhenTold);
        assert_eq!(closed.wait_behind(0, 0), Duration::from_secs(1));
    }

    #[test]
    fn the_mean_follows_what_is_held_now() {
        let mut slots = Outstanding {
            in_use: 100,
            mean_hold: None,
        };
        slots.release(Some(800 * MS));
        for _ in 0..60 {
            slots.release(Some(8 * MS));
        }
        let mean = slots.mean_hold.expect("sixty holds were measured");
        assert!(mean >= 8 * MS && mean < 10 * MS, "{mean:?}");
    }
}
