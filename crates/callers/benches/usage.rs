//! The cost of keeping usage, alone and on one thread.
//!
//! `cargo bench -p tidegate-callers --bench usage` prints nanoseconds: the median and the least
//! of many stretches of a millisecond or less, since a longer one is sure to be interrupted on
//! a machine that does other work too.
//!
//! For instruction counts, which no other work disturbs, count exactly N calls under valgrind
//! and take the difference of two N:
//!
//! ```text
//! valgrind --tool=callgrind <the bench's binary> --count 1000000
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use tidegate_callers::{CostModel, CostUnit, FunctionId, Headroom, ServiceTimes, Usage, UsageSpan};
use tidegate_limits::Timestamp;
use tidegate_limits::bucket::TokenCount;

const STRETCHES: usize = 400;
/// The time between two calls of a busy caller.
const PACE: Duration = Duration::from_millis(34);

/// A caller that goes on calling its functions in turn.
struct Calling {
    usage: Usage,
    now: Timestamp,
    functions: u16,
    next: u16,
}

impl Calling {
    /// After a day of it.
    fn new(functions: u16) -> Self {
        let mut calling = Self {
            usage: Usage::default(),
            now: Timestamp::ZERO,
            functions,
            next: 0,
        };
        while calling.now < Timestamp::ZERO + Duration::from_secs(25 * 60 * 60) {
            calling.round(PACE);
        }
        calling
    }

    fn round(&mut self, pace: Duration) {
        self.now = self.now + pace;
        self.next = (self.next + 1) % self.functions;
        let function = FunctionId(self.next);
        black_box(&mut self.usage).count(self.now, function, TokenCount::ONE);
    }
}

/// The time per round: of the median stretch, and of the shortest.
fn measure(what: &str, stretches: usize, rounds: u64, mut stretch: impl FnMut() -> Duration) {
    let mut times: Vec<Duration> = (0..stretches).map(|_| stretch()).collect();
    times.sort_unstable();
    let per_round = |time: Duration| time.as_nanos() as f64 / rounds as f64;
    let (median, least) = (per_round(times[stretches / 2]), per_round(times[0]));
    println!("{what:<72} {median:>10.1} ns, at least {least:>10.1} ns");
}

fn timed(rounds: u64, mut round: impl FnMut()) -> Duration {
    let start = Instant::now();
    (0..rounds).for_each(|_| round());
    start.elapsed()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(position) = arguments.iter().position(|argument| argument == "--count") {
        let count = arguments
            .get(position + 1)
            .and_then(|count| count.parse().ok());
        let count: u64 = count.expect("--count takes a number");
        let mut calling = Calling::new(10);
        (0..count).for_each(|_| calling.round(PACE));
        let total = calling.usage.snapshot(calling.now).total;
        println!("{count} calls counted, {} in all", total.calls);
        return;
    }
    for functions in [1, 10, 80] {
        let mut calling = Calling::new(functions);
        let what = format!("count a call, 29 a second, {functions} functions");
        measure(&what, STRETCHES, 10_000, || {
            timed(10_000, || calling.round(PACE))
        });
    }
    for (seconds, stretches, rounds) in [(5, 400, 1000), (3600, 100, 50), (30 * 86_400, 100, 50)] {
        let mut calling = Calling::new(10);
        let what = format!("count a call, each after {seconds} s of silence");
        measure(&what, stretches, rounds, || {
            timed(rounds, || calling.round(Duration::from_secs(seconds)))
        });
    }
    let mut calling = Calling::new(10);
    measure("count a delay", STRETCHES, 10_000, || {
        timed(10_000, || {
            let (now, wait) = (calling.now, Duration::from_millis(180));
            black_box(&mut calling.usage).delayed(now, wait);
        })
    });
    let (now, minute) = (calling.now, Duration::from_secs(60));
    let arrived = Timestamp::from_nanos(now.since(Timestamp::ZERO + minute).as_nanos() as u64);
    let (one, two) = (TokenCount::ONE, TokenCount::from_micros(2_000_000));
    measure(
        "settle a call that came a minute ago",
        STRETCHES,
        10_000,
        || {
            timed(10_000, || {
                black_box(&mut calling.usage).settle(now, arrived, FunctionId(1), one, two);
            })
        },
    );
    measure("snapshot, 10 functions", STRETCHES, 100, || {
        timed(100, || {
            black_box(black_box(&calling.usage).snapshot(now));
        })
    });
    for span in UsageSpan::ALL {
        let what = format!("suggest from {span:?}");
        measure(&what, STRETCHES, 10, || {
            timed(10, || {
                black_box(black_box(&calling.usage).suggest(now, span, Headroom::DEFAULT));
            })
        });
    }
    let other = calling.usage.clone();
    measure("merge", STRETCHES, 10, || {
        timed(10, || black_box(&mut calling.usage).merge(&other))
    });

    let mut times = ServiceTimes::default();
    let mut round = 0;
    measure(
        "count a service time, 80 functions",
        STRETCHES,
        10_000,
        || {
            timed(10_000, || {
                round += 1;
                let now = Timestamp::from_nanos(round * 34_000_000);
                black_box(&mut times).count(now, FunctionId((round % 80) as u16), minute);
            })
        },
    );
    let cost = |function| TokenCount::from_micros(u64::from(function) * 1_000_000);
    let costs = (0..80).map(|function| (FunctionId(function), cost(function)));
    let costs = CostModel::new(TokenCount::ONE, costs.collect(), CostUnit::default());
    let mut function = 0;
    measure("what a call costs, 80 functions", STRETCHES, 10_000, || {
        timed(10_000, || {
            function = (function + 7) % 90;
            black_box(black_box(&costs).cost(FunctionId(function)));
        })
    });
}
