//! The fields that name a client to the service: what it gets from a client that lies, from a trusted proxy,
//! with each word of `[forwarded]`, and after a reload.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::certificates::{Files, Shows};
use crate::sidecar::Sidecar;
use crate::support::{
    Held, PATIENCE, Scripted, Stack, ask, connect, read_all, read_until, sending, within_limits,
};

/// Fields of a client that wants to be taken for another.
const LIES: &str = "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n\
                    X-Forwarded-Host: evil.example\r\nForwarded: for=10.0.0.1;proto=https\r\n\
                    X-Real-IP: 10.0.0.1\r\n";

/// The fields that a service gets of a client at 127.0.0.1 that is not believed.
const TRUTH: [&str; 5] = [
    "forwarded: for=127.0.0.1;host=t;proto=http",
    "x-forwarded-for: 127.0.0.1",
    "x-forwarded-host: t",
    "x-forwarded-proto: http",
    "x-real-ip: 127.0.0.1",
];

const TRUSTED: &str = "[callers]\ntrusted_proxies = [\"127.0.0.1\"]";

/// A backend that reads each request whole and answers with its head.
async fn shows_heads() -> Scripted {
    Scripted::start(|_, mut stream| async move {
        while let Some(head) = read_request(&mut stream).await {
            let length = head.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{head}");
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await
}

/// The head of the next request, once its body is here as well.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let small = head.to_ascii_lowercase();
            let length = small.split("content-length: ").nth(1);
            let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
            let is_whole = match small.contains("transfer-encoding: chunked") {
                true => body.ends_with("0\r\n\r\n"),
                false => body.len() >= length.unwrap_or(0),
            };
            if is_whole {
                return Some(format!("{head}\r\n\r\n"));
            }
        }
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk).await.unwrap_or(0) {
            0 => return None,
            read => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

/// A config of one listener in front of a service of this kind.
fn text(kind: &str, backend: SocketAddr, listener: &str, sections: &str) -> String {
    let backend = format!("kind = \"{kind}\"\nhttp = \"http://{backend}\"");
    within_limits(&backend, listener, sections)
}

fn get(fields: &str) -> String {
    format!("GET /x HTTP/1.1\r\nHost: t\r\n{fields}Connection: close\r\n\r\n")
}

/// The lines of a head that may name a client, with names in small letters, sorted.
fn named(text: &str) -> Vec<String> {
    let lines = text.split("\r\n").filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let name = name.to_ascii_lowercase();
        let plain = name.replace(|sign: char| !sign.is_ascii_alphanumeric(), "");
        let is_one = plain.starts_with("xforwarded") || plain == "forwarded" || plain == "xrealip";
        is_one.then(|| format!("{name}: {value}"))
    });
    let mut lines: Vec<_> = lines.collect();
    lines.sort();
    lines
}

async fn seen(addr: SocketAddr, request: impl AsRef<[u8]>) -> Vec<String> {
    named(&ask(addr, request).await)
}

#[tokio::test]
async fn a_client_that_lies_about_itself_is_not_believed() {
    let backend = shows_heads().await;
    let small = "[client]\nbuffer_bytes = \"1KiB\"";
    let stack = Stack::start(&text("http", backend.addr, "", small));
    let large = "x".repeat(20_000);
    let chunks = format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    let post = "POST /x HTTP/1.1\r\nHost: t\r\nConnection: close\r\n";
    for request in [
        get(""),
        get(LIES),
        // Of the other forms that a request may have, none goes around it.
        get(&format!("{LIES}{LIES}")),
        get(&LIES.to_ascii_uppercase()),
        get(&format!("{LIES}TE: trailers\r\n")),
        get("X_Forwarded_For: 10.0.0.1\r\nX_REAL_IP: 10.0.0.1\r\nx.forwarded.proto: https\r\n"),
        format!("GET /x HTTP/1.0\r\nHost: t\r\n{LIES}\r\n"),
        format!("GET http://t/x HTTP/1.1\r\nHost: u\r\n{LIES}Connection: close\r\n\r\n"),
        format!(
            "GET /x HTTP/1.1\r\nHost: t\r\n{LIES}Connection: close, X-Forwarded-For, X-Real-IP\r\n\r\n"
        ),
        format!("{post}{LIES}Content-Length: 3\r\n\r\nabc"),
        format!("{post}{LIES}Content-Length: 20000\r\n\r\n{large}"),
        format!("{post}{LIES}Transfer-Encoding: chunked\r\n\r\n{chunks}"),
    ] {
        let seen = seen(stack.addr, &request).await;
        assert_eq!(seen, TRUTH, "{:.300}", request);
    }
    stack.at_rest().await;
}

#[tokio::test]
async fn with_pass_the_lie_is_seen() {
    let backend = shows_heads().await;
    let pass = "[forwarded]\nx_forwarded_for = \"pass\"\nx_forwarded_proto = \"pass\"";
    let stack = Stack::start(&text("http", backend.addr, "", pass));
    let expected = [
        TRUTH[0],
        "x-forwarded-for: 10.0.0.1",
        TRUTH[2],
        "x-forwarded-proto: https",
        TRUTH[4],
    ];
    assert_eq!(seen(stack.addr, get(LIES)).await, expected);
}

#[tokio::test]
async fn a_trusted_proxy_names_its_client_and_is_added_itself() {
    let backend = shows_heads().await;
    let stack = Stack::start(&text("http", backend.addr, "", TRUSTED));
    let of_proxy = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n\
                    Forwarded: for=192.0.2.7;proto=https\r\nX-Forwarded-For: 192.0.2.8\r\n";
    let expected = [
        "forwarded: for=192.0.2.7;proto=https, for=127.0.0.1;host=t;proto=http",
        "x-forwarded-for: 192.0.2.7, 192.0.2.8, 127.0.0.1",
        "x-forwarded-host: t",
        "x-forwarded-proto: https",
        "x-real-ip: 127.0.0.1",
    ];
    assert_eq!(seen(stack.addr, get(of_proxy)).await, expected);
    assert_eq!(seen(stack.addr, get("")).await, TRUTH);
    // Another peer is no proxy.
    let socket = TcpSocket::new_v4().expect("a socket");
    let other: SocketAddr = ([127, 0, 0, 9], 0).into();
    socket.bind(other).expect("all of 127/8 is this machine");
    let mut stream = socket.connect(stack.addr).await.expect("it listens");
    let request = get(of_proxy);
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let truth = TRUTH.map(|line| line.replace("127.0.0.1", "127.0.0.9"));
    assert_eq!(named(&read_all(&mut stream).await), truth);
}

#[tokio::test]
async fn the_client_of_a_proxy_header_is_the_client() {
    let backend = shows_heads().await;
    let listener = "protocol = \"http\"\nproxy_protocol = \"required\"";
    let stack = Stack::start(&text("http", backend.addr, listener, TRUSTED));
    for (header, address, quoted) in [
        (
            "TCP4 192.0.2.1 203.0.113.7 4711 80",
            "192.0.2.1",
            "192.0.2.1",
        ),
        (
            "TCP6 2001:db8::1 2001:db8::2 4711 80",
            "2001:db8::1",
            "\"[2001:db8::1]\"",
        ),
    ] {
        let request = format!("PROXY {header}\r\n{}", get(LIES));
        let expected = [
            format!("forwarded: for={quoted};host=t;proto=http"),
            format!("x-forwarded-for: {address}"),
            TRUTH[2].to_owned(),
            TRUTH[3].to_owned(),
            format!("x-real-ip: {address}"),
        ];
        assert_eq!(seen(stack.addr, request).await, expected, "{header}");
    }
    // The proxy speaks for itself, or for another that is trusted.
    let by_proxy = format!("PROXY UNKNOWN\r\n{}", get("X-Forwarded-For: 192.0.2.7\r\n"));
    let seen = seen(stack.addr, by_proxy).await;
    assert_eq!(seen[1], "x-forwarded-for: 192.0.2.7, 127.0.0.1");
}

#[tokio::test]
async fn over_tls_the_service_reads_https() {
    let (backend, files) = (shows_heads().await, Files::new());
    let stack = Stack::start(&text("http", backend.addr, &files.section(""), ""));
    let stream = files
        .connect(connect(stack.addr).await, Shows::Nothing)
        .await;
    let mut stream = stream.expect("the handshake");
    let asked = LIES.replace("https", "gopher");
    let request = get(&asked).replace("Host: t", "Host: t:8443");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let mut answer = String::new();
    let reading = stream.read_to_string(&mut answer);
    let read = tokio::time::timeout(PATIENCE, reading).await;
    read.expect("in time").expect("it is answered");
    let expected = [
        "forwarded: for=127.0.0.1;host=\"t:8443\";proto=https",
        TRUTH[1],
        "x-forwarded-host: t:8443",
        "x-forwarded-proto: https",
        TRUTH[4],
    ];
    assert_eq!(named(&answer), expected);
    // The same port without TLS.
    assert_eq!(seen(stack.addr, get(LIES)).await, TRUTH);
}

#[tokio::test]
async fn a_client_on_a_socket_file_has_no_address() {
    let backend = shows_heads().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (callers, expected) in [
        (
            "",
            &[
                "forwarded: for=unknown;host=t;proto=http",
                "x-forwarded-host: t",
                "x-forwarded-proto: http",
            ][..],
        ),
        (
            "[callers]\ntrusted_proxies = [\"unix\"]",
            &[
                "forwarded: for=10.0.0.1;proto=https, for=unknown;host=t;proto=http",
                "x-forwarded-for: 10.0.0.1",
                "x-forwarded-host: evil.example",
                "x-forwarded-proto: https",
                "x-real-ip: 10.0.0.1",
            ],
        ),
    ] {
        let path = dir.path().join(format!("{}.sock", expected.len()));
        let at_file = format!("bind = \"unix:{}\"", path.display());
        let config = text("http", backend.addr, "", callers);
        let config = config.replacen("bind = \"127.0.0.1:0\"", &at_file, 1);
        let _stack = Stack::start(&config);
        let stream = UnixStream::connect(&path).expect("a server listens");
        stream.set_nonblocking(true).expect("a socket takes it");
        let stream = std::net::TcpStream::from(OwnedFd::from(stream));
        let mut stream = TcpStream::from_std(stream).expect("there is a runtime");
        let request = get(LIES);
        stream
            .write_all(request.as_bytes())
            .await
            .expect("it reads");
        assert_eq!(named(&read_all(&mut stream).await), expected, "{callers}");
    }
}

#[tokio::test]
async fn a_zvm_server_gets_the_bytes_as_they_came() {
    let backend = shows_heads().await;
    for callers in ["", TRUSTED] {
        let stack = Stack::start(&text("zvm", backend.addr, "", callers));
        let head = format!("GET /guests HTTP/1.1\r\nHost: t\r\nX_Real_IP: 1\r\n{LIES}\r\n");
        let mut stream = sending(stack.addr, &head).await;
        let answer = read_until(&mut stream, "X-Real-IP: 10.0.0.1\r\n\r\n").await;
        let (_, seen) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert_eq!(seen, head);
    }
}

#[tokio::test]
async fn each_word_counts_for_each_kind_of_backend() {
    let backend = shows_heads().await;
    let lies = [
        "forwarded: for=10.0.0.1;proto=https",
        "x-forwarded-for: 10.0.0.1",
        "x-forwarded-host: evil.example",
        "x-forwarded-proto: https",
        "x-real-ip: 10.0.0.1",
    ];
    let appended = [
        "forwarded: for=10.0.0.1;proto=https, for=127.0.0.1;host=t;proto=http",
        "x-forwarded-for: 10.0.0.1, 127.0.0.1",
        lies[2],
        lies[3],
        lies[4],
    ];
    for kind in ["http", "zvm"] {
        for (word, from_liar, from_other) in [
            ("set", &TRUTH[..], &TRUTH[..]),
            ("append", &appended, &TRUTH),
            ("pass", &lies, &[]),
            ("remove", &[], &[]),
        ] {
            let section = format!(
                "[forwarded]\nx_forwarded_for = \"{word}\"\nx_forwarded_proto = \"{word}\"\n\
                 x_forwarded_host = \"{word}\"\nforwarded = \"{word}\"\nx_real_ip = \"{word}\""
            );
            let stack = Stack::start(&text(kind, backend.addr, "", &section));
            let liar = seen(stack.addr, get(LIES)).await;
            assert_eq!(liar, from_liar, "{kind}, {word}");
            let other = seen(stack.addr, get("")).await;
            assert_eq!(other, from_other, "{kind}, {word}");
        }
    }
}

#[tokio::test]
async fn a_reload_counts_for_later_connections() {
    let backend = shows_heads().await;
    let config = |section: &str| text("http", backend.addr, "", section);
    let sidecar = Sidecar::start(&config("")).await;
    let addr = sidecar.listener("test").await;
    let lies = format!("GET /x HTTP/1.1\r\nHost: t\r\n{LIES}\r\n");
    let mut earlier = sending(addr, &lies).await;
    let end = "proto=http\r\n\r\n";
    assert_eq!(named(&read_until(&mut earlier, end).await), TRUTH);
    let remove = "[forwarded]\nx_forwarded_for = \"remove\"\nx_forwarded_proto = \"pass\"";
    sidecar.reload(&config(remove)).await;
    earlier.write_all(lies.as_bytes()).await.expect("it reads");
    assert_eq!(named(&read_until(&mut earlier, end).await), TRUTH);
    let expected = [TRUTH[0], TRUTH[2], "x-forwarded-proto: https", TRUTH[4]];
    assert_eq!(seen(addr, get(LIES)).await, expected);
}

/// Counts requests, and answers each with its head. The first of each pair is closed without an answer if that is
/// wanted.
async fn counting(drops_first: bool) -> (Scripted, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let backend = Scripted::start(move |_, mut stream| {
        let count = Arc::clone(&count);
        async move {
            while let Some(head) = read_request(&mut stream).await {
                if count.fetch_add(1, Ordering::SeqCst) == 0 && drops_first {
                    return;
                }
                let length = head.len();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{head}");
                stream
                    .write_all(answer.as_bytes())
                    .await
                    .expect("it is read");
            }
        }
    })
    .await;
    (backend, calls)
}

#[tokio::test]
async fn a_read_that_is_sent_once_more_has_the_same_lines() {
    let (backend, calls) = counting(true).await;
    let config = text("http", backend.addr, "", "");
    let config = config.replace("[queue]", "retry_reads = true\n[queue]");
    let stack = Stack::start(&config);
    assert_eq!(seen(stack.addr, get(LIES)).await, TRUTH);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_call_that_was_handed_over_and_waits_keeps_its_lines() {
    let mut held = Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let config = text("http", held.backend.addr, "", "[tasks]\nenabled = true");
    let config = config.replace("[limits]", "[limits]\noutstanding = 1");
    let stack = Stack::start(&config);
    let first = sending(stack.addr, get("")).await;
    assert_eq!(named(&held.next().await), TRUTH);
    let request = get(&format!("{LIES}Prefer: respond-async\r\n"));
    let answer = ask(stack.addr, request).await;
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    held.go.notify_one();
    assert_eq!(named(&held.next().await), TRUTH);
    held.go.notify_one();
    stack.at_rest().await;
    drop(first);
}

#[tokio::test]
async fn clients_whose_addresses_the_service_gets_do_not_share_an_answer() {
    for (ignored, shared) in [
        ("", false),
        (
            "ignore_headers = [\"connection\", \"x-forwarded-for\", \"forwarded\", \"x-real-ip\"]",
            true,
        ),
    ] {
        let (backend, calls) = counting(false).await;
        let sections = format!(
            r#"
            [coalesce]
            functions = ["report"]
            fresh_for = "1h"
            {ignored}
            [[route]]
            method = "GET"
            path = "/x"
            function = "report"
            "#
        );
        let stack = Stack::start(&text("http", backend.addr, "", &sections));
        for last in [1, 2, 1, 2] {
            let socket = TcpSocket::new_v4().expect("a socket");
            let client: SocketAddr = ([127, 0, 0, last], 0).into();
            socket.bind(client).expect("all of 127/8 is this machine");
            let mut stream = socket.connect(stack.addr).await.expect("it listens");
            let request = get(LIES);
            stream
                .write_all(request.as_bytes())
                .await
                .expect("it reads");
            let first = if shared { 1 } else { last };
            let named = named(&read_all(&mut stream).await);
            assert_eq!(named[1], format!("x-forwarded-for: 127.0.0.{first}"));
        }
        let expected = if shared { 1 } else { 2 };
        assert_eq!(calls.load(Ordering::SeqCst), expected, "{ignored}");
    }
}
