//! A paced limiter that threads and tasks share.
//!
//! [`PacedLimiter`] is a [`Pacer`](super::Pacer) with a lock, a clock and a queue, for any program. It can
//! be tried ([`try_acquire`](PacedLimiter::try_acquire)), asked for a moment
//! ([`acquire_at`](PacedLimiter::acquire_at)), awaited in a task ([`acquire`](PacedLimiter::acquire)), or
//! waited for in a thread ([`acquire_blocking`](PacedLimiter::acquire_blocking)).
//!
//! - **A grant reads no clock and takes no lock.** Only a call that finds the pool empty does.
//! - **Waiting calls form a queue**: first come, first served, whatever they cost. A call takes nothing
//!   before its turn, so giving up costs the others nothing.
//! - **No runtime is needed.** The first call in the queue sleeps on a thread that the process shares, or
//!   on any [`Timer`]. The others sleep until they are woken.

mod acquire;
mod error;
mod handle;
mod shared;
mod sync;
mod timer;

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

pub use acquire::Acquire;
pub(crate) use acquire::Unpark;
pub use error::AcquireError;
pub use handle::{PacedLimiter, Slice};
pub use shared::PacedLimiterNow;
#[cfg(feature = "tokio")]
pub use timer::TokioTimer;
pub use timer::{ThreadSleep, Timer, TimerThread};
