use tidegate_limits::Limit;
use tidegate_limits::policy::{ClassShare, Postpone, WhenFull};

use super::*;

fn at(ms: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(ms)
}

/// A shadow with one call at once, and two places in the queue.
fn shadow() -> Shadow {
    let limit = LimitRule::new("outstanding", Limit::Outstanding { max: 1 });
    let classes = vec![ClassShare::new("user", 1)];
    let policy = Policy::new(vec![limit], 2, WhenFull::Refuse, Postpone::InTurn, classes);
    Shadow::new(policy.expect("it is sound"), 1, 0, Timestamp::ZERO)
}

fn asks(shadow: &mut Shadow, now: Timestamp, deadline: u64) -> ShadowId {
    let call = Call::new("guest_list", now).deadline(at(deadline));
    shadow.begin_call(now, call, "user".into(), 7)
}

fn served(shadow: &mut Shadow, key: ShadowId, from: u64, to: u64) -> Would {
    shadow.sent(at(from), key, at(from));
    let over = CallEnd::Finished {
        admitted: at(from),
        outcome: Outcome::Served,
        measured: None,
    };
    shadow.end_call(at(to), key, over).expect("it is known")
}

#[test]
fn calls_wait_as_long_as_the_service_times_of_those_before_them() {
    let mut shadow = shadow();
    let keys = [0; 3].map(|_| asks(&mut shadow, at(0), 60_000));
    // They ran side by side, for 100, 200 and 300 ms.
    let would = [100, 200, 300]
        .into_iter()
        .zip(keys)
        .map(|(ms, key)| served(&mut shadow, key, 0, ms));
    let would: Vec<_> = would.collect();
    assert_eq!(
        (would[0].wait, would[0].ending),
        (Duration::ZERO, WouldEnd::Runs)
    );
    assert_eq!(
        (would[1].wait, would[1].ending),
        (Duration::from_millis(100), WouldEnd::Runs)
    );
    assert_eq!(
        (would[2].wait, would[2].ending),
        (Duration::from_millis(300), WouldEnd::Runs)
    );
    assert_eq!(would[2].limit.as_deref(), Some("outstanding"));
    shadow.advance(at(599));
    assert_eq!(shadow.calls(), 1);
    shadow.advance(at(600));
    assert_eq!(shadow.calls(), 0);
    assert_eq!((shadow.depth(), shadow.peak()), (0, 2));
}

#[test]
fn a_call_whose_line_is_written_before_its_turn_is_reported_late() {
    let mut shadow = shadow();
    let keys = [0; 3].map(|_| asks(&mut shadow, at(0), 60_000));
    for key in keys {
        served(&mut shadow, key, 0, 100);
    }
    let first: Vec<_> = shadow.take_decided().map(|it| (it.at, it.late)).collect();
    assert_eq!(first, [(at(0), None), (at(100), None)]);
    shadow.advance(at(1000));
    let late: Vec<_> = shadow.take_decided().collect();
    assert_eq!(late.len(), 1);
    assert_eq!((late[0].at, late[0].late), (at(200), Some(7)));
    assert_eq!(late[0].would.wait, Duration::from_millis(200));
    assert_eq!(shadow.calls(), 0);
}

#[test]
fn what_finds_no_place_or_waits_too_long_would_be_refused() {
    let mut shadow = shadow();
    let first = asks(&mut shadow, at(0), 60_000);
    let second = asks(&mut shadow, at(0), 50);
    let third = asks(&mut shadow, at(0), 60_000);
    let fourth = asks(&mut shadow, at(0), 60_000);
    let reason = |would: Would| would.reason();
    assert_eq!(
        reason(served(&mut shadow, fourth, 0, 10)),
        Some("queue_full")
    );
    assert_eq!(
        reason(served(&mut shadow, second, 0, 100)),
        Some("deadline_passed")
    );
    served(&mut shadow, first, 0, 200);
    // Its client left: it waits no more, and the next one is not behind it.
    let would = shadow
        .end_call(at(210), third, CallEnd::Left)
        .expect("it is known");
    assert_eq!(would.wait, Duration::from_millis(200));
    assert_eq!(shadow.calls(), 0);
}
