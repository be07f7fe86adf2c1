//! Quotas: budgets of keys in windows, drawn from a store that several nodes share.
//!
//! A call names the budgets that it draws from, such as its user's and the total. Each is a
//! [`Ledger`](crate::quota::Ledger), made when an admitted call names it first. There can be very
//! many. When there are too many, the least recently used ones are evicted: first those that hold
//! no tokens, then others, which return their tokens to the store first. A refused call makes no
//! ledger, so it evicts no key. The questions of a ledger to the store are collected here
//! ([`Scheduler::quota_questions`](crate::Scheduler::quota_questions)) and answered when the answer arrives
//! ([`Scheduler::answer_quota`](crate::Scheduler::answer_quota)): nothing here blocks.
//!
//! A call that a quota bars waits in turn, whatever the policy's [`Postpone`]: a draw takes one
//! reply, and the end of a window is known. Calls of other keys never wait behind it.
//!
//! [`Postpone`]: crate::policy::Postpone

mod kinds;
mod pins;
mod settle;
mod spend;
mod table;

pub use kinds::{
    QuotaAsk, QuotaCounts, QuotaNow, QuotaQuestion, QuotaRef, QuotaRule, QuotaSpent, QuotaTrouble,
};
pub(super) use spend::reason;
pub(super) use table::{KeyMatch, NamedQuota, QuotaLimiter, QuotaTable, known};
