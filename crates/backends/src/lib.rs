//! Models of fragile backends in virtual time.
//!
//! A [`Model`] says when each call ends, from the calls that it works on at once. It has no clock
//! and no randomness of its own: both are arguments, so that the same input gives the same run.
//! All times are in nanoseconds since any start that one run shares.
//!
//! - [`law`]: how much slower each call becomes as more run at once.
//! - [`model`]: the backend itself, with its breaking point and its capacity over time.
//! - [`demand`]: how much work a call brings, also heavy-tailed.
//! - [`profile`]: a value that changes at given moments, also every day anew.
//! - [`mod@drive`]: calls that arrive, a limit on those at the backend, and what becomes of them.
#![forbid(unsafe_code)]

pub mod demand;
pub mod drive;
pub mod law;
pub mod model;
pub mod profile;

pub use demand::ServiceDemand;
pub use drive::{Arrival, CallEnding, DriveLimits, FinishedCall, drive};
pub use law::{Scalability, Sharing};
pub use model::{
    BackendModel, BreakBehaviour, Breaking, CallStart, EndedCall, Model, ServiceOutcome, Weight,
};
pub use profile::ValueProfile;

use std::fmt;

/// A second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// A number that makes no sense in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// The name of the number.
    pub what: &'static str,
    /// The numbers that make sense.
    pub range: &'static str,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.what, self.range)
    }
}

impl std::error::Error for OutOfRange {}

/// The number itself if it is in the range.
pub(crate) fn within(
    given: f64,
    is_right: bool,
    what: &'static str,
    range: &'static str,
) -> Result<f64, OutOfRange> {
    match given.is_finite() && is_right {
        true => Ok(given),
        false => Err(OutOfRange { what, range }),
    }
}
