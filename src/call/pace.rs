//! The pace of a paced limit, made of what the config says of it and of what calls cost.

use std::time::Duration;

use tidegate_limits::Tokens;
use tidegate_limits::pace::{BurstRatio, Pace, Rate};

/// The least size of the active pool. The gate's timer is late by up to a millisecond and a bit; what a smaller
/// pool could not hold meanwhile would be given out at the pace of the ratio only.
const POOL_MIN: Duration = Duration::from_millis(2);

/// The range of the costs of calls that meet a pace, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostRange {
    /// The cheapest call that costs anything.
    pub cheapest: Tokens,
    /// The most expensive call.
    pub most_expensive: Tokens,
}

impl CostRange {
    /// Every call costs one token.
    pub const ONE: Self = Self {
        cheapest: Tokens::ONE,
        most_expensive: Tokens::ONE,
    };
}

/// A rate and how much faster the late may go. Two of the cheapest calls fit into the active
/// pool with its burst, so no cost in the config lets cheap calls through in a burst: they never
/// go faster than at the ratio beyond two of their own cost. A call that costs more goes when the
/// pool is full, and the calls after it wait until it is repaid.
#[must_use]
pub fn pace(rate: Rate, ratio: BurstRatio, costs: CostRange) -> Pace {
    // The burst makes the pool larger by the ratio.
    let regular = costs.cheapest.get() / ratio.get();
    let regular = Tokens::new(regular).expect("no more than a cost");
    Pace::new(rate, ratio)
        .with_pool_min(POOL_MIN)
        .expect("a pool may hold milliseconds")
        .with_room_for(costs.most_expensive)
        .with_pool_for(regular)
}
