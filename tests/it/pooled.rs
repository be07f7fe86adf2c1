//! Connections kept between calls: after any act of the backend on an idle one, and after a
//! reload that moves the backend, the next call goes to the right place at once.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use tidegate::call::{
    self, BackendKind, BodyError, ByteStream, Destination, HttpCall, Message, Origin, Progress,
    RequestBody, Serve as _,
};
use tidegate::protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::time::{Instant, timeout, timeout_at};

use crate::support::{
    PATIENCE, Scripted, Stack, closed_port, identity, in_turn, pass, reset, until,
};

/// A call that meets limits, and one that meets none.
pub(crate) const LIMITED: &str = "GET /guests HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
const UNLIMITED: &str =
    "POST /token HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}";

/// How many connections a test has in the pool.
const POOLED: usize = 4;

fn text(http: SocketAddr, more: &str) -> String {
    in_turn(
        &format!("http = \"http://{http}\"\npool_idle_timeout = \"1h\"\n{more}"),
        "",
    )
}

/// How an idle connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Fin,
    HalfClose,
    Reset,
    UnexpectedData,
    UnexpectedDataAndFin,
}

impl Ending {
    async fn end(self, mut stream: TcpStream) {
        match self {
            Self::Fin => drop(stream),
            Self::HalfClose => {
                stream.shutdown().await.expect("it is open");
                // The other half stays open for as long as the peer wants it.
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await;
            }
            Self::Reset => reset(stream),
            Self::UnexpectedData | Self::UnexpectedDataAndFin => {
                let told = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n";
                // The peer may be gone already.
                let _ = stream.write_all(told).await;
                if self == Self::UnexpectedData {
                    let mut rest = Vec::new();
                    let _ = stream.read_to_end(&mut rest).await;
                }
            }
        }
    }
}

/// A backend that can close its first connections after they were idle for some time. `ended`
/// counts them.
struct Ends {
    backend: Scripted,
    ended: Arc<AtomicUsize>,
}

impl Ends {
    async fn start(ending: Ending, after: Duration, which: impl Fn(usize) -> bool) -> Self {
        let ended = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ended);
        let together = Arc::new(Barrier::new(POOLED));
        let ends: Vec<bool> = (0..POOLED).map(which).collect();
        let backend = Scripted::start(move |number, mut stream| {
            let together = Arc::clone(&together);
            let ends = ends.get(number).copied();
            let count = Arc::clone(&count);
            async move {
                let mut request = [0; 4096];
                if stream.read(&mut request).await.unwrap_or(0) == 0 {
                    return;
                }
                if ends.is_some() {
                    // All at once, so that each needs its own connection.
                    together.wait().await;
                }
                stream.write_all(ANSWER).await.expect("it is read");
                let mut until = Instant::now() + after;
                if ends != Some(true) {
                    until += 10 * PATIENCE;
                }
                loop {
                    match timeout_at(until, stream.read(&mut request)).await {
                        Err(_) => break,
                        Ok(Ok(1..)) => stream.write_all(ANSWER).await.expect("it is read"),
                        Ok(_) => return,
                    }
                }
                let ending = tokio::spawn(ending.end(stream));
                tokio::task::yield_now().await;
                count.fetch_add(1, Ordering::SeqCst);
                // How it went is no matter.
                let _ = ending.await;
            }
        })
        .await;
        Self { backend, ended }
    }
}

/// Calls in both lanes at once; what each was answered, or that it hung.
async fn calls_at_once(stack: &Stack) -> Vec<String> {
    let calls = (0..POOLED).map(|number| {
        let request = if number % 2 == 0 { LIMITED } else { UNLIMITED };
        async move {
            match timeout(Duration::from_secs(8), stack.ask(request)).await {
                Ok(answer) => answer.lines().next().unwrap_or_default().to_owned(),
                Err(_) => "hung".to_owned(),
            }
        }
    });
    futures(calls).await
}

/// Waits for all of them.
async fn futures<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|cx| {
        let mut pending = false;
        for (one, done) in &mut all {
            if done.is_none() {
                match one.as_mut().poll(cx) {
                    std::task::Poll::Ready(value) => *done = Some(value),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            std::task::Poll::Pending
        } else {
            std::task::Poll::Ready(())
        }
    })
    .await;
    all.into_iter().filter_map(|(_, done)| done).collect()
}

const MS: Duration = Duration::from_millis(1);

#[tokio::test]
async fn after_any_end_of_idle_connections_the_next_calls_use_new_ones() {
    let mut cases = Vec::new();
    for ending in [
        Ending::Fin,
        Ending::HalfClose,
        Ending::Reset,
        Ending::UnexpectedData,
        Ending::UnexpectedDataAndFin,
    ] {
        for after in [0, 10, 50, 300] {
            for pause in [0, 5, 60, 400, 4000] {
                cases.push((ending, after * MS, pause * MS));
            }
        }
    }
    let outcomes = futures(cases.iter().map(|&(ending, after, pause)| async move {
        let ends = Ends::start(ending, after, |_| true).await;
        let stack = Stack::start(&text(ends.backend.addr, ""));
        let first = calls_at_once(&stack).await;
        assert_eq!(first, ["HTTP/1.1 200 OK"; POOLED]);
        tokio::time::sleep(pause).await;
        if pause > after {
            let ended = || ends.ended.load(Ordering::SeqCst);
            until(|| ended() == POOLED, || format!("{} ended", ended())).await;
        }
        let all_ended = ends.ended.load(Ordering::SeqCst) == POOLED;
        let then = calls_at_once(&stack).await;
        // Nothing hangs, and every slot comes back.
        stack.at_rest().await;
        (all_ended, then)
    }))
    .await;
    let mut wrong = Vec::new();
    let mut clear = 0;
    for (case, (all_ended, answers)) in cases.iter().zip(outcomes) {
        clear += usize::from(all_ended);
        for answer in answers {
            // A call that was written while its connection was being closed may have run, and
            // what the backend said meanwhile looks like its answer.
            let crossed = answer.starts_with("HTTP/1.1 502") || answer.starts_with("HTTP/1.1 408");
            if answer != "HTTP/1.1 200 OK" && (all_ended || !crossed) {
                wrong.push(format!("{case:?}: {answer}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
    assert!(clear >= 60, "only {clear} cases are beyond doubt");
}

#[tokio::test]
async fn dead_connections_at_any_position_of_the_pool_cost_no_call() {
    let masks = 0..1 << POOLED;
    futures(masks.map(|mask| async move {
        let ends = Ends::start(Ending::Fin, 5 * MS, |number| mask >> number & 1 == 1).await;
        let stack = Stack::start(&text(ends.backend.addr, ""));
        assert_eq!(calls_at_once(&stack).await, ["HTTP/1.1 200 OK"; POOLED]);
        let all = usize::try_from(u32::count_ones(mask)).expect("a few");
        until(
            || ends.ended.load(Ordering::SeqCst) == all,
            || format!("{mask:b}: not all have ended"),
        )
        .await;
        // One by one, which finds the live ones; then all at once.
        for _ in 0..POOLED {
            let answer = timeout(PATIENCE, stack.ask(LIMITED))
                .await
                .expect("no hang");
            assert!(answer.starts_with("HTTP/1.1 200"), "{mask:b}: {answer}");
        }
        let then = calls_at_once(&stack).await;
        assert_eq!(then, ["HTTP/1.1 200 OK"; POOLED], "{mask:b}");
        stack.at_rest().await;
    }))
    .await;
}

#[tokio::test]
async fn a_backend_that_has_gone_with_its_idle_connections_makes_calls_wait_and_not_hang() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let stack = Arc::new(Stack::start(&text(addr, "")));
    let first = tokio::spawn({
        let stack = Arc::clone(&stack);
        async move { stack.ask(LIMITED).await }
    });
    let (mut stream, _) = listener.accept().await.expect("it connects");
    let mut request = [0; 4096];
    let read = stream.read(&mut request).await.expect("it is sent");
    assert!(read > 0, "the request");
    stream.write_all(ANSWER).await.expect("it is read");
    assert!(first.await.expect("no panic").starts_with("HTTP/1.1 200"));
    drop((stream, listener));
    let second = tokio::spawn({
        let stack = Arc::clone(&stack);
        async move { stack.ask(LIMITED).await }
    });
    // Not a byte was written, so it is back in the queue, and runs when the backend is back.
    stack.busy(0, 1).await;
    let listener = TcpListener::bind(addr).await.expect("the port is free");
    let (mut stream, _) = listener.accept().await.expect("it connects");
    let read = stream.read(&mut request).await.expect("it is sent");
    assert!(read > 0, "the request");
    stream.write_all(ANSWER).await.expect("it is read");
    let answer = timeout(PATIENCE, second).await.expect("no hang");
    assert!(answer.expect("no panic").starts_with("HTTP/1.1 200"));
    stack.at_rest().await;
}

/// A backend that has answered one call, whose connection is in the pool.
async fn pooled(stack: &Arc<Stack>, listener: &TcpListener) -> TcpStream {
    let call = tokio::spawn({
        let stack = Arc::clone(stack);
        async move { stack.ask(LIMITED).await }
    });
    let mut stream = answers(listener).await;
    assert!(call.await.expect("no panic").starts_with("HTTP/1.1 200"));
    stack.at_rest().await;
    // The next byte is of another call.
    assert!(stream.try_read(&mut [0]).is_err());
    stream.flush().await.expect("it is open");
    stream
}

/// Takes a connection, reads a request and answers.
async fn answers(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().await.expect("it connects");
    let mut request = vec![0; 1 << 16];
    let read = stream.read(&mut request).await.expect("it is sent");
    assert!(read > 0, "the request");
    stream.write_all(ANSWER).await.expect("it is read");
    stream
}

/// The answer to a call that goes around the client's connection, as its status and text.
async fn served(stack: &Stack, method: &str, path: &str, body: RequestBody) -> (u16, String) {
    let request = http::Request::builder().method(method).uri(path);
    let request = request.header("host", "t").header("x-tag", "a b");
    let (head, ()) = request.body(()).expect("a request").into_parts();
    let request = call::Request {
        origin: Origin {
            identity: identity("test", ([127, 0, 0, 1], 1)),
            arrived: stack.clock.now(),
        },
        message: Message::Http(Box::new(HttpCall::new(Arc::new(head.into()), body))),
    };
    let progress = Progress::default();
    let reply = stack.pipeline.serve(request, &progress).await;
    let (head, body) = protocol::answer(reply, BackendKind::Http);
    let body = body.collect().await.expect("it is whole").to_bytes();
    (
        head.status.as_u16(),
        String::from_utf8_lossy(&body).into_owned(),
    )
}

/// The rest of a body, which resets a backend's connection when it is asked for: by then the
/// connection has been looked at, and nothing has been written.
struct Resets(Option<TcpStream>);

impl http_body::Body for Resets {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BodyError>>> {
        Poll::Ready(self.0.take().map(|stream| {
            reset(stream);
            Ok(http_body::Frame::data(Bytes::from_static(b"rest")))
        }))
    }
}

#[tokio::test]
async fn a_connection_reset_between_check_and_write_costs_no_call() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let stack = Arc::new(Stack::start(&text(addr, "")));
    // The first part of the body is taken before the head is written.
    let stream = pooled(&stack, &listener).await;
    let body = RequestBody::Streamed {
        read: Bytes::new(),
        rest: ByteStream::new(Resets(Some(stream))),
    };
    let (answer, request) = tokio::join!(served(&stack, "PUT", "/guests", body), async {
        let (mut stream, _) = timeout(PATIENCE, listener.accept())
            .await
            .expect("a new connection")
            .expect("it connects");
        let mut request = Vec::new();
        while !request.ends_with(b"0\r\n\r\n") {
            assert!(stream.read_buf(&mut request).await.expect("it is sent") > 0);
        }
        stream.write_all(ANSWER).await.expect("it is read");
        drop(stream);
        String::from_utf8(request).expect("text")
    });
    assert_eq!(answer.0, 200, "{}", answer.1);
    assert!(request.starts_with("PUT /guests HTTP/1.1\r\n"), "{request}");
    assert_eq!(request.matches("rest").count(), 1, "{request}");
    stack.at_rest().await;
    // A connection that was used a moment ago is not looked at: this meets the write.
    for number in 0..20 {
        let stream = pooled(&stack, &listener).await;
        reset(stream);
        let body = RequestBody::Whole(Bytes::from_static(b"{}"));
        let (answer, stream) =
            tokio::join!(served(&stack, "POST", "/guests", body), answers(&listener),);
        assert_eq!(answer.0, 200, "{number}: {}", answer.1);
        reset(stream);
        stack.at_rest().await;
    }
}

#[tokio::test]
async fn a_call_whose_backend_stops_between_check_and_write_waits_for_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let stack = Arc::new(Stack::start(&text(addr, "")));
    let mut listener = Some(listener);
    for number in 0..10 {
        let stream = pooled(&stack, listener.as_ref().expect("it is there")).await;
        reset(stream);
        drop(listener.take());
        let body = RequestBody::Whole(Bytes::from_static(b"{\"name\": 1}"));
        let comes_back = async {
            // It waits, with nothing drawn.
            stack.busy(0, 1).await;
            let back = TcpListener::bind(addr).await.expect("the port is free");
            let (mut stream, _) = back.accept().await.expect("it connects");
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                assert!(stream.read_buf(&mut request).await.expect("it is sent") > 0);
            }
            stream.write_all(ANSWER).await.expect("it is read");
            reset(stream);
            listener = Some(back);
            request
        };
        let (answer, request) = timeout(PATIENCE, async {
            tokio::join!(served(&stack, "POST", "/guests?a=b", body), comes_back)
        })
        .await
        .expect("no hang");
        assert_eq!(answer.0, 200, "{number}: {}", answer.1);
        let request = String::from_utf8_lossy(&request);
        assert!(
            request.starts_with("POST /guests?a=b HTTP/1.1\r\n"),
            "{request}"
        );
        assert!(request.contains("host: t\r\n"), "{request}");
        assert!(request.contains("x-tag: a b\r\n"), "{request}");
        assert!(request.contains("content-length: 11\r\n"), "{request}");
        assert!(request.ends_with("\r\n\r\n{\"name\": 1}"), "{request}");
        stack.at_rest().await;
    }
}

#[tokio::test]
async fn a_call_of_which_a_part_was_written_is_never_sent_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let stack = Arc::new(Stack::start(&text(addr, "")));
    let mut stream = pooled(&stack, &listener).await;
    // More than the kernel takes at once.
    let body = RequestBody::Whole(Bytes::from(vec![b'x'; 32 << 20]));
    let (answer, ()) = tokio::join!(served(&stack, "PUT", "/guests", body), async {
        let mut begins = [0; 1000];
        stream.read_exact(&mut begins).await.expect("it is sent");
        reset(stream);
    });
    assert_eq!(answer.0, 502, "{}", answer.1);
    assert!(answer.1.contains("backend_closed"), "{}", answer.1);
    let again = timeout(Duration::from_millis(100), listener.accept()).await;
    assert!(again.is_err(), "it connects again");
    stack.at_rest().await;
}

/// A backend that takes no connection: its backlog is full.
pub(crate) struct Deaf {
    pub(crate) addr: SocketAddr,
    _listener: std::net::TcpListener,
    _filling: Vec<std::net::TcpStream>,
}

impl Deaf {
    pub(crate) async fn start() -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.expect("a socket");
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        socket.bind(&any.into()).expect("a free port");
        socket.listen(0).expect("it is bound");
        let listener: std::net::TcpListener = socket.into();
        let addr = listener.local_addr().expect("it is bound");
        let mut filling = Vec::new();
        // One more than the backlog holds: from then on the kernel drops what comes.
        while let Ok(stream) = std::net::TcpStream::connect_timeout(&addr, 100 * MS) {
            filling.push(stream);
        }
        Self {
            addr,
            _listener: listener,
            _filling: filling,
        }
    }
}

/// A backend that answers with its own name, after a while.
async fn named(name: &'static str) -> Scripted {
    Scripted::start(move |_, mut stream| async move {
        let mut request = [0; 4096];
        while stream.read(&mut request).await.unwrap_or(0) > 0 {
            tokio::time::sleep(20 * MS).await;
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}",
                name.len()
            );
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await
}

#[tokio::test]
async fn after_a_reload_that_moves_the_backend_no_call_goes_to_the_old_one() {
    let (old, new) = (named("old").await, named("new").await);
    let stack = Arc::new(Stack::start(&text(old.addr, "")));
    let has_moved = Arc::new(AtomicBool::new(false));
    let after = Arc::new(AtomicUsize::new(0));
    // Eight clients without a pause keep it busy all the time.
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let stack = Arc::clone(&stack);
            let (has_moved, after) = (Arc::clone(&has_moved), Arc::clone(&after));
            tokio::spawn(async move {
                while after.load(Ordering::SeqCst) < 200 {
                    let began_after = has_moved.load(Ordering::SeqCst);
                    let answer = stack.ask(LIMITED).await;
                    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                    if began_after {
                        after.fetch_add(1, Ordering::SeqCst);
                        assert!(answer.ends_with("new"), "{answer}");
                    }
                }
            })
        })
        .collect();
    stack.seen.ended(40).await;
    // In the middle of eight calls, whose connections come back after the reload.
    stack.busy(8, 0).await;
    stack.move_backends(&text(new.addr, ""));
    has_moved.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.expect("no panic");
    }
    stack.at_rest().await;
}

#[tokio::test]
async fn a_reload_that_moves_a_backend_that_was_down_opens_the_gate_at_once() {
    let stack = Arc::new(Stack::start(&text(closed_port(), "")));
    let call = tokio::spawn({
        let stack = Arc::clone(&stack);
        async move { stack.ask(LIMITED).await }
    });
    until(|| !stack.gate.is_up(Destination::Http), || "up".to_owned()).await;
    // Two probes have failed, so the next is a while away.
    for _ in 0..7 {
        pass(50 * MS).await;
    }
    let new = named("new").await;
    stack.move_backends(&text(new.addr, ""));
    assert!(stack.gate.is_up(Destination::Http));
    let answer = timeout(PATIENCE, call).await.expect("no hang");
    assert!(answer.expect("no panic").ends_with("new"));
    stack.at_rest().await;
}

#[tokio::test]
async fn a_call_whose_old_backend_fails_after_a_reload_closes_no_gate_and_goes_to_the_new_one() {
    // Takes no connection, and does not say so either.
    let old = Deaf::start().await;
    let slow = "connect_timeout = \"700ms\"";
    let stack = Arc::new(Stack::start(&text(old.addr, slow)));
    let call = tokio::spawn({
        let stack = Arc::clone(&stack);
        async move { stack.ask(LIMITED).await }
    });
    stack.busy(1, 0).await;
    let new = named("new").await;
    stack.move_backends(&text(new.addr, slow));
    while !call.is_finished() {
        assert!(stack.gate.is_up(Destination::Http));
        tokio::time::sleep(MS).await;
    }
    assert!(call.await.expect("no panic").ends_with("new"));
    stack.at_rest().await;
}

#[tokio::test]
async fn a_replaced_backend_keeps_no_connection_and_an_unchanged_one_keeps_all() {
    let open = Arc::new(AtomicUsize::new(0));
    let ever = Arc::new(AtomicUsize::new(0));
    let (count, all) = (Arc::clone(&open), Arc::clone(&ever));
    let together = Arc::new(Barrier::new(POOLED));
    let backend = Scripted::start(move |_, mut stream| {
        let (count, all) = (Arc::clone(&count), Arc::clone(&all));
        let together = Arc::clone(&together);
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            all.fetch_add(1, Ordering::SeqCst);
            let mut request = [0; 4096];
            while stream.read(&mut request).await.unwrap_or(0) > 0 {
                together.wait().await;
                stream.write_all(ANSWER).await.expect("it is read");
            }
            count.fetch_sub(1, Ordering::SeqCst);
        }
    })
    .await;
    let stack = Stack::start(&text(backend.addr, ""));
    assert_eq!(calls_at_once(&stack).await, ["HTTP/1.1 200 OK"; POOLED]);
    // The same again, and the same with another bound: both keep the pool.
    stack.move_backends(&text(backend.addr, ""));
    stack.move_backends(&text(backend.addr, "response_timeout = \"10m\""));
    assert_eq!(calls_at_once(&stack).await, ["HTTP/1.1 200 OK"; POOLED]);
    assert_eq!(ever.load(Ordering::SeqCst), POOLED);
    let new = named("new").await;
    stack.move_backends(&text(new.addr, ""));
    let left = || open.load(Ordering::SeqCst);
    until(|| left() == 0, || format!("{} open", left())).await;
}
