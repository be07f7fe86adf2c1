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
//!   time is neither made nor lost ([`Paced`]).
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

mod delay;
#[cfg(feature = "std")]
pub mod keyed;
pub mod lease;
mod limiter;
#[cfg(feature = "std")]
pub mod paced;
mod policy;
mod queue;
pub mod quota;
#[cfg(test)]
#[path = "../tests/random/mod.rs"]
mod random;
#[doc(hidden)]
pub mod recency;
mod scheduler;
#[doc(hidden)]
pub mod slab;
mod sorted;
mod time;
mod tokens;
mod verdict;

pub use delay::{Cause, Delay, Delays};
pub use limiter::{
    AlreadyRunning, ApplyError, BucketLimit, Burst, BurstRatio, DEBT_MAX_BURSTS, DEBT_MAX_FILL,
    Fill, Limit, OutOfRange, Pace, PaceSpec, Paced, PacingNow, Pools, PoolsNow, Rate,
    SlidingWindow, SpecError, SpecScope, Supplier, Supply, TokenBucket, TokenLimiter, Tokens, Verb,
    WindowShape, WindowStamp,
};
pub use policy::{ClassShare, LimitRule, Policy, PolicyError, Postpone, Reserve, Scope, WhenFull};
pub use queue::{Backend, BucketId, Call, Caller, Class, QuotaKey, Ticket, Weight};
pub use scheduler::{
    BUCKETS_MAX, BucketMode, BucketNow, BucketOrder, BucketRule, ClassNow, Demand, FunctionNow,
    Hold, LimitNow, OnExcess, Outcome, QueueNow, QuotaAsk, QuotaCounts, QuotaNow, QuotaQuestion,
    QuotaRef, QuotaRule, QuotaSpent, QuotaTrouble, Reason, Refusal, Scheduler, Settlement, Step,
    TooManyBuckets, Waited,
};
pub use time::Timestamp;
pub use tokens::TokenCount;
pub use verdict::{Cost, NotNow, Verdict};
