//! A client may leave at any moment: its slot comes back exactly once, when the backend is
//! done with its call, and a call that waits never reaches the backend.

use std::task::Poll;

use tidegate::call::{Reason, Verdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::support::{
    Held, OK, Scripted, Stack, array, connect, one_listener, read_until, reset, sending, settle,
    until,
};

fn limits(held: &Held, protocol: &str) -> String {
    let addr = held.backend.addr;
    let backend = match protocol {
        "tcp" => format!(r#"tcp = "{addr}""#),
        _ => format!(
            r#"
            socket = "{addr}"
            kind = "zvm"
            http = "http://{addr}"
            "#
        ),
    };
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        protocol = "{protocol}"
        [backend]
        {backend}
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:100"
        outstanding = 1
        "#
    )
}

const HTTP_OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}";

fn request(protocol: &str, userid: &str) -> String {
    match protocol {
        "socket" | "tcp" => array("guest_get_info", userid),
        _ => format!("GET /guests/{userid}/info HTTP/1.1\r\nHost: tidegate\r\n\r\n"),
    }
}

async fn sent(stack: &Stack, protocol: &str, userid: &str) -> TcpStream {
    sending(stack.addr, request(protocol, userid)).await
}

/// Runs one call while a second waits, sends `more` and leaves as `leave` says; a third then gets the slot.
async fn one_leaves_while_it_waits(protocol: &'static str, more: &str, leave: fn(TcpStream)) {
    let mut held = Held::start(if protocol == "socket" { OK } else { HTTP_OK }).await;
    let stack = Stack::start(&limits(&held, protocol));
    let mut first = sent(&stack, protocol, "FIRST").await;
    assert!(held.got.recv().await.expect("it runs").contains("FIRST"));
    let mut second = sent(&stack, protocol, "SECOND").await;
    stack.busy(1, 1).await;
    if !more.is_empty() {
        settle().await;
        second.write_all(more.as_bytes()).await.expect("it is open");
        settle().await;
        assert_eq!(stack.gate.busy(), (1, 1), "{protocol}: {more:?}");
    }
    leave(second);
    stack.busy(1, 0).await;
    let third = sent(&stack, protocol, "THIRD").await;
    stack.busy(1, 1).await;
    held.go.notify_one();
    read_until(&mut first, "overallRC").await;
    let next = held.got.recv().await.expect("the next runs");
    assert!(next.contains("THIRD"), "{protocol}: {next}");
    held.go.notify_one();
    drop(third);
    drop(first);
    stack.at_rest().await;
    let facts = stack.seen.ended(3).await;
    let second = facts
        .iter()
        .find(|facts| facts.target.as_deref() == Some("SECOND"))
        .expect("its record was closed");
    assert_eq!(second.verdict, Verdict::Aborted, "{protocol}");
    assert_eq!(second.sent, None, "{protocol}");
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_is_never_sent() {
    for protocol in ["socket", "http"] {
        one_leaves_while_it_waits(protocol, "", drop).await;
        one_leaves_while_it_waits(protocol, "", reset).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_behind_unread_bytes_is_noticed_at_once_and_never_sent() {
    let next = request("http", "NEXT");
    let many = next.repeat(1000);
    for leave in [drop, reset] {
        one_leaves_while_it_waits("socket", "\r\n", leave).await;
        for more in ["\r\n", "x", &next, &many] {
            one_leaves_while_it_waits("http", more, leave).await;
        }
    }
}

/// Lets tasks run that can, without a look at sockets.
async fn without_a_look() {
    let mut has_yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A process that had no processor for a while sees both in one look at its sockets, such as after a stall.
#[tokio::test]
async fn a_client_whose_end_comes_together_with_its_turn_is_never_sent() {
    let cases = [
        ("socket", false),
        ("tcp", false),
        ("http", false),
        ("http", true),
    ];
    for (protocol, coalesces) in cases {
        for leave in [drop, reset] {
            let mut held = Held::start(if protocol == "http" { HTTP_OK } else { OK }).await;
            let mut text = limits(&held, protocol);
            if coalesces {
                text.push_str("[coalesce]\nfunctions = [\"guest_get_info\"]\n");
            }
            let stack = Stack::start(&text);
            let mut first = Some(sent(&stack, protocol, "FIRST").await);
            held.next().await;
            let second = sent(&stack, protocol, "SECOND").await;
            stack.busy(1, 1).await;
            let gate = stack.gate.clone();
            // A task, because the runtime looks at its sockets before it goes on with the test itself.
            let both = tokio::spawn(async move {
                held.go.notify_one();
                // A shared call gets its turn in another task than the one that sees its client leave.
                while held.done() == 0 || coalesces && gate.busy().1 > 0 {
                    without_a_look().await;
                }
                // A tunnel has ended when both sides have closed.
                if protocol == "tcp" {
                    drop(first.take());
                }
                leave(second);
                (held, first)
            });
            let first;
            (held, first) = both.await.expect("it does not panic");
            let told = format!("{protocol}, coalesces: {coalesces}");
            tokio::select! {
                sent = held.next() => panic!("{told}: {sent}"),
                () = stack.busy(0, 0) => {}
            }
            let facts = stack.seen.ended(1 + usize::from(!coalesces)).await;
            // A shared call without a client leaves none.
            if !coalesces {
                let all = facts.iter();
                let aborted: Vec<_> = all.filter(|it| it.verdict == Verdict::Aborted).collect();
                assert_eq!(aborted.len(), 1, "{told}");
                assert_eq!(aborted[0].sent, None, "{told}");
                let target = (protocol != "tcp").then_some("SECOND");
                assert_eq!(aborted[0].target.as_deref(), target, "{told}");
            }
            drop(first);
            stack.at_rest().await;
        }
    }
}

/// The call that runs goes on; the one behind it in the same connection never begins.
#[tokio::test]
async fn a_pipelined_call_whose_client_has_left_is_never_sent() {
    for together in [false, true] {
        let mut held = Held::start(HTTP_OK).await;
        let stack = Stack::start(&limits(&held, "http"));
        let mut client = connect(stack.addr).await;
        let (first, second) = (request("http", "FIRST"), request("http", "SECOND"));
        if together {
            let both = first + &second;
            client.write_all(both.as_bytes()).await.expect("it reads");
            held.next().await;
        } else {
            client.write_all(first.as_bytes()).await.expect("it reads");
            held.next().await;
            settle().await;
            client.write_all(second.as_bytes()).await.expect("it reads");
        }
        settle().await;
        drop(client);
        until(|| stack.connections.open() == 0, || "still open".to_owned()).await;
        held.go.notify_one();
        stack.at_rest().await;
        let facts = stack.seen.ended(1).await;
        assert_eq!(facts.len(), 1, "together: {together}");
        assert_eq!(facts[0].target.as_deref(), Some("FIRST"));
        assert!(held.got.try_recv().is_err(), "together: {together}");
    }
}

/// The client leaves while the first of its calls is answered.
#[tokio::test]
async fn a_call_that_is_read_from_a_client_that_has_left_is_never_sent() {
    let mut held = Held::start(HTTP_OK).await;
    let text = limits(&held, "http").replace("outstanding = 1", "outstanding = 2");
    let stack = Stack::start(&text);
    for number in 0..20 {
        let mut client = sending(stack.addr, request("http", "FIRST")).await;
        held.next().await;
        held.go.notify_one();
        client
            .write_all(request("http", "SECOND").as_bytes())
            .await
            .expect("it reads");
        client.shutdown().await.expect("it takes a half-close");
        until(|| stack.connections.open() == 0, || "still open".to_owned()).await;
        stack.at_rest().await;
        if let Ok(late) = held.got.try_recv() {
            panic!("{number}: {late}");
        }
    }
}

#[tokio::test]
async fn on_a_socket_file_too_a_client_that_leaves_behind_unread_bytes_is_noticed() {
    let mut held = Held::start(HTTP_OK).await;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("sidecar.sock");
    let text = limits(&held, "http").replace("127.0.0.1:0", &format!("unix:{}", path.display()));
    let stack = Stack::start(&text);
    let mut clients = Vec::new();
    for (number, userid) in ["FIRST", "SECOND"].iter().enumerate() {
        let mut client = UnixStream::connect(&path).await.expect("it listens");
        client
            .write_all(request("http", userid).as_bytes())
            .await
            .expect("it reads");
        stack.busy(1, number).await;
        clients.push(client);
    }
    held.next().await;
    let mut second = clients.pop().expect("there are two");
    second.write_all(b"\r\n").await.expect("it is open");
    settle().await;
    assert_eq!(stack.gate.busy(), (1, 1));
    drop(second);
    stack.busy(1, 0).await;
    held.go.notify_one();
    stack.at_rest().await;
}

/// A call runs, its client leaves; the slot stays taken until the backend has answered.
async fn one_leaves_while_it_runs(protocol: &'static str, leave: fn(TcpStream)) {
    let mut held = Held::start(if protocol == "socket" { OK } else { HTTP_OK }).await;
    let stack = Stack::start(&limits(&held, protocol));
    let first = sent(&stack, protocol, "FIRST").await;
    held.got.recv().await.expect("it runs");
    let mut second = sent(&stack, protocol, "SECOND").await;
    stack.busy(1, 1).await;
    leave(first);
    // There is no sign that the proxy has seen it leave, so give it every chance to be wrong.
    settle().await;
    assert_eq!(stack.gate.busy(), (1, 1), "{protocol}");
    held.go.notify_one();
    assert!(
        held.got
            .recv()
            .await
            .expect("now it is free")
            .contains("SECOND")
    );
    assert_eq!(held.done(), 1);
    held.go.notify_one();
    read_until(&mut second, "overallRC").await;
    drop(second);
    stack.at_rest().await;
    let facts = stack.seen.ended(2).await;
    assert_eq!(facts[0].target.as_deref(), Some("FIRST"), "{protocol}");
    assert!(facts[0].sent.is_some(), "{protocol}");
}

#[tokio::test]
async fn a_client_that_leaves_while_its_call_runs_frees_the_slot_only_when_the_backend_is_done() {
    for protocol in ["socket", "http"] {
        one_leaves_while_it_runs(protocol, reset).await;
    }
    // On HTTP a closed connection is one that has left, too; on the socket a half-close
    // only says that no more comes.
    one_leaves_while_it_runs("http", drop).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_its_request_is_whole_costs_nothing() {
    let held = Held::start(OK).await;
    let stack = Stack::start(&limits(&held, "auto"));
    for piece in [
        "",
        "[",
        r#"["guest_get_in"#,
        r#"["guest_get_info", ["X"], {}"#,
        "G",
        "GET /guests/X/info HTTP/1.1\r\n",
        "POST /guests/X/action HTTP/1.1\r\nHost: t\r\nContent-Length: 30\r\n\r\n{\"act",
    ] {
        for leave in [drop, reset] {
            let stream = sending(stack.addr, piece).await;
            leave(stream);
            let gone = || stack.connections.open() == 0;
            crate::support::until(gone, || format!("still open after {piece:?}")).await;
        }
    }
    assert_eq!(stack.gate.busy(), (0, 0));
    assert_eq!(held.done(), 0);
}

#[tokio::test]
async fn a_half_close_on_the_socket_is_answered_unless_it_would_have_to_wait() {
    let mut held = Held::start(OK).await;
    let stack = Stack::start(&limits(&held, "socket"));
    let mut first = sent(&stack, "socket", "FIRST").await;
    first.shutdown().await.expect("it takes a half-close");
    held.got.recv().await.expect("it need not wait, so it runs");
    // This one would have to wait.
    let mut second = sent(&stack, "socket", "SECOND").await;
    stack.busy(1, 1).await;
    second.shutdown().await.expect("it takes a half-close");
    stack.busy(1, 0).await;
    held.go.notify_one();
    assert!(read_until(&mut first, "}").await.contains("overallRC"));
    stack.at_rest().await;
}

#[tokio::test]
async fn a_half_close_waits_where_the_listener_says_so() {
    let mut held = Held::start(OK).await;
    let text = limits(&held, "socket").replace(
        "protocol = \"socket\"",
        "protocol = \"socket\"\ncancel_on_eof = false",
    );
    let stack = Stack::start(&text);
    let mut first = sent(&stack, "socket", "FIRST").await;
    held.got.recv().await.expect("it runs");
    let mut second = sent(&stack, "socket", "SECOND").await;
    second.shutdown().await.expect("it takes a half-close");
    stack.busy(1, 1).await;
    held.go.notify_one();
    read_until(&mut first, "}").await;
    held.got.recv().await.expect("the second kept its place");
    held.go.notify_one();
    assert!(read_until(&mut second, "}").await.contains("overallRC"));
    stack.at_rest().await;
}

/// A reset behind a half-close ends the call over both protocols, and a half-close alone waits.
#[tokio::test]
async fn a_reset_ends_the_call_also_where_a_half_close_does_not() {
    for protocol in ["socket", "http"] {
        let mut held = Held::start(if protocol == "socket" { OK } else { HTTP_OK }).await;
        let text = limits(&held, protocol).replace(
            &format!("protocol = \"{protocol}\""),
            &format!("protocol = \"{protocol}\"\ncancel_on_eof = false"),
        );
        let stack = Stack::start(&text);
        let mut first = sent(&stack, protocol, "FIRST").await;
        first.shutdown().await.expect("it takes a half-close");
        held.next().await;
        let mut second = sent(&stack, protocol, "SECOND").await;
        stack.busy(1, 1).await;
        second.write_all(b"\r\n").await.expect("it is open");
        second.shutdown().await.expect("it takes a half-close");
        settle().await;
        let mut third = sent(&stack, protocol, "THIRD").await;
        stack.busy(1, 2).await;
        third.shutdown().await.expect("it takes a half-close");
        settle().await;
        assert_eq!(stack.gate.busy(), (1, 2), "{protocol}");
        reset(second);
        stack.busy(1, 1).await;
        held.go.notify_one();
        assert!(
            read_until(&mut first, "}").await.contains("overallRC"),
            "{protocol}"
        );
        let next = held.next().await;
        assert!(next.contains("THIRD"), "{protocol}: {next}");
        held.go.notify_one();
        assert!(
            read_until(&mut third, "}").await.contains("overallRC"),
            "{protocol}"
        );
        stack.at_rest().await;
    }
}

/// The client sends part of a large body, which the backend reads as it comes, and stops.
async fn uploads_a_part(cancel_on_eof: bool) -> (Scripted, Stack, TcpStream) {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let backend = Scripted::start(move |_, mut stream| {
        let tell = tell.clone();
        async move {
            let mut part = [0; 4096];
            while stream.read(&mut part).await.unwrap_or(0) > 0 {
                tell.send(()).expect("the test listens");
            }
        }
    })
    .await;
    let listener = format!("cancel_on_eof = {cancel_on_eof}");
    let config = one_listener(backend.addr, &listener, "[client]\nbuffer_bytes = \"1KiB\"");
    let stack = Stack::start(&config);
    let mut client = connect(stack.addr).await;
    let part = "x".repeat(5000);
    let request = format!("PUT /files HTTP/1.1\r\nHost: t\r\nContent-Length: 10000\r\n\r\n{part}");
    client
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    told.recv().await.expect("the backend has part of it");
    settle().await;
    // Later reads are of no interest.
    tokio::spawn(async move { while told.recv().await.is_some() {} });
    (backend, stack, client)
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_its_upload_has_aborted_its_call() {
    for (leave, name) in [(drop as fn(TcpStream), "close"), (reset, "reset")] {
        let (_backend, stack, client) = uploads_a_part(true).await;
        leave(client);
        let facts = stack.seen.ended(1).await;
        assert_eq!(facts[0].verdict, Verdict::Aborted, "{name}");
        assert_eq!(facts[0].reason, None, "{name}");
        assert!(facts[0].admitted.is_some(), "{name}");
        assert_eq!(facts[0].status, None, "{name}");
        stack.at_rest().await;
    }
    // A client that may half-close is still there, and its request is not whole.
    let (_backend, stack, mut client) = uploads_a_part(false).await;
    client.shutdown().await.expect("it is open");
    let answer = crate::support::read_all(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    let facts = stack.seen.ended(1).await;
    assert_eq!(facts[0].verdict, Verdict::Refused);
    assert_eq!(facts[0].reason, Some(Reason::RequestSlow));
    stack.at_rest().await;
}

/// As curl does, which closes as soon as it has the last byte.
#[tokio::test]
async fn a_client_that_closes_with_the_last_byte_of_a_streamed_answer_was_served() {
    const BYTES: usize = 3 << 20;
    let backend = Scripted::start(|_, mut stream| async move {
        let mut request = [0; 4096];
        while stream.read(&mut request).await.unwrap_or(0) > 0 {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("it is read");
            for _ in 0..BYTES / 4096 {
                stream.write_all(&request).await.expect("it is read");
            }
        }
    });
    let backend = backend.await;
    let stack = Stack::start(&one_listener(backend.addr, "", ""));
    for call in 1..=10 {
        let mut stream = sent(&stack, "http", "X").await;
        let (mut left, mut head) = (BYTES, Vec::new());
        let mut chunk = vec![0; 64 * 1024];
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("an answer"));
        }
        while left > 0 {
            left -= stream.read(&mut chunk).await.expect("no reset");
        }
        drop(stream);
        let facts = stack.seen.ended(call).await;
        assert_eq!(facts[call - 1].verdict, Verdict::Passed, "call {call}");
        assert_eq!(facts[call - 1].bytes_out, BYTES as u64);
    }
    stack.at_rest().await;
}
