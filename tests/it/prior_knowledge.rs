//! Clients that speak HTTP/2 without being offered it: each gets an end that it can read, and the operator a line.

use tidegate::call::Rejection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

use crate::certificates::{Files, Shows};
use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, Scripted, Stack, ask, connect, one_listener};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame, which each client sends behind the preface.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// All that the server sends until it closes, which must be no reset.
async fn answer_to(mut client: TcpStream, pieces: &[&[u8]]) -> Vec<u8> {
    client.set_nodelay(true).expect("a socket can be told so");
    for piece in pieces {
        client.write_all(piece).await.expect("it is read");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, client.read_to_end(&mut answer)).await;
    read.expect("it ends").expect("it is no reset");
    answer
}

#[track_caller]
fn is_goaway(answer: &[u8]) {
    assert_eq!(answer.get(..9), Some(&SETTINGS[..]), "{answer:?}");
    // A GOAWAY on the connection, with HTTP_1_1_REQUIRED.
    assert_eq!(answer[12..14], [7, 0]);
    assert_eq!(answer[18..26], [0, 0, 0, 0, 0, 0, 0, 0xd]);
    let text = String::from_utf8_lossy(&answer[26..]);
    assert!(text.contains("HTTP/1.1") && text.contains("curl"), "{text}");
}

#[tokio::test]
async fn a_client_of_http_2_gets_a_goaway_however_its_preface_is_cut() {
    let backend = Scripted::in_both_dialects().await;
    for protocol in ["auto", "http"] {
        let listener = format!("protocol = \"{protocol}\"");
        let stack = Stack::start(&one_listener(backend.addr, &listener, ""));
        let whole = [PREFACE, &SETTINGS].concat();
        let by_byte: Vec<_> = whole.chunks(1).collect();
        let cuts: [&[&[u8]]; 4] = [
            &[&whole],
            &[&PREFACE[..3], &PREFACE[3..], &SETTINGS],
            &[&PREFACE[..18], &whole[18..]],
            &by_byte,
        ];
        for pieces in cuts {
            is_goaway(&answer_to(connect(stack.addr).await, pieces).await);
        }
        assert_eq!(stack.seen.rejected(4).await, [Rejection::Http2; 4]);
        stack.at_rest().await;
        assert!(stack.seen.all().is_empty(), "it is no call");
    }
}

#[tokio::test]
async fn what_only_begins_like_http_2_is_answered_in_http_1() {
    let backend = Scripted::in_both_dialects().await;
    let stack = Stack::start(&one_listener(backend.addr, "protocol = \"http\"", ""));
    for request in [
        "PRI * HTTP/2.0\r\nHost: t\r\n\r\n",
        "PRI / HTTP/1.1\r\n\r\n",
    ] {
        let answer = ask(stack.addr, request).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
}

#[tokio::test]
async fn over_tls_too_a_client_of_http_2_gets_a_goaway() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let stack = Stack::start(&one_listener(backend.addr, &files.section(""), ""));
    let stream = connect(stack.addr).await;
    let mut stream = files.connect(stream, Shows::Nothing).await.expect("TLS");
    stream.write_all(PREFACE).await.expect("it is read");
    stream.write_all(&SETTINGS).await.expect("it is read");
    stream.flush().await.expect("it is read");
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    read.expect("it ends").expect("it ends as TLS does");
    is_goaway(&answer);
    assert_eq!(stack.seen.rejected(1).await, [Rejection::Http2]);
}

#[tokio::test]
async fn a_refused_client_of_http_2_is_counted_and_logged_with_the_cure() {
    let backend = Scripted::in_both_dialects().await;
    let sidecar = Sidecar::start(&one_listener(backend.addr, "", "")).await;
    let address = sidecar.listener("test").await;
    is_goaway(&answer_to(connect(address).await, &[PREFACE, &SETTINGS]).await);
    sidecar
        .log()
        .wait(&[
            "\"level\":\"WARN\"",
            "HTTP/2",
            "turn HTTP/2 off in the client",
        ])
        .await;
    let counted = "tidegate_connections_rejected_total{listener=\"test\",reason=\"http2\"}";
    assert_eq!(sidecar.metric(counted).await, 1.0);
    let curl = Command::new("curl")
        .args(["-sSv", "--max-time", "10", "--http2-prior-knowledge"])
        .arg(format!("http://{address}/guests"))
        .kill_on_drop(true)
        .output()
        .await;
    // Where there is no curl, or one without HTTP/2, the bytes above must do.
    if let Ok(curl) = curl
        && curl.status.code() != Some(1)
    {
        let told = String::from_utf8_lossy(&curl.stderr);
        assert!(!curl.status.success(), "{told}");
        // Its number is HTTP_1_1_REQUIRED.
        assert!(told.contains("GOAWAY, error=13"), "{told}");
        assert_eq!(sidecar.metric(counted).await, 2.0, "{told}");
    }
}
