//! Connections to a backend: names, addresses, socket files, and failures that are our own and
//! not the backend's.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::call::{Destination, Reason};
use tidegate::forward::Resolve;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::time::{Instant, timeout};

use crate::pooled::{Deaf, LIMITED};
use crate::support::{OK, PATIENCE, Scripted, Stack, array, in_turn, json, until};

const MS: Duration = Duration::from_millis(1);

fn text(more: &str) -> String {
    in_turn(more, "")
}

fn by_name(more: &str) -> String {
    text(&format!("http = \"http://sdk.example\"\n{more}"))
}

/// Answers lookups after a while; the first ones fail for want of a descriptor.
struct Names {
    after: Duration,
    failures: usize,
    addresses: Vec<SocketAddr>,
    asked: AtomicUsize,
}

impl Names {
    fn new(after: Duration, failures: usize, addresses: &[SocketAddr]) -> Arc<Self> {
        Arc::new(Self {
            after,
            failures,
            addresses: addresses.to_vec(),
            asked: AtomicUsize::new(0),
        })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Resolve for Names {
    fn resolve(
        &self,
        name: &str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> {
        assert_eq!((name, port), ("sdk.example", 80));
        let fails = self.asked.fetch_add(1, Ordering::SeqCst) < self.failures;
        let (after, addresses) = (self.after, self.addresses.clone());
        Box::pin(async move {
            tokio::time::sleep(after).await;
            if fails {
                return Err(io::Error::from_raw_os_error(24)); // EMFILE
            }
            Ok(addresses)
        })
    }
}

async fn answers(stack: &Stack, request: &str) {
    let answer = timeout(PATIENCE, stack.ask(request))
        .await
        .expect("no hang");
    assert!(answer.contains("\"overallRC\": 0"), "{answer}");
}

#[tokio::test]
async fn a_lookup_that_takes_nearly_connect_timeout_or_longer_still_leads_to_a_connection() {
    let backend = Scripted::in_both_dialects().await;
    for (after, asked) in [(800 * MS, 1), (1500 * MS, 1)] {
        let names = Names::new(after, 0, &[backend.addr]);
        let config = by_name("connect_timeout = \"1s\"");
        let stack = Stack::resolving(&config, Arc::clone(&names) as Arc<dyn Resolve>);
        answers(&stack, LIMITED).await;
        assert_eq!(names.asked(), asked, "{after:?}");
        stack.at_rest().await;
    }
}

#[tokio::test]
async fn lookups_of_calls_that_connect_together_are_one_lookup() {
    let backend = Scripted::in_both_dialects().await;
    let names = Names::new(300 * MS, 0, &[backend.addr]);
    let stack = Arc::new(Stack::resolving(
        &by_name(""),
        Arc::clone(&names) as Arc<dyn Resolve>,
    ));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let stack = Arc::clone(&stack);
        calls.spawn(async move { answers(&stack, LIMITED).await });
    }
    calls.join_all().await;
    assert_eq!(names.asked(), 1);
}

#[tokio::test]
async fn a_first_address_that_swallows_packets_does_not_hide_the_second() {
    let deaf = Deaf::start().await;
    let backend = Scripted::in_both_dialects().await;
    let names = Names::new(Duration::ZERO, 0, &[deaf.addr, deaf.addr, backend.addr]);
    let stack = Stack::resolving(&by_name("connect_timeout = \"5m\""), names);
    answers(&stack, LIMITED).await;
    assert!(stack.gate.is_up(Destination::Http));
}

#[tokio::test]
async fn a_lack_of_descriptors_at_a_connect_closes_no_gate_and_the_call_tries_again_now_and_then() {
    let backend = Scripted::in_both_dialects().await;
    let names = Names::new(Duration::ZERO, 8, &[backend.addr]);
    let stack = Arc::new(Stack::resolving(
        &by_name(""),
        Arc::clone(&names) as Arc<dyn Resolve>,
    ));
    let began = Instant::now();
    let call = tokio::spawn({
        let stack = Arc::clone(&stack);
        async move { answers(&stack, LIMITED).await }
    });
    while !call.is_finished() {
        assert!(stack.gate.is_up(Destination::Http));
        tokio::time::sleep(MS).await;
    }
    call.await.expect("it is answered");
    assert_eq!(names.asked(), 9);
    // 5, 10, 20, 40 and four times 80 ms: no busy loop.
    assert!(began.elapsed() >= 390 * MS, "{:?}", began.elapsed());
    stack.at_rest().await;
}

#[tokio::test]
async fn a_connect_that_fails_during_the_refusals_of_a_drain_gives_draining() {
    let deaf = Deaf::start().await;
    let addr = deaf.addr;
    let config = text(&format!("socket = \"{addr}\"\nconnect_timeout = \"500ms\""));
    let stack = Arc::new(Stack::start(&config));
    let call = tokio::spawn({
        let stack = Arc::clone(&stack);
        async move { stack.ask(array("guest_get_info", "X")).await }
    });
    stack.busy(1, 0).await;
    stack.gate.refuse_all();
    let answer = timeout(PATIENCE, call).await.expect("no hang");
    let answer = json(&answer.expect("no panic"));
    assert_eq!(answer["rs"], Reason::Draining.rs(), "{answer}");
    let facts = stack.seen.ended(1).await;
    assert_eq!(facts[0].sent, None);
    stack.at_rest().await;
}

/// Whether the kernel asks the peer at this port from time to time if it is still there.
fn is_watched(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let remote = format!(":{port:04X}");
    table.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        // 02 is a timer of keep-alives.
        words.get(2).is_some_and(|it| it.ends_with(&remote)) && words[5].starts_with("02:")
    })
}

#[tokio::test]
async fn a_backend_that_dies_in_silence_during_a_call_is_found_out_by_the_kernel() {
    for request in [LIMITED.to_owned(), array("guest_get_info", "X")] {
        let backend = Scripted::start(|_, mut stream| async move {
            let mut request = [0; 4096];
            while stream.read(&mut request).await.unwrap_or(0) > 0 {}
        })
        .await;
        let addr = backend.addr;
        let config = text(&format!("socket = \"{addr}\"\nhttp = \"http://{addr}\""));
        let stack = Arc::new(Stack::start(&config));
        let asked = request.clone();
        let call = tokio::spawn({
            let stack = Arc::clone(&stack);
            async move { stack.ask(asked).await }
        });
        let watched = || is_watched(addr.port());
        until(watched, || format!("no keep-alive: {request}")).await;
        call.abort();
    }
}

#[tokio::test]
async fn a_backend_may_listen_on_a_socket_file() {
    let dir = tempfile::tempdir().expect("a place");
    let path = dir.path().join("sdk.sock");
    let listener = UnixListener::bind(&path).expect("a free path");
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("it listens");
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.unwrap_or(0) > 0 {
                    if request.starts_with(b"[") {
                        return stream.write_all(OK).await.expect("it is read");
                    }
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", OK.len());
                    let answer = [head.as_bytes(), OK].concat();
                    stream.write_all(&answer).await.expect("it is read");
                }
            });
        }
    });
    let path = path.display();
    let stack = Stack::start(&text(&format!(
        "socket = \"unix:{path}\"\nhttp = \"unix:{path}\""
    )));
    for _ in 0..3 {
        answers(&stack, LIMITED).await;
        answers(&stack, &array("guest_get_info", "X")).await;
    }
    stack.at_rest().await;
}
