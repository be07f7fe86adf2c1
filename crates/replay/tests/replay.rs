//! The parts that a replay adds to a scheduler: order, stages of calls, a timer, predictions, and a store of quotas.

use std::time::Duration;

use tidegate_limits::call::QuotaKey;
use tidegate_limits::policy::{
    ClassShare, LimitRule, Postpone, WhenFull, WindowShape, WindowStamp,
};
use tidegate_limits::quota::{
    QuestionId, QuotaRecord, RecordVersion, RecordWrite, StoreReply, StoredRecord,
};
use tidegate_limits::scheduler::{Outcome, QuotaAsk, RefusalReason, Supplier, Supply};
use tidegate_limits::{Call, Limit, Policy, Scheduler, Timestamp};
use tidegate_replay::{Agenda, Decision, Predictions, Ranked, RecordStore, Replay};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    Ends(u32),
    Arrives(u32),
}

impl Ranked for Happens {
    type Rank = u8;

    fn rank(&self) -> u8 {
        match self {
            Self::Ends(_) => 0,
            Self::Arrives(_) => 1,
        }
    }
}

fn ms(millis: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(millis)
}

fn replay(limit: Limit) -> Replay<u32, Happens> {
    let classes = vec![ClassShare::new("user", 1)];
    let limits = vec![LimitRule::new("limit", limit)];
    let policy = Policy::new(limits, 100, WhenFull::Refuse, Postpone::InTurn, classes);
    Replay::new(Scheduler::new(policy.expect("it is sound")))
}

fn outstanding() -> Replay<u32, Happens> {
    replay(Limit::Outstanding { max: 1 })
}

fn window(micros: u64) -> Limit {
    Limit::Window {
        max: 1,
        length: Duration::from_micros(micros),
        guard: Duration::ZERO,
        shape: WindowShape::Sliding,
        stamp: WindowStamp::Sent,
    }
}

/// The calls that are admitted and refused now.
fn decide(replay: &mut Replay<u32, Happens>) -> (Vec<u32>, Vec<(u32, RefusalReason)>) {
    let (mut admitted, mut refused) = (Vec::new(), Vec::new());
    while let Some(decision) = replay.decide(&mut || 0) {
        match decision {
            Decision::Admitted { call, .. } => admitted.push(call),
            Decision::Refused { call, refusal, .. } => refused.push((call, refusal.reason)),
        }
    }
    (admitted, refused)
}

fn call() -> Call {
    Call::new("guest_list", Timestamp::ZERO)
}

#[test]
fn events_of_a_moment_happen_by_rank_and_then_as_they_were_planned() {
    let mut agenda = Agenda::default();
    let planned = [
        (2, Happens::Ends(1)),
        (1, Happens::Arrives(9)),
        (1, Happens::Arrives(3)),
        (1, Happens::Ends(7)),
    ];
    for (at, event) in planned {
        agenda.plan(ms(at), event);
    }
    assert_eq!(agenda.next_moment(), Some(ms(1)));
    let due: Vec<_> = std::iter::from_fn(|| agenda.pop_due(ms(1))).collect();
    let expected = [Happens::Ends(7), Happens::Arrives(9), Happens::Arrives(3)];
    assert_eq!(due, expected);
    assert_eq!(agenda.pop(), Some((ms(2), Happens::Ends(1))));
    assert_eq!(agenda.pop(), None);
    agenda.plan(ms(4), Happens::Ends(2));
    assert_eq!(
        agenda.drain().collect::<Vec<_>>(),
        [(ms(4), Happens::Ends(2))]
    );
    assert_eq!(agenda.next_moment(), None);
}

#[test]
fn calls_wait_run_and_end_in_virtual_time() {
    let mut replay = outstanding();
    for (nth, at) in [(1, 0), (2, 0), (3, 5)] {
        replay.plan(ms(at), Happens::Arrives(nth));
    }
    let mut history = Vec::new();
    while let Some(moment) = replay.next_moment() {
        replay.advance(moment);
        match replay.pop_due() {
            Some(Happens::Arrives(nth)) => drop(replay.submit(nth, call()).expect("there is room")),
            Some(Happens::Ends(nth)) => assert!(replay.finish(nth, Outcome::Served, None)),
            None => {}
        }
        let (admitted, refused) = decide(&mut replay);
        assert!(refused.is_empty());
        for nth in admitted {
            assert!(replay.sent(nth) && replay.is_running(nth));
            history.push((nth, moment));
            replay.plan(moment + Duration::from_millis(10), Happens::Ends(nth));
        }
    }
    assert_eq!(history, [(1, ms(0)), (2, ms(10)), (3, ms(20))]);
    assert!(replay.scheduler().is_at_rest());
    assert_eq!(replay.now(), ms(30));
}

#[test]
fn a_call_is_in_one_stage_and_ends_once() {
    let mut replay = outstanding();
    replay.submit(1, call()).expect("there is room");
    replay.submit(2, call()).expect("there is room");
    assert_eq!(decide(&mut replay).0, [1]);
    assert!(replay.ticket(1).is_none() && replay.ticket(2).is_some());
    assert!(!replay.cancel(1) && !replay.sent(2) && !replay.replied(2));
    assert!(!replay.give_back(2) && replay.requeue(2).is_none());
    assert!(replay.requeue(1).is_some());
    assert_eq!(decide(&mut replay).0, [1], "its turn is kept");
    assert!(replay.replied(1) && replay.give_back(1));
    assert!(!replay.give_back(1) && !replay.finish(1, Outcome::Served, None));
    assert!(replay.cancel(2) && !replay.cancel(2));
    assert!(replay.stage(1).is_none() && replay.stage(2).is_none());
    assert!(decide(&mut replay).0.is_empty());
    assert!(replay.scheduler().is_at_rest());
}

#[test]
fn a_call_that_need_not_wait_runs_at_once() {
    let mut replay = outstanding();
    assert!(replay.run_at_once(1, call()).is_ok() && replay.is_running(1));
    assert!(replay.run_at_once(2, call()).is_err());
    assert!(replay.stage(2).is_none());
}

#[test]
fn the_timer_fires_exactly_or_at_its_next_step_or_late() {
    let check = |step: u64, late: u64, expected: u64| {
        let mut replay = replay(window(1_500));
        replay.set_timer_step(Duration::from_micros(step));
        for nth in [1, 2] {
            replay.submit(nth, call()).expect("there is room");
        }
        assert_eq!(decide(&mut replay).0, [1]);
        replay.sent(1);
        assert!(decide(&mut replay).0.is_empty());
        replay.delay_wake(Duration::from_micros(late));
        let wake = Timestamp::ZERO + Duration::from_micros(expected);
        assert_eq!(
            (replay.wake(), replay.next_moment()),
            (Some(wake), Some(wake))
        );
        replay.advance(wake);
        assert_eq!(replay.pop_due(), None);
        assert_eq!(decide(&mut replay).0, [2]);
    };
    check(0, 0, 1_500);
    check(1_000, 0, 2_000);
    check(1_500, 0, 1_500);
    check(1_000, 70, 2_070);
}

#[test]
fn a_call_is_refused_early_only_if_that_is_asked_for() {
    let check = |predictions, expected: &[(u32, RefusalReason)]| {
        let mut replay = replay(window(1_000_000));
        replay.set_predictions(predictions);
        for nth in 1..=4 {
            let deadline = ms(2_500);
            replay
                .submit(nth, call().deadline(deadline))
                .expect("there is room");
            let (admitted, refused) = decide(&mut replay);
            match nth {
                1 => {
                    assert_eq!(admitted, [1]);
                    replay.sent(1);
                }
                2..=3 => assert!(
                    admitted.is_empty() && refused.is_empty(),
                    "{nth}: {refused:?}"
                ),
                _ => assert_eq!(refused, expected),
            }
        }
    };
    check(Predictions::Off, &[]);
    check(Predictions::Starts, &[]);
    check(
        Predictions::RefuseLate,
        &[(4, RefusalReason::PredictedLate)],
    );
}

#[test]
fn the_timer_wakes_a_scheduler_whose_limit_an_operator_closed() {
    let mut replay = outstanding();
    replay.advance(ms(3));
    let supply = Supply::until(0, ms(7), 1);
    let scheduler = replay.scheduler_mut();
    assert!(scheduler.supply(ms(3), "limit", Supplier::Operator, supply));
    replay.submit(1, call()).expect("there is room");
    assert!(decide(&mut replay).0.is_empty());
    assert_eq!(replay.wake(), Some(ms(7)));
    assert!(replay.quota_questions().is_empty());
}

#[test]
fn a_record_is_replaced_only_by_a_write_that_expects_its_version() {
    let record =
        |left| QuotaRecord::new(1, left, 100, 0, Duration::from_secs(60)).expect("it is sound");
    let of = QuotaKey {
        quota: "quota".into(),
        key: "key".into(),
    };
    let mut store = RecordStore::default();
    let question = QuestionId::numbered(1);
    let mut answer = |ask| store.answer(&of, ask).map(|(_, reply)| reply);
    let write = |replaces, left| {
        let record = record(left);
        QuotaAsk::Write(question, RecordWrite { replaces, record })
    };
    let stands = |version, left| {
        let (version, record) = (RecordVersion(version), record(left));
        Some(StoreReply::Stands(StoredRecord::Record { version, record }))
    };
    assert_eq!(answer(QuotaAsk::Time(question)), Some(StoreReply::Time));
    assert_eq!(
        answer(QuotaAsk::Read(question)),
        Some(StoreReply::Stands(StoredRecord::Absent))
    );
    assert_eq!(
        answer(write(None, 90)),
        Some(StoreReply::Written(RecordVersion(1)))
    );
    assert_eq!(answer(write(None, 80)), stands(1, 90));
    assert_eq!(
        answer(write(Some(RecordVersion(1)), 70)),
        Some(StoreReply::Written(RecordVersion(2)))
    );
    assert_eq!(answer(QuotaAsk::Read(question)), stands(2, 70));
    assert_eq!(answer(QuotaAsk::Settings), None);
    assert_eq!(store.put(&of, record(60)), RecordVersion(3));
    assert_eq!(store.get(&of), Some((RecordVersion(3), record(60))));
}
