//! Facts of a call before it has ended: what it waits for, when it starts, and when a refused one should come back.
//! Through the real process.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::Instant;

use crate::sidecar::{Sidecar, TIDEGATE, run};
use crate::support::{Held, OK, PATIENCE, array, ask, json as parsed, listens, read_all, sending};

/// The most by which a predicted start may be off here. The machine may be busy.
const NEAR: f64 = 0.5;

/// A window that admits one call a second, unless the limits say something else.
fn config(held: &Held, queue: &str, limits: &str, admin: &str) -> String {
    let window = match limits.contains("per_window") {
        true => "",
        false => "per_window = \"total:1\"",
    };
    let sections = format!(
        r#"
        [queue]
        postpone = "in_turn"
        {queue}
        [limits]
        window_guard = "0s"
        {window}
        {limits}
        [admin]
        bind = "127.0.0.1:0"
        {admin}
        "#
    );
    listens(
        "",
        &format!("socket = \"{}\"", held.backend.addr),
        &sections,
    )
}

/// A sidecar with one call at the backend, and more that wait.
struct Stage {
    sidecar: Sidecar,
    held: Held,
    /// The clients of the calls, the first at the backend.
    clients: Vec<TcpStream>,
    /// When the first came to the backend.
    first: Instant,
}

impl Stage {
    async fn start(queue: &str, limits: &str, waiting: usize) -> Self {
        let held = Held::start(OK).await;
        let config = config(&held, queue, limits, "");
        let mut stage = Self {
            sidecar: Sidecar::start(&config).await,
            held,
            clients: Vec::new(),
            first: Instant::now(),
        };
        stage.call().await;
        stage.held.next().await;
        stage.first = Instant::now();
        for _ in 0..waiting {
            stage.call_that_waits().await;
        }
        stage
    }

    async fn call(&mut self) {
        let addr = self.sidecar.listener("test").await;
        let userid = format!("U{}", self.clients.len());
        let client = sending(addr, array("guest_get_info", &userid)).await;
        self.clients.push(client);
    }

    /// Makes a call, and waits until it is in the queue.
    async fn call_that_waits(&mut self) {
        let before = self.waiting().await.len();
        self.call().await;
        let deadline = Instant::now() + PATIENCE;
        while self.waiting().await.len() <= before {
            assert!(Instant::now() < deadline, "the call never waits");
        }
    }

    async fn read(&self, path: &str) -> Value {
        let (status, answer) = self.sidecar.get(path).await;
        assert_eq!(status, 200, "{path}: {answer}");
        parsed(&answer)
    }

    /// The ids of waiting calls, the oldest first.
    async fn waiting(&self) -> Vec<String> {
        let now = self.read("/v1/now").await;
        let calls = now["oldest_calls"].as_array().expect("a list").iter();
        calls.map(|call| text(&call["id"]).to_owned()).collect()
    }

    async fn explain(&self, id: &str) -> Value {
        self.read(&format!("/v1/calls/{id}")).await
    }

    /// Asks for a call again and again, until it is in this state.
    async fn until(&self, id: &str, state: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let call = self.explain(id).await;
            if call["state"] == state {
                return call;
            }
            assert!(Instant::now() < deadline, "never {state}: {call}");
        }
    }

    async fn act(&self, what: &str, body: Value) {
        let path = format!("/v1/backend/{what}");
        let (status, answer) = self.sidecar.ask("POST", &path, &body.to_string()).await;
        assert_eq!(status, 200, "{answer}");
    }

    /// The answer to a call that is refused.
    async fn refused(&self, reason: &str) -> Value {
        let addr = self.sidecar.listener("test").await;
        let answer = parsed(&ask(addr, array("guest_get_info", "NO")).await);
        assert!(text(&answer["errmsg"]).contains(reason), "{answer}");
        answer
    }
}

#[track_caller]
fn text(of: &Value) -> &str {
    of.as_str().expect("a text")
}

#[track_caller]
fn number(of: &Value) -> f64 {
    of.as_f64().unwrap_or_else(|| panic!("{of} is no number"))
}

/// Asserts that the causes of a call's wait add up to all the time that it waited.
#[track_caller]
fn assert_adds_up(call: &Value) {
    let held = call["held"].as_array().expect("a list").iter();
    let sum: f64 = held.map(|it| number(&it["ms"])).sum();
    assert!((sum - number(&call["queued_ms"])).abs() < 0.01, "{call}");
}

#[tokio::test]
async fn a_call_is_explained_while_it_waits_while_it_runs_and_when_it_has_ended() {
    let mut stage = Stage::start("", "", 3).await;
    let ids = stage.waiting().await;
    let asked = Instant::now();
    let call = stage.explain(&ids[2]).await;
    let starts = number(&call["starts_in_seconds"]);
    assert_eq!(
        [&call["state"], &call["waits_for"], &call["ahead"]],
        [&json!("waiting"), &json!("total"), &json!(2)],
        "{call}"
    );
    assert_eq!(
        [&call["userid"], &call["verdict"]],
        [&json!("U3"), &Value::Null]
    );
    assert_eq!(call["backend_ms"], Value::Null);
    let sentence = text(&call["sentence"]);
    assert!(sentence.starts_with("waits for `total`: "), "{sentence}");
    assert!(
        sentence.contains("so far, 2 calls ahead, starts in about "),
        "{sentence}"
    );
    assert_eq!(call["held"][0]["limit"], "total", "{call}");
    assert_adds_up(&call);
    let mut tidegate = Command::new(TIDEGATE);
    tidegate.args([
        "explain",
        &ids[2],
        "--admin",
        &stage.sidecar.admin.to_string(),
    ]);
    let said = run(&mut tidegate).await;
    assert!(
        said.out.contains("\nnow         waits for `total`: "),
        "{} {}",
        said.out,
        said.err
    );

    let call = stage.until(&ids[2], "running").await;
    let real = asked.elapsed().as_secs_f64();
    assert!((starts - real).abs() < NEAR, "{starts} s, but {real} s");
    assert_adds_up(&call);
    for _ in 0..3 {
        stage.held.next().await;
    }
    let call = stage.explain(&ids[2]).await;
    assert_eq!(
        [
            &call["state"],
            &call["ahead"],
            &call["starts_in_seconds"],
            &call["verdict"]
        ],
        [&json!("running"), &Value::Null, &Value::Null, &Value::Null]
    );
    let before = number(&call["backend_ms"]);
    let call = stage.explain(&ids[2]).await;
    assert!(number(&call["backend_ms"]) > before, "{call}");
    let sentence = text(&call["sentence"]);
    assert!(sentence.starts_with("at the backend for "), "{sentence}");

    let client = stage.clients.last_mut().expect("it asked");
    stage.held.answer_until(read_all(client)).await;
    let call = stage.until(&ids[2], "ended").await;
    assert_eq!(call["verdict"], "delayed");
    assert_adds_up(&call);
    let queued = number(&call["queued_ms"]) / 1000.0;
    let since_first = stage.first.elapsed().as_secs_f64();
    assert!(queued < since_first && queued > starts - NEAR, "{call}");
}

#[tokio::test]
async fn an_unknown_call_is_answered_with_which_calls_are_known() {
    let stage = Stage::start("", "", 0).await;
    let (status, answer) = stage.sidecar.get("/v1/calls/0000000000000001").await;
    assert_eq!(status, 404);
    let answer = parsed(&answer);
    assert_eq!([&answer["error"], &answer["what"]], ["UNKNOWN", "call"]);
    assert_eq!(
        answer["reason"],
        "known are calls under way, and the last 10000 that ended"
    );
}

#[tokio::test]
async fn in_a_pause_a_start_and_a_retry_are_after_its_end() {
    let queue = "capacity = 3\nwhen_full = \"refuse\"";
    let mut stage = Stage::start(queue, "", 0).await;
    stage.act("pause", json!({"hold_seconds": 60})).await;
    let paused = Instant::now();
    for _ in 0..3 {
        stage.call_that_waits().await;
    }
    let left = || 60.0 - paused.elapsed().as_secs_f64();
    let ids = stage.waiting().await;
    for (ahead, id) in ids.iter().enumerate() {
        let call = stage.explain(id).await;
        let expected = left() + ahead as f64;
        let starts = number(&call["starts_in_seconds"]);
        assert!(
            (starts - expected).abs() < NEAR,
            "{starts} not {expected}: {call}"
        );
        assert_eq!(call["waits_for"], "backend:socket", "{call}");
    }
    // It would be the fourth after the pause.
    let before = left();
    let retry = number(&stage.refused("queue_full").await["retryAfter"]);
    assert!(
        (left() + 3.0 - NEAR..before + 4.0 + NEAR).contains(&retry),
        "{retry}"
    );

    stage.act("resume", json!({"ramp_seconds": 0})).await;
    let call = stage.until(&ids[0], "running").await;
    assert!(number(&call["queued_ms"]) < 60_000.0);
}

#[tokio::test]
async fn a_call_whose_deadline_passes_in_a_pause_comes_back_after_it() {
    let limits = "max_wait = \"1s\"";
    let stage = Stage::start("", limits, 0).await;
    stage.act("pause", json!({"hold_seconds": 60})).await;
    let answer = stage.refused("deadline_passed").await;
    let retry = number(&answer["retryAfter"]);
    assert!((55.0..=60.0).contains(&retry), "{answer}");
    let message = text(&answer["errmsg"]);
    assert!(
        message.contains(&format!("come back in {retry} s")),
        "{message}"
    );
}

#[tokio::test]
async fn a_full_queue_says_when_a_call_would_start_behind_it() {
    let queue = "capacity = 3\nwhen_full = \"refuse\"";
    let mut stage = Stage::start(queue, "", 3).await;
    let refused = Instant::now();
    let retry = number(&stage.refused("queue_full").await["retryAfter"]);
    for _ in 0..3 {
        stage.held.next().await;
    }
    // The last of the three has just started, and the next could a second later.
    let real = refused.elapsed().as_secs_f64() + 1.0;
    // Whole seconds, rounded up.
    assert!(
        (real - NEAR..=real + 1.0 + NEAR).contains(&retry),
        "{retry} s, but {real} s"
    );
}

#[tokio::test]
async fn a_call_that_waits_during_a_reload_keeps_its_id_and_is_explained_by_the_new_limits() {
    let hour = "window = \"3600s\"\n\
                max_wait = \"7200s\"";
    let stage = Stage::start("", hour, 1).await;
    let ids = stage.waiting().await;
    let call = stage.explain(&ids[0]).await;
    let starts = number(&call["starts_in_seconds"]);
    assert!((3_500.0..3_600.0).contains(&starts), "{call}");
    let slots = "per_window = \"total:100\"\n\
                 outstanding = 1\n\
                 max_wait = \"7200s\"";
    stage
        .sidecar
        .reload(&config(&stage.held, "", slots, ""))
        .await;
    let deadline = Instant::now() + PATIENCE;
    let call = loop {
        let call = stage.explain(&ids[0]).await;
        assert_eq!(call["state"], "waiting", "{call}");
        if call["waits_for"] == "outstanding" {
            break call;
        }
        assert!(Instant::now() < deadline, "{call}");
    };
    // No call has held a slot yet, so when one is free is not known.
    assert_eq!(
        [&call["ahead"], &call["starts_in_seconds"]],
        [&json!(0), &Value::Null]
    );
    let held = call["held"].as_array().expect("a list").iter();
    let limits: Vec<_> = held.filter_map(|it| it["limit"].as_str()).collect();
    assert!(
        limits.contains(&"total") && limits.contains(&"outstanding"),
        "{call}"
    );
    assert_adds_up(&call);
    stage.held.go.notify_one();
    stage.until(&ids[0], "running").await;
}

#[tokio::test]
async fn a_call_whose_client_leaves_while_it_waits_has_ended_as_aborted() {
    let mut stage = Stage::start("", "", 1).await;
    let ids = stage.waiting().await;
    assert_eq!(stage.explain(&ids[0]).await["state"], "waiting");
    drop(stage.clients.pop());
    let call = stage.until(&ids[0], "ended").await;
    assert_eq!(
        [&call["verdict"], &call["backend_ms"]],
        [&json!("aborted"), &Value::Null]
    );
    assert_adds_up(&call);
}

#[tokio::test]
async fn a_waiting_call_is_shown_only_with_the_token() {
    let held = Held::start(OK).await;
    let sidecar = Sidecar::start(&config(&held, "", "", "token = \"s3cret\"")).await;
    let addr = sidecar.listener("test").await;
    let _first = sending(addr, array("guest_get_info", "U0")).await;
    let _second = sending(addr, array("guest_get_info", "U1")).await;
    let get = async |path: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Bearer s3cret\r\n\r\n"
        );
        let answer = ask(sidecar.admin, request).await;
        parsed(answer.split_once("\r\n\r\n").expect("an answer in HTTP").1)
    };
    let deadline = Instant::now() + PATIENCE;
    let path = loop {
        let now = get("/v1/now").await;
        if let Some(id) = now["oldest_calls"][0]["id"].as_str() {
            break format!("/v1/calls/{id}");
        }
        assert!(Instant::now() < deadline, "no call waits: {now}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let (status, answer) = sidecar.get(&path).await;
    assert_eq!(status, 401, "{answer}");
    assert!(!answer.contains("U1"), "{answer}");
    assert_eq!(get(&path).await["state"], "waiting");
}
