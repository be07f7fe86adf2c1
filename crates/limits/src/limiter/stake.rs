//! What a call has drawn from a limit, and how far the call has come.

use super::level::Taken;
use crate::policy::WindowStamp;
use crate::time::Timestamp;
use crate::verdict::Cost;

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
