//! Laws of the pools that hold for any operations. A failure names its seed.

use core::time::Duration;

use super::model::Filler;
use super::pools::{self, PoolLevel, TICKS_PER_NANO, ticks};
use super::{BurstRatio, Pace, Pacer, Rate};
use crate::bucket::{TokenLimiter, Tokens};
use crate::call::Cost;
use crate::random::{Random, seeds};
use crate::time::Timestamp;
use crate::verdict::Verdict;

impl Random {
    /// A span of any order of magnitude, up to an hour.
    fn span(&mut self) -> Duration {
        let most = self.pick(&[100, 10_000, 1_000_000, 10_000_000, 1_000_000_000]);
        let times = if self.below(200) == 0 { 3600 } else { 1 };
        Duration::from_nanos(self.below(most) * times)
    }

    fn pace(&mut self) -> Pace {
        let rates = [
            1e-7, 0.1, 1.0, 3.0, 100.0, 1234.567, 12_000.0, 1e6, 7e6, 5e7, 1e9,
        ];
        let ratios = [1.0, 1.05, 1.1, 1.5, 2.0, 10.0, 100.0];
        let rate = Rate::new(self.pick(&rates)).expect("a rate");
        let ratio = BurstRatio::new(self.pick(&ratios)).expect("a ratio");
        let largest = Cost::new(self.pick(&[1, 1, 3, 100])).expect("a cost");
        let pace = Pace::new(rate, ratio);
        // A hundred at once take too long at the slowest rates.
        let pace = pace.with_largest(largest).unwrap_or(pace);
        let pool_min = Duration::from_millis(self.pick(&[1, 1, 2, 20]));
        let pace = pace.with_pool_min(pool_min).expect("a size");
        match self.below(8) {
            // The largest operations leave a debt of up to fifty pools.
            0 => pace.with_pool_for(Tokens::ONE),
            1 => pace.with_pool_for(Tokens::new(1.5).expect("tokens")),
            _ => pace,
        }
    }

    fn cost(&mut self, pace: &Pace) -> Tokens {
        let largest = u64::from(pace.largest().get());
        let tokens = match self.below(4) {
            0 => 1.0,
            1 => (1 + self.below(largest)) as f64,
            2 => self.below(1000) as f64 / 999.0 * largest as f64,
            _ => self.pick(&[0.0, 0.1, 1.0]),
        };
        Tokens::new(tokens).expect("tokens")
    }
}

fn for_each_seed(check: impl Fn(u64, &mut Random)) {
    for seed in seeds(0..10_000) {
        check(seed, &mut Random::new(seed));
    }
}

#[test]
fn the_same_fills_at_the_same_moments_give_the_same_pools_to_the_bit() {
    for_each_seed(|seed, random| {
        let mut pace = random.pace();
        let mut now = Timestamp::from_nanos(random.below(1 << 40));
        let mut paced = Pacer::new(now, pace);
        let mut filler = Filler::of(&pace);
        let mut filled = now;
        for step in 0..60 {
            now = now + random.span();
            let fills = paced.fills(now);
            let passed = ticks(now.since(filled));
            assert_eq!(
                fills.iter().sum::<i128>(),
                passed,
                "seed {seed}, step {step}"
            );
            let refill = |filler: &mut Filler| {
                for &passed in &fills {
                    filler.refill(passed);
                }
            };
            let changed = match random.below(8) {
                0..=4 => {
                    let cost = random.cost(&pace);
                    let taken = paced.try_take(now, cost).is_ok();
                    if taken {
                        refill(&mut filler);
                        // What costs more than the pool holds goes when that is full.
                        let ticks = pace.ticks(cost);
                        let first = ticks.min(pace.sizes().active);
                        assert!(filler.take(first), "seed {seed}, step {step}");
                        filler.active -= ticks - first;
                    }
                    taken
                }
                5 => {
                    let cost = random.cost(&pace);
                    paced.draw(now, cost);
                    refill(&mut filler);
                    filler.active -= pace.ticks(cost);
                    true
                }
                6 => {
                    let asked_before = paced.clone();
                    let _ = paced.available_at(now, random.cost(&pace));
                    let _ = paced.peek(now);
                    assert_eq!(paced, asked_before, "seed {seed}: asking changes nothing");
                    false
                }
                _ => {
                    let ratio = BurstRatio::new(random.pick(&[1.0, 1.1, 3.0])).expect("a ratio");
                    let other = pace.at(pace.rate(), ratio).unwrap_or(pace);
                    paced.set_pace(now, other);
                    let same = pace == other;
                    if !same {
                        refill(&mut filler);
                        let (active, waiting) = (filler.active, filler.waiting);
                        filler = Filler::of(&other);
                        let over = other.sizes().over;
                        filler.active = active.min(over);
                        filler.waiting = waiting + (active - filler.active);
                        pace = other;
                    }
                    !same
                }
            };
            if changed {
                filled = now;
            }
            let PoolLevel { active, waiting } = paced.pools().level();
            let model = (filler.active, filler.waiting);
            assert_eq!(
                (active, waiting),
                model,
                "seed {seed}, step {step}, {pace:?}"
            );
        }
    });
}

#[test]
fn time_is_neither_made_nor_lost() {
    for_each_seed(|seed, random| {
        let mut pace = random.pace();
        let start = Timestamp::from_nanos(random.below(1 << 40));
        let mut paced = Pacer::new(start, pace);
        let mut latest = start;
        let mut claimed = -pace.price();
        for step in 0..60 {
            // Now and then the clock steps back, which is as if no time had passed.
            let mut now = latest + random.span();
            if random.below(8) == 0 {
                now = Timestamp::from_nanos(
                    latest.as_nanos() - random.below(1 << 20).min(latest.as_nanos()),
                );
            }
            let cost = random.cost(&pace);
            let ticks = pace.ticks(cost);
            let before = paced.level(now).active;
            match random.below(8) {
                0..=3 => {
                    claimed += if paced.try_take(now, cost).is_ok() {
                        ticks
                    } else {
                        0
                    }
                }
                4 => {
                    paced.draw(now, cost);
                    claimed += before - paced.level(now).active;
                }
                5 => {
                    paced.put_back(now, cost.get());
                    claimed -= ticks;
                }
                6 => {
                    pace = random.pace();
                    paced.set_pace(now, pace);
                }
                _ => {
                    let _ = paced.verdict(now, cost);
                    continue;
                }
            }
            latest = latest.max(now);
            let PoolLevel { active, waiting } = paced.level(latest);
            let passed = pools::ticks(latest.since(start));
            assert_eq!(
                active + waiting + claimed,
                passed,
                "seed {seed}, step {step}"
            );
            assert!(
                waiting >= 0 && active <= pace.sizes().over,
                "seed {seed}, step {step}"
            );
        }
    });
}

#[test]
fn no_span_lets_more_through_than_its_pools_and_the_pace_of_the_ratio() {
    for_each_seed(|seed, random| {
        let pace = random.pace();
        let ratio = pace.sizes().over as f64 / pace.sizes().active as f64;
        let mut now = Timestamp::ZERO;
        let mut paced = Pacer::new(now, pace);
        // From where the span begins: a take of nothing is a fill there.
        for _ in 0..random.below(20) {
            now = now + random.span();
            let _ = paced.try_take(now, random.cost(&pace));
        }
        paced.draw(now, Tokens::ZERO);
        let (start, at_start) = (now, paced.pools().level());
        let mut granted = 0;
        // What one operation took beyond the pool, which is repaid before the next.
        let mut owed = 0;
        for step in 0..40 {
            now = now + random.span();
            let cost = random.cost(&pace);
            for _ in 0..100 {
                if paced.try_take(now, cost).is_ok() {
                    granted += pace.ticks(cost);
                    owed = owed.max(pace.ticks(cost) - pace.sizes().active);
                }
            }
            let passed = ticks(now.since(start));
            let paced_in = (ratio * passed as f64) as i128 + 1;
            let bound = at_start.active + paced_in.min(passed + at_start.waiting) + owed;
            // In debt nothing goes. The burst is computed in floating point, to one part in 2^53 a
            // fill.
            let bound = bound.max(0);
            let rounding = 1 + (bound >> 45);
            assert!(
                granted <= bound + rounding,
                "seed {seed}, step {step}: {granted} of {bound}, {pace:?}"
            );
        }
    });
}

/// From the same pools, a caller that asks all the time gets as much as from a filler that fires
/// every `interval`, within two operations, a burst pool and one round: whatever the pools contain
/// after a pause of any length.
#[test]
fn a_filler_that_fires_in_between_admits_as_much_within_a_burst_pool_and_one_round() {
    for_each_seed(|seed, random| {
        let rate = random.pick(&[100.0, 1000.0, 12_000.0, 1e5, 1e6]);
        let ratio = BurstRatio::new(random.pick(&[1.0, 1.1, 1.5, 2.0])).expect("a ratio");
        let pace = Pace::new(Rate::new(rate).expect("a rate"), ratio);
        let (price, sizes) = (pace.price(), pace.sizes());
        // A filler whose pool is smaller than a round and the rest of an operation falls behind for
        // good.
        let interval = random.pick(&[10_000, 100_000, 300_000, 500_000]);
        let slack = 2 + (sizes.over - sizes.active + interval * TICKS_PER_NANO) / price;
        let pool_nanos = (sizes.active / TICKS_PER_NANO) as u64;
        let mut paced = Pacer::new(Timestamp::ZERO, pace);
        let mut filler = Filler::of(&pace);
        let mut now = 0_i128;
        for phase in 0..3 {
            now += (random.below(200) * random.below(pool_nanos) / 20) as i128;
            paced.draw(at(now), Tokens::ZERO);
            let level = paced.pools().level();
            (filler.active, filler.waiting) = (level.active, level.waiting);
            let mut filled = now;
            let (mut granted, mut model_granted) = (0_i128, 0_i128);
            for step in 0..random.below(120) {
                now += random.below(pool_nanos / 4) as i128;
                while filled + interval <= now {
                    filled += interval;
                    filler.refill(interval * TICKS_PER_NANO);
                }
                while paced.try_take(at(now), Tokens::ONE).is_ok() {
                    granted += 1;
                }
                while filler.take(price) {
                    model_granted += 1;
                }
                assert!(
                    (granted - model_granted).abs() <= slack,
                    "seed {seed}, phase {phase}, step {step}: {granted} and {model_granted}, \
                     {pace:?}, {interval} ns"
                );
            }
        }
    });
}

fn at(nanos: i128) -> Timestamp {
    Timestamp::from_nanos(u64::try_from(nanos).expect("a moment"))
}

#[test]
fn the_moment_named_is_the_first_at_which_there_is_enough() {
    for_each_seed(|seed, random| {
        let pace = random.pace();
        let mut now = Timestamp::from_nanos(random.below(1 << 40));
        let mut paced = Pacer::new(now, pace);
        for _ in 0..10 {
            now = now + random.span();
            let cost = random.cost(&pace);
            if random.below(3) == 0 {
                paced.draw(now, cost);
            } else {
                let _ = paced.try_take(now, cost);
            }
            let moment = paced.available_at(now, cost);
            assert!(moment >= now, "seed {seed}");
            assert!(paced.has(moment, cost), "seed {seed}: {paced:?} {cost:?}");
            if moment > now {
                let before = Timestamp::from_nanos(moment.as_nanos() - 1);
                assert!(!paced.has(before, cost), "seed {seed}: {paced:?} {cost:?}");
                assert_eq!(paced.verdict(now, cost), Verdict::NotBefore(moment));
                let alone = now + paced.wait_behind(now, 0.0, cost);
                assert!(
                    alone.as_nanos()
                        <= moment.as_nanos() + moment.since(now).as_nanos() as u64 / 1_000_000 + 2,
                    "seed {seed}: {alone:?} for {moment:?}"
                );
            }
        }
    });
}
