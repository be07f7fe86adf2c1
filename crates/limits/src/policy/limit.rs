//! A limit as configured.

use core::time::Duration;

use crate::pace::Pace;
pub use crate::window::WindowShape;

/// A limit as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// At most `max` calls in flight, whatever their cost.
    Outstanding {
        /// Calls in flight.
        max: u32,
    },
    /// At most `max` cost within one window.
    Window {
        /// Cost per window.
        max: u32,
        /// How long a departure counts. A window of length zero limits only calls that were admitted and
        /// have not departed.
        length: Duration,
        /// How much longer than `length` a departure counts in a sliding window, because the time to the
        /// backend varies. A fixed window does not use it.
        guard: Duration,
        /// Where windows begin.
        shape: WindowShape,
        /// The event that counts as the departure.
        stamp: WindowStamp,
    },
    /// A number of tokens per second, and more while demand is behind schedule.
    Paced {
        /// How fast, and how much faster for late callers.
        pace: Pace,
    },
}

impl Limit {
    /// At most `max` cost in any span of this length: a sliding window without a guard, in which calls
    /// count from the moment they are sent.
    #[must_use]
    pub const fn sliding(max: u32, length: Duration) -> Self {
        Self::Window {
            max,
            length,
            guard: Duration::ZERO,
            shape: WindowShape::Sliding,
            stamp: WindowStamp::Sent,
        }
    }

    /// The configured maximum: calls for an outstanding limit, cost for a window, tokens per second,
    /// rounded and at least 1, for a paced limit.
    #[must_use]
    pub fn max(&self) -> u32 {
        match self {
            Self::Outstanding { max } | Self::Window { max, .. } => *max,
            Self::Paced { pace } => (pace.rate().get() + 0.5).max(1.0) as u32,
        }
    }
}

/// The event that counts as a call's departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowStamp {
    /// The last byte of the call left: exact for calls that this process sends.
    Sent,
    /// The first byte of its reply arrived: exact at the backend, too.
    Replied,
}
