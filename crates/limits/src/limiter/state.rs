//! The state of a limit, by its kind.

use core::time::Duration;

use super::level::{BucketLimit, Level, Taken};
use super::outstanding::Outstanding;
use super::stake::Stake;
use crate::call::Draw;
use crate::policy::Limit;
use crate::time::Timestamp;
use crate::verdict::Cost;
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
    pub(super) fn take(&mut self, now: Timestamp, draw: Draw) -> Stake {
        match self {
            Self::Outstanding(outstanding) => {
                outstanding.in_use += 1;
                Stake::Slot
            }
            Self::Window(window) => {
                window.reserve(draw.cost);
                Stake::Reserved(draw.cost)
            }
            Self::Paced(level) => Stake::Tokens(level.draw(now, draw.tokens)),
        }
    }

    #[inline]
    pub(super) fn release(&mut self, now: Timestamp, stake: Stake, held: Option<Duration>) {
        match (self, stake) {
            (Self::Outstanding(outstanding), Stake::Slot) => outstanding.release(held),
            (Self::Window(window), Stake::Reserved(cost)) => window.depart(now, cost),
            _ => unreachable!("{MISMATCH}"),
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
    pub(super) fn adopt(&mut self, cost: Cost, departed: Option<Timestamp>) -> Stake {
        match self {
            Self::Outstanding(outstanding) => {
                outstanding.in_use += 1;
                Stake::Slot
            }
            Self::Window(window) => match departed {
                Some(departed) => {
                    window.stamp_late(departed, cost);
                    Stake::Departed(cost)
                }
                None => {
                    window.reserve(cost);
                    Stake::Reserved(cost)
                }
            },
            // A pace counts calls when they start.
            Self::Paced(_) => Stake::Tokens(Taken::NOTHING),
        }
    }
}
