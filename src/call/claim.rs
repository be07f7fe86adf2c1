//! The claim of a call once its caller is known: the caller for which it takes turns, its cost, and the rate limit
//! that is charged.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_callers::{CallerId, CostModel, FinalCharge, FunctionId, RateLimitId};
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::call::{BucketId, QuotaKey};
use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Timestamp, Tokens, Weight};

use super::identity::TEXT_BYTES_MAX;
use crate::options::words;

/// Longest key of a quota.   bytes
pub const QUOTA_KEY_BYTES_MAX: usize = TEXT_BYTES_MAX;

words! {
    /// How long a call may wait.
    #[derive(Default, Hash)]
    pub enum ClaimDeadline {
        /// As long as any other.
        #[default]
        Ordinary = "ordinary",
        /// Without a bound: it is served in the end.
        None = "none",
    }
}

/// The charge of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Charged {
    /// The call is not charged: none of its callers has a rate limit, or it meets no limits at all.
    #[default]
    Nothing,
    /// The call is not charged, because its rate limit says so.
    Exempt(RateLimitId),
    /// A rate limit.
    RateLimit {
        /// The id of the rate limit.
        id: RateLimitId,
        /// The label of the rate limit.
        label: Arc<str>,
        /// How long the call may wait.
        deadline: ClaimDeadline,
    },
}

/// How the cost of a call is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostRule {
    /// The draw when it goes.
    pub reserve: ReservedCost,
    /// Whether its answer says what it has cost.
    pub is_answered: bool,
}

/// The draw of a call when it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReservedCost {
    /// The configured cost of its function.
    #[default]
    OfFunction,
    /// A number of tokens.
    Tokens(TokenCount),
    /// As much as calls of this class have cost, of its function.
    Learned(Arc<str>),
}

/// How a call is settled, after the backend is done with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settling {
    /// The estimated cost of the call.
    pub estimated: TokenCount,
    /// The figure that decides.
    pub by: SettledBy,
}

/// The figure that a call is settled by.
#[derive(Clone, Debug, PartialEq)]
pub enum SettledBy {
    /// The time of the backend, and the setting at the arrival of the call.
    Time(Arc<CostModel>),
    /// The number of tokens in its answer, once that is known.
    Answer(Option<TokenCount>),
}

impl Settling {
    /// Whether the answer decides.
    #[must_use]
    pub const fn is_by_answer(&self) -> bool {
        matches!(self.by, SettledBy::Answer(_))
    }

    /// The answer says how many tokens the call has cost.
    pub fn answered(&mut self, tokens: u64) {
        if let SettledBy::Answer(known) = &mut self.by {
            let micros = tokens.saturating_mul(TokenCount::ONE.micros());
            *known = Some(TokenCount::from_micros(micros));
        }
    }

    /// The final charge of a call with this end and this time of the backend; `None` if that of its departure stays. The
    /// time of a failed call does not show its cost for the backend; a number that its answer has named does.
    #[must_use]
    pub fn settled(&self, outcome: Outcome, service: Duration) -> Option<FinalCharge> {
        let Self { estimated, by } = self;
        match by {
            SettledBy::Time(_) if outcome == Outcome::Failed => None,
            SettledBy::Time(costs) => Some(costs.settle(*estimated, service)),
            SettledBy::Answer(known) => known.map(|charged| FinalCharge {
                estimated: *estimated,
                charged,
            }),
        }
    }
}

/// The caller and the cost: every call gets one when it arrives, and keeps it.
#[derive(Clone, Debug)]
pub struct Claim {
    /// When it was made.
    pub at: Timestamp,
    /// The most specific caller, for which the call takes turns.
    pub caller: CallerId,
    /// The caller's turns for one turn of an ordinary caller.
    pub weight: Weight,
    /// The function, for statistics.
    pub function: FunctionId,
    /// The estimated cost of the call; 0 if it meets no limits.
    pub cost: TokenCount,
    /// The charge of the call.
    pub charged: Charged,
    /// The quotas that it draws from.
    pub quotas: Option<Arc<[QuotaKey]>>,
    /// Set if its cost is settled.
    pub settling: Option<Settling>,
    /// Every caller for which it was counted.
    pub counted: Counted,
}

/// By whose limits a call may run: the caller whose turn it takes, and what it draws from of that caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payer {
    /// The caller for which the call takes turns; `None` if it is not known.
    pub caller: Option<CallerId>,
    /// The bucket that is charged.
    pub bucket: Option<BucketId>,
    /// The quotas that it draws from.
    pub quotas: Option<Arc<[QuotaKey]>>,
}

impl Charged {
    /// The rate limit that is charged, or that exempts the call.
    #[must_use]
    pub fn rate_limit(&self) -> Option<RateLimitId> {
        match self {
            Self::RateLimit { id, .. } | Self::Exempt(id) => Some(*id),
            Self::Nothing => None,
        }
    }

    /// The bucket that is charged.
    #[must_use]
    pub fn bucket(&self) -> Option<BucketId> {
        match self {
            Self::RateLimit { id, .. } => Some(id.bucket()),
            Self::Nothing | Self::Exempt(_) => None,
        }
    }
}

impl Claim {
    /// The rule for the same call, if it is sent again.
    #[must_use]
    pub fn rule_again(&self) -> CostRule {
        match self.is_settled_by_answer() {
            true => CostRule {
                reserve: ReservedCost::Tokens(self.cost),
                is_answered: true,
            },
            false => CostRule::default(),
        }
    }

    /// Whether its answer decides what is charged in the end.
    #[must_use]
    pub fn is_settled_by_answer(&self) -> bool {
        let settling = self.settling.as_ref();
        settling.is_some_and(Settling::is_by_answer)
    }

    /// The label of the rate limit that is charged.
    #[must_use]
    pub fn rate_limit(&self) -> Option<&Arc<str>> {
        match &self.charged {
            Charged::RateLimit { label, .. } => Some(label),
            Charged::Nothing | Charged::Exempt(_) => None,
        }
    }

    /// Who pays for the call.
    #[must_use]
    pub fn payer(&self) -> Payer {
        Payer {
            caller: Some(self.caller),
            bucket: self.charged.bucket(),
            quotas: self.quotas.clone(),
        }
    }

    /// How long the call may wait.
    #[must_use]
    pub fn deadline(&self) -> ClaimDeadline {
        match &self.charged {
            Charged::RateLimit { deadline, .. } => *deadline,
            Charged::Nothing | Charged::Exempt(_) => ClaimDeadline::Ordinary,
        }
    }
}

/// Converts counted tokens into the scheduler's tokens. Counted tokens add up without error over
/// years. A bucket's tokens are drawn together with time, and need fractions. This is the only
/// place that converts them.
#[must_use]
pub fn drawn(counted: TokenCount) -> Tokens {
    Tokens::new(counted.tokens().min(Tokens::MAX.get())).expect("a count is never negative")
}

/// The callers for which a call was counted, the most specific first. Up to three need no
/// allocation.
pub type Counted = SmallVec<[CallerId; 3]>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_counted_in_order_however_many_they_are() {
        for callers in 0..6 {
            let all: Vec<_> = (0..callers).map(CallerId).collect();
            let counted: Counted = all.iter().copied().collect();
            assert_eq!(counted.to_vec(), all);
        }
    }

    #[test]
    fn a_count_beyond_what_a_call_may_draw_is_drawn_as_the_most() {
        assert_eq!(drawn(TokenCount::MAX), Tokens::MAX);
        assert_eq!(drawn(TokenCount::ZERO), Tokens::ZERO);
        assert_eq!(drawn(TokenCount::ONE), Tokens::ONE);
    }
}
