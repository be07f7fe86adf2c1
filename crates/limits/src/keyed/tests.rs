//! On a clock that is set by hand.

use core::fmt;
use core::future::Future;
use core::hash::Hash;
use core::num::NonZeroU32;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::HashMap;
use std::error::Error;
use std::format;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::Wake;
use std::vec::Vec;

use super::keys::LOOK_APART;
use super::*;
use crate::bucket::{Burst, Fill, TokenBucket, Tokens};
use crate::clock::Clock;
use crate::pace::{BurstRatio, Pace, Pacer, Rate, Timer};
use crate::random::{Random, seeds};
use crate::time::Timestamp;
use crate::verdict::NotNow;

/// A clock that is set by hand.
#[derive(Debug, Default)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(SeqCst))
    }
}

/// Keys on a clock that is set before each try.
struct Hand<L: KeyedLimiter, K> {
    keys: Keys<L, K, Arc<HandClock>>,
    clock: Arc<HandClock>,
}

impl<L: KeyedLimiter, K: Hash + Eq + Clone> Hand<L, K> {
    fn new(rule: L::Rule, max: u32) -> Self {
        let clock = Arc::new(HandClock::default());
        let max = NonZeroU32::new(max).expect("not zero");
        let keys = Keys::with_clock(rule, max, Arc::clone(&clock));
        Self { keys, clock }
    }

    fn set(&self, now: Timestamp) {
        self.clock.0.store(now.as_nanos(), SeqCst);
    }

    fn try_acquire(&self, key: &K, cost: Tokens, now: Timestamp) -> Result<(), KeyError> {
        self.set(now);
        self.keys.try_acquire(key, cost)
    }

    /// Whether it is granted; there is a place for it.
    fn granted(&self, key: &K, cost: Tokens, now: Timestamp) -> bool {
        match self.try_acquire(key, cost, now) {
            Ok(()) => true,
            Err(KeyError::NotNow(NotNow::NotBefore(then))) => {
                assert!(then > now);
                false
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn pace(rate: f64) -> Pace {
    Pace::new(Rate::new(rate).expect("a rate"), BurstRatio::default())
}

fn bucket(burst: f64, fill: f64) -> (Burst, Fill) {
    let burst = Burst::new(burst).expect("a burst");
    (burst, Fill::new(fill).expect("a rate"))
}

fn too_many(max: u32, retry_at: Timestamp) -> Result<(), KeyError> {
    let max = NonZeroU32::new(max).expect("not zero");
    Err(KeyError::TooManyKeys(TooManyKeys { max, retry_at }))
}

/// Each key is limited as if it were alone.
fn check_alone<L: KeyedLimiter + PartialEq + fmt::Debug>(rule: L::Rule) {
    for seed in seeds(0..200) {
        let mut random = Random::new(seed);
        let keys: Hand<L, u64> = Hand::new(rule, 8);
        let mut alone: HashMap<u64, L> = HashMap::new();
        let mut now = Timestamp::ZERO;
        for step in 0..500 {
            now = now + Duration::from_millis(random.below(40));
            let key = random.below(8);
            let one = alone.entry(key).or_insert_with(|| L::full(now, rule));
            let cost = Tokens::new(random.below(5) as f64 / 2.0).expect("tokens");
            let granted = keys.try_acquire(&key, cost, now);
            let should = one.try_take(now, cost).map_err(KeyError::NotNow);
            assert_eq!(granted, should, "seed {seed} step {step}");
            let got = keys.keys.get(&key);
            assert_eq!(got.as_ref(), Some(&*one), "seed {seed} step {step}");
        }
    }
}

#[test]
fn each_key_is_limited_as_if_it_were_alone() {
    check_alone::<Pacer>(pace(7.0));
    check_alone::<TokenBucket>(bucket(3.0, 11.0));
}

#[test]
fn a_new_key_is_refused_while_all_others_are_in_use_and_let_in_once_one_rests() {
    let keys: Hand<Pacer, u64> = Hand::new(pace(1.0), 3);
    let start = Timestamp::ZERO;
    for key in [0, 0, 1, 2] {
        assert!(keys.granted(&key, Tokens::ONE, start));
    }
    // The moment is that at which 1 and 2 have what they took: one operation later.
    let later = start + SECOND;
    let refused = too_many(3, later);
    assert_eq!(keys.try_acquire(&3, Tokens::ONE, start), refused);
    let early = Timestamp::from_nanos(later.as_nanos() - 1);
    assert_eq!(keys.try_acquire(&3, Tokens::ONE, early), refused);
    assert_eq!(keys.keys.len(), 3);
    // A known key is still limited.
    assert!(!keys.granted(&0, Tokens::ONE, start));
    assert!(keys.granted(&0, Tokens::ONE, later));
    assert!(keys.granted(&3, Tokens::ONE, later));
    // 1 and 2 rested, 0 did not.
    let is_there = |key| keys.keys.get(&key).is_some();
    assert!(is_there(0) && !is_there(1) && !is_there(2));
    assert_eq!(keys.keys.len(), 2);
}

#[test]
fn a_key_in_debt_is_never_forgotten_and_one_that_took_nothing_goes_first() {
    let keys: Hand<TokenBucket, u64> = Hand::new(bucket(2.0, 1.0), 2);
    let (start, ten) = (Timestamp::ZERO, Tokens::new(10.0).expect("tokens"));
    assert!(keys.granted(&0, ten, start));
    assert!(keys.granted(&1, Tokens::ONE, start));
    let second = start + SECOND;
    assert_eq!(
        keys.try_acquire(&2, Tokens::ONE, start),
        too_many(2, second)
    );
    // 1 is full again and goes, 0 owes eight.
    assert!(keys.granted(&2, Tokens::ZERO, second));
    assert!(keys.keys.get(&0).is_some() && keys.keys.get(&1).is_none());
    // 2 took nothing, and goes for the next at once.
    assert!(keys.granted(&3, Tokens::ONE, second));
    assert!(keys.keys.get(&0).is_some() && keys.keys.get(&2).is_none());
    let then = start + 10 * SECOND;
    assert!(!keys.granted(&0, Tokens::new(2.0).expect("tokens"), start + 9 * SECOND));
    assert!(keys.granted(&0, Tokens::new(2.0).expect("tokens"), then));
}

/// To be forgotten and come back gains nothing: in any span, `at_once` and what flows in.
fn check_no_gain<L: KeyedLimiter>(rule: L::Rule, at_once: f64, per_second: f64) {
    for seed in seeds(0..200) {
        let mut random = Random::new(seed);
        // So few places that every key is forgotten again and again.
        let keys: Hand<L, u64> = Hand::new(rule, 4);
        let mut granted: HashMap<u64, Vec<Timestamp>> = HashMap::new();
        let (mut now, mut refused) = (Timestamp::ZERO, 0);
        for _ in 0..2_000 {
            now = now + Duration::from_millis(random.below(30));
            let key = random.below(12);
            match keys.try_acquire(&key, Tokens::ONE, now) {
                Ok(()) => granted.entry(key).or_default().push(now),
                Err(KeyError::NotNow(NotNow::NotBefore(then))) => assert!(then > now),
                Err(KeyError::TooManyKeys(it)) => {
                    refused += 1;
                    assert!(it.retry_at > now, "seed {seed}");
                }
                Err(error) => panic!("{error:?}"),
            }
            assert!(keys.keys.len() <= 4, "seed {seed}");
        }
        assert!(refused > 0, "seed {seed}");
        for moments in granted.values() {
            for (first, &from) in moments.iter().enumerate() {
                for (last, &to) in moments.iter().enumerate().skip(first) {
                    let most = at_once + per_second * to.since(from).as_secs_f64() + 1e-6;
                    assert!((last - first + 1) as f64 <= most + 1.0, "seed {seed}");
                }
            }
        }
    }
}

#[test]
fn to_be_forgotten_and_come_back_gains_nothing() {
    check_no_gain::<Pacer>(pace(5.0), 2.0 * 1.1, 5.0 * 1.1);
    check_no_gain::<TokenBucket>(bucket(2.0, 5.0), 2.0, 5.0);
}

#[test]
fn a_new_key_may_take_what_its_pool_holds() {
    let pace = Pace::new(Rate::new(10.0).expect("a rate"), BurstRatio::STRICT);
    let five = Tokens::new(5.0).expect("tokens");
    let large = pace.with_room_for(five);
    let wide = pace.with_pool_min(SECOND).expect("a pool");
    for pace in [large, wide] {
        let keys: Hand<Pacer, u64> = Hand::new(pace, 1);
        let mut now = Timestamp::ZERO;
        // The key is forgotten for another one, and comes back: each time with a full pool.
        for key in [1, 2, 1, 2] {
            let granted = [(); 3].map(|()| keys.granted(&key, five, now));
            assert_eq!(granted, [true, true, false]);
            now = now + SECOND;
            assert!(keys.keys.get(&key).is_some());
        }
    }
}

#[test]
fn a_new_key_is_let_in_as_soon_as_many_others_rest() {
    let max = 20_000;
    let keys: Hand<Pacer, u64> = Hand::new(pace(10.0), max);
    let first = Timestamp::ZERO;
    for key in 0..u64::from(max) {
        assert!(keys.granted(&key, Tokens::ONE, first));
    }
    // It searches all of them and finds none.
    let stranger = u64::from(max);
    let refused = too_many(max, first + LOOK_APART * max);
    assert_eq!(keys.try_acquire(&stranger, Tokens::ONE, first), refused);
    // None rests a moment before the pools are full, and all a moment later.
    let full = first + SECOND / 10;
    let before = Timestamp::from_nanos(full.as_nanos() - 1_000_000);
    assert!(before < first + LOOK_APART * max + SECOND / 10);
    assert!(keys.try_acquire(&stranger, Tokens::ONE, before).is_err());
    assert!(keys.granted(&stranger, Tokens::ONE, full));
    assert_eq!(keys.keys.len(), 1);
}

#[test]
fn while_few_of_many_rest_new_keys_look_at_few_of_them() {
    let max = 20_000;
    let keys: Hand<Pacer, u64> = Hand::new(pace(10.0), max);
    for key in 0..u64::from(max) {
        assert!(keys.granted(&key, Tokens::ONE, Timestamp::ZERO));
    }
    let soon = Timestamp::ZERO + SECOND / 20;
    for key in 1..u64::from(max) {
        assert!(keys.granted(&key, Tokens::ONE, soon));
    }
    // One of them rests, and is found by the first look at all.
    let later = Timestamp::ZERO + SECOND / 10;
    assert!(keys.granted(&100_000, Tokens::ONE, later));
    let again = later + LOOK_APART * max;
    for key in 100_001..101_000 {
        let refused = keys.try_acquire(&key, Tokens::ONE, later);
        assert_eq!(refused, too_many(max, again));
    }
    assert!(keys.granted(&200_000, Tokens::ONE, again + SECOND / 10));
}

#[test]
fn a_changed_rule_holds_for_every_key_and_refunds_nothing() {
    let keys: Hand<Pacer, u64> = Hand::new(pace(1.0), 10);
    let (start, soon) = (Timestamp::ZERO, Timestamp::ZERO + SECOND / 10);
    assert!(keys.granted(&1, Tokens::ONE, start) && keys.granted(&1, Tokens::ONE, start));
    keys.keys.set_rule(pace(10.0));
    assert!(keys.granted(&1, Tokens::ONE, soon));
    assert!(!keys.granted(&1, Tokens::ONE, soon));

    let keys: Hand<TokenBucket, u64> = Hand::new(bucket(2.0, 1.0), 10);
    assert!(keys.granted(&1, Tokens::ONE, start) && keys.granted(&1, Tokens::ONE, start));
    keys.keys.set_rule(bucket(5.0, 10.0));
    assert_eq!(keys.keys.rule(), bucket(5.0, 10.0));
    assert!(!keys.granted(&1, Tokens::ONE, start));
    assert!(keys.granted(&1, Tokens::ONE, soon));
    assert!(!keys.granted(&1, Tokens::ONE, soon));
}

#[test]
fn threads_that_share_the_keys_take_no_more_than_each_key_has() {
    let keys: Hand<TokenBucket, u64> = Hand::new(bucket(50.0, 1.0), 4);
    let granted: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..400 {
                    let key = round % 4;
                    if keys.keys.try_acquire(&key, Tokens::ONE).is_ok() {
                        granted[key as usize].fetch_add(1, SeqCst);
                    }
                }
            });
        }
    });
    assert!(granted.iter().all(|granted| granted.load(SeqCst) == 50));
}

#[test]
fn errors_say_what_they_are_about() {
    let then = NotNow::NotBefore(Timestamp::ZERO + SECOND);
    let error = KeyError::NotNow(then);
    let source = error.source().expect("it has one");
    assert_eq!(
        std::format!("{error}: {source}"),
        "the key takes nothing now: there is no room before 1s after the start of the clock"
    );
    let Err(error) = too_many(3, Timestamp::ZERO) else {
        unreachable!("it is an error");
    };
    let source = error.source().expect("it has one");
    assert_eq!(
        std::format!("{source}"),
        "3 keys are in use, and there may be no more"
    );
}

/// Sleeps that end at their second poll.
#[derive(Debug, Default)]
struct HandTimer(std::sync::Mutex<Vec<Duration>>);

/// Ends when it is polled again.
#[derive(Debug)]
struct HandSleep(bool);

impl Timer for HandTimer {
    type Sleep = HandSleep;

    fn sleep(&self, span: Duration) -> HandSleep {
        self.0.lock().expect("no panic").push(span);
        HandSleep(false)
    }
}

impl Future for HandSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match core::mem::replace(&mut self.0, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// Counts how often it is woken.
#[derive(Debug, Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn poll_by<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(woken));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

#[test]
fn calls_that_wait_for_a_key_go_in_the_order_of_arrival_and_for_another_key_at_once() {
    let keys: Hand<TokenBucket, u64> = Hand::new(bucket(1.0, 1.0), 8);
    let (timer, woken) = (HandTimer::default(), Arc::new(Woken::default()));
    let start = |key| keys.keys.acquire_with(&timer, key, Tokens::ONE);
    let [mut first, mut second, mut third, mut fourth] = [7; 4].map(start);
    assert_eq!(poll_by(&mut first, &woken), Poll::Ready(Ok(())));
    for waits in [&mut second, &mut third, &mut fourth] {
        assert!(poll_by(waits, &woken).is_pending());
    }
    // Only the first of a key sleeps, until its token is there.
    assert_eq!(*timer.0.lock().expect("no panic"), [SECOND]);
    assert_eq!(poll_by(&mut start(8), &woken), Poll::Ready(Ok(())));
    keys.set(Timestamp::ZERO + SECOND);
    assert!(poll_by(&mut third, &woken).is_pending(), "it is behind");
    assert_eq!(poll_by(&mut second, &woken), Poll::Ready(Ok(())));
    assert_eq!(woken.0.load(SeqCst), 1, "the third is the first now");
    assert!(poll_by(&mut third, &woken).is_pending());
    // It leaves, and has taken nothing.
    drop(third);
    assert_eq!(woken.0.load(SeqCst), 2);
    keys.set(Timestamp::ZERO + 2 * SECOND);
    assert_eq!(poll_by(&mut fourth, &woken), Poll::Ready(Ok(())));
    drop((first, second, fourth));
    assert!(format!("{:?}", keys.keys.queues()).contains("waiting: 0"));
}

#[test]
fn a_call_for_a_new_key_waits_for_a_place() {
    let strict = Pace::new(Rate::new(1.0).expect("a rate"), BurstRatio::STRICT);
    let keys: Hand<Pacer, u64> = Hand::new(strict, 1);
    let (timer, woken) = (HandTimer::default(), Arc::new(Woken::default()));
    let mut one = keys.keys.acquire_with(&timer, 1, Tokens::ONE);
    assert_eq!(poll_by(&mut one, &woken), Poll::Ready(Ok(())));
    // There is no place for another key. It waits for that as well.
    let mut other = keys.keys.acquire_with(&timer, 2, Tokens::ONE);
    assert!(poll_by(&mut other, &woken).is_pending());
    keys.set(Timestamp::ZERO + 10 * SECOND);
    assert_eq!(poll_by(&mut other, &woken), Poll::Ready(Ok(())));
}

#[test]
fn a_thread_waits_for_its_tokens() {
    let max = NonZeroU32::new(2).expect("not zero");
    let keys: Keys<TokenBucket, &str> = Keys::new(bucket(1.0, 100.0), max);
    let begun = std::time::Instant::now();
    for _ in 0..4 {
        assert_eq!(keys.acquire_blocking("anna", Tokens::ONE), Ok(()));
    }
    assert!(begun.elapsed() >= Duration::from_millis(29));
}

#[test]
fn keys_can_be_asked_for_by_what_they_borrow_as() {
    let max = NonZeroU32::new(2).expect("not zero");
    let keys: Keys<TokenBucket, Arc<str>> = Keys::new(bucket(2.0, 0.1), max);
    let asks = |made: &AtomicU64| {
        keys.try_acquire_as("anna", Tokens::ONE, || {
            made.fetch_add(1, SeqCst);
            "anna".into()
        })
    };
    let made = AtomicU64::new(0);
    assert_eq!((asks(&made), asks(&made)), (Ok(()), Ok(())));
    assert!(asks(&made).is_err());
    assert_eq!(made.load(SeqCst), 1, "a known key is not made again");
}

#[test]
fn the_memory_of_forgotten_keys_is_returned() {
    let max = 20_000;
    let keys: Hand<Pacer, u64> = Hand::new(pace(10.0), max);
    for key in 0..u64::from(max) {
        assert!(keys.granted(&key, Tokens::ONE, Timestamp::ZERO));
    }
    let later = Timestamp::ZERO + SECOND / 20;
    for key in [3, 19_999] {
        assert!(keys.granted(&key, Tokens::ONE, later));
    }
    let busy = [3, 19_999].map(|key| keys.keys.get(&key));
    keys.set(Timestamp::ZERO + SECOND / 10);
    assert_eq!(keys.keys.forget_idle(), max as usize - 2);
    {
        let table = keys.keys.lock();
        assert!(table.states.capacity() <= 16, "{}", table.states.capacity());
        assert!(table.rows.capacity() <= 16, "{}", table.rows.capacity());
    }
    assert_eq!([3, 19_999].map(|key| keys.keys.get(&key)), busy);
    // New keys find places again.
    for key in 0..100 {
        assert!(keys.granted(&(50_000 + key), Tokens::ONE, later + SECOND));
    }
}
