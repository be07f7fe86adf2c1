//! The share of every limit that is given out while a backend warms up.

use std::time::Duration;

use tidegate_limits::call::Backend;
use tidegate_limits::policy::{
    ClassShare, LimitRule, Postpone, Scope, WhenFull, WindowShape, WindowStamp,
};
use tidegate_limits::scheduler::{RefusalReason, Supplier, Supply, SupplyShare};
use tidegate_limits::{Call, Hold, Limit, Policy, Scheduler, Step, Timestamp};

const SECOND: Duration = Duration::from_secs(1);

fn at(ms: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(ms)
}

fn share(thousandths: u16) -> SupplyShare {
    SupplyShare::of_thousandths(thousandths)
}

fn policy(outstanding: u32, window: u32) -> Policy {
    let window = Limit::Window {
        max: window,
        length: SECOND,
        guard: Duration::ZERO,
        shape: WindowShape::Sliding,
        stamp: WindowStamp::Sent,
    };
    let backend = Limit::Outstanding { max: 7 };
    let limits = vec![
        LimitRule::new("outstanding", Limit::Outstanding { max: outstanding }),
        LimitRule::new("total", window),
        LimitRule::new("backend", backend).scope(Scope::Backend(Backend(0))),
    ];
    let classes = vec![ClassShare::new("all", 1)];
    Policy::new(limits, 100, WhenFull::Refuse, Postpone::InTurn, classes).expect("it is sound")
}

fn max(scheduler: &Scheduler<u32>, now: Timestamp, limit: &str) -> u32 {
    scheduler.limit_now(now, limit).expect("it is there").max
}

/// Runs all that may run, and reports each as sent.
fn run(scheduler: &mut Scheduler<u32>, now: Timestamp) -> Vec<Hold> {
    let mut holds = Vec::new();
    loop {
        match scheduler.next(now, &mut || 0) {
            Step::Run { hold, .. } => {
                scheduler.sent(now, &hold);
                holds.push(hold);
            }
            Step::Expired { refusal, .. } => panic!("{refusal:?}"),
            Step::SleepUntil(_) | Step::Idle => return holds,
        }
    }
}

fn submit(scheduler: &mut Scheduler<u32>, now: Timestamp, calls: u32) {
    for number in 0..calls {
        let call = Call::new("x", now);
        scheduler.submit(now, call, number).expect("there is room");
    }
}

#[test]
fn every_limit_gives_out_its_share_except_that_of_a_backend_and_waiting_calls_go_as_it_grows() {
    let mut scheduler = Scheduler::new(policy(20, 50));
    scheduler.set_share(at(0), share(100));
    assert_eq!(scheduler.share(), share(100));
    for (limit, expected) in [("outstanding", 2), ("total", 5), ("backend", 7)] {
        assert_eq!(max(&scheduler, at(0), limit), expected, "{limit}");
    }
    submit(&mut scheduler, at(0), 20);
    let mut holds = run(&mut scheduler, at(0));
    assert_eq!(holds.len(), 2);
    scheduler.set_share(at(100), share(250));
    holds.extend(run(&mut scheduler, at(100)));
    assert_eq!(holds.len(), 5);
    scheduler.set_share(at(200), SupplyShare::FULL);
    holds.extend(run(&mut scheduler, at(200)));
    assert_eq!(holds.len(), 7, "the limit of the backend holds the others");
    assert_eq!(max(&scheduler, at(200), "total"), 50);
}

#[test]
fn a_share_is_of_what_a_supply_leaves_and_never_nothing_of_something() {
    let mut scheduler = Scheduler::<u32>::new(policy(20, 50));
    scheduler.set_share(at(0), share(100));
    for (capacity, expected) in [(30, 2), (15, 1), (4, 1), (0, 0)] {
        let supply = Supply::capacity(capacity);
        scheduler.supply(at(0), "outstanding", Supplier::Coordinator, supply);
        assert_eq!(
            max(&scheduler, at(0), "outstanding"),
            expected,
            "{capacity}"
        );
    }
    scheduler.supply(
        at(0),
        "outstanding",
        Supplier::Coordinator,
        Supply::Configured,
    );
    scheduler.supply(
        at(0),
        "outstanding",
        Supplier::Operator,
        Supply::capacity(10),
    );
    assert_eq!(max(&scheduler, at(0), "outstanding"), 1);
    scheduler.set_share(at(1), SupplyShare::FULL);
    assert_eq!(max(&scheduler, at(1), "outstanding"), 10);
    scheduler.supply(at(1), "outstanding", Supplier::Operator, Supply::Configured);
    assert_eq!(max(&scheduler, at(1), "outstanding"), 20);
}

#[test]
fn another_policy_has_the_share_too_also_in_a_limit_that_is_new() {
    let mut scheduler = Scheduler::<u32>::new(policy(20, 50));
    scheduler.set_share(at(0), share(500));
    let mut limits = policy(30, 60).limits().to_vec();
    limits.push(LimitRule::new("new", Limit::Outstanding { max: 8 }));
    let classes = vec![ClassShare::new("all", 1)];
    let new = Policy::new(limits, 100, WhenFull::Refuse, Postpone::InTurn, classes);
    scheduler.apply(at(1), new.expect("it is sound"));
    for (limit, expected) in [
        ("outstanding", 15),
        ("total", 30),
        ("new", 4),
        ("backend", 7),
    ] {
        assert_eq!(max(&scheduler, at(1), limit), expected, "{limit}");
    }
}

#[test]
fn a_call_is_not_refused_for_a_deadline_that_only_the_share_cannot_meet() {
    let deadline = |scheduler: &mut Scheduler<u32>, now| {
        let call = Call::new("x", now).deadline(Some(at(500)));
        scheduler
            .submit(now, call, 0)
            .map(drop)
            .map_err(|(refusal, _)| refusal.reason)
    };
    let mut scheduler = Scheduler::new(policy(20, 5));
    submit(&mut scheduler, at(0), 5);
    let holds = run(&mut scheduler, at(0));
    assert_eq!(holds.len(), 5);
    assert_eq!(
        deadline(&mut scheduler, at(1)),
        Err(RefusalReason::DeadlineUnreachable)
    );
    scheduler.set_share(at(2), share(900));
    assert_eq!(deadline(&mut scheduler, at(2)), Ok(()));
}

#[test]
fn deadlines_move_together_and_calls_without_one_have_none() {
    let mut scheduler = Scheduler::new(policy(1, 50));
    submit(&mut scheduler, at(0), 1);
    let holds = run(&mut scheduler, at(0));
    let mut with = |deadline: Option<Timestamp>, number| {
        let call = Call::new("x", at(0)).deadline(deadline);
        scheduler
            .submit(at(0), call, number)
            .expect("there is room")
    };
    let (first, second, none) = (with(Some(at(10)), 1), with(Some(at(20)), 2), with(None, 3));
    let mut moved = Vec::new();
    scheduler.move_deadlines(|number, deadline| {
        moved.push(*number);
        deadline + SECOND
    });
    moved.sort_unstable();
    assert_eq!(moved, [1, 2]);
    assert_eq!(scheduler.deadline(first), Some(Some(at(1010))));
    assert_eq!(scheduler.deadline(second), Some(Some(at(1020))));
    assert_eq!(scheduler.deadline(none), Some(None));
    assert!(matches!(
        scheduler.next(at(1000), &mut || 0),
        Step::SleepUntil(_)
    ));
    let Step::Expired { payload, .. } = scheduler.next(at(1010), &mut || 0) else {
        panic!("its deadline has passed");
    };
    assert_eq!(payload, 1);
    assert_eq!(scheduler.deadline(first), None);
    drop(holds);
}
