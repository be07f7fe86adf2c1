//! The scheduler: whose turn it is, and whether that call may go.
//!
//! A call is submitted, waits in a flow, and leaves it in [`Scheduler::next`] as a step: it runs,
//! with a [`Hold`] for everything it has drawn, or its deadline has passed. If nothing waits,
//! [`Scheduler::run_at_once`] spares it the flow. Every hold ends in
//! exactly one of [`finish`](Scheduler::finish), [`give_back`](Scheduler::give_back) and
//! [`requeue`](Scheduler::requeue).
//!
//! Any event can allow another call to go. So after every other method, call `next` until it
//! returns [`Step::SleepUntil`] or [`Step::Idle`], and again at that moment.
//!
//! What it costs, in the number n of waiting calls: O(log n) for every method but
//! [`apply`](Scheduler::apply), [`remove_bucket`](Scheduler::remove_bucket) and the snapshots,
//! which are linear. With [`Postpone::Jitter`](crate::policy::Postpone::Jitter) that is per call asked, and
//! every call is asked each time it has been aside; with
//! [`Postpone::InTurn`](crate::policy::Postpone::InTurn) a call is asked only when it is first in its flow and
//! something has changed for that flow.

mod at_once;
mod audit;
mod bucket;
mod buckets;
mod budgets;
mod carry;
mod digest;
mod event;
mod forecast;
mod foresee;
mod hold;
mod moved;
mod next;
mod park;
mod peer;
mod quota;
mod quotas;
mod refusal;
mod reload;
mod run;
mod servers;
mod snapshot;
mod state;
mod submit;
mod supplied;
mod suspend;
mod waited;

pub use bucket::{
    BUCKETS_MAX, BucketCounts, BucketNow, BucketOrder, BucketRule, OnExcess, Settlement,
    TooManyBuckets,
};
pub use event::LedgerEvent;
pub(crate) use forecast::ForecastEntry;
pub use forecast::Prediction;
pub use hold::{Hold, Outcome};
pub use moved::Jitter;
pub use next::Step;
pub use quota::{
    QuotaAsk, QuotaCounts, QuotaNow, QuotaQuestion, QuotaRef, QuotaRule, QuotaSpent, QuotaTrouble,
};
pub use refusal::{Refusal, RefusalReason};
pub use snapshot::{ClassNow, FunctionNow, LimitDemand, LimitNow, QueueNow};
pub use state::Scheduler;
pub use waited::WaitReport;

pub use crate::delay::{Delay, DelayCause, Delays};
pub use crate::limiter::{BucketLimit, PacerNow};
pub use crate::queue::Ticket;
pub use crate::supply::{Supplier, Supply, SupplyShare};
