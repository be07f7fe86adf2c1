//! At most N calls in flight.

use core::time::Duration;

use crate::verdict::Verdict;

/// The weight of one hold in the running mean is 1/8, so the last dozen or two count.
const MEAN_DIVISOR: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Outstanding {
    pub(super) in_use: u32,
    /// Running mean of how long slots were held; `None` until one came back.
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

    /// A slot becomes free every mean hold divided by N, and each call ahead takes one. `None` if no hold was
    /// measured.
    pub(super) fn wait_behind(&self, max: u32, ahead: u64) -> Option<Duration> {
        if u64::from(self.in_use) + ahead < u64::from(max) {
            return Some(Duration::ZERO);
        }
        let (Some(mean), 1..) = (self.mean_hold, max) else {
            return None;
        };
        let turns = u32::try_from(ahead.saturating_add(1)).unwrap_or(u32::MAX);
        Some(mean.saturating_mul(turns) / max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn without_a_measured_hold_the_wait_is_unknown() {
        let full = Outstanding {
            in_use: 2,
            mean_hold: None,
        };
        assert_eq!(full.wait_behind(2, 0), None);
    }

    #[test]
    fn the_wait_is_the_mean_hold_times_the_calls_ahead_over_the_slots() {
        let full = Outstanding {
            in_use: 10,
            mean_hold: Some(100 * MS),
        };
        assert_eq!(full.wait_behind(10, 0), Some(10 * MS));
        assert_eq!(full.wait_behind(10, 99), Some(1000 * MS));
        assert_eq!(
            Outstanding {
                in_use: 1,
                mean_hold: Some(MS)
            }
            .wait_behind(10, 3),
            Some(Duration::ZERO)
        );
    }

    #[test]
    fn the_wait_at_a_closed_limit_is_unknown() {
        let closed = Outstanding {
            in_use: 0,
            mean_hold: Some(MS),
        };
        assert_eq!(closed.peek(0), Verdict::WhenTold);
        assert_eq!(closed.wait_behind(0, 0), None);
    }

    #[test]
    fn the_mean_follows_recent_holds() {
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
