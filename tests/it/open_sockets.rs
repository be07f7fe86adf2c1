//! Sockets that stay open while a sidecar is exchanged: no connect is refused, and each call is answered.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tidegate_lab::backend::{StandInBackend, StandInOptions};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::sidecar::{Sidecar, TIDEGATE};
use crate::support::{PATIENCE, array, closed_port};

/// A service manager with its sidecar.
struct Exchange {
    /// Ends both when it is dropped.
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Exchange {
    async fn start(kind: &str, dir: &Path, addresses: &[String]) -> Self {
        let mut command = Command::new("python3");
        command
            .arg("tests/service_manager/exchange.py")
            .arg(kind)
            .arg(dir)
            .args(addresses)
            .args(["--", TIDEGATE, "serve", "--config"])
            .arg(dir.join("config.toml"))
            .env("TIDEGATE_RUNTIME_DIR", dir.join("config.run"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(
                std::fs::File::create(dir.join("log")).expect("a file"),
            ))
            .kill_on_drop(true);
        let mut child = command.spawn().expect("python3 is there");
        let said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut exchange = Self {
            orders: child.stdin.take().expect("it is piped"),
            said,
            _child: child,
        };
        exchange.is_ready().await;
        exchange
    }

    /// Waits until a sidecar is ready. Returns how many sockets the manager keeps.
    async fn is_ready(&mut self) -> usize {
        let line = tokio::time::timeout(PATIENCE, self.said.next_line()).await;
        let line = line.expect("in time").expect("readable");
        let line = line.expect("it runs");
        let kept = line.strip_prefix("ready ").expect("it is ready");
        kept.parse().expect("a number")
    }

    /// Ends the sidecar by a signal. The next one has started when this returns.
    async fn exchange(&mut self, signal: &str) -> usize {
        let line = format!("{signal}\n");
        let written = self.orders.write_all(line.as_bytes()).await;
        written.expect("it reads");
        self.is_ready().await
    }
}

fn write_config(dir: &Path, listener: &str, admin: SocketAddr, backend: SocketAddr) {
    let text = format!(
        r#"
        [[listen]]
        name = "test"
        bind = "{listener}"
        protocol = "socket"
        [backend]
        socket = "{backend}"
        after_crash = "0s"
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:100000"
        outstanding = 100
        [admin]
        bind = "{admin}"
        "#
    );
    std::fs::write(dir.join("config.toml"), text).expect("it is ours");
}

/// Counts of what clients met.
#[derive(Default)]
pub(crate) struct Met {
    pub(crate) refused: AtomicU64,
    pub(crate) answered: AtomicU64,
    /// Calls that were under way when their sidecar was killed.
    pub(crate) cut: AtomicU64,
    stop: AtomicBool,
}

/// Clients that connect again and again, one call each.
fn clients(addr: SocketAddr) -> (Arc<Met>, JoinSet<()>) {
    let (met, mut clients) = (Arc::new(Met::default()), JoinSet::new());
    for client in 0..16 {
        let met = Arc::clone(&met);
        clients.spawn(async move {
            while !met.stop.load(Ordering::Relaxed) {
                let Ok(mut stream) = TcpStream::connect(addr).await else {
                    met.refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let call = array("guest_list", &format!("G{client}"));
                let _ = stream.write_all(call.as_bytes()).await;
                let mut answer = Vec::new();
                let read = stream.read_to_end(&mut answer).await;
                let to = match read {
                    Ok(_) if !answer.is_empty() => &met.answered,
                    _ => &met.cut,
                };
                to.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    (met, clients)
}

/// Exchanges a sidecar ten times under clients. Returns what they met.
async fn ten_exchanges(kind: &str, signal: &str) -> (Met, usize) {
    exchanges(kind, signal, 10).await
}

/// Exchanges a sidecar under clients. Returns what they met, and how many sockets the service manager keeps.
pub(crate) async fn exchanges(kind: &str, signal: &str, times: usize) -> (Met, usize) {
    let backend = StandInBackend::start(StandInOptions::on_free_ports())
        .await
        .expect("it listens");
    let dir = TempDir::new().expect("a folder");
    let (listener, admin) = (closed_port(), closed_port());
    write_config(
        dir.path(),
        &listener.to_string(),
        admin,
        backend.socket_addr(),
    );
    let addresses: &[_] = match kind {
        "socket" => &[listener.port().to_string(), admin.port().to_string()],
        _ => &[],
    };
    let mut exchange = Exchange::start(kind, dir.path(), addresses).await;
    let (met, mut clients) = clients(listener);
    let mut kept = 0;
    for _ in 0..times {
        let answered = met.answered.load(Ordering::Relaxed);
        let more = async {
            while met.answered.load(Ordering::Relaxed) < answered + 50 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let log = || std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        let more = tokio::time::timeout(PATIENCE, more).await;
        more.unwrap_or_else(|_| panic!("no call is answered: {}", log()));
        kept = exchange.exchange(signal).await;
    }
    met.stop.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client.expect("it does not panic");
    }
    (Arc::into_inner(met).expect("no client has it"), kept)
}

#[tokio::test]
async fn with_a_socket_unit_a_restart_refuses_no_connect_and_loses_no_call() {
    let (met, kept) = ten_exchanges("socket", "TERM").await;
    assert_eq!(kept, 2);
    assert_eq!(met.refused.load(Ordering::Relaxed), 0);
    assert_eq!(met.cut.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn with_a_socket_unit_a_crash_refuses_no_connect() {
    let (met, _) = ten_exchanges("socket", "KILL").await;
    assert_eq!(met.refused.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_service_manager_that_keeps_sockets_gets_each_once_and_no_connect_is_refused() {
    let (met, kept) = ten_exchanges("store", "TERM").await;
    assert_eq!(kept, 1);
    assert_eq!(met.refused.load(Ordering::Relaxed), 0);
    assert_eq!(met.cut.load(Ordering::Relaxed), 0);
}

/// The tests above see it if a socket is closed.
#[tokio::test]
async fn without_a_service_manager_a_restart_refuses_connects() {
    let (met, kept) = ten_exchanges("nothing", "TERM").await;
    assert_eq!(kept, 0);
    assert!(met.refused.load(Ordering::Relaxed) > 0);
}

/// The file of a socket unit belongs to the service manager, and stays.
#[tokio::test]
async fn a_socket_file_of_the_service_manager_is_used_and_stays() {
    let backend = StandInBackend::start(StandInOptions::on_free_ports())
        .await
        .expect("it listens");
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("front.sock");
    let shown = path.display().to_string();
    write_config(
        dir.path(),
        &format!("unix:{shown}"),
        closed_port(),
        backend.socket_addr(),
    );
    let mut exchange = Exchange::start("socket", dir.path(), &[shown]).await;
    for _ in 0..2 {
        let mut stream = UnixStream::connect(&path).await.expect("it listens");
        let call = array("guest_list", "G1");
        stream.write_all(call.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert!(!answer.is_empty());
        exchange.exchange("TERM").await;
    }
}

/// Clients of a listener that a reload removes must not wait for ever.
#[tokio::test]
async fn a_service_manager_forgets_the_socket_of_a_listener_that_is_gone() {
    let backend = StandInBackend::start(StandInOptions::on_free_ports())
        .await
        .expect("it listens");
    let dir = TempDir::new().expect("a folder");
    let (before, after, admin) = (closed_port(), closed_port(), closed_port());
    let listens_on = |listener: SocketAddr| {
        write_config(
            dir.path(),
            &listener.to_string(),
            admin,
            backend.socket_addr(),
        )
    };
    listens_on(before);
    let mut exchange = Exchange::start("store", dir.path(), &[]).await;
    listens_on(after);
    assert_eq!(exchange.exchange("HUP").await, 1);
    assert_eq!(exchange.exchange("TERM").await, 1);
    TcpStream::connect(before)
        .await
        .expect_err("nothing listens");
    TcpStream::connect(after).await.expect("it listens");
}

/// A socket unit makes the files, and removes them. What no listener uses goes to the next process too.
#[tokio::test]
async fn socket_files_of_the_service_manager_stay_when_the_process_ends_that_took_over() {
    let backend = StandInBackend::start(StandInOptions::on_free_ports())
        .await
        .expect("it listens");
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let [used, spare] = ["used.sock", "spare.sock"].map(|name| dir.path().join(name));
    let address = format!("unix:{}", used.display());
    write_config(dir.path(), &address, closed_port(), backend.socket_addr());
    let files = [&used, &spare].map(|file| file.display().to_string());
    let _manager = Exchange::start("socket", dir.path(), &files).await;
    let new = Sidecar::take_over(Arc::clone(&dir)).await;
    new.log().wait(&["the old process has ended"]).await;
    let text = std::fs::read_to_string(new.config_path()).expect("its config");
    let listener = format!(
        "[[listen]]\nname = \"spare\"\nbind = \"unix:{}\"\nprotocol = \"socket\"\n",
        spare.display()
    );
    new.reload(&(text + &listener)).await;
    for file in [&used, &spare] {
        let mut client = UnixStream::connect(file).await.expect("it listens");
        let call = array("guest_list", "X");
        client.write_all(call.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.contains("overallRC"), "{answer}");
    }
    new.signal("TERM");
    let (status, lines) = new.ended().await;
    assert!(status.success(), "{lines:#?}");
    assert!(used.exists() && spare.exists());
}
