//! HTTP/1.1 through the proxy, seen from both ends: a raw client, and a backend that records
//! every byte it gets.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tidegate_lab::backend::{StandInBackend, StandInOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::sidecar::{Sidecar, field};
use crate::support::{Scripted, Stack, connect, json, read_all, read_until, sending, settle};

/// A backend that records every byte and answers each request it thinks is whole.
struct Recording {
    backend: Scripted,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Recording {
    async fn start() -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&bytes);
        let backend = Scripted::start(move |_, mut stream| {
            let record = Arc::clone(&record);
            async move {
                let mut held = Vec::new();
                let mut chunk = vec![0; 64 * 1024];
                loop {
                    match stream.read(&mut chunk).await {
                        Ok(0) | Err(_) => return,
                        Ok(read) => {
                            held.extend_from_slice(&chunk[..read]);
                            record
                                .lock()
                                .expect("not poisoned")
                                .extend_from_slice(&chunk[..read]);
                        }
                    }
                    while let Some(end) = whole_request(&held) {
                        let is_head = held.starts_with(b"HEAD");
                        held.drain(..end);
                        let body = if is_head { "" } else { "{\"overallRC\": 0}" };
                        let answer = format!(
                            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Backend: yes\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nContent-Length: 16\r\n\r\n{body}"
                        );
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                }
            }
        })
        .await;
        Self { backend, bytes }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("not poisoned")).into_owned()
    }

    fn stack(&self) -> Stack {
        self.stack_with("")
    }

    fn stack_with(&self, client: &str) -> Stack {
        Stack::start(&format!(
            r#"
            [[listen]]
            name = "test"
            bind = "127.0.0.1:0"
            protocol = "http"
            [backend]
            kind = "zvm"
            http = "http://{}"
            [client]
            buffer_bytes = "4KiB"
            {client}
            [queue]
            postpone = "in_turn"
            [limits]
            per_window = "total:1000"
            "#,
            self.backend.addr
        ))
    }
}

/// Where the first request ends, by the strictest reading: one framing, CRLF only.
fn whole_request(bytes: &[u8]) -> Option<usize> {
    let head_end = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..head_end]).to_ascii_lowercase();
    let lengths: Vec<usize> = head
        .lines()
        .filter_map(|line| line.strip_prefix("content-length:"))
        .map(|value| value.trim().parse().expect("a length is a number"))
        .collect();
    let is_chunked = head.contains("transfer-encoding: chunked");
    assert!(
        lengths.len() + usize::from(is_chunked) <= 1,
        "two framings reached the backend: {head}"
    );
    if is_chunked {
        let end = bytes[head_end..]
            .windows(5)
            .position(|w| w == b"0\r\n\r\n")?;
        return Some(head_end + end + 5);
    }
    let end = head_end + lengths.first().copied().unwrap_or(0);
    (bytes.len() >= end).then_some(end)
}

#[tokio::test]
async fn a_request_passes_with_its_headers_and_without_what_is_for_one_hop() {
    let backend = Recording::start().await;
    let stack = backend.stack();
    let answer = stack
        .ask(
            "GET /guests/X/info?a=b%20c HTTP/1.1\r\nHost: cloud.example:8080\r\nX-Auth-Token: secret\r\n\
             Connection: close, X-Private\r\nX-Private: 1\r\nTE: trailers\r\nKeep-Alive: 3\r\nUser-Agent: test\r\n\r\n",
        )
        .await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("X-Backend: yes"), "{answer}");
    assert!(
        !answer.to_ascii_lowercase().contains("keep-alive"),
        "{answer}"
    );
    assert!(answer.ends_with("{\"overallRC\": 0}"), "{answer}");
    let got = backend.text().to_ascii_lowercase();
    assert!(
        got.starts_with("get /guests/x/info?a=b%20c http/1.1\r\n"),
        "{got}"
    );
    for passed in [
        "host: cloud.example:8080",
        "x-auth-token: secret",
        "user-agent: test",
    ] {
        assert!(got.contains(passed), "{passed}: {got}");
    }
    for cut in ["x-private", "te:", "keep-alive", "connection"] {
        assert!(!got.contains(cut), "{cut}: {got}");
    }
    assert!(!got.contains("content-length"), "{got}");
}

#[tokio::test]
async fn one_connection_carries_many_requests_also_pipelined_and_answers_in_order() {
    let backend = Recording::start().await;
    let stack = backend.stack();
    let one = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
    let mut stream = sending(stack.addr, one("/host")).await;
    read_until(&mut stream, "overallRC\": 0}").await;
    let three = one("/guests") + &one("/guests/A/info") + &one("/guests/B/info");
    stream.write_all(three.as_bytes()).await.expect("it reads");
    let mut answers = String::new();
    while answers.matches("HTTP/1.1 200").count() < 3 {
        answers += &read_until(&mut stream, "overallRC\": 0}").await;
    }
    let facts = stack.seen.ended(4).await;
    let functions: Vec<&str> = facts.iter().map(|facts| &*facts.function).collect();
    assert_eq!(
        functions,
        [
            "host_get_info",
            "guest_list",
            "guest_get_info",
            "guest_get_info"
        ]
    );
    // The clock of a later request starts at its own first byte.
    assert!(facts[1].origin.arrived > facts[0].origin.arrived);
    stack.at_rest().await;
}

const GET: &str = "GET /guests HTTP/1.1\r\nHost: t\r\n\r\n";

/// A client whose first call has been answered, unknown to the runtime of this thread.
async fn idle_client(stack: &Stack) -> std::net::TcpStream {
    let mut client = sending(stack.addr, GET).await;
    let answer = read_until(&mut client, "0}").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    settle().await;
    client.into_std().expect("it is open")
}

/// Sends one more call without waiting, so the runtime of this thread does not know of it.
fn call_unnoticed(client: &mut std::net::TcpStream) {
    std::io::Write::write_all(client, GET.as_bytes()).expect("there is room");
}

#[tokio::test]
async fn a_call_that_comes_while_its_connection_is_stopped_is_answered() {
    let backend = Recording::start().await;
    let stack = backend.stack();
    let mut client = idle_client(&stack).await;
    call_unnoticed(&mut client);
    stack.closing.set();
    let mut client = TcpStream::from_std(client).expect("it is open");
    let answer = read_all(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    let head = answer.to_ascii_lowercase();
    assert!(head.contains("connection: close"), "{answer}");
}

#[tokio::test]
async fn a_call_that_comes_while_its_connection_is_idle_for_too_long_is_answered() {
    let backend = Recording::start().await;
    let stack = backend.stack_with("idle_timeout = \"50ms\"");
    let mut client = idle_client(&stack).await;
    // Expires together with the connection's timer, and this task is polled first.
    let mut sleeping = pin!(tokio::time::sleep(Duration::from_millis(50)));
    poll_fn(|cx| Poll::Ready(sleeping.as_mut().poll(cx).is_pending())).await;
    std::thread::sleep(Duration::from_millis(60));
    sleeping.await;
    call_unnoticed(&mut client);
    let mut client = TcpStream::from_std(client).expect("it is open");
    let answer = read_until(&mut client, "0}").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
}

#[tokio::test]
async fn bodies_pass_on_every_method_that_carries_one() {
    let backend = Recording::start().await;
    let stack = backend.stack();
    let body = r#"{"info": {"userid": "X"}}"#;
    for (method, path, function) in [
        ("GET", "/volumes/conn/X", "get_volume_connector"),
        ("DELETE", "/guests/X/disks", "guest_delete_disks"),
        ("DELETE", "/guests/volumes", "volume_detach"),
        ("PUT", "/guests/X/disks", "guest_config_minidisks"),
        ("POST", "/guests", "guest_create"),
    ] {
        let answer = stack
            .ask(format!(
                "{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        assert!(
            answer.starts_with("HTTP/1.1 200"),
            "{method} {path}: {answer}"
        );
        assert!(
            backend.text().ends_with(body),
            "{method} {path}: {}",
            backend.text()
        );
        let facts = stack.seen.all();
        assert_eq!(&*facts.last().expect("one ended").function, function);
    }
}

#[tokio::test]
async fn a_chunked_body_arrives_with_one_framing() {
    let backend = Recording::start().await;
    let stack = backend.stack();
    // Small: held whole, so it has a length now.
    stack
        .ask("POST /guests/X/action HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
              8\r\n{\"action\r\nA\r\n\": \"start\"\r\n1\r\n}\r\n0\r\n\r\n")
        .await;
    let got = backend.text();
    assert!(got.ends_with(r#"{"action": "start"}"#), "{got}");
    assert!(
        got.to_ascii_lowercase().contains("content-length: 19"),
        "{got}"
    );
    assert_eq!(&*stack.seen.ended(1).await[0].function, "guest_start");
    // Large: streamed, chunked again.
    let large = "x".repeat(20_000);
    let answer = stack
        .ask(format!(
            "PUT /files HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n4e20\r\n{large}\r\n0\r\n\r\n"
        ))
        .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        backend
            .text()
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked")
    );
    assert_eq!(backend.text().matches('x').count(), 20_000);
}

#[tokio::test]
async fn a_large_body_streams_with_its_length() {
    let backend = Recording::start().await;
    let stack = backend.stack();
    let large = "y".repeat(300_000);
    let answer = stack
        .ask(format!(
            "PUT /files HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 300000\r\n\r\n{large}"
        ))
        .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        backend
            .text()
            .to_ascii_lowercase()
            .contains("content-length: 300000")
    );
    assert_eq!(backend.text().matches('y').count(), 300_000);
    stack.at_rest().await;
}

#[tokio::test]
async fn a_body_too_large_to_hold_the_function_name_is_refused() {
    let backend = Recording::start().await;
    let stack = backend.stack();
    let answer = stack
        .ask(format!(
            "POST /guests/X/action HTTP/1.1\r\nHost: t\r\nContent-Length: 9000\r\n\r\n{{\"action\": \"{}\"}}",
            "z".repeat(8986)
        ))
        .await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("it has a body");
    assert_eq!(json(body)["modID"], 130);
    assert_eq!(json(body)["overallRC"], 400);
    assert_eq!(backend.text(), "");
}

#[tokio::test]
async fn a_client_that_expects_100_continue_gets_it() {
    let backend = Recording::start().await;
    let stack = backend.stack();
    let mut stream = sending(stack.addr, b"POST /guests HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n").await;
    assert!(
        read_until(&mut stream, "\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 100")
    );
    stream.write_all(b"{}").await.expect("it reads");
    assert!(read_all(&mut stream).await.starts_with("HTTP/1.1 200"));
    assert!(!backend.text().to_ascii_lowercase().contains("expect"));
}

#[tokio::test]
async fn head_has_the_length_and_no_body() {
    let backend = Recording::start().await;
    let stack = backend.stack();
    let mut stream = sending(stack.addr, b"HEAD /host HTTP/1.1\r\nHost: t\r\n\r\nGET /host HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").await;
    let answers = read_all(&mut stream).await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    assert_eq!(
        answers.matches("content-length: 16").count(),
        2,
        "{answers}"
    );
    assert_eq!(answers.matches("overallRC").count(), 1, "{answers}");
}

/// Input that can be read in two ways is refused, or forwarded in one way. The backend never sees
/// a second request that the proxy did not count.
#[tokio::test]
async fn smuggling_is_refused_or_forwarded_with_one_framing() {
    let evil = "GET /evil HTTP/1.1\r\nHost: t\r\n\r\n";
    let post = "POST /guests HTTP/1.1\r\nHost: t\r\n";
    let forms = [
        format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{evil}"),
        format!("{post}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{evil}"),
        format!("{post}Content-Length: 0\r\nContent-Length: 33\r\n\r\n{evil}"),
        format!("{post}Content-Length: 33\r\nContent-Length: 0\r\n\r\n{evil}"),
        format!("{post}Content-Length: 0, 33\r\n\r\n{evil}"),
        format!("{post}Content-Length: +5\r\n\r\nabcde{evil}"),
        format!("{post}Content-Length: 0x5\r\n\r\nabcde{evil}"),
        format!("{post}Content-Length : 5\r\n\r\nabcde{evil}"),
        format!("{post}Transfer-Encoding: identity\r\n\r\n{evil}"),
        format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n{evil}"),
        format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{evil}"),
        format!("{post}Transfer-Encoding: xchunked\r\nContent-Length: 3\r\n\r\nabc{evil}"),
        format!(
            "{post}Transfer-Encoding:\tchunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{evil}"
        ),
        format!("{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{evil}"),
        format!("{post}X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{evil}"),
        format!("POST /guests HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 0\r\n\r\n{evil}"),
        format!("POST /guests HTTP/1.1\r\nContent-Length: 0\r\n\r\n{evil}"),
        format!(
            "POST /guests HTTP/1.0\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{evil}"
        ),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n5;\n{evil}"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n-1\r\n{evil}"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{evil}"),
        format!("{post}Content-Length: 5\r\nConnection: Content-Length\r\n\r\nabcde"),
        format!("{post}Content-Length: 5\r\nConnection: close, host\r\n\r\nabcde"),
        "POST /guests HTTP/1.1\nHost: t\nContent-Length: 5\n\nabcde".to_owned(),
        format!("GET /host HTTP/1.1\r\nHost: t\r\n\r{evil}"),
        format!("CONNECT evil:80 HTTP/1.1\r\nHost: evil:80\r\n\r\n{evil}"),
    ];
    for form in &forms {
        for first in ["", "GET /host HTTP/1.1\r\nHost: t\r\n\r\n"] {
            let backend = Recording::start().await;
            let stack = backend.stack();
            let mut stream = sending(stack.addr, format!("{first}{form}")).await;
            // No more comes from this client, so an incomplete request ends here.
            stream.shutdown().await.expect("it takes a half-close");
            let mut answers = Vec::new();
            // A reset is an answer, too.
            let _ = stream.read_to_end(&mut answers).await;
            crate::support::until(|| stack.connections.open() == 0, || form.clone()).await;
            stack.at_rest().await;
            let got = backend.text();
            // The bytes at the backend, read strictly, match the counts.
            let (mut rest, mut requests) = (got.as_bytes(), 0);
            while let Some(end) = whole_request(rest) {
                rest = &rest[end..];
                requests += 1;
            }
            assert!(rest.is_empty(), "half a request for {form:?}: {got:?}");
            let counted = || {
                let facts = stack.seen.all();
                facts.iter().filter(|facts| facts.sent.is_some()).count()
            };
            // A call whose client has gone is counted when the backend is done with it.
            stack.at_rest().await;
            crate::support::until(
                || counted() == requests,
                || {
                    format!(
                        "{requests} requests, {} counted for {form:?}: {got:?}",
                        counted()
                    )
                },
            )
            .await;
            let counted = counted();
            let answers = String::from_utf8_lossy(&answers);
            let refused = answers.contains("HTTP/1.1 400") || answers.contains("HTTP/1.0 400");
            assert!(
                refused || !got.contains("/evil") || got.matches("/evil").count() == counted - 1,
                "{form:?}: {answers:?} {got:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_absolute_target_overrides_the_host() {
    let backend = Recording::start().await;
    let stack = backend.stack();
    stack
        .ask("GET http://right.example/host?x=1 HTTP/1.1\r\nHost: wrong\r\nConnection: close\r\n\r\n")
        .await;
    let got = backend.text();
    assert!(got.starts_with("GET /host?x=1 HTTP/1.1\r\n"), "{got}");
    assert!(
        got.to_ascii_lowercase().contains("host: right.example"),
        "{got}"
    );
    assert!(!got.contains("wrong"), "{got}");
}

#[tokio::test]
async fn an_array_in_http_dress_goes_to_the_socket_backend_and_keeps_its_status() {
    let backend = StandInBackend::start(StandInOptions::on_free_ports())
        .await
        .expect("free ports");
    let stack = Stack::start(&format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [backend]
        socket = "{}"
        kind = "zvm"
        http = "http://{}"
        [limits]
        per_window = "total:100"
        "#,
        backend.socket_addr(),
        backend.http_addr()
    ));
    for (userid, status, overall_rc) in [("HRX1", "200", 0), ("NOEXIST", "404", 404)] {
        let body = crate::support::array("guest_get_info", userid);
        let answer = stack
            .ask(format!(
                "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        let (_, body) = answer.split_once("\r\n\r\n").expect("it has a body");
        assert_eq!(json(body)["overallRC"], overall_rc);
    }
    let broken = stack
        .ask("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 4\r\n\r\n[1,2")
        .await;
    assert!(broken.starts_with("HTTP/1.1 400"), "{broken}");
    assert_eq!(
        stack
            .seen
            .ended(3)
            .await
            .iter()
            .filter(|facts| facts.sent.is_some())
            .count(),
        2
    );
}

#[tokio::test]
async fn no_backend_for_a_call_is_said_with_501() {
    let backend = StandInBackend::start(StandInOptions::on_free_ports())
        .await
        .expect("free ports");
    let stack = Stack::start(&format!(
        "[[listen]]\nname = \"t\"\nbind = \"127.0.0.1:0\"\n[backend]\nsocket = \"{}\"\n[limits]\nper_window = \"total:9\"\n",
        backend.socket_addr()
    ));
    let answer = stack
        .ask("GET /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 501"), "{answer}");
    assert!(answer.contains("\"overallRC\": 501"), "{answer}");
    assert!(
        answer.contains("content-type: application/json"),
        "{answer}"
    );
}

/// The fields that each client sends with a GET and a POST, as recorded.
const USUAL: [&str; 8] = [
    // zvmconnector of nova, and python-requests.
    "GET /guests HTTP/1.1\r\nHost: t\r\nUser-Agent: python-requests/2.31.0\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\nX-Auth-Token: abc\r\nContent-Type: application/json\r\n\r\n",
    "POST /guests HTTP/1.1\r\nHost: t\r\nUser-Agent: python-requests/2.31.0\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}",
    // curl.
    "GET /guests?a=b HTTP/1.1\r\nHost: t:80\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n",
    "PUT /guests/A/action HTTP/1.1\r\nHost: t\r\nAuthorization: Basic bm92YTp4\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\nContent-Length: 2\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n{}",
    // Go.
    "GET /guests HTTP/1.1\r\nHost: t\r\nUser-Agent: Go-http-client/1.1\r\nAccept-Encoding: gzip\r\n\r\n",
    "POST /guests HTTP/1.1\r\nHost: t\r\nUser-Agent: Go-http-client/1.1\r\nTransfer-Encoding: chunked\r\nAccept-Encoding: gzip\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    // Java: the first request of a connection offers HTTP/2.
    "GET /guests HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: t\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\nUser-Agent: Java-http-client/17.0.8\r\n\r\n",
    "POST /guests HTTP/1.1\r\nContent-Length: 2\r\nHost: t\r\nUser-Agent: Java-http-client/17.0.8\r\n\r\n{}",
];

/// Sends requests on one connection, each after the answer to the one before.
async fn one_by_one(stack: &Stack, requests: &[&str]) {
    let mut client = connect(stack.addr).await;
    for request in requests {
        client
            .write_all(request.as_bytes())
            .await
            .expect("it reads");
        let answer = read_until(&mut client, "{\"overallRC\": 0}").await;
        // An interim answer may come first.
        assert!(answer.contains("HTTP/1.1 200"), "{request}: {answer}");
    }
}

#[tokio::test]
async fn requests_of_the_usual_clients_are_answered() {
    let backend = Recording::start().await;
    let stack = backend.stack_with("");
    one_by_one(&stack, &USUAL).await;
    for request in USUAL {
        one_by_one(&stack, &[request]).await;
    }
    assert!(!backend.text().contains("h2c"), "{}", backend.text());
}

#[tokio::test]
async fn an_odd_request_leaves_those_behind_it_as_they_are() {
    let odd =
        "POST /guests HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}";
    let extended = "POST /guests HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n";
    for odd in [odd, extended] {
        let backend = Recording::start().await;
        let stack = backend.stack_with("");
        one_by_one(&stack, &[USUAL[0], odd, USUAL[1]]).await;
        assert_eq!(backend.text().matches(" /guests ").count(), 3);
        assert!(!backend.text().contains("a=b"), "{}", backend.text());
    }
}

/// A request that comes again is not read again. A reload reaches it all the same.
#[tokio::test]
async fn a_request_that_comes_again_meets_the_routes_and_the_bounds_of_a_reload() {
    let backend = Recording::start().await;
    let config = |function: &str, fields: u32| {
        format!(
            r#"
            [[listen]]
            name = "test"
            bind = "127.0.0.1:0"
            protocol = "http"
            [client]
            max_request_fields = {fields}
            [backend]
            kind = "http"
            http = "http://{}"
            [[route]]
            method = "GET"
            path = "/report"
            function = "{function}"
            [limits]
            per_window = "total:1000"
            [admin]
            bind = "127.0.0.1:0"
            "#,
            backend.backend.addr
        )
    };
    let fields = "X-Field: 1\r\n".repeat(20);
    let request = format!("GET /report HTTP/1.1\r\nHost: t\r\n{fields}\r\n");
    let sidecar = Sidecar::start(&config("first", 100)).await;
    let addr = sidecar.listener("test").await;
    let asks = async |client: &mut TcpStream| {
        for _ in 0..3 {
            let sent = client.write_all(request.as_bytes()).await;
            sent.expect("it reads");
            let answer = read_until(client, "{\"overallRC\": 0}").await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    };
    // It stays open all the time; another client comes after each reload.
    let mut client = connect(addr).await;
    asks(&mut client).await;
    for function in ["second", "third", "fourth"] {
        sidecar.reload(&config(function, 100)).await;
        asks(&mut client).await;
        let mut other = connect(addr).await;
        asks(&mut other).await;
    }
    sidecar.reload(&config("fourth", 16)).await;
    let refused = crate::support::ask(addr, request).await;
    assert!(refused.starts_with("HTTP/1.1 431"), "{refused}");
    sidecar.signal("TERM");
    let (status, lines) = sidecar.ended().await;
    assert!(status.success());
    let lines = lines.iter().filter(|line| line.contains("\"access\""));
    let functions: Vec<_> = lines.map(|line| field(line, "function")).collect();
    let runs = functions.chunk_by(|one, next| one == next);
    let runs: Vec<_> = runs.map(|run| (&*run[0], run.len())).collect();
    let expected = [
        ("first", 3),
        ("second", 6),
        ("third", 6),
        ("fourth", 6),
        ("none", 1),
    ];
    assert_eq!(runs, expected);
}
