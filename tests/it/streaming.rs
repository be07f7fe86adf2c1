//! Requests and replies too large to hold: how long they may take, and what clients that take
//! them slowly may hold.

use std::sync::Arc;
use std::time::Duration;

use tidegate::call::{Reason, Verdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::{
    PATIENCE, Scripted, Stack, array, ask, connect, in_turn, pass, read_until, replying, sending,
    until_read,
};

const MS: Duration = Duration::from_millis(1);

fn text(addr: impl ToString, backend: &str, more: &str) -> String {
    let addr = addr.to_string();
    let backend = format!(
        "socket = \"{addr}\"\nhttp = \"http://{addr}\"\nmax_reply_bytes = \"64MiB\"\n{backend}"
    );
    // What `more` begins with belongs to [queue].
    in_turn(
        &backend,
        &format!("{more}\n[client]\nbuffer_bytes = \"1KiB\""),
    )
}

/// A client with a small buffer, that has asked and reads nothing yet.
async fn asks(stack: &Stack, request: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .set_recv_buffer_size(4096)
        .expect("a socket takes it");
    let mut stream = socket.connect(stack.addr).await.expect("it listens");
    let request = request.as_bytes();
    stream.write_all(request).await.expect("it reads");
    stream
}

const GET: &str = "GET /host HTTP/1.1\r\nHost: t\r\n\r\n";

#[tokio::test]
async fn an_upload_may_take_longer_than_response_timeout_and_the_reply_may_not() {
    let backend = Scripted::start(|number, mut stream| async move {
        let mut request = vec![0; 1 << 16];
        let mut read = 0;
        while read < 40_000 {
            match stream.read(&mut request).await {
                Ok(more @ 1..) => read += more,
                _ => return,
            }
        }
        if number > 0 {
            // Says nothing more.
            std::future::pending::<()>().await;
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}";
        stream.write_all(answer).await.expect("it is read");
        std::future::pending::<()>().await;
    })
    .await;
    let stack = Stack::start(&text(backend.addr, "response_timeout = \"4s\"", ""));
    for status in ["200", "504"] {
        let head = "POST /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 40000\r\n\r\n";
        let mut stream = sending(stack.addr, head).await;
        stream.write_all(&[b' '; 20_000]).await.expect("it reads");
        stack.busy(1, 0).await;
        until_read(&stream).await;
        pass(12_000 * MS).await;
        assert_eq!(stack.gate.busy(), (1, 0), "it is still sent");
        stream.write_all(&[b' '; 20_000]).await.expect("it reads");
        if status == "504" {
            until_read(&stream).await;
            pass(5_000 * MS).await;
        }
        let answer = read_until(&mut stream, "\r\n").await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        stack.at_rest().await;
    }
}

#[tokio::test]
async fn response_timeout_ends_a_streamed_reply_whose_client_takes_nothing_more() {
    let backend = replying(Duration::ZERO, 24 << 20).await;
    for (addr, request) in [
        (backend.http_addr(), GET.to_owned()),
        (backend.socket_addr(), array("guest_get_info", "X")),
    ] {
        let stack = Stack::start(&text(addr, "response_timeout = \"700ms\"", ""));
        let mut slow = asks(&stack, &request).await;
        stack.busy(1, 0).await;
        // It takes nothing at all, and its slot is free nevertheless.
        stack.at_rest().await;
        // It does not accept its bytes as a complete answer.
        let mut answer = Vec::new();
        let read = timeout(PATIENCE, slow.read_to_end(&mut answer)).await;
        let ended = read.expect("it ends");
        let is_http_cut = request == GET && answer.len() < 24 << 20;
        assert!(ended.is_err() || is_http_cut, "{} bytes", answer.len());
        let facts = stack.seen.ended(1).await;
        assert_eq!(facts[0].reason, Some(Reason::BackendSlow), "{request}");
        assert_eq!(facts[0].verdict, Verdict::Failed, "{request}");
    }
}

#[tokio::test]
async fn clients_that_take_replies_slowly_hold_no_more_than_their_share_of_the_slots() {
    let backend = replying(Duration::ZERO, 24 << 20).await;
    let outcomes = [
        (backend.http_addr(), GET.to_owned()),
        (backend.socket_addr(), array("guest_get_info", "X")),
    ]
    .map(|(addr, request)| async move {
        let config = text(addr, "max_slow_readers = 1", "workers = 4\ncapacity = 100");
        let stack = Arc::new(Stack::start(&config));
        for _ in 0..4 {
            let mut slow = asks(&stack, &request).await;
            // 40 KB a second.
            tokio::spawn(async move {
                let mut chunk = [0; 2048];
                while slow.read(&mut chunk).await.unwrap_or(0) > 0 {
                    tokio::time::sleep(50 * MS).await;
                }
            });
        }
        stack.busy(4, 0).await;
        // A client that reads is served while all four are still reading.
        let mut quick = sending(stack.addr, &request).await;
        let mut first = [0; 1];
        let read = timeout(PATIENCE, quick.read_exact(&mut first)).await;
        read.expect("a slot is free").expect("it is answered");
        drop(quick);
        stack.busy(1, 0).await;
        let facts = stack.seen.ended(3).await;
        let left = facts.iter().filter(|facts| facts.left).count();
        assert!(left >= 3, "{request}: {left}");
        // The cut-off ones have a reason; the quick client left on its own.
        let cut = facts
            .iter()
            .filter(|facts| facts.reason == Some(Reason::ClientSlow));
        assert!(cut.count() >= 2, "{request}");
    });
    let [http, socket] = outcomes;
    tokio::join!(http, socket);
}

#[tokio::test]
async fn an_answer_to_an_upload_says_close_exactly_when_the_rest_of_the_upload_is_not_read() {
    for framing in ["Content-Length: 100000", "Transfer-Encoding: chunked"] {
        let backend = Scripted::start(|_, mut stream| async move {
            let mut request = vec![0; 1 << 16];
            let mut held = Vec::new();
            while let Ok(read @ 1..) = stream.read(&mut request).await {
                held.extend_from_slice(&request[..read]);
                let text = String::from_utf8_lossy(&held);
                // It refuses the first at its head.
                if text.starts_with("POST /files?early")
                    || text.ends_with("LAST\r\n0\r\n\r\n")
                    || text.ends_with("LAST")
                {
                    held.clear();
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            }
        })
        .await;
        let stack = Stack::start(&text(backend.addr, "", ""));
        let head = |path: &str| format!("POST {path} HTTP/1.1\r\nHost: t\r\n{framing}\r\n\r\n");
        let chunked = framing.ends_with("chunked");
        let piece = |body: &str| match chunked {
            true => format!("{:x}\r\n{body}\r\n", body.len()),
            false => body.to_owned(),
        };
        // Twice on one connection: an upload that is read to its end keeps it.
        let mut client = connect(stack.addr).await;
        for _ in 0..2 {
            let first = head("/files?whole") + &piece(&"x".repeat(50_000));
            client.write_all(first.as_bytes()).await.expect("it reads");
            let mut last = piece(&("y".repeat(49_996) + "LAST"));
            if chunked {
                last += "0\r\n\r\n";
            }
            client.write_all(last.as_bytes()).await.expect("it reads");
            let answer = timeout(PATIENCE, read_until(&mut client, "{}")).await;
            let answer = answer.expect("no hang").to_ascii_lowercase();
            assert!(answer.starts_with("http/1.1 200"), "{answer}");
            assert!(!answer.contains("connection: close"), "{framing}: {answer}");
        }
        // An answer before the end of the upload is the last on its connection, and says so.
        let first = head("/files?early") + &piece(&"x".repeat(2_000));
        client.write_all(first.as_bytes()).await.expect("it reads");
        let answer = timeout(PATIENCE, read_until(&mut client, "{}")).await;
        let answer = answer.expect("no hang").to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 200"), "{answer}");
        assert!(answer.contains("connection: close"), "{framing}: {answer}");
        let ended = timeout(PATIENCE, client.read(&mut [0])).await;
        assert_eq!(ended.expect("no hang").expect("no reset"), 0);
        stack.at_rest().await;
    }
}

#[tokio::test]
async fn slow_clients_never_hold_more_than_half_of_the_smallest_limit_that_they_are_under() {
    let backend = replying(Duration::ZERO, 24 << 20).await;
    // At the defaults, a quarter of the workers is more than all calls at once.
    let stack = Arc::new(Stack::start(&text(backend.http_addr(), "", "")));
    for _ in 0..10 {
        let mut slow = asks(&stack, GET).await;
        tokio::spawn(async move {
            let mut chunk = [0; 2048];
            while slow.read(&mut chunk).await.unwrap_or(0) > 0 {
                tokio::time::sleep(50 * MS).await;
            }
        });
    }
    stack.busy(10, 0).await;
    let mut quick = sending(stack.addr, GET).await;
    let mut first = [0; 1];
    let read = timeout(PATIENCE, quick.read_exact(&mut first)).await;
    read.expect("a slot is free").expect("it is answered");
    drop(quick);
    // Five that were cut off, and the quick one.
    let facts = stack.seen.ended(6).await;
    let cut = facts
        .iter()
        .filter(|facts| facts.reason == Some(Reason::ClientSlow));
    assert!(cut.count() >= 5, "{facts:?}");
}

#[tokio::test]
async fn an_upload_just_above_what_is_held_whole_keeps_its_connection() {
    let backend = Scripted::start(|_, mut stream| async move {
        let mut held = Vec::new();
        let mut part = vec![0; 1 << 16];
        while let Ok(read @ 1..) = stream.read(&mut part).await {
            held.extend_from_slice(&part[..read]);
            if held.ends_with(b"LAST") {
                held.clear();
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
                if stream.write_all(answer).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    let http = format!("http = \"http://{}\"", backend.addr);
    let stack = Stack::start(&in_turn(&http, ""));
    for length in [65_536, 65_537, 65_600, 66_000, 66_001, 80_000] {
        let mut client = connect(stack.addr).await;
        let head = format!("POST /files HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n");
        let request = head + &"x".repeat(length - 4) + "LAST";
        for _ in 0..8 {
            client
                .write_all(request.as_bytes())
                .await
                .expect("it reads");
            let answer = timeout(PATIENCE, read_until(&mut client, "{}")).await;
            let answer = answer.expect("no hang").to_ascii_lowercase();
            assert!(answer.starts_with("http/1.1 200"), "{answer}");
            assert!(!answer.contains("connection: close"), "{length}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_reply_whose_first_chunk_is_bad_is_a_502_and_not_an_empty_end() {
    for first in ["ZZ\r\nhello\r\n", "-5\r\nhello\r\n", "5 6\r\nhello\r\n"] {
        let backend = Scripted::start(move |_, mut stream| async move {
            let mut request = [0; 4096];
            if stream.read(&mut request).await.unwrap_or(0) > 0 {
                let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                let reply = format!("{head}{first}");
                let _ = stream.write_all(reply.as_bytes()).await;
                let _ = stream.read(&mut request).await;
            }
        })
        .await;
        let stack = Stack::start(&text(backend.addr, "", ""));
        let request = "GET /host HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
        let answer = ask(stack.addr, request).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{first:?}: {answer:?}");
    }
}
