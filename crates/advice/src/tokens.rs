//! The smallest bucket for what a caller asked for.
//!
//! A bucket with `fill` tokens a second is a queue served at that rate: with each call the level
//! rises by its cost, and a call waits exactly if the level is then above `burst`. So the
//! smallest burst that delays at most a share of the calls is a quantile of these levels. The
//! fill is the rate of the busiest minute: with less, that minute would need a burst that
//! protects nothing.

use crate::draw::Draw;
use crate::runs::PARTS;
use crate::setting::{resampled_highest, round_up};

const SECOND: f64 = 1e9;
const MINUTE: u64 = 60_000_000_000;
/// The share of a caller's calls that the advised bucket would have delayed, at most.
pub const DELAYED_MAX: f64 = 0.001;

/// A token bucket, and what it would have done to the calls of the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// Tokens at once.
    pub burst: f64,
    /// The bounds of the burst, at this fill.
    pub burst_bounds: (f64, f64),
    /// Tokens a second.
    pub fill: f64,
    /// The bounds of the fill.
    pub fill_bounds: (f64, f64),
    /// The share of the calls that it would have delayed.
    pub delayed: f64,
}

/// The level after each call. Calls are arrivals in ns, in order, with their costs in tokens.
fn levels(calls: &[(u64, f64)], fill: f64) -> impl Iterator<Item = f64> {
    let mut level = 0.0_f64;
    let mut last = calls.first().map_or(0, |call| call.0);
    calls.iter().map(move |(at, cost)| {
        let served = (at - last) as f64 / SECOND * fill;
        last = *at;
        level = (level - served).max(0.0) + cost;
        level
    })
}

/// The share of calls that a bucket would delay, if it is full at the first.
#[must_use]
pub fn delayed(calls: &[(u64, f64)], burst: f64, fill: f64) -> f64 {
    // What rounding adds to a level delays no call.
    let over = levels(calls, fill).filter(|level| *level > burst * (1.0 + 1e-9));
    over.count() as f64 / calls.len().max(1) as f64
}

/// The bucket for calls, in order; `None` without calls. `from` and `to` are the ends of the log.
pub(crate) fn bucket(calls: &[(u64, f64)], from: u64, to: u64, draw: &mut Draw) -> Option<Bucket> {
    let length = to.saturating_sub(from) / PARTS as u64 + 1;
    let part = |at: u64| (at.saturating_sub(from) / length).min(PARTS as u64 - 1) as usize;
    let most_expensive = calls.iter().map(|call| call.1).reduce(f64::max)?;

    // The most in any minute that ends with a call, by part.
    let mut rates = [0.0_f64; PARTS];
    let (mut oldest, mut tokens) = (0, 0.0);
    for (at, cost) in calls {
        tokens += cost;
        while calls[oldest].0 + MINUTE <= *at {
            tokens -= calls[oldest].1;
            oldest += 1;
        }
        let rate = &mut rates[part(*at)];
        *rate = rate.max(tokens / 60.0);
    }
    let (fill_low, most) = resampled_highest(&rates, draw);
    let fill = round_up(most.max(1e-6), 2);

    let mut by_part: Vec<Vec<f64>> = vec![Vec::new(); PARTS];
    let mut all = Vec::with_capacity(calls.len());
    for ((at, _), level) in calls.iter().zip(levels(calls, fill)) {
        by_part[part(*at)].push(level);
        all.push(level);
    }
    let needed = |levels: &mut Vec<f64>| {
        let over = (levels.len() as f64 * DELAYED_MAX) as usize;
        levels.sort_unstable_by(f64::total_cmp);
        levels
            .len()
            .checked_sub(over + 1)
            .map_or(0.0, |at| levels[at])
    };
    let highest = all.iter().copied().fold(most_expensive, f64::max);
    let burst = round_up(needed(&mut all).max(most_expensive), 2);
    let mut bursts = [0.0; PARTS];
    for (burst, levels) in bursts.iter_mut().zip(&mut by_part) {
        *burst = needed(levels);
    }
    let (burst_low, _) = resampled_highest(&bursts, draw);
    Some(Bucket {
        burst,
        burst_bounds: (burst_low.max(most_expensive).min(burst), highest.max(burst)),
        fill,
        fill_bounds: (fill_low.min(fill), fill),
        delayed: delayed(calls, burst, fill),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::seeds;

    const MILLISECOND: u64 = 1_000_000;

    fn bucket_of(arrivals: impl Iterator<Item = u64>) -> Bucket {
        let calls: Vec<_> = arrivals.map(|at| (at, 1.0)).collect();
        let to = 60 * MINUTE;
        bucket(&calls, 0, to, &mut Draw::new(1)).expect("calls")
    }

    #[test]
    fn sixty_calls_in_one_burst_are_admitted_at_once() {
        let it = bucket_of((0..60).map(|n| n * MILLISECOND));
        assert_eq!((it.burst, it.fill, it.delayed), (60.0, 1.0, 0.0));
    }

    #[test]
    fn a_steady_rate_is_the_fill_and_needs_no_burst() {
        let it = bucket_of((0..1_200).map(|n| n * 50 * MILLISECOND));
        assert_eq!((it.burst, it.fill, it.delayed), (1.0, 20.0, 0.0));
    }

    #[test]
    fn the_bucket_delays_no_more_than_the_stated_share_and_a_smaller_one_more() {
        for seed in seeds(0..50) {
            let mut draw = Draw::new(seed);
            let mut at = 0;
            let calls: Vec<_> = (0..5_000)
                .map(|_| {
                    let wait = if draw.below(20) == 0 { 30_000 } else { 200 };
                    at += draw.below(wait) as u64 * MILLISECOND;
                    (at, 1.0 + draw.below(3) as f64)
                })
                .collect();
            let it = bucket(&calls, 0, at, &mut draw).expect("calls");
            assert!(it.delayed <= DELAYED_MAX, "{it:?}");
            // Token by token, as a bucket is filled and drawn from.
            let (mut tokens, mut last, mut held) = (it.burst, 0, 0);
            for (at, cost) in &calls {
                tokens = (tokens + (at - last) as f64 / SECOND * it.fill).min(it.burst);
                last = *at;
                tokens -= cost;
                held += usize::from(tokens < -1e-6);
            }
            assert_eq!(it.delayed, held as f64 / calls.len() as f64);
            assert!(
                delayed(&calls, it.burst * 0.8 - 1.0, it.fill) > 0.0,
                "{it:?}"
            );
        }
    }
}
