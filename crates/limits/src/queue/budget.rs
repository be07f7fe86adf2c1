//! The budgets that bar calls, and how calls and flows are named.

use crate::policy::LimitId;
use crate::slab::SlabKey;

/// A waiting call, for cancelling it. A ticket can be kept longer than the call waits: it never
/// refers to another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) SlabKey);

/// The index of a flow.
pub(crate) type FlowId = u32;

/// A budget that a call draws from, and that bars it when it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Budget {
    /// A limit of the policy.
    Limit(LimitId),
    /// A bucket.
    Bucket(SlabKey),
    /// A key's quota.
    Quota(SlabKey),
}
