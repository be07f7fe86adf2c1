//! Other proxies that are replaced in a storm, with the limits that they can express.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_lab::backend::BackendStatistics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{CLIENTS, backend};
use crate::support::{PATIENCE, closed_port};

/// A proxy with 30 calls a second, and 10 at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    HaProxy,
    Nginx,
}

impl Peer {
    pub(super) const ALL: [Self; 2] = [Self::HaProxy, Self::Nginx];

    pub(super) fn program(self) -> &'static str {
        match self {
            Self::HaProxy => "haproxy",
            Self::Nginx => "nginx",
        }
    }

    /// The limits and the way to replace the proxy, for the table.
    pub(super) fn row(self) -> [&'static str; 2] {
        match self {
            Self::HaProxy => ["`gpc0_rate(1s)`, `maxconn`, `peers`", "USR2 (`-W`)"],
            Self::Nginx => ["`limit_req`, `max_conns`", "USR2, QUIT"],
        }
    }

    /// The version; `None` if the proxy is not installed.
    pub(super) async fn version(self) -> Option<String> {
        let said = Command::new(self.program()).arg("-v").output().await.ok()?;
        let text = [said.stdout, said.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        let words = text.split(|it: char| it.is_whitespace() || "/-".contains(it));
        let mut numbers = words.filter(|it| it.starts_with(|it: char| it.is_ascii_digit()));
        numbers.next().map(ToOwned::to_owned)
    }

    fn config(self, addr: SocketAddr, backend: SocketAddr, dir: &Path) -> String {
        let dir = dir.display();
        match self {
            // Only calls that are admitted count. The peer of its own name takes over the counts.
            Self::HaProxy => format!(
                "global\n  maxconn 2000\n  nbthread 1\n  localpeer own\npeers own\n  peer own {}\n\
                 defaults\n  mode http\n  timeout connect 2s\n  timeout client 20s\n  timeout server 20s\n  \
                 timeout queue 15s\nfrontend test\n  bind {addr}\n  default_backend test\n\
                 backend test\n  stick-table type string len 8 size 10 expire 10s store gpc0,gpc0_rate(1s) peers own\n  \
                 http-request track-sc0 str(all)\n  \
                 http-request deny deny_status 429 if {{ sc0_gpc0_rate ge 30 }}\n  \
                 http-request sc-inc-gpc0(0)\n  server one {backend} maxconn 10\n",
                closed_port()
            ),
            Self::Nginx => format!(
                "daemon on; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log;\n\
                 events {{ worker_connections 1000; }}\n\
                 http {{ access_log off; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p;\n\
                 fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n\
                 limit_req_zone $server_name zone=all:1m rate=30r/s;\n\
                 upstream one {{ zone one 64k; server {backend} max_conns=10; }}\n\
                 server {{ listen {addr}; server_name all;\n\
                 location / {{ limit_req zone=all burst=100; limit_req_status 429; proxy_pass http://one; }} }} }}\n"
            ),
        }
    }
}

/// A proxy that is replaced again and again.
struct Running {
    peer: Peer,
    child: Child,
    dir: TempDir,
}

impl Running {
    async fn start(peer: Peer, addr: SocketAddr, backend: SocketAddr) -> Self {
        let dir = TempDir::new().expect("a folder");
        let config = dir.path().join("config");
        fs::write(&config, peer.config(addr, backend, dir.path())).expect("it is ours");
        // nginx starts itself again by the path that it was started by, and only as a daemon.
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let mut paths = std::env::split_paths(&folders).map(|it| it.join(peer.program()));
        let path = paths.find(|it| it.exists()).expect("it is installed");
        let mut command = Command::new(path);
        match peer {
            Peer::HaProxy => command.args(["-W", "-f"]),
            Peer::Nginx => command.arg("-c"),
        };
        let errors = fs::File::create(dir.path().join("errors")).expect("a file");
        let child = command
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .expect("it is installed");
        let running = Self { peer, child, dir };
        let began = Instant::now();
        while TcpStream::connect(addr).await.is_err() {
            let errors = || fs::read_to_string(running.dir.path().join("errors"));
            assert!(began.elapsed() < PATIENCE, "{peer:?}: {:?}", errors());
            sleep(Duration::from_millis(10)).await;
        }
        running
    }

    fn pid_file(&self) -> PathBuf {
        self.dir.path().join("pid")
    }

    fn pid(&self) -> String {
        match self.peer {
            Peer::HaProxy => self.child.id().expect("it runs").to_string(),
            Peer::Nginx => {
                let pid = fs::read_to_string(self.pid_file()).unwrap_or_default();
                pid.trim().to_owned()
            }
        }
    }

    async fn replace(&self) {
        let old = self.pid();
        signal("USR2", &old);
        if self.peer == Peer::HaProxy {
            return;
        }
        let began = Instant::now();
        while [old.as_str(), ""].contains(&self.pid().as_str()) {
            assert!(began.elapsed() < PATIENCE, "no new nginx");
            sleep(Duration::from_millis(2)).await;
        }
        signal("QUIT", &old);
        // The new one takes no order to be replaced before that.
        while is_running(&old) {
            assert!(began.elapsed() < PATIENCE, "the old nginx does not end");
            sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Whether a process has not ended, be it that no parent has asked for its end.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

impl Drop for Running {
    fn drop(&mut self) {
        signal("TERM", &self.pid());
        let _ = self.child.start_kill();
    }
}

fn signal(name: &str, pid: &str) {
    let _ = std::process::Command::new("kill")
        .args([&format!("-{name}"), pid])
        .status();
}

/// Clients that call again and again, and soon again if they are refused.
fn storm(addr: SocketAddr) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(async move {
            let request =
                format!("GET /guests/G{client} HTTP/1.1\r\nHost: all\r\nConnection: close\r\n\r\n");
            loop {
                let called = async {
                    let mut stream = TcpStream::connect(addr).await.ok()?;
                    stream.write_all(request.as_bytes()).await.ok()?;
                    let mut answer = Vec::new();
                    stream.read_to_end(&mut answer).await.ok()?;
                    answer.starts_with(b"HTTP/1.1 200").then_some(())
                };
                if called.await.is_none() {
                    sleep(Duration::from_millis(20)).await;
                }
            }
        });
    }
    clients
}

/// Replaces a proxy under a storm. Returns what the backend saw.
pub(super) async fn replacements(
    peer: Peer,
    times: usize,
    delay: Duration,
    pause: Duration,
) -> (BackendStatistics, Vec<Duration>, Duration) {
    let backend = backend(delay).await;
    let addr = closed_port();
    let proxy = Running::start(peer, addr, backend.http_addr()).await;
    let (clients, began) = (storm(addr), Instant::now());
    for round in 0..times {
        let calls = backend.report().calls + 3 + (7 * round as u64) % 30;
        let reached = backend.wait_until(|report| report.calls >= calls);
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.unwrap_or_else(|_| panic!("{peer:?}: no calls after {round}"));
        proxy.replace().await;
        sleep(pause).await;
    }
    drop(clients);
    (backend.report(), backend.starts(), began.elapsed())
}
