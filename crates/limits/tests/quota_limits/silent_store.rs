//! The store is slow, silent or unavailable.

use crate::*;

/// A quota whose first three calls of a user pass before the store has answered, in the middle of a
/// window. No question is answered.
fn on_account_up_to_three() -> Alone {
    let optimistic = RuleSettings {
        mode: DrawMode::Optimistic,
        base: Some(3),
        ..settings(100)
    };
    let mut gate = Alone::new(&[(USER, quota(optimistic))]);
    gate.go_to(ms(1_500));
    gate.answers = false;
    gate
}

#[test]
fn on_account_calls_pass_while_the_draw_is_under_way_up_to_the_base() {
    let mut gate = on_account_up_to_three();
    let ids: Vec<_> = (0..5).map(|_| gate.call(&[of_user("alice")])).collect();
    let went = |gate: &Alone| ids.iter().filter(|&&id| gate.went(id)).count();
    assert_eq!(went(&gate), 3, "no more than the base");
    gate.answer_now();
    assert_eq!(went(&gate), 5);
}

/// Lets time pass while no question is answered, in small steps: the scheduler wakes by itself.
fn pass_unanswered(gate: &mut Alone, until: Duration) {
    gate.answers = false;
    while gate.now < until {
        gate.now += ms(10);
        gate.run();
        gate.unanswered.clear();
    }
}

#[test]
fn a_question_that_is_never_answered_wakes_the_calls_that_no_longer_need_the_answer() {
    let mut gate = on_account_up_to_three();
    gate.call(&[of_user("alice")]);
    gate.answer_now();
    gate.answers = false;
    let held = gate.held(&of_user("alice"));
    for _ in 0..held {
        gate.call(&[of_user("alice")]);
    }
    let ids: Vec<_> = (0..5).map(|_| gate.call(&[of_user("alice")])).collect();
    let went = |gate: &Alone| ids.iter().filter(|&&id| gate.went(id)).count();
    assert_eq!(went(&gate), 3, "no more than the base");
    pass_unanswered(&mut gate, ms(2_600));
    let newcomer = gate.call(&[of_user("alice")]);
    assert!(
        gate.went(newcomer),
        "another window has begun, and nothing is owed in it"
    );
    assert_eq!(went(&gate), 5, "and those that waited go before");
}

#[test]
fn while_the_store_is_silent_a_call_that_waits_goes_where_a_new_one_could() {
    for away in [
        OutagePolicy::Allow,
        OutagePolicy::Deny,
        OutagePolicy::Safe { percent: 50 },
    ] {
        let silent = RuleSettings {
            away,
            ..settings(10)
        };
        let mut gate = Alone::new(&[(USER, quota(silent))]);
        gate.answers = false;
        let ids: Vec<_> = (0..6).map(|_| gate.call(&[of_user("alice")])).collect();
        for step in 1..40 {
            pass_unanswered(&mut gate, ms(step * 100));
            let newcomer = gate.call(&[of_user("alice")]);
            if gate.went(newcomer) {
                let went = ids.iter().all(|&id| gate.went(id));
                assert!(went, "{away:?}: a new call goes before those that wait");
            }
        }
    }
}

#[test]
fn a_store_that_is_gone_bars_only_what_needs_it() {
    let mut gate = Alone::new(&[
        (USER, quota(settings(10))),
        (TOTAL, rejecting(settings(10))),
    ]);
    gate.answers = false;
    let waits = gate.call(&[of_user("alice")]);
    let free = gate.call(&[]);
    assert!(gate.went(free) && !gate.went(waits));
    let fail = |gate: &mut Alone| {
        for question in std::mem::take(&mut gate.unanswered) {
            if let QuotaAsk::Read(of) = question.ask {
                let now = at(gate.now);
                let scheduler = gate.node.scheduler_mut();
                scheduler.answer_quota(now, question.at, of, StoreReply::Unavailable, 0);
            }
        }
        gate.run();
    };
    fail(&mut gate);
    gate.call(&[key(TOTAL, "all")]);
    fail(&mut gate);
    let refused = gate
        .refused
        .values()
        .next()
        .expect("a call that may not wait is refused");
    assert_eq!(refused.reason, RefusalReason::StoreAway);
    assert_eq!(refused.limit.as_deref(), Some(TOTAL));
    let again = gate.submit(call(gate.now, &[key(TOTAL, "all")]));
    assert_eq!(
        again.expect_err("the store is unavailable").reason,
        RefusalReason::StoreAway
    );
    gate.answers = true;
    gate.go_to(ms(1_200));
    assert!(gate.went(waits), "it goes on as soon as there is an answer");
}

#[test]
fn a_scheduler_has_nothing_to_ask_unless_a_call_waits() {
    let mut gate = one_by_user(1);
    let rests = |gate: &Alone| gate.node.scheduler().has_nothing_to_ask();
    assert!(rests(&gate));
    gate.answers = false;
    let id = gate.call(&[of_user("alice")]);
    assert!(!rests(&gate), "it waits for the store");
    gate.answer_now();
    assert!(gate.went(id));
    assert!(rests(&gate));
    gate.call(&[of_user("alice")]);
    assert!(!rests(&gate), "it waits for the next window");
    gate.go_to(ms(1_000));
    assert!(rests(&gate));
}
