//! The steps of calls in their lines for a replay, and the lines of the gate, through the real process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tidegate::admit::{Journal, QuotaRules, SchedulerEvent};
use tidegate::call::Would;
use tidegate_lab::backend::{StandInBackend, StandInOptions};
use tidegate_limits::Timestamp;
use tidegate_runtime::lock;
use tokio::task::JoinSet;

use crate::sidecar::Sidecar;
use crate::support::{Stack, array, ask};

fn config(backend: &str, total: u32) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [backend]
        socket = "{backend}"
        [queue]
        postpone = "jitter"
        postpone_jitter = ["50ms", "150ms"]
        [limits]
        per_window = "total:{total}"
        outstanding = 3
        [log]
        access = true
        replay = true
        format = "json"
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

fn of_target(lines: &[String], target: &str) -> Vec<Value> {
    let lines = lines
        .iter()
        .filter_map(|line| serde_json::from_str(line).ok());
    lines
        .filter(|line: &Value| line["target"] == target)
        .collect()
}

/// A step: its word, its instant, its value.
fn steps(line: &Value) -> Vec<(&str, u64, &Value)> {
    let steps = line["steps"].as_array().expect("a list").iter();
    steps
        .map(|step| {
            let word = step[0].as_str().expect("a word");
            (word, step[1].as_u64().expect("an instant"), &step[2])
        })
        .collect()
}

#[tokio::test]
async fn a_storm_leaves_every_instant_of_the_scheduler_in_its_lines() {
    let backend = StandInBackend::start(StandInOptions {
        delay: Duration::from_millis(20),
        ..StandInOptions::on_free_ports()
    })
    .await
    .expect("free ports");
    let address = backend.socket_addr().to_string();
    let sidecar = Sidecar::start(&config(&address, 10)).await;
    let addr = sidecar.listener("test").await;
    let mut storm = JoinSet::new();
    for _ in 0..40 {
        storm.spawn(async move { ask(addr, array("guest_list", "U")).await });
    }
    storm.join_all().await;
    sidecar.reload(&config(&address, 20)).await;
    ask(addr, array("guest_list", "U")).await;
    sidecar.signal("TERM");
    let (status, lines) = sidecar.ended().await;
    assert!(status.success());

    let mut gate = of_target(&lines, "gate");
    // Wake-ups in which no call left the queue; there may be any number.
    gate.retain(|line| line["event"] != "woke");
    let events: Vec<_> = gate.iter().map(|line| line["event"].as_str()).collect();
    assert_eq!(
        events,
        [Some("start"), Some("carried"), Some("reload"), Some("end")],
        "{gate:?}"
    );
    // Nothing was known of a process before.
    assert_eq!(gate.remove(1)["carried"], serde_json::json!({"full": true}));
    for (line, total) in gate.iter().zip([10, 20]) {
        let text = line["config"].as_str().expect("it is small");
        let read =
            tidegate::config::read(text, "log", std::iter::empty()).expect("it is read back");
        assert_eq!(read.config.fingerprint(), line["fingerprint"]);
        let window = read.config.admit.window.expect("it has one");
        assert_eq!(window.total, Some(total));
    }
    assert_ne!(gate[0]["fingerprint"], gate[1]["fingerprint"]);
    assert_eq!(gate[0]["seed"], gate[1]["seed"]);

    assert_eq!(of_target(&lines, "access").len(), 41);
    let calls = of_target(&lines, "replay");
    assert_eq!(calls.len(), 41);
    let mut changes: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    let mut postponed = 0;
    for call in &calls {
        assert_eq!(call["started_us"], gate[0]["started_us"]);
        let steps = steps(call);
        let words: Vec<_> = steps.iter().map(|(word, ..)| *word).collect();
        let plain = words.iter().copied();
        let plain: Vec<_> = plain
            .filter(|word| !matches!(*word, "postponed" | "replied"))
            .collect();
        assert_eq!(plain, ["asked", "admitted", "sent", "served"]);
        assert!(steps.is_sorted_by_key(|(_, at, _)| *at), "{steps:?}");
        let back = steps
            .iter()
            .zip(&steps[1..])
            .filter(|(step, _)| step.0 == "postponed");
        for ((_, at, aside), (_, next, _)) in back {
            let aside = aside.as_u64().expect("nanoseconds");
            assert!((50_000_000..=152_000_000).contains(&aside), "{steps:?}");
            assert!(
                at + aside <= *next,
                "it is asked again after the delay: {steps:?}"
            );
            postponed += 1;
        }
        let asked = steps[0];
        assert_eq!(asked.2, "polling");
        let arrived = call["arrived_ns"].as_u64().expect("an instant");
        assert!(arrived <= asked.1);
        let deadline = call["deadline_ns"].as_u64().expect("an instant");
        assert_eq!(deadline, arrived + 60_000_000_000);
        for (word, at, _) in steps {
            changes.entry(at).or_default().push(word);
        }
    }
    assert!(postponed > 30, "30 calls met a closed window: {postponed}");
    // A change gets one thing. What it decides has the same instant.
    for (at, words) in changes {
        let told = words
            .iter()
            .filter(|word| !matches!(**word, "admitted" | "postponed"));
        assert!(told.count() <= 1, "{at}: {words:?}");
    }
}

#[tokio::test]
async fn a_backend_that_goes_down_and_comes_back_is_in_the_lines_of_the_gate() {
    let options = || StandInOptions {
        delay: Duration::from_millis(1),
        ..StandInOptions::on_free_ports()
    };
    let backend = StandInBackend::start(options()).await.expect("free ports");
    let sidecar = Sidecar::start(&config(&backend.socket_addr().to_string(), 100)).await;
    let addr = sidecar.listener("test").await;
    ask(addr, array("guest_list", "U1")).await;
    // Nothing listens here.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let nowhere = closed.local_addr().expect("it is bound").to_string();
    drop(closed);
    sidecar.reload(&config(&nowhere, 100)).await;
    let waits = tokio::spawn(async move { ask(addr, array("guest_list", "U2")).await });
    let words = [
        r#""target":"gate""#,
        r#""event":"supply""#,
        r#""capacity":0"#,
    ];
    sidecar.log().wait_from(0, &words).await;
    sidecar
        .reload(&config(&backend.socket_addr().to_string(), 100))
        .await;
    waits.await.expect("it is answered");
    sidecar.signal("TERM");
    let (_, lines) = sidecar.ended().await;
    let gate = of_target(&lines, "gate");
    let supplies: Vec<_> = gate.iter().filter(|it| it["event"] == "supply").collect();
    assert!(
        supplies
            .iter()
            .all(|it| it["limit"] == "backend:socket" && it["by"] == "health")
    );
    assert_eq!(
        supplies.last().expect("two at least")["capacity"],
        Value::Null
    );
    let access = of_target(&lines, "access");
    let waited = access.iter().find(|call| call["userid"] == "U2");
    let waited = waited.expect("it has a line");
    let calls = of_target(&lines, "replay");
    let waited = calls.iter().find(|call| call["id"] == waited["id"]);
    let waited = waited.expect("it has a line for a replay");
    let requeued = steps(waited)
        .into_iter()
        .find(|(word, ..)| *word == "requeued");
    let (_, at, _) = requeued.expect("it could not be sent");
    // The backend is closed in the change in which the call waits again.
    assert!(supplies.iter().any(|it| it["at_ns"] == at), "{supplies:?}");
}

/// The events that the gate notes, without their content.
#[derive(Default)]
struct NotedEvents(Mutex<Vec<String>>);

impl Journal for NotedEvents {
    fn note(&self, _: Timestamp, event: SchedulerEvent<'_>) {
        let event = format!("{event:?}");
        let word = event.split([' ', '(']).next().unwrap_or_default();
        lock(&self.0).push(word.to_owned());
    }

    fn would(&self, _: Timestamp, _: &str, _: &Would, _: Option<u64>) {}
}

/// A reload gives the gate its quotas also where there are none. Waiting calls are asked then, and a budget may have
/// opened since they were asked last, which changes their order.
#[tokio::test]
async fn an_instant_at_which_waiting_calls_are_asked_is_noted_if_nothing_else_is() {
    let backend = StandInBackend::start(StandInOptions {
        delay: Duration::from_secs(60),
        ..StandInOptions::on_free_ports()
    })
    .await
    .expect("free ports");
    let address = backend.socket_addr().to_string();
    let stack = Stack::start(&config(&address, 100));
    let (addr, mut calls) = (stack.addr, JoinSet::new());
    for _ in 0..4 {
        calls.spawn(async move { ask(addr, array("guest_list", "U")).await });
    }
    stack.busy(3, 1).await;
    let noted = Arc::new(NotedEvents::default());
    stack.gate.keep_journal(Arc::clone(&noted) as _, true);
    stack.gate.set_quotas(QuotaRules::default());
    assert_eq!(*lock(&noted.0), ["Woke"]);
}
