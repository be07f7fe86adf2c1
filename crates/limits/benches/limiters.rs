//! The paced limiter beside its peers, in one run, as tables in Markdown.
//!
//! ```text
//! cd crates/limits/bench && cargo bench                  all of it: about two minutes
//! cd crates/limits/bench && cargo bench -- grants        some: grants refusals threads rate
//!                                                        stall timeout costs keys
//! ```
//!
//! It is a package of its own, so that the peers are not compiled with everything else. All
//! candidates of a table are measured in turn, round after round, and the median of the rounds
//! counts: the speed of a shared machine drifts, and a ratio taken in one round does not.

#![allow(clippy::disallowed_methods, reason = "a benchmark serves no calls")]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use governor::{DefaultDirectRateLimiter, Quota};
use tidegate_limits::keyed::PacedKeys;
use tidegate_limits::clock::{Clock, MonotonicClock, QuantaClock};
use tidegate_limits::pace::{PacedLimiter, TokioTimer};
use tidegate_limits::{Cost, Timestamp, Tokens};
use tidegate_limits::pace::{BurstRatio, Pace, Rate};

const ROUNDS: usize = 9;

type Table = fn() -> String;

fn main() {
    let wanted: Vec<_> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    if let [command, what] = &wanted[..]
        && command == "weigh"
    {
        println!("{}", weigh(what));
        return;
    }
    let tables: [(&str, Table); 8] = [
        ("grants", grants),
        ("refusals", refusals),
        ("threads", threads),
        ("rate", rate),
        ("stall", stall),
        ("timeout", timeout),
        ("costs", costs),
        ("keys", keys),
    ];
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    println!("## The paced limiter and its peers\n");
    println!("Measured by `cargo bench` in `crates/limits/bench`, {cores} cores.\n");
    for (name, table) in tables {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            println!("{}", table());
        }
    }
}

fn pace(rate: f64, ratio: f64) -> Pace {
    Pace::new(
        Rate::new(rate).expect("a rate"),
        BurstRatio::new(ratio).expect("a ratio"),
    )
}

/// So fast that no thread is refused for long, with pools so large that they need few fills.
fn endless() -> Pace {
    pace(1e9, 1.1)
        .with_pool_min(Duration::from_secs(1))
        .expect("a size")
}

fn governor_endless() -> DefaultDirectRateLimiter {
    governor::RateLimiter::direct(Quota::per_second(NonZeroU32::MAX))
}

fn ratelimit_endless() -> ratelimit::Ratelimiter {
    let builder = ratelimit::Ratelimiter::builder(1_000_000_000);
    let builder = builder
        .max_tokens(1_000_000_000)
        .initial_available(1_000_000_000);
    builder.build().expect("a limiter")
}

/// Holds enough for all that is asked of it, and is not refilled: the best case for it.
fn leaky_endless(fair: bool) -> leaky_bucket::RateLimiter {
    leaky_bucket::RateLimiter::builder()
        .initial(2_000_000_000)
        .max(2_000_000_000)
        .interval(Duration::from_secs(3600))
        .fair(fair)
        .build()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

struct Candidate<'a> {
    name: &'static str,
    step: Box<dyn FnMut(u32) -> u32 + 'a>,
}

fn candidate<'a>(name: &'static str, mut step: impl FnMut() -> bool + 'a) -> Candidate<'a> {
    let step = Box::new(move |times| {
        let mut done = 0;
        for _ in 0..times {
            done += u32::from(black_box(step()));
        }
        done
    });
    Candidate { name, step }
}

/// Nanoseconds a step, by candidate and round: the least of several stretches of a round, since
/// whatever else runs on the machine only ever adds.
fn nanoseconds(candidates: &mut [Candidate], all_succeed: bool) -> Vec<Vec<f64>> {
    const STRETCH: u32 = 20_000;
    const STRETCHES: u32 = 40;
    let mut rounds = vec![Vec::new(); candidates.len()];
    for _ in 0..ROUNDS {
        for (candidate, figures) in candidates.iter_mut().zip(&mut rounds) {
            let (mut least, mut succeeded) = (f64::MAX, 0);
            for _ in 0..STRETCHES {
                let begin = Instant::now();
                succeeded += (candidate.step)(STRETCH);
                least = least.min(begin.elapsed().as_nanos() as f64 / f64::from(STRETCH));
            }
            let share = f64::from(succeeded) / f64::from(STRETCH * STRETCHES);
            let expected = if all_succeed {
                share > 0.999
            } else {
                share < 0.001
            };
            assert!(expected, "{}: {share} succeeded", candidate.name);
            figures.push(least);
        }
    }
    rounds
}

/// The median ratio of two candidates, taken round by round.
fn ratio(of: &[f64], to: &[f64]) -> f64 {
    median(of.iter().zip(to).map(|(of, to)| of / to).collect())
}

fn compared(title: &str, unit: &str, names: &[&str], rounds: &[Vec<f64>], to: &[usize]) -> String {
    let mut table = format!("### {title}\n\n|  | {unit} |");
    for &base in to {
        write!(table, " × {} |", names[base]).expect("a string grows");
    }
    table.push_str("\n|---|---|");
    table.push_str(&"---|".repeat(to.len()));
    for (name, figures) in names.iter().zip(rounds) {
        write!(table, "\n| {name} | {:.2} |", median(figures.clone())).expect("a string grows");
        for &base in to {
            write!(table, " {:.2} |", ratio(figures, &rounds[base])).expect("a string grows");
        }
    }
    table.push('\n');
    table
}

fn grants() -> String {
    let bare = AtomicI64::new(i64::MAX);
    let shared = PacedLimiter::new(endless());
    let sliced = PacedLimiter::new(endless());
    let mut slice = sliced.slice();
    let (governor, ratelimit) = (governor_endless(), ratelimit_endless());
    let (fair, unfair) = (leaky_endless(true), leaky_endless(false));
    let semaphore = tokio::sync::Semaphore::new(tokio::sync::Semaphore::MAX_PERMITS);
    let quanta = quanta::Clock::new();
    thread::sleep(Duration::from_secs(1));
    let mut candidates = [
        candidate("a bare `fetch_sub`", || {
            bare.fetch_sub(1, Ordering::AcqRel) > 0
        }),
        candidate("a clock read, `Instant`", || {
            Instant::now().elapsed() < Duration::MAX
        }),
        candidate("a clock read, quanta", || quanta.raw() > 0),
        candidate("governor", || governor.check().is_ok()),
        candidate("paced, `try_acquire`", || shared.try_acquire(1).is_ok()),
        candidate("paced, a slice", || slice.try_acquire(1).is_ok()),
        candidate("ratelimit", || ratelimit.try_wait().is_ok()),
        candidate("leaky-bucket, fair", || fair.try_acquire(1)),
        candidate("leaky-bucket, unfair", || unfair.try_acquire(1)),
        candidate("tokio's semaphore", || {
            semaphore
                .try_acquire()
                .map(tokio::sync::SemaphorePermit::forget)
                .is_ok()
        }),
    ];
    let rounds = nanoseconds(&mut candidates, true);
    let names: Vec<_> = candidates.iter().map(|one| one.name).collect();
    compared("A grant, one thread", "ns", &names, &rounds, &[0, 3])
}

fn refusals() -> String {
    let (instant, fast) = (MonotonicClock::new(), QuantaClock::new());
    let slow = pace(0.001, 1.1);
    let on_instant = PacedLimiter::new(slow);
    let on_fast = PacedLimiter::with_clock(slow, QuantaClock::new());
    let hour = Quota::with_period(Duration::from_secs(3600)).expect("a period");
    let governor = governor::RateLimiter::direct(hour);
    let on_its_instant =
        governor::RateLimiter::direct_with_clock(hour, governor::clock::MonotonicClock);
    let builder = ratelimit::Ratelimiter::builder(1).period(Duration::from_secs(3600));
    let ratelimit = builder.initial_available(0).build().expect("a limiter");
    let leaky = leaky_bucket::RateLimiter::builder()
        .initial(0)
        .max(1)
        .interval(Duration::from_secs(3600))
        .build();
    let semaphore = tokio::sync::Semaphore::new(0);
    assert_eq!(on_instant.try_acquire(1), Ok(()));
    assert_eq!(on_fast.try_acquire(1), Ok(()));
    assert!(governor.check().is_ok() && on_its_instant.check().is_ok());
    let mut candidates = [
        candidate("a clock read, `Instant`", || {
            instant.now() == Timestamp::MAX
        }),
        candidate("a clock read, quanta", || fast.now() == Timestamp::MAX),
        candidate("paced, `Instant`", || on_instant.try_acquire(1).is_ok()),
        candidate("paced, quanta", || on_fast.try_acquire(1).is_ok()),
        candidate("governor, quanta", || governor.check().is_ok()),
        candidate("governor, `Instant`", || on_its_instant.check().is_ok()),
        candidate("ratelimit", || ratelimit.try_wait().is_ok()),
        candidate("leaky-bucket, fair", || leaky.try_acquire(1)),
        candidate("tokio's semaphore (no clock)", || {
            semaphore.try_acquire().is_ok()
        }),
    ];
    let rounds = nanoseconds(&mut candidates, false);
    let names: Vec<_> = candidates.iter().map(|one| one.name).collect();
    compared("A refusal, one thread", "ns", &names, &rounds, &[0, 1])
}

/// Millions of grants a second, by all threads together.
fn by_threads(threads: usize, work: impl Fn(&AtomicBool) -> u64 + Sync) -> f64 {
    let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| total.fetch_add(work(&stop), Ordering::Relaxed));
        }
        thread::sleep(Duration::from_millis(250));
        stop.store(true, Ordering::Relaxed);
    });
    total.into_inner() as f64 / begin.elapsed().as_secs_f64() / 1e6
}

fn until(stop: &AtomicBool, mut step: impl FnMut() -> bool) -> u64 {
    let mut granted = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            granted += u64::from(black_box(step()));
        }
    }
    granted
}

fn threads() -> String {
    const NAMES: [&str; 7] = [
        "a bare `fetch_sub`",
        "governor",
        "paced, shared",
        "paced, a slice for each",
        "ratelimit",
        "leaky-bucket, fair",
        "tokio's semaphore",
    ];
    const COUNTS: [usize; 3] = [2, 8, 160];
    let bare = AtomicI64::new(i64::MAX);
    let shared = PacedLimiter::new(endless());
    let sliced = PacedLimiter::new(endless());
    let (governor, ratelimit, leaky) =
        (governor_endless(), ratelimit_endless(), leaky_endless(true));
    let semaphore = tokio::sync::Semaphore::new(tokio::sync::Semaphore::MAX_PERMITS);
    thread::sleep(Duration::from_secs(1));
    let mut figures = vec![vec![Vec::new(); NAMES.len()]; COUNTS.len()];
    for _ in 0..3 {
        for (&count, figures) in COUNTS.iter().zip(&mut figures) {
            let measured = [
                by_threads(count, |stop| {
                    until(stop, || bare.fetch_sub(1, Ordering::AcqRel) > 0)
                }),
                by_threads(count, |stop| until(stop, || governor.check().is_ok())),
                by_threads(count, |stop| {
                    until(stop, || shared.try_acquire(1).is_ok())
                }),
                by_threads(count, |stop| {
                    let mut slice = sliced.slice();
                    until(stop, || slice.try_acquire(1).is_ok())
                }),
                by_threads(count, |stop| until(stop, || ratelimit.try_wait().is_ok())),
                by_threads(count, |stop| until(stop, || leaky.try_acquire(1))),
                by_threads(count, |stop| {
                    until(stop, || {
                        semaphore
                            .try_acquire()
                            .map(tokio::sync::SemaphorePermit::forget)
                            .is_ok()
                    })
                }),
            ];
            for (figures, measured) in figures.iter_mut().zip(measured) {
                figures.push(measured);
            }
        }
    }
    let mut table = String::from(
        "### Grants by several threads\n\nMillions a second; in brackets × governor. The Java original's own figures are 15 to \
         20 with 5 threads and 10 with 160.\n\n|  | 2 | 8 | 160 |\n|---|---|---|---|",
    );
    for (number, name) in NAMES.iter().enumerate() {
        write!(table, "\n| {name} |").expect("a string grows");
        for figures in &figures {
            let (is, of) = (
                median(figures[number].clone()),
                ratio(&figures[number], &figures[1]),
            );
            write!(table, " {is:.1} ({of:.2}) |").expect("a string grows");
        }
    }
    table.push('\n');
    table
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().expect("a runtime")
}

/// When each grant was made, in one task for so long, after the start pool is spent.
async fn grant_times<F: Future>(
    spend: u32,
    span: Duration,
    mut wait: impl FnMut() -> F,
) -> Vec<Instant> {
    for _ in 0..spend {
        wait().await;
    }
    let begin = Instant::now();
    let mut times = vec![];
    while begin.elapsed() < span {
        wait().await;
        times.push(Instant::now());
    }
    times
}

/// Achieved by configured rate, and the 99th percentile of how far gaps are from the ideal.
fn accuracy(times: &[Instant], rate: f64) -> (f64, f64) {
    let passed = times[times.len() - 1]
        .duration_since(times[0])
        .as_secs_f64();
    let achieved = (times.len() - 1) as f64 / passed / rate;
    let mut off: Vec<_> = times
        .windows(2)
        .map(|pair| (pair[1].duration_since(pair[0]).as_secs_f64() - 1.0 / rate).abs() * 1e3)
        .collect();
    off.sort_by(f64::total_cmp);
    (achieved, off[off.len() * 99 / 100])
}

fn rate() -> String {
    let span = Duration::from_secs(3);
    let mut table = String::from(
        "### Waiting in a task, 3 s\n\nAchieved ÷ configured rate, as (grants − 1) ÷ (last − first grant) after the start \
         pool is spent; p99 of how far the gap between two grants is from the ideal one.\n\n|  | 100/s | 10,000/s | \
         1,000,000/s |\n|---|---|---|---|",
    );
    let rates = [100.0, 10_000.0, 1e6];
    let mut row = |name: &str, figures: [(f64, f64); 3]| {
        write!(table, "\n| {name} |").expect("a string grows");
        for (achieved, jitter) in figures {
            write!(table, " {achieved:.5}; {jitter:.3} ms |").expect("a string grows");
        }
    };
    row(
        "paced, tokio's timer, pool 10 ms",
        rates.map(|rate| {
            // First, so that its making does not count as lateness.
            let runtime = runtime();
            let pace = pace(rate, 1.1)
                .with_pool_min(Duration::from_millis(10))
                .expect("a size");
            let limiter = PacedLimiter::new(pace);
            let times = runtime.block_on(grant_times(1, span, || {
                limiter.acquire_with(&TokioTimer, 1)
            }));
            accuracy(&times, rate)
        }),
    );
    row(
        "paced, timer thread, pool 2 ms",
        rates.map(|rate| {
            let runtime = runtime();
            let pace = pace(rate, 1.1)
                .with_pool_min(Duration::from_millis(2))
                .expect("a size");
            let limiter = PacedLimiter::new(pace);
            let times = runtime.block_on(grant_times(1, span, || limiter.acquire(1)));
            accuracy(&times, rate)
        }),
    );
    row(
        "governor, burst 10 ms",
        rates.map(|rate| {
            let runtime = runtime();
            let burst = NonZeroU32::new((rate / 100.0) as u32).expect("a burst");
            let quota =
                Quota::per_second(NonZeroU32::new(rate as u32).expect("a rate")).allow_burst(burst);
            let limiter = governor::RateLimiter::direct(quota);
            let times = runtime.block_on(grant_times(burst.get(), span, || limiter.until_ready()));
            accuracy(&times, rate)
        }),
    );
    row(
        "leaky-bucket, fair",
        rates.map(|rate| {
            let runtime = runtime();
            let limiter = leaky_bucket::RateLimiter::builder()
                .initial(0)
                .refill((rate / 1000.0).max(1.0) as usize)
                .max((rate / 100.0) as usize)
                .interval(Duration::from_secs_f64((rate / 1000.0).max(1.0) / rate))
                .build();
            let times = runtime.block_on(grant_times(1, span, || limiter.acquire(1)));
            accuracy(&times, rate)
        }),
    );
    table.push('\n');
    table
}

/// Grants in the first 5 ms after two seconds without callers, at 1000 a second, and
/// seconds until the total is as if callers had come all along.
async fn after_a_stall(ratio: f64) -> (u32, f64) {
    let limiter = PacedLimiter::new(pace(1000.0, ratio));
    let mut timely = 0;
    while timely < 200 {
        limiter.acquire(1).await.expect("it can be had");
        timely += 1;
    }
    let stalled = Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let resumed = Instant::now();
    let (mut granted, mut at_once) = (0_u32, 0);
    while f64::from(granted) < stalled.elapsed().as_secs_f64() * 1000.0 - 2.0 {
        limiter.acquire(1).await.expect("it can be had");
        granted += 1;
        if resumed.elapsed() <= Duration::from_millis(5) {
            at_once = granted;
        }
        // On a machine that is too busy it is never caught up.
        if resumed.elapsed() > Duration::from_secs(40) {
            return (at_once, f64::INFINITY);
        }
    }
    (at_once, resumed.elapsed().as_secs_f64())
}

fn stall() -> String {
    let ((at_once, caught_up), (at_once_tenth, caught_up_tenth)) =
        runtime().block_on(async { tokio::join!(after_a_stall(1.5), after_a_stall(1.1)) });
    format!(
        "### Two seconds of stall at 1000/s\n\n|  | grants in the first 5 ms | caught up after |\n|---|---|---|\n\
         | paced, ratio 1.5 | {at_once} | {caught_up:.2} s |\n\
         | paced, ratio 1.1 | {at_once_tenth} | {caught_up_tenth:.2} s |\n"
    )
}

/// Grants per second to sixteen tasks that give up each wait after 3 ms.
fn given_up<F: Future>(wait: impl Fn() -> F) -> f64 {
    let span = Duration::from_secs(3);
    runtime().block_on(async {
        let granted = AtomicU64::new(0);
        let task = || async {
            let begin = Instant::now();
            while begin.elapsed() < span {
                if tokio::time::timeout(Duration::from_millis(3), wait())
                    .await
                    .is_ok()
                {
                    granted.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        tokio::join!(
            task(),
            task(),
            task(),
            task(),
            task(),
            task(),
            task(),
            task(),
            task(),
            task(),
            task(),
            task(),
            task(),
            task(),
            task(),
            task()
        );
        granted.into_inner() as f64 / 3.0
    })
}

fn timeout() -> String {
    let paced = PacedLimiter::new(pace(1000.0, 1.1));
    let quota = Quota::per_second(NonZeroU32::new(1000).expect("a rate"));
    let governor =
        governor::RateLimiter::direct(quota.allow_burst(NonZeroU32::new(10).expect("a burst")));
    let leaky = leaky_bucket::RateLimiter::builder()
        .initial(0)
        .max(10)
        .interval(Duration::from_millis(1))
        .build();
    format!(
        "### Sixteen tasks, each wait given up after 3 ms, at 1000/s\n\n|  | granted ÷ rate |\n|---|---|\n\
         | paced | {:.3} |\n| governor | {:.3} |\n| leaky-bucket, fair | {:.3} |\n",
        given_up(|| paced.acquire(1)) / 1000.0,
        given_up(|| governor.until_ready()) / 1000.0,
        given_up(|| leaky.acquire(1)) / 1000.0,
    )
}

/// Grants per second to a task that wants 100 and to fifteen that want 1.
fn among_small_ones<L: Send + Sync + 'static, F: Future + Send>(
    limiter: L,
    wait: impl Fn(Arc<L>, u32) -> F + Copy + Send + 'static,
) -> (f64, f64) {
    let span = Duration::from_secs(3);
    let limiter = Arc::new(limiter);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let tasks: Vec<_> = (0..16)
            .map(|number| {
                let limiter = Arc::clone(&limiter);
                let n = if number == 0 { 100 } else { 1 };
                tokio::spawn(async move {
                    let begin = Instant::now();
                    let mut granted = 0_u32;
                    // A starved one would wait for ever.
                    while let Some(left) = span.checked_sub(begin.elapsed()) {
                        if tokio::time::timeout(left, wait(Arc::clone(&limiter), n))
                            .await
                            .is_ok()
                        {
                            granted += 1;
                        }
                    }
                    f64::from(granted) / span.as_secs_f64()
                })
            })
            .collect();
        let mut granted = vec![];
        for task in tasks {
            granted.push(task.await.expect("it ends"));
        }
        (granted[0], granted[1..].iter().sum())
    })
}

fn costs() -> String {
    let largest = Cost::new(100).expect("a cost");
    let pace = pace(10_000.0, 1.1).with_largest(largest).expect("it fits");
    let paced = among_small_ones(
        PacedLimiter::new(pace),
        async |limiter: Arc<PacedLimiter>, n| {
            limiter.acquire(n).await.expect("it can be had");
        },
    );
    let quota = Quota::per_second(NonZeroU32::new(10_000).expect("a rate"));
    let quota = quota.allow_burst(NonZeroU32::new(200).expect("a burst"));
    let governor = among_small_ones(
        governor::RateLimiter::direct(quota),
        async |limiter: Arc<DefaultDirectRateLimiter>, n| {
            let n = NonZeroU32::new(n).expect("not zero");
            limiter.until_n_ready(n).await.expect("less than the burst");
        },
    );
    let builder = ratelimit::Ratelimiter::builder(10_000).max_tokens(200);
    let ratelimit = among_small_ones(
        builder.build().expect("a limiter"),
        async |limiter: Arc<ratelimit::Ratelimiter>, n| {
            while let Err(error) = limiter.try_wait_n(n.into()) {
                match error {
                    ratelimit::TryWaitError::Insufficient(span) => tokio::time::sleep(span).await,
                    other => panic!("{other}"),
                }
            }
        },
    );
    let mut table = String::from(
        "### One task of cost 100 among fifteen of cost 1, at 10,000/s\n\nIn turn, 87 a second of the one and 1304 of the others.\n\n\
         |  | large/s | small/s |\n|---|---|---|",
    );
    for (name, (large, small)) in [
        ("paced", paced),
        ("governor", governor),
        ("ratelimit", ratelimit),
    ] {
        write!(table, "\n| {name} | {large:.1} | {small:.0} |").expect("a string grows");
    }
    table.push('\n');
    table
}

const KEYS: u64 = 1_000_000;

/// Keys that are spread as if they were random, and never the same.
fn scattered(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Bytes for each of a million keys, in a process of its own: what one table has freed, the next
/// one would use again.
fn weighed(what: &str) -> f64 {
    let program = std::env::current_exe().expect("the program's own path");
    let output = std::process::Command::new(program)
        .args(["weigh", what])
        .output();
    let output = output.expect("it runs once more").stdout;
    String::from_utf8_lossy(&output)
        .trim()
        .parse()
        .expect("a number")
}

fn weigh(what: &str) -> f64 {
    let before = resident();
    let kept: Box<dyn std::any::Any> = match what {
        "map" => {
            let map: HashMap<u64, ()> = (0..KEYS).map(|key| (scattered(key), ())).collect();
            Box::new(map)
        }
        "paced" => Box::new(paced_keys()),
        _ => {
            let quota = Quota::per_second(NonZeroU32::new(100).expect("a rate"));
            let keyed = governor::RateLimiter::dashmap(quota);
            for key in 0..KEYS {
                black_box(keyed.check_key(&scattered(key)).is_ok());
            }
            Box::new(keyed)
        }
    };
    let bytes = (resident() - before) / KEYS as f64;
    drop(kept);
    bytes
}

/// Bytes of memory that the process has in use.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0.0) * 4096.0
}

fn keys() -> String {
    let [map, paced, governor] = ["map", "paced", "governor"].map(weighed);
    let keys = paced_keys();
    let begin = Instant::now();
    let mut granted = 0_u64;
    for key in 0..KEYS {
        let key = scattered(key.wrapping_mul(7919) % KEYS);
        granted += u64::from(keys.try_acquire(&key, Tokens::ONE).is_ok());
    }
    let each = begin.elapsed().as_nanos() as f64 / KEYS as f64;
    assert_eq!(granted, KEYS);
    format!(
        "### A million keys\n\n|  | bytes a key |\n|---|---|\n| a `HashMap` of keys alone | {map:.1} |\n\
         | `PacedKeys` | {paced:.1} |\n| governor, keyed | {governor:.1} |\n\n\
         Over the map's own, a key of `PacedKeys` takes {:.1}. A grant to a random one: {each:.0} ns.\n",
        paced - map
    )
}

/// Every key known, and its first operation taken.
fn paced_keys() -> PacedKeys<u64> {
    let keys_max = u32::try_from(KEYS).expect("a million");
    let keys_max = NonZeroU32::new(keys_max).expect("not zero");
    let keys = PacedKeys::new(pace(100.0, 1.1), keys_max);
    for key in 0..KEYS {
        assert_eq!(keys.try_acquire(&scattered(key), Tokens::ONE), Ok(()));
    }
    keys
}
