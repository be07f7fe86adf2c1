//! A rate that lets late callers catch up: operations at `rate` per second, and up to `rate × ratio`
//! while demand is behind schedule.
//!
//! [`Pace`] is the rule, [`Pacer`] its state: a pure function of the time passed in. With feature `std`,
//! [`PacedLimiter`] is a pacer that threads and tasks share, with a lock, a clock and a queue.

#[cfg(feature = "std")]
mod limiter;
mod pacer;
mod pools;
mod rule;
mod spec;

#[cfg(test)]
mod accuracy;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod model;
#[cfg(test)]
mod traces;

#[cfg(feature = "tokio")]
pub use limiter::TokioTimer;
#[cfg(feature = "std")]
pub(crate) use limiter::Unpark;
#[cfg(feature = "std")]
pub use limiter::{
    Acquire, AcquireError, PacedLimiter, PacedLimiterNow, Slice, ThreadSleep, Timer, TimerThread,
};
pub use pacer::{ApplyError, Pacer, PoolsNow};
pub use pools::Pools;
pub use rule::{BurstRatio, Pace, Rate};
pub use spec::{PaceSpec, SpecError, SpecScope, Verb};
