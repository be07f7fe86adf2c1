//! Claims, one by one.

use alloc::boxed::Box;
use alloc::vec;
use core::time::Duration;

use super::flow::{FlowKey, PassedHead, WaitList};
use super::flows::Parking;
use crate::call::{Caller, Class};
use crate::queue::{Budget, BudgetSet, FlowId};
use crate::slab::SlabKey;
use crate::time::Timestamp;

const LIMIT: Budget = Budget::Limit(0);

/// A flow with one call that came as the `arrival`th.
fn waiting(parking: &mut Parking, arrival: u64) -> FlowId {
    let flow = parking.flow(FlowKey {
        caller: Caller(arrival),
        class: Class(0),
        meets: BudgetSet::default(),
    });
    let head = Some((arrival, SlabKey(arrival)));
    parking.set_head(flow, head, Timestamp::ZERO);
    flow
}

fn was_passed_over(parking: &mut Parking, flow: FlowId, due: Timestamp) {
    let (turns, lapses) = (vec![LIMIT], 0);
    let passed = PassedHead { due, turns, lapses };
    parking.flows[flow as usize].passed = Some(Box::new(passed));
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
        [first, third].map(|flow| parking.ahead(flow, LIMIT, now)),
        [5, 5]
    );
    for flow in [first, third] {
        was_passed_over(&mut parking, flow, due);
        assert_eq!(parking.ahead(flow, LIMIT, now), 5);
    }
    let ahead = [first, second, third].map(|flow| parking.ahead(flow, LIMIT, due));
    assert_eq!(ahead, [0, 0, 5]);
    // The result is the same once it claims. Otherwise two limits would send it back and forth.
    parking.claim(LIMIT, first, 1, due, None);
    parking.claim(LIMIT, third, 1, due, None);
    let ahead = [first, second, third].map(|flow| parking.ahead(flow, LIMIT, due));
    assert_eq!(ahead, [0, 1, 6]);
}

#[test]
fn a_claim_lasts_a_window_and_twice_as_long_each_time_that_it_was_in_vain() {
    let window = Duration::from_nanos(100);
    let now = Timestamp::from_nanos(7);
    let claim = |_| (window, 3);
    for (lapses, lasts) in [(0, 100), (1, 200), (3, 800)] {
        let mut parking = Parking::new(1, 0, [None, None].into_iter());
        let flow = waiting(&mut parking, 1);
        was_passed_over(&mut parking, flow, now);
        let passed = parking.flows[flow as usize].passed.as_mut();
        passed.expect("it was passed over").lapses = lapses;
        let (turn, budget) = (WaitList::At(Budget::Limit(1)), LIMIT);
        assert!(parking.pass_over(flow, turn, budget, None, now, claim));
        let until = now + Duration::from_nanos(lasts);
        assert_eq!(parking.claimed(turn.budget(), now).0, 3);
        assert_eq!(parking.next_opening(), Some(until));
    }
}

#[test]
fn no_room_is_kept_for_a_call_whose_other_limit_opens_later_than_the_claim_lasts() {
    let now = Timestamp::from_nanos(7);
    let claim = |_| (Duration::from_nanos(100), 3);
    for (opens_in, claimed) in [(100, 3), (101, 0)] {
        let mut parking = Parking::new(1, 0, [None, None].into_iter());
        let flow = waiting(&mut parking, 1);
        was_passed_over(&mut parking, flow, now);
        let turn = WaitList::At(Budget::Limit(1));
        let opens = Some(now + Duration::from_nanos(opens_in));
        assert!(parking.pass_over(flow, turn, LIMIT, opens, now, claim));
        assert_eq!(parking.claimed(turn.budget(), now).0, claimed);
    }
}

#[test]
fn a_call_that_is_passed_over_for_the_first_time_claims_after_a_window() {
    let claim = |_| (Duration::from_nanos(100), 3);
    let mut parking = Parking::new(1, 0, [None, None].into_iter());
    let flow = waiting(&mut parking, 1);
    let (one, other) = (WaitList::At(LIMIT), WaitList::At(Budget::Limit(1)));
    let at = Timestamp::from_nanos;
    assert!(!parking.pass_over(flow, one, other.budget(), None, at(0), claim));
    assert!(!parking.pass_over(flow, other, one.budget(), None, at(99), claim));
    assert!(parking.pass_over(flow, one, other.budget(), None, at(100), claim));
}
