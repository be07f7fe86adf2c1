//! Decides whose turn it is: exact limits and one fair, bounded queue, as pure functions of
//! the time handed in.
//!
//! There is no clock, no socket, no thread and no random number in here, except for what modules
//! `paced` and `keyed` add with feature `std`: `now` and entropy are arguments, so the same inputs
//! give the same schedule, every time. A program keeps a [`Scheduler`] behind one lock, reads its clock
//! inside that lock, and after every other call asks [`Scheduler::next`] until the answer is
//! [`Step::SleepUntil`] or [`Step::Idle`].
//!
//! What is promised:
//!
//! - **Never more than N.** In any half-open span of a sliding window's length, wherever it
//!   starts, calls of at most N cost depart; at most N calls are in flight. Also across a
//!   reload.
//! - **All limits of a call are drawn together or not at all.** A refused call has drawn
//!   nothing.
//! - **Nobody waits past the deadline**, and whom its own limits could only serve after it is
//!   told at once.
//! - **No bucket gives more than its burst and what flows in**, except for one call that costs more
//!   than all of it, whose debt is repaid whole before another call goes. A change of its rule refunds
//!   nothing. What calls turn out to cost, and those that are only observed, can add up to a greater
//!   debt: that is cut ([`DEBT_MAX_FILL`]).
//! - **A paced limit lets the late catch up**, at no more than its rate times its burst ratio;
//!   time is neither made nor lost ([`pace::Pacer`]).
//! - **Work-conserving and fair** ([`Postpone::InTurn`]): while a limit has room for the call
//!   whose turn it is among those that meet it, that call runs. While two callers each have a call that
//!   only one limit holds up, what they are served there by weight differs by at most two calls of each.
//! - **Every call runs**, however many limits it meets: one that was passed over for a window claims
//!   room, and keeps that of one call idle for a window at most.
//! - **No operation costs more than O(log n)** in the number of waiting calls and of buckets, but
//!   for a reload, the removal of a bucket and snapshots; and asking when everything is closed
//!   touches none of them.
#![no_std]
#![forbid(unsafe_code)]

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
mod verdict;
mod window;

pub use bucket::{Burst, Fill, TokenBucket, Tokens};
pub use call::{Call, Caller, Class, Weight};
pub use policy::{Limit, Policy};
pub use scheduler::{Hold, Scheduler, Step, Ticket};
pub use time::Timestamp;
pub use verdict::{Cost, NotNow, Verdict};
pub use window::SlidingWindow;

/// Former places of names, until the app uses the new ones.
#[doc(hidden)]
pub use {
    bucket::{DEBT_MAX_BURSTS, DEBT_MAX_FILL, OutOfRange, TokenCount, TokenLimiter},
    call::{Backend, BucketId, QuotaKey},
    pace::{
        AlreadyRunning, ApplyError, BurstRatio, Pace, PaceSpec, Pacer, Pacer as Paced, Pools,
        PoolsNow, Rate, SpecError, SpecScope, Verb,
    },
    policy::{
        ClassShare, LimitRule, PolicyError, Postpone, Reserve, Scope, WhenFull, WindowShape,
        WindowStamp,
    },
    scheduler::{
        BUCKETS_MAX, BucketLimit, BucketMode, BucketNow, BucketOrder, BucketRule, Cause, ClassNow,
        Delay, Delays, Demand, FunctionNow, LimitNow, OnExcess, Outcome, PacerNow, QueueNow,
        QuotaAsk, QuotaCounts, QuotaNow, QuotaQuestion, QuotaRef, QuotaRule, QuotaSpent,
        QuotaTrouble, Reason, Refusal, Settlement, Supplier, Supply, TooManyBuckets, Waited,
    },
};
