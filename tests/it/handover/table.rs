//! Measures upgrades under load, and writes docs/reports/upgrades.md. `make restarts` runs it, with a release build.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::RngExt;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Successor, config, is_alive};
use crate::certificates::{Files, Shows};
use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, closed_port};

const PER_SECOND: usize = 300;
// Streams and WebSockets have forty of them.
const AT_ONCE: usize = 120;
const CALL_TAKES: Duration = Duration::from_millis(150);
/// A stream and a WebSocket live this long.
const STREAM_TAKES: Duration = Duration::from_secs(2);
const TLS_REST: Duration = Duration::from_secs(1);
const KEPT: usize = 5000;
const STORM: usize = 300;
const STREAMS: usize = 20;

const PAGE: &str = "\
# Upgrades

What clients and the backend see while a sidecar is upgraded under load. Measured by `make restarts`, at the clients and by the backend's own
count, with a release build.

";

/// A backend that counts, and the calls that it got, by their paths.
#[derive(Default)]
struct Counting {
    starts: Mutex<Vec<Instant>>,
    calls: Mutex<BTreeMap<String, usize>>,
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Counts of the clients.
#[derive(Default)]
struct Seen {
    answered: AtomicUsize,
    refused_connects: AtomicUsize,
    refused_calls: AtomicUsize,
    lost: AtomicUsize,
    /// The connection had been idle, and was closed before the first byte of an answer: any client tries again.
    idle_closed: AtomicUsize,
    foreign: AtomicUsize,
    waits: Mutex<Vec<Duration>>,
}

/// A call that the backend works on. It is over before its last bytes leave: who has read them may send the next one.
struct AtBackend<'a>(&'a Counting);

impl Drop for AtBackend<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Counting {
    async fn start() -> (SocketAddr, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let counting = Arc::new(Self::default());
        let this = Arc::clone(&counting);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let this = Arc::clone(&this);
                tokio::spawn(async move { this.serve(stream).await });
            }
        });
        (addr, counting)
    }

    async fn serve(&self, mut stream: TcpStream) -> Option<()> {
        loop {
            let head = read_head(&mut stream).await?;
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            self.starts.lock().expect("whole").push(Instant::now());
            *self
                .calls
                .lock()
                .expect("whole")
                .entry(path.clone())
                .or_default() += 1;
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            self.answer(&mut stream, &path, AtBackend(self)).await?;
        }
    }

    async fn answer(&self, stream: &mut TcpStream, path: &str, here: AtBackend<'_>) -> Option<()> {
        if path.starts_with("/stream") {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).await.ok()?;
            for _ in 0..10 {
                sleep(STREAM_TAKES / 10).await;
                let chunk = format!("{:x}\r\n{path}\r\n", path.len());
                stream.write_all(chunk.as_bytes()).await.ok()?;
            }
            drop(here);
            return stream.write_all(b"0\r\n\r\n").await.ok();
        }
        if path.starts_with("/socket") {
            let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            stream.write_all(head.as_bytes()).await.ok()?;
            let mut bytes = [0; 64];
            loop {
                let read = stream
                    .read(&mut bytes)
                    .await
                    .ok()
                    .filter(|read| *read > 0)?;
                stream.write_all(&bytes[..read]).await.ok()?;
            }
        }
        sleep(CALL_TAKES).await;
        let reply = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}",
            path.len()
        );
        drop(here);
        stream.write_all(reply.as_bytes()).await.ok()
    }

    /// The most calls that came within a second.
    fn densest(&self) -> usize {
        let starts = self.starts.lock().expect("whole");
        let (mut first, mut densest) = (0, 0);
        for last in 0..starts.len() {
            while starts[last] - starts[first] >= Duration::from_secs(1) {
                first += 1;
            }
            densest = densest.max(last - first + 1);
        }
        densest
    }

    /// Calls that came more than once.
    fn doubled(&self) -> usize {
        let calls = self.calls.lock().expect("whole");
        calls.values().filter(|times| **times > 1).count()
    }
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// The end of one exchange.
enum ExchangeEnd {
    Kept,
    Closed,
}

/// Sends a call, and reads its answer. `None` if the connection ended first.
async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    path: &str,
    seen: &Seen,
) -> Option<ExchangeEnd> {
    let call = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(call.as_bytes()).await.ok()?;
    let head = read_head(stream).await?.to_lowercase();
    let length = head.split("content-length: ").nth(1)?.split('\r').next()?;
    let mut body = vec![0; length.parse().ok()?];
    stream.read_exact(&mut body).await.ok()?;
    match head.contains(" 200 ") {
        true if body == path.as_bytes() => seen.answered.fetch_add(1, Ordering::Relaxed),
        true => seen.foreign.fetch_add(1, Ordering::Relaxed),
        false => seen.refused_calls.fetch_add(1, Ordering::Relaxed),
    };
    Some(match head.contains("connection: close") {
        true => ExchangeEnd::Closed,
        false => ExchangeEnd::Kept,
    })
}

async fn connected(addr: SocketAddr, seen: &Seen) -> TcpStream {
    loop {
        match TcpStream::connect(addr).await {
            Ok(stream) => return stream,
            Err(_) => {
                seen.refused_connects.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// A client that keeps its connection, and rests up to this long between two calls.
async fn keep_calling(addr: SocketAddr, client: usize, rest: Duration, seen: Arc<Seen>) {
    let mut kept = None;
    for call in 0.. {
        let spread = rand::rng().random_range(0.0..=1.0);
        sleep(rest.mul_f64(spread)).await;
        let path = format!("/c{client}-{call}");
        let began = Instant::now();
        // A connection that was closed meanwhile is of no use, as every client of HTTP knows.
        let open = kept.take().filter(|stream: &TcpStream| {
            let read = stream.try_read(&mut [0]);
            read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        });
        let (mut stream, is_used) = match open {
            Some(stream) => (stream, true),
            None => (connected(addr, &seen).await, false),
        };
        match exchange(&mut stream, &path, &seen).await {
            Some(ExchangeEnd::Kept) => kept = Some(stream),
            Some(ExchangeEnd::Closed) => {}
            None if is_used && began.elapsed() < Duration::from_millis(20) => {
                seen.idle_closed.fetch_add(1, Ordering::Relaxed);
            }
            None => drop(seen.lost.fetch_add(1, Ordering::Relaxed)),
        }
        seen.waits.lock().expect("whole").push(began.elapsed());
    }
}

/// A client that calls again and again over TLS, about once a second. Callers take turns, and these are a caller of their own: without a
/// rest they would have half of all turns.
async fn keep_calling_over_tls(
    addr: SocketAddr,
    client: usize,
    files: Arc<Files>,
    seen: Arc<Seen>,
) {
    let mut call = 0;
    loop {
        let stream = connected(addr, &seen).await;
        let Ok(mut stream) = files.connect(stream, Shows::Nothing).await else {
            seen.lost.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        loop {
            call += 1;
            sleep(TLS_REST).await;
            let path = format!("/t{client}-{call}");
            match exchange(&mut stream, &path, &seen).await {
                Some(ExchangeEnd::Kept) => {}
                Some(ExchangeEnd::Closed) => break,
                None => {
                    seen.lost.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            }
        }
    }
}

/// A client of streams, one after the other.
async fn keep_streaming(addr: SocketAddr, client: usize, seen: Arc<Seen>) {
    for call in 0.. {
        let path = format!("/stream{client}-{call}");
        let mut stream = connected(addr, &seen).await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut reply = String::new();
        let read = async {
            stream.write_all(request.as_bytes()).await.ok()?;
            stream.read_to_string(&mut reply).await.ok()
        };
        let is_whole = read.await.is_some() && reply.ends_with("0\r\n\r\n");
        match is_whole && reply.matches(&path).count() == 10 {
            true => seen.answered.fetch_add(1, Ordering::Relaxed),
            false if reply.contains(" 503 ") => seen.refused_calls.fetch_add(1, Ordering::Relaxed),
            false => seen.lost.fetch_add(1, Ordering::Relaxed),
        };
    }
}

/// A client of WebSockets, one after the other: what it sends comes back.
async fn keep_talking(addr: SocketAddr, client: usize, seen: Arc<Seen>) {
    for call in 0.. {
        let path = format!("/socket{client}-{call}");
        let talked = async {
            let mut stream = connected(addr, &seen).await;
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.ok()?;
            read_head(&mut stream)
                .await
                .filter(|head| head.contains(" 101 "))?;
            for _ in 0..10 {
                sleep(STREAM_TAKES / 10).await;
                stream.write_all(path.as_bytes()).await.ok()?;
                let mut echo = vec![0; path.len()];
                stream.read_exact(&mut echo).await.ok()?;
                if echo != path.as_bytes() {
                    seen.foreign.fetch_add(1, Ordering::Relaxed);
                }
            }
            Some(())
        };
        match talked.await {
            Some(()) => seen.answered.fetch_add(1, Ordering::Relaxed),
            None => seen.lost.fetch_add(1, Ordering::Relaxed),
        };
    }
}

/// The program under test: a release build, if `make restarts` has made one.
fn program() -> PathBuf {
    let given = std::env::var_os("TIDEGATE_PROGRAM").map(PathBuf::from);
    given.unwrap_or_else(|| crate::sidecar::TIDEGATE.into())
}

/// Memory of a process that no other shares.   KiB
fn private_memory(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find(|line| line.starts_with("Pss:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Starts a sidecar before a counting backend.
async fn started(
    dir: &Arc<TempDir>,
    (addr, secured): (SocketAddr, SocketAddr),
    files: &Files,
    backend: SocketAddr,
) -> Sidecar {
    let limits = format!(
        "per_window = \"total:{PER_SECOND}\"\noutstanding = {AT_ONCE}\nwindow_guard = \"200ms\"\nmax_wait = \"60s\""
    );
    let http = format!("http = \"http://{backend}\"\nafter_crash = \"500ms\"");
    let tls = files.section("");
    let sections = format!(
        "[server]\ndrain_timeout = \"5s\"\n[log]\naccess = false\n[[listen]]\nname = \"tls\"\nbind = \"{secured}\"\n{tls}"
    );
    let text = config(addr, &http, &limits, &sections).replace("\"zvm\"", "\"http\"");
    Sidecar::start_in(Arc::clone(dir), &text, |_| Command::new(program())).await
}

/// The middle and the last of some times, in milliseconds.
fn middle_and_last(times: &mut [Duration]) -> (f64, f64) {
    times.sort_unstable();
    let of = |at: usize| times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3);
    (of(times.len() / 2), of(times.len().saturating_sub(1)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "`make restarts` runs it; it takes ten minutes"]
async fn the_table() {
    let upgrades = std::env::var("UPGRADES")
        .ok()
        .and_then(|it| it.parse().ok());
    let upgrades = upgrades.unwrap_or(100);
    let (backend, counting) = Counting::start().await;
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let (addr, secured, files) = (closed_port(), closed_port(), Arc::new(Files::new()));
    let first = started(&dir, (addr, secured), &files, backend).await;
    let (admin, log) = (first.admin, first.log().clone());
    let seen = Arc::new(Seen::default());
    let mut clients = JoinSet::new();
    for client in 0..KEPT + STORM {
        // Those that keep a connection call now and then; the others always wait.
        let rest = if client < KEPT { 120 } else { 0 };
        clients.spawn(keep_calling(
            addr,
            client,
            Duration::from_secs(rest),
            Arc::clone(&seen),
        ));
    }
    for client in 0..STREAMS {
        clients.spawn(keep_streaming(addr, client, Arc::clone(&seen)));
        clients.spawn(keep_talking(addr, client, Arc::clone(&seen)));
        let (files, seen) = (Arc::clone(&files), Arc::clone(&seen));
        clients.spawn(keep_calling_over_tls(secured, client, files, seen));
    }
    sleep(Duration::from_secs(5)).await;
    let (began, mut took, mut peaks, mut alone) = (Instant::now(), Vec::new(), 0, 0);
    let mut serving = Successor(first.pid);
    for _ in 0..upgrades {
        let due = Instant::now() + Duration::from_secs(6);
        alone = alone.max(private_memory(serving.0).unwrap_or_default());
        let asked = Instant::now();
        let said = post_upgrade(admin).await;
        took.push(asked.elapsed());
        let new = Successor::of(&serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}")));
        let both = [serving.0, new.0].map(|pid| private_memory(pid).unwrap_or_default());
        peaks = peaks.max(both.iter().sum());
        let old = std::mem::replace(&mut serving, new);
        let ended = async {
            while is_alive(old.0) && log.lines().len() < usize::MAX {
                sleep(Duration::from_millis(50)).await;
                if zombie(old.0) {
                    break;
                }
            }
        };
        tokio::time::timeout(PATIENCE, ended)
            .await
            .expect("the old process ends");
        std::mem::forget(old);
        sleep(due.saturating_duration_since(Instant::now())).await;
    }
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    drop(clients);
    let (middle, last) = middle_and_last(&mut took);
    let waits = middle_and_last(&mut std::mem::take(&mut *seen.waits.lock().expect("whole")));
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let mut page = PAGE.to_owned();
    let _ = writeln!(
        page,
        "{upgrades} upgrades in {minutes:.1} minutes. {KEPT} clients that keep a connection and call about once a minute, {STORM} that always \
         wait, {STREAMS} over TLS that call once a second, {STREAMS} streams of 2 s, {STREAMS} WebSockets of 2 s. Limits: {PER_SECOND} a second, {AT_ONCE} at once; a call takes 0.15 s; \
         `drain_timeout` 5 s.\n\n| | |\n|---|---|"
    );
    let rows = [
        (
            "calls, streams and WebSockets that were answered whole",
            count(&seen.answered).to_string(),
        ),
        (
            "connects that were refused",
            count(&seen.refused_connects).to_string(),
        ),
        (
            "calls that were refused",
            count(&seen.refused_calls).to_string(),
        ),
        (
            "calls, streams and WebSockets that were lost",
            count(&seen.lost).to_string(),
        ),
        (
            "idle connections that ended as a call began, which clients try again",
            count(&seen.idle_closed).to_string(),
        ),
        (
            "calls that came to the backend twice",
            counting.doubled().to_string(),
        ),
        ("answers of another call", count(&seen.foreign).to_string()),
        ("most calls in a second", counting.densest().to_string()),
        (
            "most at once",
            counting.most.load(Ordering::Relaxed).to_string(),
        ),
        (
            "from the request until the new process serves: middle, last",
            format!("{middle:.0} ms, {last:.0} ms"),
        ),
        (
            "wait of a call: middle, last",
            format!("{:.0} ms, {:.0} ms", waits.0, waits.1),
        ),
        (
            "memory (Pss): one process before, at most; both, at most",
            format!(
                "{:.1} MB, {:.1} MB",
                alone as f64 / 1024.0,
                peaks as f64 / 1024.0
            ),
        ),
    ];
    for (what, figure) in rows {
        let _ = writeln!(page, "| {what} | {figure} |");
    }
    let killed = super::kills::kills(40).await;
    let _ = writeln!(
        page,
        "\n40 kills (`kill -9`), of the new and of the old process in turn, at 20 points that are 4 ms apart, in a storm with limits of 30 a second and \
         10 at once: {} in the densest second, {} at once.",
        killed.densest_second, killed.peak_in_flight
    );
    println!("{page}");
    serving.signal("TERM");
    drop(first);
    if std::env::var_os("UPGRADES").is_none() {
        std::fs::write("docs/reports/upgrades.md", &page).expect("the page is ours");
    }
    // A call that came to the old process at half of the drain time, and waits longer than the other half, is refused.
    let bad = [&seen.refused_connects, &seen.lost, &seen.foreign].map(count);
    assert_eq!((bad, counting.doubled()), ([0; 3], 0), "{page}");
    assert!(
        count(&seen.refused_calls) * 10_000 <= count(&seen.answered),
        "{page}"
    );
    assert!(
        counting.densest() <= PER_SECOND && super::kills::holds(&killed),
        "{page}"
    );
}

/// Whether a process has ended, and its parent has not noticed.
fn zombie(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    state.map_or(true, |state| state.contains(") Z "))
}

async fn post_upgrade(admin: SocketAddr) -> String {
    let request = "POST /v1/upgrade HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
                   Content-Length: 2\r\n\r\n{}";
    let answer = crate::support::ask(admin, request).await;
    let (_, body) = answer.split_once("\r\n\r\n").expect("an answer in HTTP");
    body.to_owned()
}
