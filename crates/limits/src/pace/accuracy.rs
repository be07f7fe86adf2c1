//! How exactly the rate is kept, on a clock that is set by hand.

use core::time::Duration;

use super::{BurstRatio, Pace, Pacer, Rate};
use crate::bucket::{TokenLimiter, Tokens};
use crate::time::Timestamp;
use crate::verdict::Verdict;

const START: Timestamp = Timestamp::from_nanos(1_000_000_000);

fn paced(rate: f64, ratio: f64) -> Pacer {
    let rate = Rate::new(rate).expect("a rate");
    let ratio = BurstRatio::new(ratio).expect("a ratio");
    Pacer::new(START, Pace::new(rate, ratio))
}

/// Takes one operation as soon as it may go; returns when.
fn take_next(paced: &mut Pacer, now: Timestamp) -> Timestamp {
    let moment = paced.available_at(now, Tokens::ONE);
    assert!(
        paced.try_take(moment, Tokens::ONE).is_ok(),
        "{paced:?} at {moment:?}"
    );
    moment
}

#[test]
fn the_rate_is_kept_to_a_millionth_at_any_rate_and_ratio() {
    for rate in [0.1, 1.0, 100.0, 10_000.0, 1e6, 5e7] {
        for ratio in [1.0, 1.1, 1.5] {
            let mut paced = paced(rate, ratio);
            let first = take_next(&mut paced, START);
            let mut last = first;
            for _ in 0..10_000 {
                last = take_next(&mut paced, last);
            }
            let achieved = 10_000.0 / last.since(first).as_secs_f64();
            // Going at the first whole nanosecond costs nothing: the rest stays in the pool.
            let off = (achieved / rate - 1.0).abs();
            assert!(off < 1e-6, "{rate}, {ratio}: {achieved}");
            assert!(paced.peek_pools(last).waiting.is_zero());
        }
    }
}

/// A timer that is late by less than the pool contains costs nothing, even if no caller may catch
/// up.
#[test]
fn late_wake_ups_within_the_pool_cost_nothing() {
    for (rate, late) in [(100.0, 1_100_000), (10_000.0, 800_000), (1e6, 900_000)] {
        let mut paced = paced(rate, 1.0);
        let first = take_next(&mut paced, START);
        let (mut now, mut granted) = (first, 0);
        while now.since(first) < Duration::from_secs(3) {
            now = paced.available_at(now, Tokens::ONE) + Duration::from_nanos(late);
            while paced.try_take(now, Tokens::ONE).is_ok() {
                granted += 1;
            }
        }
        let achieved = f64::from(granted) / now.since(first).as_secs_f64();
        assert!((achieved / rate - 1.0).abs() < 0.005, "{rate}: {achieved}");
    }
}

/// Two seconds without callers, at 1000 per second. Returns the number of operations granted in the
/// first 5 ms, and the time until the total is as if callers had come all along, if that happens
/// within half a minute.
fn after_a_stall(ratio: f64) -> (u32, Option<Duration>) {
    let mut paced = paced(1000.0, ratio);
    let mut now = START;
    for _ in 0..100 {
        now = take_next(&mut paced, now);
    }
    let stalled = now;
    now = now + Duration::from_secs(2);
    let resumed = now;
    let (mut at_once, mut granted) = (0, 0_u32);
    while now.since(resumed) < Duration::from_secs(30) {
        now = take_next(&mut paced, now);
        granted += 1;
        if now.since(resumed) < Duration::from_millis(5) {
            at_once = granted;
        }
        if f64::from(granted) >= now.since(stalled).as_secs_f64() * 1000.0 - 1e-3 {
            return (at_once, Some(now.since(resumed)));
        }
    }
    let per_second = f64::from(granted) / now.since(resumed).as_secs_f64();
    assert!((per_second / 1000.0 - 1.0).abs() < 0.001, "{per_second}");
    (at_once, None)
}

#[test]
fn a_stall_is_made_up_for_at_the_pace_of_the_ratio_and_without_a_burst() {
    let (at_once, caught_up) = after_a_stall(1.5);
    assert!(at_once <= 10, "{at_once} in the first 5 ms");
    let caught_up = caught_up
        .expect("half as much again makes up for it")
        .as_secs_f64();
    assert!((3.99..4.2).contains(&caught_up), "{caught_up} s");

    let (at_once, caught_up) = after_a_stall(1.1);
    assert!(at_once <= 8, "{at_once} in the first 5 ms");
    let caught_up = caught_up
        .expect("a tenth more makes up for it")
        .as_secs_f64();
    assert!((19.9..21.0).contains(&caught_up), "{caught_up} s");

    let (at_once, caught_up) = after_a_stall(1.0);
    assert!(at_once <= 7, "{at_once} in the first 5 ms");
    assert_eq!(caught_up, None, "the strict never catch up");
}

#[test]
fn a_clock_that_steps_back_gives_nothing_and_breaks_nothing() {
    let mut paced = paced(1000.0, 1.1);
    let late = START + Duration::from_secs(10);
    assert!(paced.try_take(late, Tokens::ONE).is_ok());
    let before = paced.clone();
    assert_eq!(paced.peek(START), paced.peek(late));
    while paced.try_take(START, Tokens::ONE).is_ok() {}
    assert!(paced.peek(START) < before.peek(late));
    assert!(
        paced.try_take(late, Tokens::ONE).is_err(),
        "the ten seconds count once"
    );
    assert!(paced.available_at(START, Tokens::ONE) > late);
}

#[test]
fn the_ends_of_time_and_of_the_range_are_moments_like_any_other() {
    for rate in [Rate::MIN, Rate::new(1.0).expect("a rate"), Rate::MAX] {
        for ratio in [BurstRatio::STRICT, BurstRatio::MAX] {
            let mut paced = Pacer::new(Timestamp::ZERO, Pace::new(rate, ratio));
            assert!(paced.try_take(Timestamp::ZERO, Tokens::ONE).is_ok());
            let wait = paced.delay_until_available(Timestamp::ZERO, Tokens::ONE);
            assert!(wait >= Duration::from_nanos(1) && wait <= Duration::from_secs(10_000_000));
            paced.draw(Timestamp::ZERO, Tokens::MAX);
            let _ = paced.available_at(Timestamp::ZERO, Tokens::MAX);
            let end = Timestamp::MAX;
            assert!(paced.try_take(end, Tokens::ONE).is_ok());
            paced.put_back(end, f64::MAX);
            paced.put_back(end, -f64::MAX);
            let _ = paced.wait_behind(end, f64::INFINITY, Tokens::MAX);
            let moment = paced.available_at(end, Tokens::ONE);
            assert!(moment == end, "there is no later moment");
        }
    }
    // A wait that ends after the end of time is for ever.
    let late = Timestamp::from_nanos(u64::MAX - 10);
    let mut paced = Pacer::new(late, Pace::new(Rate::MIN, BurstRatio::STRICT));
    assert!(paced.try_take(late, Tokens::ONE).is_ok());
    assert_eq!(
        paced.verdict(late, Tokens::ONE),
        Verdict::NotBefore(Timestamp::MAX)
    );
}

#[test]
fn a_change_in_mid_wait_moves_the_moment_and_keeps_the_time() {
    let mut paced = paced(10.0, 1.5);
    let mut now = START;
    assert!(paced.try_take(now, Tokens::ONE).is_ok());
    now = now + Duration::from_millis(50);
    assert_eq!(
        paced.delay_until_available(now, Tokens::ONE),
        Duration::from_millis(50)
    );
    // Half an operation at ten a second is the time of five at a hundred.
    let faster = paced
        .pace()
        .at(Rate::new(100.0).expect("a rate"), BurstRatio::STRICT);
    let wait_time = paced.peek_pools(now).wait_time();
    paced.set_pace(now, faster.expect("it fits"));
    assert_eq!(paced.peek_pools(now).wait_time(), wait_time);
    assert_eq!(paced.peek_pools(now).active, Duration::from_millis(20));
    assert_eq!(paced.peek_pools(now).waiting, Duration::from_millis(30));
    assert!(paced.try_take(now, Tokens::ONE).is_ok() && paced.try_take(now, Tokens::ONE).is_ok());
    assert_eq!(
        paced.delay_until_available(now, Tokens::ONE),
        Duration::from_millis(10)
    );
}

#[test]
fn a_stopped_pacer_starts_with_one_operation() {
    let mut paced = paced(10.0, 1.5);
    assert!(paced.try_take(START, Tokens::ONE).is_ok());
    assert_eq!(paced.start(START), Err(super::ApplyError::AlreadyRunning));
    paced.stop(START);
    let later = START + Duration::from_secs(60);
    assert_eq!(paced.verdict(later, Tokens::ONE), Verdict::OnChange);
    assert_eq!(paced.available_at(later, Tokens::ONE), Timestamp::MAX);
    assert_eq!(paced.start(later), Ok(()));
    assert!(paced.try_take(later, Tokens::ONE).is_ok());
    assert_eq!(
        paced.delay_until_available(later, Tokens::ONE),
        Duration::from_millis(100)
    );
    paced.restart(later + Duration::from_secs(60));
    assert_eq!(paced.peek(later + Duration::from_secs(60)), 1.0);
}

#[test]
fn a_line_changes_the_numbers_and_does_what_its_verb_says() {
    let spec = |line: &str| line.parse::<super::PaceSpec>().expect(line);
    let mut paced = paced(10.0, 1.5);
    let now = START + Duration::from_millis(50);
    let kept = paced.peek_pools(now);
    let started = paced.apply(now, &spec("20,1.2"));
    assert!(matches!(started, Err(super::ApplyError::AlreadyRunning)));
    assert_eq!(paced.pace().rate().get(), 10.0, "nothing has changed");
    assert_eq!(paced.apply(now, &spec("20,1.2,configure")), Ok(()));
    assert_eq!(paced.peek_pools(now).wait_time(), kept.wait_time());
    assert_eq!(paced.pace().rate().get(), 20.0);
    assert_eq!(paced.apply(now, &spec("20,1.2,restart")), Ok(()));
    assert_eq!(paced.peek(now), 1.0);
    assert_eq!(paced.apply(now, &spec("20,1.2,stop")), Ok(()));
    assert_eq!(paced.verdict(now, Tokens::MAX), Verdict::OnChange);
    assert_eq!(paced.apply(now, &spec("5")), Ok(()));
    assert_eq!(
        (paced.pace().ratio().get(), paced.is_running()),
        (1.1, true)
    );
}

#[test]
fn an_operation_that_costs_more_than_the_pool_goes_when_it_is_full_and_owes_the_rest() {
    let mut paced = paced(10.0, 1.0);
    let five = Tokens::new(5.0).expect("tokens");
    // Two operations fill the pool: a tenth of a second for the second one.
    let now = paced.available_at(START, five);
    assert_eq!(now.since(START), Duration::from_millis(100));
    assert!(paced.try_take(now, five).is_ok());
    assert_eq!(paced.peek(now), -3.0);
    assert_eq!(paced.peek_pools(now).debt, Duration::from_millis(300));
    assert_eq!(
        paced.delay_until_available(now, Tokens::ONE),
        Duration::from_millis(400)
    );
    let taken: f64 = (0..100).map(|_| paced.draw(now, Tokens::ONE)).sum();
    assert_eq!(taken, 17.0, "ten pools of debt are the most");
}

#[test]
fn a_debt_is_repaid_whole_however_much_the_operation_costs() {
    let expensive = Tokens::new(1000.0).expect("tokens");
    let mut paced = paced(10.0, 1.0);
    let (mut now, mut taken) = (START, 0.0);
    while now < START + Duration::from_secs(3600) {
        if paced.try_take(now, expensive).is_ok() {
            taken += expensive.get();
        }
        now = paced.available_at(now, expensive);
    }
    assert!(taken <= 36_000.0 + expensive.get(), "{taken} of 36000");
    assert!(taken >= 36_000.0, "{taken} of 36000");
}

#[test]
fn bad_figures_are_refused_by_name() {
    for wrong in [
        0.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1e-8,
        1.1e9,
    ] {
        assert_eq!(Rate::new(wrong).expect_err("no rate").what, "rate");
    }
    for wrong in [0.0, -1.0, 0.999, f64::NAN, f64::INFINITY, 101.0] {
        assert_eq!(
            BurstRatio::new(wrong).expect_err("no ratio").what,
            "burst ratio"
        );
    }
    let pace = Pace::new(Rate::MIN, BurstRatio::MAX);
    let most = crate::Cost::new(u32::MAX).expect("a cost");
    assert_eq!(
        pace.with_largest(most).expect_err("too long").what,
        "largest cost"
    );
    for wrong in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        assert_eq!(
            pace.with_pool_min(wrong).expect_err("no size").what,
            "pool seconds"
        );
    }
    assert_eq!(core::mem::size_of::<super::Pools>(), 32);
}
