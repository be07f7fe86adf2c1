//! What an operator changes of callers and of the costs of their calls.

use std::sync::Arc;

use tidegate_callers::{Group, Label, Notes, Pattern};
use tidegate_limits::Weight;

use super::claim::RateLimitId;

/// A new caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCaller {
    /// Its label.
    pub label: Label,
    /// Its patterns: calls that match one of these belong to it.
    pub patterns: Vec<Pattern>,
    /// The groups that it is in.
    pub groups: Vec<Group>,
    /// Notes of operators.
    pub notes: Notes,
    /// Its rate limit.
    pub rate_limit: Option<RateLimitId>,
    /// Its turns for one turn of an ordinary caller; `None` takes the weight of less specific
    /// callers.
    pub weight: Option<Weight>,
}

/// A change of a caller; `None` keeps a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerPatch {
    /// Its label.
    pub label: Option<Label>,
    /// All the groups that it is in.
    pub groups: Option<Vec<Group>>,
    /// Notes of operators.
    pub notes: Option<Notes>,
    /// Its rate limit; the inner `None` removes it.
    pub rate_limit: Option<Option<RateLimitId>>,
    /// Its turns for one turn of an ordinary caller; the inner `None` takes the weight of less
    /// specific callers.
    pub weight: Option<Option<Weight>>,
}

/// The new costs of calls, as given.
#[derive(Clone, Debug, PartialEq)]
pub struct NewCosts {
    /// Of every function without a cost of its own, in tokens.
    pub default: f64,
    /// By function, in tokens.
    pub functions: Vec<(Arc<str>, f64)>,
    /// Seconds of the backend's time that one token stands for.
    pub unit_seconds: f64,
    /// Whether calls are charged their final cost, unless their rate limit says otherwise.
    pub settle: bool,
}
