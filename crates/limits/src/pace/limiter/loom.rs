//! The interleavings of a few threads over the atomics: no grant is lost and none made twice.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p tidegate-limits --lib loom`

use core::task::Waker;
use core::time::Duration;
use std::vec::Vec;

use loom::sync::Arc;
use loom::thread;

use super::shared::{SharedPacer, WaiterTurn};
use crate::pace::{BurstRatio, Pace, Rate};
use crate::time::Timestamp;

/// A thousand a second: an operation a millisecond, and two fit into the pool.
fn shared() -> Arc<SharedPacer> {
    let pace = Pace::new(Rate::new(1000.0).expect("a rate"), BurstRatio::STRICT);
    Arc::new(SharedPacer::new(pace, 4, Timestamp::ZERO))
}

fn millis(millis: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(millis)
}

fn try_acquire(shared: &SharedPacer, now: Timestamp) -> bool {
    let cost = shared.cost(1).expect("one may go");
    shared.claim(cost)
        || (shared.not_surely_in_vain(cost, now).is_ok()
            && shared.fill_and_claim(1, 0, now).is_ok())
}

/// All that has flowed in by then is granted or still there.
fn nothing_is_lost(shared: &SharedPacer, now: Timestamp, granted: usize) {
    let look = shared.look(now);
    assert_eq!(look.granted, granted as f64);
    let passed = now.since(Timestamp::ZERO) + Duration::from_millis(1);
    assert_eq!(
        look.pools.wait_time() + Duration::from_millis(granted as u64),
        passed
    );
}

fn all_at(times: &'static [u64], granted_in_all: usize) {
    let mut model = loom::model::Builder::new();
    // Three threads have too many interleavings for all of them: those in which threads are
    // interrupted at most three times, which takes three minutes of a processor.
    model.preemption_bound = (times.len() > 2).then_some(3);
    model.check(move || {
        let shared = shared();
        let threads: Vec<_> = times
            .iter()
            .map(|&time| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || try_acquire(&shared, millis(time)))
            })
            .collect();
        let granted = threads.into_iter().map(|one| one.join().expect("it ends"));
        let granted = granted.filter(|&granted| granted).count();
        assert_eq!(granted, granted_in_all);
        nothing_is_lost(&shared, millis(9), granted);
    });
}

#[test]
fn of_two_at_once_one_gets_the_only_operation() {
    all_at(&[0, 0], 1);
}

#[test]
fn no_thread_is_refused_while_another_fills() {
    // One is in the pool, and one has flowed in: enough for both.
    all_at(&[1, 1], 2);
}

/// The pool is empty, and enough for both has flowed in: the thread that fills admits both. The
/// other one must not be refused because it reads the moment of that fill and the pool before it.
#[test]
fn no_thread_is_refused_by_a_fill_that_is_under_way() {
    loom::model(|| {
        let shared = shared();
        assert!(try_acquire(&shared, millis(0)), "the pool is empty then");
        let other = Arc::clone(&shared);
        let fills = thread::spawn(move || try_acquire(&other, millis(2)));
        let claims = try_acquire(&shared, millis(2));
        let fills = fills.join().expect("it ends");
        assert!(fills && claims, "there were two: {fills} {claims}");
        nothing_is_lost(&shared, millis(9), 3);
    });
}

/// A slice that gives back fills the pool too.
#[test]
fn no_thread_is_refused_while_a_slice_gives_back() {
    loom::model(|| {
        let shared = shared();
        let cost = shared.cost(1).expect("one may go");
        assert!(shared.claim(cost));
        let other = Arc::clone(&shared);
        let giver = thread::spawn(move || other.give_back(cost, millis(1)));
        // One operation has flowed in, whether the other thread is there already or not.
        assert!(try_acquire(&shared, millis(1)));
        giver.join().expect("it ends");
        nothing_is_lost(&shared, millis(9), 1);
    });
}

#[test]
fn three_share_what_two_fills_bring() {
    all_at(&[1, 1, 1], 2);
}

#[test]
fn operations_that_a_slice_returns_can_be_taken() {
    loom::model(|| {
        let shared = shared();
        let cost = shared.cost(1).expect("one may go");
        assert!(shared.claim(cost));
        let other = Arc::clone(&shared);
        let giver = thread::spawn(move || other.give_back(cost, millis(0)));
        let before = try_acquire(&shared, millis(0));
        giver.join().expect("it ends");
        let after = try_acquire(&shared, millis(0));
        assert!(before != after, "the one that came back goes once");
        nothing_is_lost(&shared, millis(9), 1);
    });
}

#[test]
fn a_waiting_call_is_not_passed_and_can_leave_at_any_moment() {
    loom::model(|| {
        let shared = shared();
        assert!(try_acquire(&shared, millis(0)));
        let entered = shared.enter(1, Waker::noop(), millis(0));
        let Ok(Some(ticket)) = entered else {
            panic!("nothing is left")
        };
        let other = Arc::clone(&shared);
        let passing = thread::spawn(move || try_acquire(&other, millis(1)));
        let turn = shared.turn(ticket, Waker::noop(), millis(1));
        assert!(
            matches!(turn, WaiterTurn::Ended(Ok(()))),
            "the operation is for who came first"
        );
        assert!(!passing.join().expect("it ends"));
        nothing_is_lost(&shared, millis(9), 2);
    });
    loom::model(|| {
        let shared = shared();
        assert!(try_acquire(&shared, millis(0)));
        let entered = shared.enter(1, Waker::noop(), millis(0));
        let Ok(Some(ticket)) = entered else {
            panic!("nothing is left")
        };
        let other = Arc::clone(&shared);
        let leaving = thread::spawn(move || other.leave(ticket, millis(1)));
        let passed = try_acquire(&shared, millis(1));
        leaving.join().expect("it ends");
        let next = passed || try_acquire(&shared, millis(1));
        assert!(
            next,
            "what was granted to who has left is there for the next"
        );
        nothing_is_lost(&shared, millis(9), 2);
    });
}

#[test]
fn a_change_of_pace_loses_nothing() {
    loom::model(|| {
        let shared = shared();
        let other = Arc::clone(&shared);
        let claims = thread::spawn(move || try_acquire(&other, millis(0)));
        let slower = Pace::new(Rate::new(500.0).expect("a rate"), BurstRatio::STRICT);
        shared.change(millis(0), |paced| paced.set_pace(millis(0), slower));
        let granted = claims.join().expect("it ends");
        // What is in the pool is half an operation now, unless it was claimed before.
        let left = shared.look(millis(0)).pools.wait_time();
        let expected = if granted { 0 } else { 1 };
        assert_eq!(left, Duration::from_millis(expected));
    });
}
