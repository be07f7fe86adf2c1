//! Event streams that begin while the call waits, and what becomes of other answers.

use super::Busy;
use crate::raw_http::{BodyEnd, Peer, get, ok};
use crate::support::Answer;

const EVENTS: &str = "Accept: text/event-stream\r\nAccept-Encoding: gzip\r\n";

/// The head of a stream that has begun, once a comment is here too.
async fn begun(client: &mut Peer) -> Answer {
    let head = client.head().await;
    client.read_ahead(b"3\r\n:\n\n\r\n".len()).await;
    let head = Answer::read(head.as_bytes());
    assert_eq!(head.status, 200, "{head:?}");
    assert!(head.header("x-tidegate-call").is_some(), "{head:?}");
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    head
}

/// The rest of a stream, without its comments.
async fn rest(client: &mut Peer, head: &Answer) -> String {
    let (body, end) = client.body(head).await;
    assert_eq!(end, BodyEnd::LastChunk);
    let body = String::from_utf8(body).expect("text");
    let events = body.trim_start_matches(":\n\n");
    assert!(events.len() < body.len(), "no comment: {body}");
    events.to_owned()
}

async fn start() -> Busy {
    Busy::start("event_stream_signs = true").await
}

#[tokio::test]
async fn a_stream_begins_with_comments_and_continues_with_the_events_of_the_service() {
    for reply in [
        "Content-Length: 11\r\n\r\ndata: one\n\n",
        "Transfer-Encoding: chunked\r\n\r\n6\r\ndata: \r\n5\r\none\n\n\r\n0\r\n\r\n",
    ] {
        let mut busy = start().await;
        let mut client = busy.waiting("off", &get("/events", EVENTS), 1).await;
        let head = begun(&mut client).await;
        busy.running.send(ok("done")).await;
        let (mut running, asked) = busy.backend.call().await;
        assert!(!asked.to_lowercase().contains("accept-encoding"), "{asked}");
        let stream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n";
        running.send(format!("{stream}{reply}")).await;
        assert_eq!(rest(&mut client, &head).await, "data: one\n\n");
        // The connection goes on.
        client.send(get("/behind", "")).await;
        let (mut running, _) = busy.backend.call().await;
        running.send(ok("behind")).await;
        client.reply().await.is(200, "behind");
        let counted = "tidegate_signs_of_life_total{listener=\"off\",sign=\"event\"}";
        assert!(busy.sidecar.metric(counted).await >= 1.0);
    }
}

#[tokio::test]
async fn an_answer_that_is_no_stream_becomes_an_event() {
    let mut busy = start().await;
    let mut client = busy.waiting("off", &get("/events", EVENTS), 1).await;
    let head = begun(&mut client).await;
    busy.running.send(ok("done")).await;
    let (mut running, _) = busy.backend.call().await;
    running
        .send(ok("no such thing").replacen("200 OK", "404 Not Found", 1))
        .await;
    let events = rest(&mut client, &head).await;
    assert!(events.starts_with("event: error\ndata: {"), "{events}");
    assert!(
        events.contains("\"status\":404") && events.contains("no such thing"),
        "{events}"
    );
}

#[tokio::test]
async fn a_refusal_becomes_an_event() {
    let busy = start().await;
    let mut client = busy.waiting("off", &get("/events", EVENTS), 1).await;
    let head = begun(&mut client).await;
    busy.sidecar.signal("TERM");
    let events = rest(&mut client, &head).await;
    assert!(events.starts_with("event: error\ndata: {"), "{events}");
    assert!(events.contains("\"reason\":\"draining\""), "{events}");
}

#[tokio::test]
async fn a_body_that_asks_for_a_stream_gets_one_in_its_dialect_and_errors_as_its_client_reads_them()
{
    let busy = Busy::start_with("event_stream_signs = true", "dialect = \"openai\"").await;
    let post = |body: &str| {
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let streamed = post("{\"model\":\"m\",\"messages\":[],\"stream\":true}");
    let mut client = busy.waiting("off", &streamed, 1).await;
    let mut whole = busy
        .waiting("off", &post("{\"model\":\"m\",\"messages\":[]}"), 2)
        .await;
    let head = begun(&mut client).await;
    assert!(super::stays_silent(&mut whole).await);
    busy.sidecar.signal("TERM");
    let events = rest(&mut client, &head).await;
    assert!(events.starts_with("data: {\"error\":{"), "{events}");
    assert!(events.contains("\"code\":\"draining\""), "{events}");
    assert_eq!(whole.reply().await.status(), 503);
}

#[tokio::test]
async fn no_stream_begins_for_other_requests() {
    let busy = start().await;
    let head = format!("HEAD /events HTTP/1.1\r\nHost: t\r\n{EVENTS}\r\n");
    let old = format!("GET /events HTTP/1.0\r\nHost: t\r\n{EVENTS}\r\n");
    let mut calls = 0;
    for request in [
        get("/page", ""),
        get("/page", "Accept: */*\r\n"),
        get("/page", "Accept: text/html, text/event-stream\r\n"),
        head,
        old,
    ] {
        calls += 1;
        let mut client = busy.waiting("off", &request, calls).await;
        assert!(super::stays_silent(&mut client).await, "{request}");
        drop(client);
        calls -= 1;
    }
}
