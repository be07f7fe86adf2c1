//! The source's own figures: runs of its token pool, its unit tests, and what its predecessors
//! reported as delay.

use alloc::vec::Vec;
use core::time::Duration;

use super::model::Filler;
use super::pools::{PoolLevel, Sizes, TICKS_PER_NANO, ticks};
use super::{BurstRatio, Pace, Pacer, Rate};
use crate::time::Timestamp;

const RUNS: &str = include_str!("../../tests/vectors/pools.txt");

fn numbers(line: &str) -> Vec<i128> {
    let number = |word: &str| word.parse().expect("a number");
    line.split(' ').skip(1).map(number).collect()
}

#[test]
fn every_run_of_the_source_comes_out_as_it_did_there_to_the_bit() {
    let mut sizes = Sizes { active: 1, over: 1 };
    let (mut price, mut name) = (0, "");
    let mut level = PoolLevel {
        active: 0,
        waiting: 0,
    };
    let mut filler = Filler::new(1, 1, 0);
    let mut steps = 0;
    for line in RUNS.lines().filter(|line| !line.starts_with('#')) {
        if let Some(given) = line.strip_prefix("name ") {
            name = given;
            continue;
        }
        let figures = numbers(line);
        if line.starts_with("pool") {
            (sizes.active, sizes.over, price) = (figures[0], figures[1], figures[2]);
            (level.active, level.waiting) = (0, 0);
            filler = Filler::new(sizes.active, sizes.over, 0);
            continue;
        }
        let [argument, returned, active, waiting] = figures[..] else {
            panic!("{line:?} has not four figures")
        };
        let gave = match &line[..1] {
            "+" => {
                level = level.filled(argument, sizes);
                filler.refill(argument);
                level.active + level.waiting
            }
            "-" => {
                let taken = argument.min(level.active);
                level.active -= taken;
                assert_eq!(filler.take_up_to(argument), taken, "{name}: {line}");
                taken
            }
            "!" => {
                assert!(filler.take(price), "{name}: {line}");
                level.active -= price;
                level.active + level.waiting
            }
            "=" => level.waiting,
            "~" => level.active + level.waiting,
            other => panic!("{other:?} is no step"),
        };
        let is = (gave, level.active, level.waiting);
        assert_eq!(is, (returned, active, waiting), "{name}: {line}");
        assert_eq!((filler.active, filler.waiting), (active, waiting), "{name}");
        steps += 1;
    }
    assert_eq!(steps, 2400 + 28 + 2);
}

fn pace(rate: f64, ratio: f64) -> Pace {
    Pace::new(
        Rate::new(rate).expect("a rate"),
        BurstRatio::new(ratio).expect("a ratio"),
    )
}

#[test]
fn the_pools_have_the_sizes_that_the_source_gives_them() {
    for (rate, ratio, pool, burst) in [
        (0.1, 1.1, 20_000_000_000, 2_000_000_000),
        (1.0, 1.05, 2_000_000_000, 100_000_000),
        (10.0, 2.0, 200_000_000, 200_000_000),
        (100.0, 10.0, 20_000_000, 180_000_000),
        (1000.0, 1.1, 2_000_000, 200_000),
        (12_000.0, 1.05, 1_000_000, 50_000),
        (100_000.0, 1.0, 1_000_000, 0),
        (1e7, 1.1, 1_000_000, 100_000),
        (5e7, 1.5, 1_000_000, 500_000),
        (1e9, 1.1, 1_000_000, 100_000),
    ] {
        let pace = pace(rate, ratio);
        assert_eq!(pace.pool(), Duration::from_nanos(pool), "{rate}, {ratio}");
        assert_eq!(
            pace.burst_pool(),
            Duration::from_nanos(burst),
            "{rate}, {ratio}"
        );
    }
}

#[test]
fn an_operation_takes_as_long_as_in_the_source_in_whatever_unit_it_counts() {
    for (rate, per_operation) in [
        (50.0, Duration::from_nanos(20_000_000)),
        (5.0, Duration::from_nanos(200_000_000)),
        (2.0, Duration::from_nanos(500_000_000)),
        (1.0, Duration::from_micros(1_000_000)),
        (0.5, Duration::from_micros(2_000_000)),
        (0.001, Duration::from_millis(1_000_000)),
        (0.0005, Duration::from_millis(2_000_000)),
        (1e-6, Duration::from_secs(1_000_000)),
        (1e-7, Duration::from_secs(10_000_000)),
    ] {
        assert_eq!(pace(rate, 1.1).rate().interval(), per_operation, "{rate}");
        assert_eq!(pace(rate, 1.1).price(), ticks(per_operation), "{rate}");
    }
}

/// The source rounds an operation to whole nanoseconds, and so runs up to two thirds too fast.
#[test]
fn a_rate_is_right_where_the_source_rounds_it_to_whole_nanoseconds() {
    for (rate, off_by) in [
        (3e5, 1e-8),
        (7e6, 1e-7),
        (5e7, 4e-7),
        (3e8, 3e-6),
        (6e8, 1e-5),
    ] {
        let price = pace(rate, 1.1).price() as f64 / TICKS_PER_NANO as f64;
        assert!(
            (1e9 / price / rate - 1.0).abs() <= off_by,
            "{rate}: {price} ns"
        );
    }
}

/// The document claims that ten fills of a tenth equal one fill. The source's code differs, and so
/// must this one: the burst of one fill is spread over ten.
#[test]
fn one_fill_lets_in_no_less_than_ten_of_a_tenth() {
    let sizes = Sizes {
        active: 1_000_000_000,
        over: 1_100_000_000,
    };
    for (fills, active, waiting) in [
        (1, 1_100_000_000, 400_000_000),
        (10, 1_010_000_000, 490_000_000),
        (100, 1_010_000_000, 490_000_000),
    ] {
        let mut level = PoolLevel {
            active: 0,
            waiting: 500_000_000,
        };
        for _ in 0..fills {
            level = level.filled(1_000_000_000 / fills, sizes);
        }
        assert_eq!(
            (level.active, level.waiting),
            (active, waiting),
            "{fills} fills"
        );
    }
}

/// Traces of the predecessors of the source's limiter, whose delay is the time that has passed and was not claimed,
/// whatever was claimed of it. Those of their tests that measure it, with the nanoseconds that each step claims;
/// the others are about ways to forgive it, which this limiter has not.
#[test]
fn the_wait_time_is_what_the_predecessors_reported_as_delay() {
    // (clock, claims, delay before the claim)
    let fast_path: &[(u64, i128, u64)] = &[(1000, 15, 1000), (1000, 51, 985), (1000, 73, 934)];
    let reporting: &[_] = &[(0, 5000, 0), (6000, 5000, 1000), (13_543, 0, 3543)];
    let burst: &[_] = &[
        (0, 5000, 0),
        (6000, 5000, 1000),
        (1_000_006_000, 5000, 999_996_000),
        (1_000_006_000, 0, 999_991_000),
    ];
    // The clock began at 50,000, and nothing of that was claimed.
    let calculations: &[_] = &[
        (50_000, 0, 50_000),
        (100_000, 0, 100_000),
        (100_000, 20_000, 100_000),
        (200_000, 1, 180_000),
        (200_000, 0, 179_999),
        (200_010, 0, 180_009),
    ];
    for steps in [fast_path, reporting, burst, calculations] {
        let mut paced = Pacer::new(Timestamp::ZERO, pace(1000.0, 1.5));
        let nothing = PoolLevel {
            active: 0,
            waiting: 0,
        };
        paced.set_level(Timestamp::ZERO, nothing);
        for &(clock, claims, delay) in steps {
            let now = Timestamp::from_nanos(clock);
            let is = paced.peek_pools(now).wait_time();
            assert_eq!(is, Duration::from_nanos(delay), "at {clock} of {steps:?}");
            let level = paced.level(now);
            paced.charge(now, level, claims * TICKS_PER_NANO, 0);
        }
    }
}
