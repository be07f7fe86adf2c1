//! The storm, the full queue, and what never waits: through the stages, over real sockets.

use std::sync::Arc;
use std::time::Duration;

use tidegate::call::{Facts, Reason, Verdict};
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tidegate_limits::Timestamp;
use tokio::task::JoinSet;

use crate::support::{Stack, array, both, densest, json, listens, read_until, sending, until};

async fn backend(delay: Duration) -> RunningBackend {
    StandInBackend::start(StandInOptions {
        delay,
        break_in_flight: 12,
        break_per_second: 45,
        ..StandInOptions::on_free_ports()
    })
    .await
    .expect("free ports")
}

/// Both ways to postpone a call.
const POSTPONED: [&str; 2] = [
    "postpone = \"in_turn\"",
    "postpone = \"jitter\"\npostpone_jitter = [\"20ms\", \"60ms\"]",
];

fn text(backend: &RunningBackend, queue: &str, limits: &str) -> String {
    let backend = both(backend.socket_addr(), backend.http_addr());
    listens(
        "",
        &backend,
        &format!("[queue]\n{queue}\n[limits]\n{limits}"),
    )
}

/// Sends N calls at once and returns their answers.
async fn storm(stack: &Arc<Stack>, calls: usize) -> Vec<serde_json::Value> {
    let mut storm = JoinSet::new();
    for number in 0..calls {
        let stack = Arc::clone(stack);
        storm.spawn(async move {
            json(
                &stack
                    .ask(array("guest_get_info", &format!("U{number}")))
                    .await,
            )
        });
    }
    storm.join_all().await
}

fn sent(facts: &[Facts]) -> Vec<Duration> {
    let mut sent: Vec<Duration> = facts
        .iter()
        .filter_map(|facts| facts.sent)
        .map(|at| at.since(Timestamp::ZERO))
        .collect();
    sent.sort();
    sent
}

/// Most calls between sent and answered at once, by brute force.
fn most_in_flight(facts: &[Facts]) -> usize {
    let spans: Vec<_> = facts
        .iter()
        .filter_map(|facts| Some((facts.sent?, facts.answered?)))
        .collect();
    spans
        .iter()
        .map(|(from, _)| {
            spans
                .iter()
                .filter(|(start, end)| start <= from && from < end)
                .count()
        })
        .max()
        .unwrap_or(0)
}

/// Asserts by the oracle that a run held every limit over every span.
fn assert_bounds(facts: &[Facts], seen: &RunningBackend, per_second: usize, outstanding: usize) {
    let dense = densest(&sent(facts), Duration::from_secs(1));
    assert!(dense <= per_second, "{dense} sent within a second");
    let most = most_in_flight(facts);
    assert!(most <= outstanding, "{most} in flight");
    let report = seen.report();
    assert!(report.peak_in_flight as usize <= outstanding, "{report}");
    assert!(
        report.densest_second as usize <= per_second + outstanding,
        "{report}"
    );
    assert_eq!(report.falls, 0, "{report}");
}

#[tokio::test]
async fn a_storm_is_answered_whole_and_no_span_holds_more_than_the_limits() {
    for postpone in [
        "postpone = \"in_turn\"",
        "postpone = \"jitter\"\npostpone_jitter = [\"100ms\", \"300ms\"]",
    ] {
        let backend = backend(Duration::from_millis(20)).await;
        let limits = "per_window = \"total:30\"";
        let stack = Arc::new(Stack::start(&text(&backend, postpone, limits)));
        for answer in storm(&stack, 100).await {
            assert_eq!(answer["overallRC"], 0, "{answer}");
        }
        let facts = stack.seen.ended(100).await;
        assert_bounds(&facts, &backend, 30, 10);
        assert_eq!(sent(&facts).len(), 100);
        stack.at_rest().await;
    }
}

#[tokio::test]
async fn with_replied_stamps_the_backend_sees_no_more_than_the_limit() {
    let backend = backend(Duration::from_millis(30)).await;
    let limits = "per_window = \"total:30\"\nwindow_stamp = \"replied\"";
    let stack = Arc::new(Stack::start(&text(
        &backend,
        "postpone = \"in_turn\"",
        limits,
    )));
    for answer in storm(&stack, 100).await {
        assert_eq!(answer["overallRC"], 0, "{answer}");
    }
    assert!(
        backend.report().densest_second <= 30,
        "{}",
        backend.report()
    );
}

#[tokio::test]
async fn in_turn_is_in_the_order_of_arrival() {
    let backend = backend(Duration::from_millis(5)).await;
    let limits = "per_window = \"total:500\"\noutstanding = 1";
    let stack = Arc::new(Stack::start(&text(
        &backend,
        "postpone = \"in_turn\"",
        limits,
    )));
    let mut calls = JoinSet::new();
    for number in 0..20 {
        let here = Arc::clone(&stack);
        calls.spawn(async move {
            here.ask(array("guest_get_info", &format!("U{number}")))
                .await
        });
        until(
            || stack.gate.busy().0 + stack.gate.busy().1 + stack.seen.all().len() > number,
            || "the call is not in".to_owned(),
        )
        .await;
    }
    calls.join_all().await;
    let order: Vec<String> = stack
        .seen
        .ended(20)
        .await
        .iter()
        .map(|facts| facts.target.as_deref().unwrap_or_default().to_owned())
        .collect();
    let expected: Vec<String> = (0..20).map(|number| format!("U{number}")).collect();
    assert_eq!(order, expected);
}

#[tokio::test]
async fn max_wait_zero_refuses_at_the_first_closed_limit() {
    for postpone in ["in_turn", "jitter"] {
        let backend = backend(Duration::from_millis(300)).await;
        let limits = "per_window = \"total:30\"\noutstanding = 2\nmax_wait = \"0s\"";
        let stack = Arc::new(Stack::start(&text(
            &backend,
            &format!("postpone = \"{postpone}\""),
            limits,
        )));
        let answers = storm(&stack, 10).await;
        let answered = answers
            .iter()
            .filter(|answer| answer["overallRC"] == 0)
            .count();
        assert_eq!(answered, 2, "{postpone}: {answers:?}");
        for refused in answers.iter().filter(|answer| answer["overallRC"] != 0) {
            assert_eq!(refused["overallRC"], 503);
            assert!(refused["retryAfter"].as_u64().expect("it says when") >= 1);
        }
        stack.at_rest().await;
    }
}

#[tokio::test]
async fn a_call_that_could_only_run_too_late_is_refused_at_once() {
    let backend = backend(Duration::ZERO).await;
    let limits = "window = \"60s\"\nper_window = \"total:2\"\nmax_wait = \"5s\"";
    let stack = Stack::start(&text(&backend, "postpone = \"in_turn\"", limits));
    for _ in 0..2 {
        assert_eq!(
            json(&stack.ask(array("guest_list", "X")).await)["overallRC"],
            0
        );
    }
    let answer = json(&stack.ask(array("guest_list", "X")).await);
    assert_eq!(answer["rs"], Reason::DeadlineUnreachable.rs());
    let after = answer["retryAfter"].as_u64().expect("it says when");
    assert!((55..=61).contains(&after), "{after}");
    assert_eq!(stack.seen.ended(3).await[2].verdict, Verdict::Refused);
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_if_configured() {
    let backend = backend(Duration::from_millis(200)).await;
    let queue = "postpone = \"in_turn\"\ncapacity = 5\nwhen_full = \"refuse\"";
    let limits = "per_window = \"total:30\"\noutstanding = 1";
    let stack = Arc::new(Stack::start(&text(&backend, queue, limits)));
    let answers = storm(&stack, 20).await;
    let answered = answers
        .iter()
        .filter(|answer| answer["overallRC"] == 0)
        .count();
    assert!((6..=8).contains(&answered), "{answered}");
    let full = Reason::QueueFull.rs();
    assert_eq!(
        answers.iter().filter(|answer| answer["rs"] == full).count(),
        20 - answered
    );
    stack.at_rest().await;
}

#[tokio::test]
async fn a_full_queue_keeps_the_rest_at_the_door_and_loses_no_call() {
    for postpone in POSTPONED {
        let backend = backend(Duration::from_millis(2)).await;
        let queue = format!("{postpone}\ncapacity = 5\nwhen_full = \"wait\"");
        let limits = "per_window = \"total:1000\"\noutstanding = 4";
        let config = text(&backend, &queue, limits);
        let stack = Arc::new(Stack::start(&config));
        backend.reset();
        for answer in storm(&stack, 40).await {
            assert_eq!(answer["overallRC"], 0, "{postpone}: {answer}");
        }
        stack.at_rest().await;
    }
}

#[tokio::test]
async fn a_users_call_at_the_door_goes_before_the_polls_of_a_full_queue() {
    for postpone in POSTPONED {
        let backend = backend(Duration::from_millis(50)).await;
        let queue = format!("{postpone}\ncapacity = 2");
        let limits = "per_window = \"total:1000\"\noutstanding = 1";
        let stack = Arc::new(Stack::start(&text(&backend, &queue, limits)));
        let polls = storm(&stack, 40);
        let user = async {
            let at_door = || stack.gate.queue_now().at_door;
            until(|| at_door() >= 20, || format!("{} at the door", at_door())).await;
            let answer = json(&stack.ask(array("guest_start", "OTHER")).await);
            assert_eq!(answer["overallRC"], 0, "{postpone}: {answer}");
        };
        let (answers, ()) = tokio::join!(polls, user);
        assert_eq!(answers.len(), 40, "each poll is answered");
        stack.at_rest().await;
        let facts = stack.seen.all();
        let user = facts.iter().find(|facts| *facts.function == *"guest_start");
        let user = user.expect("it was served");
        let came = user.claim.as_ref().map(|claim| claim.at);
        let went_before = |facts: &&Facts| came < facts.admitted && facts.admitted < user.admitted;
        let before = facts.iter().filter(went_before).count();
        assert!(before < 5, "{postpone}: {before} polls went before it");
    }
}

#[tokio::test]
async fn a_token_passes_a_full_queue_and_a_busy_backend() {
    let backend = StandInBackend::start(StandInOptions {
        delay: Duration::from_secs(2),
        ..StandInOptions::on_free_ports()
    })
    .await
    .expect("free ports");
    let queue = "postpone = \"in_turn\"\ncapacity = 2\nworkers = 1";
    let limits = "per_window = \"total:1\"\noutstanding = 1";
    let stack = Arc::new(Stack::start(&text(&backend, queue, limits)));
    let mut waiting = Vec::new();
    for _ in 0..6 {
        let stream = sending(stack.addr, b"GET /host HTTP/1.1\r\nHost: t\r\n\r\n").await;
        waiting.push(stream);
    }
    stack.busy(1, 5).await;
    let token = stack
        .ask("POST /token HTTP/1.1\r\nHost: t\r\nX-Admin-Token: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .await;
    assert!(token.starts_with("HTTP/1.1 200"), "{token}");
    // Still as it was: the token took no place, no worker and no slot.
    assert_eq!(stack.gate.queue_now().waiting, 2);
    let facts = stack.seen.all();
    assert_eq!(facts.len(), 1, "{facts:?}");
    assert_eq!(facts[0].verdict, Verdict::Passed);
    drop(waiting);
}

#[tokio::test]
async fn a_closed_function_limit_does_not_hold_up_other_functions() {
    let backend = backend(Duration::from_millis(5)).await;
    let limits = "window = \"10m\"\nper_window = \"total:30, guest_list:1\"\nmax_wait = \"20m\"";
    let stack = Arc::new(Stack::start(&text(
        &backend,
        "postpone = \"in_turn\"",
        limits,
    )));
    assert_eq!(
        json(&stack.ask(array("guest_list", "")).await)["overallRC"],
        0
    );
    let _held = sending(stack.addr, array("guest_list", "")).await;
    stack.busy(0, 1).await;
    for answer in storm(&stack, 10).await {
        assert_eq!(answer["overallRC"], 0, "{answer}");
    }
    assert_eq!(stack.gate.busy(), (0, 1));
    let queue = stack.gate.queue_now();
    assert_eq!(
        queue.functions[0].held_by.as_deref(),
        Some("function:guest_list")
    );
}

#[tokio::test]
async fn when_every_second_client_leaves_the_others_do_not_wait_longer() {
    let backend = backend(Duration::from_millis(10)).await;
    let limits = "per_window = \"total:30\"";
    let stack = Arc::new(Stack::start(&text(
        &backend,
        "postpone = \"in_turn\"",
        limits,
    )));
    let mut leavers = Vec::new();
    let mut stayers = JoinSet::new();
    for number in 0..90 {
        let request = array("guest_get_info", &format!("U{number}"));
        let mut stream = sending(stack.addr, request).await;
        if number % 2 == 0 {
            leavers.push(stream);
        } else {
            stayers.spawn(async move { read_until(&mut stream, "}").await });
        }
    }
    until(|| stack.gate.busy().1 <= 60, || "30 have gone".to_owned()).await;
    drop(leavers);
    for answer in stayers.join_all().await {
        assert_eq!(json(&answer)["overallRC"], 0);
    }
    let facts = stack.seen.ended(90).await;
    let aborted = facts.iter().filter(|facts| facts.sent.is_none()).count();
    assert!(aborted >= 25, "{aborted} left unsent");
    assert_eq!(backend.report().calls as usize, 90 - aborted);
    // 90 calls take three windows; without those that left, two.
    let sent = sent(&facts);
    let pauses = sent
        .windows(2)
        .filter(|pair| pair[1] - pair[0] > Duration::from_millis(500));
    assert!(pauses.count() <= 1, "{sent:?}");
    stack.at_rest().await;
}
