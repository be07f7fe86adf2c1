//! A client leaves while its call is at the backend: `backend.on_client_left` decides whether the
//! backend's connection is closed at once or read to its end, and when the slot comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::raw_http::{
    Acceptor, Peer, SOON, access_lines, get, limited, load, ok, reach_load, service,
};
use crate::sidecar::Sidecar;
use crate::support::Scripted;

const SECOND: Duration = Duration::from_secs(1);
const CLIENTS: usize = 10;
const TEN: &str = "outstanding = 10\nmax_wait = \"20s\"";

const EVENT: &str = "9\r\ndata: 1\n\n\r\n";
const EVENTS: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
    Transfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n";
const DOWNLOAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 419430400\r\n\r\n";

/// Ten clients and the backend's end of their calls; each client has read what there is to read.
async fn ten_calls(sidecar: &Sidecar, backend: &Acceptor, reply: &str) -> Vec<(Peer, Peer)> {
    let addr = sidecar.listener("test").await;
    let mut calls = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Peer::sending(addr, get("/reply", "")).await;
        let (mut backend, _) = backend.call().await;
        backend.send(reply).await;
        if !reply.is_empty() {
            let head = client.head().await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            client.read_ahead(EVENT.len()).await;
        }
        calls.push((client, backend));
    }
    calls
}

/// All ten leave, and within a second the backend's connections and the slots are free.
async fn check_ten_leave(reply: &str) {
    let backend = Acceptor::start().await;
    let sidecar = Sidecar::start(&limited(TEN, backend.addr, "", "")).await;
    let calls = ten_calls(&sidecar, &backend, reply).await;
    assert_eq!(load(&sidecar).await, (10, 0));
    let (clients, backends): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
    drop(clients);
    let mut ending = JoinSet::new();
    for mut backend in backends {
        ending.spawn(async move { backend.ends_within_a_second().await });
    }
    ending.join_all().await;
    reach_load(&sidecar, (0, 0), SECOND).await;
    let addr = sidecar.listener("test").await;
    let mut next = Peer::sending(addr, get("/next", "")).await;
    let (mut backend, head) = backend.call().await;
    assert!(head.starts_with("GET /next "), "{head}");
    backend.send(ok("next")).await;
    next.reply().await.is(200, "next");
    for line in &access_lines(&sidecar, CLIENTS).await {
        assert_eq!(line["verdict"], "aborted", "{line}");
        assert_eq!(line["reason"], "client_left", "{line}");
    }
}

#[tokio::test]
async fn ten_closed_event_streams_free_their_slots_within_a_second() {
    check_ten_leave(EVENTS).await;
}

#[tokio::test]
async fn ten_closed_long_polls_free_their_slots_within_a_second() {
    check_ten_leave("").await;
}

#[tokio::test]
async fn ten_abandoned_downloads_are_not_read_to_their_end() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let backend = Scripted::start(move |_, stream| {
        let sent = Arc::clone(&count);
        async move {
            let mut backend = Peer::new(stream);
            while let Some(head) = backend.next_head().await {
                if head.starts_with("GET /next ") {
                    backend.send(ok("next")).await;
                    continue;
                }
                backend.send(DOWNLOAD).await;
                let part = vec![b'x'; 64 << 10];
                while backend.stream.write_all(&part).await.is_ok() {
                    sent.fetch_add(part.len(), Ordering::Relaxed);
                }
            }
        }
    })
    .await;
    let sidecar = Sidecar::start(&limited(TEN, backend.addr, "", "")).await;
    let addr = sidecar.listener("test").await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Peer::sending(addr, get("/reply", "")).await;
        client.read_ahead(1 << 20).await;
        clients.push(client);
    }
    drop(clients);
    reach_load(&sidecar, (0, 0), SECOND).await;
    Peer::ask(addr, get("/next", "")).await.is(200, "next");
    let sent = sent.load(Ordering::Relaxed);
    assert!(
        sent < 400 << 20,
        "{sent} bytes of ten times 400 MB were read"
    );
    for line in &access_lines(&sidecar, CLIENTS).await {
        assert_eq!(line["verdict"], "aborted", "{line}");
    }
}

/// The fate of a call whose client has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Closed,
    Finished,
}

/// A client leaves before the first byte of its reply.
async fn check_one_leaves(backend: &str, sections: &str, path: &str, outcome: Outcome) {
    let about = format!("{backend} {sections} {path}");
    let acceptor = Acceptor::start().await;
    let config = limited("outstanding = 1", acceptor.addr, backend, sections);
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    let client = Peer::sending(addr, get(path, "")).await;
    let (mut running, _) = acceptor.call().await;
    let mut next = Peer::sending(addr, get("/next", "")).await;
    reach_load(&sidecar, (1, 1), SOON).await;
    drop(client);
    let mut backend = match outcome {
        Outcome::Closed => {
            running.ends_within_a_second().await;
            acceptor.call().await.0
        }
        Outcome::Finished => {
            assert!(running.is_silent().await, "{about}");
            assert_eq!(load(&sidecar).await, (1, 1), "{about}");
            assert!(acceptor.is_silent().await, "{about}");
            running.send(ok("read to its end")).await;
            // On the connection that is free now, or on a new one.
            tokio::select! {
                Some(_) = running.next_head() => running,
                (backend, _) = acceptor.call() => backend,
            }
        }
    };
    backend.send(ok("next")).await;
    next.reply().await.is(200, "next");
    let lines = access_lines(&sidecar, 2).await;
    assert_eq!(lines[0]["verdict"], "aborted", "{about}: {}", lines[0]);
}

#[tokio::test]
async fn a_call_to_an_http_service_is_closed_by_default() {
    check_one_leaves("kind = \"http\"", "", "/poll", Outcome::Closed).await;
}

#[tokio::test]
async fn a_call_to_an_sdkserver_is_finished_by_default() {
    check_one_leaves("kind = \"zvm\"", "", "/guests", Outcome::Finished).await;
}

#[tokio::test]
async fn the_option_of_the_backend_decides() {
    let closes = "on_client_left = \"close\"";
    let finishes = "on_client_left = \"finish\"";
    for (kind, option, outcome) in [
        ("http", closes, Outcome::Closed),
        ("http", finishes, Outcome::Finished),
        ("zvm", closes, Outcome::Closed),
        ("zvm", finishes, Outcome::Finished),
    ] {
        let lines = format!("kind = \"{kind}\"\n{option}");
        check_one_leaves(&lines, "", "/guests", outcome).await;
    }
}

#[tokio::test]
async fn the_option_of_a_route_goes_before_that_of_the_backend() {
    let route = |method: &str, path: &str, option: &str| {
        format!(
            "[[route]]\nmethod = \"{method}\"\npath = \"{path}\"\nfunction = \"mine\"\n\
             on_client_left = \"{option}\""
        )
    };
    let finishes = route("GET", "/report", "finish");
    check_one_leaves("", &finishes, "/report", Outcome::Finished).await;
    check_one_leaves("", &finishes, "/other", Outcome::Closed).await;
    let closes = route("GET", "/events", "close");
    let zvm = "kind = \"zvm\"";
    check_one_leaves(zvm, &closes, "/events", Outcome::Closed).await;
    check_one_leaves(zvm, &closes, "/guests", Outcome::Finished).await;
}

#[tokio::test]
async fn with_finish_an_abandoned_stream_is_read_to_its_end() {
    let backend = Acceptor::start().await;
    let config = limited(TEN, backend.addr, "on_client_left = \"finish\"", "");
    let sidecar = Sidecar::start(&config).await;
    let calls = ten_calls(&sidecar, &backend, EVENTS).await;
    let (clients, backends): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
    drop(clients);
    let part = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for (ended, mut backend) in (1..).zip(backends) {
        assert_eq!(load(&sidecar).await, (11 - ended, 0));
        // More than any buffer between holds.
        for _ in 0..128 {
            backend.send(&part).await;
        }
        backend.send("0\r\n\r\n").await;
        reach_load(&sidecar, (10 - ended, 0), SOON).await;
    }
    for line in &access_lines(&sidecar, CLIENTS).await {
        assert_eq!(line["verdict"], "aborted", "{line}");
    }
}

#[tokio::test]
async fn a_thousand_abandoned_streams_hold_no_slot() {
    const AT_ONCE: usize = 50;
    let backend = Scripted::start(|_, stream| async move {
        let mut backend = Peer::new(stream);
        if backend.next_head().await.is_some() {
            // The other end may have closed.
            let _ = backend.stream.write_all(EVENTS.as_bytes()).await;
            let _ = backend.stream.read_u8().await;
        }
    })
    .await;
    let limits = format!("outstanding = {AT_ONCE}\nmax_wait = \"20s\"");
    let sidecar = Sidecar::start(&limited(&limits, backend.addr, "", "")).await;
    let addr = sidecar.listener("test").await;
    let mut clients = JoinSet::new();
    for _ in 0..AT_ONCE {
        clients.spawn(async move {
            for _ in 0..1_000 / AT_ONCE {
                let mut client = Peer::sending(addr, get("/events", "")).await;
                let head = client.head().await;
                assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            }
        });
    }
    clients.join_all().await;
    reach_load(&sidecar, (0, 0), SECOND).await;
}

/// A route whose identical reads share a call.
const SHARED: &str = "[coalesce]\nfunctions = [\"report\"]\n\
    [[route]]\nmethod = \"GET\"\npath = \"/report\"\nfunction = \"report\"";

#[tokio::test]
async fn a_shared_call_is_closed_only_when_its_last_client_has_left() {
    let backend = Acceptor::start().await;
    let sidecar = Sidecar::start(&service(backend.addr, "", SHARED)).await;
    let addr = sidecar.listener("test").await;
    let first = Peer::sending(addr, get("/report", "")).await;
    let (mut running, _) = backend.call().await;
    let second = Peer::sending(addr, get("/report", "")).await;
    // It shares the call, so it reaches no backend. Its turn comes before that of a later call.
    assert!(backend.is_silent().await);
    drop(first);
    let lines = access_lines(&sidecar, 1).await;
    assert_eq!(lines[0]["verdict"], "aborted", "{}", lines[0]);
    assert!(running.is_silent().await);
    assert_eq!(load(&sidecar).await.0, 1);
    drop(second);
    running.ends_within_a_second().await;
    reach_load(&sidecar, (0, 0), SECOND).await;
    let lines = access_lines(&sidecar, 2).await;
    assert_eq!(lines[1]["verdict"], "aborted", "{}", lines[1]);
}

#[tokio::test]
async fn a_client_of_a_shared_call_gets_its_answer_though_the_first_one_left() {
    let backend = Acceptor::start().await;
    let sidecar = Sidecar::start(&service(backend.addr, "", SHARED)).await;
    let addr = sidecar.listener("test").await;
    let first = Peer::sending(addr, get("/report", "")).await;
    let (mut running, _) = backend.call().await;
    let mut second = Peer::sending(addr, get("/report", "")).await;
    assert!(backend.is_silent().await);
    drop(first);
    access_lines(&sidecar, 1).await;
    running.send(ok("shared")).await;
    second.reply().await.is(200, "shared");
}

#[tokio::test]
async fn a_call_that_was_handed_over_is_not_closed_by_its_client() {
    let backend = Acceptor::start().await;
    let config = service(backend.addr, "", "[tasks]\nenabled = true");
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    let asks = get("/report", "Prefer: respond-async, wait=60\r\n");
    let client = Peer::sending(addr, asks).await;
    let (mut running, _) = backend.call().await;
    drop(client);
    assert!(running.is_silent().await);
    running.send(ok("the report")).await;
    reach_load(&sidecar, (0, 0), SOON).await;
    let listed = Peer::ask(addr, get("/v1/tasks", "")).await;
    let tasks = crate::support::json(&listed.answer.body);
    let task = &tasks["tasks"][0];
    assert_eq!(task["state"], "done", "{tasks}");
    let path = format!("/v1/tasks/{}", task["id"].as_str().expect("an id"));
    Peer::ask(addr, get(&path, "")).await.is(200, "the report");
}

#[tokio::test]
async fn a_client_that_resets_has_left_too() {
    let backend = Acceptor::start().await;
    let sidecar = Sidecar::start(&service(backend.addr, "", "")).await;
    let addr = sidecar.listener("test").await;
    let client = Peer::sending(addr, get("/poll", "")).await;
    let (mut running, _) = backend.call().await;
    crate::support::reset(client.stream);
    running.ends_within_a_second().await;
}
