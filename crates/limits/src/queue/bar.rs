//! The budgets that bar calls, and how calls and flows are named.

use crate::policy::LimitId;
use crate::slab::Key;

/// A waiting call, for cancelling it. A ticket can be kept longer than the call waits: it never
/// refers to another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) Key);

/// The index of a line.
pub(crate) type LineId = u32;

/// A budget that a call draws from, and that bars it when it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bar {
    /// A limit of the policy.
    Limit(LimitId),
    /// A bucket.
    Bucket(Key),
    /// A key's quota.
    Quota(Key),
}
