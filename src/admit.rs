//! The gate: the scheduler behind one lock, and the one timer.

use std::sync::Arc;
use std::time::Duration;

/// What this stage is told. The gate builds the scheduler's policy from it, because only
/// the gate knows the clock's phase and which backends there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Calls that may wait.
    pub capacity: u32,
    /// Calls past the gate at once.
    pub workers: u32,
    /// Calls that meet no limit, past the gate at once.
    pub max_unlimited: u32,
    /// What a full queue does.
    pub when_full: WhenFull,
    /// How a call is postponed.
    pub postpone: Postpone,
    /// `smapi_rate_limit_window_size_seconds`; none switches windows off.
    pub window: Option<Window>,
    /// `smapi_max_outstanding_requests`; none switches it off.
    pub outstanding_max: Option<u32>,
    /// `smapi_request_postpone_threshold_seconds`, from arrival.
    pub threshold: Duration,
    /// How many calls the door of a full queue holds: one for each connection.
    pub door_max: u32,
}

/// What a full queue does with one more call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits at the door.
    Wait,
    /// It is refused at once.
    Refuse,
}

/// How a call that meets a closed limit is postponed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Postpone {
    /// It keeps its place and runs when the limit opens.
    InTurn,
    /// It is set aside for a random time, then joins the end of its flow.
    Jitter {
        /// At least.
        min: Duration,
        /// At most.
        max: Duration,
    },
}

/// The window limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its length.
    pub length: Duration,
    /// Calls per window over all functions; none where `total` is 0, which means no bound.
    pub total: Option<u32>,
    /// Calls per window by function.
    pub functions: Vec<(Arc<str>, u32)>,
    /// Sliding, or aligned to the wall clock.
    pub fixed: bool,
    /// Whether a slot is stamped at the first reply byte instead of when the call left.
    pub stamp_replied: bool,
    /// Added to the length before a slot comes back.
    pub guard: Duration,
}
