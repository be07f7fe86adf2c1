//! The limits that calls meet, and how calls wait.

mod limit;
mod rule;
mod sets;

pub use limit::{Limit, WindowShape, WindowStamp};
pub use rule::{
    ClassShare, LimitRule, Policy, PolicyBuilder, PolicyError, Postpone, Reserve, Scope, WhenFull,
};
pub(crate) use sets::{LimitId, LimitSets, SetId};
