//! The window that is used alone, against one that looks at everything that ever went through.

mod random;

use std::time::Duration;

use random::{Random, seeds};
use tidegate_limits::{Cost, NotNow, SlidingWindow, Timestamp, Verdict};

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn cost(units: u32) -> Cost {
    Cost::new(units).expect("above zero")
}

/// All that went through.
struct Oracle {
    max: u64,
    length: u64,
    went: Vec<(u64, u64)>,
}

impl Oracle {
    fn used(&self, now: u64) -> u64 {
        let counts = |&&(at, _): &&(u64, u64)| at + self.length > now;
        self.went.iter().filter(counts).map(|&(_, cost)| cost).sum()
    }

    fn verdict(&self, now: u64, cost: u64) -> Verdict {
        if cost > self.max {
            return Verdict::Never;
        }
        let fits = |moment| self.used(moment) + cost <= self.max;
        if fits(now) {
            return Verdict::Ready;
        }
        // It changes only when something leaves.
        let mut moments: Vec<u64> = self.went.iter().map(|&(at, _)| at + self.length).collect();
        moments.sort_unstable();
        let first = moments
            .into_iter()
            .find(|&moment| moment > now && fits(moment));
        Verdict::NotBefore(at(first.expect("all of it leaves")))
    }

    /// The number of calls in the densest window.
    fn densest(&self) -> u64 {
        let starts = self.went.iter().map(|&(start, _)| start);
        let within = |start| {
            let here = self.went.iter();
            let here = here.filter(|&&(at, _)| at >= start && at < start + self.length);
            here.map(|&(_, cost)| cost).sum()
        };
        starts.map(within).max().unwrap_or(0)
    }
}

#[test]
fn every_answer_is_that_of_one_that_remembers_everything() {
    let mut refused = 0;
    let seeds = seeds(0..500);
    let count = seeds.len();
    for seed in seeds {
        let mut random = Random::new(seed);
        let (max, length) = (1 + random.below(12) as u32, 1 + random.below(50));
        let mut window = SlidingWindow::new(max, Duration::from_nanos(length));
        let mut oracle = Oracle {
            max: max.into(),
            length,
            went: Vec::new(),
        };
        let mut now = random.below(100);
        for step in 0..200 {
            now += random.below(1 + length / 3);
            let units = 1 + random.below(u64::from(max) + 1) as u32;
            let expected = oracle.verdict(now, units.into());
            let it = format!("seed {seed}, step {step}, {units} at {now}");
            assert_eq!(window.verdict(at(now), cost(units)), expected, "{it}");
            assert_eq!(window.used(at(now)), oracle.used(now), "{it}");
            let got = window.try_take(at(now), cost(units));
            assert_eq!(got, expected.into(), "{it}");
            match got {
                Ok(()) => oracle.went.push((now, units.into())),
                Err(NotNow::NotBefore(then)) => {
                    refused += 1;
                    let early = at(then.as_nanos() - 1);
                    assert_eq!(window.try_take(early, cost(units)), got, "{it}");
                    if random.below(2) == 0 {
                        now = then.as_nanos();
                        assert_eq!(window.try_take(then, cost(units)), Ok(()), "{it}");
                        oracle.went.push((now, units.into()));
                    }
                }
                Err(NotNow::Never | NotNow::OnChange) => assert!(units > max, "{it}"),
            }
        }
        assert!(oracle.densest() <= max.into(), "seed {seed}");
    }
    assert!(refused > 20 * count, "{refused}");
}

#[test]
fn a_clock_that_steps_back_lets_nothing_more_through() {
    for seed in seeds(0..500) {
        let mut random = Random::new(seed);
        let (max, length) = (1 + random.below(6) as u32, 10);
        let mut window = SlidingWindow::new(max, Duration::from_nanos(length));
        let mut oracle = Oracle {
            max: max.into(),
            length,
            went: Vec::new(),
        };
        let (mut latest, mut clock) = (0, 0_u64);
        for _ in 0..200 {
            clock += random.below(6);
            let now = clock.saturating_sub(random.below(12));
            if window.try_take(at(now), Cost::ONE).is_ok() {
                latest = latest.max(now);
                oracle.went.push((latest, 1));
            }
        }
        assert!(oracle.densest() <= max.into(), "seed {seed}");
        assert!(oracle.went.len() > max as usize, "it goes on");
    }
}

#[test]
fn a_limit_that_changes_goes_on_with_what_went_through() {
    let mut window = SlidingWindow::new(4, Duration::from_nanos(10));
    for moment in [0, 2, 4, 6] {
        assert_eq!(window.try_take(at(moment), Cost::ONE), Ok(()));
    }
    window.set(2, Duration::from_nanos(20));
    assert_eq!((window.max(), window.length().as_nanos()), (2, 20));
    assert_eq!(window.used(at(7)), 4);
    let then = NotNow::NotBefore(at(24));
    assert_eq!(window.try_take(at(7), Cost::ONE), Err(then));
    assert_eq!(window.try_take(at(24), Cost::ONE), Ok(()));
    assert_eq!(window.try_take(at(24), cost(3)), Err(NotNow::Never));
}

#[test]
fn the_ends_of_the_range_are_limits_like_any_other() {
    let mut closed = SlidingWindow::new(0, Duration::from_secs(1));
    assert_eq!(closed.try_take(at(0), Cost::ONE), Err(NotNow::Never));
    let mut single = SlidingWindow::new(3, Duration::ZERO);
    for _ in 0..10 {
        assert_eq!(single.try_take(at(5), cost(3)), Ok(()));
        assert_eq!(single.try_take(at(5), cost(4)), Err(NotNow::Never));
    }
    let mut endless = SlidingWindow::new(1, Duration::MAX);
    assert_eq!(endless.try_take(at(7), Cost::ONE), Ok(()));
    let never = NotNow::NotBefore(Timestamp::MAX);
    assert_eq!(endless.try_take(at(8), Cost::ONE), Err(never));
    let mut wide = SlidingWindow::new(u32::MAX, Duration::from_secs(1));
    assert_eq!(wide.try_take(at(0), cost(u32::MAX)), Ok(()));
    let second = NotNow::NotBefore(at(1_000_000_000));
    assert_eq!(wide.try_take(at(0), cost(u32::MAX)), Err(second));
}
