//! Where calls wait.
//!
//! A waiting call is in one of two places: in a flow, or set aside (jitter). A flow contains the
//! calls of one caller and class that meet the same limits, in order of arrival. Only its first
//! call, its head, is ever asked, so the calls behind it cost nothing. A flow exists while a call
//! waits in it, so there are never more flows than calls.
//!
//! The door of a full queue is a number and not a place: the number of calls above the capacity. It
//! does not matter which calls these are. A call that arrives at a full queue joins its flow like
//! any other, and runs when its turn and its limits come. So a queue full of calls of one caller,
//! class or limit delays no others, and the law in [`fair`] applies to all waiting calls.

pub(crate) mod account;
mod budget;
mod calls;
pub(crate) mod fair;
mod waiting;

pub use budget::Ticket;
pub(crate) use budget::{Budget, FlowId};
pub(crate) use calls::CallQueue;
pub(crate) use waiting::{BudgetSet, QueueTotals, QueuedCall, WaitPlace};
