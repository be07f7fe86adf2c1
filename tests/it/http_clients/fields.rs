//! The fields and targets of messages, as the other side sees them.

use crate::raw_http::{Acceptor, Peer, get, service};
use crate::sidecar::Sidecar;

/// Fields whose names differ in case, and one that comes twice.
const FIELDS: [&str; 6] = [
    "X-First: 1",
    "x-second: 2",
    "X-THIRD: 3",
    "X-First: 4",
    "x-fOUrTH: 5",
    "ETag: \"6\"",
];

fn fields() -> String {
    FIELDS.map(|field| format!("{field}\r\n")).concat()
}

/// The fields of a head that are ours, in their order.
fn ours(head: &str) -> Vec<&str> {
    let is_ours = |line: &&str| {
        let small = line.to_ascii_lowercase();
        small.starts_with("x-f") && !small.starts_with("x-forwarded")
            || small.starts_with("x-second")
            || small.starts_with("x-third")
            || small.starts_with("etag")
    };
    head.split("\r\n").filter(is_ours).collect()
}

const BIG: usize = 200_000;

/// Sends a request with all fields in each form of its body, and answers it with this reply.
async fn check_fields(reply: &str, is_whole_at: usize) {
    let big = "x".repeat(BIG);
    let requests = [
        get("/page", &fields()),
        format!(
            "POST /page HTTP/1.1\r\n{}Host: t\r\nContent-Length: 2\r\n\r\nxx",
            fields()
        ),
        format!(
            "POST /page HTTP/1.1\r\nHost: t\r\n{}Content-Length: {BIG}\r\n\r\n{big}",
            fields()
        ),
        format!(
            "POST /page HTTP/1.1\r\nHost: t\r\n{}Transfer-Encoding: chunked\r\n\r\n\
             2\r\nxx\r\n0\r\n\r\n",
            fields()
        ),
        format!(
            "POST /page HTTP/1.1\r\nHost: t\r\n{}Transfer-Encoding: chunked\r\n\r\n\
             {BIG:x}\r\n{big}\r\n0\r\n\r\n",
            fields()
        ),
        format!("GET /page HTTP/1.0\r\n{}Host: t\r\n\r\n", fields()),
        get("/page", &format!("TE: trailers\r\n{}", fields())),
        get("/page", &format!("Expect: 100-continue\r\n{}", fields())),
    ];
    let backend = Acceptor::start().await;
    let lines = "pool_max_idle = 0\nreply_buffer_bytes = \"64KiB\"";
    let sidecar = Sidecar::start(&service(backend.addr, lines, "")).await;
    let addr = sidecar.listener("test").await;
    for request in requests {
        let begin: String = request.chars().take(40).collect();
        let mut client = Peer::connect(addr).await;
        let size = request
            .split_once("\r\n\r\n")
            .map_or(0, |(_, body)| body.len());
        let playing = async {
            let (mut running, head) = backend.call().await;
            assert_eq!(ours(&head), FIELDS, "{begin}: {head}");
            // Large bodies only: a small one may be framed in another way.
            running.read_ahead(if size > 1_000 { BIG } else { 0 }).await;
            running.send(reply).await;
            running
        };
        let asking = async {
            client.send(&request).await;
            let reply = client.reply().await;
            assert_eq!(reply.status(), 200, "{begin}: {reply:?}");
            assert!(reply.is_whole(), "{begin}: {:?}", reply.end);
            assert_eq!(ours(&reply.answer.head), FIELDS, "{begin}");
            assert_eq!(reply.answer.body.len(), is_whole_at, "{begin}");
        };
        tokio::join!(playing, asking);
    }
}

#[tokio::test]
async fn field_names_keep_their_case_and_order_around_a_small_reply() {
    let reply = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 2\r\n\r\nok", fields());
    check_fields(&reply, 2).await;
}

#[tokio::test]
async fn field_names_keep_their_case_and_order_around_a_streamed_reply() {
    let big = "y".repeat(BIG);
    let reply = format!(
        "HTTP/1.1 200 OK\r\n{}Content-Length: {BIG}\r\n\r\n{big}",
        fields()
    );
    check_fields(&reply, BIG).await;
}

#[tokio::test]
async fn field_names_keep_their_case_and_order_around_a_reply_in_chunks() {
    let reply = format!(
        "HTTP/1.1 200 OK\r\n{}Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        fields()
    );
    check_fields(&reply, 2).await;
}

#[tokio::test]
async fn a_reply_with_too_many_fields_is_a_502_that_says_so() {
    let backend = Acceptor::start().await;
    let sidecar = Sidecar::start(&service(backend.addr, "", "")).await;
    let addr = sidecar.listener("test").await;
    let mut client = Peer::sending(addr, get("/page", "")).await;
    let (mut running, _) = backend.call().await;
    let many: String = (0..300)
        .map(|it| format!("X-Field-{it}: {it}\r\n"))
        .collect();
    running
        .send(format!(
            "HTTP/1.1 200 OK\r\n{many}Content-Length: 2\r\n\r\nok"
        ))
        .await;
    let reply = client.reply().await;
    assert_eq!(reply.status(), 502, "{reply:?}");
    let detail = &crate::support::json(&reply.answer.body)["detail"];
    let detail = detail.as_str().expect("a sentence");
    let has_number = detail.contains("256") || detail.contains("300");
    assert!(has_number && detail.contains("fields"), "{detail}");
}

#[tokio::test]
async fn a_target_in_absolute_form_reaches_the_backend_in_origin_form() {
    let backend = Acceptor::start().await;
    let sidecar = Sidecar::start(&service(backend.addr, "pool_max_idle = 0", "")).await;
    let mut client = Peer::connect(sidecar.listener("test").await).await;
    for (target, first, host) in [
        (
            "http://other.example:81/page?q=1",
            "/page?q=1",
            "other.example:81",
        ),
        ("http://other.example", "/", "other.example"),
        ("HTTP://t/page", "/page", "t"),
        ("http://other.example?q=1", "/?q=1", "other.example"),
    ] {
        let asks = format!("GET {target} HTTP/1.1\r\nHost: t\r\nX-First: 1\r\n\r\n");
        client.send(asks).await;
        let (mut running, head) = backend.call().await;
        let line = format!("GET {first} HTTP/1.1\r\n");
        assert!(head.starts_with(&line), "{target}: {head}");
        let small = head.to_ascii_lowercase();
        assert!(
            small.contains(&format!("\r\nhost: {host}\r\n")),
            "{target}: {head}"
        );
        assert_eq!(small.matches("\nhost:").count(), 1, "{head}");
        running.send(crate::raw_http::ok("a page")).await;
        client.reply().await.is(200, "a page");
    }
}

#[tokio::test]
async fn a_field_that_connection_names_is_for_one_hop_and_the_connection_stays() {
    let backend = Acceptor::start().await;
    let sidecar = Sidecar::start(&service(backend.addr, "pool_max_idle = 0", "")).await;
    let mut client = Peer::connect(sidecar.listener("test").await).await;
    for connection in [
        "Connection: X-Foo, keep-alive\r\n",
        "Connection: keep-alive, x-foo\r\n",
        "Connection: keep-alive\r\nConnection: X-FOO\r\n",
        "Connection:  , X-Foo ,\r\n",
    ] {
        let asks = get("/page", &format!("{connection}X-Foo: 1\r\nX-First: 1\r\n"));
        client.send(asks).await;
        let (mut running, head) = backend.call().await;
        let small = head.to_ascii_lowercase();
        assert!(!small.contains("x-foo"), "{connection}: {head}");
        assert!(small.contains("\r\nx-first: 1\r\n"), "{connection}: {head}");
        running.send(crate::raw_http::ok("a page")).await;
        let reply = client.reply().await;
        reply.is(200, "a page");
        assert_ne!(reply.answer.header("connection"), Some("close"));
    }
}
