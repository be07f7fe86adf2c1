//! Exact rate limits, and one fair, bounded queue, as pure functions of the time that you pass in.
//!
//! ```
//! # use std::time::Duration;
//! use tidegate_limits::{Cost, NotNow, SlidingWindow, Timestamp};
//!
//! let mut window = SlidingWindow::new(2, Duration::from_secs(1)); // at most 2 in any second
//! let now = Timestamp::ZERO; // nanoseconds of your clock
//! assert_eq!(window.try_take(now, Cost::ONE), Ok(()));
//! assert_eq!(window.try_take(now, Cost::ONE), Ok(()));
//! let free = now + Duration::from_secs(1);
//! assert_eq!(window.try_take(now, Cost::ONE), Err(NotNow::NotBefore(free)));
//! ```
//!
//! [`SlidingWindow`] is exact: in any span of its length, wherever the span starts, at most N passes. A
//! refusal contains the first nanosecond at which the call fits.
//!
//! # Which type for which job
//!
//! | You want | Take | Needs |
//! |---|---|---|
//! | at most N in any span of time, exactly | [`SlidingWindow`] | `alloc` |
//! | a burst, and then a steady rate | [`TokenBucket`] | `alloc` |
//! | a steady rate with catching up, as a state of your own | [`pace::Pacer`] | `alloc` |
#![cfg_attr(
    feature = "std",
    doc = "| a steady rate that threads and tasks wait for | [`pace::PacedLimiter`] | `std` |
| a bucket or a pace for each of a million keys | [`keyed::BucketKeys`], [`keyed::PacedKeys`] | `std` |"
)]
//! | several limits at once, a queue, classes, fair callers | [`Scheduler`] | `alloc` |
//! | a total that several processes share through a store | [`quota::Ledger`] | `alloc` |
#![cfg_attr(
    feature = "tower",
    doc = "| a limit in front of a `tower` service | [`tower::LimitLayer`] | feature `tower` |"
)]
//!
//! # Features
//!
//! The crate is `no_std` with `alloc` and has no required dependency. `std` (default) adds [`mod@keyed`],
//! clocks and the shared limiter. `tokio` adds its timer, `quanta` the processor's counter as a clock, and
//! `tower` a layer.
//!
//! # The scheduler
//!
//! A [`Scheduler`] holds calls until all their limits have room, and decides whose turn it is. It contains
//! no clock, no socket, no thread and no random number: `now` and entropy are arguments, so the same inputs
//! always give the same schedule. Keep it behind one lock, read your clock inside that lock, and after every
//! other method call [`Scheduler::next`] until it returns [`Step::SleepUntil`] or [`Step::Idle`]. Its
//! guarantees:
//!
//! - **Never more than N.** In any half-open span of a sliding window's length, calls of at most N cost
//!   depart. At most N calls are in flight. This also holds across a reload.
//! - **A call draws from all its limits or from none.** A refused call has drawn nothing.
//! - **No call waits past its deadline.** A call that its own limits could serve only later is refused at
//!   once.
//! - **A bucket gives no more than its burst and its inflow**, except for one call that costs more than the
//!   burst. Its debt is repaid before another call goes. A change of the rule refunds nothing. Settled and
//!   observed costs can add up to a larger debt, which is cut ([`bucket::DEBT_MAX_FILL`]).
//! - **A paced limit lets late callers catch up**, at no more than its rate times its burst ratio. Time is
//!   neither created nor lost ([`pace::Pacer`]).
//! - **The order is work-conserving and fair** ([`policy::Postpone::InTurn`]). While the limits of the call
//!   whose turn it is have room, that call runs. While two callers each have a call that only one limit
//!   delays, their service there by weight differs by at most two calls of each.
//! - **Every call runs**, however many limits it meets. A call that was passed over for one window claims
//!   room, and keeps the room of one call idle for one window at most.
//! - **No operation costs more than O(log n)** in the number of waiting calls and of buckets, except a
//!   reload, the removal of a bucket and snapshots. If all limits are closed, asking touches no call.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

// The README's example is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod bucket;
pub mod call;
#[cfg(feature = "std")]
pub mod clock;
mod delay;
#[doc(hidden)]
pub mod digest;
#[cfg(feature = "std")]
pub mod keyed;
mod limiter;
pub mod pace;
pub mod policy;
mod queue;
pub mod quota;
#[cfg(test)]
#[path = "../tests/random/mod.rs"]
mod random;
#[doc(hidden)]
pub mod recency;
pub mod scheduler;
#[doc(hidden)]
pub mod slab;
mod sorted;
mod supply;
mod time;
#[cfg(feature = "tower")]
pub mod tower;
mod verdict;
mod window;

pub use bucket::{Burst, Fill, TokenBucket, Tokens};
pub use call::{Call, Caller, Class, Cost, Weight};
pub use policy::{Limit, Policy};
pub use scheduler::{Hold, Scheduler, Step, Ticket};
pub use time::Timestamp;
pub use verdict::{NotNow, Verdict};
pub use window::SlidingWindow;
