//! What a call has drawn from a limit, and how far the call has come.

use super::level::Taken;
use crate::policy::WindowStamp;
use crate::time::Timestamp;
use crate::verdict::Cost;

/// How far a call in flight has come, as far as its windows are concerned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) sent: Option<Timestamp>,
    pub(crate) replied: Option<Timestamp>,
}

impl Progress {
    /// The departure that a window with this stamp counts, if it has happened.
    pub(super) fn departed(self, stamp: WindowStamp) -> Option<Timestamp> {
        match stamp {
            WindowStamp::Sent => self.sent,
            WindowStamp::Replied => self.replied,
        }
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
