//! Clients of HTTP that do not write the usual form, through the real process: HTTP/1.0 with keep-alive,
//! `Expect`, interim replies, `Max-Forwards`.

mod fields;

use crate::raw_http::{
    Acceptor, BodyEnd, Peer, SOON, get, limited, load, ok, one_at_a_time, reach_load, service,
};
use crate::sidecar::Sidecar;
use crate::support::{Answer, Scripted};

/// A backend that answers every request with this, and closes after it where `closes`.
async fn answering(reply: String, closes: bool) -> Scripted {
    Scripted::start(move |_, stream| {
        let reply = reply.clone();
        async move {
            let mut peer = Peer::new(stream);
            while peer.next_head().await.is_some() {
                peer.send(&reply).await;
                if closes {
                    return;
                }
            }
        }
    })
    .await
}

const KEEP_ALIVE_1_0: &str = "GET /page HTTP/1.0\r\nConnection: Keep-Alive\r\nHost: t\r\n\r\n";

/// As `ab -k` counts: a reply that says keep-alive has its length, or no body; any other reply ends with
/// its connection. Returns the bodies that were whole.
async fn count_as_ab(sidecar: &Sidecar, requests: usize, body: &str) -> usize {
    let addr = sidecar.listener("test").await;
    let mut client = None;
    let mut whole = 0;
    for _ in 0..requests {
        let mut peer: Peer = match client.take() {
            Some(peer) => peer,
            None => Peer::connect(addr).await,
        };
        peer.send(KEEP_ALIVE_1_0).await;
        // A rest of the last body may be in front of it, or instead of it.
        let Some(head) = peer.next_head().await else {
            continue;
        };
        let head = Answer::read(head.as_bytes());
        let says = head.header("connection").unwrap_or_default();
        let got = if says.eq_ignore_ascii_case("keep-alive") {
            let length = head.header("content-length").unwrap_or("0");
            let got = peer.bytes(length.parse().expect("a number")).await;
            client = Some(peer);
            got
        } else {
            peer.end().await.0
        };
        whole += usize::from(got == body.as_bytes());
    }
    whole
}

#[tokio::test]
async fn a_client_of_http_1_0_loses_no_reply_of_unknown_length() {
    let body = "x".repeat(5_000);
    let chunks =
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n{body}\r\n0\r\n\r\n");
    let to_the_end = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}");
    for (reply, closes) in [(chunks, false), (to_the_end, true)] {
        let backend = answering(reply, closes).await;
        let sidecar = Sidecar::start(&service(backend.addr, "", "")).await;
        assert_eq!(count_as_ab(&sidecar, 200, &body).await, 200);
        let addr = sidecar.listener("test").await;
        let reply = Peer::ask(addr, KEEP_ALIVE_1_0).await;
        reply.is(200, &body);
        assert_eq!(reply.end, BodyEnd::Close, "{reply:?}");
        assert_eq!(reply.answer.header("connection"), Some("close"));
        assert_eq!(reply.answer.header("transfer-encoding"), None);
    }
}

#[tokio::test]
async fn a_client_of_http_1_0_keeps_its_connection_where_the_length_is_known() {
    let backend = answering(ok("a page"), false).await;
    let sidecar = Sidecar::start(&service(backend.addr, "", "")).await;
    let mut client = Peer::connect(sidecar.listener("test").await).await;
    for _ in 0..5 {
        client.send(KEEP_ALIVE_1_0).await;
        let reply = client.reply().await;
        reply.is(200, "a page");
        let says = reply.answer.header("connection").unwrap_or_default();
        assert!(says.eq_ignore_ascii_case("keep-alive"), "{reply:?}");
    }
    assert_eq!(count_as_ab(&sidecar, 20, "a page").await, 20);
    // Without its wish the connection is closed.
    client.send("GET /page HTTP/1.0\r\n\r\n").await;
    client.reply().await.is(200, "a page");
    assert!(client.end().await.0.is_empty());
}

/// A head that asks for permission before its body.
fn expecting(path: &str, length: usize, fields: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\
         Expect: 100-continue\r\n{fields}\r\n"
    )
}

const SMALL_BUFFER: &str = "[client]\nbuffer_bytes = \"4KiB\"";

#[tokio::test]
async fn a_client_that_expects_permission_gets_it_when_its_call_is_admitted() {
    for length in [10, 100_000] {
        let backend = Acceptor::start().await;
        let config = one_at_a_time(backend.addr, "", SMALL_BUFFER);
        let sidecar = Sidecar::start(&config).await;
        let addr = sidecar.listener("test").await;
        let mut first = Peer::sending(addr, get("/slow", "Connection: close\r\n")).await;
        let (mut busy, _) = backend.call().await;
        let mut client = Peer::sending(addr, expecting("/files", length, "")).await;
        reach_load(&sidecar, (1, 1), SOON).await;
        assert!(client.is_silent().await, "{length}: permission too early");
        busy.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ndone")
            .await;
        drop(busy);
        first.reply().await.is(200, "done");
        let permission = client.head().await;
        assert!(permission.starts_with("HTTP/1.1 100 "), "{permission}");
        client.send("x".repeat(length)).await;
        let (mut running, head) = backend.call().await;
        assert!(head.starts_with("POST /files "), "{head}");
        assert_eq!(running.bytes(length).await.len(), length);
        running.send(ok("stored")).await;
        let reply = client.reply().await;
        reply.is(200, "stored");
        assert_eq!(reply.interim.len(), 0, "{length}: permission twice");
    }
}

/// The permission of the backend is not a second one.
#[tokio::test]
async fn permission_comes_once_though_the_backend_gives_its_own() {
    for length in [10, 100_000] {
        let backend = Acceptor::start().await;
        let sidecar = Sidecar::start(&service(backend.addr, "", SMALL_BUFFER)).await;
        let addr = sidecar.listener("test").await;
        let mut client = Peer::sending(addr, expecting("/files", length, "")).await;
        let playing = async {
            let (mut running, _) = backend.call().await;
            running.send("HTTP/1.1 100 Continue\r\n\r\n").await;
            running.bytes(length).await;
            running.send(ok("stored")).await;
            running
        };
        let uploading = async {
            let permission = client.head().await;
            assert!(permission.starts_with("HTTP/1.1 100 "), "{permission}");
            client.send("x".repeat(length)).await;
            let reply = client.reply().await;
            reply.is(200, "stored");
            assert_eq!(reply.interim.len(), 0, "{length}: permission twice");
        };
        tokio::join!(playing, uploading);
    }
}

#[tokio::test]
async fn a_full_queue_refuses_a_client_that_expects_permission_without_it() {
    for length in [10, 100_000] {
        let backend = Acceptor::start().await;
        let sections = format!("capacity = 1\nwhen_full = \"refuse\"\n{SMALL_BUFFER}");
        let config = one_at_a_time(backend.addr, "", &sections);
        let sidecar = Sidecar::start(&config).await;
        let addr = sidecar.listener("test").await;
        let _first = Peer::sending(addr, get("/slow", "")).await;
        let (_busy, _) = backend.call().await;
        let _second = Peer::sending(addr, get("/slow", "")).await;
        reach_load(&sidecar, (1, 1), SOON).await;
        let mut client = Peer::sending(addr, expecting("/files", length, "")).await;
        let reply = client.reply().await;
        assert_eq!(reply.status(), 503, "{reply:?}");
        assert_eq!(reply.interim.len(), 0, "{length}: permission, and then no");
        assert!(reply.answer.body.contains("queue_full"), "{reply:?}");
        assert_eq!(load(&sidecar).await, (1, 1));
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_without_permission() {
    let backend = Acceptor::start().await;
    let config = limited("", backend.addr, "kind = \"zvm\"", SMALL_BUFFER);
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    // The function is in the body, which is too large to be held.
    let asks = expecting("/guests/X/action", 20 << 20, "");
    let reply = Peer::ask(addr, asks).await;
    assert_eq!(reply.status(), 413, "{reply:?}");
    assert_eq!(reply.interim.len(), 0, "permission, and then no");
    assert!(backend.is_silent().await);
}

/// A body that names the function is needed to decide.
#[tokio::test]
async fn permission_comes_at_once_where_the_body_names_the_function() {
    let backend = Acceptor::start().await;
    let config = limited("outstanding = 1", backend.addr, "kind = \"zvm\"", "");
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    let _first = Peer::sending(addr, get("/host", "")).await;
    let (_busy, _) = backend.call().await;
    let body = "{\"action\": \"start\"}";
    let asks = expecting("/guests/X/action", body.len(), "");
    let mut client = Peer::sending(addr, asks).await;
    let permission = client.head().await;
    assert!(permission.starts_with("HTTP/1.1 100 "), "{permission}");
    client.send(body).await;
    reach_load(&sidecar, (1, 1), SOON).await;
}

#[tokio::test]
async fn a_reply_that_comes_before_the_rest_of_an_expected_body_is_passed_on() {
    let backend = Acceptor::start().await;
    let sidecar = Sidecar::start(&service(backend.addr, "", SMALL_BUFFER)).await;
    let addr = sidecar.listener("test").await;
    let mut client = Peer::sending(addr, expecting("/files", 100_000, "")).await;
    let permission = client.head().await;
    assert!(permission.starts_with("HTTP/1.1 100 "), "{permission}");
    // The rest never comes.
    client.send("x".repeat(8_000)).await;
    let (mut running, _) = backend.call().await;
    running
        .send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
        .await;
    client.reply().await.is(401, "no");
}

const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n";
const PROCESSING: &str = "HTTP/1.1 102 Processing\r\n\r\n";

#[tokio::test]
async fn interim_replies_of_the_backend_reach_a_client_of_http_1_1() {
    let replies = format!("{HINTS}{PROCESSING}{HINTS}{}", ok("a page"));
    let backend = answering(replies, false).await;
    let sidecar = Sidecar::start(&service(backend.addr, "", "")).await;
    let mut client = Peer::connect(sidecar.listener("test").await).await;
    for _ in 0..2 {
        client.send(get("/page", "")).await;
        let reply = client.reply().await;
        reply.is(200, "a page");
        let interim: Vec<_> = reply.interim.iter().map(|it| it.status).collect();
        assert_eq!(interim, [103, 102, 103], "{reply:?}");
        let link = reply.interim[0].header("link");
        assert_eq!(link, Some("</style.css>; rel=preload"), "{reply:?}");
    }
}

/// Also before the backend has decided on its reply.
#[tokio::test]
async fn an_interim_reply_is_passed_on_when_it_comes() {
    let backend = Acceptor::start().await;
    let sidecar = Sidecar::start(&service(backend.addr, "", "")).await;
    let addr = sidecar.listener("test").await;
    let mut client = Peer::sending(addr, get("/page", "")).await;
    let (mut running, _) = backend.call().await;
    running.send(HINTS).await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 103 "), "{head}");
    running.send(ok("a page")).await;
    client.reply().await.is(200, "a page");
}

#[tokio::test]
async fn at_most_eight_interim_replies_are_passed_on() {
    let replies = format!("{}{}", HINTS.repeat(12), ok("a page"));
    let backend = answering(replies, false).await;
    let sidecar = Sidecar::start(&service(backend.addr, "", "")).await;
    let addr = sidecar.listener("test").await;
    let reply = Peer::ask(addr, get("/page", "")).await;
    reply.is(200, "a page");
    assert_eq!(reply.interim.len(), 8);
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_no_interim_reply() {
    let backend = answering(format!("{HINTS}{PROCESSING}{}", ok("a page")), false).await;
    let sidecar = Sidecar::start(&service(backend.addr, "", "")).await;
    let addr = sidecar.listener("test").await;
    let reply = Peer::ask(addr, "GET /page HTTP/1.0\r\nHost: t\r\n\r\n").await;
    reply.is(200, "a page");
    assert!(reply.interim.is_empty(), "{reply:?}");
}

#[tokio::test]
async fn a_request_that_may_go_no_further_is_answered_by_tidegate() {
    let backend = Acceptor::start().await;
    let sidecar = Sidecar::start(&service(backend.addr, "", "")).await;
    let addr = sidecar.listener("test").await;
    for method in ["OPTIONS", "TRACE"] {
        let asks = format!(
            "{method} /page HTTP/1.1\r\nHost: t\r\nMax-Forwards: 0\r\n\
             Authorization: Basic c2VjcmV0\r\nCookie: a=b\r\n\r\n"
        );
        let reply = Peer::ask(addr, asks).await;
        assert!(reply.is_whole() && reply.status() < 500, "{reply:?}");
        for secret in ["c2VjcmV0", "a=b"] {
            assert!(!reply.answer.body.contains(secret), "{reply:?}");
        }
        assert!(backend.is_silent().await, "{method} reached the backend");
    }
}

#[tokio::test]
async fn max_forwards_counts_down_for_trace_and_options_alone() {
    let backend = Acceptor::start().await;
    let sidecar = Sidecar::start(&service(backend.addr, "pool_max_idle = 0", "")).await;
    let addr = sidecar.listener("test").await;
    for (method, arrives) in [("OPTIONS", "4"), ("TRACE", "4"), ("GET", "5")] {
        let asks = format!("{method} /page HTTP/1.1\r\nHost: t\r\nMax-Forwards: 5\r\n\r\n");
        let mut client = Peer::sending(addr, asks).await;
        let (mut running, head) = backend.call().await;
        let field = format!("\r\nMax-Forwards: {arrives}\r\n");
        assert!(head.contains(&field), "{method}: {head}");
        running.send(ok("seen")).await;
        client.reply().await.is(200, "seen");
    }
}

/// Requests that were once left to another engine, each with its backend's head and its reply.
#[tokio::test]
async fn an_odd_request_changes_nothing_for_those_behind_it() {
    let odd = [
        get("/odd", "TE: trailers\r\n"),
        get("/odd", "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"),
        get("/odd", "Connection: keep-alive\r\nConnection: X-Hop\r\n"),
        "GET http://t/odd HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(),
        "PURGE /odd HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(),
        "GET /odd HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".to_owned(),
        format!("{}xx", expecting("/odd", 2, "")),
        format!(
            "PUT /odd HTTP/1.1\r\nHost: t\r\nContent-Length: 200000\r\n\r\n{}",
            "x".repeat(200_000)
        ),
    ];
    let backend = Scripted::start(|_, stream| async move {
        let mut peer = Peer::new(stream);
        while let Some(head) = peer.next_head().await {
            let head = Answer::read(head.replacen(' ', " 0 ", 1).as_bytes());
            let length = head.header("content-length").unwrap_or("0");
            peer.bytes(length.parse().expect("a number")).await;
            peer.send(ok("a page")).await;
        }
    })
    .await;
    let sidecar = Sidecar::start(&service(backend.addr, "", "")).await;
    let addr = sidecar.listener("test").await;
    for request in odd {
        let mut client = Peer::connect(addr).await;
        for request in [&get("/first", ""), &request, &get("/behind", "")] {
            client.send(request).await;
            let reply = client.reply().await;
            reply.is(200, "a page");
        }
    }
    let (_, metrics) = sidecar.get("/metrics").await;
    let fallback = metrics.lines().find(|line| line.contains("fallback"));
    assert_eq!(fallback, None);
}
