//! Reserves and pools of classes.

use crate::*;

/// A user class of weight 10, and a polling class of weight 1.
fn two_classes(limits: Vec<LimitRule>, postpone: Postpone) -> Gate {
    Gate::with(policy(limits, &[10, 1], postpone))
}

const USER: Class = Class(0);
const POLLING: Class = Class(1);

fn keeping(amount: u32, rule: LimitRule) -> LimitRule {
    LimitRule {
        reserve: Some(Reserve {
            class: USER,
            amount,
        }),
        ..rule
    }
}

fn of_class(gate: &Gate, class: Class) -> Call {
    gate.call(1.0).class(class).bucket(None).quotas(None)
}

#[test]
fn reserved_slots_stay_free_for_their_class() {
    let slots = keeping(2, rule("slots", Scope::Every, outstanding(5)));
    let mut gate = two_classes(vec![slots], Postpone::InTurn);
    for id in 0..50 {
        let call = of_class(&gate, POLLING);
        gate.submit(call, id);
    }
    let running: Vec<_> = (0..3).map(|_| gate.run()).collect();
    assert!(matches!(gate.next(), Step::Idle), "two of five are kept");
    for id in 100..104 {
        let call = of_class(&gate, USER);
        gate.submit(call, id);
    }
    let users: Vec<_> = (0..2).map(|_| gate.run()).collect();
    assert_eq!([users[0].0, users[1].0], [100, 101]);
    assert!(matches!(gate.next(), Step::Idle), "all five are taken");
    // Its class may have the others' too, and goes first by weight.
    for (_, hold) in running {
        gate.finish(hold);
    }
    let (third, _hold) = gate.run();
    assert_eq!(third, 102);
    for (_, hold) in users {
        gate.finish(hold);
    }
    let ids: Vec<u64> = (0..3).map(|_| gate.run().0).collect();
    assert!(ids.contains(&103), "{ids:?}");
}

#[test]
fn the_reserve_of_a_window_opens_when_it_says() {
    let total = keeping(3, rule("total", Scope::Every, window(10)));
    let mut gate = two_classes(vec![total], Postpone::InTurn);
    for id in 0..30 {
        let call = of_class(&gate, POLLING);
        gate.submit(call, id);
    }
    assert_eq!(gate.drain().len(), 7);
    gate.sleeps_until(1000);
    gate.now = at(400);
    for id in 100..105 {
        let call = of_class(&gate, USER);
        gate.submit(call, id);
    }
    assert_eq!(gate.drain(), [100, 101, 102]);
    gate.sleeps_until(1000);
    gate.now = at(1000);
    // Seven departed at 0 and three users at 400: seven are free. Of ten turns at the limit the
    // others have one, and what users took of what is kept for them is none.
    let ran = gate.drain();
    assert_eq!((ran.len(), &ran[..3]), (7, &[103, 7, 104][..]));
    // The users' three free at 1400. Then they use two of the three that are kept for them, so
    // that one of those stays free, and the others may have what is left.
    gate.sleeps_until(1400);
    gate.now = at(1400);
    assert_eq!(gate.drain().len(), 2);
    gate.sleeps_until(2000);
}

/// Room for the waiting calls of a class with a reserve, when others wait for the same limit before them and what
/// is kept comes back.
#[test]
fn the_reserve_wakes_its_class_and_the_rest_wakes_the_others() {
    let slots = keeping(1, rule("slots", Scope::Every, outstanding(2)));
    let mut gate = two_classes(vec![slots], Postpone::InTurn);
    let submit = |gate: &mut Gate, class, id| {
        let call = of_class(gate, class);
        gate.submit(call, id)
    };
    submit(&mut gate, POLLING, 0);
    submit(&mut gate, USER, 100);
    let (user, of_user) = gate.run();
    let (polling, of_polling) = gate.run();
    assert_eq!((polling, user), (0, 100));
    for id in 1..3 {
        submit(&mut gate, POLLING, id);
    }
    let leaves = submit(&mut gate, USER, 101);
    submit(&mut gate, USER, 102);
    assert!(matches!(gate.next(), Step::Idle), "both slots are taken");
    // The first of the class leaves: the next one waits in its place.
    assert!(gate.scheduler.cancel(gate.now, leaves).is_some());
    assert!(matches!(gate.next(), Step::Idle));
    // What is kept comes back, as if it had not been drawn: the class's own has it, though others came
    // before.
    gate.scheduler.give_back(gate.now, of_user);
    let (user, of_user) = gate.run();
    assert_eq!(user, 102);
    assert!(matches!(gate.next(), Step::Idle));
    // The rest comes back: it is for the others.
    gate.finish(of_polling);
    let (polling, of_polling) = gate.run();
    assert_eq!(polling, 1);
    assert!(matches!(gate.next(), Step::Idle));
    // Without calls of its class, the reserve stays.
    gate.finish(of_user);
    assert!(matches!(gate.next(), Step::Idle), "one of two is kept");
    gate.finish(of_polling);
    let (polling, _hold) = gate.run();
    assert_eq!(polling, 2);
    submit(&mut gate, USER, 103);
    assert_eq!(gate.run().0, 103);
}

#[test]
fn the_reserve_goes_to_its_class_though_another_has_the_next_turn() {
    let slots = keeping(1, rule("slots", Scope::Every, outstanding(3)));
    let mut gate = two_classes(vec![slots], Postpone::InTurn);
    for id in 0..4 {
        let call = of_class(&gate, POLLING);
        gate.submit(call, id);
    }
    let mut running: BTreeMap<u64, Hold> = [(); 2].map(|()| gate.run()).into();
    assert!(matches!(gate.next(), Step::Idle));
    for id in 100..103 {
        let call = of_class(&gate, USER).tokens(tokens(100.0));
        gate.submit(call, id);
    }
    running.extend([gate.run()]);
    assert!(running.keys().eq(&[0, 1, 100]));
    // What ends, and what runs then. The users' first has what is kept for them, and their second a
    // turn of a hundred tokens, so the others are next: but not for what is kept.
    for (ends, runs) in [(0, 101), (100, 2), (101, 102), (1, 3)] {
        let hold = running.remove(&ends).expect("it runs");
        gate.finish(hold);
        let (id, hold) = gate.run();
        assert_eq!(id, runs, "{ends} ended");
        running.insert(id, hold);
        assert!(matches!(gate.next(), Step::Idle));
    }
}

#[test]
fn a_reload_keeps_a_reserve_and_its_use() {
    let policy_of = |amount| {
        let slots = keeping(amount, rule("slots", Scope::Every, outstanding(4)));
        let total = keeping(amount, rule("total", Scope::Every, window(4)));
        policy(vec![slots, total], &[10, 1], Postpone::InTurn)
    };
    let mut gate = Gate::with(policy_of(1));
    for (class, id) in [(USER, 100), (POLLING, 0)] {
        let call = of_class(&gate, class);
        gate.submit(call, id);
    }
    let (user, of_user) = gate.run();
    let (_, _polling) = gate.run();
    assert_eq!(user, 100);
    gate.scheduler.apply(gate.now, policy_of(2));
    // Two are kept, of which one is in flight: others have two in all.
    for id in 1..5 {
        let call = of_class(&gate, POLLING);
        gate.submit(call, id);
    }
    let (second, _second) = gate.run();
    assert_eq!(second, 1);
    assert!(matches!(gate.next(), Step::Idle), "one slot is kept");
    gate.scheduler.give_back(gate.now, of_user);
    assert!(matches!(gate.next(), Step::Idle), "two slots are kept");
    for id in 101..104 {
        let call = of_class(&gate, USER);
        gate.submit(call, id);
    }
    let users: Vec<_> = (0..2).map(|_| gate.run()).collect();
    assert_eq!([users[0].0, users[1].0], [101, 102]);
    assert!(matches!(gate.next(), Step::Idle));
    for (_, hold) in users {
        gate.scheduler.sent(gate.now, &hold);
        gate.finish(hold);
    }
    // The slots are free, and the window has what departed: two of the others are reserved in it.
    gate.sleeps_until(1000);
    gate.now = at(1000);
    assert_eq!(gate.run().0, 103);
    gate.scheduler.apply(gate.now, policy_of(0));
    let _last = gate.run();
    assert!(matches!(gate.next(), Step::Idle), "four are in flight");
}

#[test]
fn a_pool_caps_its_class_inside_the_total() {
    let limits = vec![
        rule("slots", Scope::Every, outstanding(4)),
        rule("pool", Scope::Class(POLLING), outstanding(2)),
    ];
    let mut gate = two_classes(limits, Postpone::InTurn);
    for id in 0..10 {
        let call = of_class(&gate, POLLING);
        gate.submit(call, id);
    }
    let deploys: Vec<_> = (0..2).map(|_| gate.run()).collect();
    assert!(matches!(gate.next(), Step::Idle), "the pool is full");
    for id in 100..105 {
        let call = of_class(&gate, USER);
        gate.submit(call, id);
    }
    let users: Vec<_> = (0..2).map(|_| gate.run()).collect();
    assert_eq!([users[0].0, users[1].0], [100, 101]);
    assert!(matches!(gate.next(), Step::Idle), "the total is full");
    for (_, hold) in deploys.into_iter().chain(users) {
        gate.finish(hold);
    }
    let ids: Vec<u64> = (0..4).map(|_| gate.run().0).collect();
    assert_eq!(ids.iter().filter(|&&id| id < 100).count(), 1, "{ids:?}");
}

#[test]
fn a_call_that_changes_its_class_meets_the_pool_of_the_new_one() {
    let limits = vec![rule("pool", Scope::Class(POLLING), outstanding(1))];
    let mut gate = two_classes(limits, Postpone::InTurn);
    let call = of_class(&gate, POLLING);
    gate.submit(call.clone(), 1);
    let (_, _hold) = gate.run();
    let ticket = gate.submit(call, 2);
    assert!(matches!(gate.next(), Step::Idle));
    assert!(gate.scheduler.reclass(gate.now, ticket, USER));
    assert_eq!(gate.run().0, 2);
}

/// 300 polls at once and a user call every 200 ms, through 10 slots and 30 a second, every call
/// taking 200 ms. Returns the median wait of the user calls, in seconds.
fn storm(postpone: Postpone, kept: Option<u32>, in_classes: bool) -> f64 {
    let keep = |rule| match kept {
        Some(amount) => keeping(amount, rule),
        None => rule,
    };
    let limits = vec![
        keep(rule("total", Scope::Every, window(30))),
        keep(rule("slots", Scope::Every, outstanding(10))),
    ];
    let mut gate = two_classes(limits, postpone);
    let class = |class| if in_classes { class } else { POLLING };
    for id in 0..300 {
        let call = of_class(&gate, class(POLLING));
        gate.submit(call, id);
    }
    let mut arrivals: Vec<Timestamp> = (0..40).map(|nth| at(100 + 200 * nth)).collect();
    arrivals.reverse();
    let mut ends: BTreeMap<(Timestamp, u64), Hold> = BTreeMap::new();
    let (mut users, mut waits) = (BTreeMap::new(), Vec::new());
    let mut ran = 0;
    while ran < 340 {
        let wake = match gate.next() {
            Step::Run { payload, hold, .. } => {
                gate.scheduler.sent(gate.now, &hold);
                ends.insert((gate.now + Duration::from_millis(200), payload), hold);
                if let Some(came) = users.remove(&payload) {
                    waits.push(gate.now.since(came).as_secs_f64());
                }
                ran += 1;
                continue;
            }
            Step::Expired { .. } => panic!("no call here has a deadline"),
            Step::SleepUntil(moment) => moment,
            Step::Idle => Timestamp::MAX,
        };
        let end = ends.keys().next().copied();
        let moments = [
            Some(wake),
            arrivals.last().copied(),
            end.map(|(end, _)| end),
        ];
        gate.now = moments
            .into_iter()
            .flatten()
            .min()
            .expect("there is a next");
        if let Some((_, hold)) = end
            .filter(|&(end, _)| end == gate.now)
            .and_then(|end| ends.remove_entry(&end))
        {
            gate.finish(hold);
        } else if arrivals.last() == Some(&gate.now) {
            arrivals.pop();
            let id = 1000 + arrivals.len() as u64;
            let call = of_class(&gate, class(USER));
            gate.submit(call, id);
            users.insert(id, gate.now);
        }
    }
    waits.sort_by(f64::total_cmp);
    assert_eq!(waits.len(), 40);
    waits[20]
}

#[test]
fn user_calls_pass_a_storm_of_polls_in_less_than_a_second() {
    let jitter = Postpone::Jitter {
        min: SECOND,
        max: 3 * SECOND,
    };
    let plain = storm(Postpone::InTurn, None, false);
    assert!(plain > 4.0, "by arrival they wait {plain} s");
    for (postpone, kept) in [
        (Postpone::InTurn, None),
        (Postpone::InTurn, Some(2)),
        (jitter, Some(0)),
        (jitter, Some(2)),
    ] {
        let waited = storm(postpone, kept, true);
        assert!(waited < 1.0, "{waited} s with {postpone:?}, {kept:?} kept");
    }
}

#[test]
fn a_call_for_whose_class_something_is_kept_is_never_set_aside() {
    let jitter = Postpone::Jitter {
        min: SECOND,
        max: 3 * SECOND,
    };
    let slots = keeping(0, rule("slots", Scope::Every, outstanding(1)));
    let mut gate = two_classes(vec![slots], jitter);
    let poll = of_class(&gate, POLLING);
    gate.submit(poll.clone(), 1);
    let (_, hold) = gate.run();
    let user = of_class(&gate, USER);
    gate.submit(user, 100);
    gate.submit(poll, 2);
    // The poll is set aside, and the user call is not: it runs when the slot is free.
    assert!(matches!(gate.next(), Step::SleepUntil(_)));
    gate.now = at(10);
    gate.finish(hold);
    match gate.next() {
        Step::Run {
            payload, waited, ..
        } => assert_eq!((payload, waited.postponed), (100, 0)),
        step => panic!("the user call runs, not {step:?}"),
    }
}
