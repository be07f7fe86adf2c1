//! The pace of a paced limit, made of what the config says of it and of what calls cost.

use std::time::Duration;

use tidegate_limits::{BurstRatio, Pace, Rate, Tokens};

/// What the active pool holds at least. The gate's timer is late by up to a millisecond and a
/// bit; what a smaller pool could not hold meanwhile would be given out at the pace of the
/// ratio only.
const POOL_MIN: Duration = Duration::from_millis(2);

/// A rate and how much faster the late may go, for calls that cost up to `dearest`: two of
/// those fit into the active pool.
#[must_use]
pub fn pace(rate: Rate, ratio: BurstRatio, dearest: Tokens) -> Pace {
    Pace::new(rate, ratio)
        .with_pool_min(POOL_MIN)
        .expect("a pool may hold milliseconds")
        .with_room_for(dearest)
}
