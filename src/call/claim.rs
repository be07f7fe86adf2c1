//! What is known of a call once its caller is known: the caller for which it takes turns, its
//! cost, and the rate limit that is charged.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_callers::CallerId;
use tidegate_callers::{CostModel, FunctionId, Settled};
use tidegate_limits::{BucketId, QuotaKey, Timestamp, TokenCount, Tokens, Weight};

use super::identity::TEXT_BYTES_MAX;

/// Longest key of a quota.   bytes
pub const QUOTA_KEY_BYTES_MAX: usize = TEXT_BYTES_MAX;

/// A rate limit, by a number that is never given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RateLimitId(pub u32);

impl RateLimitId {
    /// The number of its bucket in the scheduler.
    #[must_use]
    pub fn bucket(self) -> BucketId {
        BucketId(self.0.into())
    }
}

/// As the API writes it: `r3`.
impl fmt::Display for RateLimitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Deadline {
    /// As long as any other.
    #[default]
    Ordinary,
    /// For ever: it is served in the end.
    None,
}

/// What a call is charged to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Charged {
    /// Nothing: none of its callers has a rate limit, or it meets no limits at all.
    #[default]
    Nothing,
    /// Nothing, because its rate limit says so.
    Exempt(RateLimitId),
    /// A rate limit.
    RateLimit {
        /// Which one.
        id: RateLimitId,
        /// Its label.
        label: Arc<str>,
        /// How long the call may wait.
        deadline: Deadline,
    },
}

/// How a call is settled, once it is known how long the backend took for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settling {
    /// What was in force when the call came in.
    pub costs: Arc<CostModel>,
    /// What the call was estimated to cost.
    pub estimated: TokenCount,
}

impl Settling {
    /// What the call is charged in the end, if the backend took so long for it.
    #[must_use]
    pub fn settled(&self, service: Duration) -> Settled {
        self.costs.settle(self.estimated, service)
    }
}

/// Who asks, and what it costs: every call gets one where it comes in, and keeps it.
#[derive(Clone, Debug)]
pub struct Claim {
    /// When it was made out.
    pub at: Timestamp,
    /// The most specific caller, for which the call takes turns.
    pub caller: CallerId,
    /// How many turns that caller has for one of an ordinary caller.
    pub weight: Weight,
    /// The function, as statistics know it.
    pub function: FunctionId,
    /// What the call is estimated to cost; nothing if it meets no limits.
    pub cost: TokenCount,
    /// What it is charged to.
    pub charged: Charged,
    /// The quotas that it draws from.
    pub quotas: Option<Arc<[QuotaKey]>>,
    /// Set if its cost is settled by the time it takes.
    pub settling: Option<Settling>,
    /// Every caller for which it was counted.
    pub counted: Counted,
}

impl Charged {
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
    /// The bucket that is charged.
    #[must_use]
    pub fn bucket(&self) -> Option<BucketId> {
        self.charged.bucket()
    }

    /// The label of the rate limit that is charged.
    #[must_use]
    pub fn rate_limit(&self) -> Option<&Arc<str>> {
        match &self.charged {
            Charged::RateLimit { label, .. } => Some(label),
            Charged::Nothing | Charged::Exempt(_) => None,
        }
    }

    /// How long the call may wait.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        match &self.charged {
            Charged::RateLimit { deadline, .. } => *deadline,
            Charged::Nothing | Charged::Exempt(_) => Deadline::Ordinary,
        }
    }
}

/// Tokens as the scheduler draws them, of tokens as they are counted. Counted ones add up
/// without error over years; those of a bucket are drawn together with the time, and need
/// fractions. This is the only place where the one becomes the other.
#[must_use]
pub fn drawn(counted: TokenCount) -> Tokens {
    Tokens::new(counted.tokens().min(Tokens::MAX.get())).expect("a count is never negative")
}

/// The callers for which a call was counted, the most specific first. Up to three need no
/// allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    first: [Option<CallerId>; Self::INLINE],
    more: Box<[CallerId]>,
}

impl Counted {
    const INLINE: usize = 3;

    /// In this order.
    pub fn iter(&self) -> impl Iterator<Item = CallerId> {
        let first = self.first.iter().copied().flatten();
        first.chain(self.more.iter().copied())
    }
}

impl FromIterator<CallerId> for Counted {
    fn from_iter<I: IntoIterator<Item = CallerId>>(callers: I) -> Self {
        let mut callers = callers.into_iter();
        Self {
            first: std::array::from_fn(|_| callers.next()),
            more: callers.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_counted_in_order_however_many_they_are() {
        for callers in 0..6 {
            let all: Vec<_> = (0..callers).map(CallerId).collect();
            let counted: Counted = all.iter().copied().collect();
            assert_eq!(counted.iter().collect::<Vec<_>>(), all);
        }
    }

    #[test]
    fn a_count_beyond_what_a_call_may_draw_is_drawn_as_the_most() {
        assert_eq!(drawn(TokenCount::MAX), Tokens::MAX);
        assert_eq!(drawn(TokenCount::ZERO), Tokens::ZERO);
        assert_eq!(drawn(TokenCount::ONE), Tokens::ONE);
    }
}
