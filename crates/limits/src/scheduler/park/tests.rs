//! Claims, one by one.

use alloc::boxed::Box;
use alloc::vec;
use core::time::Duration;

use super::line::{LineKey, Passed, Spot};
use super::lines::Parking;
use crate::call::{Caller, Class};
use crate::queue::{Bar, LineId, Meets};
use crate::slab::Key;
use crate::time::Timestamp;

const LIMIT: Bar = Bar::Limit(0);

/// A line with one call that came as the `arrival`th.
fn waiting(parking: &mut Parking, arrival: u64) -> LineId {
    let line = parking.line(LineKey {
        caller: Caller(arrival),
        class: Class(0),
        meets: Meets::default(),
    });
    let head = Some((arrival, Key(arrival)));
    parking.set_head(line, head, Timestamp::ZERO);
    line
}

fn was_passed_over(parking: &mut Parking, line: LineId, due: Timestamp) {
    let (turns, lapses) = (vec![LIMIT], 0);
    let passed = Passed { due, turns, lapses };
    parking.lines[line as usize].passed = Some(Box::new(passed));
}

#[test]
fn a_call_that_may_claim_goes_behind_those_only_that_claim_and_came_before_it() {
    let mut parking = Parking::new(1, 0, [None].into_iter());
    let [first, second, third] = [1, 2, 3].map(|arrival| waiting(&mut parking, arrival));
    let (now, due) = (Timestamp::ZERO, Timestamp::from_nanos(10));
    was_passed_over(&mut parking, second, now);
    parking.claim(LIMIT, second, 5, now, Some(due));
    // A head that may not claim is behind all claims, whenever it arrived.
    assert_eq!(
        [first, third].map(|line| parking.ahead(line, LIMIT, now)),
        [5, 5]
    );
    for line in [first, third] {
        was_passed_over(&mut parking, line, due);
        assert_eq!(parking.ahead(line, LIMIT, now), 5);
    }
    let ahead = [first, second, third].map(|line| parking.ahead(line, LIMIT, due));
    assert_eq!(ahead, [0, 0, 5]);
    // The result is the same once it claims. Otherwise two limits would send it back and forth.
    parking.claim(LIMIT, first, 1, due, None);
    parking.claim(LIMIT, third, 1, due, None);
    let ahead = [first, second, third].map(|line| parking.ahead(line, LIMIT, due));
    assert_eq!(ahead, [0, 1, 6]);
}

#[test]
fn a_claim_lasts_a_window_and_twice_as_long_each_time_that_it_was_in_vain() {
    let window = Duration::from_nanos(100);
    let now = Timestamp::from_nanos(7);
    let claim = |_| (window, 3);
    for (lapses, lasts) in [(0, 100), (1, 200), (3, 800)] {
        let mut parking = Parking::new(1, 0, [None, None].into_iter());
        let line = waiting(&mut parking, 1);
        was_passed_over(&mut parking, line, now);
        let passed = parking.lines[line as usize].passed.as_mut();
        passed.expect("it was passed over").lapses = lapses;
        let (turn, bar) = (Spot::At(Bar::Limit(1)), LIMIT);
        assert!(parking.pass_over(line, turn, bar, None, now, claim));
        let until = now + Duration::from_nanos(lasts);
        assert_eq!(parking.claimed(turn.bar(), now).0, 3);
        assert_eq!(parking.next_opening(), Some(until));
    }
}

#[test]
fn no_room_is_kept_for_a_call_whose_other_limit_opens_later_than_the_claim_lasts() {
    let now = Timestamp::from_nanos(7);
    let claim = |_| (Duration::from_nanos(100), 3);
    for (opens_in, claimed) in [(100, 3), (101, 0)] {
        let mut parking = Parking::new(1, 0, [None, None].into_iter());
        let line = waiting(&mut parking, 1);
        was_passed_over(&mut parking, line, now);
        let turn = Spot::At(Bar::Limit(1));
        let opens = Some(now + Duration::from_nanos(opens_in));
        assert!(parking.pass_over(line, turn, LIMIT, opens, now, claim));
        assert_eq!(parking.claimed(turn.bar(), now).0, claimed);
    }
}

#[test]
fn a_call_that_is_passed_over_for_the_first_time_claims_after_a_window() {
    let claim = |_| (Duration::from_nanos(100), 3);
    let mut parking = Parking::new(1, 0, [None, None].into_iter());
    let line = waiting(&mut parking, 1);
    let (one, other) = (Spot::At(LIMIT), Spot::At(Bar::Limit(1)));
    let at = Timestamp::from_nanos;
    assert!(!parking.pass_over(line, one, other.bar(), None, at(0), claim));
    assert!(!parking.pass_over(line, other, one.bar(), None, at(99), claim));
    assert!(parking.pass_over(line, one, other.bar(), None, at(100), claim));
}
