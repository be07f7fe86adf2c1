//! A faulty backend: in every case the client gets a complete, correct answer, and the slot comes
//! back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::call::{Reason, Verdict};
use tidegate_lab::backend::{StandInBackend, StandInOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{
    Scripted, Stack, array, closed_port, in_turn, json, read_all, replying, sending, until,
};

fn text(socket: impl ToString, extra: &str) -> String {
    let addr = socket.to_string();
    in_turn(
        &format!("socket = \"{addr}\"\nhttp = \"http://{addr}\"\n{extra}"),
        "",
    )
}

/// Asks once on each protocol; the answer must be a complete refusal with this reason.
async fn failed(stack: &Stack, reason: Reason) {
    let asked = stack.seen.all().len();
    let socket = stack.ask(array("guest_get_info", "X")).await;
    let answer = json(&socket);
    assert_eq!(answer["modID"], 130, "{socket}");
    assert_eq!(answer["rs"], reason.rs(), "{socket}");
    assert_eq!(answer["overallRC"], reason.overall_rc(), "{socket}");
    let http = stack
        .ask("GET /guests/X/info HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        .await;
    assert!(
        http.starts_with(&format!("HTTP/1.1 {}", reason.status().as_u16())),
        "{http}"
    );
    let (_, body) = http.split_once("\r\n\r\n").expect("it has a body");
    assert_eq!(json(body)["rs"], reason.rs(), "{http}");
    stack.at_rest().await;
    for facts in &stack.seen.ended(asked + 2).await[asked..] {
        assert_eq!(facts.verdict, Verdict::Failed);
        assert_eq!(facts.reason, Some(reason));
    }
}

async fn backend_that(
    does: impl Fn(TcpStream) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
    + Send
    + Sync
    + Copy
    + 'static,
) -> Scripted {
    Scripted::start(move |_, mut stream| async move {
        let mut request = [0; 4096];
        if stream.read(&mut request).await.unwrap_or(0) > 0 {
            does(stream).await;
        }
    })
    .await
}

#[tokio::test]
async fn closed_without_a_byte_is_said_as_a_whole_error() {
    let backend = backend_that(|stream| Box::pin(async move { drop(stream) })).await;
    failed(
        &Stack::start(&text(backend.addr, "")),
        Reason::BackendClosed,
    )
    .await;
}

#[tokio::test]
async fn a_call_that_was_sent_is_never_sent_again() {
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    // Takes every request and closes without a word: a second try would look promising.
    let backend = Scripted::start(move |_, mut stream| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut request = [0; 4096];
            // Whether there was one shows in the count.
            let _ = stream.read(&mut request).await;
        }
    })
    .await;
    let stack = Stack::start(&text(backend.addr, ""));
    failed(&stack, Reason::BackendClosed).await;
    // One for each protocol.
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_reset_instead_of_an_answer_is_said_as_a_whole_error() {
    let backend =
        backend_that(|stream| Box::pin(async move { crate::support::reset(stream) })).await;
    failed(
        &Stack::start(&text(backend.addr, "")),
        Reason::BackendClosed,
    )
    .await;
}

#[tokio::test]
async fn cut_in_the_middle_is_said_as_a_whole_error() {
    let backend = backend_that(|mut stream| {
        Box::pin(async move {
            // Half an object on the socket; on HTTP half a body.
            let half = b"{\"overallRC\": 0, \"modID\": null, \"outp";
            stream.write_all(half).await.expect("it is read");
        })
    })
    .await;
    let stack = Stack::start(&text(backend.addr, ""));
    let answer = json(&stack.ask(array("guest_get_info", "X")).await);
    assert_eq!(answer["rs"], Reason::BackendCut.rs());
    let backend = backend_that(|mut stream| {
        Box::pin(async move {
            let half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"overallRC\": 0,";
            stream.write_all(half).await.expect("it is read");
        })
    })
    .await;
    let stack = Stack::start(&text(backend.addr, ""));
    let answer = stack
        .ask("GET /guests/X/info HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert!(
        answer.contains(&format!("\"rs\": {}", Reason::BackendCut.rs())),
        "{answer}"
    );
    stack.at_rest().await;
}

#[tokio::test]
async fn too_slow_is_said_as_a_whole_error() {
    let backend = backend_that(|stream| {
        Box::pin(async move {
            let _held = stream;
            std::future::pending::<()>().await;
        })
    })
    .await;
    let stack = Stack::start(&text(backend.addr, "response_timeout = \"200ms\""));
    failed(&stack, Reason::BackendSlow).await;
}

#[tokio::test]
async fn an_unreachable_backend_holds_the_queue_until_the_deadline() {
    let text = text(closed_port(), "").replace("max_wait = \"30s\"", "max_wait = \"1s\"");
    let stack = Stack::start(&text);
    let before = stack.clock.now();
    let answer = json(&stack.ask(array("guest_get_info", "X")).await);
    assert_eq!(answer["overallRC"], 503);
    assert_eq!(answer["rs"], Reason::BackendUnreachable.rs());
    assert!(answer["retryAfter"].as_u64().expect("it says when") >= 1);
    let waited = stack.clock.now().since(before);
    assert!(waited >= Duration::from_millis(990), "{waited:?}");
    let facts = stack.seen.ended(1).await;
    assert_eq!(facts[0].verdict, Verdict::Expired);
    assert_eq!(facts[0].sent, None);
    stack.at_rest().await;
}

#[tokio::test]
async fn a_backend_that_recovers_gets_every_waiting_call() {
    for protocol in ["socket", "http"] {
        let addr = closed_port();
        let stack = Arc::new(Stack::start(&text(addr, "")));
        let calls: Vec<_> = (0..50)
            .map(|number| {
                let stack = Arc::clone(&stack);
                tokio::spawn(async move {
                    if protocol == "socket" {
                        stack.ask(array("guest_get_info", &format!("U{number}"))).await
                    } else {
                        let answer = stack
                            .ask(format!(
                                "GET /guests/U{number}/info HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
                            ))
                            .await;
                        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
                    }
                })
            })
            .collect();
        let destination = match protocol {
            "socket" => tidegate::call::Destination::Socket,
            _ => tidegate::call::Destination::Http,
        };
        crate::support::until(|| !stack.gate.is_up(destination), || "still up".to_owned()).await;
        stack.busy(0, 50).await;
        let backend = StandInBackend::start(StandInOptions {
            socket: if protocol == "socket" {
                addr
            } else {
                "127.0.0.1:0".parse().expect("an address")
            },
            http: if protocol == "http" {
                addr
            } else {
                "127.0.0.1:0".parse().expect("an address")
            },
            delay: Duration::from_millis(5),
            ..StandInOptions::default()
        })
        .await
        .expect("the port is free");
        for call in calls {
            let answer = call.await.expect("no panic");
            assert_eq!(json(&answer)["overallRC"], 0, "{protocol}");
        }
        assert!(stack.gate.is_up(destination));
        // One probe at a time found out; nothing was sent twice.
        assert_eq!(backend.report().calls, 50);
        stack.at_rest().await;
    }
}

#[tokio::test]
async fn a_pooled_connection_that_was_closed_meanwhile_costs_no_call() {
    let connections = Arc::new(AtomicUsize::new(0));
    let closed = Arc::new(AtomicUsize::new(0));
    let (opens, closes) = (Arc::clone(&connections), Arc::clone(&closed));
    // Closes each connection after one answer, and does not say so beforehand.
    let backend = Scripted::start(move |_, mut stream| {
        opens.fetch_add(1, Ordering::SeqCst);
        let closes = Arc::clone(&closes);
        async move {
            let mut request = [0; 4096];
            if stream.read(&mut request).await.unwrap_or(0) > 0 {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}";
                stream.write_all(answer).await.expect("it is read");
            }
            drop(stream);
            closes.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    let stack = Stack::start(&text(backend.addr, ""));
    for number in 1..=20 {
        let answer = stack
            .ask("GET /host HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            .await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{number}: {answer}");
        // A call that is written before the close may have run.
        let closed = || closed.load(Ordering::SeqCst);
        until(
            || closed() == number,
            || format!("{} of {number}", closed()),
        )
        .await;
    }
    assert_eq!(connections.load(Ordering::SeqCst), 20);
}

#[tokio::test]
async fn one_pooled_connection_serves_calls_that_follow_one_another() {
    let backend = StandInBackend::start(StandInOptions {
        delay: Duration::ZERO,
        ..StandInOptions::on_free_ports()
    })
    .await
    .expect("free ports");
    let stack = Stack::start(&text(backend.http_addr(), ""));
    for _ in 0..20 {
        let answer = stack
            .ask("GET /host HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            .await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(backend.report().connections, 1);
}

#[tokio::test]
async fn a_reader_that_stalls_loses_its_answer_not_the_slot() {
    let backend = replying(Duration::ZERO, 24 << 20).await;
    for (protocol, request) in [
        ("socket", array("guest_get_info", "X")),
        ("http", "GET /host HTTP/1.1\r\nHost: t\r\n\r\n".to_owned()),
    ] {
        let addr = match protocol {
            "socket" => backend.socket_addr(),
            _ => backend.http_addr(),
        };
        let config = text(
            addr,
            "max_reply_bytes = \"64MiB\"\n[client]\nwrite_timeout = \"200ms\"",
        );
        let stack = Stack::start(&config);
        let _stream = sending(stack.addr, request).await;
        // No byte of the answer is read. The slot still comes back, at the end of the backend's
        // answer.
        let facts = stack.seen.ended(1).await;
        assert!(facts[0].left, "{protocol}");
        assert_eq!(facts[0].verdict, Verdict::Aborted, "{protocol}");
        assert!(
            facts[0].bytes_out > 20 << 20,
            "{protocol}: {}",
            facts[0].bytes_out
        );
        stack.at_rest().await;
        crate::support::until(|| stack.connections.open() == 0, || protocol.to_owned()).await;
    }
}

#[tokio::test]
async fn a_large_reply_comes_through_whole() {
    let backend = replying(Duration::ZERO, 5 << 20).await;
    let stack = Stack::start(&text(backend.socket_addr(), ""));
    let direct = crate::support::ask(backend.socket_addr(), array("guest_get_info", "X")).await;
    let through = stack.ask(array("guest_get_info", "X")).await;
    assert!(direct.len() > 5 << 20);
    assert_eq!(direct.len(), through.len());
    assert_eq!(json(&through)["overallRC"], 0);
}

#[tokio::test]
async fn a_reply_larger_than_allowed_ends_in_a_reset_never_in_half_an_answer() {
    let backend = replying(Duration::ZERO, 5 << 20).await;
    let stack = Stack::start(&text(backend.socket_addr(), "max_reply_bytes = \"2MiB\""));
    let mut stream = sending(stack.addr, array("guest_get_info", "X")).await;
    let mut answer = Vec::new();
    let error = stream.read_to_end(&mut answer).await.expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let facts = stack.seen.ended(1).await;
    assert_eq!(facts[0].reason, Some(Reason::ReplyTooLarge));
    stack.at_rest().await;
}

#[tokio::test]
async fn the_request_is_one_write_however_it_came_in() {
    let backend = Scripted::start(|_, mut stream| async move {
        // As the real server: one read is the request.
        let mut request = vec![0; 4096];
        let read = stream.read(&mut request).await.expect("no reset");
        let whole = serde_json::from_slice::<serde_json::Value>(&request[..read]).is_ok();
        let answer = format!("{{\"overallRC\": {}}}", if whole { 0 } else { 500 });
        stream
            .write_all(answer.as_bytes())
            .await
            .expect("it is read");
    })
    .await;
    let stack = Stack::start(&text(backend.addr, ""));
    let request = array("guest_get_info", "Zürich");
    for cut in [1, 10, 20, request.len() - 3, request.len() - 1] {
        let mut stream = TcpStream::connect(stack.addr).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket takes it");
        stream
            .write_all(&request.as_bytes()[..cut])
            .await
            .expect("it reads");
        tokio::time::sleep(Duration::from_millis(5)).await;
        stream
            .write_all(&request.as_bytes()[cut..])
            .await
            .expect("it reads");
        assert_eq!(
            read_all(&mut stream).await,
            "{\"overallRC\": 0}",
            "cut at {cut}"
        );
    }
}

#[tokio::test]
async fn a_tcp_connection_is_one_call_for_as_long_as_it_lives() {
    let backend = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = backend.local_addr().expect("it is bound");
    let stack = Stack::start(&format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        protocol = "tcp"
        [backend]
        tcp = "{addr}"
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:100"
        outstanding = 1
        "#
    ));
    let mut first = TcpStream::connect(stack.addr).await.expect("it listens");
    let (mut behind, _) = backend.accept().await.expect("it is let through");
    let mut second = TcpStream::connect(stack.addr).await.expect("it listens");
    second
        .write_all(b"early")
        .await
        .expect("the kernel takes it");
    stack.busy(1, 1).await;
    first.write_all(b"ping").await.expect("it is passed");
    let mut four = [0; 4];
    behind.read_exact(&mut four).await.expect("it is passed");
    behind.write_all(b"pong").await.expect("it is passed");
    first.read_exact(&mut four).await.expect("it is passed");
    assert_eq!(&four, b"pong");
    drop(first);
    drop(behind);
    let (mut behind, _) = backend.accept().await.expect("the next is let through");
    let mut five = [0; 5];
    behind
        .read_exact(&mut five)
        .await
        .expect("what it sent early");
    assert_eq!(&five, b"early");
    drop((second, behind));
    stack.at_rest().await;
}

#[tokio::test]
async fn with_retry_reads_a_closed_read_is_sent_once_more() {
    // Closes every odd connection after it has read the request.
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let backend = Scripted::start(move |_, mut stream| {
        let count = Arc::clone(&count);
        async move {
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap_or(0);
            if read == 0 || count.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                return;
            }
            let is_http = !request.starts_with(b"[");
            let head: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 16\r\n\r\n";
            if is_http {
                stream.write_all(head).await.expect("it is read");
            }
            let body = b"{\"overallRC\": 0}";
            stream.write_all(body).await.expect("it is read");
        }
    })
    .await;
    let http = |method: &str, path: &str| {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
    };
    for (request, is_read) in [
        (http("GET", "/guests/X/info"), true),
        (array("guest_get_info", "X"), true),
        (http("GET", "/nothing/known"), true),
        (http("DELETE", "/guests/X"), false),
        (array("guest_delete", "X"), false),
        (array("nothing_known", "X"), false),
    ] {
        for retries in [true, false] {
            requests.store(0, Ordering::SeqCst);
            let extra = if retries { "retry_reads = true" } else { "" };
            let config = text(backend.addr, extra).replace("total:10000", "total:3");
            let config =
                config.replace("max_wait = \"30s\"", "max_wait = \"30s\"\nwindow = \"60s\"");
            let stack = Stack::start(&config);
            let answer = stack.ask(&request).await;
            let sends = if is_read && retries { 2 } else { 1 };
            assert_eq!(requests.load(Ordering::SeqCst), sends, "{request}");
            assert_eq!(
                answer.contains("\"overallRC\": 0"),
                sends == 2,
                "{request}: {answer}"
            );
            stack.at_rest().await;
            // Each send is reported separately, and has drawn separately.
            let facts = stack.seen.ended(sends).await;
            assert_eq!(facts.len(), sends, "{request}");
            let first = facts.iter().find(|facts| facts.rare().retry_of.is_none());
            let first = first.expect("it is reported");
            assert_eq!(first.verdict, Verdict::Failed);
            assert_eq!(first.reason, Some(Reason::BackendClosed));
            assert!(first.sent.is_some());
            if let Some(second) = facts.iter().find(|facts| facts.rare().retry_of.is_some()) {
                assert_eq!(second.verdict, Verdict::Passed);
                assert!(second.sent > first.sent);
            }
            let drawn = stack.gate.limit_now("total").expect("it is a limit");
            assert_eq!(drawn.used as usize, sends, "{request}");
        }
    }
}

#[tokio::test]
async fn no_read_is_sent_once_more_to_a_backend_that_takes_no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let stack = Arc::new(Stack::start(&text(addr, "retry_reads = true")));
    let call = tokio::spawn({
        let stack = Arc::clone(&stack);
        async move { stack.ask(array("guest_get_info", "X")).await }
    });
    let (mut stream, _) = listener.accept().await.expect("it connects");
    let mut request = [0; 4096];
    let read = stream.read(&mut request).await.expect("it is sent");
    assert!(read > 0, "the request");
    drop(listener);
    drop(stream);
    // The first refusal stays, and comes at once.
    let answer = json(&call.await.expect("no panic"));
    assert_eq!(answer["rs"], Reason::BackendClosed.rs(), "{answer}");
    stack.at_rest().await;
}
