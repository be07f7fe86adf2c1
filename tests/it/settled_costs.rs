//! Calls whose answers say what they have cost: reserved when they go, settled at the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::raw_http::{Peer, Reply, access_line};
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

/// A sidecar with a bucket of 1,000 tokens that does not fill within a test, and a route that is settled so.
async fn started(backend: SocketAddr, settled: &str) -> (Sidecar, SocketAddr) {
    let sections = format!(
        r#"
        [admin]
        bind = "127.0.0.1:0"
        [limits]
        window = "0s"
        outstanding = 50
        [[caller]]
        label = "one"
        match = {{ ip = "127.0.0.1" }}
        rate_limit = "tokens"
        [[bucket]]
        name = "tokens"
        burst = 1000
        fill = 0.0001
        on_excess = "reject"
        [[route]]
        method = "POST"
        path = "/chat"
        function = "chat"
        {settled}
        "#
    );
    let backend = format!("kind = \"http\"\nhttp = \"http://{backend}\"");
    let sidecar = Sidecar::start(&listens("", &backend, &sections)).await;
    let addr = sidecar.listener("test").await;
    (sidecar, addr)
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
