//! Requests and results of answers, case by case.

use super::*;
use crate::client::entitlement::Allowance;

/// Milliseconds since 1970 at the client's start.
const START_MS: i64 = 1_700_000_000_000;
const INTERVAL_MIN: Duration = Duration::from_secs(5);

fn at(seconds: f64) -> Timestamp {
    Timestamp::ZERO + Duration::from_secs_f64(seconds)
}

fn ms(now: Timestamp) -> i64 {
    START_MS + (now.as_nanos() / 1_000_000) as i64
}

fn open(leases: &mut Leases, now: Timestamp, id: &str, wants: f64) {
    let opening = ResourceOpening {
        priority: 3,
        wants,
        after_expiry: AfterExpiry::Safe,
        safe: None,
    };
    leases.open(now, &id.into(), opening);
}

fn leases() -> Leases {
    Leases::new("host:1:0".into(), INTERVAL_MIN)
}

fn gets(
    id: &str,
    capacity: f64,
    expiry_time: i64,
    refresh_interval: i64,
) -> wire::ResourceResponse {
    wire::ResourceResponse {
        resource_id: id.into(),
        gets: wire::Lease {
            expiry_time,
            refresh_interval,
            capacity,
        },
        safe_capacity: None,
    }
}

fn answer(response: Vec<wire::ResourceResponse>) -> wire::GetCapacityResponse {
    wire::GetCapacityResponse {
        response,
        mastership: None,
    }
}

fn allowance(leases: &Leases, id: &str, now: Timestamp) -> Allowance {
    let resource = &leases.resources[id];
    resource.entitlement.allowance(now, resource.wants)
}

#[test]
fn a_due_lease_is_requested_with_all_that_it_holds() {
    let mut leases = leases();
    for id in ["a/b", "c"] {
        open(&mut leases, at(1.0), id, 10.0);
    }
    assert_eq!(leases.next_due(), Some(at(1.0)));
    let (request, message) = leases.ask(at(1.0)).expect("both are due");
    assert_eq!(message.client_id, "host:1:0");
    let asked: Vec<_> = message
        .resource
        .iter()
        .map(|r| (&*r.resource_id, r.has))
        .collect();
    assert_eq!(asked, [("a/b", None), ("c", None)]);
    assert_eq!(leases.next_due(), None, "one request at a time");

    let ends = (START_MS / 1000) + 61;
    // In another order, and with one that was not requested.
    let response = vec![
        gets("c", 7.0, ends, 16),
        gets("other", 1.0, ends, 16),
        gets("a/b", 5.0, ends, 16),
    ];
    let heard = leases.answered(at(1.2), request, &answer(response), ms(at(1.1)));
    assert_eq!(heard.changed.len(), 2);
    assert_eq!(heard.ignored.unasked, 1);
    assert_eq!(allowance(&leases, "a/b", at(1.2)), Allowance::UpTo(5.0));
    assert_eq!(allowance(&leases, "c", at(1.2)), Allowance::UpTo(7.0));

    assert_eq!(leases.next_due(), Some(at(17.0)));
    let (_, message) = leases
        .ask(at(17.0))
        .expect("the refresh interval has passed");
    let has = message.resource[1].has.expect("it has a lease");
    assert_eq!(
        (has.capacity, has.expiry_time, has.refresh_interval),
        (7.0, ends, 16)
    );
}

#[test]
fn a_lease_is_counted_from_the_moment_its_request_was_sent() {
    let mut leases = leases();
    open(&mut leases, at(0.0), "r", 10.0);
    let (request, _) = leases.ask(at(0.0)).expect("it is due");
    // The server is an hour ahead, gives 15 s, and the answer takes 4 s to arrive.
    let server = START_MS + 3_600_000;
    let response = answer(vec![gets("r", 10.0, server / 1000 + 15, 5)]);
    leases.answered(at(4.0), request, &response, server);
    assert_eq!(allowance(&leases, "r", at(14.999)), Allowance::UpTo(10.0));
    assert_eq!(allowance(&leases, "r", at(15.0)), Allowance::NOTHING);
}

#[test]
fn an_invalid_lease_is_ignored_and_the_old_one_kept() {
    let mut leases = leases();
    open(&mut leases, at(0.0), "r", 10.0);
    let (request, _) = leases.ask(at(0.0)).expect("it is due");
    let ends = START_MS / 1000 + 300;
    leases.answered(
        at(0.0),
        request,
        &answer(vec![gets("r", 10.0, ends, 5)]),
        START_MS,
    );
    let mut now = 5.0;
    let mut check = |response: Vec<wire::ResourceResponse>, expected: Ignored| {
        let (request, _) = leases.ask(at(now)).expect("it is due");
        let heard = leases.answered(at(now), request, &answer(response), ms(at(now)));
        assert_eq!((heard.changed.len(), heard.ignored), (0, expected));
        assert_eq!(allowance(&leases, "r", at(now)), Allowance::UpTo(10.0));
        now += 5.0;
    };
    let ignored = Ignored::default();
    let capacity = Ignored {
        capacity: 1,
        ..ignored
    };
    check(vec![gets("r", f64::NAN, ends, 5)], capacity);
    check(vec![gets("r", -40.0, ends, 5)], capacity);
    check(vec![gets("r", f64::INFINITY, ends, 5)], capacity);
    check(
        vec![gets("r", 3.0, 0, 5)],
        Ignored {
            expired: 1,
            ..ignored
        },
    );
    check(
        vec![gets("q", 3.0, ends, 5)],
        Ignored {
            unasked: 1,
            ..ignored
        },
    );
    check(vec![], ignored);
    let mut odd = gets("r", -1.0, ends, 5);
    odd.safe_capacity = Some(-7.0);
    check(
        vec![odd],
        Ignored {
            safe_capacity: 1,
            ..capacity
        },
    );
    let (request, _) = leases.ask(at(now)).expect("it is due");
    let wrong = RequestId(request.0 - 1);
    let heard = leases.answered(
        at(now),
        wrong,
        &answer(vec![gets("r", 1.0, ends, 5)]),
        ms(at(now)),
    );
    assert_eq!(
        heard,
        AnswerEffect::default(),
        "an answer to another request"
    );
}

#[test]
fn a_resource_that_is_left_out_keeps_its_lease_and_is_asked_for_again_later() {
    let mut leases = leases();
    open(&mut leases, at(0.0), "r", 10.0);
    let (request, _) = leases.ask(at(0.0)).expect("it is due");
    leases.answered(at(0.0), request, &answer(vec![]), START_MS);
    assert_eq!(allowance(&leases, "r", at(0.0)), Allowance::NOTHING);
    assert_eq!(leases.next_due(), Some(at(5.0)));
}

#[test]
fn a_big_change_of_demand_is_sent_early_but_not_within_the_interval() {
    let mut leases = leases();
    open(&mut leases, at(0.0), "r", 100.0);
    let (request, _) = leases.ask(at(0.0)).expect("it is due");
    let ends = START_MS / 1000 + 300;
    leases.answered(
        at(0.0),
        request,
        &answer(vec![gets("r", 100.0, ends, 60)]),
        START_MS,
    );
    assert_eq!(leases.next_due(), Some(at(60.0)));
    assert!(!leases.set_wants(at(1.0), "r", 120.0));
    assert_eq!(leases.next_due(), Some(at(60.0)), "a small change can wait");
    assert!(leases.set_wants(at(2.0), "r", 200.0));
    assert_eq!(leases.next_due(), Some(at(5.0)));
    assert!(leases.ask(at(4.999)).is_none());
    let (_, message) = leases.ask(at(5.0)).expect("it is due");
    assert_eq!(message.resource[0].wants, 200.0);
}

#[test]
fn nothing_is_asked_for_until_something_is_wanted() {
    let mut leases = leases();
    open(&mut leases, at(0.0), "r", 0.0);
    assert_eq!(leases.next_due(), None);
    assert!(leases.set_wants(at(9.0), "r", 0.1));
    assert_eq!(leases.next_due(), Some(at(9.0)));
}

#[test]
fn pauses_grow_as_in_the_source_without_requests_meanwhile() {
    let mut leases = leases();
    open(&mut leases, at(0.0), "r", 1.0);
    let (request, _) = leases.ask(at(0.0)).expect("it is due");
    leases.failed(at(0.1), request, RequestFailure::NotSeen, u64::MAX);
    assert_eq!(
        leases.next_due(),
        Some(at(0.1) + Duration::from_millis(1300))
    );
    open(&mut leases, at(0.2), "s", 1.0);
    assert_eq!(
        leases.next_due(),
        Some(at(0.1) + Duration::from_millis(1300))
    );
    let (request, _) = leases.ask(at(2.0)).expect("it is due");
    leases.failed(at(4.0), request, RequestFailure::Unknown, 0);
    assert_eq!(
        leases.next_due(),
        Some(at(7.0)),
        "a server may have seen it at 2 s"
    );
}

#[test]
fn a_resource_that_is_left_is_released_once_and_not_asked_for_within_the_interval() {
    let mut leases = leases();
    open(&mut leases, at(0.0), "unasked", 0.0);
    open(&mut leases, at(0.0), "r", 1.0);
    let (request, _) = leases.ask(at(0.0)).expect("it is due");
    let ends = START_MS / 1000 + 300;
    leases.answered(
        at(0.0),
        request,
        &answer(vec![gets("r", 1.0, ends, 16)]),
        START_MS,
    );
    leases.leave("unasked");
    leases.leave("r");
    let release = leases.release(at(1.0)).expect("one was held");
    assert_eq!(release.resource_id, ["r"]);
    assert_eq!(leases.release(at(1.0)), None);
    open(&mut leases, at(2.0), "r", 1.0);
    assert_eq!(allowance(&leases, "r", at(2.0)), Allowance::NOTHING);
    assert_eq!(leases.next_due(), Some(at(5.0)));
    leases.leave("r");
    assert!(leases.release(at(2.0)).is_some());
    assert_eq!(leases.len(), 1);
    leases.release(at(5.0));
    assert_eq!(leases.len(), 0, "what was released is forgotten");
}

#[test]
fn a_user_that_returns_before_the_release_finds_the_lease() {
    let mut leases = leases();
    open(&mut leases, at(0.0), "r", 1.0);
    let (request, _) = leases.ask(at(0.0)).expect("it is due");
    let ends = START_MS / 1000 + 300;
    leases.answered(
        at(0.0),
        request,
        &answer(vec![gets("r", 1.0, ends, 16)]),
        START_MS,
    );
    leases.leave("r");
    open(&mut leases, at(1.0), "r", 1.0);
    assert_eq!(allowance(&leases, "r", at(1.0)), Allowance::UpTo(1.0));
    assert_eq!(leases.release(at(1.0)), None);
    assert_eq!(leases.next_due(), Some(at(16.0)));
}

#[test]
fn a_thousand_and_one_resources_take_two_requests() {
    let mut leases = leases();
    for n in 0..=RESOURCES_PER_REQUEST {
        open(&mut leases, at(0.0), &format!("r{n}"), 1.0);
    }
    let (request, message) = leases.ask(at(0.0)).expect("they are due");
    assert_eq!(message.resource.len(), RESOURCES_PER_REQUEST);
    leases.answered(at(0.0), request, &answer(vec![]), START_MS);
    let (_, message) = leases.ask(at(0.0)).expect("one is left");
    assert_eq!(message.resource.len(), 1);
}

#[test]
fn a_lease_shorter_than_its_refresh_interval_is_renewed_before_it_ends() {
    let mut leases = leases();
    open(&mut leases, at(0.0), "r", 1.0);
    let (request, _) = leases.ask(at(0.0)).expect("it is due");
    let ends = START_MS / 1000 + 20;
    let odd = [i64::MAX, 20, 3600, i64::MIN, 0];
    leases.answered(
        at(0.0),
        request,
        &answer(vec![gets("r", 1.0, ends, odd[0])]),
        START_MS,
    );
    assert_eq!(leases.next_due(), Some(at(10.0)));
    for (round, refresh) in odd.into_iter().enumerate().skip(1) {
        let now = leases.next_due().expect("it is kept");
        let (request, _) = leases.ask(now).expect("it is due");
        let ends = ms(now) / 1000 + 20;
        leases.answered(
            now,
            request,
            &answer(vec![gets("r", 1.0, ends, refresh)]),
            ms(now),
        );
        let expected = if refresh > 0 { 10 } else { 5 };
        let due = leases.next_due().expect("it is kept");
        assert_eq!(
            due.since(now),
            Duration::from_secs(expected),
            "round {round}"
        );
    }
}
