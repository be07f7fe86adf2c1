//! A running sidecar hands over to a new process: no call is lost, no limit is exceeded, and if one of the two dies the other
//! goes on.

mod changes;
mod kills;
mod table;
mod versions;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::raw_http::{Peer, StreamEnd};
use crate::sidecar::Sidecar;
use crate::support::{Held, OK, PATIENCE, array, ask, closed_port, sending, until};

/// A sidecar with its ports, which a new process takes over.
struct Upgraded {
    dir: Arc<TempDir>,
    addr: SocketAddr,
    sidecar: Sidecar,
}

/// The config of a sidecar before this backend, with these lines in `[limits]` and these sections after it.
fn config(addr: SocketAddr, backend: &str, limits: &str, sections: &str) -> String {
    let admin = closed_port();
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "{addr}"
        [backend]
        kind = "zvm"
        {backend}
        [queue]
        postpone = "in_turn"
        [limits]
        ledger_lost = "assume_empty"
        {limits}
        [admin]
        bind = "{admin}"
        {sections}
        "#
    )
}

impl Upgraded {
    async fn start(backend: &str, limits: &str, sections: &str) -> Self {
        let dir = Arc::new(TempDir::new().expect("a folder"));
        let addr = closed_port();
        let text = config(addr, backend, limits, sections);
        let sidecar =
            Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary)).await;
        Self { dir, addr, sidecar }
    }

    /// A new process, once it serves.
    async fn succeeded(&self) -> Sidecar {
        let new = Sidecar::take_over(Arc::clone(&self.dir)).await;
        self.sidecar.log().wait(&["handed over"]).await;
        new
    }
}

/// A folder with the config of a sidecar before this socket backend, which no process has read, and its address.
fn prepared(backend: &RunningBackend) -> (Arc<TempDir>, SocketAddr) {
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let addr = closed_port();
    let lines = socket_backend(&backend.socket_addr());
    let text = config(addr, &lines, "per_window = \"total:1000\"", "");
    std::fs::write(dir.path().join("config.toml"), text).expect("it can be written");
    (dir, addr)
}

fn socket_backend(backend: &SocketAddr) -> String {
    format!("socket = \"{backend}\"")
}

async fn stand_in(delay: Duration) -> RunningBackend {
    let options = StandInOptions {
        delay,
        ..StandInOptions::on_free_ports()
    };
    StandInBackend::start(options).await.expect("it listens")
}

/// Whether a process of this program runs.
fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// A process that a sidecar has started, which ends with the test.
struct Successor(u32);

impl Successor {
    fn of(upgraded: &Value) -> Self {
        Self(upgraded["pid"].as_u64().expect("a pid") as u32)
    }

    fn signal(&self, name: &str) {
        let pid = self.0.to_string();
        let mut kill = std::process::Command::new("kill");
        let sent = kill.args([&format!("-{name}"), &pid]).status();
        sent.expect("there is a kill command");
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if is_alive(self.0) {
            self.signal("KILL");
        }
    }
}

/// Copies the sidecar's program, in a process of its own: a program that a process of this test has open for writing cannot
/// be run.
fn copy_program(to: &Path) {
    let mut copy = std::process::Command::new("cp");
    let copied = copy.arg(crate::sidecar::TIDEGATE).arg(to).status();
    assert!(copied.expect("there is a cp command").success());
}

/// The number of calls that failed, and of those that were answered.
#[derive(Default)]
struct Told {
    answered: AtomicUsize,
    failed: AtomicUsize,
}

/// Clients that call again and again by HTTP on kept connections. Each answer must be that of its own call.
fn storm(addr: SocketAddr, clients: usize, told: &Arc<Told>) -> JoinSet<()> {
    let mut storm = JoinSet::new();
    for client in 0..clients {
        let told = Arc::clone(told);
        storm.spawn(async move {
            let mut connection: Option<Peer> = None;
            loop {
                let mut peer = match connection.take() {
                    Some(peer) => peer,
                    None => Peer::new(TcpStream::connect(addr).await.expect("it always listens")),
                };
                let call = format!("GET /guests/G{client}/info HTTP/1.1\r\nHost: x\r\n\r\n");
                peer.send(call).await;
                let reply = peer.reply().await;
                match reply.is_whole() && reply.status() == 200 {
                    true => told.answered.fetch_add(1, Ordering::Relaxed),
                    false => told.failed.fetch_add(1, Ordering::Relaxed),
                };
                let closes = reply
                    .answer
                    .head
                    .to_lowercase()
                    .contains("connection: close");
                connection = (!closes).then_some(peer);
            }
        });
    }
    storm
}

#[tokio::test]
async fn upgrades_in_a_storm_lose_no_call_and_exceed_no_limit() {
    let backend = stand_in(Duration::from_millis(50)).await;
    let both = format!("http = \"http://{}\"", backend.http_addr());
    // The backend notes a call when its task runs, which is late on a busy machine.
    let limits = "per_window = \"total:30\"\noutstanding = 10\nwindow_guard = \"200ms\"";
    let first = Upgraded::start(&both, limits, "").await;
    let told = Arc::new(Told::default());
    let clients = storm(first.addr, 40, &told);
    let answered = |calls: usize| {
        let told = Arc::clone(&told);
        async move {
            let from = told.answered.load(Ordering::Relaxed);
            let reached = || told.answered.load(Ordering::Relaxed) >= from + calls;
            until(reached, || "calls go on".to_owned()).await;
        }
    };
    answered(20).await;
    let mut old = first.sidecar;
    for round in 0..4 {
        let new = Sidecar::take_over(Arc::clone(&first.dir)).await;
        old.log().wait(&["handed over"]).await;
        // The old one ends with its last connection.
        let (status, lines) = old.ended().await;
        assert!(status.success(), "{round}: {lines:#?}");
        new.log().wait(&["the old process has ended"]).await;
        answered(15).await;
        old = new;
    }
    drop(clients);
    let report = backend.report();
    assert_eq!(told.failed.load(Ordering::Relaxed), 0);
    assert!(
        report.densest_second <= 30 && report.peak_in_flight <= 10,
        "{report}"
    );
}

#[tokio::test]
async fn a_call_that_waits_is_served_in_its_turn_by_the_new_process() {
    let mut backend = Held::start(OK).await;
    let limits = "per_window = \"total:1000\"\noutstanding = 1";
    let old = Upgraded::start(&socket_backend(&backend.backend.addr), limits, "").await;
    let running = sending(old.addr, array("guest_list", "RUNS")).await;
    backend.next().await;
    let waiting = sending(old.addr, array("guest_list", "WAITS")).await;
    old.sidecar.reaches("tidegate_queue_depth", 1.0).await;
    let new = old.succeeded().await;
    // The call at the backend holds its slot in the new process, and the one that waits is before a later one.
    new.reaches("tidegate_queue_depth", 1.0).await;
    let later = sending(old.addr, array("guest_list", "LATER")).await;
    new.reaches("tidegate_queue_depth", 2.0).await;
    for (name, mut client) in [("WAITS", running), ("LATER", waiting)] {
        backend.go.notify_one();
        assert!(
            crate::support::read_all(&mut client)
                .await
                .contains("overallRC")
        );
        let next = backend.next().await;
        assert!(next.contains(name), "{next}");
    }
    let mut later = later;
    backend.go.notify_one();
    assert!(
        crate::support::read_all(&mut later)
            .await
            .contains("overallRC")
    );
    let (status, lines) = old.sidecar.ended().await;
    assert!(status.success(), "{lines:#?}");
    // None of the calls of the old process is left in the new one.
    new.reaches("tidegate_outstanding", 0.0).await;
    new.log().wait(&["the old process has ended"]).await;
}

#[tokio::test]
async fn a_client_that_leaves_the_old_process_leaves_the_queue_of_the_new_one() {
    let mut backend = Held::start(OK).await;
    let limits = "per_window = \"total:1000\"\noutstanding = 1";
    let old = Upgraded::start(&socket_backend(&backend.backend.addr), limits, "").await;
    let _running = sending(old.addr, array("guest_list", "RUNS")).await;
    backend.next().await;
    let waiting = sending(old.addr, array("guest_list", "WAITS")).await;
    old.sidecar.reaches("tidegate_queue_depth", 1.0).await;
    let new = old.succeeded().await;
    new.reaches("tidegate_queue_depth", 1.0).await;
    drop(waiting);
    new.reaches("tidegate_queue_depth", 0.0).await;
}

#[tokio::test]
async fn a_call_that_waits_longer_than_the_drain_of_the_old_process_is_refused() {
    let mut backend = Held::start(OK).await;
    let limits = "per_window = \"total:1000\"\noutstanding = 1";
    let server = "[server]\ndrain_timeout = \"1s\"\n";
    let old = Upgraded::start(&socket_backend(&backend.backend.addr), limits, server).await;
    let mut running = sending(old.addr, array("guest_list", "RUNS")).await;
    backend.next().await;
    let mut waiting = sending(old.addr, array("guest_list", "WAITS")).await;
    old.sidecar.reaches("tidegate_queue_depth", 1.0).await;
    let new = old.succeeded().await;
    let answer = crate::support::read_all(&mut waiting).await;
    assert!(answer.contains("draining"), "{answer:?}");
    assert!(answer.contains("\"retryAfter\": 1"), "{answer:?}");
    // It was sent, so its answer says something else, and its slot is held as after a crash.
    let answer = crate::support::read_all(&mut running).await;
    assert!(answer.contains("drain_timeout"), "{answer:?}");
    new.log().wait(&["the old process has ended"]).await;
    new.reaches("tidegate_outstanding", 1.0).await;
}

#[tokio::test]
async fn a_new_program_that_cannot_start_leaves_the_old_process_as_it_was() {
    let backend = stand_in(Duration::ZERO).await;
    let limits = "per_window = \"total:1000\"";
    let old = Upgraded::start(&socket_backend(&backend.socket_addr()), limits, "").await;
    let good = std::fs::read_to_string(old.sidecar.config_path()).expect("its config");
    old.sidecar
        .write_config(&good.replace("total:1000", "total:lots"));
    let (status, said) = old.sidecar.ask("POST", "/v1/upgrade", "{}").await;
    assert_eq!(status, 409, "{said}");
    assert!(
        said.contains("the new process ended before it served: exit code 1"),
        "{said}"
    );
    assert!(
        ask(old.addr, array("guest_list", "X"))
            .await
            .contains("overallRC")
    );
    old.sidecar.log().wait(&["this one serves"]).await;
}

#[tokio::test]
async fn a_new_process_that_dies_gives_everything_back() {
    let mut backend = Held::start(OK).await;
    let limits = "per_window = \"total:1000\"\noutstanding = 2";
    let old = Upgraded::start(&socket_backend(&backend.backend.addr), limits, "").await;
    let mut running = sending(old.addr, array("guest_list", "RUNS")).await;
    backend.next().await;
    let new = old.succeeded().await;
    // A call of the new process, which is at the backend when that dies, and one that waits in the old process.
    let _of_the_new = sending(old.addr, array("guest_list", "NEW")).await;
    backend.next().await;
    new.signal("KILL");
    new.exited().await;
    let served = ["this one serves", "\"has_admitted\":true"];
    old.sidecar.log().wait(&served).await;
    let mut waiting = sending(old.addr, array("guest_list", "WAITS")).await;
    old.sidecar.reaches("tidegate_queue_depth", 1.0).await;
    // The slot of the first call is free with its end; that of the call of the new process not before `after_crash`.
    backend.go.notify_waiters();
    assert!(
        crate::support::read_all(&mut running)
            .await
            .contains("overallRC")
    );
    let next = backend.next().await;
    assert!(next.contains("WAITS"), "{next}");
    backend.go.notify_one();
    assert!(
        crate::support::read_all(&mut waiting)
            .await
            .contains("overallRC")
    );
    // It can hand over again. The call of the process that died still holds a slot.
    let again = Sidecar::take_over(Arc::clone(&old.dir)).await;
    old.sidecar.log().wait_from(0, &["handed over"]).await;
    let mut last = sending(old.addr, array("guest_list", "LAST")).await;
    backend.next().await;
    again.reaches("tidegate_outstanding", 2.0).await;
    backend.go.notify_one();
    let answer = crate::support::read_all(&mut last).await;
    assert!(answer.contains("overallRC"), "{answer}");
}

#[tokio::test]
async fn an_old_process_that_dies_leaves_its_slots_held_until_its_work_has_ended() {
    let mut backend = Held::start(OK).await;
    let limits = "per_window = \"total:1000\"\noutstanding = 1";
    let backend_lines = format!(
        "{}\nafter_crash = \"700ms\"",
        socket_backend(&backend.backend.addr)
    );
    let old = Upgraded::start(&backend_lines, limits, "").await;
    let _running = sending(old.addr, array("guest_list", "RUNS")).await;
    backend.next().await;
    let _waiting = sending(old.addr, array("guest_list", "WAITS")).await;
    old.sidecar.reaches("tidegate_queue_depth", 1.0).await;
    let new = old.succeeded().await;
    new.reaches("tidegate_queue_depth", 1.0).await;
    let _later = sending(old.addr, array("guest_list", "LATER")).await;
    new.reaches("tidegate_queue_depth", 2.0).await;
    let died = std::time::Instant::now();
    old.sidecar.signal("KILL");
    // The call that waited in it has left, and the other waits for the slot.
    new.reaches("tidegate_queue_depth", 1.0).await;
    let next = backend.next().await;
    assert!(next.contains("LATER"), "{next}");
    assert!(
        died.elapsed() >= Duration::from_millis(700),
        "{:?}",
        died.elapsed()
    );
}

#[tokio::test]
async fn one_upgrade_at_a_time() {
    let mut backend = Held::start(OK).await;
    let limits = "per_window = \"total:1000\"";
    let old = Upgraded::start(&socket_backend(&backend.backend.addr), limits, "").await;
    let _running = sending(old.addr, array("guest_list", "RUNS")).await;
    backend.next().await;
    let new = old.succeeded().await;
    let (status, said) = new.ask("POST", "/v1/upgrade", "{}").await;
    assert_eq!(status, 409, "{said}");
    new.log().wait(&["another upgrade is under way"]).await;
    assert!(is_alive(old.sidecar.pid) && is_alive(new.pid));
}

#[tokio::test]
async fn a_sidecar_is_upgraded_by_a_request_a_signal_and_a_changed_program() {
    let backend = stand_in(Duration::ZERO).await;
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let (addr, program) = (closed_port(), dir.path().join("tidegate"));
    let backend_lines = socket_backend(&backend.socket_addr());
    let text = config(addr, &backend_lines, "per_window = \"total:1000\"", "");
    copy_program(&program);
    let sidecar = Sidecar::start_in(Arc::clone(&dir), &text, |_| Command::new(&program)).await;
    let (log, admin) = (sidecar.log().clone(), sidecar.admin);
    let (status, said) = sidecar.ask("POST", "/v1/upgrade", "{}").await;
    assert_eq!(status, 200, "{said}");
    let second = Successor::of(&serde_json::from_str(&said).expect("JSON"));
    // What it starts writes into the same log.
    let ended = |from: usize| {
        let log = log.clone();
        async move { log.wait_from(from, &["the old process has ended"]).await.1 }
    };
    let at = ended(0).await;
    second.signal("USR2");
    let (line, _) = log.wait_from(at, &["handed over"]).await;
    let third = Successor::of(&serde_json::from_str(&line).expect("JSON"));
    let at = ended(at).await;
    // A reload alone changes no process.
    third.signal("HUP");
    let (_, at) = log.wait_from(at, &["config reloaded"]).await;
    let other = dir.path().join("other");
    copy_program(&other);
    std::fs::rename(&other, &program).expect("it is replaced");
    third.signal("HUP");
    let (line, _) = log.wait_from(at, &["handed over"]).await;
    let fourth = Successor::of(&serde_json::from_str(&line).expect("JSON"));
    let pids = [sidecar.pid, second.0, third.0, fourth.0];
    assert!(pids.is_sorted_by(|a, b| a != b), "{pids:?}");
    ended(at).await;
    assert!(
        ask(addr, array("guest_list", "X"))
            .await
            .contains("overallRC")
    );
    let (status, _) = crate::sidecar::get(admin, "/healthz").await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_process_that_takes_over_starts_alone_where_none_runs() {
    let backend = stand_in(Duration::ZERO).await;
    let (dir, addr) = prepared(&backend);
    let sidecar = Sidecar::take_over(Arc::clone(&dir)).await;
    sidecar.log().wait(&["this one starts alone"]).await;
    assert!(
        ask(addr, array("guest_list", "X"))
            .await
            .contains("overallRC")
    );
    // No process drains, so the next one can take over from it.
    sidecar.log().wait(&["the old process has ended"]).await;
    let next = Sidecar::take_over(Arc::clone(&dir)).await;
    sidecar.log().wait(&["handed over"]).await;
    drop(next);
}

#[tokio::test]
async fn a_process_that_takes_over_starts_also_without_a_place_for_its_ledger() {
    let backend = stand_in(Duration::ZERO).await;
    let (dir, addr) = prepared(&backend);
    std::fs::write(dir.path().join("config.run"), "no folder").expect("it can be written");
    let sidecar = Sidecar::take_over(Arc::clone(&dir)).await;
    let said = ["a restart forgets what counts in the limits"];
    sidecar.log().wait(&said).await;
    assert!(
        ask(addr, array("guest_list", "X"))
            .await
            .contains("overallRC")
    );
    let (status, said) = sidecar.ask("POST", "/v1/upgrade", "{}").await;
    assert_eq!(status, 409, "{said}");
    assert!(said.contains("cannot hand over"), "{said}");
}

/// The address of a socket has at most 108 bytes.
#[tokio::test]
async fn a_long_path_of_the_runtime_folder_does_not_matter() {
    let backend = stand_in(Duration::ZERO).await;
    let prefix = "long".repeat(40);
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir();
    let dir = Arc::new(dir.expect("a folder"));
    let addr = closed_port();
    let backend_lines = socket_backend(&backend.socket_addr());
    let text = config(addr, &backend_lines, "per_window = \"total:1000\"", "");
    let old = Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary)).await;
    let new = Sidecar::take_over(Arc::clone(&dir)).await;
    old.log().wait(&["handed over"]).await;
    drop(new);
}

#[tokio::test]
async fn socket_files_callers_and_acts_go_to_the_new_process_without_a_state_file() {
    let backend = stand_in(Duration::ZERO).await;
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let file = dir.path().join("calls.sock");
    let addr = closed_port();
    let backend_lines = socket_backend(&backend.socket_addr());
    let listener = format!(
        "[[listen]]\nname = \"file\"\nbind = \"unix:{}\"\nprotocol = \"socket\"\n",
        file.display()
    );
    let text = config(
        addr,
        &backend_lines,
        "per_window = \"total:1000\"",
        &listener,
    );
    let old = Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary)).await;
    let caller = "{\"label\": \"kept\", \"match\": [{\"user\": \"u\"}]}";
    let (status, said) = old.ask("POST", "/v1/callers", caller).await;
    assert_eq!(status, 201, "{said}");
    let pause = "{\"hold_seconds\": 600, \"why\": \"maintenance\"}";
    let (status, said) = old.ask("POST", "/v1/backend/pause", pause).await;
    assert_eq!(status, 200, "{said}");
    let new = Sidecar::take_over(Arc::clone(&dir)).await;
    let (status, _) = old.ended().await;
    assert!(status.success());
    let (_, callers) = new.get("/v1/callers").await;
    assert!(callers.contains("\"kept\""), "{callers}");
    let (_, state) = new.get("/v1/backend").await;
    assert!(
        state.contains("\"paused\"") && state.contains("maintenance"),
        "{state}"
    );
    let (status, said) = new
        .ask("POST", "/v1/backend/resume", "{\"ramp_seconds\": 0}")
        .await;
    assert_eq!(status, 200, "{said}");
    let mut client = UnixStream::connect(&file).await.expect("the file is there");
    client
        .write_all(array("guest_list", "X").as_bytes())
        .await
        .expect("it is read");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.contains("overallRC"), "{answer}");
    new.signal("TERM");
    let (status, _) = new.ended().await;
    assert!(status.success());
    assert!(!file.exists(), "it goes with the process that had it last");
}

#[tokio::test]
async fn a_stream_and_an_idle_connection_stay_with_the_old_process() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let go = Arc::new(tokio::sync::Notify::new());
    let wait = Arc::clone(&go);
    let backend = crate::support::Scripted::start(move |_, mut stream| {
        let (tell, wait) = (tell.clone(), Arc::clone(&wait));
        async move {
            let mut request = vec![0; 4096];
            while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&request).into_owned();
                let is_stream = text.starts_with("GET /stream");
                let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n";
                let whole = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                let begun = if is_stream { head } else { whole };
                stream
                    .write_all(begun.as_bytes())
                    .await
                    .expect("it is read");
                tell.send(()).expect("the test listens");
                if is_stream {
                    wait.notified().await;
                    let rest = b"4\r\nlast\r\n0\r\n\r\n";
                    stream.write_all(rest).await.expect("it is read");
                }
            }
        }
    })
    .await;
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let addr = closed_port();
    let http = format!("http = \"http://{}\"", backend.addr);
    let drain = "[server]\ndrain_timeout = \"4s\"\n";
    let text = config(addr, &http, "per_window = \"total:1000\"", drain);
    let text = text.replace("kind = \"zvm\"", "kind = \"http\"");
    let old = Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary)).await;
    let (mut idle, mut unused) = (Peer::connect(addr).await, Peer::connect(addr).await);
    for client in [&mut idle, &mut unused] {
        client.send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n").await;
        told.recv().await;
        client.reply().await.is(200, "ok");
    }
    let mut stream = Peer::sending(addr, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n").await;
    told.recv().await;
    stream.next_head().await.expect("it has begun");
    let new = Sidecar::take_over(Arc::clone(&dir)).await;
    old.log().wait(&["handed over"]).await;
    // The idle connection has one more answer, which says that it ends.
    idle.send("GET /b HTTP/1.1\r\nHost: x\r\n\r\n").await;
    told.recv().await;
    let reply = idle.reply().await;
    reply.is(200, "ok");
    assert!(
        reply
            .answer
            .head
            .to_lowercase()
            .contains("connection: close"),
        "{}",
        reply.answer.head
    );
    // One without a call ends at half of the drain time, while what has begun goes on.
    assert_eq!(unused.end().await, (Vec::new(), StreamEnd::Fin));
    go.notify_one();
    let rest = stream.bytes("5\r\nfirst\r\n4\r\nlast\r\n0\r\n\r\n".len());
    let rest = tokio::time::timeout(PATIENCE, rest).await;
    let rest = rest.expect("the stream goes on");
    assert!(rest.ends_with(b"last\r\n0\r\n\r\n"));
    drop(stream);
    let (status, lines) = old.ended().await;
    assert!(status.success(), "{lines:#?}");
    drop(new);
}

/// The first process of a container ends it. So it stays after its last call, and passes signals on.
#[tokio::test]
async fn the_first_process_of_a_container_stays_for_the_one_that_serves() {
    let backend = stand_in(Duration::ZERO).await;
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let addr = closed_port();
    let backend_lines = socket_backend(&backend.socket_addr());
    let text = config(addr, &backend_lines, "per_window = \"total:1000\"", "");
    let isolated = [
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
    ];
    let mut probe = std::process::Command::new("unshare");
    let probed = probe.args(isolated).arg("true").status();
    if !probed.is_ok_and(|status| status.success()) {
        let why = "unshare(1) cannot make a namespace of processes";
        return crate::support::cannot_run("the_first_process_of_a_container_stays", why);
    }
    let first = Sidecar::start_in(Arc::clone(&dir), &text, |binary| {
        let mut command = Command::new("unshare");
        command.args(isolated).arg(binary);
        command
    })
    .await;
    let log = first.log().clone();
    let (status, said) = first.ask("POST", "/v1/upgrade", "{}").await;
    assert_eq!(status, 200, "{said}");
    log.wait(&["stays because it is the first"]).await;
    // It lives on, and the new process can hand over nevertheless.
    log.wait(&["the old process has ended"]).await;
    assert!(
        ask(addr, array("guest_list", "X"))
            .await
            .contains("overallRC")
    );
    // `unshare` passes no signals on; its child is the first process.
    let children = format!("/proc/{0}/task/{0}/children", first.pid);
    let children = std::fs::read_to_string(children).expect("it runs");
    Successor(children.trim().parse().expect("one child")).signal("TERM");
    // What `unshare` itself returns and loses of the last lines depends on its version.
    first.exited().await;
}
