//! Signs of life: what a client gets while its call waits, so that neither it nor a proxy between gives up.

use std::time::Duration;

use crate::options::words;

words! {
    /// The signs of life of a listener.
    pub enum SignsOfLife {
        /// Waiting clients get nothing.
        Off = "off",
        /// Interim answers with the status 100, except to agents that are known to fail on them.
        Continue = "100",
        /// Interim answers with the status 102, except to agents that are known to fail on them.
        Processing = "102",
        /// The client's `User-Agent` decides; an unknown one gets nothing.
        ByAgent = "by-agent",
    }
}

labels! {
    /// A sign of life.
    pub enum Sign {
        /// An interim answer `100 Continue`.
        Continue = "100",
        /// An interim answer `102 Processing`.
        Processing = "102",
        /// A comment in an event stream.
        Event = "event",
    }
}

/// Where a waiting call stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueStanding {
    /// The calls ahead of it, as far as is known.
    pub ahead: u64,
    /// The time until its predicted start; `None` if that is not known.
    pub wait: Option<Duration>,
    /// How far predictions were off lately, in parts of the wait; `None` if no call has waited.
    pub error: Option<f32>,
}

/// Clients ask more often for places in the queue than they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LooksExceeded;
