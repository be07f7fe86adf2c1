//! The law of one order.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use super::callers::{HAND, OWN_GROUPS, SHARED_GROUPS, hand};
use super::*;
use crate::bucket::{TokenCount, Tokens};
use crate::call::{Call, Caller, Class, Weight};
use crate::queue::FlowId;
use crate::time::Timestamp;

const CLASS: Class = Class(0);

/// The service of a call of one token at weight one.
fn one() -> TurnAdvance {
    TurnAdvance::new(Tokens::ONE, Weight::ONE, 1)
}

/// An order, and flows in it that have calls without end.
struct Waiting {
    order: FairOrder,
    common: OrderSettings,
    entries: Vec<FlowEntry>,
    arrivals: u64,
}

impl Waiting {
    fn new(classes: usize) -> Self {
        Self {
            order: FairOrder::default(),
            common: OrderSettings {
                classes,
                seed: 7,
                served: 0,
            },
            entries: Vec::new(),
            arrivals: 0,
        }
    }

    fn arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// A flow begins to wait. Returns its number.
    fn wait(&mut self, class: u32, caller: u64) -> FlowId {
        let entry = FlowEntry {
            class: Class(class),
            caller: Caller(caller),
            arrival: self.arrival(),
            flow: self.entries.len() as FlowId,
        };
        self.order.insert(entry, self.common);
        self.entries.push(entry);
        entry.flow
    }

    /// The call that was served with this number was not sent after all.
    fn unserve(&mut self, class: Class, caller: Caller, service: TurnAdvance, served: u64) -> bool {
        let call = Call::new("", Timestamp::ZERO).class(class).caller(caller);
        self.order
            .correct(&call, service, TurnAdvance::NONE, served)
    }

    /// Serves the first one, which has another call.
    fn serve(&mut self, service: impl Fn(FlowEntry) -> TurnAdvance) -> FlowId {
        let flow = self.order.first(ClassFilter::All).expect("a flow waits");
        self.serve_flow(flow, service)
    }

    fn serve_flow(&mut self, flow: FlowId, service: impl Fn(FlowEntry) -> TurnAdvance) -> FlowId {
        let entry = self.entries[flow as usize];
        self.common.served += 1;
        self.order.serve(entry, service(entry), false, self.common);
        let arrival = self.arrival();
        self.order.replace(entry, arrival);
        self.entries[flow as usize].arrival = arrival;
        flow
    }

    fn leave(&mut self, flow: FlowId) {
        self.order.remove(self.entries[flow as usize]);
    }

    fn known(&self) -> usize {
        let tags = self.order.tags.iter().flat_map(|tags| &tags.classes);
        tags.map(|class| class.callers.known.len() + class.callers.sharded.len())
            .sum()
    }
}

#[test]
fn a_call_of_twice_the_weight_moves_its_caller_half_as_far() {
    let heavy = Weight::new(2).expect("above zero");
    let service = |tokens, weight, class| TurnAdvance::new(tokens, weight, class);
    assert_eq!(service(Tokens::ONE, Weight::ONE, 1).caller, 1_000_000);
    assert_eq!(service(Tokens::ONE, heavy, 1).caller, 500_000);
    assert_eq!(
        service(Tokens::MAX, Weight::ONE, 1).caller,
        1_000_000_000_000
    );
    assert_eq!(service(Tokens::ONE, Weight::ONE, 4).class, 250_000 << 20);
}

#[test]
fn calls_that_cost_nothing_take_turns_too() {
    let tokens = |number| Tokens::new(number).expect("tokens");
    assert_eq!(TokenCount::of_turn(tokens(1.0 + 1e-9)).micros(), 1_000_001);
    assert_eq!(TokenCount::of_turn(tokens(0.5)).micros(), 500_000);
    assert_eq!(TokenCount::of_turn(Tokens::ZERO).micros(), 1000);
    let most = Weight::new(u32::MAX).expect("above zero");
    assert_eq!(TurnAdvance::new(Tokens::ZERO, most, 1).caller, 1);
}

#[test]
fn two_callers_go_by_turns_and_a_newcomer_goes_beside_them() {
    let mut waiting = Waiting::new(1);
    let (first, second) = (waiting.wait(0, 1), waiting.wait(0, 2));
    let served: Vec<_> = (0..4).map(|_| waiting.serve(|_| one())).collect();
    assert_eq!(served, vec![first, second, first, second]);
    for _ in 0..100 {
        waiting.serve(|_| one());
    }
    // Of several with equal service, the one that waits longest goes first.
    let third = waiting.wait(0, 3);
    let served: Vec<_> = (0..6).map(|_| waiting.serve(|_| one())).collect();
    let of_third = served.iter().filter(|&&flow| flow == third).count();
    assert_eq!(of_third, 2, "{served:?}");
    assert!(served[..2].contains(&third), "{served:?}");
}

#[test]
fn a_caller_with_two_flows_has_the_turns_of_one() {
    let mut waiting = Waiting::new(1);
    let flows = [waiting.wait(0, 1), waiting.wait(0, 1), waiting.wait(0, 2)];
    let served: Vec<_> = (0..100).map(|_| waiting.serve(|_| one())).collect();
    let count = |flow| served.iter().filter(|&&other| other == flow).count();
    assert_eq!(flows.map(count), [25, 25, 50]);
}

#[test]
fn a_class_of_four_times_the_weight_has_four_of_five_turns() {
    let mut waiting = Waiting::new(2);
    let (heavy, light) = (waiting.wait(0, 1), waiting.wait(1, 2));
    let weigh = |entry: FlowEntry| {
        let weight = if entry.class == CLASS { 4 } else { 1 };
        TurnAdvance::new(Tokens::ONE, Weight::ONE, weight)
    };
    let served: Vec<_> = (0..100).map(|_| waiting.serve(weigh)).collect();
    let count = |flow| served.iter().filter(|&&other| other == flow).count();
    assert_eq!((count(heavy), count(light)), (80, 20));
}

#[test]
fn a_class_that_comes_back_brings_no_arrears_and_owes_what_it_had() {
    let mut waiting = Waiting::new(2);
    let (busy, other) = (waiting.wait(0, 1), waiting.wait(1, 2));
    waiting.serve(|_| one());
    waiting.serve(|_| one());
    waiting.leave(other);
    for _ in 0..50 {
        assert_eq!(waiting.serve(|_| one()), busy);
    }
    let back = waiting.wait(1, 2);
    let served: Vec<_> = (0..10).map(|_| waiting.serve(|_| one())).collect();
    let count = served.iter().filter(|&&flow| flow == back).count();
    assert_eq!(count, 5, "{served:?}");
}

#[test]
fn a_caller_that_was_just_served_waits_for_the_others() {
    let mut waiting = Waiting::new(1);
    let flows = [waiting.wait(0, 1), waiting.wait(0, 2), waiting.wait(0, 3)];
    assert_eq!(waiting.serve(|_| one()), flows[0]);
    waiting.leave(flows[0]);
    let back = waiting.wait(0, 1);
    let served: Vec<_> = (0..3).map(|_| waiting.serve(|_| one())).collect();
    assert_eq!(served, vec![flows[1], flows[2], back]);
}

#[test]
fn a_returned_call_is_the_next_turn_of_its_caller_and_class() {
    let expensive = TurnAdvance::new(Tokens::new(10.0).expect("tokens"), Weight::ONE, 1);
    for classes in [[0, 0], [0, 1]] {
        let mut waiting = Waiting::new(2);
        let (first, second) = (waiting.wait(classes[0], 1), waiting.wait(classes[1], 2));
        assert_eq!(waiting.serve(|_| expensive), first);
        let of_first = waiting.common.served;
        assert_eq!(waiting.serve(|_| one()), second);
        let entry = waiting.entries[first as usize];
        let (class, caller) = (entry.class, entry.caller);
        let counted = waiting.unserve(class, caller, expensive, of_first);
        assert!(counted);
        // It has had nothing, the other has had one.
        assert_eq!(waiting.serve(|_| one()), first);
        // What was served before the order had tags moved none.
        let not_counted = waiting.unserve(class, caller, expensive, 0);
        assert!(!not_counted);
    }
}

#[test]
fn a_call_served_early_takes_no_turn_from_waiting_calls() {
    for classes in [[0, 0], [0, 1]] {
        let mut waiting = Waiting::new(2);
        let (first, second) = (waiting.wait(classes[0], 1), waiting.wait(classes[1], 2));
        // As calls that claim.
        for _ in 0..10 {
            waiting.serve_flow(second, |_| one());
        }
        // One that goes to wait elsewhere and comes back has lost nothing.
        waiting.leave(first);
        let back = waiting.wait(classes[0], 1);
        let served: Vec<_> = (0..10).map(|_| waiting.serve(|_| one())).collect();
        assert_eq!(served, vec![back; 10]);
    }
}

#[test]
fn a_refund_of_what_was_forgiven_since_gives_nothing() {
    let ten = TurnAdvance::new(Tokens::new(10.0).expect("tokens"), Weight::ONE, 1);
    // Of classes with the same tag the first one goes first.
    for (classes, turns) in [([0, 0], 2), ([0, 1], 3)] {
        let mut waiting = Waiting::new(2);
        let (first, second) = (waiting.wait(classes[0], 1), waiting.wait(classes[1], 2));
        assert_eq!(waiting.serve(|_| ten), first);
        let of_first = waiting.common.served;
        waiting.leave(first);
        for _ in 0..50 {
            assert_eq!(waiting.serve(|_| one()), second);
        }
        let back = waiting.wait(classes[0], 1);
        waiting.unserve(CLASS, Caller(1), ten, of_first);
        let served: Vec<_> = (0..4).map(|_| waiting.serve(|_| one())).collect();
        let of_back = served.iter().filter(|&&flow| flow == back).count();
        assert_eq!(of_back, turns, "{served:?}");
    }
}

#[test]
fn one_that_stands_elsewhere_knows_whether_it_is_behind() {
    let mut waiting = Waiting::new(2);
    let entry = |class, caller, arrival| FlowEntry {
        class: Class(class),
        caller: Caller(caller),
        arrival,
        flow: 99,
    };
    assert!(!waiting.order.is_behind(entry(0, 9, 1), ClassFilter::All));
    let first = waiting.wait(0, 1);
    // Alone, by arrival; and classes in their order.
    assert!(waiting.order.is_behind(entry(0, 9, 100), ClassFilter::All));
    assert!(!waiting.order.is_behind(entry(0, 9, 0), ClassFilter::All));
    assert!(waiting.order.is_behind(entry(1, 9, 0), ClassFilter::All));
    assert!(
        !waiting
            .order
            .is_behind(entry(0, 9, 100), ClassFilter::Only(Class(1)))
    );
    assert!(
        !waiting
            .order
            .is_behind(entry(0, 9, 100), ClassFilter::But(Class(0)))
    );
    let second = waiting.wait(0, 2);
    assert_eq!(waiting.serve(|_| one()), first);
    // The first caller was served once, the second has not been.
    assert!(waiting.order.is_behind(entry(0, 1, 0), ClassFilter::All));
    assert!(!waiting.order.is_behind(entry(0, 2, 0), ClassFilter::All));
    assert!(waiting.order.is_behind(entry(0, 2, 100), ClassFilter::All));
    assert_eq!(waiting.serve(|_| one()), second);
    // A call that did not wait is charged, too.
    waiting.common.served += 1;
    let common = waiting.common;
    waiting.order.serve(entry(0, 9, 0), one(), false, common);
    waiting.order.serve(entry(0, 9, 0), one(), false, common);
    assert!(waiting.order.is_behind(entry(0, 9, 0), ClassFilter::All));
}

#[test]
fn a_class_that_was_silent_begins_behind_those_of_its_tag_that_the_policy_names_first() {
    let mut waiting = Waiting::new(3);
    let (first, second) = (waiting.wait(0, 1), waiting.wait(1, 2));
    for flow in [first, second, first] {
        assert_eq!(waiting.serve(|_| one()), flow);
    }
    // The second class has had one call, and so has every other.
    let silent = FlowEntry {
        class: Class(2),
        caller: Caller(9),
        arrival: 0,
        flow: 99,
    };
    assert!(waiting.order.is_behind(silent, ClassFilter::All));
}

#[test]
fn a_call_that_makes_others_wait_is_counted_and_can_be_refunded() {
    let mut waiting = Waiting::new(1);
    waiting.wait(0, 1);
    let passing = FlowEntry {
        class: CLASS,
        caller: Caller(2),
        arrival: 9,
        flow: 99,
    };
    waiting.common.served += 1;
    let common = waiting.common;
    assert!(waiting.order.serve(passing, one(), true, common));
    assert!(waiting.order.is_behind(passing, ClassFilter::All));
    let counted = waiting.unserve(CLASS, Caller(2), one(), common.served);
    assert!(counted);
    let first = FlowEntry {
        arrival: 0,
        ..passing
    };
    assert!(!waiting.order.is_behind(first, ClassFilter::All));
}

#[test]
fn service_while_no_other_call_waited_is_not_refunded() {
    let mut waiting = Waiting::new(1);
    let first = waiting.wait(0, 1);
    assert_eq!(waiting.serve(|_| one()), first);
    let of_first = waiting.common.served;
    waiting.wait(0, 2);
    let counted = waiting.unserve(CLASS, Caller(1), one(), of_first);
    assert!(!counted);
}

#[test]
fn an_order_in_which_nothing_waits_remembers_nothing() {
    let mut waiting = Waiting::new(1);
    let (first, second) = (waiting.wait(0, 1), waiting.wait(0, 2));
    for _ in 0..10 {
        waiting.serve_flow(first, |_| one());
    }
    waiting.leave(first);
    assert!(waiting.known() > 0);
    waiting.leave(second);
    assert!(waiting.order.is_empty() && waiting.order.tags.is_none());
    let (_, again) = (waiting.wait(0, 1), waiting.wait(0, 2));
    assert_ne!(waiting.order.first(ClassFilter::All), Some(again));
}

#[test]
fn a_reload_keeps_what_callers_and_classes_were_served() {
    let mut waiting = Waiting::new(2);
    let flows = [waiting.wait(0, 1), waiting.wait(0, 2), waiting.wait(1, 3)];
    let mut order = vec![waiting.serve(|_| one()), waiting.serve(|_| one())];
    assert_eq!(order, [flows[0], flows[2]]);
    // The first class is the second now, and the other way round.
    let places = [Some(Class(1)), Some(Class(0))];
    let old = core::mem::take(&mut waiting.order);
    waiting.order = old.reload(&places, waiting.common);
    for entry in &mut waiting.entries {
        entry.class = Class(1 - entry.class.0);
        waiting.order.insert(*entry, waiting.common);
    }
    order = (0..4).map(|_| waiting.serve(|_| one())).collect();
    // Each class has been served once, and of the one that has two callers the first.
    assert_eq!(order, [flows[2], flows[1], flows[2], flows[0]]);
    // A removed one leaves nothing.
    let old = core::mem::take(&mut waiting.order);
    let mut order = old.reload(&[None, None], waiting.common);
    order.tidy();
    assert!(order.is_empty() && order.tags.is_none());
}

#[test]
fn after_a_reload_no_caller_goes_again_before_those_that_wait_for_their_first_turn() {
    let mut waiting = Waiting::new(1);
    let flows = [waiting.wait(0, 1), waiting.wait(0, 1), waiting.wait(0, 2)];
    assert_eq!(waiting.serve(|_| one()), flows[0]);
    let old = core::mem::take(&mut waiting.order);
    waiting.order = old.reload(&[Some(CLASS)], waiting.common);
    for entry in &waiting.entries {
        waiting.order.insert(*entry, waiting.common);
    }
    // The first caller's other flow came before.
    assert_eq!(waiting.serve(|_| one()), flows[2]);
    assert_eq!(waiting.serve(|_| one()), flows[1]);
}

#[test]
fn by_arrival_it_does_not_matter_who_calls() {
    let mut waiting = Waiting::new(1);
    waiting.order = FairOrder::new(true);
    let flows: Vec<_> = [1, 1, 2, 1, 3].map(|caller| waiting.wait(0, caller)).into();
    let served: Vec<_> = (0..5).map(|_| waiting.serve(|_| one())).collect();
    assert_eq!(served, flows);
    let mut all = waiting.order.all();
    all.sort_unstable();
    assert_eq!(all, flows);
}

#[test]
fn callers_that_come_once_are_forgotten() {
    let mut waiting = Waiting::new(1);
    let stays = waiting.wait(0, 0);
    for caller in 1..20_000 {
        let flow = waiting.wait(0, caller);
        waiting.serve(|_| one());
        waiting.leave(flow);
    }
    let bound = OWN_GROUPS + usize::from(SHARED_GROUPS);
    assert!(waiting.known() <= bound, "{}", waiting.known());
    waiting.leave(stays);
    assert_eq!(waiting.known(), 0);
}

#[test]
fn an_endless_stream_of_new_callers_does_not_starve_an_old_one() {
    let mut waiting = Waiting::new(1);
    let old = waiting.wait(0, 0);
    let served_last = |waiting: &mut Waiting| waiting.serve(|_| one());
    assert_eq!(served_last(&mut waiting), old);
    // Of the others more come than are served.
    let passed = (1..10_000).find(|caller| {
        waiting.wait(0, 2 * caller);
        waiting.wait(0, 2 * caller + 1);
        waiting.serve(|_| one()) == old
    });
    let bound = OWN_GROUPS as u64 + u64::from(SHARED_GROUPS);
    assert!(passed.is_some_and(|served| served <= bound), "{passed:?}");
}

#[test]
fn a_caller_among_too_many_keeps_its_group_while_it_waits() {
    let mut waiting = Waiting::new(1);
    for caller in 0..OWN_GROUPS as u64 {
        waiting.wait(0, caller);
    }
    let first = waiting.wait(0, 1000);
    for caller in 2000..2500 {
        waiting.wait(0, caller);
    }
    // Now other groups of its hand would serve it sooner.
    waiting.serve_flow(first, |_| one());
    let second = waiting.wait(0, 1000);
    let callers = |waiting: &Waiting| {
        let tags = waiting.order.tags.as_ref().expect("many wait");
        tags.classes[0].callers.sharded.get(&Caller(1000)).copied()
    };
    let (_, flows) = callers(&waiting).expect("it shares a group");
    assert_eq!(flows, 2);
    waiting.leave(first);
    waiting.leave(second);
    assert_eq!(callers(&waiting), None);
}

#[test]
fn a_caller_among_too_many_joins_the_group_of_its_hand_that_would_serve_it_first() {
    let mut waiting = Waiting::new(1);
    for caller in 0..OWN_GROUPS as u64 {
        waiting.wait(0, caller);
    }
    let mut joined = BTreeSet::new();
    for _ in 0..HAND {
        let flow = waiting.wait(0, 1000);
        let tags = waiting.order.tags.as_ref().expect("many wait");
        let (group, _) = tags.classes[0].callers.sharded[&Caller(1000)];
        joined.insert(group);
        // The group has had its turn, so the others of the hand go before it.
        waiting.serve_flow(flow, |_| one());
        waiting.leave(flow);
    }
    assert_eq!(joined, hand(7, Caller(1000)).into_iter().collect());
}

#[test]
fn hands_are_dealt_from_the_whole_pack_and_differ_from_seed_to_seed() {
    let mut seen = BTreeSet::new();
    let mut twins = 0;
    for caller in 0..1000 {
        let mut cards = hand(1, Caller(caller));
        assert_ne!(cards, hand(2, Caller(caller)));
        seen.extend(cards);
        cards.sort_unstable();
        assert!(cards.windows(2).all(|pair| pair[0] < pair[1]), "{cards:?}");
        let mut next = hand(1, Caller(caller + 1));
        next.sort_unstable();
        twins += u32::from(cards == next);
    }
    assert_eq!((seen.len(), twins), (usize::from(SHARED_GROUPS), 0));
}
