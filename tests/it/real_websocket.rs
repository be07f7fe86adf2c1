//! WebSocket between programs that others wrote, through the real process: the package `websockets` at both ends,
//! and Chromium. `tests/peers/websocket` and `tests/browser/socket.mjs` have what is tried.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

use crate::raw_http::{SOON, access_lines, limited, reach_load};
use crate::sidecar::Sidecar;
use crate::support::PATIENCE;

/// A server of `websockets` behind a sidecar that lets 50 calls run at once.
struct Stage {
    sidecar: Sidecar,
    addr: std::net::SocketAddr,
    port: u16,
    _server: Child,
}

/// A program in Python with the packages of `make peers`.
fn python(name: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let venv = root.join(".venv-peers");
    assert!(
        venv.join("complete").exists(),
        "the package `websockets` is not installed; `make peers` does it"
    );
    let mut command = Command::new(venv.join("bin/python"));
    let program = root.join("tests/peers/websocket").join(name);
    command.arg(program).env("PYTHONDONTWRITEBYTECODE", "1");
    command.kill_on_drop(true);
    command
}

impl Stage {
    async fn start() -> Self {
        #[derive(Deserialize)]
        struct Ready {
            ready: u16,
        }
        let mut server = python("server.py")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python runs");
        let stdout = server.stdout.take().expect("it is piped");
        let mut lines = BufReader::new(stdout).lines();
        let line = timeout(PATIENCE, lines.next_line())
            .await
            .expect("it is ready");
        let line = line.expect("text").expect("a line");
        let Ready { ready: port } = serde_json::from_str(&line).expect("its port");
        // What it prints later is for a reader of failures.
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                println!("server: {line}");
            }
        });
        let addr = ([127, 0, 0, 1], port).into();
        let sidecar = Sidecar::start(&limited("outstanding = 50", addr, "", "")).await;
        Self {
            addr: sidecar.listener("test").await,
            sidecar,
            port,
            _server: server,
        }
    }

    /// Runs a program to its good end.
    async fn run(&self, command: &mut Command) {
        let began = Instant::now();
        let command = command.stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(PATIENCE, command.output()).await.expect("it ends");
        let output = output.expect("it runs");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let log = self.sidecar.log().lines().join("\n");
        assert!(output.status.success(), "{out}{err}\n{log}");
        println!("{out}{:.1} s", began.elapsed().as_secs_f64());
        // No tunnel and no slot stays behind.
        reach_load(&self.sidecar, (0, 0), Duration::from_secs(1)).await;
    }
}

/// Tries one thing of `client.py`, which is so many tunnels.
async fn tries(what: &str, tunnels: usize) {
    let stage = Stage::start().await;
    let mut client = python("client.py");
    client.arg(what);
    client.arg(format!("ws://{}", stage.addr));
    client.arg(format!("http://127.0.0.1:{}", stage.port));
    stage.run(&mut client).await;
    for line in access_lines(&stage.sidecar, tunnels).await {
        assert_eq!(line["status"], 101, "{line}");
        assert_eq!(line["reason"], serde_json::Value::Null, "{line}");
    }
}

#[tokio::test]
async fn text_and_bytes_of_any_length_pass() {
    tries("messages", 1).await;
}

#[tokio::test]
async fn messages_of_a_megabyte_pass_both_ways_at_once() {
    tries("megabytes", 2).await;
}

#[tokio::test]
async fn each_end_gets_the_pong_to_its_ping() {
    tries("pings", 2).await;
}

#[tokio::test]
async fn a_message_in_fragments_stays_in_fragments() {
    tries("fragments", 2).await;
}

#[tokio::test]
async fn each_end_sees_the_code_with_which_the_other_closes() {
    tries("closes", 2).await;
}

#[tokio::test]
async fn both_ends_agree_on_compression() {
    tries("deflate", 1).await;
}

#[tokio::test]
async fn a_server_that_refuses_is_heard() {
    tries("refused", 0).await;
}

#[tokio::test]
async fn fifty_sockets_run_at_once_and_the_next_one_waits() {
    tries("fifty", 51).await;
}

/// The browser's own socket, from a page of the same origin. The end of its tab ends the backend's connection.
#[tokio::test]
async fn a_page_in_chromium_opens_a_socket_and_its_end_is_the_sockets_end() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(
        root.join(".browser/complete").exists(),
        "Chromium and its driver are not installed; `make browser` does it"
    );
    let stage = Stage::start().await;
    let mut node = Command::new("node");
    node.arg(PathBuf::from(root).join("tests/browser/socket.mjs"));
    node.env("ADMIN", stage.sidecar.admin.to_string());
    node.env("ORIGIN", format!("http://{}", stage.addr));
    node.env("SERVER", format!("http://127.0.0.1:{}", stage.port));
    stage.run(&mut node).await;
    reach_load(&stage.sidecar, (0, 0), SOON).await;
}
