//! A point of a ring.

use crate::call::{Destination, Reason};

/// How many reasons of refusals there are.
pub const REASONS: usize = Reason::ALL.len();
/// How many backends there may be.
pub const BACKENDS: usize = Destination::BACKENDS.len();

/// The events of a step, and the greatest levels in it.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Samples in it; 0 is a step without a sample.
    samples: u32,
    /// Calls that arrived.
    pub arrivals: u32,
    /// Calls that left for the backend.
    pub sent: u32,
    /// Calls with an answer of the backend.
    pub answered: u32,
    /// Calls that each backend failed.
    pub failed: [u32; BACKENDS],
    /// Answers of our own, by the number of the reason.
    pub refused: [u32; REASONS],
    /// Calls that wait, also at the door.
    pub waiting: u32,
    /// The wait of the oldest.   ms
    pub oldest_ms: f32,
    /// Calls past the gate.
    pub in_flight: u32,
    /// The median time of the backend; NaN without an answer.   ms
    pub backend_p50_ms: f32,
    /// The time at the backend that 95 of 100 calls do not exceed.   ms
    pub backend_p95_ms: f32,
    /// The use of each limit, by its column.
    pub limits: [Use; super::LIMITS_MAX],
}

/// The use of a limit; NaN where it was not there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    /// How much is used.
    pub used: f32,
    /// How much is allowed.
    pub allowed: f32,
}

impl Default for Use {
    fn default() -> Self {
        Self {
            used: f32::NAN,
            allowed: f32::NAN,
        }
    }
}

impl Default for Point {
    fn default() -> Self {
        Self {
            samples: 0,
            arrivals: 0,
            sent: 0,
            answered: 0,
            failed: [0; BACKENDS],
            refused: [0; REASONS],
            waiting: 0,
            oldest_ms: 0.0,
            in_flight: 0,
            backend_p50_ms: f32::NAN,
            backend_p95_ms: f32::NAN,
            limits: [Use::default(); super::LIMITS_MAX],
        }
    }
}

impl Point {
    /// A sample, to be filled in.
    #[must_use]
    pub fn sample() -> Self {
        Self {
            samples: 1,
            ..Self::default()
        }
    }

    /// Whether a sample is in it.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.samples > 0
    }

    /// Adds the counts of another, and keeps the greater of each level. `f32::max` prefers a
    /// number to NaN.
    pub(super) fn merge(&mut self, other: &Self) {
        let add = |to: &mut u32, of: u32| *to = to.saturating_add(of);
        add(&mut self.samples, other.samples);
        add(&mut self.arrivals, other.arrivals);
        add(&mut self.sent, other.sent);
        add(&mut self.answered, other.answered);
        let counts = self.failed.iter_mut().zip(&other.failed);
        let refused = self.refused.iter_mut().zip(&other.refused);
        counts.chain(refused).for_each(|(to, of)| add(to, *of));
        self.waiting = self.waiting.max(other.waiting);
        self.oldest_ms = self.oldest_ms.max(other.oldest_ms);
        self.in_flight = self.in_flight.max(other.in_flight);
        self.backend_p50_ms = self.backend_p50_ms.max(other.backend_p50_ms);
        self.backend_p95_ms = self.backend_p95_ms.max(other.backend_p95_ms);
        for (to, of) in self.limits.iter_mut().zip(&other.limits) {
            to.used = to.used.max(of.used);
            to.allowed = to.allowed.max(of.allowed);
        }
    }
}
