//! Connections on two threads of the real process: they share every limit, and a reload, a drain and the end meet
//! all of them.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::sidecar::Sidecar;
use crate::support::{
    PATIENCE, Scripted, call_threads, connect, read_until, sending, until, until_read,
};

const ASK: &[u8] = b"GET /x HTTP/1.1\r\nHost: t\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

const NOT_REACHED: &str = "[limits]\noutstanding = 1000\n\
    per_window = \"total:1000000\"";

/// More than one thread takes.
const CLIENTS: usize = 24;

/// A backend that counts its calls and its open connections.
#[derive(Default)]
struct Counts {
    calls: AtomicUsize,
    running: AtomicUsize,
    most: AtomicUsize,
    open: AtomicUsize,
}

struct Counting {
    backend: Scripted,
    counts: Arc<Counts>,
    /// A permit for each answer.
    go: Arc<Semaphore>,
}

impl Counting {
    async fn start(answers: usize) -> Self {
        let counts = Arc::new(Counts::default());
        let go = Arc::new(Semaphore::new(answers));
        let (own, gate) = (Arc::clone(&counts), Arc::clone(&go));
        let backend = Scripted::start(move |_, stream| {
            let (counts, go) = (Arc::clone(&own), Arc::clone(&gate));
            async move {
                counts.open.fetch_add(1, Ordering::SeqCst);
                answer(stream, &counts, &go).await;
                counts.open.fetch_sub(1, Ordering::SeqCst);
            }
        });
        Self {
            backend: backend.await,
            counts,
            go,
        }
    }

    fn calls(&self) -> usize {
        self.counts.calls.load(Ordering::SeqCst)
    }

    fn open(&self) -> usize {
        self.counts.open.load(Ordering::SeqCst)
    }
}

async fn answer(mut stream: TcpStream, counts: &Counts, go: &Semaphore) {
    let mut request = [0; 4096];
    while let Ok(1..) = stream.read(&mut request).await {
        counts.calls.fetch_add(1, Ordering::SeqCst);
        let running = counts.running.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(running, Ordering::SeqCst);
        go.acquire().await.expect("it stays open").forget();
        // Before the answer: the next call may come at once.
        counts.running.fetch_sub(1, Ordering::SeqCst);
        if stream.write_all(ANSWER).await.is_err() {
            return;
        }
    }
}

fn config(backend: SocketAddr, more: &str) -> String {
    format!(
        r#"
        [server]
        threads = 2
        drain_timeout = "20s"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        protocol = "http"
        [backend]
        kind = "http"
        http = "http://{backend}"
        [admin]
        bind = "127.0.0.1:0"
        [queue]
        postpone = "in_turn"
        workers = 64
        {more}
        "#,
        more = if more.is_empty() { NOT_REACHED } else { more }
    )
}

/// Connections that have had one call each, all at once.
async fn clients(addr: SocketAddr) -> Vec<TcpStream> {
    let mut clients = asking(addr).await;
    hear_all(&mut clients).await;
    clients
}

/// Connections that have each sent one call.
async fn asking(addr: SocketAddr) -> Vec<TcpStream> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(sending(addr, ASK).await);
    }
    clients
}

/// A sidecar whose calls are all at the backend, on two threads.
async fn running(sidecar: &Sidecar, it: &Counting) -> Vec<TcpStream> {
    let clients = asking(sidecar.listener("test").await).await;
    until(|| it.calls() == CLIENTS, || format!("{} calls", it.calls())).await;
    assert_eq!(call_threads(sidecar.pid), 1);
    clients
}

/// A call on each of them, all at once.
async fn ask_all(clients: &mut [TcpStream]) {
    for client in clients.iter_mut() {
        client.write_all(ASK).await.expect("it is open");
    }
    hear_all(clients).await;
}

async fn hear_all(clients: &mut [TcpStream]) {
    for client in clients {
        let answer = read_until(client, "{}").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test]
async fn a_thread_is_started_for_many_connections_and_not_for_few() {
    let it = Counting::start(Semaphore::MAX_PERMITS).await;
    let sidecar = Sidecar::start(&config(it.backend.addr, "")).await;
    let addr = sidecar.listener("test").await;
    let mut few = Vec::new();
    for _ in 0..8 {
        few.push(connect(addr).await);
    }
    ask_all(&mut few).await;
    assert_eq!(call_threads(sidecar.pid), 0);
    let mut many = clients(addr).await;
    assert_eq!(call_threads(sidecar.pid), 1);
    // Its connections keep it, and it keeps them.
    ask_all(&mut few).await;
    ask_all(&mut many).await;
    assert_eq!(it.calls(), 8 + CLIENTS + 8 + CLIENTS);
}

#[tokio::test]
async fn calls_of_the_socket_protocol_stay_on_the_thread_that_accepts_and_those_of_http_do_not() {
    const CALL: &[u8] = b"[\"guest_get_info\", [\"T1\"], {}]";
    let http = Counting::start(Semaphore::MAX_PERMITS / 2).await;
    let (arrived, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (own, gate) = (Arc::clone(&arrived), Arc::clone(&go));
    let socket = Scripted::start(move |_, mut stream| {
        let (arrived, go) = (Arc::clone(&own), Arc::clone(&gate));
        async move {
            let mut request = [0; 4096];
            if let Ok(1..) = stream.read(&mut request).await {
                arrived.fetch_add(1, Ordering::SeqCst);
                go.acquire().await.expect("it stays open").forget();
                let _ = stream.write_all(b"{\"overallRC\": 0}").await;
            }
        }
    });
    let socket = socket.await;
    let both = config(http.backend.addr, "")
        .replace("protocol = \"http\"", "protocol = \"auto\"")
        .replace(
            "kind = \"http\"",
            &format!("kind = \"zvm\"\nsocket = \"{}\"", socket.addr),
        );
    let sidecar = Sidecar::start(&both).await;
    let addr = sidecar.listener("test").await;
    let at_backend = |calls: usize| {
        let arrived = Arc::clone(&arrived);
        async move {
            let arrived = || arrived.load(Ordering::SeqCst);
            until(|| arrived() == calls, || format!("{} calls", arrived())).await;
        }
    };
    let mut calls = Vec::new();
    // On a busy machine it would accept before the first byte is there, and not know what comes.
    sidecar.signal("STOP");
    for _ in 0..CLIENTS {
        calls.push(sending(addr, CALL).await);
    }
    sidecar.signal("CONT");
    at_backend(CLIENTS).await;
    assert_eq!(call_threads(sidecar.pid), 0);
    // Those of HTTP are shared out beside them.
    let mut clients = clients(addr).await;
    assert_eq!(call_threads(sidecar.pid), 1);
    // A client that leaves before it says anything does no harm. One that says nothing for a while, or a part of its
    // request, is served wherever it is.
    drop(connect(addr).await);
    let mut late = connect(addr).await;
    let mut halved = sending(addr, &CALL[..1]).await;
    let mut halved_http = sending(addr, &ASK[..5]).await;
    for stream in [&late, &halved, &halved_http] {
        until_read(stream).await;
    }
    late.write_all(CALL).await.expect("it is open");
    halved.write_all(&CALL[1..]).await.expect("it is open");
    halved_http.write_all(&ASK[5..]).await.expect("it is open");
    at_backend(CLIENTS + 2).await;
    clients.push(halved_http);
    hear_all(&mut clients[CLIENTS..]).await;
    ask_all(&mut clients).await;
    go.add_permits(CLIENTS + 2);
    for mut call in calls.into_iter().chain([late, halved]) {
        assert_eq!(read_until(&mut call, "}").await, "{\"overallRC\": 0}");
    }
}

#[tokio::test]
async fn calls_of_two_threads_share_every_limit() {
    let it = Counting::start(0).await;
    let limits = "[limits]\noutstanding = 5\n\
        window = \"1s\"\nper_window = \"total:40\"";
    let sidecar = Sidecar::start(&config(it.backend.addr, limits)).await;
    let addr = sidecar.listener("test").await;
    let began = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..CLIENTS {
        calls.spawn(async move {
            let mut client = connect(addr).await;
            for _ in 0..5 {
                client.write_all(ASK).await.expect("it is open");
                read_until(&mut client, "{}").await;
            }
        });
    }
    until(|| it.calls() == 5, || format!("{} calls", it.calls())).await;
    let waiting = f64::from(u32::try_from(CLIENTS - 5).expect("few"));
    sidecar.reaches("tidegate_queue_depth", waiting).await;
    assert_eq!(it.calls(), 5, "no more than may be outstanding");
    assert_eq!(call_threads(sidecar.pid), 1);
    it.go.add_permits(Semaphore::MAX_PERMITS / 2);
    timeout(4 * PATIENCE, calls.join_all())
        .await
        .expect("all are answered");
    assert_eq!(it.calls(), 5 * CLIENTS);
    assert_eq!(it.counts.most.load(Ordering::SeqCst), 5);
    // 120 calls with 40 in any second take more than 2 s.
    assert!(
        began.elapsed() > Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn a_reload_moves_the_calls_of_all_threads_and_closes_their_idle_connections() {
    let (old, new) = (
        Counting::start(Semaphore::MAX_PERMITS).await,
        Counting::start(Semaphore::MAX_PERMITS).await,
    );
    let keeps = |backend: &Counting| {
        let text = config(backend.backend.addr, "");
        text.replace(
            "kind = \"http\"",
            "kind = \"http\"\npool_idle_timeout = \"1h\"",
        )
    };
    let sidecar = Sidecar::start(&keeps(&old)).await;
    let mut clients = clients(sidecar.listener("test").await).await;
    assert_eq!(call_threads(sidecar.pid), 1);
    assert!(old.open() > 0);
    sidecar.reload(&keeps(&new)).await;
    until(|| old.open() == 0, || format!("{} are open", old.open())).await;
    for _ in 0..3 {
        ask_all(&mut clients).await;
    }
    assert_eq!((old.calls(), new.calls()), (CLIENTS, 3 * CLIENTS));
}

#[tokio::test]
async fn all_threads_together_keep_no_more_idle_connections_than_the_pool_may_hold() {
    let it = Counting::start(0).await;
    let keeps = config(it.backend.addr, "").replace(
        "kind = \"http\"",
        "kind = \"http\"\npool_max_idle = 5\npool_idle_timeout = \"1h\"",
    );
    let sidecar = Sidecar::start(&keeps).await;
    let mut clients = running(&sidecar, &it).await;
    assert_eq!(it.open(), CLIENTS);
    it.go.add_permits(Semaphore::MAX_PERMITS / 2);
    for client in &mut clients {
        read_until(client, "{}").await;
    }
    until(|| it.open() == 5, || format!("{} are open", it.open())).await;
}

#[tokio::test]
async fn a_drain_finishes_the_calls_of_all_threads() {
    let it = Counting::start(0).await;
    let sidecar = Sidecar::start(&config(it.backend.addr, "")).await;
    let mut clients = running(&sidecar, &it).await;
    sidecar.signal("TERM");
    sidecar.log().wait(&["draining"]).await;
    it.go.add_permits(Semaphore::MAX_PERMITS / 2);
    for client in &mut clients {
        let answer = read_until(client, "{}").await;
        assert!(answer.contains("connection: close"), "{answer}");
    }
    let (status, log) = sidecar.ended().await;
    assert!(status.success(), "{log:?}");
    assert_eq!(it.calls(), CLIENTS);
}

/// Calls that are cut off are reported, on whichever thread they are.
#[tokio::test]
async fn a_drain_that_takes_too_long_reports_the_calls_of_all_threads() {
    let it = Counting::start(0).await;
    let mut text = config(it.backend.addr, "").replace("\"20s\"", "\"100ms\"");
    write!(text, "[log]\naccess = true\n").expect("a string has room");
    let sidecar = Sidecar::start(&text).await;
    let _clients = running(&sidecar, &it).await;
    sidecar.signal("TERM");
    let (status, log) = sidecar.ended().await;
    assert!(!status.success(), "{log:?}");
    let given_up = log
        .iter()
        .filter(|line| line.contains("\"reason\":\"drain_timeout\""));
    assert_eq!(given_up.count(), CLIENTS, "{log:?}");
}
