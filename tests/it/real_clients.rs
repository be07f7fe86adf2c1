//! Clients and servers that others wrote, through the real process: no message is refused, cut or changed. The
//! programs are in `tests/peers/http`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::raw_http::service;
use crate::sidecar::Sidecar;
use crate::support::PATIENCE;

fn script(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/peers/http").join(name)
}

fn python() -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".venv-peers/bin/python");
    assert!(python.exists(), "`make peers` installs the clients");
    Command::new(python)
}

/// A server that prints its port, and lines after it.
struct Server {
    port: u16,
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Server {
    async fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stdin(Stdio::piped());
        let mut child = child.kill_on_drop(true).spawn().expect("it starts");
        let stdout = child.stdout.take().expect("it is piped");
        let mut lines = BufReader::new(stdout).lines();
        let port = timeout(PATIENCE, lines.next_line()).await;
        let port = port.expect("it is ready soon").expect("it can be read");
        let port = port.expect("a port").parse().expect("a number");
        Self {
            port,
            lines,
            _child: child,
        }
    }

    /// A sidecar in front of it, and its address.
    async fn sidecar(&self) -> (Sidecar, String) {
        let addr = ([127, 0, 0, 1], self.port).into();
        let sidecar = Sidecar::start(&service(addr, "", "")).await;
        let base = format!("http://{}", sidecar.listener("test").await);
        (sidecar, base)
    }
}

/// Runs a client, which prints `ok` if all was as it should be.
async fn succeeds(command: &mut Command) {
    let ran = timeout(
        4 * PATIENCE,
        command.stdin(Stdio::null()).kill_on_drop(true).output(),
    );
    let ran = ran.await.expect("it ends").expect("it starts");
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success() && out.ends_with("ok\n"), "{out}{err}");
}

async fn python_client_succeeds(name: &str) {
    let server = Server::start(python().arg(script("service.py"))).await;
    let (_sidecar, base) = server.sidecar().await;
    succeeds(python().arg(script("clients.py")).args([name, &base])).await;
}

#[tokio::test]
async fn requests_gets_every_reply_whole() {
    python_client_succeeds("requests").await;
}

#[tokio::test]
async fn httpx_gets_every_reply_whole() {
    python_client_succeeds("httpx").await;
}

#[tokio::test]
async fn aiohttp_gets_every_reply_whole() {
    python_client_succeeds("aiohttp").await;
}

#[tokio::test]
async fn pythons_own_client_gets_every_reply_whole() {
    python_client_succeeds("http.client").await;
}

#[tokio::test]
async fn node_gets_every_reply_whole() {
    let server = Server::start(python().arg(script("service.py"))).await;
    let (_sidecar, base) = server.sidecar().await;
    succeeds(Command::new("node").arg(script("clients.mjs")).arg(base)).await;
}

#[tokio::test]
async fn java_gets_every_reply_whole() {
    let server = Server::start(python().arg(script("service.py"))).await;
    let (_sidecar, base) = server.sidecar().await;
    succeeds(Command::new("java").arg(script("Clients.java")).arg(base)).await;
}

#[tokio::test]
async fn curl_gets_every_reply_whole_also_of_an_upload_that_waits_for_permission() {
    let server = Server::start(python().arg(script("service.py"))).await;
    let (_sidecar, base) = server.sidecar().await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("body");
    std::fs::write(&file, vec![b'b'; 3 << 20]).expect("there is room");
    let upload = format!("@{}", file.display());
    // The status, and how many bytes came.
    let show = [
        "-sS",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code} %{size_download}\nok\n",
    ];
    for (path, more, wanted) in [
        ("/large", &[][..], "200 5242880\n"),
        ("/chunks", &["--http1.0"], "200 5242880\n"),
        ("/close", &["--http1.0"], "200 5242880\n"),
        ("/close", &[], "200 5242880\n"),
        ("/length", &["--data-binary", &upload], "200 7\n"),
        (
            "/length",
            &["-H", "Expect: 100-continue", "--data-binary", &upload],
            "200 7\n",
        ),
        (
            "/length",
            &["-H", "Transfer-Encoding: chunked", "--data-binary", &upload],
            "200 7\n",
        ),
        (
            "/refuse",
            &["-H", "Expect:", "--data-binary", &upload],
            "413 9\n",
        ),
    ] {
        let mut curl = Command::new("curl");
        curl.args(show).args(more).arg(format!("{base}{path}"));
        let ran = timeout(PATIENCE, curl.kill_on_drop(true).output()).await;
        let ran = ran.expect("it ends").expect("it starts");
        let out = String::from_utf8_lossy(&ran.stdout);
        let err = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(out, format!("{wanted}ok\n"), "{path} {more:?}: {err}");
    }
}

/// The package `websockets` at both ends: text, bytes, a megabyte, a message in parts, ping, compression, 20 at once.
#[tokio::test]
async fn websockets_talk_through_a_tunnel_and_both_sides_see_the_close() {
    let mut server = Server::start(python().arg(script("sockets.py")).arg("server")).await;
    let (_sidecar, base) = server.sidecar().await;
    let url = base.replace("http://", "ws://");
    succeeds(python().arg(script("sockets.py")).arg(url)).await;
    for _ in 0..22 {
        let line = timeout(Duration::from_secs(5), server.lines.next_line()).await;
        let line = line.expect("each connection ends").expect("it can be read");
        assert_eq!(line.as_deref(), Some("closed 4001"));
    }
}
