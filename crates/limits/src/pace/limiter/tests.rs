//! On a clock that is set by hand, with tasks that are polled by hand.

use core::future::Future;
use core::num::NonZeroUsize;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::boxed::Box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::vec::Vec;
use std::{format, thread, vec};

use super::*;
use crate::call::Cost;
use crate::clock::Clock;
use crate::pace::{ApplyError, BurstRatio, Pace, PaceSpec, Rate};
use crate::random::{Random, seeds};
use crate::time::Timestamp;
use crate::verdict::NotNow;

#[derive(Debug, Default)]
struct HandClock(AtomicU64);

impl HandClock {
    fn set(&self, nanos: u64) {
        self.0.store(nanos, SeqCst);
    }

    fn pass(&self, span: Duration) {
        self.0.fetch_add(crate::time::nanos(span), SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(SeqCst))
    }
}

type HandLimiter = PacedLimiter<Arc<HandClock>>;
type HandAcquire<'a> = Acquire<'a, Arc<HandClock>, HandTimer>;

fn pace(rate: f64, ratio: f64) -> Pace {
    let rate = Rate::new(rate).expect("a rate");
    Pace::new(rate, BurstRatio::new(ratio).expect("a ratio"))
}

fn up_to(pace: Pace, largest: u32) -> Pace {
    let largest = Cost::new(largest).expect("a cost");
    pace.with_largest(largest).expect("it fits")
}

fn limiter(pace: Pace) -> (HandLimiter, Arc<HandClock>) {
    let clock = Arc::new(HandClock(AtomicU64::new(1_000_000_000)));
    (PacedLimiter::with_clock(pace, Arc::clone(&clock)), clock)
}

/// Sleeps that end when the clock is set to their moment.
#[derive(Clone, Debug)]
struct HandTimer {
    clock: Arc<HandClock>,
    due: Arc<Mutex<Vec<(u64, Waker)>>>,
}

impl HandTimer {
    fn new(clock: &Arc<HandClock>) -> Self {
        let (clock, due) = (Arc::clone(clock), Arc::default());
        Self { clock, due }
    }

    fn next(&self) -> Option<u64> {
        let due = self.due.lock().expect("no thread panics");
        due.iter().map(|(moment, _)| *moment).min()
    }

    fn ring(&self) {
        let now = self.clock.now().as_nanos();
        let mut due = self.due.lock().expect("no thread panics");
        due.extract_if(.., |(moment, _)| *moment <= now)
            .for_each(|(_, waker)| waker.wake());
    }
}

struct HandSleep {
    timer: HandTimer,
    until: u64,
    asleep: bool,
}

impl Timer for HandTimer {
    type Sleep = HandSleep;

    fn sleep(&self, span: Duration) -> HandSleep {
        let until = (self.clock.now() + span).as_nanos();
        let timer = self.clone();
        HandSleep {
            timer,
            until,
            asleep: false,
        }
    }
}

impl Future for HandSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.timer.clock.now().as_nanos() >= self.until {
            return Poll::Ready(());
        }
        if !self.asleep {
            self.asleep = true;
            let mut due = self.timer.due.lock().expect("no thread panics");
            due.push((self.until, cx.waker().clone()));
        }
        Poll::Pending
    }
}

#[derive(Debug, Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// A wait, polled when it has been woken.
struct Task<'a> {
    acquire: Option<Pin<Box<HandAcquire<'a>>>>,
    woken: Arc<Woken>,
}

impl<'a> Task<'a> {
    fn new(limiter: &'a HandLimiter, timer: &'a HandTimer, n: u32) -> Self {
        let acquire = Some(Box::pin(limiter.acquire_with(timer, n)));
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        Self { acquire, woken }
    }

    /// Whether it is done, polled only if it has been woken.
    fn run(&mut self) -> bool {
        if self.acquire.is_none() {
            return true;
        }
        self.end().map(|it| it.expect("it can be had")).is_some()
    }

    /// Polls the wait if it has been woken. Returns its result, if it is done.
    fn end(&mut self) -> Option<Result<(), AcquireError>> {
        let acquire = self.acquire.as_mut()?;
        if !self.woken.0.swap(false, SeqCst) {
            return None;
        }
        let waker = Waker::from(Arc::clone(&self.woken));
        match acquire.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => {
                self.acquire = None;
                Some(result)
            }
            Poll::Pending => None,
        }
    }
}

#[test]
fn a_grant_is_what_the_pools_say_and_no_refusal_is_wrong() {
    for seed in seeds(0..10_000) {
        let mut random = Random::new(seed);
        let rate = [1e-7, 0.1, 100.0, 1234.5, 12_000.0, 9e5][random.below(6) as usize];
        let ratio = [1.0, 1.1, 1.5, 10.0][random.below(4) as usize];
        let pace = up_to(pace(rate, ratio), 1 + random.below(3) as u32);
        let (limiter, clock) = limiter(pace);
        let start = clock.now();
        let mut granted = 0;
        for step in 0..50 {
            let between = (3e9 / rate) as u64;
            clock.pass(Duration::from_nanos(random.below(between)));
            let n = 1 + random.below(pace.largest().get().into()) as u32;
            let should = limiter.acquire_at_once(n);
            let tried = limiter.try_acquire(n);
            match tried {
                Ok(()) => assert!(should, "seed {seed}, step {step}"),
                Err(AcquireError::NotNow(NotNow::NotBefore(then))) => {
                    assert!(!should, "seed {seed}, step {step}");
                    let exact = limiter.acquire_at(n).expect("so many may go");
                    let it = format!("seed {seed}, step {step}: {then:?} {exact:?}");
                    assert!(clock.now() < then && then <= exact, "{it}");
                    // Now that the pool has been filled it is exact, except for the extra of late
                    // callers.
                    let again = limiter.try_acquire(n);
                    let Err(AcquireError::NotNow(NotNow::NotBefore(then))) = again else {
                        panic!("{it}: {again:?}");
                    };
                    let (left, all) = (then.since(clock.now()), exact.since(clock.now()));
                    let least = all.as_secs_f64() / ratio;
                    assert!(left.as_secs_f64() > least * 0.9999 - 2e-9, "{it} {then:?}");
                }
                Err(error) => panic!("seed {seed}, step {step}: {error:?}"),
            }
            granted += if should { n } else { 0 };
        }
        let look = limiter.look();
        let off = look.granted - f64::from(granted);
        assert!(off.abs() < 1e-6, "seed {seed}: {look:?}, not {granted}");
        let passed = clock.now().since(start).as_secs_f64();
        let accounted = look.pools.wait_time().as_secs_f64() + f64::from(granted - 1) / rate;
        let off = (accounted - passed).abs();
        assert!(off < 2e-9 + 1e-8 * passed, "seed {seed}: {look:?}");
    }
}

impl HandLimiter {
    /// The result on a copy of its pools.
    fn acquire_at_once(&self, n: u32) -> bool {
        self.shared.has(n, self.clock.now())
    }
}

#[test]
fn a_refused_try_leads_to_the_moment_at_which_it_succeeds() {
    for ratio in [1.0, 1.1, 2.0] {
        let (limiter, clock) = limiter(up_to(pace(1000.0, ratio), 10));
        for n in [10, 3, 7, 10, 1] {
            let exact = limiter.acquire_at(n).expect("ten may go");
            let mut tries = 0;
            while let Err(error) = limiter.try_acquire(n) {
                let AcquireError::NotNow(NotNow::NotBefore(then)) = error else {
                    panic!("it runs: {error:?}");
                };
                clock.set(then.as_nanos());
                tries += 1;
            }
            assert_eq!(clock.now(), exact, "{n} at ratio {ratio}");
            assert!(tries <= 3, "{tries} tries");
        }
    }
    let (limiter, clock) = limiter(up_to(pace(1000.0, 1.0), 2));
    let timer = HandTimer::new(&clock);
    while limiter.try_acquire(1).is_ok() {}
    // Behind the whole queue.
    let mut tasks = [2, 2].map(|n| Task::new(&limiter, &timer, n));
    assert!(tasks.iter_mut().all(|task| !task.run()));
    let start = clock.now();
    clock.pass(Duration::from_micros(1100));
    let fifth = NotNow::NotBefore(start + Duration::from_millis(5));
    assert_eq!(limiter.try_acquire(1), Err(fifth.into()));
    limiter.stop();
    clock.pass(Duration::from_secs(1));
    let stopped = AcquireError::from(NotNow::OnChange);
    assert_eq!(limiter.try_acquire(1), Err(stopped));
    use core::error::Error;
    assert_eq!(
        format!("{stopped}: {}", stopped.source().expect("it has one")),
        "no operations are available now: there is no room until something changes"
    );
}

#[test]
fn threads_and_slices_together_get_all_that_flows_in_and_no_more() {
    for rate in [10_000.0, 5e6] {
        let pace = up_to(pace(rate, 1.5), 3);
        let (limiter, clock) = limiter(pace);
        let start = clock.now();
        let granted = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (limiter, clock, granted) = (&limiter, &clock, &granted);
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    let mut slice = limiter.slice();
                    for step in 0..5_000 {
                        let n = 1 + random.below(3) as u32;
                        let got = if random.below(2) == 0 {
                            slice.try_acquire(n)
                        } else {
                            limiter.try_acquire(n)
                        };
                        if got == Ok(()) {
                            granted.fetch_add(n.into(), SeqCst);
                        }
                        clock.pass(Duration::from_nanos(random.below(300)));
                        if step % 500 == 499 {
                            slice = limiter.slice();
                        }
                    }
                });
            }
        });
        let look = limiter.look();
        let granted = granted.load(SeqCst);
        // The slices have given back what they held.
        let off = look.granted - granted as f64;
        assert!(off.abs() < 1e-3, "{rate}: {look:?}, not {granted}");
        let passed = clock.now().since(start) + pace.rate().interval();
        let claimed = Duration::from_secs_f64(granted as f64 / rate);
        let off = (look.pools.wait_time() + claimed).as_secs_f64() - passed.as_secs_f64();
        assert!(off.abs() < 1e-6, "{rate}: off by {off} s, {look:?}");
    }
}

#[test]
fn waiting_calls_go_in_order_whatever_they_cost() {
    let (limiter, clock) = limiter(up_to(pace(1000.0, 1.0), 10));
    let timer = HandTimer::new(&clock);
    assert_eq!(limiter.try_acquire(1), Ok(()));
    let mut tasks: Vec<_> = [5, 1, 10, 1]
        .map(|n| Task::new(&limiter, &timer, n))
        .into_iter()
        .collect();
    assert!(tasks.iter_mut().all(|task| !task.run()));
    assert_eq!(limiter.look().waiting, 4);
    assert!(limiter.try_acquire(1).is_err(), "no call passes");
    let mut went = vec![];
    while went.len() < 4 {
        let next = timer.next().expect("the first sleeps");
        assert_eq!(
            timer.due.lock().expect("no thread panics").len(),
            1,
            "only the first"
        );
        clock.set(next);
        timer.ring();
        for _ in 0..2 {
            for (number, task) in tasks.iter_mut().enumerate() {
                if task.acquire.is_some() && task.run() {
                    went.push((number, (next - 1_000_000_000) / 1_000_000));
                }
            }
        }
    }
    assert_eq!(went, [(0, 5), (1, 6), (2, 16), (3, 17)]);
}

/// An operation that takes nine hours or more is not in the pool: all threads take it behind the lock, in their order.
#[test]
fn no_call_passes_one_that_waits_for_a_pace_of_a_day() {
    let (limiter, clock) = limiter(up_to(pace(1e-5, 1.0), 2));
    let timer = HandTimer::new(&clock);
    assert_eq!(limiter.try_acquire(1), Ok(()));
    let mut task = Task::new(&limiter, &timer, 2);
    assert!(!task.run());
    clock.pass(Duration::from_secs(150_000));
    let passes = limiter.try_acquire(1);
    assert!(
        passes.is_err(),
        "what there is belongs to the one that waits"
    );
    clock.pass(Duration::from_secs(50_000));
    timer.ring();
    assert!(task.run());
}

#[test]
fn a_call_that_leaves_takes_nothing_and_the_next_is_first() {
    let (limiter, clock) = limiter(pace(1000.0, 1.0));
    let timer = HandTimer::new(&clock);
    assert_eq!(limiter.try_acquire(1), Ok(()));
    let mut first = Task::new(&limiter, &timer, 1);
    let mut second = Task::new(&limiter, &timer, 1);
    let mut third = Task::new(&limiter, &timer, 1);
    assert!(!first.run() && !second.run() && !third.run());
    clock.pass(Duration::from_micros(500));
    drop(first);
    assert!(!second.run(), "it was woken to see to its own timer");
    assert!(!third.woken.0.load(SeqCst), "the others sleep on");
    clock.pass(Duration::from_micros(500));
    timer.ring();
    assert!(second.run(), "half the wait was over already");
    assert!(!third.run());
    // Granted and not noticed, because another's fill served it: dropping it gives it back.
    clock.pass(Duration::from_millis(1));
    assert!(limiter.try_acquire(1).is_err());
    assert!(third.woken.0.load(SeqCst));
    drop(third);
    assert_eq!(limiter.try_acquire(1), Ok(()));
    assert_eq!(limiter.look().granted, 3.0);
}

#[test]
fn waits_given_up_after_a_few_milliseconds_cost_nothing() {
    let (limiter, clock) = limiter(pace(1000.0, 1.1));
    let timer = HandTimer::new(&clock);
    let begin = clock.now();
    let (mut granted, mut given_up) = (0, 0);
    let mut tasks: Vec<_> = (0..16)
        .map(|number| {
            (
                Task::new(&limiter, &timer, 1),
                clock.now() + Duration::from_micros(number * 190),
            )
        })
        .collect();
    while clock.now().since(begin) < Duration::from_secs(5) {
        for (task, until) in &mut tasks {
            let done = task.run();
            if done || clock.now() >= *until {
                granted += u32::from(done);
                given_up += u32::from(!done);
                *task = Task::new(&limiter, &timer, 1);
                *until = clock.now() + Duration::from_millis(3);
            }
        }
        clock.pass(Duration::from_micros(50));
        timer.ring();
    }
    assert!(granted >= 4_950, "{granted} of 5000");
    assert!(given_up > 10_000, "{given_up} waits were given up");
}

#[test]
fn one_large_task_among_small_ones_has_its_turn_as_often_as_they() {
    let (limiter, clock) = limiter(up_to(pace(10_000.0, 1.0), 100));
    let timer = HandTimer::new(&clock);
    let begin = clock.now();
    let cost = |number: usize| if number == 0 { 100 } else { 1 };
    let mut tasks: Vec<_> = (0..16)
        .map(|number| Task::new(&limiter, &timer, cost(number)))
        .collect();
    let mut granted = [0_u32; 16];
    while clock.now().since(begin) < Duration::from_secs(4) {
        for (number, task) in tasks.iter_mut().enumerate() {
            while task.run() {
                granted[number] += 1;
                *task = Task::new(&limiter, &timer, cost(number));
            }
        }
        if !tasks.iter().any(|task| task.woken.0.load(SeqCst)) {
            clock.set(timer.next().expect("a call sleeps"));
            timer.ring();
        }
    }
    let large = f64::from(granted[0]) / 4.0;
    assert!((85.0..=89.0).contains(&large), "{large} a second");
    let small: u32 = granted[1..].iter().sum();
    assert!(
        (1275..=1335).contains(&(small / 4)),
        "{} a second",
        small / 4
    );
}

#[test]
fn a_change_of_pace_reaches_those_who_wait() {
    let (limiter, clock) = limiter(pace(1.0, 1.0));
    let timer = HandTimer::new(&clock);
    assert_eq!(limiter.try_acquire(1), Ok(()));
    let mut task = Task::new(&limiter, &timer, 1);
    assert!(!task.run());
    clock.pass(Duration::from_millis(100));
    limiter.set_pace(pace(4.0, 1.0));
    assert!(!task.run(), "it was woken to sleep less long");
    assert_eq!(timer.next(), Some(clock.now().as_nanos() + 150_000_000));
    clock.pass(Duration::from_millis(50));
    limiter.set_pace(pace(10.0, 1.0));
    assert!(task.run(), "what it waited is enough at that pace");
    assert_eq!(limiter.look().granted, 2.0);
    assert_eq!(limiter.look().pools.wait_time(), Duration::from_millis(50));
}

#[test]
fn a_wait_for_more_than_the_new_largest_is_refused_and_does_not_close_the_limiter() {
    let (limiter, clock) = limiter(up_to(pace(1e6, 1.0), 1_000_000));
    let timer = HandTimer::new(&clock);
    assert_eq!(limiter.try_acquire(1), Ok(()));
    let mut large = Task::new(&limiter, &timer, 1_000_000);
    let mut second = Task::new(&limiter, &timer, 999_999);
    let mut small = Task::new(&limiter, &timer, 1);
    assert!(!large.run() && !second.run() && !small.run());
    let before = limiter.look().granted;
    limiter.set_pace(pace(1.0, 1.0));
    assert_eq!(limiter.look().waiting, 1);
    let refused = |n| Some(Err(AcquireError::TooMany { n, largest: 1 }));
    assert_eq!(second.end(), refused(999_999), "it is woken for that");
    clock.pass(Duration::from_secs(1));
    timer.ring();
    assert!(small.run(), "it is the first now");
    assert_eq!(large.end(), refused(1_000_000));
    clock.pass(Duration::from_secs(1));
    assert_eq!(limiter.try_acquire(1), Ok(()), "nothing is owed");
    assert_eq!(limiter.look().granted, before + 2.0);
}

#[test]
fn a_call_that_left_the_queue_delays_no_other() {
    let (limiter, clock) = limiter(up_to(pace(10.0, 1.0), 5));
    let timer = HandTimer::new(&clock);
    assert_eq!(limiter.try_acquire(1), Ok(()));
    let moment = || limiter.acquire_at(1).expect("one may go");
    let before = moment();
    let mut waits = Task::new(&limiter, &timer, 5);
    assert!(!waits.run());
    assert!(moment() > before);
    drop(waits);
    assert_eq!(moment(), before);
}

#[test]
fn a_call_waits_until_a_stopped_limiter_starts() {
    let (limiter, clock) = limiter(pace(1000.0, 1.1));
    let timer = HandTimer::new(&clock);
    assert_eq!(limiter.try_acquire(1), Ok(()));
    limiter.stop();
    let mut task = Task::new(&limiter, &timer, 1);
    assert!(!task.run());
    assert_eq!(timer.next(), None, "there is nothing to sleep for");
    assert_eq!(limiter.acquire_at(1), Ok(Timestamp::MAX));
    clock.pass(Duration::from_secs(100));
    assert_eq!(limiter.start(), Ok(()));
    assert!(task.run(), "a limiter starts with one operation");
    assert_eq!(limiter.start(), Err(ApplyError::AlreadyRunning));
    limiter.restart();
    assert_eq!(limiter.look().pools.wait_time(), Duration::from_millis(1));
    let spec: PaceSpec = "500,1.0,configure".parse().expect("a line");
    assert_eq!(limiter.apply(&spec), Ok(()));
    assert_eq!(limiter.look().pace.rate().get(), 500.0);
}

#[test]
fn the_moment_to_come_is_that_behind_all_who_wait() {
    let (limiter, clock) = limiter(up_to(pace(1000.0, 1.0), 10));
    let timer = HandTimer::new(&clock);
    let now = clock.now();
    assert_eq!(limiter.acquire_at(1), Ok(now));
    assert_eq!(limiter.try_acquire(1), Ok(()));
    assert_eq!(limiter.acquire_at(3), Ok(now + Duration::from_millis(3)));
    assert_eq!(
        limiter.acquire_at(3),
        Ok(now + Duration::from_millis(3)),
        "it takes nothing"
    );
    let mut task = Task::new(&limiter, &timer, 10);
    assert!(!task.run());
    assert_eq!(limiter.acquire_at(3), Ok(now + Duration::from_millis(13)));
    clock.set(limiter.acquire_at(3).expect("it may go").as_nanos());
    timer.ring();
    assert!(task.run());
    assert_eq!(limiter.try_acquire(3), Ok(()));
}

#[test]
fn an_impossible_request_is_an_error() {
    let one = NonZeroUsize::MIN;
    let clock = Arc::new(HandClock::default());
    let limiter =
        PacedLimiter::with_waiting_max(up_to(pace(10.0, 1.1), 5), Arc::clone(&clock), one);
    let timer = HandTimer::new(&clock);
    let too_many = Err(AcquireError::TooMany { n: 6, largest: 5 });
    assert_eq!(limiter.try_acquire(0), Err(AcquireError::Nothing));
    assert_eq!(limiter.try_acquire(6), too_many);
    assert_eq!(limiter.slice().try_acquire(0), Err(AcquireError::Nothing));
    assert_eq!(limiter.slice().try_acquire(6), too_many);
    assert_eq!(limiter.acquire_at(0), Err(AcquireError::Nothing));
    assert_eq!(
        limiter.acquire_blocking(6),
        Err(AcquireError::TooMany { n: 6, largest: 5 })
    );
    assert!(limiter.acquire_blocking(u32::MAX).is_err());
    let mut cx = Context::from_waker(Waker::noop());
    let mut poll = |n| {
        Box::pin(limiter.acquire_with(&timer, n))
            .as_mut()
            .poll(&mut cx)
    };
    assert_eq!(poll(0), Poll::Ready(Err(AcquireError::Nothing)));
    assert_eq!(poll(6).map(|result| result.is_err()), Poll::Ready(true));
    assert_eq!(limiter.try_acquire(1), Ok(()));
    let mut waits = Task::new(&limiter, &timer, 1);
    assert!(!waits.run());
    assert_eq!(
        poll(1),
        Poll::Ready(Err(AcquireError::TooManyWait { max: 1 }))
    );
    drop(waits);
    assert_eq!(poll(1), Poll::Pending, "there is a place again");
}

#[test]
fn the_rate_is_kept_at_any_speed_by_mere_attempts() {
    for rate in [0.1, 1.0, 100.0, 10_000.0, 1e6, 5e7] {
        let (limiter, clock) = limiter(pace(rate, 1.1));
        let mut slice = limiter.slice();
        let begin = clock.now();
        let mut granted = 0;
        let step = Duration::from_secs_f64(0.3 / rate).max(Duration::from_nanos(70));
        for _ in 0..100_000 {
            clock.pass(step);
            while slice.try_acquire(1) == Ok(()) {
                granted += 1;
            }
        }
        let achieved = f64::from(granted) / clock.now().since(begin).as_secs_f64();
        // One operation may go at the start.
        assert!((achieved / rate - 1.0).abs() < 2e-4, "{rate}: {achieved}");
        assert!((limiter.look().achieved_per_second / achieved - 1.0).abs() < 1e-3);
    }
}

#[test]
fn a_slice_takes_a_batch_only_from_a_fast_limiter_and_gives_back_what_is_left() {
    let (slow, clock) = limiter(pace(1000.0, 1.0));
    clock.pass(Duration::from_secs(1));
    let mut slice = slow.slice();
    assert_eq!(slice.try_acquire(1), Ok(()));
    assert_eq!(
        slow.try_acquire(2),
        Err(AcquireError::TooMany { n: 2, largest: 1 })
    );
    assert_eq!(slow.try_acquire(1), Ok(()), "nothing is held back");
    assert_eq!(slow.try_acquire(1), Ok(()));
    assert!(slice.try_acquire(1).is_err());

    let (fast, clock) = limiter(pace(1e6, 1.0));
    clock.pass(Duration::from_secs(1));
    let mut slices = [fast.slice(), fast.slice()];
    assert_eq!(fast.try_acquire(1), Ok(()), "what a limiter starts with");
    assert_eq!(
        fast.try_acquire(1),
        Ok(()),
        "one of the thousand that the pool holds"
    );
    assert_eq!(slices[0].try_acquire(1), Ok(()));
    assert_eq!(slices[1].try_acquire(1), Ok(()));
    let others = (0..).take_while(|_| fast.try_acquire(1) == Ok(())).count();
    assert_eq!(
        others, 897,
        "two batches of fifty and one, and the one before"
    );
    drop(slices);
    let others = (0..).take_while(|_| fast.try_acquire(1) == Ok(())).count();
    assert_eq!(others, 100);
}

#[test]
fn the_ends_of_time_and_a_clock_that_steps_back_are_no_trouble() {
    for rate in [1e-7, 1000.0, 1e9] {
        let clock = Arc::new(HandClock::default());
        let limiter = PacedLimiter::with_clock(pace(rate, 100.0), Arc::clone(&clock));
        assert_eq!(limiter.try_acquire(1), Ok(()));
        clock.set(u64::MAX);
        assert_eq!(limiter.try_acquire(1), Ok(()));
        clock.set(0);
        let granted = (0..1000)
            .filter(|_| limiter.try_acquire(1) == Ok(()))
            .count();
        clock.set(u64::MAX);
        assert!(limiter.look().running);
        assert!(granted == 1000 || limiter.try_acquire(1).is_err());
        let kept = limiter.look().pools.wait_time();
        for rate in [1e9, 1e-7, 1000.0] {
            limiter.set_pace(pace(rate, 1.0));
            let off = limiter.look().pools.wait_time().abs_diff(kept);
            assert!(
                off <= Duration::from_nanos(2),
                "the time that passed is kept"
            );
        }
    }
}

/// By real time: threads and tasks in one queue, on the thread that a process shares.
#[test]
fn threads_and_tasks_wait_together() {
    let limiter = PacedLimiter::new(up_to(pace(20_000.0, 1.0), 5));
    let begin = std::time::Instant::now();
    thread::scope(|scope| {
        for worker in 0..4 {
            let limiter = &limiter;
            scope.spawn(move || {
                for n in [1, 5, 2, 2].repeat(10) {
                    let result = if worker % 2 == 0 {
                        limiter.acquire_blocking(n)
                    } else {
                        block_on(limiter.acquire(n))
                    };
                    assert_eq!(result, Ok(()));
                }
            });
        }
    });
    // 400 operations, one of which is available at once; 20 fill the pool.
    assert!(begin.elapsed() >= Duration::from_micros(50 * 379));
    assert!((limiter.look().granted - 400.0).abs() < 1e-6);
    assert_eq!(limiter.look().waiting, 0);
}

#[test]
fn a_sleep_ends_when_its_timer_does() {
    let timer = TimerThread::start().expect("a thread");
    let mut sleep = Box::pin(timer.sleep(Duration::MAX));
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(sleep.as_mut().poll(&mut cx), Poll::Pending);
    drop(timer);
    block_on(sleep);
}

fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
