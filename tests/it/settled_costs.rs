//! Calls whose answers say what they have cost: reserved when they go, settled at the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::raw_http::{Peer, Reply, access_line, reach_load};
use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, Scripted, closed_port, listens};

/// A service that answers a request with the bytes that its body asks for: `reply` at once, and each of `then` after one
/// more notice.
async fn service() -> (Scripted, Arc<Notify>) {
    let go = Arc::new(Notify::new());
    let wait = Arc::clone(&go);
    let backend = Scripted::start(move |_, stream| {
        let wait = Arc::clone(&wait);
        async move {
            let mut peer = Peer::new(stream);
            while let Some(head) = peer.next_head().await {
                let body = peer.body_of(&head).await;
                let asked: Value = serde_json::from_slice(&body).expect("JSON");
                peer.send(asked["reply"].as_str().unwrap_or_default()).await;
                for part in asked["then"].as_array().into_iter().flatten() {
                    wait.notified().await;
                    peer.send(part.as_str().expect("a text")).await;
                }
            }
        }
    })
    .await;
    (backend, go)
}

/// A bucket of 1,000 tokens that does not fill within a test.
const BUCKET: &str = r#"
    [[caller]]
    label = "one"
    match = { ip = "127.0.0.1" }
    rate_limit = "tokens"
    [[bucket]]
    name = "tokens"
    burst = 1000
    fill = 0.0001
    on_excess = "reject"
"#;

/// A quota of 1,000 tokens in a window that does not end within a test.
const QUOTA: &str = r#"
    [quota_store]
    engine = "memory"
    [[quota]]
    name = "daily"
    applies_to = "total"
    total = 1000
    refresh_window = "24h"
    on_excess = "reject"
"#;

/// A sidecar with that bucket, and a route that is settled so.
async fn started(backend: SocketAddr, settled: &str) -> (Sidecar, SocketAddr) {
    started_with(backend, settled, BUCKET, 50).await
}

async fn started_with(
    backend: SocketAddr,
    settled: &str,
    limits: &str,
    outstanding: u32,
) -> (Sidecar, SocketAddr) {
    let sidecar = Sidecar::start(&config(backend, settled, limits, outstanding)).await;
    let addr = sidecar.listener("test").await;
    (sidecar, addr)
}

fn config(backend: SocketAddr, settled: &str, limits: &str, outstanding: u32) -> String {
    let sections = format!(
        r#"
        [admin]
        bind = "127.0.0.1:0"
        [limits]
        window = "0s"
        outstanding = {outstanding}
        {limits}
        [[route]]
        method = "POST"
        path = "/chat"
        function = "chat"
        {settled}
        "#
    );
    let backend = format!("kind = \"http\"\nhttp = \"http://{backend}\"");
    listens("", &backend, &sections)
}

const BY_BODY: &str = "cost_from = { json = \"/usage/total_tokens\" }\nreserve = { json = \"/max_tokens\", else = 500 }";

fn post(body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!("POST /chat HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// An answer in JSON.
fn answer(body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// An answer that says how many tokens it has cost.
fn costing(tokens: u64) -> String {
    answer(&json!({ "usage": { "total_tokens": tokens } }).to_string())
}

async fn ask(addr: SocketAddr, body: &Value) -> Reply {
    Peer::ask(addr, post(body)).await
}

/// The tokens in the bucket, in whole ones.
async fn left(sidecar: &Sidecar) -> i64 {
    let (_, body) = sidecar.get("/v1/rate-limits").await;
    let all: Value = serde_json::from_str(&body).expect("JSON");
    let limits = all["rate_limits"].as_array().or(all.as_array());
    let limit = &limits.unwrap_or_else(|| panic!("{body}"))[0];
    limit["tokens"].as_f64().expect("a number").round() as i64
}

/// Waits until this many tokens are left.
async fn reaches(sidecar: &Sidecar, wanted: i64) {
    let began = Instant::now();
    loop {
        let now = left(sidecar).await;
        if now == wanted {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{now}, and not {wanted}");
    }
}

#[tokio::test]
async fn a_call_reserves_what_it_may_cost_and_is_charged_what_it_has_cost() {
    let (backend, go) = service().await;
    let (sidecar, addr) = started(backend.addr, BY_BODY).await;
    let reply = costing(30);
    let (head, rest) = reply.split_at(20);
    let held = json!({ "max_tokens": 800, "reply": head, "then": [rest] });
    let mut running = Peer::sending(addr, post(&held)).await;
    reaches(&sidecar, 200).await;
    let large = json!({ "max_tokens": 800, "reply": costing(30) });
    assert_eq!(ask(addr, &large).await.status(), 429);
    // Without a number in the request.
    assert_eq!(
        ask(addr, &json!({ "reply": costing(1) })).await.status(),
        429
    );
    go.notify_one();
    assert_eq!(running.reply().await.status(), 200);
    reaches(&sidecar, 970).await;
    assert_eq!(ask(addr, &large).await.status(), 200);
    reaches(&sidecar, 940).await;
    let (line, _) = access_line(&sidecar, 0).await;
    assert_eq!(
        (&line["reason"], &line["status"]),
        (&json!("rate_limited"), &json!(429)),
        "{line}"
    );
}

#[tokio::test]
async fn a_call_that_cost_more_than_it_reserved_leaves_a_debt() {
    let (backend, _) = service().await;
    let (sidecar, addr) = started(backend.addr, BY_BODY).await;
    let more = json!({ "max_tokens": 10, "reply": costing(2500) });
    assert_eq!(ask(addr, &more).await.status(), 200);
    reaches(&sidecar, -1500).await;
    assert_eq!(ask(addr, &more).await.status(), 429);
}

#[tokio::test]
async fn the_last_event_of_a_stream_says_it_and_a_stream_that_is_cut_costs_its_events() {
    let (backend, go) = service().await;
    let (sidecar, addr) = started(backend.addr, BY_BODY).await;
    let chunk = |data: &str| format!("{:x}\r\n{data}\r\n", data.len());
    let event = |data: &Value| chunk(&format!("data: {data}\n\n"));
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
    let word = event(&json!({ "choices": [{ "delta": { "content": "word" } }] }));
    let usage = event(&json!({ "choices": [], "usage": { "total_tokens": 30 } }));
    // The number is split between two chunks of the transfer.
    let (first, second) = usage.split_at(usage.find("30").expect("it is there") + 1);
    let first = first.split_once("\r\n").expect("a size").1;
    let second = second.strip_suffix("\r\n").expect("an end");
    let end = format!(
        "{}{}{}0\r\n\r\n",
        chunk(first),
        chunk(second),
        chunk("data: [DONE]\n\n")
    );
    let begun = format!("{head}{word}{word}");
    let whole = json!({ "max_tokens": 800, "reply": begun, "then": [end] });
    let mut client = Peer::sending(addr, post(&whole)).await;
    client.next_head().await.expect("it begins");
    reaches(&sidecar, 200).await;
    go.notify_one();
    client.bytes(begun.len() - head.len() + end.len()).await;
    reaches(&sidecar, 970).await;
    // Its client leaves after two events, and the backend's connection is closed for it.
    let mut client = Peer::sending(addr, post(&whole)).await;
    client.next_head().await.expect("it begins");
    client.bytes(begun.len() - head.len()).await;
    drop(client);
    reaches(&sidecar, 968).await;
}

#[tokio::test]
async fn a_header_of_the_answer_says_it() {
    let (backend, _) = service().await;
    let settled =
        "cost_from = { header = \"X-Cost\" }\nreserve = { header = \"X-Most\", else = 500 }";
    let (sidecar, addr) = started(backend.addr, settled).await;
    let reply = "HTTP/1.1 200 OK\r\nx-cost: 12\r\nContent-Length: 2\r\n\r\nok";
    let asked = post(&json!({ "reply": reply })).replace("\r\n\r\n", "\r\nX-Most: 700\r\n\r\n");
    Peer::ask(addr, asked).await.is(200, "ok");
    reaches(&sidecar, 988).await;
}

#[tokio::test]
async fn an_answer_that_does_not_say_it_costs_what_was_reserved() {
    let (backend, _) = service().await;
    let (sidecar, addr) = started(backend.addr, BY_BODY).await;
    let encoded = costing(1).replace("\r\n\r\n", "\r\nContent-Encoding: gzip\r\n\r\n");
    let failed = costing(1).replace("200 OK", "500 Internal Server Error");
    let twice = answer(r#"{ "usage": { "total_tokens": 1, "total_tokens": 2 } }"#);
    for (nth, reply) in [encoded, failed, twice, answer("[]")].iter().enumerate() {
        ask(addr, &json!({ "max_tokens": 100, "reply": reply })).await;
        let wanted = 1000 - 100 * (nth as i64 + 1);
        reaches(&sidecar, wanted).await;
    }
}

#[tokio::test]
async fn what_is_reserved_is_learned_from_the_calls_before() {
    let (backend, go) = service().await;
    let settled = "cost_from = { json = \"/usage/total_tokens\" }\nreserve = \"learned\"";
    let (sidecar, addr) = started(backend.addr, settled).await;
    for nth in 1..=20 {
        // 19 cost 5, and one 100: 95 of 100 cost 5 at most.
        let cost = if nth == 7 { 100 } else { 5 };
        assert_eq!(
            ask(addr, &json!({ "reply": costing(cost) })).await.status(),
            200
        );
    }
    reaches(&sidecar, 1000 - 19 * 5 - 100).await;
    let reply = costing(40);
    let (head, rest) = reply.split_at(20);
    let mut running = Peer::sending(addr, post(&json!({ "reply": head, "then": [rest] }))).await;
    reaches(&sidecar, 800).await;
    go.notify_one();
    running.reply().await;
    reaches(&sidecar, 765).await;
}

#[tokio::test]
async fn a_call_that_was_never_sent_costs_nothing() {
    let (sidecar, addr) = started(closed_port(), BY_BODY).await;
    let client = Peer::sending(addr, post(&json!({ "max_tokens": 800 }))).await;
    reaches(&sidecar, 200).await;
    drop(client);
    reaches(&sidecar, 1000).await;
}

#[tokio::test]
async fn a_call_that_runs_over_a_reload_is_settled_by_its_answer() {
    let (backend, go) = service().await;
    let limits = format!("{BUCKET}{QUOTA}");
    let (sidecar, addr) = started_with(backend.addr, BY_BODY, &limits, 50).await;
    let reply = costing(30);
    let (head, rest) = reply.split_at(20);
    let held = json!({ "max_tokens": 800, "reply": head, "then": [rest] });
    let mut running = Peer::sending(addr, post(&held)).await;
    reaches(&sidecar, 200).await;
    let larger = limits.replace("burst = 1000", "burst = 1200");
    sidecar
        .reload(&config(backend.addr, BY_BODY, &larger, 50))
        .await;
    reaches(&sidecar, 200).await;
    go.notify_one();
    assert_eq!(running.reply().await.status(), 200);
    reaches(&sidecar, 970).await;
    let (line, mut from) = access_line(&sidecar, 0).await;
    assert_eq!(line["quota"][0]["settled"], json!(30), "{line}");
    assert_eq!(exactly(&sidecar, addr, 970, &mut from).await.0, 200);
}

/// The status of a call that costs what it reserves, and its access line, after which it is settled.
async fn exactly(
    sidecar: &Sidecar,
    addr: SocketAddr,
    tokens: u64,
    from: &mut usize,
) -> (u16, Value) {
    let body = json!({ "max_tokens": tokens, "reply": costing(tokens) });
    let status = ask(addr, &body).await.status();
    let (line, next) = access_line(sidecar, *from).await;
    *from = next;
    (status, line)
}

#[tokio::test]
async fn a_quota_gets_back_what_a_call_did_not_use_and_is_charged_what_it_used_beyond() {
    let (backend, go) = service().await;
    let (sidecar, addr) = started_with(backend.addr, BY_BODY, QUOTA, 50).await;
    let mut from = 0;
    let reply = costing(30);
    let (head, rest) = reply.split_at(20);
    let held = json!({ "max_tokens": 800, "reply": head, "then": [rest] });
    let mut running = Peer::sending(addr, post(&held)).await;
    reach_load(&sidecar, (1, 0), PATIENCE).await;
    let (status, line) = exactly(&sidecar, addr, 300, &mut from).await;
    assert_eq!((status, &line["reason"]), (429, &json!("rate_limited")));
    go.notify_one();
    assert_eq!(running.reply().await.status(), 200);
    let (line, next) = access_line(&sidecar, from).await;
    from = next;
    let draw = &line["quota"][0];
    assert_eq!((&draw["cost"], &draw["settled"]), (&json!(800), &json!(30)));
    assert_eq!(exactly(&sidecar, addr, 300, &mut from).await.0, 200);
    // 670 are left. This one reserves ten of them, and uses 600.
    let more = json!({ "max_tokens": 10, "reply": costing(600) });
    assert_eq!(ask(addr, &more).await.status(), 200);
    from = access_line(&sidecar, from).await.1;
    assert_eq!(exactly(&sidecar, addr, 71, &mut from).await.0, 429);
    let (status, line) = exactly(&sidecar, addr, 70, &mut from).await;
    assert_eq!((status, &line["tokens"]), (200, &json!(70)));
}

#[tokio::test]
async fn a_caller_whose_calls_cost_more_than_they_reserved_has_its_next_turns_later() {
    let (backend, go) = service().await;
    // A caller for each key, and one call at a time.
    let settled = format!("{BY_BODY}\ncaller_from = {{ header = \"X-Key\" }}");
    let (sidecar, addr) =
        started_with(backend.addr, &settled, "[queue]\npostpone = \"in_turn\"", 1).await;
    let asked = |key: &str, cost: u64| {
        let reply = costing(cost);
        let (head, rest) = reply.split_at(20);
        let body = json!({ "max_tokens": 10, "reply": head, "then": [rest] });
        post(&body).replacen("\r\n", &format!("\r\nX-Key: {key}\r\n"), 1)
    };
    let mut clients = Vec::new();
    let little = [("little", 10); 5];
    let calls = [("first", 10), ("much", 40), ("much", 10), ("much", 10)].into_iter();
    for (key, cost) in calls.chain(little) {
        let waiting = clients.len() as u64;
        clients.push(Peer::sending(addr, asked(key, cost)).await);
        reach_load(&sidecar, (1, waiting), PATIENCE).await;
    }
    let (mut users, mut from) = (Vec::new(), 0);
    for _ in 0..clients.len() {
        go.notify_one();
        let (line, next) = access_line(&sidecar, from).await;
        from = next;
        users.push(line["user"].clone());
    }
    let much = &users[1];
    let turns = users[1..].iter();
    let turns: String = turns
        .map(|user| if user == much { 'm' } else { 'l' })
        .collect();
    assert_eq!(turns, "mllllmlm", "{users:?}");
}

/// The streams of `clients` clients, each of which leaves after two events.
async fn cancelled_streams(clients: usize, at_once: usize) {
    let (backend, _) = service().await;
    let bucket = BUCKET
        .replace("burst = 1000", "burst = 1000000")
        .replace("reject", "delay");
    let (sidecar, addr) = started_with(backend.addr, BY_BODY, &bucket, 0).await;
    let event = "data: {}\n\n";
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let body = format!("{:x}\r\n{event}{event}\r\n", 2 * event.len());
    let stream = json!({ "max_tokens": 800, "reply": format!("{head}{body}"), "then": [] });
    let request = post(&stream);
    let mut left = clients;
    while left > 0 {
        let now = left.min(at_once);
        let mut leaving = JoinSet::new();
        for _ in 0..now {
            let (request, bytes) = (request.clone(), body.len());
            leaving.spawn(async move {
                let mut client = Peer::sending(addr, request).await;
                client.next_head().await.expect("it begins");
                client.bytes(bytes).await;
            });
        }
        leaving.join_all().await;
        left -= now;
    }
    reach_load(&sidecar, (0, 0), PATIENCE).await;
    reaches(&sidecar, 1_000_000 - 2 * clients as i64).await;
}

#[tokio::test]
async fn ten_thousand_streams_that_are_cut_leave_nothing_reserved() {
    cancelled_streams(10_000, 50).await;
}
