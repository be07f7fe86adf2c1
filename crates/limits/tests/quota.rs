//! Steps of a ledger.

#[path = "quota_model/take_all.rs"]
mod take_all;

use std::time::Duration;

use take_all::take_all;
use tidegate_limits::quota::{
    Action, Coverage, DrawMode, Ledger, LedgerTrouble, OutagePolicy, QuestionId, QuotaRecord,
    RecordError, RecordVersion, RecordWrite, RuleSettings, StoreReply, StoreTime, StoredRecord,
    WaitingCost, WindowRule,
};
use tidegate_limits::{Timestamp, Verdict};

/// The window that runs at second 100.
const WINDOW: u64 = 10;

fn rule(change: impl FnOnce(&mut RuleSettings)) -> WindowRule {
    let mut settings = RuleSettings::new(100, Duration::from_secs(10));
    settings.away = OutagePolicy::Deny;
    settings.nodes_expected = 2;
    change(&mut settings);
    WindowRule::check(settings).expect("a rule")
}

/// The store's time, known exactly; local clocks show the same.
fn at(ms: u64) -> StoreTime {
    let now = Duration::from_millis(ms);
    StoreTime::between(Timestamp::from_nanos(ms * 1_000_000), now, now)
}

fn ledger(change: impl FnOnce(&mut RuleSettings)) -> Ledger {
    Ledger::new(rule(change), Timestamp::from_nanos(1))
}

fn waits(cost: u64) -> WaitingCost {
    WaitingCost {
        next: cost,
        sum: cost,
    }
}

fn record(window: u64, left: u64) -> QuotaRecord {
    QuotaRecord::new(window, left, 100, 0, Duration::from_secs(10)).expect("a record")
}

fn stands(version: u64, record: QuotaRecord) -> StoreReply {
    StoreReply::Stands(StoredRecord::Record {
        version: RecordVersion(version),
        record,
    })
}

fn read(ledger: &mut Ledger, cost: u64, ms: u64) -> QuestionId {
    match ledger.next(waits(cost), &at(ms)) {
        Action::Read(question) => question,
        other => panic!("{other:?}"),
    }
}

fn write(ledger: &mut Ledger, cost: u64, ms: u64) -> (QuestionId, RecordWrite) {
    match ledger.next(waits(cost), &at(ms)) {
        Action::Write(question, write) => (question, write),
        other => panic!("{other:?}"),
    }
}

/// Draws for a call of this cost, where this stands in the store.
fn drawn(ledger: &mut Ledger, cost: u64, standing: StoreReply, ms: u64) -> QuotaRecord {
    let question = read(ledger, cost, ms);
    ledger.done(question, standing, &at(ms), 0);
    let (question, write) = write(ledger, cost, ms);
    ledger.done(question, StoreReply::Written(RecordVersion(9)), &at(ms), 0);
    write.record
}

#[test]
fn the_first_call_opens_the_window_and_draws_in_one_write() {
    let mut ledger = ledger(|_| {});
    assert_eq!(ledger.take(5, &at(100_000)), Err(Coverage::Draw));
    let record = drawn(
        &mut ledger,
        5,
        StoreReply::Stands(StoredRecord::Absent),
        100_000,
    );
    assert_eq!(record.window(), WINDOW);
    assert!(record.left() <= 95);
    let spent = ledger.take(5, &at(100_001)).expect("it is covered");
    assert_eq!((spent.window, spent.drawn), (Some(WINDOW), 5));
}

#[test]
fn tokens_die_with_their_window() {
    let mut ledger = ledger(|_| {});
    drawn(&mut ledger, 5, stands(1, record(WINDOW, 50)), 100_000);
    assert_eq!(ledger.peek(5, &at(109_999)), Coverage::Covered);
    assert_eq!(ledger.peek(5, &at(110_000)), Coverage::Draw);
    // The next window may not have begun yet, or this one may be over.
    let unsure = StoreTime::between(
        Timestamp::from_nanos(110_000_000_000),
        Duration::from_millis(109_900),
        Duration::from_millis(110_100),
    );
    assert!(matches!(ledger.peek(5, &unsure), Coverage::Between { .. }));
}

#[test]
fn an_unknown_outcome_grants_nothing_and_a_late_reply_is_ignored() {
    let mut ledger = ledger(|_| {});
    let question = read(&mut ledger, 5, 100_000);
    ledger.done(question, stands(1, record(WINDOW, 50)), &at(100_000), 0);
    let (question, _) = write(&mut ledger, 5, 100_000);
    ledger.done(question, StoreReply::Unknown, &at(100_200), 0);
    ledger.done(
        question,
        StoreReply::Written(RecordVersion(2)),
        &at(100_300),
        0,
    );
    assert_eq!(ledger.now(&at(100_300)).held, 0);
    assert!(matches!(
        ledger.peek(5, &at(100_300)),
        Coverage::Away { .. }
    ));
    // It has to look again before it writes again.
    read(&mut ledger, 5, 101_300);
}

#[test]
fn a_conflict_shows_what_is_left_and_more_is_refused_until_the_end_or_a_change() {
    let mut ledger = ledger(|_| {});
    let question = read(&mut ledger, 5, 100_000);
    ledger.done(question, stands(1, record(WINDOW, 50)), &at(100_000), 0);
    assert!(!ledger.watches(&at(100_000)), "there is enough");
    let (question, _) = write(&mut ledger, 5, 100_000);
    ledger.done(question, stands(2, record(WINDOW, 3)), &at(100_001), 0);
    let refused = ledger.take(5, &at(100_001));
    assert!(
        matches!(refused, Err(Coverage::Exhausted { .. })),
        "{refused:?}"
    );
    assert_eq!(ledger.take(3, &at(100_001)), Err(Coverage::Draw));
    assert!(ledger.watches(&at(100_001)));
    ledger.told();
    assert!(!ledger.watches(&at(100_001)), "it reads first");
    let question = read(&mut ledger, 0, 100_002);
    ledger.done(question, stands(3, record(WINDOW, 40)), &at(100_002), 0);
    assert_eq!(ledger.peek(5, &at(100_002)), Coverage::Draw);
}

#[test]
fn a_call_of_several_keys_takes_from_all_or_from_none() {
    let (mut user, mut all) = (ledger(|_| {}), ledger(|_| {}));
    drawn(&mut user, 5, stands(1, record(WINDOW, 50)), 100_000);
    drawn(&mut all, 5, stands(1, record(WINDOW, 50)), 100_000);
    let time = at(100_001);
    let (of_user, of_all) = (user.now(&time).held, all.now(&time).held);
    let refused = take_all(&mut [(&mut user, 5), (&mut all, 1_000)], &time);
    assert_eq!(refused, Err((1, Coverage::Never)));
    assert_eq!(
        (user.now(&time).held, all.now(&time).held),
        (of_user, of_all)
    );
    let spent = take_all(&mut [(&mut user, 5), (&mut all, 1)], &time).expect("both cover it");
    assert_eq!((spent[0].drawn, spent[1].drawn), (5, 1));
    user.give_back(spent[0]);
    assert_eq!(user.now(&time).held, of_user);
}

#[test]
fn an_unreadable_record_is_kept_and_reported() {
    let mut ledger = ledger(|_| {});
    let question = read(&mut ledger, 5, 100_000);
    let foreign = StoreReply::Stands(StoredRecord::read(RecordVersion(1), b"100"));
    ledger.done(question, foreign, &at(100_000), 0);
    let trouble = LedgerTrouble::Unreadable(RecordError::Foreign);
    assert_eq!(ledger.now(&at(100_000)).trouble, Some(trouble));
    assert!(matches!(
        ledger.peek(5, &at(100_000)),
        Coverage::Away { .. }
    ));
    assert!(matches!(
        ledger.next(waits(5), &at(100_500)),
        Action::Sleep(_)
    ));
    let question = read(&mut ledger, 5, 101_000);
    ledger.done(question, stands(2, record(WINDOW, 50)), &at(101_000), 0);
    assert_eq!(ledger.now(&at(101_000)).trouble, None);
}

#[test]
fn a_record_that_vanished_is_written_again_with_nothing_left() {
    let mut ledger = ledger(|_| {});
    drawn(&mut ledger, 5, stands(1, record(WINDOW, 50)), 100_000);
    ledger.told();
    let cost = ledger.now(&at(100_001)).held + 1;
    assert_eq!(ledger.take(cost, &at(100_001)), Err(Coverage::Draw));
    let question = read(&mut ledger, cost, 100_001);
    ledger.done(
        question,
        StoreReply::Stands(StoredRecord::Absent),
        &at(100_001),
        0,
    );
    assert_eq!(ledger.now(&at(100_001)).trouble, Some(LedgerTrouble::Lost));
    let (question, write) = write(&mut ledger, cost, 100_001);
    assert_eq!((write.replaces, write.record.left()), (None, 0));
    ledger.done(
        question,
        StoreReply::Written(RecordVersion(1)),
        &at(100_001),
        0,
    );
    let refused = ledger.peek(cost, &at(100_002));
    assert!(matches!(refused, Coverage::Exhausted { .. }), "{refused:?}");
}

#[test]
fn a_read_that_was_old_costs_the_rest_of_the_window_nothing() {
    let mut ledger = ledger(|_| {});
    let written = drawn(&mut ledger, 5, stands(1, record(WINDOW, 50)), 100_000);
    ledger.told();
    let cost = ledger.now(&at(100_001)).held + 1;
    assert_eq!(ledger.take(cost, &at(100_001)), Err(Coverage::Draw));
    let question = read(&mut ledger, cost, 100_001);
    // What stood there before its own write.
    let old = stands(8, record(WINDOW - 1, 0));
    ledger.done(question, old, &at(100_001), 0);
    let refused = ledger.take(cost, &at(100_001));
    assert!(
        matches!(refused, Err(Coverage::Exhausted { .. })),
        "{refused:?}"
    );
    // Calls that are refused wait no more. The write finds out all the same.
    let (question, write) = write(&mut ledger, 0, 100_002);
    assert_eq!(
        (write.replaces, write.record.left()),
        (Some(RecordVersion(8)), 0)
    );
    ledger.done(question, stands(9, written), &at(100_002), 0);
    assert_eq!(ledger.now(&at(100_002)).trouble, None);
    assert_eq!(ledger.peek(cost, &at(100_002)), Coverage::Draw);
}

#[test]
fn a_record_of_the_future_is_followed_and_reported() {
    let mut ledger = ledger(|_| {});
    let question = read(&mut ledger, 5, 100_000);
    ledger.done(question, stands(1, record(WINDOW + 3, 4)), &at(100_000), 0);
    let ahead = LedgerTrouble::Ahead(Duration::from_secs(30));
    assert_eq!(ledger.now(&at(100_000)).trouble, Some(ahead));
    let refused = ledger.peek(5, &at(100_000));
    assert!(matches!(refused, Coverage::Exhausted { .. }), "{refused:?}");
}

#[test]
fn while_the_store_is_unavailable_the_rule_decides_what_passes() {
    let check = |away, covered: u64| {
        let mut ledger = ledger(|settings| settings.away = away);
        // It has run for longer than a window.
        let question = read(&mut ledger, 60, 100_000);
        ledger.done(question, StoreReply::Unavailable, &at(100_000), 0);
        let passed = (0..60).filter(|_| ledger.take(1, &at(100_001)).is_ok());
        assert_eq!(passed.count() as u64, covered);
    };
    check(OutagePolicy::Deny, 0);
    check(OutagePolicy::Allow, 60);
    check(OutagePolicy::Safe { percent: 50 }, 25);
}

#[test]
fn a_safe_share_is_there_anew_in_the_next_window_and_not_for_a_node_that_just_started() {
    let safe = |settings: &mut RuleSettings| settings.away = OutagePolicy::Safe { percent: 50 };
    let mut ledger = ledger(safe);
    assert_eq!(ledger.now(&at(100_000)).safe, 25);
    let _ = ledger.take(20, &at(100_000)).expect("its own");
    assert_eq!(ledger.now(&at(109_999)).safe, 5);
    assert_eq!(ledger.now(&at(110_001)).safe, 25);
    let young = Ledger::new(rule(safe), Timestamp::from_nanos(101_000_000_000));
    assert_eq!(young.now(&at(109_999)).safe, 0);
    assert_eq!(young.now(&at(110_001)).safe, 25);
}

/// By its own clock, the node cannot tell yet whether that window has begun.
#[test]
fn a_safe_share_is_there_anew_once_the_record_of_the_next_window_is_read() {
    let mut ledger = ledger(|settings| settings.away = OutagePolicy::Safe { percent: 50 });
    let _ = ledger.take(25, &at(104_000)).expect("its own");
    let [earliest, latest] = [109_950, 110_150].map(Duration::from_millis);
    let time = StoreTime::between(at(110_050).now(), earliest, latest);
    assert_eq!(ledger.now(&time).safe, 0);
    let Action::Read(question) = ledger.next(waits(1), &time) else {
        panic!("it asks the store");
    };
    let length = Duration::from_secs(10);
    let next = QuotaRecord::new(WINDOW + 1, 50, 100, 50, length).expect("a record");
    ledger.done(question, stands(1, next), &time, 0);
    assert_eq!(ledger.now(&time).safe, 25);
}

#[test]
fn a_window_that_is_lived_through_twice_has_one_safe_share() {
    let mut ledger = ledger(|settings| settings.away = OutagePolicy::Safe { percent: 50 });
    for second in [104, 110, 120] {
        let _ = ledger.take(25, &at(second * 1_000)).expect("its own");
    }
    // By the local clock three seconds later the store's clock shows seven less.
    let back = |ms: u64| {
        let now = Duration::from_millis(ms - 10_000);
        StoreTime::between(Timestamp::from_nanos(ms * 1_000_000), now, now)
    };
    for ms in [123_000, 130_001, 133_000, 139_999] {
        assert_eq!(ledger.now(&back(ms)).safe, 0, "{ms}");
        let moment = ledger.own_share_at(&back(ms)).expect("it is spent");
        let late = moment.since(Timestamp::from_nanos(140_000_000_000));
        assert!(late < Duration::from_millis(10), "{late:?}");
    }
    assert_eq!(ledger.now(&back(140_001)).safe, 25);
}

#[test]
fn returning_tokens_of_an_old_safe_share_adds_nothing_to_the_next() {
    let mut ledger = ledger(|settings| settings.away = OutagePolicy::Safe { percent: 50 });
    let older = ledger.take(25, &at(100_000)).expect("its own");
    let newer = ledger.take(20, &at(110_001)).expect("it is there anew");
    ledger.give_back(older);
    assert_eq!(
        ledger.now(&at(110_002)).safe,
        5,
        "the older window's is gone"
    );
    ledger.give_back(newer);
    assert_eq!(ledger.now(&at(110_002)).safe, 25);
}

#[test]
fn a_waiting_call_knows_when_the_share_is_renewed_without_the_store() {
    let mut ledger = ledger(|settings| settings.away = OutagePolicy::Safe { percent: 50 });
    let _ = ledger.take(25, &at(104_000)).expect("its own");
    let moment = ledger.own_share_at(&at(104_000)).expect("it is spent");
    let drift = moment.since(at(110_000).now());
    assert!((1..3).contains(&drift.as_millis()), "{drift:?}");
    assert_eq!(ledger.verdict(1, &at(104_000)), Verdict::NotBefore(moment));
    assert_eq!(ledger.peek(1, &at(110_002)), Coverage::Covered);
    assert_eq!(ledger.own_share_at(&at(110_002)), None);
    let unknown = |ms: u64| StoreTime::unknown(at(ms).now());
    let moment = ledger.own_share_at(&unknown(104_000)).expect("it is spent");
    let after = moment.since(at(104_000).now());
    assert!(
        (10_000..10_010).contains(&(after.as_millis() as u64)),
        "{after:?}"
    );
    let then = StoreTime::unknown(moment + Duration::from_nanos(1));
    assert_eq!(ledger.peek(1, &then), Coverage::Covered);
}

#[test]
fn an_optimistic_call_passes_on_account_up_to_the_base_and_the_draw_pays_it() {
    let mut ledger = ledger(|settings| {
        settings.mode = DrawMode::Optimistic;
        settings.base = Some(10);
    });
    let spent = ledger.take(10, &at(100_000)).expect("on account");
    assert_eq!(spent.owed, 10);
    assert_eq!(ledger.take(1, &at(100_000)), Err(Coverage::Draw));
    drawn(&mut ledger, 0, stands(1, record(WINDOW, 100)), 100_000);
    let now = ledger.now(&at(100_001));
    assert_eq!(now.owed, 0);
    let grant = 100 - now.record.expect("it was read").left();
    assert_eq!(now.held, grant - 10);
}

#[test]
fn a_surplus_is_given_back_after_it_has_left_the_purse() {
    let mut ledger = ledger(|settings| {
        settings.base = Some(1);
        settings.relinquish_every = Duration::from_secs(1);
    });
    drawn(&mut ledger, 40, stands(1, record(WINDOW, 100)), 100_000);
    // The call has left.
    let (question, write) = write(&mut ledger, 0, 101_000);
    let back = write.record.left() - 60;
    assert_eq!(ledger.now(&at(101_000)).held, 40 - back);
    ledger.done(question, StoreReply::Unknown, &at(101_200), 0);
    assert_eq!(
        ledger.now(&at(101_200)).held,
        40 - back,
        "it may be in the store"
    );
}

/// A node that has drawn its share leaves the store to others for a while before it draws again.
#[test]
fn a_key_that_leaves_gives_back_at_once_though_it_had_its_share() {
    let mut ledger = ledger(|_| {});
    let question = read(&mut ledger, 50, 100_000);
    ledger.done(question, stands(1, record(WINDOW, 100)), &at(100_000), 0);
    let (question, draw) = write(&mut ledger, 50, 100_000);
    let written = StoreReply::Written(RecordVersion(2));
    ledger.done(question, written, &at(100_100), 0);
    let held = 100 - draw.record.left();
    let _ = ledger.take(held - 1, &at(100_101)).expect("it was drawn");
    assert!(matches!(
        ledger.next(waits(0), &at(100_102)),
        Action::Sleep(_)
    ));
    ledger.leave();
    let (_, back) = write(&mut ledger, 0, 100_102);
    assert_eq!(back.record.left(), draw.record.left() + 1);
}

#[test]
fn a_changed_rule_counts_from_the_next_window_on() {
    let mut ledger = ledger(|_| {});
    drawn(&mut ledger, 5, stands(1, record(WINDOW, 50)), 100_000);
    ledger.apply(rule(|settings| {
        settings.total = 7;
        settings.length = Duration::from_secs(4);
    }));
    assert_eq!(ledger.peek(5, &at(100_001)), Coverage::Covered);
    // 110 s is within a window of 4 s, which therefore is not opened.
    let answer = ledger.peek(5, &at(110_000));
    assert!(matches!(answer, Coverage::Between { .. }), "{answer:?}");
    let (_, write) = write(&mut ledger, 7, 112_000);
    assert_eq!((write.record.window(), write.record.total()), (28, 7));
}

#[test]
fn an_answer_of_another_kind_than_the_question_counts_as_unknown() {
    let wrong = [
        StoreReply::Time,
        StoreReply::Written(RecordVersion(7)),
        stands(7, record(WINDOW, 50)),
    ];
    for wrong in wrong {
        for asked in 0..3 {
            let mut ledger = ledger(|_| {});
            let mut time = at(100_000);
            let question = match asked {
                0 => {
                    time = StoreTime::unknown(time.now());
                    match ledger.next(waits(5), &time) {
                        Action::Time(question) => question,
                        other => panic!("{other:?}"),
                    }
                }
                1 => read(&mut ledger, 5, 100_000),
                _ => {
                    let question = read(&mut ledger, 5, 100_000);
                    ledger.done(question, stands(1, record(WINDOW, 50)), &time, 0);
                    write(&mut ledger, 5, 100_000).0
                }
            };
            let is_right = matches!(
                (asked, wrong),
                (0, StoreReply::Time)
                    | (1, StoreReply::Stands(_))
                    | (2, StoreReply::Stands(_) | StoreReply::Written(_))
            );
            if is_right {
                continue;
            }
            ledger.done(question, wrong, &time, 0);
            assert_eq!(ledger.now(&time).held, 0, "nothing was granted");
            assert!(ledger.is_unanswered(), "question {asked}, {wrong:?}");
            // It asks again, and goes on.
            let drawn = drawn(&mut ledger, 5, stands(1, record(WINDOW, 50)), 101_000);
            assert!(drawn.left() <= 45);
        }
    }
}

#[test]
fn a_question_that_is_overdue_is_asked_again_a_moment_later() {
    let mut ledger = ledger(|_| {});
    let question = read(&mut ledger, 5, 100_000);
    let twice_the_timeout = 2 * ledger.rule().settings().draw_timeout;
    let overdue = at(100_000).now() + twice_the_timeout;
    assert_eq!(ledger.next(waits(5), &at(100_001)), Action::Sleep(overdue));
    let due = at(overdue.as_nanos() / 1_000_000);
    let Action::Sleep(retry) = ledger.next(waits(5), &due) else {
        panic!("it waits a moment before it asks again");
    };
    // A driver that were told to sleep until now would come back at once, for ever.
    assert!(retry > due.now());
    let again = read(&mut ledger, 5, retry.as_nanos().div_ceil(1_000_000));
    assert_ne!(again, question);
}

#[test]
fn a_node_that_draws_beyond_its_equal_share_alone_draws_twice_as_much_each_time() {
    let mut ledger = ledger(|settings| settings.total = 1_000_000);
    let left = |left| QuotaRecord::new(WINDOW, left, 1_000_000, 0, Duration::from_secs(10));
    let equal_share = 500_000;
    let all = left(1_000_000).expect("a record");
    let mut before = drawn(&mut ledger, equal_share, stands(1, all), 100_000);
    let mut percents = Vec::new();
    let mut ms = 100_000;
    while percents.len() < 3 {
        let held = ledger.now(&at(ms)).held;
        let _ = ledger.take(held, &at(ms)).expect("it is held");
        let many_wait = WaitingCost {
            next: 1,
            sum: 1_000_000,
        };
        match ledger.next(many_wait, &at(ms)) {
            // It leaves the store to the other node for a while.
            Action::Sleep(until) => ms = until.as_nanos().div_ceil(1_000_000),
            Action::Write(question, draw) => {
                let grant = before.left() - draw.record.left();
                percents.push(100 * grant / before.left());
                before = draw.record;
                ledger.done(question, StoreReply::Written(RecordVersion(9)), &at(ms), 0);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(percents, [20, 40, 80]);
}
