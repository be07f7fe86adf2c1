//! HTTP messages at their edges, in both directions: framing, sizes of heads, slow bodies, and the
//! answers to bytes that are not HTTP.

use std::sync::Arc;
use std::time::Duration;

use tidegate::call::{Reason, Verdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::sidecar::Sidecar;
use crate::support::{
    Held, PATIENCE, Scripted, Stack, connect, json, pass, read_all, read_until, settle, until,
    until_accepted, until_read,
};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}";

/// A config with one HTTP listener, more options of it, and options of `[client]` and `[limits]`.
fn text(backend: impl ToString, listener: &str, client: &str, limits: &str) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        protocol = "http"
        {listener}
        [client]
        {client}
        [backend]
        kind = "zvm"
        http = "http://{}"
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:1000"
        {limits}
        [admin]
        bind = "127.0.0.1:0"
        "#,
        backend.to_string()
    )
}

/// A backend that reads each request to its end, passes it to the test, and answers `reply`.
async fn telling(reply: Vec<u8>) -> (Scripted, mpsc::UnboundedReceiver<String>) {
    let (tell, told) = mpsc::unbounded_channel();
    let reply = Arc::new(reply);
    let backend = Scripted::start(move |_, mut stream| {
        let (tell, reply) = (tell.clone(), Arc::clone(&reply));
        async move {
            let mut held = Vec::new();
            while stream.read_buf(&mut held).await.unwrap_or(0) > 0 {
                while let Some(end) = end_of_request(&held) {
                    let request = held.drain(..end).collect::<Vec<_>>();
                    let text = String::from_utf8_lossy(&request).into_owned();
                    if tell.send(text).is_err() || stream.write_all(&reply).await.is_err() {
                        return;
                    }
                }
            }
        }
    })
    .await;
    (backend, told)
}

fn end_of_request(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    if text.contains("transfer-encoding: chunked") {
        let end = bytes[head..].windows(5).position(|w| w == b"0\r\n\r\n")?;
        return Some(head + end + 5);
    }
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().expect("a number"));
    (bytes.len() >= head + length).then_some(head + length)
}

async fn next(told: &mut mpsc::UnboundedReceiver<String>) -> String {
    tokio::time::timeout(PATIENCE, told.recv())
        .await
        .expect("a request comes")
        .expect("the backend lives")
}

async fn connected(stack: &Stack, bytes: impl AsRef<[u8]>) -> TcpStream {
    let mut stream = connect(stack.addr).await;
    stream.write_all(bytes.as_ref()).await.expect("it reads");
    stream
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("it has a body").1
}

/// An upload takes longer than `request_timeout` and the queue's deadline; the next call on the
/// connection comes long after.
#[tokio::test]
async fn after_a_streamed_upload_the_next_call_has_a_clock_of_its_own() {
    for chunked in [false, true] {
        let (backend, mut told) = telling(ANSWER.to_vec()).await;
        let client = "buffer_bytes = \"1KiB\"\nrequest_timeout = \"3s\"";
        let limits = "max_wait = \"5s\"";
        let stack = Stack::start(&text(backend.addr, "", client, limits));
        let head = if chunked {
            "PUT /files HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1770\r\n"
        } else {
            "PUT /files HTTP/1.1\r\nHost: t\r\nContent-Length: 6000\r\n\r\n"
        };
        let mut stream = connected(&stack, head).await;
        for _ in 0..3 {
            stream.write_all(&[b'x'; 2000]).await.expect("it reads");
            until_read(&stream).await;
            pass(Duration::from_secs(2)).await;
        }
        if chunked {
            stream.write_all(b"\r\n0\r\n\r\n").await.expect("it reads");
        }
        let answer = read_until(&mut stream, "0}").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        next(&mut told).await;
        // Longer than a request may take; shorter than a connection may be idle.
        pass(Duration::from_secs(5)).await;
        stream
            .write_all(b"GET /guests HTTP/1.1\r\nHost: t\r\n\r\n")
            .await
            .expect("the connection is still open");
        let answer = read_until(&mut stream, "}").await;
        assert!(
            answer.starts_with("HTTP/1.1 200"),
            "chunked: {chunked}: {answer}"
        );
        let facts = stack.seen.ended(2).await;
        assert_eq!(facts[0].bytes_in, 6000, "chunked: {chunked}");
        assert_eq!(facts[0].verdict, Verdict::Passed);
        let waited = facts[1].admitted.expect("it ran");
        let waited = waited.since(facts[1].origin.arrived);
        assert!(waited < Duration::from_secs(3), "{waited:?}");
        stack.at_rest().await;
    }
}

/// A client that is slower with its body than the queue's deadline is not refused for that.
#[tokio::test]
async fn the_queues_clock_starts_when_the_request_is_whole() {
    let held = Held::start(ANSWER).await;
    let limits = "max_wait = \"4s\"";
    let stack = Stack::start(&text(held.backend.addr, "", "", limits));
    let body = r#"{"guest": {"userid": "SLOW"}}"#;
    let mut stream = connected(
        &stack,
        format!(
            "POST /guests HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n",
            body.len()
        ),
    )
    .await;
    until_read(&stream).await;
    pass(Duration::from_secs(6)).await;
    stream.write_all(body.as_bytes()).await.expect("it reads");
    let answer = held.answer_until(read_until(&mut stream, "}")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let facts = stack.seen.ended(1).await;
    let waited = facts[0].admitted.expect("it ran");
    let waited = waited.since(facts[0].origin.arrived);
    assert!(waited < Duration::from_secs(4), "{waited:?}");
}

/// The clock starts with a whole request on the socket too.
#[tokio::test]
async fn on_the_socket_too_the_clock_starts_when_the_request_is_whole() {
    let held = Held::start(crate::support::OK).await;
    let limits = "max_wait = \"4s\"";
    let text = text(held.backend.addr, "", "", limits)
        .replace("protocol = \"http\"", "protocol = \"auto\"")
        .replace("http = \"http://", "socket = \"");
    let stack = Stack::start(&text);
    let mut stream = connected(&stack, "[\"guest_list\",").await;
    until_read(&stream).await;
    pass(Duration::from_secs(6)).await;
    stream.write_all(b"[],{}]").await.expect("it reads");
    let answer = held.answer_until(read_all(&mut stream)).await;
    assert_eq!(json(&answer)["overallRC"], 0, "{answer}");
}

#[tokio::test]
async fn uploads_without_a_body_hold_no_slot() {
    let (backend, mut told) = telling(ANSWER.to_vec()).await;
    let client = "request_timeout = \"2s\"";
    let limits = "outstanding = 10";
    let stack = Stack::start(&text(backend.addr, "", client, limits));
    let mut silent = Vec::new();
    for _ in 0..10 {
        let head = "POST /guests HTTP/1.1\r\nHost: t\r\nContent-Length: 70000\r\n\r\n";
        silent.push(connected(&stack, head).await);
    }
    settle().await;
    assert_eq!(stack.gate.busy(), (0, 0));
    let answer = stack
        .ask("GET /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(next(&mut told).await.starts_with("GET"));
    // After `buffer_bytes` the call gets its slot, although the body is not complete.
    let mut first = silent.remove(0);
    first.write_all(&[b'x'; 65_537]).await.expect("it reads");
    stack.busy(1, 0).await;
    first.write_all(&[b'x'; 4463]).await.expect("it reads");
    assert!(
        read_until(&mut first, "0}")
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert_eq!(next(&mut told).await.matches('x').count(), 70_000);
    for mut stream in silent {
        let answer = read_all(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert_eq!(json(body(&answer))["rs"], Reason::RequestSlow.rs());
    }
    stack.at_rest().await;
}

/// nginx and HAProxy answer these with 400. A backend could read them in another way.
#[tokio::test]
async fn a_target_or_a_framing_that_can_be_read_in_two_ways_is_refused() {
    let (backend, mut told) = telling(ANSWER.to_vec()).await;
    let stack = Stack::start(&text(backend.addr, "", "", ""));
    let post = "POST /guests HTTP/1.1\r\nHost: t\r\n";
    for (bytes, says) in [
        ("GET h:80 HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(), "target"),
        (
            "GET http://user:word@t/guests HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(),
            "target",
        ),
        (
            "GET http://user@t/guests HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(),
            "target",
        ),
        (
            format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            "both Content-Length and Transfer-Encoding",
        ),
        (
            format!("{post}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
            "both Content-Length and Transfer-Encoding",
        ),
        (
            format!("{post}Content-Length: 2\r\nContent-Length: 2\r\n\r\n{{}}"),
            "more than one Content-Length",
        ),
        (
            format!("{post}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}"),
            "more than one Content-Length",
        ),
        (
            format!("{post}content-length: 2\r\nX: y\r\nCONTENT-LENGTH: 2\r\n\r\n{{}}"),
            "more than one Content-Length",
        ),
    ] {
        // Also in pieces, and behind another request on the same connection.
        let one = "GET /guests HTTP/1.1\r\nHost: t\r\n\r\n";
        for (first, cut) in [("", 0), ("", 20), (one, 0), (one, one.len() + 20)] {
            let whole = format!("{first}{bytes}");
            let (head, rest) = whole.split_at(cut);
            let mut stream = connected(&stack, head).await;
            if cut > 0 {
                settle().await;
            }
            stream.write_all(rest.as_bytes()).await.expect("it reads");
            let answers = read_all(&mut stream).await;
            let answer = if first.is_empty() {
                &answers
            } else {
                assert!(next(&mut told).await.starts_with("GET /guests"));
                let (before, after) = answers.split_once("0}").expect("the first is answered");
                assert!(before.starts_with("HTTP/1.1 200"), "{bytes:?}: {answers}");
                after
            };
            assert!(answer.starts_with("HTTP/1.1 400"), "{bytes:?}: {answers}");
            let told = json(body(answer));
            assert_eq!(told["rs"], Reason::BadRequest.rs(), "{bytes:?}");
            let errmsg = told["errmsg"].as_str().expect("a text");
            assert!(errmsg.contains(says), "{bytes:?}: {errmsg}");
        }
    }
    assert!(told.try_recv().is_err());
    stack.at_rest().await;
}

#[tokio::test]
async fn bytes_that_are_not_http_get_the_usual_error_body() {
    let (backend, _told) = telling(ANSWER.to_vec()).await;
    let stack = Stack::start(&text(backend.addr, "", "", ""));
    let fields: String = (0..129).map(|n| format!("X-{n}: y\r\n")).collect();
    let large = "y".repeat(66_000);
    for (bytes, status) in [
        ("HELLO\r\n\r\n".to_owned(), 400),
        ("GET /host\r\n\r\n".to_owned(), 400),
        ("GET /ho\0st HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(), 400),
        ("GET /<host> HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(), 400),
        ("GET /host HTTP/3.7\r\nHost: t\r\n\r\n".to_owned(), 400),
        ("GET /host HTTP/1.1\r\nHost : t\r\n\r\n".to_owned(), 400),
        (
            "POST /guests HTTP/1.1\r\nHost: t\r\nContent-Length: +5\r\n\r\nabcde".to_owned(),
            400,
        ),
        (
            "POST /guests HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\nabcde".to_owned(),
            400,
        ),
        (
            format!("GET /host HTTP/1.1\r\nHost: t\r\n{fields}\r\n"),
            431,
        ),
        (
            format!("GET /host HTTP/1.1\r\nHost: t\r\nX: {large}\r\n\r\n"),
            431,
        ),
        (format!("GET /{large} HTTP/1.1\r\nHost: t\r\n\r\n"), 431),
        (format!("GET /host HTTP/1.1\r\nX{large}"), 431),
    ] {
        let started = &bytes[..bytes.len().min(60)];
        let ended = stack.seen.all().len();
        let mut stream = connected(&stack, &bytes).await;
        let answer = read_all(&mut stream).await;
        let line = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&line), "{started:?}: {answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        assert!(
            answer.contains("content-type: application/json"),
            "{answer}"
        );
        let told = json(body(&answer));
        assert_eq!(told["modID"], 130, "{started:?}");
        assert_eq!(told["overallRC"], 400, "{started:?}");
        // It is recorded once, as a refusal.
        let facts = stack.seen.ended(ended + 1).await;
        assert_eq!(facts.len(), ended + 1, "{started:?}");
        assert_eq!(facts[ended].verdict, Verdict::Refused, "{started:?}");
        assert_eq!(facts[ended].status, Some(status), "{started:?}");
    }
    until(|| stack.connections.open() == 0, || "still open".to_owned()).await;
}

#[tokio::test]
async fn http_1_0_without_a_host_goes_out_with_one() {
    let (backend, mut told) = telling(ANSWER.to_vec()).await;
    let stack = Stack::start(&text(backend.addr, "", "", ""));
    let answer = stack.ask("GET /guests HTTP/1.0\r\n\r\n").await;
    assert!(answer.contains(" 200 "), "{answer}");
    let got = next(&mut told).await.to_ascii_lowercase();
    assert!(got.starts_with("get /guests http/1.1\r\n"), "{got}");
    assert!(
        got.contains(&format!("\r\nhost: {}\r\n", stack.addr)),
        "{got}"
    );
    // A Host of the client's own stays; an absolute target contains one.
    stack.ask("GET /guests HTTP/1.0\r\nHost: own\r\n\r\n").await;
    assert!(next(&mut told).await.contains("own"));
    stack.ask("GET http://said/guests HTTP/1.0\r\n\r\n").await;
    let got = next(&mut told).await.to_ascii_lowercase();
    assert!(got.contains("\r\nhost: said\r\n"), "{got}");
}

#[tokio::test]
async fn a_body_that_comes_in_many_pieces_arrives_as_it_was() {
    let (backend, mut told) = telling(ANSWER.to_vec()).await;
    let stack = Stack::start(&text(backend.addr, "", "", ""));
    let whole: String = (0..10_000).map(|number| format!("{number},")).collect();
    let mut chunked = String::new();
    let mut rest = &whole[..];
    for length in [1, 7, 100, 2000, 9000].into_iter().cycle() {
        let (chunk, more) = rest.split_at(length.min(rest.len()));
        chunked += &format!("{:x}\r\n{chunk}\r\n", chunk.len());
        rest = more;
        if chunk.is_empty() {
            break;
        }
    }
    for framed in [
        format!("Transfer-Encoding: chunked\r\n\r\n{chunked}"),
        format!("Content-Length: {}\r\n\r\n{whole}", whole.len()),
    ] {
        let answer = stack
            .ask(format!(
                "POST /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{framed}"
            ))
            .await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let got = next(&mut told).await;
        assert!(body(&got) == whole, "{} bytes", body(&got).len());
    }
}

#[tokio::test]
async fn a_chunked_body_without_a_byte_goes_out_with_its_length() {
    let (backend, mut told) = telling(ANSWER.to_vec()).await;
    let stack = Stack::start(&text(backend.addr, "", "", ""));
    let answer = stack
        .ask("POST /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let got = next(&mut told).await.to_ascii_lowercase();
    assert!(got.contains("\r\ncontent-length: 0\r\n"), "{got}");
    assert!(!got.contains("transfer-encoding"), "{got}");
}

#[tokio::test]
async fn a_reply_with_both_framings_comes_through_whole() {
    for length in [5, 50] {
        for both in [
            format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
            format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
        ] {
            let reply =
                format!("HTTP/1.1 200 OK\r\n{both}\r\n5\r\nabcde\r\n5\r\nfghij\r\n0\r\n\r\n");
            let (backend, _told) = telling(reply.into_bytes()).await;
            let stack = Stack::start(&text(backend.addr, "", "", ""));
            let request = "GET /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
            let answer = stack.ask(request).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{both:?}: {answer}");
            assert!(!answer.contains("content-length"), "{both:?}: {answer}");
            let bytes: String = body(&answer).split("\r\n").skip(1).step_by(2).collect();
            assert_eq!(bytes, "abcdefghij", "{both:?}: {answer}");
            stack.at_rest().await;
        }
    }
}

/// The request asks for neither, so the client cannot read the answer.
#[tokio::test]
async fn a_reply_that_switches_protocols_or_is_coded_on_its_way_is_an_error() {
    for reply in [
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: gzip\r\n\r\nabc",
    ] {
        let (backend, _told) = telling(reply.as_bytes().to_vec()).await;
        let stack = Stack::start(&text(backend.addr, "", "", ""));
        let answer = stack
            .ask("GET /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            .await;
        assert!(answer.starts_with("HTTP/1.1 502"), "{reply:?}: {answer}");
        let told = json(body(&answer));
        assert_eq!(told["rs"], Reason::BackendCut.rs(), "{reply:?}");
        stack.at_rest().await;
        let facts = stack.seen.ended(1).await;
        assert_eq!(facts[0].verdict, Verdict::Failed, "{reply:?}");
    }
}

#[tokio::test]
async fn a_reply_may_have_256_fields() {
    let fields: String = (0..255).map(|n| format!("X-{n}: y\r\n")).collect();
    let reply =
        format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 16\r\n\r\n{{\"overallRC\": 0}}");
    let (backend, _told) = telling(reply.into_bytes()).await;
    let stack = Stack::start(&text(backend.addr, "", "", ""));
    let answer = stack
        .ask("GET /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = answer.to_ascii_lowercase();
    assert!(answer.contains("x-254: y"), "{answer}");
}

/// A refused call frees its place at once, although the client does not read its refusal.
#[tokio::test]
async fn a_waiting_socket_call_that_is_refused_is_counted_once_and_leaves_at_once() {
    let mut held = Held::start(crate::support::OK).await;
    let limits = "outstanding = 1";
    let text = text(held.backend.addr, "", "", limits)
        .replace("protocol = \"http\"", "protocol = \"socket\"")
        .replace("http = \"http://", "socket = \"");
    let stack = Stack::start(&text);
    let array = crate::support::array("guest_get_info", "X");
    let first = connected(&stack, &array).await;
    held.next().await;
    let mut second = connected(&stack, &array).await;
    stack.busy(1, 1).await;
    // More than is read behind an answer, and the client goes on sending: it is not closed soon.
    second.write_all(array.as_bytes()).await.expect("it reads");
    let answer = read_until(&mut second, "}").await;
    assert_eq!(json(&answer)["rs"], Reason::BadRequest.rs(), "{answer}");
    assert_eq!(stack.gate.busy(), (1, 0), "it keeps its place");
    drop(second);
    held.go.notify_one();
    drop(first);
    stack.at_rest().await;
    until(|| stack.connections.open() == 0, || "still open".to_owned()).await;
    let facts = stack.seen.ended(2).await;
    let verdicts: Vec<_> = facts.iter().map(|facts| facts.verdict).collect();
    assert_eq!(verdicts, [Verdict::Refused, Verdict::Passed]);
    assert_eq!(facts[0].reason, Some(Reason::BadRequest));
}

/// At SIGTERM a client is accepted, but waits for its place under a full `max_connections`.
#[tokio::test]
async fn at_a_drain_the_connection_in_hand_is_served() {
    let array = crate::support::array("guest_get_info", "X");
    let get = "GET /guests/X/info HTTP/1.1\r\nHost: t\r\n\r\n";
    for (protocol, backend, reply, call) in [
        ("socket", "socket = \"", crate::support::OK, &*array),
        ("http", "http = \"http://", ANSWER, get),
    ] {
        let mut held = Held::start(reply).await;
        let text = text(held.backend.addr, "", "", "")
            .replace("protocol = \"http\"", &format!("protocol = \"{protocol}\""))
            .replace("http = \"http://", backend)
            + "[server]\nmax_connections = 1\n";
        let sidecar = Sidecar::start(&text).await;
        let addr = sidecar.listener("test").await;
        let mut first = connect(addr).await;
        first.write_all(call.as_bytes()).await.expect("it reads");
        held.next().await;
        let mut second = connect(addr).await;
        second.write_all(call.as_bytes()).await.expect("it reads");
        // It is accepted under the full cap, and nothing of it is read.
        until_accepted(&second).await;
        sidecar.signal("TERM");
        sidecar.log().wait(&["drain"]).await;
        held.go.notify_one();
        let answer = read_all(&mut first).await;
        assert!(answer.contains("\"overallRC\": 0"), "{protocol}: {answer}");
        held.next().await;
        held.go.notify_one();
        let answer = read_all(&mut second).await;
        assert!(answer.contains("\"overallRC\": 0"), "{protocol}: {answer}");
        let (status, _) = sidecar.ended().await;
        assert!(status.success(), "{protocol}: {status}");
    }
}
