//! The state of a limit, by its kind, and what a call has drawn from it.

use core::time::Duration;

use super::level::{BucketLimit, Level, Taken};
use crate::call::{Call, Cost};
use crate::policy::{Limit, WindowStamp};
use crate::time::Timestamp;
use crate::verdict::Verdict;
use crate::window::Window;

/// Why other cases do not occur.
const MISMATCH: &str = "a call has a stake of the limit's own kind";

#[derive(Debug)]
pub(super) enum State {
    Outstanding(Outstanding),
    Window(Window),
    Paced(Level),
}

impl State {
    pub(super) fn new(now: Timestamp, limit: &Limit) -> Self {
        match *limit {
            Limit::Outstanding { .. } => Self::Outstanding(Outstanding::default()),
            Limit::Window {
                length,
                guard,
                shape,
                ..
            } => Self::Window(Window::new(length, guard, shape)),
            Limit::Paced { pace } => Self::Paced(Level::new(now, BucketLimit::Paced(pace))),
        }
    }

    pub(super) fn used(&self, now: Timestamp) -> u64 {
        match self {
            Self::Outstanding(outstanding) => u64::from(outstanding.in_use),
            Self::Window(window) => window.used(now),
            // Tokens drawn from a pace are spent, so none are in use.
            Self::Paced(_) => 0,
        }
    }

    /// Nothing is drawn that only the end of a call brings back.
    pub(super) fn is_at_rest(&self) -> bool {
        match self {
            Self::Outstanding(outstanding) => outstanding.in_use == 0,
            Self::Window(window) => window.reserved == 0,
            Self::Paced(_) => true,
        }
    }

    #[inline]
    pub(super) fn take(&mut self, now: Timestamp, call: &Call) -> Stake {
        match self {
            Self::Outstanding(outstanding) => {
                outstanding.in_use += 1;
                Stake::Slot
            }
            Self::Window(window) => {
                window.reserve(call.cost);
                Stake::Reserved(call.cost)
            }
            Self::Paced(level) => Stake::Tokens(level.draw(now, call.tokens)),
        }
    }

    #[inline]
    pub(super) fn release(&mut self, now: Timestamp, stake: Stake, held: Option<Duration>) {
        match (self, stake) {
            (Self::Outstanding(outstanding), Stake::Slot) => outstanding.release(held),
            (Self::Window(window), Stake::Reserved(cost)) => window.depart(now, cost),
            (Self::Window(_), Stake::Departed(_)) | (Self::Paced(_), Stake::Tokens(_)) => {}
            _ => unreachable!("{MISMATCH}"),
        }
    }

    #[inline]
    pub(super) fn depart(&mut self, now: Timestamp, cost: Cost) {
        match self {
            Self::Window(window) => window.depart(now, cost),
            Self::Outstanding(_) | Self::Paced(_) => unreachable!("{MISMATCH}"),
        }
    }

    pub(super) fn undraw(&mut self, now: Timestamp, stake: Stake) {
        match (self, stake) {
            (Self::Outstanding(outstanding), Stake::Slot) => outstanding.in_use -= 1,
            (Self::Window(window), Stake::Reserved(cost)) => {
                window.reserved -= u64::from(cost.get());
            }
            (Self::Paced(level), Stake::Tokens(taken)) => level.undraw(now, taken),
            (Self::Window(_), Stake::Departed(_)) => {}
            _ => unreachable!("{MISMATCH}"),
        }
    }

    /// Counts a call that was in flight before this limit existed, and when it departed.
    pub(super) fn adopt(
        &mut self,
        now: Timestamp,
        call: &Call,
        departed: Option<Timestamp>,
    ) -> Stake {
        match (self, departed) {
            (Self::Window(window), Some(departed)) => {
                window.stamp_late(departed, call.cost);
                Stake::Departed(call.cost)
            }
            // A pace counts calls when they start.
            (Self::Paced(_), _) => Stake::Tokens(Taken::NOTHING),
            (state, _) => state.take(now, call),
        }
    }
}

/// The departures of a call in flight so far, by what counts as one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress([Option<Timestamp>; 2]);

impl Progress {
    /// The departure that a window with this stamp counts, if it has happened.
    pub(crate) const fn departed(self, stamp: WindowStamp) -> Option<Timestamp> {
        self.0[stamp as usize]
    }

    pub(crate) const fn depart(&mut self, now: Timestamp, stamp: WindowStamp) {
        self.0[stamp as usize] = Some(now);
    }
}

/// What a call has drawn from a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stake {
    /// One of the calls in flight.
    Slot,
    /// Cost in a window, before the departure.
    Reserved(Cost),
    /// Cost in a window, after the departure.
    Departed(Cost),
    /// Tokens of a pace.
    Tokens(Taken),
}

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
            Verdict::OnChange
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
        assert_eq!(closed.peek(0), Verdict::OnChange);
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
