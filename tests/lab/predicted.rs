//! `queue.early_refusal` through the real process: what is predicted to start after its deadline is refused at once.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate::call::Reason;
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tokio::task::JoinSet;

use crate::sidecar::plan_with;
use crate::sidecar::{Sidecar, field};
use crate::support::{Answer, array, ask, both, json};

const HTTP: &str = "GET /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

async fn backend() -> RunningBackend {
    let options = StandInOptions {
        delay: Duration::from_millis(200),
        ..StandInOptions::on_free_ports()
    };
    StandInBackend::start(options).await.expect("free ports")
}

/// A config for one call at a time, of 200 ms: ten of a storm have time.
fn config(backend: &RunningBackend, queue: &str) -> String {
    let backend = both(backend.socket_addr(), backend.http_addr());
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        protocol = "auto"
        [backend]
        {backend}
        [queue]
        postpone = "in_turn"
        {queue}
        [limits]
        per_window = "total:10000"
        outstanding = 1
        max_wait = "2s"
        [[class]]
        name = "patient"
        max_wait = "2m"
        functions = ["guest_get_info"]
        [log]
        access = true
        replay = true
        format = "json"
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

/// The results of the calls of a storm: answered, refused at their deadline, refused because of a prediction.
#[derive(Debug, Default)]
struct Storm {
    answered: usize,
    too_late: usize,
    predicted: usize,
}

/// Calls at once that may wait for [`DEADLINE`], half of them over HTTP.
async fn storm(addr: SocketAddr, calls: usize) -> Storm {
    let mut sent = JoinSet::new();
    for number in 0..calls {
        sent.spawn(async move {
            let body = if number % 2 == 0 {
                ask(addr, array("guest_list", "X")).await
            } else {
                let answer = Answer::read(ask(addr, HTTP).await.as_bytes());
                if answer.status != 200 {
                    assert_eq!(answer.status, 503);
                    assert!(answer.header("retry-after").is_some());
                }
                answer.body
            };
            json(&body)
        });
    }
    let mut storm = Storm::default();
    for answer in sent.join_all().await {
        let rs = answer["rs"].as_u64().expect("it has a code");
        if answer["overallRC"] == 0 {
            storm.answered += 1;
        } else if rs == u64::from(Reason::PredictedLate.rs()) {
            assert!(answer["retryAfter"].as_u64().expect("it says when") >= 1);
            storm.predicted += 1;
        } else {
            assert_eq!(rs, u64::from(Reason::DeadlinePassed.rs()), "{answer}");
            storm.too_late += 1;
        }
    }
    storm
}

/// The first call is in flight alone, so that it is known what a call takes.
async fn measured(addr: SocketAddr) {
    let first = json(&ask(addr, array("guest_get_info", "FIRST")).await);
    assert_eq!(first["overallRC"], 0);
}

#[tokio::test]
async fn what_is_predicted_late_is_refused_at_once_after_a_reload_turns_that_on() {
    let backend = backend().await;
    let sidecar = Sidecar::start(&config(&backend, "")).await;
    let addr = sidecar.listener("test").await;
    measured(addr).await;
    let off = storm(addr, 40).await;
    assert_eq!(off.predicted, 0, "{off:?}");
    assert!(off.too_late >= 20, "{off:?}");

    sidecar
        .reload(&config(&backend, "early_refusal = true"))
        .await;
    let patient = tokio::spawn(ask(addr, array("guest_get_info", "PATIENT")));
    let on = storm(addr, 40).await;
    assert!(on.predicted >= 20, "{on:?}");
    assert!(on.answered >= 5, "{on:?}");
    // One that may wait for longer waits, and is answered.
    let patient = json(&patient.await.expect("it ends"));
    assert_eq!(patient["overallRC"], 0);

    let (_, metrics) = sidecar.get("/metrics").await;
    let counted = metrics.lines().filter(|line| {
        line.starts_with("tidegate_refusals_total") && line.contains("\"predicted_late\"")
    });
    let counted: f64 = counted
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum();
    assert_eq!(counted as usize, on.predicted, "{metrics}");
    let (line, _) = sidecar.log().wait_from(0, &["predicted_late"]).await;
    assert_eq!(field(&line, "verdict"), "refused", "{line}");
}

#[tokio::test]
async fn a_plan_takes_the_same_decisions_where_calls_are_predicted_late() {
    let backend = backend().await;
    let sidecar = Sidecar::start(&config(&backend, "early_refusal = true")).await;
    let addr = sidecar.listener("test").await;
    measured(addr).await;
    let on = storm(addr, 40).await;
    assert!(on.predicted >= 20, "{on:?}");
    sidecar.signal("TERM");
    let (_, lines) = sidecar.ended().await;
    let log = lines.join("\n");
    let said = plan_with(&log, "", &[]).await;
    let told = "identity: the same decision in all 41 lines";
    assert!(said.out.contains(told), "{}{}", said.out, said.err);
    assert_eq!(said.code, Some(0), "{}", said.out);
    // A line that says something else is no prediction.
    let other = log.replace("predicted_late", "queue_full");
    let said = plan_with(&other, "", &[]).await;
    assert_eq!(said.code, Some(1), "{}", said.out);
}

#[test]
fn with_a_random_order_nothing_can_be_predicted_and_the_config_says_so() {
    let text = "[[listen]]\nname = \"test\"\nbind = \"127.0.0.1:0\"\n[backend]\nsocket = \"127.0.0.1:1\"\n\
                [queue]\npostpone = \"jitter\"\nearly_refusal = true\n";
    let Err(problems) = tidegate::config::read(text, "test", std::iter::empty()) else {
        panic!("it is a mistake");
    };
    let told = format!("{problems}");
    assert!(told.contains("queue.early_refusal"), "{told}");
    assert!(told.contains("in_turn"), "{told}");
}
