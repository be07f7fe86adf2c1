//! Keys come, are evicted for others, and return what was drawn for them.

use crate::*;

#[test]
fn the_least_recently_used_key_is_evicted_for_a_new_one() {
    let mut gate = one_by_user(10);
    set(&mut gate.node, &[(USER, quota(settings(10)))], 3);
    for (after, user) in ["a", "b", "c", "a", "d"].into_iter().enumerate() {
        gate.go_to(ms(after as u64));
        gate.call(&[of_user(user)]);
    }
    let is_known = |user: &str| {
        let known = gate
            .node
            .scheduler()
            .quota_now(at(gate.now), &of_user(user));
        known.is_some()
    };
    let known: Vec<_> = ["a", "b", "c", "d"]
        .into_iter()
        .filter(|user| is_known(user))
        .collect();
    assert_eq!(known, ["a", "c", "d"]);
    assert_eq!(gate.node.scheduler_mut().forgotten_quotas().len(), 1);
    let counts = gate.node.scheduler().quota_counts(USER).expect("a quota");
    assert_eq!((counts.keys, counts.forgotten, counts.local), (3, 1, 5));
    let newest_first = gate.node.scheduler().quotas_now(at(gate.now), USER, 2);
    let newest_first: Vec<_> = newest_first.iter().map(|it| &*it.of.key).collect();
    assert_eq!(newest_first, ["d", "a"]);
}

/// Makes calls of one user, and between any two of them what `between` does. Returns how many of
/// hers go.
fn calls_of_alice(gate: &mut Alone, count: u64, mut between: impl FnMut(&mut Alone, u64)) -> usize {
    let mut ids = Vec::new();
    for each in 0..count {
        gate.go_to(ms(each + 1));
        ids.push(gate.call(&[of_user("alice")]));
        for stranger in 0..4 {
            between(gate, each * 4 + stranger);
        }
    }
    ids.iter().filter(|&&id| gate.went(id)).count()
}

#[test]
fn calls_that_are_refused_take_nothing_from_the_keys_of_others() {
    let refused = |reason: RefusalReason, change: &dyn Fn(&mut Call)| {
        let mut gate = Alone::new(&[
            (USER, quota(settings(100))),
            (TOTAL, rejecting(settings(1))),
        ]);
        let rules = [
            (USER, quota(settings(100))),
            (TOTAL, rejecting(settings(1))),
        ];
        set(&mut gate.node, &rules, 4);
        let all = key(TOTAL, "all");
        gate.call(std::slice::from_ref(&all));
        let refusal = gate.submit(call(gate.now, std::slice::from_ref(&all)));
        assert_eq!(
            refusal.expect_err("nothing is left").reason,
            RefusalReason::RateLimited
        );
        let went = calls_of_alice(&mut gate, 40, |gate, stranger| {
            let stranger = of_user(&format!("stranger {stranger}"));
            let mut call = call(gate.now, &[stranger]);
            change(&mut call);
            let refusal = gate.submit(call).expect_err("it is refused");
            assert_eq!(refusal.reason, reason);
        });
        assert_eq!(went, 40, "{reason:?}");
        let counts = gate.node.scheduler().quota_counts(USER).expect("a quota");
        assert_eq!((counts.keys, counts.forgotten), (1, 0), "{reason:?}");
    };
    refused(RefusalReason::DeadlinePassed, &|call| {
        call.arrived = Timestamp::ZERO;
        call.deadline = Some(Timestamp::ZERO);
    });
    refused(RefusalReason::NeverPossible, &|call| {
        call.tokens = Tokens::new(101.0).expect("a cost");
    });
    refused(RefusalReason::RateLimited, &|call| {
        let stranger = call.quotas.clone().expect("one");
        call.quotas = Some([stranger[0].clone(), key(TOTAL, "all")].into());
    });
}

#[test]
fn calls_that_find_no_place_take_nothing_from_the_keys_of_others() {
    let rules = [(USER, quota(settings(100))), (TOTAL, quota(settings(1)))];
    let mut gate = Alone::new(&rules);
    set(&mut gate.node, &rules, 4);
    // One call waits.
    let all = key(TOTAL, "all");
    gate.call(std::slice::from_ref(&all));
    gate.call(std::slice::from_ref(&all));
    let went = calls_of_alice(&mut gate, 40, |gate, stranger| {
        gate.node
            .scheduler_mut()
            .apply(at(gate.now), policy(Vec::new(), 1));
        let refusal = gate.submit(call(gate.now, &[of_user(&format!("stranger {stranger}"))]));
        assert_eq!(
            refusal.expect_err("no place").reason,
            RefusalReason::QueueFull
        );
        gate.node
            .scheduler_mut()
            .apply(at(gate.now), policy(Vec::new(), 1_000));
    });
    assert_eq!(went, 40);
    let counts = gate.node.scheduler().quota_counts(USER).expect("a quota");
    assert_eq!((counts.keys, counts.forgotten), (1, 0));
}

#[test]
fn a_key_that_is_forgotten_gives_back_what_was_drawn_for_it() {
    let mut gate = one_by_user(100);
    set(&mut gate.node, &[(USER, quota(settings(100)))], 4);
    let went = calls_of_alice(&mut gate, 40, |gate, stranger| {
        gate.call(&[of_user(&format!("stranger {stranger}"))]);
    });
    assert_eq!(went, 40, "what was drawn for her is still hers");
    let (_, record) = gate.store.get(&of_user("alice")).expect("a record");
    let known = gate
        .node
        .scheduler()
        .quota_now(at(gate.now), &of_user("alice"));
    let held = known.map_or(0, |now| now.ledger.held);
    assert_eq!(record.left() + held, 60, "and nothing of it is lost");
    let counts = gate.node.scheduler().quota_counts(USER).expect("a quota");
    assert!(counts.keys <= 4 && counts.forgotten >= 39, "{counts:?}");
}

#[test]
fn a_key_that_holds_nothing_is_forgotten_before_one_that_holds_tokens() {
    let mut gate = one_by_user(100);
    set(&mut gate.node, &[(USER, quota(settings(100)))], 2);
    gate.call(&[of_user("alice")]);
    assert!(gate.held(&of_user("alice")) > 0);
    gate.go_to(ms(1));
    let all = costing(100.0, call(gate.now, &[of_user("bob")]));
    let (bob, _) = gate.submit(all).expect("it is taken in");
    assert!(gate.went(bob));
    assert_eq!(gate.held(&of_user("bob")), 0);
    gate.go_to(ms(2));
    gate.call(&[of_user("carol")]);
    let now = at(gate.now);
    let known = |user: &str| {
        gate.node
            .scheduler()
            .quota_now(now, &of_user(user))
            .is_some()
    };
    assert_eq!(
        [known("alice"), known("bob"), known("carol")],
        [true, false, true]
    );
}

#[test]
fn a_key_that_is_named_while_it_gives_back_goes_on_with_what_it_has() {
    let mut gate = one_by_user(100);
    set(&mut gate.node, &[(USER, quota(settings(100)))], 2);
    gate.call(&[of_user("alice")]);
    gate.go_to(ms(1));
    gate.call(&[of_user("carol")]);
    gate.answers = false;
    gate.call(&[of_user("bob")]);
    // The store has not answered yet: what alice had is on its way there.
    let again = gate.call(&[of_user("alice")]);
    gate.answer_now();
    assert!(gate.went(again));
    let (_, record) = gate.store.get(&of_user("alice")).expect("a record");
    assert_eq!(record.left() + gate.held(&of_user("alice")), 98);
}

#[test]
fn keys_that_a_silent_store_takes_nothing_back_for_stay_few_and_let_new_ones_in() {
    let mut gate = one_by_user(100);
    set(&mut gate.node, &[(USER, quota(settings(100)))], 5_000);
    for user in 0..5_000 {
        gate.call(&[of_user(&format!("user {user}"))]);
    }
    gate.answers = false;
    set(&mut gate.node, &[(USER, quota(settings(100)))], 1);
    gate.run();
    let asked = gate.unanswered.len();
    assert_eq!(asked, 16, "few give back at once");
    let refused = gate.submit(call(gate.now, &[of_user("alice")]));
    assert_eq!(
        refused.expect_err("no room yet").reason,
        RefusalReason::QueueFull
    );
    // None of them is answered: nothing can be given back.
    for _ in 0..10 {
        gate.go_to(gate.now + ms(90));
        gate.unanswered.clear();
    }
    gate.call(&[of_user("alice")]);
    let counts = gate.node.scheduler().quota_counts(USER).expect("a quota");
    assert_eq!(counts.keys, 1);
}

#[test]
fn a_call_that_leaves_takes_its_tokens_out_of_what_its_key_waits_for() {
    let mut gate = one_by_user(3);
    let waits = |gate: &Alone| {
        let key = gate
            .node
            .scheduler()
            .quota_now(at(gate.now), &of_user("alice"));
        let key = key.expect("it was named");
        (key.waiting, key.waiting_tokens)
    };
    let submit = |gate: &mut Alone, tokens| {
        let call = costing(tokens, call(gate.now, &[of_user("alice")]));
        gate.submit(call).expect("it is taken in").0
    };
    submit(&mut gate, 3.0);
    let (leaves, stays) = (submit(&mut gate, 2.0), submit(&mut gate, 1.0));
    assert_eq!(waits(&gate), (2, 3));
    assert!(gate.node.cancel(leaves), "it waits");
    assert_eq!(waits(&gate), (1, 1));
    gate.go_to(ms(1_000));
    assert!(gate.went(stays));
    assert_eq!(waits(&gate).1, 0);
}

#[test]
fn a_key_that_a_call_waits_for_is_not_forgotten_and_a_call_without_one_is_refused() {
    let mut gate = one_by_user(1);
    set(&mut gate.node, &[(USER, quota(settings(1)))], 2);
    for user in ["a", "b"] {
        gate.call(&[of_user(user)]);
        gate.call(&[of_user(user)]);
    }
    let third = call(gate.now, &[of_user("c")]);
    let refusal = gate
        .submit(third)
        .expect_err("there is no room for a third");
    assert_eq!(refusal.reason, RefusalReason::QueueFull);
    assert_eq!(refusal.limit.as_deref(), Some(USER));
    gate.go_to(ms(1_000));
    let id = gate.call(&[of_user("c")]);
    assert!(gate.went(id), "no call waits for the others any more");
}

#[test]
fn however_many_keys_come_the_number_known_is_bounded_and_other_keys_are_not_affected() {
    let mut gate = Alone::new(&[(USER, quota(settings(1))), (TOTAL, quota(settings(5)))]);
    let rules = [(USER, quota(settings(1))), (TOTAL, quota(settings(5)))];
    set(&mut gate.node, &rules, 1_000);
    let all = key(TOTAL, "all");
    let first = gate.call(std::slice::from_ref(&all));
    assert!(gate.went(first));
    let mut now = Duration::ZERO;
    for user in 0..100_000 {
        now += Duration::from_micros(1);
        gate.now = now;
        let id = gate.call(&[of_user(&format!("user {user}"))]);
        assert!(gate.spent.remove(&id).is_some(), "{user}");
        gate.give_back(id);
        gate.store = RecordStore::default();
        gate.node.scheduler_mut().forgotten_quotas();
    }
    let counts = gate.node.scheduler().quota_counts(USER).expect("a quota");
    assert!(
        counts.keys <= 1_000 && counts.forgotten >= 99_000,
        "{counts:?}"
    );
    let again = gate.call(std::slice::from_ref(&all));
    assert!(gate.went(again));
}

#[test]
fn a_forgotten_key_that_comes_back_has_spent_its_own_share() {
    let safe = RuleSettings {
        away: OutagePolicy::Safe { percent: 50 },
        ..settings(4)
    };
    let mut gate = Alone::new(&[(USER, quota(safe))]);
    set(&mut gate.node, &[(USER, quota(safe))], 1);
    gate.go_to(ms(2_100));
    let went = |gate: &mut Alone, user: &str| {
        let ids: Vec<_> = (0..6).map(|_| gate.call(&[of_user(user)])).collect();
        let went = ids.iter().filter(|&&id| gate.went(id)).count();
        let waiting = ids.iter().filter(|&&id| !gate.went(id));
        let waiting: Vec<_> = waiting.copied().collect();
        (went, waiting)
    };
    let (first, waiting) = went(&mut gate, "alice");
    assert_eq!(first, 4, "its own two, and those drawn");
    assert_eq!(waiting.len(), 2);
    gate.go_to(ms(3_000));
    assert_eq!(gate.spent.len(), 6);
    gate.call(&[of_user("bob")]);
    let (again, _) = went(&mut gate, "alice");
    assert!(
        again <= 2,
        "{again} passed in a window in which two had: who forgot can't know"
    );
}
