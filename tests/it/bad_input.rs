//! Every input is answered, or at least closed, in time. It draws no token, and the backend does
//! not see it.

use std::time::Duration;

use tidegate::call::Reason;
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::sidecar::Sidecar;
use crate::support::{
    PATIENCE, Stack, array, ask, connect, json, pass, read_all, sending, until, until_read,
};

/// Timeouts a test can wait for.
const SHORT: &str = "request_timeout = \"200ms\"\nidle_timeout = \"200ms\"";
/// Timeouts that no test reaches.
const LONG: &str = "request_timeout = \"10m\"\nidle_timeout = \"10m\"";

async fn backend() -> RunningBackend {
    StandInBackend::start(StandInOptions {
        delay: Duration::ZERO,
        ..StandInOptions::on_free_ports()
    })
    .await
    .expect("free ports")
}

fn text(backend: &RunningBackend, client: &str) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [client]
        {client}
        [backend]
        socket = "{}"
        kind = "zvm"
        http = "http://{}"
        [queue]
        postpone = "in_turn"
        workers = 4
        [limits]
        per_window = "total:100"
        outstanding = 4
        [admin]
        bind = "127.0.0.1:0"
        "#,
        backend.socket_addr(),
        backend.http_addr()
    )
}

async fn stack(client: &str) -> (RunningBackend, Stack) {
    let backend = backend().await;
    let stack = Stack::start(&text(&backend, client));
    (backend, stack)
}

/// No token was drawn, no slot is held, and no connection to the backend was opened.
async fn untouched(backend: &RunningBackend, stack: &Stack) {
    stack.at_rest().await;
    for (rule, now) in stack.gate.limits_now().0 {
        assert_eq!(now.used, 0, "{}", rule.name);
    }
    assert_eq!(backend.report().connections, 0);
    for facts in stack.seen.all() {
        assert_eq!((facts.admitted, facts.sent), (None, None));
    }
}

/// An answer of the proxy's own to a bad request, in the sdkserver's shape.
fn assert_refused(answer: &str, reason: Reason, case: &str) {
    assert!(answer.is_ascii(), "{case}: {answer}");
    let answer = json(answer);
    assert_eq!(answer["overallRC"], 400, "{case}: {answer}");
    assert_eq!(answer["modID"], 130, "{case}: {answer}");
    assert_eq!(answer["rc"], 400, "{case}: {answer}");
    assert_eq!(answer["rs"], reason.rs(), "{case}: {answer}");
    assert_eq!(answer["output"], "", "{case}: {answer}");
    assert!(answer.get("retryAfter").is_none(), "{case}: {answer}");
}

/// Checks that a request in HTTP dress is refused, and the connection is closed.
fn assert_refused_http(answer: &str, reason: Reason, case: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer in HTTP");
    let status = format!("HTTP/1.1 {}", reason.status().as_u16());
    assert!(head.starts_with(&status), "{case}: {answer}");
    let head = head.to_ascii_lowercase();
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(head.contains("connection: close"), "{head}");
    assert_refused(body, reason, case);
}

/// Invalid requests, each with its name in messages.
fn nonsense() -> Vec<(String, Vec<u8>)> {
    let mut cases: Vec<Vec<u8>> = [
        "hello",
        "{}",
        "{\"function\": \"guest_list\"}",
        "\"guest_list\"",
        "7",
        "null",
        "[]",
        "[\"guest_list\"]",
        "[\"guest_list\", []]",
        "[\"guest_list\", [], {}, 1]",
        "[\"guest_list\", [], null]",
        "[\"guest_list\", [], []]",
        "[\"guest_list\", {}, {}]",
        "[\"guest_list\", \"X\", {}]",
        "[7, [], {}]",
        "[null, [], {}]",
        "[[\"guest_list\"], [], {}]",
        "[\"\", [], {}]",
        "[\"guest\\u0007list\", [], {}]",
        "[\"guest\\nlist\", [], {}]",
        "[\"guest_list\", [nan], {}]",
        "[\"guest_list\", ['X'], {}]",
        "[\"guest_list\", [], {},]",
        "[\"guest_list\" [] {}]",
        "[\"guest_list\", [}, {}]",
        "[\"guest_list\", [\"\n\"], {}]",
        "[\"guest_list\", [\"\\x\"], {}]",
        "[\"guest_list\", [\"\\ud800\"], {}",
        "[\"guest_list\", [], {}][\"guest_list\", [], {}]",
        "[\"guest_list\", [], {}]\n[\"guest_list\", [], {}]\n",
        "[\"guest_list\", [], {}] x",
        "[\"guest_list\", [], {}]\0",
        "\u{feff}[\"guest_list\", [], {}]",
        "]",
        "\0",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    cases.push(format!("[\"{}\", [], {{}}]", "x".repeat(129)).into_bytes());
    cases.push("[".repeat(100).into_bytes());
    cases.push(format!("{}{}", "[".repeat(65), "]".repeat(65)).into_bytes());
    cases.push(b"\xff\xfe[\"guest_list\", [], {}]".to_vec());
    cases.push(b"[\"guest\xfflist\", [], {}]".to_vec());
    cases.push(b"[\"guest_list\", [\"\xc3\"], {}]".to_vec());
    cases
        .into_iter()
        .map(|case| (String::from_utf8_lossy(&case).into_owned(), case))
        .collect()
}

#[tokio::test]
async fn what_is_no_call_is_answered_with_400_and_closed() {
    let (backend, stack) = stack(LONG).await;
    for (name, case) in nonsense() {
        let mut stream = sending(stack.addr, &case).await;
        // Half a request is one only when no more comes.
        stream.shutdown().await.expect("it takes a half-close");
        assert_refused(&read_all(&mut stream).await, Reason::BadRequest, &name);
    }
    untouched(&backend, &stack).await;
    let facts = stack.seen.ended(nonsense().len()).await;
    assert!(
        facts
            .iter()
            .all(|facts| facts.reason == Some(Reason::BadRequest))
    );
}

#[tokio::test]
async fn most_of_it_is_answered_without_waiting_for_the_client_to_end() {
    let (backend, stack) = stack(LONG).await;
    for (name, case) in nonsense() {
        // This one could still become a request.
        if name == "[\"guest_list\", [\"\\ud800\"], {}" {
            continue;
        }
        let mut stream = sending(stack.addr, &case).await;
        assert_refused(&read_all(&mut stream).await, Reason::BadRequest, &name);
    }
    untouched(&backend, &stack).await;
}

#[tokio::test]
async fn an_array_in_http_dress_is_looked_at_as_closely() {
    let (backend, stack) = stack(LONG).await;
    let large = format!("[\"f\", [\"{}\"], {{}}]", "a".repeat(5000));
    for (body, reason) in [
        ("[]", Reason::BadRequest),
        ("[7, [], {}]", Reason::BadRequest),
        ("[\"f\", [], null]", Reason::BadRequest),
        ("[\"f\", [], {}][\"g\", [], {}]", Reason::BadRequest),
        ("[\"f\", [", Reason::BadRequest),
        (&large, Reason::TooLarge),
    ] {
        let answer = stack
            .ask(format!(
                "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        assert_refused_http(&answer, reason, body);
    }
    untouched(&backend, &stack).await;
}

#[tokio::test]
async fn an_odd_but_valid_call_is_answered_by_the_backend() {
    let (backend, stack) = stack(LONG).await;
    for request in [
        "[\"guest_list\", [], {}]".to_owned(),
        "[\"guest_list\", [], {}]\n".to_owned(),
        " \r\n\t[\"guest_list\", [], {}]  \n".to_owned(),
        "[\n\"guest_list\"\n,\n[\n]\n,\n{\n}\n]".to_owned(),
        "[\"guest\\u005flist\", [\"\\ud83d\\ude00\", \"Z\u{fc}rich\"], {}]".to_owned(),
        // Whether there is such a function, the backend knows.
        "[\"_vmops\", [], {}]".to_owned(),
        "[\"g\u{e4}st_info\", [], {}]".to_owned(),
        "[\"total\", [], {}]".to_owned(),
    ] {
        let direct = ask(backend.socket_addr(), &request).await;
        assert_eq!(stack.ask(&request).await, direct, "{request}");
        let mut half_closed = sending(stack.addr, &request).await;
        half_closed.shutdown().await.expect("a half-close");
        assert_eq!(read_all(&mut half_closed).await, direct, "{request}");
    }
    // In the log and the metrics, what no table has is no name.
    let facts = stack.seen.ended(16).await;
    let named = |name: &str| {
        facts
            .iter()
            .filter(|facts| &*facts.function == name)
            .count()
    };
    assert_eq!(named("guest_list"), 10);
    assert_eq!(named("other"), 6);
}

#[tokio::test]
async fn nothing_at_all_is_closed_without_a_word() {
    let (backend, stack) = stack(LONG).await;
    for nothing in ["", " \r\n"] {
        let mut stream = connect(stack.addr).await;
        stream.write_all(nothing.as_bytes()).await.expect("written");
        stream.shutdown().await.expect("a half-close");
        assert_eq!(read_all(&mut stream).await, "");
    }
    untouched(&backend, &stack).await;
}

#[tokio::test]
async fn half_a_request_and_then_silence_is_closed_in_time_and_holds_no_worker() {
    let (backend, stack) = stack(SHORT).await;
    for half in ["[", "[\"guest_list\", [", "[\"guest_list\", [], {}", " "] {
        let mut stream = sending(stack.addr, half).await;
        assert_refused(&read_all(&mut stream).await, Reason::RequestSlow, half);
    }
    for half in [
        "GET",
        "GET /host HTTP/1.1\r\nHost: t\r\nX-Slow",
        "GET /host HTTP/1.1\r\nHost: t\r\n",
    ] {
        let mut stream = sending(stack.addr, half).await;
        assert_eq!(read_all(&mut stream).await, "", "{half}");
    }
    for half in [
        "POST /guests HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n",
        "POST /guests HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{\"gues",
        "POST /guests HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n{\"gues",
    ] {
        let answer = stack.ask(half).await;
        assert_refused_http(&answer, Reason::RequestSlow, half);
    }
    untouched(&backend, &stack).await;
}

#[tokio::test]
async fn a_client_that_sends_byte_by_byte_has_no_more_time_than_another() {
    let (backend, stack) = stack(SHORT).await;
    let socket = array("guest_get_info", &"X".repeat(200));
    let head = format!("GET /host HTTP/1.1\r\nHost: {}\r\n\r\n", "t".repeat(200));
    for request in [socket, head] {
        let stream = connect(stack.addr).await;
        let (mut read, mut write) = stream.into_split();
        let reading = tokio::spawn(async move {
            // Written to after it was closed, it may end in a reset.
            let _ = read.read_to_end(&mut Vec::new()).await;
        });
        let mut sent = 0;
        // 2 s in all, if it is let.
        for byte in request.bytes() {
            if reading.is_finished() || write.write_all(&[byte]).await.is_err() {
                break;
            }
            sent += 1;
            pass(Duration::from_millis(10)).await;
        }
        assert!(sent < request.len(), "all of {sent} bytes were read");
    }
    untouched(&backend, &stack).await;
}

#[tokio::test]
async fn a_silent_connection_is_closed_in_time() {
    let (backend, stack) = stack(SHORT).await;
    let mut silent = connect(stack.addr).await;
    assert_eq!(read_all(&mut silent).await, "");
    until(|| stack.connections.open() == 0, || "it closes".to_owned()).await;
    untouched(&backend, &stack).await;
    // One that has had its answer, too.
    let mut idle = sending(stack.addr, b"GET /host HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let answer = read_all(&mut idle).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    until(|| stack.connections.open() == 0, || "it closes".to_owned()).await;
}

#[tokio::test]
async fn a_client_that_was_silent_at_first_has_all_its_time_for_the_request() {
    // Silent for most of the time allowed, then as long again for its head.
    let client = "request_timeout = \"10s\"";
    let (_backend, stack) = stack(client).await;
    let mut stream = connect(stack.addr).await;
    pass(Duration::from_secs(6)).await;
    stream
        .write_all(b"GET /host HTTP/1.1\r\n")
        .await
        .expect("it reads");
    until_read(&stream).await;
    pass(Duration::from_secs(6)).await;
    stream
        .write_all(b"Host: t\r\nConnection: close\r\n\r\n")
        .await
        .expect("it is still there");
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn silent_connections_do_not_stop_a_call() {
    let (_backend, stack) = stack(LONG).await;
    let mut silent = Vec::new();
    for number in 0..64 {
        let begun = [
            "",
            "[",
            "GET / HT",
            "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n",
        ];
        let stream = sending(stack.addr, begun[number % begun.len()]).await;
        silent.push(stream);
    }
    until(
        || stack.connections.open() == 64,
        || "all are in".to_owned(),
    )
    .await;
    for _ in 0..10 {
        let answer = stack.ask(array("guest_get_info", "X")).await;
        assert_eq!(json(&answer)["overallRC"], 0);
        let answer = stack
            .ask("GET /host HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
            .await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    // None of them gave up meanwhile.
    until(
        || stack.connections.open() == 64,
        || format!("{} open", stack.connections.open()),
    )
    .await;
}

#[tokio::test]
async fn the_answer_survives_although_the_client_goes_on_sending() {
    let (backend, stack) = stack(LONG).await;
    let rest = vec![b'x'; 60_000];
    for (start, reason) in [
        ("hello ", Reason::BadRequest),
        ("[\"guest_list\", [], {}] ", Reason::BadRequest),
        ("[\"guest_list\", [\"", Reason::TooLarge),
    ] {
        let mut stream = sending(stack.addr, start).await;
        for piece in rest.chunks(10_000) {
            stream.write_all(piece).await.expect("it is read");
            tokio::task::yield_now().await;
        }
        assert_refused(&read_all(&mut stream).await, reason, start);
    }
    for start in [
        "POST /guests HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 60000\r\n\r\n",
        "POST /guests HTTP/1.1\r\nHost: t\r\nContent-Length: 60000\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let mut stream = sending(stack.addr, start).await;
        for piece in rest.chunks(10_000) {
            stream.write_all(piece).await.expect("it is read");
            tokio::task::yield_now().await;
        }
        let answer = read_all(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{start}: {answer}");
    }
    untouched(&backend, &stack).await;
}

#[tokio::test]
async fn a_flood_on_one_connection_is_refused_at_the_bound_and_not_read_to_its_end() {
    let (backend, stack) = stack(LONG).await;
    let string = format!("[\"guest_list\", [\"{}", "a".repeat(1 << 20));
    for (start, reason) in [
        ("[".repeat(1 << 20), Reason::BadRequest),
        ("[{\"a\":".repeat(1 << 18), Reason::BadRequest),
        (string, Reason::TooLarge),
        (" ".repeat(1 << 20), Reason::TooLarge),
        (
            "[\"guest_list\", [0".to_owned() + &", 0".repeat(1 << 18),
            Reason::TooLarge,
        ),
    ] {
        let calls = stack.seen.all().len();
        let name = &start[..20];
        let stream = connect(stack.addr).await;
        let (mut read, mut write) = stream.into_split();
        let flood = start.clone();
        let flooding = tokio::spawn(async move {
            // 64 times: what the kernel holds for both sides is far less.
            for _ in 0..64 {
                if write.write_all(flood.as_bytes()).await.is_err() {
                    return false;
                }
            }
            true
        });
        let mut answer = Vec::new();
        // So much was on its way that a reset may have taken the answer.
        let _ = read.read_to_end(&mut answer).await;
        let flooded = tokio::time::timeout(PATIENCE, flooding).await;
        assert!(
            !flooded.expect("it ends").expect("no panic"),
            "{name}: all was read"
        );
        let facts = stack.seen.ended(calls + 1).await;
        assert_eq!(facts[calls].reason, Some(reason), "{name}");
    }
    until(|| stack.connections.open() == 0, || "closed".to_owned()).await;
    untouched(&backend, &stack).await;
}

/// An array of exactly N bytes; with the spaces of `json.dumps`, or without.
fn array_of(bytes: usize, separator: &str) -> String {
    let with = |pad: &str| {
        let disks = vec!["1"; 500].join(separator);
        format!(
            "[\"guest_create\"{separator}[\"X\"{separator}\"{pad}\"{separator}{disks}]{separator}{{}}]"
        )
    };
    let request = with(&"p".repeat(bytes - with("").len()));
    assert_eq!(request.len(), bytes);
    request
}

#[tokio::test]
async fn the_bound_of_a_request_is_exact_and_counts_no_white_space() {
    let (backend, stack) = stack(LONG).await;
    // The backend itself answers nothing that is longer than 4,096 bytes.
    for (bytes, separator, fits) in [
        (4095, ",", true),
        (4096, ",", true),
        (4097, ",", false),
        (4097, ", ", true),
        (4096 + 503, ", ", true),
        (4096 + 504, ", ", false),
        (8192, ",", false),
        (100_000, ",", false),
    ] {
        let answer = stack.ask(array_of(bytes, separator)).await;
        let case = format!("{bytes} bytes with {separator:?}");
        if fits {
            assert_eq!(json(&answer)["overallRC"], 0, "{case}: {answer}");
        } else {
            assert_refused(&answer, Reason::TooLarge, &case);
        }
    }
    assert_eq!(backend.report().calls, 4);
    assert_eq!(backend.report().malformed, 0);
    let sent = stack.seen.ended(8).await;
    let mut sent: Vec<u64> = sent
        .iter()
        .filter(|facts| facts.sent.is_some())
        .map(|facts| facts.bytes_in)
        .collect();
    sent.sort_unstable();
    assert_eq!(sent, [4097 - 503, 4095, 4096, 4096]);
}

#[tokio::test]
async fn heads_and_chunks_beyond_all_bounds_are_refused_and_closed() {
    let (backend, stack) = stack(LONG).await;
    let many = (0..200)
        .map(|n| format!("X-{n}: y\r\n"))
        .collect::<String>();
    let chunked = "POST /guests HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    let large = "y".repeat(65_536);
    for (name, request) in [
        (
            "a large head",
            format!("GET /host HTTP/1.1\r\nHost: t\r\nX: {large}\r\n\r\n"),
        ),
        (
            "a long target",
            format!("GET /{large} HTTP/1.1\r\nHost: t\r\n\r\n"),
        ),
        (
            "a head without end",
            format!("GET /host HTTP/1.1\r\nX{large}"),
        ),
        (
            "many fields",
            format!("GET /host HTTP/1.1\r\nHost: t\r\n{many}\r\n"),
        ),
        (
            "17 digits of size",
            format!("{chunked}FFFFFFFFFFFFFFFF0\r\nabc"),
        ),
        ("no size", format!("{chunked}\r\nabc\r\n0\r\n\r\n")),
        (
            "a negative size",
            format!("{chunked}-3\r\nabc\r\n0\r\n\r\n"),
        ),
        (
            "a size in words",
            format!("{chunked}three\r\nabc\r\n0\r\n\r\n"),
        ),
        ("a wrong size", format!("{chunked}2\r\nabc\r\n0\r\n\r\n")),
        (
            "a large extension",
            format!("{chunked}3;{large}\r\nabc\r\n0\r\n\r\n"),
        ),
        (
            "a large trailer",
            format!("{chunked}3\r\nabc\r\n0\r\nX: {large}\r\n\r\n"),
        ),
        ("no version", "GET /host\r\n\r\n".to_owned()),
        (
            "HTTP/3.7",
            "GET /host HTTP/3.7\r\nHost: t\r\n\r\n".to_owned(),
        ),
        (
            "a NUL",
            "GET /ho\0st HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(),
        ),
        ("an upper-case word", "HELLO".to_owned() + "\r\n\r\n"),
    ] {
        let mut stream = sending(stack.addr, request).await;
        let answer = read_all(&mut stream).await;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(
            ["400", "413", "414", "431", "505"].contains(&status),
            "{name}: {answer:?}"
        );
    }
    // A client that opens with this understands no answer in HTTP/1, and gets one in HTTP/2.
    let answer = stack.ask("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(answer.starts_with("\0\0\0\u{4}\0"), "{answer:?}");
    until(|| stack.connections.open() == 0, || "closed".to_owned()).await;
    untouched(&backend, &stack).await;
}

#[tokio::test]
async fn a_chunk_larger_than_the_world_is_not_waited_for_with_a_worker() {
    let (backend, stack) = stack(SHORT).await;
    let answer = stack
        .ask("POST /guests HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\nabc")
        .await;
    assert_refused_http(&answer, Reason::RequestSlow, "a chunk of 8 EiB");
    untouched(&backend, &stack).await;
}

#[tokio::test]
async fn a_large_body_that_comes_too_slowly_is_given_up_and_its_slot_comes_back() {
    let client = "buffer_bytes = \"1KiB\"\nbody_timeout = \"300ms\"\nbody_min_rate = \"0B\"";
    let (_backend, stack) = stack(client).await;
    let half = "x".repeat(5000);
    let mut stream = sending(
        stack.addr,
        format!("PUT /files HTTP/1.1\r\nHost: t\r\nContent-Length: 10000\r\n\r\n{half}").as_bytes(),
    )
    .await;
    let answer = read_all(&mut stream).await;
    assert_refused_http(&answer, Reason::RequestSlow, "half a body");
    stack.at_rest().await;
    let facts = stack.seen.ended(1).await;
    assert!(facts[0].admitted.is_some());
    assert_eq!(facts[0].reason, Some(Reason::RequestSlow));
}

#[tokio::test]
async fn a_second_array_while_the_first_waits_ends_both() {
    let (backend, stack) = stack(LONG).await;
    let mut slow = Vec::new();
    for _ in 0..4 {
        let stream = sending(stack.addr, array("guest_get_info", "SILENT")).await;
        slow.push(stream);
    }
    stack.busy(4, 0).await;
    let request = array("guest_get_info", "X");
    let mut stream = sending(stack.addr, &request).await;
    stack.busy(4, 1).await;
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    assert_refused(&read_all(&mut stream).await, Reason::BadRequest, "two");
    stack.busy(4, 0).await;
    assert_eq!(backend.report().calls, 4);
}

/// Arguments carry passwords. So do heads, queries, and mistyped input.
#[tokio::test]
async fn nothing_that_a_client_says_in_confidence_is_logged() {
    const SECRET: &str = "s3cr3t-pAssw0rd";
    let backend = backend().await;
    let config = text(&backend, SHORT) + "[log]\nlevel = \"trace\"\n";
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    let body = format!("{{\"guest\": {{\"password\": \"{SECRET}\"}}}}");
    let requests = [
        format!("[\"guest_create\", [\"X\", \"{SECRET}\"], {{\"password\": \"{SECRET}\"}}]"),
        format!("[\"guest_create\", [\"{SECRET}\"], {{}}]"),
        format!("[\"guest_create\", [], {{\"userid\": \"{SECRET}\"}}]"),
        format!("[\"{SECRET}\", [], {{}}]"),
        format!("[\"guest_create\", [\"{SECRET}\"], null]"),
        format!("[\"guest_create\", [\"{SECRET}\", {SECRET}], {{}}]"),
        format!("[\"guest_create\", [\"{SECRET}"),
        format!("{}{SECRET}", "s".repeat(3)),
        format!(
            "[\"guest_create\", [\"{SECRET}{}\"], {{}}]",
            "x".repeat(9000)
        ),
        format!("[\"CLOSE\", [\"{SECRET}\"], {{}}][\"{SECRET}\"]"),
        format!(
            "POST /guests?p={SECRET} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nX-Auth-Token: {SECRET}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
        format!("GET /{SECRET}/{SECRET} HTTP/1.1\r\nHost: {SECRET}\r\nConnection: close\r\n\r\n"),
        format!("GET /guests/{SECRET}/info HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"),
        format!(
            "{} /host HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
            SECRET.to_uppercase()
        ),
        format!(
            "POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 23\r\n\r\n[\"f\", \"{SECRET}\"]"
        ),
        format!("GET /host HTTP/1.1\r\nHost: t\r\n{SECRET}\r\n\r\n"),
    ];
    for request in &requests {
        let answer = ask(addr, request).await;
        assert!(!answer.is_empty(), "{request}");
        // The proxy's answer repeats nothing of a request that it does not forward.
        if answer.contains("\"modID\": 130") {
            assert!(!answer.contains(SECRET), "{answer}");
        }
    }
    sidecar.signal("TERM");
    let (status, log) = sidecar.ended().await;
    assert_eq!(status.code(), Some(0));
    let calls = log.iter().filter(|line| line.contains("\"verdict\""));
    assert!(calls.count() >= requests.len() - 2, "{log:#?}");
    for line in log.iter() {
        let told = line
            .to_ascii_lowercase()
            .contains(&SECRET.to_ascii_lowercase());
        assert!(!told, "{line}");
        let parsed: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        assert!(parsed.is_object());
    }
}

/// A reader of a log must be able to trust its lines.
#[tokio::test]
async fn control_characters_reach_no_log_line() {
    let backend = backend().await;
    let sidecar = Sidecar::start(&text(&backend, LONG)).await;
    let addr = sidecar.listener("test").await;
    for request in [
        "[\"guest_get_info\", [\"X\\n{}\"], {}]",
        "[\"guest_get_info\", [\"\\u001b[31m\"], {}]",
        "[\"guest_get_info\", [\"\u{fc}\"], {}]",
        "[\"g\u{fc}st\u{2028}\", [\"X\"], {}]",
        "[\"guest\\r\\nverdict\", [], {}]",
        "GET /guests/%0A%1B/info HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
    ] {
        ask(addr, request).await;
    }
    sidecar.signal("TERM");
    let (_, log) = sidecar.ended().await;
    let calls: Vec<_> = log
        .iter()
        .filter(|line| line.contains("\"verdict\""))
        .collect();
    assert_eq!(calls.len(), 6, "{log:#?}");
    for line in calls {
        assert!(
            line.is_ascii() && !line.contains(char::is_control),
            "{line}"
        );
        let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        let function = line["function"].as_str().expect("it has one");
        assert!(
            ["guest_get_info", "other", "none"].contains(&function),
            "{line}"
        );
    }
}
