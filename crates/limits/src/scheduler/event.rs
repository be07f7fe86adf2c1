//! The changes that a ledger keeps for the next process.

use core::time::Duration;

use crate::policy::{LimitId, WindowStamp};
use crate::time::Timestamp;

/// A change that the next process must know of, in the order in which it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerEvent {
    /// A call left the queue. It may be at the backend from now on.
    Admitted {
        /// The place of its hold.
        place: u32,
    },
    /// A call counts in a window.
    Departed {
        /// The window's limit, by its place in the policy.
        limit: LimitId,
        /// The moment of the departure.
        at: Timestamp,
        /// The cost of the call.
        cost: u32,
    },
    /// The windows with this stamp count the call from now on.
    Stamped {
        /// The place of its hold.
        place: u32,
        /// The moment that they count.
        stamp: WindowStamp,
    },
    /// A call has ended, or was never sent.
    Ended {
        /// The place of its hold.
        place: u32,
        /// The time from its admission, if it was answered.
        took: Option<Duration>,
    },
}
