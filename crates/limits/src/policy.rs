//! The limits that calls meet, and how calls wait.

mod limit;
mod rule;
mod servers;
mod sets;

pub use limit::{Limit, WindowShape, WindowStamp};
pub use rule::{
    ClassShare, LimitRule, Pick, Policy, PolicyBuilder, PolicyError, Postpone, Reserve, Scope,
    WhenFull,
};
pub(crate) use servers::{ServerGroup, groups_of};
pub(crate) use sets::{LimitId, LimitSets, ServedBy, SetId};
