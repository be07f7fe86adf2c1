//! The token bucket on a virtual clock: every case of the system it comes from, and what that
//! system gets wrong.

mod random;
mod vectors;

use std::sync::Mutex;
use std::time::Duration;

use random::{Random, seeds};
use tidegate_limits::bucket::{OutOfRange, TokenLimiter};
use tidegate_limits::{Burst, Fill, NotNow, Timestamp, TokenBucket, Tokens};
use vectors::{CONCURRENT, DELAY_THEN_CONSUME, Do, INVALID, TOKEN_BUCKET};

fn at(seconds: f64) -> Timestamp {
    Timestamp::ZERO + Duration::from_secs_f64(seconds)
}

fn make(burst: f64, fill: f64) -> Result<TokenBucket, OutOfRange> {
    Ok(TokenBucket::new(
        Timestamp::ZERO,
        Burst::new(burst)?,
        Fill::new(fill)?,
    ))
}

fn bucket(burst: f64, fill: f64) -> TokenBucket {
    make(burst, fill).expect("the figures are in range")
}

fn tokens(number: f64) -> Tokens {
    Tokens::new(number).expect("the figures are in range")
}

#[track_caller]
fn close(name: &str, is: f64, expected: f64, within: f64) {
    assert!(
        (is - expected).abs() <= within,
        "{name}: {is} is not within {within} of {expected}"
    );
}

#[test]
fn every_case_of_the_source_comes_out_as_it_does_there() {
    for case in TOKEN_BUCKET {
        let mut bucket = bucket(case.burst, case.fill);
        for &(seconds, step) in case.steps {
            let now = at(seconds);
            match step {
                Do::Peek { is, within } => close(case.name, bucket.peek(now), is, within),
                Do::Take {
                    cost,
                    passes,
                    leaves,
                } => {
                    assert_eq!(
                        bucket.try_take(now, tokens(cost)).is_ok(),
                        passes,
                        "{}",
                        case.name
                    );
                    if let Some(left) = leaves {
                        close(case.name, bucket.peek(now), left, 1e-9);
                    }
                }
                Do::Delay { cost, is, within } => {
                    let delay = bucket.delay_until_available(now, tokens(cost));
                    close(case.name, delay.as_secs_f64(), is, within);
                }
            }
        }
    }
}

#[test]
fn a_drained_bucket_names_the_wait_after_which_the_call_passes() {
    for &(name, burst, fill, cost, expected) in DELAY_THEN_CONSUME {
        let mut bucket = bucket(burst, fill);
        assert!(bucket.try_take(at(0.0), tokens(burst)).is_ok(), "{name}");
        assert!(bucket.try_take(at(0.0), tokens(cost)).is_err(), "{name}");
        let delay = bucket.delay_until_available(at(0.0), tokens(cost));
        close(name, delay.as_secs_f64(), expected, 2e-9);
        assert!(
            bucket.try_take(at(0.0) + delay, tokens(cost)).is_ok(),
            "{name}"
        );
    }
}

#[test]
fn an_invalid_rate_or_burst_is_an_error() {
    for &(burst, fill) in INVALID {
        assert!(make(burst, fill).is_err(), "burst {burst}, fill {fill}");
    }
    let nonsense = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -3.0,
        0.0,
        -0.0,
        9e-7,
        1.1e9,
    ];
    for given in nonsense {
        let burst = Burst::new(given).expect_err("no burst");
        let fill = Fill::new(given).expect_err("no rate");
        assert_eq!((burst.what, fill.what), ("burst", "fill"), "{given}");
    }
    for given in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -3.0, 1e6 + 1.0] {
        let refused = Tokens::new(given).expect_err("no cost");
        assert_eq!(refused.what, "tokens");
        assert!(refused.to_string().contains("from 0.0 to 1000000.0"));
    }
    assert_eq!(Tokens::new(-0.0).map(Tokens::get), Ok(0.0));
    for ends in [1e-6, 1e9] {
        assert!(make(ends, ends).is_ok(), "{ends}");
    }
}

#[test]
fn threads_that_share_one_take_no_more_than_it_has() {
    for &(burst, fill, threads, takes, passing, left) in CONCURRENT {
        let bucket = Mutex::new(bucket(burst, fill));
        let passed: u64 = std::thread::scope(|scope| {
            let thread = || {
                let mut passed = 0;
                for _ in 0..takes {
                    let mut bucket = bucket.lock().expect("no thread panics");
                    passed += u64::from(bucket.try_take(at(0.0), Tokens::ONE).is_ok());
                }
                passed
            };
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
            let ended = running.into_iter().map(|one| one.join().expect("it ends"));
            ended.sum()
        });
        let bucket = bucket.lock().expect("no thread panics");
        assert_eq!((passed, bucket.peek(at(0.0))), (passing, left));
    }
}

#[test]
fn over_random_histories_the_level_is_what_the_model_says() {
    for seed in seeds(0..2_000) {
        let mut random = Random::new(seed);
        let burst = 10f64.powf(random.real(-3.0, 6.0));
        let fill = 10f64.powf(random.real(-6.0, 9.0));
        let mut bucket = bucket(burst, fill);
        let (mut now, mut level) = (0_u64, burst);
        for _ in 0..=(random.real(0.0, 50.0) as u64) {
            let pause = random.real(0.0, 1e9) as u64;
            let cost = random.real(0.0, 1000.0);
            now += pause;
            level = (level + pause as f64 * 1e-9 * fill).min(burst);
            let passes = level >= cost.min(burst);
            let moment = Timestamp::from_nanos(now);
            assert_eq!(
                bucket.try_take(moment, tokens(cost)).is_ok(),
                passes,
                "seed {seed}, {bucket:?}, {level} of {cost}"
            );
            if passes {
                level -= cost;
            }
            let is = bucket.peek(moment);
            assert!(
                (is - level).abs() < 0.001,
                "seed {seed}, {bucket:?}: {is}, not {level}"
            );
        }
    }
}

#[test]
fn a_clock_that_steps_back_adds_nothing() {
    let mut bucket = bucket(10.0, 1.0);
    assert!(bucket.try_take(at(10.0), tokens(10.0)).is_ok());
    assert_eq!(bucket.peek(at(5.0)), 0.0);
    assert!(bucket.try_take(at(5.0), Tokens::ONE).is_err());
    assert_eq!(bucket.peek(at(11.0)), 1.0);
    // Nor does one that takes while it is back.
    assert!(bucket.try_take(at(20.0), tokens(5.0)).is_ok());
    assert!(bucket.try_take(at(12.0), tokens(5.0)).is_ok());
    assert_eq!(bucket.peek(at(20.0)), 0.0);
}

#[test]
fn a_call_that_costs_nothing_passes_unless_there_is_a_debt() {
    let mut bucket = bucket(5.0, 1.0);
    assert!(bucket.try_take(at(0.0), tokens(5.0)).is_ok());
    assert!(bucket.try_take(at(0.0), Tokens::ZERO).is_ok());
    assert!(bucket.try_take(at(1.0), tokens(1.0)).is_ok());
    assert!(bucket.try_take(at(7.0), tokens(8.0)).is_ok());
    assert!(bucket.try_take(at(7.0), Tokens::ZERO).is_err());
    let delay = bucket.delay_until_available(at(7.0), Tokens::ZERO);
    assert_eq!(delay, Duration::from_secs(3));
}

/// Takes as soon as something may be taken, for an hour. Returns what was taken.
fn take_for_an_hour(
    bucket: &mut TokenBucket,
    cost: f64,
    mut each: impl FnMut(&mut TokenBucket, Timestamp),
) -> f64 {
    let mut taken = 0.0;
    let mut now = at(0.0);
    while now < at(3600.0) {
        if bucket.try_take(now, tokens(cost)).is_ok() {
            taken += cost;
            each(bucket, now);
        }
        now = now
            + bucket
                .delay_until_available(now, tokens(cost))
                .max(Duration::from_nanos(1));
    }
    taken
}

#[test]
fn no_more_goes_than_the_burst_and_what_flows_in_however_much_a_call_costs() {
    // The poller of the example config and what it says that guest_capture costs; and others.
    for (burst, fill, cost) in [
        (30.0, 3.0, 600.0),
        (5.0, 0.2, 600.0),
        (1.0, 0.5, 1e6),
        (10.0, 7.0, 109.0),
    ] {
        let mut bucket = bucket(burst, fill);
        let taken = take_for_an_hour(&mut bucket, cost, |_, _| {});
        // The last one may have gone just now.
        let most = burst + fill * 3600.0 + (cost - burst);
        assert!(
            taken <= most + 1e-6,
            "burst {burst}, fill {fill}, cost {cost}: {taken} of {most}"
        );
        assert!(taken > 0.0);
    }
}

#[test]
fn a_debt_is_kept_while_the_parameters_change() {
    let mut bucket = bucket(30.0, 3.0);
    let slow = |bucket: &mut TokenBucket, now| {
        let (burst, fill) = (bucket.burst(), bucket.fill());
        let small = Burst::new(1.0).expect("a burst");
        bucket.set_parameters(now, small, Fill::new(1e-3).expect("a rate"));
        bucket.set_parameters(now, burst, fill);
    };
    let taken = take_for_an_hour(&mut bucket, 600.0, slow);
    assert!(taken <= 30.0 + 3.0 * 3600.0 + 570.0, "{taken}");
}

#[test]
fn a_forced_draw_is_cut_at_ten_bursts_or_an_hour_of_inflow() {
    let mut poor = bucket(5.0, 1e-6);
    for _ in 0..100 {
        poor.draw(at(0.0), tokens(1.0));
    }
    assert_eq!(poor.peek(at(0.0)), -50.0);
    let mut rich = bucket(5.0, 1.0);
    for _ in 0..10_000 {
        rich.draw(at(0.0), tokens(1.0));
    }
    assert_eq!(rich.peek(at(0.0)), -3600.0);
}

#[test]
fn parameters_that_change_keep_the_tokens_and_refund_nothing() {
    let parameters = |burst, fill| {
        (
            Burst::new(burst).expect("a burst"),
            Fill::new(fill).expect("a rate"),
        )
    };
    let mut bucket = bucket(10.0, 2.0);
    assert!(bucket.try_take(at(0.0), tokens(8.0)).is_ok());
    let (burst, fill) = parameters(100.0, 1.0);
    bucket.set_parameters(at(1.0), burst, fill);
    assert_eq!(bucket.peek(at(1.0)), 4.0);
    assert_eq!(bucket.peek(at(3.0)), 6.0);
    let (burst, fill) = parameters(5.0, 1.0);
    bucket.set_parameters(at(3.0), burst, fill);
    assert_eq!(bucket.peek(at(3.0)), 5.0);
    assert!(bucket.try_take(at(3.0), tokens(45.0)).is_ok());
    let (burst, fill) = parameters(1.0, 1.0);
    bucket.set_parameters(at(3.0), burst, fill);
    assert_eq!(bucket.peek(at(3.0)), -40.0);
}

/// The trait alone serves a user's own limiter, and each of ours says when it opens.
#[test]
fn every_try_that_is_refused_says_from_when_on_it_succeeds() {
    let pace = |rate| {
        let rate = tidegate_limits::pace::Rate::new(rate).expect("a rate");
        tidegate_limits::pace::Pace::new(rate, tidegate_limits::pace::BurstRatio::STRICT)
    };
    let mut paced = tidegate_limits::pace::Pacer::new(at(0.0), pace(3.0));
    let mut bucket = bucket(2.0, 0.7);
    let limiters: [&mut dyn TokenLimiter; 2] = [&mut paced, &mut bucket];
    for limiter in limiters {
        let mut now = at(0.0);
        let mut refused = 0;
        for step in 0_u32..200 {
            let cost = tokens(f64::from(step % 7) * 0.5);
            let Err(refusal) = limiter.try_take(now, cost) else {
                continue;
            };
            refused += 1;
            let before = limiter.peek(now);
            let NotNow::NotBefore(then) = refusal else {
                panic!("time goes on: {refusal:?}");
            };
            let early = Timestamp::from_nanos(then.as_nanos() - 1);
            assert_eq!(limiter.try_take(early, cost), Err(refusal), "step {step}");
            assert_eq!(limiter.peek(now), before, "a refused try takes nothing");
            assert_eq!(limiter.try_take(then, cost), Ok(()), "step {step}");
            now = then;
        }
        assert!(refused > 50, "{refused}");
    }
    paced.stop(at(1e6));
    while paced.try_take(at(1e6), Tokens::ONE).is_ok() {}
    assert_eq!(paced.try_take(at(2e6), Tokens::ONE), Err(NotNow::OnChange));
    assert_eq!(
        NotNow::NotBefore(at(1.5)).to_string(),
        "there is no room before 1.5s after the start of the clock"
    );
}
