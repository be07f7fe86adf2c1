//! Quotas: budgets of keys in windows, drawn from a store that several nodes share.
//!
//! A call names the budgets that it draws from, such as its user's and that of all. Each is a
//! [`Ledger`], made when a call that is taken in names it first. There may be very many, so when
//! there are too many the least recently used is forgotten: first those that hold no tokens, then
//! others, which give back to the store what they hold before they go. A call that is refused makes
//! no ledger, so it takes nothing from any key. What a ledger has to ask the store is collected
//! here ([`Scheduler::quota_questions`]) and answered whenever the answer comes
//! ([`Scheduler::answer_quota`]): nothing here waits for anything.
//!
//! What a quota bars waits in turn, whatever the policy's [`Postpone`] says: a draw is a matter of
//! a reply, and the moment at which a window ends is known. Calls of another key never wait
//! behind it.
//!
//! [`Postpone`]: crate::Postpone

mod api;
mod kinds;
mod pins;
mod settle;
mod spend;
mod table;

pub use kinds::{
    QuotaAsk, QuotaCounts, QuotaNow, QuotaQuestion, QuotaRef, QuotaRule, QuotaSpent, QuotaTrouble,
};
pub(super) use pins::{NoRoomForKeys, Pinned};
pub(super) use spend::reason;
pub(super) use table::{Found, Quotas, known};
