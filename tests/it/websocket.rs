//! WebSocket through the real process: the handshake is a call that waits its turn, and the tunnel behind
//! it holds the call's slot until it ends.

use std::time::Duration;

use crate::raw_http::{
    Acceptor, BodyEnd, Peer, SOON, StreamEnd, access_line, access_lines, get, ok, one_at_a_time,
    reach_load, service,
};
use crate::sidecar::Sidecar;
use crate::support::reset;

/// The request of a client that wants to speak WebSocket, with these fields besides.
pub(crate) fn handshake(path: &str, fields: &str) -> String {
    let wanted = "Connection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    get(path, &format!("{wanted}{fields}"))
}

/// The reply of a backend that speaks WebSocket from now on.
pub(crate) fn switched() -> &'static str {
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
     Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
}

/// A sidecar before a backend that the test plays.
struct Stage {
    backend: Acceptor,
    sidecar: Sidecar,
    addr: std::net::SocketAddr,
}

impl Stage {
    async fn start(sections: &str) -> Self {
        let backend = Acceptor::start().await;
        let sidecar = Sidecar::start(&service(backend.addr, "", sections)).await;
        let addr = sidecar.listener("test").await;
        Self {
            backend,
            sidecar,
            addr,
        }
    }

    async fn with_one_slot() -> Self {
        let backend = Acceptor::start().await;
        let sidecar = Sidecar::start(&one_at_a_time(backend.addr, "", "")).await;
        let addr = sidecar.listener("test").await;
        Self {
            backend,
            sidecar,
            addr,
        }
    }

    /// A client and the backend at the ends of a tunnel.
    async fn tunnel(&self) -> (Peer, Peer) {
        let mut client = Peer::sending(self.addr, handshake("/chat", "")).await;
        let (mut backend, _) = self.backend.call().await;
        backend.send(switched()).await;
        client.reply().await.is(101, "");
        (client, backend)
    }
}

/// Whether a head has this field with this value, whatever the case of the name.
fn has_field(head: &str, name: &str, value: &str) -> bool {
    head.lines().any(|line| {
        let field = line.split_once(':');
        field.is_some_and(|(it, its)| it.eq_ignore_ascii_case(name) && its.trim() == value)
    })
}

fn has_name(head: &str, name: &str) -> bool {
    let begins = format!("{name}:");
    let mut lines = head.lines().map(str::to_ascii_lowercase);
    lines.any(|line| line.starts_with(&begins))
}

#[tokio::test]
async fn a_handshake_reaches_the_backend_and_bytes_pass_both_ways() {
    let stage = Stage::start("").await;
    let more = "Sec-WebSocket-Protocol: chat, superchat\r\n\
        Sec-WebSocket-Extensions: permessage-deflate\r\nOrigin: http://t\r\n";
    let mut client = Peer::sending(stage.addr, handshake("/chat?room=1", more)).await;
    let (mut backend, head) = stage.backend.call().await;
    assert!(head.starts_with("GET /chat?room=1 HTTP/1.1\r\n"), "{head}");
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", "chat, superchat"),
        ("sec-websocket-extensions", "permessage-deflate"),
        ("origin", "http://t"),
    ] {
        let is_there = match name {
            "connection" => has_field(&head, name, "Upgrade") || has_field(&head, name, "upgrade"),
            _ => has_field(&head, name, value),
        };
        assert!(is_there, "{name}: {head}");
    }
    let answer = switched().replace("\r\n\r\n", "\r\nSec-WebSocket-Protocol: chat\r\n\r\n");
    // Bytes that follow a 101 at once are the tunnel's first.
    backend.send(format!("{answer}welcome")).await;
    let reply = client.reply().await;
    assert_eq!(reply.status(), 101, "{reply:?}");
    for (name, value) in [
        ("upgrade", "websocket"),
        ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ("sec-websocket-protocol", "chat"),
    ] {
        assert_eq!(reply.answer.header(name), Some(value), "{reply:?}");
    }
    let connection = reply.answer.header("connection").unwrap_or_default();
    assert!(connection.eq_ignore_ascii_case("upgrade"), "{reply:?}");
    for name in ["content-length", "transfer-encoding"] {
        assert_eq!(reply.answer.header(name), None, "{reply:?}");
    }
    assert_eq!(client.bytes(7).await, b"welcome");
    client.send("\x01\x02\x03").await;
    assert_eq!(backend.bytes(3).await, b"\x01\x02\x03");
    backend.send("GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(client.bytes(18).await, b"GET / HTTP/1.1\r\n\r\n");
}

#[tokio::test]
async fn a_tunnel_has_an_access_line_with_its_status_and_bytes() {
    let stage = Stage::start("").await;
    let (mut client, mut backend) = stage.tunnel().await;
    client.send("four").await;
    assert_eq!(backend.bytes(4).await, b"four");
    backend.send("seven..").await;
    assert_eq!(client.bytes(7).await, b"seven..");
    drop(client);
    backend.ends_within_a_second().await;
    drop(backend);
    let (line, _) = access_line(&stage.sidecar, 0).await;
    assert_eq!(line["status"], 101, "{line}");
    assert_eq!(line["bytes_in"], 4, "{line}");
    assert_eq!(line["bytes_out"], 7, "{line}");
}

#[tokio::test]
async fn a_handshake_waits_for_a_slot() {
    let stage = Stage::with_one_slot().await;
    let mut first = Peer::sending(stage.addr, get("/slow", "")).await;
    let (mut busy, _) = stage.backend.call().await;
    let mut client = Peer::sending(stage.addr, handshake("/chat", "")).await;
    reach_load(&stage.sidecar, (1, 1), SOON).await;
    assert!(busy.is_silent().await && stage.backend.is_silent().await);
    busy.send(ok("done")).await;
    first.reply().await.is(200, "done");
    // On the connection that the first call left, or on a new one.
    let mut backend = tokio::select! {
        Some(head) = busy.next_head() => {
            assert!(head.starts_with("GET /chat "), "{head}");
            busy
        }
        (backend, _) = stage.backend.call() => backend,
    };
    backend.send(switched()).await;
    client.reply().await.is(101, "");
}

#[tokio::test]
async fn a_tunnel_holds_its_slot_until_it_ends() {
    let stage = Stage::with_one_slot().await;
    let (mut client, mut backend) = stage.tunnel().await;
    let mut second = Peer::sending(stage.addr, handshake("/chat", "")).await;
    reach_load(&stage.sidecar, (1, 1), SOON).await;
    client.send("ping").await;
    assert_eq!(backend.bytes(4).await, b"ping");
    assert!(stage.backend.is_silent().await);
    drop(client);
    backend.ends_within_a_second().await;
    drop(backend);
    let (mut backend, _) = stage.backend.call().await;
    backend.send(switched()).await;
    second.reply().await.is(101, "");
}

/// Bytes behind a handshake are a smuggled request to a backend that does not switch
/// (CVE-2026-2833).
#[tokio::test]
async fn bytes_behind_a_handshake_wait_for_the_backends_101() {
    let stage = Stage::start("").await;
    let request = format!("{}the first frame", handshake("/chat", ""));
    let mut client = Peer::sending(stage.addr, request).await;
    let (mut backend, _) = stage.backend.call().await;
    assert!(backend.is_silent().await);
    backend.send(switched()).await;
    assert_eq!(backend.bytes(15).await, b"the first frame");
    client.reply().await.is(101, "");
}

#[tokio::test]
async fn a_refused_handshake_is_an_ordinary_reply_and_bytes_of_the_other_protocol_are_not_sent() {
    for refusal in [
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Content-Length: 2\r\n\r\nno",
    ] {
        let stage = Stage::start("").await;
        let behind = "\u{1}a message of the other protocol\r\n\r\n";
        let request = format!("{}{behind}", handshake("/chat", ""));
        let mut client = Peer::sending(stage.addr, request).await;
        let (mut backend, _) = stage.backend.call().await;
        backend.send(refusal).await;
        let reply = client.reply().await;
        let status: u16 = refusal[9..12].parse().expect("a status");
        reply.is(status, "no");
        assert_eq!(reply.end, BodyEnd::Length);
        let (rest, _) = client.end().await;
        let rest = String::from_utf8_lossy(&rest);
        assert!(rest.starts_with("HTTP/1.1 400 "), "{refusal}: {rest}");
        let silent = backend.is_silent().await || backend.end().await.0.is_empty();
        assert!(silent && stage.backend.is_silent().await, "{refusal}");
        let lines = access_lines(&stage.sidecar, 1).await;
        assert_eq!(lines[0]["status"], status, "{}", lines[0]);
    }
}

#[tokio::test]
async fn a_101_for_another_protocol_or_unasked_is_a_502() {
    let other = switched().replace("Upgrade: websocket", "Upgrade: h2c");
    let none = switched().replace("Upgrade: websocket\r\n", "");
    let both = switched().replace("Upgrade: websocket", "Upgrade: websocket, h2c");
    for (request, answer) in [
        (handshake("/chat", ""), other.as_str()),
        (handshake("/chat", ""), &none),
        (handshake("/chat", ""), &both),
        (get("/chat", ""), switched()),
        (
            get("/chat", "Connection: Upgrade\r\nUpgrade: h2c\r\n"),
            &other,
        ),
    ] {
        let stage = Stage::start("").await;
        let mut client = Peer::sending(stage.addr, &request).await;
        let (mut backend, _) = stage.backend.call().await;
        backend.send(answer).await;
        let reply = client.reply().await;
        assert_eq!(reply.status(), 502, "{request} {answer} {reply:?}");
        assert!(reply.is_whole(), "{reply:?}");
        backend.ends_within_a_second().await;
    }
}

#[tokio::test]
async fn an_upgrade_that_was_not_properly_asked_for_is_dropped() {
    let not_listed = get("/chat", "Upgrade: websocket\r\n");
    let old = handshake("/chat", "").replace("HTTP/1.1", "HTTP/1.0");
    let to_http2 = get(
        "/chat",
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    );
    for request in [not_listed, old, to_http2] {
        let stage = Stage::start("").await;
        let mut client = Peer::sending(stage.addr, &request).await;
        let (mut backend, head) = stage.backend.call().await;
        for name in ["upgrade", "http2-settings"] {
            assert!(!has_name(&head, name), "{request} {head}");
        }
        backend.send(ok("plain")).await;
        client.reply().await.is(200, "plain");
    }
}

#[tokio::test]
async fn a_tunnel_without_a_byte_ends_after_its_idle_timeout() {
    let stage = Stage::start("[client]\ntunnel_idle_timeout = \"300ms\"").await;
    let (mut client, mut backend) = stage.tunnel().await;
    client.send("ping").await;
    assert_eq!(backend.bytes(4).await, b"ping");
    assert_eq!(client.end().await.1, StreamEnd::Reset);
    assert_eq!(backend.end().await.1, StreamEnd::Reset);
    let (line, _) = access_line(&stage.sidecar, 0).await;
    assert_eq!(line["reason"], "tunnel_idle", "{line}");
    assert_eq!(line["status"], 101, "{line}");
}

#[tokio::test]
async fn each_end_that_leaves_takes_the_other_with_it() {
    let stage = Stage::start("").await;
    let (client, mut backend) = stage.tunnel().await;
    reset(client.stream);
    assert_eq!(backend.ends_within_a_second().await, StreamEnd::Reset);
    let (mut client, backend) = stage.tunnel().await;
    reset(backend.stream);
    assert_eq!(client.ends_within_a_second().await, StreamEnd::Reset);
    // A clean end is passed on as one, and the other direction continues.
    let (client, mut backend) = stage.tunnel().await;
    drop(client);
    assert_eq!(backend.ends_within_a_second().await, StreamEnd::Fin);
    drop(backend);
    let (mut client, backend) = stage.tunnel().await;
    drop(backend);
    assert_eq!(client.ends_within_a_second().await, StreamEnd::Fin);
    drop(client);
    access_lines(&stage.sidecar, 4).await;
    reach_load(&stage.sidecar, (0, 0), Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_101_takes_its_backend_connection_with_it() {
    let stage = Stage::start("").await;
    let client = Peer::sending(stage.addr, handshake("/chat", "")).await;
    let (mut backend, _) = stage.backend.call().await;
    drop(client);
    backend.ends_within_a_second().await;
    let (line, _) = access_line(&stage.sidecar, 0).await;
    assert_eq!(line["verdict"], "aborted", "{line}");
}
