//! The steps of a call, for a replay: what the scheduler was given about it, and what it decided, each with its instant. With
//! this, a replay of the log takes the same decisions again (docs/reference/access-log.md).

use std::sync::Arc;

use tidegate_limits::call::{BucketId, Cost, QuotaKey};
use tidegate_limits::{Timestamp, Tokens, Weight};

/// The event of a step.
pub type StepKind = tidegate_record::StepKind<Arc<str>>;
/// A step at the gate.
pub type GateStep = tidegate_record::GateStep<Arc<str>>;

/// The part of a call that only a replay needs. Calls have it while `log.replay` is on.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayFacts {
    /// The turns of the caller for one turn of an ordinary caller.
    pub weight: Weight,
    /// The draw from each window.
    pub cost: Cost,
    /// The draws of the call when it is admitted.
    pub tokens: Tokens,
    /// The bucket that the call is charged to.
    pub bucket: Option<BucketId>,
    /// The quotas that the call draws from.
    pub quotas: Option<Arc<[QuotaKey]>>,
    /// Whether its final cost corrects its quotas and its turns too.
    pub is_settled: bool,
    /// The last moment at which the call may leave the queue; `None` without a bound.
    pub deadline: Option<Timestamp>,
    /// The steps at the gate. Those of two tasks may be out of order.
    pub steps: Vec<GateStep>,
}
