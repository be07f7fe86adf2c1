//! Who is calling, and what it uses.
//!
//! - An [`Identity`] is what is known of the sender of a call. A caller is a row of the [`CallerTable`],
//!   with one or more [`Pattern`]s. A call belongs to every caller that it matches, the most specific
//!   first. All of them count it, and one is charged: the most specific with a limit. The search ends
//!   at an exempt caller.
//! - Rows come from the config, from the API, or from the calls themselves. An identity that matches
//!   no row exactly is registered automatically. When that part of the table is full, the least
//!   recently seen caller is evicted.
//! - [`Usage`] counts calls, tokens and waits of one caller per minute, hour and day, in bounded memory,
//!   and [`Suggestion`] derives a rate limit from them.
//! - [`CostModel`] turns measured service times into the cost of each function, in tokens.
//!
//! There is no clock and no random number in this crate: `now` is an argument.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(test)]
mod arbitrary;
mod bounds;
mod churn;
mod costs;
mod error;
mod identity;
mod index;
mod learned;
mod macros;
mod matches;
mod names;
mod network;
mod pattern;
#[cfg(test)]
#[path = "../../limits/tests/random/mod.rs"]
mod random;
mod ring;
mod row;
mod table;
mod usage;

pub use bounds::{GROUPS_PER_CALLER_MAX, PATTERNS_PER_CALLER_MAX};
pub use costs::{CostModel, CostUnit, FinalCharge, ServiceTime, ServiceTimes};
pub use error::TableError;
pub use identity::{FieldSet, Identity, IdentityField};
pub use learned::LearnedCosts;
pub use matches::{Match, Matches};
pub use names::{Group, Label, NameError, Notes};
pub use network::{Ipv6Prefix, Network, NetworkError};
pub use pattern::{LITERAL_MAX, Pattern, PatternError, PatternText, Specificity, TextPattern};
pub use row::{CallerId, CallerRow, Charge, LastCall, NewCaller, Patch, RateLimitId, RowKind};
pub use table::{
    AutoRegister, CallerTable, Fold, InsertOutcome, Registration, ReloadOutcome, RestoreOutcome,
    TableSettings,
};
pub use usage::{
    Basis, CommonFunctions, DELAYED_MAX, FunctionId, FunctionUse, Headroom, SpanUse, Suggestion,
    Usage, UsageNow, UsageSpan, UsageTally, WaitTimes,
};
