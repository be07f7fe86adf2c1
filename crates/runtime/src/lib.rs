//! What every long-running part of Tidegate needs: time, values that a reload replaces, and
//! pauses between attempts.

#![forbid(unsafe_code)]

mod back_off;
mod clock;
mod live;
#[cfg(feature = "metrics")]
pub mod metric;

pub use back_off::BackOff;
pub use clock::{Clock, Timer};
pub use live::Live;
